"""Whether a loader may get worker processes, keep them, and have its batches pinned; if not, why."""

from __future__ import annotations

import ast

from torchfix.facts import Facts
from torchfix.facts.code.calls import is_constant
from torchfix.facts.data.consumers import Consumers
from torchfix.facts.data.epochs import Epochs
from torchfix.facts.data.loaders import Loader
from torchfix.facts.data.traits import Trait
from torchfix.facts.data.worker_copies import WorkerCopies
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.tensors.devices import Transfer

# What the code behind the loader does that keeps it in the training process, the gravest first; only the last three
# can be well where every new process is a fork.
_IN_WORKERS = {
    Trait.UNSEEN: Obstacle(
        "dataset-unseen",
        "the code behind the loader is not all in sight ({place})",
        "check that it uses no CUDA, open files, generators or caches of its own, then give num_workers",
    ),
    Trait.UNSEEN_DATA: Obstacle(
        "data-unseen",
        "the dataset hands on data that is made out of sight ({place}) and may lie on an accelerator, which a worker process cannot use",
        "check that it lies on the CPU, then give num_workers",
    ),
    Trait.DEVICE: Obstacle(
        "cuda-in-dataset",
        "the code behind the loader may use an accelerator ({place}), which a worker process cannot",
        "leave samples on the CPU and move batches in the loop",
    ),
    Trait.GRAPH: Obstacle(
        "graph-tensors",
        "the code behind the loader calls a network or makes tensors that require gradients ({place}), which cannot leave a worker",
        "call the network on the batch, in the loop, or detach what it gives",
    ),
    Trait.HANDLE: Obstacle(
        "open-handle",
        "the dataset keeps an open file or connection ({place}); forked workers share its position and read each other's samples",
        "open it in __getitem__ where it is not open yet",
    ),
    Trait.GENERATOR: Obstacle(
        "own-generator",
        "the dataset keeps a random generator of its own ({place}); every worker gets an equal copy and repeats the same numbers",
        "draw from torch's or NumPy's global generator, which torch seeds for each worker",
    ),
    Trait.STATE: Obstacle(
        "dataset-state",
        "the code behind the loader remembers something from one sample to the next ({place}); each worker would remember its own part",
        "make samples independent of each other, or fill caches before the loader is made",
    ),
    Trait.PROCESSES: Obstacle(
        "starts-processes",
        "the code behind the loader starts processes or threads ({place}), which a worker may not or which do not survive a fork",
        "start them outside, or leave that work to the workers",
    ),
    Trait.MAIN_ONLY: Obstacle(
        "main-only-variable",
        "the code behind the loader reads a variable that only the main process sets ({place}); a worker that is no fork lacks it",
        "give it to the dataset's constructor",
    ),
    Trait.LOCAL: Obstacle(
        "not-picklable",
        "a worker that is no fork gets the dataset pickled, and this cannot be ({place})",
        "write a function or class at the top of a module in place of a lambda, a local one or an open object",
    ),
}
_BY_PICKLE = (Trait.MAIN_ONLY, Trait.LOCAL)
_ITERABLE = Obstacle(
    "iterable-dataset",
    "the dataset is iterated as a whole, so every worker would give all of its samples",
    "divide the samples by torch.utils.data.get_worker_info()",
)
_NUMPY = Obstacle(
    "numpy-seeds",
    "the samples draw NumPy's random numbers, which workers repeat each other's of before torch 1.9",
    "seed NumPy in a worker_init_fn, or require torch 1.9",
)
_NEEDS_WORKERS = Obstacle(
    "needs-workers", "{name} is an error while there are no workers, as on a machine without CUDA", "give num_workers first"
)
_OWNS_WORKERS = Obstacle(
    "framework-owned", "{name} runs the loop and has a say in the workers", "set the worker count where {name} takes it"
)
_DAEMONIC = Obstacle(
    "daemonic-process", "the loader runs in a pool or daemon, which may not start processes", "run it in a process that is not daemonic"
)
_PER_STEP = Obstacle(
    "iterator-per-step",
    "next(iter(loader)) starts the loader anew each time ({place}), and would start all workers each time",
    "keep one iterator and make a new one when it is exhausted",
)
_MADE_PER_STEP = Obstacle("loader-per-step", "the loader is made in every step, and would start its workers in every step", "make it once")
_CHANGED = Obstacle(
    "dataset-changed",
    "the loop changes the dataset while it runs ({place}), and workers keep the one that they started with",
    "change it between epochs",
)
_NO_GUARD = Obstacle(
    "no-main-guard",
    'the script iterates outside `if __name__ == "__main__":`; where workers are no forks (Windows, macOS, Python 3.14) each runs it again',
    "{guard}, or declare that the project runs on Linux with Python below 3.14",
)

