"""Parts of Apex beside its mixed precision that torch has too: layers, optimizers, synchronized batch norm, distributed training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.apex.uses import Use, uses_of
from torchfix.facts.code.calls import argument, has_stars, is_constant, keyword
from torchfix.facts.half_precision.spelling import Spelling
from torchfix.facts.obstacle import Obstacle

if TYPE_CHECKING:
    from torchfix.facts import Facts

_NORMALS = ("apex.normalization.FusedLayerNorm", "apex.normalization.fused_layer_norm.FusedLayerNorm")
_ADAMS = ("apex.optimizers.FusedAdam", "apex.optimizers.fused_adam.FusedAdam")
_SGDS = ("apex.optimizers.FusedSGD", "apex.optimizers.fused_sgd.FusedSGD")
_BATCH_NORM = "apex.parallel.convert_syncbn_model"
_PARALLEL = ("apex.parallel.DistributedDataParallel", "apex.parallel.distributed.DistributedDataParallel")
_BY_HAND = "apex.fp16_utils."
# What the optimizers take beside the arguments of torch's, and torch's own that mean the same.
_DROPPED = ("set_grad_none", "adam_w_mode", "materialize_master_grads")
_ADAM = frozenset(["lr", "betas", "eps", "weight_decay", "params", *_DROPPED])
_SGD = frozenset(["lr", "momentum", "dampening", "weight_decay", "nesterov", "params", *_DROPPED])

_OWN = Obstacle(
    "apex-arguments", "an argument has no twin in torch, or is hidden behind stars", "write torch's class with the arguments that it takes"
)
_DISTRIBUTED = Obstacle(
    "apex-ddp",
    "Apex's DistributedDataParallel shares no buffers and bears weights without gradients, which torch's does otherwise",
    "use torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank]); find_unused_parameters=True where weights are frozen",
)
_SYNCHRONIZED = Obstacle(
    "apex-ddp",
    "Apex's DistributedDataParallel is in use, for which torch's batch norm is not made",
    "move to torch's DistributedDataParallel first",
)
_HALF_BY_HAND = Obstacle(
    "apex-fp16-utils",
    "weights are made float16 by hand, and torch has no twin of that",
    "keep the weights in float32, and use torch.autocast with torch.amp.GradScaler",
)


@dataclass(frozen=True, eq=False)
class Twin:
    """What torch has in the place of a part of Apex.

    Args:
        name: its dotted name.
        dropped: the arguments of the call that it does not take.
        added: the arguments that say what was Apex's default.
        changes_state: whether what its ``state_dict`` holds has other names.
    """

    name: str
    dropped: tuple[str, ...] = ()
    added: tuple[tuple[str, str], ...] = ()
    changes_state: bool = False


def twins_of(facts: Facts) -> Iterator[tuple[Use, Twin | Obstacle]]:
    """The uses of such parts that a plain import brings, each with its twin or why there is none; where the import may fail
    the program has one of its own."""
    uses = uses_of(facts)
    parallel = any(use.name in _PARALLEL for use in uses)
    for use in uses:
        found = _twin(facts, use, parallel)
        if found is not None and use.statement in facts.tree.module.body:
            yield use, found


def _twin(facts: Facts, use: Use, parallel: bool) -> Twin | Obstacle | None:
    if use.name in _NORMALS:
        return _checked(facts) or Twin("torch.nn.LayerNorm", _given(use, ("memory_efficient",)))
    if use.name in _ADAMS:
        return _adam(facts, use)
    if use.name in _SGDS:
        fused = Spelling(facts, use.node).since(2, 4)
        added = (("fused", "True"),) if fused else ()
        return Twin("torch.optim.SGD", _given(use, _DROPPED), added) if _fits(use, _SGD, 5) else _OWN
    if use.name == _BATCH_NORM:
        alone = use.call is not None and len(use.call.args) == 1 and not use.call.keywords
        return _SYNCHRONIZED if parallel else Twin("torch.nn.SyncBatchNorm.convert_sync_batchnorm") if alone else _OWN
    if use.name in _PARALLEL:
        return _DISTRIBUTED
    return _HALF_BY_HAND if use.name.startswith(_BY_HAND) else None


def _checked(facts: Facts) -> Obstacle | None:
    """The question in one file whether something is of Apex's class, where other files make such layers."""
    asking = [(other.path, use) for other in facts.program.holding("apex") for use in uses_of(other) if use.name in _NORMALS]
    found = next((use for _, use in asking if use.call is None), None)
    if found is None or {path for path, _ in asking} == {facts.path}:
        return None
    words = f"{found.facts.path}:{found.node.lineno} asks whether a layer is of Apex's class, and layers are made in several files"
    return Obstacle("checked-elsewhere", words, "change all of these files to torch.nn.LayerNorm together")


def _adam(facts: Facts, use: Use) -> Twin | Obstacle:
    """Adam or AdamW, as the mode says; Apex decays no weights unless it is told to."""
    mode = argument(use.call, "adam_w_mode") if use.call is not None else None
    if use.call is None or not _fits(use, _ADAM, 2) or not (mode is None or is_constant(mode, True) or is_constant(mode, False)):
        return _OWN
    decoupled = not is_constant(mode, False)
    added = [("weight_decay", "0.0")] if decoupled and keyword(use.call, "weight_decay") is None else []
    added += [("fused", "True")] if Spelling(facts, use.node).since(2, 4) else []
    return Twin(f"torch.optim.{'AdamW' if decoupled else 'Adam'}", _given(use, _DROPPED), tuple(added), changes_state=True)


def _fits(use: Use, taken: frozenset[str], positions: int) -> bool:
    """Whether it is called with nothing but arguments that torch's twin takes too, or that can be dropped."""
    call = use.call
    return call is not None and not has_stars(call) and len(call.args) <= positions and all(item.arg in taken for item in call.keywords)


def _given(use: Use, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if use.call is not None and keyword(use.call, name) is not None)
