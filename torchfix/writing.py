"""Writing what was changed, so that all of it can be had back: from git, or from a patch that is saved first."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchfix import files, git
from torchfix.files import FileError
from torchfix.journal import Change, write_together
from torchfix.patch import unified
from torchfix.result import Outcome, Reason, Result
from torchfix.usage import UsageError

_NAMED = 20
"""How many uncommitted files are named."""


@dataclass(frozen=True)
class Undo:
    """A saved patch that takes changes back: its path, and the folder in which it is to be applied."""

    patch: str
    folder: str


@dataclass(frozen=True)
class Written:
    """The results after writing, those that could not be written failed, and how to take back what git cannot."""

    results: tuple[Result, ...]
    undo: Undo | None


def write_all(results: Sequence[Result], real: Mapping[str, str], allow_dirty: bool) -> Written:
    """Write every changed file; one that cannot be written fails alone, or with those that change together with it.

    Args:
        results: of all files.
        real: where each of them lies, by its path.
        allow_dirty: whether files may be written whose present text git does not hold.

    Raises:
        UsageError: such a file lies in a git work tree, and that was not allowed, or git does not answer, or the patch
            cannot be saved; nothing was written then.
    """
    changed = [result for result in results if result.outcome is Outcome.CHANGED]
    lost_to_git = _lost_to_git([real[result.path] for result in changed], allow_dirty)
    risky = [result for result in changed if real[result.path] in lost_to_git]
    undo = _save_undo(risky, real)
    for folder in {os.path.dirname(path) for path in real.values()}:
        files.clear_leftovers(folder)
    written = {result.path: result for group in _groups(changed) for result in _write(group, real)}
    done = [result for result in risky if written[result.path].outcome is Outcome.CHANGED]
    if len(done) < len(risky):
        with contextlib.suppress(UsageError):  # the first patch stays, and says too much
            undo = _save_undo(done, real)
    return Written(tuple(written.get(result.path, result) for result in results), undo)


def _groups(changed: Sequence[Result]) -> list[list[Result]]:
    """Changed files in groups of which all or none are to be written: those that a fixed finding joins."""
    groups = {result.path: {result.path} for result in changed}
    for result in changed:
        for place in (place for note in result.notes if note.outcome == "fixed" for place in note.elsewhere):
            joined = groups[result.path] | groups.get(place.path, set())
            groups |= dict.fromkeys(joined, joined)
    together: dict[frozenset[str], list[Result]] = {}
    for result in changed:
        together.setdefault(frozenset(groups[result.path]), []).append(result)
    return list(together.values())


def _write(group: Sequence[Result], real: Mapping[str, str]) -> list[Result]:
    """Write a group of files; those of one that cannot be written have all failed."""
    try:
        if len(group) == 1:
            files.write(real[group[0].path], group[0].before, group[0].after)
        else:
            write_together([Change(real[result.path], result.before, result.after) for result in group])
    except FileError as error:
        return [_unwritten(result, error, real[result.path]) for result in group]
    return list(group)


def _unwritten(result: Result, error: FileError, real: str) -> Result:
    """A file that was not written, because it could not be or because one could not that changes together with it."""
    reason = error.reason
    if error.path not in ("", real):
        reason = Reason("other-file-failed", f"{files.shown(error.path)} must change too, and {reason.text}", reason.help)
    notes = tuple(replace(note, outcome="held", reason=reason) if note.outcome == "fixed" else note for note in result.notes)
    return replace(result, outcome=Outcome.FAILED, after=result.before, notes=notes, reason=reason)


def _lost_to_git(paths: Sequence[str], allow_dirty: bool) -> frozenset[str]:
    """The files whose present text git could not give back."""
    try:
        custody = git.custody(paths)
    except UsageError as error:
        if allow_dirty:
            return frozenset(paths)
        raise UsageError(f"{error}; nothing was written; --allow-dirty writes without asking git") from error
    if custody.uncommitted and not allow_dirty:
        names = [f"\n  {files.shown(path)}" for path in custody.uncommitted]
        more = f"\n  and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        words = "nothing was written, for these files have uncommitted changes; commit them or add --allow-dirty:"
        raise UsageError(words + "".join(names[:_NAMED]) + more)
    return frozenset((*custody.uncommitted, *custody.outside))


def _save_undo(changed: Sequence[Result], real: Mapping[str, str]) -> Undo | None:
    if not changed:
        return None
    folder = os.path.commonpath([os.getcwd(), *(os.path.dirname(real[result.path]) for result in changed)])
    names = {result.path: os.path.relpath(real[result.path], folder).replace(os.sep, "/") for result in changed}
    patch = b"".join(unified(names[result.path], result.after, result.before) for result in changed)
    return Undo(files.save_undo(patch), folder)
