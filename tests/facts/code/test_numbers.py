from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.code.numbers import Number

TEXT = """
import torch
from torch import nn
import torch.nn.functional as F

class Dice(nn.Module):
    def forward(self, x, y):
        return 1 - (x * y).sum() / y.sum()

class Counts(nn.Module):
    def forward(self, x, y):
        return (x == y).sum()

criterion = nn.MSELoss()
dice = Dice()
counts = Counts()
x, y = make()
n = x.size(0)
SETUP
ask(EXPRESSION)
"""


def number(expression: str, setup: str = "pass") -> Number | None:
    """The kind of number that an expression holds behind some lines."""
    facts = facts_of(TEXT.replace("SETUP", setup).replace("EXPRESSION", expression))
    call = node(facts, f"ask({expression})")
    return facts.numbers.of(call.args[0])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("expression", "setup"),
    [
        pytest.param("x", "pass", id="out of sight"),
        pytest.param("f(x)", "pass", id="function out of sight"),
        pytest.param("x.sum()", "pass", id="sum of what is not known"),
        pytest.param("t", "t = 0.5 if flag else 1", id="either kind"),
        pytest.param("x.to(other)", "pass", id="cast to what is not known"),
        pytest.param("(x == y) + (x > y)", "pass", id="truths added"),
        pytest.param("'text'", "pass", id="no number"),
        pytest.param("torch.arange(9, dtype=x.dtype)", "pass", id="counted in what is not known"),
        pytest.param("torch.arange(f(x))", "pass", id="counted up to what is not known"),
    ],
)
def test_what_is_not_known(expression: str, setup: str) -> None:
    """A kind is known only where every way in which the value may have been made agrees."""
    assert number(expression, setup) is None


@pytest.mark.parametrize(
    ("expression", "setup", "expected"),
    [
        pytest.param("criterion(x, y)", "pass", Number.FRACTION, id="torch's loss"),
        pytest.param("F.nll_loss(x, y, reduction='sum')", "pass", Number.FRACTION, id="loss function"),
        pytest.param("dice(x, y)", "pass", Number.FRACTION, id="the project's loss"),
        pytest.param("t", "t = f(x)\nt.backward()", Number.FRACTION, id="what goes backward"),
        pytest.param("t", "t = criterion(x, y)\nt += f(x)", Number.FRACTION, id="added in place"),
        pytest.param("x.mean()", "pass", Number.FRACTION, id="mean"),
        pytest.param("(x == y).float().sum().item()", "pass", Number.FRACTION, id="truths as fractions"),
        pytest.param("(x == y).to(torch.float32)", "pass", Number.FRACTION, id="cast by name"),
        pytest.param("a / n", "a = x.argmax()", Number.FRACTION, id="divided"),
        pytest.param("0.5", "pass", Number.FRACTION, id="literal"),
        pytest.param("(x == y).sum()", "pass", Number.WHOLE, id="truths counted"),
        pytest.param("torch.sum(p == y.data)", "_, p = torch.max(x, 1)", Number.WHOLE, id="counted by a function"),
        pytest.param("p", "_, p = x.max(1)", Number.WHOLE, id="indices"),
        pytest.param("i[None] - i[:, None]", "i = torch.arange(n, device=x.device)", Number.WHOLE, id="counted up"),
        pytest.param("torch.arange(0, n, 0.5)", "pass", Number.FRACTION, id="counted up in halves"),
        pytest.param("x.topk(5)[1]", "pass", Number.WHOLE, id="indices of a pair"),
        pytest.param("counts(x, y)", "pass", Number.WHOLE, id="the project's count"),
        pytest.param("n * 2", "pass", Number.WHOLE, id="size"),
        pytest.param("p.eq(y)", "p = x.argmax(1)", Number.TRUTH, id="comparison by method"),
        pytest.param("(x == y) & (x > 0)", "pass", Number.TRUTH, id="truths combined"),
    ],
)
def test_kinds_of_numbers(expression: str, setup: str, expected: Number) -> None:
    """The kind follows from what made a value."""
    assert number(expression, setup) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("n", True),
        ("2 * n + 1", True),
        ("-0.5", True),
        ("len(x)", True),
        ("float(x)", True),
        ("x", False),
        ("x.sum()", False),
        ("n * x", False),
    ],
)
def test_plain_numbers_are_no_tensors(expression: str, expected: bool) -> None:
    """Only what Python computes with its own numbers is plain."""
    facts = facts_of(TEXT.replace("SETUP", "pass").replace("EXPRESSION", expression))
    call = node(facts, f"ask({expression})")
    assert facts.numbers.is_plain(call.args[0]) is expected  # type: ignore[attr-defined]
