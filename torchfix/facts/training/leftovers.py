"""Gradients that a training loop leaves to others: a step behind it, as for the rest of a window of accumulated batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.tree import LOOPS
from torchfix.facts.obstacle import Obstacle

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Training


def left_to_others(loop: Training) -> Obstacle | None:
    """A step outside of every training loop that may use the gradients of this one, which a scaler would have scaled."""
    optimizers = {item for step in loop.steps for item in _stepped(loop.facts, step)}
    for facts in loop.facts.program.holding("step") if optimizers else ():
        for call in _outside(facts):
            if not optimizers.isdisjoint(_stepped(facts, call)) and not _is_done_with(facts, call, loop):
                return Obstacle(
                    "step-outside",
                    f"{facts.path}:{call.lineno} steps the optimizer outside of the loop, with gradients that the loop may have left there",
                    "clear the gradients in front of that step, or take the step into the loop",
                )
    return None


def _outside(facts: Facts) -> Iterator[ast.Call]:
    """The steps of a file that belong to none of its training loops and functions."""
    within = {step for unit in (*facts.loops.all, *facts.relays.units) for step in unit.steps}
    yield from (call for call in facts.calls.methods("step") if call not in within)


def _stepped(facts: Facts, call: ast.Call) -> frozenset[object]:
    optimizer = facts.optimizers.stepped_by(call)
    return frozenset(facts.optimizers.of(optimizer) or ()) if optimizer is not None else frozenset()


def _is_done_with(facts: Facts, call: ast.Call, loop: Training) -> bool:
    """Whether a step runs before the loop, or behind a statement of its own block that clears gradients after the loop."""
    tree = facts.tree
    here = facts is loop.facts and tree.function(call) is loop.function
    again = here and any(isinstance(outer, LOOPS) and tree.is_within(loop.node, outer) for outer in tree.ancestors(call))
    if here and not again and call.lineno < loop.node.lineno:
        return True
    _, block, place = tree.place(tree.statement(call))
    between = [item for item in block[:place] if not here or item.lineno > loop.node.lineno]
    ran = (item.value.func for item in between if isinstance(item, ast.Expr) and isinstance(item.value, ast.Call))
    return any(isinstance(func, ast.Attribute) and func.attr == "zero_grad" for func in ran)
