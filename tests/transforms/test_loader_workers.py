"""loader-workers: which loaders stay without workers, which are held and why, and that workers give the same samples."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.facts.reading import ONLY_FORKS
from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.facts.project.project import Project
from torchfix.result import Note
from torchfix.source import SourceFile
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "loader-workers"
HEAD = """\
import os
import random

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchvision import datasets, transforms
"""
MNIST = "datasets.MNIST('data', transform=transforms.ToTensor())"
COUNT = "num_workers=min(4 * torch.cuda.device_count(), os.cpu_count() or 1)"


def guarded(main: str, *before: str) -> str:
    """A script that does ``main`` under the main guard, behind some definitions."""
    definitions = "".join(f"{dedent(text).strip()}\n\n" for text in before)
    return f'{HEAD}\n{definitions}if __name__ == "__main__":\n{indent(dedent(main).strip(), "    ")}\n'


def looped(loader: str) -> str:
    """A loop over a loader."""
    return f"for batch in {loader}:\n    print(batch)"


def dataset(sample: str = "return self.x[i] * 2", make: str = "self.x = np.arange(8)", base: str = "Dataset") -> str:
    """A dataset class ``D``."""
    methods = f"def __init__(self):\n{indent(make, '    ')}\n\ndef __getitem__(self, i):\n{indent(sample, '    ')}\n"
    return f"class D({base}):\n{indent(methods, '    ')}"


def changed(before: str, after: str, **arguments: object) -> tuple[Note, ...]:
    """Check one loop under the guard."""
    return check_transformed(RULE, guarded(looped(before)), guarded(looped(after)), **arguments)


@pytest.mark.parametrize(
    "loader",
    [
        pytest.param(f"DataLoader({MNIST}, num_workers=2)", id="workers by keyword"),
        pytest.param(f"DataLoader({MNIST}, 32, True, None, None, 2)", id="workers by position"),
        pytest.param(f"DataLoader({MNIST}, num_workers=args.workers)", id="workers by a variable"),
        pytest.param(f"DataLoader({MNIST}, **options)", id="hidden arguments"),
        pytest.param(f"DataLoader({MNIST}, **dict(num_workers=2))", id="workers by a dictionary"),
        pytest.param("DataLoader(*given)", id="hidden positions"),
        pytest.param("DataLoader(TensorDataset(torch.zeros(8)), batch_size=4)", id="tensors in memory"),
        pytest.param("DataLoader(TensorDataset(unknown), batch_size=4)", id="unknown tensors in memory"),
        pytest.param("DataLoader(list(range(8)))", id="a list"),
        pytest.param("MyLoader(unknown)", id="another class"),
    ],
)
def test_left_alone(loader: str) -> None:
    """A loader that has workers, may have them, or has nothing for them to do yields nothing."""
    check_noop(RULE, guarded(looped(loader)))


@pytest.mark.parametrize("given", ["batch_size=None", "collate_fn=collate"])
def test_batch_that_may_be_the_datasets_own_and_is_written_into_is_held(given: str) -> None:
    """What a worker sends is a copy, so a write that reached the dataset's own tensors no longer would."""
    collate = "def collate(samples):\n    return samples[0]"
    sets = dataset("return self.x[i] if i else self.x[i] * 2", "self.x = torch.zeros(8, 3)")
    text = guarded(f"for x in DataLoader(D(), {given}):\n    x.mul_(2)\n    print(x)", sets, collate)
    check_held(RULE, text, "batch-written-into")
    assert b"num_workers=min" in run_transform(RULE, text.replace("x.mul_(2)", "x.mul(2)")).after


def test_loader_that_nothing_iterates_is_left_alone() -> None:
    """Where only its length is asked for there is nothing to gain."""
    check_noop(RULE, f"{HEAD}\nloader = DataLoader({MNIST})\nprint(len(loader))\n")


def test_loader_of_another_library_is_left_alone() -> None:
    """A class of the same name takes other arguments."""
    check_noop(RULE, "from torch_geometric.loader import DataLoader\n\nloader = DataLoader(graphs)\n")


def test_dataset_that_only_indexes_is_left_alone() -> None:
    """Handing on what memory holds is faster than any way from a worker."""
    check_noop(RULE, guarded(looped("DataLoader(D())"), dataset("return self.x[i]")))


