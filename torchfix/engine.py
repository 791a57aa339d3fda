"""The pure core: a file's bytes and transforms in, its result out.

Facts are read, findings made, planned and applied, and what was written is proved; so round by round until no
transform has anything to change. Nothing here touches a disk or a screen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

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
from torchfix.transform import Effect, Finding, Held, Risk, Selected

ROUNDS = 5
"""How often the file may be changed before it counts as never quiet."""

_ADVICE = Held("advice", "this rule only advises")
_REPORT = "please report it; the file is as it was"


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
    project.forget()
    work = _Work(path, data, project, selected, settings)
    try:
        return work.result()
    except SourceError as error:
        return work.failed(Reason(error.code, error.text, error.help))
    except _Failure as failure:
        return work.failed(failure.reason)
    except RecursionError:
        return work.failed(Reason("too-deep", "the code is nested too deeply", "split the expression or the chain of elif"))
    except Exception as error:  # the one broad catch: a fault in one file must not stop the others
        words = f"{work.step}: {type(error).__name__}: {error}"
        return work.failed(Reason("internal", f"an error of torchfix itself, in {words}", _REPORT))


@dataclass(frozen=True)
class _Version:
    """The text that a round looks at, and how it came from the author's."""

    author: SourceFile
    draft: Draft
    project: Project

    @cached_property
    def facts(self) -> Facts:
        return self.project.facts(replace(self.author, text=self.draft.text))

    @property
    def source(self) -> SourceFile:
        """The text whose nodes the facts speak of."""
        return self.facts.source

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.source)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node of this text stands in the author's."""
        return self.draft.origin(*self.layout.span(node))


@dataclass(frozen=True)
class _Look:
    """What the transforms see in one version."""

    plan: Plan
    notes: tuple[Note, ...]
    used: tuple[Suppression, ...]


