"""Findings as text: a line each, indented under it what the user must know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from torchfix.report.screen import Paint, printable
from torchfix.result import Note, Reason, Result

EFFECTS = {
    "numerics": "floating-point results may differ from before",
    "rng": "random numbers may differ from before, so that an old run with the same seed is not repeated",
    "process": "other processes take part; what they need must be importable and picklable",
    "memory": "more memory of the host or the device may be used",
    "order": "samples may come in another order, or another number of them in a step",
    "checkpoint": "what is saved may have other keys than before",
    "sync": "an error or a value may show up later than before",
}
"""What each effect means to the user, as a sentence."""

_RISK_STYLES = {"exact": "green", "numeric": "yellow", "behavior": "red"}


def findings(results: Iterable[Result], paint: Paint, verbose: bool) -> str:
    """All findings, in path order and there in the order of the author's lines.

    Findings of one rule that follow each other with the same details have their lines together and the details once.

    Args:
        results: of all files.
        paint: the colours.
        verbose: whether findings that a comment forbids are shown too.
    """
    lines: list[str] = []
    for result in results:
        shown = [note for note in result.notes if verbose or note.outcome != "suppressed"]
        for (_, _, details), group in groupby(shown, lambda note: (note.rule, note.outcome, [*_details(note, paint)])):
            places = [_place(result.path, note, paint) for note in group]
            lines += places
            if len(places) > 1 and details:
                lines.append(f"    these {len(places)}:")
            lines += details
    return "".join(f"{line}\n" for line in lines)


def _place(path: str, note: Note, paint: Paint) -> str:
    place = paint("bold", f"{printable(path)}:{note.line}:{note.column + 1}")
    return f"{place} {paint('cyan', note.rule)} [{paint(_RISK_STYLES[note.risk], note.risk)}] {printable(note.message)}"


def _details(note: Note, paint: Paint) -> Iterator[str]:
    """What stands under the line: why it is held, or what a change brings with it."""
    if note.outcome == "held" and note.reason is not None:
        yield f"    {paint('yellow', 'held')}: {reason(note.reason)}"
    elif note.outcome == "suppressed":
        yield "    suppressed by a comment"
    else:
        yield from (f"    {effect}: {EFFECTS[effect]}" for effect in note.effects)
        yield from (f"    also: {printable(other.path)}:{other.line}:{other.column + 1}" for other in note.elsewhere)
    yield from (f"    note: {printable(words)}" for words in note.notes)


def reason(why: Reason) -> str:
    """A reason with its help, on one line."""
    return printable(f"{why.text} ({why.help})" if why.help else why.text)
