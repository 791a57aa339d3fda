"""Which loops train and evaluate on a device, and what runs on each of their iterations."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.training.loops import Kind

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(2, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data)
"""


@pytest.mark.parametrize(
    ("loop", "kinds"),
    [
        pytest.param("for x in loader:\n    model(x).backward()\n    optimizer.step()", [Kind.TRAIN], id="trains"),
        pytest.param("for x in loader:\n    scaler(model(x), optimizer)\n    optimizer.zero_grad()", [Kind.TRAIN], id="steps out of sight"),
        pytest.param("while a:\n    for x in loader:\n        model(x).backward()\n        optimizer.step()", [Kind.TRAIN], id="innermost"),
        pytest.param("model.eval()\nfor x in loader:\n    print(model(x))", [Kind.EVAL], id="evaluates"),
        pytest.param("for x in loader:\n    print(model(x))", [Kind.EVAL], id="runs a network on batches"),
        pytest.param("for x in loader:\n    print(x)", [], id="runs no network"),
        pytest.param("for step in range(3):\n    print(model(x))", [], id="no batches"),
        pytest.param("for x in loader:\n    print(model(x))\n    break", [], id="the first batch only"),
    ],
)
def test_loops(loop: str, kinds: list[Kind]) -> None:
    """Loops that train or evaluate batch after batch count, the innermost ones of those that train."""
    assert list(facts_of(HEAD + loop).cadence.loops.values()) == kinds


def test_loops_on_the_cpu_do_not_count() -> None:
    """Nothing waits for a device there."""
    text = HEAD.replace(".to(device)", "") + "for x in loader:\n    model(x).backward()\n    optimizer.step()\n"
    assert facts_of(text).cadence.loops == {}


@pytest.mark.parametrize(
    ("lines", "always"),
    [
        pytest.param("note()", True, id="plain"),
        pytest.param("with torch.no_grad():\n        note()", True, id="in a block"),
        pytest.param("for k in range(2):\n        note()", True, id="in an inner loop"),
        pytest.param("if verbose:\n        note()", True, id="under what never changes"),
        pytest.param("if step % 10 == 0:\n        note()", False, id="now and then"),
        pytest.param("if loss > 3:\n        note()", False, id="by what changes"),
        pytest.param("if random():\n        note()", False, id="by what may change"),
        pytest.param("if step % 10:\n        continue\n    note()", False, id="behind a skip"),
        pytest.param("try:\n        pass\n    except ValueError:\n        note()", False, id="after an error"),
        pytest.param("a = [note() for k in x if k]", False, id="for some items"),
        pytest.param("a = lambda: note()", False, id="later"),
    ],
)
def test_places(lines: str, always: bool) -> None:
    """What no condition that changes keeps from running runs on every iteration."""
    text = HEAD + f"for step, x in enumerate(loader):\n    loss = model(x)\n    loss.backward()\n    optimizer.step()\n    {lines}\n"
    facts = facts_of(text)
    assert (facts.cadence.iteration(node(facts, "note()")) is not None) is always


def test_what_the_command_line_must_ask_for_does_not_always_run() -> None:
    """An option that is off unless it is named guards what is under it."""
    parser = "import argparse\nparser = argparse.ArgumentParser()\n"
    options = parser + "parser.add_argument('--debug', action='store_true')\nargs = parser.parse_args()\n"
    loop = "for x in loader:\n    model(x).backward()\n    optimizer.step()\n    if args.debug:\n        note()\n"
    facts = facts_of(options + HEAD + loop)
    assert facts.cadence.iteration(node(facts, "note()")) is None
