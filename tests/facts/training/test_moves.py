"""Moves: where the networks that an optimizer steps go to a device, and whether that depends on anything."""

from __future__ import annotations

import ast
from textwrap import indent

import pytest

from tests.facts.reading import facts_of
from torchfix.facts import Facts
from torchfix.facts.training.moves import (
    always_happens,
    are_moved_before,
    copies_to_cuda,
    happens_where_available,
    moves_of_stepped,
)

HEAD = "import torch\nfrom torch import nn\n\nnet = nn.Linear(2, 2)\nother = nn.Linear(2, 2)\n"
MADE = "optimizer = torch.optim.SGD(net.parameters(), lr=1)\n"


def made(facts: Facts) -> ast.Call:
    """The call that makes the optimizer."""
    return facts.tree.calls["SGD"][0]


@pytest.mark.parametrize(
    ("text", "count", "before"),
    [
        pytest.param(MADE, 0, False, id="never moved"),
        pytest.param("other.cuda()\n" + MADE, 0, False, id="another network is moved"),
        pytest.param("x = torch.ones(2).cuda()\n" + MADE, 0, False, id="a tensor is moved"),
        pytest.param(MADE + "net.cuda()\n", 1, False, id="moved behind it"),
        pytest.param("net.cuda()\n" + MADE, 1, True, id="moved in front of it"),
        pytest.param("def move(model):\n    model.cuda()\n\n\nmove(net)\n" + MADE, 1, False, id="moved by a function"),
    ],
)
def test_moves_are_those_of_the_networks_that_are_stepped(text: str, count: int, before: bool) -> None:
    """What happens to other networks says nothing."""
    facts = facts_of(HEAD + text)
    assert len(moves_of_stepped(facts, made(facts))) == count
    assert are_moved_before(facts, made(facts)) is before


def test_moves_in_the_script_count_for_an_optimizer_of_another_file() -> None:
    """The network comes as an argument."""
    library = "import torch\n\n\ndef build(net):\n    return torch.optim.SGD(net.parameters(), lr=1)\n"
    script = facts_of(f"{HEAD}from build import build\n\nnet.cuda()\noptimizer = build(net)\n", modules={"build.py": library})
    facts = script.project.file("build.py")
    assert facts is not None
    (move,) = moves_of_stepped(facts, made(facts))
    assert move.facts.path == "train.py"
    assert not move.is_beside(facts, made(facts))


@pytest.mark.parametrize(
    ("body", "always", "available"),
    [
        pytest.param("x = x.cuda()\n", True, True, id="no condition"),
        pytest.param("if torch.cuda.is_available():\n    x = x.cuda()\n", False, True, id="where CUDA is"),
        pytest.param("x = x.cuda() if torch.cuda.is_available() else x\n", False, True, id="where CUDA is, in an expression"),
        pytest.param("if gpu > 0:\n    x = x.cuda()\n", False, False, id="by a condition of its own"),
        pytest.param("if gpu > 0:\n    y = x.cuda()\nx = x.cuda()\n", True, False, id="one of two always"),
        pytest.param("if gpu > 0:\n    x = x.cuda(gpu)\nelse:\n    x = x.cuda()\n", True, True, id="in both branches"),
    ],
)
def test_copies_happen_always_or_on_conditions(body: str, always: bool, available: bool) -> None:
    """Conditions around the loop are no conditions of its copies."""
    step = body + "net(x).mean().backward()\noptimizer.step()\n"
    loop = f"if train:\n    for x in torch.ones(2, 2):\n{indent(step, ' ' * 8)}"
    for text in (MADE + loop, "if __name__ == '__main__':\n" + indent(MADE + loop, "    ")):
        facts = facts_of(HEAD + text)
        copies = copies_to_cuda(facts.loops.training[0])
        assert always_happens(facts, copies) is always
        assert happens_where_available(facts, copies) is available
