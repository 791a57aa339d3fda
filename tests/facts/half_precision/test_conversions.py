"""Where and how variables are converted back to float32."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.half_precision.conversions import conversion

TEXT = """\
import torch
a, b = net(x)
c = head(a)
out = tail(c)
loss(out)
"""
HALF = "{item}.float() if isinstance({item}, {tensor}) and {item}.is_floating_point() else {item}"


def converted(text: str, name: str, region: tuple[int, int]) -> tuple[int, str]:
    """The line behind which a name's first binding is converted, and the statement that does it."""
    facts = facts_of(text)
    body = facts.tree.module.body
    binding = next(use for use in facts.tree.names[name] if isinstance(use.ctx, ast.Store))
    behind, code = conversion(facts, [(body[region[0]], body[region[1]])], binding)
    return behind.lineno, code


@pytest.mark.parametrize(
    ("name", "region", "line"),
    [
        pytest.param("b", (1, 3), 4, id="behind the region"),
        pytest.param("a", (1, 3), 2, id="where something in the region reads it"),
        pytest.param("a", (1, 1), 2, id="a region of one statement"),
        pytest.param("b", (3, 3), 2, id="outside of the region"),
    ],
)
def test_conversions_stand_behind_their_region_unless_that_reads_them(name: str, region: tuple[int, int], line: int) -> None:
    """Those of a region stand together."""
    assert converted(TEXT, name, region) == (line, f"{name} = {name}.float()")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(
            TEXT,
            f"out = tuple({HALF.format(item='item', tensor='torch.Tensor')} for item in out)",
            id="new name",
        ),
        pytest.param(
            TEXT.replace("import torch", "from torch import Tensor").replace("loss(out)", "item = loss(out)"),
            f"out = tuple({HALF.format(item='value', tensor='Tensor')} for value in out)",
            id="names that are taken",
        ),
    ],
)
def test_the_elements_of_a_tuple_are_converted_where_they_are_fractions(text: str, code: str) -> None:
    """Masks, lengths and what is no tensor stay."""
    assert converted(text, "out", (3, 3)) == (4, code)
