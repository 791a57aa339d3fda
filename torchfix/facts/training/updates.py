"""How a training loop updates its parameters: what is sent backward, what steps, and who reads gradients in between."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, is_constant, keyword
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, Function, dotted, last_name, walk, walk_here
from torchfix.facts.half_precision.hazards import GRADIENT_HOOKS
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.carried_gradients import carried_over
from torchfix.facts.training.collectives import exchanged_by_hand
from torchfix.facts.training.cycles import LEAVING, Cycle
from torchfix.facts.training.gradient_reads import CLIPS, reads_gradients
from torchfix.facts.training.leftovers import left_to_others
from torchfix.facts.training.optimizers import Optimizer
from torchfix.facts.training.owners import all_owners, parameter_expressions, parameter_owners

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Training
    from torchfix.facts.training.wrapped_optimizers import WrappedStep

# A step's call, what it is called on, and every way in which the optimizer that it moves may have been made.
_Made = tuple[ast.Call, ast.expr, tuple[Optimizer, ...]]


@dataclass(frozen=True, eq=False)
class Sent:
    """One backward pass.

    Args:
        call: the ``.backward()`` call.
        loss: what it is called on.
        statement: the statement that it stands in.
    """

    call: ast.Call
    loss: ast.expr
    statement: ast.stmt


@dataclass(frozen=True, eq=False)
class Stepped:
    """One step of an optimizer.

    Args:
        call: the ``.step()`` call, or that of a method which steps, a statement of its own.
        optimizer: what it is called on.
        optimizers: every way in which the optimizer that it moves may have been made.
        statement: the statement that it is.
        reader: the statement in the step's block before which its gradients must have their true size, None where
            nothing reads them.
        text: how the loop writes the optimizer that moves.
        wrapped: the step in the method that the call runs, None where it is the optimizer's own.
        shared: whether other code calls that method too, which has no scaler or another one.
    """

    call: ast.Call
    optimizer: ast.expr
    optimizers: tuple[Optimizer, ...]
    statement: ast.stmt
    reader: ast.stmt | None
    text: str
    wrapped: WrappedStep | None = None
    shared: bool = False


@dataclass(frozen=True, eq=False)
class Update:
    """One update of the parameters, as a training loop writes it.

    Args:
        loop: the training loop.
        sent: what goes backward, in text order.
        steps: what steps, in text order.
        closing: the statements behind which the gradients of every step before are done with, so that a scaler may
            look at how it went and choose its next scale.
        counted: the statements behind a closing one, in its block, that move a schedule made for an exact number of
            steps, each with that closing statement.
    """

    loop: Training
    sent: tuple[Sent, ...]
    steps: tuple[Stepped, ...]
    closing: tuple[ast.stmt, ...]
    counted: tuple[tuple[ast.stmt, ast.stmt], ...]

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """Every optimizer that it may step."""
        return tuple(dict.fromkeys(optimizer for step in self.steps for optimizer in step.optimizers))


class Updates:
    """Questions about the updates of one file's training loops."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of(self, loop: Training) -> Update | Obstacle:
        """The loop's update, or what stands in the way of scaling its losses."""
        obstacle = self._second_order(loop) or self._hooks() or self._form(loop) or exchanged_by_hand(loop) or left_to_others(loop)
        if obstacle is not None:
            return obstacle
        made = self._made(loop, scaled=False)
        if isinstance(made, Obstacle):
            return made
        cycle = self._facts.cycles.of(loop)
        if isinstance(cycle, Obstacle):
            return cycle
        readers = self._readers(loop, made, cycle)
        if isinstance(readers, Obstacle):
            return readers
        steps = [self._stepped(loop, step, named, moved, readers.get(step)) for step, named, moved in made]
        left = next((obstacle for step in steps if (obstacle := self._left_over(loop, step, cycle)) is not None), None)
        kept = left or carried_over(loop)
        if kept is not None:
            return kept
        sent = [Sent(call, loss, self._facts.tree.statement(call)) for call, loss in loop.sends]
        return Update(loop, tuple(sent), tuple(steps), cycle.closing, tuple(self._counted(loop, cycle.closing)))

    def _stepped(self, loop: Training, step: ast.Call, named: ast.expr, moved: tuple[Optimizer, ...], reader: ast.stmt | None) -> Stepped:
        wrapped, shared = self._facts.wrapped_optimizers.step(step), bool(self._facts.wrapped_optimizers.others(loop, step))
        text = self._facts.source.segment(named) + (f".{wrapped.attribute}" if wrapped is not None else "")
        return Stepped(step, named, moved, self._facts.tree.statement(step), reader, text, wrapped, shared)

    def _left_over(self, loop: Training, step: Stepped, cycle: Cycle) -> Obstacle | None:
        """Gradients that the loop may leave scaled, and with which other code of the same program would step through the same method."""
        if not step.shared or step.wrapped is None or all(self._facts.tree.block(item) is loop.node.body for item in cycle.closing):
            return None
        for facts, call in self._facts.wrapped_optimizers.others(loop, step.call):
            files = {file.path for file in self._facts.program.files}, {file.path for file in facts.program.files}
            if facts.path in files[0] or self._facts.path in files[1]:
                return Obstacle(
                    "gradients-kept",
                    f"gradients may be left over for {step.wrapped.words}, which line {call.lineno} of {facts.path} also calls",
                    "step each optimizer in one loop",
                )
        return None

    def readers(self, loop: Training) -> dict[ast.Call, ast.stmt] | Obstacle:
        """For each step the first statement of its block that reads its gradients, where the program scales its losses by itself."""
        if not any(reads_gradients(self._facts, node) for node in loop.nodes()):
            return {}
        made = self._made(loop, scaled=True)
        if isinstance(made, Obstacle):
            return made
        cycle = self._facts.cycles.sources(loop)
        return cycle if isinstance(cycle, Obstacle) else self._readers(loop, made, cycle)

    def _made(self, loop: Training, scaled: bool) -> list[_Made] | Obstacle:
        """The steps with their optimizers; without a scaler of the program's own each must be one that a scaler can take over."""
        made: list[_Made] = []
        for step in loop.steps:
            optimizer = self._facts.optimizers.stepped_by(step)
            assert optimizer is not None
            optimizers = self._facts.optimizers.moved_by(step)
            obstacle = None if scaled else self._stepping(loop, step, optimizers)
            if obstacle is not None or optimizers is None:
                return obstacle or _unseen_optimizer(optimizer)
            made.append((step, optimizer, optimizers))
        return _stepped_twice(self._facts, made) or made

    # What is of another kind ----------------------------------------------------------------------------------

    def _second_order(self, loop: Training) -> Obstacle | None:
        """Gradients of gradients, anywhere in the file or in what the loop calls."""
        grads = next(self._facts.calls.to("torch.autograd.grad"), None) or next(self._calls_that_differentiate(loop), None)
        kept = [
            call
            for calls in self._facts.tree.calls.values()
            for call in calls
            if (item := keyword(call, "create_graph")) and not is_constant(item.value, False)
        ]
        place = grads or (kept[0] if kept else None)
        if place is None:
            return None
        return Obstacle(
            "double-backward",
            f"line {place.lineno} takes gradients by hand, which a loss scale would change",
            "scale and unscale that gradient by hand (torch's AMP examples, gradient penalty)",
        )

    def _calls_that_differentiate(self, loop: Training) -> Iterator[ast.Call]:
        for call in (node for node in loop.nodes() if isinstance(node, ast.Call)):
            function = called(self._facts, call)
            inside = [node for node in walk(function[1]) if isinstance(node, ast.Call)] if function is not None else []
            if function is not None and any(function[0].calls.meaning(node) == "torch.autograd.grad" for node in inside):
                yield call

    def _hooks(self) -> Obstacle | None:
        """Functions that see gradients while the backward pass still runs."""
        hooks = list(self._facts.calls.methods(*GRADIENT_HOOKS)) + list(self._facts.calls.to("wandb.watch"))
        if not hooks:
            return None
        return Obstacle(
            "gradient-hooks",
            f"line {hooks[0].lineno} hooks into gradients, which would still be scaled",
            "divide them by scaler.get_scale() in the hook",
        )

    def _form(self, loop: Training) -> Obstacle | None:
        for call in loop.backwards:
            if (self._facts.calls.meaning(call) or "").startswith("torch.autograd"):
                return Obstacle("backward-form", "the backward pass is started by torch.autograd.backward", "call .backward() on the loss")
        return None

    def _stepping(self, loop: Training, step: ast.Call, optimizers: tuple[Optimizer, ...] | None) -> Obstacle | None:
        """What keeps a scaler from taking a step."""
        statement, wrapped = self._facts.tree.statement(step), self._facts.wrapped_optimizers
        alone = isinstance(statement, ast.Expr) and statement.value is step
        inside = wrapped.step(step) is not None
        obstacle = wrapped.obstacle(loop, step) if inside else None
        if obstacle is not None:
            return obstacle
        if not alone or (not inside and (step.args or step.keywords)) or any(item.takes_closure for item in optimizers or ()):
            return Obstacle(
                "closure",
                "the optimizer's step computes the loss again, which a scaler does not take",
                "use autocast alone, without a scaler",
            )
        if any(not item.has_groups for item in optimizers or ()):
            return Obstacle(
                "optimizer-form",
                "the optimizer's class holds another one and has no parameter groups of its own, in which a scaler looks for gradients",
                "give the class a property param_groups that returns those of the optimizer inside",
            )
        if any(not _trains_network(item) for item in optimizers or ()):
            return Obstacle(
                "no-network-trained",
                "the optimizer changes something else than a network's parameters",
                "decide by hand what may be half precision",
            )
        if any(item.kind.rpartition(".")[2] == "SparseAdam" for item in optimizers or ()):
            return Obstacle(
                "sparse-gradients", "the optimizer is for sparse gradients, which the scaler does not take", "use dense gradients"
            )
        return None

    def _counted(self, loop: Training, closing: tuple[ast.stmt, ...]) -> Iterator[tuple[ast.stmt, ast.stmt]]:
        """The steps of schedules that must not count a step which a scaler skipped, each with what closes the update before it."""
        tree = self._facts.tree
        for call in loop.scheduler_steps:
            moved = tree.statement(call)
            before = [item for item in closing if tree.block(item) is tree.block(moved) and item.lineno < moved.lineno]
            if before and self._facts.optimizers.counts_steps(call):
                yield moved, before[-1]

    # Who reads gradients --------------------------------------------------------------------------------------

    def _readers(self, loop: Training, made: list[_Made], cycle: Cycle) -> dict[ast.Call, ast.stmt] | Obstacle:
        """For each step the first statement of its block that reads its gradients, where one does."""
        found: dict[ast.Call, ast.stmt] = {}
        for node in loop.nodes():
            if not reads_gradients(self._facts, node):
                obstacle = self._out_of_sight(node, cycle)
                if obstacle is not None:
                    return obstacle
                continue
            steps = self._read_by(loop, node, made, cycle)
            if isinstance(steps, Obstacle):
                return steps
            for step, statement in steps:
                found[step] = min(found.get(step, statement), statement, key=lambda item: item.lineno)
        for step, statement in found.items():
            _, block, place = self._facts.tree.place(self._facts.tree.statement(step))
            if statement not in block:
                _, block, place = self._facts.tree.place(self._facts.cycles.standing(loop, step))
            left = left_between(block[block.index(statement) : place])
            if left is not None:
                return left
        once = {(self._facts.optimizers.name_of(step), statement): step for step, statement in reversed(found.items())}
        return {step: statement for (_, statement), step in reversed(once.items())}

    def _read_by(self, loop: Training, node: ast.AST, made: list[_Made], cycle: Cycle) -> list[tuple[ast.Call, ast.stmt]] | Obstacle:
        """The steps whose gradients a node reads, each with the statement of its block before which they must be true."""
        tree = self._facts.tree
        near: list[tuple[_Made, ast.stmt]] = []
        for item in made:
            for standing in dict.fromkeys((tree.statement(item[0]), self._facts.cycles.standing(loop, item[0]))):
                _, block, place = tree.place(standing)
                at = next((index for index, statement in enumerate(block) if tree.is_within(node, statement)), place)
                sent = [index for index, part in enumerate(block) for call in cycle.sources[item[0]] if tree.is_within(call, part)]
                sends = any(tree.is_within(call, statement) for statement in block[place:at] for call in loop.backwards)
                if max(sent, default=-1) < at != place and not sends:
                    near.append((item, block[min(at, place)]))
                    break
        if not near:
            return Obstacle(
                "gradients-read-elsewhere",
                f"line {getattr(node, 'lineno', 0)} reads gradients outside the branch that steps",
                "read or clip gradients right before the step",
            )
        obstacles = [self._out_of_reach(step) or self._foreign_gradients(node, step, optimizers) for (step, _, optimizers), _ in near]
        if len({self._facts.optimizers.name_of(step) for (step, _, _), _ in near}) == 1:
            return next((item for item in obstacles if item is not None), None) or [(step, statement) for (step, _, _), statement in near]
        read = self._owners_read(node)
        owned = [all_owners(item.owners for item in optimizers) for (_, _, optimizers), _ in near]
        stepped = all_owners(owned)
        if read is None or stepped is None or not read <= stepped:
            return Obstacle(
                "clip-parameters",
                f"line {getattr(node, 'lineno', 0)} reads gradients, and it is not seen which of the optimizers steps with them",
                "clip the parameters of one optimizer right before its step",
            )
        return [(item[0], statement) for (item, statement), mine in zip(near, owned) if mine is not None and mine & read]

    def _owners_read(self, node: ast.AST) -> frozenset[object] | None:
        """The networks whose gradients a node reads."""
        facts = self._facts
        if isinstance(node, ast.Call):
            given = [*node.args, *(item.value for item in node.keywords)]
            owners = [parameter_owners(facts, item) for item in given if next(parameter_expressions(facts, item), None) is not None]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owners = [parameter_owners(facts, item.value) for item in facts.flow.reaching(node.value)]
        else:
            return None
        return all_owners(owners)

    def _out_of_sight(self, node: ast.AST, cycle: Cycle) -> Obstacle | None:
        """A call between backward and step that is given the network or the optimizer and cannot be read."""
        facts = self._facts
        if not isinstance(node, ast.Call) or not any(
            sources and _position(sources[-1]) < _position(node) < _position(step) for step, sources in cycle.sources.items()
        ):
            return None
        if called(facts, node) is not None or node in cycle.sources or last_name(node.func) == "unscale_":
            return None
        meaning = facts.calls.meaning(node) or ""
        if meaning.startswith(("torch.", "builtins.", "itertools.")):
            return None
        given = [*node.args, *(item.value for item in node.keywords)]
        for inner in (inner for item in given for inner in walk(item)):
            names = isinstance(inner, (ast.Name, ast.Attribute)) and (facts.models.of(inner) or facts.optimizers.of(inner))
            if names or (isinstance(inner, ast.Attribute) and inner.attr in ("parameters", "named_parameters", "param_groups")):
                return Obstacle(
                    "gradients-out-of-sight",
                    f"line {node.lineno} hands parameters to {last_name(node.func)}, whose code is out of sight, between backward and step",
                    "call scaler.unscale_(optimizer) before it if it reads gradients",
                )
        return None

    def _out_of_reach(self, step: ast.Call) -> Obstacle | None:
        """An optimizer that the loop cannot name, as no code outside a class can name what begins with two underscores."""
        wrapped = self._facts.wrapped_optimizers.step(step)
        if wrapped is None or not wrapped.attribute.startswith("__"):
            return None
        return Obstacle(
            "gradients-read-elsewhere",
            f"gradients are read before {wrapped.words} steps, and the loop cannot name the optimizer that it steps",
            f"name it {wrapped.attribute[1:]}",
        )

    def _foreign_gradients(self, node: ast.AST, step: ast.Call, optimizers: tuple[Optimizer, ...]) -> Obstacle | None:
        """Gradients of something that the optimizer does not step, which ``unscale_`` would leave scaled."""
        facts = self._facts
        if isinstance(node, ast.Call) and facts.calls.meaning(node) in CLIPS:
            given = argument(node, "parameters", 0)
            strict = keyword(node, "error_if_nonfinite")
            if strict is not None and not is_constant(strict.value, False):
                return Obstacle(
                    "skipped-update",
                    f"line {node.lineno} raises on the infinite gradients that a scaler looks for",
                    "leave the decision to the scaler, which skips such steps by itself",
                )
            if given is not None and _is_of_groups(given, facts.optimizers.name_of(step)):
                return None
            clipped = parameter_owners(facts, given)
            for item in optimizers:
                trained = argument(item.call, "params", 0)
                owners = item.owners
                same = item.value.facts is facts and _is_same(facts, given, trained)
                if not same and (clipped is None or owners is None or not clipped <= owners):
                    break
            else:
                return None
            return Obstacle(
                "clip-parameters",
                f"line {node.lineno} clips parameters that are not surely those of the optimizer",
                "clip the parameters that the optimizer was given",
            )
        if isinstance(node, ast.Attribute) and not _is_parameter(facts, node.value):
            return Obstacle(
                "input-gradients",
                f"line {node.lineno} reads the gradient of something that the optimizer does not step",
                "divide it by scaler.get_scale()",
            )
        return None


