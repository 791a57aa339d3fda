"""What looks at gradients: clipping, ``p.grad``, and functions and methods of the project that do."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.tree import walk
from torchfix.facts.training.autograd import is_of_a_library

if TYPE_CHECKING:
    from torchfix.facts import Facts

CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_norm")
_DEPTH = 3  # functions followed into one another


def reads_gradients(facts: Facts, node: ast.AST, depth: int = 0) -> bool:
    """Whether a node itself looks at gradients, or calls a function of the project that does; an optimizer's step does not count.

    Args:
        facts: the node's file.
        node: an attribute or a call; anything else looks at nothing by itself.
        depth: how many functions were followed to it.
    """
    if isinstance(node, ast.Attribute):
        return node.attr == "grad" and isinstance(node.ctx, ast.Load) and _is_looked_at(facts, node)
    if not isinstance(node, ast.Call):
        return False
    if facts.calls.meaning(node) in CLIPS:
        return True
    if depth >= _DEPTH or is_of_a_library(facts, node) or _is_a_step(facts, node):
        return False
    inside = ((there, item) for there, function in called(facts, node) for statement in function.body for item in walk(statement))
    return any(reads_gradients(there, item, depth + 1) for there, item in inside)


def _is_a_step(facts: Facts, call: ast.Call) -> bool:
    """Whether a call is an optimizer's own step, which a scaler takes in its place when gradients have their true size."""
    return isinstance(call.func, ast.Attribute) and call.func.attr == "step" and bool(facts.optimizers.of(call.func.value))


def _is_looked_at(facts: Facts, node: ast.Attribute) -> bool:
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
