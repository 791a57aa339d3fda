"""Why some statements need gradients, or that they do not."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of

HEAD = "import torch\nfrom torch import nn\nnet = nn.Linear(2, 2)\n"


def need(text: str, whole: bool = False) -> str | None:
    """The code of the obstacle to a block around the statement behind ``begin``, or to all of the last function."""
    facts = facts_of(HEAD + text)
    body = facts.tree.functions[-1].body if whole else facts.tree.module.body
    if whole:
        obstacle = facts.gradient_needs.of(body, whole=True)
    else:
        start = next(index for index, item in enumerate(body) if facts.source.segment(item) == "begin")
        obstacle = facts.gradient_needs.of(body[start + 1 : start + 2])
    return obstacle.code if obstacle is not None else None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("begin\nprint(net(x))", id="printed"),
        pytest.param("begin\nout = net(x)\nprint(out.argmax())", id="read behind it as a number"),
        pytest.param("begin\nfor i, x in enumerate(y):\n    n = i + 1\nn.backward()", id="a count that leaves"),
        pytest.param("found = []\nbegin\nfor x in y:\n    found.append(net(x).item())\nfound[0].backward()", id="numbers in a list"),
        pytest.param("begin\nfor x in y:\n    net.eval()\n    m = net\nm(1).backward()", id="a network that leaves"),
    ],
)
def test_no_need(text: str) -> None:
    """Numbers, text and networks may leave."""
    assert need(text) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param("begin\nloss.backward()", "gradients-used", id="a backward pass"),
        pytest.param("begin\nout = net(x)\nout.mean().backward()", "used-in-training", id="sent backward behind it"),
        pytest.param("found = []\nbegin\nfound.append(net(x))\nfound[0].backward()", "used-in-training", id="put into a list"),
        pytest.param("begin\nself.x = net(x)\nself.x.backward()", "used-in-training", id="stored"),
        pytest.param("from lib import f\nbegin\nout = net(x)\nf(out)", "out-of-sight", id="handed out of sight"),
        pytest.param("begin\nthing.method(net)", "out-of-sight", id="a network handed out of sight"),
        pytest.param("begin\nthing.step()", "out-of-sight", id="a step of something"),
        pytest.param("y = net(x)\nbegin\ny.mul_(2)", "written-in-place", id="an older tensor written in place"),
        pytest.param("def f():\n    global kept\n    kept = net(x)\nbegin\nf()", None, id="a function that keeps what nobody reads"),
        pytest.param(
            "class A:\n    def f(self, x):\n        self.kept = net(x)\n        return self.kept\n"
            "    def g(self):\n        self.kept.backward()\n"
            "a = A()\nbegin\nprint(a.f(1))",
            "used-in-training",
            id="a method that keeps what another sends backward",
        ),
    ],
)
def test_need(text: str, code: str | None) -> None:
    """What is used inside, what leaves with a graph, and what is out of sight."""
    assert need(text) == code


def test_a_generator_needs_a_decorator() -> None:
    """A block would stay open while the consumer runs; a decorator does not (trap 5)."""
    text = "def f():\n    for x in y:\n        yield net(x).argmax()\n"
    facts = facts_of(HEAD + text)
    assert need(text, whole=True) is None
    obstacle = facts.gradient_needs.of(facts.tree.functions[0].body)
    assert obstacle is not None
    assert obstacle.code == "generator"


def test_datasets_that_compute_with_a_network() -> None:
    """Without workers a dataset runs inside the loop, and under its switch."""
    text = """
class Data(torch.utils.data.Dataset):
    def __getitem__(self, i):
        return net(torch.ones(2)).requires_grad_()

loader = torch.utils.data.DataLoader(Data())
begin
for x in loader:
    print(net(x))
"""
    assert need(text) == "graph-in-dataset"
