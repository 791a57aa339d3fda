"""Whether a number that a loop reads from the device on each iteration can be read behind the loop instead.

It can where the loop only adds it up or collects it: what Python does with its float64 numbers, and with its whole
numbers, the device does too, to the last bit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import is_constant
from torchfix.facts.code.numbers import Number
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import COMPREHENSIONS, LoopNode, last_name
from torchfix.facts.metrics.accumulators import Accumulator, Addition, summed
from torchfix.facts.metrics.displays import Display
from torchfix.facts.metrics.gathered import Gathered, gathered
from torchfix.facts.obstacle import Obstacle

if TYPE_CHECKING:
    from torchfix.facts import Facts

_EXACT = frozenset({ast.Add, ast.Sub, ast.Mult, ast.Div})
_REFLECTING = ("locals", "globals", "eval", "exec")

_UNKNOWN_VALUE = Obstacle(
    "unknown-value", "what is read is not surely a tensor: code out of sight made it", "call .detach() on it and add it up as a tensor"
)
_UNKNOWN_START = Obstacle("unknown-start", "the sum does not surely begin as a Python number", "set it to 0.0 in front of the loop")
_UNKNOWN_LIST = Obstacle("unknown-start", "the list is not seen to begin empty", "make the list right in front of the loop")
_UNKNOWN_KIND = Obstacle(
    "unknown-kind",
    "the numbers may be whole or not, and the sum is used where that makes a difference",
    "begin the sum with 0.0, or convert what is added with int(...)",
)
_SHARED = Obstacle("shared-variable", "another function can reach the variable while the loop runs", "hand it over as an argument")
_ARITHMETIC = Obstacle(
    "host-arithmetic",
    "the host computes with the number first, in a way that the device may round differently",
    "compute behind the loop, or with float64 tensors",
)
_OTHER_DEVICE = Obstacle(
    "other-device",
    "the program may run on a device without float64, on which the sum would lose digits",
    "collect the detached losses in a list, and add them up behind the loop",
)
_INTERRUPTED = Obstacle(
    "interrupted",
    "an exception may leave the loop, and the variable is used where that is handled",
    "turn the sum into a number there as well",
)
_DECIDES = Obstacle("decides", "the loop decides by the sum on every step", "decide every so many steps, or behind the loop")
_LAST_STEP = Obstacle(
    "last-step-unknown",
    "a progress display shows the sum on every step, and which step is the last is not known",
    "show the sum every so many steps",
)
_OUT_OF_REACH = Obstacle(
    "out-of-reach",
    "the number goes into an object or a container, which other code can read while the loop runs",
    "add up or collect in a variable of the function, and store it behind the loop",
)
_ANEW = Obstacle("used-each-step", "the variable is set anew on every step", "keep the tensor, and read it every so many steps")
_CALLED = Obstacle(
    "called-each-step",
    "a function that each step calls adds up or collects the numbers",
    "return detached tensors, and read them where the numbers are used",
)


class Deferral:
    """Questions about the numbers of one file that can be read later."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._sums: dict[Accumulator, Obstacle | None] = {}

    def elsewhere(self) -> Iterator[tuple[ast.stmt, Obstacle]]:
        """The statements that gather numbers on each step in any other way, and why they must go on doing so.

        They do so in attributes and entries, in functions that each step calls, or in sums that begin anew on each step.
        """
        sums = [addition.statement for item in self._facts.accumulators.all for addition in item.additions]
        lists = [entry.statement for item in self._facts.gatherings.all for entry in item.entries]
        seen = {*sums, *lists}
        others = (item for item in self._facts.scalars.statements if item not in seen)
        if not any(True for item in others for _ in (*summed(item), *gathered(item))):
            return  # without asking what else is read
        for reading in self._facts.readings.all:
            statement = self._facts.tree.statement(reading.node)
            use = self._facts.scalars.only_use(statement)
            statement = self._facts.tree.statement(use) if use is not None else statement
            if statement in seen or not self._facts.readings.is_gathered(reading):
                continue
            for target, value in (*summed(statement), *gathered(statement)):
                if value is None or next(self._facts.scalars.within(value), None) is None:
                    continue
                seen.add(statement)
                named = isinstance(target, ast.Name)
                yield statement, _OUT_OF_REACH if not named else _ANEW if reading.iteration.call is None else _CALLED

    # Sums -----------------------------------------------------------------------------------------------------

    def of_sum(self, accumulator: Accumulator) -> Obstacle | None:
        """Why a running number must go on being read on every step; None where it can be added up on the device."""
        if accumulator not in self._sums:
            self._sums[accumulator] = self._judge_sum(accumulator)
        return self._sums[accumulator]

    def is_listed(self, accumulator: Accumulator) -> bool:
        """Whether a running number is to be collected in a list, since the device may not have the digits to add it up."""
        return self.number(accumulator) is not Number.WHOLE and not self.has_float64(accumulator.loop)

    def _judge_sum(self, accumulator: Accumulator) -> Obstacle | None:
        obstacle = self._of_variable(accumulator.name)
        if not all(read.is_certain for addition in accumulator.additions for read in addition.reads):
            return _UNKNOWN_VALUE
        if obstacle is not None:
            return obstacle
        if not self._starts_plain(accumulator):
            return _UNKNOWN_START
        for addition in accumulator.additions:
            obstacle = self._of_addition(addition)
            if obstacle is not None:
                return obstacle
        number = self.number(accumulator)
        if number is None:
            return _UNKNOWN_KIND
        if self.is_listed(accumulator) and not self._may_be_listed(accumulator):
            return _OTHER_DEVICE
        if accumulator.is_used_outside and self._is_interrupted(accumulator.loop, accumulator.name):
            return _INTERRUPTED
        return next((held for use in accumulator.used if (held := self._of_use(accumulator.loop, use)) is not None), None)

    def _of_addition(self, addition: Addition) -> Obstacle | None:
        """Why what a statement adds cannot be computed on the device with the same result."""
        if not self.operators(addition) <= _EXACT or _divides_by_read(addition):
            return _ARITHMETIC
        for leaf in _leaves(addition):
            if self._facts.numbers.is_plain(leaf) or _is_legacy(leaf) or self._is_added_there(leaf):
                continue
            if any(True for _ in self._facts.scalars.within(leaf)):
                return _ARITHMETIC
            words = f"{self._facts.source.segment(leaf)} takes part in the sum, and it is not surely a Python number"
            return Obstacle("unknown-operand", words, "convert it with int(...) or float(...)")
        return None

    def _is_added_there(self, leaf: ast.expr) -> bool:
        """``loss.detach().double()``, which is added up on the device already."""
        return isinstance(leaf, ast.Call) and last_name(leaf.func) == "double" and self._facts.residences.is_on_device(leaf)

    def _of_use(self, loop: LoopNode, use: ast.Name) -> Obstacle | None:
        """Why the loop must have the number on every step."""
        if self._facts.cadence.seldom(use, loop) is not None:
            return None
        if self._facts.displays.around(use, loop) is not None:
            return _LAST_STEP if self._facts.displays.pace(loop) is None else None
        if isinstance(self._facts.tree.statement(use), (ast.If, ast.While, ast.Assert)):
            return _DECIDES
        words = f"line {use.lineno} uses it on every step, and would wait for the device all the same"
        return Obstacle("used-each-step", words, "print, log or hand it on every so many steps")

    def displays(self, accumulator: Accumulator) -> tuple[Display, ...]:
        """The progress displays that show a running number on every step."""
        loop = accumulator.loop
        every = (use for use in accumulator.used if self._facts.cadence.seldom(use, loop) is None)
        found = (self._facts.displays.around(use, loop) for use in every)
        return tuple({display.first: display for display in found if display is not None}.values())

    def used_seldom(self, accumulator: Accumulator) -> list[ast.stmt]:
        """The first statement of each guarded block that uses a running number; each one of a block that adds to it too."""
        tree, places = self._facts.tree, list[ast.stmt]()
        for use in accumulator.used:
            guard = self._facts.cadence.seldom(use, accumulator.loop)
            if guard is None:
                continue
            adds = any(tree.is_within(addition.statement, guard) for addition in accumulator.additions)
            place = next(item for item in guard.body if tree.is_within(use, item))
            if place not in places and (adds or not any(tree.is_within(other, guard) for other in places)):
                places.append(place)
        return places

    def has_float64(self, loop: LoopNode) -> bool:
        """Whether a loop surely runs on devices that know float64."""
        target = self._facts.targets.around(loop)
        types = target.types if target is not None else frozenset("?")
        return types - {"?"} <= {"cuda", "cpu"} and not ("?" in types and self._facts.devices.names_others())

    def _may_be_listed(self, accumulator: Accumulator) -> bool:
        """Whether a running number adds one number a step, which the loop uses for nothing else, so that a list can do instead."""
        alone = len(accumulator.additions) == 1 and not accumulator.used and not accumulator.resets and accumulator.is_used_outside
        addition = accumulator.additions[0]
        return alone and isinstance(addition.statement, ast.AugAssign) and addition.is_bare

    def number(self, accumulator: Accumulator) -> Number | None:
        """The kind of Python number that the variable is behind the loop; a float where it may be either and only ever divides."""
        starts = self._facts.numbers.bound([*accumulator.starts, *accumulator.resets])
        kinds = [self._added_number(addition) for addition in accumulator.additions]
        if Number.FRACTION in (starts, *kinds) or (starts is not None and None in kinds and self._is_only_divided(accumulator)):
            return Number.FRACTION
        return Number.WHOLE if starts is not None and None not in kinds else None

    def _added_number(self, addition: Addition) -> Number | None:
        kinds = [read.number for read in addition.reads]
        kinds += [self._facts.numbers.of(leaf) for leaf in _leaves(addition)]
        if ast.Div in self.operators(addition) or Number.FRACTION in kinds:
            return Number.FRACTION
        return None if None in kinds else Number.WHOLE

    def _is_only_divided(self, accumulator: Accumulator) -> bool:
        """Whether every use of the variable divides it, or divides by it, so that 3 and 3.0 are the same."""
        tree = self._facts.tree
        for use in self._facts.names.uses(accumulator.name):
            parent = tree.parent(use)
            inside = any(tree.is_within(use, addition.statement) for addition in accumulator.additions)
            divides = isinstance(parent, (ast.BinOp, ast.AugAssign)) and isinstance(parent.op, ast.Div)
            stored = not isinstance(use.ctx, ast.Load) and not isinstance(parent, ast.AugAssign)
            if not inside and not divides and not stored:
                return False
        return True

    def operators(self, addition: Addition) -> frozenset[type[ast.operator]]:
        """The operators of the arithmetic in an addition that touch what is read from the device."""
        found = set()
        for node in ast.walk(addition.value):
            if isinstance(node, ast.BinOp) and any(self._facts.tree.is_within(read.use, node) for read in addition.reads):
                found.add(type(node.op))
        return frozenset(found)

    def _starts_plain(self, accumulator: Accumulator) -> bool:
        """Whether the variable surely is a Python number when the loop begins, and whenever it is set anew."""
        return bool(accumulator.starts) and all(self._is_plain(binding) for binding in (*accumulator.starts, *accumulator.resets))

    def _is_plain(self, binding: Binding) -> bool:
        numbers = self._facts.numbers
        if isinstance(binding.node, ast.AugAssign):
            return numbers.is_plain(binding.node.value) or any(True for _ in self._facts.scalars.within(binding.node.value))
        if binding.how is Bound.ASSIGN and binding.value is not None and not binding.path:
            return numbers.is_plain(binding.value)
        values = self._facts.values.bound([binding])
        return bool(values) and all(value.facts.numbers.is_plain_value(value) for value in values or ())

    # Lists ----------------------------------------------------------------------------------------------------

    def of_list(self, found: Gathered) -> Obstacle | None:
        """Why the numbers of a list must go on being read on every step; None where the list can hold tensors for a while."""
        if not all(entry.reads and all(read.is_certain for read in entry.reads) for entry in found.entries):
            return _UNKNOWN_VALUE
        bare = all(entry.is_bare for entry in found.entries)
        if len({entry.reads[0].holds if bare else self._added_number(entry) for entry in found.entries}) > 1:
            return _UNKNOWN_KIND
        if not bare and not self.has_float64(found.loop):
            return _OTHER_DEVICE
        if any(ast.Div in self.operators(entry) for entry in found.entries):
            return _ARITHMETIC
        obstacle = next((reason for entry in found.entries if (reason := self._of_addition(entry))), None)
        obstacle = obstacle or self._of_variable(found.name)
        if obstacle is not None:
            return obstacle
        if not found.starts:
            return _UNKNOWN_LIST
        early = next((use for use in found.used if self._emptied_behind(found, use) is None), None)
        if early is not None:
            words = f"line {early.lineno} uses the list before the loop is through"
            return Obstacle("used-each-step", words, "use the list behind the loop, or begin it anew where it is used")
        if any(self._facts.cadence.seldom(statement, found.loop) is None for statement in found.resets):
            return _UNKNOWN_LIST
        return _INTERRUPTED if self._is_interrupted(found.whole, found.name) else None

    def read_seldom(self, found: Gathered) -> list[ast.stmt]:
        """The first statement of each guarded block that uses a list and then begins it anew."""
        places = {id(guard): guard for use in found.used if (guard := self._emptied_behind(found, use)) is not None}
        tree = self._facts.tree
        return [next(item for item in guard.body if any(tree.is_within(use, item) for use in found.used)) for guard in places.values()]

    def _emptied_behind(self, found: Gathered, use: ast.Name) -> ast.If | None:
        """The guarded block in which a list is used and then begun anew, without growing in it."""
        tree = self._facts.tree
        guard = self._facts.cadence.seldom(use, found.loop)
        if guard is None or any(tree.is_within(entry.statement, guard) for entry in found.entries):
            return None
        return guard if any(item in found.resets and item.lineno > use.lineno for item in guard.body) else None

    # Variables ------------------------------------------------------------------------------------------------

    def _of_variable(self, name: ast.Name) -> Obstacle | None:
        """Whether another function can reach a variable, by its name or by looking at all there are."""
        names, tree = self._facts.names, self._facts.tree
        home = names.lookup(name.id, name)
        if home is None or home[0] is not names.scope(name):
            return _SHARED
        for use in names.uses(name):
            scope = names.scope(use)
            while isinstance(scope.node, COMPREHENSIONS) and scope.parent is not None:
                scope = scope.parent
            if scope is not home[0]:
                return _SHARED
        hidden = (call for word in _REFLECTING for call in tree.calls.get(word, ()) if tree.function(call) is tree.function(name))
        return _SHARED if any((self._facts.calls.meaning(call) or "").startswith("builtins.") for call in hidden) else None

    def _is_interrupted(self, loop: LoopNode, name: ast.Name) -> bool:
        """Whether an exception may leave a loop for code that uses a variable, past the code right behind the loop."""
        tree = self._facts.tree
        if self._facts.regions.under(loop, ("contextlib.suppress",)):
            return True
        for outer in tree.ancestors(loop):
            handled = isinstance(outer, ast.Try) and (outer.handlers or outer.finalbody)
            if isinstance(outer, ast.Try) and handled and any(tree.is_within(loop, item) for item in outer.body):
                reads = (use for use in self._facts.names.uses(name) if isinstance(use.ctx, ast.Load))
                if any(not any(tree.is_within(use, item) for item in outer.body) for use in reads):
                    return True
        return False


def _leaves(addition: Addition) -> Iterator[ast.expr]:
    """The operands of the arithmetic in an addition that are not read from the device."""
    waiting = [addition.value]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.BinOp):
            waiting = [node.left, node.right, *waiting]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            waiting = [node.operand, *waiting]
        elif not any(read.use is node for read in addition.reads):
            yield node


def _divides_by_read(addition: Addition) -> bool:
    divisors = [node.right for node in ast.walk(addition.value) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    inside = {id(item) for divisor in divisors for item in ast.walk(divisor)}
    return any(id(read.use) in inside for read in addition.reads)


def _is_legacy(operand: ast.expr) -> bool:
    """``loss.data[0]``, which read a number until torch 0.4 and raises today."""
    element = isinstance(operand, ast.Subscript) and is_constant(operand.slice, 0)
    return element and isinstance(operand, ast.Subscript) and last_name(operand.value) == "data"
