"""Loops with a step function: what a loop does beside the function that is its training step."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.obstacle import Obstacle

PROGRAM = """\
import torch
from torch import nn

model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)


def learn(x):
    optimizer.zero_grad()
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    return loss


for x in batches:
    learn(x)
"""


def obstacle(text: str) -> Obstacle | None:
    """What surrounds the step of the last loop of a file."""
    facts = facts_of(text)
    (step,) = facts.loops.step_functions.values()
    return facts.loops.beside(facts.tree.loops[-1], step)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(PROGRAM + "    optimizer.step()\n", "line 19 steps", id="a second step"),
        pytest.param(PROGRAM + "    model(x).sum().backward()\n", "goes backward", id="more gradients"),
        pytest.param(PROGRAM + "    nn.utils.clip_grad_norm_(weights, 1)\n", "line 19 reads gradients", id="a clip"),
        pytest.param(PROGRAM.replace("return loss", "yield loss"), "pauses", id="a generator"),
        pytest.param(
            PROGRAM.replace("StepLR(optimizer, 3)", "OneCycleLR(optimizer, 0.1, total_steps=9)") + "    schedule.step()\n",
            "line 19 steps",
            id="a schedule that counts the steps",
        ),
    ],
)
def test_what_a_scaler_must_not_meet_is_named(text: str, words: str) -> None:
    """With the function, and the line beside it."""
    found = obstacle(text)
    assert found is not None and found.code == "backward-elsewhere"
    assert words in found.text and "learn (line 9)" in found.text


def test_a_loop_that_only_calls_its_step_is_free() -> None:
    """A schedule of epochs may move there."""
    assert obstacle(PROGRAM + "    schedule.step()\n") is None
