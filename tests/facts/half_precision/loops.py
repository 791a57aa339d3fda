"""Training loops for tests of their forward part."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

from tests.facts.reading import facts_of
from torchfix.facts import Facts
from torchfix.facts.half_precision.stretches import Forward
from torchfix.facts.training.updates import Update

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(x)


def penalty(out):
    return (out * out).sum()


model, teacher = Net(), Net()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches:
"""


def read(body: str) -> tuple[Facts, Update]:
    """The update of a loop with this body, behind which the optimizer steps."""
    facts = facts_of(HEAD + indent(dedent(body).strip("\n"), "    ") + "\n    optimizer.step()\n    optimizer.zero_grad()\n")
    (loop,) = facts.loops.training
    update = facts.updates.of(loop)
    assert isinstance(update, Update), update
    return facts, update


def forward(body: str) -> Forward:
    """The forward part of a loop of which it is known."""
    facts, update = read(body)
    found = facts.forwards.of(update)
    assert isinstance(found, Forward), found
    return found


def stretches(found: Forward) -> list[tuple[str, str]]:
    """The first line of the first and last statement of each stretch."""
    return [(ast.unparse(first).splitlines()[0], ast.unparse(last).splitlines()[0]) for first, last in found.regions]
