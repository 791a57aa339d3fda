"""The disk: walk, read, write atomically. No other module opens a file."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, BinaryIO, TextIO

from torchfix.exclude import Exclusion, Patterns, inside
from torchfix.result import Outcome, Reason, Result
from torchfix.usage import UsageError

PROJECT_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "environment.yml", ".git")
"""What lies in the root of a project."""

_TEMPORARY = re.compile(r"\.torchfix-[a-z0-9_]{8}\.tmp")
_JOURNAL = re.compile(r"\.torchfix-[a-z0-9_]{8}\.journal")
_SECONDS_TO_WRITE = 600
"""More than the writing of one file takes."""


class FileError(Exception):
    """A file that cannot be read or written, with the reason that the report gives.

    Args:
        reason: for the report.
        path: the file, where several were asked for.
    """

    def __init__(self, reason: Reason, path: str = "") -> None:
        super().__init__(reason.text)
        self.reason = reason
        self.path = path


@dataclass(frozen=True)
class Found:
    """A file to look at.

    Args:
        path: as it is shown, relative to the working folder, POSIX; a link's is its target's, so that patches name
            the file that changes.
        real: absolute, without links.
    """

    path: str
    real: str


# Walking


def walk(paths: Sequence[str], exclude: Patterns, force_exclude: bool = False) -> list[Found | Result]:
    """The Python files under some paths in path order; a Result for each that is known but not looked at.

    Args:
        paths: files and folders. A file named here is taken whatever its name, unless ``force_exclude`` is set.
        exclude: the user's own patterns.
        force_exclude: whether what a walk leaves out is left out here too.

    Raises:
        UsageError: a path does not exist.
    """
    missing = [path for path in paths if _is_missing(path)]
    if missing:
        raise UsageError(f"no such file or folder: {', '.join(shown(path) if path else repr(path) for path in missing)}")
    roots = [os.path.realpath(path) for path in paths]
    found: dict[str, Found | Result] = {}
    real_files: set[tuple[int, int]] = set()
    for entry in (entry for path in paths for entry in _entries(path, exclude, force_exclude)):
        file, identity = (entry, None) if isinstance(entry, Result) else _admit(entry, roots)
        if identity is None or identity not in real_files:
            found.setdefault(file.path, file)
        if identity is not None:
            real_files.add(identity)
    return [found[name] for name in sorted(found, key=lambda name: name.split("/"))]


def _is_missing(path: str) -> bool:
    """Whether there is nothing of that name; what may not be asked may be there."""
    try:
        os.lstat(path)
    except OSError as error:
        return not isinstance(error, PermissionError)
    return False


def _admit(path: str, roots: Sequence[str]) -> tuple[Found | Result, tuple[int, int] | None]:
    """What becomes of one file of a walk, and for one to look at what tells it from all others."""
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError as error:
        if os.path.islink(path) and not isinstance(error, PermissionError):
            return _skipped(path, "broken-link", "the link leads nowhere", "remove it or mend its target"), None
        return Result(shown(path), Outcome.FAILED, reason=_reason(error, "read")), None
    if not stat.S_ISREG(status.st_mode):
        return _skipped(path, "not-a-file", "it is no regular file"), None
    if not any(inside(real, root) for root in roots):
        return _skipped(path, "outside", f"the link leads out of the given paths, to {shown(real)}", "name its target itself"), None
    if path.endswith(".ipynb"):
        return _skipped(path, "notebook", "notebooks are not read yet", "export it as a script"), None
    return Found(shown(real), real), (status.st_dev, status.st_ino)


def _skipped(path: str, code: str, text: str, help: str = "") -> Result:
    return Result(shown(path), Outcome.SKIPPED, reason=Reason(code, text, help))


def _entries(path: str, exclude: Patterns, force_exclude: bool) -> Iterator[str | Result]:
    """The files under one given path, and results for what cannot be looked into."""
    whole = os.path.abspath(path)
    exclusion = Exclusion(_top(whole), exclude, read_if_there)
    if force_exclude and _forced_out(whole, exclusion):
        return
    if not os.path.isdir(path):
        yield whole
        return
    if not force_exclude and exclusion.ignored(whole, is_folder=True):
        exclusion = Exclusion(whole, exclude, read_if_there)  # asked for by name, so what ignores it is not heard
    yield from _descend(whole, exclusion)


def is_excluded(path: str, exclude: Patterns) -> bool:
    """Whether a walk would leave out a file of this name, which need not be there.

    Args:
        path: the file.
        exclude: the user's own patterns.
    """
    whole = os.path.abspath(path)
    return _forced_out(whole, Exclusion(_top(whole), exclude, read_if_there))


def _descend(folder: str, exclusion: Exclusion) -> Iterator[str | Result]:
    folders = [folder]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            yield Result(shown(folder), Outcome.FAILED, reason=_reason(error, "read"))
            continue
        below = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not exclusion.leaves_out(folder, entry.name, is_folder=True):
                    below.append(entry.path)
            elif (
                entry.name.endswith(".py")
                and not os.path.isdir(entry.path)
                and not exclusion.leaves_out(folder, entry.name, is_folder=False)
            ):
                yield entry.path
        folders += reversed(below)


def _forced_out(path: str, exclusion: Exclusion) -> bool:
    """Whether a walk from the top folder would have left a given path, or a folder above it, out."""
    steps = os.path.relpath(path, exclusion.top).split(os.sep)
    folders = [os.path.join(exclusion.top, *steps[:depth]) for depth in range(len(steps))]
    return steps != ["."] and any(
        exclusion.leaves_out(folder, step, is_folder=os.path.isdir(os.path.join(folder, step))) for folder, step in zip(folders, steps)
    )


def _top(path: str) -> str:
    """The git work tree that holds a path; without one the working folder if it holds the path, else the path's own."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    tree = git_work_tree(folder)
    if tree is not None:
        return tree
    here = os.getcwd()
    return here if inside(folder, here) else folder


