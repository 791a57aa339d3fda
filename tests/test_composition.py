"""Rules on the same program in one run: what one writes must suit the others, and what one gives up the others must not break."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.engine import EngineSettings, fix
from torchfix.facts.project.declarations import Declarations
from torchfix.facts.project.project import Project
from torchfix.facts.project.versions import Range
from torchfix.result import Outcome, Result
from torchfix.transform import Selected

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

"""
TRAIN = """\


class Data(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        self.x, self.y = torch.randn(32, 8, generator=generator), torch.randint(0, 3, (32,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Data(), batch_size=4)
    for epoch in range(2):
        running = 0.0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            running += loss.item()
        print(repr(running))


if __name__ == "__main__":
    main()
"""


def together(text: str) -> Result:
    """What all rules of a plain run make of a script; a second run must find nothing more to change."""
    selected = [Selected(transform, transform.options()) for transform in registry.select(registry.discover(), (), ())]
    project = Project.of_texts({"train.py": text}, Declarations(Range(None)))
    result = fix("train.py", text.encode(), project, selected, EngineSettings(format="off"))
    assert result.outcome is not Outcome.FAILED, result.reason
    after = result.after
    again = fix(
        "train.py", after, Project.of_texts({"train.py": after.decode()}, Declarations(Range(None))), selected, EngineSettings(format="off")
    )
    assert again.after == after, again.after.decode()
    return result


def after_of(text: str) -> str:
    """The script that all rules leave."""
    return together(text).after.decode()


def reasons(text: str) -> set[tuple[str, str]]:
    """The rules that hold something, each with its reason."""
    return {(note.rule, note.reason.code) for note in together(text).notes if note.reason is not None}


def test_a_plain_loop_gets_everything_and_trains_the_same(tmp_path: Path) -> None:
    """Pinned memory, copies that do not wait, mixed precision, one kernel, and a total on the device that is exact."""
    after = after_of(HEAD + TRAIN)
    for words in (
        "pin_memory=",
        "non_blocking=True",
        "torch.autocast(",
        "scaler.step(optimizer)",
        'fused=device.type == "cuda"',
        ".double()",
    ):
        assert words in after, words
    paths = tmp_path / "before.py", tmp_path / "after.py"
    for path, text in zip(paths, (HEAD + TRAIN, after)):
        path.write_text(text)
    assert run_on_cpu(paths[0]) == run_on_cpu(paths[1])
    old, new = ([float(line) for line in run_on_fake_gpu(path, capability="8.0")[0].split()] for path in paths)
    assert new == pytest.approx(old, rel=2e-2)


def test_fused_optimizer_and_scaler_unscale_where_gradients_are_read() -> None:
    """A fused step leaves gradients scaled, so that a reader behind it needs true ones before."""
    text = HEAD + TRAIN.replace("            running +=", "            print(model[0].weight.grad.norm())\n            running +=")
    after = after_of(text)
    assert "fused=" in after
    assert after.index("scaler.unscale_(optimizer)") < after.index("scaler.step(optimizer)") < after.index("weight.grad.norm()")


def test_lasting_workers_are_refused_where_the_dataset_is_told_its_epoch() -> None:
    """Workers that live on never see the change."""
    text = HEAD + TRAIN.replace("        running = 0.0\n", "        running = 0.0\n        loader.dataset.epoch = epoch\n")
    after = after_of(text)
    assert "persistent_workers" not in after


def test_a_dataset_on_the_gpu_gets_neither_workers_nor_pinned_memory() -> None:
    """Each of the two would crash in its own way."""
    text = HEAD + TRAIN.replace("return self.x[i], self.y[i]", "return self.x[i].cuda(), self.y[i].cuda()")
    after = after_of(text)
    assert "num_workers" not in after
    assert "pin_memory" not in after


def test_totals_under_half_precision_are_kept_in_float64() -> None:
    """The total is exact although the forward pass is half precision."""
    after = after_of(HEAD + TRAIN)
    assert "torch.autocast(" in after
    assert "loss.detach().double()" in after


def test_data_parallel_never_meets_bfloat16() -> None:
    """Its threads would compute in float16, whatever the region says."""
    text = HEAD + TRAIN.replace("nn.Linear(16, 3)).to(device)", "nn.Linear(16, 3)).to(device)\n    model = nn.DataParallel(model)")
    after = after_of(text.replace("print(repr(running))", "print(repr(running))\n        torch.save(model, 'last.pt')"))
    assert "nn.DataParallel(model)" in after  # a whole network in a file keeps its wrapper
    assert "dtype=torch.float16" in after
    assert "bfloat16" not in after


def test_gradients_that_are_read_after_clearing_stay_tensors() -> None:
    """Dropped gradients would be None there."""
    text = TRAIN.replace("            optimizer.zero_grad()\n", "")
    text = text.replace(
        "            running +=",
        "            optimizer.zero_grad(set_to_none=False)\n            print(model[0].weight.grad.sum())\n            running +=",
    )
    assert "zero_grad(set_to_none=False)" in after_of(HEAD + text)


def test_mixed_precision_takes_the_place_of_tensorfloat32() -> None:
    """One of the two in a run, the one that gains more."""
    after = after_of(HEAD + TRAIN)
    assert "torch.autocast(" in after
    assert "set_float32_matmul_precision" not in after


def test_where_mixed_precision_is_held_tensorfloat32_is_what_is_left() -> None:
    """With its own note, and the reason stands beside it."""
    text = HEAD + TRAIN.replace("optimizer.step()", "optimizer.step(lambda: loss)")
    assert ("amp-loop", "closure") in reasons(text)
    assert 'torch.set_float32_matmul_precision("high")' in after_of(text)
