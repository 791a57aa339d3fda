"""Logarithms of what a network's own sigmoid gave."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.code.names import Definition
from torchfix.facts.half_precision.logarithms import of_rounded

TEXT = """
import logging

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)
        self.squash = nn.Sigmoid()

    def forward(self, x):
        h = self.fc(x)
        return {gives}


def loss_of(p):
    return torch.log(p).mean()


class Loss(nn.Module):
    def forward(self, p):
        return (p + 1e-6).log().mean()


net = {net}
criterion = Loss()
p = net(x)
{loss}
"""
SQUASHED = "self.squash(h)"
LOGARITHM = "loss = torch.log(1 - p)"


def finds(loss: str = LOGARITHM, gives: str = SQUASHED, net: str = "Net()") -> bool:
    """Whether a logarithm is found on the way to the loss."""
    facts = facts_of(TEXT.format(gives=gives, net=net, loss=loss))
    assert isinstance(facts.source.tree, ast.Module)
    statements = facts.source.tree.body[-1 - loss.count("\n") :]
    calls = [node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Call)]
    code = [item for call in calls for item in (facts.names.definition(call.func),) if item is not None]
    if "criterion" in loss:
        code.append(Definition(facts, next(node for node in facts.source.tree.body if getattr(node, "name", "") == "Loss")))
    return of_rounded(facts, calls, code) is not None


@pytest.mark.parametrize(
    ("loss", "gives", "net"),
    [
        pytest.param("loss = p.mean()", SQUASHED, "Net()", id="no logarithm"),
        pytest.param(LOGARITHM, "h", "Net()", id="scores"),
        pytest.param(LOGARITHM, "torch.softmax(h, 1)", "Net()", id="a softmax, which autocast computes in float32"),
        pytest.param(LOGARITHM, "torch.sigmoid(h.float())", "Net()", id="a sigmoid in float32"),
        pytest.param("q = torch.sigmoid(p)\nloss = torch.log(q)", "h", "Net()", id="a sigmoid outside of the network"),
        pytest.param(LOGARITHM, "h", "nn.Sequential(nn.Linear(8, 1))", id="a sequence of layers"),
        pytest.param("loss = logging.log(p)", SQUASHED, "Net()", id="a logarithm of something else"),
    ],
)
def test_other_logarithms_are_left_alone(loss: str, gives: str, net: str) -> None:
    """Half precision does not round what they are given to 0 or 1."""
    assert not finds(loss, gives, net)


@pytest.mark.parametrize(
    ("loss", "gives", "net"),
    [
        pytest.param(LOGARITHM, SQUASHED, "Net()", id="a layer of the network"),
        pytest.param(LOGARITHM, "torch.sigmoid(h)", "Net()", id="a function"),
        pytest.param(LOGARITHM, "h.sigmoid().view(-1)", "Net()", id="a method, and a view of it"),
        pytest.param(LOGARITHM, SQUASHED, "nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())", id="the last of a sequence"),
        pytest.param(LOGARITHM, SQUASHED, "nn.DataParallel(Net())", id="in threads"),
        pytest.param("loss = p.float().clamp(1e-6, 1).log()", SQUASHED, "Net()", id="converted and bounded"),
        pytest.param("q = 1 - p\nloss = torch.log(q + 1e-6)", SQUASHED, "Net()", id="under another name"),
        pytest.param("loss = loss_of(p)", SQUASHED, "Net()", id="in a function"),
        pytest.param("loss = criterion(p)", SQUASHED, "Net()", id="in a loss of the project"),
    ],
)
def test_the_logarithm_of_a_networks_sigmoid_is_found(loss: str, gives: str, net: str) -> None:
    """Wherever the loss is computed, and though it is computed in float32."""
    assert finds(loss, gives, net)
