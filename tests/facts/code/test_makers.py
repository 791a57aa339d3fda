from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.code.makers import may_be_same


def same(text: str, modules: dict[str, str] | None = None) -> bool:
    """Whether the two arguments of ``use(a, b)`` in a snippet may be one object."""
    facts = facts_of(text, modules=modules)
    one, other = facts.tree.calls["use"][0].args
    return may_be_same(facts, one, facts, other)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a = make()\nb = make()\nuse(a, b)", id="two calls"),
        pytest.param("a, b = make()\nuse(a, b)", id="two parts of one call"),
        pytest.param("a, b = make(), make()\nuse(a, b)", id="two calls in a row"),
        pytest.param("def f(a, b):\n    use(a, b)\nf(make(), make())", id="handed to a function"),
        pytest.param(
            "class T:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n"
            "    def f(self):\n        use(self.a, self.b)\nT(make(), make())",
            id="kept by an object",
        ),
        pytest.param("a = make()\nb = make() if c else None\nuse(a, b)", id="or nothing"),
        pytest.param("from other import a\nb = make()\nuse(a, b)", id="of another module"),
    ],
)
def test_what_two_calls_make_are_two_objects(text: str) -> None:
    """Though one function may have made both."""
    assert not same(text, {"other.py": "a = make()\n"})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a = make()\nuse(a, a)", id="one variable"),
        pytest.param("a = make()\nb = a\nuse(a, b)", id="another name for it"),
        pytest.param("a = make()\nb = a if c else make()\nuse(a, b)", id="perhaps another name for it"),
        pytest.param("def f(a, b):\n    use(a, b)\nx = make()\nf(x, x)", id="handed over twice"),
        pytest.param("a, b = load, make()\nuse(unknown, b)", id="of unknown make"),
        pytest.param("for a in all:\n    b = make()\n    use(a, b)", id="item of a list"),
    ],
)
def test_one_object_may_have_two_names(text: str) -> None:
    """Where the making of one of them is not seen, they may be the same."""
    assert same(text)


def test_an_expression_knows_itself() -> None:
    """A call is the object that it makes."""
    facts = facts_of("use(make(), 1)")
    (made, _) = facts.tree.calls["use"][0].args
    assert isinstance(made, ast.Call)
    assert may_be_same(facts, made, facts, made)
