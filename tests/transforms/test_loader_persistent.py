"""loader-persistent: which loaders keep starting workers, which are held and why, and what living workers change."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.engine import EngineSettings, fix
from torchfix.facts.project.project import Project
from torchfix.result import Note, Outcome
from torchfix.testing import check_held, check_noop, check_transformed, run_transform
from torchfix.transform import Selected

RULE = "loader-persistent"
HEAD = """\
import os
import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import datasets, transforms
"""
MNIST = "datasets.MNIST('data', transform=transforms.ToTensor())"
EPOCHS = """
for epoch in range(3):
    for x, y in loader:
        step(x, y)
"""


def script(main: str, *before: str) -> str:
    """A script that does ``main`` in a function of the parameters ``args``, ``workers`` and ``step``, behind some definitions."""
    definitions = "".join(f"{dedent(text).strip()}\n\n\n" for text in before)
    return f"{HEAD}\n\n{definitions}def main(args, workers, step):\n{indent(dedent(main).strip(), '    ')}\n"


def epochs(loader: str, *before: str) -> str:
    """A script that iterates a loader in three epochs."""
    return script(f"loader = {loader}\n{EPOCHS}", *before)


def changed(before: str, after: str, *definitions: str, **arguments: object) -> Note:
    """Check one loader that is iterated in several epochs."""
    (note,) = check_transformed(RULE, epochs(before, *definitions), epochs(after, *definitions), **arguments)
    return note


def dataset(sample: str = "return self.x[i] * 2", make: str = "self.x = np.arange(8)") -> str:
    """A dataset class ``D``."""
    methods = f"def __init__(self, *given):\n{indent(make, '    ')}\n\ndef __getitem__(self, i):\n{indent(sample, '    ')}\n"
    return f"class D(Dataset):\n{indent(methods, '    ')}"


@pytest.mark.parametrize(
    "loader",
    [
        pytest.param(f"DataLoader({MNIST})", id="no workers"),
        pytest.param(f"DataLoader({MNIST}, num_workers=0)", id="none by a literal"),
        pytest.param(f"DataLoader({MNIST}, num_workers=2, persistent_workers=True)", id="persistent already"),
        pytest.param(f"DataLoader({MNIST}, num_workers=workers, persistent_workers=workers > 0)", id="guarded already"),
        pytest.param(f"DataLoader({MNIST}, num_workers=2, **args)", id="arguments out of sight"),
        pytest.param(f"DataLoader({MNIST}, **dict(num_workers=2, persistent_workers=True))", id="persistent by a dictionary"),
        pytest.param("MyLoader(unknown, num_workers=2)", id="another class"),
    ],
)
def test_left_alone(loader: str) -> None:
    """A loader without workers, or one whose workers live on, yields nothing."""
    check_noop(RULE, epochs(loader))


@pytest.mark.parametrize(
    "main",
    [
        pytest.param(f"for x, y in DataLoader({MNIST}, num_workers=2):\n    step(x, y)", id="one epoch"),
        pytest.param(
            f"for e in range(3):\n    for x, y in DataLoader({MNIST}, num_workers=2):\n        step(x, y)", id="made in every epoch"
        ),
        pytest.param(f"it = iter(DataLoader({MNIST}, num_workers=2))\nfor i in range(9):\n    step(*next(it))", id="one endless iterator"),
        pytest.param(f"loader = DataLoader({MNIST}, num_workers=2)\nfit(loader)", id="handed to a library"),
    ],
)
def test_loader_that_is_iterated_once_is_left_alone(main: str) -> None:
    """Its workers are started once as it is."""
    check_noop(RULE, script(main))


def test_loader_of_another_library_is_left_alone() -> None:
    """A class of the same name takes other arguments."""
    text = "from torch_geometric.loader import DataLoader\n\nloader = DataLoader(graphs, num_workers=2)\n" + EPOCHS
    check_noop(RULE, text)


def test_older_torch_is_held() -> None:
    """The argument came with torch 1.7, and with pinned memory it works since 1.9."""
    text = epochs(f"DataLoader({MNIST}, num_workers=2, pin_memory=True)")
    check_held(RULE, text, "torch-too-old", torch=(1, 6))
    check_held(RULE, text, "pinned-restart", torch=(1, 8))
    assert run_transform(RULE, text, torch=(1, 9)).outcome is Outcome.CHANGED
    assert run_transform(RULE, text.replace("pin_memory=True", "pin_memory=False"), torch=(1, 8)).outcome is Outcome.CHANGED


def test_explicit_false_is_held() -> None:
    """Somebody wrote it out, so nobody but the user takes it away."""
    check_held(RULE, epochs(f"DataLoader({MNIST}, num_workers=2, persistent_workers=False)"), "explicit")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("data.epoch = epoch", id="attribute"),
        pytest.param("data.set_epoch(epoch)", id="set_epoch of the dataset"),
        pytest.param("loader.dataset.set_epoch(epoch)", id="set_epoch through the loader"),
        pytest.param("data.transform = transforms.ToTensor()", id="another transform"),
        pytest.param("crop.size = 32 + epoch", id="the transform's own setting"),
        pytest.param("data.mosaic = epoch < 2", id="a switch"),
        pytest.param("rows.append(epoch)", id="list that it was given"),
        pytest.param("loader.collate_fn = step", id="collate function"),
        pytest.param("data(epoch)", id="the dataset called"),
        pytest.param("with data: step(0, 0)", id="the dataset entered"),
        pytest.param("getattr(data, 'set_epoch')(epoch)", id="method by its name"),
        pytest.param("vars(data)['epoch'] = epoch", id="entry of its attributes"),
        pytest.param("object.__setattr__(data, 'epoch', epoch)", id="set by the base class"),
        pytest.param("type(data).epoch = epoch", id="attribute of its class"),
    ],
)
def test_trap_1_dataset_that_changes_between_epochs_is_held(change: str) -> None:
    """Workers that live on keep the copy that they were given, and give old samples without a word."""
    crop = "class Crop:\n    def __call__(self, x):\n        return x"
    sets = "class D(Dataset):\n    def __init__(self, rows, transform):\n        self.rows, self.transform = rows, transform\n"
    sets += "        self.epoch = 0\n\n    def set_epoch(self, epoch):\n        self.epoch = epoch\n\n"
    sets += "    def __call__(self, epoch):\n        self.set_epoch(epoch)\n\n    def __enter__(self):\n        self.epoch += 1\n\n"
    sets += "    def __getitem__(self, i):\n        return self.transform(self.rows[i]), self.epoch"
    main = "rows, crop = [1, 2], Crop()\ndata = D(rows, crop)\nloader = DataLoader(data, num_workers=2)\nfor epoch in range(3):\n"
    loop = "    for x, y in loader:\n        step(x, y)"
    note = check_held(RULE, script(f"{main}    {change}\n{loop}", crop, sets), "dataset-changed")
    assert note.reason is not None and "train.py:" in note.reason.text
    behind = script(f"{main}{loop}\n    {change}", crop, sets)
    check_held(RULE, behind, "dataset-changed")
    early = main.replace("for epoch", f"epoch = 7\n{change}\nfor epoch")
    assert run_transform(RULE, script(f"{early}{loop}", crop, sets)).outcome is Outcome.CHANGED


def test_variable_that_samples_read_and_the_program_changes_is_held() -> None:
    """A module's variable is a copy in the workers too."""
    sets = "SIZE = 3\n\n\n" + dataset("return self.x[i] * SIZE, 0")
    main = f"global SIZE\nloader = DataLoader(D(), num_workers=2)\n{EPOCHS.rstrip()}\n    SIZE = SIZE + 1"
    check_held(RULE, script(main, sets), "dataset-changed")


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_epoch_of_a_sampler_is_no_obstacle(name: str) -> None:
    """Samplers stay in the main process, where the new epoch is seen."""
    main = f"loader = DataLoader({MNIST}, {name}=args.s, num_workers=2)\nfor epoch in range(3):\n    loader.{name}.set_epoch(epoch)\n"
    loop = "    for x, y in loader:\n        step(x, y)"
    after = main.replace("num_workers=2", "num_workers=2, persistent_workers=True")
    check_transformed(RULE, script(main + loop), script(after + loop))


