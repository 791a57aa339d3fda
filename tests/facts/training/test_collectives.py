"""Gradients that processes exchange by hand."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.training.collectives import exchanged_by_hand

LOOP = """\
import torch
import torch.distributed as dist
from torch import nn


def average(net):
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def flat(net):
    both = torch.cat([p.grad.view(-1) for p in net.parameters()])
    send(both)


def send(value):
    dist.all_reduce(value)


def mean(value):
    dist.all_reduce(value)
    return value / dist.get_world_size()


net = nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=1)
for x in batches:
    opt.zero_grad()
    loss = net(x).sum()
    loss.backward()
    {line}
    opt.step()
"""


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("pass", id="nothing"),
        pytest.param("dist.all_reduce(loss.detach())", id="a loss"),
        pytest.param("total = mean(loss.detach())", id="a loss in a function"),
        pytest.param("nn.utils.clip_grad_norm_(net.parameters(), 1.0)", id="clipped here"),
        pytest.param("norm = net.weight.grad.norm()", id="looked at here"),
    ],
)
def test_gradients_that_stay_in_their_process(line: str) -> None:
    """Only gradients that are handed on count."""
    facts = facts_of(LOOP.format(line=line))
    assert exchanged_by_hand(facts.loops.training[0]) is None


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("average(net)", id="by a function"),
        pytest.param("[dist.all_reduce(p.grad.data) for p in net.parameters()]", id="one by one"),
        pytest.param("for p in net.parameters():\n        dist.all_reduce(p.grad)", id="in a loop"),
    ],
)
def test_gradients_that_are_handed_to_other_processes(line: str) -> None:
    """Infinite ones would reach processes whose scaler knows nothing of them."""
    facts = facts_of(LOOP.format(line=line))
    obstacle = exchanged_by_hand(facts.loops.training[0])
    assert obstacle is not None
    assert obstacle.code == "gradients-exchanged"


def test_a_function_that_speaks_through_another_one_is_followed() -> None:
    """One collects the gradients and another sends them: what is sent is not told apart from what is read."""
    facts = facts_of(LOOP.format(line="flat(net)"))
    assert exchanged_by_hand(facts.loops.training[0]) is not None
