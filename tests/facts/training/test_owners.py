"""Owners of parameters: the networks behind what an optimizer is given."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.training.owners import parameter_owners

TEXT = """\
from torch import nn

a = nn.Linear(2, 2)
b = nn.Linear(2, 2)
mine = list(a.parameters())
mine = mine + list(b.parameters())
take({})
"""


@pytest.mark.parametrize(
    ("given", "count"),
    [
        pytest.param("a.parameters()", 1, id="of one network"),
        pytest.param("[*a.parameters(), *b.parameters()]", 2, id="of two in a list"),
        pytest.param("[{'params': a.parameters()}, {'params': b.parameters()}]", 2, id="of two in groups"),
        pytest.param("c.parameters()", None, id="of something out of sight"),
        pytest.param("[x]", None, id="of nothing"),
    ],
)
def test_the_networks_behind_parameters_are_listed(given: str, count: int | None) -> None:
    """None where one of them is not known."""
    facts = facts_of(TEXT.format(given))
    call = facts.tree.calls["take"][0]
    assert isinstance(call.args[0], ast.expr)
    owners = parameter_owners(facts, call.args[0])
    assert (None if owners is None else len(owners)) == count
