from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.coverage import left_out
from torchfix.facts.names import Definition


def layers(init: str, forward: str, signature: str = "self, x") -> list[str]:
    """The layers of a network that a forward pass may leave out."""
    text = f"""
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, deep=True):
        super().__init__()
        {init}

    def forward({signature}):
        {forward}
"""
    facts = facts_of(text)
    return [layer.attr for _, layer in left_out(Definition(facts, facts.tree.classes[0]))]


A = "self.a = nn.Linear(1, 1)"


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        (A, "return self.a(x)"),
        (A, "return self.a(x) if self.training else x"),
        (f"self.deep = deep\n        {A}", "return self.a(x) if self.deep else x"),
        ("self.a = nn.ReLU()", "return x"),
        (f"{A}\n        self.b = nn.Sequential(self.a)", "return self.b(x)"),
        (A, "return getattr(self, 'a')(x)"),
        ("self.a = nn.Parameter(torch.zeros(1))", "return x + self.a"),
        (A, "if x is None:\n            raise ValueError\n        return self.a(x)"),
    ],
)
def test_layers_that_every_pass_uses(init: str, forward: str) -> None:
    """A layer counts as used where nothing about the input decides it."""
    assert layers(init, forward) == []


@pytest.mark.parametrize(
    ("init", "forward"),
    [
        (A, "return x"),
        ("self.a = nn.Parameter(torch.zeros(1))", "return x"),
        (A, "return self.a(x) if x.mean() > 0 else x"),
        (A, "if x.size(0) > 1:\n            x = self.a(x)\n        return x"),
        (A, "if x.size(0) > 1:\n            return x\n        return self.a(x)"),
    ],
)
def test_layers_that_a_pass_may_leave_out(init: str, forward: str) -> None:
    """A layer that is never used, or only for some inputs, is named."""
    assert layers(init, forward) == ["a"]


def test_the_parts_of_a_network_are_looked_into() -> None:
    """A layer left out by a block counts for the network that is made of such blocks."""
    text = """
        from torch import nn

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.spare = nn.Linear(1, 1)

            def forward(self, x):
                return x

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.block = Block()

            def forward(self, x):
                return self.block(x)
    """
    facts = facts_of(text)
    assert [layer.attr for _, layer in left_out(Definition(facts, facts.tree.classes[1]))] == ["spare"]