@pytest.mark.parametrize(
    ("count", "guard"),
    [
        pytest.param("4", "True", id="literal"),
        pytest.param("workers", "workers > 0", id="variable"),
        pytest.param("args.workers", "args.workers > 0", id="attribute"),
        pytest.param("args['data']['workers']", "args['data']['workers'] > 0", id="setting"),
        pytest.param("int(args.workers)", "int(args.workers) > 0", id="converted"),
        pytest.param("workers // 2", "workers // 2 > 0", id="divided"),
        pytest.param("2 if args.fast else 0", "(2 if args.fast else 0) > 0", id="either"),
        pytest.param("os.cpu_count()", "True", id="all cores"),
        pytest.param("os.cpu_count() or 1", "True", id="all cores or one"),
        pytest.param("min(8, os.cpu_count())", "True", id="at most all cores"),
        pytest.param("max(1, workers)", "True", id="at least one"),
        pytest.param("min(8, workers)", "workers > 0", id="at most eight"),
        pytest.param("4 * workers", "workers > 0", id="times four"),
        pytest.param(
            "min(4 * torch.cuda.device_count(), os.cpu_count() or 1)", "torch.cuda.device_count() > 0", id="the count of loader-workers"
        ),
    ],
)
def test_trap_2_argument_is_guarded_by_the_count(count: str, guard: str) -> None:
    """Without workers the argument is an error, so only a literal count goes without a guard."""
    changed(f"DataLoader({MNIST}, num_workers={count})", f"DataLoader({MNIST}, num_workers={count}, persistent_workers={guard})")