_WRITTEN_INTO = Obstacle(
    "batch-written-into",
    "the program writes into the batch ({place}), which may be the dataset's own tensors; {copy} is a copy, and they would stay unchanged",
    "write into a copy (x = x.clone()), or into the dataset itself where it is meant to change, then add {setting}",
)

# What it does that keeps its batches from being pinned.
_PINNED = {
    Trait.UNSEEN: Obstacle(
        "dataset-unseen",
        "the code behind the loader is not all in sight ({place}), and pinning fails on tensors that are not on the CPU",
        "check that samples and batches are dense CPU tensors, then add pin_memory=True",
    ),
    Trait.UNSEEN_DATA: Obstacle(
        "data-unseen",
        "the dataset hands on data that is made out of sight ({place}), and pinning fails on tensors that are not on the CPU",
        "check that it is dense and on the CPU, then add pin_memory=True",
    ),
    Trait.DEVICE: Obstacle(
        "cuda-in-dataset",
        "the code behind the loader may put tensors on an accelerator ({place}), which cannot be pinned",
        "leave samples on the CPU and move batches in the loop",
    ),
    Trait.SPARSE: Obstacle(
        "sparse-batch",
        "the code behind the loader makes sparse or nested tensors ({place}), which cannot be pinned",
        "make them dense, or make them sparse on the device",
    ),
}
_OWN_OBJECT = Obstacle(
    "custom-batch",
    "the collate function gives an object of a class of its own, or one that it keeps; torch pins tensors in plain containers only",
    "give the class a pin_memory() method, then add pin_memory=True",
)
_FORKS_LATER = Obstacle(
    "forks-later",
    "the same code starts processes, and pinning uses CUDA in this one first, after which a forked process cannot",
    "start the processes before the loader is iterated, or by spawn, then add pin_memory=True",
)
_NO_SET_DEVICE = Obstacle(
    "set-device-missing",
    "the program runs a process per GPU and none selects its device, so every process would pin through the first GPU",
    "call torch.cuda.set_device(local_rank) first, then add pin_memory=True",
)
_MOVES_BATCHES = Obstacle("framework-owned", "{name} takes the batches to the device", "pin through {name}'s own options")

# What keeps a loader's workers from living on from one epoch to the next.
_PERSISTENT = {
    Trait.UNSEEN: Obstacle(
        "dataset-unseen",
        "the code behind the loader is not all in sight ({place}), and may remember something from one sample to the next",
        "check that nothing changes the dataset between epochs, then add persistent_workers=True",
    ),
    Trait.GRAPH: Obstacle(
        "network-in-dataset",
        "the code behind the loader calls a network ({place}), and workers that live on keep the weights that it had at first",
        "call the network on the batch, in the loop",
    ),
}
_REMEMBERS = Obstacle(
    "dataset-state",
    "the code behind the loader remembers something from one sample to the next ({place}), which new workers forget after each epoch",
    "make samples independent of each other, then add persistent_workers=True",
)
_CHANGED_BETWEEN = Obstacle(
    "dataset-changed",
    "what the workers have a copy of is changed while training runs ({place}), and workers that live on never see it",
    "leave the workers as they are, or share what changes (torch.Tensor.share_memory_(), multiprocessing.Value)",
)
_AT_ONCE = Obstacle(
    "iterators-overlap",
    "the loader may be iterated while it is being iterated already ({place}); with workers that live on both take from one iterator",
    "make a second loader for that place",
)
_RUNS_LOOP = Obstacle(
    "framework-owned", "{name} runs the loop and may make its own loader of this one", "set persistent workers where {name} takes them"
)
_RESETS_PINNED = Obstacle(
    "pinned-restart",
    "before torch 1.9 pinning fails when workers that live on begin their second epoch",
    "require torch 1.9, or leave the workers as they are",
)

