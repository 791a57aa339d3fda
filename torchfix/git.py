"""What git knows of some files: whether it could give their present text back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchfix.files import git_work_tree
from torchfix.usage import UsageError

_TIMEOUT = 120
"""Seconds in which git must answer."""

_AT_ONCE = 500
"""How many paths one command line carries."""


@dataclass(frozen=True)
class Custody:
    """Real paths by whether git holds their present text.

    Args:
        uncommitted: in a work tree, but changed, staged, untracked, ignored, or assumed unchanged without a look.
        outside: in no work tree.
    """

    uncommitted: tuple[str, ...]
    outside: tuple[str, ...]


def custody(paths: Sequence[str]) -> Custody:
    """Ask git about some real, absolute paths.

    Raises:
        UsageError: git is missing or cannot answer for a work tree.
    """
    trees: dict[str, list[str]] = {}
    outside = []
    for path in paths:
        tree = git_work_tree(os.path.dirname(path))
        if tree is None:
            outside.append(path)
        else:
            trees.setdefault(tree, []).append(path)
    uncommitted = [path for tree, held in trees.items() for path in _uncommitted(tree, held)]
    return Custody(tuple(uncommitted), tuple(outside))


def _uncommitted(tree: str, paths: Sequence[str]) -> Iterator[str]:
    relative = {os.path.relpath(path, tree).replace(os.sep, "/"): path for path in paths}
    names = sorted(relative)
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        listed = _ask(tree, ["ls-files", "-z", "-v", "--", *some])
        tracked = {entry[2:] for entry in listed if entry.startswith("H ")}  # other letters: git was told not to look at the file
        changed = {entry[3:] for entry in _ask(tree, ["status", "--porcelain", "-z", "--no-renames", "-uno", "--", *some])}
        yield from (relative[name] for name in some if name not in tracked or name in changed)


def _ask(tree: str, arguments: Iterable[str]) -> list[str]:
    """The null-separated answer of a git command; nothing that the repository configures is run for it."""
    command = ["git", "--literal-pathspecs", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", tree, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT, check=True)
    except FileNotFoundError as error:
        raise UsageError(f"git is not installed, so nobody knows whether the files under {tree} are committed") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"git gave no answer for {tree} within {_TIMEOUT} seconds") from error
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(f"git cannot say what is committed in {tree}: {words[0] if words else 'it gave no reason'}") from error
    return [os.fsdecode(entry) for entry in done.stdout.split(b"\0") if entry]
