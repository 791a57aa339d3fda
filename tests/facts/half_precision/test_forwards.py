"""The forward part of a loop: what the loss is computed from, and what keeps it from autocast."""

from __future__ import annotations

import ast

import pytest

from tests.facts.half_precision.loops import read, stretches
from torchfix.facts.obstacle import Obstacle


def test_the_loss_is_followed_back_to_everything_in_the_loop_that_it_comes_from() -> None:
    """Through names, sums, lists and inner loops; not through what was made before."""
    facts, update = read("""
        out = model(x)
        other = model(y)
        losses = []
        for head in heads:
            losses.append(criterion(out, head))
        total = 0
        total += sum(losses)
        total.backward()
        """)
    texts = {ast.unparse(statement).splitlines()[0] for statement in facts.forwards.feeding(update).statements}
    assert texts == {
        "out = model(x)",
        "losses = []",
        "for head in heads:",
        "losses.append(criterion(out, head))",
        "total = 0",
        "total += sum(losses)",
    }


@pytest.mark.parametrize(
    ("code", "body"),
    [
        pytest.param("model-not-seen", "loss = criterion(unknown(x), y)\nloss.backward()", id="no network"),
        pytest.param("unknown-loss", "loss = library.loss(model(x), y)\nloss.backward()", id="an unknown loss around the network"),
        pytest.param(
            "unknown-loss",
            "if x.any():\n    out = model(x)\n    seen = out\n    loss = library.loss(seen, y)\nelse:\n    loss = criterion(model(x), y)\n"
            "loss.backward()",
            id="an unknown loss behind the network in a branch",
        ),
        pytest.param("bce-loss", "loss = F.binary_cross_entropy(model(x), y)\nloss.backward()", id="probabilities"),
        pytest.param("float64", "loss = criterion(model(x.double()), y)\nloss.backward()", id="float64"),
        pytest.param(
            "no-grad-pass",
            "for k in x:\n    with torch.no_grad():\n        t = model(k).argmax(1)\n    loss = criterion(model(k), t)\nloss.backward()",
            id="passes with and without gradients in one statement",
        ),
    ],
)
def test_what_cannot_run_under_autocast_says_why(code: str, body: str) -> None:
    """The reason is stable, and there are words for it."""
    facts, update = read(body)
    found = facts.forwards.of(update)
    assert isinstance(found, Obstacle), stretches(found)
    assert found.code == code
    assert found.text
    assert found.help
