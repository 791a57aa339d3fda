"""Optimizers inside objects of the project: which method steps the one that its object holds, and whether a scaler may step it there.

So are learning-rate schedules written that are older than torch's own: ``def step_and_update_lr(self)`` sets the rate and
then calls ``self._optimizer.step()``. A class that derives from torch's optimizers is an optimizer itself and none of these.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import is_constant, receiver
from torchfix.facts.code.classes import method_of, runs_as_written
from torchfix.facts.code.instances import Instance, Origin
from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import parameters
from torchfix.facts.code.tree import FUNCTIONS, Function, dotted, walk_here
from torchfix.facts.code.values import Value, default_of, is_generator
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.gradient_reads import reads_gradients
from torchfix.facts.training.models import derives
from torchfix.facts.training.optimizers import Optimizer

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Training

_LEAVING = (ast.Return, ast.Raise, ast.Assert)


@dataclass(frozen=True, eq=False)
class WrappedStep:
    """A method that steps the optimizer which its object holds.

    Args:
        facts: the method's file.
        method: the method.
        calls: the steps in it, in text order.
        attribute: what the object calls the optimizer.
        optimizers: every way in which that optimizer may have been made.
    """

    facts: Facts
    method: Function
    calls: tuple[ast.Call, ...]
    attribute: str
    optimizers: tuple[Optimizer, ...]

    @property
    def call(self) -> ast.Call:
        """The step."""
        return self.calls[0]

    @cached_property
    def scaler(self) -> str | None:
        """The parameter by which the method already takes a scaler, if it is given one: ``if scaler is None: ... else: ...``."""
        choice = self.facts.tree.parent(self.facts.tree.statement(self.call))
        tested = _tested_for_none(choice.test) if isinstance(choice, ast.If) and len(self.calls) == 2 else None
        given = [item for item in parameters(self.method.args) if item.arg == tested and is_constant(default_of(self.method, item), None)]
        apart = isinstance(choice, ast.If) and [len(choice.body), len(choice.orelse)] == [1, 1]
        through = {dotted(source) for call in self.calls if (source := receiver(call)) is not None}
        return tested if given and apart and self.statement is choice and tested in through else None

    @property
    def statement(self) -> ast.stmt:
        """The statement of the method that steps, or that chooses how."""
        tree = self.facts.tree
        around = [item for item in self.method.body if any(tree.is_within(call, item) for call in self.calls)]
        inner = tree.statement(self.call)
        return around[0] if len(around) == 1 and isinstance(around[0], ast.If) and len(self.calls) == 2 else inner

    @property
    def optimizer(self) -> ast.expr:
        """What it is called on."""
        source = receiver(self.call)
        assert source is not None
        return source

    @property
    def words(self) -> str:
        """The method by name, line and file."""
        return f"{self.method.name} (line {self.method.lineno} of {self.facts.path})"

    @cached_property
    def moves_rate(self) -> bool:
        """Whether the method, or a method of the same object that it calls, writes a learning rate or steps a schedule."""
        facts = self.facts
        own = {inner for statement in self.method.body for call in _calls(statement) if (inner := facts.own_method(call)) is not None}
        nodes = [node for function in (self.method, *own) for statement in function.body for node in walk_here(statement)]
        written = (node.slice for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store))
        sources = (receiver(node) for node in nodes if isinstance(node, ast.Call) and node not in self.calls)
        schedules = (source for source in sources if source is not None and facts.optimizers.is_scheduler(source))
        return any(is_constant(key, "lr") for key in written) or next(schedules, None) is not None


class WrappedOptimizers:
    """Questions about objects that hold an optimizer, in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._known: dict[ast.Call, WrappedStep | None] = {}

    def step(self, call: ast.Call) -> WrappedStep | None:
        """The step that a call of a method takes with the optimizer that its object surely holds; None for any other call."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in self._names:
            return None
        if call not in self._known:
            self._known[call] = None  # an object that is made from itself holds nothing that is known
            self._known[call] = self._read(call.func)
        return self._known[call]

    @cached_property
    def _names(self) -> frozenset[str]:
        """The names of the methods of the program that may take such a step."""
        return frozenset(name for facts in self._facts.program.files for name in facts.wrapped_optimizers.methods)

    @cached_property
    def methods(self) -> frozenset[str]:
        """The names of the methods of this file in which an attribute of the object steps, or is handed to what steps."""
        tree = self._facts.tree
        around = (tree.function(call) for call in tree.calls.get("step", ()) if next(_held(self._facts, call), None) is not None)
        return frozenset(function.name for function in around if function is not None)

    def _read(self, func: ast.Attribute) -> WrappedStep | None:
        if isinstance(func.value, ast.Name) and self._facts.is_self(func.value):
            return None
        values = self._facts.values.of(func.value) or ()
        found = [_step_of(value, func.attr) for value in values if not value.is_none]
        known = [item for item in found if item is not None]
        if not known or len(known) < len(found) or any(item.method is not known[0].method for item in known):
            return None
        return replace(known[0], optimizers=tuple(dict.fromkeys(made for item in known for made in item.optimizers)))

    def others(self, loop: Training, call: ast.Call) -> list[tuple[Facts, ast.Call]]:
        """Where else the method is called that a step of a loop runs, as far as that is seen."""
        wrapped = self.step(call)
        callers = wrapped.facts.callers_everywhere(wrapped.method) if wrapped is not None else None
        return [(facts, other) for facts, other in callers or () if other not in loop.steps]

    def obstacle(self, loop: Training, call: ast.Call) -> Obstacle | None:
        """What keeps a scaler that a loop hands to a method from taking the step in it."""
        wrapped = self.step(call)
        assert wrapped is not None
        words = _unlike_a_step(wrapped) or self._called_beside(wrapped, loop, call)
        return None if words is None else Obstacle("step-elsewhere", words, "call the optimizer's own step in the loop that scales")

    def _called_beside(self, wrapped: WrappedStep, loop: Training, step: ast.Call) -> str | None:
        """What calls a method in other ways than training does which has nothing to do with this loop."""
        if wrapped.facts.callers_everywhere(wrapped.method) is None:
            return f"{wrapped.words}, which steps, may have callers that are not seen"
        reached = {other for _, other in self._facts.reach.calls(loop.node.body)}
        for facts, other in self.others(loop, step):
            unit = next((item for item in facts.loops.all if other in item.steps), None)
            meets = unit is None or other in reached or any(item in loop.steps for _, item in facts.reach.calls(unit.node.body))
            if meets:
                return f"{wrapped.words}, which steps, is also called on line {other.lineno} of {facts.path}"
        return None


def _step_of(made: Value, name: str) -> WrappedStep | None:
    """The step that a method of an object takes, by the call that makes the object."""
    node = made.node
    definition = made.facts.names.definition(node.func) if isinstance(node, ast.Call) and not made.path else None
    if definition is None or not isinstance(definition.node, ast.ClassDef) or derives(definition, ("torch.optim.",)):
        return None
    method = method_of(definition, name)
    if method is None or not isinstance(method.node, FUNCTIONS):
        return None
    assert isinstance(node, ast.Call)
    instance = Instance(definition, Origin(made.facts, node))
    found: list[tuple[ast.Call, str, tuple[Optimizer, ...]]] = []
    for call in (item for statement in method.node.body for item in _calls(statement)):
        for held in _held(method.facts, call):
            inside = _optimizers_in(instance, held.attr)
            found += [(call, held.attr, inside)] if inside else []
    if not found:
        return None
    _, attribute, optimizers = found[0]
    return WrappedStep(method.facts, method.node, tuple(call for call, _, _ in found), attribute, optimizers)


def _held(facts: Facts, call: ast.Call) -> Iterator[ast.Attribute]:
    """The attributes of the object that a ``.step()`` in one of its methods may step: what it is called on, or what it is given."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "step":
        for item in (call.func.value, *call.args[:1]):
            if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and facts.is_self(item.value):
                yield item


