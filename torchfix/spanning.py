"""Findings that span files: how one is proposed, what may forbid it, and how it is taken in all of its files or in none.

The engine looks at one file a call. Where it meets findings that span files, it stops and proposes them: what each of
the files would be with these findings alone. Of all proposals those are chosen that share no file, in path order; the
files that they change start again from there, and every question about the project is answered from the new texts. A file
that cannot be changed is barred, and all that spans it is held with the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from torchfix.edits import AddImport, Edit, Elsewhere, RemoveImport, places
from torchfix.facts.project.project import Project
from torchfix.plan import Plan, canonical, plan
from torchfix.result import Note, Outcome, Place, Result
from torchfix.stages import Failure, Stage, Version
from torchfix.suppress import forbidding, suppressions
from torchfix.transform import Finding, Held

_REPEATED = 5
"""How often one place may be changed by a rule before it counts as never quiet."""


@dataclass(frozen=True)
class Neighbour:
    """A file of the project that this run looks at: its path as users read it, and the rules that do not run on it."""

    path: str
    ignored: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Grounds:
    """What is known of a project's files while one of them is looked at; paths are relative to its root.

    Args:
        files: the files of the run; None where they were not gathered yet.
        barred: files that cannot be changed, each with the reason to hold what would change them.
        stages: files that a finding of several files has changed.
    """

    files: Mapping[str, Neighbour] | None = None
    barred: Mapping[str, Held] = field(default_factory=dict)
    stages: Mapping[str, Stage] = field(default_factory=dict)

    @property
    def texts(self) -> Mapping[str, bytes]:
        """The bytes that changed files hold now."""
        return {path: stage.data for path, stage in self.stages.items()}

    def shown(self, path: str) -> str:
        """A file's path as users read it."""
        return self.files[path].path if self.files is not None and path in self.files else path

    def refusal(self, path: str, rule: str) -> Held | None:
        """Why a rule may not change a file in this run, None if it may."""
        if path in self.barred:
            return self.barred[path]
        if self.files is None or path not in self.files:
            words = f"{path} must change too, and is not among the files of this run"
            return Held("other-file-outside", words, "name it beside this one, or the folder that holds both")
        if rule in self.files[path].ignored:
            words = f"{self.shown(path)} must change too, and this rule does not run on it"
            return Held("other-file-ignored", words, "let the configuration allow the rule there")
        return None


@dataclass(frozen=True)
class Proposal:
    """Findings of one file that span files and can be taken together.

    Args:
        home: the file on which they stand.
        stages: what each of their files would be with them alone, by relative path; none where the files of the run were
            not gathered yet, so that it is only known that there is something to propose.
    """

    home: str
    stages: Mapping[str, Stage]


Answer: TypeAlias = "Result | Proposal"
"""What a look at one file gives: what became of it, or the findings that other files must take before it can go on."""

Advance: TypeAlias = Callable[[Sequence[str], Grounds], Mapping[str, Answer]]
"""Looks at some files, by relative path, on given grounds."""


def propose(
    asked: Sequence[tuple[Finding, str]], version: Version, used: frozenset[int], grounds: Grounds
) -> tuple[Proposal | None, list[Note]]:
    """The findings of one file that span files as a proposal, and notes of those that one of their files cannot take.

    Findings that conflict are proposed one after the other; those that say the same of a file share what they say.

    Args:
        asked: what was found, allowed in its own file, each with its rule's group.
        version: the file on which they stand.
        used: where that file's comments stand that forbade something so far.
        grounds: what is known of the others.

    Raises:
        Failure: what was written is not what was meant, or the same place was changed again and again.
    """
    if grounds.files is None:
        return Proposal(version.facts.path, {}), []
    group = _Group(version, {part.path for finding, _ in asked for part in finding.elsewhere}, grounds)
    held: list[Note] = []
    taken: list[tuple[Finding, str]] = []
    for finding, name in sorted(asked, key=lambda item: canonical(item[0])):
        obstacle = group.obstacle(finding, name)
        if obstacle is not None:
            held.append(replace(version.note(finding, name, "held", obstacle.reason), elsewhere=obstacle.places))
        elif group.can_take([*(other for other, _ in taken), finding]):
            taken.append((finding, name))
    stages = group.stages([finding for finding, _ in taken])
    if isinstance(stages, Held):
        return None, [*held, *(version.note(finding, name, "held", stages) for finding, name in taken)]
    if not taken:
        return None, held
    notes = tuple(group.note(finding, name) for finding, name in taken)
    for note in notes:
        if sum(_is_same_place(note, earlier) for earlier in version.stage.fixed) == _REPEATED:
            raise Failure("not-quiet", f"{note.rule} changes the same place again and again", "leave this rule out")
    own = replace(stages[group.home], fixed=(*version.stage.fixed, *notes), used=used)
    return Proposal(group.home, {**stages, group.home: own}), held


