"""Networks whose weights a program takes out of training for a while."""

from __future__ import annotations

import ast
from textwrap import indent

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.training.freezing import frozen_at

HEAD = """\
import torch
from torch import nn


def switch(net, flag):
    for p in net.parameters():
        p.requires_grad = flag


def freeze(net):
    net.requires_grad_(False)


def thaw(net):
    net.requires_grad_(True)


a, b = nn.Linear(2, 2), nn.Linear(2, 2)
opt = torch.optim.SGD(list(a.parameters()) + list(b.parameters()), lr=1)
"""
OFF = "for p in a.parameters():\n    p.requires_grad = False"
ON = OFF.replace("False", "True")


def line(before: str, inside: str) -> str | None:
    """The line that may freeze ``a`` in a program with these lines before its loop and in it."""
    loop = f"for i, x in enumerate(batches):\n{indent(inside, '    ')}\n    loss = b(a(x)).sum()\n    loss.backward()\n    opt.step()\n"
    facts = facts_of(f"{HEAD}{before}\n{loop}")
    network = next(node for node in facts.tree.names["a"] if isinstance(node.ctx, ast.Load))
    owners = frozenset(item.value for item in facts.models.of(network) or ())
    assert owners
    found = frozen_at(facts.loops.training[0], owners)
    return facts.source.segment(found) if found is not None else None


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        pytest.param("", "pass", id="nothing"),
        pytest.param("", "a.requires_grad_()", id="switched on"),
        pytest.param(OFF.replace("a.", "b."), "pass", id="another network"),
        pytest.param("for p in a.parameters():\n    if p.dim() == 1:\n        p.requires_grad = False", "pass", id="a part of it"),
        pytest.param("", f"{OFF}\n{ON}", id="in turn"),
        pytest.param("", "switch(a, False)\nswitch(a, True)", id="in turn, by a function that is told"),
        pytest.param("", "freeze(a)\nthaw(a)", id="in turn, by two functions"),
        pytest.param("a.weight.requires_grad_(False)", "pass", id="a weight"),
    ],
)
def test_networks_that_train_on(before: str, inside: str) -> None:
    """What is switched off is another network, a part, or this one around the backward pass of another."""
    assert line(before, inside) is None


@pytest.mark.parametrize(
    ("before", "inside", "found"),
    [
        pytest.param("", "a.requires_grad_(i % 2 == 0)", "a.requires_grad_(i % 2 == 0)", id="every second time"),
        pytest.param(OFF, "pass", "p.requires_grad", id="from the beginning"),
        pytest.param("a.requires_grad_(False)", f"if i == 9:\n{indent(ON, '    ')}", "a.requires_grad_(False)", id="at the beginning"),
        pytest.param("freeze(a)", "pass", "net.requires_grad_(False)", id="by a function"),
        pytest.param("", "switch(a, i > 9)", "p.requires_grad", id="by a function that is told a condition"),
    ],
)
def test_networks_that_may_not_train(before: str, inside: str, found: str) -> None:
    """A backward pass may bring no weight of theirs a gradient."""
    assert line(before, inside) == found
