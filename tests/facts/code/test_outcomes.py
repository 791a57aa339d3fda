"""What a call can come to: constants decide a function's conditions on its parameters, and with them what it returns."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node, texts

MAKE = """\
def make(kind, train=False, both=None):
{body}


made = make({given})
"""


def returned(body: str, given: str) -> list[str] | None:
    """What a function with this body may return to a call with these arguments, parts of a pair apart."""
    text = MAKE.format(body="\n".join(f"    {line}" for line in body.splitlines()), given=given)
    facts = facts_of(text)
    return texts(facts.values.of(node(facts, f"make({given})")))


PAIR_IF_TRAINING = "if train:\n    return a(), b()\nreturn c()"


@pytest.mark.parametrize("given", ["1, train=flag", "1, flag", "1, *flags", "1, **flags"])
def test_without_a_constant_every_return_may_be_meant(given: str) -> None:
    """The call says nothing of the condition."""
    assert returned(PAIR_IF_TRAINING, given) == ["(a(), b())", "c()"]


def test_a_parameter_that_is_bound_anew_is_no_constant() -> None:
    """What the call passed is gone."""
    assert returned("train = kind\n" + PAIR_IF_TRAINING, "1, train=True") == ["(a(), b())", "c()"]


def test_other_conditions_than_those_on_parameters_decide_nothing() -> None:
    """Whether they hold is not known."""
    assert returned("if ready():\n    return a()\nreturn c()", "1") == ["a()", "c()"]


@pytest.mark.parametrize(
    ("body", "given", "expected"),
    [
        (PAIR_IF_TRAINING, "1, train=True", ["(a(), b())"]),
        (PAIR_IF_TRAINING, "1, True", ["(a(), b())"]),
        (PAIR_IF_TRAINING, "1", ["c()"]),
        ("if not train:\n    return a()\nelse:\n    return c()", "1", ["a()"]),
        ('if kind == "small":\n    return a()\nelif kind == "large":\n    return b()\nreturn c()', '"large"', ["b()"]),
        ("if both is None:\n    return a()\nreturn c()", "1", ["a()"]),
        ("if both is not None:\n    x = 1\n    return a()\nreturn c()", "1, both=3", ["a()"]),
        ('for x in y:\n    if kind != "small":\n        raise ValueError\n    return a()\nreturn c()', '"large"', ["c()"]),
    ],
)
def test_a_constant_decides_which_return_is_meant(body: str, given: str, expected: list[str]) -> None:
    """By keyword, by position or by default, compared or taken for a truth, and past what leaves the function."""
    assert returned(body, given) == expected


def test_conditions_that_leave_no_return_decide_nothing() -> None:
    """Such a call raises, or the function was not understood."""
    assert returned("if train:\n    raise ValueError\nif kind:\n    return a()\nreturn c()", "1, train=True") == ["a()", "c()"]
