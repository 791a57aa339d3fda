"""The forward part of a loop: what the loss is computed from, and which stretches of it run under autocast."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

import pytest

from tests.facts.reading import facts_of
from torchfix.facts import Facts
from torchfix.facts.half_precision.forwards import Forward
from torchfix.facts.obstacle import Obstacle
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
    return [(ast.unparse(first).splitlines()[0], ast.unparse(last).splitlines()[0]) for first, last in found.regions]


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


def converted(stored: str) -> list[str]:
    """What is converted back of a network's result that a method stores, its class using it in some way."""
    text = (
        "import torch\nfrom torch import nn\n\n\nclass T:\n"
        "    def __init__(self):\n        self.net = nn.ModuleList([nn.Linear(2, 2)])\n\n"
        f"    def forward(self, x):\n        self.out = self.net(x)\n\n    def loss(self, y):\n        {stored}\n"
    )
    facts = facts_of(text)
    (function,) = [item for item in ast.walk(facts.source.tree) if isinstance(item, ast.FunctionDef) and item.name == "forward"]
    found = facts.forwards.within(function)
    return [ast.unparse(item) for item in found.restored] if isinstance(found, Forward) else []


def test_an_attribute_is_one_tensor_where_the_class_uses_it_as_one() -> None:
    """By its methods, by a loss of torch, or joined with other tensors; not where only a condition leads there."""
    for use in ("return self.out.mean()", "return nn.L1Loss()(self.out, y)", "return torch.cat((self.out, y), 1)"):
        assert converted(use) == ["self.net(x)"], use
    for use in ("return self.out", "if y:\n            return self.out.mean()", "return torch.cat(self.out, 1)"):
        assert converted(use) == [], use
