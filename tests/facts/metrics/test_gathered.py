from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.metrics.gathered import Gathered, gathered

TEXT = """
import torch
from torch import nn
device = torch.device("cuda")
model = nn.Linear(3, 5).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(loader):
    BEGIN
    for epoch in range(3):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            STEP
        MIDDLE
    END
"""


def found(begin: str, step: str, middle: str = "pass", end: str = "return losses") -> tuple[Gathered, ...]:
    """The lists of a training loop."""
    return facts_of(TEXT.replace("BEGIN", begin).replace("STEP", step).replace("MIDDLE", middle).replace("END", end)).gatherings.all


@pytest.mark.parametrize(
    "step", ["losses.append(1)", "losses.append(loss)", "losses.extend([loss.item()])", "self.losses.append(loss.item())"]
)
def test_what_is_no_list_of_numbers(step: str) -> None:
    """Only lists in a variable, into which each step puts what it reads from the device, count."""
    assert found("losses = []", step) == ()


def test_list_that_grows_through_all_epochs() -> None:
    """A list grows through every loop that it is not made in."""
    (item,) = found("losses = []", "losses.append(loss.item())")
    assert len(item.starts) == 1
    assert item.is_used_outside
    assert item.whole is not item.loop
    assert not item.used
    assert item.entries[0].is_bare


@pytest.mark.parametrize(
    ("begin", "middle", "starts", "uses"),
    [
        pytest.param("losses = list()", "pass", True, 0, id="made by a call"),
        pytest.param("losses, n = [], 0", "pass", True, 0, id="made beside others"),
        pytest.param("losses = past()", "pass", False, 1, id="from out of sight"),
        pytest.param("losses = []", "print(losses)", True, 1, id="read between the epochs"),
        pytest.param("losses = []\n    keep(losses)", "pass", True, 1, id="handed on in front of the loop"),
    ],
)
def test_starts_and_uses(begin: str, middle: str, starts: bool, uses: int) -> None:
    """A list must be seen to begin empty; what looks at it before the loops are through is a use."""
    (item,) = found(begin, "losses.append(loss.item())", middle)
    assert bool(item.starts) is starts
    assert len(item.used) == uses


def test_list_that_the_loop_begins_anew() -> None:
    """Statements that make the list empty again are no uses of it."""
    (item,) = found("losses = []", "losses.append(loss.item())\n            if x: losses = []", end="pass")
    assert [ast.unparse(statement) for statement in item.resets] == ["losses = []"]
    assert not item.used
    assert not item.is_used_outside


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("a.append(b)", [("a", "b")]),
        ("a += [b]", [("a", "b")]),
        ("a.b.append(c)", [("a.b", "c")]),
        ("a.append(b, c)", []),
        ("a += [b, c]", []),
        ("a += b", []),
    ],
)
def test_entries_in_all_spellings(statement: str, expected: list[tuple[str, str]]) -> None:
    """``append`` and ``+=`` of a list put one thing in."""
    assert [(ast.unparse(target), ast.unparse(value)) for target, value in gathered(ast.parse(statement).body[0])] == expected
