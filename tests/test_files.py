"""The disk: walking, reading, writing."""

from __future__ import annotations

import errno
import inspect
import io
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from torchfix import files
from torchfix.exclude import Patterns
from torchfix.files import FileError, Found
from torchfix.result import Outcome, Result
from torchfix.usage import UsageError


def lay(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def walked(*paths: str, exclude: tuple[str, ...] = (), force: bool = False) -> list[str]:
    """What a walk shows: the paths of found files, ``path!code`` for those that are known but not looked at."""
    entries = files.walk(paths, Patterns(os.getcwd(), exclude), force)
    return [entry.path if isinstance(entry, Found) else f"{entry.path}!{entry.reason and entry.reason.code}" for entry in entries]


def test_a_folder_without_python(folder: Path) -> None:
    """Other files are not looked at, and nothing is no error."""
    lay(folder, "README.md", "data/labels.csv", "notebook.ipynb", "train.pyc", "stub.pyi")

    assert walked(".") == []


def test_folders_of_tools_are_not_entered(folder: Path) -> None:
    """Hidden folders, environments and build products hold no source of the user's."""
    lay(folder, ".git/hooks/a.py", ".venv/b.py", "env/pyvenv.cfg", "env/lib/c.py", "build/lib/d.py", "dist/e.py", "x/node_modules/f.py")
    lay(folder, "x/__pycache__/g.py", "lib/site-packages/h.py", "x/train.py")

    assert walked(".") == ["x/train.py"]


def test_files_come_in_path_order(folder: Path) -> None:
    """The order is that of the paths' parts, whatever the order in which they were named."""
    lay(folder, "b.py", "a/z.py", "a.py", "a/b/c.py", "a-b/x.py")

    assert walked("b.py", ".") == ["a/b/c.py", "a/z.py", "a-b/x.py", "a.py", "b.py"]


def test_paths_are_shown_as_seen_from_the_working_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An absolute path and one that leads upward are shown relative, without detours."""
    lay(folder, "src/a.py", "other/b.py")
    monkeypatch.chdir(folder / "src")

    assert walked(str(folder / "src" / "a.py"), "../src/../other") == ["../other/b.py", "a.py"]


def test_a_missing_path_is_refused_before_any_work(folder: Path) -> None:
    """Every missing path is named."""
    lay(folder, "a.py")

    with pytest.raises(UsageError, match="no such file or folder: nope.py, gone, ''"):
        walked("a.py", "nope.py", "gone", "")


def test_a_named_file_is_taken_whatever_its_name(folder: Path) -> None:
    """A file that is named is looked at though it is ignored, excluded, hidden or has no suffix."""
    lay(folder, "build/a.py", "train", ".hidden/b.py")
    (folder / ".gitignore").write_text("*\n")

    assert walked("build/a.py", "train", ".hidden/b.py", exclude=("train",)) == [".hidden/b.py", "build/a.py", "train"]


def test_forced_exclusion_holds_for_named_files_too(folder: Path) -> None:
    """With ``--force-exclude`` a named file, or one in an excluded folder, is left out."""
    lay(folder, "build/a.py", "old/b.py", ".hidden/c.py", "ignored.py", "train.py")
    (folder / ".gitignore").write_text("ignored.py\n")

    assert walked("build/a.py", "old/b.py", ".hidden/c.py", "ignored.py", "train.py", exclude=("old",), force=True) == ["train.py"]


def test_gitignore_of_the_work_tree_holds_below(folder: Path) -> None:
    """The ``.gitignore`` files between the root of the work tree and the walked folder hold too."""
    lay(folder, "src/gen/a.py", "src/net_pb2.py", "src/b.py")
    (folder / ".git").mkdir()
    (folder / ".gitignore").write_text("src/gen/\n")
    (folder / "src" / ".gitignore").write_text("*_pb2.py\n")

    assert walked("src") == ["src/b.py"]


def test_a_named_folder_is_walked_though_it_is_ignored(folder: Path) -> None:
    """Who names an ignored folder wants it walked; ``--force-exclude`` says otherwise."""
    lay(folder, "gen/a.py")
    (folder / ".git").mkdir()
    (folder / ".gitignore").write_text("gen/\n")

    assert walked("gen") == ["gen/a.py"]
    assert walked("gen", force=True) == []


def test_excluded_patterns(folder: Path) -> None:
    """``--exclude`` takes files and whole folders out of a walk."""
    lay(folder, "a.py", "old/b.py", "x/test_c.py")

    assert walked(".", exclude=("old/", "test_*.py")) == ["a.py"]


def test_each_real_file_comes_once(folder: Path) -> None:
    """A file that is named twice, linked to or hard-linked is looked at once, under the name that a patch can use."""
    lay(folder, "real.py")
    (folder / "a_link.py").symlink_to("real.py")
    os.link(folder / "real.py", folder / "zweitname.py")

    assert walked(".", "real.py", "./real.py") == ["real.py"]


def test_links_to_folders_are_not_followed(folder: Path) -> None:
    """A link to a folder, a circle included, is not entered."""
    lay(folder, "a/x.py")
    (folder / "a" / "circle").symlink_to("..")
    (folder / "b").symlink_to("a")

    assert walked(".") == ["a/x.py"]


def test_a_link_out_of_the_given_paths_is_named_and_left(folder: Path) -> None:
    """A file whose real path lies elsewhere is never written; the report says where the link leads."""
    outside = folder.parent / "outside.py"
    outside.write_text("")
    (folder / "inside.py").symlink_to(outside)

    (entry,) = files.walk(["."], Patterns(str(folder), ()))

    assert isinstance(entry, Result)
    assert entry.outcome is Outcome.SKIPPED
    assert entry.reason is not None
    assert entry.reason.text == "the link leads out of the given paths, to ../outside.py"


def test_a_named_link_stands_for_its_target(folder: Path) -> None:
    """A link that is named is followed, and its target is what is read, shown and written."""
    outside = folder.parent / "outside.py"
    outside.write_text("")
    (folder / "inside.py").symlink_to(outside)

    assert files.walk(["inside.py"], Patterns(str(folder), ())) == [Found("../outside.py", str(outside.resolve()))]


def test_what_is_no_readable_file_is_named(folder: Path) -> None:
    """Links that lead nowhere, pipes and notebooks are skipped with a reason, not in silence."""
    (folder / "dangling.py").symlink_to("nowhere.py")
    os.mkfifo(folder / "pipe.py")
    lay(folder, "notebook.ipynb")

    assert walked(".", "notebook.ipynb") == ["dangling.py!broken-link", "notebook.ipynb!notebook", "pipe.py!not-a-file"]


def test_a_folder_that_cannot_be_read_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without read permission is a failure with its name; the others are walked."""
    lay(folder, "a.py", "locked/b.py")
    scandir = os.scandir

    def refusing(path: str) -> object:
        if os.path.basename(path) == "locked":
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)

    assert walked(".") == ["a.py", "locked!unreadable"]


