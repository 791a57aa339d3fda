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

from torchfix.facts.reductions import Reduction
from torchfix.facts.scopes import Bound
from torchfix.facts.tree import LOOPS

if TYPE_CHECKING:
    from torchfix.facts.loops import Loop


class Joining(enum.Enum):
    """How the totals of the shares make the total of the whole."""

    MEAN = "mean"
    SUM = "sum"
    UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class Total:
    """One variable of a training loop.

    Args:
        name: a use of it.
        joining: how the shares make the whole.
    """

    name: ast.Name
    joining: Joining


def totals(loop: Loop) -> Iterator[Total]:
    """The totals of a training loop that something behind it reads, in the order of the text.

    What is the same in every process, such as a count of steps, is none of them.
    """
    facts, seen = loop.facts, set()
    for node in loop.nodes():
        if not isinstance(node, ast.AugAssign) or not isinstance(node.target, ast.Name) or node.target.id in seen:
            continue
        name = node.target
        seen.add(name.id)
        added = [item.value for item in _additions(loop, name)]
        if any(facts.lockstep.differs(value) for value in added) and _is_read_behind(loop, name):
            yield Total(name, _joining(loop, name, added))


def _additions(loop: Loop, name: ast.Name) -> list[ast.AugAssign]:
    added = [item for item in loop.nodes() if isinstance(item, ast.AugAssign)]
    return [item for item in added if isinstance(item.target, ast.Name) and item.target.id == name.id]


def _joining(loop: Loop, name: ast.Name, added: list[ast.expr]) -> Joining:
    bindings = loop.facts.names.bindings(name)
    starts = [binding for binding in bindings if binding.how is Bound.ASSIGN]
    sums = all(isinstance(item.op, ast.Add) for item in _additions(loop, name))
    if not sums or not starts or not all(_starts_at_zero(loop, binding.node, binding.value) for binding in starts):
        return Joining.UNKNOWN
    kinds = {loop.facts.reductions.of(value) for value in added}
    if kinds == {Reduction.MEAN}:
        return Joining.MEAN
    return Joining.SUM if kinds == {Reduction.SUM} else Joining.UNKNOWN


def _starts_at_zero(loop: Loop, node: ast.AST, value: ast.expr | None) -> bool:
    """Whether a binding sets the total to zero each time before the loop begins; what stands behind the loop may do as it likes."""
    tree = loop.facts.tree
    if tree.is_within(node, loop.node) or tree.function(node) is not tree.function(loop.node):
        return False
    if tree.statement(node).lineno > loop.node.lineno:
        return True
    items = value.elts if isinstance(value, ast.Tuple) else [value]
    around = [outer for outer in tree.ancestors(loop.node) if isinstance(outer, LOOPS)]
    zero = all(isinstance(item, ast.Constant) and item.value == 0 for item in items)
    return zero and all(tree.is_within(node, outer) for outer in around)


def _is_read_behind(loop: Loop, name: ast.Name) -> bool:
    end = loop.node.end_lineno or loop.node.lineno
    return any(isinstance(use.ctx, ast.Load) and use.lineno > end for use in loop.facts.names.uses(name))
