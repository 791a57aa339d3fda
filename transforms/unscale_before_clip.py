"""Give gradients their true size before they are clipped.

Why:
    A scaler multiplies the loss, and with it every gradient, by a large number. What clips or reads gradients before
    ``scaler.unscale_(optimizer)`` sees them thousands of times too large: clipping then shrinks every update to almost
    nothing, without an error.

Before:
    import torch
    from torch import nn

    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in torch.ones(2, 4, 8, device="cuda"):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).float().pow(2).mean()
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

After:
    import torch
    from torch import nn

    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in torch.ones(2, 4, 8, device="cuda"):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

Safety:
    Effect ``numerics``: training changes, on purpose. The scaler is one of torch's; what is read are gradients of the
    optimizer that steps next, in the block of its step and behind the last backward pass before it; nothing divides
    gradients or multiplies the threshold by the scale by hand. Anything else is held.

Reference:
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from torchfix.edits import InsertBefore
from torchfix.facts import Facts
from torchfix.facts.code.calls import is_constant, keyword, receiver
from torchfix.facts.code.tree import dotted, walk
from torchfix.facts.code.values import Value
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.loops import Training
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_MESSAGE = "gradients are read while the scaler's factor is still in them"
_BECAUSE = "the scaler multiplied them, and its step takes the factor out only afterwards"
_NOTE = "Clipping now sees true gradients: a threshold or learning rate that was tuned around the factor may have to be tuned again."
_FACTORS = ("get_scale", "_scale", "_get_scale_async")
_BY_HAND = Held(
    "scaled-by-hand",
    "the loop works with the scaler's factor by itself",
    "call scaler.unscale_(optimizer) and take the factor out of the threshold or the gradients",
)


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The steps of torch's scalers whose gradients are read before they have their true size."""
    for loop in facts.loops.all:
        steps = [step for step in loop.steps if _is_scaled(facts, step) and not _is_unscaled(facts, loop, step)]
        readers = facts.updates.readers(loop) if steps else {}
        if isinstance(readers, Obstacle):
            if readers.code != "gradients-out-of-sight":
                yield _finding(loop.start, Held(readers.code, readers.text, readers.help))
            continue
        for step in steps:
            reader = readers.get(step)
            if reader is None or (reader is facts.tree.statement(step) and not _may_be_fused(facts, step)):
                continue
            scaler = receiver(step)
            assert scaler is not None
            if _by_hand(facts, loop, scaler):
                yield _finding(reader, _BY_HAND)
                continue
            code = f"{facts.source.segment(scaler)}.unscale_({facts.source.segment(step.args[0])})"
            yield Finding(reader, _MESSAGE, (InsertBefore(reader, code),), frozenset({Effect.NUMERICS}), _BECAUSE, (_NOTE,))


def _finding(node: ast.stmt, held: Held) -> Finding:
    return Finding(node, _MESSAGE, effects=frozenset({Effect.NUMERICS}), held=held)


def _is_scaled(facts: Facts, step: ast.Call) -> bool:
    """Whether a step is one of torch's scaler, which is given the optimizer; a scaler that is None in other runs steps in none of them."""
    scaler = receiver(step)
    values = facts.values.of(scaler) if scaler is not None and step.args else None
    made = [item for item in values or () if not item.is_none]
    return bool(made) and all(map(_is_scaler, made))


def _is_scaler(value: Value) -> bool:
    """Whether a value is a scaler of torch that is not switched off for good."""
    node, kinds = value.node, ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.GradScaler")
    if not isinstance(node, ast.Call) or value.facts.calls.meaning(node) not in kinds:
        return False
    enabled = keyword(node, "enabled")
    return enabled is None or not is_constant(enabled.value, False)


def _may_be_fused(facts: Facts, step: ast.Call) -> bool:
    """Whether an optimizer may update in one kernel, which leaves the factor in the gradients; others are left true ones behind a step."""
    chosen = (keyword(item.call, "fused") for item in facts.optimizers.of(step.args[0]) or ())
    return any(item is not None and not is_constant(item.value, False) for item in chosen)


def _is_unscaled(facts: Facts, loop: Training, step: ast.Call) -> bool:
    """Whether the loop, or a function of the project that it calls, already unscales an optimizer's gradients."""
    name = dotted(step.args[0])
    for place, call in facts.reach.calls(loop.node.body):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "unscale_":
            if place is not facts or not call.args or dotted(call.args[0]) == name or place.tree.function(call) is not loop.function:
                return True
    return False


def _by_hand(facts: Facts, loop: Training, scaler: ast.expr) -> bool:
    """Whether the loop, or a function that it calls, computes with the scaler's factor; asking whether it fell is no computing."""
    name = dotted(scaler)
    for node in loop.nodes():
        if (
            isinstance(node, ast.Attribute)
            and node.attr in _FACTORS
            and dotted(node.value) == name
            and _goes_into_sum(facts, node, loop.nodes())
        ):
            return True
    for place, call in facts.reach.calls(loop.node.body):
        function = place.tree.function(call)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _FACTORS and function is not None and function is not loop.function:
            if _goes_into_sum(place, call.func, walk(function)):
                return True
    return False


def _goes_into_sum(facts: Facts, factor: ast.Attribute, around: Iterable[ast.AST]) -> bool:
    """Whether a factor, or a variable that keeps it, goes into arithmetic somewhere in the code around it."""
    kept = {item.id for item in walk(facts.tree.statement(factor)) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}
    sums = [node for node in around if isinstance(node, (ast.BinOp, ast.AugAssign))]
    named = any(isinstance(item, ast.Name) and item.id in kept for node in sums for item in walk(node))
    return named or any(isinstance(item, ast.BinOp) for item in facts.tree.ancestors(factor))


TRANSFORM = Transform.from_module(__name__, __doc__, group="precision", literals=(b".scale(",), find=find, since="1.6")
