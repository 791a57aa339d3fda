"""loader-pin-memory: which loaders stay unpinned, which are held and why, and that pinning changes no value."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix.result import Note
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "loader-pin-memory"
HEAD = """\
import numpy as np
import torch
from torch.autograd import Variable
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import datasets, transforms

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""
MNIST = "datasets.MNIST('data', transform=transforms.ToTensor())"
MOVE = "x.to(device)"


def script(loader: str, body: str = MOVE, *before: str) -> str:
    """A script that loops over a loader, behind some definitions."""
    definitions = "".join(f"\n{dedent(text).strip()}\n\n" for text in before)
    return f"{HEAD}{definitions}\nfor x, y in {loader}:\n{indent(dedent(body).strip(), '    ')}\n"


def dataset(sample: str = "return self.x[i], 0", make: str = "self.x = np.zeros((8, 3))") -> str:
    """A dataset class ``D``."""
    methods = f"def __init__(self):\n{indent(make, '    ')}\n\ndef __getitem__(self, i):\n{indent(sample, '    ')}\n"
    return f"class D(Dataset):\n{indent(methods, '    ')}"


def changed(before: str, after: str, body: str = MOVE, *definitions: str, **arguments: object) -> Note:
    """Check one loader whose batches go to the device."""
    (note,) = check_transformed(RULE, script(before, body, *definitions), script(after, body, *definitions), **arguments)
    return note


@pytest.mark.parametrize(
    ("loader", "body"),
    [
        pytest.param(f"DataLoader({MNIST}, pin_memory=True)", MOVE, id="pinned"),
        pytest.param(f"DataLoader({MNIST}, 8, False, None, None, 0, None, True)", MOVE, id="pinned by position"),
        pytest.param(f"DataLoader({MNIST}, pin_memory=args.pin)", MOVE, id="by a variable"),
        pytest.param(f"DataLoader({MNIST}, **options)", MOVE, id="hidden arguments"),
        pytest.param(f"DataLoader({MNIST}, pin_memory=False)", "print(x)", id="written out, not moved"),
        pytest.param(f"DataLoader({MNIST})", "print(x.numpy())", id="trap 6: read on the host"),
        pytest.param(f"DataLoader({MNIST})", 'x.to("cpu")', id="moved to the CPU"),
        pytest.param(f"DataLoader({MNIST})", 'x.to("mps")', id="MPS only"),
        pytest.param(f"DataLoader({MNIST})", 'x.to("xpu")', id="XPU only"),
        pytest.param(f"DataLoader({MNIST})", "x.to(torch.float16)", id="a cast"),
        pytest.param(f"DataLoader({MNIST})", "z = torch.tensor(x)\nz.to(device)", id="another tensor is moved"),
        pytest.param(f"MyLoader({MNIST})", MOVE, id="another class"),
    ],
)
def test_left_alone(loader: str, body: str) -> None:
    """A loader that is pinned, or whose batches are not copied to a GPU, yields nothing."""
    check_noop(RULE, script(loader, body))


def test_batches_that_only_the_cpu_sees_are_left_alone() -> None:
    """Without a GPU in the program pinned memory is only memory that cannot be swapped."""
    check_noop(RULE, script(f"DataLoader({MNIST})").replace('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"'))


def test_arrays_of_a_collate_function_are_left_alone() -> None:
    """What becomes a tensor in the loop was never pinned."""
    collate = "def collate(batch):\n    return np.stack([x for x, _ in batch]), [y for _, y in batch]"
    check_noop(RULE, script(f"DataLoader({MNIST}, collate_fn=collate)", "torch.from_numpy(x).to(device)", collate))


@pytest.mark.parametrize(
    ("sample", "make", "code"),
    [
        pytest.param("return self.x[i].cuda(), 0", "self.x = torch.zeros(8)", "cuda-in-dataset", id="trap 1: sample on the GPU"),
        pytest.param("return self.x[i], 0", "self.x = torch.zeros(8).to(device)", "cuda-in-dataset", id="trap 1: data on the GPU"),
        pytest.param("return self.x[i].to_sparse(), 0", "self.x = torch.zeros(8, 3)", "sparse-batch", id="trap 2: sparse"),
        pytest.param("return self.t(self.x[i]), 0", "self.t = given", "dataset-unseen", id="transform out of sight"),
        pytest.param("return self.x[i], 0", "self.x = given()", "data-unseen", id="data out of sight"),
    ],
)
def test_held_for_what_the_dataset_gives(sample: str, make: str, code: str) -> None:
    """Tensors that cannot be pinned, or may be such, are held with the line that speaks against them."""
    note = check_held(RULE, script("DataLoader(D())", MOVE, dataset(sample, make)), code)
    assert note.reason is not None
    assert "train.py:" in note.reason.text


