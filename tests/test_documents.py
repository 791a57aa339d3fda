"""The documents say what is true: every module on the plan of the house, every group of rules in the README, every sample real."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchfix import registry

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SECONDS = 60


def blocks(language: str) -> list[str]:
    """The README's code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def torchfix(*words: str) -> str:
    """What the command prints on standard output, run at the top of this checkout."""
    command = [sys.executable, "-m", "torchfix", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False).stdout


def test_every_module_is_on_the_plan_of_the_house() -> None:
    """ARCHITECTURE.md names each module of the driver once, and no module that is not there."""
    listed = re.findall(r"^\| `(torchfix/[\w/]+\.py)` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "torchfix").rglob("*.py"))


def test_every_group_is_in_the_readme() -> None:
    """The table of groups names each group once, and no group that is not there."""
    table = README[README.index("| group |") :].partition("\n\n")[0]
    groups = {rule.group for rule in registry.discover()}
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == sorted(groups)


def test_the_readmes_patch_is_real() -> None:
    """Every piece of the sample patch stands in what the first command prints, in its order."""
    printed = torchfix("--diff", "examples/classifier/before.py")
    (sample,) = blocks("diff")
    place = 0
    for piece in sample.split("...\n"):
        place = printed.find(piece, place)
        assert place >= 0, piece


def test_the_readmes_held_finding_is_real(tmp_path: Path) -> None:
    """The sample of a held finding is what the plain run prints for such a file."""
    (sample,) = blocks("text")
    (tmp_path / "train.py").write_text((ROOT / "tests" / "samples" / "held.py").read_text())
    command = [sys.executable, "-m", "torchfix", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.stdout == sample


@pytest.mark.parametrize("line", [line for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")])
def test_the_readmes_other_commands_run(line: str, tmp_path: Path) -> None:
    """Each command of the overview ends well in a folder with a training script."""
    (tmp_path / "train.py").write_text((ROOT / "examples" / "mixed_precision" / "before.py").read_text())
    words = line.removeprefix("$ ").partition("#")[0].partition(">")[0].split()
    assert words[0] == "torchfix"
    done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode in (0, 1), done.stderr


def test_the_readmes_configuration_is_accepted(tmp_path: Path) -> None:
    """The sample configuration has no unknown key."""
    (sample,) = blocks("toml")
    (tmp_path / "pyproject.toml").write_text(sample)
    (tmp_path / "train.py").write_text("import torch\n")
    done = subprocess.run([sys.executable, "-m", "torchfix"], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
