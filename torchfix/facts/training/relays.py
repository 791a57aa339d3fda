"""Backward passes that code which steps leaves to functions of its file: `self.backward_G()`, `backward(loss)`.

The function stands for its backward pass where it is called, if it surely has one then and nobody else calls it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import receiver
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, Function, LoopNode, dotted, last_name, walk, walk_here
from torchfix.facts.half_precision.autocast import is_operation

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Training

_DEPTH = 3  # functions that leave their backward pass to one another
_OF_TENSORS = frozenset("backward data detach dtype grad item shape".split())
_LEAVING = (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await)


@dataclass(frozen=True, eq=False)
class Relay:
    """A backward pass in a function.

    Args:
        place: the call in the code that steps, by which it comes to run.
        functions: the functions through which that is, the one in which it stands last.
        call: the ``.backward()`` call.
        loss: what that is called on.
        inner: the calls between the functions.
    """

    place: ast.Call
    functions: tuple[Function, ...]
    call: ast.Call
    loss: ast.expr
    inner: tuple[ast.Call, ...] = ()

    @property
    def function(self) -> Function:
        """The function in which it stands."""
        return self.functions[-1]

    @property
    def given(self) -> tuple[ast.expr, ...]:
        """What the code that steps hands on, from which the loss may be computed."""
        return (*self.place.args, *(item.value for item in self.place.keywords))


class Relays:
    """Questions about backward passes in functions of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[ast.Call, tuple[Relay, ...]] = {}

    def of(self, call: ast.Call) -> tuple[Relay, ...]:
        """The backward passes of functions of this file that a call surely runs, or may run beside one that it surely does."""
        if call not in self._asked:
            self._asked[call] = ()
            self._asked[call] = self._find(call)
        return self._asked[call]

    @property
    def units(self) -> tuple[Training, ...]:
        """The loops and functions of the file that :meth:`unit` knows, in text order."""
        return tuple(sorted(self._units.values(), key=lambda unit: unit.node.lineno))

    @cached_property
    def _names(self) -> frozenset[str]:
        """The names of functions with a backward pass of their own or in what they call."""
        tree = self._facts.tree
        found: set[str] = set()
        new = {"backward"}
        for _ in range(_DEPTH):
            around = (tree.function(call) for name in new for call in tree.calls.get(name, ()))
            new = {function.name for function in around if function is not None} - found
            found |= new
        return frozenset(found)

    def unit(self, node: LoopNode | Function) -> Training | None:
        """The code that steps in a loop or function and leaves backward passes to functions that nobody else calls; None for any other."""
        return self._units.get(node)

    @cached_property
    def _units(self) -> dict[LoopNode | Function, Training]:
        tree = self._facts.tree
        calls = [call for name in self._names for call in tree.calls.get(name, ()) if self.of(call)]
        around = {node for call in calls for node in tree.ancestors(call) if isinstance(node, (*LOOPS, *FUNCTIONS))}
        found = {node: unit for node in around if (unit := self._facts.loops.relaying(node)) is not None and self._is_whole(unit)}
        inner = {node for node in found if not any(other is not node and tree.is_within(other, node) for other in found)}
        return {node: unit for node, unit in found.items() if node in inner}

    def _is_whole(self, unit: Training) -> bool:
        """Whether nobody but this code, and the functions that it leaves its backward passes to, calls these functions."""
        functions = {function for relay in unit.relays for function in relay.functions}
        for function in functions:
            calls = self._calls(function)
            here = (call for caller, call in calls or () if caller is self._facts)
            inside = [call for call in here if any(self._facts.tree.is_within(call, node) for node in (unit.node, *functions))]
            if calls is None or len(inside) < len(calls):
                return False
        return True

    def _calls(self, function: Function) -> list[tuple[Facts, ast.Call]] | None:
        """Every call of a function; None where one may be out of sight.

        A method that is called ``backward`` shares its name with that of tensors: what nothing else is asked of is one.
        """
        calls = self._facts.callers_everywhere(function)
        named = self._facts.loops.named_calls(function) if calls is None and function.name == "backward" else None
        if named is None:
            return calls
        own = [(facts, call) for facts, call in named if any(run is function for _, run in called(facts, call))]
        others = [item for item in named if item not in own]
        return own if all(_is_of_tensor(*item) for item in others) else None

    def _find(self, call: ast.Call, depth: int = 0) -> tuple[Relay, ...]:
        functions = list(called(self._facts, call)) if last_name(call.func) in self._names else []
        if len(functions) != 1 or functions[0][0] is not self._facts or depth > _DEPTH:
            return ()
        function = functions[0][1]
        found: list[Relay] = []
        certain = False
        for statement, sure in self._statements(function):
            for node in walk_here(statement):
                relays = tuple(self._in(call, function, node, depth)) if isinstance(node, ast.Call) else ()
                found += relays
                certain = certain or (sure and bool(relays))
        steps = any(isinstance(node, ast.Attribute) and node.attr == "step" for node in walk(function))
        alone = not steps and not function.decorator_list and not self._has_other_versions(function)
        return tuple(found) if certain and alone else ()

    def _has_other_versions(self, function: Function) -> bool:
        """Whether a class below writes a method anew, so that another one may run."""
        owner = self._facts.tree.class_of(function)
        versions = (method_of(heir, function.name) for heir in (self._facts.classes.heirs(owner) if owner is not None else ()))
        return any(version is not None and version.node is not function for version in versions)

    def _in(self, place: ast.Call, function: Function, node: ast.Call, depth: int) -> Iterator[Relay]:
        """The backward passes that a call in a function is, or runs."""
        deeper = self._find(node, depth + 1)
        for relay in deeper:
            yield Relay(place, (function, *relay.functions), relay.call, relay.loss, (node, *relay.inner))
        loss = receiver(node)
        if not deeper and loss is not None and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            if not isinstance(loss, ast.Name) or not self._facts.names.module_of(loss):
                yield Relay(place, (function,), node, loss)

    @staticmethod
    def _statements(function: Function) -> Iterator[tuple[ast.stmt, bool]]:
        """The statements of a function's own block, and whether each surely runs."""
        sure = True
        for statement in function.body:
            yield statement, sure and not isinstance(statement, (ast.If, *LOOPS, ast.Try, *FUNCTIONS))
            sure = sure and not any(isinstance(node, _LEAVING) for node in walk_here(statement))


def _is_of_tensor(facts: Facts, call: ast.Call) -> bool:
    """Whether a ``.backward()`` is called on what its file computes and uses as a tensor, or sees to be of another class."""
    source = receiver(call)
    if source is None or next(called(facts, call), None) is not None:
        return source is not None
    if not isinstance(source, (ast.Name, ast.Attribute)):
        return True  # the result of arithmetic, of an index or of a call
    stored = isinstance(source, ast.Attribute) and any(isinstance(use.ctx, ast.Store) for use in facts.tree.attributes.get(source.attr, ()))
    made = isinstance(source, ast.Name) and any(binding.how is not Bound.PARAMETER for binding in facts.names.bindings(source))
    asked = {name for name, uses in facts.tree.attributes.items() if any(dotted(use.value) == dotted(source) for use in uses)}
    return (stored or made) and all(is_operation(name) or name in _OF_TENSORS for name in asked)
