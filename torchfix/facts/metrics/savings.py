"""Readings of the device that can be saved: made twice, made too early, made for nothing, or made of too much."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.tree import COMPREHENSIONS, FUNCTIONS, last_name
from torchfix.facts.metrics.readings import Reading, Way

if TYPE_CHECKING:
    from torchfix.facts import Facts

_COMPARISONS = ("eq", "ne", "gt", "ge", "lt", "le", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not")
# Reductions of truth values that count or decide, so that every device gives the same result.
_COUNTING = ("sum", "any", "all")
_AT_ONCE = ("builtins.float", "builtins.int", "builtins.bool")


@dataclass(frozen=True, eq=False)
class Repetition:
    """A number that one iteration reads several times.

    Args:
        first: where it is read first, on every way to the others.
        again: the later readings, whose value is the same.
        variable: the variable that the first reading is assigned to and that still holds it there; None without one.
    """

    first: Reading
    again: tuple[Reading, ...]
    variable: str | None


@dataclass(frozen=True, eq=False)
class Count:
    """A count of truth values that copies them all to the host and counts there.

    Args:
        reduction: the call that counts.
        mask: the truth values on the device.
        at_once: whether the count is read as a number right where it is made.
    """

    reduction: ast.Call
    mask: ast.expr
    at_once: bool


class Savings:
    """Questions about what one file need not read."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    # Twice ----------------------------------------------------------------------------------------------------

    @cached_property
    def repetitions(self) -> tuple[Repetition, ...]:
        """The numbers that an iteration reads several times though they are the same, in text order.

        What is to be read behind the loop is none of them.
        """
        alike: dict[tuple[object, ...], list[Reading]] = defaultdict(list)
        for reading in self._facts.readings.all:
            if self._gives_number(reading) and not self._facts.gains.leaves(reading):
                alike[ast.dump(reading.node), reading.iteration.loop, self._facts.tree.function(reading.node)].append(reading)
        found: list[Repetition] = []
        for readings in alike.values():
            while len(readings) > 1:
                first, *later = readings
                again = tuple(reading for reading in later if self._is_same(first, reading)) if self.comes_first(first) else ()
                if again:
                    found.append(Repetition(first, again, self._variable(first, again)))
                readings = [reading for reading in later if reading not in again]
        return tuple(sorted(found, key=lambda item: (item.first.node.lineno, item.first.node.col_offset)))

    def _gives_number(self, reading: Reading) -> bool:
        return reading.way is Way.NUMBER and isinstance(reading.node, ast.Call) and last_name(reading.node.func) != "tolist"

    def comes_first(self, reading: Reading) -> bool:
        """Whether a reading is made whenever its statement runs, once, so that it may be made in front of the statement."""
        tree = self._facts.tree
        node: ast.AST = reading.node
        for outer in tree.ancestors(node):
            if isinstance(outer, (ast.Lambda, ast.While, *COMPREHENSIONS)) or (isinstance(outer, ast.Assert) and node is outer.msg):
                return False
            if isinstance(outer, ast.IfExp) and node is not outer.test:
                return False
            if isinstance(outer, ast.BoolOp) and node is not outer.values[0]:
                return False
            if isinstance(outer, ast.stmt):
                owner, block, _ = tree.place(outer)
                return not (isinstance(outer, ast.If) and isinstance(owner, ast.If) and block is owner.orelse)
            node = outer
        return False

    def _is_same(self, first: Reading, later: Reading) -> bool:
        """Whether a later reading gives what the first one gave."""
        facts, tree = self._facts, self._facts.tree
        if any(isinstance(outer, ast.Lambda) for outer in tree.ancestors(later.node)):
            return False
        if not facts.stability.is_alike(first.node, later.node):
            return False
        span = facts.stability.span(tree.statement(first.node), tree.statement(later.node))
        return span is not None and facts.stability.keeps(first.node, span)

    def _variable(self, first: Reading, again: tuple[Reading, ...]) -> str | None:
        facts, tree = self._facts, self._facts.tree
        statement = tree.statement(first.node)
        if not isinstance(statement, ast.Assign) or statement.value is not first.node or len(statement.targets) != 1:
            return None
        target = statement.targets[0]
        if not isinstance(target, ast.Name):
            return None
        spans = [facts.stability.span(statement, tree.statement(reading.node)) or [] for reading in again]
        for use in facts.names.uses(target):
            changed = use is not target and not isinstance(use.ctx, ast.Load)
            between = any(tree.is_within(use, item) for span in spans for item in span)
            if changed and (between or tree.function(use) is not tree.function(target)):
                return None
        return target.id

    def _is_repeated(self, statement: ast.stmt) -> bool:
        """Whether a statement takes part in a repetition, so that its reading is needed where it stands."""
        readings = (reading for item in self.repetitions for reading in (item.first, *item.again))
        return any(self._facts.tree.is_within(reading.node, statement) for reading in readings)

    def is_needless(self, reading: Reading) -> bool:
        """Whether an iteration can do without a reading, since nobody uses it, or only few iterations do."""
        return self._is_unused(reading) or self._later_place(reading) is not None

    # Too early ------------------------------------------------------------------------------------------------

    def later_place(self, reading: Reading) -> tuple[ast.Assign, ast.stmt] | None:
        """The assignment of a reading that only some iterations use, and the statement under their guard that it may stand before."""
        return None if self._is_repeated(self._facts.tree.statement(reading.node)) else self._later_place(reading)

    def _later_place(self, reading: Reading) -> tuple[ast.Assign, ast.stmt] | None:
        facts, tree = self._facts, self._facts.tree
        statement = tree.statement(reading.node)
        target = facts.flow.only_variable(statement)
        if target is None or not isinstance(statement, ast.Assign) or facts.readings.is_timed(reading):
            return None
        uses = [use for use in facts.names.uses(target) if use is not target]
        _, block, index = tree.place(statement)
        guards = [item for item in block[index + 1 :] if isinstance(item, ast.If) and any(tree.is_within(use, item) for use in uses)]
        if len(guards) != 1 or any(facts.cadence.iteration(use) is not None for use in uses):
            return None
        inside = [next((item for item in guards[0].body if tree.is_within(use, item)), None) for use in uses]
        if None in inside or any(facts.names.scope(use) is not facts.names.scope(target) for use in uses):
            return None
        place = next(item for item in guards[0].body if item in inside)
        span = facts.stability.span(statement, place)
        return (statement, place) if span is not None and facts.stability.keeps(statement.value, span) else None

    # For nothing ----------------------------------------------------------------------------------------------

    def is_unused(self, reading: Reading) -> bool:
        """Whether the statement of a reading has no effect but to read what nobody uses, while no clock is read that it may be for."""
        return self._is_unused(reading) and not self._is_repeated(self._facts.tree.statement(reading.node))

    def _is_unused(self, reading: Reading) -> bool:
        facts, tree = self._facts, self._facts.tree
        statement = tree.statement(reading.node)
        if reading.way not in (Way.NUMBER, Way.COPY) or facts.readings.is_timed(reading):
            return False
        if isinstance(statement, ast.Expr):
            return statement.value is reading.node and facts.purity.is_pure(reading.node)
        target = facts.flow.only_variable(statement)
        if target is None or not isinstance(statement, ast.Assign) or not isinstance(facts.names.scope(target).node, FUNCTIONS):
            return False
        return all(use is target for use in facts.names.uses(target)) and facts.purity.is_pure(statement.value)

    # Of too much ----------------------------------------------------------------------------------------------

    def count(self, reading: Reading) -> Count | None:
        """The count that a reading copies all truth values for: ``(a == b).cpu().sum()``."""
        tree, mask = self._facts.tree, reading.source
        attribute = tree.parent(reading.node)
        reduction = tree.parent(attribute) if attribute is not None else None
        if mask is None or reading.way is not Way.COPY or not isinstance(attribute, ast.Attribute):
            return None
        if attribute.attr not in _COUNTING or not isinstance(reduction, ast.Call) or reduction.func is not attribute:
            return None
        if reduction.args or reduction.keywords or not self._is_truth(mask):
            return None
        return Count(reduction, mask, self._is_read_at_once(reduction))

    def _is_truth(self, mask: ast.expr) -> bool:
        """Whether an expression surely is a tensor of truth values on the device."""
        compares = isinstance(mask, ast.Compare) or (isinstance(mask, ast.Call) and last_name(mask.func) in _COMPARISONS)
        return compares and self._facts.residences.is_on_device(mask)

    def _is_read_at_once(self, reduction: ast.Call) -> bool:
        parent = self._facts.tree.parent(reduction)
        if isinstance(parent, ast.Attribute):
            return parent.attr == "item"
        return isinstance(parent, ast.Call) and self._facts.calls.meaning(parent) in _AT_ONCE
