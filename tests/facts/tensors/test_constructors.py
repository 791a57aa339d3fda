"""Legacy constructors, known by what they are, also through the variable in which old programs keep them."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.tensors.constructors import Constructor

HOST, DEVICE = "torch", "torch.cuda"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("x = torch.zeros(3)", None, id="a factory"),
        pytest.param("x = make(3)", None, id="unknown"),
        pytest.param("FloatTensor = other\nx = FloatTensor(3)", None, id="the name alone"),
        pytest.param("T = torch.FloatTensor if c else torch.LongTensor\nx = T(3)", None, id="two dtypes"),
        pytest.param("T = torch.FloatTensor if c else other\nx = T(3)", None, id="or something else"),
        pytest.param("def f(T):\n    x = T(3)", None, id="a parameter"),
        pytest.param("x = torch.FloatTensor(3)", Constructor("float32", False, frozenset({HOST})), id="on the host"),
        pytest.param("x = torch.cuda.LongTensor(3)", Constructor("long", False, frozenset({DEVICE})), id="on the device"),
        pytest.param("x = torch.Tensor(3)", Constructor("float32", True, frozenset({HOST})), id="of the default dtype"),
        pytest.param(
            "T = torch.cuda.FloatTensor if c else torch.FloatTensor\nx = T(3)",
            Constructor("float32", False, frozenset({HOST, DEVICE})),
            id="either",
        ),
        pytest.param(
            "if c:\n    T = torch.cuda.FloatTensor\nelse:\n    T = torch.Tensor\ndef f():\n    x = T(3)",
            Constructor("float32", True, frozenset({HOST, DEVICE})),
            id="either, by branches",
        ),
    ],
)
def test_constructors(text: str, expected: Constructor | None) -> None:
    """Every constructor that a call may mean must be a legacy one, and all must make the same dtype."""
    facts = facts_of("import torch\n" + text)
    call = facts.tree.parent(node(facts, "3", -1))
    assert isinstance(call, ast.Call)
    assert facts.constructors.of(call) == expected
