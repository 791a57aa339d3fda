"""Cached device memory: who needs it to be given back."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts import Facts
from torchfix.facts.training.cached_memory import is_after_error, is_beside_evaluation, who_needs_it

HEAD = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader
loader = DataLoader(data)
net = nn.Linear(2, 2).cuda()
"""
CALL = "torch.cuda.empty_cache()"


def place(text: str) -> tuple[Facts, ast.stmt]:
    """The statement that empties the cache, in a snippet behind the head."""
    facts = facts_of(f"{HEAD}{text}\n")
    return facts, facts.tree.statement(node(facts, CALL))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(f"for x in loader:\n    out = net(x)\n    del out\n    {CALL}", None, id="a tensor is deleted"),
        pytest.param(f"for x in loader:\n    x = x.cpu()\n    {CALL}", None, id="a tensor leaves"),
        pytest.param(f"for x in loader:\n    net.to('cuda')\n    {CALL}", None, id="a network enters"),
        pytest.param(f"for x in loader:\n    net.cpu()\n    {CALL}", "network-leaves", id="a network leaves"),
        pytest.param(f"for x in loader:\n    torch.cuda.memory_summary()\n    {CALL}", "memory-measured", id="measured"),
        pytest.param(f"for x in loader:\n    {CALL}\n    net(x)\n    time.time()", None, id="a clock far behind"),
        pytest.param(f"for x in loader:\n    {CALL}\n    time.time()", "timed", id="a clock right behind"),
        pytest.param(
            f"def clean():\n    '''Tidy.'''\n    import gc\n    gc.collect()\n    {CALL}", "own-function", id="a function of its own"
        ),
    ],
)
def test_who_needs_the_memory(text: str, code: str | None) -> None:
    """Tensors are served from the cache; networks that leave, measurements and clocks are not."""
    obstacle = who_needs_it(*place(text))
    assert (obstacle.code if obstacle is not None else None) == code


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"try:\n    f()\nexcept RuntimeError:\n    {CALL}", True, id="except"),
        pytest.param(f"try:\n    f()\nexcept RuntimeError as e:\n    failed = True\nif failed:\n    {CALL}", True, id="flag"),
        pytest.param(f"try:\n    {CALL}\nexcept RuntimeError:\n    pass", False, id="try"),
        pytest.param(f"if net:\n    {CALL}", False, id="condition"),
    ],
)
def test_after_an_error(text: str, expected: bool) -> None:
    """An except clause, and a condition on what one sets, are reached by an error alone."""
    assert is_after_error(*place(text)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"if i % 9 == 0:\n    {CALL}\n    for x in loader:\n        net(x)", True, id="loop over batches"),
        pytest.param(f"if i % 9 == 0:\n    {CALL}\n    net.eval()", True, id="switched to evaluation"),
        pytest.param(f"if i % 9 == 0:\n    {CALL}\n    for line in text:\n        print(line)", False, id="other loop"),
        pytest.param(f"{CALL}\nfor x in loader:\n    net(x)", False, id="no condition"),
    ],
)
def test_beside_an_evaluation(text: str, expected: bool) -> None:
    """A condition with a loop over batches in it is a periodic evaluation."""
    assert is_beside_evaluation(*place(text)) is expected