@pytest.mark.parametrize(
    ("sample", "make", "code"),
    [
        pytest.param(
            "return self.x[i] + self.rs.rand()", "self.rs = np.random.RandomState(0)", "own-generator", id="trap 1: own NumPy generator"
        ),
        pytest.param(
            "return torch.rand(2, generator=self.g)", "self.g = torch.Generator()", "own-generator", id="trap 1: own torch generator"
        ),
        pytest.param("self.f.seek(i)\nreturn self.f.read(4)", "self.f = open('x', 'rb')", "open-handle", id="trap 2: open file"),
        pytest.param("return self.f['x'][i] * 2", "self.f = h5py.File('x')", "open-handle", id="trap 2: open database"),
        pytest.param("return self.f(self.x[i])", "self.f = lambda x: x * 2", "not-picklable", id="trap 5: lambda kept"),
        pytest.param("return torch.ones(3, requires_grad=True) * i", "self.x = 0", "graph-tensors", id="trap 6: tensors with a graph"),
        pytest.param("return self.net(self.x[i])", "self.net = torch.nn.Linear(3, 3)", "graph-tensors", id="trap 6: network"),
        pytest.param("return self.x[i].cuda()", "self.x = torch.zeros(8)", "cuda-in-dataset", id="trap 7: sample on the GPU"),
        pytest.param("return self.x[i] * 2", "self.x = torch.zeros(8).cuda()", "cuda-in-dataset", id="trap 7: data on the GPU"),
        pytest.param(
            "if i not in self.cache:\n    self.cache[i] = np.load(str(i))\nreturn self.cache[i]",
            "self.cache = {}",
            "dataset-state",
            id="trap 8: cache",
        ),
        pytest.param("self.count += 1\nreturn self.x[i] * self.count", "self.count = 0", "dataset-state", id="trap 8: counter"),
        pytest.param(
            "import subprocess\nreturn subprocess.run(['ffmpeg', str(i)])", "self.x = 0", "starts-processes", id="trap 12: processes"
        ),
        pytest.param(
            "from concurrent.futures import ThreadPoolExecutor\nreturn list(ThreadPoolExecutor().map(len, self.x[i]))",
            "self.x = []",
            "starts-processes",
            id="trap 12: threads",
        ),
        pytest.param("return unknown(self.x)[i] + self.t(i)", "self.t = given", "dataset-unseen", id="transform out of sight"),
    ],
)
def test_held_for_what_the_dataset_does(sample: str, make: str, code: str) -> None:
    """A dataset that would misbehave in a worker is held, with the line that speaks against it."""
    note = check_held(RULE, guarded(looped("DataLoader(D())"), dataset(sample, make)), code)
    assert note.reason is not None
    assert "train.py:" in note.reason.text
    assert note.reason.help


def test_trap_3_iterable_dataset_is_held() -> None:
    """Every worker would deliver all samples."""
    text = "class D(IterableDataset):\n    def __iter__(self):\n        for i in range(8):\n            yield i * 2"
    check_held(RULE, guarded(looped("DataLoader(D())"), text), "iterable-dataset")


def test_iterable_dataset_that_divides_its_samples_is_fixed() -> None:
    """A dataset that asks for its worker is written for workers."""
    text = """
        import torch.utils.data

        class D(IterableDataset):
            def __iter__(self):
                info = torch.utils.data.get_worker_info()
                step = info.num_workers if info else 1
                yield from range(info.id if info else 0, 8, step)
    """
    check_transformed(RULE, guarded(looped("DataLoader(D())"), text), guarded(looped(f"DataLoader(D(), {COUNT})"), text))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(looped(f"DataLoader({MNIST})"), id="flat script"),
        pytest.param(
            f"loader = DataLoader({MNIST})\n\ndef main():\n    for x in loader:\n        print(x)\n\nmain()", id="function without guard"
        ),
        pytest.param(
            f"def train():\n    for x in DataLoader({MNIST}):\n        print(x)\n\nfor epoch in range(3):\n    train()",
            id="epochs at the top",
        ),
    ],
)
def test_trap_4_script_without_main_guard_is_held(text: str) -> None:
    """A worker that is no fork would run the script again."""
    check_held(RULE, f"{HEAD}\n{text}\n", "no-main-guard")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param(f"loader = DataLoader({MNIST})\nfor x in loader:\n    print(x)\n", (11, 12), id="loop at the top"),
        pytest.param(
            f"loader = DataLoader({MNIST})\n\ndef main():\n    for x in loader:\n        print(x)\n\nseed = 3\nmain()\nprint('done')\n",
            (17, 18),
            id="function called at the top",
        ),
    ],
)
def test_help_says_which_lines_want_the_guard(text: str, lines: tuple[int, int]) -> None:
    """With these lines under the guard the next run gives the loader its workers."""
    script = f"{HEAD}\n{text}"
    note = check_held(RULE, script, "no-main-guard")
    first, last = lines
    assert note.reason is not None
    assert note.reason.help.startswith(
        f'write `if __name__ == "__main__":` above line {first} of train.py and indent lines {first} to {last} under it'
    )
    rows = script.splitlines(keepends=True)
    guard = 'if __name__ == "__main__":\n' + indent("".join(rows[first - 1 : last]), "    ")
    assert COUNT in run_transform(RULE, "".join(rows[: first - 1]) + guard).after.decode()


