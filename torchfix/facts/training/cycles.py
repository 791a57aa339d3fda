"""The order in which one training loop clears gradients, sends losses backward and lets optimizers step.

A scaler keeps its scale from one look at the gradients to the next. Where it may look is decided here: behind the last
step of an iteration, or behind each step that ends a cycle of its own; and it is proved that no gradient which was made
under one scale is still there under the next.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, receiver
from torchfix.facts.code.tree import LOOPS, dotted, walk, walk_here
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.owners import parameter_owners

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
        statement = self._facts.tree.statement
        each = tuple(statement(step) for step in loop.steps)
        if len(loop.steps) == 1 and len(loop.backwards) == 1:
            surely = self._surely_before(loop, loop.backwards[0], loop.steps[0])
            return Cycle(each, {loop.steps[0]: loop.backwards}) if surely else _CONDITIONAL
        found: Cycle | Obstacle = _CONDITIONAL
        for closing in dict.fromkeys((self._together(loop), each)):
            found = self._read(loop, closing) if closing is not None else found
            if isinstance(found, Cycle):
                break
        return found

    def sources(self, loop: Training) -> Cycle | Obstacle:
        """What each step takes, where the program itself looks after a scaler."""
        return self._read(loop, ())

    # Where it closes ------------------------------------------------------------------------------------------

    def _together(self, loop: Training) -> tuple[ast.stmt] | None:
        """The statement behind which all optimizers have stepped, each once, and at least one of them for certain."""
        tree = self._facts.tree
        names = [dotted(target) for step in loop.steps if (target := self._facts.optimizers.stepped_by(step)) is not None]
        nested = any(self._turn(loop, step) is not loop.node for step in loop.steps)
        if nested or None in names or len(set(names)) < len(loop.steps):
            return None
        statements = [tree.statement(step) for step in loop.steps]
        block = common_block(self._facts, loop.node, statements)
        holding = [item for item in block if any(tree.is_within(statement, item) for statement in statements)]
        if not any(_is_certain(self._facts, statement, block) for statement in statements):
            return None
        between = block[block.index(holding[0]) : block.index(holding[-1]) + 1]
        leaves = any(isinstance(node, LEAVING) for item in between for node in walk_here(item))
        return None if leaves else (holding[-1],)

    def _turn(self, loop: Training, step: ast.Call) -> ast.AST:
        """What repeats a step: the innermost loop around it, or all of the code that trains."""
        around = self._facts.tree.nearest(self._facts.tree.statement(step), LOOPS)
        return around if around is not None and self._facts.tree.is_within(around, loop.node) else loop.node

    # What is in between ---------------------------------------------------------------------------------------

    def _read(self, loop: Training, closing: tuple[ast.stmt, ...]) -> Cycle | Obstacle:
        sources: dict[ast.Call, tuple[ast.Call, ...]] = {}
        for step in loop.steps:
            taken = self._taken(loop, step, closing)
            if isinstance(taken, Obstacle):
                return taken
            if not any(self._surely_before(loop, backward, step) for backward in taken):
                return _CONDITIONAL
            sources[step] = taken
        return Cycle(closing, sources)

    def _taken(self, loop: Training, step: ast.Call, closing: tuple[ast.stmt, ...]) -> tuple[ast.Call, ...] | Obstacle:
        """The backward passes between a step and the last time before it that its gradients were cleared."""
        tree, optimizer = self._facts.tree, self._facts.optimizers.stepped_by(step)
        around = self._turn(loop, step)
        events = [event for event in self._events(loop, closing) if tree.is_within(event.node, around)]
        here = next(index for index, event in enumerate(events) if event.node is step)
        names = self._names(optimizer) if optimizer is not None else frozenset()
        taken: list[ast.Call] = []
        closed = False
        for event in [*reversed(events[:here]), *reversed(events[here + 1 :])]:
            if event.kind is _Kind.CLEAR and event.targets & names:
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
            f"gradients that {words} steps with on line {step.lineno} may stem from before another optimizer's step, under another scale",
            f"call {words}.zero_grad() before the backward pass whose gradients it is to take",
        )

    def _events(self, loop: Training, closing: tuple[ast.stmt, ...]) -> list[_Event]:
        found = [_Event(_Kind.SEND, _place(call), call) for call in loop.backwards]
        found += [_Event(_Kind.STEP, _place(call), call) for call in loop.steps]
        found += [_Event(_Kind.CLOSE, (item.end_lineno or item.lineno, 1 << 30), item) for item in closing]
        found += self._clears(loop)
        return sorted(found, key=lambda event: event.place)

    def _clears(self, loop: Training) -> Iterator[_Event]:
        """The places that clear gradients: in the loop itself, and in methods of the same object that it calls."""
        for call in (node for node in loop.nodes() if isinstance(node, ast.Call)):
            method = self._facts.own_method(call)
            calls = [call] if method is None else [node for node in walk(method) if isinstance(node, ast.Call)]
            targets = [receiver(item) for item in calls if isinstance(item.func, ast.Attribute) and item.func.attr == "zero_grad"]
            names = frozenset[object]().union(*(self._cleared(target) for target in targets if target is not None))
            if names:
                yield _Event(_Kind.CLEAR, _place(call), call, names)

    def _cleared(self, target: ast.expr) -> frozenset[object]:
        """What a ``zero_grad()`` clears: the optimizer by its name, or the networks whose gradients they are."""
        networks = self._facts.models.of(target)
        return frozenset(item.value for item in networks) if networks else frozenset([dotted(target)])

    def _names(self, optimizer: ast.expr) -> frozenset[object]:
        """By what an optimizer's gradients may be cleared: its own name, or the only network that it steps."""
        found: set[object] = {dotted(optimizer)}
        owners = [
            parameter_owners(item.value.facts, argument(item.call, "params", 0)) for item in self._facts.optimizers.of(optimizer) or ()
        ]
        if len(owners) == 1 and owners[0] is not None and len(owners[0]) == 1:
            found |= owners[0]
        return frozenset(found)

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


def common_block(facts: Facts, loop: ast.stmt, statements: list[ast.stmt]) -> list[ast.stmt]:
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


def _place(node: ast.expr) -> tuple[int, int]:
    return (node.end_lineno or 0, node.end_col_offset or 0)
