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
    ("statement", "expected"),
    [
        ("print(loss.item())", True),
        ("if i % 10 == 0:\n    print(i)", True),
        ("if i:\n    print(i)\nelse:\n    print(0)", True),
        ("for k, v in d.items():\n    print(k, v)", True),
        ("with open('a', 'w') as f:\n    line = str(i)\n    f.write(line)", True),
        ("json.dump(d, open('a', 'w'))", True),
        ("report(d)", True),
        ("x = print(1)", False),
        ("print(model(x))", False),
        ("if model(x):\n    print(1)", False),
        ("if i:\n    print(i)\n    i = 0", False),
        ("with open('a') as f:\n    print(f.read())", False),
        ("for x in loader:\n    print(x)", False),
        ("train(d)", False),
    ],
)
def test_statements_that_only_report(statement: str, expected: bool) -> None:
    """A statement may be left to one process when all it does is print, write or log what is known already."""
    modules = {"tools.py": "def report(x):\n    print(x)\n\ndef train(x):\n    print(x)\n    x.append(1)\n"}
    facts = facts_of(HEAD + "from tools import report, train\nloader = DataLoader(d)\n" + statement, modules=modules)
    assert facts.reports.only_reports(facts.tree.module.body[-1]) is expected


def test_a_block_whose_names_are_read_behind_it_does_more_than_report() -> None:
    """What a block computes for later must happen in every process."""
    facts = facts_of("with open('a', 'w') as f:\n    line = str(1)\n    f.write(line)\nuse(line)")
    assert not facts.reports.only_reports(facts.tree.module.body[0])


MAIN = """
import os
import torch

def main():
    print(1)
    print(2)
    # more
    print(3)
    if x:
        y = 1
        print(y)
    elif z:
        print(4)
    if w: print(5)
    os.mkdir("a")

if __name__ == "__main__":
    main()
    print(6)
"""


def test_neighbours_that_only_report_make_runs() -> None:
    """Runs end at a comment and at a statement that does more; what shares its line is left out."""
    runs = facts_of(MAIN).reports.runs
    found = [(ast.unparse(first), ast.unparse(last)) for first, last in runs]
    assert sorted(found) == sorted(
        [
            ("print(6)", "print(6)"),
            ("print(1)", "print(2)"),
            ("print(3)", "print(3)"),
            ("if w:\n    print(5)", "os.mkdir('a')"),
            ("print(y)", "print(y)"),
            ("print(4)", "print(4)"),
        ]
    )


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        pytest.param("torch.save(x, 'a')", [], id="statement of its own"),
        pytest.param("log = open('a', 'w')\n    log.write('b')", [], id="log kept open"),
        pytest.param("print(x); y = torch.save(x, 'a')", ["effect-unseparated"], id="amid other work"),
        pytest.param("log = open('a', 'w')\n    use(log.name)", ["log-in-use"], id="log that is asked"),
        pytest.param("input()", ["interactive"], id="question"),
        pytest.param("os.system('ls')", ["shell-command"], id="command"),
    ],
)
def test_what_cannot_be_left_to_one_process(text: str, codes: list[str]) -> None:
    """Effects that stand amid other work, and logs that others need, are obstacles."""
    facts = facts_of(f"import os\nimport torch\n\ndef main():\n    {text}\n\nif __name__ == '__main__':\n    main()\n")
    assert [obstacle.code for obstacle in facts.reports.obstacles()] == codes
