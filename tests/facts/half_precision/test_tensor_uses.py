"""Where a program treats what a call gives, or a variable holds, as one tensor."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.half_precision.stretches import Forward
from torchfix.facts.half_precision.tensor_uses import function_run, name_is_tensor, result_is_tensor

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


class Loss(nn.Module):
    def forward(self, out, y):
        return (out - y).abs().mean()


def norm(out):
    return out.norm()


def show(out):
    print(out)


loss = Loss()
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("r = make(x).mean()", True, id="by a method of tensors"),
        pytest.param("r = make(x).items()", False, id="by a method of dictionaries"),
        pytest.param("r = F.relu(make(x))", True, id="by a function of torch"),
        pytest.param("r = torch.cat(make(x))", False, id="by a function that takes several"),
        pytest.param("r = norm(make(x))", True, id="by a function of the project that needs one"),
        pytest.param("r = show(make(x))", False, id="by a function that takes anything"),
        pytest.param("r = loss(make(x), y)", False, id="by arithmetic alone"),
        pytest.param("r = make(x)\nq = r.shape", True, id="by the statement behind"),
        pytest.param("r = make(x)\nif y:\n    q = r.shape", False, id="under a condition"),
        pytest.param("r = make(x)\nq = torch.stack([r, r])", True, id="joined with another"),
    ],
)
def test_a_result_is_one_tensor_where_it_is_used_as_one(text: str, expected: bool) -> None:
    """Only uses that surely happen, and that only a tensor allows, prove it."""
    facts = facts_of(HEAD + text + "\n")
    call = node(facts, "make(x)")
    assert isinstance(call, ast.Call)
    assert result_is_tensor(facts, call) is expected


def test_an_unpacked_name_is_one_tensor_where_it_is_used_as_one() -> None:
    """The others of the same statement may be anything."""
    facts = facts_of("a, b = make(x)\nc = a.mean()\n")
    names = {use.id: use for use in ast.walk(facts.source.tree) if isinstance(use, ast.Name) and isinstance(use.ctx, ast.Store)}
    assert name_is_tensor(facts, names["a"])
    assert not name_is_tensor(facts, names["b"])


@pytest.mark.parametrize(("text", "name"), [("norm(x)", "norm"), ("loss(x, y)", "forward"), ("library.loss(x)", None), ("Loss()", None)])
def test_the_function_that_a_call_runs(text: str, name: str | None) -> None:
    """A function of the project, or the forward of an object of one of its classes."""
    facts = facts_of(f"{HEAD}r = {text}\n")
    call = node(facts, text, -1)
    assert isinstance(call, ast.Call)
    found = function_run(facts, call)
    assert (found[1].name if found is not None else None) == name


def converted(stored: str) -> list[str]:
    """What is converted back of a network's result that a method stores, its class using it in some way."""
    text = (
        "import torch\nfrom torch import nn\n\n\nclass T:\n"
        "    def __init__(self):\n        self.net = nn.ModuleList([nn.Linear(2, 2)])\n\n"
        f"    def forward(self, x):\n        self.out = self.net(x)\n\n    def loss(self, y):\n        {stored}\n"
    )
    facts = facts_of(text)
    (function,) = [item for item in ast.walk(facts.source.tree) if isinstance(item, ast.FunctionDef) and item.name == "forward"]
    found = facts.forwards.within(function)
    return [ast.unparse(item) for item in found.restored] if isinstance(found, Forward) else []


def test_an_attribute_is_one_tensor_where_the_class_uses_it_as_one() -> None:
    """By its methods, by a loss of torch, or joined with other tensors; not where only a condition leads there."""
    for use in ("return self.out.mean()", "return nn.L1Loss()(self.out, y)", "return torch.cat((self.out, y), 1)"):
        assert converted(use) == ["self.net(x)"], use
    for use in ("return self.out", "if y:\n            return self.out.mean()", "return torch.cat(self.out, 1)"):
        assert converted(use) == [], use
