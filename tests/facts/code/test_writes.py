"""Writes in place, and tensors that are only read."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("x = y", False, id="bound to another object"),
        pytest.param("y = x + 1", False, id="read"),
        pytest.param("x.requires_grad_()", False, id="a flag, no value"),
        pytest.param("x._private_()", False, id="private method"),
        pytest.param("y[x] = 1", False, id="as an index"),
        pytest.param("x.name = 1", False, id="an attribute bound"),
        pytest.param("x += 1", True, id="augmented"),
        pytest.param("x[0] = 1", True, id="element"),
        pytest.param("x[0] += 1", True, id="augmented element"),
        pytest.param("x.grad += 1", True, id="augmented attribute"),
        pytest.param("x.add_(1)", True, id="method"),
        pytest.param("x.data.fill_(1)", True, id="through data"),
        pytest.param("x[0].zero_()", True, id="method of an element"),
        pytest.param("x.view(-1).add_(1)", True, id="through a view"),
        pytest.param("torch.add(a, b, out=x)", True, id="out"),
        pytest.param("torch.relu(x)", False, id="function"),
        pytest.param("torch.nn.init.zeros_(x)", True, id="function in place"),
        pytest.param("torch.nn.functional.relu(x, inplace=True)", True, id="function that is asked to"),
    ],
)
def test_writes_in_place(text: str, expected: bool) -> None:
    """Torch writes in place by operators, subscripts, methods with an underscore and ``out``."""
    facts = facts_of(f"import torch\nx = 1\n{text}\n")
    name = node(facts, "x")
    assert isinstance(name, ast.Name)
    assert bool(list(facts.writes.to(name))) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("x = make()\nx[0] = 1", False, id="written"),
        pytest.param("x = make()\nx += 1", False, id="augmented"),
        pytest.param("x = make()\ny = x.view(-1)\ny.zero_()", False, id="written through a view"),
        pytest.param("def f():\n    return make()", False, id="returned"),
        pytest.param("self.x = make()", False, id="kept"),
        pytest.param("use(make())", False, id="handed on"),
        pytest.param("make().zero_()", False, id="filled at once"),
        pytest.param("x = make() < 3", True, id="compared"),
        pytest.param("x = make()\ny = x + 1\nx = y * x", True, id="computed with"),
        pytest.param("x = make()\ny = torch.stack([x, x])", True, id="given to torch"),
        pytest.param("x = make().float().sum()", True, id="another tensor made of it"),
        pytest.param("x = make()\nn = x[0].size(0), x.shape", True, id="asked for its size"),
    ],
)
def test_tensor_that_is_only_read(text: str, expected: bool) -> None:
    """A tensor that is written, or goes where writes cannot be seen, is not only read."""
    facts = facts_of(f"import torch\n{text}\n")
    assert facts.writes.is_only_read(node(facts, "make()")) is expected
