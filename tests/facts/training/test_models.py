"""Networks: which calls run layers, which objects have weights, and networks that are picked by name or may be missing."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node

HEAD = """
import torch
import torchvision.models as models
from torch import nn
from dcn import Convolution


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(x)

    def score(self, x):
        return self.fc(x) + 1

    def start(self, size):
        return torch.zeros(size, device=self.fc.weight.device)


class Dice(nn.Module):
    def __init__(self):
        super().__init__()
        self.ce = nn.CrossEntropyLoss()

    def forward(self, x, y):
        return self.ce(x, y) + (x * y).sum()


class Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = Convolution(3)


net = Net()
"""


def runs(text: str) -> bool:
    """Whether a call runs a network with weights."""
    facts = facts_of(f"{HEAD}{text}\n")
    call = facts.source.tree.body[-1].value  # type: ignore[attr-defined]
    assert isinstance(call, ast.Call)
    return bool(facts.models.run_by(call))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("net(x)", True, id="called"),
        pytest.param("net.forward(x)", True, id="by forward"),
        pytest.param("net.score(x)", True, id="by a method that runs a layer"),
        pytest.param("net.start(3)", False, id="by a method that runs none"),
        pytest.param("net.train()", False, id="by what every module has"),
        pytest.param("nn.DataParallel(net).module(x)", True, id="inside a wrapper"),
        pytest.param("nn.Linear(2, 2)(x)", True, id="a layer"),
        pytest.param("nn.Sequential(nn.ReLU(), nn.Linear(2, 2))(x)", True, id="a sequence with a layer"),
        pytest.param("nn.ReLU()(x)", False, id="an activation"),
        pytest.param("nn.CrossEntropyLoss()(x, y)", False, id="a loss"),
        pytest.param("Dice()(x, y)", False, id="a loss of the project"),
        pytest.param("Foreign()(x)", True, id="a layer of another package"),
        pytest.param("unknown(x)", False, id="not known to be a network"),
    ],
)
def test_a_call_runs_a_network_where_layers_with_weights_run(text: str, expected: bool) -> None:
    """Losses and activations are formulas, and housekeeping runs nothing."""
    assert runs(text) is expected


@pytest.mark.parametrize("made", ["models.__dict__[name](num_classes=3)", "getattr(models, name)()"])
def test_a_network_that_is_picked_by_name_is_one_of_its_library(made: str) -> None:
    """Which one is not known, and need not be."""
    facts = facts_of(f"{HEAD}picked = {made}\npicked(x)\n")
    (network,) = facts.models.of(node(facts, "picked", 1)) or ()
    assert network.library == "torchvision.models.__dict__"


def test_a_factory_that_gives_none_for_an_unknown_name_still_makes_networks() -> None:
    """Calling None would raise anyway."""
    factory = "\n\ndef build(name):\n    if name == 'a':\n        made = Net()\n    else:\n        made = None\n    return made\n\n\n"
    facts = facts_of(f"{HEAD}{factory}built = build('a')\nbuilt(x)\n")
    (network,) = facts.models.of(node(facts, "built", 1)) or ()
    assert network.definition is not None


def test_a_class_that_two_star_imports_bring_is_one_class() -> None:
    """Both stars lead to the same definition."""
    net = "from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n"
    facts = facts_of(
        "from net import *\nfrom again import *\n\nmodel = Net()\n", modules={"net.py": net, "again.py": "from net import *\n"}
    )
    assert facts.models.is_module(node(facts, "model"))


@pytest.mark.parametrize(("made", "is_network"), [("timm.create_model('x')", True), ("timm.utils.accuracy(a, b)", False)])
def test_of_a_model_collection_only_models_are_networks(made: str, is_network: bool) -> None:
    """Its helpers make no networks."""
    facts = facts_of(f"import timm\nimport timm.utils\nmade = {made}\n")
    assert facts.models.is_module(node(facts, made)) is is_network


NETS = """
import torch
from torch import nn

from helpers import load


class Small(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.fc = nn.Linear(2, classes)


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, stride)


def large(classes):
    return nn.Sequential(nn.Linear(2, 8), nn.Linear(8, classes))


def accuracy(output):
    return (output > 0).float().mean()


def unknown(classes):
    return load(classes)
"""


def _picked(nets: str, made: str) -> set[str] | None:
    """The classes of which a network may be that is picked from a module of the project by its name."""
    facts = facts_of(f"import nets\n\nnet = {made}\nnet(x)\n", modules={"nets.py": nets})
    networks = facts.models.of(node(facts, "net", 1))
    return None if networks is None else {network.definition.node.name if network.definition else "?" for network in networks}


@pytest.mark.parametrize("made", ["nets.__dict__[name](10)", "getattr(nets, name)(10)", "nets.__dict__[name](classes=10)"])
def test_a_network_picked_by_name_from_a_module_that_may_make_anything_is_not_known(made: str) -> None:
    """One of its functions returns what is out of sight."""
    assert _picked(NETS, made) is None


@pytest.mark.parametrize("made", ["nets.__dict__[name](10)", "getattr(nets, name)(10)", "nets.__dict__[name](classes=10)"])
def test_a_network_picked_by_name_is_one_of_those_that_its_module_makes_from_such_arguments(made: str) -> None:
    """A class that needs more arguments is a part of a network, and a function that computes makes none."""
    assert _picked(NETS.replace("load(classes)", "Small(classes)"), made) == {"Small", "?"}