def shown(path: str) -> str:
    """A path as users read it: relative to the working folder, POSIX; absolute where there is no such way."""
    try:
        return os.path.relpath(path).replace(os.sep, "/")
    except ValueError:  # another drive
        return os.path.abspath(path).replace(os.sep, "/")


def upward(folder: str) -> Iterator[str]:
    """A folder and those above it, the nearest first."""
    folder = os.path.abspath(folder)
    while True:
        yield folder
        above = os.path.dirname(folder)
        if above == folder:
            return
        folder = above


def common_folder(paths: Sequence[str]) -> str:
    """The deepest folder that holds all of some paths, absolute; a folder holds itself."""
    folders = [path if os.path.isdir(path) else os.path.dirname(path) for path in map(os.path.abspath, paths)]
    try:
        return os.path.commonpath(folders)
    except ValueError:  # several drives
        return os.getcwd()


def git_work_tree(folder: str) -> str | None:
    """The root of the git work tree that a folder lies in, None if it lies in none."""
    return next((above for above in upward(folder) if os.path.exists(os.path.join(above, ".git"))), None)


# Projects


def project_root(folder: str) -> tuple[str, bool]:
    """The root of the project that a folder belongs to, and whether a mark says so; else the folder that holds its package."""
    for above in upward(folder):
        if any(os.path.exists(os.path.join(above, mark)) for mark in PROJECT_MARKS):
            return above, True
    return next((above for above in upward(folder) if not _is_package(above)), os.path.abspath(folder)), False


def _is_package(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "__init__.py"))


def names_at_top(root: str) -> list[str]:
    """The names at the top of a project and in its folder ``requirements``, as POSIX paths relative to its root."""
    return sorted([*_names(root), *(f"requirements/{name}" for name in _names(os.path.join(root, "requirements")))])


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