@pytest.mark.parametrize(
    ("loader", "code"),
    [
        pytest.param(
            "DataLoader(TensorDataset(torch.zeros(8).cuda(), torch.zeros(8)))", "cuda-in-dataset", id="trap 1: tensors on the GPU"
        ),
        pytest.param("DataLoader(unknown)", "dataset-unseen", id="unknown dataset"),
        pytest.param(f"DataLoader({MNIST}, collate_fn=unknown)", "dataset-unseen", id="unknown collate function"),
    ],
)
def test_held_for_the_loader_s_arguments(loader: str, code: str) -> None:
    """What the call itself gives is judged too."""
    check_held(RULE, script(loader), code)


def test_data_of_unknown_make_is_held() -> None:
    """A caller out of sight may hand tensors of the GPU over."""
    text = f"{HEAD}\n\ndef run(x, y):\n    for a, b in DataLoader(TensorDataset(x, y)):\n        a.to(device)\n"
    check_held(RULE, text, "data-unseen")


def test_explicit_false_is_held() -> None:
    """Somebody wrote it out, so nobody but the user takes it away."""
    check_held(RULE, script(f"DataLoader({MNIST}, pin_memory=False)"), "explicit")
    check_held(RULE, script(f"DataLoader({MNIST}, 8, False, None, None, 0, None, False)"), "explicit")


@pytest.mark.parametrize(
    "collate",
    [
        pytest.param("class Batch(dict): ...\n\ndef collate(batch):\n    return Batch(batch)", id="trap 4: own dictionary"),
        pytest.param("class Batch: ...\n\ndef collate(batch):\n    result = Batch()\n    return result", id="trap 3: own class"),
        pytest.param("BUFFER = {}\n\ndef collate(batch):\n    BUFFER['x'] = batch\n    return BUFFER", id="trap 5: kept buffer"),
    ],
)
def test_traps_3_to_5_batches_of_own_classes_are_held(collate: str) -> None:
    """torch pins tensors in plain containers, rebuilds other ones, and copies what the program keeps."""
    check_held(RULE, script(f"DataLoader({MNIST}, collate_fn=collate)", MOVE, collate), "custom-batch")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("from multiprocessing import Pool\n\nPool(2).map(work, jobs)", id="pool"),
        pytest.param("import multiprocessing\n\nmultiprocessing.Process(target=work).start()", id="process"),
        pytest.param("from concurrent.futures import ProcessPoolExecutor\n\nProcessPoolExecutor().submit(work)", id="executor"),
    ],
)
def test_trap_7_processes_started_beside_the_loader_are_held(line: str) -> None:
    """Pinning uses CUDA in the main process, after which a fork cannot."""
    check_held(RULE, script(f"DataLoader({MNIST})", MOVE, line), "forks-later")


def test_trap_8_process_per_gpu_without_a_device_of_its_own_is_held() -> None:
    """Every process would open a context on the first GPU."""
    check_held(RULE, script(f"DataLoader({MNIST})", MOVE, "torch.distributed.init_process_group('nccl')"), "set-device-missing")


def test_process_per_gpu_that_selects_its_device_is_fixed() -> None:
    """Each process pins through its own GPU."""
    line = "torch.distributed.init_process_group('nccl')\ntorch.cuda.set_device(rank)"
    changed(f"DataLoader({MNIST})", f"DataLoader({MNIST}, pin_memory=True)", MOVE, line)


@pytest.mark.parametrize("line", ["from accelerate import Accelerator", "import pytorch_lightning"])
def test_loader_of_a_framework_is_held(line: str) -> None:
    """The framework moves the batches by its own code."""
    check_held(RULE, script(f"DataLoader({MNIST})", MOVE, line), "framework-owned")


