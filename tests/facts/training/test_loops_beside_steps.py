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
    """What surrounds the calls of a file's step."""
    facts = facts_of(text)
    (step,) = facts.loops.step_functions.values()
    return facts.loops.beside(step)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(PROGRAM + "    optimizer.step()\n", "line 19 of train.py steps", id="a second step"),
        pytest.param(PROGRAM + "    model(x).sum().backward()\n", "goes backward", id="more gradients"),
        pytest.param(PROGRAM + "    nn.utils.clip_grad_norm_(weights, 1)\n", "line 19 of train.py reads gradients", id="a clip"),
        pytest.param(PROGRAM.replace("return loss", "yield loss"), "pauses", id="a generator"),
        pytest.param(
            PROGRAM.replace("StepLR(optimizer, 3)", "OneCycleLR(optimizer, 0.1, total_steps=9)") + "    schedule.step()\n",
            "line 19 of train.py steps",
            id="a schedule that counts the steps",
        ),
    ],
)
def test_what_a_scaler_must_not_meet_is_named(text: str, words: str) -> None:
    """With the function, and the line beside it."""
    found = obstacle(text)
    assert found is not None and found.code == "backward-elsewhere"
    assert words in found.text and "learn (line 9 of train.py)" in found.text


def test_a_loop_that_only_calls_its_step_is_free() -> None:
    """A schedule of epochs may move there."""
    assert obstacle(PROGRAM + "    schedule.step()\n") is None


SECOND = "\n\nfor x in more:\n    learn(x)\n"
OUTER = "for e in epochs:\n    for x in batches:\n        learn(x)\n    optimizer.step()"
THROUGH = "\n\ndef run(x):\n    learn(x)\n\n\nfor x in more:\n    run(x)\n"


@pytest.mark.parametrize("first", [True, False], ids=["the first loop is free", "the last loop is free"])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("optimizer.step()", "steps beside", id="a second step"),
        pytest.param("nn.utils.clip_grad_norm_(weights, 1)", "reads gradients beside", id="a clip"),
        pytest.param("model(x).sum().backward()", "goes backward beside", id="more gradients"),
    ],
)
def test_every_loop_that_calls_it_counts(first: bool, line: str, words: str) -> None:
    """Whichever of them disturbs the step."""
    text = PROGRAM + SECOND + f"    {line}\n" if first else PROGRAM + f"    {line}\n" + SECOND
    found = obstacle(text)
    assert found is not None and words in found.text and f"line {23 if first else 19} of train.py" in found.text


def test_loops_that_call_it_through_a_function_count() -> None:
    """What that function does counts too, and a loop around the loop."""
    assert obstacle(PROGRAM + THROUGH) is None
    for text in (
        PROGRAM + THROUGH + "    optimizer.step()\n",
        PROGRAM + THROUGH.replace("    learn(x)\n", "    learn(x)\n    optimizer.step()\n"),
        PROGRAM.replace("for x in batches:\n    learn(x)", OUTER),
        PROGRAM + "\n\nlearn(x)\noptimizer.step()\n",
    ):
        found = obstacle(text)
        assert found is not None and "steps beside learn" in found.text


def test_a_loop_in_another_file_counts() -> None:
    """The words name that file."""
    second = "from train import learn, optimizer\n\nfor x in more:\n    learn(x)\n    optimizer.step()\n"
    facts = facts_of(PROGRAM, modules={"second.py": second})
    (step,) = facts.loops.step_functions.values()
    found = facts.loops.beside(step)
    assert found is not None and "line 5 of second.py steps beside learn (line 9 of train.py)" in found.text


def test_callers_out_of_sight_are_an_obstacle() -> None:
    """They may do anything between two steps."""
    found = obstacle(PROGRAM + "\nregister(learn)\n")
    assert found is not None and "learn (line 9 of train.py), which trains, may have callers that are not seen" in found.text
