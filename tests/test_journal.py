"""Several files written all or none: what a kill, a full disk, a stranger or another run can do about it."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SECONDS
from tests.running import ROOT
from torchfix import files
from torchfix.files import FileError
from torchfix.journal import Change, mend, write_together

NAMES = ("a.py", "sub/b.py", "sub/c.py")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="the steps are counted where files can be locked")


@pytest.fixture
def project(folder: Path) -> Path:
    """A folder with three files that are to change together."""
    (folder / "sub").mkdir()
    for name in NAMES:
        (folder / name).write_text(f"old {name}\n")
    return folder


def changes(project: Path, names: Sequence[str] = NAMES) -> list[Change]:
    return [Change(str(project / name), f"old {name}\n".encode(), f"new {name}\n".encode()) for name in names]


def words_of(project: Path, names: Sequence[str] = NAMES) -> list[str]:
    """The first word of each file: ``old`` or ``new``."""
    return [(project / name).read_text().split()[0] for name in names]


def names_in(project: Path) -> list[str]:
    """All files, temporary ones and journals too."""
    return sorted(path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file())


def mended(project: Path) -> list[str]:
    return list(mend([str(project), str(project / "sub")]))


KILLED = """
import os, sys, tempfile
from torchfix.journal import Change, mend, write_together

left = int(sys.argv[2])

def counted(call):
    def step(*words, **options):
        global left
        left -= 1
        if left == 0:
            os._exit(9)
        return call(*words, **options)
    return step

for name in ("replace", "rename", "unlink", "fsync", "chmod"):
    setattr(os, name, counted(getattr(os, name)))
tempfile.mkstemp = counted(tempfile.mkstemp)

if sys.argv[1] == "write":
    changes = []
    for path in sys.argv[3:]:
        with open(path, "rb") as file:
            before = file.read()
        changes.append(Change(path, before, before.replace(b"old", b"new")))
    write_together(changes)
else:
    print(*mend(sys.argv[3:]), sep="\\n", end="")
