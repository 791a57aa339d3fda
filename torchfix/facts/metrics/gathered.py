"""Lists in which each iteration of a loop collects a number that it reads from the device.

``losses.append(loss.item())`` makes the host wait on each iteration for a number that is needed behind the loop only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import receiver
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import LOOPS, LoopNode, walk_here
from torchfix.facts.metrics.accumulators import Addition

if TYPE_CHECKING:
    from torchfix.facts import Facts


@dataclass(frozen=True, eq=False)
class Gathered:
    """A list of numbers from the device.

    Args:
        name: the variable, where the loop first puts something in.
        loop: the loop on each of whose iterations a number is read and put in.
        entries: the statements that put something in, in text order.
        starts: the bindings in front of the loop that make the list, empty; none where it is not seen to begin so.
        resets: the statements in the loop that begin the list anew, empty.
        whole: the outermost loop through which the list grows from its start on.
        used: where something else is done with the list before ``whole`` is through, in text order.
        is_used_outside: whether anything reads the list behind ``whole``.
    """

    name: ast.Name
    loop: LoopNode
    entries: tuple[Addition, ...]
    starts: tuple[Binding, ...]
    resets: tuple[ast.stmt, ...]
    whole: LoopNode
    used: tuple[ast.Name, ...]
    is_used_outside: bool


class Gatherings:
    """Questions about the lists of numbers of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def all(self) -> tuple[Gathered, ...]:
        """Every list into which some loop puts a number that it reads on each iteration, in text order."""
        found: list[Gathered] = []
        if not any(True for statement in self._facts.scalars.statements for _ in gathered(statement)):
            return ()  # without asking which loops there are
        for loop in self._facts.cadence.loops:
            seen: set[str] = set()
            for statement in (node for item in loop.body for node in walk_here(item)):
                target = next((name for name, value in gathered(statement) if self._facts.scalars.is_read_each_time(value, loop)), None)
                if isinstance(target, ast.Name) and target.id not in seen:
                    seen.add(target.id)
                    found.append(self._made(target, loop))
        return tuple(sorted(found, key=lambda item: (item.name.lineno, item.name.col_offset)))

    def _made(self, target: ast.Name, loop: LoopNode) -> Gathered:
        tree, names = self._facts.tree, self._facts.names
        bindings = [item for item in names.bindings(target) if item.how is not Bound.AUGMENTED]
        empty = all(self._makes_empty_list(item) for item in bindings)
        starts = tuple(item for item in bindings if not tree.is_within(item.node, loop)) if empty else ()
        resets = tuple(tree.statement(item.node) for item in bindings if tree.is_within(item.node, loop))
        whole = loop
        for outer in tree.ancestors(loop):
            inside = not starts or any(tree.is_within(item.node, outer) for item in starts)
            if isinstance(outer, LOOPS) and tree.function(outer) is tree.function(loop) and not inside:
                whole = outer
        entries, inner = [], {id(name) for item in bindings for name in ast.walk(item.node) if empty and not isinstance(item.node, ast.arg)}
        for statement in (node for item in loop.body for node in walk_here(item)):
            for name, value in gathered(statement):
                if isinstance(name, ast.Name) and isinstance(statement, ast.stmt) and name.id == target.id and names.same(name, target):
                    entries.append(Addition(statement, value, tuple(self._facts.scalars.within(value))))
                    inner.add(id(name))
        uses = [use for use in names.uses(target) if id(use) not in inner]
        early = tuple(use for use in uses if use.lineno <= (whole.end_lineno or whole.lineno))
        return Gathered(target, loop, tuple(entries), starts, resets, whole, early, len(early) < len(uses))

    def _makes_empty_list(self, binding: Binding) -> bool:
        values = self._facts.values.bound([binding]) if binding.how is Bound.ASSIGN else None
        return bool(values) and all(not value.path and _is_empty_list(value.node) for value in values or ())


def gathered(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The list to which a statement appends, with what it puts in: ``losses.append(x)``, ``losses += [x]``."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append"), args=[value], keywords=[]) as call):
            source = receiver(call)
            if source is not None:
                yield source, value
        case ast.AugAssign(op=ast.Add(), value=ast.List(elts=[value])):
            yield node.target, value


def _is_empty_list(value: ast.AST) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "list" and not value.args and not value.keywords
    return isinstance(value, ast.List) and not value.elts