def _optimizers_in(instance: Instance, attribute: str) -> tuple[Optimizer, ...]:
    """The optimizers that an object's attribute may hold; none where it may hold something else."""
    origins = [item for item in instance.attribute(attribute) or () if not is_constant(item.node, None)]
    found = [item.facts.optimizers.of_value(Value(item.facts, item.node)) for item in origins]
    return tuple(item for item in found if item is not None) if all(found) else ()


def _unlike_a_step(wrapped: WrappedStep) -> str | None:
    """What a method does beside one plain step."""
    facts, method, words = wrapped.facts, wrapped.method, wrapped.words
    statement, takes = wrapped.statement, wrapped.scaler is not None
    if len(wrapped.calls) > 1 and not takes:
        return f"{words} steps more than once"
    if method.args.vararg is not None or is_generator(method) or not runs_as_written(Definition(facts, method)):
        return f"{words} is no plain method to which a scaler can be handed"
    before = method.body[: method.body.index(statement)] if statement in method.body else method.body
    if statement not in method.body or any(isinstance(node, _LEAVING) for item in before for node in walk_here(item)):
        return f"{words} steps only under a condition"
    alone = isinstance(statement, ast.Expr) and statement.value is wrapped.call and not wrapped.call.args and not wrapped.call.keywords
    if not alone and not takes:
        return f"{words} does more with its step than to take it"
    for item in method.body:
        touches = facts.autograd.used_in([item]) if item is not statement else None
        if touches is not None or any(reads_gradients(facts, node) for node in walk_here(item)):
            return f"{words} looks at gradients beside its step"
        if item in before and any(call.func.attr == "zero_grad" for call in _calls(item) if isinstance(call.func, ast.Attribute)):
            return f"{words} clears gradients before its step"
    return None


def _tested_for_none(test: ast.expr) -> str | None:
    """The variable of which a condition asks whether it is None."""
    asks = isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot)) and is_constant(test.comparators[0], None)
    return test.left.id if asks and isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) else None


def _calls(statement: ast.stmt) -> Iterator[ast.Call]:
    return (node for node in walk_here(statement) if isinstance(node, ast.Call))
