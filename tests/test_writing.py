"""Writing what was changed, and the way back."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from torchfix import files
from torchfix.result import Note, Outcome, Place, Reason, Result
from torchfix.usage import UsageError
from torchfix.writing import write_all

NOTE = Note("toy-size", "toys", 1, 0, 1, 3, "the toy is built twice", "fixed", "exact")


def changed(folder: Path, name: str) -> Result:
    """A file on the disk, and the result that would change it."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"old\n")
    return Result(name, Outcome.CHANGED, b"old\n", b"new\n", (NOTE,))


def real(folder: Path, *results: Result) -> dict[str, str]:
    return {result.path: str(folder / result.path) for result in results}


def test_nothing_changed_writes_nothing(folder: Path) -> None:
    """Without a change neither git is asked nor a patch saved."""
    result = Result("a.py", Outcome.CLEAN, b"", b"")

    written = write_all([result], {"a.py": "/nowhere/a.py"}, allow_dirty=False)

    assert written.results == (result,)
    assert written.undo is None


def test_what_a_killed_run_left_is_cleared_away(folder: Path) -> None:
    """Old temporary files go from the folder of every file that was looked at, changed or not."""
    leftover = folder / "sub" / ".torchfix-abcdefgh.tmp"
    leftover.parent.mkdir()
    leftover.write_bytes(b"half")
    os.utime(leftover, (0, 0))
    result = Result("sub/a.py", Outcome.CLEAN, b"", b"")

    write_all([result], real(folder, result), allow_dirty=False)

    assert not leftover.exists()


def test_outside_git_a_patch_takes_everything_back(folder: Path) -> None:
    """The saved patch, applied where it says, gives the old texts again."""
    results = [changed(folder, "a.py"), changed(folder, "sub dir/b.py")]

    written = write_all(results, real(folder, *results), allow_dirty=False)

    assert (folder / "a.py").read_bytes() == (folder / "sub dir" / "b.py").read_bytes() == b"new\n"
    assert written.undo is not None
    assert written.undo.folder == str(folder)
    with open(written.undo.patch, "rb") as patch:
        subprocess.run(["patch", "-p1"], stdin=patch, cwd=written.undo.folder, timeout=60, check=True, capture_output=True)
    assert (folder / "a.py").read_bytes() == (folder / "sub dir" / "b.py").read_bytes() == b"old\n"


def test_the_patch_of_files_elsewhere_names_their_common_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files outside the working folder are taken back from the folder that holds both."""
    result = changed(folder, "other/a.py")
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")

    undo = write_all([result], real(folder, result), allow_dirty=False).undo

    assert undo is not None
    assert undo.folder == str(folder)
    assert b"--- a/other/a.py\n" in Path(undo.patch).read_bytes()


def test_committed_files_need_no_patch(folder: Path, git: Callable[..., str]) -> None:
    """What git holds it can give back."""
    result = changed(folder, "a.py")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")

    written = write_all([result], real(folder, result), allow_dirty=False)

    assert (folder / "a.py").read_bytes() == b"new\n"
    assert written.undo is None


def test_uncommitted_files_stop_everything(folder: Path, git: Callable[..., str]) -> None:
    """One file with uncommitted changes keeps all from being written, and is named."""
    first, second = changed(folder, "a.py"), changed(folder, "b.py")
    git("init", "-q")
    git("add", "a.py")
    git("commit", "-q", "-m", "first")

    with pytest.raises(UsageError, match=r"nothing was written, .*commit them or add --allow-dirty:\n  b.py$"):
        write_all([first, second], real(folder, first, second), allow_dirty=False)

    assert (folder / "a.py").read_bytes() == b"old\n"


def test_a_crowd_of_uncommitted_files_is_shortened(folder: Path, git: Callable[..., str]) -> None:
    """Twenty names are enough to see what is meant."""
    results = [changed(folder, f"file{number:02}.py") for number in range(25)]
    git("init", "-q")

    with pytest.raises(UsageError, match=r"file19.py\n  and 5 more$"):
        write_all(results, real(folder, *results), allow_dirty=False)


def test_uncommitted_files_that_were_allowed_get_a_patch(folder: Path, git: Callable[..., str]) -> None:
    """``--allow-dirty`` writes, and what git could not give back can be had from a patch."""
    first, second = changed(folder, "a.py"), changed(folder, "b.py")
    git("init", "-q")
    git("add", "a.py")
    git("commit", "-q", "-m", "first")

    undo = write_all([first, second], real(folder, first, second), allow_dirty=True).undo

    assert undo is not None
    assert b"b/b.py" in Path(undo.patch).read_bytes()
    assert b"b/a.py" not in Path(undo.patch).read_bytes()


def test_a_git_that_does_not_answer_stops_everything_unless_allowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody knows what is committed, nothing is written; with ``--allow-dirty`` all of it goes into the patch."""
    result = changed(folder, "a.py")
    (folder / ".git").mkdir()
    monkeypatch.setenv("PATH", str(folder))

    with pytest.raises(UsageError, match="git is not installed.*; nothing was written; --allow-dirty writes without asking git"):
        write_all([result], real(folder, result), allow_dirty=False)
    assert (folder / "a.py").read_bytes() == b"old\n"

    assert write_all([result], real(folder, result), allow_dirty=True).undo is not None
    assert (folder / "a.py").read_bytes() == b"new\n"


