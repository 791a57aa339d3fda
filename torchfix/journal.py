"""Several files written all or none: a journal says what a run was about, so that the next one mends what a kill left.

First each new text is written beside its file; then the journal, which names them all; then each takes its file's name,
in the journal's order; then the journal goes. Until the journal stands nothing has changed, and as long as it stands the
next run that writes can finish the rest, or take back what was done: it holds the old texts.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchfix import files
from torchfix.files import FileError, shown
from torchfix.result import Reason

_FORM = 1


@dataclass(frozen=True)
class Change:
    """A file, by its real path, with its bytes before and after."""

    path: str
    before: bytes
    after: bytes


@dataclass(frozen=True)
class _Entry:
    """One file of a journal: its real path, its temporary file, its old bytes, and the digest of its new ones."""

    path: str
    temporary: str
    before: bytes
    after: str


def write_together(changes: Sequence[Change]) -> None:
    """Write several files, all or none, also where the process is killed on the way.

    Raises:
        FileError: one of them cannot be written, does not hold its old bytes any more, or is no Python file by name;
            none is changed then. ``path`` says which.
    """
    for change in changes:
        if not change.path.endswith(".py"):  # as a journal that is found must say, lest it be somebody's trap
            raise FileError(Reason("unwritable", "only .py files can change together", "rename it"), change.path)
    folder = files.common_folder([change.path for change in changes])
    with files.kept_for_us([change.path for change in changes]):
        entries: list[_Entry] = []
        journal = ""
        done = 0
        try:
            for change in changes:
                temporary = files.prepare(change.path, change.before, change.after)
                entries.append(_Entry(change.path, temporary, change.before, _digest(change.after)))
            journal = files.new_journal(folder, _document(folder, entries))
            for entry in entries:
                files.promote(entry.temporary, entry.path)
                done += 1
        finally:
            if done < len(changes):
                _undo(entries)
            _clear(entries, journal)


def _undo(entries: Sequence[_Entry]) -> None:
    """As :func:`_take_back`, where the run itself still lives to say what became of it."""
    try:
        _take_back(entries)
    except FileError as error:
        words = f"it is half changed together with others, and {error.reason.text}"
        raise FileError(Reason("half-written", words, "run torchfix --apply again, which mends that"), error.path) from error


def _take_back(entries: Sequence[_Entry]) -> None:
    """Give files that hold their new bytes the old ones.

    Raises:
        FileError: one of them cannot be written; the journal is to stay.
    """
    for entry in entries:
        held = files.read(entry.path)
        if _digest(held) == entry.after and held != entry.before:
            files.promote(files.prepare(entry.path, held, entry.before), entry.path)


def _clear(entries: Sequence[_Entry], journal: str) -> None:
    """Remove what a group's writing needed, the journal last."""
    for entry in entries:
        files.discard(entry.temporary)
    if journal:
        files.discard(journal)


def mend(folders: Iterable[str]) -> Iterator[str]:
    """Finish or take back what killed runs left, told in a sentence each.

    Args:
        folders: where to look for journals.
    """
    for folder in sorted({os.path.realpath(folder) for folder in folders}):
        for journal in files.journals(folder):
            words = _mended(folder, journal)
            if words:
                yield words


def _mended(folder: str, journal: str) -> str:
    """What was done about one journal; nothing where its run is still at work."""
    try:
        entries = _entries(folder, files.read(journal))
    except FileError as error:
        return f"{shown(journal)} {error.reason.text}, and may be the journal of a run that was killed"
    if entries is None:
        return f"{shown(journal)} is no journal of this torchfix, and is left as it is; remove it if nobody needs it"
    names = ", ".join(shown(entry.path) for entry in entries)
    try:
        with files.kept_for_us([entry.path for entry in entries if os.path.isfile(entry.path)]):
            done = _settle(entries)
            if done:
                _clear(entries, journal)
    except FileError as error:
        if error.reason.code == "busy":
            return ""
        return f"a killed run left {names} half changed, and {shown(error.path)} {error.reason.text}"
    if done:
        return f"a run was killed while it changed {names} together; {done}"
    return (
        f"a killed run left {names} half changed, and somebody has changed one of them since; look at them, "
        f"then remove {shown(journal)}"
    )


def _settle(entries: Sequence[_Entry]) -> str:
    """Finish a group or take it back, whichever leaves alone what somebody has changed since; what was done, or nothing.

    Temporary files took their files' names in order, so that those in front of a new text were written and those behind an
    old one were not. Where one that was changed since was written, the others must be too; where it was not, neither may
    they. A group of which nothing is written is dropped: its user may have taken it back.
    """
    states = [_state(entry) for entry in entries]
    last_new = max((index for index, state in enumerate(states) if state == "new"), default=-1)
    first_old = next((index for index, state in enumerate(states) if state == "old"), len(states))
    foreign = [index for index, state in enumerate(states) if state == "foreign"]
    left = [entry for entry, state in zip(entries, states) if state == "old"]
    if 0 <= last_new and all(index < last_new for index in foreign) and all(_is_ready(entry) for entry in left):
        for entry in left:
            files.promote(entry.temporary, entry.path)
        return "the rest was done"
    if all(index > first_old for index in foreign):
        _take_back([entry for entry, state in zip(entries, states) if state == "new"])
        return "that was taken back"
    return ""


def _state(entry: _Entry) -> str:
    """Whether a file holds its old text, its new one, or what somebody else has made of it."""
    data = None if os.path.islink(entry.path) else files.read_if_there(entry.path)
    if data == entry.before:
        return "old"
    return "new" if data is not None and _digest(data) == entry.after else "foreign"


def _is_ready(entry: _Entry) -> bool:
    """Whether a temporary file is there and holds the new text."""
    data = None if os.path.islink(entry.temporary) else files.read_if_there(entry.temporary)
    return data is not None and _digest(data) == entry.after


# What a journal says


def _document(folder: str, entries: Sequence[_Entry]) -> bytes:
    listed = [
        {
            "path": os.path.relpath(entry.path, folder).replace(os.sep, "/"),
            "temporary": os.path.basename(entry.temporary),
            "before": base64.b64encode(entry.before).decode("ascii"),
            "after": entry.after,
        }
        for entry in entries
    ]
    return json.dumps({"torchfix-journal": _FORM, "files": listed}).encode("ascii")


def _entries(folder: str, data: bytes) -> list[_Entry] | None:
    """The files of a journal; None where it is none, or names what lies outside its folder or is no Python file.

    A journal may have come with somebody else's files, so it can do no more than its folder's own Python files could.
    """
    try:
        whole: Any = json.loads(data)
        listed = [_entry(folder, item) for item in whole["files"]] if whole["torchfix-journal"] == _FORM else []
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        return None
    found = [entry for entry in listed if entry is not None]
    return found if found and len(found) == len(listed) else None


def _entry(folder: str, item: Any) -> _Entry | None:
    path, temporary = item["path"], item["temporary"]
    real = os.path.normpath(os.path.join(folder, path))
    inside = os.path.realpath(os.path.dirname(real)) == os.path.dirname(real) and real.startswith(folder.rstrip(os.sep) + os.sep)
    if not inside or "\0" in real or not real.endswith(".py") or not files.is_temporary(temporary):
        return None
    before = base64.b64decode(item["before"], validate=True)
    return _Entry(real, os.path.join(os.path.dirname(real), temporary), before, str(item["after"]))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
