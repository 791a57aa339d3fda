"""Tensor objects: which one nothing else holds, and which one stays as it is wherever it goes."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.tensors.identity import is_consumed, is_sole, is_unchanged

HEAD = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

net = torch.nn.Linear(2, 1)
loader = DataLoader(TensorDataset(torch.zeros(4, 2)), batch_size=2)
"""


@pytest.mark.parametrize(
    ("text", "expression", "expected"),
    [
        pytest.param("x = load()\ny = use(x)", "x", False, id="unknown"),
        pytest.param("def f(x):\n    return use(x)", "x", False, id="a parameter"),
        pytest.param("x = torch.zeros(3)\ny = use(x)\nx.sum()", "x", False, id="read again"),
        pytest.param("x = torch.zeros(3)\nz = x\ny = use(x)", "x", False, id="under another name"),
        pytest.param("x = torch.zeros(3)\nfor i in s:\n    y = use(x)", "x", False, id="made outside the loop"),
        pytest.param("y = use(x.cuda())", "x.cuda()", False, id="may be the object itself"),
        pytest.param("for x, in loader:\n    y = use(x)\n    print(x)", "x", False, id="a batch that is read again"),
        pytest.param("for x, in DataLoader(d, 2, collate_fn=f):\n    y = use(x)", "x", False, id="a batch of another making"),
        pytest.param("y = use(torch.zeros(3))", "torch.zeros(3)", True, id="a factory"),
        pytest.param("T = torch.FloatTensor\ny = use(T(3).fill_(1.0))", "T(3).fill_(1.0)", True, id="a constructor"),
        pytest.param("y = use(a + b)", "a + b", True, id="a sum"),
        pytest.param("y = use(x.clone().cuda())", "x.clone().cuda()", True, id="a clone"),
        pytest.param("x = torch.zeros(3)\nx[0] = 1\nn = x.size(0)\ny = use(x)", "x", True, id="a variable"),
        pytest.param("def f():\n    x = torch.zeros(3)\n    for i in s:\n        x[i][0] = 1\n    use(x)", "x", True, id="filled"),
        pytest.param("for x, in loader:\n    y = use(x.view(1))", "x.view(1)", True, id="a batch"),
        pytest.param("for b in loader:\n    y = use(b[0])\n    z = b[1]", "b[0]", True, id="a part of a batch"),
    ],
)
def test_objects_that_nothing_else_holds(text: str, expression: str, expected: bool) -> None:
    """An object is for one use alone where it was made for it and nothing reads it beside."""
    facts = facts_of(HEAD + text)
    outer = node(facts, f"use({expression})")
    assert is_sole(facts, outer.args[0]) is expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("y = make()\ny.requires_grad = True", False, id="told to require a gradient"),
        pytest.param("y = make()\ny.requires_grad_()", False, id="by a method"),
        pytest.param("y = make()\nprint(y.grad)", False, id="its gradient is read"),
        pytest.param("y = make()\ny += 1", False, id="added to in place"),
        pytest.param("y = make()\ny.unsqueeze_(0)", False, id="reshaped in place"),
        pytest.param("y = make()\nz = y.view(1)\nz.add_(w)", False, id="through a view"),
        pytest.param("y = make()\nother(y)", False, id="given to other code"),
        pytest.param("y = make()\nkept.append(y)", False, id="kept"),
        pytest.param("y = make()\nkept[0] = y", False, id="stored"),
        pytest.param("def f():\n    return make()", False, id="returned"),
        pytest.param("torch.add(a, b, out=make())", False, id="written by a function"),
        pytest.param("y = [make()]\ny[0].requires_grad_()", False, id="an entry of a list"),
        pytest.param("y = {k: make() for k in s}\ny['a'].unsqueeze_(0)", False, id="an entry of a dictionary"),
        pytest.param("y = {k: make() for k in s}\nfor v in y.values():\n    v.grad", False, id="among the values of a dictionary"),
        pytest.param("y = [make()]\nprint(net(y[0]))", True, id="an entry of a list that is read"),
        pytest.param("self.y = make()\nself.y.requires_grad_()", False, id="an attribute"),
        pytest.param("a, y = 1, make()\ny.requires_grad_()", False, id="one of two targets"),
        pytest.param("y = make()\nz = net(y) + y * 2", True, id="given to a network"),
        pytest.param("y = make()\nprint(y.shape, y.sum().item(), y[0])", True, id="read"),
        pytest.param("y = make()\nz = torch.relu(y)", True, id="given to torch"),
        pytest.param("x, y = make(), 1\nnet(x)", True, id="one of two"),
        pytest.param("y = [make() for i in s]\nnet(y)", True, id="in a list"),
        pytest.param("y = make().cuda()\nnet(y)", True, id="moved"),
        pytest.param("y = net(make()).backward()", True, id="an argument"),
    ],
)
def test_objects_that_stay_as_they_are(text: str, expected: bool) -> None:
    """An object is unchanged where every use only reads it; what is out of sight may change it."""
    facts = facts_of(HEAD + text)
    assert is_unchanged(facts, node(facts, "make()")) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("x = make()", False, id="kept in a variable"),
        pytest.param("kept = {}\nkept[0] = make()", False, id="kept in a dictionary"),
        pytest.param("kept.append(make())", False, id="kept in a list"),
        pytest.param("y = make().data", False, id="an attribute"),
        pytest.param("t = torch.zeros(3)\nt[0] = make().view(-1).cuda()", True, id="copied into a tensor"),
        pytest.param("y = w * make()", False, id="a factor of a product that may be sent backward"),
        pytest.param("y = make().view(-1) @ w", False, id="a factor, as a view"),
        pytest.param("y = make() * 2", True, id="arithmetic"),
        pytest.param("y = 2 / make()", True, id="arithmetic with a number before it"),
        pytest.param("y = w - make()", True, id="a sum keeps nothing"),
        pytest.param("y = make().float() > 2", True, id="a comparison"),
    ],
)
def test_tensors_that_are_read_at_once(text: str, expected: bool) -> None:
    """A tensor is consumed where only its values go on."""
    facts = facts_of(HEAD + text)
    assert is_consumed(facts, node(facts, "make()")) is expected
