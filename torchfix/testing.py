"""Check a transform on snippets: what must stay as it is, what must change and into what, what must be held and why.

For our own tests and for those of transforms that others write.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from torchfix import registry
from torchfix.engine import EngineSettings, advance, fix
from torchfix.facts.project.declarations import Declarations
from torchfix.facts.project.project import Project
from torchfix.facts.project.versions import Range, Version
from torchfix.result import Note, Outcome, Result
from torchfix.spanning import Answer, Grounds, Neighbour, settle
from torchfix.transform import Selected, Transform


def run_transform(
    rule: str | Transform,
    text: str,
    *,
    path: str = "train.py",
    modules: Mapping[str, str] | None = None,
    torch: Version | None = None,
    settings: EngineSettings | None = None,
    **options: Any,
) -> Result:
    """What one transform alone makes of a snippet.

    Args:
        rule: a transform or its name.
        text: the snippet; its common margin is taken away.
        path: the name of its file.
        modules: the project's other files by path.
        torch: the oldest torch that the project declares.
        settings: of the engine; without formatting by default.
        options: the transform's own.
    """
    transform = registry.find(rule) if isinstance(rule, str) else rule
    text = textwrap.dedent(text)
    others = {name: textwrap.dedent(body) for name, body in (modules or {}).items()}
    project = Project.of_texts({path: text, **others}, Declarations(Range(torch)))
    selected = [Selected(transform, transform.options(**options))]
    return fix(path, text.encode(), project, selected, settings or EngineSettings(format="off"))


def run_on_program(
    rule: str | Transform, texts: Mapping[str, str], *, torch: Version | None = None, settings: EngineSettings | None = None, **options: Any
) -> dict[str, Result]:
    """What one transform alone makes of a program of several files, by path.

    Args:
        rule: a transform or its name.
        texts: the files by path; the common margin of each is taken away.
        torch, settings, options: as in :func:`run_transform`.
    """
    transform = registry.find(rule) if isinstance(rule, str) else rule
    data = {path: textwrap.dedent(text).encode() for path, text in texts.items()}
    project = Project("", data.get, tuple(sorted(data)), Declarations(Range(torch)))
    selected = [Selected(transform, transform.options(**options))]

    def look(names: Iterable[str], grounds: Grounds) -> dict[str, Answer]:
        seen = project.reading(grounds.texts)
        return {name: advance(name, data[name], seen, selected, settings or EngineSettings(format="off"), grounds) for name in names}

    grounds = Grounds({path: Neighbour(path) for path in data})
    return settle(look(data, grounds), grounds, look)


def check_program(rule: str | Transform, before: Mapping[str, str], after: Mapping[str, str], **arguments: Any) -> tuple[Note, ...]:
    """Check that a transform makes the files ``after`` of the files ``before``, and finds nothing more; gives the fixed findings."""
    results = run_on_program(rule, before, **arguments)
    for path, result in results.items():
        assert result.after.decode() == textwrap.dedent(after[path]), f"{path}: {_words(result)}"
    for path, result in run_on_program(rule, after, **arguments).items():
        assert result.outcome is Outcome.CLEAN, f"a second run changes {path} again: {_words(result)}"
    return tuple(note for path in sorted(results) for note in results[path].notes if note.outcome == "fixed")


def check_noop(rule: str | Transform, text: str, **arguments: Any) -> None:
    """Check that a transform has nothing to say about a snippet; arguments as in :func:`run_transform`."""
    result = run_transform(rule, text, **arguments)
    assert result.outcome is Outcome.CLEAN, _words(result)
    assert not result.notes, _words(result)


def check_held(rule: str | Transform, text: str, code: str, **arguments: Any) -> Note:
    """Check that a transform sees something and leaves it, for the reason with this code; gives that finding."""
    result = run_transform(rule, text, **arguments)
    assert result.outcome is Outcome.CLEAN, _words(result)
    held = [note for note in result.notes if note.reason is not None and note.reason.code == code]
    assert held, f"nothing is held for {code}: {_words(result)}"
    assert held[0].reason is not None
    assert held[0].reason.text, "a reason needs words"
    return held[0]


def check_transformed(rule: str | Transform, before: str, after: str, **arguments: Any) -> tuple[Note, ...]:
    """Check that a transform makes ``after`` of ``before``, and finds nothing more in it; gives the fixed findings."""
    expected = textwrap.dedent(after)
    compile(expected, "after", "exec")
    result = run_transform(rule, before, **arguments)
    assert result.outcome is Outcome.CHANGED, _words(result)
    assert result.after.decode() == expected
    again = run_transform(rule, expected, **arguments)
    assert again.outcome is Outcome.CLEAN, f"a second run changes it again: {_words(again)}"
    return tuple(note for note in result.notes if note.outcome == "fixed")


def _words(result: Result) -> str:
    """What a result says, for a failed check."""
    notes = [f"{note.line}: {note.rule} {note.outcome} {note.reason.code if note.reason else ''} {note.message}" for note in result.notes]
    reason = [result.reason.text] if result.reason else []
    text = result.after.decode(errors="replace") if result.outcome is Outcome.CHANGED else ""
    return "\n".join([result.outcome.value, *reason, *notes, text])
