"""Readings that can be saved."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts import Facts

TEXT = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader


def train(meter, kept):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(2, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(DataLoader(data)):
        output = model(x.to(device))
        loss = nn.functional.mse_loss(output, y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        LINES
"""


def read(lines: str) -> Facts:
    """The facts of a training loop with some lines at the end of its body."""
    return facts_of(TEXT.replace("LINES", lines.replace("\n", "\n        ")))


@pytest.mark.parametrize(
    ("lines", "count", "variable"),
    [
        pytest.param("print(loss.item())", 0, None, id="once"),
        pytest.param("print(loss.item())\nloss = loss * 2\nprint(loss.item())", 0, None, id="changed in between"),
        pytest.param("print(output.tolist())\nprint(output.tolist())", 0, None, id="lists, which could be changed"),
        pytest.param("sums = []\nsums.append(loss.item())\nkept.append(loss.item())", 1, None, id="gathered where others see it"),
        pytest.param("print(loss.item())\nprint(loss.item())\nmeter.update(loss.item())", 2, None, id="three times"),
        pytest.param("value = loss.item()\nprint(loss.item())", 1, "value", id="a variable holds it"),
        pytest.param("value = loss.item()\nvalue = 2\nprint(loss.item())", 1, None, id="a variable held it"),
        pytest.param("print(1 if step else loss.item())\nprint(loss.item())", 0, None, id="the first may not happen"),
    ],
)
def test_repetitions(lines: str, count: int, variable: str | None) -> None:
    """A number that an iteration reads again, with the same value, is a repetition."""
    found = read(lines).savings.repetitions
    assert sum(len(item.again) for item in found) == count
    assert [item.variable for item in found] == ([variable] if found else [])


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        pytest.param("value = loss.item()\nif step % 10 == 0:\n    print(step)\n    print(value)", "print(value)", id="guarded"),
        pytest.param("value = loss.item()\nprint(value)", None, id="used at once"),
        pytest.param("value = loss.item()\nkept.append(time.time())\nif step % 10 == 0:\n    print(value)", None, id="a clock is read"),
        pytest.param("value = loss.item()\nif meter:\n    print(value)", None, id="a guard that never changes"),
        pytest.param("value = loss.item()\nloss += 1\nif step % 10 == 0:\n    print(value)", None, id="changed before the guard"),
    ],
)
def test_later_places(lines: str, place: str | None) -> None:
    """A number that only some iterations use can be read in front of its first use."""
    facts = read(lines)
    found = facts.savings.later_place(facts.readings.all[0])
    assert (ast.unparse(found[1]) if found else None) == place


@pytest.mark.parametrize(
    ("lines", "unused"),
    [
        pytest.param("loss.item()", True, id="statement"),
        pytest.param("value = loss.item()", True, id="variable"),
        pytest.param("value = loss.item()\nprint(value)", False, id="used"),
        pytest.param("value = meter(loss.item())", False, id="given to code that may do anything"),
        pytest.param("torch.cuda.synchronize()", False, id="wait"),
    ],
)
def test_readings_for_nothing(lines: str, unused: bool) -> None:
    """A reading without any use can go."""
    facts = read(lines)
    assert facts.savings.is_unused(facts.readings.all[0]) is unused


@pytest.mark.parametrize(
    ("line", "at_once"),
    [
        pytest.param("n = (output > 0).cpu().sum()", False, id="kept as a tensor"),
        pytest.param("n = (output > 0).cpu().sum().item()", True, id="read"),
        pytest.param("n = output.cpu().sum()", None, id="no truth values"),
        pytest.param("n = (output > 0).cpu()", None, id="not counted"),
    ],
)
def test_counts(line: str, at_once: bool | None) -> None:
    """Truth values that are copied to be counted are a count."""
    facts = read(line)
    count = facts.savings.count(facts.readings.all[0])
    assert (count.at_once if count else None) is at_once
