"""What outlives a forward pass: attributes of networks and what hooks keep, with the readings that need its graph."""

from __future__ import annotations

import textwrap

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.training.gradients import End

HEAD = """\
import torch
from functools import partial
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 2)
        self.seen = None

    def forward(self, x):
        {forward}

    def size(self):
        return self.seen.pow(2).mean()

net = Net()
kept = []
{text}
"""
PLAIN = "return self.second(self.first(x))"
STORES = "self.seen = self.first(x); return self.second(self.seen)"


def worst(forward: str, text: str) -> End:
    """The worst end of what a forward pass of the network leaves behind."""
    facts = facts_of(HEAD.format(forward=forward, text=textwrap.dedent(text) + "\nnet(y)"))
    return max((fate.end for fate in facts.remembered.by(facts.tree.module.body[-1:])), default=End.NOWHERE)


@pytest.mark.parametrize(
    ("forward", "text"),
    [
        pytest.param(PLAIN, "", id="nothing kept"),
        pytest.param(STORES, "", id="read in the pass that stored it"),
        pytest.param(STORES, "print(net.seen.sum().item())", id="made a number"),
        pytest.param(STORES, "out = net(x)\n(out.sum() + net.seen.sum()).backward()", id="read behind a new pass"),
        pytest.param(STORES, "def train(x):\n    net(x)\n    net.size().backward()", id="read in a method behind a new pass"),
        pytest.param(STORES, "net.seen = torch.ones(3)\nnet.seen.sum().backward()", id="set anew before"),
        pytest.param("self.seen = x.shape; return self.second(self.first(x))", "net.seen.sum().backward()", id="no weights took part"),
        pytest.param(STORES.replace("self.first(x);", "self.first(x).detach();"), "net.seen.sum().backward()", id="detached"),
        pytest.param(PLAIN, "net.register_forward_hook(lambda m, i, o: kept.append(o.detach()))\nkept[0].backward()", id="a hook detaches"),
        pytest.param(PLAIN, "def hook(m, i, o):\n    print(o.shape)\nnet.register_forward_hook(hook)", id="a hook that prints"),
        pytest.param(
            PLAIN,
            "def make(a):\n    def hook(m, i, o):\n        kept.append(o.detach())\n    return hook\nnet.register_forward_hook(make(1))",
            id="a hook that a function makes",
        ),
    ],
)
def test_nothing_needs_the_graph_later(forward: str, text: str) -> None:
    """What is made a number, detached, or made anew before it is read needs no graph of an earlier pass."""
    assert worst(forward, text) is End.NOWHERE


@pytest.mark.parametrize(
    ("forward", "text"),
    [
        pytest.param(STORES, "net.seen.sum().backward()", id="an attribute"),
        pytest.param(STORES, "net.size().backward()", id="through a method"),
        pytest.param("self.kept.append(self.first(x)); return x", "net.kept[0].backward()", id="a list"),
        pytest.param(PLAIN, "net.register_forward_hook(lambda m, i, o: kept.append(o))\nkept[0].backward()", id="a hook"),
        pytest.param(
            PLAIN,
            "def hook(a, m, i, o):\n    kept.append(o)\nnet.register_forward_hook(partial(hook, 1))\nkept[0].backward()",
            id="a hook with arguments",
        ),
    ],
)
def test_a_later_reading_needs_the_graph(forward: str, text: str) -> None:
    """What a pass stores and later code sends backward needs the graph of that pass."""
    assert worst(forward, text) is End.BACKWARD


def test_an_output_that_the_next_pass_takes_up_needs_its_graph() -> None:
    """A hidden state that the network keeps for its next pass is not let go."""
    forward = "self.seen = self.first(x) if self.seen is None else self.first(x + self.seen); return self.seen"
    assert worst(forward, "def train(x):\n    net(x).sum().backward()") is not End.NOWHERE


def test_a_hook_out_of_sight_may_keep_anything() -> None:
    """A hook that is not found is unseen."""
    assert worst(PLAIN, "net.register_forward_hook(load())") is End.UNSEEN
