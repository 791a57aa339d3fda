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
        target: where the loop adds to it.
        joining: how the shares make the whole.
    """

    target: ast.expr
    joining: Joining


def totals(loop: Loop) -> Iterator[Total]:
    """The totals of a training loop that something behind it reads, in the order of the text.

    What is the same in every process, such as a count of steps, is none of them.
    """
    found: dict[str, list[tuple[ast.expr, ast.expr | None]]] = {}
    for node in loop.nodes():
        for target, added in _addition(node):
            found.setdefault(ast.unparse(target), []).append((target, added))
    for additions in found.values():
        target = additions[0][0]
        differs = any(added is None or loop.facts.lockstep.differs(added) for _, added in additions)
        if differs and not _begins_inside(loop, target) and _is_read_behind(loop, target):
            known = [added for _, added in additions if added is not None]
            whole = isinstance(target, ast.Name) and len(known) == len(additions)
            yield Total(target, _joining(loop, target, known) if whole and isinstance(target, ast.Name) else Joining.UNKNOWN)


def _addition(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What a statement adds to, and what it adds: ``a += b`` and ``a = a + b``; None for what is not simply added."""
    if isinstance(node, ast.AugAssign):
        yield node.target, node.value if isinstance(node.op, ast.Add) else None
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
        for target in node.targets:
            words = ast.unparse(target)
            for one, other in ((node.value.left, node.value.right), (node.value.right, node.value.left)):
                if ast.unparse(one) == words:
                    yield target, other


def _begins_inside(loop: Loop, target: ast.expr) -> bool:
    """Whether a variable gets a new value inside the loop, so that it is no total of the whole loop."""
    bindings = loop.facts.names.bindings(target) if isinstance(target, ast.Name) else []
    inside = (binding.node for binding in bindings if binding.how is Bound.ASSIGN and loop.facts.tree.is_within(binding.node, loop.node))
    return any(not any(True for _ in _addition(node)) for node in inside)


def _joining(loop: Loop, name: ast.Name, added: list[ast.expr]) -> Joining:
    starts = [binding for binding in loop.facts.names.bindings(name) if binding.how is Bound.ASSIGN]
    starts = [binding for binding in starts if not any(True for _ in _addition(binding.node))]
    if not starts or not all(_starts_at_zero(loop, binding.node, binding.value) for binding in starts):
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
