"""Every call of a module: through variables, functions, attributes and wrappers, and where it is out of sight."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.training.module_calls import OutOfSight, calls_of

HEAD = "import torch\nfrom torch import nn\n\n"


def calls(text: str, made: str = "nn.BCELoss()", modules: dict[str, str] | None = None) -> list[str]:
    """The calls of the module that an expression makes, as they are written."""
    facts = facts_of(HEAD + text, modules=modules)
    return [home.source.segment(call) for home, call in calls_of([(facts, node(facts, made))])]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("c = nn.BCELoss()\nfit(c)\n", id="given to unknown code"),
        pytest.param("c = [nn.BCELoss()]\n", id="in a list"),
        pytest.param("c = nn.BCELoss()\nif x:\n    c = other()\nc(a, b)\n", id="one of two"),
        pytest.param("c = nn.BCELoss()\nd = c.weight\n", id="an attribute of it"),
        pytest.param("c = nn.BCELoss()\nd = list(c.modules())\n", id="its layers, kept"),
        pytest.param("def f(c=None):\n    c = nn.BCELoss()\n    return c(a, b)\n\n\nf(other)\n", id="a parameter, bound anew"),
        pytest.param("def f(c):\n    return c(a, b)\n\n\nf(nn.BCELoss())\nf(other)\n", id="a function that is given others"),
        pytest.param(
            "class A:\n    def __init__(self):\n        self.c = nn.BCELoss()\n\n\nprint(thing.c)\n", id="an attribute of anything"
        ),
    ],
)
def test_out_of_sight(text: str) -> None:
    """What may be called where that is not seen, or may be something else, is not known."""
    with pytest.raises(OutOfSight):
        calls(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("nn.BCELoss()\n", [], id="not at all"),
        pytest.param("nn.BCELoss()(a, b)\n", ["nn.BCELoss()(a, b)"], id="in place"),
        pytest.param("c = nn.BCELoss().to(device)\nc.cuda()\nprint(c)\nc(a, b)\n", ["c(a, b)"], id="through a variable and a move"),
        pytest.param("def f(c):\n    return c(a, b)\n\n\nk = nn.BCELoss()\nf(k)\n", ["c(a, b)"], id="through a parameter"),
        pytest.param("def make():\n    return nn.BCELoss()\n\n\nc = make()\nc(a, b)\n", ["c(a, b)"], id="through a function that makes it"),
        pytest.param(
            "class A:\n    def __init__(self):\n        self.c = nn.BCELoss()\n\n    def f(self):\n        return self.c(a, b)\n",
            ["self.c(a, b)"],
            id="through an attribute",
        ),
        pytest.param("c = nn.DataParallel(nn.BCELoss())\nc.module(a)\nc(b)\n", ["c.module(a)", "c(b)"], id="through a wrapper"),
        pytest.param("nn.parallel.data_parallel(nn.BCELoss(), a)\n", ["nn.parallel.data_parallel(nn.BCELoss(), a)"], id="replicated"),
    ],
)
def test_calls(text: str, found: list[str]) -> None:
    """The module is followed to all that calls it."""
    assert calls(text) == found


def test_a_variable_that_another_file_imports_is_out_of_sight() -> None:
    """The other file may call it."""
    with pytest.raises(OutOfSight) as lost:
        calls("c = nn.BCELoss()\n", modules={"other.py": "from train import c\n"})
    assert isinstance(lost.value.node, ast.Name)


def test_what_its_class_adds_may_be_asked_for() -> None:
    """A method or a layer of its own does not run the module; replacing one may change it."""
    text = "class Net(nn.Module):\n    pass\n\n\nnet = Net()\nnet.encode(x)\nprint(net.layer.weight)\nnet(x)\n"
    facts = facts_of(HEAD + text)
    made = [(facts, node(facts, "Net()"))]
    assert len(calls_of(made, frozenset({"encode", "layer"}))) == 1
    with pytest.raises(OutOfSight):
        calls_of(made, frozenset({"encode"}))
    changed = facts_of(HEAD + text + "net.layer = other\n")
    with pytest.raises(OutOfSight):
        calls_of([(changed, node(changed, "Net()"))], frozenset({"encode", "layer"}))


def test_a_loop_over_its_layers_is_no_call() -> None:
    """Weights are initialised so."""
    assert calls("c = nn.BCELoss()\nfor layer in c.modules():\n    print(layer)\nc(a, b)\n") == ["c(a, b)"]


def test_a_function_that_only_lists_what_it_is_given_may_be_given_other_modules_too() -> None:
    """Printing a module and counting its weights do not run it; running it in some cases may be out of sight."""
    text = "def show(m):\n    print(m, sum(p.numel() for p in m.parameters()))\n\n\nc = nn.BCELoss()\nshow(c)\nshow(other)\nc(a, b)\n"
    assert calls(text) == ["c(a, b)"]
    with pytest.raises(OutOfSight):
        calls(text.replace("print(m,", "print(m(x),"))
