"""Running numbers: variables to which each iteration of a loop adds what it reads from the device.

``total += loss.item()`` makes the host wait on each iteration for a number that is needed behind the loop only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.scopes import Binding
from torchfix.facts.code.tree import LoopNode, walk_here
from torchfix.facts.metrics.scalars import Scalar

if TYPE_CHECKING:
    from torchfix.facts import Facts


@dataclass(frozen=True, eq=False)
class Addition:
    """One statement that adds to a running number, or puts a number into a list.

    Args:
        statement: ``total += value``, ``total = total + value``, ``losses.append(value)`` or ``losses += [value]``.
        value: what it adds.
        reads: the numbers in it that are read from the device, there or in front of the statement.
    """

    statement: ast.stmt
    value: ast.expr
    reads: tuple[Scalar, ...]

    @property
    def is_bare(self) -> bool:
        """Whether it adds one number from the device and nothing else."""
        return any(read.use is self.value for read in self.reads)


@dataclass(frozen=True, eq=False)
class Accumulator:
    """A running number of a loop.

    Args:
        name: the variable, where the loop first adds to it.
        loop: the loop on each of whose iterations a number is read and added.
        additions: the statements that add to it, in text order.
        starts: the bindings outside the loop with which it may come in.
        resets: the bindings inside the loop that set it anew.
        used: where the loop does something else with it, in text order.
        is_used_outside: whether anything outside the loop reads it.
    """

    name: ast.Name
    loop: LoopNode
    additions: tuple[Addition, ...]
    starts: tuple[Binding, ...]
    resets: tuple[Binding, ...]
    used: tuple[ast.Name, ...]
    is_used_outside: bool


class Accumulators:
    """Questions about the running numbers of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def all(self) -> tuple[Accumulator, ...]:
        """Every running number to which some loop adds a number that it reads on each iteration, in text order."""
        found: list[Accumulator] = []
        if not any(True for statement in self._facts.scalars.statements for _ in summed(statement)):
            return ()  # without asking which loops there are
        for loop in self._facts.cadence.loops:
            seen: set[str] = set()
            for statement in (node for item in loop.body for node in walk_here(item)):
                for target, value in summed(statement):
                    if not isinstance(target, ast.Name) or target.id in seen or value is None or isinstance(value, ast.List):
                        continue
                    if not self._facts.scalars.is_read_each_time(value, loop):
                        continue
                    seen.add(target.id)
                    made = self._made(target, loop)
                    found += [made] if made is not None else []
        return tuple(sorted(found, key=lambda item: (item.name.lineno, item.name.col_offset)))

    def _made(self, target: ast.Name, loop: LoopNode) -> Accumulator | None:
        """The running number of a variable; None where each iteration begins it anew."""
        tree, names = self._facts.tree, self._facts.names
        additions: list[Addition] = []
        resets: list[Binding] = []
        inner = (use for use in names.uses(target) if tree.is_within(use, loop))
        reaching = {binding: None for use in inner for binding in self._facts.flow.reaching(use)}
        outside = [binding for binding in reaching if not tree.is_within(binding.node, loop)]
        for binding in names.bindings(target):
            if not tree.is_within(binding.node, loop):
                continue
            value = next((value for other, value in summed(binding.node) if isinstance(other, ast.Name) and other.id == target.id), None)
            alone = isinstance(binding.node, ast.AugAssign) or (isinstance(binding.node, ast.Assign) and len(binding.node.targets) == 1)
            if value is not None and alone and isinstance(binding.node, ast.stmt):
                additions.append(Addition(binding.node, value, tuple(self._facts.scalars.within(value))))
            elif not isinstance(binding.node, ast.AugAssign):
                if self._facts.cadence.is_each_time(binding.node, loop):
                    return None
                resets.append(binding)
        inside = [addition.statement for addition in additions]
        used = []
        elsewhere = False
        for use in names.uses(target):
            within = tree.is_within(use, loop)
            if within and not any(tree.is_within(use, statement) for statement in inside) and not self._is_plain_store(use):
                used.append(use)
            elsewhere |= not within and not self._is_plain_store(use)
        return Accumulator(target, loop, tuple(additions), tuple(outside), tuple(resets), tuple(used), elsewhere)

    def _is_plain_store(self, use: ast.Name) -> bool:
        """Whether a use only binds the variable, rather than reads it too, as ``+=`` does."""
        parent = self._facts.tree.parent(use)
        return not isinstance(use.ctx, ast.Load) and not (isinstance(parent, ast.AugAssign) and parent.target is use)


def summed(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What a statement adds to, and what it adds: ``a += b`` and ``a = a + b``; None for what is not simply added."""
    if isinstance(node, ast.AugAssign):
        yield node.target, node.value if isinstance(node.op, ast.Add) else None
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
        for target in node.targets:
            words = ast.unparse(target)
            for one, other in ((node.value.left, node.value.right), (node.value.right, node.value.left)):
                if ast.unparse(one) == words:
                    yield target, other
