"""The order in which one training loop clears gradients, sends losses backward and lets optimizers step.

A scaler keeps its scale from one look at the gradients to the next. Where it may look is decided here: behind the last
step of an iteration, or behind each step that ends a cycle of its own; and it is proved that no gradient which was made
under one scale is still there under the next.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import receiver
from torchfix.facts.code.tree import LOOPS, walk, walk_here
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.freezing import frozen_at

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Training

# What leaves an iteration, or the loop, before what stands behind it.
LEAVING = (ast.Continue, ast.Break, ast.Return, ast.Raise, ast.Assert)


@dataclass(frozen=True, eq=False)
class Cycle:
    """How the gradients of one loop come and go.

    Args:
        closing: the statements behind which nothing made before is needed any more.
        sources: for each step, the backward passes whose gradients it may take, in text order.
    """

    closing: tuple[ast.stmt, ...]
    sources: Mapping[ast.Call, tuple[ast.Call, ...]]


class _Kind(enum.Enum):
    CLEAR = "clear"
    SEND = "send"
    STEP = "step"
    CLOSE = "close"


@dataclass(frozen=True, eq=False)
class _Event:
    """Something that happens to gradients, where the text says so; ``node`` is the step or the backward call."""

    kind: _Kind
    place: tuple[int, int]
    node: ast.AST
    targets: frozenset[object] = frozenset()


class Cycles:
    """Questions about the cycles of one file's training loops."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of(self, loop: Training) -> Cycle | Obstacle:
        """How the loop's gradients come and go, or why no place can be told where a scaler may choose its next scale."""
        together = self._together(loop)
        cycle = self._read(loop, together) if together is not None else None
        if isinstance(cycle, Cycle):
            return cycle
        apart = self._apart(loop)
        other = self._read(loop, apart) if cycle is None or apart != together else cycle
        return other if cycle is None or isinstance(other, Cycle) else cycle

    def sources(self, loop: Training) -> Cycle | Obstacle:
        """What each step takes, where the program itself looks after a scaler."""
        return self._read(loop, ())

    # Where it closes ------------------------------------------------------------------------------------------

    def _together(self, loop: Training) -> tuple[ast.stmt] | None:
        """The statement behind which all optimizers have stepped, each once, and at least one of them for certain."""
        tree = self._facts.tree
        places = {(self._facts.optimizers.name_of(step), self.standing(loop, step)): None for step in loop.steps}
        names = {name for name, _ in places}
        nested = any(self._turn(loop, step) is not loop.node for step in loop.steps)
        if nested or None in names or len(names) < len(places):
            return None
        statements = [statement for _, statement in places]
        block = common_block(self._facts, loop.node, statements)
        holding = [item for item in block if any(tree.is_within(statement, item) for statement in statements)]
        if not any(_is_certain(self._facts, statement, block) for statement in statements):
            return None
        between = block[block.index(holding[0]) : block.index(holding[-1]) + 1]
        leaves = any(isinstance(node, LEAVING) for item in between for node in walk_here(item))
        return None if leaves else (holding[-1],)

    def standing(self, loop: Training, step: ast.Call) -> ast.stmt:
        """The statement that a step is, or the ``if`` in each branch of which the same optimizer steps once."""
        tree, name_of = self._facts.tree, self._facts.optimizers.name_of
        alike = [tree.statement(other) for other in loop.steps if name_of(other) == name_of(step)]
        found = tree.statement(step)
        while isinstance(outer := tree.parent(found), ast.If) and self._chooses(outer, alike):
            found = outer
        return found

    def _chooses(self, statement: ast.stmt, steps: list[ast.stmt]) -> bool:
        """Whether a statement is one of some steps, or an ``if`` that takes one of them whichever branch it runs."""
        if not isinstance(statement, ast.If):
            return statement in steps
        for branch in (statement.body, statement.orelse):
            holding = [item for item in branch if any(self._facts.tree.is_within(step, item) for step in steps)]
            if len(holding) != 1 or not self._chooses(holding[0], steps):
                return False
        return True

    def _apart(self, loop: Training) -> tuple[ast.stmt, ...]:
        """The steps of each cycle's end: of several optimizers in a row, with no backward pass between them, the last."""
        tree = self._facts.tree
        found: list[list[ast.Call]] = []
        for step in loop.steps:
            block, place = tree.place(tree.statement(step))[1:]
            last = tree.statement(found[-1][-1]) if found else None
            between = block[block.index(last) : place] if last in block else []
            parts = [node for item in between for node in walk_here(item)]
            others = {ast.unparse(other.func) for other in found[-1]} if found else set()
            if (
                between
                and ast.unparse(step.func) not in others
                and not any(isinstance(node, LEAVING) or node in loop.backwards for node in parts)
            ):
                found[-1].append(step)
            else:
                found.append([step])
        return tuple(tree.statement(group[-1]) for group in found)

    def _turn(self, loop: Training, step: ast.Call) -> ast.AST:
        """What repeats a step: the innermost loop around it, or all of the code that trains."""
        around = self._facts.tree.nearest(self._facts.tree.statement(step), LOOPS)
        return around if around is not None and self._facts.tree.is_within(around, loop.node) else loop.node

    # What is in between ---------------------------------------------------------------------------------------

    def _read(self, loop: Training, closing: tuple[ast.stmt, ...]) -> Cycle | Obstacle:
        sources: dict[ast.Call, tuple[ast.Call, ...]] = {}
        events = self._events(loop, closing)
        for step in loop.steps:
            taken = self._taken(loop, step, closing, events)
            if isinstance(taken, Obstacle):
                return taken
            before = [backward for backward in taken if self._surely_before(loop, backward, step)]
            if not before:
                return _CONDITIONAL
            losses = [receiver(backward) for backward in before]
            if closing and all(loss is not None and self._facts.recipients.may_be_none(loss) for loss in losses):
                return _no_gradients(self._facts.optimizers.stepped_by(step), step, ", as the loss may be a constant without a term")
            if closing and len(loop.steps) > 1 and not any(self._reaches(backward, step) for backward in before):
                return _no_gradients(self._facts.optimizers.stepped_by(step), step)
            if closing and len(loop.steps) > 1 and (frozen := frozen_at(loop, self._facts.optimizers.owners_moved_by(step))) is not None:
                return _no_gradients(self._facts.optimizers.stepped_by(step), step, f", as line {frozen.lineno} may switch them off")
            sources[step] = taken
        return Cycle(closing, sources)

    def _reaches(self, backward: ast.Call, step: ast.Call) -> bool:
        """Whether a backward pass surely gives gradients to a network that is stepped."""
        relays, owners = self._facts.relays.of(backward), self._facts.optimizers.owners_moved_by(step)
        losses = [loss for relay in relays for loss in (relay.loss, *relay.given)] if relays else [receiver(backward)]
        return owners is not None and any(loss is not None and self._facts.recipients.includes(loss, owners) for loss in losses)

    def _taken(
        self, loop: Training, step: ast.Call, closing: tuple[ast.stmt, ...], everything: list[_Event]
    ) -> tuple[ast.Call, ...] | Obstacle:
        """The backward passes between a step and the last time before it that its gradients were cleared."""
        tree, optimizer = self._facts.tree, self._facts.optimizers.stepped_by(step)
        around = self._turn(loop, step)
        events = [event for event in everything if tree.is_within(event.node, around)]
        here = next(index for index, event in enumerate(events) if event.node is step)
        owners, name = self._facts.optimizers.owners_moved_by(step), self._facts.optimizers.name_of(step)
        alone = owners is None and len({ast.unparse(receiver(item) or item) for item in loop.steps}) == 1
        taken: list[ast.Call] = []
        cleared: frozenset[object] = frozenset()
        closed = False
        for event in [*reversed(events[:here]), *reversed(events[here + 1 :])]:
            if event.kind is _Kind.CLEAR and (not closing or self._renews(around, step, event.node)):
                cleared |= event.targets
                whole = owners <= cleared if owners is not None else alone and any(not isinstance(item, str) for item in cleared)
                if whole or (name is not None and name in cleared):
                    return tuple(sorted(taken, key=_place))
            closed = closed or event.kind is _Kind.CLOSE
            if event.kind is _Kind.SEND and isinstance(event.node, ast.Call):
                if closed:
                    break
                taken.append(event.node)
        if not closed:
            return tuple(sorted(taken, key=_place))
        words = ast.unparse(optimizer) if optimizer is not None else "the optimizer"
        return Obstacle(
            "gradients-kept",
            f"gradients that {words} steps with on line {step.lineno} may stem from before an earlier step, under another scale",
            f"call {words}.zero_grad() before the backward pass whose gradients it is to take",
        )

    def _renews(self, around: ast.AST, step: ast.Call, clear: ast.AST) -> bool:
        """Whether gradients are surely cleared by a place once for each step, before they are sent again."""
        tree = self._facts.tree
        stepping, clearing = tree.statement(step), tree.statement(clear)
        block = common_block(self._facts, around, [stepping, clearing])
        one, other = (next(item for item in block if tree.is_within(inner, item)) for inner in (stepping, clearing))
        if _is_certain(self._facts, clearing, block):
            between = block[block.index(one) : block.index(other)]  # none where it comes before
            return not any(isinstance(node, LEAVING) for item in between for node in walk_here(item))
        if not isinstance(one, ast.If) or not isinstance(other, ast.If) or one is other:
            return False
        if stepping in one.orelse or not _is_certain(self._facts, clearing, other.body):
            return False
        leaves = any(isinstance(node, LEAVING) for item in block[: block.index(other)] for node in walk_here(item))
        beat = _beat(one.test, around)
        return beat is not None and beat == _beat(other.test, around) and not leaves

    def _events(self, loop: Training, closing: tuple[ast.stmt, ...]) -> list[_Event]:
        found = [_Event(_Kind.SEND, _place(call), call) for call in loop.backwards]
        found += [_Event(_Kind.STEP, _place(call), call) for call in loop.steps]
        found += [_Event(_Kind.CLOSE, (item.end_lineno or item.lineno, 1 << 30), item) for item in closing]
        found += [_Event(_Kind.CLEAR, _place(clear.node), clear.node, clear.targets) for clear in self._facts.clears.of(loop)]
        return sorted(found, key=lambda event: event.place)

    def _surely_before(self, loop: Training, backward: ast.Call, step: ast.Call) -> bool:
        """Whether a backward pass surely comes before a step, in the same turn of the loop."""
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
                return True
            if not isinstance(owner, ast.stmt):
                break
            current = owner
        return False


