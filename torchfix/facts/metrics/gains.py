"""Whether reading a number behind the loop gains anything: not where the host reads the same number on each iteration anyway.

What can be read later is a question to :mod:`torchfix.facts.metrics.deferral`. Here all sums and lists of a loop are looked at
together with the readings that stay, so that whoever saves readings knows which of them leave the loop.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import LoopNode
from torchfix.facts.metrics.accumulators import Accumulator
from torchfix.facts.metrics.displays import Display
from torchfix.facts.metrics.gathered import Gathered
from torchfix.facts.metrics.readings import Reading
from torchfix.facts.metrics.scalars import Scalar
from torchfix.facts.obstacle import Obstacle

if TYPE_CHECKING:
    from torchfix.facts import Facts

Item: TypeAlias = Accumulator | Gathered


class Gains:
    """Questions about what reading numbers of one file later gains."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._settled: dict[LoopNode, dict[Item, Obstacle | None]] = {}

    def of_sum(self, accumulator: Accumulator) -> Obstacle | None:
        """Why a running number goes on being read on every step; None where it is to be added up on the device."""
        return self._of_loop(accumulator.loop)[accumulator]

    def of_list(self, found: Gathered) -> Obstacle | None:
        """Why the numbers of a list go on being read on every step; None where they are to be read behind the loop."""
        return self._of_loop(found.loop)[found]

    def leaves(self, reading: Reading) -> bool:
        """Whether a reading is to be made behind the loop or less often, with the sum or list that it is for."""
        return any(self._facts.tree.is_within(reading.node, item) for item in self._leaving(self._of_loop(reading.iteration.loop)))

    def still_waiting(self, loop: LoopNode) -> list[ast.expr]:
        """What makes the host wait on every step of a loop even when all its running numbers and lists that can are read later."""
        return [reading.node for reading in self._staying(loop, self._possible(loop))]

    # All of a loop --------------------------------------------------------------------------------------------

    def _of_loop(self, loop: LoopNode) -> dict[Item, Obstacle | None]:
        if loop not in self._settled:
            self._settled[loop] = self._settle(loop)
        return self._settled[loop]

    def _settle(self, loop: LoopNode) -> dict[Item, Obstacle | None]:
        """What is said of each sum and list of a loop, where those that stay keep others from leaving.

        What costs the user something (a display that is drawn less often, a list) must gain something; what costs
        nothing must at least save its reading.
        """
        found = self._possible(loop)
        waiting = self.still_waiting(loop)
        if waiting:
            line = self._facts.tree.statement(waiting[0]).lineno
            words = f"line {line} makes the host wait on every step all the same, so that nothing would be gained"
            for item in found:
                if found[item] is None and isinstance(item, Accumulator) and self._has_a_price(item):
                    found[item] = Obstacle("still-waiting", words, f"let line {line} run every so many steps")
        changing = bool(waiting)
        while changing:
            changing = False
            staying = self._staying(loop, found)
            for item in (item for item, reason in found.items() if reason is None):
                again = self._read_anyway(item, staying)
                if again is not None:
                    line = self._facts.tree.statement(again.node).lineno
                    words = f"line {line} reads the same tensor on every step anyway, so that nothing would be gained"
                    found[item] = Obstacle("read-anyway", words, f"let line {line} run every so many steps")
                    changing = True
        return found

    def _possible(self, loop: LoopNode) -> dict[Item, Obstacle | None]:
        """Why each sum and list of a loop cannot be read later; None where it can."""
        deferral = self._facts.deferral
        found: dict[Item, Obstacle | None] = {}
        found |= {item: deferral.of_sum(item) for item in self._facts.accumulators.all if item.loop is loop}
        found |= {item: deferral.of_list(item) for item in self._facts.gatherings.all if item.loop is loop}
        return found

    def _has_a_price(self, accumulator: Accumulator) -> bool:
        return bool(self._facts.deferral.displays(accumulator)) or self._facts.deferral.is_listed(accumulator)

    def _leaving(self, judged: dict[Item, Obstacle | None]) -> Iterator[ast.stmt]:
        """The statements whose readings leave the loop: those that gather what can, and displays that are drawn less often."""
        for item in (item for item, reason in judged.items() if reason is None):
            for addition in item.additions if isinstance(item, Accumulator) else item.entries:
                yield addition.statement
                yield from (self._facts.tree.statement(read.node) for read in addition.reads)
            for display in self._facts.deferral.displays(item) if isinstance(item, Accumulator) else ():
                yield from self._drawn(display)

    def _drawn(self, display: Display) -> list[ast.stmt]:
        block = self._facts.tree.block(display.first)
        return block[block.index(display.first) : block.index(display.last) + 1]

    def _staying(self, loop: LoopNode, judged: dict[Item, Obstacle | None]) -> list[Reading]:
        """The readings that each iteration of a loop makes when what can be read later is."""
        facts, leaving = self._facts, list(self._leaving(judged))
        readings = (reading for reading in facts.readings.all if reading.iteration.loop is loop)
        staying = (reading for reading in readings if not any(facts.tree.is_within(reading.node, item) for item in leaving))
        return [reading for reading in staying if not facts.savings.is_needless(reading)]

    # The same number ------------------------------------------------------------------------------------------

    def _read_anyway(self, item: Item, staying: list[Reading]) -> Reading | None:
        """A reading that gives a number of a sum or list on the same step, where all of its numbers are read so; None without one."""
        found = None
        for addition in item.additions if isinstance(item, Accumulator) else item.entries:
            for read in addition.reads:
                found = next((reading for reading in staying if self._is_read_by(read, reading)), None)
                if found is None:
                    return None
        return found

    def _is_read_by(self, read: Scalar, reading: Reading) -> bool:
        """Whether a reading reads the tensor of a number too, whenever that one is read, and the tensor is the same then."""
        facts, stability = self._facts, self._facts.stability
        if reading.source is None or reading.node is read.copy or not facts.savings.comes_first(reading):
            return False
        here, there = facts.tree.statement(read.node), facts.tree.statement(reading.node)
        if stability.beside(here, there) is None:
            return False
        for (tensor, one), (again, other) in product(self._origins(read.tensor, here), self._origins(reading.source, there)):
            if stability.is_alike(tensor, again):
                span = stability.beside(one, other) or stability.beside(other, one)
                if span is not None and stability.keeps(tensor, span):
                    return True
        return False

    def _origins(self, tensor: ast.expr, statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.stmt]]:
        """A tensor in a statement, and the tensors with the same numbers that it is copied or detached from, with their statements."""
        facts = self._facts
        original = facts.scalars.original(tensor)
        yield original, statement
        bindings = facts.flow.reaching(original) if isinstance(original, ast.Name) else []
        made = bindings[0].node if len(bindings) == 1 and bindings[0].how is Bound.ASSIGN and not bindings[0].path else None
        if isinstance(made, ast.Assign) and made is not statement and facts.scalars.original(made.value) is not made.value:
            span = facts.stability.span(made, statement)
            if span is not None and facts.stability.keeps(original, span[1:]):
                yield from self._origins(made.value, made)
