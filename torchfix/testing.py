"""Checks for transforms, ours and third parties': what must not change, what must become what, what must be held.

Each check runs the whole engine, and so its proofs, with the one transform; texts are dedented.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from torchfix.engine import EngineSettings, fix
from torchfix.facts.project import Project
from torchfix.result import Note, Outcome, Result
from torchfix.transform import Selected, Transform

PATH = "train.py"
"""The path under which texts are checked."""


def check_noop(rule: str | Transform, text: str, *, modules: Mapping[str, str] | None = None, **options: Any) -> None:
    """Assert that a transform finds nothing to change and nothing to hold.

    Args:
        rule: the transform, or its name.
        text: a file.
        modules: the project's other files by relative path.
        options: the transform's options; ``format`` and ``path`` are the engine's.
    """
    result = run(rule, text, modules=modules, **options)
    assert not result.notes, f"expected no finding, got {_words(result)}"
    assert result.outcome is Outcome.CLEAN, result.reason


def check_transformed(
    rule: str | Transform, before: str, after: str, *, modules: Mapping[str, str] | None = None, **options: Any
) -> Result:
    """Assert that a transform turns one text into another, which compiles and gives it nothing more to do.

    The arguments are those of :func:`check_noop`; the result is returned for a look at its notes.
    """
    result = run(rule, before, modules=modules, **options)
    assert result.outcome is Outcome.CHANGED, f"expected a change, got {result.outcome.value}: {result.reason or _words(result)}"
    found = result.after.decode()
    assert found == _dedented(after), f"expected:\n{_dedented(after)}\nfound:\n{found}"
    compile(found, PATH, "exec", dont_inherit=True)
    again = run(rule, found, modules=modules, **options)
    assert again.outcome is Outcome.CLEAN, f"a second run is not quiet: {_words(again)}"
    return result


def check_held(rule: str | Transform, text: str, code: str, *, modules: Mapping[str, str] | None = None, **options: Any) -> Note:
    """Assert that a transform leaves a text alone and says why.

    The arguments are those of :func:`check_noop`, and the reason's code; the note that has it is returned.
    """
    result = run(rule, text, modules=modules, **options)
    assert result.outcome is Outcome.CLEAN, f"expected no change, got {result.outcome.value}: {result.reason or result.after.decode()}"
    held = [note for note in result.notes if note.reason is not None and note.reason.code == code]
    assert held, f"expected a finding held by {code}, got {_words(result)}"
    return held[0]


def run(
    rule: str | Transform,
    text: str,
    *,
    modules: Mapping[str, str] | None = None,
    format: str = "off",
    path: str = PATH,
    **options: Any,
) -> Result:
    """What the engine makes of a text with one transform.

    Raises:
        AssertionError: the file failed.
    """
    transform = rule if isinstance(rule, Transform) else _named(rule)
    selected = Selected(transform, transform.options(**options))
    project = Project.of_texts({name: _dedented(other) for name, other in (modules or {}).items()})
    result = fix(path, _dedented(text).encode(), project, [selected], EngineSettings(format=format))
    assert result.outcome is not Outcome.FAILED, result.reason
    return result


def _named(name: str) -> Transform:
    from torchfix.registry import find

    return find(name)


def _dedented(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def _words(result: Result) -> str:
    found = [f"{note.line}:{note.column} {note.outcome} {note.reason.code if note.reason else ''} {note.message}" for note in result.notes]
    return "; ".join(found) or "no finding"