def test_links_in_a_circle_lead_nowhere(folder: Path) -> None:
    """A link to itself, or to one that links back, is skipped like any other that has no target."""
    lay(folder, "a.py")
    (folder / "self.py").symlink_to("self.py")
    (folder / "there.py").symlink_to("back.py")
    (folder / "back.py").symlink_to("there.py")

    assert walked(".") == ["a.py", "back.py!broken-link", "self.py!broken-link", "there.py!broken-link"]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(PermissionError(errno.EACCES, "Permission denied"), id="in a folder that may not be entered"),
        pytest.param(FileNotFoundError(errno.ENOENT, "No such file or directory"), id="gone since its folder was listed"),
    ],
)
def test_a_file_that_cannot_be_asked_for_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    """A name without a file behind it that can be reached is a failure, not a link that leads nowhere."""
    lay(folder, "a.py", "locked/b.py")
    ask = os.stat

    def refusing(path: str, **options: Any) -> os.stat_result:
        if os.path.basename(path) == "b.py":
            raise error
        return ask(path, **options)

    monkeypatch.setattr(os, "stat", refusing)

    assert walked(".") == ["a.py", "locked/b.py!unreadable"]


def test_a_named_file_that_may_not_be_asked_for_is_not_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a file in a locked folder is there nobody knows, so it fails with the reason instead of ending the run."""

    def refusing(path: str, **options: Any) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "lstat", refusing)
    monkeypatch.setattr(os, "stat", refusing)

    assert walked("locked/b.py") == ["locked/b.py!unreadable"]


def test_folders_as_deep_as_they_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The depth of a tree is no depth of calls."""
    path = "/".join(["d"] * 400 + ["a.py"])
    lay(folder, path)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 200)
    try:
        assert walked(".") == [path]
    finally:
        sys.setrecursionlimit(limit)


