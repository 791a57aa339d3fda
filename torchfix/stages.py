"""A file on its way: its author's text, its text now, and what was changed in between."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from functools import cached_property

from torchfix.apply import apply
from torchfix.draft import Draft
from torchfix.facts import Facts
from torchfix.facts.project.project import Project
from torchfix.imports import placed
from torchfix.layout import Layout
from torchfix.plan import Plan
from torchfix.proof import ProofError, prove
from torchfix.result import Note, Place, Reason
from torchfix.source import SourceFile
from torchfix.transform import Effect, Finding, Held

REPORT = "please report it; the file is as it was"
"""What the user can do about a fault of ours."""


class Failure(Exception):
    """The file cannot be changed as a whole."""

    def __init__(self, code: str, text: str, help: str = "") -> None:
        super().__init__(text)
        self.reason = Reason(code, text, help)


@dataclass(frozen=True)
class Stage:
    """How far a file has come: plain data that crosses processes.

    Args:
        author: the file as its author wrote it.
        draft: its text now.
        fixed: notes of what was changed.
        used: where the author's comments stand that forbade something on the way.
    """

    author: SourceFile
    draft: Draft
    fixed: tuple[Note, ...] = ()
    used: frozenset[int] = frozenset()

    @classmethod
    def first(cls, author: SourceFile) -> Stage:
        """A file that nothing was done to."""
        return cls(replace(author), Draft.kept(author.text))  # a copy, without what the other one has computed

    @property
    def data(self) -> bytes:
        """The bytes of the text now, not formatted.

        Raises:
            UnicodeEncodeError: the text holds a character that the file's encoding lacks.
        """
        return self.author.encode(self.draft.text)


@dataclass(frozen=True)
class Version:
    """A stage of a file and what can be asked about it; its nodes are those of the text now.

    Args:
        stage: the file.
        project: the user's other files.
    """

    stage: Stage
    project: Project

    @cached_property
    def facts(self) -> Facts:
        """What the text now says."""
        return self.project.facts(replace(self.stage.author, text=self.stage.draft.text))

    @property
    def source(self) -> SourceFile:
        """The text whose nodes the facts speak of."""
        return self.facts.source

    @cached_property
    def layout(self) -> Layout:
        """How the text now is laid out."""
        return Layout(self.source)

    def place(self, path: str, node: ast.AST) -> Place:
        """Where a node of the text now stands in the author's, under the path that the user knows."""
        start, end = self.stage.draft.origin(*self.layout.span(node))
        return Place(path, *self.stage.author.position(start), *self.stage.author.position(end))

    def note(self, finding: Finding, group: str, outcome: str, held: Held | None = None) -> Note:
        """A finding in the author's lines and columns."""
        place = self.place("", finding.node)
        return Note(
            rule=finding.transform,
            group=group,
            line=place.line,
            column=place.column,
            end_line=place.end_line,
            end_column=place.end_column,
            message=finding.message,
            outcome=outcome,
            risk=finding.risk.word,
            effects=tuple(effect.value for effect in Effect if effect in finding.effects),
            because=finding.because,
            notes=finding.notes,
            reason=None if held is None else Reason(held.code, held.text, held.help),
        )

    def changed(self, planned: Plan) -> Version:
        """The version after a plan, proved; which findings that fixed is for the caller to note.

        Raises:
            Failure: the new text is not what the edits mean.
        """
        edits = placed(self.source, planned.edits)
        draft = apply(self.source, edits)
        after = replace(self, stage=replace(self.stage, draft=draft.over(self.stage.draft)))
        try:
            prove(self.source.tree, edits, after.source)
        except ProofError as error:
            raise Failure("proof", f"{error} (changed by {names(planned)})", REPORT) from error
        return after


def names(planned: Plan) -> str:
    """The rules whose findings a plan takes."""
    return ", ".join(sorted({finding.transform for finding in planned.accepted}))
