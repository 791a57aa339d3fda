from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of

HEAD = """
import json, logging, math, os, random, time
import numpy as np
import matplotlib.pyplot as plt
import torch
import wandb
from torch.utils.data import DataLoader, Dataset
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm
"""


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("f'{loss.item():.3f} {100 * a / len(b)}'", True),
        ("'{}'.format(time.time() - start)", True),
        ("math.sqrt(x) + np.mean(y)", True),
        ("model.state_dict()", True),
        ("torch.cuda.memory_allocated()", True),
        ("torch.softmax(x, 0)", True),
        ("clean(x)", True),
        ("model(x)", False),
        ("next(it)", False),
        ("items.pop()", False),
        ("metric.compute()", False),
        ("(n := 1)", False),
        ("random.random()", False),
        ("np.random.rand()", False),
        ("torch.rand(2)", False),
        ("x.add_(1)", False),
        ("dirty(x)", False),
        ("shared()", False),
        ("stranger(x)", False),
    ],
)
def test_what_only_computes_is_told_from_the_rest(expression: str, expected: bool) -> None:
    """An expression is pure only where everything in it is known to change nothing and to draw nothing."""
    helpers = """
def clean(x):
    y = []
    y.append(x)
    return len(y)

def dirty(x):
    x.a = 1

def shared():
    global z
    z = 1
"""
    facts = facts_of(HEAD + helpers + f"value = {expression}")
    last = facts.tree.module.body[-1]
    assert isinstance(last, ast.Assign)
    assert facts.purity.is_pure(last.value) is expected