def test_an_unreadable_file_is_named_with_the_next_step(folder: Path) -> None:
    """A file that cannot be read raises the reason and the help of the report."""
    (folder / "a.py").mkdir()

    with pytest.raises(FileError) as error:
        files.read("a.py")

    assert error.value.reason.code == "unreadable"
    assert error.value.reason.text == "cannot be read: Is a directory"


def test_the_project_of_a_file(folder: Path) -> None:
    """The root is the nearest folder upward with a mark; without one it is the file's own folder, or its package's."""
    lay(folder, "project/requirements.txt", "project/src/net/a.py", "alone/b.py")

    assert files.project_root(str(folder / "project" / "src" / "net")) == (str(folder / "project"), True)
    assert files.project_root(str(folder / "alone")) == (str(folder / "alone"), False)


def test_the_project_of_a_package_without_a_mark(folder: Path) -> None:
    """A package belongs to the folder that holds it, with all its modules, but not with folders that are no packages."""
    lay(folder, "run.py", "pkg/__init__.py", "pkg/tr.py", "pkg/sub/__init__.py", "pkg/sub/data.py", "pkg/scripts/x.py", "other/y.py")

    assert files.project_root(str(folder / "pkg" / "sub")) == (str(folder), False)
    assert list(files.ProjectPaths(str(folder), deep=False)) == [
        "pkg/__init__.py",
        "pkg/sub/__init__.py",
        "pkg/sub/data.py",
        "pkg/tr.py",
        "run.py",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import nets2\n# from nets import a\n", ["run.py"]),
        ("from nets.a import A\n", ["nets/a.py", "run.py"]),
        ("if x:\n    import nets.a\n", ["nets/a.py", "run.py"]),
        ("import_module('nets.' + name)\n", ["nets/a.py", "run.py"]),
    ],
)
def test_folders_from_which_a_project_without_a_mark_imports(folder: Path, text: str, expected: list[str]) -> None:
    """A folder belongs to the files beside it that import from it, be it a package or not."""
    lay(folder, "run.py", "nets/a.py", "other/y.py")
    (folder / "run.py").write_text(text)

    assert list(files.ProjectPaths(str(folder), deep=False)) == expected


def test_the_names_at_the_top_of_a_project(folder: Path) -> None:
    """Requirements may lie in a folder of their own; what lies in other folders is not listed."""
    lay(folder, "pyproject.toml", "requirements.txt", "requirements/gpu.txt", "pkg/train.py")

    assert files.names_at_top(str(folder)) == ["pkg", "pyproject.toml", "requirements", "requirements.txt", "requirements/gpu.txt"]
    assert files.names_at_top(str(folder / "missing")) == []


def test_a_project_reader_stays_inside(folder: Path) -> None:
    """Neither an upward path nor a link leads a reader out of the project, and a copy of it reads alike."""
    lay(folder, "project/a.py")
    (folder / "secret.py").write_text("x = 1")
    (folder / "project" / "link.py").symlink_to("../secret.py")
    reader = files.ProjectReader(str(folder / "project"))

    for copy in (reader, pickle.loads(pickle.dumps(reader))):
        assert copy("a.py") == b""
        assert copy("missing.py") is None
        assert copy("../secret.py") is None
        assert copy("link.py") is None
        assert copy(str(folder / "secret.py")) is None


def test_a_project_reader_keeps_what_it_read(folder: Path) -> None:
    """One run sees one state of each file."""
    lay(folder, "a.py")
    reader = files.ProjectReader(str(folder))
    reader("a.py")
    (folder / "a.py").write_text("x = 1")

    assert reader("a.py") == b""


def test_the_python_files_of_a_project(folder: Path) -> None:
    """A marked project has all its folders; a folder without a mark only itself."""
    lay(folder, "a.py", "net/b.py", "build/c.py", "d.txt")

    assert tuple(files.ProjectPaths(str(folder), deep=True)) == ("a.py", "net/b.py")
    assert tuple(files.ProjectPaths(str(folder), deep=False)) == ("a.py",)
    assert len(files.ProjectPaths(str(folder / "missing"), deep=False)) == 0