def left_between(statements: Iterable[ast.stmt]) -> Obstacle | None:
    """Where statements between the first reader of gradients and the step may leave the iteration, None where they do not."""
    for item in statements:
        if any(isinstance(node, LEAVING) for node in walk_here(item)):
            return Obstacle(
                "skipped-update",
                f"line {item.lineno} may leave the iteration after gradients were read and before the step",
                "leave the decision to the scaler, which skips steps with infinite gradients by itself",
            )
    return None


def called(facts: Facts, call: ast.Call) -> tuple[Facts, Function] | None:
    """The function or method of the project that a call runs, with the facts of its file."""
    method = facts.own_method(call)
    if method is not None:
        return facts, method
    definition = facts.names.definition(call.func)
    return (definition.facts, definition.node) if definition is not None and isinstance(definition.node, FUNCTIONS) else None


def _is_of_groups(given: ast.expr, optimizer: str | None) -> bool:
    """Whether an expression lists the parameters of an optimizer's own groups."""
    groups = (node for node in walk(given) if isinstance(node, ast.Attribute) and node.attr == "param_groups")
    return optimizer is not None and any(dotted(node.value) == optimizer for node in groups)


def _is_same(facts: Facts, one: ast.expr | None, other: ast.expr | None) -> bool:
    """Whether two expressions are the same variable."""
    return isinstance(one, ast.Name) and isinstance(other, ast.Name) and facts.names.same(one, other)


