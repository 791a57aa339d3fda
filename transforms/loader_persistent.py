"""Keep a loader's worker processes from one epoch to the next.

Why:
    A loader ends its workers with each epoch and starts new ones with the next: they import the program's modules, take
    a copy of the dataset and fill the first batches while the GPU waits. Workers that live on are ready at once.

Before:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Squares(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.arange(index, index + 3).square()

    def train(workers):
        loader = DataLoader(Squares(), batch_size=4, num_workers=workers)
        for epoch in range(3):
            for batch in loader:
                print(epoch, batch.sum())

    if __name__ == "__main__":
        train(1)

After:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Squares(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.arange(index, index + 3).square()

    def train(workers):
        loader = DataLoader(Squares(), batch_size=4, num_workers=workers, persistent_workers=workers > 0)
        for epoch in range(3):
            for batch in loader:
                print(epoch, batch.sum())

    if __name__ == "__main__":
        train(1)

Safety:
    Effects ``process`` and ``memory``: workers and their copies of the dataset stay for as long as the loader does;
    ``rng``, since the main process draws no seed for new workers and the generators of the old ones go on: the first epoch
    is as before, later ones are shuffled and augmented differently. Without workers the argument is an error, so it is
    guarded by their count unless that is a literal. Done where a loop around the epochs iterates one loader again and
    again. Held where something that the workers have a copy of changes between epochs, where samples depend on earlier
    ones, and where the loader may be iterated while it is being iterated already.

Reference:
    https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader,
    https://lightning.ai/docs/pytorch/stable/advanced/speed.html ("Persistent workers")
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchfix.edits import Edit, InsertAfter, Replace, SetArgument
from torchfix.facts import Facts
from torchfix.facts.code.calls import is_constant
from torchfix.facts.code.keywords import Table, takers
from torchfix.facts.data.epochs import Epochs
from torchfix.facts.data.fitness import fills_cache, obstacle_to_persistence
from torchfix.facts.data.loaders import Loader
from torchfix.facts.data.traits import Trait
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_NAME = "persistent_workers"
_MESSAGE = "worker processes are started anew for every epoch"
_EFFECTS = frozenset({Effect.PROCESS, Effect.MEMORY})
# Counts that are never 0; where they are not known, the loader refuses them.
_AT_LEAST_ONE = ("os.cpu_count", "multiprocessing.cpu_count", "torch.multiprocessing.cpu_count", "os.process_cpu_count")
_PLAIN = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.BinOp)

_EXPLICIT = Held("explicit", f"{_NAME}=False is written out, so somebody may have had a reason", "remove the argument to have it judged")
_COUNTS_ANEW = Held(
    "count-has-effects",
    "the number of workers is computed by code that may do more than compute, and the guard would run it again",
    f"give the number a name first, and pass {_NAME}=name > 0",
)
_SEVERAL_COUNTS = Held(
    "several-counts",
    "the number of workers comes from several dictionaries, of which the last one wins",
    f"write num_workers and {_NAME} in the loader's call",
)

_WHOLE_MACHINE = Held(
    "whole-machine",
    "every process starts as many workers as the whole machine should have, and would keep them all",
    "give each process its share first, as loader-workers does",
)

_NOTE = (
    "The workers and their copies of the dataset stay in memory between epochs, those of a loader for validation too;"
    f" {_NAME}=False ends them with each epoch, as before."
)
_RNG_NOTE = "Random numbers are others than before from the second epoch on, the order of shuffled samples among them."
_CACHE_NOTE = "The code behind the loader fills a cache, which workers that live on keep, and let grow, over all epochs."


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    for loader in facts.loaders.all:
        given = loader.setting(_NAME)
        if loader.hides_arguments or not (given is None or is_constant(given, False)) or not _has_workers(loader):
            continue
        epochs = Epochs(loader)
        if not epochs.repeats:
            continue
        edits = _EXPLICIT if given is not None else _edits(loader, epochs)
        if isinstance(edits, Held):
            yield Finding(loader.call, _MESSAGE, effects=_EFFECTS, held=edits)
            continue
        samples = facts.datasets.behind(loader)
        draws = _draws_otherwise(loader)
        cache = any(mark.trait is Trait.STATE and fills_cache(mark.facts, mark.node) for mark in samples.marks)
        yield Finding(
            loader.call,
            _MESSAGE,
            edits,
            _EFFECTS | ({Effect.RNG} if draws else set()),
            f"the loader is iterated again and again ({epochs.place}), and nothing changes what its workers have a copy of",
            (_NOTE, *((_RNG_NOTE,) if draws else ()), *((_CACHE_NOTE,) if cache else ())),
        )


def _has_workers(loader: Loader) -> bool:
    """Whether the loader may have workers at all."""
    return any(not _is_none(loader.facts, count) for count in loader.settings("num_workers"))


def _is_none(facts: Facts, count: ast.expr) -> bool:
    """Whether a number of workers is surely 0."""
    values = facts.values.of(count)
    return bool(values) and all(isinstance(value.node, ast.Constant) and value.node.value == 0 for value in values or ())


def _draws_otherwise(loader: Loader) -> bool:
    """Whether random numbers change: those of the program, since its generator gives no more seeds, or those of the samples."""
    own = loader.setting("generator")
    orders = loader.shuffles or loader.setting("sampler") is not None or loader.setting("batch_sampler") is not None
    samples = loader.facts.datasets.behind(loader)
    return own is None or is_constant(own, None) or orders or samples.mark(Trait.RANDOM, Trait.NUMPY, Trait.GENERATOR) is not None


def _edits(loader: Loader, epochs: Epochs) -> tuple[Edit, ...] | Held:
    obstacle = obstacle_to_persistence(loader, epochs)
    if obstacle is not None:
        return Held(obstacle.code, obstacle.text, obstacle.help)
    direct = loader.argument("num_workers")
    homes = [table for table in loader.tables or () if table.entry("num_workers") is not None]
    count = direct if direct is not None else homes[0].entry("num_workers")
    if len(homes) > (1 if direct is None else 0):
        return _SEVERAL_COUNTS
    assert count is not None
    if loader.facts.regions.is_distributed() and _counts_devices(loader.facts, count):
        return _WHOLE_MACHINE
    guard = _guard(loader.facts, count)
    if guard is None:
        return _COUNTS_ANEW
    if direct is not None:
        return (SetArgument(loader.call, _NAME, guard),)
    return _disagreement(loader, homes[0]) or (_stored(loader.facts, homes[0], guard),)


def _counts_devices(facts: Facts, count: ast.expr) -> bool:
    """Whether a number of workers is reckoned from the GPUs of the whole machine."""
    calls = (node for node in ast.walk(count) if isinstance(node, ast.Call))
    return any(facts.calls.meaning(call) == "torch.cuda.device_count" for call in calls)


def _disagreement(loader: Loader, table: Table) -> Held | None:
    """Why the other calls that take their arguments from a dictionary forbid to change it."""
    loaders = {other.call: other for other in loader.facts.loaders.all}
    calls = takers(loader.facts, table)
    for call in calls or ():
        other = loaders.get(call)
        if other is loader or (other is not None and _may_share(other)):
            continue
        words = f"the dictionary with num_workers is given to the call in line {call.lineno} too, which may not take {_NAME}"
        return Held("shared-options", words, f"pass {_NAME} in this call")
    if calls is None:
        return Held("shared-options", "the dictionary with num_workers goes out of sight", f"pass {_NAME} in this call")
    return None


def _may_share(loader: Loader) -> bool:
    epochs = Epochs(loader)
    given = [table for table in loader.tables or () if table.entry("num_workers") is not None]
    return len(given) == 1 and epochs.repeats and loader.setting(_NAME) is None and obstacle_to_persistence(loader, epochs) is None


def _stored(facts: Facts, table: Table, guard: str) -> Edit:
    """The entry beside num_workers, written as that is."""
    node = table.node
    if isinstance(node, ast.Call):
        return SetArgument(node, _NAME, guard)
    if isinstance(node, ast.Dict):
        return Replace(node, _with_entry(facts, node, guard))
    (target,) = node.targets
    assert isinstance(target, ast.Subscript)
    quote = facts.source.segment(target.slice)[0]
    return InsertAfter(node, f"{facts.source.segment(target.value)}[{quote}{_NAME}{quote}] = {guard}")


def _with_entry(facts: Facts, node: ast.Dict, guard: str) -> str:
    """A dictionary's own text with one entry more, behind that of num_workers."""
    source = facts.source
    start, end = source.span(node)
    index = next(place for place, key in enumerate(node.keys) if is_constant(key, "num_workers"))
    key = node.keys[index]
    assert key is not None
    quote = source.segment(key)[0]
    entry = f"{quote}{_NAME}{quote}: {guard}"
    behind = node.keys[index + 1] if index + 1 < len(node.keys) else None
    place = source.span(behind if behind is not None else key)[0]
    line = source.text[source.line_start(source.position(place)[0]) : place]
    gap = f"\n{line}" if not line.strip() else " "
    if behind is None:
        place = source.span(node.values[index])[1]
        closing = re.match(r"(?:\s*\))*", source.text[place:end])
        place += closing.end() if closing else 0
        return f"{source.text[start:place]},{gap}{entry}{source.text[place:end]}"
    return f"{source.text[start:place]}{entry},{gap}{source.text[place:end]}"


