"""What a transform is, and what it says: findings with their edits, effects and reasons."""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchfix.edits import Edit, Elsewhere

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Effect(str, enum.Enum):
    """What else may change for the user when a finding is fixed."""

    NUMERICS = "numerics"
    RNG = "rng"
    PROCESS = "process"
    MEMORY = "memory"
    ORDER = "order"
    CHECKPOINT = "checkpoint"
    SYNC = "sync"


class Risk(enum.IntEnum):
    """How far a fixed program may differ from the old one; follows from a finding's effects."""

    EXACT = 0
    NUMERIC = 1
    BEHAVIOR = 2

    @property
    def word(self) -> str:
        """The word that users type and read."""
        return self.name.lower()

    @classmethod
    def of(cls, effects: frozenset[Effect]) -> Risk:
        """The risk that a set of effects amounts to."""
        if not effects:
            return cls.EXACT
        if effects <= {Effect.NUMERICS, Effect.RNG}:
            return cls.NUMERIC
        return cls.BEHAVIOR


class Default(str, enum.Enum):
    """Whether a transform runs unasked."""

    ON = "on"
    OFF = "off"
    ADVICE = "advice"


@dataclass(frozen=True)
class Held:
    """Why a finding was left alone: a stable reason code, the words, and what the user can do about it."""

    code: str
    text: str
    help: str = ""


@dataclass(frozen=True, eq=False)
class Finding:
    """One place where a transform sees something, with either the edits that mend it or the reason to leave it.

    Args:
        node: where it stands; for a loop the report shows the header only.
        message: what is there and what it costs, present tense, no full stop.
        edits: the change, taken whole or not at all.
        effects: what else may change for the user.
        because: what the judgement rests on.
        notes: sentences that the user must read before merging (a new launch command, how to undo a choice).
        held: the reason, in place of edits.
        transform: the rule's name; the engine fills it in.
        elsewhere: the part of the change that other files of the project must take, each of them once.
    """

    node: ast.AST
    message: str
    edits: tuple[Edit, ...] = ()
    effects: frozenset[Effect] = frozenset()
    because: str = ""
    notes: tuple[str, ...] = ()
    held: Held | None = None
    transform: str = ""
    elsewhere: tuple[Elsewhere, ...] = ()

    @property
    def risk(self) -> Risk:
        """The risk that follows from the effects."""
        return Risk.of(self.effects)


@dataclass(frozen=True)
class NoOptions:
    """The options of a transform that has none."""


Find = Callable[["Facts", Any], Iterator[Finding]]

_HEADINGS = ("Why", "Before", "After", "Safety", "Reference")


@dataclass(frozen=True)
class Transform:
    """One rewrite: its name, what it says of itself, and the function that finds its places.

    Args:
        name: as users type it, from the module's own name.
        group: the group that users select it by.
        literals: bytes of which a file must hold at least one to concern it.
        options: the frozen dataclass of its options; its fields are the keys under ``[tool.torchfix.rules.NAME]``.
        since: the oldest torch version that knows what it writes.
        default: on, off, or advice.
        find: the places, read from the facts.
        summary, why, before, after, safety, reference: the sections of the module's docstring.
    """

    name: str
    group: str
    literals: tuple[bytes, ...]
    find: Find
    options: type[Any]
    since: str
    default: Default
    summary: str
    why: str
    before: str
    after: str
    safety: str
    reference: str

    @property
    def oldest_torch(self) -> tuple[int, int]:
        """``since`` as a number that can be compared."""
        major, _, minor = self.since.partition(".")
        return int(major), int(minor or 0)

    @classmethod
    def from_module(
        cls,
        module: str,
        docstring: str | None,
        *,
        group: str,
        literals: tuple[bytes, ...],
        find: Find,
        since: str,
        options: type[Any] = NoOptions,
        default: Default = Default.ON,
    ) -> Transform:
        """Build a transform from its module's name and docstring.

        Raises:
            ValueError: the docstring lacks one of the fixed headings.
        """
        sections = _sections(docstring or "")
        return cls(
            name=module.rpartition(".")[2].replace("_", "-"),
            group=group,
            literals=literals,
            find=find,
            options=options,
            since=since,
            default=default,
            summary=sections["Summary"],
            why=sections["Why"],
            before=_code(sections["Before"]),
            after=_code(sections["After"]),
            safety=sections["Safety"],
            reference=sections["Reference"],
        )


def _sections(docstring: str) -> dict[str, str]:
    """The text under each fixed heading (``Why:`` alone on a line), the first paragraph under ``Summary``."""
    heading = re.compile(rf"^({'|'.join(_HEADINGS)}):[ \t]*$", re.MULTILINE)
    pieces = heading.split(docstring)
    sections = {"Summary": pieces[0].strip()}
    for name, body in zip(pieces[1::2], pieces[2::2]):
        sections[name] = _dedent(body)
    missing = [name for name in _HEADINGS if not sections.get(name)]
    if missing:
        raise ValueError(f"a transform's docstring needs the headings {', '.join(missing)}")
    return sections


def _dedent(body: str) -> str:
    lines = body.strip("\n").rstrip().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:] for line in lines)


def _code(body: str) -> str:
    return body.rstrip() + "\n"


@dataclass(frozen=True)
class Selected:
    """A transform that this run uses, with its options filled in."""

    transform: Transform
    options: Any = field(default_factory=NoOptions)

    def concerns(self, data: bytes) -> bool:
        """Whether a file with these bytes may hold anything for it; only what surely holds nothing is denied."""
        return any(literal in data for literal in self.transform.literals)
