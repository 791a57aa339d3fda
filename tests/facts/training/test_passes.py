"""Forward passes: which calls run a network, what becomes of what they compute, and what they are for."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts import Facts
from torchfix.facts.training.gradients import End

HEAD = "import torch\nfrom torch import nn\nnet = nn.Linear(2, 2)\n"


def passes(text: str, **arguments: object) -> tuple[Facts, list[str]]:
    """The forward passes behind the head, as text."""
    facts = facts_of(HEAD + text, **arguments)  # type: ignore[arg-type]
    return facts, [ast.unparse(call) for call in facts.passes.all]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("net(x)", ["net(x)"], id="a call"),
        pytest.param("with torch.no_grad():\n    net(x)", [], id="without gradients"),
        pytest.param("net.train()\nnet.parameters()", [], id="what every module has"),
        pytest.param("def f(m):\n    m.eval()\n    m(x)", ["m(x)"], id="an object that is put into evaluation"),
        pytest.param("def f(m):\n    m(x)", [], id="an object that is not known"),
        pytest.param("class A(nn.Module):\n    def forward(self, x):\n        return net(x)", [], id="inside a network"),
        pytest.param("import pytest\nnet(x)", [], id="a unit test"),
        pytest.param("def f():\n    return net(x)\nprint(f())", ["net(x)"], id="a function whose output ends"),
        pytest.param(
            "def f():\n    return net(x)\nprint(f())\nf().backward()", ["net(x)", "f()", "f()"], id="a function that lends its output"
        ),
    ],
)
def test_passes(text: str, expected: list[str]) -> None:
    """A function that runs a network for training and evaluation counts where it is called."""
    assert passes(text)[1] == expected


def test_the_fate_of_a_lent_output_is_that_of_the_call() -> None:
    """What one caller sends backward does not concern the other."""
    facts, _ = passes("def f():\n    return net(x)\nprint(f())\nf().backward()")
    calls = facts.tree.calls["f"]
    assert [facts.passes.fate(call).end for call in sorted(calls, key=lambda call: call.lineno)] == [End.NOWHERE, End.BACKWARD]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("net(x)", False, id="once"),
        pytest.param("for x in y:\n    net(x)", True, id="in a loop"),
        pytest.param("def f():\n    net(x)\nfor x in y:\n    f()", True, id="in a function that is called in a loop"),
        pytest.param("net.eval()\nnet(x)", True, id="on purpose"),
        pytest.param("v = Variable(x, volatile=True)\nnet(v)", True, id="once volatile"),
        pytest.param(
            "import torch.nn.functional as F\nfor x in y:\n    F.mse_loss(net(x), x)\n    w.backward()",
            False,
            id="a loss that is forgotten",
        ),
    ],
)
def test_what_is_worth_it(text: str, expected: bool) -> None:
    """Passes that run again and again, and those of an evaluation."""
    facts, _ = passes(text)
    assert facts.passes.is_worth_it(facts.passes.all[0]) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("with torch.no_grad():\n    f()", True, id="all callers"),
        pytest.param("with torch.no_grad():\n    f()\nf()", False, id="one of two callers"),
        pytest.param("def g():\n    f()\nwith torch.no_grad():\n    g()", True, id="the callers of the caller"),
        pytest.param("", False, id="no caller"),
    ],
)
def test_functions_that_run_without_gradients(text: str, expected: bool) -> None:
    """Where every caller has switched gradients off, the function needs no switch."""
    facts, _ = passes(f"def f():\n    net(x)\n{text}")
    assert facts.passes.is_off(facts.tree.functions[0]) is expected


def test_a_decorator_of_the_project_may_switch_gradients() -> None:
    """As those that put a network into evaluation and back do."""
    text = "def quiet(g):\n    def h():\n        with torch.no_grad():\n            g()\n    return h\n\n@quiet\ndef f():\n    net(x)\n"
    facts, _ = passes(text)
    assert facts.passes.is_off(next(item for item in facts.tree.functions if item.name == "f"))


def test_functions_that_call_each_other_end() -> None:
    """A circle of functions lends nothing by itself."""
    facts, found = passes("def f():\n    return g()\ndef g():\n    return f()\nf()")
    assert found == []
    assert not facts.passes.runs(node(facts, "f()"))  # type: ignore[arg-type]
