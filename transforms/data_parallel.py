'''Train with one process per GPU (DistributedDataParallel) instead of one process for all (DataParallel).

Why:
    ``nn.DataParallel`` copies the network to every GPU at every step, scatters the batch from the first GPU and gathers the
    outputs there, all under one interpreter lock. With a process per GPU each replica stays where it is; only gradients
    travel, while the backward pass still runs.

Before:
    import os

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset


    class Points(Dataset):
        def __init__(self, download):
            self.points = torch.rand(64, 4)

        def __len__(self):
            return len(self.points)

        def __getitem__(self, index):
            return self.points[index]


    def main():
        torch.manual_seed(0)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dataset = Points(download=True)
        loader = DataLoader(dataset, batch_size=16, shuffle=True)
        model = nn.DataParallel(nn.Linear(4, 4)).to(device)
        if os.path.exists("model.pt"):
            model.load_state_dict(torch.load("model.pt"))
        criterion = nn.MSELoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(10):
            total = 0.0
            for points in loader:
                points = points.to(device)
                loss = criterion(model(points), points)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            print(epoch, total / len(loader))
            torch.save(model.module.state_dict(), "model.pt")
            if total < 0.01:
                break


    if __name__ == "__main__":
        main()

After:
    import contextlib
    import os

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset, DistributedSampler


    def setup_distributed():
        """Join the processes of torchrun; plain python runs one process and no group."""
        launched = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ)
        if not launched or not torch.distributed.is_available():
            return
        backend = "gloo"
        if torch.cuda.is_available():
            backend = "nccl"
            # from here on "cuda" means this process's own GPU
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group(backend)


    def cleanup_distributed():
        """Leave the group that setup_distributed() joined, if any."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


    def process_count():
        """How many processes train together: one unless torchrun started more."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_world_size()
        return 1


    def is_main_process():
        """Whether this is the process that prints, logs and saves for all."""
        return process_count() == 1 or torch.distributed.get_rank() == 0


    @contextlib.contextmanager
    def main_process_first():
        """Let one process run a block before the others, for downloads and the like."""
        if not is_main_process():
            torch.distributed.barrier()
        yield
        if is_main_process() and process_count() > 1:
            torch.distributed.barrier()


    def distribute(model):
        """Keep a network equal in all processes; with one process it stays as it is."""
        if process_count() == 1:
            return model
        device = next(model.parameters()).device
        gpus = [device] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=gpus)


    def unwrap(model):
        """The network itself, whether or not distribute() has wrapped it."""
        wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
        return model.module if wrapped else model


    def load_weights(model, state_dict, **options):
        """Load weights, also those that DataParallel saved with "module." before them."""
        model = unwrap(model)
        if not model.state_dict().keys() & state_dict.keys():
            saved = state_dict.items()
            state_dict = {name.replace("module.", "", 1): value for name, value in saved}
        return model.load_state_dict(state_dict, **options)


    def batch_share(batch_size):
        """A process's part of a batch, so that all of them together see batch_size."""
        share, rest = divmod(batch_size, process_count())
        if rest:
            raise SystemExit(f"cannot divide batches of {batch_size} by {process_count()}")
        return share


    def sum_over_processes(value):
        """The sum of a number or tensor over all processes."""
        if process_count() == 1:
            return value
        device = "cuda" if torch.cuda.is_available() else "cpu"
        total = torch.as_tensor(value).detach().to(device, torch.float64, copy=True)
        torch.distributed.all_reduce(total)
        return total.to(value) if torch.is_tensor(value) else type(value)(total.item())


    def mean_over_processes(value):
        """The mean of a number or tensor over all processes."""
        if process_count() == 1:
            return value
        return sum_over_processes(value) / process_count()


    def from_main_process(value):
        """What the main process has found, so that all processes decide alike."""
        if process_count() == 1:
            return value
        found = [value.item() if torch.is_tensor(value) else value]
        torch.distributed.broadcast_object_list(found)
        return found[0]


    class Points(Dataset):
        def __init__(self, download):
            self.points = torch.rand(64, 4)

        def __len__(self):
            return len(self.points)

        def __getitem__(self, index):
            return self.points[index]


    def main():
        torch.manual_seed(0)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with main_process_first():
            dataset = Points(download=True)
        sampler = DistributedSampler(dataset, shuffle=True) if process_count() > 1 else None
        loader = DataLoader(dataset, batch_size=batch_share(16), shuffle=sampler is None, sampler=sampler)
        model = distribute(nn.Linear(4, 4).to(device))
        if os.path.exists("model.pt"):
            load_weights(model, torch.load("model.pt", map_location="cpu"))
        criterion = nn.MSELoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(10):
            total = 0.0
            if process_count() > 1:
                loader.sampler.set_epoch(epoch)
            for points in loader:
                points = points.to(device)
                loss = criterion(model(points), points)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            total = mean_over_processes(total)
            if is_main_process():
                print(epoch, total / len(loader))
                torch.save(unwrap(model).state_dict(), "model.pt")
            if from_main_process(total < 0.01):
                break


    if __name__ == "__main__":
        setup_distributed()
        try:
            main()
        finally:
            cleanup_distributed()

Safety:
    Plain ``python train.py`` still trains, in one process on one device, and on a CPU bit for bit as before. Effects:
    ``process`` (several GPUs now want ``torchrun``), ``order`` (each process draws its share of each epoch), ``numerics``
    (rounding of averaged gradients, batch statistics per process) and ``checkpoint`` (names without ``module.``; old files
    still load). Held wherever the file does not show all that the processes would have to do alike or leave to one of
    them: no main guard, other loops, loaders or samplers than can be followed, losses that are no mean, weights that a
    pass may leave out, decisions taken on one process's numbers, effects that cannot be parted from the work.

Reference:
    https://docs.pytorch.org/docs/stable/notes/ddp.html and https://docs.pytorch.org/docs/stable/elastic/run.html
'''

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import AddImport, Edit, InsertAfter, InsertBefore, Remove, RemoveArgument, RemoveImport, Replace, SetArgument, Wrap
from torchfix.facts import Facts
from torchfix.facts.code.calls import argument, is_constant, keyword
from torchfix.facts.code.helpers import Helpers
from torchfix.facts.metrics.totals import Joining
from torchfix.facts.processes.distribution import DISTRIBUTED, SAMPLER
from torchfix.facts.processes.replicas import Wrap as Replication
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_MESSAGE = "DataParallel drives all GPUs from one process, and copies the network to each of them at every step"
_BECAUSE = "the network, its loaders, its training loop and all that is saved and printed can be followed in this file"
_EFFECTS = frozenset({Effect.PROCESS, Effect.ORDER, Effect.NUMERICS, Effect.CHECKPOINT})


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    obstacles = {wrap: facts.distribution.obstacles(wrap) for wrap in facts.replicas.wraps}
    anywhere = next((found for found in obstacles.values() if found), []) or Helpers.obstacles(facts, TRANSFORM.after)
    for wrap, found in obstacles.items():
        if anywhere:
            first, *others = found or anywhere
            held = Held(first.code, first.text, first.help)
            also = tuple(f"Also in the way: {other.text}." for other in others)
            yield Finding(wrap.call, _MESSAGE, effects=_EFFECTS, held=held, notes=also)
        elif wrap is facts.replicas.wraps[0]:  # one finding changes the whole file
            yield Finding(wrap.call, _MESSAGE, tuple(_Conversion(facts).edits()), _EFFECTS, _BECAUSE, tuple(_notes(facts)))


