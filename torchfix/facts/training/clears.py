"""Where code that trains clears which gradients: by ``zero_grad()``, by hand, and in what it calls for that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import is_constant, receiver
from torchfix.facts.code.classes import is_super
from torchfix.facts.code.scopes import parameters
from torchfix.facts.code.tree import Function, dotted
from torchfix.facts.code.values import passed

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Training


@dataclass(frozen=True, eq=False)
class Clear:
    """One place that takes gradients away.

    Args:
        node: the call, or the loop that does it by hand.
        targets: what it clears: the names of what ``zero_grad()`` is called on, and where networks were made.
    """

    node: ast.expr | ast.stmt
    targets: frozenset[object]


class Clears:
    """Questions about the clearing of gradients in one file's training loops."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of(self, loop: Training) -> Iterator[Clear]:
        """The places in a loop, and in the functions that it calls, that clear gradients; what is out of sight is none."""
        for node in loop.nodes():
            if isinstance(node, ast.Call):
                targets = self._by_call(node, loop)
            else:
                cleared = self._by_loop(node) if isinstance(node, ast.For) else ()
                targets = frozenset[object]().union(*map(self._named, cleared))
            if targets and isinstance(node, (ast.expr, ast.stmt)):
                yield Clear(node, targets)

    def _by_call(self, call: ast.Call, loop: Training) -> frozenset[object]:
        """What a call clears: itself, or whenever the function that it runs does so, as this file names it."""
        own, source = self._facts.own_method(call), receiver(call)
        functions = [(self._facts, own)] if own is not None else list(called(self._facts, call))
        if _clears(call) and not functions:
            return self._named(source) if source is not None else frozenset()
        cleared = [self._within(there, function, call, loop) for there, function in functions]
        return frozenset.intersection(*cleared) if cleared else frozenset()

    def _within(self, there: Facts, function: Function, call: ast.Call, loop: Training) -> frozenset[object]:
        """What a function clears whenever a call runs it."""
        found: set[object] = set()
        runs = (item.value for item in function.body if isinstance(item, ast.Expr) and isinstance(item.value, ast.Call))
        for target in (receiver(inner) for inner in runs if _clears(inner)):
            if target is None or self._is_of_object(there, target):
                found |= self._of_object(there, target, call) if target is not None else frozenset()
                continue
            given = next((item for item in parameters(function.args) if isinstance(target, ast.Name) and item.arg == target.id), None)
            named = target if given is None else passed(call, function, given, there.tree.class_of(function) is not None)
            if named is not None and (given is not None or (there is self._facts and self._is_of_both(target, loop))):
                found |= self._named(named)
        return frozenset(found)

    @staticmethod
    def _is_of_object(there: Facts, target: ast.expr) -> bool:
        """Whether a target is an attribute of the object whose method names it, or that object through its base class."""
        own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and there.is_self(target.value)
        return own or is_super(target)

    def _of_object(self, there: Facts, target: ast.expr, call: ast.Call) -> frozenset[object]:
        """What a method clears of its own object, as the call names that object."""
        source = receiver(call)
        if source is None or not isinstance(target, ast.Attribute):
            return self._named(source) if source is not None else frozenset()
        networks, name = there.models.of(target), dotted(source)
        if networks:
            return frozenset(item.value for item in networks)
        return frozenset([f"{name}.{target.attr}"]) if name is not None else frozenset()

    def _is_of_both(self, target: ast.expr | None, loop: Training) -> bool:
        """Whether a variable of a function is one that the loop uses too."""
        uses = (node for node in loop.nodes() if isinstance(node, ast.Name))
        return isinstance(target, ast.Name) and any(use.id == target.id and self._facts.names.same(use, target) for use in uses)

    def _by_loop(self, loop: ast.For) -> Iterator[ast.expr]:
        """What a loop clears that does nothing else: each of the things listed there, or gradient after gradient of one."""
        hand = next((item for item in self._facts.clearing.hand_loops if item.node is loop), None)
        if hand is not None:
            yield from [hand.owner] if hand.owner is not None else []
            return
        only = loop.body[0] if len(loop.body) == 1 and isinstance(loop.target, ast.Name) else None
        if isinstance(only, ast.Expr) and isinstance(only.value, ast.Call) and _clears(only.value):
            is_each = dotted(only.value.func) == f"{ast.unparse(loop.target)}.zero_grad"
            yield from loop.iter.elts if is_each and isinstance(loop.iter, (ast.Tuple, ast.List)) else []
        elif isinstance(only, ast.Assign) and is_constant(only.value, None):
            is_each = [dotted(item) for item in only.targets] == [f"{ast.unparse(loop.target)}.grad"]
            goes = isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Attribute) and loop.iter.func.attr == "parameters"
            owner = receiver(loop.iter) if isinstance(loop.iter, ast.Call) and goes and is_each else None
            yield from [owner] if owner is not None else []

    def _named(self, target: ast.expr) -> frozenset[object]:
        """Where the networks were made that a target may be, else its name."""
        networks = self._facts.models.of(target)
        return frozenset(item.value for item in networks) if networks else frozenset([dotted(target)])


def _clears(call: ast.Call) -> bool:
    """Whether a call is a ``zero_grad()``."""
    return isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad"