@pytest.mark.parametrize("count", ["next_count()", "args.pop()", "(n := workers)"])
def test_count_that_may_have_effects_is_held(count: str) -> None:
    """The guard would do it twice."""
    note = check_held(RULE, epochs(f"DataLoader({MNIST}, num_workers={count})"), "count-has-effects")
    assert note.reason is not None and "name > 0" in note.reason.help


def test_count_by_position_is_guarded_too() -> None:
    """The sixth argument is the number of workers."""
    before = f"DataLoader({MNIST}, 8, True, None, None, workers)"
    changed(before, f"{before[:-1]}, persistent_workers=workers > 0)")


def test_trap_3_memory_of_all_workers_is_in_the_notes() -> None:
    """The user reads that the workers of every loader stay, and how to end them."""
    note = changed(f"DataLoader({MNIST}, num_workers=2)", f"DataLoader({MNIST}, num_workers=2, persistent_workers=True)")
    assert {"process", "memory"} <= set(note.effects)
    assert note.risk == "behavior"
    said = " ".join(note.notes)
    assert "validation" in said
    assert "persistent_workers=False" in said


def test_trap_4_loader_of_each_fold_is_fixed() -> None:
    """A new loader takes the place of the old one, whose workers end with it."""
    main = f"for fold in range(5):\n    loader = DataLoader({MNIST}, num_workers=2)\n{indent(EPOCHS, '    ')}"
    check_transformed(RULE, script(main), script(main.replace("workers=2", "workers=2, persistent_workers=True")))


def test_trap_5_epoch_that_is_left_early_is_no_obstacle() -> None:
    """The next epoch begins anew all the same."""
    main = f"loader = DataLoader({MNIST}, num_workers=2)\n{EPOCHS.rstrip()}\n        break"
    check_transformed(RULE, script(main), script(main.replace("workers=2", "workers=2, persistent_workers=True")))


@pytest.mark.parametrize(
    ("sample", "make"),
    [
        pytest.param("self.seen += 1\nreturn self.x[i], self.seen", "self.x, self.seen = [1], 0", id="counter"),
        pytest.param("self.log.append(i)\nreturn self.x[i], 0", "self.x, self.log = [1], []", id="list that grows"),
    ],
)
def test_trap_6_samples_that_depend_on_earlier_ones_are_held(sample: str, make: str) -> None:
    """New workers forget with each epoch what living ones would remember, or leak."""
    check_held(RULE, epochs("DataLoader(D(), num_workers=2)", dataset(sample, make)), "dataset-state")


def test_cache_that_is_filled_where_it_misses_is_fixed_with_a_note() -> None:
    """The values are the same, and living workers need not compute them again; the user reads that the cache grows."""
    text = dataset("if i not in self.cache:\n    self.cache[i] = np.load(str(i))\nreturn self.cache[i], 0", "self.cache = {}")
    note = changed("DataLoader(D(), num_workers=2)", "DataLoader(D(), num_workers=2, persistent_workers=True)", text)
    assert "cache" in " ".join(note.notes)


