"""Running totals: the numbers that a training loop adds up and that are read behind it.

Where each process takes a share of every batch, such a total is the total of one share. How the shares make the whole
follows from what is added: the shares' means are averaged, their sums and counts are added.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import LOOPS, LoopNode
from torchfix.facts.metrics.accumulators import summed
from torchfix.facts.training.reductions import Reduction

if TYPE_CHECKING:
    from torchfix.facts.training.loops import Loop


class Joining(enum.Enum):
    """How the totals of the shares make the total of the whole."""

    MEAN = "mean"
    SUM = "sum"
    UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class Total:
    """One variable of a training loop.

    Args:
        target: where the loop adds to it.
        joining: how the shares make the whole.
        behind: the loop behind which the shares can be joined: the training loop, or one around it through which it runs on.
    """

    target: ast.expr
    joining: Joining
    behind: ast.stmt


def totals(loop: Loop) -> Iterator[Total]:
    """The totals of a training loop that something behind it reads, in the order of the text.

    What is the same in every process, such as a count of steps, is none of them.
    """
    found: dict[str, list[tuple[ast.expr, ast.expr | None]]] = {}
    for node in loop.nodes():
        for target, added in summed(node):
            found.setdefault(ast.unparse(target), []).append((target, added))
    for additions in found.values():
        target = additions[0][0]
        differs = any(added is None or loop.facts.lockstep.differs(added) for _, added in additions)
        if differs and not _begins_inside(loop, target) and _is_read_behind(loop, target):
            known = [added for _, added in additions if added is not None]
            whole = _whole(loop, target) if isinstance(target, ast.Name) and len(known) == len(additions) else None
            if whole is None or (whole is not loop.node and _is_read_between(loop, target, whole)):
                yield Total(target, Joining.UNKNOWN, loop.node)
            else:
                yield Total(target, _joining(loop, known), whole)


def _begins_inside(loop: Loop, target: ast.expr) -> bool:
    """Whether a variable gets a new value inside the loop, so that it is no total of the whole loop."""
    bindings = loop.facts.names.bindings(target) if isinstance(target, ast.Name) else []
    inside = (binding.node for binding in bindings if binding.how is Bound.ASSIGN and loop.facts.tree.is_within(binding.node, loop.node))
    return any(not any(True for _ in summed(node)) for node in inside)


def _joining(loop: Loop, added: list[ast.expr]) -> Joining:
    kinds = {loop.facts.reductions.of(value) for value in added}
    if kinds == {Reduction.MEAN}:
        return Joining.MEAN
    return Joining.SUM if kinds == {Reduction.SUM} else Joining.UNKNOWN


def _whole(loop: Loop, name: ast.Name) -> LoopNode | None:
    """The outermost loop through which a total runs on, from where it is zero; None where it is not seen to begin with zero."""
    tree = loop.facts.tree
    starts = [binding for binding in loop.facts.names.bindings(name) if binding.how is Bound.ASSIGN]
    before = [item for item in starts if tree.statement(item.node).lineno < loop.node.lineno and not any(True for _ in summed(item.node))]
    if not before or not all(_is_zero(item.value) and tree.function(item.node) is loop.function for item in before):
        return None
    whole = loop.node
    for outer in tree.ancestors(loop.node):
        if isinstance(outer, LOOPS) and not any(tree.is_within(item.node, outer) for item in before):
            whole = outer
    return whole


def _is_zero(value: ast.expr | None) -> bool:
    items = value.elts if isinstance(value, ast.Tuple) else [value]
    return all(isinstance(item, ast.Constant) and item.value == 0 for item in items)


def _is_read_between(loop: Loop, target: ast.expr, whole: ast.stmt) -> bool:
    """Whether a total is read inside the loop through which it runs on, but outside the training loop."""
    tree = loop.facts.tree
    uses = loop.facts.names.uses(target) if isinstance(target, ast.Name) else ()
    return any(isinstance(use.ctx, ast.Load) and tree.is_within(use, whole) and not tree.is_within(use, loop.node) for use in uses)


def _is_read_behind(loop: Loop, target: ast.expr) -> bool:
    """Whether what a loop adds to is read behind the loop; of an object's attribute or a container's item, anywhere else."""
    tree, end = loop.facts.tree, loop.node.end_lineno or loop.node.lineno
    if isinstance(target, ast.Name):
        return any(isinstance(use.ctx, ast.Load) and use.lineno > end for use in loop.facts.names.uses(target))
    if isinstance(target, ast.Attribute):
        alike: list[ast.expr] = [*tree.attributes.get(target.attr, ())]
    else:
        root = target.value if isinstance(target, ast.Subscript) else target
        alike = [*loop.facts.names.uses(root)] if isinstance(root, ast.Name) else [*tree.attributes.get(getattr(root, "attr", ""), ())]
    return any(isinstance(getattr(use, "ctx", None), ast.Load) and not tree.is_within(use, loop.node) for use in alike)
