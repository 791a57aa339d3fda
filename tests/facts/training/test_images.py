"""Networks of two-dimensional convolutions: where they are trained, what they are made of, and what they are fed."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts import Facts
from torchfix.facts.training.images import convolves, copies_of_images, takes_images, third_dimension, trained_networks
from torchfix.facts.training.models import Network

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable
from torch.utils.data import DataLoader, TensorDataset
from torchvision import models


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3)

    def forward(self, x):
        return self.conv(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.last = nn.Conv2d(3, 3, 3)
        self.fc = nn.Linear(3, 3)

    def encode(self, x):
        return self.block(x)

    def forward(self, x, y):
        return self.encode(x) + self.fc(y)


def chain(*kinds):
    made = [kind() for kind in kinds]
    made += [nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3), nn.ReLU()]
    return nn.Sequential(*made)


made = MADE
model = made.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.ones(4, 3, 8, 8), torch.ones(4, 3))):
    images, rows = FED, y.cuda()
    optimizer.zero_grad()
    model(images, rows).sum().backward()
    optimizer.step()
"""


def script(made: str = "Net()", fed: str = "x.cuda()") -> Facts:
    """The facts of the script with that network and those images."""
    return facts_of(SCRIPT.replace("MADE", made).replace("FED", fed))


def network_of(facts: Facts) -> Network:
    """The script's network."""
    (network,) = facts.models.of(node(facts, "made.cuda()")) or ()
    return network


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("Net()", True),
        ("nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))", True),
        ("chain()", True),
        ("models.resnet18()", True),
        ("Block()", False),
        ("nn.Linear(3, 3)", False),
        ("models.vit_b_16()", False),
        ("models.segmentation.fcn_resnet50()", False),
    ],
)
def test_a_network_of_convolutions_has_several(made: str, expected: bool) -> None:
    """One alone may cut patches; of torchvision the classifiers are known."""
    facts = script(made)
    assert convolves(network_of(facts)) is expected
    assert [item.networks for item in trained_networks(facts)] == ([(network_of(facts),)] if expected else [])


def test_a_layer_of_three_dimensions_is_found() -> None:
    """Also deep in the network."""
    facts = facts_of(SCRIPT.replace("MADE", "Net()").replace("FED", "x").replace("self.conv = nn.Conv2d", "self.conv = nn.Conv3d"))
    found = third_dimension(network_of(facts))
    assert found is not None
    assert ast.unparse(found[1]) == "nn.Conv3d(3, 3, 3)"


@pytest.mark.parametrize(
    ("made", "index", "expected"),
    [
        ("Net()", 0, True),
        ("Net()", 1, False),
        ("Net()", 2, False),
        ("nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3))", 0, True),
        ("nn.Sequential(nn.Linear(3, 3), nn.Conv2d(3, 3, 3))", 0, False),
        ("nn.Sequential(Block(), Block())", 0, True),
        ("models.resnet18()", 0, True),
        ("chain()", 0, True),
    ],
)
def test_images_go_into_a_layer_of_two_dimensions_as_they_are(made: str, index: int, expected: bool) -> None:
    """Through methods and layers of the project."""
    assert takes_images(network_of(script(made)), index) is expected


@pytest.mark.parametrize(
    ("fed", "copies"),
    [
        ("x.cuda()", ["x.cuda()"]),
        ("x.to('cuda')", ["x.to('cuda')"]),
        ("Variable(x.cuda())", ["x.cuda()"]),
        ("x.cuda() if flag else x", ["x.cuda()"]),
        ("x.cuda() / 255", []),
        ("load().cuda()", []),
    ],
)
def test_the_copies_of_a_batch_are_those_that_the_network_is_fed(fed: str, copies: list[str]) -> None:
    """Only what a loader makes, and only where nothing else is computed of it."""
    facts = script(fed=fed)
    call = node(facts, "model(images, rows)")
    assert isinstance(call, ast.Call)
    assert [ast.unparse(copy) for copy in copies_of_images(facts, call, (network_of(facts),))] == copies


def test_the_statements_that_make_a_network_are_told_from_those_that_change_it() -> None:
    """Moves and wrappers of the same name only change it."""
    facts = script("Net().cuda()")
    facts = facts_of(facts.source.text.replace("model = made.cuda()", "model = made.cuda()\nmodel = nn.DataParallel(model)"))
    (trained,) = trained_networks(facts)
    assert [ast.unparse(statement) for statement in trained.makers] == ["model = made.cuda()"]


def test_evaluations_of_the_same_network_are_found() -> None:
    """Also those of another variable."""
    facts = facts_of(
        f"{SCRIPT.replace('MADE', 'Net()').replace('FED', 'x.cuda()')}\nsame = model.eval()\nprint(same(x.cuda(), y.cuda()))\n"
    )
    (trained,) = trained_networks(facts)
    assert [ast.unparse(call) for _, call in trained.other_runs()] == ["same(x.cuda(), y.cuda())"]
