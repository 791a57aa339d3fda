from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.metrics.accumulators import Accumulator, summed

TEXT = """
import torch
from torch import nn
device = torch.device("cuda")
model = nn.Linear(3, 5).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(loader):
    total = 0.0
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        STEP
    END
"""


def found(step: str, end: str = "return total") -> tuple[Accumulator, ...]:
    """The running numbers of a training loop."""
    text = TEXT.replace("STEP", step.replace("\n", "\n        ")).replace("END", end)
    return facts_of(text).accumulators.all


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("total += 1", id="plain number"),
        pytest.param("if i % 9 == 0:\n    total += loss.item()", id="now and then"),
        pytest.param("sum_ = 0.0\nsum_ += loss.item()", id="begun anew on each step"),
        pytest.param("total += [loss.item()]", id="list"),
        pytest.param("meter.total += loss.item()", id="attribute"),
    ],
)
def test_what_is_no_running_number(step: str) -> None:
    """Only variables to which each step adds what it reads from the device count."""
    assert found(step) == ()


def test_running_number_with_its_parts() -> None:
    """All additions, the start, the resets and the uses of the variable are told apart."""
    (item,) = found("total += loss.item() * 2\nif i % 9 == 0:\n    print(total)\n    total = 0.0\ntotal = 1 + total")
    assert [ast.unparse(addition.value) for addition in item.additions] == ["loss.item() * 2", "1"]
    assert [len(addition.reads) for addition in item.additions] == [1, 0]
    assert not item.additions[0].is_bare
    assert [ast.unparse(binding.node) for binding in item.starts] == ["total = 0.0"]
    assert [ast.unparse(binding.node) for binding in item.resets] == ["total = 0.0"]
    assert [use.lineno for use in item.used] == [19]
    assert item.is_used_outside


def test_sum_that_nobody_uses() -> None:
    """What is only added to, and set, is used nowhere."""
    (item,) = found("total += loss.item()", "total = None")
    assert item.additions[0].is_bare
    assert not item.used
    assert not item.is_used_outside


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("a += b", [("a", "b")]),
        ("a = a + b", [("a", "b")]),
        ("a = b + a", [("a", "b")]),
        ("a.x += b", [("a.x", "b")]),
        ("a -= b", [("a", None)]),
        ("a = b + c", []),
        ("a = b", []),
    ],
)
def test_additions_in_all_spellings(statement: str, expected: list[tuple[str, str | None]]) -> None:
    """``a += b`` and ``a = a + b`` add; other updates in place are seen, but do not simply add."""
    pairs = summed(ast.parse(statement).body[0])
    assert [(ast.unparse(target), ast.unparse(value) if value is not None else None) for target, value in pairs] == expected
