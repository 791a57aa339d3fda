"""How training that Apex scales is read: its branches, its steps, and who reads gradients."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.apex.training import ScaledTraining, trainings_of
from torchfix.facts.apex.uses import uses_of
from torchfix.facts.obstacle import Obstacle

LOOP = """\
import torch
from apex import amp

def train(model, optimizer, loader, fp16):
    for x in loader:
        loss = model(x)
        if fp16:
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1)
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        optimizer.zero_grad()
"""


def read(text: str) -> list[ScaledTraining] | Obstacle:
    """What is read of a file without a guard around what initializes Apex."""
    facts = facts_of(text)
    return trainings_of(facts, uses_of(facts), None)


def one(text: str) -> ScaledTraining:
    """The only training of a file."""
    found = read(text)
    assert not isinstance(found, Obstacle) and len(found) == 1
    return found[0]


def test_branches_that_say_the_same() -> None:
    """The one without Apex is kept, and its clipping is what wants true gradients."""
    training = one(LOOP)
    (piece,), (step,) = training.pieces, training.steps
    assert isinstance(piece.statement, ast.If)
    assert [ast.unparse(item) for item in piece.kept] == ["loss.backward()", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1)"]
    assert step.reader is piece.kept[1] and step.closes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("loss.backward()\n", "(2 * loss).backward()\n", id="another loss"),
        pytest.param("            loss.backward()\n", "            loss.backward(retain_graph=True)\n", id="another argument"),
        pytest.param("model.parameters(), 1)", "model.parameters(), 2)", id="another norm"),
    ],
)
def test_branches_that_differ_are_two(old: str, new: str) -> None:
    """Then the plain backward pass must be under the condition that initializes Apex."""
    found = read(LOOP.replace(old, new))
    assert isinstance(found, Obstacle) and found.code == "unscaled-backward"


def test_a_function_that_trains_once_for_each_call() -> None:
    """It is read like a loop's body."""
    text = LOOP.replace("    for x in loader:\n", "    if True:\n        x = loader\n")
    assert isinstance(one(text).loop.node, ast.FunctionDef)


def test_several_losses_of_one_optimizer() -> None:
    """One step takes the gradients of both."""
    second = "        with amp.scale_loss(other, optimizer) as scaled:\n            scaled.backward()\n        optimizer.step()"
    training = one(LOOP.replace("loss = model(x)", "loss, other = model(x)").replace("        optimizer.step()", second))
    assert len(training.pieces) == 2 and len(training.steps) == 1


def test_a_loss_that_only_another_function_steps_for() -> None:
    """There is nothing to read."""
    found = read(LOOP.replace("        optimizer.step()\n", "        learn(optimizer)\n"))
    assert isinstance(found, Obstacle) and found.code == "step-elsewhere"
