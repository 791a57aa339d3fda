"""Running training scripts as a user would: in a process of their own, on the CPU, on the pretend GPU, or as two ranks.

Each function returns what the script printed and raises ``ScriptFailed`` when it ends badly or not in time; what it started is
gone afterwards. Real GPUs are hidden and one thread is used, so that numbers can be compared to the last bit.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

_LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SECONDS_TO_STOP = 10


def skip_on_cuda_build() -> None:
    """Skip the test that runs where torch has CUDA kernels of its own, which the pretend device cannot stand in for."""
    import torch

    if torch.version.cuda is not None:
        pytest.skip("the pretend CUDA device needs a CPU build of torch")


class ScriptFailed(AssertionError):
    """A script ended with an error or ran out of time. ``stdout`` and ``stderr`` are what it had printed until then."""

    def __init__(self, reason: str, stdout: str, stderr: str) -> None:
        super().__init__(f"{reason}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
        self.stdout = stdout
        self.stderr = stderr


def run_on_cpu(path: Path, *args: str, timeout: float = 60, cwd: Path | None = None) -> str:
    """Run ``python path ARGS`` in ``cwd`` (default: the script's folder) for at most ``timeout`` seconds; its standard output."""
    return _run([sys.executable, str(path), *args], timeout, cwd or path.parent)


def run_on_fake_gpu(
    path: Path, *args: str, timeout: float = 60, cwd: Path | None = None, capability: str = "8.0"
) -> tuple[str, collections.Counter[str]]:
    """Run a script where ``cuda`` is the pretend device of that compute capability; its standard output and the device's counts."""
    skip_on_cuda_build()
    command = [sys.executable, "-m", "tests.fakegpu", "--capability", capability, str(path), *args]
    printed = _run(command, timeout, cwd or path.parent, PYTHONPATH=str(ROOT))
    *lines, last = printed.splitlines(keepends=True)
    return "".join(lines), collections.Counter(json.loads(last)["fakegpu"])


def run_two_processes(path: Path, *args: str, timeout: float = 90, cwd: Path | None = None) -> str:
    """Run a script under ``torchrun`` as two ranks on this machine; the standard output of both."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    return _run([sys.executable, *launcher, str(path), *args], timeout, cwd or path.parent)


def _run(command: list[str], timeout: float, cwd: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in _LAUNCHER_VARIABLES}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        stdout, stderr = _stop(process)
        raise ScriptFailed(f"{command} was still running after {timeout} seconds", stdout, stderr) from None
    if process.returncode:
        raise ScriptFailed(f"{command} ended with {process.returncode}", stdout, stderr)
    return stdout


def _stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a process group, politely first: torchrun's ranks live in process groups of their own, which only torchrun knows."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=_SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()