def test_network_in_the_dataset_is_held() -> None:
    """Its weights are those that it had when the workers started."""
    text = dataset("return self.net(self.x[i]), 0", "self.x, self.net = torch.zeros(8, 3), torch.nn.Linear(3, 3)")
    check_held(RULE, epochs("DataLoader(D(), num_workers=2)", text), "network-in-dataset")


def test_dataset_out_of_sight_is_held() -> None:
    """What is not seen may remember anything."""
    check_held(RULE, epochs("DataLoader(args.data, num_workers=2)"), "dataset-unseen")


@pytest.mark.parametrize(
    "main",
    [
        pytest.param("for epoch in range(3):\n    for x, y in loader:\n        for a, b in loader:\n            step(a, b)", id="nested"),
        pytest.param("for epoch in range(3):\n    for x, y in zip(loader, loader):\n        step(x, y)", id="pairs"),
        pytest.param(
            "it = iter(loader)\nfor epoch in range(3):\n    for x, y in loader:\n        step(x, next(it))",
            id="kept iterator beside the loop",
        ),
    ],
)
def test_loader_that_is_iterated_twice_at_once_is_held(main: str) -> None:
    """Living workers have one iterator: the inner loop would start the outer one anew."""
    check_held(RULE, script(f"loader = DataLoader({MNIST}, num_workers=2)\n{main}"), "iterators-overlap")


@pytest.mark.parametrize("line", ["from accelerate import Accelerator", "import pytorch_lightning"])
def test_loader_of_a_framework_is_held(line: str) -> None:
    """The framework may make its own loader of this one."""
    check_held(RULE, epochs(f"DataLoader({MNIST}, num_workers=2)", line), "framework-owned")


# Together with its neighbours -------------------------------------------------------------------------------------


def all_loader_rules(text: str) -> str:
    """What the three rules for loaders make of a text in one run."""
    names = ("loader-workers", "loader-pin-memory", RULE)
    selected = [Selected(rule, rule.options()) for rule in map(registry.find, names)]
    settings = EngineSettings(format="off")
    result = fix("train.py", text.encode(), Project.of_texts({"train.py": text}), selected, settings)
    again = fix("train.py", result.after, Project.of_texts({"train.py": result.after.decode()}), selected, settings)
    assert again.outcome is Outcome.CLEAN
    return result.after.decode()


WORK = "x.to('cuda')"


def test_loader_that_is_given_workers_keeps_them_in_the_same_run() -> None:
    """All three settings at once: the guard is the part of the count that may be 0."""
    text = script(f"loader = DataLoader({MNIST})\nfor epoch in range(3):\n    for x, y in loader:\n        {WORK}")
    done = all_loader_rules(text)
    assert "num_workers=min(4 * torch.cuda.device_count(), os.cpu_count() or 1)" in done
    assert "persistent_workers=torch.cuda.device_count() > 0" in done
    assert "pin_memory=True" in done


def test_process_per_gpu_keeps_its_share_of_workers() -> None:
    """The guard follows the count that each process is given in the end."""
    head = "torch.distributed.init_process_group('nccl')\ntorch.cuda.set_device(0)\n"
    text = script(f"{head}loader = DataLoader({MNIST})\nfor epoch in range(3):\n    for x, y in loader:\n        {WORK}")
    assert "num_workers=4" in all_loader_rules(text)
    assert "persistent_workers=True" in all_loader_rules(text)
    whole = text.replace(f"{MNIST})", f"{MNIST}, num_workers=min(4 * torch.cuda.device_count(), os.cpu_count() or 1))")
    assert "num_workers=4, pin_memory=True, persistent_workers=True" in all_loader_rules(whole)
    check_held(RULE, whole, "whole-machine")


