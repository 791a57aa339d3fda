from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts import Facts
from torchfix.facts.code.numbers import Number

TEXT = """
import torch
from torch import nn
device = DEVICE
model = nn.Linear(3, 5).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(loader):
    BEGIN
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        outputs = model(x)
        loss = criterion(outputs, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        STEP
    END
"""


def facts(begin: str, step: str, end: str = "return total", device: str = 'torch.device("cuda")') -> Facts:
    """The facts of a training loop."""
    step = step.replace("\n", "\n        ")
    return facts_of(TEXT.replace("BEGIN", begin).replace("STEP", step).replace("END", end).replace("DEVICE", device))


@pytest.mark.parametrize(
    ("begin", "step", "expected"),
    [
        pytest.param("total = 0.0", "total += loss.item()", None, id="sum"),
        pytest.param("total = 0.0", "total += loss.item() / 3", None, id="divided"),
        pytest.param("total = begin()", "total += loss.item()", "unknown-start", id="start out of sight"),
        pytest.param("total = 0.0", "total += loss.item() * f(x)", "unknown-operand", id="times something"),
        pytest.param("total = 0.0", "total += abs(loss.item())", "host-arithmetic", id="computed first"),
        pytest.param("total = 0.0", "total += f(outputs).item()", "unknown-value", id="value out of sight"),
        pytest.param("total = 0.0", "total += loss.item()\nprint(total)", "used-each-step", id="printed"),
        pytest.param("total = 0.0", "total += loss.item()\nif total > 3: pass", "decides", id="decided by"),
    ],
)
def test_sums(begin: str, step: str, expected: str | None) -> None:
    """A sum can wait unless something needs it on each step, or is not known of it."""
    here = facts(begin, step)
    (item,) = here.accumulators.all
    obstacle = here.deferral.of_sum(item)
    assert (obstacle.code if obstacle is not None else None) == expected


@pytest.mark.parametrize(
    ("begin", "step", "end", "expected"),
    [
        pytest.param("total = 0.0", "total += (outputs > 0).sum().item()", "return total", Number.FRACTION, id="count from 0.0"),
        pytest.param("total = 0", "total += (outputs > 0).sum().item()", "return total", Number.WHOLE, id="count"),
        pytest.param("total = 0", "total += loss.item()", "return total", Number.FRACTION, id="losses from 0"),
        pytest.param("total = 0", "total += outputs[i].item()", "return total", None, id="either"),
        pytest.param("total = 0", "total += outputs[i].item()", "return total / 3", Number.FRACTION, id="either, divided"),
    ],
)
def test_numbers_of_sums(begin: str, step: str, end: str, expected: Number | None) -> None:
    """What a sum is behind the loop follows from its start and from what is added."""
    here = facts(begin, step, end)
    (item,) = here.accumulators.all
    assert here.deferral.number(item) is expected


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ('torch.device("cuda")', True),
        ('torch.device("cuda" if ok else "cpu")', True),
        ('torch.device("mps" if ok else "cuda")', False),
        ("torch.accelerator.current_accelerator()", False),
    ],
)
def test_devices_with_float64(device: str, expected: bool) -> None:
    """Of the devices that torch may find, CUDA and the host surely know float64."""
    here = facts("total = 0.0", "total += loss.item()", device=device)
    (item,) = here.accumulators.all
    assert here.deferral.has_float64(item.loop) is expected


@pytest.mark.parametrize(
    ("begin", "step", "expected"),
    [
        pytest.param("total = []", "total.append(loss.item())", None, id="list"),
        pytest.param("total = f()", "total.append(loss.item())", "unknown-start", id="list from out of sight"),
        pytest.param("total = []", "total.append(loss.item())\nprint(total)", "used-each-step", id="printed"),
        pytest.param("total = []", "total.append(loss.item() / 3)", "host-arithmetic", id="divided"),
    ],
)
def test_lists(begin: str, step: str, expected: str | None) -> None:
    """A list can hold tensors until the loop is through."""
    here = facts(begin, step)
    (item,) = here.gatherings.all
    obstacle = here.deferral.of_list(item)
    assert (obstacle.code if obstacle is not None else None) == expected


def test_numbers_that_are_gathered_elsewhere() -> None:
    """Attributes and entries can be read by code that is not seen, and what begins anew on each step is needed there."""
    here = facts("total = {}", "self.total += loss.item()\ntotal['a'].append(loss.item())\ntotal['b'] += 1\nk = 0.0\nk += loss.item()")
    found = [(statement.lineno, obstacle.code) for statement, obstacle in here.deferral.elsewhere()]
    assert found == [(18, "out-of-reach"), (19, "out-of-reach"), (22, "used-each-step")]


def test_numbers_that_a_called_function_collects() -> None:
    """What a function collects on each step is read on each step."""
    text = "def note(loss):\n    found = []\n    found.append(loss.item())\n    return found\n"
    here = facts_of(text + facts("total = 0", "note(loss)").source.text)
    assert [obstacle.code for _, obstacle in here.deferral.elsewhere()] == ["called-each-step"]
