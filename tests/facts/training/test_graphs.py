"""Which values carry a graph, surely or perhaps."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node

HEAD = """
import torch
from torch import nn
import numpy as np
import random

net = nn.Linear(2, 2)
loader = torch.utils.data.DataLoader(data)
"""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("v = 3", id="a number"),
        pytest.param("v = net(y).item()", id="made a number"),
        pytest.param("v = net(y).detach()", id="detached"),
        pytest.param("v = net(y).data", id="data"),
        pytest.param("v = net(y).argmax(1)", id="indices"),
        pytest.param("_, v = net(y).max(1)", id="the indices of a maximum"),
        pytest.param("v = net(y).max(1)[1]", id="the second of the pair"),
        pytest.param("v = net(y) > 0", id="a comparison"),
        pytest.param("v = torch.zeros(3)", id="fresh"),
        pytest.param("v = np.mean([1])", id="an array"),
        pytest.param("for v in loader:\n    pass", id="a batch"),
        pytest.param("for a, b in loader:\n    v = a.cuda().view(-1)", id="a part of a batch"),
        pytest.param("v = net", id="a network"),
        pytest.param("with torch.no_grad():\n    v = net(torch.zeros(2))", id="without gradients"),
        pytest.param("def f():\n    return net(1), 3\n_, v = f()", id="another part of what a function returns"),
        pytest.param("v = 0\nfor a in range(3):\n    v += a", id="a sum of numbers"),
    ],
)
def test_surely_none(text: str) -> None:
    """Numbers, indices, batches and what is made without gradients have no graph."""
    facts = facts_of(f"{HEAD}{text}\nasked(v)\n")
    assert not facts.graphs.may_carry(node(facts, "v", -1))


@pytest.mark.parametrize(
    ("text", "surely"),
    [
        pytest.param("v = net(1)", True, id="an output"),
        pytest.param("v = net(1).mean() * 3", True, id="a number of an output"),
        pytest.param("v, _ = net(1).max(1)", True, id="the values of a maximum"),
        pytest.param("v = [net(1)]", True, id="in a list"),
        pytest.param("def f():\n    return net(1), 3\nv, _ = f()", True, id="that part of what a function returns"),
        pytest.param("v = 0\nfor a in range(3):\n    v += net(a)", True, id="a sum of outputs"),
        pytest.param("def f(v):\n    return v\nasked(f(net(1)))\nv = f(net(1))", True, id="through a function"),
        pytest.param("v = []\nfor a in range(3):\n    v.append(net(a))", True, id="collected in a list"),
        pytest.param("v = torch.zeros(3, requires_grad=True)", False, id="a leaf"),
        pytest.param("v = net.weight", False, id="a weight"),
        pytest.param("v = unknown(3)", False, id="out of sight"),
        pytest.param("class A:\n    def f(self):\n        global v\n        v = self.x", False, id="an attribute that nobody sets"),
    ],
)
def test_perhaps_or_surely_one(text: str, surely: bool) -> None:
    """What a network in sight made with gradients on surely has one; leaves and what is not seen perhaps."""
    facts = facts_of(f"{HEAD}{text}\nasked(v)\n")
    value = node(facts, "v", -1)
    assert facts.graphs.may_carry(value)
    assert facts.graphs.carries(value) is surely


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("asked(net(x).sum() * 2)", True, id="arithmetic"),
        pytest.param("a = net(x)\na = a + 1\nasked(F.relu(a))", True, id="variables"),
        pytest.param("a = net(x) if c else net(y)\nasked(a)", True, id="on both branches"),
        pytest.param("a = net(x) if c else w.sum()\nasked(a)", False, id="on one branch"),
        pytest.param("a = w.sum()\nif c:\n    a = net(x)\nasked(a)", False, id="under a condition"),
        pytest.param("asked(net(x).detach())", False, id="cut off"),
        pytest.param("with torch.no_grad():\n    a = net(x)\nasked(a)", False, id="without gradients"),
    ],
)
def test_surely_from_a_network(text: str, expected: bool) -> None:
    """A network took part in a value only where it did on every way to it."""
    head = "import torch\nimport torch.nn.functional as F\nnet = torch.nn.Linear(2, 2)\nw = torch.ones(2, requires_grad=True)\n"
    facts = facts_of(head + text)
    (call,) = facts.tree.calls["asked"]
    assert facts.graphs.surely_carries(call.args[0]) is expected
