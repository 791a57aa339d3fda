from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.project.effects import Effect

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


def effects(text: str, modules: dict[str, str] | None = None) -> set[Effect]:
    """What the last statement of a snippet does."""
    facts = facts_of(HEAD + text, modules=modules)
    last = facts.tree.module.body[-1]
    assert isinstance(last, (ast.Expr, ast.Assign)) and isinstance(last.value, ast.Call)
    return set(facts.effects.of(last.value))


@pytest.mark.parametrize(
    "text",
    [
        "len(x)",
        "model.train()",
        "open('a').read()",
        "open('a', 'rb')",
        "os.makedirs('a', exist_ok=True)",
        "os.path.exists('a')",
        "json.dumps(x)",
        "x.save",
        "Data(download=False)",
        "class A:\n    def write(self): ...\nA().write()",
    ],
)
def test_calls_without_effect(text: str) -> None:
    """What only computes or reads does nothing to the outside."""
    facts = facts_of(HEAD + text)
    assert list(facts.effects.calls()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("print(1)", Effect.PRINT),
        ("logging.info('a')", Effect.PRINT),
        ("log = logging.getLogger('a')\nlog.warning('b')", Effect.PRINT),
        ("tqdm.write('a')", Effect.PRINT),
        ("plt.plot(x)", Effect.PRINT),
        ("torch.save(x, 'a')", Effect.WRITE),
        ("np.save('a', x)", Effect.WRITE),
        ("os.mkdir('a')", Effect.WRITE),
        ("plt.savefig('a')", Effect.WRITE),
        ("frame.to_csv('a')", Effect.WRITE),
        ("image.save('a')", Effect.WRITE),
        ("logging.basicConfig(filename='a')", Effect.WRITE),
        ("f = open('a', 'w')", Effect.OPEN),
        ("f = open('a', mode=m)", Effect.OPEN),
        ("f = path.open('a')", Effect.OPEN),
        ("w = SummaryWriter()", Effect.OPEN),
        ("w = SummaryWriter()\nw.add_scalar('a', 1)", Effect.LOG),
        ("f = open('a', 'w')\nf.write('b')", Effect.LOG),
        ("wandb.log({})", Effect.LOG),
        ("bar = tqdm(x)", Effect.BAR),
        ("d = Data(download=True)", Effect.DOWNLOAD),
        ("os.system('ls')", Effect.SHELL),
        ("a = input()", Effect.ASK),
        ("def f():\n    print(1)\nf()", Effect.PRINT),
        ("class A:\n    def go(self):\n        print(1)\nA().go()", Effect.PRINT),
    ],
)
def test_each_effect_is_known(text: str, expected: Effect) -> None:
    """Printing, writing, logging, downloading and asking are told apart, through the functions that a call runs."""
    assert effects(text) == {expected}


def test_effects_in_other_files_count() -> None:
    """A function of another file brings its effects."""
    assert effects("from tools import save\nsave(1)", {"tools.py": "import torch\ndef save(x):\n    torch.save(x, 'a')"}) == {Effect.WRITE}


def test_datasets_are_not_the_main_line() -> None:
    """What a dataset prints is no matter of the script's own course."""
    facts = facts_of(HEAD + "class A(Dataset):\n    def __getitem__(self, i):\n        print(i)\n")
    assert list(facts.effects.calls()) == []
    assert not facts.effects.in_main_line(node(facts, "print(i)"))