# Random numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sample", "expected"),
    [
        pytest.param("shuffle=True", "return self.x[i] * 2, 0", True, id="shuffled"),
        pytest.param("shuffle=False", "return self.x[i] * 2, 0", True, id="seed of the program's generator"),
        pytest.param("generator=g, shuffle=True", "return self.x[i] * 2, 0", True, id="shuffled by its own generator"),
        pytest.param("generator=g, sampler=args.s", "return self.x[i] * 2, 0", True, id="sampler that may share the generator"),
        pytest.param("generator=g", "return self.x[i] * random.random(), 0", True, id="samples that draw"),
        pytest.param("generator=g", "return self.x[i] * 2, 0", False, id="own generator, nothing else drawn"),
    ],
)
def test_random_numbers_are_an_effect_unless_nobody_draws(arguments: str, sample: str, expected: bool) -> None:
    """The seed that workers no longer ask for is missing from the generator that gives it; only one of their own leaves the rest alone."""
    text = script(f"g = torch.Generator()\nloader = DataLoader(D(), num_workers=2, {arguments})\n{EPOCHS}", dataset(sample))
    (note,) = run_transform(RULE, text).notes
    assert note.outcome == "fixed"
    assert ("rng" in note.effects) is expected
    assert ("second epoch" in " ".join(note.notes)) is expected


# Ways to the epochs -----------------------------------------------------------------------------------------------


def test_trainer_is_fixed() -> None:
    """Loader, loop over batches and loop over epochs stand in three methods."""
    text = """
        class Trainer:
            def __init__(self, args):
                self.loader = DataLoader(DATA, num_workers=args.workersEND)

            def train(self):
                for self.epoch in range(3):
                    self.run_epoch()

            def run_epoch(self):
                for x, y in self.loader:
                    print(x, y)
    """.replace("DATA", MNIST)
    guard = ", persistent_workers=args.workers > 0"
    check_transformed(RULE, script("pass", text.replace("END", "")), script("pass", text.replace("END", guard)))


def test_iterator_that_is_renewed_is_fixed() -> None:
    """Each new iterator would start new workers."""
    main = f"""
        loader = DataLoader({MNIST}, num_workers=2)
        it = iter(loader)
        for i in range(99):
            try:
                x, y = next(it)
            except StopIteration:
                it = iter(loader)
                x, y = next(it)
            step(x, y)
    """
    check_transformed(RULE, script(main), script(main.replace("workers=2", "workers=2, persistent_workers=True")))


def test_loop_in_another_file_counts() -> None:
    """The engine's loop iterates the script's loader, once an epoch."""
    engine = "def run(loader, step):\n    for x, y in loader:\n        step(x, y)\n"
    main = f"import engine\n\nloader = DataLoader({MNIST}, num_workers=2)\nfor epoch in range(3):\n    engine.run(loader, step)"
    after = main.replace("workers=2", "workers=2, persistent_workers=True")
    check_transformed(RULE, script(main), script(after), modules={"engine.py": engine})


# Dictionaries -----------------------------------------------------------------------------------------------------

TWO = "for epoch in range(3):\n    for x, y in train:\n        step(x, y)\n    for x, y in test:\n        step(x, y)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "options = dict(batch_size=8, num_workers=4)",
            "options = dict(batch_size=8, num_workers=4, persistent_workers=True)",
            id="dict()",
        ),
        pytest.param(
            "options = {'num_workers': 1, 'pin_memory': True} if args.cuda else {}",
            "options = {'num_workers': 1, 'persistent_workers': True, 'pin_memory': True} if args.cuda else {}",
            id="display, or an empty one",
        ),
        pytest.param(
            'options = {"num_workers": workers}',
            'options = {"num_workers": workers, "persistent_workers": workers > 0}',
            id="variable count",
        ),
        pytest.param(
            "options = {\n    'pin_memory': True,\n    'num_workers': (1),\n}",
            "options = {\n    'pin_memory': True,\n    'num_workers': (1),\n    'persistent_workers': True,\n}",
            id="an entry a line",
        ),
        pytest.param(
            "options = {'num_workers': 1,\n           'pin_memory': True}",
            "options = {'num_workers': 1,\n           'persistent_workers': True,\n           'pin_memory': True}",
            id="aligned under the brace",
        ),
        pytest.param(
            "options = {}\nif args.cuda:\n    options.update({'num_workers': 1})",
            "options = {}\nif args.cuda:\n    options.update({'num_workers': 1, 'persistent_workers': True})",
            id="updated",
        ),
        pytest.param(
            "options = {}\nif args.cuda:\n    options.update(num_workers=1)",
            "options = {}\nif args.cuda:\n    options.update(num_workers=1, persistent_workers=True)",
            id="updated by keyword",
        ),
        pytest.param(
            "options = {}\noptions['num_workers'] = workers",
            "options = {}\noptions['num_workers'] = workers\noptions['persistent_workers'] = workers > 0",
            id="stored",
        ),
    ],
)
def test_dictionary_that_gives_the_count_gives_the_argument(before: str, after: str) -> None:
    """Where all that take the dictionary are loaders that may keep their workers, the entry goes beside num_workers."""
    rest = f"\ntrain = DataLoader({MNIST}, shuffle=True, **options)\ntest = DataLoader({MNIST}, **options)\n{TWO}"
    notes = check_transformed(RULE, script(before + rest), script(after + rest))
    assert len(notes) == 2


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        pytest.param("test = DataLoader(args.data, **options)", "shared-options", id="loader of unknown data"),
        pytest.param("test = OtherLoader(1, **options)", "shared-options", id="another class"),
        pytest.param(f"test = DataLoader({MNIST}, persistent_workers=False, **options)", "shared-options", id="loader that says no"),
    ],
)
def test_dictionary_that_others_take_is_held(rest: str, code: str) -> None:
    """What one of them may not be given, none is given."""
    main = f"options = dict(num_workers=4)\ntrain = DataLoader({MNIST}, **options)\n{rest}\n{TWO}"
    note = check_held(RULE, script(main), code)
    assert note.reason is not None


