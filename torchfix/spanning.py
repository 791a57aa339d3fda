"""Findings that span files: how one is proposed, what may forbid it, and how it is taken in all of its files or in none.

The engine looks at one file a call. Where it meets a finding that spans files, it stops and proposes it: what each of
the files would be with this finding alone. Of all proposals those are chosen that share no file, in the order of their
places; the files that they change start again from there, and every question about the project is answered from the new
texts. A file that cannot be changed is barred, and all that spans it is held with the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from torchfix.edits import AddImport, Edit, Elsewhere, RemoveImport, places
from torchfix.facts.project import Project
from torchfix.plan import plan
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
        files: the files of the run; None where they were not gathered yet, so that each may be one.
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
        if path in self.barred or self.files is None:
            return self.barred.get(path)
        if path not in self.files:
            words = f"{path} must change too, and is not among the files of this run"
            return Held("other-file-outside", words, "name it beside this one, or the folder that holds both")
        if rule in self.files[path].ignored:
            words = f"{self.shown(path)} must change too, and this rule does not run on it"
            return Held("other-file-ignored", words, "let the configuration allow the rule there")
        return None


@dataclass(frozen=True)
class Proposal:
    """A finding that spans files.

    Args:
        rule: the rule that found it.
        order: where it stands, to be sorted by.
        stages: what each of its files would be with it alone, by relative path.
    """

    rule: str
    order: tuple[str, int, int, str, str]
    stages: Mapping[str, Stage]


Answer: TypeAlias = "Result | tuple[Proposal, ...]"
"""What a look at one file gives: what became of it, or the findings that other files must take before it can go on."""

Advance: TypeAlias = Callable[[Sequence[str], Grounds], Mapping[str, Answer]]
"""Looks at some files, by relative path, on given grounds."""


def propose(finding: Finding, group: str, version: Version, used: frozenset[int], grounds: Grounds) -> Proposal | Held:
    """A finding that spans files as a proposal, or the reason why one of its files cannot take it.

    Args:
        finding: what was found, allowed in its own file.
        group: its rule's group.
        version: the file on which it stands.
        used: where that file's comments stand that forbade something so far.
        grounds: what is known of the others.

    Raises:
        Failure: what was written is not what was meant, or the same place was changed again and again.
    """
    home = version.facts.path
    stages: dict[str, Stage] = {}
    changed: list[Place] = []
    for part in finding.elsewhere:
        held = grounds.refusal(part.path, finding.transform)
        if held is not None:
            return held
        other = _version(part.path, version.project, grounds)
        held = _forbidden(part, (finding.transform, group), other, grounds.shown(part.path))
        stage = held or _with(replace(finding, edits=part.edits), other, grounds.shown(part.path))
        if isinstance(stage, Held):
            return stage
        stages[part.path] = stage
        changed += _places(part.edits, other, grounds.shown(part.path))
    own = grounds.barred.get(home) or _with(finding, version, grounds.shown(home))
    if isinstance(own, Held):
        return own
    note = replace(version.note(finding, group, "fixed"), elsewhere=tuple(changed))
    if sum(_is_same_place(note, earlier) for earlier in own.fixed) == _REPEATED:
        raise Failure("not-quiet", f"{note.rule} changes the same place again and again", "leave this rule out")
    stages[home] = replace(own, fixed=(*own.fixed, note), used=used)
    return Proposal(note.rule, (grounds.shown(home), note.line, note.column, note.rule, note.message), stages)


def _version(path: str, project: Project, grounds: Grounds) -> Version:
    """Another file as it is now."""
    stage = grounds.stages.get(path)
    if stage is None:
        facts = project.file(path)
        if facts is None:
            raise ValueError(f"a finding changes {path}, which the project does not have")
        stage = Stage.first(facts.source)
    return Version(stage, project)


def _with(finding: Finding, version: Version, path: str) -> Stage | Held:
    """A file with the edits of one finding, or why they cannot be made."""
    planned = plan([finding], version.source)
    for deferred in planned.deferred:
        reason = deferred.reason
        return replace(reason, text=f"{reason.text} (in {path})")
    after = version.changed(planned).stage
    try:
        after.data  # noqa: B018  encoded here, so that a file that others wait for is not found to be impossible later
    except UnicodeEncodeError:
        words = f"the new text does not fit the encoding {after.author.encoding} of {path}"
        return Held("encoding", words, "save that file as UTF-8")
    return after


def _forbidden(part: Elsewhere, names: tuple[str, str], version: Version, path: str) -> Held | None:
    """Why a comment in another file, which names a rule or its group, keeps it as it is; None if none does."""
    comments = suppressions(version.source)
    for node in _nodes(part.edits) or version.source.tree.body[:1]:
        for comment in forbidding(comments, version.layout, node, names):
            line, _ = version.stage.author.position(version.stage.draft.origin(comment.offset, comment.offset)[0])
            return Held("other-file-suppressed", f"{path} must change too, and a comment in its line {line} forbids it")
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
        answers: of a first look at every file of the run, by relative path, each as if nothing had changed.
        grounds: the files of the run, nothing changed.
        advance: looks at some of them again.
    """
    known = dict(answers)
    while True:
        waiting = {path: answer for path, answer in known.items() if not isinstance(answer, Result)}
        proposals = sorted((proposal for answer in waiting.values() for proposal in answer), key=lambda proposal: proposal.order)
        needed = {*grounds.stages, *(path for proposal in proposals for path in proposal.stages)}
        failed = {path: held for path in sorted(needed) if (held := _failed(known.get(path), grounds.shown(path))) is not None}
        again = {*waiting, *grounds.stages}
        if failed:  # all of it is undone, since nobody can tell which change does without the failed file's
            grounds = replace(grounds, stages={}, barred={**grounds.barred, **failed})
        elif waiting:
            chosen = _chosen([proposal for proposal in proposals if not _refused(proposal, grounds)])
            changed = {path: stage for proposal in chosen for path, stage in proposal.stages.items()}
            grounds = replace(grounds, stages={**grounds.stages, **changed})
            again = {*waiting, *changed}
        else:
            return {path: answer for path, answer in known.items() if isinstance(answer, Result)}
        known.update(advance(sorted(again), grounds))


def _failed(answer: Answer | None, path: str) -> Held | None:
    """Why nothing may change with a file that failed, None if it did not."""
    if isinstance(answer, Result) and answer.outcome is Outcome.FAILED:
        why = answer.reason.text if answer.reason is not None else "it failed"
        return Held("other-file-failed", f"{path} must change too, and cannot: {why}")
    return None


def _refused(proposal: Proposal, grounds: Grounds) -> bool:
    return any(grounds.refusal(path, proposal.rule) is not None for path in proposal.stages)


def _chosen(proposals: Iterable[Proposal]) -> list[Proposal]:
    """The proposals that are taken together: in order, each that shares no file with one before it."""
    chosen: list[Proposal] = []
    taken: set[str] = set()
    for proposal in proposals:
        if taken.isdisjoint(proposal.stages):
            chosen.append(proposal)
            taken.update(proposal.stages)
    return chosen
