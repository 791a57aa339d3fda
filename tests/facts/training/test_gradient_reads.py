"""What looks at gradients: clipping and ``p.grad``, also in functions and methods of the project that are called."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.training.gradient_reads import reads_gradients

HEAD = """\
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_


class Clipper:
    def __init__(self, net):
        self.net = net

    def clip(self):
        clip_grad_norm_(self.net.parameters(), 1.0)

    def show(self):
        print(self.net)


def clip(net):
    for p in net.parameters():
        p.grad.clamp_(-1, 1)


def around(net):
    clip(net)


net = nn.Linear(2, 2)
clipper = Clipper(net)
"""


def reads(code: str) -> bool:
    """Whether the expression in the last line looks at gradients."""
    facts = facts_of(f"{HEAD}{code}\n")
    return reads_gradients(facts, node(facts, code.splitlines()[-1].removeprefix("del ")))


@pytest.mark.parametrize(
    "code",
    [
        "net.weight.grad.zero_()",
        "net.weight.grad is None",
        "torch.autograd.grad",
        "clipper.show()",
        "elsewhere(net)",
        "net(x)",
        "del net.weight.grad",
    ],
)
def test_code_that_does_not_look_at_gradients(code: str) -> None:
    """Clearing them is no look at them, and neither is asking whether there are any."""
    assert not reads(code)


@pytest.mark.parametrize(
    "code", ["net.weight.grad", "clip_grad_norm_(net.parameters(), 1.0)", "clip(net)", "around(net)", "clipper.clip()"]
)
def test_code_that_looks_at_gradients(code: str) -> None:
    """By itself, in functions one behind the other, or in a method of an object that is known."""
    assert reads(code)


OWN_STEP = """\
import torch


class Own(torch.optim.Optimizer):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data -= p.grad

    def first_step(self):
        self.step()
        print(self.p.grad)


own = Own(net.parameters(), {})
own.step()
own.first_step()
"""


def test_an_optimizers_own_step_is_no_look_at_gradients() -> None:
    """A scaler takes it once they have their true size; a method of another name is one."""
    facts = facts_of(OWN_STEP)
    assert not reads_gradients(facts, node(facts, "own.step()"))
    assert reads_gradients(facts, node(facts, "own.first_step()"))
