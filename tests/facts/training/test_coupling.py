"""Losses that look at several samples of a batch at once."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.training.coupling import coupling

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

class Gram(nn.Module):
    def forward(self, out, y):
        return self.compare(out).mean()

    def compare(self, out):
        return torch.mm(out, out.t())

def spread(out):
    return out.std(dim=0).mean()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 2))

    def forward(self, x):
        return x @ self.weight

net = nn.DataParallel(Net())
criterion, gram = nn.CrossEntropyLoss(), Gram()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in batches:
    optimizer.zero_grad()
    out = net(x)
"""


def found(body: str) -> str | None:
    """The operation that relates samples, for a loop that computes its loss so."""
    facts = facts_of(HEAD + f"    {body}\n    loss.backward()\n    optimizer.step()\n")
    (loop,) = facts.loops.training
    (backward,) = loop.backwards
    assert isinstance(backward.func, ast.Attribute)
    result = coupling(facts, backward.func.value)
    return ast.unparse(result[1]) if result is not None else None


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("loss = criterion(out, y)", id="a loss of torch, whatever the network does inside"),
        pytest.param("loss = criterion(net(x @ x.t()), y)", id="what the network is given"),
        pytest.param("loss = torch.bmm(out, out).mean()", id="products inside each sample"),
        pytest.param("loss = F.log_softmax(out, dim=1).sum(-1).mean()", id="sums inside each sample"),
        pytest.param("loss = (out - y.unsqueeze(1)).mean()", id="one new axis"),
    ],
)
def test_losses_of_each_sample_alone_relate_nothing(body: str) -> None:
    """Their mean over equal shares is the mean over the batch."""
    assert found(body) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("loss = criterion(out @ out.t(), y)", "out @ out.t()", id="similarities"),
        pytest.param("z = torch.cdist(out, out)\n    loss = z.mean()", "torch.cdist(out, out)", id="distances with a name"),
        pytest.param(
            "d = out.unsqueeze(0) - out.unsqueeze(1)\n    loss = d.pow(2).mean()",
            "out.unsqueeze(0) - out.unsqueeze(1)",
            id="rows and columns",
        ),
        pytest.param("loss = criterion(out, y)\n    loss += out.var(0).mean()", "out.var(0)", id="statistics added in place"),
        pytest.param("loss = -F.log_softmax(out, 0).mean()", "F.log_softmax(out, 0)", id="a softmax over the batch"),
        pytest.param("loss = spread(out)", "out.std(dim=0)", id="a function of the project"),
        pytest.param("loss = gram(out, y)", "torch.mm(out, out.t())", id="a method of a loss of the project"),
    ],
)
def test_what_relates_samples_is_found_wherever_it_stands(body: str, expected: str) -> None:
    """In the loop, behind names, in functions and in the project's own loss classes."""
    assert found(body) == expected