def _trains_network(optimizer: Optimizer) -> bool:
    """Whether an optimizer was given parameters of a network, or something that was made from a network."""
    facts, given = optimizer.value.facts, argument(optimizer.call, "params", 0)
    if given is None or next(parameter_expressions(facts, given), None) is not None:
        return True
    return any(isinstance(node, (ast.Name, ast.Attribute)) and facts.models.of(node) for node in walk(given)) or not isinstance(
        given, (ast.List, ast.Tuple)
    )


def _is_parameter(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression surely is a parameter: of a loop over parameters, or a layer's weight or bias."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("weight", "bias")
    if not isinstance(node, ast.Name):
        return False
    bindings = facts.flow.reaching(node)
    return bool(bindings) and all(
        binding.how is Bound.LOOP and binding.value is not None and _lists_parameters(facts, binding.value) for binding in bindings
    )


def _lists_parameters(facts: Facts, node: ast.expr, depth: int = 0) -> bool:
    for inner in walk(node):
        if isinstance(inner, ast.Attribute) and inner.attr in ("parameters", "named_parameters", "param_groups"):
            return True
        if isinstance(inner, ast.Name) and depth < 3:
            values = [binding.value for binding in facts.flow.reaching(inner) if binding.value is not None]
            if values and all(_lists_parameters(facts, value, depth + 1) for value in values):
                return True
    return False


def _position(node: ast.expr) -> tuple[int, int]:
    return (node.end_lineno or 0, node.end_col_offset or 0)


def _stepped_twice(facts: Facts, made: list[_Made]) -> Obstacle | None:
    """Two steps of which one is a method's and which may move the same optimizer, or two of one class that cannot be told apart."""
    for index, (step, _, optimizers) in enumerate(made):
        for other, _, others in made[:index]:
            inside = facts.wrapped_optimizers.step(step) or facts.wrapped_optimizers.step(other)
            apart = facts.optimizers.name_of(step) != facts.optimizers.name_of(other)
            if inside is not None and apart and not set(optimizers).isdisjoint(others):
                return Obstacle(
                    "step-elsewhere",
                    f"the steps on lines {other.lineno} and {step.lineno} may move the same optimizer, one of them in {inside.words}",
                    "step each optimizer at one place",
                )
    return None


def _unseen_optimizer(optimizer: ast.expr) -> Obstacle:
    return Obstacle(
        "optimizer-not-seen", f"how {ast.unparse(optimizer)} was made is out of sight", "make it with a torch.optim class in this file"
    )
