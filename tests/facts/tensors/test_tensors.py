"""Which expressions surely are tensors."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node

TEXT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        x = self.layer(x)
        return x.view(-1)

class Opaque(nn.Module):
    def forward(self, x):
        return helper(x)

net, opaque, rnn, criterion = Net(), Opaque(), nn.LSTM(2, 2), nn.MSELoss()

def step(batch, dataset, x, y):
    output = net(x)
    packed = pack_padded_sequence(x, y)
    hidden, _ = rnn(packed)
    loss = criterion(output, y)
    top, index = torch.max(output, 1)
    late = packed
    first = late.data
    late = F.relu(first)
    for p in net.parameters():
        pass
    for n, q in net.named_parameters():
        pass
    seen = opaque(x)
    shown = seen.argmax(1)
    result = RESULT
"""


@pytest.mark.parametrize(
    "result", ["batch", "dataset", "packed", "hidden", "opaque(x)", "late.data", "batch.data", "n", "net", "helper(x)"]
)
def test_what_may_be_something_else(result: str) -> None:
    """Batches, datasets, packed sequences and what code out of sight gives are no sure tensors."""
    facts = facts_of(TEXT.replace("RESULT", result))
    assert not facts.tensors.is_tensor(node(facts, result, 0))


@pytest.mark.parametrize(
    "result",
    [
        "output",
        "loss",
        "top",
        "index",
        "p",
        "q",
        "seen",
        "output[0]",
        "-output",
        "output + 1",
        "torch.sum(x)",
        "F.relu(x)",
        "net.layer.weight",
        "output.grad",
        "output.view(-1)",
        "criterion(x, y)",
    ],
)
def test_what_is_a_tensor(result: str) -> None:
    """Results of torch, of networks that return tensors, weights, and what only tensors can do are."""
    facts = facts_of(TEXT.replace("RESULT", result))
    assert facts.tensors.is_tensor(node(facts, result, -1))