def test_script_without_guard_is_fixed_where_it_forks() -> None:
    """A script that sets the start method to fork never imports itself again."""
    head = f"{HEAD}import multiprocessing\n\nmultiprocessing.set_start_method('fork')\n"
    check_transformed(RULE, head + looped(f"DataLoader({MNIST})") + "\n", head + looped(f"DataLoader({MNIST}, {COUNT})") + "\n")


def test_script_without_guard_is_fixed_where_the_project_declares_fork() -> None:
    """A project for Linux and Python below 3.14 has no other workers than forks."""
    text = f"{HEAD}\n{looped(f'DataLoader({MNIST})')}\n"
    transform = registry.find(RULE)
    facts = Project.of_texts({"train.py": text}, ONLY_FORKS).facts(SourceFile("train.py", text))
    assert [finding.held for finding in transform.find(facts, transform.options())] == [None]


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(f"loader = DataLoader({MNIST}, collate_fn=lambda b: b)", id="lambda collates"),
        pytest.param(f"def init(i):\n    pass\n\n\nloader = DataLoader({MNIST}, worker_init_fn=init)", id="function under the guard"),
        pytest.param(
            "class D(Dataset):\n    def __getitem__(self, i):\n        return i * 2\n\n\nloader = DataLoader(D())",
            id="class under the guard",
        ),
        pytest.param("loader = DataLoader(datasets.MNIST('x', transform=transforms.Lambda(lambda x: x * 2)))", id="lambda transform"),
    ],
)
def test_trap_5_what_cannot_be_pickled_is_held(before: str) -> None:
    """Spawned workers, and those of Python 3.14 on Linux, get the dataset pickled."""
    check_held(RULE, guarded(before + "\nfor x in loader:\n    print(x)"), "not-picklable")


def test_trap_9_epoch_set_on_the_dataset_is_no_obstacle_and_nothing_persists() -> None:
    """New workers see the new epoch; only living ones would not, so that option is never written."""
    epochs = "for epoch in range(3):\n    d.epoch = epoch\n    for x in loader:\n        print(x)"
    text = dataset("return self.x[i] + self.epoch", "self.x = np.arange(8)\nself.epoch = 0")
    notes = check_transformed(
        RULE,
        guarded(f"d = D()\nloader = DataLoader(d)\n{epochs}", text),
        guarded(f"d = D()\nloader = DataLoader(d, {COUNT})\n{epochs}", text),
    )
    assert "persistent" not in "".join(notes[0].notes)


def test_dataset_changed_while_the_loop_runs_is_held() -> None:
    """Running workers keep the dataset that they started with."""
    loop = "d = D()\nfor x in DataLoader(d):\n    d.level = x"
    check_held(RULE, guarded(loop, dataset("return self.x[i] * self.level")), "dataset-changed")


@pytest.mark.parametrize(
    "main",
    [
        pytest.param(f"loader = DataLoader({MNIST})\nfor i in range(9):\n    x = next(iter(loader))", id="in a loop"),
        pytest.param(
            f"loader = DataLoader({MNIST})\n\ndef sample():\n    return next(iter(loader))\n\nfor x in loader:\n    sample()",
            id="in a function",
        ),
    ],
)
def test_trap_10_iterator_made_for_each_step_is_held(main: str) -> None:
    """Each fresh iterator would start all workers."""
    check_held(RULE, guarded(main), "iterator-per-step")


def test_loader_made_in_each_step_is_held() -> None:
    """A loader made beside backward and step would start its workers in every step."""
    main = f"""
        net = torch.nn.Linear(3, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(9):
            x = list(DataLoader({MNIST}))
            optimizer.zero_grad()
            net(x[0]).sum().backward()
            optimizer.step()
    """
    check_held(RULE, guarded(main), "loader-per-step")


