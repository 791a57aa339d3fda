"""The training scripts of ``examples/`` run as a user would run them, and print the same numbers every time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import ROOT, ScriptFailed, run_on_cpu, run_on_fake_gpu, run_two_processes

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


def rewritten(name: str) -> Path:
    """The script of an example as torchfix rewrites it."""
    return EXAMPLES / name / "after.py"


@pytest.mark.parametrize("name", CHOOSE_THEIR_DEVICE + NEED_CUDA)
def test_the_rewrite_is_the_expected_file(name: str) -> None:
    """What the command makes of a script, in its own place, is the file beside it, to the byte; of that file it makes nothing more."""
    source = before(name)
    where = source.relative_to(ROOT).as_posix()
    assert fixed(source.read_bytes(), where) == rewritten(name).read_bytes()
    assert fixed(rewritten(name).read_bytes(), where) == rewritten(name).read_bytes()


def fixed(data: bytes, where: str, *options: str) -> bytes:
    """What the command prints for a text that it is told to take for the file ``where``."""
    command = [sys.executable, "-m", "torchfix", *options, "-", "--stdin-filename", where]
    done = subprocess.run(command, input=data, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def with_new_workers(name: str, folder: Path, *without: str) -> Path:
    """An example as torchfix rewrites it when workers are to end with each epoch, so that no random number changes."""
    source = before(name)
    path = folder / "new_workers.py"
    left_out = [word for rule in ("loader-persistent", *without) for word in ("--ignore", rule)]
    path.write_bytes(fixed(source.read_bytes(), source.relative_to(ROOT).as_posix(), *left_out))
    return path


@pytest.mark.parametrize("name", CHOOSE_THEIR_DEVICE)
def test_without_cuda_the_rewrite_trains_as_before_to_the_last_bit(name: str, tmp_path: Path) -> None:
    """On a machine without CUDA both files print the same numbers, those of later epochs where workers do not live on."""
    expected = run_on_cpu(before(name), cwd=tmp_path)
    assert run_on_cpu(with_new_workers(name, tmp_path), cwd=tmp_path) == expected
    assert run_on_cpu(rewritten(name), cwd=tmp_path).splitlines()[0] == expected.splitlines()[0]


@pytest.mark.parametrize(("name", "capability"), [*((name, "8.0") for name in CHOOSE_THEIR_DEVICE + NEED_CUDA), ("mixed_precision", "7.0")])
def test_with_cuda_the_rewrite_trains_too(name: str, capability: str, tmp_path: Path) -> None:
    """On the pretend GPU, with bfloat16 or with float16 and a scaler, it prints as many lines, and its last losses are numbers."""
    printed, counts = run_on_fake_gpu(rewritten(name), cwd=tmp_path, capability=capability)
    plain, plain_counts = run_on_fake_gpu(before(name), cwd=tmp_path, capability=capability)
    assert len(printed.splitlines()) == len(plain.splitlines())
    assert "nan" not in printed
    assert counts["d2h_non_blocking"] == 0
    assert counts["h2d"] <= plain_counts["h2d"]


EXACT = ["loaders"]
"""Scripts in which nothing but loading, copying and the optimizer's kernel changes."""


@pytest.mark.parametrize("name", EXACT)
def test_with_cuda_an_exact_rewrite_trains_as_before_to_the_last_bit(name: str, tmp_path: Path) -> None:
    """Pinned memory, copies that do not wait and workers change no number, and the copies do come from pinned memory."""
    printed, counts = run_on_fake_gpu(with_new_workers(name, tmp_path, "fused-optimizer"), cwd=tmp_path)
    assert printed == run_on_fake_gpu(before(name), cwd=tmp_path)[0]
    assert counts["pin"] > 0
    assert counts["h2d_non_blocking"] > 0


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """The distributed rewrite, started by torchrun, prints the losses of one process up to rounding, and once."""
    one = numbers(run_on_cpu(rewritten("data_parallel"), cwd=tmp_path))
    two = numbers(run_two_processes(rewritten("data_parallel"), cwd=tmp_path))
    assert len(one) == len(two) > 0
    assert two == pytest.approx(one, abs=1e-6)


def test_two_processes_go_on_from_an_old_checkpoint(tmp_path: Path) -> None:
    """Weights that the script saved before its rewrite load in both processes, and training goes on."""
    run_on_cpu(before("classifier"), "--epochs", "1", cwd=tmp_path)
    resumed = run_two_processes(rewritten("classifier"), "--epochs", "2", "--resume", "checkpoint.pt", cwd=tmp_path)
    assert [line.split(":")[0] for line in resumed.splitlines()][:2] == ["resumed after epoch 1", "epoch 2"]


def numbers(printed: str) -> list[float]:
    """The numbers with a decimal point that a script printed."""
    return [float(word) for word in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", printed)]
