"""Owners of parameters: the networks behind what an optimizer is given."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.training.owners import parameter_owners

TEXT = """\
from torch import nn

a = nn.Linear(2, 2)
b = nn.Linear(2, 2)
mine = list(a.parameters())
mine = mine + list(b.parameters())
take({})
"""


@pytest.mark.parametrize(
    ("given", "count"),
    [
        pytest.param("a.parameters()", 1, id="of one network"),
        pytest.param("[*a.parameters(), *b.parameters()]", 2, id="of two in a list"),
        pytest.param("[{'params': a.parameters()}, {'params': b.parameters()}]", 2, id="of two in groups"),
        pytest.param("c.parameters()", None, id="of something out of sight"),
        pytest.param("[x]", None, id="of nothing"),
    ],
)
def test_the_networks_behind_parameters_are_listed(given: str, count: int | None) -> None:
    """None where one of them is not known."""
    facts = facts_of(TEXT.format(given))
    call = facts.tree.calls["take"][0]
    assert isinstance(call.args[0], ast.expr)
    owners = parameter_owners(facts, call.args[0])
    assert (None if owners is None else len(owners)) == count


CONFIGURED = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def configure(self, rate):
        named = {name: item for name, item in self.named_parameters()}
        return torch.optim.SGD([named[name] for name in sorted(named)], lr=rate)


class Trainer:
    def __init__(self, net):
        self.net = net
        self.net = self.net.to("cpu")
        self.optimizer = None

    def run(self):
        net = self.net
        self.optimizer = net.configure(0.1)
        self.optimizer.step()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)


Trainer(Net()).run()
"""


@pytest.mark.parametrize(
    ("text", "same"),
    [
        pytest.param(CONFIGURED, True, id="one call of the method"),
        pytest.param(CONFIGURED + "Net().configure(0.2)\n", False, id="two networks that call it"),
        pytest.param(CONFIGURED + "makers = [Net.configure]\n", False, id="handed on as a value"),
    ],
)
def test_a_network_that_makes_its_own_optimizer_owns_what_it_gives_it(text: str, same: bool) -> None:
    """``self`` is the network of the only call; which of several it is would be a guess."""
    facts = facts_of(text)
    (clip,) = facts.tree.calls["clip_grad_norm_"]
    clipped = parameter_owners(facts, clip.args[0])
    (step,) = facts.tree.calls["step"]
    assert isinstance(step.func, ast.Attribute)
    optimizers = facts.optimizers.of(step.func.value)
    assert clipped is not None
    assert (optimizers is not None and optimizers[0].owners == clipped) is same
