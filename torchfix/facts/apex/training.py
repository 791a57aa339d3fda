"""Training that Apex scales: its losses, its steps, who reads gradients, and where torch's own scaler and autocast belong.

A program that trains under Apex at level O1 has shown already that its code bears half precision. What is left to prove
is the discipline of the scaler: every loss of a training loop goes through it, every step too, and gradients have their
true size before they are read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchfix.facts.apex.regions import regions_of
from torchfix.facts.apex.uses import Use, brings_apex
from torchfix.facts.code.calls import argument, keyword, receiver
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, Function, LoopNode, dotted, last_name, walk_here
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.freezing import frozen_at
from torchfix.facts.training.gradient_reads import reads_gradients
from torchfix.facts.training.loops import Training
from torchfix.facts.training.updates import Sent, Update, left_between

if TYPE_CHECKING:
    from torchfix.facts import Facts

# By name, as fairseq, timm and others bring the same under their own.
_READING = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "master_params")


@dataclass(frozen=True, eq=False)
class Piece:
    """A statement in whose place some of the statements in it go.

    Args:
        statement: the ``with`` of a scaled loss, or an ``if`` whose branches say the same with Apex and without.
        kept: the statements that stay, in their order.
        sent: the backward pass among them, None where there is none.
    """

    statement: ast.With | ast.If
    kept: tuple[ast.stmt, ...]
    sent: Sent | None


@dataclass(frozen=True, eq=False)
class Step:
    """One step of an optimizer.

    Args:
        call: the ``.step()`` call, a statement of its own.
        optimizer: what it is called on.
        statement: the statement.
        reader: the statement before which the gradients must have their true size: one in its block, or one that a
            piece keeps; None where nothing reads them.
        closes: whether a scaler may look behind it at how the update went.
    """

    call: ast.Call
    optimizer: ast.expr
    statement: ast.stmt
    reader: ast.stmt | None
    closes: bool


@dataclass(frozen=True, eq=False)
class ScaledTraining:
    """A training loop, or a function that trains once for each call, that Apex scales.

    Args:
        facts: the file.
        loop: its parts.
        pieces: what goes in the place of branches and ``with`` statements.
        steps: what steps, in text order.
        regions: the first and last statement of each stretch that belongs under autocast.
        restored: results that leave those stretches and must be converted back to float32.
        optimizers: the optimizers that losses are scaled for.
    """

    facts: Facts
    loop: Training
    pieces: tuple[Piece, ...]
    steps: tuple[Step, ...]
    regions: tuple[tuple[ast.stmt, ast.stmt], ...]
    restored: tuple[ast.Call | ast.Name, ...]
    optimizers: tuple[ast.expr, ...]


@dataclass(frozen=True, eq=False)
class _Scaling:
    """One ``with amp.scale_loss(loss, optimizer) as scaled_loss:``."""

    statement: ast.With
    backward: ast.Call
    loss: ast.expr
    optimizers: tuple[ast.expr, ...]


def trainings_of(facts: Facts, uses: Sequence[Use], guard: ast.expr | None) -> list[ScaledTraining] | Obstacle:
    """The training of one file that Apex scales, or what stands in the way of torch's scaler there.

    Args:
        facts: the file.
        uses: all that it uses of Apex.
        guard: the condition under which Apex is initialized, None where there is none.
    """
    scalings: list[_Scaling] = []
    for use in uses:
        if use.word == "scale_loss":
            scaling = _scaling(use)
            if isinstance(scaling, Obstacle):
                return scaling
            scalings.append(scaling)
    nodes = {scaling: _training_node(facts, scaling) for scaling in scalings}
    around: dict[LoopNode | Function, list[_Scaling]] = {}
    for scaling, node in nodes.items():
        if node is None:
            return Obstacle(
                "step-elsewhere",
                f"the optimizer of the loss that is scaled on line {scaling.statement.lineno} steps in another function",
                "write forward, backward and step in one function",
            )
        outer = [other for other in nodes.values() if other is not None and facts.tree.is_within(node, other)]
        around.setdefault(min(outer, key=lambda item: item.lineno), []).append(scaling)
    found = []
    for node, own in around.items():
        training = _Reading(facts, node, own, guard).training()
        if isinstance(training, Obstacle):
            return training
        found.append(training)
    return _stray_step(facts, found) or found


def _scaling(use: Use) -> _Scaling | Obstacle:
    facts, tree = use.facts, use.facts.tree
    statement = tree.statement(use.node)
    form = Obstacle(
        "apex-form",
        f"the loss that is scaled on line {use.node.lineno} does not just go backward",
        "write: with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()",
    )
    if use.call is None or not isinstance(statement, ast.With) or len(statement.items) != 1:
        return form
    item = statement.items[0]
    loss, optimizer = argument(use.call, "loss", 0), argument(use.call, "optimizers", 1)
    target = item.optional_vars
    if item.context_expr is not use.call or not isinstance(target, ast.Name) or loss is None or optimizer is None:
        return form
    inside = [node for node in walk_here(statement) if isinstance(node, ast.Name) and node.id == target.id and node is not target]
    sends = [node for node in inside if not tree.is_within(node, use.call)]
    backward = tree.parent(tree.parent(sends[0]) or sends[0]) if len(sends) == 1 else None
    alone = isinstance(backward, ast.Call) and last_name(backward.func) == "backward" and isinstance(backward.func, ast.Attribute)
    if (
        not alone
        or not isinstance(backward, ast.Call)
        or tree.statement(backward) not in statement.body
        or not isinstance(tree.parent(backward), ast.Expr)
    ):
        return form
    if any(_is_master_params(node) for item in statement.body for node in walk_here(item)):
        return form
    later = (name for name in facts.names.uses(target) if isinstance(name.ctx, ast.Load) and not tree.is_within(name, statement))
    scaled = (name for name in later if any(item.how is Bound.WITH and item.value is use.call for item in facts.flow.reaching(name)))
    if next(scaled, None) is not None and dotted(loss) != target.id:
        return form
    optimizers = tuple(optimizer.elts) if isinstance(optimizer, (ast.List, ast.Tuple)) else (optimizer,)
    return _Scaling(statement, backward, loss, optimizers)


def _training_node(facts: Facts, scaling: _Scaling) -> LoopNode | Function | None:
    """The innermost loop, or else the function, that scales a loss and steps its optimizers."""
    wanted = {dotted(item) for item in scaling.optimizers}
    for outer in facts.tree.ancestors(scaling.statement):
        if isinstance(outer, (*LOOPS, *FUNCTIONS)):
            stepped = {dotted(_receiver(call)) for statement in outer.body for call in _steps(statement)}
            if wanted <= stepped:
                return outer
            if isinstance(outer, FUNCTIONS):
                return None
    return None


def _sends(statement: ast.stmt) -> bool:
    """Whether a statement sends a loss backward."""
    return any(isinstance(node, ast.Call) and last_name(node.func) == "backward" for node in walk_here(statement))


def _steps(node: ast.AST) -> Iterator[ast.Call]:
    for item in walk_here(node):
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.func.attr == "step":
            yield item


def _stray_step(facts: Facts, trainings: list[ScaledTraining]) -> Obstacle | None:
    """A step of one of the optimizers outside of the training that Apex scales."""
    for training in trainings:
        for optimizer in training.optimizers:
            for call in facts.tree.calls.get("step", ()):
                other = receiver(call)
                if (
                    other is None
                    or dotted(other) != dotted(optimizer)
                    or any(facts.tree.is_within(call, item.loop.node) for item in trainings)
                ):
                    continue
                same = isinstance(other, ast.Name) and isinstance(optimizer, ast.Name) and facts.names.same(other, optimizer)
                owner = facts.tree.method_class(other)
                if same or (isinstance(other, ast.Attribute) and owner is not None and owner is facts.tree.method_class(optimizer)):
                    return Obstacle(
                        "step-elsewhere",
                        f"{ast.unparse(other)} also steps on line {call.lineno}, where Apex scales no loss",
                        "step where the loss goes backward",
                    )
    return None


@dataclass
class _Reading:
    """The reading of one training loop or function."""

    facts: Facts
    node: LoopNode | Function
    scalings: list[_Scaling]
    guard: ast.expr | None
    pieces: list[Piece] = field(default_factory=list)

    def training(self) -> ScaledTraining | Obstacle:
        """All that is known of it, or what stands in the way."""
        facts, tree = self.facts, self.facts.tree
        optimizers = {str(dotted(item)): item for scaling in self.scalings for item in scaling.optimizers}
        calls = [item for statement in self.node.body for item in walk_here(statement) if isinstance(item, ast.Call)]
        steps = [call for statement in self.node.body for call in _steps(statement) if dotted(_receiver(call)) in optimizers]
        backwards = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"]
        cleared = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad"]
        moved = [call for statement in self.node.body for call in _steps(statement) if facts.optimizers.is_scheduler(_receiver(call))]
        loop = Training(facts, self.node, tuple(backwards), tuple(steps), tuple(moved), tuple(cleared), ())
        for step in steps:
            if step.args or step.keywords or not isinstance(tree.parent(step), ast.Expr):
                return Obstacle(
                    "closure", "the optimizer's step computes the loss again, which a scaler does not take", "step without a closure"
                )
        obstacle = self._second_order() or self._take_pieces(backwards)
        if obstacle is not None:
            return obstacle
        closing = self._closing(loop)
        if isinstance(closing, Obstacle):
            return closing
        readers = self._readers(loop)
        if isinstance(readers, Obstacle):
            return readers
        sent = [Sent(item.backward, item.loss, tree.statement(item.backward)) for item in self.scalings]
        found = regions_of(facts, Update(loop, tuple(sent), (), (), ()))
        if isinstance(found, Obstacle):
            return found
        made = (Step(call, _receiver(call), tree.statement(call), readers.get(call), tree.statement(call) in closing) for call in steps)
        return ScaledTraining(facts, loop, tuple(self.pieces), tuple(made), *found, tuple(optimizers.values()))

    def _second_order(self) -> Obstacle | None:
        """Gradients of gradients, which autocast and a scaler meet otherwise than Apex did."""
        for facts, call in self.facts.reach.calls(self.node.body):
            if facts.calls.meaning(call) == "torch.autograd.grad" or keyword(call, "create_graph") is not None:
                return Obstacle(
                    "double-backward",
                    f"line {call.lineno} of {facts.path} takes gradients by hand, which a loss scale would change",
                    "scale and unscale that gradient by hand (torch's AMP examples, gradient penalty)",
                )
        return None

    # Branches -------------------------------------------------------------------------------------------------

    def _take_pieces(self, backwards: list[ast.Call]) -> Obstacle | None:
        """The branches that become one, and the ``with`` statements that go; none of the losses may go backward by itself."""
        tree = self.facts.tree
        for statement in (item for outer in self.node.body for item in walk_here(outer)):
            if isinstance(statement, ast.If) and not any(tree.is_within(statement, piece.statement) for piece in self.pieces):
                piece = self._merged(statement)
                self.pieces += [piece] if piece is not None else []
        for scaling in self.scalings:
            if not any(tree.is_within(scaling.statement, piece.statement) for piece in self.pieces):
                sent = Sent(scaling.backward, scaling.loss, tree.statement(scaling.backward))
                self.pieces.append(Piece(scaling.statement, tuple(scaling.statement.body), sent))
        for call in backwards:
            if not any(tree.is_within(call, piece.statement) for piece in self.pieces) and not self._is_other_branch(call):
                return Obstacle(
                    "unscaled-backward",
                    f"the backward pass on line {call.lineno} is not scaled, and its gradients would join those that are",
                    "scale every loss of the loop for the same optimizer",
                )
        return None

    def _is_other_branch(self, call: ast.Call) -> bool:
        """Whether a plain backward pass stands where Apex is switched off by the very condition that initializes it."""
        tree = self.facts.tree
        inner: ast.AST = call
        for outer in tree.ancestors(call):
            if isinstance(outer, ast.If) and inner in outer.orelse and self.guard is not None:
                scaled = any(tree.is_within(scaling.statement, item) for scaling in self.scalings for item in outer.body)
                if scaled and ast.dump(outer.test) == ast.dump(self.guard):
                    return True
            inner = outer
        return False

    def _merged(self, statement: ast.If) -> Piece | None:
        """The branch without Apex of an ``if``, where its branches do the same with Apex and without."""
        if "#" in self.facts.source.segment(statement):
            return None  # a comment would be lost
        for branch, other in ((statement.body, statement.orelse), (statement.orelse, statement.body)):
            body = [item for item in branch if not brings_apex(item)]
            scaling = next((item for item in self.scalings if item.statement in body), None)
            apex = scaling is not None or any(_is_master_params(node) for item in body for node in walk_here(item))
            if not apex or len(body) != len(other) or not all(map(self._alike, body, other)):
                continue
            if any(_is_master_params(node) for item in other for node in walk_here(item)):
                continue  # the branch without Apex asks it too
            if scaling is not None and body[0] is not scaling.statement:
                continue  # what computes the loss is to be a region, where it stands
            if scaling is None:
                return Piece(statement, tuple(other), None)
            plain = other[body.index(scaling.statement)]
            assert isinstance(plain, ast.Expr) and isinstance(plain.value, ast.Call)
            return Piece(statement, tuple(other), Sent(plain.value, _receiver(plain.value), plain))
        return None

    def _alike(self, one: ast.AST, other: ast.AST) -> bool:
        """Whether a statement with Apex does what another does without it."""
        scaling = next((item for item in self.scalings if item.statement is one), None)
        if scaling is not None:
            call = other.value if isinstance(other, ast.Expr) else None
            sends = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
            if not sends or not isinstance(call, ast.Call) or len(scaling.statement.body) != 1:
                return False
            given = [ast.dump(item) for item in (*call.args, *call.keywords)]
            scaled = [ast.dump(item) for item in (*scaling.backward.args, *scaling.backward.keywords)]
            return ast.dump(_receiver(call)) == ast.dump(scaling.loss) and given == scaled
        return _same(one, other)

    # The scaler's discipline ----------------------------------------------------------------------------------

    def _closing(self, loop: Training) -> tuple[ast.stmt, ...] | Obstacle:
        """The statements behind which the scaler may choose its next scale: no gradient of the old one waits for its step."""
        tree = self.facts.tree
        if not loop.zero_grads and next(self.facts.clears.of(loop), None) is None:
            return Obstacle(
                "gradients-kept",
                "it is not seen where the loop clears gradients, which may be of an earlier scale",
                "call optimizer.zero_grad() in the loop",
            )
        sends = [(self._piece(scaling).statement, {dotted(item) for item in scaling.optimizers}) for scaling in self.scalings]
        steps = [(tree.statement(call), {dotted(_receiver(call))}) for call in loop.steps]
        waiting: set[str | None] = set()
        closing: list[ast.stmt] = []
        for event in sorted((*sends, *steps), key=lambda item: item[0].lineno):
            waiting = waiting - event[1] if event in steps else waiting | event[1]
            closing += [event[0]] if event in steps and not waiting else []
        early = next(
            (step for step, names in steps if not any(names & own and self._surely_before(send, step) for send, own in sends)), None
        )
        if early is not None:
            return Obstacle(
                "conditional-backward",
                f"the optimizer may step on line {early.lineno} without a scaled loss before it, which torch's scaler refuses",
                "step under the same condition as the backward pass",
            )
        several = len(set().union(*(names for _, names in steps))) > 1
        owned = map(self.facts.optimizers.owners_moved_by, loop.steps if several else ())
        frozen = next((place for owners in owned if (place := frozen_at(loop, owners)) is not None), None)
        if frozen is not None:
            return Obstacle(
                "conditional-backward",
                f"line {frozen.lineno} may leave an optimizer without gradients, with which torch's scaler refuses to step",
                "step where the loss of its own networks goes backward",
            )
        if waiting or (
            several and any(tree.block(send) is not tree.block(step) for send, one in sends for step, other in steps if one & other)
        ):
            return Obstacle(
                "several-optimizers",
                f"the losses and steps of several optimizers in the loop on line {loop.node.lineno} do not take turns in one block",
                "send the losses of one optimizer backward, step it, then go on with the next",
            )
        return tuple(closing)

    def _surely_before(self, send: ast.stmt, step: ast.stmt) -> bool:
        """Whether a loss surely goes backward before a step, in the same turn."""
        tree = self.facts.tree
        around = [send]
        while around[-1] is not self.node and isinstance(outer := tree.parent(around[-1]), (ast.With, ast.For, ast.If)):
            if isinstance(outer, ast.If) and not all(any(_sends(item) for item in block) for block in (outer.body, outer.orelse)):
                break
            around.append(outer)
        current: ast.AST = step
        while isinstance(current, ast.stmt) and current is not self.node:
            current, block, index = tree.place(current)
            if any(item in around for item in block[:index]):
                return True
        return False

    def _piece(self, scaling: _Scaling) -> Piece:
        """What goes in the place of a scaled loss."""
        return next(piece for piece in self.pieces if self.facts.tree.is_within(scaling.statement, piece.statement))

    def _readers(self, loop: Training) -> dict[ast.Call, ast.stmt] | Obstacle:
        """For each step the statement before which gradients must have their true size, where something reads them."""
        tree = self.facts.tree
        found: dict[ast.Call, ast.stmt] = {}
        for node in loop.nodes():
            if not _reads(self.facts, node) or any(tree.is_within(node, item) for item in self._scaled_code()):
                continue
            for step in loop.steps:
                reader = self._reader(node, step)
                if reader is not None and (step not in found or reader.lineno < found[step].lineno):
                    found[step] = reader
            if not any(self._is_near(node, step) for step in loop.steps):
                return Obstacle(
                    "gradients-read-elsewhere",
                    f"line {getattr(node, 'lineno', 0)} reads gradients outside the branch that steps",
                    "read or clip gradients right before the step",
                )
        return self._left(found) or found

    def _left(self, readers: dict[ast.Call, ast.stmt]) -> Obstacle | None:
        """What may leave the iteration between a look at the gradients and the step that takes them."""
        tree = self.facts.tree
        for step, reader in readers.items():
            block, last = tree.block(tree.statement(step)), tree.statement(step)
            first = next(index for index, item in enumerate(block) if tree.is_within(reader, item))
            left = left_between(block[first : block.index(last)])
            if left is not None:
                return left
        return None

    def _scaled_code(self) -> Iterator[ast.stmt]:
        """What sees gradients as they are scaled, under Apex too, and branches that go."""
        yield from (scaling.statement for scaling in self.scalings)
        for piece in self.pieces:
            inside = (*piece.statement.body, *piece.statement.orelse) if isinstance(piece.statement, ast.If) else ()
            yield from (item for item in inside if item not in piece.kept)

    def _place(self, node: ast.AST, step: ast.Call) -> tuple[int, int] | None:
        """Where in the step's block a node and the step stand; None where the node is in none of its statements."""
        tree = self.facts.tree
        _, block, place = tree.place(tree.statement(step))
        at = next((index for index, item in enumerate(block) if tree.is_within(node, item)), None)
        return None if at is None else (at, place)

    def _is_near(self, node: ast.AST, step: ast.Call) -> bool:
        """Whether a place is in the step's block, and not repeated with the losses, or can see no gradients of this turn."""
        tree, places = self.facts.tree, self._place(node, step)
        if places is None:
            return getattr(node, "lineno", 0) < min(scaling.statement.lineno for scaling in self.scalings)
        statement = tree.block(tree.statement(step))[places[0]]
        loops = (outer for outer in tree.ancestors(node) if isinstance(outer, LOOPS) and tree.is_within(outer, statement))
        return not any(map(self._scales_in, loops))

    def _reader(self, node: ast.AST, step: ast.Call) -> ast.stmt | None:
        """The statement before which a node wants the gradients that a step takes."""
        tree, places = self.facts.tree, self._place(node, step)
        if places is None:
            return None
        block = tree.block(tree.statement(step))
        sends = [self._place(scaling.statement, step) for scaling in self.scalings]
        if places[0] >= places[1]:  # one that comes behind the step finds what a fused optimizer leaves: scaled gradients
            return None if any(place is not None and places[1] < place[0] < places[0] for place in sends) else tree.statement(step)
        if any(place is not None and places[0] < place[0] < places[1] for place in sends):
            return None  # gradients of the turn before
        statement = block[places[0]]
        piece = next((item for item in self.pieces if item.statement is statement and item.sent is not None), None)
        if piece is not None:
            return next((item for item in piece.kept if tree.is_within(node, item)), None)
        return statement if not self._scales_in(statement) else self._behind_scaling(node, statement)

    def _scales_in(self, statement: ast.stmt) -> bool:
        return any(self.facts.tree.is_within(scaling.statement, statement) for scaling in self.scalings)

    def _behind_scaling(self, node: ast.AST, outer: ast.stmt) -> ast.stmt | None:
        """The statement with a reader, in the branch in which a loss is scaled before it; None in a branch without Apex."""
        tree = self.facts.tree
        inside = [item for item in tree.ancestors(node) if isinstance(item, ast.stmt) and tree.is_within(item, outer)]
        reader = next((item for item in reversed(inside) if not self._scales_in(item)), None)
        if reader is None:
            return None
        _, block, index = tree.place(reader)
        return reader if any(map(self._scales_in, block[:index])) else None


def _reads(facts: Facts, node: ast.AST) -> bool:
    """Whether a node looks at gradients, or clips them by a function of whatever package."""
    return (isinstance(node, ast.Call) and last_name(node.func) in _READING) or reads_gradients(facts, node)


def _receiver(call: ast.Call) -> ast.expr:
    source = receiver(call)
    assert source is not None
    return source


def _is_master_params(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "master_params"


def _same(one: object, other: object) -> bool:
    """Whether two trees are equal but for the parameters that one has from Apex."""
    if isinstance(one, ast.AST) and isinstance(other, ast.AST):
        if _is_master_params(one):
            return isinstance(other, ast.expr)
        return type(one) is type(other) and all(_same(getattr(one, name, None), getattr(other, name, None)) for name in one._fields)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def written(facts: Facts, statement: ast.stmt) -> str:
    """A statement's own text without the margin of its block."""
    margin = facts.source.margin(statement)
    return "\n".join(line.removeprefix(margin) for line in facts.source.segment(statement).splitlines())
