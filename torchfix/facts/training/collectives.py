"""Gradients that the processes of a program exchange by hand, without DistributedDataParallel."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.tree import walk
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.gradient_reads import reads_gradients

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Training

_EXCHANGES = ("torch.distributed.", "horovod.torch.")
_DEPTH = 3  # functions followed into one another


def exchanged_by_hand(loop: Training) -> Obstacle | None:
    """Where a training loop hands gradients from process to process.

    A scaler looks for infinite gradients in its own process. Gradients that are exchanged by hand carry those of one process
    to all, of which only that one would skip the step and lower its scale.
    """
    for statement in loop.node.body:
        for node in walk(statement):
            if isinstance(node, ast.Call) and (_exchanges(loop.facts, node) or _runs_exchange(loop.facts, node)):
                return Obstacle(
                    "gradients-exchanged",
                    f"line {node.lineno} hands gradients from process to process, and a scaler looks for infinite ones in its own alone",
                    "let torch.nn.parallel.DistributedDataParallel average the gradients",
                )
    return None


def _exchanges(facts: Facts, call: ast.Call) -> bool:
    """Whether a call hands a gradient that it names to other processes."""
    named = (node for item in call.args for node in walk(item))
    return _is_exchange(facts, call) and any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in named)


def _is_exchange(facts: Facts, call: ast.Call) -> bool:
    return (facts.calls.meaning(call) or "").startswith(_EXCHANGES)


def _runs_exchange(facts: Facts, call: ast.Call) -> bool:
    """Whether a function of the project that a call runs looks at gradients and speaks to other processes, itself or through others."""
    return reads_gradients(facts, call) and _speaks(facts, call, 0)


def _speaks(facts: Facts, call: ast.Call, depth: int) -> bool:
    if _is_exchange(facts, call) or depth > _DEPTH:
        return _is_exchange(facts, call)
    inside = ((there, node) for there, function in called(facts, call) for statement in function.body for node in walk(statement))
    return any(_speaks(there, node, depth + 1) for there, node in inside if isinstance(node, ast.Call))
