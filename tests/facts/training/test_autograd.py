"""Code that uses autograd itself, seen through what it calls."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of

HEAD = "import torch\nfrom torch import nn\nnet = nn.Linear(2, 2)\noptimizer = torch.optim.SGD(net.parameters(), lr=1)\n"


def use_in(text: str, **arguments: object) -> int | None:
    """The line on which autograd is used in the last statement; the text begins on the fifth."""
    facts = facts_of(HEAD + text, **arguments)  # type: ignore[arg-type]
    found = facts.autograd.used_in(facts.tree.module.body[-1:])
    return getattr(found[1], "lineno", None) if found is not None else None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("print(net(x).argmax())", id="a forward pass"),
        pytest.param("x = torch.autograd.Variable(y)", id="an old variable"),
        pytest.param("with torch.no_grad():\n    net(x)", id="gradients off"),
        pytest.param("for p in net.parameters():\n    p.requires_grad = False", id="frozen"),
        pytest.param("env.step(action)", id="the step of something else"),
        pytest.param("def f():\n    loss.backward()", id="a function that is not called"),
    ],
)
def test_no_use(text: str) -> None:
    """Forward passes, freezing and steps of environments do without."""
    assert use_in(text) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("loss.backward()", 5, id="backward"),
        pytest.param("g = torch.autograd.grad(y, x)", 5, id="by hand"),
        pytest.param("optimizer.step()", 5, id="a step"),
        pytest.param("x.requires_grad_()", 5, id="a leaf"),
        pytest.param("print(x.grad)", 5, id="a gradient read"),
        pytest.param("with torch.enable_grad():\n    net(x)", 5, id="switched on"),
        pytest.param("scaler(loss, optimizer)", 5, id="an optimizer handed out of sight"),
        pytest.param("def f():\n    loss.backward()\nf()", 6, id="in a function"),
        pytest.param("class A:\n    def f(self):\n        x.backward()\na = A()\na.f()", 7, id="in a method"),
        pytest.param("h = [lambda: x.backward()]", 5, id="in a lambda"),
        pytest.param(
            "class N(nn.Module):\n    def forward(self, x):\n        return torch.autograd.grad(x, x)\nn = N()\nn(x)", 7, id="in a network"
        ),
    ],
)
def test_use(text: str, line: int) -> None:
    """Named where it is, in this file or in what it calls."""
    assert use_in(text) == line


def test_use_in_another_file() -> None:
    """An imported function that trains."""
    assert use_in("from a import f\nf(net)", modules={"a.py": "def f(n):\n    n(1).backward()\n"}) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("loss.backward()", True, id="backward"),
        pytest.param("def f():\n    loss.backward()\nfor x in y:\n    f()", True, id="in a function"),
        pytest.param("assert not x.requires_grad", False, id="a question"),
    ],
)
def test_what_trains(text: str, expected: bool) -> None:
    """Only what sends something backward trains."""
    facts = facts_of(HEAD + text)
    assert facts.autograd.trains_in(facts.tree.module.body[-1:]) is expected


def test_functions_that_call_each_other_end() -> None:
    """A circle of calls uses nothing."""
    assert use_in("def f():\n    g()\ndef g():\n    f()\nf()") is None