class ProjectReader:
    """The bytes of a project's files by relative POSIX path; None for what is missing or lies outside its root.

    Keeps what it has read; a copy in another process starts empty.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._kept: dict[str, bytes | None] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"root": self.root, "_kept": {}}

    def __call__(self, path: str) -> bytes | None:
        if path not in self._kept:
            real = os.path.realpath(os.path.join(self.root, path))
            self._kept[path] = read_if_there(real) if inside(real, os.path.realpath(self.root)) else None
        return self._kept[path]


class ProjectPaths(Sequence[str]):
    """The relative POSIX paths of a project's Python files, listed when first asked for.

    Args:
        root: the project's folder, absolute.
        deep: whether all folders below it belong to it too; else only its packages do.
    """

    def __init__(self, root: str, deep: bool) -> None:
        self.root = root
        self.deep = deep

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: Any) -> Any:
        return self._paths[index]

    @cached_property
    def _paths(self) -> tuple[str, ...]:
        if self.deep:
            entries = _entries(self.root, Patterns(self.root, ()), force_exclude=False)
            found = [entry for entry in entries if isinstance(entry, str)]
        else:
            found = sorted(_modules(self.root))
        return tuple(os.path.relpath(path, self.root).replace(os.sep, "/") for path in found)


def _modules(folder: str) -> Iterator[str]:
    """The Python files of a folder, of the packages in it, and of the folders from which its files import."""
    names = _names(folder)
    here = [os.path.join(folder, name) for name in names if name.endswith(".py")]
    yield from here
    texts = b"\n".join(read_if_there(path) or b"" for path in here)
    for name in names:
        path = os.path.join(folder, name)
        if not os.path.islink(path) and (_is_package(path) or (os.path.isdir(path) and _imports(texts, name))):
            yield from _modules(path)


def _imports(text: bytes, name: str) -> bool:
    """Whether code imports from a folder of this name, by a statement or by ``import_module("name." + ...)``."""
    word = re.escape(name.encode())
    statement, call = rb"^[ \t]*(?:from|import)[ \t]+" + word + rb"[ \t.]", rb"import_module\(\s*f?[\"']" + word + rb"\."
    return re.search(statement + b"|" + call, text, re.MULTILINE) is not None


# Reading


def read(path: str) -> bytes:
    """The bytes of a file.

    Raises:
        FileError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise FileError(_reason(error, "read")) from error


def size(path: str) -> int:
    """How many bytes a file holds; none where nobody can tell."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def read_if_there(path: str) -> bytes | None:
    """The bytes of a regular file, None where there is none that can be read."""
    try:
        return read(path) if os.path.isfile(path) else None
    except FileError:
        return None


def read_standard_input() -> bytes:
    """All bytes of standard input.

    Raises:
        UsageError: the caller closed it.
        FileError: it cannot be read.
    """
    if sys.stdin is None:
        raise UsageError("standard input is closed")
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise FileError(_reason(error, "read")) from error


def read_toml(path: str) -> dict[str, Any]:
    """A TOML file as a dictionary.

    Raises:
        UsageError: it cannot be read or is no TOML; says where.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(read(path).decode("utf-8"))
    except FileError as error:
        raise UsageError(f"{shown(path)}: {error.reason.text}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown(path)}: not valid TOML: {error}") from error


def _reason(error: OSError, verb: str) -> Reason:
    """Why a file could not be read or written, and the next step."""
    help = {
        errno.EACCES: f"give yourself the right to {verb} it (chmod u+{verb[0]})",
        errno.EPERM: f"give yourself the right to {verb} it (chmod u+{verb[0]})",
        errno.EROFS: "make the file system writable, or work on a copy",
        errno.ENOSPC: "free some space and run again",
        errno.EISDIR: "name the files in it",
    }.get(error.errno or 0, "look at the file and run again")
    text = f"cannot be {'read' if verb == 'read' else 'written'}: {os.strerror(error.errno) if error.errno else error}"
    return Reason("unreadable" if verb == "read" else "unwritable", text, help)


def _about(name: str, reason: Reason) -> Reason:
    """A reason that names its file itself, since no line of the report does."""
    return replace(reason, text=f"{name} {reason.text}")


# Writing


def write(path: str, before: bytes, after: bytes) -> None:
    """Replace a file's bytes so that a kill at any moment leaves the old ones or the new ones.

    The new text goes into a temporary file beside it, which then takes its name; the mode is kept, the owner where
    that is allowed. A file with several hard links keeps them, which no file system can do atomically: the text is then
    copied into the file, and a file ``.torchfix-NAME.new`` beside it holds the whole new text until that is done.

    Args:
        path: the real path of an existing file.
        before: what it held when it was read.
        after: what it is to hold.

    Raises:
        FileError: it cannot be written, or does not hold ``before`` any more; it is unchanged then.
    """
    with kept_for_us([path]):
        status = _writable(path, before)
        try:
            if status.st_nlink > 1:
                _copy_beside(path, before, after)
            else:
                temporary = _temporary(path, after, status)
                try:
                    os.replace(temporary, path)
                    _flush_folder(os.path.dirname(path))
                finally:
                    discard(temporary)
        except OSError as error:
            raise FileError(_reason(error, "write")) from error


