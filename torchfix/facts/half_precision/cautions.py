"""What a user must know before a training loop computes in mixed precision, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from torchfix.facts.code.tree import LOOPS
from torchfix.facts.half_precision.candidates import Candidate
from torchfix.facts.training.companions import Companion

_DISABLE = "Set {} to False to train in float32 again, and compare the loss curves of both before merging."
_PARALLEL = "DataParallel's threads compute in float16 whatever autocast is told; once it is gone, torch.bfloat16 without a scaler will do."
_EVALUATION = "What runs under autocast also evaluates, and evaluation batches now compute in half precision too."
_OLD = "{} stems from what the network gave outside this loop, in float32: put that pass under the same autocast too, or compare closely."
_UNSAVED = "The scaler's state is not saved with the optimizer's: a resumed float16 run skips a few steps while its scale settles."
_SCHEDULE = (
    "The learning-rate schedule also moves when the scaler skips a step, which only happens in float16; "
    "torch may then warn once that the schedule moved first."
)
_RATE = "{} also moves the learning rate when the scaler skips its step, which only happens in float16."
_ANEW = "The scaler is made anew with the optimizer on line {}, and each time skips a few float16 steps while its scale settles."


def cautions(candidate: Candidate, switch: str, scaled: bool, saved: bool) -> Iterator[str]:
    """The sentences that concern one loop.

    Args:
        candidate: the loop.
        switch: the variable that says whether autocast is on.
        scaled: whether there is a scaler.
        saved: whether its state is saved with the optimizer's.
    """
    forward, update = candidate.forward, candidate.update
    yield _DISABLE.format(switch)
    yield from [_OLD.format(forward.old.id)] if forward.old is not None else []
    yield from [_PARALLEL] if candidate.parallel else []
    yield from [_EVALUATION] if candidate.evaluates else []
    if scaled:
        yield from [_SCHEDULE] if candidate.loop.scheduler_steps and not update.counted else []
        inside = [step.wrapped for step in update.steps if step.wrapped is not None and step.wrapped.moves_rate]
        yield from (_RATE.format(words) for words in dict.fromkeys(item.words for item in inside))
        yield from [_UNSAVED] if candidate.is_kept and not saved else []
        yield from (_ANEW.format(item.after.lineno) for item in candidate.companions if _is_repeated(item))


def _is_repeated(companion: Companion) -> bool:
    """Whether the place where a scaler is made is seen to run several times: in a loop, or in a function that a loop calls."""
    facts, function = companion.facts, companion.home[1]
    if facts.tree.nearest(companion.after, LOOPS) is not None:
        return True
    calls = facts.callers_everywhere(function) if function is not None else None
    return any(caller.tree.nearest(call, LOOPS) is not None for caller, call in calls or ())