def test_writing_nothing_beside_the_file(folder: Path) -> None:
    """After a write only the file itself is there, with the new bytes."""
    (folder / "a.py").write_bytes(b"old")

    files.write(str(folder / "a.py"), b"old", b"new")

    assert os.listdir(folder) == ["a.py"]
    assert (folder / "a.py").read_bytes() == b"new"


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600, 0o640])
def test_writing_keeps_the_mode(folder: Path, mode: int) -> None:
    """Executable and private files stay so."""
    (folder / "a.py").write_bytes(b"old")
    (folder / "a.py").chmod(mode)

    files.write(str(folder / "a.py"), b"old", b"new")

    assert stat.S_IMODE((folder / "a.py").stat().st_mode) == mode


def test_writing_into_a_folder_that_cannot_be_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that lets files be renamed but not be listed is written to like any other."""
    (folder / "a.py").write_bytes(b"old")
    opening = os.open

    def refusing(path: str, flags: int, *rest: int) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opening(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)

    files.write(str(folder / "a.py"), b"old", b"new")

    assert (folder / "a.py").read_bytes() == b"new"


def test_writing_keeps_hard_links(folder: Path) -> None:
    """A file with a second name is still the same file under both, with the new bytes, longer or shorter."""
    (folder / "a.py").write_bytes(b"old and long")
    os.link(folder / "a.py", folder / "b.py")

    files.write(str(folder / "a.py"), b"old and long", b"new")

    assert (folder / "b.py").read_bytes() == b"new"
    assert os.path.samefile(folder / "a.py", folder / "b.py")
    assert sorted(os.listdir(folder)) == ["a.py", "b.py"]


def test_a_disk_that_takes_only_a_part_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with hard links, which is written in place, gets all of its bytes however many calls that takes."""
    (folder / "a.py").write_bytes(b"old")
    os.link(folder / "a.py", folder / "b.py")

    class Slow(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data)[:2])

    def opening(path: str | int, mode: str, buffering: int = -1) -> Any:
        return Slow(path, mode) if buffering == 0 else open(path, mode, buffering)

    monkeypatch.setattr(files, "open", opening, raising=False)

    files.write(str(folder / "a.py"), b"old", b"longer than before")

    assert (folder / "b.py").read_bytes() == b"longer than before"


def test_old_temporary_files_of_killed_runs_go(folder: Path) -> None:
    """What has the name of our temporary files, is a file of this user and is older than any write, is removed."""
    lay(folder, ".torchfix-ab12_xyz.tmp")
    os.utime(folder / ".torchfix-ab12_xyz.tmp", (0, time.time() - 3600))

    files.clear_leftovers(str(folder))

    assert os.listdir(folder) == []


def test_what_may_still_be_needed_is_no_leftover(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Young files, whole texts of files with hard links, other names, links, folders and other users' files stay."""
    old = [".torchfix-ab12_xyz.new", ".torchfix-notes.tmp", "torchfix-ab12_xyz.tmp", ".torchfix-ab12_xyz.tmp.py", "target"]
    lay(folder, ".torchfix-12345678.tmp", *old)
    (folder / ".torchfix-folder__.tmp").mkdir()
    (folder / ".torchfix-link____.tmp").symlink_to("target")
    for name in [*old, ".torchfix-folder__.tmp"]:
        os.utime(folder / name, (0, 0))
    before = sorted(os.listdir(folder))

    files.clear_leftovers(str(folder))
    files.clear_leftovers(str(folder / "missing"))
    assert sorted(os.listdir(folder)) == before

    os.utime(folder / ".torchfix-12345678.tmp", (0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: -1)
    files.clear_leftovers(str(folder))
    assert sorted(os.listdir(folder)) == before


def test_writing_over_a_change_is_refused(folder: Path) -> None:
    """A file that somebody changed after it was read keeps that change."""
    (folder / "a.py").write_bytes(b"edited")

    with pytest.raises(FileError, match="changed while torchfix ran"):
        files.write(str(folder / "a.py"), b"old", b"new")
    assert (folder / "a.py").read_bytes() == b"edited"


def test_writing_to_a_vanished_file_is_refused(folder: Path) -> None:
    """A file that somebody removed after it was read does not come back."""
    with pytest.raises(FileError, match="cannot be read: No such file or directory"):
        files.write(str(folder / "a.py"), b"old", b"new")
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("number", "help"),
    [(errno.ENOSPC, "free some space and run again"), (errno.EROFS, "make the file system writable"), (errno.EACCES, "chmod u+w")],
)
@pytest.mark.parametrize("linked", [False, True])
def test_a_failed_write_leaves_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, help: str, linked: bool) -> None:
    """Whatever goes wrong, the old bytes stay, no temporary file is left, and the reason names the next step."""
    (folder / "a.py").write_bytes(b"old")
    if linked:
        os.link(folder / "a.py", folder / "b.py")
    flushes = iter([True, False] if linked else [False])  # the first is that of the temporary file

    def fsync(descriptor: int) -> None:
        if not next(flushes, True):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)

    with pytest.raises(FileError) as error:
        files.write(str(folder / "a.py"), b"old", b"new and longer")

    assert (folder / "a.py").read_bytes() == b"old"
    assert sorted(os.listdir(folder)) == (["a.py", "b.py"] if linked else ["a.py"])
    assert error.value.reason.code == "unwritable"
    assert help in error.value.reason.help