_SET_DEVICE = ("torch.cuda.set_device", "torch.cuda.device", "torch.accelerator.set_device_index", "torch.accelerator.set_device_idx")
# Frameworks that run the loop over the loader; the others leave that to the user's code.
_OWNERS = ("Accelerate", "Lightning", "Fabric", "Transformers' Trainer", "fastai", "Composer", "Catalyst", "PyTorch/XLA")
# The release that came to seed NumPy in each worker (pytorch#56488).
_SEEDS_NUMPY = (1, 9)
# The release that brought workers that live on, and the first in which their batches could surely be pinned
# (pytorch#48370, open-mmlab/mmaction2#1030).
_PERSISTS, _RESTARTS_PINNED = (1, 7), (1, 9)


def obstacle_to_workers(loader: Loader) -> Obstacle | None:
    """Why a loader must not get worker processes, or cannot be seen to be fit for them."""
    facts, program, consumers = loader.facts, loader.facts.program, Consumers(loader)
    samples = facts.datasets.behind(loader)
    owner = _owner(facts)
    if owner is not None:
        return _filled(_OWNS_WORKERS, name=owner)
    for name in ("multiprocessing_context", "persistent_workers", "prefetch_factor"):
        given = loader.setting(name)
        if given is not None and not (is_constant(given, None) or is_constant(given, False)):
            return _filled(_NEEDS_WORKERS, name=name)
    if samples.have(Trait.ITERABLE) and not samples.have(Trait.ASKS_WORKER):
        return _ITERABLE
    mark = samples.mark(*(trait for trait in _IN_WORKERS if not (trait in _BY_PICKLE and program.forks)))
    if mark is not None:
        return _filled(_IN_WORKERS[mark.trait], place=mark.place)
    if samples.have(Trait.NUMPY) and facts.project.torch is not None and facts.project.torch < _SEEDS_NUMPY:
        return _NUMPY
    for there, node in consumers.dataset_changes():
        return _filled(_CHANGED, place=f"{there.path}:{node.lineno}")
    written = _written_into(loader)
    if written is not None:
        return _filled(_WRITTEN_INTO, place=_place(*written), copy="what a worker sends", setting="num_workers")
    for there, call in consumers.fresh_iterators():
        return _filled(_PER_STEP, place=f"{there.path}:{call.lineno}")
    if facts.loops.around(loader.call) is not None:
        return _MADE_PER_STEP
    if program.is_daemonic(loader.call):
        return _DAEMONIC
    return _filled(_NO_GUARD, guard=_how_to_guard(consumers)) if not program.forks and consumers.start_unguarded() else None


def obstacle_to_persistence(loader: Loader, epochs: Epochs) -> Obstacle | None:
    """Why a loader's workers must not live on from one epoch to the next, or cannot be seen to be fit for it.

    Args:
        loader: the loader.
        epochs: when it is iterated.
    """
    facts, torch = loader.facts, loader.facts.project.torch
    owner = _owner(facts)
    if owner is not None:
        return _filled(_RUNS_LOOP, name=owner)
    overlap = epochs.overlap()
    if overlap is not None:
        return _filled(_AT_ONCE, place=_place(*overlap))
    for there, node in WorkerCopies(loader).changes():
        if not fills_cache(there, node) and not epochs.comes_first(there, node):
            return _filled(_CHANGED_BETWEEN, place=_place(there, node))
    samples = facts.datasets.behind(loader)
    mark = samples.mark(*_PERSISTENT)
    if mark is not None:
        return _filled(_PERSISTENT[mark.trait], place=mark.place)
    for mark in samples.marks:
        if mark.trait is Trait.STATE and not fills_cache(mark.facts, mark.node):
            return _filled(_REMEMBERS, place=mark.place)
    pins = not is_constant(loader.setting("pin_memory") or ast.Constant(None), False)
    return _RESETS_PINNED if pins and torch is not None and _PERSISTS <= torch < _RESTARTS_PINNED else None


