"""Functions that run networks for a loop: which these are, and where what is made beside the optimizer reaches them."""

from __future__ import annotations

from textwrap import dedent, indent

from tests.facts.reading import facts_of
from torchfix.facts.half_precision.stretches import Forward
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.updates import Update

HEAD = """\
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Linear(2, 2)
        self.other = nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

"""


def delegated(methods: str, body: str) -> Forward | Obstacle:
    """The forward part of a loop with this body, in a class with these methods."""
    loop = f"def fit(self):\n    for x, y in batches:\n{indent(dedent(body).strip(), '        ')}\n"
    step = "        self.optimizer.step()\n        self.optimizer.zero_grad()\n"
    facts = facts_of(HEAD + indent(dedent(methods).strip() + "\n\n" + loop + step, "    "))
    (training,) = facts.loops.training
    update = facts.updates.of(training)
    assert isinstance(update, Update), update
    return facts.forwards.of(update)


def names(found: Forward | Obstacle) -> list[str]:
    assert isinstance(found, Forward), found
    return [function.name for function, _ in found.within]


METHODS = """
def unused(self, x):
    return self.other(x)

def predict(self, x):
    return self.model(x)

def loss(self, x, y):
    return (self.predict(x) - y).abs().mean()

def forward(self, x):
    self.out = self.model(x)

def backward_loss(self, y):
    self.value = (self.out - y).abs().mean()
"""


def test_what_the_loss_does_not_come_from_is_none_of_them() -> None:
    """Only the function that runs the network on the way to the loss has a region."""
    found = delegated(METHODS, "loss = self.loss(x, y)\nself.unused(x)\nloss.backward()")
    assert names(found) == ["predict"]


def test_what_a_method_stores_is_followed_to_the_loss() -> None:
    """Through an attribute that the loss is computed from, and through one that is the loss."""
    assert names(delegated(METHODS, "self.forward(x)\nself.unused(x)\n(self.out - y).abs().mean().backward()")) == ["forward"]
    assert names(delegated(METHODS, "self.forward(x)\nself.backward_loss(y)\nself.value.backward()")) == ["forward"]


def test_the_networks_are_those_of_all_functions() -> None:
    """DataParallel in any of them decides for all."""
    found = delegated(METHODS, "(self.unused(x) + self.predict(x)).sum().backward()")
    assert isinstance(found, Forward) and names(found) == ["unused", "predict"]
    assert len(found.networks) == 2


def test_a_loop_that_runs_its_network_itself_has_none() -> None:
    """What it hands on is judged where it is handed on."""
    assert names(delegated(METHODS, "(self.model(x) - y).abs().mean().backward()")) == []


def test_an_obstacle_names_the_function() -> None:
    """With its line and file."""
    found = delegated("def loss(self, x, y):\n    yield self.model(x)", "loss = self.loss(x, y)\nloss.backward()")
    assert isinstance(found, Obstacle) and found.code == "forward-elsewhere" and "loss (line 11 of " in found.text
