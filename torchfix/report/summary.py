"""The last lines on standard error: what was counted, what failed, what to do next."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchfix.facts.project.versions import Version
from torchfix.files import common_folder, shown
from torchfix.report.screen import Paint, printable
from torchfix.report.text import reason
from torchfix.result import Note, Outcome, Result
from torchfix.run import NEWEST_TORCH, Mode, Run
from torchfix.transform import Risk

_NAMED = 3
"""How many places of one sentence are named."""


@dataclass(frozen=True)
class Counts:
    """Files by outcome, findings by outcome."""

    files: int
    changed: int
    clean: int
    skipped: int
    failed: int
    fixed: int
    held: int
    suppressed: int

    @classmethod
    def of(cls, results: Sequence[Result]) -> Counts:
        """Count the results of a run."""
        outcomes = Counter(result.outcome.value for result in results)
        findings = Counter(note.outcome for note in _notes(results))
        files = {outcome.value: outcomes[outcome.value] for outcome in Outcome}
        return cls(len(results), **files, fixed=findings["fixed"], held=findings["held"], suppressed=findings["suppressed"])


def _notes(results: Iterable[Result]) -> Iterator[Note]:
    return (note for result in results for note in result.notes)


def warnings(run: Run, paint: Paint) -> Iterator[str]:
    """What could not be read beside the code."""
    return (f"{paint('yellow', 'warning')}: {printable(words)}" for words in run.warnings)


def failures(results: Iterable[Result], paint: Paint, quiet: bool) -> Iterator[str]:
    """A line for each file that failed and, unless quiet, for each that was skipped."""
    for result in results:
        if result.outcome is Outcome.FAILED or (result.outcome is Outcome.SKIPPED and not quiet):
            word = paint("red" if result.outcome is Outcome.FAILED else "yellow", result.outcome.value)
            yield f"{paint('bold', printable(result.path))}: {word}: {reason(result.reason) if result.reason else 'no reason was given'}"


def details(results: Iterable[Result]) -> Iterator[str]:
    """What only a verbose run says: clean files, and comments that forbid nothing."""
    for result in results:
        if result.outcome is Outcome.CLEAN and not result.notes:
            yield f"{printable(result.path)}: clean"
        for line, words in result.unused_suppressions:
            yield f"{printable(result.path)}:{line}: unused suppression: {printable(words)}"


def before_merging(results: Iterable[Result]) -> Iterator[str]:
    """What a user must read before merging a patch that carries no such words itself: each sentence once, with its places."""
    places: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for note in result.notes:
            if note.outcome == "fixed":
                others = dict.fromkeys(place.path for place in note.elsewhere)
                joined = [f"this change also needs that of {', '.join(others)}; merge all of it or none"] if others else []
                for words in (*joined, *note.notes):
                    places.setdefault((note.rule, words), []).append(f"{result.path}:{note.line}")
    for (rule, words), named in places.items():
        yield f"{rule}: {printable(words)} ({printable(_shortened(named))})"


def _shortened(names: Sequence[str]) -> str:
    """The first few of some names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def out_of_reach(results: Iterable[Result]) -> Iterator[str]:
    """What is wrong with a patch that leads out of the working folder."""
    paths = [result.path for result in results if result.outcome is Outcome.CHANGED]
    if any(path.startswith(("../", "/")) for path in paths):
        folder = shown(common_folder([".", *paths]))
        yield f"git and patch refuse paths that lead out of this folder; run torchfix in {printable(folder)} for a patch that they take"


def statistics(results: Sequence[Result]) -> Iterator[str]:
    """Findings by rule and outcome, as a table."""
    outcomes = ("fixed", "held", "suppressed")
    counted = Counter((note.rule, note.outcome) for note in _notes(results))
    rules = sorted({rule for rule, _ in counted})
    width = max(map(len, rules), default=0)
    if rules:
        yield f"{'rule':<{width}}" + "".join(f"  {outcome:>10}" for outcome in outcomes)
    for rule in rules:
        yield f"{rule:<{width}}" + "".join(f"  {counted[rule, outcome]:>10}" for outcome in outcomes)


def lines(run: Run, mode: Mode) -> Iterator[str]:
    """The summary proper."""
    counts = Counts.of(run.results)
    applied = mode is Mode.APPLY
    yield (
        f"{_plural(counts.changed, 'file')} {'changed' if applied else 'would change'}, "
        f"{counts.clean} clean, {counts.skipped} skipped, {counts.failed} failed"
    )
    if counts.fixed:
        risks = Counter(note.risk for note in _notes(run.results) if note.outcome == "fixed")
        done = "fixed" if applied else "would be fixed"
        yield f"{_plural(counts.fixed, 'finding')} {done}: {_by_risk(risks)}"
    held = [note for note in _notes(run.results) if note.outcome == "held" and note.reason is not None]
    reasons = Counter(note.reason.code for note in held if note.reason is not None and note.reason.code != "risk")
    if reasons:
        yield f"{sum(reasons.values())} held: " + ", ".join(f"{count} {code}" for code, count in sorted(reasons.items()))
    if counts.suppressed:
        yield f"{counts.suppressed} suppressed by comments"
    wider = Counter(note.risk for note in held if note.reason is not None and note.reason.code == "risk")
    if wider:
        widest = max(wider, key=lambda risk: Risk[risk.upper()])
        yield f"--risk {widest} would fix {sum(wider.values())} more: {_by_risk(wider)}"
    if counts.fixed or counts.held:
        yield from _versions(run)


def undo(run: Run) -> Iterator[str]:
    """How to take back what git could not."""
    if run.undo is not None:
        folder = "" if run.undo.folder == os.getcwd() else f" -d {shlex.quote(run.undo.folder)}"
        yield f"undo with: patch -p1{folder} < {shlex.quote(run.undo.patch)}"


def _by_risk(counted: Counter[str]) -> str:
    return ", ".join(f"{counted[risk.word]} {risk.word}" for risk in Risk if counted[risk.word])


def _versions(run: Run) -> Iterator[str]:
    declared = sorted(version for version in run.torch if version is not None)
    if declared:
        yield f"written for torch {', '.join(map(_dotted, declared))} and newer"
    if None in run.torch:
        yield f"assumes torch {_dotted(NEWEST_TORCH)}, the newest known, for want of a declared lower bound (--torch sets one)"


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
