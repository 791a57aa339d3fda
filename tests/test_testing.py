"""The checks for transforms themselves: they pass what is right and fail what is not."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.editing import transform
from torchfix.edits import Replace, SetArgument
from torchfix.facts import Facts
from torchfix.testing import check_held, check_noop, check_transformed
from torchfix.transform import Finding, Held


def find(facts: Facts) -> Iterator[Finding]:
    """Calls of ``f`` without arguments to be filled, calls of ``h`` to be left alone, ``again`` never satisfied."""
    for call in ast.walk(facts.source.tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            if call.func.id == "f" and not call.keywords:
                yield Finding(call, "no k", (SetArgument(call, "k", "1"),))
            elif call.func.id == "h":
                yield Finding(call, "an h", held=Held("no-h", "h stays"))
            elif call.func.id == "again":
                yield Finding(call, "again", (Replace(call, "again(1)"),))


TOY = transform(find)


def test_checks_pass_what_is_right() -> None:
    """A quiet text, a change as expected and a held finding satisfy their checks; texts are dedented."""
    check_noop(TOY, "g()\n")
    (note,) = check_transformed(TOY, "    f()\n", "    f(k=1)\n")
    assert note.message == "no k"
    assert check_held(TOY, "h()\n", "no-h").line == 1


@pytest.mark.parametrize("text", ["f()\n", "h()\n"])
def test_noop_fails_on_any_finding(text: str) -> None:
    """Neither a change nor a held finding is nothing."""
    with pytest.raises(AssertionError):
        check_noop(TOY, text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("g()\n", "g()\n", id="no change"),
        pytest.param("f()\n", "f(k=2)\n", id="another change"),
        pytest.param("again()\n", "again(1)\n", id="never quiet"),
        pytest.param("f()\nx = (\n", "f(k=1)\nx = (\n", id="broken"),
    ],
)
def test_transformed_fails_on_anything_else(before: str, after: str) -> None:
    """Only the expected text, reached and stable, is right."""
    with pytest.raises((AssertionError, SyntaxError)):
        check_transformed(TOY, before, after)


@pytest.mark.parametrize(("text", "code"), [("h()\n", "other"), ("g()\n", "no-h"), ("f()\nh()\n", "no-h")])
def test_held_fails_without_that_reason_alone(text: str, code: str) -> None:
    """Another reason, none, or a change beside it is not what was asked for."""
    with pytest.raises(AssertionError):
        check_held(TOY, text, code)