def _guard(facts: Facts, count: ast.expr) -> str | None:
    """The condition under which there are workers, as short as it can be said; None where asking again may have effects."""
    if not facts.purity.is_pure(count):
        return None
    if _is_positive(facts, count):
        return "True"
    shorter = _needed(facts, count)
    text = facts.source.segment(shorter)
    return f"{text} > 0" if isinstance(shorter, _PLAIN) else f"({text}) > 0"


def _is_positive(facts: Facts, count: ast.expr) -> bool:
    """Whether a number is surely not 0: a literal, the cores of the machine, ``x or 1``, the maximum with such a one."""
    if isinstance(count, ast.Constant):
        return isinstance(count.value, int) and count.value > 0
    if isinstance(count, ast.BoolOp):
        return isinstance(count.op, ast.Or) and _is_positive(facts, count.values[-1])
    meaning = facts.calls.meaning(count) if isinstance(count, ast.Call) else None
    if isinstance(count, ast.Call) and meaning in ("builtins.min", "builtins.max") and len(count.args) > 1 and not count.keywords:
        judged = [_is_positive(facts, item) for item in count.args]
        return all(judged) if meaning == "builtins.min" else any(judged)
    return meaning in _AT_LEAST_ONE


def _needed(facts: Facts, count: ast.expr) -> ast.expr:
    """The part of a number that alone decides whether it is 0: ``n`` for ``min(4 * n, os.cpu_count() or 1)``."""
    if isinstance(count, ast.BinOp) and isinstance(count.op, ast.Mult):
        for one, other in ((count.left, count.right), (count.right, count.left)):
            if _is_positive(facts, one):
                return _needed(facts, other)
    if isinstance(count, ast.Call) and facts.calls.meaning(count) == "builtins.min" and len(count.args) > 1 and not count.keywords:
        open_questions = [item for item in count.args if not _is_positive(facts, item)]
        if len(open_questions) == 1:
            return _needed(facts, open_questions[0])
    return count


TRANSFORM = Transform.from_module(__name__, __doc__, group="data", literals=(b"DataLoader",), find=find, since="1.7")
