"""Whether two expressions may name the same object: the calls, nearest to each, that made what it holds.

Where :mod:`torchfix.facts.code.values` follows a value through the functions that return it, this stops at their calls: two
calls of one function give two objects.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, TypeAlias

from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import FUNCTIONS
from torchfix.facts.code.values import is_default, passed

if TYPE_CHECKING:
    from torchfix.facts import Facts

_LIMIT = 12  # steps followed back
Maker: TypeAlias = "tuple[ast.AST, tuple[int, ...]]"


def may_be_same(facts: Facts, one: ast.expr, there: Facts, other: ast.expr) -> bool:
    """Whether two expressions may name one object; True where the making of one of them is out of sight."""
    first, second = makers(facts, one), makers(there, other)
    return first is None or second is None or not first.isdisjoint(second)


def makers(facts: Facts, expression: ast.expr, _depth: int = 0) -> frozenset[Maker] | None:
    """The calls that may have made what an expression holds, each with the part taken of it; None where one is not known."""
    if _depth > _LIMIT:
        return None
    if isinstance(expression, ast.Call):
        return frozenset([(expression, ())])
    if isinstance(expression, ast.Constant):
        return frozenset()
    if isinstance(expression, ast.IfExp):
        return _all([makers(facts, item, _depth + 1) for item in (expression.body, expression.orelse)])
    if isinstance(expression, ast.Name):
        bindings = facts.flow.reaching(expression)
        return _all([_of_binding(facts, binding, _depth) for binding in bindings]) if bindings else None
    if isinstance(expression, ast.Attribute):
        assigned = facts.values.assigned(expression)
        return _all([_of_assigned(facts, value, path, _depth) for value, path in assigned]) if assigned else None
    return None


def _of_binding(facts: Facts, binding: Binding, depth: int) -> frozenset[Maker] | None:
    if binding.how is Bound.ASSIGN and binding.value is not None:
        return _of_assigned(facts, binding.value, binding.path, depth)
    if binding.how is Bound.PARAMETER and isinstance(binding.node, ast.arg):
        signature = facts.tree.parent(binding.node)
        function = facts.tree.parent(signature) if signature is not None else None
        calls = facts.callers_everywhere(function) if isinstance(function, FUNCTIONS) else None
        if not calls or not isinstance(function, FUNCTIONS):
            return None
        found: list[frozenset[Maker] | None] = []
        for home, call in calls:
            given = passed(call, function, binding.node, bound=facts.tree.class_of(function) is not None)
            found.append(makers(facts if is_default(given, function) else home, given, depth + 1) if given is not None else None)
        return _all(found)
    if binding.how is Bound.IMPORT and isinstance(binding.node, ast.ImportFrom):
        module = facts.project.module(binding.node.module or "", facts.path, binding.node.level)
        bindings = module.names.module.bindings.get(binding.origin.rpartition(".")[2], []) if module is not None else []
        return _all([_of_binding(module, item, depth + 1) for item in bindings]) if module is not None and bindings else None
    return None


def _of_assigned(facts: Facts, value: ast.expr, path: tuple[int, ...], depth: int) -> frozenset[Maker] | None:
    if not path:
        return makers(facts, value, depth + 1)
    if isinstance(value, (ast.Tuple, ast.List)) and path[0] < len(value.elts):
        return _of_assigned(facts, value.elts[path[0]], path[1:], depth + 1)
    return frozenset([(value, path)]) if isinstance(value, ast.Call) else None


def _all(found: list[frozenset[Maker] | None]) -> frozenset[Maker] | None:
    known = [item for item in found if item is not None]
    return frozenset().union(*known) if len(known) == len(found) else None
