"""The epochs of a loader: where its batches begin anew, whether that happens more than once, and what comes before all of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import classes_of
from torchfix.facts.code.makers import may_be_same
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, Function, LoopNode, dotted, walk
from torchfix.facts.code.values import parameter_named, passed
from torchfix.facts.data.loaders import Loader

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Calls that iterate what they are given, at once or whenever their own result is iterated.
_ITERATING = ("builtins.iter", "builtins.enumerate", "builtins.zip", "builtins.list", "itertools.cycle", "builtins.sum", "builtins.next")
_DEPTH = 8  # calls followed upwards


@dataclass(frozen=True, eq=False)
class Start:
    """One place at which a loader begins to give its batches.

    Args:
        facts: the file.
        node: the ``for`` statement, the comprehension or the call that takes a fresh iterator.
        kept: the variable that the iterator is kept in, None where nothing outside the place can take from it.
    """

    facts: Facts
    node: ast.AST
    kept: ast.Name | ast.Attribute | None = None


class Epochs:
    """Questions about how often one loader is iterated, and when.

    Args:
        loader: the loader.
        starts: the places at which it is iterated, where only some of them are meant.
    """

    def __init__(self, loader: Loader, starts: tuple[Start, ...] | None = None) -> None:
        self._loader = loader
        self._files = loader.facts.program.everywhere
        self._given = starts
        self._repeats: dict[ast.AST, bool] = {}

    @cached_property
    def starts(self) -> tuple[Start, ...]:
        """The places that surely begin to iterate the loader, in all files of its programs."""
        if self._given is not None:
            return self._given
        found = [start for facts in self._files for start in self._starts(facts)]
        return tuple(start for start in found if not self._is_seen_through(start, found))

    def _is_seen_through(self, start: Start, found: list[Start]) -> bool:
        """Whether a generator iterates the loader for loops that are among the places themselves, and for nobody else."""
        function = _generator(start)
        calls = self._calls_with_loader(start.facts, function) if function is not None else []
        headers = {id(node) for other in found if isinstance(other.node, (ast.For, ast.AsyncFor)) for node in walk(other.node.iter)}
        return bool(calls) and all(id(call) in headers for _, call in calls)

    def _calls_with_loader(self, facts: Facts, function: Function) -> list[tuple[Facts, ast.Call]]:
        """The calls of a function that hand it the loader; all of them where it comes another way."""
        calls = self._calls(facts, function)
        given = [(there, call) for there, call in calls if any(self._loader in (there.loaders.of(item) or ()) for item in call.args)]
        return given or calls

    def _starts(self, facts: Facts) -> Iterator[Start]:
        for node in facts.loaders.by_loop:
            if isinstance(node, (ast.For, ast.AsyncFor)) and self._loader in facts.loaders.iterated(node.iter):
                if not _is_iterator(facts, node.iter):
                    yield Start(facts, node)
        for clause in facts.tree.comprehensions:
            if self._loader in facts.loaders.iterated(clause.iter) and not _is_iterator(facts, clause.iter):
                yield Start(facts, clause)
        for name in ("iter", "enumerate", "zip", "cycle", "list"):
            for call in facts.tree.calls.get(name, ()):
                if _is_outermost(facts, call) and self._loader in facts.loaders.iterated(call) and not _takes_iterator(facts, call):
                    yield Start(facts, call, _target(facts, call))

    # Again ----------------------------------------------------------------------------------------------------

    @cached_property
    def repeats(self) -> bool:
        """Whether the same loader is iterated more than once: from a loop that does not make it anew."""
        return any(self.runs_again(start.facts, start.node) for start in self.starts)

    @property
    def place(self) -> str:
        """Where it is iterated first in the order of the files: ``train.py:12``."""
        return next((f"{start.facts.path}:{_position(start.node)[0]}" for start in self.starts), "")

    def runs_again(self, facts: Facts, node: ast.AST) -> bool:
        """Whether a place may run several times while the same loader lives."""
        if node not in self._repeats:
            self._repeats[node] = False  # recursion alone is no loop
            self._repeats[node] = self._runs_again(facts, node)
        return self._repeats[node]

    def _runs_again(self, facts: Facts, node: ast.AST) -> bool:
        tree, function = facts.tree, facts.tree.function(node)
        for loop in _loops_around(facts, node):
            made = [item for there, item in self.making if there is facts and tree.is_within(item, loop)]
            if not made:
                return True
            return all(_is_skipped(facts, item, loop, node) for item in made)
        if function is None or any(there is facts and tree.is_within(item, function) for there, item in self.making):
            return False
        return any(self.runs_again(there, call) for there, call in self._calls(facts, function))

    @cached_property
    def making(self) -> tuple[tuple[Facts, ast.AST], ...]:
        """The call that makes the loader, and the calls of the functions that do."""
        return self._upwards(self._loader.facts, self._loader.call)

    @cached_property
    def trail(self) -> tuple[tuple[Facts, ast.AST], ...]:
        """The places at which the loader is iterated, and the calls of the functions that do."""
        return tuple(dict.fromkeys(item for start in self.starts for item in self._upwards(start.facts, start.node)))

    def _upwards(self, facts: Facts, node: ast.AST) -> tuple[tuple[Facts, ast.AST], ...]:
        found = {node: facts}
        waiting = [(facts, node, 0)]
        while waiting:
            there, place, depth = waiting.pop()
            function = there.tree.function(place)
            for home, call in self._calls(there, function) if function is not None and depth < _DEPTH else ():
                if call not in found:
                    found[call] = home
                    waiting.append((home, call, depth + 1))
        return tuple((home, place) for place, home in found.items())

    def _calls(self, facts: Facts, function: Function) -> list[tuple[Facts, ast.Call]]:
        """The calls of a function; where some may be out of sight, those in the program that may well mean it."""
        known = facts.callers_everywhere(function)
        if known is not None:
            return [(there, call) for there, call in known if there in self._files]
        owner = facts.tree.class_of(function)
        name = owner.name if owner is not None and function.name == "__init__" else function.name
        found = ((there, call) for there in self._files for call in there.tree.calls.get(name, ()))
        return [(there, call) for there, call in found if _may_call(there, call, facts, function)]

    # Before ---------------------------------------------------------------------------------------------------

    def comes_first(self, facts: Facts, place: ast.AST) -> bool:
        """Whether a place surely runs before the loader is iterated for the first time, and never afterwards."""
        return self._comes_first(facts, place, frozenset())

    def _comes_first(self, facts: Facts, place: ast.AST, seen: frozenset[ast.AST]) -> bool:
        tree, function = facts.tree, facts.tree.function(place)
        if isinstance(tree.nearest(place, (*FUNCTIONS, ast.Lambda)), ast.Lambda):
            return False  # a lambda runs whenever somebody calls it
        here = [node for there, node in self.trail if there is facts and tree.function(node) is function]
        if any(tree.is_within(node, loop) for loop in _loops_around(facts, place) for node in here):
            return False
        if any(_position(node) < _position(place) for node in here):
            return False
        if function is None:
            return True
        if here:
            anew = any(there is facts and tree.is_within(item, function) for there, item in self.making)
            return anew or not any(self.runs_again(there, call) for there, call in self._calls(facts, function))
        calls = self._calls(facts, function)
        return bool(calls) and function not in seen and all(self._comes_first(there, call, seen | {function}) for there, call in calls)

    # At once --------------------------------------------------------------------------------------------------

    def overlap(self) -> tuple[Facts, ast.AST] | None:
        """A place that begins to iterate the loader while it is being iterated already."""
        for one in self.starts:
            others = [other for other in self.starts if other is not one]
            if isinstance(one.node, LOOPS) and (found := self._within(one, one.node.body, others)) is not None:
                return found
            if self._is_handed_out(one, others) or _takes_twice(one, self._loader):
                return one.facts, one.node
            for other in others:
                if one.kept is None or _is_same(one, other) or not self._may_be_one_loader(one, other.facts, _iterated(other)):
                    continue
                if self._is_read_during(one, other):
                    return other.facts, other.node
        return None

    def _is_handed_out(self, one: Start, others: list[Start]) -> bool:
        """Whether a generator iterates the loader, of which several may be under way."""
        function = _generator(one)
        return function is not None and (bool(others) or len(self._calls_with_loader(one.facts, function)) > 1)

    def _within(self, one: Start, body: list[ast.stmt], others: list[Start]) -> tuple[Facts, ast.AST] | None:
        """One of some starts that the body of a loop runs, itself or through the functions that it calls."""
        for other in others:
            for node, given in self._ways(other.facts, other.node, _iterated(other), one.facts, 0):
                if any(one.facts.tree.is_within(node, statement) for statement in body):
                    if given is None or self._may_be_one_loader(one, one.facts, given):
                        return other.facts, other.node
        return None

    def _ways(
        self, facts: Facts, node: ast.AST, given: ast.expr | None, home: Facts, depth: int
    ) -> Iterator[tuple[ast.AST, ast.expr | None]]:
        """The places of one file that run a place, with what is iterated there as the caller there names it."""
        if facts is home:
            yield node, given
        function = facts.tree.function(node)
        for there, call in self._calls(facts, function) if function is not None and depth < _DEPTH else ():
            handed = given
            parameter = parameter_named(function, given.id) if function is not None and isinstance(given, ast.Name) else None
            if parameter is not None and function is not None:
                handed = passed(call, function, parameter, bound=facts.tree.class_of(function) is not None)
            elif there is not facts:
                handed = None
            yield from self._ways(there, call, handed, home, depth + 1)

    def _may_be_one_loader(self, one: Start, facts: Facts, other: ast.expr | None) -> bool:
        """Whether two places may iterate one loader, rather than two that the same function made."""
        first, function = _iterated(one), self._loader.facts.tree.function(self._loader.call)
        if function is None or first is None or other is None or len(self._calls(self._loader.facts, function)) < 2:
            return True
        return may_be_same(one.facts, first, facts, other)

    def _is_read_during(self, one: Start, other: Start) -> bool:
        """Whether a kept iterator may still be taken from when another place starts the loader again."""
        assert one.kept is not None
        if Epochs(self._loader, (one,)).comes_first(other.facts, other.node):
            return False
        function = one.facts.tree.function(one.node)
        if isinstance(one.kept, ast.Name) and function is not None and one.facts.names.own(function).bindings.get(one.kept.id):
            started = self._upwards(other.facts, other.node)
            if not any(there is one.facts and one.facts.tree.is_within(node, function) for there, node in started):
                return False  # the iterator ends with the function, which never comes to the other place
        reads = [use for use in _alike(one.facts, one.kept) if isinstance(use.ctx, ast.Load)]
        other_epochs = Epochs(self._loader, (other,))
        return any(not other_epochs.comes_first(one.facts, use) for use in reads)


def _generator(start: Start) -> Function | None:
    """The generator function in which a loader is iterated."""
    function = start.facts.tree.function(start.node)
    if function is None or not any(isinstance(node, (ast.Yield, ast.YieldFrom)) for item in function.body for node in walk(item)):
        return None
    return function


def _loops_around(facts: Facts, node: ast.AST) -> Iterator[LoopNode]:
    """The loops of the same function whose body holds a node, the innermost first; those that end at once left out."""
    inner = node
    for outer in facts.tree.ancestors(node):
        if isinstance(outer, (*FUNCTIONS, ast.Lambda)):
            return
        if isinstance(outer, LOOPS) and (inner in outer.body or (isinstance(outer, ast.While) and inner is outer.test)):
            if not any(isinstance(statement, (ast.Break, ast.Return)) for statement in outer.body):
                yield outer
        inner = outer


def _is_skipped(facts: Facts, made: ast.AST, loop: LoopNode, node: ast.AST) -> bool:
    """Whether a loop may go round without making the loader: under an ``if`` without alternative, away from where it is used."""
    for outer in facts.tree.ancestors(made):
        if outer is loop:
            return False
        if isinstance(outer, ast.If) and not outer.orelse and not facts.tree.is_within(node, outer):
            return True
    return False


def _may_call(there: Facts, call: ast.Call, facts: Facts, function: Function) -> bool:
    """Whether a call of that name may mean a function or method, where its object does not say otherwise."""
    owner = facts.tree.class_of(function)
    if not isinstance(call.func, ast.Attribute) or owner is None:
        definition = there.names.definition(call.func)
        return definition is None or definition.node in (function, owner)
    classes = [definition.node for definition in classes_of(there, call.func.value)]
    if classes:
        return owner in classes
    return not there.models.is_module(call.func.value)


def _position(node: ast.AST) -> tuple[int, int]:
    target = node.iter if isinstance(node, ast.comprehension) else node
    return getattr(target, "lineno", 0), getattr(target, "col_offset", 0)


def _is_outermost(facts: Facts, call: ast.Call) -> bool:
    """Whether no other iterating call and no loop's header takes the result of one."""
    parent = facts.tree.parent(call)
    if isinstance(parent, (ast.For, ast.AsyncFor, ast.comprehension)):
        return parent.iter is not call
    if isinstance(parent, ast.Call) and call in parent.args:
        wrapped = facts.loaders.iterated(parent) and facts.calls.meaning(parent) != "builtins.next"
        return not wrapped
    return True


