"""The training scripts of ``examples/`` run as a user would run them, and print the same numbers every time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import ROOT, ScriptFailed, run_on_cpu, run_on_fake_gpu

EXAMPLES = ROOT / "examples"

CHOOSE_THEIR_DEVICE = [
    "accumulation",
    "classifier",
    "create_on_device",
    "data_parallel",
    "loaders",
    "mixed_precision",
    "non_blocking",
]
"""Scripts that take CUDA where there is one, and the CPU elsewhere."""

NEED_CUDA = ["hard_coded_cuda"]

UP_TO_ROUNDING = {"accumulation", "create_on_device"}
"""Attention and recurrent layers, which PyTorch computes in another order on a device than on the CPU."""


def before(name: str) -> Path:
    """The script of an example as its author wrote it."""
    return EXAMPLES / name / "before.py"


def test_every_example_is_run_here() -> None:
    """No example is left out of these tests."""
    assert sorted(path.parent.name for path in EXAMPLES.glob("*/before.py")) == sorted(CHOOSE_THEIR_DEVICE + NEED_CUDA)


@pytest.mark.parametrize("name", CHOOSE_THEIR_DEVICE)
def test_a_script_that_chooses_its_device_trains_on_both(name: str, tmp_path: Path) -> None:
    """The CPU and the pretend GPU train alike; where no operator depends on the device, the printed numbers are equal."""
    on_cpu = run_on_cpu(before(name), cwd=tmp_path)
    on_gpu, counts = run_on_fake_gpu(before(name), cwd=tmp_path)
    assert counts["h2d"] > 0
    if name in UP_TO_ROUNDING:
        assert len(on_gpu.splitlines()) == len(on_cpu.splitlines())
    else:
        assert on_gpu == on_cpu


@pytest.mark.parametrize("name", NEED_CUDA)
def test_a_script_that_hard_codes_cuda_trains_on_the_fake_gpu_only(name: str, tmp_path: Path) -> None:
    """Such a script fails without CUDA and prints the same numbers twice with it."""
    with pytest.raises(ScriptFailed, match="not compiled with CUDA|not linked with support for cuda"):
        run_on_cpu(before(name), cwd=tmp_path)
    first, second = (run_on_fake_gpu(before(name), cwd=tmp_path) for _ in range(2))
    assert first == second


def test_the_classifier_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """A run resumed from its checkpoint starts at the next epoch, with the best accuracy so far."""
    run_on_cpu(before("classifier"), "--epochs", "1", cwd=tmp_path)
    resumed = run_on_cpu(before("classifier"), "--epochs", "2", "--resume", "checkpoint.pt", cwd=tmp_path)
    assert [line.split(":")[0] for line in resumed.splitlines()][:2] == ["resumed after epoch 1", "epoch 2"]