def test_count_in_the_call_beside_a_dictionary_is_guarded_in_the_call() -> None:
    """A dictionary of other settings is left alone."""
    before = f"DataLoader({MNIST}, num_workers=workers, **dict(batch_size=8))"
    changed(before, before.replace("workers, **", "workers, persistent_workers=workers > 0, **"))


def test_count_that_a_later_entry_may_replace_is_held() -> None:
    """The last one wins, and it may be 0."""
    main = (
        f"options = dict(num_workers=4)\nif args.debug:\n    options['num_workers'] = 0\nloader = DataLoader({MNIST}, **options)\n{EPOCHS}"
    )
    check_held(RULE, script(main), "several-counts")


# Field cases ------------------------------------------------------------------------------------------------------


def test_f35_count_that_may_be_zero_guards_the_argument() -> None:
    """The guard is the count itself, and a count that is computed by a call with effects is not computed twice."""
    text = """
        def make(ds, args):
            return DataLoader(ds, batch_size=args.bs, num_workers=args.workersEND)

        def make2(ds, next_count):
            return DataLoader(ds, 8, num_workers=next_count())
    """
    main = f"loader, other = make({MNIST}, args), make2({MNIST}, step)\n{EPOCHS}    for x, y in other:\n        step(x, y)"
    result = run_transform(RULE, script(main, text.replace("END", "")))
    assert result.after.decode() == script(main, text.replace("END", ", persistent_workers=args.workers > 0"))
    assert [note.reason.code for note in result.notes if note.reason] == ["count-has-effects"]
    assert b"prefetch_factor" not in result.after


def test_f39_persistent_workers_freeze_the_dataset_s_epoch() -> None:
    """Where the dataset's epoch is set, new workers must see it."""
    text = """
        def run(ds, step, epochs):
            dl = DataLoader(ds, batch_size=4, num_workers=2)
            for ep in range(epochs):
                dl.dataset.epoch = ep
                for b in dl:
                    step(b)
    """
    check_held(RULE, script("pass", text), "dataset-changed")


def test_f41_nothing_more_is_prefetched() -> None:
    """Living workers take the place of new ones; shared memory holds as many batches as before."""
    result = run_transform(RULE, epochs(f"DataLoader({MNIST}, batch_size=2048, num_workers=2)"))
    assert result.outcome is Outcome.CHANGED
    assert b"prefetch_factor" not in result.after


# The rewritten programs -------------------------------------------------------------------------------------------

SCRIPT = """\
import os
import zlib

import torch
from torch.utils.data import DataLoader, Dataset


class Cubes(Dataset):
    def __len__(self):
        return 11

    def __getitem__(self, index):
        return torch.tensor(float(index)) ** 3, os.getpid()


def main():
    torch.manual_seed(7)
    workers = set()
    loader = DataLoader(Cubes(), batch_size=4, SETTINGS, num_workers=2)
    for epoch in range(3):
        for cubes, pids in loader:
            workers.update(pids.tolist())
            print(epoch, cubes.tolist())
        print("state", zlib.crc32(torch.get_rng_state().numpy().tobytes()))
    print("processes", len(workers))


if __name__ == "__main__":
    main()
"""


