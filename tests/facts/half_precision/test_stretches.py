"""The stretches of a loop that run under autocast, and what must be float32 again behind them."""

from __future__ import annotations

import ast

import pytest

from tests.facts.half_precision.loops import forward, stretches


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("loss = criterion(model(x), y)\nloss.backward()", [("loss = criterion(model(x), y)",) * 2], id="one statement"),
        pytest.param(
            "out = model(x)\nloss = criterion(out, y)\nloss.backward()", [("out = model(x)", "loss = criterion(out, y)")], id="two"
        ),
        pytest.param(
            "out = model(x)\nprint(x.shape)\nloss = criterion(out, y)\nloss = loss / 2\nloss.backward()",
            [("out = model(x)", "loss = criterion(out, y)")],
            id="across a quiet one, without arithmetic",
        ),
        pytest.param(
            "out = model(x)\nmeter.update(x)\nloss = criterion(out, y)\nloss.backward()",
            [("out = model(x)",) * 2, ("loss = criterion(out, y)",) * 2],
            id="parted by code out of sight",
        ),
        pytest.param("out = model(x)\nloss = penalty(out)\nloss.backward()", [("out = model(x)",) * 2], id="without a loss of the project"),
        pytest.param(
            "w = model.fc.weight @ model.fc.weight\nout = model(x)\nq = x @ x\nloss = criterion(out, y)\nloss.backward()",
            [("out = model(x)",) * 2, ("loss = criterion(out, y)",) * 2],
            id="without products by hand",
        ),
        pytest.param(
            "with torch.no_grad():\n    t = teacher(x).argmax(1)\nloss = criterion(model(x), t)\nloss.backward()",
            [("with torch.no_grad():", "loss = criterion(model(x), t)")],
            id="with another network that is not trained",
        ),
        pytest.param(
            "with torch.no_grad():\n    t = model(x).argmax(1)\nloss = criterion(model(x), t)\nloss.backward()",
            [("with torch.no_grad():",) * 2, ("loss = criterion(model(x), t)",) * 2],
            id="apart from a pass of its own without gradients",
        ),
        pytest.param(
            "if x.any():\n    out = model(x)\nelse:\n    out = model(-x)\nloss = criterion(out, y)\nloss.backward()",
            [("if x.any():", "loss = criterion(out, y)")],
            id="with both branches of a condition",
        ),
        pytest.param(
            "if x.any():\n    share = library.draw()\n    x = library.mix(x, share)\n    out = model(x)\nelse:\n    out = model(-x)\n"
            "loss = criterion(out, y)\nloss.backward()",
            [("if x.any():", "loss = criterion(out, y)")],
            id="with unknown code that prepares the batch in a branch",
        ),
        pytest.param(
            "q = teacher(x)\nstore(q)\nloss = criterion(model(x), y)\nloss.backward()",
            [("loss = criterion(model(x), y)",) * 2],
            id="without networks that the loss does not come from",
        ),
    ],
)
def test_stretches_are_the_smallest_that_hold_networks_and_torchs_losses(body: str, expected: list[tuple[str, str]]) -> None:
    """From the first network's call to the last loss, cut where code must not run under autocast."""
    assert stretches(forward(body)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("out = model(x)\nloss = criterion(out, y)\nloss.backward()", [], id="nothing leaves"),
        pytest.param("out = model(x)\nloss = penalty(out)\nloss.backward()", ["model(x)"], id="a loss of the project"),
        pytest.param("loss = (model(x) - y).pow(2).mean()\nloss.backward()", ["model(x)"], id="a loss by hand around the network"),
        pytest.param("loss = -model(x).mean()\nloss.backward()", ["model(x)"], id="a mean that goes backward"),
        pytest.param(
            "a, b = model(x)\nloss = criterion(a, y)\nkept.append(b.exp())\nloss.backward()", ["model(x)"], id="a tensor unpacked"
        ),
    ],
)
def test_results_that_leave_are_converted_where_they_are_made(body: str, expected: list[str]) -> None:
    """The calls whose results must be float32 again."""
    assert [ast.unparse(item) for item in forward(body).restored] == expected


def test_a_loss_that_is_sent_at_once_belongs_under_autocast() -> None:
    """Unless a conversion has made everything float32 before."""
    assert forward("criterion(model(x), y).backward()").inline
    assert forward("out = model(x)\ncriterion(out, y).backward()").inline
    assert not forward("out = model(x)\npenalty(out).backward()").inline
    assert not forward("loss = criterion(model(x), y)\n(loss / 2).backward()").inline
