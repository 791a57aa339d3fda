from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.training.reductions import Reduction

HEAD = """
import argparse, random
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
args = argparse.ArgumentParser().parse_args()
criterion = nn.CrossEntropyLoss()

class Own(nn.Module):
    def forward(self, a, b):
        return ((a - b) ** 2).mean()

def both(a, b):
    return F.l1_loss(a, b) + 0.5 * F.mse_loss(a, b)

def pair(a, b):
    return F.l1_loss(a, b), 3
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss = criterion(a, b)", Reduction.MEAN),
        ("loss = nn.MSELoss()(a, b)", Reduction.MEAN),
        ("loss = nn.MSELoss().cuda()(a, b)", Reduction.MEAN),
        ("loss = F.cross_entropy(a, b, label_smoothing=0.1)", Reduction.MEAN),
        ("loss = F.kl_div(a, b, reduction='batchmean')", Reduction.MEAN),
        ("loss = (a - b).abs().mean()", Reduction.MEAN),
        ("loss = torch.mean(a)", Reduction.MEAN),
        ("loss = F.nll_loss(a, b, reduction='none').mean()", Reduction.MEAN),
        ("loss = criterion(a, b) + 0.1 * F.l1_loss(a, b)", Reduction.MEAN),
        ("loss = criterion(a, b) / args.steps", Reduction.MEAN),
        ("loss = -criterion(a, b)", Reduction.MEAN),
        ("loss = criterion(a, b)\nloss += args.weight * F.l1_loss(a, b)", Reduction.MEAN),
        ("loss = criterion(a, b)\nloss = loss / 4", Reduction.MEAN),
        ("w = random.random()\nloss = w * criterion(a, b) + (1 - w) * criterion(a, c)", Reduction.MEAN),
        ("loss = sum([criterion(a, b), criterion(a, c)])", Reduction.MEAN),
        ("loss = sum(criterion(x, b) for x in a)", Reduction.MEAN),
        ("loss = Own()(a, b)", Reduction.MEAN),
        ("loss = both(a, b)", Reduction.MEAN),
        ("loss, n = pair(a, b)", Reduction.MEAN),
        ("loss = scaler.scale(criterion(a, b))", Reduction.MEAN),
        ("loss = F.mse_loss(a, b, reduction='sum') / a.size(0)", Reduction.MEAN),
        ("loss = criterion(a, b).item()", Reduction.MEAN),
        ("loss = F.cross_entropy(a, b, None, reduction='mean')", Reduction.MEAN),
        ("loss = nn.BCEWithLogitsLoss(weight=w)(a, b)", Reduction.MEAN),
        ("loss = criterion(a[:, 0], b[0])", Reduction.MEAN),
        ("loss = nn.CrossEntropyLoss(w)(a, b)", Reduction.COUNTED),
        ("loss = nn.CrossEntropyLoss(ignore_index=255).cuda()(a, b)", Reduction.COUNTED),
        ("loss = F.nll_loss(a, b, weight=w, reduction='mean')", Reduction.COUNTED),
        ("loss = F.cross_entropy(a, b, w)", Reduction.COUNTED),
        ("loss = criterion(a[keep], b[keep])", Reduction.COUNTED),
        ("loss = F.mse_loss(a[b > 0], b[b > 0])", Reduction.COUNTED),
        ("loss = F.cross_entropy(a, b, weight=w, reduction='sum')", Reduction.SUM),
        ("loss = nn.MSELoss(reduction='sum')(a, b)", Reduction.SUM),
        ("loss = (a - b).sum()", Reduction.SUM),
        ("loss = criterion(a, b) * a.size(0)", Reduction.SUM),
        ("loss = criterion(a, b).item() * len(a)", Reduction.SUM),
        ("loss = (a == b).sum().item()", Reduction.SUM),
        ("loss = a.shape[0]", Reduction.SUM),
        ("loss = 1", Reduction.NONE),
        ("loss = nn.MSELoss(reduction='none')(a, b)", Reduction.EACH),
        ("loss = nn.MSELoss(size_average=False)(a, b)", Reduction.UNKNOWN),
        ("loss = nn.MSELoss(reduction=args.how)(a, b)", Reduction.UNKNOWN),
        ("loss = stranger(a, b)", Reduction.UNKNOWN),
        ("loss = criterion(a, b) * criterion(a, c)", Reduction.UNKNOWN),
        ("loss = criterion(a, b) ** 2", Reduction.UNKNOWN),
        ("loss = criterion(a, b) + (a - b).sum()", Reduction.UNKNOWN),
        ("for x in DataLoader(d):\n    loss = criterion(a, b) * x.max()", Reduction.UNKNOWN),
        ("loss = 0\nfor x in a:\n    loss = loss * stranger(x)", Reduction.UNKNOWN),
    ],
)
def test_the_reduction_of_a_loss(text: str, expected: Reduction) -> None:
    """A loss is a mean, a sum, or unknown, through arithmetic, torch's losses and the project's functions."""
    facts = facts_of(HEAD + text + "\nloss.backward()")
    last = node(facts, "loss.backward()")
    assert facts.reductions.of(last.func.value) is expected  # type: ignore[attr-defined]
