"""Whose weights the gradients of a loss surely reach."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.code.calls import receiver
from torchfix.facts.training.owners import parameter_owners

HEAD = """\
import torch
from torch import nn

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(2, 2)
        self.asked = self.part.parameters()

    def forward(self, x):
        return self.part(x)

def measure(net, x):
    return net(x).mean()

def of_a(x):
    return a(x)

a = nn.Linear(2, 2)
b = nn.Linear(2, 2)
criterion = nn.MSELoss()
of = a.parameters()
"""


def reaches(body: str) -> bool:
    """Whether the loss of a program that ends with this surely sends gradients to ``a``."""
    facts = facts_of(HEAD + dedent(body).strip("\n") + "\nloss.backward()\n")
    (owned,) = (node.value for node in ast.walk(facts.tree.module) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "of")
    (sent,) = facts.tree.calls["backward"]
    loss, owners = receiver(sent), parameter_owners(facts, owned)
    assert loss is not None
    assert owners is not None
    return facts.recipients.includes(loss, owners)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("loss = b(x).mean()", id="another network"),
        pytest.param("loss = b(a(x).detach()).mean()", id="detached"),
        pytest.param("y = a(x)\nloss = b(y.data).mean()", id="its data"),
        pytest.param("with torch.no_grad():\n    y = a(x)\nloss = b(y).mean()", id="without gradients"),
        pytest.param("loss = b(x).mean()\nif i:\n    loss = loss + a(x).mean()", id="only at times"),
        pytest.param("loss = (a if i else b)(x).mean()", id="one of two"),
        pytest.param("loss = criterion(b(x), a(x).argmax(1))", id="indices"),
        pytest.param("loss = unknown(x)", id="out of sight"),
        pytest.param("loss = measure(b, x)", id="a function that is handed another one"),
        pytest.param("h = b(x)\nfor t in range(3):\n    h = b(h)\nloss = h.mean()", id="a circle without it"),
    ],
)
def test_not_surely(body: str) -> None:
    """Where gradients end before it, or come to it at times only."""
    assert not reaches(body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("loss = a(x).mean()", id="its own output"),
        pytest.param("loss = b(a(x)).mean()", id="through another network"),
        pytest.param("loss = criterion(input=a(x), target=y)", id="by keyword"),
        pytest.param("loss = b(x).mean() - 10 * a(x).mean()", id="a term of it"),
        pytest.param("loss = a(x).mean()\nif i:\n    loss = loss + b(x).mean()", id="with another one at times"),
        pytest.param("loss = 0\nfor t in range(3):\n    loss += criterion(a(x), y)", id="a sum that begins with a number"),
        pytest.param("h = a(x)\nfor t in range(3):\n    out, h = b(h, t)\nloss = out.mean()", id="through a state"),
        pytest.param("seen = torch.zeros(3, 2)\nfor t in range(3):\n    seen[t] = a(x)\nloss = b(seen).mean()", id="written into a tensor"),
        pytest.param("seen = []\nfor t in range(3):\n    seen.append(a(x))\nloss = torch.stack(seen).mean()", id="collected"),
        pytest.param("y, z = a(x), b(x)\nloss = y.mean()", id="one of a pair"),
        pytest.param("loss = measure(a, x)", id="in a function that is handed it"),
        pytest.param("loss = of_a(x).mean()", id="in a function that returns it"),
        pytest.param("loss = sum(a(x).mean() for x in parts)", id="a sum of many"),
    ],
)
def test_surely(body: str) -> None:
    """Where every way to the loss leads through it."""
    assert reaches(body)


def test_a_part_of_the_network_that_runs() -> None:
    """An optimizer may have only a part of a network, made in the network's own class."""
    facts = facts_of(HEAD + "pair = Pair()\nloss = pair(x).mean()\nloss.backward()\n")
    (sent,) = facts.tree.calls["backward"]
    (owned,) = (
        node.value for node in ast.walk(facts.tree.module) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self.asked"
    )
    loss, owners = receiver(sent), parameter_owners(facts, owned)
    assert loss is not None
    assert owners
    assert facts.recipients.includes(loss, owners)


LOSSES = """
def pairs(out):
    if out.sum() > 0:
        return out.mean()
    return torch.zeros([], requires_grad=True)


class Pairs(nn.Module):
    def forward(self, out):
        return out.mean() if out.sum() > 0 else torch.zeros([], requires_grad=True, device=out.device)


mined = Pairs()
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("loss = a(x).mean()", False, id="of a network"),
        pytest.param("loss = criterion(a(x), y)", False, id="of a loss of torch"),
        pytest.param("loss = torch.zeros(1, requires_grad=True)\nloss = loss + a(x).mean()", False, id="a sum that begins so"),
        pytest.param("loss = torch.zeros(1, requires_grad=False) + a(x).mean()", False, id="that asks for none"),
        pytest.param("loss = a(x).mean()\nif i:\n    loss = torch.zeros(1, requires_grad=True)", True, id="in a branch"),
        pytest.param("loss = pairs(a(x))", True, id="of a function without a term"),
        pytest.param("loss = mined(a(x))", True, id="of a loss class without a term"),
    ],
)
def test_a_loss_may_be_a_constant_that_only_asks_for_gradients(body: str, expected: bool) -> None:
    """They go nowhere, and a scaler refuses to step without any."""
    facts = facts_of(f"{HEAD}{LOSSES}{body}\nloss.backward()\n")
    (sent,) = facts.tree.calls["backward"]
    loss = receiver(sent)
    assert loss is not None
    assert facts.recipients.may_be_none(loss) is expected


def test_a_loss_that_may_be_constant_does_not_surely_reach_a_network() -> None:
    """Though the network took part in it."""
    body = f"{LOSSES}y = a(x)\nloss = mined(y)"
    assert not reaches(body)
