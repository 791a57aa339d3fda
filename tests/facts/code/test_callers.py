"""Who calls a function of the project."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts import Facts

CLASS = "class T:\n    def f(self, x): ...\n"


def calls_of_f(facts: Facts) -> list[str] | None:
    """The calls of the first function named ``f``, in text order."""
    function = next(item for item in facts.tree.functions if item.name == "f")
    found = facts.callers_everywhere(function)
    return None if found is None else sorted(ast.unparse(call) for _, call in found)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{CLASS}T().f(1)\nstranger.f(2)", id="object that is not known"),
        pytest.param(f"{CLASS}t = T()\ng = t.f", id="handed on"),
        pytest.param(f"{CLASS}import torch\nt = torch.load(p)\nt.f(1)", id="object that was stored"),
        pytest.param(f"{CLASS}T.f(T(), 1)", id="through the class, with the object as an argument"),
        pytest.param("import x\nclass T:\n    @x.wrap\n    def f(self, x): ...\nT().f(1)", id="decorated"),
    ],
)
def test_calls_of_a_method_that_may_be_out_of_sight(text: str) -> None:
    """One use that may be the method makes its callers unknown."""
    assert calls_of_f(facts_of(text)) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"{CLASS}    def g(self):\n        self.f(1)", ["self.f(1)"], id="self"),
        pytest.param(f"{CLASS}t = T()\nt.f(1)", ["t.f(1)"], id="object"),
        pytest.param(f"{CLASS}class U(T): ...\nu = U()\nu.f(1)", ["u.f(1)"], id="object of a subclass"),
        pytest.param(f"{CLASS}class U(T):\n    def f(self, x):\n        super().f(x)", ["super().f(x)"], id="super"),
        pytest.param(f"{CLASS}class U:\n    def f(self, x): ...\nU().f(1)\nT().f(2)", ["T().f(2)"], id="another class"),
        pytest.param(f"{CLASS}import torch\ntorch.zeros(1).f(1)\n[].f(2)\ntorch.f(3)", [], id="libraries"),
        pytest.param("class T:\n    @staticmethod\n    def f(x): ...\nT.f(1)", ["T.f(1)"], id="static"),
        pytest.param(
            "class B:\n    def g(self):\n        self.f(1)\nclass T(B):\n    def f(self, x): ...", ["self.f(1)"], id="from a base class"
        ),
    ],
)
def test_calls_of_a_method(text: str, expected: list[str]) -> None:
    """The calls through ``self``, through known objects and through ``super()``."""
    assert calls_of_f(facts_of(text)) == expected


def test_calls_of_a_method_in_a_file_that_does_not_import_its_class() -> None:
    """An object comes to other files of the program as an argument."""
    modules = {"main.py": "from train import T\nfrom engine import run\nrun(T())", "engine.py": "def run(t):\n    t.f(1)\n"}
    assert calls_of_f(facts_of(CLASS, modules=modules)) == ["t.f(1)"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("def f(x): ...\nf(1)\nrun(f)", None, id="handed on"),
        pytest.param("def f(x): ...\nf(1)\nf.tries.append(f.__call__(2))", None, id="called under another name"),
        pytest.param("def f(x): ...\nf(1)\nf.apply(2)", None, id="method of the function"),
        pytest.param("def f(x): ...\nf.args = parsed\nf(f.args)", ["f(f.args)"], id="keeps an attribute"),
    ],
)
def test_calls_of_a_function(text: str, expected: list[str] | None) -> None:
    """What a function keeps in an attribute of its own calls it nowhere."""
    assert calls_of_f(facts_of(text)) == expected


def test_file_of_another_program_does_not_count() -> None:
    """A method of that name on something unknown matters only where the object can come to."""
    modules = {"main.py": "from train import T\nT().f(1)", "other.py": "def run(t):\n    t.f(2)\n"}
    assert calls_of_f(facts_of(CLASS, modules=modules)) == ["T().f(1)"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("class T:\n    def __init__(self, x): ...\nclass U(T): ...\nT(1)\nU(2)", ["T(1)", "U(2)"], id="inherited"),
        pytest.param(
            "class T:\n    def __init__(self, x): ...\nclass U(T):\n    def __init__(self):\n        super().__init__(3)\nU()",
            ["super().__init__(3)"],
            id="super",
        ),
        pytest.param("@register\nclass T:\n    def __init__(self, x): ...\nT(1)", None, id="class that a decorator may make"),
        pytest.param("class T:\n    def __init__(self, x): ...\nmake(T)", None, id="class handed on"),
    ],
)
def test_calls_of_a_constructor(text: str, expected: list[str] | None) -> None:
    """Making an object of the class or of one below it calls the constructor."""
    facts = facts_of(text)
    found = facts.callers_everywhere(facts.tree.functions[0])
    assert (None if found is None else sorted(ast.unparse(call) for _, call in found)) == expected


def test_function_that_is_called_from_everywhere_is_left_alone() -> None:
    """Reading all of a big project for one parameter is not worth it."""
    modules = {f"script_{number}.py": "from train import f\nf(1)\n" for number in range(40)}
    assert calls_of_f(facts_of("def f(x): ...", modules=modules)) is None
