"""Where values live: on the device, on the host, or not known."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.tensors.residence import Residence

TEXT = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from metrics import accuracy, unseen

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(2, 1).to(device)
criterion = nn.MSELoss()


def both(a):
    return a.mean(), a.cpu()


for x, y in DataLoader(data):
    moved = x.to(device)
    output = model(moved)
    loss = criterion(output, y.cuda())
    mean, copy = both(output)
    first, second = x.cuda(), y
    parts = {}
    parts["loss"] = loss
    result = RESULT
"""


def residence(result: str, modules: dict[str, str] | None = None) -> Residence | None:
    """Where the value of an expression in a training loop lives."""
    facts = facts_of(TEXT.replace("RESULT", result), modules=modules)
    return facts.residences.of(node(facts, result, -1))


@pytest.mark.parametrize(
    "result",
    [
        "3.0",
        "x",
        "output.cpu()",
        "output.size(0)",
        "loss.item()",
        "output.shape",
        "float(loss)",
        "copy",
        "second",
        "np.mean(output)",
        "'%f' % loss",
        "loss is None",
        "len(output)",
        "torch.zeros(2)",
        "y + 1",
        "not loss",
        "torch.from_numpy(a)",
    ],
)
def test_values_on_the_host(result: str) -> None:
    """Batches before their copy, what a tensor tells of itself, and what was read are on the host."""
    assert residence(result) is Residence.HOST


@pytest.mark.parametrize(
    "result",
    [
        "moved",
        "output",
        "loss",
        "output.detach()[0]",
        "output + 1",
        "loss > 3",
        "mean",
        "first",
        "F.relu(output)",
        "torch.zeros(2, device=device)",
        "torch.zeros_like(output)",
        "parts['loss']",
        "-loss",
        "sum([loss, 1])",
        "loss if loss > 1 else 0.0",
        "output.max(1)[1].eq(y.cuda())",
        "x.to(device)",
        "loss.data",
    ],
)
def test_values_on_the_device(result: str) -> None:
    """What is copied to the device, made there, and computed from such values is on the device."""
    assert residence(result) is Residence.DEVICE


@pytest.mark.parametrize("result", ["unseen(output)", "unseen(output)[0]", "helper.compute(loss)", "model(x).logits"])
def test_values_that_code_out_of_sight_makes_of_them(result: str) -> None:
    """They are likely on the device."""
    assert residence(result) is Residence.LIKELY


@pytest.mark.parametrize("result", ["helper", "helper.value", "model", "unseen(1)", "lambda: loss"])
def test_values_that_are_not_known(result: str) -> None:
    """Networks and what nothing is known of live nowhere."""
    assert residence(result) is None


def test_functions_of_other_files_are_followed() -> None:
    """What a function returns tells where its result lives."""
    modules = {"metrics.py": "def accuracy(a):\n    return a.mean().item()\n"}
    assert residence("accuracy(output)", modules) is Residence.HOST


def test_a_function_that_takes_itself_apart_ends() -> None:
    """Following parts of parts ends where a function hands them to itself."""
    facts = facts_of("def walk(items):\n    for item in items:\n        walk(item)\n\nwalk([x])\n")
    assert facts.residences.of(node(facts, "item", 1)) is None