_CONDITIONAL = Obstacle(
    "conditional-backward",
    "the optimizer may step without a backward pass before it, which a scaler refuses",
    "step under the same condition as the backward pass",
)


def _no_gradients(optimizer: ast.expr | None, step: ast.Call, why: str = "") -> Obstacle:
    words = ast.unparse(optimizer) if optimizer is not None else "an optimizer"
    return Obstacle(
        "conditional-backward",
        f"{words} may step on line {step.lineno} with no gradients of its own{why}, which a scaler refuses",
        "step where the loss of its own networks goes backward",
    )


def common_block(facts: Facts, loop: ast.AST, statements: list[ast.stmt]) -> list[ast.stmt]:
    """The innermost block of a loop in which all of these statements stand, themselves or inside others."""
    chains = []
    for statement in statements:
        chain: list[list[ast.stmt]] = []
        current = statement
        while current is not loop:
            owner, block, _ = facts.tree.place(current)
            chain.insert(0, block)
            while not isinstance(owner, (ast.stmt, ast.Module)):
                owner = facts.tree.parent(owner) or facts.tree.module
            if not isinstance(owner, ast.stmt):
                break
            current = owner
        chains.append(chain)
    common = chains[0][0]
    for blocks in zip(*chains):
        if any(block is not blocks[0] for block in blocks):
            break
        common = blocks[0]
    return common