def test_pinning_is_exact() -> None:
    """No effect and no note: the same values in other memory; what it costs is in the reasoning."""
    note = changed(f"DataLoader({MNIST}, batch_size=8)", f"DataLoader({MNIST}, batch_size=8, pin_memory=True)")
    assert note.risk == "exact"
    assert note.effects == ()
    assert note.message == "batches are copied from pageable memory"
    assert "page-locked" in note.because
    assert "train.py:" in note.because


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("x = x.cuda()", id="cuda"),
        pytest.param("x, y = x.to(device), y.to(device)", id="to a device"),
        pytest.param("x = x.to(device, non_blocking=True)", id="non blocking"),
        pytest.param("x = Variable(x).cuda()", id="variable"),
        pytest.param("x = Variable(x.type(Tensor))", id="tensor type chosen once"),
        pytest.param("x = x.view(-1, 784).to(device)", id="view"),
        pytest.param("x = x.to(torch.accelerator.current_accelerator())", id="whichever accelerator"),
    ],
)
def test_batches_are_followed_to_the_copy(body: str) -> None:
    """Each honest way of moving a batch counts."""
    kind = "Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor"
    changed(f"DataLoader({MNIST})", f"DataLoader({MNIST}, pin_memory=True)", body, kind)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param("TensorDataset(torch.zeros(8, 3), torch.zeros(8))", id="tensors in memory"),
        pytest.param("D()", id="own dataset"),
        pytest.param("datasets.ImageFolder('data', transforms.ToTensor())", id="images"),
        pytest.param("torch.utils.data.random_split(datasets.MNIST('data'), [8, 2])[0]", id="part of a dataset"),
    ],
)
def test_datasets_on_the_cpu_are_pinned(made: str) -> None:
    """What is seen to stay on the CPU is fit."""
    changed(f"DataLoader({made})", f"DataLoader({made}, pin_memory=True)", MOVE, dataset())


def test_loop_in_another_file_counts() -> None:
    """The engine's loop moves the batches of the script's loader."""
    engine = "def run(loader, device):\n    for x, y in loader:\n        x.to(device)\n"
    before = f"{HEAD}import engine\n\nengine.run(DataLoader({MNIST}), device)\n"
    check_transformed(RULE, before, before.replace(f"{MNIST})", f"{MNIST}, pin_memory=True)"), modules={"engine.py": engine})


def test_trainer_in_another_file_counts() -> None:
    """A class over there keeps the loaders, of which one may be missing, and moves the entries of their batches."""
    trainer = """
        import torch
        from tqdm import tqdm


        class Trainer:
            def __init__(self, train_loader, test_loader=None):
                self.device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
                self.train_loader, self.test_loader = train_loader, test_loader

            def train(self):
                self.run(self.train_loader)

            def test(self):
                self.run(self.test_loader)

            def run(self, loader):
                for i, batch in tqdm(enumerate(loader)):
                    batch = {key: value.to(self.device) for key, value in batch.items()}
    """
    main = f"from trainer import Trainer\n\ntrain = DataLoader({MNIST})\ntest = DataLoader({MNIST}) if given else None\n"
    before = f"{HEAD}{main}trainer = Trainer(train, test)\ntrainer.train()\ntrainer.test()\n"
    check_transformed(RULE, before, before.replace(f"{MNIST})", f"{MNIST}, pin_memory=True)"), modules={"trainer.py": trainer})


def test_dictionary_of_other_settings_is_left_alone() -> None:
    """What a dictionary gives is given; what it does not give is written into the call."""
    changed(f"DataLoader({MNIST}, **dict(num_workers=2))", f"DataLoader({MNIST}, pin_memory=True, **dict(num_workers=2))")
    check_noop(RULE, script(f"DataLoader({MNIST}, **dict(pin_memory=True))"))
    check_held(RULE, script(f"DataLoader({MNIST}, **dict(pin_memory=False))"), "explicit")


OWN = "x = torch.zeros(8, 3)\ndata = TensorDataset(x, x)"


@pytest.mark.parametrize(
    "write",
    [
        pytest.param("x += 1\ny.to(device)", id="added to"),
        pytest.param("x.mul_(2)", id="method in place"),
        pytest.param("x.float().mul_(2)", id="method in place on what may be the same tensor"),
        pytest.param("x[0] = 1", id="element"),
        pytest.param("x.data[0] = 1", id="element of its data"),
        pytest.param("x.numpy()[0] = 1", id="element of its array"),
        pytest.param("a = x.view(-1).numpy()\na[0] = 1", id="element of its array by another name"),
        pytest.param("z = x.to('cpu')\nz.zero_()", id="tensor that stays on the host"),
        pytest.param("torch.add(x, 1, out=x)", id="out"),
        pytest.param("torch.nn.init.zeros_(x)", id="function in place"),
        pytest.param("torch.relu(x).to(device)\nscale(x)", id="in a function that it is handed to"),
        pytest.param("x.to(device)\nx.zero_()", id="behind the copy"),
    ],
)
def test_batch_that_is_the_datasets_own_tensor_and_is_written_into_is_held(write: str) -> None:
    """Without automatic batching a write into the batch reaches the dataset; a pinned batch is a copy, and it would not."""
    scale = "def scale(t):\n    t.mul_(2)"
    note = check_held(RULE, script("DataLoader(data, batch_size=None)", f"{write}\n{MOVE}", OWN, scale), "batch-written-into")
    assert note.reason is not None
    assert "train.py:" in note.reason.text
    assert "clone" in note.reason.help
    check_held(RULE, script("DataLoader(data, collate_fn=lambda b: b[0])", f"{write}\n{MOVE}", OWN, scale), "batch-written-into")