def _notes(facts: Facts) -> Iterator[str]:
    yield f"To use all of N GPUs start it with: torchrun --standalone --nproc_per_node=N {facts.path}"
    yield f"Plain python {facts.path} now trains on one GPU, with the whole batch on it, where DataParallel used all of them."
    yield "The batch size stays that of all processes together, each takes its part of it; so the learning rate stays as it is."
    yield "Every process evaluates on all of the evaluation data; numbers printed during an epoch are the first process's own."
    yield 'Checkpoints are written without "module." in front of the names; old ones still load, code elsewhere may expect the prefix.'
    yield "With a fixed seed all processes draw equal noise for augmentation and dropout; the order of samples no longer follows the seed."
    if any(wrap.argument("device_ids") is not None for wrap in facts.replicas.wraps):
        yield "device_ids no longer chooses the GPUs: set CUDA_VISIBLE_DEVICES instead."


class _Conversion:
    """Collects the edits of one file, and the helpers that they need."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._torch = facts.names.spell("torch", facts.tree.module.body[-1]) or "torch"
        wrapper = facts.names.beside(facts.replicas.wraps[0].call.func, DISTRIBUTED)
        spelled = {"torch": self._torch, "nn.parallel.DistributedDataParallel": wrapper}
        self._helpers = Helpers(facts, TRANSFORM.after, spelled)  # what a script is given is written once, in the text above
        self._call = self._helpers.name

    def edits(self) -> Iterator[Edit]:
        """Everything that changes, taken whole."""
        training = (self._script, self._networks, self._states, self._devices, self._loaders, self._epochs, self._totals)
        for part in (*training, self._decisions, self._reports, self._files, self._additions):
            yield from part()

    def _script(self) -> Iterator[Edit]:
        body = self._facts.script.guarded  # a whole script is not worth indenting: a process that fails takes its group with it
        first, last, cleanup = body[0], body[-1], f"{self._call('cleanup_distributed')}()"
        yield InsertBefore(first, f"{self._call('setup_distributed')}()")
        yield Wrap(first, last, "try:", f"finally:\n    {cleanup}") if last.lineno - first.lineno < 8 else InsertAfter(last, cleanup)

    def _networks(self) -> Iterator[Edit]:
        for wrap in self._facts.replicas.wraps:
            condition, assignment = wrap.condition or wrap.moving_branch, wrap.assignment
            if condition is None or assignment is None:
                yield self._chained(wrap, self._call("distribute"))
            elif wrap.is_all_of(condition):
                yield Replace(condition.test, f"{self._call('process_count')}() > 1")
                yield self._chained(wrap, self._call("distribute"))
            else:
                target = self._facts.source.segment(assignment.targets[0])
                yield self._chained(wrap, "") if wrap.placing or wrap.renames else Remove(assignment)
                yield InsertAfter(condition, f"{target} = {self._call('distribute')}({target}{wrap.later_move})")

    def _chained(self, wrap: Replication, around: str) -> Replace:
        """The network with what moved the wrapper behind itself, and a call around it all."""
        assert wrap.module is not None
        module = f"$module{wrap.later_move}"
        parts: dict[str, ast.expr] = {"module": wrap.module}
        dropped = {number.node for number in self._facts.placement.numbers if number.call is not None}
        for place, call in enumerate(wrap.placing):
            given = [(f"part{place}_{index}", "", item) for index, item in enumerate(call.args) if item not in dropped]
            given += [(f"part{place}_{item.arg}", f"{item.arg}=", item.value) for item in call.keywords if item.value not in dropped]
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
            yield Replace(node, facts.names.beside(node, DISTRIBUTED))

    def _devices(self) -> Iterator[Edit]:
        chained = {call for wrap in self._facts.replicas.wraps for call in wrap.placing}
        for number in self._facts.placement.numbers:
            if number.call is None:
                yield Replace(number.node, self._facts.source.quoted("cuda"))
            elif number.call not in chained:
                yield RemoveArgument(number.call, number.argument)
        for call in self._facts.placement.selections:
            statement = self._facts.tree.statement(call)
            if self._facts.script.is_started_by_guard(call) and isinstance(statement, ast.Expr):
                yield Wrap(statement, statement, f"if {self._call('process_count')}() == 1:")
        for part, sibling in self._facts.distribution.moves:
            yield Replace(part, f"$part{self._facts.calls.tail(sibling)}", {"part": part})

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
            shuffled = facts.source.segment(shuffle) if shuffle is not None and loader.shuffles else "False"
            made = f"{facts.names.beside(loader.call.func, SAMPLER)}({given}, shuffle={shuffled})"
            yield InsertBefore(statement, f"{sampler} = {made} if {self._call('process_count')}() > 1 else None")
            yield Replace(size, f"{self._call('batch_share')}($size)", {"size": size})
            if shuffle is not None and loader.shuffles:
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
                if named is None or not loader.shuffles:
                    continue
                written = self._facts.source.segment(named)
                epoch = self._facts.distribution.epoch(loop) or f"{written}.sampler.epoch + 1"
                code = f"if {self._call('process_count')}() > 1:\n    {written}.sampler.set_epoch({epoch})"
                yield InsertBefore(loop.node, code)

    def _totals(self) -> Iterator[Edit]:
        for total in self._facts.shares.totals:
            name, helper = ast.unparse(total.target), "mean_over_processes" if total.joining is Joining.MEAN else "sum_over_processes"
            yield InsertAfter(total.behind, f"{name} = {self._call(helper)}({name})")

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
            given = keyword(call, "disable")
            also = f"{self._facts.source.segment(given.value)} or " if given is not None else ""
            yield SetArgument(call, "disable", f"{also}not {self._call('is_main_process')}()")
        for first, last in self._facts.reports.preparations:
            yield Wrap(first, last, f"with {self._call('main_process_first')}():")

    def _files(self) -> Iterator[Edit]:
        for call in self._facts.distribution.loads:
            if argument(call, "map_location", 1) is None:
                yield SetArgument(call, "map_location", self._facts.source.quoted("cpu"))
        for call in self._facts.distribution.late_loads:
            wait = f"if {self._call('process_count')}() > 1:\n    {self._torch}.distributed.barrier()  # the main process has saved by now"
            yield InsertBefore(self._facts.tree.statement(call), wait)

    def _additions(self) -> Iterator[Edit]:
        behind, before = self._helpers.place()
        code = self._helpers.code()
        yield InsertBefore(before, code) if behind is None else InsertAfter(behind, f"\n\n{code}")
        yield from (AddImport(module) for module in self._helpers.modules())
        for neighbour, name in self._facts.distribution.neighbours:
            if self._facts.names.beside(neighbour, name) == name.rpartition(".")[2]:
                yield AddImport(*name.rsplit(".", 1))
        for node in self._facts.tree.imports:
            if isinstance(node, ast.ImportFrom) and any(item.name == "DataParallel" for item in node.names):
                yield RemoveImport(node.module or "", "DataParallel")


TRANSFORM = Transform.from_module(__name__, __doc__, group="distributed", literals=(b"DataParallel",), find=find, since="1.10")
