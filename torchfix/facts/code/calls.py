"""Calls by meaning, and their arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.tree import last_name

if TYPE_CHECKING:
    from torchfix.facts import Facts

CLOCKS = (
    "time.time",
    "time.perf_counter",
    "time.monotonic",
    "time.process_time",
    "time.time_ns",
    "time.perf_counter_ns",
    "timeit.default_timer",
)
"""The calls that read a clock."""


class Calls:
    """The calls of one file, found by what they call."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def to(self, *names: str) -> Iterator[ast.Call]:
        """All calls of the torch functions or classes with these dotted names, in text order."""
        found = []
        for name in {local for full in names for local in self._locals(full)}:
            found += [call for call in self._facts.tree.calls.get(name, ()) if self.meaning(call) in names]
        return iter(sorted(set(found), key=lambda call: (call.lineno, call.col_offset)))

    def _locals(self, name: str) -> set[str]:
        """The last names under which a dotted name may be called here: its own, and what imports and aliases made of it."""
        last = name.rpartition(".")[2]
        local = {last}
        for imported in self._facts.tree.imports:
            local |= {alias.asname for alias in imported.names if alias.asname and alias.name.rpartition(".")[2] == last}
        for statement in self._facts.tree.module.body:
            if isinstance(statement, ast.Assign) and last_name(statement.value) == last:
                local |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
        return local

    def meaning(self, call: ast.Call) -> str | None:
        """The dotted name of what a call calls, None where it is not known."""
        return self._facts.names.qualified(call.func)

    def tail(self, call: ast.Call) -> str:
        """The text of a method call without the object: ``.to(device)`` of ``x.to(device)``."""
        assert isinstance(call.func, ast.Attribute)
        return self._facts.source.segment(call)[len(self._facts.source.segment(call.func.value)) :]

    def methods(self, *names: str) -> Iterator[ast.Call]:
        """All calls of attributes with these names (``x.cuda()``), whatever ``x`` is, in text order."""
        found = [call for name in names for call in self._facts.tree.calls.get(name, ()) if isinstance(call.func, ast.Attribute)]
        return iter(sorted(found, key=lambda call: (call.lineno, call.col_offset, call.end_lineno or 0, call.end_col_offset or 0)))


def argument(call: ast.Call, name: str, index: int | None = None) -> ast.expr | None:
    """The value of an argument given by keyword or at a position, None where it is absent or hidden by ``*``."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if index is None or index >= len(call.args) or any(isinstance(item, ast.Starred) for item in call.args[: index + 1]):
        return None
    return call.args[index]


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    """A call's keyword by name."""
    return next((item for item in call.keywords if item.arg == name), None)


def has_stars(call: ast.Call) -> bool:
    """Whether arguments are hidden behind ``*args`` or ``**kwargs``."""
    return any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords)


def is_constant(expression: ast.expr | None, value: object) -> bool:
    """Whether an expression is the literal ``value``, of the same type."""
    return isinstance(expression, ast.Constant) and type(expression.value) is type(value) and expression.value == value


def receiver(call: ast.Call) -> ast.expr | None:
    """The object whose method a call calls."""
    return call.func.value if isinstance(call.func, ast.Attribute) else None
