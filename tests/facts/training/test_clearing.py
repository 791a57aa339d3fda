"""Clearing gradients: loops that do so by hand, and who reads or needs the zeros."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node

HEAD = """
import torch
from torch import nn
net = nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""


@pytest.mark.parametrize(
    ("text", "owners"),
    [
        pytest.param("for p in net.parameters():\n    p.grad = None", [], id="dropped"),
        pytest.param("for p in net.parameters():\n    p.grad.zero_()\n    print(p)", [], id="something else too"),
        pytest.param("for p in net.parameters():\n    if p.grad is not None and p.dim() > 1:\n        p.grad.zero_()", [], id="some only"),
        pytest.param("for p in net.parameters():\n    q.grad.zero_()", [], id="another one's"),
        pytest.param("for p in net.parameters():\n    p.grad.fill_(1)", [], id="ones"),
        pytest.param("for p in net.parameters():\n    p.grad.zero_()\nelse:\n    print(1)", [], id="with an else clause"),
        pytest.param("for p in (torch.ones(1), torch.ones(2)):\n    p.grad.zero_()", [], id="tensors"),
        pytest.param("for p in net.parameters():\n    p.grad.zero_()", ["net"], id="plain"),
        pytest.param("for n, p in net.body.named_parameters():\n    p.grad.data.zero_()", ["net.body"], id="part of a network"),
        pytest.param("for g in optimizer.param_groups:\n    for p in g['params']:\n        p.grad.zero_()", ["optimizer"], id="groups"),
        pytest.param("for g in optimizer.param_groups:\n    for p in h['params']:\n        p.grad.zero_()", [None], id="other groups"),
        pytest.param("params = list(net.parameters())\nfor p in params:\n    p.grad.zero_()", ["net"], id="variable"),
        pytest.param("net = wrap(net)\nparams = net.parameters()\nfor p in params:\n    p.grad.zero_()", [None], id="network bound anew"),
        pytest.param("def f(params):\n    for p in params:\n        p.grad.zero_()", [None], id="out of sight"),
        pytest.param("def f(params):\n    for p in params:\n        p.grad.zero_()\nf(net.parameters())", [None], id="of a caller"),
    ],
)
def test_loops_that_clear_by_hand(text: str, owners: list[str | None]) -> None:
    """A loop that does nothing but clear gradients is known, with the network or optimizer that it goes through."""
    found = facts_of(f"{HEAD}{text}\n").clearing.hand_loops
    assert [ast.unparse(loop.owner) if loop.owner is not None else None for loop in found] == owners


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("torch.autograd.grad(a, b)", [], id="torch's function"),
        pytest.param("x.grad(y)", [], id="a method"),
        pytest.param("p.grad = g", [], id="written"),
        pytest.param("del p.grad", [], id="deleted"),
        pytest.param("if p.grad is None:\n    print(1)", [], id="compared with None"),
        pytest.param("if p.grad is not None:\n    print(p.grad)", [], id="guarded"),
        pytest.param("x = p.grad.norm() if p.grad is not None else 0", [], id="guarded in an expression"),
        pytest.param("x = [p.grad for p in q if p.grad is not None]", [], id="guarded in a comprehension"),
        pytest.param("for p in q:\n    if p.grad is None or done:\n        continue\n    print(p.grad)", [], id="guarded by continue"),
        pytest.param("print(p.grad)", [6], id="read"),
        pytest.param("p.grad.zero_()", [6], id="cleared in place"),
        pytest.param("p.grad += g", [6], id="added to"),
        pytest.param("p.grad.data = g", [6], id="data written"),
        pytest.param("if p.grad > 0:\n    print(1)", [6], id="compared"),
        pytest.param("if p.grad is not None:\n    print(q.grad)", [7], id="another one guarded"),
        pytest.param("if p.grad is None:\n    print(p.grad)", [7], id="guarded the wrong way"),
        pytest.param("if p.grad is not None or done:\n    print(p.grad)", [7], id="guarded by one of two"),
    ],
)
def test_readers_of_gradients(text: str, expected: list[int]) -> None:
    """Reading counts unless a condition has made sure that there is a gradient."""
    assert [read.lineno for _, read in facts_of(f"{HEAD}{text}\n").clearing.readers] == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("optimizer.zero_grad()", "net(x).backward()", "print(p.grad)", "optimizer.step()"), True),
        (("net(x).backward()", "optimizer.step()", "print(p.grad)", "optimizer.zero_grad()"), True),
        (("optimizer.zero_grad()", "print(p.grad)", "net(x).backward()", "optimizer.step()"), False),
        (("net(x).backward()", "optimizer.step()", "optimizer.zero_grad()", "print(p.grad)"), False),
        (("print(p.grad)", "net(x).backward()", "optimizer.step()", "optimizer.zero_grad()"), False),
    ],
)
def test_reading_between_backward_pass_and_clearing(lines: tuple[str, ...], expected: bool) -> None:
    """Behind a backward pass and before the next clearing there is a gradient."""
    facts = facts_of(f"{HEAD}for x in data:\n" + "".join(f"    {line}\n" for line in lines))
    read = node(facts, "p.grad")
    assert isinstance(read, ast.Attribute)
    assert facts.clearing.is_between(read) is expected


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("net.train()", None),
        ("nn.parallel.DistributedDataParallel(net)", None),
        ("nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=False)", None),
        ("nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=flag)", "gradients-in-place"),
        ("with torch.cuda.graph(g):\n    pass", "gradients-in-place"),
        ("torch.cuda.make_graphed_callables(net, x)", "gradients-in-place"),
        ("net.share_memory()", "shared-gradients"),
        ("p._grad = q.grad", "shared-gradients"),
        ("import torch.distributed.rpc", "shared-gradients"),
    ],
)
def test_who_needs_zeros(text: str, code: str | None) -> None:
    """Gradients that others hold on to, or that must keep their place, cannot be dropped."""
    obstacle = facts_of(f"{HEAD}{text}\n").clearing.need
    assert (obstacle.code if obstacle is not None else None) == code


def test_freezing() -> None:
    """Switching the gradients of a parameter is seen; what is done to a gradient itself is not meant."""
    assert facts_of(f"{HEAD}p.requires_grad = False\n").clearing.freezes
    assert facts_of(f"{HEAD}net.requires_grad_(False)\n").clearing.freezes
    assert not facts_of(f"{HEAD}p.grad.requires_grad_(False)\n").clearing.freezes
