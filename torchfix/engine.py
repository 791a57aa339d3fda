"""The pure core: a file's bytes and transforms in, its result out.

Facts are read, findings made, planned and applied, and what was written is proved; so round by round until no
transform has anything to change. Nothing here touches a disk or a screen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from torchfix.apply import apply
from torchfix.draft import Draft
from torchfix.facts import Facts
from torchfix.facts.project import Project
from torchfix.imports import placed
from torchfix.layout import Layout
from torchfix.plan import Plan, plan
from torchfix.proof import ProofError, prove
from torchfix.result import Note, Outcome, Reason, Result
from torchfix.source import SourceError, SourceFile
from torchfix.style import Style, formatted
from torchfix.suppress import Suppression, forbidding, suppressions
from torchfix.transform import Effect, Finding, Held, Risk, Selected, Transform

ROUNDS = 5
"""How often the file may be changed before it counts as never quiet."""

_ADVICE = Held("advice", "this rule only advises", "")


@dataclass(frozen=True)
class EngineSettings:
    """What a run allows.

    Args:
        risk: the highest risk that may be changed.
        format: how Black is used: ``auto``, ``changed``, ``file`` or ``off``.
        style: what the target says about its format.
        gates: whether files without a transform's literals are passed over unread; off only to test that.
    """

    risk: Risk = Risk.BEHAVIOR
    format: str = "auto"
    style: Style = field(default_factory=Style)
    gates: bool = True


class _Failure(Exception):
    """The file cannot be changed as a whole."""

    def __init__(self, code: str, text: str, help: str = "") -> None:
        super().__init__(text)
        self.reason = Reason(code, text, help)


def fix(path: str, data: bytes, project: Project, selected: Sequence[Selected], settings: EngineSettings) -> Result:
    """What becomes of one file. Never raises: a fault of ours fails the file, with its text untouched.

    Args:
        path: as the user gave it.
        data: the file's bytes.
        project: the user's other files.
        selected: the transforms of this run.
        settings: what the run allows.
    """
    work = _Work(path, data, project, selected, settings)
    try:
        return work.result()
    except SourceError as error:
        return work.failed(Reason(error.code, error.text, error.help))
    except _Failure as failure:
        return work.failed(failure.reason)
    except RecursionError:
        return work.failed(Reason("too-deep", "the code is nested too deeply", "split the expression"))
    except Exception as error:  # the one broad catch: a fault in one file must not stop the others
        words = f"{work.step}: {type(error).__name__}: {error}"
        return work.failed(Reason("internal", f"an error of torchfix itself, in {words}", "please report it; the file is as it was"))


@dataclass(frozen=True)
class _Look:
    """What the transforms see in one text."""

    plan: Plan
    notes: tuple[Note, ...]
    used: tuple[Suppression, ...]


class _Work:
    def __init__(self, path: str, data: bytes, project: Project, selected: Sequence[Selected], settings: EngineSettings) -> None:
        self.path = path
        self.data = data
        self.project = project
        self.selected = selected
        self.settings = settings
        self.step = "reading"

    def failed(self, reason: Reason) -> Result:
        return Result(self.path, Outcome.FAILED, self.data, self.data, reason=reason)

    def result(self) -> Result:
        if not self._concerned(self.data):
            return Result(self.path, Outcome.CLEAN, self.data, self.data)
        author = source = SourceFile.from_bytes(self.path, self.data)
        draft = Draft.kept(author.text)
        fixed: list[Note] = []
        used: set[int] = set()
        for changes in range(ROUNDS + 1):
            look = self._look(source, draft, author)
            used.update(draft.origin(comment.offset, comment.offset)[0] for comment in look.used)
            if not look.plan.accepted:
                break
            if changes == ROUNDS:
                names = ", ".join(sorted({finding.transform for finding in look.plan.accepted}))
                raise _Failure("not-quiet", f"{names} found something new after every one of {ROUNDS} rounds", "select the rules one at a time")
            fixed += [self._note(finding, "fixed", source, draft, author) for finding in look.plan.accepted]
            source, draft = self._changed(source, draft, look.plan)
        unused = tuple((comment.line, comment.words) for comment in suppressions(author) if comment.offset not in used)
        notes = tuple(sorted([*fixed, *look.notes], key=lambda note: (note.line, note.column, note.rule)))
        if not fixed:
            return Result(self.path, Outcome.CLEAN, self.data, self.data, notes, unused_suppressions=unused)
        after = self._written(author, draft)
        return Result(self.path, Outcome.CHANGED, self.data, after, notes, unused_suppressions=unused)

    def _concerned(self, data: bytes) -> list[Selected]:
        """The transforms that may find something in these bytes."""
        if not self.settings.gates:
            return list(self.selected)
        return [chosen for chosen in self.selected if any(literal in data for literal in chosen.transform.literals)]

    def _look(self, source: SourceFile, draft: Draft, author: SourceFile) -> _Look:
        """One look at a text: what may be changed, and notes of what is left alone."""
        self.step = "reading the facts"
        facts, layout, comments = Facts(source, self.project), Layout(source), suppressions(source)
        source.tree  # noqa: B018  a file that does not parse ends here
        found: list[Finding] = []
        notes: list[Note] = []
        used: list[Suppression] = []
        for finding, transform in self._findings(facts, source):
            forbidden = forbidding(comments, layout, finding.node, (transform.name, transform.group))
            used += forbidden
            held = finding.held or (None if finding.edits else _ADVICE)
            if forbidden:
                notes.append(self._note(finding, "suppressed", source, draft, author))
            elif held is not None:
                notes.append(self._note(finding, "held", source, draft, author, held))
            elif finding.risk > self.settings.risk:
                allowed = Held("risk", f"its risk is {finding.risk.word}, the run allows {self.settings.risk.word}", f"allow it with --risk {finding.risk.word}")
                notes.append(self._note(finding, "held", source, draft, author, allowed))
            else:
                found.append(finding)
        self.step = "planning"
        planned = plan(found, source)
        notes += [self._note(deferred.finding, "held", source, draft, author, deferred.reason) for deferred in planned.deferred]
        return _Look(planned, tuple(notes), tuple(used))

    def _findings(self, facts: Facts, source: SourceFile) -> Iterator[tuple[Finding, Transform]]:
        for chosen in self._concerned(source.encode(source.text)):
            self.step = f"the rule {chosen.transform.name}"
            for finding in chosen.transform.find(facts, chosen.options):
                yield replace(finding, transform=chosen.transform.name), chosen.transform

    def _changed(self, source: SourceFile, draft: Draft, planned: Plan) -> tuple[SourceFile, Draft]:
        """The text after a plan, proved."""
        self.step = "applying"
        edits = placed(source, planned.edits)
        new = apply(source, edits)
        after = replace(source, text=new.text)
        self.step = "proving"
        try:
            prove(source.tree, edits, after)
        except ProofError as error:
            names = ", ".join(sorted({finding.transform for finding in planned.accepted}))
            raise _Failure("proof", f"{error} (after {names})", "please report it; the file is as it was") from error
        return after, new.over(draft)

    def _written(self, author: SourceFile, draft: Draft) -> bytes:
        """The new bytes, in the target's format; read back, they must be the same text."""
        self.step = "formatting"
        text = formatted(author, draft, self.settings.style, self.settings.format)
        try:
            data = author.encode(text)
        except UnicodeEncodeError as error:
            raise _Failure("encoding", f"the new text does not fit the file's encoding {author.encoding}", "save the file as UTF-8") from error
        if SourceFile.from_bytes(self.path, data) != replace(author, text=text):
            raise _Failure("proof", "the new bytes would be read as another text", "please report it; the file is as it was")
        return data

    def _note(self, finding: Finding, outcome: str, source: SourceFile, draft: Draft, author: SourceFile, held: Held | None = None) -> Note:
        """A finding in the author's lines and columns."""
        start, end = draft.origin(*Layout(source).span(finding.node))
        (line, column), (end_line, end_column) = author.position(start), author.position(end)
        group = next(chosen.transform.group for chosen in self.selected if chosen.transform.name == finding.transform)
        return Note(
            rule=finding.transform,
            group=group,
            line=line,
            column=column,
            end_line=end_line,
            end_column=end_column,
            message=finding.message,
            outcome=outcome,
            risk=finding.risk.word,
            effects=tuple(effect.value for effect in Effect if effect in finding.effects),
            because=finding.because,
            notes=finding.notes,
            reason=None if held is None else Reason(held.code, held.text, held.help),
        )