class _Work:
    """One file on its way through the engine.

    Attributes:
        step: what is being done, for the message of an unforeseen error.
    """

    def __init__(self, path: str, data: bytes, project: Project, selected: Sequence[Selected], settings: EngineSettings) -> None:
        self.path = path
        self.data = data
        self.project = project
        self.selected = selected
        self._transforms = {chosen.transform.name: chosen.transform for chosen in selected}
        self.settings = settings
        self.step = "reading"

    def failed(self, reason: Reason) -> Result:
        return Result(self.path, Outcome.FAILED, self.data, self.data, reason=reason)

    def result(self) -> Result:
        if not self._concerned(self.data):
            return Result(self.path, Outcome.CLEAN, self.data, self.data)
        author = SourceFile.from_bytes(self.path, self.data)
        version = _Version(author, Draft.kept(author.text), self.project)
        fixed: list[Note] = []
        used: set[int] = set()
        for changes in range(ROUNDS + 1):
            look = self._look(version)
            used.update(version.draft.origin(comment.offset, comment.offset)[0] for comment in look.used)
            if not look.plan.accepted:
                break
            if changes == ROUNDS:
                words = f"{_names(look.plan)} found something new after each of {ROUNDS} rounds"
                raise _Failure("not-quiet", words, "select the rules one at a time")
            fixed += [_note(finding, group, "fixed", version) for finding, group in self._grouped(look.plan.accepted)]
            version = self._changed(version, look.plan)
        notes = tuple(sorted([*_once(fixed), *look.notes], key=lambda note: (note.line, note.column, note.rule)))
        unused = tuple((comment.line, comment.words) for comment in suppressions(author) if comment.offset not in used)
        after = self._written(version) if fixed else self.data
        return Result(self.path, Outcome.CHANGED if after != self.data else Outcome.CLEAN, self.data, after, notes, None, unused)

    def _concerned(self, data: bytes) -> list[Selected]:
        """The transforms that may find something in these bytes."""
        if not self.settings.gates:
            return list(self.selected)
        return [chosen for chosen in self.selected if chosen.concerns(data)]

    def _grouped(self, findings: Iterable[Finding]) -> Iterator[tuple[Finding, str]]:
        """Findings with their rules' groups."""
        return ((finding, self._transforms[finding.transform].group) for finding in findings)

    def _look(self, version: _Version) -> _Look:
        """What may be changed in one version, and notes of what is left alone."""
        comments = suppressions(version.source)
        possible: list[Finding] = []
        notes: list[Note] = []
        used: list[Suppression] = []
        for finding, group in self._grouped(self._findings(version.facts)):
            forbidden = forbidding(comments, version.layout, finding.node, (finding.transform, group))
            held = finding.held or self._holding(finding)
            used += forbidden
            if forbidden:
                notes.append(_note(finding, group, "suppressed", version))
            elif held is not None:
                notes.append(_note(finding, group, "held", version, held))
            else:
                possible.append(finding)
        self.step = "planning"
        planned = plan(possible, version.source)
        reasons = {deferred.finding: deferred.reason for deferred in planned.deferred}
        notes += [_note(finding, group, "held", version, reasons[finding]) for finding, group in self._grouped(reasons)]
        return _Look(planned, tuple(notes), tuple(used))

    def _findings(self, facts: Facts) -> Iterator[Finding]:
        source = facts.source
        source.tree  # noqa: B018  a file that does not parse ends here, whatever the transforms ask
        for chosen in self._concerned(source.text.encode(errors="replace")):
            self.step = f"the rule {chosen.transform.name}"
            for finding in chosen.transform.find(facts, chosen.options):
                yield replace(finding, transform=chosen.transform.name)

    def _holding(self, finding: Finding) -> Held | None:
        """Why this run leaves alone what its transform would change."""
        if not finding.edits:
            return _ADVICE
        if finding.risk > self.settings.risk:
            words = f"its risk is {finding.risk.word} and the run allows {self.settings.risk.word}"
            return Held("risk", words, f"allow it with --risk {finding.risk.word}")
        transform = self._transforms[finding.transform]
        torch = self.project.torch
        if torch is not None and torch < transform.oldest_torch:
            words = f"it writes what torch {transform.since} brought, and the code must run on torch {torch[0]}.{torch[1]}"
            return Held("torch-too-old", words, f"raise the project's lower bound, or set it with --torch {transform.since}")
        return None

    def _changed(self, version: _Version, planned: Plan) -> _Version:
        """The version after a plan, proved."""
        self.step = "applying"
        edits = placed(version.source, planned.edits)
        draft = apply(version.source, edits)
        after = _Version(version.author, draft.over(version.draft), self.project)
        self.step = "proving"
        try:
            prove(version.source.tree, edits, after.source)
        except ProofError as error:
            raise _Failure("proof", f"{error} (changed by {_names(planned)})", _REPORT) from error
        return after

    def _written(self, version: _Version) -> bytes:
        """The new bytes, in the target's format; read back, they must be the same text."""
        self.step = "formatting"
        author = version.author
        text = formatted(author, version.draft, self.settings.style, self.settings.format)
        try:
            data = author.encode(text)
        except UnicodeEncodeError as error:
            words = f"the new text does not fit the file's encoding {author.encoding}"
            raise _Failure("encoding", words, "save the file as UTF-8") from error
        if SourceFile.from_bytes(self.path, data) != replace(author, text=text):
            raise _Failure("proof", "the new bytes would be read as another text", _REPORT)
        return data


def _names(planned: Plan) -> str:
    return ", ".join(sorted({finding.transform for finding in planned.accepted}))


def _once(fixed: Iterable[Note]) -> list[Note]:
    """The fixed findings with each place of a rule told once, though a later round may have gone over it again."""
    found: dict[tuple[object, ...], Note] = {}
    for note in fixed:
        key = (note.rule, note.line, note.column, note.end_line, note.end_column)
        first = found.get(key)
        if first is not None:
            effects = tuple(effect.value for effect in Effect if effect.value in (*first.effects, *note.effects))
            risk = Risk.of(frozenset(Effect(word) for word in effects)).word
            note = replace(first, effects=effects, risk=risk, notes=tuple(dict.fromkeys((*first.notes, *note.notes))))
        found[key] = note
    return list(found.values())


def _note(finding: Finding, group: str, outcome: str, version: _Version, held: Held | None = None) -> Note:
    """A finding in the author's lines and columns."""
    start, end = version.span(finding.node)
    (line, column), (end_line, end_column) = version.author.position(start), version.author.position(end)
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
