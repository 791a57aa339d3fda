"""What half precision would break: found in the code that runs, wherever in the project it stands."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.obstacle import Obstacle

MODELS = """
import torch
from torch import nn
from layers import attend, prepare


class Base(nn.Module):
    def mask(self, x):
        return x


class Net(Base):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.fc.weight = prepare(self.fc.weight)

    def forward(self, x):
        return self.mask(attend(self.fc(x)))

    def export(self, x):
        return x.numpy()
"""
LAYERS = """
def attend(x):
    return x


def prepare(weight):
    return weight.double()
"""
TRAIN = "from models import Net\n\nmodel = Net()\nout = model(x)\n"


def hazard(models: str = MODELS, layers: str = LAYERS, train: str = TRAIN, methods: tuple[str, ...] = ()) -> Obstacle | None:
    """What the network of the script meets."""
    facts = facts_of(train, modules={"models.py": models, "layers.py": layers})
    call = node(facts, "model(x)")
    assert isinstance(call, ast.Call)
    networks = facts.models.of(call.func)
    assert networks is not None
    return next((found for network in networks if (found := facts.hazards.in_network(network, frozenset(methods)))), None)


def test_sound_code_has_none() -> None:
    """Layers, functions of other files, and what only runs in constructors."""
    assert hazard() is None


@pytest.mark.parametrize(
    ("models", "layers", "place"),
    [
        pytest.param(MODELS.replace("self.mask(attend(self.fc(x)))", "self.fc(x).double()"), LAYERS, "models.py:19:", id="in forward"),
        pytest.param(MODELS.replace("return x\n", "return x.double()\n", 1), LAYERS, "models.py:9:", id="in a base's method"),
        pytest.param(MODELS, LAYERS.replace("return x\n", "return x.double()\n"), "layers.py:3:", id="in a function of another file"),
    ],
)
def test_hazards_are_found_where_they_stand(models: str, layers: str, place: str) -> None:
    """The words name the file and the line."""
    found = hazard(models, layers)
    assert found is not None
    assert found.code == "float64"
    assert found.text.startswith(place)


def test_a_method_counts_when_it_is_called() -> None:
    """Beside ``forward``, those that the program calls on the network."""
    found = hazard(methods=("export",))
    assert found is not None
    assert found.code == "half-to-numpy"


def test_a_network_of_layers_is_looked_through_for_ones_of_the_project() -> None:
    """A Sequential is as sound as what is in it."""
    train = "from torch import nn\nfrom models import Net\n\nmodel = nn.Sequential(nn.Linear(2, 2), Net())\nout = model(x)\n"
    assert hazard(train=train) is None
    found = hazard(MODELS.replace("return x\n", "return x.double()\n", 1), train=train)
    assert found is not None


def test_a_loss_that_is_only_made_is_no_hazard_of_the_network() -> None:
    """An unused BCELoss in a constructor never runs."""
    unused = MODELS.replace("self.fc = nn.Linear(2, 2)", "self.fc, self.loss = nn.Linear(2, 2), nn.BCELoss()")
    assert hazard(unused) is None
    used = unused.replace("return self.mask(", "return self.loss(self.fc(x), x) + (")
    found = hazard(used)
    assert found is not None
    assert found.code == "bce-loss"


def test_bce_is_found_inside_losses_of_the_project() -> None:
    """The loss of a loop may hide it behind a class."""
    text = "from torch import nn\n\n\nclass Loss(nn.Module):\n    def __init__(self):\n        self.bce = nn.BCELoss()\n\n\n"
    text += "loss = Loss()(out, y)\n"
    facts = facts_of(text)
    call = node(facts, "Loss()(out, y)")
    assert isinstance(call, ast.Call)
    definition = facts.names.definition(node(facts, "Loss"))
    assert definition is not None
    found = facts.hazards.bce([call], [definition])
    assert found is not None
    assert facts.hazards.bce([call], []) is None
    assert found.text.startswith("train.py:")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param("x = 1", None, id="a plain program"),
        pytest.param("torch.set_default_dtype(torch.float32)", None, id="the usual default"),
        pytest.param("torch.set_default_tensor_type('torch.cuda.FloatTensor')", None, id="float32 on the device"),
        pytest.param("torch.set_default_tensor_type(torch.DoubleTensor)", "float64", id="float64 by default"),
        pytest.param("torch.autograd.set_detect_anomaly(False)", None, id="anomaly detection off"),
        pytest.param("with torch.autograd.detect_anomaly():\n    pass", "anomaly-mode", id="anomaly detection"),
        pytest.param("running.double()", None, id="a metric in float64"),
        pytest.param("from accelerate import Accelerator", "framework", id="a framework"),
        pytest.param("import apex", "apex", id="Apex"),
    ],
)
def test_programs_that_settle_their_precision_say_so(line: str, code: str | None) -> None:
    """For the whole file, before any loop is looked at."""
    found = facts_of(f"import torch\n{line}\n").hazards.in_program()
    assert (found.code if found else None) == code


def test_precision_that_is_chosen_somewhere_is_told_apart() -> None:
    """It is no reason of the program's, but one for a loop that has none."""
    facts = facts_of("import torch\nwith torch.autocast('cuda'):\n    pass\n")
    assert facts.hazards.in_program() is None
    found = facts.hazards.chosen()
    assert found is not None
    assert found.code == "precision-chosen"
    assert facts_of("x.float()\n").hazards.chosen() is None


def test_float64_is_seen_in_what_a_loss_comes_from() -> None:
    """A conversion or a dtype in one of the expressions."""
    facts = facts_of("import torch\na = x.double()\nb = x.to(torch.float64)\nc = x.to(torch.float32)\n")
    seen = [facts.hazards.wide([node(facts, text)]) is not None for text in ("x.double()", "x.to(torch.float64)", "x.to(torch.float32)")]
    assert seen == [True, True, False]