@pytest.mark.parametrize("linked", [False, True])
def test_an_interrupted_write_leaves_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch, linked: bool) -> None:
    """Nothing of the new text is left, and no temporary file."""
    (folder / "a.py").write_bytes(b"old and longer")
    if linked:
        os.link(folder / "a.py", folder / "b.py")
    flushes = iter([True, False] if linked else [False])  # the first is that of the temporary file

    def fsync(descriptor: int) -> None:
        if not next(flushes, True):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fsync)

    with pytest.raises(KeyboardInterrupt):
        files.write(str(folder / "a.py"), b"old and longer", b"new")

    assert (folder / "a.py").read_bytes() == b"old and longer"
    assert sorted(os.listdir(folder)) == (["a.py", "b.py"] if linked else ["a.py"])


def test_a_read_only_file_is_not_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without write permission is left alone, though its folder would let it be renamed over."""
    (folder / "a.py").write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)

    with pytest.raises(FileError, match="cannot be written: Permission denied"):
        files.write(str(folder / "a.py"), b"old", b"new")
    assert (folder / "a.py").read_bytes() == b"old"


WRITER = """
import sys
from torchfix import files
path, texts = sys.argv[1], [b"old\\n" * 200_000, b"new\\n" * 300_000]
print("ready", flush=True)
while True:
    files.write(path, texts[0], texts[1])
    texts.reverse()
"""


@pytest.mark.parametrize("attempt", range(8))
def test_a_kill_leaves_the_old_file_or_the_new_one(folder: Path, attempt: int) -> None:
    """A process that is killed while it writes leaves one of the two texts whole."""
    path = folder / "a.py"
    old, new = b"old\n" * 200_000, b"new\n" * 300_000
    path.write_bytes(old)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.005 + 0.007 * attempt)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=60)

    assert path.read_bytes() in (old, new)


def test_an_undo_patch_never_replaces_another(folder: Path) -> None:
    """Two runs within one second keep a patch each."""
    first, second = files.save_undo(b"one"), files.save_undo(b"two")

    assert Path(first).read_bytes() == b"one"
    assert Path(second).read_bytes() == b"two"
    assert Path(first).name.startswith("torchfix-undo-")
    assert Path(first).suffix == Path(second).suffix == ".patch"
    assert stat.S_IMODE(Path(first).stat().st_mode) == 0o600


def test_an_undo_patch_does_not_go_where_the_command_happens_to_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state folder that is not absolute counts as none, as its specification says."""
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(folder / "home"))

    assert Path(files.save_undo(b"one")).parent == folder / "home" / ".local" / "state" / "torchfix"


def test_an_undo_patch_goes_to_the_temporary_folder_where_there_is_no_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a state folder that can be written the temporary one holds the patch."""
    (folder / "state").write_text("a file in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder))

    assert Path(files.save_undo(b"one")).parent == folder


def test_an_undo_patch_that_cannot_be_kept_stops_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no folder takes the patch nothing may be written."""
    (folder / "state").write_text("a file in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder / "state"))

    with pytest.raises(UsageError, match="nothing was written"):
        files.save_undo(b"one")


@pytest.mark.parametrize(("path", "words"), [("missing/out.json", "its folder does not exist"), (".", "a folder has this name")])
def test_an_output_file_that_cannot_be_is_refused_early(folder: Path, path: str, words: str) -> None:
    """A report's place is looked at before any work is done."""
    with pytest.raises(UsageError, match=words):
        files.check_output(path)