def test_traps_11_and_12_are_in_the_notes() -> None:
    """The user reads of shared memory, of how to turn workers off, and of OpenCV's threads."""
    text = "import cv2\n\n" + dataset("return cv2.imread(str(i))")
    notes = check_transformed(RULE, guarded(looped("DataLoader(D())"), text), guarded(looped(f"DataLoader(D(), {COUNT})"), text))
    said = " ".join(notes[0].notes)
    assert "/dev/shm" in said
    assert "num_workers=0" in said
    assert "cv2.setNumThreads(0)" in said


@pytest.mark.parametrize(
    "main",
    [
        pytest.param("from multiprocessing import Process\nProcess(target=work, daemon=True).start()", id="daemon"),
        pytest.param("import multiprocessing\nmultiprocessing.Pool(2).map(work, [1, 2])", id="pool"),
    ],
)
def test_trap_13_loader_in_a_daemonic_process_is_held(main: str) -> None:
    """A daemonic process may not have children."""
    work = f"def work(job):\n    for x in DataLoader({MNIST}):\n        print(x)"
    check_held(RULE, guarded(main, work), "daemonic-process")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("import pytorch_lightning as pl", id="lightning"),
        pytest.param("from accelerate import Accelerator", id="accelerate"),
        pytest.param("from transformers import Trainer", id="hugging face"),
    ],
)
def test_trap_14_loader_of_a_framework_is_held(line: str) -> None:
    """The framework runs the loop and has a say in the workers."""
    check_held(RULE, guarded(looped(f"DataLoader({MNIST})"), line), "framework-owned")


@pytest.mark.parametrize("name", ["multiprocessing_context='fork'", "persistent_workers=True", "prefetch_factor=4"])
def test_argument_that_needs_workers_is_held(name: str) -> None:
    """Where the count may be 0 such an argument is an error."""
    check_held(RULE, guarded(looped(f"DataLoader({MNIST}, {name})")), "needs-workers")


def test_numpy_numbers_are_held_before_torch_1_9() -> None:
    """Older releases left every worker with the same NumPy seed."""
    text = guarded(looped("DataLoader(D())"), dataset("return self.x[i] + np.random.rand()"))
    check_held(RULE, text, "numpy-seeds", torch=(1, 8))
    assert run_transform(RULE, text, torch=(1, 9)).notes[0].outcome == "fixed"


def test_variable_of_the_main_process_is_held() -> None:
    """A worker that is no fork never runs what stands under the guard."""
    text = dataset("return self.x[i] * size")
    check_held(RULE, guarded("size = 3\n" + looped("DataLoader(D())"), text), "main-only-variable")


def test_taken_name_is_held() -> None:
    """The expression must not mean the user's own ``min``."""
    check_held(RULE, guarded("min = 3\n" + looped(f"DataLoader({MNIST})")), "name-taken")


def test_absent_count_is_added() -> None:
    """Without random numbers the effects are new processes and their memory."""
    (note,) = changed(f"DataLoader({MNIST}, batch_size=8)", f"DataLoader({MNIST}, batch_size=8, {COUNT})")
    assert set(note.effects) == {"process", "memory"}
    assert note.risk == "behavior"
    assert note.message == "batches are loaded in the training process"


def test_random_numbers_are_an_effect_with_a_note() -> None:
    """Samples that draw numbers get others than before."""
    random = "datasets.MNIST('data', transform=transforms.RandomCrop(3))"
    (note,) = changed(f"DataLoader({random})", f"DataLoader({random}, {COUNT})")
    assert set(note.effects) == {"process", "memory", "rng"}
    assert "fixed seed" in " ".join(note.notes)


def test_literal_zero_is_replaced_by_keyword_and_by_position() -> None:
    """The count stands where it stood."""
    changed(f"DataLoader({MNIST}, num_workers=0, shuffle=True)", f"DataLoader({MNIST}, {COUNT}, shuffle=True)")
    changed(f"DataLoader({MNIST}, 8, True, None, None, 0)", f"DataLoader({MNIST}, 8, True, None, None, {COUNT.partition('=')[2]})")


def test_dictionary_of_other_settings_is_left_alone() -> None:
    """A count that no dictionary gives is written into the call."""
    changed(f"DataLoader({MNIST}, **dict(batch_size=8))", f"DataLoader({MNIST}, {COUNT}, **dict(batch_size=8))")
    text = guarded(looped(f"DataLoader({MNIST}, **dict(collate_fn=lambda b: b))"))
    check_held(RULE, text, "not-picklable")


