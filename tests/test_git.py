"""What git says of files that are about to be written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from torchfix.git import custody
from torchfix.usage import UsageError


@pytest.fixture
def tree(folder: Path, git: Callable[..., str]) -> Path:
    """A work tree with one commit of two files."""
    git("init", "-q")
    for name in ("a.py", "sub/b.py"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x = 1\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return folder


def uncommitted(tree: Path, *names: str) -> list[str]:
    return [os.path.relpath(path, tree) for path in custody([str(tree / name) for name in names]).uncommitted]


def test_committed_files_are_safe(tree: Path) -> None:
    """Files whose text is that of the last commit can be had back."""
    assert custody([str(tree / "a.py"), str(tree / "sub" / "b.py")]).uncommitted == ()
    assert custody([str(tree / "a.py")]).outside == ()


def test_another_file_with_changes_does_not_matter(tree: Path) -> None:
    """Only the files in question are judged, not the whole work tree."""
    (tree / "a.py").write_text("x = 2\n")

    assert uncommitted(tree, "sub/b.py") == []


def test_no_files_ask_nobody(folder: Path) -> None:
    """Without files git is not even started."""
    assert custody([]).uncommitted == ()


def test_changed_staged_untracked_and_ignored_files_are_not(tree: Path, git: Callable[..., str]) -> None:
    """Whatever the last commit does not hold would be lost."""
    (tree / ".gitignore").write_text("ignored.py\nhidden/\n")
    (tree / "hidden").mkdir()
    for name in ("a.py", "sub/b.py", "new.py", "added.py", "ignored.py", "hidden/c.py"):
        (tree / name).write_text("x = 2\n")
    git("add", "sub/b.py", "added.py")

    names = ["a.py", "added.py", "hidden/c.py", "ignored.py", "new.py", "sub/b.py"]

    assert uncommitted(tree, *names) == names


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_files_that_git_was_told_not_to_look_at_are_not(tree: Path, git: Callable[..., str], flag: str) -> None:
    """Git calls such a file unchanged whatever it holds."""
    git("update-index", flag, "a.py")
    (tree / "a.py").write_text("x = 2\n")

    assert uncommitted(tree, "a.py", "sub/b.py") == ["a.py"]


def test_names_that_look_like_patterns(tree: Path, git: Callable[..., str]) -> None:
    """A name with a star, a blank or other letters means only itself."""
    for name in ("*.py", "a b.py", "ünï.py", ":(top)x.py"):
        (tree / name).write_text("x = 1\n")
    git("--literal-pathspecs", "add", "*.py", "a b.py", "ünï.py", ":(top)x.py")
    git("commit", "-q", "-m", "names")
    (tree / "a.py").write_text("x = 2\n")
    (tree / "ünï.py").write_text("x = 2\n")

    assert uncommitted(tree, "*.py", "a b.py", "ünï.py", ":(top)x.py") == ["ünï.py"]


def test_files_in_no_work_tree(folder: Path) -> None:
    """Without git nobody holds an older text."""
    (folder / "a.py").write_text("x = 1\n")

    found = custody([str(folder / "a.py")])

    assert (found.uncommitted, found.outside) == ((), (str(folder / "a.py"),))


def test_a_tree_without_a_commit(folder: Path, git: Callable[..., str]) -> None:
    """In a work tree without any commit everything is uncommitted."""
    git("init", "-q")
    (folder / "a.py").write_text("x = 1\n")

    assert uncommitted(folder, "a.py") == ["a.py"]


def test_nothing_that_the_repository_configures_is_run(tree: Path, git: Callable[..., str]) -> None:
    """A file system monitor named in the repository's configuration is not started."""
    trap = tree / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tree}/sprung\n")
    trap.chmod(0o755)
    git("config", "core.fsmonitor", str(trap))

    custody([str(tree / "a.py")])

    assert not (tree / "sprung").exists()


def test_missing_git_is_said(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A work tree without a git to ask is a reason to stop."""
    monkeypatch.setenv("PATH", str(tree))

    with pytest.raises(UsageError, match="git is not installed"):
        custody([str(tree / "a.py")])


def test_a_broken_repository_is_said(folder: Path) -> None:
    """What git itself says is passed on."""
    (folder / ".git").write_text("gitdir: nowhere\n")
    (folder / "a.py").write_text("x = 1\n")

    with pytest.raises(UsageError, match="git cannot say what is committed in .*: fatal: "):
        custody([str(folder / "a.py")])


def test_a_silent_git_is_not_waited_for_for_ever(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A git that gives no answer in time is a reason to stop."""

    def silent(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 120)

    monkeypatch.setattr(subprocess, "run", silent)

    with pytest.raises(UsageError, match="gave no answer"):
        custody([str(tree / "a.py")])
