"""Probabilities that losses are given: the sigmoids that make them, and who else reads them."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.half_precision.probabilities import Logits, logits_of, losses, operand
from torchfix.facts.obstacle import Obstacle

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"


def logits(text: str) -> Logits | Obstacle:
    """What makes the first loss of a snippet see logits."""
    facts = facts_of(HEAD + text)
    return logits_of(facts, next(losses(facts)))


def test_what_no_sigmoid_makes_is_an_obstacle() -> None:
    """The place is named."""
    found = logits("loss = F.binary_cross_entropy(p.softmax(1), t)\n")
    assert isinstance(found, Obstacle)
    assert found.text.startswith("train.py:5:")


@pytest.mark.parametrize("text", ["torch.sigmoid(z)", "F.sigmoid(z)", "z.sigmoid()", "nn.Sigmoid()(z)", "torch.sigmoid(input=z)"])
def test_sigmoids(text: str) -> None:
    """All spellings of a sigmoid are known."""
    facts = facts_of(f"{HEAD}z = torch.ones(2)\np = {text}\n")
    inner = operand(facts, node(facts, text))
    assert inner is not None
    assert facts.source.segment(inner) == "z"


@pytest.mark.parametrize("text", ["torch.tanh(z)", "z", "torch.sigmoid(*z)", "torch.sigmoid(z, out=p)", "z.sigmoid_()"])
def test_other_calls(text: str) -> None:
    """What is no plain sigmoid has no operand."""
    facts = facts_of(f"{HEAD}z = torch.ones(2)\np = {text}\n")
    assert operand(facts, node(facts, text, 1 if text == "z" else 0)) is None


def test_the_readers_of_a_network_are_found_and_sizes_are_not_read() -> None:
    """The last layer goes, the threshold is a reader, the shape is none."""
    network = "net = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())\n"
    found = logits(network + "c = nn.BCELoss()\np = net(x)\nloss = c(p.view(-1), t)\nprint(p.shape, p > 0.5)\n")
    assert isinstance(found, Logits)
    assert len(found.layers) == 1
    assert not found.sigmoids
    assert [(facts.source.segment(place), place.lineno) for facts, place in found.readers] == [("p", 9)]


def test_losses_of_the_same_probabilities_join() -> None:
    """Whichever is asked about, both change."""
    text = "p = torch.sigmoid(z)\na = F.binary_cross_entropy(p, t)\nq = p.view(-1)\nb = nn.BCELoss()(q, t)\n"
    found = logits(text)
    assert isinstance(found, Logits)
    assert len(found.losses) == 2


def test_a_part_of_what_a_network_gives_is_followed_alone() -> None:
    """The variable that takes the part is one of logits; the other parts are what they were."""
    text = """
class Net(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x), x

net = Net()
p, raw = net(x)
loss = F.binary_cross_entropy(p, t)
q, other = net(y)
print(q, raw, other)
"""
    found = logits(text)
    assert isinstance(found, Logits)
    assert len(found.sigmoids) == 1
    assert [facts.source.segment(place) for facts, place in found.readers] == ["q"]


def test_a_view_that_is_written_ties_the_output() -> None:
    """The numbers of the output itself would no longer change."""
    found = logits("p = torch.sigmoid(z)\nloss = F.binary_cross_entropy(p, t)\np[0].mul_(2)\n")
    assert isinstance(found, Obstacle)
    assert found.code == "tied-to-the-output"
