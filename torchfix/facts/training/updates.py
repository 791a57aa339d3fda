"""How a training loop updates its parameters: what is sent backward, what steps, and who reads gradients in between."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, is_constant, keyword, receiver
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, Function, dotted, last_name, walk, walk_here
from torchfix.facts.half_precision.hazards import GRADIENT_HOOKS
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.optimizers import Optimizer

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Loop

CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_norm")
# What leaves an iteration before its step.
_LEAVING = (ast.Continue, ast.Break, ast.Return, ast.Raise, ast.Assert)
_DEPTH = 3  # functions followed into one another in search of gradient reads


@dataclass(frozen=True, eq=False)
class Update:
    """One update of the parameters, as a training loop writes it.

    Args:
        loop: the training loop.
        backward: the one ``.backward()`` call.
        loss: what it is called on.
        step: the one ``.step()`` call, a statement of its own.
        optimizer: what it is called on.
        optimizers: every way in which that optimizer may have been made.
        reader: the statement in the step's block before which gradients must have their true size, None where
            nothing reads them.
        counted: the statement behind the step, in its block, that moves a schedule made for an exact number of steps.
    """

    loop: Loop
    backward: ast.Call
    loss: ast.expr
    step: ast.Call
    optimizer: ast.expr
    optimizers: tuple[Optimizer, ...]
    reader: ast.stmt | None
    counted: ast.stmt | None

    @property
    def step_statement(self) -> ast.stmt:
        """The statement that the step is."""
        return self.loop.facts.tree.statement(self.step)

    @property
    def backward_statement(self) -> ast.stmt:
        """The statement that the backward call is."""
        return self.loop.facts.tree.statement(self.backward)


class Updates:
    """Questions about the updates of one file's training loops."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of(self, loop: Loop) -> Update | Obstacle:
        """The loop's update, or why it is not of the plain kind: one loss, one backward pass, one optimizer, one step."""
        obstacle = self._second_order(loop) or self._hooks() or self._counts(loop)
        if obstacle is not None:
            return obstacle
        backward, step = loop.backwards[0], loop.steps[0]
        loss, optimizer = receiver(backward), receiver(step)
        assert loss is not None and optimizer is not None
        optimizers = self._facts.optimizers.of(optimizer)
        obstacle = self._stepping(step, optimizers) or self._order(loop, backward, step)
        if obstacle is not None or optimizers is None:
            return obstacle or _unseen_optimizer(optimizer)
        reader = self._first_reader(loop, backward, step, optimizers)
        if isinstance(reader, Obstacle):
            return reader
        return Update(loop, backward, loss, step, optimizer, optimizers, reader, self._counted(loop, step))

    # What is of another kind ----------------------------------------------------------------------------------

    def _second_order(self, loop: Loop) -> Obstacle | None:
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

    def _calls_that_differentiate(self, loop: Loop) -> Iterator[ast.Call]:
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

    def _counts(self, loop: Loop) -> Obstacle | None:
        owners = {dotted(target) for call in loop.steps if (target := receiver(call)) is not None}
        if len(owners) > 1:
            return Obstacle(
                "several-optimizers", "several optimizers step in this loop", "give each its own region, and one scaler.update() at the end"
            )
        if len(loop.backwards) > 1:
            return Obstacle(
                "several-losses", "several losses are sent backward in this loop", "send their sum backward, or scale each of them by hand"
            )
        if len(loop.steps) > 1:
            return Obstacle("several-steps", "the optimizer steps at several places of this loop", "step at one place")
        if (self._facts.calls.meaning(loop.backwards[0]) or "").startswith("torch.autograd"):
            return Obstacle("backward-form", "the backward pass is started by torch.autograd.backward", "call .backward() on the loss")
        return None

    def _stepping(self, step: ast.Call, optimizers: tuple[Optimizer, ...] | None) -> Obstacle | None:
        statement = self._facts.tree.statement(step)
        alone = isinstance(statement, ast.Expr) and statement.value is step
        if step.args or step.keywords or not alone or any(item.takes_closure for item in optimizers or ()):
            return Obstacle(
                "closure",
                "the optimizer's step computes the loss again, which a scaler does not take",
                "use autocast alone, without a scaler",
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

    def _order(self, loop: Loop, backward: ast.Call, step: ast.Call) -> Obstacle | None:
        """Whether a backward pass surely comes before each step."""
        tree = self._facts.tree
        around = [tree.statement(backward)]
        while around[-1] is not loop.node:
            owner = tree.parent(around[-1])
            if not isinstance(owner, (ast.With, ast.For)) or owner is loop.node:
                break
            around.append(owner)
        current: ast.stmt = tree.statement(step)
        while current is not loop.node:
            owner, block, index = tree.place(current)
            if any(item in around for item in block[:index]):
                return None
            if not isinstance(owner, ast.stmt):
                break
            current = owner
        return Obstacle(
            "conditional-backward",
            "the optimizer may step without a backward pass before it, which a scaler refuses",
            "step under the same condition as the backward pass",
        )

    def _counted(self, loop: Loop, step: ast.Call) -> ast.stmt | None:
        """The step of a schedule that must not count a step which a scaler skipped."""
        tree = self._facts.tree
        statement = tree.statement(step)
        for call in loop.scheduler_steps:
            moved = tree.statement(call)
            if self._facts.optimizers.counts_steps(call) and moved in tree.block(statement) and moved.lineno > statement.lineno:
                return moved
        return None

    # Who reads gradients --------------------------------------------------------------------------------------

    def _first_reader(
        self, loop: Loop, backward: ast.Call, step: ast.Call, optimizers: tuple[Optimizer, ...]
    ) -> ast.stmt | None | Obstacle:
        tree = self._facts.tree
        statement = tree.statement(step)
        _, block, place = tree.place(statement)
        started = next((index for index, item in enumerate(block) if tree.is_within(backward, item)), -1)
        first = len(block)
        for node in loop.nodes():
            if not self._reads_gradients(self._facts, node, 0):
                obstacle = self._out_of_sight(loop, node, backward, step)
                if obstacle is not None:
                    return obstacle
                continue
            at = next((index for index, item in enumerate(block) if tree.is_within(node, item)), None)
            if at is None or at <= started or (at == place):
                return Obstacle(
                    "gradients-read-elsewhere",
                    f"line {getattr(node, 'lineno', 0)} reads gradients outside the branch that steps",
                    "read or clip gradients right before the step",
                )
            obstacle = self._foreign_gradients(node, receiver(step), optimizers)
            if obstacle is not None:
                return obstacle
            first = min(first, at, place)
        if first == len(block):
            return None
        for item in block[first:place]:
            if any(isinstance(node, _LEAVING) for node in walk_here(item)):
                return Obstacle(
                    "skipped-update",
                    f"line {item.lineno} may leave the iteration after gradients were read and before the step",
                    "leave the decision to the scaler, which skips steps with infinite gradients by itself",
                )
        return block[first]

    def _reads_gradients(self, facts: Facts, node: ast.AST, depth: int) -> bool:
        """Whether a node reads gradients: clipping, ``p.grad``, or a function of the project that does."""
        if isinstance(node, ast.Attribute):
            return node.attr == "grad" and isinstance(node.ctx, ast.Load) and _is_read(facts, node)
        if not isinstance(node, ast.Call):
            return False
        if facts.calls.meaning(node) in CLIPS:
            return True
        if depth >= _DEPTH:
            return False
        function = called(facts, node)
        return function is not None and any(self._reads_gradients(function[0], inner, depth + 1) for inner in walk(function[1]))

    def _out_of_sight(self, loop: Loop, node: ast.AST, backward: ast.Call, step: ast.Call) -> Obstacle | None:
        """A call between backward and step that is given the network or the optimizer and cannot be read."""
        facts = self._facts
        between = isinstance(node, ast.Call) and _position(backward) < _position(node) < _position(step)
        if not between or not isinstance(node, ast.Call) or called(facts, node) is not None:
            return None
        meaning = facts.calls.meaning(node) or ""
        if meaning.startswith(("torch.", "builtins.")):
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

    def _foreign_gradients(self, node: ast.AST, optimizer: ast.expr | None, optimizers: tuple[Optimizer, ...]) -> Obstacle | None:
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
            if given is not None and optimizer is not None and _is_of_groups(given, optimizer):
                return None
            clipped = parameter_owners(facts, given)
            for item in optimizers:
                trained = argument(item.call, "params", 0)
                owners = parameter_owners(item.value.facts, trained)
                if not _is_same(facts, given, trained) and (clipped is None or owners is None or not clipped <= owners):
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


def called(facts: Facts, call: ast.Call) -> tuple[Facts, Function] | None:
    """The function or method of the project that a call runs, with the facts of its file."""
    method = facts.own_method(call)
    if method is not None:
        return facts, method
    definition = facts.names.definition(call.func)
    return (definition.facts, definition.node) if definition is not None and isinstance(definition.node, FUNCTIONS) else None


def parameter_owners(facts: Facts, given: ast.expr | None) -> frozenset[object] | None:
    """The networks whose ``.parameters()`` an expression holds, None where one of them is not known."""
    found: set[object] = set()
    for expression in _parameter_expressions(facts, given):
        networks = facts.models.of(expression)
        if not networks:
            return None
        found |= {network.value for network in networks}
    return frozenset(found) or None


def _is_of_groups(given: ast.expr, optimizer: ast.expr) -> bool:
    """Whether an expression lists the parameters of an optimizer's own groups."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "param_groups" and dotted(node.value) == dotted(optimizer)
        for node in walk(given)
    )


def _is_same(facts: Facts, one: ast.expr | None, other: ast.expr | None) -> bool:
    """Whether two expressions are the same variable."""
    return isinstance(one, ast.Name) and isinstance(other, ast.Name) and facts.names.same(one, other)


def _parameter_expressions(facts: Facts, given: ast.expr | None) -> Iterator[ast.expr]:
    """The ``x`` of every ``x.parameters()`` in an expression, and in what its names were made from."""
    for node in walk(given) if given is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("parameters", "named_parameters"):
            yield node.func.value
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            for binding in facts.flow.reaching(node):
                if binding.how is Bound.ASSIGN and binding.value is not None and binding.value is not given:
                    yield from _parameter_expressions(facts, binding.value) if not facts.models.of(node) else ()


def _trains_network(optimizer: Optimizer) -> bool:
    """Whether an optimizer was given parameters of a network, or something that was made from a network."""
    facts, given = optimizer.value.facts, argument(optimizer.call, "params", 0)
    if given is None or next(_parameter_expressions(facts, given), None) is not None:
        return True
    return any(isinstance(node, (ast.Name, ast.Attribute)) and facts.models.of(node) for node in walk(given)) or not isinstance(
        given, (ast.List, ast.Tuple)
    )


def _is_read(facts: Facts, node: ast.Attribute) -> bool:
    """Whether a ``.grad`` is looked at, rather than cleared or compared with None."""
    if (facts.names.qualified(node) or "").startswith("torch."):  # torch.autograd.grad
        return False
    outer: ast.AST | None = facts.tree.parent(node)
    if isinstance(outer, ast.Compare):
        return not all(isinstance(item, (ast.Is, ast.IsNot)) for item in outer.ops)
    while isinstance(outer, ast.Attribute):
        if outer.attr in ("zero_", "detach_"):
            return False
        outer = facts.tree.parent(outer)
    return not isinstance(outer, ast.Delete)


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


def _unseen_optimizer(optimizer: ast.expr) -> Obstacle:
    return Obstacle(
        "optimizer-not-seen", f"how {ast.unparse(optimizer)} was made is out of sight", "make it with a torch.optim class in this file"
    )
