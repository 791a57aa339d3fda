"""What the tests of the command share: a folder to run in, toy rules, and the command itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import toys
from torchfix import registry
from torchfix.__main__ import main

SECONDS = 60
"""Within which a command that a test starts must have ended."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, and what it printed, as bytes and as text."""

    code: int
    out: bytes
    error: str

    @property
    def text(self) -> str:
        return self.out.decode()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of its own in which the test runs, with a state folder beside it."""
    here = tmp_path / "work"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return here


@pytest.fixture
def toy_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy rules are all the rules there are."""
    monkeypatch.setattr(registry, "discover", lambda: toys.TOYS)


@pytest.fixture
def torchfix(folder: Path, toy_rules: None, capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Ended]:
    """The command with the toy rules, run in this process."""

    def run(*words: str) -> Ended:
        capsysbinary.readouterr()
        code = main(list(words))
        printed = capsysbinary.readouterr()
        return Ended(code, printed.out, printed.err.decode("utf-8", "surrogateescape"))

    return run


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A folder that, on ``PYTHONPATH``, is an installed distribution with the toy rule as its entry point."""
    home = tmp_path / "plugin"
    info = home / "toys-1.0.dist-info"
    info.mkdir(parents=True)
    (home / "plugin_of_toys.py").write_text(Path(toys.__file__).read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchfix.transforms]\ntoy-size = plugin_of_toys:EXPLICIT\n")
    return home


@pytest.fixture
def torchfix_process(folder: Path, plugin: Path) -> Callable[..., Ended]:
    """The command in a process of its own, with the toy rule as a plugin beside our own rules."""

    def run(*words: str, **variables: str) -> Ended:
        command = [sys.executable, "-m", "torchfix", *words]
        path = os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, **variables}
        done = subprocess.run(command, capture_output=True, env=environment, timeout=SECONDS, check=False)
        return Ended(done.returncode, done.stdout, done.stderr.decode("utf-8", "surrogateescape"))

    return run


@pytest.fixture
def git(folder: Path) -> Callable[..., str]:
    """Git in the test's folder, with a name of its own and no settings of this machine's."""

    def run(*words: str) -> str:
        names = ["-c", "user.name=tests", "-c", "user.email=tests@example.org", "-c", "init.defaultBranch=main"]
        done = subprocess.run(["git", *names, *words], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=True)
        return done.stdout

    return run