@contextlib.contextmanager
def kept_for_us(paths: Sequence[str]) -> Iterator[None]:
    """Keep other runs of torchfix from writing some files meanwhile, where the system can lock files (POSIX).

    The locks are the system's own and end with the process, however it ends.

    Raises:
        FileError: one of them cannot be read, or another run is writing it.
    """
    with contextlib.ExitStack() as stack:
        for path in sorted(paths):
            try:
                free = _lock(stack.enter_context(open(path, "rb")))
            except OSError as error:
                raise FileError(_reason(error, "read"), path) from error
            if not free:
                raise FileError(Reason("busy", "another run of torchfix is writing it", "run again when that one has ended"), path)
        yield


def _lock(file: BinaryIO) -> bool:
    """Lock an open file until it is closed; False where another process has done so. No lock where there are none."""
    if os.name == "posix":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
    return True


def _writable(path: str, before: bytes) -> os.stat_result:
    """What the system says of a file that still holds what it held, and may be written.

    Raises:
        FileError: it does not, or may not.
    """
    if read(path) != before:
        raise FileError(Reason("changed-meanwhile", "the file changed while torchfix ran; it is left as it is", "run again"), path)
    try:
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return os.stat(path)
    except OSError as error:
        raise FileError(_reason(error, "write"), path) from error


def _temporary(path: str, after: bytes, status: os.stat_result) -> str:
    """New bytes in a file beside another, ready to take its name; gives its path.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=".torchfix-", suffix=".tmp", dir=os.path.dirname(path))
    ready = False
    try:
        with open(descriptor, "wb") as file:
            file.write(after)
            _flush(file)
        _keep_owner(temporary, status)
        os.chmod(temporary, stat.S_IMODE(status.st_mode))
        ready = True
    finally:
        if not ready:
            discard(temporary)
    return temporary


def prepare(path: str, before: bytes, after: bytes) -> str:
    """A file's new bytes in a temporary file beside it, which :func:`promote` gives its name; the temporary file's path.

    Raises:
        FileError: it cannot be written, does not hold ``before`` any more, or has several hard links, of which a rename
            would take only one.
    """
    status = _writable(path, before)
    if status.st_nlink > 1:
        words = "it has several hard links, so that it cannot change together with other files"
        raise FileError(Reason("hard-links", words, "replace the links by copies, or make this change by hand"), path)
    try:
        return _temporary(path, after, status)
    except OSError as error:
        raise FileError(_reason(error, "write"), path) from error


def promote(temporary: str, path: str) -> None:
    """Let a temporary file take the place of the file beside it.

    Raises:
        FileError: it cannot; both are as they were.
    """
    try:
        os.replace(temporary, path)
    except OSError as error:
        raise FileError(_reason(error, "write"), path) from error
    _flush_folder(os.path.dirname(path))


def discard(path: str) -> None:
    """Remove a file of ours that may be gone already; where it cannot be removed it stays."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def new_journal(folder: str, data: bytes) -> str:
    """Write a journal that nobody else reads, whole or not at all; gives its path.

    Raises:
        FileError: it cannot be written; nothing is left of it.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=".torchfix-", suffix=".tmp", dir=folder)
        path = temporary.removesuffix(".tmp") + ".journal"
        written = False
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                _flush(file)
            os.rename(temporary, path)
            written = True
        finally:
            if not written:
                discard(temporary)
    except OSError as error:
        raise FileError(_reason(error, "write"), folder) from error
    _flush_folder(folder)
    return path


def is_temporary(name: str) -> bool:
    """Whether a name is one that temporary files of ours have."""
    return _TEMPORARY.fullmatch(name) is not None


def journals(folder: str) -> list[str]:
    """The paths of this user's own journals in a folder."""
    found = [os.path.join(folder, name) for name in sorted(_names(folder)) if _JOURNAL.fullmatch(name)]
    return [path for path in found if _is_own(path)]


