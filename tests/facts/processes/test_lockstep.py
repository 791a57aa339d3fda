from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of

HEAD = """
import argparse, os, random, time
import torch
from torch import nn
from torch.utils.data import DataLoader
args = argparse.ArgumentParser().parse_args()
loader = DataLoader(data, batch_size=4)
model = nn.DataParallel(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("value = 1", False, id="literal"),
        pytest.param("value = args.epochs > 3", False, id="command line"),
        pytest.param("value = len(loader)", False, id="number of batches"),
        pytest.param("value = os.path.exists('a')", False, id="file"),
        pytest.param("value = torch.load('a')['epoch']", False, id="content of a file"),
        pytest.param("value = 0\nfor epoch in range(3):\n    value = epoch", False, id="epoch"),
        pytest.param("for i, x in enumerate(loader):\n    value = i", False, id="number of a batch"),
        pytest.param("value = 0\nfor x in loader:\n    value += 1", False, id="count of batches"),
        pytest.param("value = optimizer.param_groups[0]['lr']", False, id="state of the optimizer"),
        pytest.param("def f(a):\n    return a\nvalue = f(3)", False, id="function of equal arguments"),
        pytest.param("value = [1, 2]\nvalue.append(3)", False, id="list of equal items"),
        pytest.param("value = []\ndef grow(a):\n    grow(a)\ngrow(value)", False, id="function that calls itself"),
        pytest.param("for x in loader:\n    value = x", True, id="batch"),
        pytest.param("for x in loader:\n    value = model(x).item()", True, id="output"),
        pytest.param("value = 0\nfor x in loader:\n    value += x.sum().item()", True, id="total over batches"),
        pytest.param("value = time.time()", True, id="clock"),
        pytest.param("value = random.random()", True, id="random number"),
        pytest.param("value = []\nfor x in loader:\n    value.append(x)", True, id="list of batches"),
        pytest.param("value = {}\nfor x in loader:\n    value['a'] = x", True, id="dictionary of batches"),
        pytest.param(
            "def f(items, x):\n    items.append(x)\nvalue = []\nfor x in loader:\n    f(value, x)", True, id="list filled by a function"
        ),
        pytest.param(
            "def f():\n    for x in loader:\n        y = model(x)\n    return y\nvalue = f()", True, id="function that takes batches"
        ),
        pytest.param("value = 0\nif time.time() > 3:\n    value = 1", True, id="equal values, chosen by the clock"),
        pytest.param(
            "class Meter:\n    def update(self, v):\n        self.v = v\nm = Meter()\nfor x in loader:\n    m.update(x)\nvalue = m.v",
            True,
            id="object that was fed",
        ),
    ],
)
def test_what_may_differ_between_processes(text: str, expected: bool) -> None:
    """Batches, clocks and random numbers differ, and all that is made of them; settings, lengths and counters do not."""
    facts = facts_of(HEAD + text + "\nif value:\n    pass")
    last = facts.tree.module.body[-1]
    assert isinstance(last, ast.If)
    assert facts.lockstep.differs(last.test) is expected


LOOP = """
def train(epoch):
    for i, x in enumerate(loader):
        loss = model(x).mean()
        STEP
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()

def main():
    best = 0
    for epoch in range(args.epochs):
        value = train(epoch)
        EPOCH

main()
"""


def decisions(step: str = "pass", epoch: str = "pass") -> list[tuple[str | None, bool]]:
    """The tests of the decisions that a script takes, and whether they are met in each step."""
    facts = facts_of(HEAD + LOOP.replace("STEP", step).replace("EPOCH", epoch))
    return [(decision.test and ast.unparse(decision.test), decision.each_step) for decision in facts.lockstep.decisions()]


@pytest.mark.parametrize(
    ("step", "epoch"),
    [
        pytest.param("pass", "pass", id="nothing"),
        pytest.param("if i > args.steps: break", "pass", id="settings"),
        pytest.param("pass", "if epoch > 3: break", id="epoch"),
        pytest.param("pass", "if value > best: best = value", id="nothing depends on it"),
        pytest.param("if loss.item() > 3: raise ValueError", "pass", id="end of the program with an error"),
    ],
)
def test_processes_stay_together(step: str, epoch: str) -> None:
    """Nothing is decided by what differs, or nothing of weight depends on it."""
    assert decisions(step, epoch) == []


@pytest.mark.parametrize(
    ("step", "epoch", "expected"),
    [
        pytest.param("if loss.item() > 3: continue", "pass", ("loss.item() > 3", True), id="step left out"),
        pytest.param("if loss.item() > 3: return", "pass", ("loss.item() > 3", True), id="training left"),
        pytest.param("pass", "if value < 1: break", ("value < 1", False), id="early stop"),
        pytest.param("pass", "if value < 1: return", ("value < 1", False), id="function left"),
        pytest.param("pass", "if value < 1: exit()", ("value < 1", False), id="program left in peace"),
        pytest.param("pass", "if value < 1: train(epoch)", ("value < 1", False), id="further training"),
        pytest.param("pass", "while time.time() < 3: train(epoch)", ("time.time() < 3", False), id="training by the clock"),
        pytest.param("pass", "value and train(epoch)", (None, False), id="short cut"),
        pytest.param("pass", "for x in [value] * int(value): train(epoch)", (None, False), id="number of runs"),
    ],
)
def test_processes_could_part(step: str, epoch: str, expected: tuple[str | None, bool]) -> None:
    """A test of what differs is a decision where a run of the network, or going on at all, depends on it."""
    assert decisions(step, epoch) == [expected]


@pytest.mark.parametrize(
    ("handler", "parts"),
    [
        ("except KeyboardInterrupt:\n            pass", False),
        ("except ValueError:\n            raise", False),
        ("except ValueError:\n            pass", True),
    ],
)
def test_exceptions_of_one_process(handler: str, parts: bool) -> None:
    """A handler that goes on lets one process leave a run that the others wait in; interrupts reach all of them."""
    epoch = f"try:\n            train(epoch)\n        {handler}"
    assert bool(decisions(epoch=epoch)) is parts
