from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.code.numbers import Number
from torchfix.facts.metrics.scalars import Scalar

TEXT = """
import torch
from torch import nn
import torch.nn.functional as F
device = torch.device("cuda")
model = nn.Linear(3, 5).to(device)
x = torch.ones(4, 3, device=device)
y = torch.zeros(4, dtype=torch.long, device=device)
z = torch.zeros(4)
outputs = model(x)
loss = nn.CrossEntropyLoss()(outputs, y)
hits = outputs.argmax(1).eq(y).cpu().sum()
copied = loss.cpu()
shown = loss.cpu()
print(shown)
ask(EXPRESSION)
"""


def scalar(expression: str) -> Scalar | None:
    """An expression as a number that is read from the device."""
    facts = facts_of(TEXT.replace("EXPRESSION", expression))
    call = node(facts, f"ask({expression})")
    return facts.scalars.at(call.args[0])  # type: ignore[attr-defined]


@pytest.mark.parametrize("expression", ["loss", "loss.cpu()", "float(3)", "z.sum().item()", "x.size(0)", "shown.item()", "float(z.mean())"])
def test_what_is_not_read_from_the_device(expression: str) -> None:
    """Tensors as such, and numbers of the host, are not read from the device."""
    assert scalar(expression) is None


@pytest.mark.parametrize(
    ("expression", "tensor", "number", "holds"),
    [
        ("loss.item()", "loss", Number.FRACTION, Number.FRACTION),
        ("loss.detach().cpu().item()", "loss", Number.FRACTION, Number.FRACTION),
        ("float(loss.data)", "loss", Number.FRACTION, Number.FRACTION),
        ("int(loss)", "loss", Number.WHOLE, Number.FRACTION),
        ("float((outputs > 0).sum())", "(outputs > 0).sum()", Number.FRACTION, Number.WHOLE),
        ("float(loss.cpu().numpy())", "loss", Number.FRACTION, Number.FRACTION),
        ("hits.item()", "hits", Number.WHOLE, Number.WHOLE),
        ("copied.item()", "copied", Number.FRACTION, Number.FRACTION),
    ],
)
def test_numbers_that_are_read(expression: str, tensor: str, number: Number, holds: Number) -> None:
    """What lies between the tensor and its number is taken away."""
    found = scalar(expression)
    assert found is not None
    assert found.is_certain
    assert (ast.unparse(found.tensor), found.number, found.holds) == (tensor, number, holds)


@pytest.mark.parametrize(
    ("expression", "copy"),
    [
        ("loss.item()", None),
        ("hits.item()", "outputs.argmax(1).eq(y).cpu()"),
        ("copied.item()", "loss.cpu()"),
        ("(outputs > 0).cpu().sum().item()", "(outputs > 0).cpu()"),
    ],
)
def test_copies_that_are_not_needed(expression: str, copy: str | None) -> None:
    """A copy to the host goes where a count or the number itself is all that is wanted."""
    found = scalar(expression)
    assert found is not None
    assert (ast.unparse(found.copy) if found.copy is not None else None) == copy


def test_sum_of_fractions_on_the_host_stays_there() -> None:
    """The device adds fractions in another order."""
    assert scalar("outputs.cpu().sum().item()") is None


@pytest.mark.parametrize(
    ("expression", "single", "wide"),
    [
        ("loss", True, False),
        ("outputs.mean()", True, False),
        ("F.nll_loss(outputs, y, reduction='sum')", True, False),
        ("F.nll_loss(outputs, y, reduction='none')", False, False),
        ("outputs.sum(1)", False, True),
        ("(loss + outputs.mean()) / 2", True, False),
        ("outputs.argmax(1).eq(y).sum()", True, True),
        ("(outputs > 0).sum().cpu()", False, True),
        ("outputs.view(-1)", False, False),
    ],
)
def test_shapes_and_widths(expression: str, single: bool, wide: bool) -> None:
    """A tensor without dimensions, and whole numbers of 64 bits, are known by what makes them."""
    facts = facts_of(TEXT.replace("EXPRESSION", expression))
    given = node(facts, f"ask({expression})").args[0]  # type: ignore[attr-defined]
    assert (facts.scalars.is_single(given), facts.scalars.is_wide(given)) == (single, wide)


@pytest.mark.parametrize(
    ("between", "carried"),
    [
        pytest.param("pass", True, id="nothing between"),
        pytest.param("print(z)", True, id="something else between"),
        pytest.param("loss *= 2", False, id="the tensor is written between"),
        pytest.param("print(value)", False, id="used twice"),
        pytest.param("value = 3", False, id="given another value"),
    ],
)
def test_number_that_a_variable_carries(between: str, carried: bool) -> None:
    """A variable is the number that it takes to its only use, as long as the tensor is the same there."""
    facts = facts_of(TEXT.replace("ask(EXPRESSION)", f"value = loss.item()\n{between}\nask(value)"))
    call = node(facts, "ask(value)")
    found = facts.scalars.at(call.args[0])  # type: ignore[attr-defined]
    assert (found is not None and ast.unparse(found.node) == "loss.item()" and found.use is call.args[0]) is carried  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("value = 1\nprint(value)", True),
        ("value = 1\nvalue = 2", False),
        ("value = 1\ndel value", False),
        ("value = 1\nprint(locals())", False),
        ("value, other = 1, 2", False),
    ],
)
def test_variable_of_one_assignment(text: str, alone: bool) -> None:
    """Nothing else binds it or looks at all variables."""
    facts = facts_of(text)
    assert (facts.flow.only_variable(facts.tree.module.body[0]) is not None) is alone