def _is_own(path: str) -> bool:
    """Whether a path is that of a regular file, no link, of this user."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and (os.name != "posix" or status.st_uid == os.geteuid())


def _copy_beside(path: str, before: bytes, after: bytes) -> None:
    """Overwrite a file with hard links in place, its new text kept beside it until that is done."""
    descriptor, spare = tempfile.mkstemp(prefix=".torchfix-", suffix=".new", dir=os.path.dirname(path))
    try:
        with open(descriptor, "wb") as file:
            file.write(after)
            _flush(file)
        _copy_into(path, before, after)
    finally:
        discard(spare)


def _copy_into(path: str, before: bytes, after: bytes) -> None:
    """Overwrite a file in place; an error or an interrupt on the way puts the old bytes back."""
    with open(path, "r+b", buffering=0) as file:
        written = False
        try:
            _overwrite(file, after)
            written = True
        finally:
            if not written:
                _overwrite(file, before)


def _overwrite(file: BinaryIO, data: bytes) -> None:
    file.seek(0)
    left = memoryview(data)
    while left:  # a disk that fills up takes a part without an error
        left = left[file.write(left) :]
    file.truncate()
    _flush(file)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: str) -> None:
    """Make a rename last, where the folder and its file system let us; only POSIX opens folders."""
    if os.name == "posix":
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _keep_owner(path: str, status: os.stat_result) -> None:
    if os.name == "posix" and (os.geteuid(), os.getegid()) != (status.st_uid, status.st_gid):
        with contextlib.suppress(PermissionError):
            os.chown(path, status.st_uid, status.st_gid)


def clear_leftovers(folder: str) -> None:
    """Remove the temporary files that killed runs left in a folder.

    What they hold is found anew by the next run. Only regular files with such a name go that are this user's and so old
    that no run still writes them.
    """
    newest = time.time() - _SECONDS_TO_WRITE
    for name in filter(_TEMPORARY.fullmatch, _names(folder)):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            if _is_own(path) and os.lstat(path).st_mtime < newest:
                os.unlink(path)


def check_working_folder() -> None:
    """Make sure that the folder in which the command runs is still there.

    Raises:
        UsageError: it was removed, or may not be entered.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(f"the working folder cannot be used: {error.strerror}; change into another one") from error


def check_output(path: str) -> None:
    """Make sure, before any work is done, that a file can be written.

    Raises:
        UsageError: it has no name, its folder is missing, or a folder has its name.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if not path:
        raise UsageError("the output file has no name")
    if os.path.isdir(path) or not os.path.isdir(folder):
        raise UsageError(
            f"{shown(path)} cannot be written: {'a folder has this name' if os.path.isdir(path) else 'its folder does not exist'}"
        )


def write_whole(path: str, data: bytes) -> None:
    """Write a file of torchfix's own: a report, a patch.

    Raises:
        FileError: it cannot be written.
    """
    try:
        with open(path, "wb") as file:  # a pipe or a device will do, so nothing is asked of a disk
            file.write(data)
    except OSError as error:
        raise FileError(_about(shown(path), _reason(error, "write"))) from error


def save_undo(patch: bytes) -> str:
    """Keep a patch that takes a run back, in the user's state folder or else the temporary one; gives its path.

    Raises:
        UsageError: neither folder can be written.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # as the XDG base directory specification says
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    name = f"torchfix-undo-{time.strftime('%Y%m%d-%H%M%S')}"
    for folder in (os.path.join(state, "torchfix"), tempfile.gettempdir()):
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            path = next(path for path in _numbered(os.path.join(folder, name), ".patch") if not os.path.lexists(path))
            with open(path, "xb", opener=_private) as file:  # never through a link that somebody laid there
                file.write(patch)
                _flush(file)
            return path
    raise UsageError(
        "the patch that would undo the run can be saved neither in the state folder nor in the temporary one; nothing was written"
    )


def _private(path: str, flags: int) -> int:
    """Open a file that nobody else reads: it may hold code of files that nobody else reads."""
    return os.open(path, flags, 0o600)


def _numbered(stem: str, suffix: str) -> Iterator[str]:
    yield stem + suffix
    for number in itertools.count(2):
        yield f"{stem}-{number}{suffix}"


def open_closed_outputs() -> None:
    """Give a process whose caller closed standard output or standard error streams that lead nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))


def put(stream: TextIO, data: bytes) -> None:
    """Bytes to standard output or standard error as they are; a reader that has gone away is no error.

    Raises:
        FileError: they cannot be written.
    """
    try:
        stream.flush()
        stream.buffer.write(data)
        stream.buffer.flush()
    except BrokenPipeError:
        _abandon(stream)
    except OSError as error:
        _abandon(stream)
        raise FileError(_about("the output", _reason(error, "write"))) from error


def _abandon(stream: TextIO) -> None:
    """Let what is still to be written to a stream go nowhere, for nobody reads it any more."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