def test_names_are_spelled_as_the_file_imports_them() -> None:
    """Aliases are used, and what is missing is imported."""
    body = 'if __name__ == "__main__":\n    for x in DataLoader(datasets.MNIST("x")):\n        print(x)\n'
    head = "from torch.utils.data import DataLoader\nfrom torchvision import datasets\n\n"
    result = run_transform(RULE, f"import torch as th\n{head}{body}")
    assert "num_workers=min(4 * th.cuda.device_count(), os.cpu_count() or 1)" in result.after.decode()
    assert "import os\n" in result.after.decode()
    assert "import torch\n" in run_transform(RULE, head + body).after.decode()


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        pytest.param("8", "8", id="a number"),
        pytest.param("args.workers", "args.workers", id="an option of the script"),
        pytest.param("os.cpu_count()", "os.cpu_count()", id="another call"),
    ],
)
def test_the_user_s_own_expression_is_written(expression: str, written: str) -> None:
    """The option replaces the rule's expression."""
    before = guarded(f"args = parse()\n{looped(f'DataLoader({MNIST})')}")
    after = guarded(f"args = parse()\n{looped(f'DataLoader({MNIST}, num_workers={written})')}")
    check_transformed(RULE, before, after, num_workers=expression)


def test_the_user_s_expression_must_mean_something() -> None:
    """A variable that the file does not have is no count."""
    check_held(RULE, guarded(looped(f"DataLoader({MNIST})")), "name-taken", num_workers="args.workers")


DISTRIBUTED = "torch.distributed.init_process_group('nccl')"


def test_program_with_a_process_per_gpu_gets_each_process_s_share() -> None:
    """Four workers a process are four a GPU."""
    main = f"{DISTRIBUTED}\n{looped('DataLoader(DATA)')}".replace("DATA", MNIST)
    check_transformed(RULE, guarded(main), guarded(main.replace(f"{MNIST})", f"{MNIST}, num_workers=4)")))


def test_process_per_gpu_is_seen_in_the_script_that_imports_the_loader() -> None:
    """The library file does not know, the program does."""
    library = f"{HEAD}\n\ndef make():\n    return DataLoader({MNIST})\n"
    main = f"import torch\nfrom data import make\n\nif __name__ == '__main__':\n    {DISTRIBUTED}\n    fit(make())\n"
    result = run_transform(RULE, library, path="data.py", modules={"main.py": main})
    assert f"DataLoader({MNIST}, num_workers=4)" in result.after.decode()


def test_whole_machine_s_count_in_every_process_becomes_a_share() -> None:
    """What was right for one process is too many for each of several."""
    before = f"{DISTRIBUTED}\n{looped(f'DataLoader({MNIST}, {COUNT})')}"
    check_transformed(RULE, guarded(before), guarded(before.replace(COUNT, "num_workers=4")))


def test_loader_of_another_file_s_dataset_is_fixed() -> None:
    """The project's other files are read."""
    sets = f"import numpy as np\nfrom torch.utils.data import Dataset\n\n\n{dataset()}"
    head = f"{HEAD}from sets import D\n"
    check_transformed(
        RULE,
        guarded(looped("DataLoader(D())")).replace(HEAD, head),
        guarded(looped(f"DataLoader(D(), {COUNT})")).replace(HEAD, head),
        modules={"sets.py": sets},
    )
    unfit = sets.replace("self.x[i] * 2", "self.x[i].cuda()")
    note = check_held(RULE, guarded(looped("DataLoader(D())")).replace(HEAD, head), "cuda-in-dataset", modules={"sets.py": unfit})
    assert note.reason is not None and "sets.py:" in note.reason.text


# Field cases ------------------------------------------------------------------------------------------------------


def test_f31_workers_without_a_main_guard() -> None:
    """A flat script is not given workers."""
    text = f"{HEAD}\ndl = DataLoader({MNIST}, batch_size=8)\nfor x, y in dl:\n    print(x.sum())\n"
    check_held(RULE, text, "no-main-guard")


def test_f33_dataset_that_returns_cuda_tensors() -> None:
    """A GPU touched in the constructor stops workers, though the loader's call says nothing of it."""
    text = """
        class D(Dataset):
            def __init__(self, x):
                self.x = x.cuda()

            def __len__(self):
                return len(self.x)

            def __getitem__(self, i):
                return self.x[i]
    """
    check_held(RULE, guarded(looped("DataLoader(D(torch.zeros(10, 3)), batch_size=2)"), text), "cuda-in-dataset")


