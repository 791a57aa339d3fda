"""Which statements belong under autocast where the network is out of sight."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.apex.training import trainings_of
from torchfix.facts.apex.uses import uses_of
from torchfix.facts.obstacle import Obstacle

BRANCHES = """\
from apex import amp

def train(model, optimizer, loader, fp16):
    for batch in loader:
        if fp16:
            loss = model(batch)
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
        else:
            loss = model(batch)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for again in batch:
            with amp.scale_loss(model(again) + loss, optimizer) as scaled:
                scaled.backward()
            optimizer.step()
"""
LOOP = """\
from apex import amp
import torch

def train(model, optimizer, loader, teacher):
    for batch in loader:
{body}
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def regions(body: str) -> list[list[str]] | str:
    """The first and last statement of each region, or why there is none."""
    facts = facts_of(LOOP.format(body="\n".join(f"        {line}" for line in body.splitlines())))
    found = trainings_of(facts, uses_of(facts), None)
    if isinstance(found, Obstacle):
        return found.code
    return [[ast.unparse(first).partition("\n")[0], ast.unparse(last).partition("\n")[0]] for first, last in found[0].regions]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("loss = model(batch)", [["loss = model(batch)"] * 2], id="one statement"),
        pytest.param(
            "x = batch[0].cuda()\nloss = model(x)\nloss = loss / 2", [["loss = model(x)"] * 2], id="moving and dividing stay outside"
        ),
        pytest.param("out = model(batch)\nprint(out)\nloss = f(out)", [["out = model(batch)", "loss = f(out)"]], id="what comes between"),
        pytest.param(
            "with torch.no_grad():\n    t = model(batch)\nloss = model(batch, t)",
            [["with torch.no_grad():"] * 2, ["loss = model(batch, t)"] * 2],
            id="a pass without gradients stands alone",
        ),
        pytest.param(
            "batch = prepare(batch)\nout = run(batch, model)\nloss = criterion(out)\nmodel.train()",
            [["out = run(batch, model)", "loss = criterion(out)"]],
            id="functions count where they are given a network",
        ),
        pytest.param(
            "batch = prepare(batch)\nloss = model.compute(batch)\nmodel.train()", [["loss = model.compute(batch)"] * 2], id="methods"
        ),
        pytest.param(
            "x = prepare(batch)\nloss = run(x, model)", [["x = prepare(batch)", "loss = run(x, model)"]], id="no network is in sight"
        ),
        pytest.param("loss = batch.mean()", "forward-elsewhere", id="nothing that computes"),
        pytest.param(
            "for b in batch:\n    with torch.no_grad():\n        t = model(b)\n    loss = model(b, t)",
            "no-grad-pass",
            id="both in one statement",
        ),
        pytest.param(
            "if train:\n    loss = model(batch)\nelse:\n    with torch.no_grad():\n        loss = model(batch)",
            [["if train:"] * 2],
            id="in two branches",
        ),
    ],
)
def test_regions(body: str, expected: object) -> None:
    """All that computes the loss, and no more at its ends."""
    assert regions(body) == expected


def test_branches_that_compute_their_losses_apart() -> None:
    """The one with Apex has a region; the one without is left as it is."""
    facts = facts_of(BRANCHES.replace("model(again) + loss", "loss"))
    found = trainings_of(facts, uses_of(facts), ast.Name("fp16", ast.Load()))
    assert not isinstance(found, Obstacle) and len(found) == 1
    assert [(first.lineno, last.lineno) for first, last in found[0].regions] == [(6, 6)]
    assert [step.closes for step in found[0].steps] == [True, True]