def _is_iterator(facts: Facts, expression: ast.expr) -> bool:
    """Whether a loop's header only goes on with an iterator that was taken before."""
    while isinstance(expression, ast.Call) and expression.args and facts.loaders.iterated(expression):
        if facts.calls.meaning(expression) == "builtins.iter":
            return False
        expression = expression.args[0]
    return _holds_iterator(facts, expression)


def _takes_iterator(facts: Facts, call: ast.Call) -> bool:
    inner: ast.expr = call
    while isinstance(inner, ast.Call) and inner.args and facts.loaders.iterated(inner):
        inner = inner.args[0]
    return _holds_iterator(facts, inner)


def _holds_iterator(facts: Facts, expression: ast.expr) -> bool:
    """Whether a variable holds what an iterating call gave."""
    if isinstance(expression, ast.Name):
        values = [binding.value for binding in facts.flow.reaching(expression)]
    elif isinstance(expression, ast.Attribute):
        values = [value for value, _ in facts.values.assigned(expression) or ()]
    else:
        return False
    return any(isinstance(value, ast.Call) and facts.calls.meaning(value) in _ITERATING for value in values)


def _target(facts: Facts, call: ast.Call) -> ast.Name | ast.Attribute | None:
    """The variable that an iterator is kept in."""
    statement = facts.tree.parent(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return targets[0] if len(targets) == 1 and isinstance(targets[0], (ast.Name, ast.Attribute)) else None


def _alike(facts: Facts, variable: ast.Name | ast.Attribute) -> list[ast.Name | ast.Attribute]:
    """All uses of a variable, or of an attribute by its name."""
    if isinstance(variable, ast.Name):
        return list(facts.names.uses(variable))
    return [use for use in facts.tree.attributes.get(variable.attr, ()) if dotted(use) == dotted(variable)]


def _is_same(one: Start, other: Start) -> bool:
    """Whether two starts keep their iterators in the same variable, so that the second ends the first."""
    if one.facts is not other.facts or one.kept is None or other.kept is None:
        return False
    return any(use is other.kept for use in _alike(one.facts, one.kept))


def _iterated(start: Start) -> ast.expr | None:
    """The variable whose batches a start takes, without ``enumerate`` and their like around it."""
    node = start.node.iter if isinstance(start.node, (ast.For, ast.AsyncFor, ast.comprehension)) else start.node
    while isinstance(node, ast.Call) and node.args and start.facts.loaders.iterated(node.args[0]):
        node = node.args[0]
    return node if isinstance(node, (ast.Name, ast.Attribute)) else None


def _takes_twice(start: Start, loader: Loader) -> bool:
    """Whether one call iterates a loader in two of its arguments: ``zip(loader, loader)``."""
    call = start.node.iter if isinstance(start.node, (ast.For, ast.AsyncFor, ast.comprehension)) else start.node
    return isinstance(call, ast.Call) and sum(loader in start.facts.loaders.iterated(given) for given in call.args) > 1
