"""Training and evaluation loops taken apart: loader, forward, loss, backward, step, zero_grad.

A training loop is a loop in which something is sent backward and something steps; an evaluation loop calls a network
and does neither, itself or through a function that it calls. The words "epoch", "model" and "train" prove nothing.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import receiver
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, Function, LoopNode, dotted, last_name, walk_here
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.optimizers import Optimizer
from torchfix.facts.training.regions import AUTOCAST, NO_GRAD

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.data.loaders import Loader
    from torchfix.facts.training.relays import Relay


class Kind(enum.Enum):
    """What a loop does."""

    TRAIN = "train"
    EVAL = "eval"
    UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class Training:
    """Code that trains: something goes backward and something steps whenever it runs once.

    Args:
        facts: the file.
        node: the ``for`` or ``while`` statement, or the function, whose body that is.
        backwards: the ``.backward()`` calls in its body, in text order.
        steps: the ``.step()`` calls of optimizers in its body; those of schedulers are not among them.
        scheduler_steps: the ``.step()`` calls of learning-rate schedulers.
        zero_grads: the ``.zero_grad()`` calls.
        forwards: the calls of known networks, torch's own loss modules left out.
        relays: the backward passes in functions that it leaves them to; the calls of these are among ``backwards``.
    """

    facts: Facts
    node: LoopNode | Function
    backwards: tuple[ast.Call, ...]
    steps: tuple[ast.Call, ...]
    scheduler_steps: tuple[ast.Call, ...]
    zero_grads: tuple[ast.Call, ...]
    forwards: tuple[ast.Call, ...]
    relays: tuple[Relay, ...] = ()

    @property
    def sends(self) -> tuple[tuple[ast.Call, ast.expr], ...]:
        """Its backward passes, also those in functions, each with what it is called on."""
        places = {relay.place for relay in self.relays}
        own = [(call, loss) for call in self.backwards if call not in places and (loss := receiver(call)) is not None]
        return tuple(dict.fromkeys([*own, *((relay.call, relay.loss) for relay in self.relays)]))

    @property
    def function(self) -> Function | None:
        """The function in whose body it stands, or that it is; None at module level."""
        return self.node if isinstance(self.node, FUNCTIONS) else self.facts.tree.function(self.node)

    @property
    def start(self) -> ast.stmt:
        """The statement in front of which what all of its runs need can be made: the outermost loop, or the function's first."""
        if isinstance(self.node, FUNCTIONS):
            body = self.node.body
            return body[1] if ast.get_docstring(self.node, clean=False) is not None and len(body) > 1 else body[0]
        return self.facts.tree.outermost_loop(self.node) or self.node

    def nodes(self) -> Iterator[ast.AST]:
        """Everything in its body, nested functions left out, in text order."""
        for statement in self.node.body:
            yield from walk_here(statement)


@dataclass(frozen=True, eq=False)
class Loop(Training):
    """One training loop: the innermost loop in which something goes backward and something steps, with the loops that train in it."""

    node: LoopNode

    @property
    def loaders(self) -> tuple[Loader, ...]:
        """The loaders that surely give its batches."""
        return self.facts.loaders.by_loop.get(self.node, ())

    @cached_property
    def optimizer(self) -> Optimizer | None:
        """The one optimizer that it steps; None where there are several or its making is not seen."""
        found = {optimizer for call in self.steps for optimizer in self.facts.optimizers.of(_receiver(call)) or (None,)}
        return found.pop() if len(found) == 1 else None


@dataclass(frozen=True, eq=False)
class TrainingStep(Training):
    """A function that trains once for each call, without a training loop in it."""

    node: Function