"""


def killed(what: str, step: int, *paths: Path) -> int:
    """Write some files together, or mend some folders, in a process that is killed before a step; its exit code."""
    command = [sys.executable, "-c", KILLED, what, str(step), *map(str, paths)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=SECONDS, check=False).returncode


def stopped(project: Path, renamed: int, names: Sequence[str] = NAMES) -> None:
    """Leave what a process leaves that was killed after it had renamed some of the files."""
    prepared = 3 * len(names) + 4  # for each file a temporary one, flushed and with its mode; then the journal, its folder flushed
    step = prepared + 1 + 2 * renamed
    assert killed("write", step, *(project / name for name in names)) == 9
    assert words_of(project, names) == ["new"] * renamed + ["old"] * (len(names) - renamed)


def test_nothing_left_is_nothing_to_mend(project: Path) -> None:
    """A folder without journals, and one that is not there, are silent."""
    assert mended(project) == []
    assert list(mend([str(project / "nowhere")])) == []


def test_all_files_are_written(project: Path) -> None:
    """Each holds its new text, keeps its mode, and nothing else is left."""
    (project / "a.py").chmod(0o640)

    write_together(changes(project))

    assert words_of(project) == ["new"] * 3
    assert names_in(project) == sorted(NAMES)
    assert (project / "a.py").stat().st_mode & 0o777 == 0o640


def test_a_kill_at_any_step_leaves_what_can_be_mended(project: Path) -> None:
    """Wherever the process dies, the next run makes all files old or all new, and the second one has nothing to do."""
    step = 0
    code = 9
    while code == 9:
        step += 1
        for name in NAMES:
            (project / name).write_text(f"old {name}\n")
        code = killed("write", step, *(project / name for name in NAMES))
        mended(project)
        assert len(set(words_of(project))) == 1, f"half written after step {step}"
        assert mended(project) == []
        assert not [name for name in names_in(project) if name.endswith(".journal")]
        for left in project.rglob(".torchfix-*"):
            left.unlink()
    assert code == 0
    assert step > 15
    assert words_of(project) == ["new"] * 3


def test_a_kill_while_mending_is_mended_too(project: Path) -> None:
    """What mends can die as well, and loses nothing."""
    for step in range(1, 7):
        for name in NAMES:
            (project / name).write_text(f"old {name}\n")
        stopped(project, 1)
        killed("mend", step, project)
        mended(project)
        assert words_of(project) == ["new"] * 3
        assert names_in(project) == sorted(NAMES)


def test_a_killed_run_is_finished(project: Path) -> None:
    """Where all new texts are still there the rest is done, and it is said."""
    stopped(project, 1)

    assert mended(project) == ["a run was killed while it changed a.py, sub/b.py, sub/c.py together; the rest was done"]
    assert words_of(project) == ["new"] * 3
    assert names_in(project) == sorted(NAMES)


@pytest.mark.parametrize("renamed", [pytest.param(0, id="killed early"), pytest.param(2, id="taken back by hand")])
def test_a_run_of_which_nothing_is_written_is_dropped(project: Path, renamed: int) -> None:
    """Nothing is half changed then, and what the user took back stays so."""
    stopped(project, renamed)
    for name in NAMES:
        (project / name).write_text(f"old {name}\n")

    assert mended(project) == ["a run was killed while it changed a.py, sub/b.py, sub/c.py together; that was taken back"]
    assert words_of(project) == ["old"] * 3
    assert names_in(project) == sorted(NAMES)


def test_a_killed_run_whose_texts_are_lost_is_taken_back(project: Path) -> None:
    """Without a temporary file what was written gets its old text again, out of the journal."""
    stopped(project, 2)
    (temporary,) = (project / "sub").glob(".torchfix-*.tmp")
    temporary.unlink()

    assert mended(project) == ["a run was killed while it changed a.py, sub/b.py, sub/c.py together; that was taken back"]
    assert words_of(project) == ["old"] * 3
    assert names_in(project) == sorted(NAMES)


def test_a_temporary_file_that_somebody_changed_is_not_used(project: Path) -> None:
    """Only the text that was meant takes a file's name."""
    stopped(project, 1)
    for temporary in (project / "sub").glob(".torchfix-*.tmp"):
        temporary.write_text("evil")

    mended(project)

    assert words_of(project) == ["old"] * 3


@pytest.mark.parametrize(
    ("renamed", "stranger", "left"),
    [
        pytest.param(2, "a.py", ["mine", "new", "new"], id="one that was written: the others are finished"),
        pytest.param(1, "sub/c.py", ["old", "old", "mine"], id="one that was not: the others are taken back"),
        pytest.param(0, "sub/c.py", ["old", "old", "mine"], id="nothing was written"),
    ],
)
def test_a_file_that_was_changed_since_is_never_touched(project: Path, renamed: int, stranger: str, left: list[str]) -> None:
    """It decides by its place what becomes of the others."""
    stopped(project, renamed)
    (project / stranger).write_text("mine\n")

    assert len(mended(project)) == 1

    assert words_of(project) == left
    assert names_in(project) == sorted(NAMES)


def test_where_nobody_can_tell_everything_stays_and_is_told(project: Path) -> None:
    """A file between the last written and the first unwritten one may have been either; the journal stays for the user."""
    stopped(project, 1)
    (project / "sub" / "b.py").write_text("mine\n")

    (words,) = mended(project)

    assert words.startswith("a killed run left a.py, sub/b.py, sub/c.py half changed, and somebody has changed one of them since;")
    assert words_of(project) == ["new", "mine", "old"]
    assert mended(project) == [words]


def test_a_file_that_is_gone_counts_as_changed(project: Path) -> None:
    """It is not made anew."""
    stopped(project, 1)
    (project / "sub" / "c.py").unlink()

    mended(project)

    assert words_of(project, NAMES[:2]) == ["old"] * 2
    assert not (project / "sub" / "c.py").exists()


