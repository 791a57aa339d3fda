"""Steps outside of a training loop that may use the gradients which the loop left."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.training.leftovers import left_to_others

HEAD = """\
import torch
from torch import nn

net = nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=1)
{before}
for i, x in enumerate(batches):
    net(x).sum().backward()
    if i % 4 == 3:
        opt.step()
        opt.zero_grad()
{behind}
"""


def step_outside(before: str = "", behind: str = "", main: str | None = None) -> str | None:
    """What is said of the first training loop."""
    modules = {"main.py": main} if main is not None else None
    facts = facts_of(HEAD.format(before=before, behind=behind), modules=modules)
    obstacle = left_to_others(facts.loops.training[0])
    return obstacle.text if obstacle is not None else None


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        pytest.param("", "", id="none"),
        pytest.param("opt.step()", "", id="before any gradient"),
        pytest.param("", "opt.zero_grad()\nnet(y).sum().backward()\nopt.step()", id="of gradients of its own"),
        pytest.param("", "other = torch.optim.SGD(net.parameters(), lr=1)\nother.step()", id="of another optimizer"),
        pytest.param("", "scheduler = torch.optim.lr_scheduler.StepLR(opt, 1)\nscheduler.step()", id="of a schedule"),
        pytest.param("", "for x in batches:\n    opt.zero_grad()\n    net(x).sum().backward()\n    opt.step()", id="of another loop"),
    ],
)
def test_a_step_that_the_loop_left_nothing_for_is_no_concern(before: str, behind: str) -> None:
    """It runs before the loop, has gradients of its own, or moves something else."""
    assert step_outside(before, behind) is None


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param("opt.step()\nopt.zero_grad()", id="for the rest of a window"),
        pytest.param("if i % 4 != 3:\n    opt.step()", id="under a condition"),
        pytest.param("def finish():\n    opt.step()\n\n\nfinish()", id="in a function"),
    ],
)
def test_a_step_behind_the_loop_may_use_what_it_left(behind: str) -> None:
    """A scaler would have scaled those gradients, and the step would not divide them."""
    words = step_outside(behind=behind)
    assert words is not None
    assert words.startswith("train.py:")


def test_a_step_in_another_file_may_use_what_the_loop_left() -> None:
    """The optimizer is one of this file."""
    words = step_outside(main="import train\n\ntrain.opt.step()\n")
    assert words is not None
    assert words.startswith("main.py:3 ")


AROUND = """\
import torch
from torch import nn

net = nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=1)
for epoch in range(9):
    opt.step()
    for x in batches:
        net(x).sum().backward()
        opt.step()
        opt.zero_grad()
"""


def test_a_step_of_the_loop_around_comes_after_the_loop_too() -> None:
    """The next round of the loop around brings it."""
    obstacle = left_to_others(facts_of(AROUND).loops.training[0])
    assert obstacle is not None
    assert obstacle.text.startswith("train.py:7 ")
