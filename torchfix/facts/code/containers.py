"""What lists, dictionaries and namespaces hold: what the program writes into them where it makes them, and later.

Known or None: a container to which something is added in a way that is not seen holds nothing that is known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from torchfix.facts.code.classes import store_at
from torchfix.facts.code.tree import dotted

if TYPE_CHECKING:
    from torchfix.facts import Facts

Entry: TypeAlias = "tuple[ast.expr | None, ast.expr]"

_DICTIONARIES = ("builtins.dict", "collections.OrderedDict")
# What makes an object whose attributes are the keywords that it is given.
NAMESPACES = ("types.SimpleNamespace", "argparse.Namespace", "munch.Munch", "easydict.EasyDict", "addict.Dict", "box.Box")
_ADDING = ("append", "insert")
_MOVING = ("extend", "update", "setdefault")


def entries(facts: Facts, table: ast.AST) -> list[Entry] | None:
    """The keys and values of a dictionary, written out and stored later; a key is None where it may be any.

    None for what is no dictionary that the program writes out, and where entries come in another way.
    """
    written = _written(facts, table)
    variable = _variable(facts, table)
    stored = stored_entries(facts, variable) if variable is not None else []
    return None if written is None or stored is None else [*written, *stored]


def _written(facts: Facts, table: ast.AST) -> list[Entry] | None:
    if isinstance(table, ast.DictComp):
        return [(None, table.value)]
    if isinstance(table, ast.Dict) and None not in table.keys:
        return list(zip(table.keys, table.values))
    if isinstance(table, ast.Call) and not table.args and facts.calls.meaning(table) in _DICTIONARIES:
        if all(item.arg is not None for item in table.keywords):
            return [(ast.Constant(item.arg), item.value) for item in table.keywords]
    return None


def stored_entries(facts: Facts, variable: ast.expr) -> list[Entry] | None:
    """What ``table[key] = value`` adds in this file; None where entries come in another way."""
    found: list[Entry] = []
    for use in uses(facts, variable):
        parent = facts.tree.parent(use)
        if isinstance(parent, ast.Attribute) and parent.attr in _MOVING:
            return None
        if isinstance(parent, ast.Subscript) and parent.value is use and isinstance(parent.ctx, ast.Store):
            store = store_at(facts, parent)
            if store.value is None or store.path:
                return None
            found.append((parent.slice, store.value))
    return found


def added(facts: Facts, items: ast.List) -> list[ast.expr] | None:
    """What is put into a list later, through the variable that it is made for; None where something else comes in."""
    variable = _variable(facts, items)
    found: list[ast.expr] = []
    for use in uses(facts, variable) if variable is not None else ():
        parent = facts.tree.parent(use)
        if isinstance(parent, ast.Attribute) and parent.attr in _MOVING:
            return None
        call = facts.tree.parent(parent) if isinstance(parent, ast.Attribute) and parent.attr in _ADDING else None
        if isinstance(call, ast.Call) and call.func is parent:
            found += call.args[-1:]
        if isinstance(parent, ast.Subscript) and parent.value is use and isinstance(parent.ctx, ast.Store):
            store = store_at(facts, parent)
            if store.value is None or store.path or isinstance(parent.slice, ast.Slice):
                return None
            found.append(store.value)
        if isinstance(parent, ast.AugAssign) and parent.target is use:
            return None
    return found


def may_be_key(written: ast.expr | None, asked: list[object] | None) -> bool:
    """Whether a written key may be one of those that are asked for, None for any: two different constants are not."""
    return not isinstance(written, ast.Constant) or asked is None or written.value in asked


def uses(facts: Facts, variable: ast.expr) -> Iterator[ast.expr]:
    """The uses of the same variable in its file, or of the same attribute of the same variable."""
    name, root = dotted(variable), root_of(variable)
    if isinstance(variable, ast.Name):
        yield from facts.names.uses(variable)
    elif isinstance(variable, ast.Attribute) and name is not None and root is not None:
        for use in facts.tree.attributes.get(variable.attr, ()):
            base = root_of(use)
            if base is not None and dotted(use) == name and (facts.names.same(base, root) or _same_object(facts, base, root)):
                yield use


def _same_object(facts: Facts, one: ast.Name, other: ast.Name) -> bool:
    return facts.is_self(one) and facts.is_self(other) and facts.tree.method_class(one) is facts.tree.method_class(other)


def root_of(node: ast.expr) -> ast.Name | None:
    """The variable at the bottom of a chain of attributes."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def _variable(facts: Facts, made: ast.AST) -> ast.expr | None:
    """The variable or attribute to which a container is assigned as it is made."""
    statement = facts.tree.parent(made)
    if isinstance(statement, ast.AnnAssign) and statement.value is made:
        return statement.target
    targets = statement.targets if isinstance(statement, ast.Assign) and statement.value is made else []
    return targets[0] if len(targets) == 1 else None