@dataclass(frozen=True)
class _Obstacle:
    """Why a finding cannot be taken, and the comments of other files that forbid it."""

    reason: Held
    places: tuple[Place, ...] = ()


class _Group:
    """A file with findings that span others, and those others as they are now."""

    def __init__(self, version: Version, others: Iterable[str], grounds: Grounds) -> None:
        self.home = version.facts.path
        self._grounds = grounds
        self._versions = {self.home: version, **{path: _version(path, version.project, grounds) for path in sorted(others)}}

    def obstacle(self, finding: Finding, group: str) -> _Obstacle | None:
        """Why a file cannot take its part of a finding, whose rule is of a group; None if all can."""
        grounds = self._grounds
        if not self.home.endswith(".py"):  # as a journal must say of the files that it names
            return _Obstacle(Held("no-python-name", "only files named .py change together with others", "rename it"))
        for part in finding.elsewhere:
            reason = grounds.refusal(part.path, finding.transform)
            if reason is not None:
                return _Obstacle(reason)
            comment = _forbidden(part, (finding.transform, group), self._versions[part.path], grounds.shown(part.path))
            if comment is not None:
                words = f"{comment.path} must change too, and a comment in its line {comment.line} forbids it"
                return _Obstacle(Held("other-file-suppressed", words), (comment,))
        for path in (self.home, *(part.path for part in finding.elsewhere)):
            for deferred in self._plan([finding], path).deferred:
                return _Obstacle(replace(deferred.reason, text=f"{deferred.reason.text} (in {grounds.shown(path)})"))
        return _Obstacle(grounds.barred[self.home]) if self.home in grounds.barred else None

    def can_take(self, findings: Sequence[Finding]) -> bool:
        """Whether no finding keeps another one from any of its files."""
        return not any(self._plan(findings, path).deferred for path in self._versions)

    def stages(self, findings: Sequence[Finding]) -> dict[str, Stage] | Held:
        """What each file would be with some findings, those left out that none of them changes; or why one cannot be written."""
        needed = {self.home, *(part.path for finding in findings for part in finding.elsewhere)}
        stages = {path: version.changed(self._plan(findings, path)).stage for path, version in self._versions.items() if path in needed}
        for path, stage in stages.items():
            try:
                stage.data  # noqa: B018  encoded here, so that a file that others wait for is not found to be impossible later
            except UnicodeEncodeError:
                words = f"the new text does not fit the encoding {stage.author.encoding} of {self._grounds.shown(path)}"
                return Held("encoding", words, "save that file as UTF-8")
        return stages

    def note(self, finding: Finding, group: str) -> Note:
        """A finding in the lines and columns of the authors of all of its files."""
        shown = self._grounds.shown
        places = [place for part in finding.elsewhere for place in _places(part.edits, self._versions[part.path], shown(part.path))]
        return replace(self._versions[self.home].note(finding, group, "fixed"), elsewhere=tuple(places))

    def _plan(self, findings: Sequence[Finding], path: str) -> Plan:
        """What findings ask of one file, as a plan."""
        parts = findings if path == self.home else [replace(finding, edits=_edits(finding, path)) for finding in findings]
        return plan(parts, self._versions[path].source)


def _edits(finding: Finding, path: str) -> tuple[Edit, ...]:
    """The edits that a finding makes in another file."""
    return tuple(edit for part in finding.elsewhere if part.path == path for edit in part.edits)