def test_a_file_that_cannot_be_written_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are written, its findings are held for that reason, and the patch speaks only of what was written."""
    results = [changed(folder, "a.py"), changed(folder, "b.py"), changed(folder, "c.py")]
    rename = os.replace

    def failing(source: str, target: str) -> None:
        if target.endswith("b.py"):
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "replace", failing)

    written = write_all(results, real(folder, *results), allow_dirty=False)

    reason = Reason("unwritable", "cannot be written: No space left on device", "free some space and run again")
    assert [result.outcome for result in written.results] == [Outcome.CHANGED, Outcome.FAILED, Outcome.CHANGED]
    assert written.results[1].reason == reason
    assert [(note.outcome, note.reason) for note in written.results[1].notes] == [("held", reason)]
    assert sorted(path.name for path in folder.iterdir()) == ["a.py", "b.py", "c.py"]
    assert written.undo is not None
    assert b"b.py" not in Path(written.undo.patch).read_bytes()


def joined(result: Result, *others: str) -> Result:
    """The same result with a finding that changes other files too."""
    return replace(result, notes=(replace(NOTE, elsewhere=tuple(Place(other, 1, 0, 1, 1) for other in others)),))


def test_files_of_one_finding_are_written_together(folder: Path) -> None:
    """Two findings that share a file make one group of three; no temporary file and no journal stays."""
    a, b, c, d = (changed(folder, name) for name in ("a.py", "sub/b.py", "c.py", "d.py"))
    results = [joined(a, "sub/b.py", "same.py"), replace(b, notes=()), joined(c, "sub/b.py"), d]

    written = write_all(results, real(folder, *results), allow_dirty=False)

    assert [result.outcome for result in written.results] == [Outcome.CHANGED] * 4
    assert sorted(path.name for path in folder.rglob("*.*")) == ["a.py", "b.py", "c.py", "d.py"]
    assert all((folder / result.path).read_bytes() == b"new\n" for result in results)


def test_files_of_one_finding_fail_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one cannot be written the others keep their text, and say which one it was; the rest of the run is done."""
    results = [joined(changed(folder, "a.py"), "b.py"), changed(folder, "b.py"), changed(folder, "c.py")]
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("b.py") and access(path, mode))

    written = write_all(results, real(folder, *results), allow_dirty=False)

    assert [result.outcome for result in written.results] == [Outcome.FAILED, Outcome.FAILED, Outcome.CHANGED]
    assert [(folder / result.path).read_bytes() for result in results] == [b"old\n", b"old\n", b"new\n"]
    reasons = [result.reason for result in written.results[:2]]
    assert [reason.code for reason in reasons if reason is not None] == ["other-file-failed", "unwritable"]
    assert reasons[0] is not None
    assert reasons[0].text == "b.py must change too, and cannot be written: Permission denied"
    assert [note.reason for note in written.results[0].notes] == [reasons[0]]
    assert written.undo is not None
    assert b"a.py" not in Path(written.undo.patch).read_bytes()


def test_one_uncommitted_file_of_a_finding_stops_everything(folder: Path, git: Callable[..., str]) -> None:
    """Git is asked about every file that changes, whichever finding changes it."""
    results = [joined(changed(folder, "a.py"), "b.py"), replace(changed(folder, "b.py"), notes=())]
    git("init", "-q")
    git("add", "a.py")
    git("commit", "-q", "-m", "first")

    with pytest.raises(UsageError, match="b.py$"):
        write_all(results, real(folder, *results), allow_dirty=False)

    assert (folder / "a.py").read_bytes() == (folder / "b.py").read_bytes() == b"old\n"


def test_a_patch_that_cannot_be_saved_keeps_everything_unwritten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No way back, no way forward."""
    result = changed(folder, "a.py")

    def failing(patch: bytes) -> str:
        raise UsageError("the patch cannot be saved")

    monkeypatch.setattr(files, "save_undo", failing)

    with pytest.raises(UsageError, match="cannot be saved"):
        write_all([result], real(folder, result), allow_dirty=False)
    assert (folder / "a.py").read_bytes() == b"old\n"
