"""Train with one process per GPU (DistributedDataParallel) instead of one process for all (DataParallel).

Why:
    ``nn.DataParallel`` copies the network to every GPU at every step, scatters the batch from the first GPU and gathers the
    outputs there, all under one interpreter lock. With a process per GPU each replica stays where it is; only gradients
    travel, while the backward pass still runs.

Before:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset


    def main():
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dataset = TensorDataset(torch.rand(64, 4), torch.rand(64, 1))
        loader = DataLoader(dataset, batch_size=16, shuffle=True)
        model = nn.DataParallel(nn.Linear(4, 1)).to(device)
        criterion = nn.MSELoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(2):
            total = 0.0
            for x, y in loader:
                loss = criterion(model(x.to(device)), y.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            print(epoch, total / len(loader))
        torch.save(model.module.state_dict(), "model.pt")


    if __name__ == "__main__":
        main()

After:
    pass

Safety:
    Plain ``python train.py`` still trains, in one process on one device, and on a CPU bit for bit as before. Effects:
    ``process`` (several GPUs now want ``torchrun``), ``order`` (each process draws its share of each epoch), ``numerics``
    (rounding of averaged gradients, batch statistics per process) and ``checkpoint`` (names without ``module.``; old files
    still load). Held wherever the file does not show all that the processes would have to do alike or leave to one of
    them: no main guard, other loops, loaders or samplers than can be followed, losses that are no mean, weights that a
    pass may leave out, decisions taken on one process's numbers, effects that cannot be parted from the work.

Reference:
    https://docs.pytorch.org/docs/stable/notes/ddp.html and https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from string import Template

from torchfix.edits import AddImport, Edit, InsertAfter, InsertBefore, Remove, RemoveArgument, RemoveImport, Replace, SetArgument, Wrap
from torchfix.facts import Facts
from torchfix.facts.calls import argument, is_constant, keyword
from torchfix.facts.loaders import Loader
from torchfix.facts.replicas import Wrap as Replication
from torchfix.facts.totals import Joining
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

# The functions that the script is given, each as far as it needs them. $names are the helpers' own, made free in the file.
_HELPERS = {
    "setup_distributed": '''
def $setup_distributed():
    """Join the processes that torchrun has started; plain python runs one process and no group."""
    launched = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()
    if not launched or not $torch.distributed.is_available():
        return
    if $torch.cuda.is_available():
        $torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # from here on "cuda" means this process's GPU
    $torch.distributed.init_process_group("nccl" if $torch.cuda.is_available() else "gloo")
''',
    "cleanup_distributed": '''
def $cleanup_distributed():
    """Leave the group that setup_distributed() joined, if any."""
    if $torch.distributed.is_available() and $torch.distributed.is_initialized():
        $torch.distributed.destroy_process_group()
''',
    "process_count": '''
def $process_count():
    """How many processes train together: one unless torchrun has started more."""
    if $torch.distributed.is_available() and $torch.distributed.is_initialized():
        return $torch.distributed.get_world_size()
    return 1
''',
    "is_main_process": '''
def $is_main_process():
    """Whether this is the process that prints, logs and saves for all."""
    return $process_count() == 1 or $torch.distributed.get_rank() == 0
''',
    "main_process_first": '''
@contextlib.contextmanager
def $main_process_first():
    """Let the main process run a block before the others, so that only one downloads or prepares files."""
    if not $is_main_process():
        $torch.distributed.barrier()
    yield
    if $is_main_process() and $process_count() > 1:
        $torch.distributed.barrier()
''',
    "distribute": '''
def $distribute(model):
    """Keep a network equal in all processes; with one process it stays as it is."""
    if $process_count() == 1:
        return model
    device = next(model.parameters()).device
    return $DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
''',
    "unwrap": '''
def $unwrap(model):
    """The network itself, whether or not distribute() has wrapped it."""
    return model.module if isinstance(model, $DistributedDataParallel) else model
''',
    "load_weights": '''
def $load_weights(model, state_dict, **options):
    """Load weights into the network itself, also those that nn.DataParallel has saved with "module." before their names."""
    model = $unwrap(model)
    if not model.state_dict().keys() & state_dict.keys():
        state_dict = {name.replace("module.", "", 1): value for name, value in state_dict.items()}
    return model.load_state_dict(state_dict, **options)
''',
    "batch_share": '''
def $batch_share(batch_size):
    """The part of a batch that one process takes, so that a step of all of them still sees batch_size samples."""
    if batch_size % $process_count():
        raise SystemExit(f"a batch of {batch_size} cannot be divided among {$process_count()} processes")
    return batch_size // $process_count()
''',
    "sum_over_processes": '''
def $sum_over_processes(value):
    """The sum of a number or tensor over all processes."""
    if $process_count() == 1:
        return value
    device = "cuda" if $torch.cuda.is_available() else "cpu"
    total = $torch.as_tensor(value).detach().to(device, $torch.float64, copy=True)
    $torch.distributed.all_reduce(total)
    return total.to(value) if $torch.is_tensor(value) else type(value)(total.item())
''',
    "mean_over_processes": '''
def $mean_over_processes(value):
    """The mean of a number or tensor over all processes."""
    return value if $process_count() == 1 else $sum_over_processes(value) / $process_count()
''',
    "from_main_process": '''
def $from_main_process(value):
    """What the main process has found, so that all processes decide alike."""
    if $process_count() == 1:
        return value
    found = [value.item() if $torch.is_tensor(value) else value]
    $torch.distributed.broadcast_object_list(found)
    return found[0]
''',
}
_IMPORTS = {"setup_distributed": "os", "main_process_first": "contextlib"}
_MESSAGE = "DataParallel drives all GPUs from one process, and copies the network to each of them at every step"
_BECAUSE = "the network, its loaders, its training loop and all that is saved and printed can be followed in this file"
_EFFECTS = frozenset({Effect.PROCESS, Effect.ORDER, Effect.NUMERICS, Effect.CHECKPOINT})


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    obstacles = {wrap: facts.distribution.obstacles(wrap) for wrap in facts.replicas.wraps}
    anywhere = next((found for found in obstacles.values() if found), [])
    for wrap, found in obstacles.items():
        if anywhere:
            first, *others = found or anywhere
            held = Held(first.code, first.text, first.help)
            yield Finding(wrap.call, _MESSAGE, held=held, notes=tuple(f"Also in the way: {other.text}." for other in others))
        elif wrap is facts.replicas.wraps[0]:  # one finding changes the whole file
            yield Finding(wrap.call, _MESSAGE, tuple(_Conversion(facts).edits()), _EFFECTS, _BECAUSE, tuple(_notes(facts)))


def _notes(facts: Facts) -> Iterator[str]:
    path = facts.path
    yield f"To use all of N GPUs start it with: torchrun --standalone --nproc_per_node=N {path}"
    yield f"Plain python {path} now trains on one GPU, with the whole batch on it, where DataParallel used all of them."
    yield (
        "The batch size stays that of all processes together: each takes its part, and the script stops where it cannot be "
        "divided. So the learning rate stays as it is."
    )
    yield "Every process evaluates on all of the evaluation data; numbers printed during an epoch are the first process's own."
    yield 'Checkpoints are written without "module." in front of the names; old ones still load, code elsewhere may expect the prefix.'
    yield "With a fixed seed all processes draw equal noise for augmentation and dropout; the order of samples no longer follows the seed."
    listed = [wrap for wrap in facts.replicas.wraps if wrap.argument("device_ids") is not None]
    if listed:
        yield "device_ids no longer chooses the GPUs: set CUDA_VISIBLE_DEVICES instead."


# What changes ---------------------------------------------------------------------------------------------------------


class _Conversion:
    """Collects the edits of one file, and the helpers that they need."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._used: set[str] = set()
        self._names = {name: facts.names.fresh(name) for name in _HELPERS}

    def edits(self) -> Iterator[Edit]:
        """Everything that changes, taken whole."""
        for part in (self._script, self._networks, self._states, self._devices, self._loaders, self._epochs, self._totals, self._decisions):
            yield from part()
        yield from self._reports()
        yield from self._files()
        yield from self._helpers()

    def _call(self, helper: str) -> str:
        self._used.add(helper)
        return self._names[helper]

    @property
    def _torch(self) -> str:
        assert self._facts.script.guard is not None
        return self._facts.names.spell("torch", self._facts.script.guard) or "torch"

    def _beside(self, spelled: ast.expr, name: str) -> str:
        """A name spelled as its neighbour is: ``nn.parallel.X`` beside ``nn.DataParallel``, ``X`` beside ``DataParallel``."""
        return f"{self._facts.source.segment(spelled.value)}.{name}" if isinstance(spelled, ast.Attribute) else name.rpartition(".")[2]

    def _quoted(self, word: str) -> str:
        text = self._facts.source.text
        return f"'{word}'" if text.count("'") > text.count('"') else f'"{word}"'

    def _script(self) -> Iterator[Edit]:
        guard = self._facts.script.guard
        assert guard is not None
        yield InsertBefore(guard.body[0], f"{self._call('setup_distributed')}()")
        yield Wrap(guard.body[0], guard.body[-1], "try:", f"finally:\n    {self._call('cleanup_distributed')}()")

    # The network ----------------------------------------------------------------------------------------------

    def _networks(self) -> Iterator[Edit]:
        for wrap in self._facts.replicas.wraps:
            condition, assignment = wrap.condition, wrap.assignment
            if condition is None:
                yield self._wrapped(wrap)
            elif assignment is not None and self._only_wraps(wrap, condition):
                yield Replace(condition.test, f"{self._call('process_count')}() > 1")
                yield self._wrapped(wrap)
            elif assignment is not None:
                target = self._facts.source.segment(assignment.targets[0])
                yield self._chained(wrap, "$module") if wrap.placing else Remove(assignment)
                yield InsertAfter(condition, f"{target} = {self._call('distribute')}({target})")

    def _only_wraps(self, wrap: Replication, condition: ast.If) -> bool:
        """Whether a condition decides about wrapping and nothing else."""
        others = [item for item in condition.body if item is not wrap.assignment and not self._facts.effects.only_reports(item)]
        return not others and not condition.orelse and not wrap.placing and wrap.assignment in condition.body

    def _wrapped(self, wrap: Replication) -> Replace:
        placed = self._behind(wrap.later_placing) if wrap.later_placing is not None else ""
        return self._chained(wrap, f"$module{placed}", self._call("distribute"))

    def _behind(self, call: ast.Call) -> str:
        """The text of a method call without what it is called on: ``.to(device)``."""
        assert isinstance(call.func, ast.Attribute)
        return self._facts.source.segment(call)[len(self._facts.source.segment(call.func.value)) :]

    def _chained(self, wrap: Replication, module: str, around: str = "") -> Replace:
        """The wrapped network with what was chained behind the wrapper now chained behind the network itself."""
        assert wrap.module is not None
        parts: dict[str, ast.expr] = {"module": wrap.module}
        for number, call in enumerate(wrap.placing):
            given = [(f"part{number}_{index}", "", item) for index, item in enumerate(call.args)]
            given += [(f"part{number}_{item.arg}", f"{item.arg}=", item.value) for item in call.keywords]
            parts |= {name: value for name, _, value in given}
            assert isinstance(call.func, ast.Attribute)
            module += f".{call.func.attr}({', '.join(f'{keyword}${name}' for name, keyword, _ in given)})"
        return Replace(wrap.whole, f"{around}({module})" if around else module, parts)

    def _states(self) -> Iterator[Edit]:
        facts = self._facts
        for use in facts.replicas.uses("module"):
            yield Replace(use, f"{self._call('unwrap')}($model)", {"model": use.value})
        for use in facts.replicas.uses("state_dict"):
            if facts.replicas.held_by(use.value):
                yield Replace(use.value, f"{self._call('unwrap')}($model)", {"model": use.value})
        for use in facts.replicas.uses("load_state_dict"):
            call = facts.tree.parent(use)
            if facts.replicas.held_by(use.value) and isinstance(call, ast.Call) and call.func is use:
                parts = {f"part{index}": item for index, item in enumerate(call.args)}
                named = {item.arg: item.value for item in call.keywords if item.arg}
                listed = ["$model", *(f"${name}" for name in parts), *(f"{name}=${name}" for name in named)]
                yield Replace(call, f"{self._call('load_weights')}({', '.join(listed)})", {"model": use.value, **parts, **named})
        for node in facts.replicas.mentions:
            yield Replace(node, self._beside(node, "parallel.DistributedDataParallel"))

    # Devices and data -----------------------------------------------------------------------------------------

    def _devices(self) -> Iterator[Edit]:
        for number in self._facts.placement.numbers:
            if number.call is None:
                yield Replace(number.node, self._quoted("cuda"))
            else:
                yield RemoveArgument(number.call, number.argument)
        for call in self._facts.placement.selections:
            statement = self._facts.tree.statement(call)
            if self._facts.script.is_started_by_guard(call) and isinstance(statement, ast.Expr):
                yield Wrap(statement, statement, f"if {self._call('process_count')}() == 1:")
        for _, part in self._facts.shares.unmoved():
            sibling = self._facts.distribution.mover(part)
            assert sibling is not None
            yield Replace(part, f"$part{self._behind(sibling)}", {"part": part})

    def _loaders(self) -> Iterator[Edit]:
        facts = self._facts
        for loader in facts.shares.loaders:
            dataset, size, shuffle = (loader.argument(name) for name in ("dataset", "batch_size", "shuffle"))
            assert dataset is not None and size is not None
            statement = facts.tree.statement(loader.call)
            sampler = facts.names.fresh("sampler", "train_sampler", "distributed_sampler")
            given = facts.source.segment(dataset)
            if facts.shares.inline(loader) is not None:
                name = facts.names.fresh("train_set", "train_dataset", "training_set")
                yield from self._named(dataset, statement, name)
                given = name
            shuffled = facts.source.segment(shuffle) if shuffle is not None and _is_shuffled(loader) else "False"
            made = f"{self._beside(loader.call.func, 'DistributedSampler')}({given}, shuffle={shuffled})"
            yield InsertBefore(statement, f"{sampler} = {made} if {self._call('process_count')}() > 1 else None")
            yield Replace(size, f"{self._call('batch_share')}($size)", {"size": size})
            if _is_shuffled(loader):
                assert shuffle is not None
                condition = "" if is_constant(shuffle, True) else "$shuffle and "
                yield Replace(shuffle, f"{condition}{sampler} is None", {"shuffle": shuffle} if condition else {})
            yield SetArgument(loader.call, "sampler", sampler)
        for loader in facts.loaders.all:
            workers = loader.argument("num_workers")
            if workers is not None and not is_constant(workers, 0) and facts.script.is_started_by_guard(loader.call):
                yield AddImport("math")
                yield Replace(workers, f"math.ceil($workers / {self._call('process_count')}())", {"workers": workers})

    def _named(self, dataset: ast.expr, statement: ast.stmt, name: str) -> Iterator[Edit]:
        """A dataset that is made inside the loader's call gets a statement of its own, since its sampler needs it too."""
        margin = self._facts.source.margin(statement)
        made = f"{name} = {self._facts.source.segment(dataset)}".replace(f"\n{margin}", "\n")
        if self._facts.reports.readies(dataset):
            lines = made.replace("\n", "\n    ")
            made = f"with {self._call('main_process_first')}():\n    {lines}"
        yield InsertBefore(statement, made)
        yield Replace(dataset, name)

    def _epochs(self) -> Iterator[Edit]:
        for loop in self._facts.shares.loops:
            for loader in loop.loaders:
                named = self._facts.shares.named(loop, loader)
                if named is None or not _is_shuffled(loader):
                    continue
                written = self._facts.source.segment(named)
                epoch = self._facts.distribution.epoch(loop) or f"{written}.sampler.epoch + 1"
                code = f"if {self._call('process_count')}() > 1:\n    {written}.sampler.set_epoch({epoch})"
                yield InsertBefore(loop.node, code)

    def _totals(self) -> Iterator[Edit]:
        for loop, total in self._facts.shares.totals:
            helper = self._call("mean_over_processes" if total.joining is Joining.MEAN else "sum_over_processes")
            yield InsertAfter(loop.node, f"{total.name.id} = {helper}({total.name.id})")

    # What one process does for all ------------------------------------------------------------------------------

    def _decisions(self) -> Iterator[Edit]:
        distribution = self._facts.distribution
        tests = (decision.test for decision in distribution.decisions)
        for found in (*(test for test in tests if test is not None), *distribution.measures):
            yield Replace(found, f"{self._call('from_main_process')}($found)", {"found": found})

    def _reports(self) -> Iterator[Edit]:
        for first, last in self._facts.reports.runs:
            if first is last and isinstance(first, ast.If) and not first.orelse:
                yield Replace(first.test, f"{self._call('is_main_process')}() and $test", {"test": first.test})
            else:
                yield Wrap(first, last, f"if {self._call('is_main_process')}():")
        for call in self._facts.reports.opened:
            yield Replace(call, f"$log if {self._call('is_main_process')}() else None", {"log": call})
        for call in self._facts.reports.bars:
            disabled = keyword(call, "disable")
            quiet = f"not {self._call('is_main_process')}()"
            if disabled is None:
                yield SetArgument(call, "disable", quiet)
            else:
                yield Replace(disabled.value, f"$disabled or {quiet}", {"disabled": disabled.value})
        for first, last in self._facts.reports.preparations:
            yield Wrap(first, last, f"with {self._call('main_process_first')}():")

    def _files(self) -> Iterator[Edit]:
        for call in self._facts.distribution.loads:
            if argument(call, "map_location", 1) is None:
                yield SetArgument(call, "map_location", self._quoted("cpu"))
        for call in self._facts.distribution.late_loads:
            wait = f"if {self._call('process_count')}() > 1:\n    {self._torch}.distributed.barrier()  # the main process has saved by now"
            yield InsertBefore(self._facts.tree.statement(call), wait)

    # The helpers ----------------------------------------------------------------------------------------------

    def _helpers(self) -> Iterator[Edit]:
        facts, wrap = self._facts, self._facts.replicas.wraps[0]
        spelled = {
            **self._names,
            "torch": self._torch,
            "DistributedDataParallel": self._beside(wrap.call.func, "parallel.DistributedDataParallel"),
        }
        waiting = list(self._used)
        while waiting:
            text = _HELPERS[waiting.pop()]
            inside = {name for name in _HELPERS if f"${name}(" in text} - self._used
            self._used |= inside
            waiting += inside
        code = "\n\n".join(Template(text).substitute(spelled).strip("\n") + "\n" for name, text in _HELPERS.items() if name in self._used)
        body = facts.tree.module.body
        first = next((item for item in body if isinstance(item, (ast.FunctionDef, ast.ClassDef))), facts.script.guard)
        assert first is not None
        place = body.index(first)
        yield InsertAfter(body[place - 1], f"\n\n{code}") if place else InsertBefore(first, code)
        yield from (AddImport(module) for name, module in _IMPORTS.items() if name in self._used)
        if facts.names.spell("torch", first) is None:
            yield AddImport("torch")
        yield from self._imports(wrap)

    def _imports(self, wrap: Replication) -> Iterator[Edit]:
        if isinstance(wrap.call.func, ast.Name):
            yield AddImport("torch.nn.parallel", "DistributedDataParallel")
            for node in self._facts.tree.imports:
                if isinstance(node, ast.ImportFrom) and any(item.name == "DataParallel" for item in node.names):
                    yield RemoveImport(node.module or "", "DataParallel")
        if any(isinstance(loader.call.func, ast.Name) for loader in self._facts.shares.loaders):
            yield AddImport("torch.utils.data", "DistributedSampler")


def _is_shuffled(loader: Loader) -> bool:
    shuffle = loader.argument("shuffle")
    return not (shuffle is None or is_constant(shuffle, False) or is_constant(shuffle, None))


TRANSFORM = Transform.from_module(
    __name__,
    __doc__,
    group="distributed",
    literals=(b"DataParallel",),
    find=find,
    since="1.10",
)
