"""What became of one file: plain data that crosses processes."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Outcome(str, enum.Enum):
    """The four ways in which a file can end."""

    CHANGED = "changed"
    CLEAN = "clean"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class Reason:
    """A stable code, the words, and what the user can do."""

    code: str
    text: str
    help: str = ""


@dataclass(frozen=True)
class Place:
    """A place in another file than a finding's own; lines and columns as in :class:`Note`."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True)
class Note:
    """A finding without its nodes. Lines are 1-based and the author's; columns are 0-based characters.

    ``outcome`` is ``fixed``, ``held`` or ``suppressed``; ``risk`` and ``effects`` are the words that users read.
    ``elsewhere`` are the places in other files that change with it, in all of them or in none, or whose comment forbids it.
    """

    rule: str
    group: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    outcome: str
    risk: str
    effects: tuple[str, ...] = ()
    because: str = ""
    notes: tuple[str, ...] = ()
    reason: Reason | None = None
    cell: int | None = None
    elsewhere: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Result:
    """One file's fate. ``before`` and ``after`` are its whole bytes and differ only when ``outcome`` is CHANGED.

    ``unused_suppressions`` lists ``(line, words)`` of comments that forbade nothing.
    """

    path: str
    outcome: Outcome
    before: bytes = b""
    after: bytes = b""
    notes: tuple[Note, ...] = ()
    reason: Reason | None = None
    unused_suppressions: tuple[tuple[int, str], ...] = ()
