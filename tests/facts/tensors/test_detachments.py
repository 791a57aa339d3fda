"""What becomes of detached tensors."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.tensors.detachments import Fate

TEXT = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from metrics import accuracy, clear, keep

net = nn.Linear(2, 2)

def step(x, y, kept, helper):
    output = net(x)
    loss = F.cross_entropy(output, y)
    LINES
"""
MODULES = {
    "metrics.py": "def accuracy(a, b):\n    return a.topk(1)[1].eq(b).sum()\n\n\n"
    "def clear(a):\n    a[0] = 0\n\n\ndef keep(a):\n    return a\n"
}


@pytest.mark.parametrize(
    ("lines", "fate"),
    [
        pytest.param("print(output.data)", Fate.READ, id="printed"),
        pytest.param("a = output.data.max(1)[1]", Fate.READ, id="reduced"),
        pytest.param("a = output.data.view(-1).cpu().numpy()", Fate.READ, id="through views"),
        pytest.param("a = accuracy(output.data, y)", Fate.READ, id="a function that reads"),
        pytest.param("a = np.asarray(output.data)", Fate.READ, id="an array"),
        pytest.param("a = output.data\nprint(a)\nb = a.sum()", Fate.READ, id="through a variable"),
        pytest.param("a = F.mse_loss(net(x), output.data)", Fate.COMPUTED_WITH, id="target"),
        pytest.param("a = x * output.data", Fate.COMPUTED_WITH, id="product"),
        pytest.param("a = torch.cat((output.data, x))", Fate.COMPUTED_WITH, id="joined"),
        pytest.param("kept.append(output.data)", Fate.AWAY, id="kept"),
        pytest.param("helper(output.data)", Fate.AWAY, id="given away"),
        pytest.param("a = keep(output.data)", Fate.AWAY, id="a function that gives it back"),
        pytest.param("output.data.add_(1)", Fate.WRITTEN, id="in-place method"),
        pytest.param("output.data[:1] = 1", Fate.WRITTEN, id="entry"),
        pytest.param("a = output.data.t()\na += 1", Fate.WRITTEN, id="through a variable and a view"),
        pytest.param("clear(output.data)", Fate.WRITTEN, id="a function that writes"),
        pytest.param("nn.init.zeros_(output.data)", Fate.WRITTEN, id="initialised"),
    ],
)
def test_fates(lines: str, fate: Fate) -> None:
    """What is read, what a graph may keep, what goes away, and what is written is told apart."""
    facts = facts_of(TEXT.replace("LINES", lines.replace("\n", "\n    ")), modules=MODULES)
    (found,) = facts.detachments.all()
    assert found.fate is fate


@pytest.mark.parametrize(
    ("lines", "changes"),
    [
        pytest.param("a = x * output.data", False, id="left alone"),
        pytest.param("a = x * output.data\noutput += 1", True, id="written"),
        pytest.param("a = x * output.data\nnet(output)", True, id="given to a network, which may write in place"),
        pytest.param("a = x * output.data\noutput = net(x)\nnet(output)", False, id="another tensor of the same name"),
        pytest.param("a = x * net.weight.data", True, id="a weight, which an optimizer writes"),
    ],
)
def test_tensors_that_change_later(lines: str, changes: bool) -> None:
    """A tensor may change behind its detachment where something writes into it or may do so."""
    facts = facts_of(TEXT.replace("LINES", lines.replace("\n", "\n    ")), modules=MODULES)
    (found,) = facts.detachments.all()
    assert facts.detachments.may_change_later(found) is changes
