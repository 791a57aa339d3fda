from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.code.names import Definition
from torchfix.facts.training.coverage import left_out, reaches_every_weight


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


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param("nn.Linear(1, 1)", True, id="layer"),
        pytest.param("nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU()))", True, id="sequence"),
        pytest.param("nn.DataParallel(nn.Linear(1, 1))", True, id="replicated"),
        pytest.param("nn.Sequential(*layers)", False, id="layers out of sight"),
        pytest.param("nn.ModuleList([nn.Linear(1, 1)])", False, id="list of layers"),
        pytest.param("torch.hub.load('x', 'y')", False, id="library"),
        pytest.param("torch.compile(nn.Linear(1, 1))", False, id="compiled"),
    ],
)
def test_gradients_of_torchs_own_layers(made: str, expected: bool) -> None:
    """Layers and sequences of them bring each weight its gradient."""
    facts = facts_of(f"import torch\nfrom torch import nn\nnet = {made}\n")
    (network,) = facts.models.of(node(facts, made)) or ()
    assert reaches_every_weight(network) is expected


@pytest.mark.parametrize(
    ("init", "forward", "expected"),
    [
        pytest.param(A, "return torch.relu(self.a(x)).view(x.size(0), -1)", True, id="plain"),
        pytest.param(A, "'''Pass.'''\n        y = self.a(x)\n        return y + x", True, id="variable"),
        pytest.param("self.a = nn.Parameter(torch.zeros(1))", "return x + self.a", True, id="parameter"),
        pytest.param(A, "return x", False, id="left out"),
        pytest.param(A, "y = self.a(x)\n        return x", False, id="result is dropped"),
        pytest.param(A, "self.a(x)\n        return x", False, id="run for nothing"),
        pytest.param(A, "return self.a(x), x", False, id="two results"),
        pytest.param(A, "return self.a(x).detach()", False, id="detached"),
        pytest.param(A, "return self.a(x).argmax()", False, id="a choice"),
        pytest.param(A, "with torch.no_grad():\n            return self.a(x)", False, id="without gradients"),
        pytest.param(A, "self.kept = self.a(x)\n        return x", False, id="kept"),
        pytest.param(A, "return helper(self.a(x))", False, id="function out of sight"),
        pytest.param("self.a = helper()", "return self.a(x)", False, id="layer out of sight"),
        pytest.param("self.a = nn.ModuleList([nn.Linear(1, 1)])", "return self.a[0](x)", False, id="list of layers"),
    ],
)
def test_gradients_of_a_class(init: str, forward: str, expected: bool) -> None:
    """A forward pass that does nothing but hand values on brings each weight its gradient."""
    text = f"""
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {forward}

net = Net()
"""
    facts = facts_of(text)
    (network,) = facts.models.of(node(facts, "Net()")) or ()
    assert reaches_every_weight(network) is expected
