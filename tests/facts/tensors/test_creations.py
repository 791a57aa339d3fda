"""Tensors that are made and then moved, taken apart."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.tensors.creations import Agreement, Creation, Given


def creations(text: str) -> list[Creation]:
    return list(facts_of(f"import torch\nimport numpy as np\n{text}\n").creations.moved())


@pytest.mark.parametrize(
    "text",
    ["x = torch.zeros(3)", "x = y.cuda()", "x = torch.cat([a]).cuda()", "x = torch.zeros(3).tolist().cuda()", "x = np.zeros(3).cuda()"],
)
def test_no_creation(text: str) -> None:
    """Without a factory at the bottom and a move at the top there is none."""
    assert creations(text) == []


def test_creation_is_taken_apart() -> None:
    """Factory, steps from the inside outwards, and move."""
    (creation,) = creations("x = torch.zeros(3).float()[None].view(-1).cuda(0)")
    assert creation.name == "zeros"
    assert len(creation.steps) == 3
    assert creation.casts
    assert creation.first is None


def test_move_in_the_next_statement_belongs_to_the_creation() -> None:
    """``x = x.cuda()`` directly behind ``x = torch.zeros(3)`` is one creation."""
    (creation,) = creations("x = torch.zeros(3)\nx = x.cuda()")
    assert creation.first is not None
    assert creations("x = torch.zeros(3)\nprint(x)\nx = x.cuda()") == []
    assert creations("x = torch.zeros(3)\ny = x.cuda()") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch.zeros(3)", Agreement.EXACT),
        ("torch.arange(n)", Agreement.EXACT),
        ("torch.arange(1, len(y), 2)", Agreement.EXACT),
        ("torch.arange(0, n)", Agreement.ROUNDED),
        ("torch.linspace(0, 1, 5)", Agreement.ROUNDED),
        ("torch.rand(3)", Agreement.RANDOM),
        ("torch.empty(3).normal_()", Agreement.RANDOM),
    ],
)
def test_agreement_of_host_and_device(text: str, expected: Agreement) -> None:
    """Fills and whole-number counts agree exactly, computed values up to rounding, random ones not at all."""
    facts = facts_of(f"import torch\nx = {text}.cuda()\n")
    (creation,) = facts.creations.moved()
    assert facts.creations.agreement(creation) is expected


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("unknown", None),
        ("np.array(3)", None),
        ("x.shape", None),
        ("*sizes", Given.SIZES),
        ("n, m", Given.SIZES),
        ("len(x)", Given.SIZES),
        ("x.size()", Given.SIZES),
        ("[1, 2]", Given.DATA),
        ("[0] * n", Given.DATA),
        ("[i for i in x]", Given.DATA),
        ("list(x)", Given.DATA),
        ("np.stack([x])", Given.DATA),
    ],
)
def test_legacy_constructor_is_given_sizes_or_data(argument: str, expected: Given | None) -> None:
    """One argument may be either, so it must be known."""
    facts = facts_of(f"import torch\nimport numpy as np\nmade = torch.FloatTensor({argument}).cuda()\n")
    (creation,) = facts.creations.moved()
    assert facts.creations.given(creation.factory) is expected