def _is_certain(facts: Facts, statement: ast.stmt, block: list[ast.stmt]) -> bool:
    """Whether a statement runs whenever a block does: it stands there, or in ``with`` statements there."""
    current: ast.AST | None = statement
    while isinstance(current, ast.stmt) and all(current is not item for item in block):
        current = facts.tree.parent(current)
        if not isinstance(current, (ast.With, ast.AsyncWith)):
            return False
    return current is not None


def _beat(test: ast.expr, around: ast.AST) -> tuple[str, str] | None:
    """The counter and the period of a condition that holds once in so many turns: ``(i + 1) % steps == 0``.

    It may also hold in the last turn, if the loop itself counts from its beginning.
    """
    first = test.values[0] if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else test
    counted = first.left if isinstance(first, ast.Compare) and isinstance(first.ops[0], ast.Eq) else getattr(first, "operand", None)
    if not isinstance(counted, ast.BinOp) or not isinstance(counted.op, ast.Mod):
        return None
    names = [node.id for node in walk(counted.left) if isinstance(node, ast.Name)]
    targets = walk(around.target) if isinstance(around, (ast.For, ast.AsyncFor)) else ()
    restarts = any(isinstance(node, ast.Name) and [node.id] == names for node in targets)
    return (names[0], ast.unparse(counted.right)) if len(names) == 1 and (restarts or first is test) else None


def _place(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return (node.end_lineno or 0, node.end_col_offset or 0)
