"""How training loops update: the one backward pass, the one step, and the first reader of gradients between them."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.updates import Update

HEAD = """\
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_


def clip(parameters):
    for p in parameters:
        p.grad.clamp_(-1, 1)


def show(model):
    print(sum(p.sum() for p in model.parameters()))


model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
for x in batches:
"""


def update(body: str) -> Update | Obstacle:
    """The update of a loop with this body."""
    facts = facts_of(HEAD + indent(dedent(body).strip("\n"), "    ") + "\n")
    (loop,) = facts.loops.training
    return facts.updates.of(loop)


def read(body: str) -> Update:
    """The update of a loop that is of the plain kind."""
    found = update(body)
    assert isinstance(found, Update), found
    return found


def test_the_loss_is_what_goes_backward_and_the_optimizer_is_what_steps() -> None:
    """Whatever they are called."""
    found = read("cost = model(x).sum()\n(cost / 2).backward()\noptimizer.step()\noptimizer.zero_grad()")
    (sent,), (step,) = found.sent, found.steps
    assert ast.unparse(sent.loss) == "cost / 2"
    assert ast.unparse(step.optimizer) == "optimizer"
    assert [item.kind for item in found.optimizers] == ["torch.optim.SGD"]
    assert found.closing == (step.statement,)
    assert step.reader is None
    assert not found.counted


@pytest.mark.parametrize(
    ("between", "reader"),
    [
        pytest.param("", None, id="nothing"),
        pytest.param("show(model)", None, id="a function that reads no gradients"),
        pytest.param("for p in model.parameters():\n    p.grad = p.grad", "for p in", id="gradients that are read to be set"),
        pytest.param("clip_grad_norm_(model.parameters(), 1)", "clip_grad", id="clipping"),
        pytest.param("clip_grad_norm_([p for g in optimizer.param_groups for p in g['params']], 1)", "clip_grad", id="clipping the groups"),
        pytest.param("if x.any():\n    clip_grad_norm_(model.parameters(), 1)", "if x.any()", id="clipping under a condition"),
        pytest.param("clip(model.parameters())", "clip(", id="a function that clips"),
        pytest.param("n = model.weight.grad.norm()\nclip(model.parameters())", "n = ", id="the first of two"),
        pytest.param("for name, p in model.named_parameters():\n    print(name, p.grad.norm())", "for name", id="a loop that prints them"),
        pytest.param("for p in model.parameters():\n    if p.grad is None:\n        print(p)", None, id="asking whether there is one"),
    ],
)
def test_the_first_reader_is_a_statement_beside_the_step(between: str, reader: str | None) -> None:
    """The place where gradients must have their true size."""
    found = read(f"loss = model(x).sum()\nloss.backward()\n{between}\noptimizer.step()\noptimizer.zero_grad()")
    first = found.steps[0].reader
    text = ast.unparse(first) if first is not None else None
    assert text is None if reader is None else text is not None and text.startswith(reader)


def test_a_schedule_that_counts_its_steps_is_told() -> None:
    """When it moves behind the step, in the same block."""
    found = read("model(x).sum().backward()\noptimizer.step()\noptimizer.zero_grad()\nschedule.step()")
    ((moved, closing),) = found.counted
    assert ast.unparse(moved) == "schedule.step()"
    assert closing is found.steps[0].statement
    assert not read("schedule.step()\nmodel(x).sum().backward()\noptimizer.step()\noptimizer.zero_grad()").counted


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("with context():\n    loss.backward()\noptimizer.step()\noptimizer.zero_grad()", id="under a context"),
        pytest.param("loss.backward()\nif last:\n    optimizer.step()\n    optimizer.zero_grad()", id="accumulating"),
        pytest.param("for part in x:\n    part.sum().backward()\noptimizer.step()\noptimizer.zero_grad()", id="accumulating in a loop"),
    ],
)
def test_a_backward_pass_before_each_step_is_enough(body: str) -> None:
    """It may stand under a context or in a loop of micro-batches."""
    read(body)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        pytest.param(
            "conditional-backward", "if good:\n    loss.backward()\noptimizer.step()\noptimizer.zero_grad()", id="under a condition"
        ),
        pytest.param("conditional-backward", "optimizer.step()\nloss.backward()\noptimizer.zero_grad()", id="behind the step"),
        pytest.param("gradients-kept", "a.backward()\noptimizer.step()\nb.backward()", id="a loss for the next step"),
        pytest.param("double-backward", "loss.backward(create_graph=True)\noptimizer.step()\noptimizer.zero_grad()", id="second order"),
        pytest.param(
            "gradients-out-of-sight", "loss.backward()\ntools.fix(model)\noptimizer.step()\noptimizer.zero_grad()", id="out of sight"
        ),
        pytest.param("clip-parameters", "loss.backward()\nclip_grad_norm_(other, 1)\noptimizer.step()\noptimizer.zero_grad()", id="others"),
    ],
)
def test_other_kinds_of_update_say_why(code: str, body: str) -> None:
    """The reason is stable, and there are words for it."""
    found = update(body)
    assert isinstance(found, Obstacle)
    assert found.code == code
    assert found.text
    assert found.help