def test_a_file_that_became_a_link_is_not_followed(project: Path) -> None:
    """What the link leads to is somebody else's."""
    stopped(project, 1)
    target = project / "sub" / "c.py"
    (project / "mine.py").write_text("old sub/c.py\n")
    target.unlink()
    target.symlink_to(project / "mine.py")

    mended(project)

    assert target.is_symlink()
    assert (project / "mine.py").read_text() == "old sub/c.py\n"


DIGEST = hashlib.sha256(b"old a.py\n").hexdigest()


def journal(project: Path, data: bytes, name: str = ".torchfix-abcdefgh.journal") -> Path:
    path = project / name
    path.write_bytes(data)
    return path


def document(**fields: Any) -> bytes:
    entry = {"path": "a.py", "temporary": ".torchfix-aaaaaaaa.tmp", "before": base64.b64encode(b"evil\n").decode(), "after": DIGEST}
    return json.dumps({"torchfix-journal": 1, "files": [{**entry, **fields}]}).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\x00garbage", id="garbage"),
        pytest.param(b"[" * 100_000, id="nested too deeply"),
        pytest.param(b"[]", id="another kind"),
        pytest.param(b'{"torchfix-journal": 2, "files": []}', id="of another version"),
        pytest.param(b'{"torchfix-journal": 1, "files": []}', id="of nothing"),
        pytest.param(document(path="../a.py"), id="above its folder"),
        pytest.param(document(path="/etc/a.py"), id="absolute"),
        pytest.param(document(path="sub/../../a.py"), id="around its folder"),
        pytest.param(document(path="link/a.py"), id="through a link"),
        pytest.param(document(path=".git/config"), id="no Python file"),
        pytest.param(document(path=3), id="no path"),
        pytest.param(document(path="a\0.py"), id="a null character"),
        pytest.param(document(temporary="../.torchfix-aaaaaaaa.tmp"), id="a temporary file elsewhere"),
        pytest.param(document(temporary="b.py"), id="a temporary file that is none of ours"),
        pytest.param(document(before="!"), id="no old text"),
    ],
)
def test_a_journal_that_is_none_is_left_and_told(project: Path, data: bytes) -> None:
    """Whatever lies there under its name changes nothing, and the user is told of it."""
    path = journal(project, data)
    (project / "link").symlink_to(project.parent)

    assert mended(project) == [
        ".torchfix-abcdefgh.journal is no journal of this torchfix, and is left as it is; remove it if nobody needs it"
    ]
    assert path.read_bytes() == data
    assert words_of(project) == ["old"] * 3


def test_a_link_under_a_journals_name_is_not_read(project: Path) -> None:
    """Only regular files of this user are journals."""
    (project / ".torchfix-abcdefgh.journal").symlink_to(project / "a.py")

    assert mended(project) == []


def test_a_journal_that_cannot_be_read_is_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be that of a killed run."""
    path = journal(project, document())
    read = files.read

    def refusing(name: str) -> bytes:
        if name == str(path):
            raise FileError(files._reason(PermissionError(errno.EACCES, "no"), "read"))
        return read(name)

    monkeypatch.setattr(files, "read", refusing)

    assert mended(project) == [
        ".torchfix-abcdefgh.journal cannot be read: Permission denied, and may be the journal of a run that was killed"
    ]


@pytest.mark.parametrize("call", ["mkstemp", "fsync", "rename", "replace"])
@pytest.mark.parametrize("time", [1, 2, 3])
def test_a_disk_that_fills_up_leaves_every_file_as_it_was(project: Path, monkeypatch: pytest.MonkeyPatch, call: str, time: int) -> None:
    """Whichever step fails, what was done before it is taken back and nothing is left behind."""
    module: Any = __import__("tempfile") if call == "mkstemp" else os
    original: Callable[..., Any] = getattr(module, call)
    calls = 0

    def full(*words: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == time:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*words, **options)

    monkeypatch.setattr(module, call, full)
    if call == "rename" and time > 1:
        write_together(changes(project))  # there is only one journal
        assert words_of(project) == ["new"] * 3
        return

    with pytest.raises(FileError, match="No space left on device"):
        write_together(changes(project))

    assert words_of(project) == ["old"] * 3
    assert names_in(project) == sorted(NAMES)


def test_a_disk_that_stays_full_leaves_the_journal(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot even be taken back is mended by the next run, and the reason says so."""
    replace = os.replace
    left = 1

    def full(source: str, target: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FileError) as failure:
        write_together(changes(project))
    assert failure.value.reason.code == "half-written"
    assert failure.value.reason.help == "run torchfix --apply again, which mends that"
    assert words_of(project) == ["new", "old", "old"]

    (words,) = mended(project)
    assert words.endswith("a.py, sub/b.py, sub/c.py half changed, and sub/b.py cannot be written: No space left on device")
    monkeypatch.setattr(os, "replace", replace)
    mended(project)
    assert words_of(project) == ["new"] * 3


