"""Optimizers inside objects of the project: the method that steps one, and what keeps a scaler from taking that step."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts import Facts
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.wrapped_optimizers import WrappedStep

SCHEDULED = """\
import torch


class Scheduled:
    def __init__(self, optimizer, warmup=4):
        self._optimizer = optimizer
        self.warmup = warmup
        self.count = 0

    def advance(self):
        self._set_rate()
        self._optimizer.step()

    def _set_rate(self):
        self.count += 1
        for group in self._optimizer.param_groups:
            group["lr"] = 0.1 * min(self.count**-0.5, self.count * self.warmup**-1.5)

    def zero_grad(self):
        self._optimizer.zero_grad()
"""
TRAINING = """\
import torch
from torch import nn

from scheduled import Scheduled

net = nn.Linear(2, 2)
optimizer = Scheduled(torch.optim.Adam(net.parameters()))
for x in batches:
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.advance()
"""


def facts_around(scheduled: str = SCHEDULED, training: str = TRAINING, **others: str) -> Facts:
    """The facts of the training script."""
    return facts_of(training, modules={"scheduled.py": scheduled, **{f"{name}.py": text for name, text in others.items()}})


def step(scheduled: str = SCHEDULED, training: str = TRAINING) -> WrappedStep | None:
    """The step of the last call in the training script."""
    facts = facts_around(scheduled, training)
    last = facts.source.tree.body[-1]
    calls = [item for item in ast.walk(last) if isinstance(item, ast.Call)]
    return facts.wrapped_optimizers.step(max(calls, key=lambda item: (item.lineno, -item.col_offset)))


def obstacle(scheduled: str = SCHEDULED, training: str = TRAINING, **others: str) -> Obstacle | None:
    """What keeps a scaler from the step of the training loop."""
    facts = facts_around(scheduled, training, **others)
    (loop,) = facts.loops.training
    (call,) = loop.steps
    return facts.wrapped_optimizers.obstacle(loop, call)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Scheduled:", "class Scheduled(torch.optim.Optimizer):"),
        ("class Scheduled:", "class Scheduled(torch.optim.lr_scheduler.LRScheduler):"),
        ("self._optimizer.step()", "self.schedule.step()"),
        ("self._optimizer.step()", "pass"),
        ("self._optimizer = optimizer", "self._optimizer = make(optimizer)"),
        ("def advance(self)", "def other(self)"),
    ],
)
def test_what_steps_no_optimizer_that_it_surely_holds_is_none(old: str, new: str) -> None:
    """An optimizer or a schedule by its class, one that cannot be followed, or another method."""
    assert step(SCHEDULED.replace(old, new)) is None


@pytest.mark.parametrize("made", ["elsewhere()", "Scheduled(elsewhere())", "torch.optim.Adam(net.parameters())"])
def test_an_object_that_is_not_known_to_hold_an_optimizer_is_none(made: str) -> None:
    """What made it, or what it was given, is out of sight; or it is an optimizer itself."""
    assert step(training=TRAINING.replace("Scheduled(torch.optim.Adam(net.parameters()))", made)) is None


def test_a_method_that_steps_what_the_object_was_given() -> None:
    """The optimizer is the one that this object's constructor was called with."""
    found = step()
    assert found is not None
    assert (found.method.name, found.attribute, [item.kind for item in found.optimizers]) == ("advance", "_optimizer", ["torch.optim.Adam"])
    assert found.words == "advance (line 10 of scheduled.py)"


def test_a_method_that_steps_what_the_object_made_itself() -> None:
    """The optimizer's own parameters are those of the network that the constructor was given."""
    found = step(
        SCHEDULED.replace("= optimizer\n", "= torch.optim.SGD(optimizer.parameters(), lr=0.1)\n"),
        TRAINING.replace("torch.optim.Adam(net.parameters())", "net"),
    )
    assert found is not None
    (optimizer,) = found.optimizers
    assert optimizer.kind == "torch.optim.SGD"
    assert optimizer.owners is not None


def test_a_step_that_a_scaler_takes_in_the_method_is_one_too() -> None:
    """As it is written once the rule has been there."""
    found = step(
        SCHEDULED.replace("(self):\n        self._set", "(self, scaler):\n        self._set").replace(
            "self._optimizer.step()", "scaler.step(self._optimizer)"
        )
    )
    assert found is not None
    assert found.attribute == "_optimizer"


def test_the_loop_trains_and_its_step_moves_the_optimizer_inside() -> None:
    """The code around the step knows it through the object."""
    facts = facts_around()
    (loop,) = facts.loops.training
    (call,) = loop.steps
    assert [item.kind for item in facts.optimizers.moved_by(call) or ()] == ["torch.optim.Adam"]
    assert facts.optimizers.name_of(call) == "optimizer._optimizer"
    assert facts.loops.indirect == {}


def test_one_plain_step_has_no_obstacle() -> None:
    """Setting the rate before it, also in a method of its own, is none."""
    assert obstacle() is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("        self._optimizer.step()", "        if self.count % 2:\n            self._optimizer.step()", "only under a condition"),
        (
            "        self._optimizer.step()",
            "        if self.count < 2:\n            return\n        self._optimizer.step()",
            "only under a condition",
        ),
        ("        self._optimizer.step()", "        self._optimizer.step()\n        self._optimizer.step()", "more than once"),
        ("        self._optimizer.step()", "        return self._optimizer.step()", "does more with its step"),
        ("        self._optimizer.step()", "        self._optimizer.step(closure)", "does more with its step"),
        (
            "        self._set_rate()\n",
            "        self._set_rate()\n        torch.nn.utils.clip_grad_norm_(self.p, 1.0)\n",
            "looks at gradients",
        ),
        ("self.count += 1", "print(self.p.grad)", "looks at gradients"),
        ("        self._set_rate()\n", "        self._optimizer.zero_grad()\n", "clears gradients before"),
        ("def advance(self)", "def advance(self, *lists)", "no plain method"),
        ("    def advance(self)", "    @cached\n    def advance(self)", "no plain method"),
    ],
)
def test_a_method_that_does_more_than_to_step(old: str, new: str, words: str) -> None:
    """The words name the method, its line and its file."""
    found = obstacle(SCHEDULED.replace(old, new))
    assert found is not None
    assert found.code == "step-elsewhere"
    assert words in found.text
    assert "of scheduled.py)" in found.text


def test_a_method_that_other_code_calls_too() -> None:
    """That code would hand it no scaler."""
    other = "from train import optimizer\n\noptimizer.advance()\n"
    found = obstacle(other=other, training=TRAINING + "\n\ndef more(rounds):\n    optimizer.advance()\n")
    assert found is not None
    assert "is also called on line 15 of train.py" in found.text


def test_a_method_whose_name_something_unknown_has_too() -> None:
    """It may be the same one."""
    found = obstacle(training=TRAINING + "\n\ndef more(thing):\n    thing.advance()\n")
    assert found is not None
    assert "may have callers that are not seen" in found.text


@pytest.mark.parametrize(
    ("body", "moves"), [("self._set_rate()", True), ('self._optimizer.param_groups[0]["lr"] = 1', True), ("self.count += 1", False)]
)
def test_whether_the_method_moves_the_learning_rate(body: str, moves: bool) -> None:
    """By itself or in a method of the same object."""
    found = step(SCHEDULED.replace("        self._set_rate()\n", f"        {body}\n"))
    assert found is not None
    assert found.moves_rate is moves
