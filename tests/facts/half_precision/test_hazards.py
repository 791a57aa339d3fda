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
    found = facts.hazards.in_losses([call], [definition])
    assert found is not None
    assert facts.hazards.in_losses([call], []) is None
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
        pytest.param("from accelerate import Accelerator", None, id="a framework that is only imported"),
        pytest.param("from accelerate.utils import set_seed\nset_seed(1)", None, id="a framework's tool"),
        pytest.param("from pytorch_lightning import seed_everything\nseed_everything(1)", None, id="another one's"),
        pytest.param("from ignite.metrics import Accuracy\nmetric = Accuracy()", None, id="a metric"),
        pytest.param("from accelerate import Accelerator\nAccelerator()", "framework", id="a framework"),
        pytest.param("import pytorch_lightning as pl\nclass Task(pl.LightningModule):\n    pass", "framework", id="a base class"),
        pytest.param("import deepspeed\nengine = deepspeed.initialize(model=model)", "framework", id="an engine"),
        pytest.param("import horovod.torch as hvd\nhvd.DistributedOptimizer(optimizer)", "framework", id="an optimizer"),
        pytest.param("import torch_xla.core.xla_model as xm\nxm.optimizer_step(optimizer)", "framework", id="another device's step"),
        pytest.param("from transformers import Trainer\nTrainer(model)", "framework", id="a trainer"),
        pytest.param("from fastai.vision.all import *", "framework", id="everything of a framework"),
        pytest.param("from apex import amp", None, id="Apex that is only imported"),
        pytest.param("from apex import amp\namp.initialize(model, optimizer)", "apex", id="Apex"),
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


OTHER = "import torch\n\n\ndef prepare(net):\n    {line}\n"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param("net.train()", None, id="nothing of the kind"),
        pytest.param("torch.set_default_dtype(torch.float64)", "float64", id="float64 by default"),
        pytest.param("torch.autograd.set_detect_anomaly(True)", "anomaly-mode", id="anomaly detection"),
        pytest.param("net.register_forward_hook(print)", "forward-hooks", id="a forward hook"),
        pytest.param("net.register_full_backward_hook(print)", "gradient-hooks", id="a backward hook"),
        pytest.param("net.half()", "precision-chosen", id="half weights"),
        pytest.param("net.to(torch.bfloat16)", "precision-chosen", id="half weights by dtype"),
        pytest.param("net.type(torch.cuda.HalfTensor)", "precision-chosen", id="half weights by type"),
        pytest.param("return torch.cuda.amp.GradScaler()", "precision-chosen", id="a scaler"),
        pytest.param("torch.set_autocast_enabled(True)", "precision-chosen", id="autocast by a switch"),
    ],
)
def test_what_another_file_settles_counts_where_the_program_runs_it(line: str, code: str | None) -> None:
    """A helper that the script calls; one that nobody calls settles nothing."""
    modules = {"helper.py": OTHER.format(line=line)}
    called, unused = (
        facts_of(f"from helper import prepare\n\nmodel = build()\n{text}\n", modules=modules).hazards for text in ("prepare(model)", "")
    )
    found = called.in_program() or called.chosen()
    assert (found.code if found else None) == code
    assert found is None or found.text.startswith("helper.py:5:")
    assert (unused.in_program() or unused.chosen()) is None


def test_float64_weights_are_seen_in_another_file() -> None:
    """Where the helper is handed a network of the project."""
    modules = {"helper.py": OTHER.format(line="net.double()")}
    text = "import torch\nfrom helper import prepare\n\nmodel = torch.nn.Linear(2, 2)\nprepare(model)\n"
    found = facts_of(text, modules=modules).hazards.in_program()
    assert found is not None
    assert found.code == "float64"


def test_what_stands_under_the_main_guard_of_an_imported_file_never_runs() -> None:
    """Its own demonstration is no part of the program."""
    helper = "import torch\n\nif __name__ == '__main__':\n    torch.set_default_dtype(torch.float64)\n"
    facts = facts_of("import torch\nimport helper\n", modules={"helper.py": helper})
    assert facts.hazards.in_program() is None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param("return out.sum()", None, id="a formula"),
        pytest.param("return torch.autograd.grad(out.sum(), out, create_graph=True)[0].norm()", "double-backward", id="a penalty"),
        pytest.param("return differences(out)", "double-backward", id="by a function of its own"),
        pytest.param("return torch.func.grad(torch.sum)(out)", "double-backward", id="by torch.func"),
        pytest.param("with torch.autocast('cuda'):\n        return out.sum()", "precision-chosen", id="autocast inside"),
        pytest.param("out.sum().backward()", "double-backward", id="a backward pass of its own"),
    ],
)
def test_losses_are_read_for_gradients_and_precision_of_their_own(line: str, code: str | None) -> None:
    """Also in what they call, in whichever file."""
    helper = f"import torch\n\n\ndef differences(x):\n    return torch.autograd.grad(x.sum(), x)[0]\n\n\ndef loss(out):\n    {line}\n"
    facts = facts_of("from helper import loss\n\nvalue = loss(out)\n", modules={"helper.py": helper})
    definition = facts.names.definition(node(facts, "loss"))
    assert definition is not None
    found = facts.hazards.in_losses([], [definition])
    assert (found.code if found else None) == code


def test_a_network_that_is_compiled_to_torchscript_has_a_precision_of_its_own() -> None:
    """The wrapper is seen, not only a class."""
    found = hazard(train="import torch\nfrom models import Net\n\nmodel = torch.jit.script(Net())\nout = model(x)\n")
    assert found is not None
    assert found.code == "torchscript"


def test_a_network_that_is_a_sparse_layer_itself_is_found() -> None:
    """No class of the project stands around it."""
    found = hazard(train="import torch\n\nmodel = torch.nn.Embedding(8, 2, sparse=True)\nout = model(x)\n")
    assert found is not None
    assert found.code == "sparse-gradients"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param("assert x.dtype.is_floating_point", None, id="whether it is of fractions"),
        pytest.param("assert x.dtype == torch.float32", "dtype-compared", id="whether it is float32"),
        pytest.param("y = np.array([1.0, 2.0])", None, id="an array of numbers"),
        pytest.param("y = np.asarray(x.detach().cpu())", "half-to-numpy", id="an array of a tensor"),
        pytest.param("x = x - torch.quantile(x, 0.5)", "no-half-form", id="a quantile"),
        pytest.param("x = x - x.nanquantile(0.5)", "no-half-form", id="a quantile by a method"),
        pytest.param("h = torch.histc(x, 4)", "no-half-form", id="a histogram"),
        pytest.param("self.mean.lerp_(x.detach().mean(0), 0.1)", "one-dtype", id="a moving mean by interpolation"),
        pytest.param("x = torch.lerp(x, y, 0.5)", "one-dtype", id="an interpolation"),
        pytest.param("i = torch.bucketize(x, self.edges)", None, id="a search in edges, which takes both"),
        pytest.param("assert torch.allclose(x, y)", "one-dtype", id="a comparison within a tolerance"),
        pytest.param("d = torch.distributions.MultivariateNormal(x, x)", "linear-algebra", id="a distribution that factorises"),
    ],
)
def test_questions_and_conversions_are_judged_where_they_run(line: str, code: str | None) -> None:
    """In the forward pass of a network."""
    models = MODELS.replace("import torch\n", "import numpy as np\nimport torch\n").replace(
        "return self.mask(", f"{line}\n        return self.mask("
    )
    found = hazard(models)
    assert (found.code if found else None) == code