def test_an_interrupt_takes_everything_back(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who stops the run finds the files as they were."""
    replace = os.replace

    def interrupted(source: str, target: str) -> None:
        if target.endswith("b.py") and Path(source).read_text().startswith("new"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)

    with pytest.raises(KeyboardInterrupt):
        write_together(changes(project))

    assert words_of(project) == ["old"] * 3
    assert names_in(project) == sorted(NAMES)


def test_a_file_that_changed_meanwhile_stops_all(project: Path) -> None:
    """The files are read again before anything is written."""
    (project / "sub" / "c.py").write_text("mine\n")

    with pytest.raises(FileError, match="changed while torchfix ran") as failure:
        write_together(changes(project))

    assert failure.value.path == str(project / "sub" / "c.py")
    assert words_of(project) == ["old", "old", "mine"]
    assert names_in(project) == sorted(NAMES)


def test_a_read_only_file_stops_all(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may not be written keeps the others from being written."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("c.py") and access(path, mode))

    with pytest.raises(FileError, match="cannot be written: Permission denied"):
        write_together(changes(project))

    assert words_of(project) == ["old"] * 3
    assert names_in(project) == sorted(NAMES)


def test_a_read_only_folder_stops_all(project: Path) -> None:
    """A folder in which nothing can be laid keeps the files of others from being written."""
    (project / "sub").chmod(0o555)
    if os.access(project / "sub", os.W_OK):
        pytest.skip("this user may write everywhere")
    try:
        with pytest.raises(FileError, match="cannot be written: Permission denied"):
            write_together(changes(project))
        assert words_of(project) == ["old"] * 3
    finally:
        (project / "sub").chmod(0o755)


def test_hard_links_stop_all(project: Path) -> None:
    """A rename would take one of the names only, so the group is left."""
    os.link(project / "sub" / "c.py", project / "twin")

    with pytest.raises(FileError, match="several hard links"):
        write_together(changes(project))

    assert words_of(project) == ["old"] * 3


def test_only_python_files_change_together(project: Path) -> None:
    """A journal can name no others, so none is begun."""
    (project / "tool").write_text("old tool\n")

    with pytest.raises(FileError, match="only .py files"):
        write_together(changes(project, ("a.py", "tool")))

    assert words_of(project) == ["old"] * 3


def test_a_run_at_work_keeps_others_away(project: Path) -> None:
    """Another run neither writes the files nor mends the journal, and says that they are busy."""
    stopped(project, 1)
    before = names_in(project)

    with files.kept_for_us([str(project / "sub" / "b.py")]):
        assert mended(project) == []
        assert names_in(project) == before
        with pytest.raises(FileError, match="another run of torchfix is writing it"):
            write_together(changes(project, ("sub/b.py", "sub/c.py")))
        with pytest.raises(FileError, match="another run of torchfix is writing it"):
            files.write(str(project / "sub" / "b.py"), b"old sub/b.py\n", b"x")

    assert len(mended(project)) == 1