class Loops:
    """The loops of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def training(self) -> tuple[Loop, ...]:
        """The training loops of the file, in text order."""
        candidates = [Loop(self._facts, node, *parts) for node in self._facts.tree.loops if (parts := self._parts(node.body))]
        whole: list[Loop] = []
        for loop in candidates:  # an outer loop comes before the loops in it
            within = [other for other in candidates if other is not loop and self._facts.tree.is_within(other.node, loop.node)]
            held = any(self._facts.tree.is_within(loop.node, other.node) for other in whole)
            if not held and (not within or self._trains_beside(loop, within)):
                whole.append(loop)
        return tuple(whole)

    def _trains_beside(self, loop: Loop, within: list[Loop]) -> bool:
        """Whether a loop also sends backward and steps outside of the training loops in it: a critic's steps, then the generator's."""
        inside = {call for other in within for call in (*other.backwards, *other.steps)}
        return not inside >= set(loop.backwards) and not inside >= set(loop.steps)

    @cached_property
    def step_functions(self) -> dict[Function, TrainingStep]:
        """The functions of the file that train once for each call."""
        tree = self._facts.tree
        around = {function for call in tree.calls.get("backward", ()) if (function := tree.function(call)) is not None}
        steps = [TrainingStep(self._facts, node, *parts) for node in around if (parts := self._parts(node.body))]
        return {step.node: step for step in steps if not any(tree.is_within(loop.node, step.node) for loop in self.training)}

    def steps_of(self, node: LoopNode) -> set[TrainingStep]:
        """The functions of the project that a loop calls and that train once for each call."""
        calls = [item for statement in node.body for item in walk_here(statement) if isinstance(item, ast.Call)]
        runs = [run for call in calls if (last_name(call.func) or "") in self._step_names for run in called(self._facts, call)]
        return {step for facts, function in runs if (step := facts.loops.step_in(function)) is not None}

    def step_in(self, function: Function) -> TrainingStep | None:
        """A function of this file as one that trains once for each call, itself or through others."""
        unit = self._facts.relays.unit(function)
        return unit if isinstance(unit, TrainingStep) else self.step_functions.get(function)

    @cached_property
    def _step_names(self) -> frozenset[str]:
        """The names of the functions of the program that train once for each call."""
        steps = (step for facts in self._facts.program.files for step in (*facts.loops.step_functions.values(), *facts.relays.units))
        return frozenset(step.node.name for step in steps if isinstance(step.node, FUNCTIONS))

    @property
    def all(self) -> tuple[Training, ...]:
        """The training loops of the file, and its functions that train once for each call."""
        return (*self.training, *self.step_functions.values())

    def relaying(self, node: LoopNode | Function) -> Training | None:
        """A loop or function that steps, with the calls by which it leaves backward passes to functions; None for any other."""
        calls = [item for statement in node.body for item in walk_here(statement) if isinstance(item, ast.Call)]
        relays = {call: found for call in calls if (found := self._facts.relays.of(call))}
        parts = self._parts(node.body, frozenset(relays)) if relays else None
        if parts is None:
            return None
        inside = tuple(relay for found in relays.values() for relay in found)
        if isinstance(node, FUNCTIONS):
            return TrainingStep(self._facts, node, *parts, inside)
        return Loop(self._facts, node, *parts, inside)

    def _parts(
        self, body: list[ast.stmt], relayed: frozenset[ast.Call] = frozenset()
    ) -> tuple[tuple[ast.Call, ...], tuple[ast.Call, ...], tuple[ast.Call, ...], tuple[ast.Call, ...], tuple[ast.Call, ...]] | None:
        """The calls that make a body train, as :class:`Training` lists them; None where it does not.

        Args:
            relayed: calls of functions that stand for their backward passes.
        """
        every = [item for statement in body for item in walk_here(statement) if isinstance(item, ast.Call)]
        calls = [item for item in every if isinstance(item.func, ast.Attribute)]
        backwards = [call for call in every if _attr(call) == "backward" or call in relayed]
        stepping = [call for call in calls if _attr(call) == "step" or self._facts.wrapped_optimizers.step(call) is not None]
        if not backwards or not stepping:
            return None
        schedulers = [call for call in stepping if self._facts.optimizers.is_scheduler(_receiver(call))]
        steps = [call for call in stepping if call not in schedulers and self._steps_parameters(call)]
        if not steps:
            return None
        forwards = [
            item
            for statement in body
            for item in walk_here(statement)
            if isinstance(item, ast.Call) and self._facts.models.is_module(item.func) and not self._facts.models.is_loss(item.func)
        ]
        zero = [call for call in calls if _attr(call) == "zero_grad"]
        return tuple(backwards), tuple(steps), tuple(schedulers), tuple(zero), tuple(forwards)

    def _steps_parameters(self, call: ast.Call) -> bool:
        """Whether a ``.step()`` call moves parameters: of a known optimizer, or of what also zeroes gradients."""
        target = _receiver(call)
        if self._facts.optimizers.moved_by(call):
            return True
        name = dotted(target)
        if name is None:
            return False
        alike = [other for other in self._facts.tree.calls.get("zero_grad", ()) if dotted(_receiver(other)) == name]
        scaled = bool(call.args) and any(dotted(_receiver(other)) == name for other in self._facts.tree.calls.get("scale", ()))
        return bool(alike) or scaled or self._is_only_stepper(call)

    def _is_only_stepper(self, call: ast.Call) -> bool:
        """Whether this is the one thing that a function with a ``backward`` steps, its model being zeroed elsewhere."""
        owner: ast.AST = self._facts.tree.function(call) or self._facts.tree.module
        names = {dotted(_receiver(other)) for other in self._facts.tree.calls.get("step", ()) if self._facts.tree.is_within(other, owner)}
        zeroed = any(self._facts.tree.is_within(other, owner) for other in self._facts.tree.calls.get("zero_grad", ()))
        return len(names) == 1 and zeroed and not call.args

    @cached_property
    def indirect(self) -> dict[LoopNode, str]:
        """The innermost loops that train through what they call, with the part that stands there: ``backward`` or ``step``."""
        found: dict[LoopNode, str] = {}
        for node in self._facts.tree.loops:
            calls = [item for statement in node.body for item in walk_here(statement) if isinstance(item, ast.Call)]
            if any(_attr(call) == "backward" for call in calls):
                if any(self._runs_step(_attr(call)) for call in calls):
                    found[node] = "step"
            elif any(self._runs_backward(call) for call in calls) or self.steps_of(node):
                found[node] = "backward"
        outer = {around for node in (*found, *(loop.node for loop in self.training)) for around in self._facts.tree.ancestors(node)}
        return {node: part for node, part in found.items() if node not in outer and self.at(node) is None}

    def _runs_step(self, method: str) -> bool:
        """Whether a class of the program has a method of this name that steps an optimizer."""
        return any(method in facts.loops._stepping_methods for facts in self._facts.program.files)

    @cached_property
    def _stepping_methods(self) -> frozenset[str]:
        """The names of the methods of this file's classes that step an optimizer."""
        tree = self._facts.tree
        around = (outer for call in tree.calls.get("step", ()) if _attr(call) for outer in tree.ancestors(call))
        return frozenset(outer.name for outer in around if isinstance(outer, FUNCTIONS) and tree.class_of(outer) is not None)

    def _runs_backward(self, call: ast.Call) -> bool:
        """Whether a call runs a function of the project with a backward pass that no loop in it repeats."""
        return self._sending(call) is not None

    def _sending(self, call: ast.Call) -> tuple[Facts, Function] | None:
        """The function of the project that a call runs, where it has a backward pass that no loop in it repeats."""
        method = self._facts.own_method(call)
        definition = self._facts.names.definition(call.func)
        facts, function = (
            (self._facts, method) if method is not None else (definition.facts, definition.node) if definition else (None, None)
        )
        if facts is None or not isinstance(function, FUNCTIONS):
            return None
        passes = [item for item in facts.tree.calls.get("backward", ()) if facts.tree.is_within(item, function)]
        sends = any(not facts.tree.is_within(facts.tree.nearest(item, LOOPS) or facts.tree.module, function) for item in passes)
        return (facts, function) if sends else None

    def elsewhere(self, node: LoopNode) -> Obstacle:
        """Where the part stands that one of the :attr:`indirect` loops leaves to what it calls."""
        calls = [item for statement in node.body for item in walk_here(statement) if isinstance(item, ast.Call)]
        if self.indirect[node] == "backward":
            sending = [found for call in calls if (found := self._sending(call)) is not None]
            words = _places(sending or [(step.facts, step.node) for step in self.steps_of(node)])
            return Obstacle(
                "backward-elsewhere",
                f"the backward pass stands in {words}, which this loop calls",
                "write forward, backward and step in one function",
            )
        call = next(call for call in calls if self._runs_step(_attr(call)))
        known = _places(item for item in called(self._facts, call) if item[1].name in item[0].loops._stepping_methods)
        return Obstacle(
            "step-elsewhere",
            f"{ast.unparse(call)} on line {call.lineno} leaves the optimizer's step to {known or 'a method of another object'}",
            "call the step of a torch optimizer in the loop",
        )

    def beside(self, step: TrainingStep) -> Obstacle | None:
        """What stands beside the calls of a function that trains, in whatever file, or in that function, that a scaler must not meet."""
        words = _places([(step.facts, step.node)])
        waits = (ast.Yield, ast.YieldFrom, ast.Await)
        if isinstance(step.node, ast.AsyncFunctionDef) or any(isinstance(item, waits) for item in step.nodes()):
            return _beside(f"{words} pauses between the parts of its training step")
        waiting: list[tuple[Facts, Function]] = [(step.facts, step.node)]
        for facts, function in waiting:  # one that calls it without a loop is called in turn
            seen = facts.callers_everywhere(function)
            calls = seen or facts.loops.named_calls(function) or seen
            if calls is None:
                return _beside(f"{_places([(facts, function)])}, which trains, may have callers that are not seen")
            for caller, node in dict.fromkeys((caller, caller.loops._repeats(call)) for caller, call in calls):
                found = caller.loops._meets(node, step, words)
                if found is not None:
                    return found
                if isinstance(node, FUNCTIONS) and (caller, node) not in waiting:
                    waiting.append((caller, node))
        return None

    def named_calls(self, function: Function) -> list[tuple[Facts, ast.Call]] | None:
        """Every call of a method of this name, unless it is seen to run another; None where the project uses the name in other ways.

        Where files that share a program with the method call it, other programs of the project, which call one of their own, do not count.
        """
        if self._facts.tree.class_of(function) is None or function.name.startswith("__"):
            return None
        files = [self._facts.project.file(path) for path in self._facts.project.holding(function.name)]
        uses = [(facts, use) for facts in files if facts is not None for use in facts.tree.attributes.get(function.name, ())]
        calls = [(facts, facts.tree.parent(use)) for facts, use in uses]
        found = [(facts, call) for (facts, call), (_, use) in zip(calls, uses) if isinstance(call, ast.Call) and call.func is use]
        if len(found) < len(uses) or None in files:
            return None
        called = [item for item in found if not _runs_another(*item, function)]
        near = {facts.path for facts in self._facts.program.holding(function.name)}
        return [item for item in called if item[0].path in near] or called

    def _repeats(self, call: ast.Call) -> LoopNode | Function | ast.Module:
        """The outermost loop that repeats a call in its function; where there is none that function, or the module."""
        tree = self._facts.tree
        return tree.outermost_loop(call) or tree.function(call) or tree.module

    def _meets(self, node: LoopNode | Function | ast.Module, step: TrainingStep, words: str) -> Obstacle | None:
        """What one of the places that call a function that trains does beside it."""
        place = f"line {{}} of {self._facts.path}"
        body = [item for item in node.body if not isinstance(item, (*FUNCTIONS, ast.ClassDef))]
        for facts, sent in self._facts.reach.calls(body):
            if _attr(sent) == "backward" and sent not in step.backwards and all(sent is not call for call, _ in step.sends):
                return _beside(f"{ast.unparse(sent)} (line {sent.lineno} of {facts.path}) goes backward beside {words}")
        stepped = {dotted(_receiver(call)) for call in step.steps}
        for item in (item for statement in body for item in walk_here(statement)):
            if isinstance(item, ast.Attribute) and (item.attr == "grad" or item.attr.startswith("clip_grad")):
                return _beside(f"{place.format(item.lineno)} reads gradients beside {words}")
            if isinstance(item, ast.Call) and _attr(item) == "step" and self._disturbs(item, stepped):
                return _beside(f"{place.format(item.lineno)} steps beside {words}")
        return None

    def _disturbs(self, call: ast.Call, stepped: set[str | None]) -> bool:
        """Whether a ``.step()`` moves what a step function moves, or counts steps that a scaler may skip."""
        source = _receiver(call)
        if self._facts.optimizers.is_scheduler(source):
            return self._facts.optimizers.counts_steps(call)
        return dotted(source) in stepped or bool(self._facts.optimizers.of(source))

    def scales(self, loop: Training) -> bool:
        """Whether a training loop already uses mixed precision: autocast in or around it, or a scaled loss."""
        if self._facts.regions.under(loop.node, AUTOCAST):
            return True
        functions = dict.fromkeys(function for relay in loop.relays for function in relay.functions)
        nodes = [*loop.nodes(), *(node for function in functions for node in walk_here(function))]
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        scaled = any(isinstance(call.func, ast.Attribute) and call.func.attr in ("scale", "scale_loss", "unscale_") for call in calls)
        return scaled or any(self._facts.calls.meaning(call) in AUTOCAST for call in calls)

    def at(self, node: ast.AST) -> Loop | None:
        """The training loop that a ``for`` or ``while`` statement is."""
        return next((loop for loop in self.training if loop.node is node), None)

    def around(self, node: ast.AST) -> Loop | None:
        """The training loop in whose body a node stands."""
        return next((loop for loop in self.training if self._facts.tree.is_within(node, loop.node)), None)

    def kind(self, node: LoopNode) -> Kind:
        """What a loop does, through the functions of the project that it calls."""
        if self.at(node) is not None:
            return Kind.TRAIN
        sent = steps = zeroes = False
        for facts, call in self._facts.reach.calls(node.body):
            sends = _sends_backward(facts, call)
            if sends or facts.optimizers.is_scaler(call.func):
                return Kind.TRAIN
            sent = sent or facts.calls.meaning(call) == "torch.autograd.grad" or _attr(call) == "manual_backward"
            steps = steps or _attr(call) == "step"
            zeroes = zeroes or _attr(call) == "zero_grad"
        if sent or zeroes:
            return Kind.TRAIN if sent and steps else Kind.UNKNOWN
        return Kind.EVAL if self._evaluates(node) else Kind.UNKNOWN

    def _evaluates(self, node: LoopNode) -> bool:
        """Whether a loop without a backward pass is there to evaluate: the networks are in that mode, or gradients are off."""
        if self._facts.modes.evaluates(node):
            return True
        return any(isinstance(item, ast.With) and self._facts.regions.under(item.body[0], NO_GRAD) for item in node.body)


def _runs_another(facts: Facts, call: ast.Call, function: Function) -> bool:
    """Whether a call of a method is seen to run one of another object."""
    source, runs = receiver(call), [run for _, run in called(facts, call)]
    return bool(runs) and function not in runs and not (isinstance(source, ast.Name) and facts.is_self(source))


def _sends_backward(facts: Facts, call: ast.Call) -> bool:
    return _attr(call) == "backward" or facts.calls.meaning(call) == "torch.autograd.backward"


def _places(functions: Iterable[tuple[Facts, Function]]) -> str:
    """Functions by name, line and file."""
    return ", ".join(dict.fromkeys(f"{function.name} (line {function.lineno} of {facts.path})" for facts, function in functions))


def _beside(words: str) -> Obstacle:
    return Obstacle("backward-elsewhere", words, "keep everything that touches gradients or optimizers in the function that steps")


def _attr(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _receiver(call: ast.Call) -> ast.expr:
    source = receiver(call)
    assert source is not None
    return source