def _version(path: str, project: Project, grounds: Grounds) -> Version:
    """Another file as it is now."""
    stage = grounds.stages.get(path)
    if stage is None:
        facts = project.file(path)
        if facts is None:
            raise ValueError(f"a finding changes {path}, which the project does not have")
        stage = Stage.first(facts.source)
    return Version(stage, project)


def _forbidden(part: Elsewhere, names: tuple[str, str], version: Version, path: str) -> Place | None:
    """The comment in another file that names a rule or its group and keeps the file as it is; None if none does."""
    comments = suppressions(version.source)
    for node in _nodes(part.edits) or version.source.tree.body[:1]:
        for comment in forbidding(comments, version.layout, node, names):
            start, end = version.stage.draft.origin(comment.offset, comment.offset + len(comment.words))
            return Place(path, *version.stage.author.position(start), *version.stage.author.position(end))
    return None


def _places(edits: Iterable[Edit], version: Version, path: str) -> list[Place]:
    """Where edits change a file, each place once, in text order."""
    found = dict.fromkeys(version.place(path, node) for node in _nodes(edits))
    return sorted(found, key=lambda place: (place.line, place.column))


def _nodes(edits: Iterable[Edit]) -> list[ast.expr | ast.stmt]:
    """The nodes at which edits are made; imports go where they belong and have none."""
    return [node for edit in edits if not isinstance(edit, (AddImport, RemoveImport)) for node in places(edit)]


def _is_same_place(one: Note, other: Note) -> bool:
    return (one.rule, one.line, one.column) == (other.rule, other.line, other.column)


def settle(answers: Mapping[str, Answer], grounds: Grounds, advance: Advance) -> dict[str, Result]:
    """What becomes of the files of a project once no finding that spans files is new.

    Args:
        answers: of a first look at every file of the run, by relative path, before they were gathered.
        grounds: the files of the run, nothing changed.
        advance: looks at some of them again.
    """
    known = dict(answers)
    asking = sorted(path for path, answer in known.items() if not isinstance(answer, Result))
    known.update(advance(asking, grounds) if asking else {})
    while True:
        waiting = {path: answer for path, answer in known.items() if not isinstance(answer, Result)}
        proposals = sorted(waiting.values(), key=lambda proposal: proposal.home.split("/"))
        needed = {*grounds.stages, *(path for proposal in proposals for path in proposal.stages)}
        failed = {path: held for path in sorted(needed) if (held := _failed(known.get(path), grounds.shown(path))) is not None}
        again = {*waiting, *grounds.stages}
        if failed:  # all of it is undone, since nobody can tell which change does without the failed file's
            grounds = replace(grounds, stages={}, barred={**grounds.barred, **failed})
        elif waiting:
            chosen = _chosen(proposals)
            changed = {path: stage for proposal in chosen for path, stage in proposal.stages.items()}
            grounds = replace(grounds, stages={**grounds.stages, **changed})
            again = {*waiting, *changed}
        else:
            return _used({path: answer for path, answer in known.items() if isinstance(answer, Result)})
        known.update(advance(sorted(again), grounds))


def _used(results: Mapping[str, Result]) -> dict[str, Result]:
    """The results where a comment that forbade a finding of another file does not count as unused."""
    held = (note for result in results.values() for note in result.notes if note.outcome == "held")
    used = {(place.path, place.line) for note in held for place in note.elsewhere}
    return {
        path: replace(result, unused_suppressions=tuple(item for item in result.unused_suppressions if (result.path, item[0]) not in used))
        for path, result in results.items()
    }


def _failed(answer: Answer | None, path: str) -> Held | None:
    """Why nothing may change with a file that failed, None if it did not."""
    if isinstance(answer, Result) and answer.outcome is Outcome.FAILED:
        why = answer.reason.text if answer.reason is not None else "it failed"
        return Held("other-file-failed", f"{path} must change too, and cannot: {why}")
    return None


def _chosen(proposals: Iterable[Proposal]) -> list[Proposal]:
    """The proposals that are taken together: in order, each that shares no file with one before it."""
    chosen: list[Proposal] = []
    taken: set[str] = set()
    for proposal in proposals:
        if taken.isdisjoint(proposal.stages):
            chosen.append(proposal)
            taken.update(proposal.stages)
    return chosen
