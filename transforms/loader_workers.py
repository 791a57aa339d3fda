"""Load batches in worker processes.

Why:
    Without workers the training process itself reads, decodes and transforms every sample between two steps, and the
    GPU waits. Worker processes prepare the next batches while it computes.

Before:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Squares(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.arange(index, index + 3).square()

    if __name__ == "__main__":
        for batch in DataLoader(Squares(), batch_size=4):
            print(batch.sum())

After:
    import os
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Squares(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.arange(index, index + 3).square()

    if __name__ == "__main__":
        for batch in DataLoader(Squares(), batch_size=4, num_workers=min(4 * torch.cuda.device_count(), os.cpu_count() or 1)):
            print(batch.sum())

Safety:
    Effects ``process`` and ``memory``: new processes start with every epoch, each with its copy of the dataset, and
    batches cross shared memory; ``rng`` where samples draw random numbers, which then come from generators of the
    workers. The count is 0, as before, on a machine without CUDA, and 4 in a program that runs a process per GPU.
    Held where the dataset's code is out of sight or would misbehave in a worker (an open file, a generator or cache of
    its own, a CUDA tensor, what cannot be pickled), where a script iterates outside its main guard, and where a loader
    or iterator is made anew for each step.

Reference:
    https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading,
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html ("Enable asynchronous data loading")
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from torchfix.edits import AddImport, Edit, Replace, SetArgument
from torchfix.facts import Facts
from torchfix.facts.code.calls import is_constant
from torchfix.facts.data.consumers import Consumers
from torchfix.facts.data.datasets import Samples
from torchfix.facts.data.fitness import obstacle_to_workers
from torchfix.facts.data.loaders import Loader
from torchfix.facts.data.traits import Trait
from torchfix.transform import Effect, Finding, Held, Transform

# The rule of thumb, four workers a GPU, for a process that uses all GPUs and for one that uses its own.
_WHOLE_MACHINE = "min(4 * torch.cuda.device_count(), os.cpu_count() or 1)"
_SHARE = "4"
_EFFECTS = frozenset({Effect.PROCESS, Effect.MEMORY})
_MODULES = ("os", "torch")  # what an expression may name without the file importing it
_NAME_TAKEN = Held(
    "name-taken", "a name in the expression for num_workers means something else here, or nothing", "give another one with --num-workers"
)

_NOTE = (
    "Each worker keeps a copy of the dataset and hands batches over in shared memory: a container with the usual 64 MiB of"
    " /dev/shm fails with a bus error (docker run --shm-size=8g); num_workers=0 turns the workers off."
)
_RNG_NOTE = (
    "Samples draw random numbers, which come from the workers' generators now: a run with a fixed seed gives other ones than before."
)
_OPENCV_NOTE = "OpenCV starts threads in every worker; cv2.setNumThreads(0) in the dataset's module keeps it to one."


@dataclass(frozen=True)
class Options:
    """What to write.

    Args:
        num_workers: the expression for the count; empty for the rule's own.
    """

    num_workers: str = ""


def find(facts: Facts, options: Options) -> Iterator[Finding]:
    for loader in facts.loaders.all:
        given, shares = loader.argument("num_workers"), facts.program.runs_process_per_device
        if loader.hides_arguments or given is not loader.setting("num_workers"):
            continue
        if given is None or is_constant(given, 0):
            if _has_work(facts.datasets.behind(loader)) and Consumers(loader).exist():
                yield _without_workers(loader, given, options.num_workers or (_SHARE if shares else _WHOLE_MACHINE))
        elif facts.regions.is_distributed() and not options.num_workers and ast.unparse(given) == _spelled(loader, _WHOLE_MACHINE)[0]:
            yield Finding(
                loader.call,
                "every process starts as many workers as the whole machine should have",
                _edits(loader, given, _SHARE),
                frozenset({Effect.PROCESS}),
                "the program runs a process for each GPU",
            )


def _without_workers(loader: Loader, given: ast.expr | None, expression: str) -> Finding:
    """What to say of a loader that works in the training process.

    Args:
        loader: the loader.
        given: the count that is written out.
        expression: the count to write.
    """
    message = "batches are loaded in the training process"
    obstacle = obstacle_to_workers(loader)
    if obstacle is not None:
        return Finding(loader.call, message, effects=_EFFECTS, held=Held(obstacle.code, obstacle.text, obstacle.help))
    spelled, imports = _spelled(loader, expression)
    if spelled is None:
        return Finding(loader.call, message, effects=_EFFECTS, held=_NAME_TAKEN)
    samples = loader.facts.datasets.behind(loader)
    draws = samples.have(Trait.RANDOM)
    return Finding(
        loader.call,
        message,
        (*_edits(loader, given, spelled), *imports),
        _EFFECTS | ({Effect.RNG} if draws else set()),
        "all code behind the loader is fit for worker processes" + ("" if draws else " and draws no random numbers"),
        (_NOTE, *((_RNG_NOTE,) if draws else ()), *((_OPENCV_NOTE,) if samples.have(Trait.OPENCV) else ())),
    )


def _has_work(samples: Samples) -> bool:
    """Whether there may be work to share: what memory holds ready is handed on faster than any worker sends it."""
    return samples.mark(Trait.WORK, Trait.UNSEEN, Trait.ITERABLE, Trait.DEVICE) is not None


def _edits(loader: Loader, given: ast.expr | None, value: str) -> tuple[Edit, ...]:
    if given is not None and given in loader.call.args:
        return (Replace(given, value),)
    return (SetArgument(loader.call, "num_workers", value),)


def _spelled(loader: Loader, expression: str) -> tuple[str | None, tuple[Edit, ...]]:
    """An expression as the file has to spell it, with the imports that it needs; None where a name means something else here."""
    names, at = loader.facts.names, loader.call
    tree = ast.parse(expression, mode="eval")
    imports: list[Edit] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name):
            continue
        spelled = names.spell(node.id, at) if node.id in _MODULES else None
        if spelled is not None:
            node.id = spelled
        elif node.id in _MODULES and names.is_free(node.id):
            imports.append(AddImport(node.id))
        elif not (names.has_module(node.id, at) if node.id in _MODULES else names.is_visible(node.id, at)):
            return None, ()
    return ast.unparse(tree), tuple(imports)


TRANSFORM = Transform.from_module(__name__, __doc__, group="data", literals=(b"DataLoader",), find=find, since="0.2", options=Options)
