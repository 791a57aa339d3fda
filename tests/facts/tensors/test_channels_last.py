"""What lies in memory otherwise once a network and its images are laid out channels last."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts import Facts
from torchfix.facts.tensors.channels_last import ChannelsLast, copying_twin

NET = """\
import torch
import torch.nn.functional as F
from torch import nn
from torchvision import models


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 2)
        self.gate = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(8, 2), nn.Sigmoid())

    def forward(self, x):
        return BODY


def train(images, labels):
    images = images.cuda()
    output = Net()(images)
    library = models.resnet18()(images)
    parameter = next(Net().parameters())
    rows = labels.t()


train(torch.ones(2, 3, 4, 4), torch.ones(2))
"""


def change(facts: Facts) -> ChannelsLast:
    """The change that gives the images of the snippet."""
    return ChannelsLast([node(facts, "images.cuda()")])


@pytest.mark.parametrize(
    "expression",
    [
        "self.fc(x)",
        "self.pool(x)",
        "x.flatten(1)",
        "torch.flatten(x, 1)",
        "x.contiguous()",
        "F.adaptive_avg_pool2d(x, (1, 1))",
        "x.view(2, -1)",
    ],
)
def test_what_a_layer_or_method_puts_in_order_is_as_before(expression: str) -> None:
    """Whatever it was given."""
    facts = facts_of(NET.replace("BODY", expression))
    assert not change(facts).may_reach(facts, node(facts, expression))


@pytest.mark.parametrize(
    "expression",
    ["x", "self.conv(x)", "F.relu(x)", "x * 2", "x.flatten(2)", "x.contiguous(memory_format=torch.preserve_format)", "self.conv.weight"],
)
def test_images_weights_and_what_is_computed_of_them_may_lie_otherwise(expression: str) -> None:
    """Layers and operations pass a layout on."""
    facts = facts_of(NET.replace("BODY", expression))
    assert change(facts).may_reach(facts, node(facts, expression))


@pytest.mark.parametrize(
    ("body", "name", "reached"),
    [
        ("self.fc(x)", "output", False),
        ("self.conv(x)", "output", True),
        ("self.fc(x)", "library", False),
        ("self.fc(x)", "rows", False),
        ("self.fc(x)", "parameter", True),
        ("self.fc(x)", "images", True),
    ],
)
def test_outside_the_network_images_and_what_it_gives_of_them_are_followed(body: str, name: str, reached: bool) -> None:
    """A classifier gives rows; labels are no images."""
    facts = facts_of(NET.replace("BODY", body).replace("\n\n\ntrain(", f"\n    print({name})\n\n\ntrain("))
    (call,) = facts.tree.calls["print"]
    assert change(facts).may_reach(facts, call.args[0]) is reached


def test_calls_that_read_memory_as_it_lies_are_found() -> None:
    """Those of images, and not those of rows."""
    facts = facts_of(NET.replace("BODY", "self.fc(x.view(2, 8)).view(-1)"))
    found = change(facts).needing_order(facts, facts.tree.module)
    assert [ast.unparse(call) for call in found] == ["x.view(2, 8)"]


@pytest.mark.parametrize(
    ("statement", "twin"),
    [
        ("x = x.view(2, -1)", "reshape"),
        ("x = x.view_as(y)", "reshape_as"),
        ("print(x.view(2, -1))", "reshape"),
        ("x.view(-1).zero_()", None),
        ("x.view(-1)[0] = 1", None),
        ("rows = x.view(-1); rows += 1", None),
        ("x = x.view(torch.int32)", None),
        ("x = x.data_ptr()", None),
    ],
)
def test_a_view_has_a_twin_that_copies_unless_it_is_written_into(statement: str, twin: str | None) -> None:
    """A write into a copy would miss the tensor."""
    facts = facts_of(f"import torch\ndef f(x, y):\n    {statement}\n")
    (call,) = (item for name in ("view", "view_as", "data_ptr") for item in facts.tree.calls.get(name, ()))
    assert copying_twin(facts, call) == twin