def both(settings: str, tmp_path: Path) -> tuple[list[str], list[str]]:
    """What the script prints before and after, with some settings of its loader."""
    text = SCRIPT.replace("SETTINGS", settings)
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(text)
    after.write_bytes(run_transform(RULE, text).after)
    assert "persistent_workers=True" in after.read_text()
    return run_on_cpu(before).splitlines(), run_on_cpu(after).splitlines()


def epoch_of(lines: list[str], epoch: int) -> list[float]:
    """The samples of one epoch, in ascending order."""
    rows = [line.partition("[")[2].rstrip("]").split(", ") for line in lines if line.startswith(f"{epoch} ")]
    return sorted(float(item) for row in rows for item in row)


@pytest.mark.skipif(os.name == "nt", reason="the start method is that of Linux")
def test_shuffled_training_has_the_same_first_epoch_and_the_same_samples_later(tmp_path: Path) -> None:
    """Living workers change the order from the second epoch on, which is the effect rng, and start a third of the processes."""
    before, after = both("shuffle=True", tmp_path)
    assert before[:4] == after[:4]
    assert before[4:7] != after[4:7]
    assert [epoch_of(before, epoch) for epoch in range(3)] == [epoch_of(after, epoch) for epoch in range(3)]
    assert (before[-1], after[-1]) == ("processes 6", "processes 2")


@pytest.mark.skipif(os.name == "nt", reason="the start method is that of Linux")
def test_loader_in_order_gives_the_same_samples_and_leaves_other_random_numbers(tmp_path: Path) -> None:
    """Even a loader that shuffles nothing takes a seed for new workers from the program's generator, and now takes one only once."""
    before, after = both("shuffle=False", tmp_path)
    samples = [index for index, line in enumerate(before) if line[0].isdigit()]
    assert [before[index] for index in samples] == [after[index] for index in samples]
    states = [index for index, line in enumerate(before) if line.startswith("state")]
    assert [before[index] == after[index] for index in states] == [True, False, False]


@pytest.mark.skipif(os.name == "nt", reason="the start method is that of Linux")
def test_loader_with_a_generator_of_its_own_changes_nothing_but_the_processes(tmp_path: Path) -> None:
    """Without the effect rng all that is printed is the same, but for how many processes it took."""
    before, after = both("generator=torch.Generator()", tmp_path)
    assert before[:-1] == after[:-1]
    assert (before[-1], after[-1]) == ("processes 6", "processes 2")


@pytest.mark.skipif(os.name == "nt", reason="the start method is that of Linux")
def test_living_workers_train_the_same_on_the_pretend_gpu(tmp_path: Path) -> None:
    """With batches copied to a device the same numbers are printed, by a third of the processes."""
    text = SCRIPT.replace("SETTINGS", "generator=torch.Generator()").replace("cubes.tolist()", 'cubes.to("cuda").cpu().tolist()')
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(text)
    after.write_bytes(run_transform(RULE, text).after)
    printed, counts = run_on_fake_gpu(before)
    printed_after, counts_after = run_on_fake_gpu(after)
    assert printed_after == printed.replace("processes 6", "processes 2")
    assert counts_after["h2d"] == counts["h2d"]


FOLDS = """\
import gc
import multiprocessing

import torch
from torch.utils.data import DataLoader, Dataset


class Cubes(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(float(index)) ** 3


def main():
    for fold in range(3):
        loader = DataLoader(Cubes(), batch_size=2, num_workers=1)
        for epoch in range(2):
            for cubes in loader:
                print(fold, epoch, cubes.tolist())
        print(len(multiprocessing.active_children()) <= 1)


if __name__ == "__main__":
    main()
"""


@pytest.mark.skipif(os.name == "nt", reason="the start method is that of Linux")
def test_workers_end_with_the_loader_of_their_fold(tmp_path: Path) -> None:
    """When the next fold's loader takes its name, the old one's workers are gone."""
    after = tmp_path / "after.py"
    after.write_bytes(run_transform(RULE, FOLDS).after)
    assert "persistent_workers=True" in after.read_text()
    printed = run_on_cpu(after)
    assert printed.count("True") == 3
    assert "False" not in printed
