from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.metrics.totals import Joining, totals

TEXT = """
import torch
from torch import nn
from torch.utils.data import DataLoader
criterion = nn.MSELoss()
loader = DataLoader(data, batch_size=4)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    for epoch in range(3):
        START
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ADD
        END
"""


def found(start: str, add: str, end: str) -> list[tuple[str, Joining]]:
    """The totals of a training loop, as text."""
    facts = facts_of(TEXT.replace("START", start).replace("ADD", add).replace("END", end))
    (loop,) = facts.loops.training
    return [(ast.unparse(total.target), total.joining) for total in totals(loop)]


@pytest.mark.parametrize(
    ("start", "add", "end"),
    [
        pytest.param("n = 0", "n += 1", "print(n)", id="count of steps"),
        pytest.param("t = 0", "t += loss.item()", "pass", id="not read behind the loop"),
        pytest.param("t = 0", "t += loss.item(); print(t); t = 0", "print(t)", id="begun anew inside the loop"),
        pytest.param("pass", "loss += 1", "print(loss)", id="the loss itself"),
    ],
)
def test_what_is_no_total(start: str, add: str, end: str) -> None:
    """Counters that all processes share, and variables that live for a step only, are no totals of a share."""
    assert found(start, add, end) == []


@pytest.mark.parametrize(
    ("start", "add", "end", "expected"),
    [
        pytest.param("t = 0.0", "t += loss.item()", "print(t / len(loader))", ("t", Joining.MEAN), id="mean losses"),
        pytest.param("t = 0", "t += loss.detach()", "print(t)", ("t", Joining.MEAN), id="losses on the device"),
        pytest.param("t = 0", "t = t + loss.item()", "print(t)", ("t", Joining.MEAN), id="written out"),
        pytest.param("t = u = 0", "t += loss.item()", "print(t)", ("t", Joining.MEAN), id="two at once"),
        pytest.param("t, u = 0, 0", "t += loss.item()", "t /= len(loader); print(t)", ("t", Joining.MEAN), id="divided behind the loop"),
        pytest.param("t = 0", "t += loss.item() * x.size(0)", "print(t)", ("t", Joining.SUM), id="losses of samples"),
        pytest.param("t = 0", "t += len(x)", "print(t)", ("t", Joining.SUM), id="samples"),
        pytest.param("t = 0", "t += (x > y).sum().item()", "print(t)", ("t", Joining.SUM), id="hits"),
        pytest.param("t = 0", "t += score(x)", "print(t)", ("t", Joining.UNKNOWN), id="unknown score"),
        pytest.param("t = 1", "t *= loss.item()", "print(t)", ("t", Joining.UNKNOWN), id="product"),
        pytest.param("t = 3", "t += loss.item()", "print(t)", ("t", Joining.UNKNOWN), id="not from zero"),
        pytest.param("s = {'t': 0}", "s['t'] += loss.item()", "print(s)", ("s['t']", Joining.UNKNOWN), id="in a dictionary"),
        pytest.param("pass", "log.t += loss.item()", "print(log.t)", ("log.t", Joining.UNKNOWN), id="in an object"),
    ],
)
def test_totals_are_joined_by_what_is_added(start: str, add: str, end: str, expected: tuple[str, Joining]) -> None:
    """Means of shares are averaged, sums and counts are added, and the rest is unknown."""
    assert found(start, add, end) == [expected]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        pytest.param("pass", Joining.SUM, id="read behind all epochs"),
        pytest.param("print(t)", Joining.UNKNOWN, id="read in each epoch"),
    ],
)
def test_a_total_that_runs_over_epochs_is_joined_behind_them(end: str, expected: Joining) -> None:
    """Joined in each epoch, it would count the earlier epochs twice."""
    text = (
        TEXT.replace("START", "pass").replace("ADD", "t += len(x)").replace("END", end).replace("def train():", "def train():\n    t = 0")
    )
    facts = facts_of(text + "    return t\n")
    (loop,) = facts.loops.training
    (total,) = totals(loop)
    assert total.joining is expected
    assert (total.behind is loop.node) is (expected is Joining.UNKNOWN)
