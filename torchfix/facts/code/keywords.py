"""Keyword arguments out of dictionaries: what ``f(x, **options)`` is given, and which other calls are given the same.

Only dictionaries that one file writes out and keeps in sight are known: displays, ``dict(...)``, entries stored later and
what ``update`` adds, through variables of that file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.scopes import Bound

if TYPE_CHECKING:
    from torchfix.facts import Facts

_READING = ("get", "items", "keys", "values", "copy")


@dataclass(frozen=True, eq=False)
class Table:
    """One place that writes entries: ``{"a": 1}``, ``dict(a=1)``, ``options.update(a=1)`` or ``options["a"] = 1``."""

    node: ast.Dict | ast.Call | ast.Assign

    def entry(self, name: str) -> ast.expr | None:
        """The value that it writes for a key, None where it does not."""
        return next((value for key, value in self.entries() if key == name), None)

    def entries(self) -> Iterator[tuple[str, ast.expr]]:
        """The keys and values that it writes."""
        node = self.node
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values):
                if isinstance(key, ast.Constant):
                    yield str(key.value), value
        elif isinstance(node, ast.Call):
            yield from ((item.arg, item.value) for item in node.keywords if item.arg is not None)
        else:
            (target,) = node.targets
            assert isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
            yield str(target.slice.value), node.value


def tables(facts: Facts, call: ast.Call) -> tuple[Table, ...] | None:
    """The tables from which a call may take keyword arguments; None where arguments are, or may be, out of sight."""
    if any(isinstance(item, ast.Starred) for item in call.args):
        return None
    return _all(facts, [item.value for item in call.keywords if item.arg is None], frozenset())


def takers(facts: Facts, table: Table) -> tuple[ast.Call, ...] | None:
    """The calls that may take keyword arguments from a table; None where its entries may go elsewhere."""
    found = _takers(facts, table.node, frozenset())
    return None if found is None else tuple(dict.fromkeys(found))


def _all(facts: Facts, expressions: list[ast.expr], seen: frozenset[ast.AST]) -> tuple[Table, ...] | None:
    found: dict[ast.AST, Table] = {}
    for expression in expressions:
        inner = _written(facts, expression, seen)
        if inner is None:
            return None
        found |= {table.node: table for table in inner}
    return tuple(found.values())


def _written(facts: Facts, expression: ast.expr, seen: frozenset[ast.AST]) -> tuple[Table, ...] | None:
    if expression in seen:
        return ()
    seen = seen | {expression}
    if isinstance(expression, ast.IfExp):
        return _all(facts, [expression.body, expression.orelse], seen)
    if isinstance(expression, ast.Dict):
        return _display(facts, expression, seen)
    if isinstance(expression, ast.Call):
        return _made(facts, expression, seen)
    return _variable(facts, expression, seen) if isinstance(expression, ast.Name) else None


def _display(facts: Facts, node: ast.Dict, seen: frozenset[ast.AST]) -> tuple[Table, ...] | None:
    if not all(key is None or (isinstance(key, ast.Constant) and isinstance(key.value, str)) for key in node.keys):
        return None
    inner = _all(facts, [value for key, value in zip(node.keys, node.values) if key is None], seen)
    return None if inner is None else (*inner, Table(node))


def _made(facts: Facts, call: ast.Call, seen: frozenset[ast.AST]) -> tuple[Table, ...] | None:
    """``dict(...)``, ``options.copy()``, and what ``options.update(...)`` adds."""
    func = call.func
    if isinstance(func, ast.Attribute) and func.attr == "copy" and not call.args:
        return _written(facts, func.value, seen)
    update = isinstance(func, ast.Attribute) and func.attr == "update"
    if not update and facts.calls.meaning(call) != "builtins.dict":
        return None
    inner = _all(facts, [*call.args, *(item.value for item in call.keywords if item.arg is None)], seen)
    return None if inner is None else (*inner, Table(call))


def _variable(facts: Facts, name: ast.Name, seen: frozenset[ast.AST]) -> tuple[Table, ...] | None:
    bindings = facts.names.bindings(name)
    if not bindings or any(binding.how is not Bound.ASSIGN or binding.path or binding.value is None for binding in bindings):
        return None
    added: list[ast.expr] = [binding.value for binding in bindings if binding.value is not None]
    stored: list[Table] = []
    for use in facts.names.uses(name):
        parent = facts.tree.parent(use)
        statement = facts.tree.parent(parent) if parent is not None else None
        if isinstance(use.ctx, ast.Store):
            continue
        if isinstance(parent, ast.Subscript) and parent.value is use and not isinstance(parent.ctx, ast.Load):
            if not _is_plain_store(parent, statement):
                return None
            assert isinstance(statement, ast.Assign)
            stored.append(Table(statement))
        elif isinstance(parent, ast.Attribute) and parent.attr == "update" and isinstance(statement, ast.Call):
            added.append(statement)
        elif not _is_known_use(facts, use, parent):
            return None
    inner = _all(facts, added, seen)
    return None if inner is None else (*inner, *stored)


def _is_plain_store(entry: ast.Subscript, statement: ast.AST | None) -> bool:
    """Whether an entry is set by ``options["key"] = value``."""
    key = entry.slice
    plain = isinstance(statement, ast.Assign) and len(statement.targets) == 1 and statement.targets[0] is entry
    return plain and isinstance(key, ast.Constant) and isinstance(key.value, str)


def _is_known_use(facts: Facts, use: ast.Name, parent: ast.AST | None) -> bool:
    """Whether a use of a variable leaves its entries as they are, and shows where they go."""
    if isinstance(parent, ast.keyword):
        return parent.arg is None
    if isinstance(parent, ast.Attribute):
        return parent.attr in _READING
    if isinstance(parent, ast.Call) and use in parent.args:
        update = isinstance(parent.func, ast.Attribute) and parent.func.attr == "update"
        return update or facts.calls.meaning(parent) in ("builtins.dict", "builtins.len", "builtins.print")
    return isinstance(parent, (ast.Subscript, ast.Compare, ast.Dict, ast.FormattedValue))


def _takers(facts: Facts, node: ast.AST, seen: frozenset[ast.AST]) -> list[ast.Call] | None:
    if node in seen:
        return []
    seen = seen | {node}
    parent = facts.tree.parent(node)
    if isinstance(node, ast.Assign):
        (target,) = node.targets
        assert isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)
        return _takers_of_variable(facts, target.value, seen)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
        base = node.func.value
        return _takers_of_variable(facts, base, seen) if isinstance(base, ast.Name) and isinstance(parent, ast.Expr) else None
    if isinstance(parent, ast.keyword):
        call = facts.tree.parent(parent)
        if parent.arg is not None or not isinstance(call, ast.Call):
            return None
        return _takers(facts, call, seen) if _is_table(facts, call) else [call]
    if isinstance(parent, ast.Call) and node in parent.args:
        return _takers(facts, parent, seen) if _is_table(facts, parent) else None
    if isinstance(parent, (ast.IfExp, ast.Dict)):
        return _takers(facts, parent, seen)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        return _takers_of_variable(facts, parent.targets[0], seen)
    return None


def _is_table(facts: Facts, call: ast.Call) -> bool:
    """Whether a call makes a dictionary of what it is given, or adds it to one."""
    update = isinstance(call.func, ast.Attribute) and call.func.attr == "update"
    return update or facts.calls.meaning(call) == "builtins.dict"


def _takers_of_variable(facts: Facts, name: ast.Name, seen: frozenset[ast.AST]) -> list[ast.Call] | None:
    found: list[ast.Call] = []
    if facts.names.lookup(name.id, name) is None or _leaves(facts, name):
        return None
    for use in facts.names.uses(name):
        parent = facts.tree.parent(use)
        if isinstance(use.ctx, ast.Store) or isinstance(parent, (ast.Subscript, ast.Compare, ast.FormattedValue)):
            continue
        if isinstance(parent, ast.Attribute):
            if parent.attr not in (*_READING, "update") or parent.attr == "copy":
                return None
            continue
        reader = isinstance(parent, ast.Call) and facts.calls.meaning(parent) in ("builtins.len", "builtins.print")
        inner = [] if reader else _takers(facts, use, seen)
        if inner is None:
            return None
        found += inner
    return found


def _leaves(facts: Facts, name: ast.Name) -> bool:
    """Whether other files may read a variable: one of the module that they name."""
    found = facts.names.lookup(name.id, name)
    return found is not None and found[0] is facts.names.module and facts.project.mentions(name.id, facts.path)
