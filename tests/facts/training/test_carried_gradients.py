"""Gradients that outlive their step."""

from __future__ import annotations

from textwrap import indent

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.training.carried_gradients import carried_over

LOOP = """\
import torch
from torch import nn


class Memory:
    def __init__(self):
        self.kept = {}

    def keep(self, net):
        for name, p in net.named_parameters():
            self.kept[name] = 0.9 * self.kept.get(name, 0) + p.grad


def norms(net):
    found = {}
    for name, p in net.named_parameters():
        found[name] = p.grad.norm()
    return found


def flat(net):
    return torch.cat([p.grad.view(-1) for p in net.parameters()])


def smooth(net, kept):
    for name, p in net.named_parameters():
        kept[name] = 0.9 * kept[name] + p.grad
        p.grad = p.grad + kept[name]


def remember(net):
    global last
    last = [p.grad.clone() for p in net.parameters()]


net = nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=1)
memory, last, kept, history, mean = Memory(), None, {}, [], torch.zeros(2, 2)
for x in batches:
    opt.zero_grad()
    loss = net(x).sum()
    loss.backward()
"""


def carried(lines: str) -> str | None:
    """The code of the obstacle where a loop has these lines in front of its step."""
    facts = facts_of(LOOP + indent(lines, "    ") + "\n    opt.step()\n")
    obstacle = carried_over(facts.loops.training[0])
    return obstacle.code if obstacle is not None else None


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("pass", id="nothing"),
        pytest.param("nn.utils.clip_grad_norm_(net.parameters(), 1.0)", id="clipped"),
        pytest.param("for p in net.parameters():\n    p.grad.add_(torch.randn_like(p.grad))", id="noise"),
        pytest.param("for p in net.parameters():\n    p.grad.data.clamp_(-1, 1)", id="clamped"),
        pytest.param("for p in net.parameters():\n    p.grad = p.grad / 2", id="halved"),
        pytest.param("history.append(net.weight.grad.norm().item())", id="norms kept"),
        pytest.param("found = norms(net)", id="norms by name"),
        pytest.param("g = flat(net)\nprint(g.norm())", id="made anew in each iteration"),
        pytest.param("now = [p.grad.clone() for p in net.parameters()]\nprint(len(now))", id="a list of the iteration"),
        pytest.param("now = []\nfor p in net.parameters():\n    now.append(p.grad)", id="collected in the iteration"),
        pytest.param("if last is None:\n    print(net.weight.grad.abs().max())", id="only shown"),
        pytest.param("for p in net.parameters():\n    torch.clamp_(p.grad, -1, 1)", id="clamped by a function of torch"),
        pytest.param("if x is not None:\n    opt.zero_grad()", id="cleared"),
    ],
)
def test_gradients_that_end_with_their_step(lines: str) -> None:
    """What is made of them is a number, is made anew in each iteration, or is the gradient itself."""
    assert carried(lines) is None


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("if last:\n    net.weight.grad += last[0]\nlast = [p.grad.clone() for p in net.parameters()]", id="in a variable"),
        pytest.param("if x.sum() > 0:\n    last = net.weight.grad.clone()\nprint(last)", id="in a variable, at times"),
        pytest.param("mean.mul_(0.9).add_(net.weight.grad, alpha=0.1)", id="in a running mean"),
        pytest.param("mean += net.weight.grad", id="in a sum"),
        pytest.param("history.append(net.weight.grad.clone())", id="in a list"),
        pytest.param("kept['w'] = net.weight.grad", id="in a dictionary"),
        pytest.param("memory.last = net.weight.grad.clone()", id="in an attribute"),
        pytest.param("others.append(net.weight.grad)", id="in what is made elsewhere"),
        pytest.param("memory.keep(net)", id="by a method"),
        pytest.param("smooth(net, kept)", id="by a function, in what it is given"),
        pytest.param("remember(net)", id="by a function, in a global variable"),
        pytest.param("history.append(flat(net))", id="what a function gives"),
        pytest.param("with torch.no_grad():\n    for p in net.parameters():\n        p.sub_(0.1 * p.grad)", id="in weights"),
    ],
)
def test_gradients_that_later_steps_find(lines: str) -> None:
    """An infinite one would stay."""
    assert carried(lines) == "gradients-carried"
