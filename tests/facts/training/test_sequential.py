"""The last layer of an `nn.Sequential`, written out or collected in a list."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.training.sequential import last_layers


def ends(code: str) -> list[str]:
    """What the Sequential in some statements may end in."""
    facts = facts_of(f"from torch import nn\n\n{code}\n")
    (call,) = facts.tree.calls["Sequential"]
    return [ast.unparse(item) for item in last_layers(facts, call)]


@pytest.mark.parametrize(
    "code",
    [
        "nn.Sequential()",
        "nn.Sequential(*layers(3))",
        "items = layers(3)\nnn.Sequential(*items)",
        "items = [nn.ReLU()]\nitems.extend(others)\nnn.Sequential(*items)",
        "items = [nn.ReLU()]\nitems[0] = other\nnn.Sequential(*items)",
        "items = [nn.ReLU()]\nitems += others\nnn.Sequential(*items)",
        "items = [*others]\nnn.Sequential(*items)",
        "for items in lists:\n    nn.Sequential(*items)",
    ],
)
def test_an_end_that_is_not_seen_is_none(code: str) -> None:
    """Something else may come in."""
    assert ends(code) == []


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("nn.Sequential(nn.ReLU(), nn.Tanh())", ["nn.Tanh()"]),
        ("nn.Sequential(*[nn.ReLU(), nn.Tanh()])", ["nn.Tanh()"]),
        ("items = [nn.ReLU()]\nitems += [nn.ReLU(), nn.Tanh()]\nnn.Sequential(*items)", ["nn.Tanh()"]),
        ("items = [nn.ReLU()]\nitems.append(nn.Tanh())\nnn.Sequential(*items)", ["nn.ReLU()", "nn.Tanh()"]),
    ],
)
def test_the_ends_that_are_seen(code: str, last: list[str]) -> None:
    """All that it may be."""
    assert sorted(ends(code)) == sorted(last)