def test_f35_counts_that_may_be_zero_are_the_user_s() -> None:
    """A count from a flag or a call stays, and no option that needs workers is added."""
    text = """
        def make(ds, args):
            return DataLoader(ds, batch_size=args.bs, num_workers=args.workers)

        def make2(ds, next_count):
            return DataLoader(ds, 8, num_workers=next_count())
    """
    check_noop(RULE, guarded("pass", text))


def test_f37_iterable_dataset_duplicated_by_every_worker() -> None:
    """An iterable dataset that does not divide its samples gets no workers."""
    text = """
        class Lines(IterableDataset):
            def __init__(self, path):
                self.path = path

            def __iter__(self):
                with open(self.path) as f:
                    yield from f

        def make(path):
            return DataLoader(Lines(path), batch_size=32)
    """
    check_held(RULE, guarded("pass", text), "iterable-dataset")


def test_f39_persistent_workers_freeze_the_dataset_s_epoch() -> None:
    """A loader with workers is left as it is: nothing is made to persist."""
    text = """
        def run(ds, step, epochs):
            dl = DataLoader(ds, batch_size=4, num_workers=2)
            for ep in range(epochs):
                dl.dataset.epoch = ep
                for b in dl:
                    step(b)
    """
    check_noop(RULE, guarded("pass", text))


def test_f41_shared_memory_too_small_for_the_new_workers() -> None:
    """The count is bound by the cores, nothing is prefetched beyond the default, and the note names the limit."""
    (note,) = changed(f"DataLoader({MNIST}, batch_size=2048, shuffle=True)", f"DataLoader({MNIST}, batch_size=2048, shuffle=True, {COUNT})")
    assert "os.cpu_count()" in COUNT
    assert "--shm-size" in " ".join(note.notes)


def test_f43_drop_last_on_a_small_dataset() -> None:
    """No loader is made to drop its last batch."""
    result = run_transform(RULE, guarded(looped(f"DataLoader({MNIST}, batch_size=1024, shuffle=True)")))
    assert b"drop_last" not in result.after


# The rewritten programs -------------------------------------------------------------------------------------------

SCRIPT = """\
import multiprocessing
import os
import sys
import zlib

import torch
from torch.utils.data import DataLoader, Dataset


class Cubes(Dataset):
    def __len__(self):
        return 11

    def __getitem__(self, index):
        return index, torch.tensor(float(index)) ** 3


def main():
    torch.manual_seed(7)
    loader = DataLoader(Cubes(), batch_size=4, shuffle=True)
    for epoch in range(int(sys.argv[2])):
        for indexes, cubes in loader:
            print(epoch, indexes.tolist(), cubes.tolist())
        print(zlib.crc32(torch.get_rng_state().numpy().tobytes()))


if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    main()
"""


@pytest.mark.parametrize(("method", "epochs"), [("fork", "2"), ("spawn", "1"), ("forkserver", "1")])
@pytest.mark.skipif(os.name == "nt", reason="Windows has one start method")
def test_workers_give_the_same_samples_and_leave_the_same_random_state(method: str, epochs: str, tmp_path: Path) -> None:
    """Without random numbers in the samples, order, values and the main generator's state are the same under every start method."""
    result = run_transform(RULE, SCRIPT, num_workers="1")
    assert b"num_workers=1" in result.after
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SCRIPT)
    after.write_bytes(result.after)
    assert run_on_cpu(after, method, epochs) == run_on_cpu(before, method, epochs)


def test_default_count_works_on_the_pretend_gpu_and_is_zero_without_one(tmp_path: Path) -> None:
    """With a GPU batches come from workers, without one from the training process, and both print the same."""
    state = "        print(zlib.crc32("
    text = (
        SCRIPT.replace("    multiprocessing.set_start_method(sys.argv[1])\n", "")
        .replace("int(sys.argv[2])", "1")
        .replace(state, f"        print(loader.num_workers > 0)\n{state}")
    )
    script = tmp_path / "after.py"
    script.write_bytes(run_transform(RULE, text).after)
    on_cpu = run_on_cpu(script)
    on_gpu, _ = run_on_fake_gpu(script)
    assert on_cpu.count("False") == on_gpu.count("True") == 1
    assert on_gpu.replace("True", "False") == on_cpu
