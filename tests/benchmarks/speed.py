"""How long torchfix takes for many training files, in relation to parsing the same files with LibCST at the same moment.

A script, not a test: ``python tests/benchmarks/speed.py [copies]`` copies our own examples that many times into a project and
prints the processor time of both and their ratio, which says more than seconds on a machine that others use too.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
PARSE = """
import ast, pathlib, libcst
for path in pathlib.Path(".").rglob("*.py"):
    ast.parse(path.read_text()), libcst.parse_module(path.read_text())
"""
FOUND = (0, 1)  # nothing found, and something found


def project(folder: Path, copies: int) -> int:
    """Lay every example out a number of times, each in a folder of its own; the number of files."""
    for example in sorted(EXAMPLES.glob("*/before.py")):
        for number in range(copies):
            home = folder / f"{example.parent.name}_{number}"
            home.mkdir()
            shutil.copy(example, home / "train.py")
    return len(list(folder.rglob("*.py")))


def processor_time(command: list[str], folder: Path) -> float:
    """The user time in seconds that a command takes in a folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, timeout=3600)
    if done.returncode not in FOUND:
        raise SystemExit(f"{command[:4]} ended with {done.returncode}")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main(copies: int) -> None:
    """Measure once and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = project(folder, copies)
        parsing = processor_time([sys.executable, "-c", PARSE], folder)
        fixing = processor_time([sys.executable, "-m", "torchfix", "--jobs", "1", "--quiet", "."], folder)
        print(f"{files} files: torchfix {fixing:.1f} s, parsing {parsing:.1f} s, ratio {fixing / parsing:.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
