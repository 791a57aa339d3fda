"""Factories: under which name something is kept, and whether it is only called there."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.code.factories import is_only_called, kept_under


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param("f(make)", None, id="given by position"),
        pytest.param("a, b = make, 1", None, id="one of two"),
        pytest.param("kept = [make]", None, id="in a list"),
        pytest.param("kept = make", "kept", id="a variable"),
        pytest.param("self.kept = make", "kept", id="an attribute"),
        pytest.param("kept = make if on else None", "kept", id="one of two values"),
        pytest.param("f(kept=make)", "kept", id="a keyword"),
        pytest.param("def f(a, kept=make): pass", "kept", id="a default"),
        pytest.param("def f(*, a=1, kept=make): pass", "kept", id="a default by keyword"),
    ],
)
def test_the_name_that_a_value_is_kept_under(text: str, name: str | None) -> None:
    """Whatever gives the value one name, and nothing else."""
    facts = facts_of(text)
    assert kept_under(facts, node(facts, "make")) == name


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        pytest.param("kept(1)", False, id="an argument by position"),
        pytest.param("other = kept", False, id="another name"),
        pytest.param("print(kept)", False, id="handed out of sight"),
        pytest.param("kept.mode", False, id="asked"),
        pytest.param("options['kept']", False, id="read by its name"),
        pytest.param("from other import kept as more", False, id="imported under another name"),
        pytest.param("def f(x): x()\nf(kept)", False, id="a parameter of another name"),
        pytest.param("def f(x, kept): kept()\nf(1, kept)", True, id="a parameter of that name"),
        pytest.param("kept(on=True)", True, id="called by keyword"),
        pytest.param("if kept is not None:\n    kept()", True, id="compared with None"),
        pytest.param("f(kept=kept)", True, id="passed under its name"),
        pytest.param("self.kept = kept\nself.kept()", True, id="stored under its name"),
    ],
)
def test_what_is_only_called(text: str, plain: bool) -> None:
    """A call without positions, and whatever keeps the name."""
    assert is_only_called(facts_of(f"kept = make\n{text}\n"), "kept") is plain


def test_other_files_of_the_program_count() -> None:
    """A file that calls it by position is enough."""
    other = "def run(kept):\n    kept(1)\n"
    text = "from other import run\nkept = make\nrun(kept)\n"
    assert not is_only_called(facts_of(text, modules={"other.py": other}), "kept")
    assert is_only_called(facts_of(text, modules={"other.py": other.replace("1", "")}), "kept")
