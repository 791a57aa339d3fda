"""The pure core: a file's bytes and transforms in, its result out.

Facts are read, findings made, planned and applied, and what was written is proved; so round by round until no
transform has anything to change. Nothing here touches a disk or a screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from torchfix.facts import Facts
from torchfix.facts.project.project import Project
from torchfix.plan import Plan, plan
from torchfix.result import Note, Outcome, Reason, Result
from torchfix.source import SourceError, SourceFile
from torchfix.spanning import Answer, Grounds, Proposal, propose
from torchfix.stages import REPORT, Failure, Stage, Version, names
from torchfix.style import Style, formatted
from torchfix.suppress import forbidding, suppressions
from torchfix.transform import Effect, Finding, Held, Risk, Selected

ROUNDS = 5
"""How often the file may be changed before it counts as never quiet."""

_ADVICE = Held("advice", "this rule only advises")


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


def fix(path: str, data: bytes, project: Project, selected: Sequence[Selected], settings: EngineSettings) -> Result:
    """What becomes of one file by itself, where no other one may change. Never raises.

    Args:
        path: as the user gave it.
        data: the file's bytes.
        project: the user's other files.
        selected: the transforms of this run.
        settings: what the run allows.
    """
    answer = advance(path, data, project, selected, settings, Grounds(files={}))
    assert isinstance(answer, Result), "nothing is proposed to files that may not change"
    return answer


def advance(
    path: str, data: bytes, project: Project, selected: Sequence[Selected], settings: EngineSettings, grounds: Grounds
) -> Answer:
    """What becomes of one file, or what its findings ask of other files before it can go on.

    Never raises: a fault of ours fails the file, with its text untouched. Arguments as for :func:`fix`.

    Args:
        project: the user's files, with those texts that ``grounds`` gives them.
        grounds: which other files may change, and how far they have come.
    """
    project.forget()
    work = _Work(path, data, project, selected, settings, grounds)
    try:
        return work.answer()
    except SourceError as error:
        return work.failed(Reason(error.code, error.text, error.help))
    except Failure as failure:
        return work.failed(failure.reason)
    except RecursionError:
        return work.failed(Reason("too-deep", "the code is nested too deeply", "split the expression or the chain of elif"))
    except Exception as error:  # the one broad catch: a fault in one file must not stop the others
        words = f"{work.step}: {type(error).__name__}: {error}"
        return work.failed(Reason("internal", f"an error of torchfix itself, in {words}", REPORT))


@dataclass(frozen=True)
class _Look:
    """What the transforms see in one version."""

    plan: Plan
    notes: tuple[Note, ...]
    proposal: Proposal | None


class _Work:
    """One file on its way through the engine.

    Attributes:
        step: what is being done, for the message of an unforeseen error.
        used: where the author's comments stand that forbade something.
    """

    def __init__(
        self, path: str, data: bytes, project: Project, selected: Sequence[Selected], settings: EngineSettings, grounds: Grounds
    ) -> None:
        self.path = path
        self.data = data
        self.project = project
        self.selected = selected
        self._transforms = {chosen.transform.name: chosen.transform for chosen in selected}
        self.settings = settings
        self.grounds = grounds
        self.used: set[int] = set()
        self.step = "reading"

    def failed(self, reason: Reason) -> Result:
        return Result(self.path, Outcome.FAILED, self.data, self.data, reason=reason)

    def answer(self) -> Answer:
        begun = self.grounds.stages.get(self.project.relative(self.path))
        if begun is None and not self._concerned(self.data):
            return Result(self.path, Outcome.CLEAN, self.data, self.data)
        author = SourceFile.from_bytes(self.path, self.data)
        if begun is not None and begun.author.text != author.text:
            raise Failure("changed-meanwhile", "the file changed while torchfix ran; it is left as it is", "run again")
        version = Version(replace(begun, author=author) if begun is not None else Stage.first(author), self.project)
        self.used = set(version.stage.used)
        for changes in range(ROUNDS + 1):
            look = self._look(version)
            if look.proposal is not None:
                return look.proposal
            if not look.plan.accepted:
                break
            if changes == ROUNDS:
                words = f"{names(look.plan)} found something new after each of {ROUNDS} rounds"
                raise Failure("not-quiet", words, "select the rules one at a time")
            self.step = "applying"
            fixed = [version.note(finding, group, "fixed") for finding, group in self._grouped(look.plan.accepted)]
            after = version.changed(look.plan)
            version = replace(after, stage=replace(after.stage, fixed=(*version.stage.fixed, *fixed)))
        return self._result(version, look.notes)

    def _result(self, version: Version, left: Iterable[Note]) -> Result:
        """What became of the file, from its last version and notes of what was left alone there."""
        author, stage = version.stage.author, version.stage
        notes = tuple(sorted([*_once(stage.fixed), *left], key=lambda note: (note.line, note.column, note.rule)))
        unused = tuple((comment.line, comment.words) for comment in suppressions(author) if comment.offset not in self.used)
        after = self._written(version) if stage.draft.text != author.text else self.data
        return Result(self.path, Outcome.CHANGED if after != self.data else Outcome.CLEAN, self.data, after, notes, None, unused)

    def _concerned(self, data: bytes) -> list[Selected]:
        """The transforms that may find something in these bytes."""
        if not self.settings.gates:
            return list(self.selected)
        return [chosen for chosen in self.selected if chosen.concerns(data)]

    def _grouped(self, findings: Iterable[Finding]) -> Iterator[tuple[Finding, str]]:
        """Findings with their rules' groups."""
        return ((finding, self._transforms[finding.transform].group) for finding in findings)

    def _look(self, version: Version) -> _Look:
        """What may be changed in a version, what of it asks for other files, and notes of what is left alone."""
        comments = suppressions(version.source)
        possible: list[Finding] = []
        spanning: list[tuple[Finding, str]] = []
        notes: list[Note] = []
        for finding, group in self._grouped(self._findings(version.facts)):
            forbidden = forbidding(comments, version.layout, finding.node, (finding.transform, group))
            held = finding.held or self._holding(finding)
            self.used.update(version.stage.draft.origin(comment.offset, comment.offset)[0] for comment in forbidden)
            if forbidden:
                notes.append(version.note(finding, group, "suppressed"))
            elif held is not None:
                notes.append(version.note(finding, group, "held", held))
            elif finding.elsewhere:
                spanning.append((finding, group))
            else:
                possible.append(finding)
        self.step = "changing several files"
        proposal, refused = propose(spanning, version, frozenset(self.used), self.grounds) if spanning else (None, [])
        notes += refused
        self.step = "planning"
        planned = plan(possible, version.source)
        reasons = {deferred.finding: deferred.reason for deferred in planned.deferred}
        notes += [version.note(finding, group, "held", reasons[finding]) for finding, group in self._grouped(reasons)]
        return _Look(planned, tuple(notes), proposal)

    def _findings(self, facts: Facts) -> Iterator[Finding]:
        source = facts.source
        source.tree  # noqa: B018  a file that does not parse ends here, whatever the transforms ask
        for chosen in self._concerned(source.text.encode(errors="replace")):
            self.step = f"the rule {chosen.transform.name}"
            for finding in chosen.transform.find(facts, chosen.options):
                yield replace(finding, transform=chosen.transform.name)

    def _holding(self, finding: Finding) -> Held | None:
        """Why this run leaves alone what its transform would change."""
        if not finding.edits and not finding.elsewhere:
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

    def _written(self, version: Version) -> bytes:
        """The new bytes, in the target's format; read back, they must be the same text."""
        self.step = "formatting"
        author = version.stage.author
        text = formatted(author, version.stage.draft, self.settings.style, self.settings.format)
        try:
            data = author.encode(text)
        except UnicodeEncodeError as error:
            words = f"the new text does not fit the file's encoding {author.encoding}"
            raise Failure("encoding", words, "save the file as UTF-8") from error
        if SourceFile.from_bytes(self.path, data) != replace(author, text=text):
            raise Failure("proof", "the new bytes would be read as another text", REPORT)
        return data


def _once(fixed: Iterable[Note]) -> list[Note]:
    """The fixed findings with each place of a rule told once, though a later round may have gone over it again."""
    found: dict[tuple[object, ...], Note] = {}
    for note in fixed:
        key = (note.rule, note.line, note.column, note.end_line, note.end_column)
        first = found.get(key)
        if first is not None:
            effects = tuple(effect.value for effect in Effect if effect.value in (*first.effects, *note.effects))
            risk = Risk.of(frozenset(Effect(word) for word in effects)).word
            words = tuple(dict.fromkeys((*first.notes, *note.notes)))
            elsewhere = tuple(dict.fromkeys((*first.elsewhere, *note.elsewhere)))
            note = replace(first, effects=effects, risk=risk, notes=words, elsewhere=elsewhere)
        found[key] = note
    return list(found.values())