def test_entry_of_an_unbatched_dictionary_that_is_written_into_is_held() -> None:
    """The dictionary is made anew for every batch, its tensors are not."""
    for write in ("batch['x'] += 1", "batch['x'].mul_(2)", "for k, v in batch.items():\n        v.mul_(2)"):
        text = f"for batch in DataLoader(D(), batch_size=None):\n    {write}\n    batch['x'] = batch['x'].to(device)\n"
        sets = dataset("return {'x': self.x[i]}", "self.x = torch.zeros(8, 3)")
        check_held(RULE, f"{HEAD}\n{sets}\n\n{text}", "batch-written-into")
        unwritten = f"{HEAD}\n{sets}\n\n{text.replace(write, 'pass')}"
        assert b"pin_memory=True" in run_transform(RULE, unwritten).after


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        pytest.param("batch_size=None", MOVE, id="not written into"),
        pytest.param("batch_size=None", "x = x.to(device)\nx.mul_(2)", id="the copy on the device"),
        pytest.param("batch_size=None", "z = x.clone()\nz.mul_(2)\nx.to(device)", id="a copy on the host"),
        pytest.param("batch_size=None", "x = x * 2\nx += 1\ny.to(device)", id="another tensor of that name"),
        pytest.param("batch_size=4", f"x.mul_(2)\n{MOVE}", id="batch that is stacked"),
        pytest.param("batch_size=None, num_workers=2", f"x.mul_(2)\n{MOVE}", id="batch that a worker sends"),
    ],
)
def test_write_that_never_reached_the_dataset_is_no_obstacle(arguments: str, body: str) -> None:
    """A stacked batch, one from a worker, and a copy are other memory than the dataset's anyway."""
    changed(f"DataLoader(data, {arguments})", f"DataLoader(data, {arguments}, pin_memory=True)", body, OWN)


def test_workers_that_live_on_are_not_pinned_before_torch_1_9() -> None:
    """Older releases fail as their second epoch begins."""
    text = script(f"DataLoader({MNIST}, num_workers=2, persistent_workers=True)")
    check_held(RULE, text, "pinned-restart", torch=(1, 8))
    assert b"pin_memory=True" in run_transform(RULE, text, torch=(1, 9)).after


def test_f33_dataset_that_returns_cuda_tensors() -> None:
    """A GPU touched in the constructor stops pinning too."""
    text = """
        class D(Dataset):
            def __init__(self, x):
                self.x = x.cuda()

            def __len__(self):
                return len(self.x)

            def __getitem__(self, i):
                return self.x[i], i
    """
    check_held(RULE, script("DataLoader(D(torch.zeros(10, 3)), batch_size=2)", MOVE, text), "cuda-in-dataset")


SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Lines(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        x = torch.tensor([float(index % 5), 1.0])
        return {"x": x, "y": 2 * x[:1] - 1}


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(Lines(), batch_size=4, shuffle=True)
    model = nn.Linear(2, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for batch in loader:
            x, y = batch["x"].to(device), batch["y"].to(device)
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(repr(loss.item()))


if __name__ == "__main__":
    main()
"""


def test_pinned_training_prints_the_same_on_both_devices(tmp_path: Path) -> None:
    """Bit for bit, on the CPU and on the pretend GPU, where batches are pinned now."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SCRIPT)
    after.write_bytes(run_transform(RULE, SCRIPT).after)
    assert "pin_memory=True" in after.read_text()
    assert run_on_cpu(after) == run_on_cpu(before)
    printed, counts = run_on_fake_gpu(before)
    printed_pinned, counts_pinned = run_on_fake_gpu(after)
    assert printed_pinned == printed
    assert counts["pin"] == 0
    assert counts_pinned["pin"] == 2 * 6 * 2  # epochs, batches, tensors
    assert counts_pinned["h2d"] == counts["h2d"]
