"""Functions and classes that a program keeps under a name and only ever calls: ``make = torch.autocast``, ``with make():``.

Followed by name, more rather than less: whatever has that name in a file of the program may be the one that is kept.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.scopes import parameters
from torchfix.facts.code.tree import FUNCTIONS, last_name
from torchfix.facts.code.values import passed

if TYPE_CHECKING:
    from torchfix.facts import Facts


def kept_under(facts: Facts, node: ast.expr) -> str | None:
    """The name under which an expression's value is kept: a variable's, an attribute's, a keyword's or a default's."""
    parent = facts.tree.parent(node)
    if isinstance(parent, ast.IfExp) and node is not parent.test:
        return kept_under(facts, parent)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        return last_name(parent.targets[0])
    if isinstance(parent, ast.keyword):
        return parent.arg
    if isinstance(parent, ast.arguments):
        listed = [*parent.posonlyargs, *parent.args]
        pairs = [*zip(listed[::-1], parent.defaults[::-1]), *zip(parent.kwonlyargs, parent.kw_defaults)]
        return next((item.arg for item, default in pairs if default is node), None)
    return None


def is_only_called(facts: Facts, name: str) -> bool:
    """Whether what a program keeps under a name is nowhere given arguments by position, and never goes by another name.

    It may be stored, passed and compared under the same name.
    """
    for there in facts.program.holding(name):
        uses = [*there.tree.names.get(name, ()), *there.tree.attributes.get(name, ())]
        if there.names.locals_of(name) != {name} or not all(_is_plain(there, use, name) for use in uses):
            return False
        if f'"{name}"' in there.source.text or f"'{name}'" in there.source.text:
            return False  # read by its name
    return True


def _is_plain(facts: Facts, use: ast.Name | ast.Attribute, name: str) -> bool:
    if not isinstance(use.ctx, ast.Load):
        return True
    parent = facts.tree.parent(use)
    if isinstance(parent, ast.Call) and parent.func is use:
        return not parent.args
    if isinstance(parent, ast.Call):
        found = list(called(facts, parent))
        return bool(found) and all(_receives(home, function, parent, use) == name for home, function in found)
    if isinstance(parent, ast.Compare):
        return all(isinstance(operator, (ast.Is, ast.IsNot)) for operator in parent.ops)
    return kept_under(facts, use) == name


def _receives(home: Facts, function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call, given: ast.expr) -> str | None:
    """The parameter of a function that is given an expression."""
    assert isinstance(function, FUNCTIONS)
    bound = home.tree.class_of(function) is not None
    return next((item.arg for item in parameters(function.args) if passed(call, function, item, bound) is given), None)