def fills_cache(facts: Facts, node: ast.AST) -> bool:
    """Whether code remembers only what it finds missing (``if key not in cache: cache[key] = ...``), so that values stay the same."""
    if not isinstance(node, ast.Subscript):
        return False
    outer = facts.tree.parent(facts.tree.statement(node))
    test = outer.test if isinstance(outer, ast.If) else None
    missing = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.NotIn)
    return missing and isinstance(test, ast.Compare) and ast.dump(test.comparators[0]) == ast.dump(_loaded(node.value))


def _loaded(expression: ast.expr) -> ast.expr:
    """An expression as it is read."""
    return ast.parse(ast.unparse(expression), mode="eval").body


def _place(facts: Facts, node: ast.AST) -> str:
    line = getattr(node.iter if isinstance(node, ast.comprehension) else node, "lineno", 1)
    return f"{facts.path}:{line}"


def obstacle_to_pinning(loader: Loader, moves: list[tuple[Facts, Transfer]]) -> Obstacle | None:
    """Why a loader's batches cannot be pinned, or cannot be seen to be fit for it.

    Args:
        loader: the loader.
        moves: the copies of its batches to devices.
    """
    facts = loader.facts
    owner = _owner(facts)
    if owner is not None:
        return _filled(_MOVES_BATCHES, name=owner)
    mark = facts.datasets.behind(loader).mark(*_PINNED)
    if mark is not None:
        return _filled(_PINNED[mark.trait], place=mark.place)
    if facts.datasets.batch_is_own_object(loader):
        return _OWN_OBJECT
    written = _written_into(loader)
    if written is not None:
        return _filled(_WRITTEN_INTO, place=_place(*written), copy="a pinned batch", setting="pin_memory=True")
    places = [(facts, loader.call), *((there, move.call) for there, move in moves)]
    if any(there.program.starts_processes(node) for there, node in places):
        return _FORKS_LATER
    lives_on = not is_constant(loader.setting("persistent_workers") or ast.Constant(False), False)
    if lives_on and facts.project.torch is not None and facts.project.torch < _RESTARTS_PINNED:
        return _RESETS_PINNED
    selected = any(next(there.calls.to(*_SET_DEVICE), None) is not None for there in facts.program.everywhere)
    return _NO_SET_DEVICE if facts.program.runs_process_per_device and not selected else None


def _written_into(loader: Loader) -> tuple[Facts, ast.AST] | None:
    """A place that writes into batches that may be the dataset's own tensors, since nothing stacks the samples.

    Without a batch size the loader hands on what the dataset gives; a collate function of the project may do so too.
    """
    facts, size, collate = loader.facts, loader.setting("batch_size"), loader.setting("collate_fn")
    sizes = [value.node for value in facts.values.of(size) or ()] if size is not None else []
    batched = not any(isinstance(node, ast.Constant) and node.value is None for node in sizes)
    stacked = collate is None or is_constant(collate, None) or (facts.names.qualified(collate) or "").endswith(".default_collate")
    if (batched and stacked) or _sends_copies(loader):
        return None
    for there in facts.program.everywhere:
        written = there.batches.written(loader)
        if written is not None:
            return there, written
    return None


def _sends_copies(loader: Loader) -> bool:
    """Whether worker processes surely make the batches, in memory that they do not share with the dataset."""
    count, program = loader.setting("num_workers"), loader.facts.program
    surely = isinstance(count, ast.Constant) and isinstance(count.value, int) and count.value > 0
    return surely and not any("share_memory_" in there.tree.attributes for there in program.everywhere)


def _how_to_guard(consumers: Consumers) -> str:
    """What to write where, so that nothing iterates outside the main guard."""
    start = consumers.unguarded_start()
    if start is None:
        return "put what the script does under the guard"
    facts, first = start
    last = facts.tree.module.body[-1]
    lines = f"line {first.lineno}" if first is last and first.lineno == last.end_lineno else f"lines {first.lineno} to {last.end_lineno}"
    return f'write `if __name__ == "__main__":` above line {first.lineno} of {facts.path} and indent {lines} under it'


def _owner(facts: Facts) -> str | None:
    return next((name for name in facts.program.frameworks if name in _OWNERS), None)


def _filled(obstacle: Obstacle, **words: str) -> Obstacle:
    return Obstacle(obstacle.code, obstacle.text.format(**words), obstacle.help.format(**words))
