from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.code.instances import Instance, Origin, origins_of
from torchfix.facts.data.samples import instances_of


def instance(text: str, made: str, modules: dict[str, str] | None = None) -> Instance:
    """The object that an expression of a snippet makes."""
    facts = facts_of(text, modules=modules)
    (found,) = instances_of(Origin(facts, node(facts, made)))
    return found


def held(text: str, made: str, attribute: str, modules: dict[str, str] | None = None) -> list[str] | None:
    """The texts of what an object's attribute was made from."""
    origins = instance(text, made, modules).attribute(attribute)
    return None if origins is None else [ast.unparse(origin.node) for origin in origins]


PAIR = "class A:\n    def __init__(self, x, y=2):\n        self.x = x\n        self.y = y\n"


@pytest.mark.parametrize(
    ("text", "made", "attribute", "expected"),
    [
        pytest.param(PAIR + "A(unknown())", "A(unknown())", "x", ["unknown()"], id="what the call gives"),
        pytest.param(PAIR + "A(1)\nA(3)", "A(3)", "x", ["3"], id="not what other calls give"),
        pytest.param(PAIR + "A(1)", "A(1)", "y", ["2"], id="default"),
        pytest.param(PAIR + "A(y=5, x=1)", "A(y=5, x=1)", "y", ["5"], id="keyword"),
        pytest.param(PAIR + "A(1)", "A(1)", "z", [], id="never assigned"),
        pytest.param(PAIR + "A(*given)", "A(*given)", "x", None, id="hidden by stars"),
        pytest.param(PAIR + "def f(v):\n    return A(v)", "A(v)", "x", None, id="parameter without callers"),
        pytest.param(
            PAIR + "class B(A):\n    def __init__(self, v):\n        super().__init__(v + 1)\nB(3)", "B(3)", "x", ["v + 1"], id="super"
        ),
        pytest.param(PAIR + "class B(A):\n    pass\nB(3)", "B(3)", "x", ["3"], id="inherited constructor"),
        pytest.param("class A:\n    x = 1\n    def f(self):\n        self.x = 2\nA()", "A()", "x", ["2", "1"], id="class variable too"),
        pytest.param("class A:\n    def __init__(self, c):\n        self.x = c or 3\nA(4)", "A(4)", "x", ["4", "3"], id="one of two"),
        pytest.param("class A:\n    def f(self):\n        self.x = self.x or 1\nA()", "A()", "x", ["1"], id="circle adds nothing"),
    ],
)
def test_attribute_of_one_object_comes_from_the_call_that_made_it(text: str, made: str, attribute: str, expected: list[str] | None) -> None:
    """An attribute is what this object's constructor was given, not what any object of the class may hold."""
    assert held(text, made, attribute) == expected


def test_default_is_read_in_the_class_s_own_file() -> None:
    """A default names something of the file that defines the class."""
    text = "from shapes import A\nSIZE = 4\nA()"
    assert held(text, "A()", "x", {"shapes.py": "SIZE = 3\nclass A:\n    def __init__(self, x=SIZE):\n        self.x = x"}) == ["3"]


def test_methods_are_sought_through_base_classes() -> None:
    """A method is the nearest class's, and ``super()`` asks behind that one."""
    text = "class A:\n    def f(self): ...\n    def g(self): ...\nclass B(A):\n    def f(self): ...\nB()"
    found = instance(text, "B()")
    own, inherited = found.method("f"), found.method("g")
    assert own is not None and own[1].lineno == 5
    assert inherited is not None and inherited[1].lineno == 3
    behind = found.method("f", behind=own[1])
    assert behind is not None and behind[1].lineno == 2
    assert found.method("h") is None


def test_bases_that_are_not_the_project_s_are_named_or_unknown() -> None:
    """Library bases have a dotted name, anything else is None."""
    text = "import torch\nclass A(torch.utils.data.Dataset): ...\nclass B(A, Missing, object): ...\nB()"
    assert set(instance(text, "B()").library_bases) == {"torch.utils.data.Dataset", None}


def test_local_variable_of_a_constructor_is_followed() -> None:
    """What a constructor computes first and keeps then is what it computed."""
    text = "class A:\n    def __init__(self, x):\n        y = x\n        self.x = y\nA(7)"
    assert held(text, "A(7)", "x") == ["7"]


def test_names_of_definitions_and_libraries_are_origins_themselves() -> None:
    """A function of the project or of a library is an origin by its name."""
    facts = facts_of("import os\ndef f(): ...\nh = os.path.join\nuse(f, h)")
    for name, expected in (("f", "f"), ("h", "os.path.join")):
        origins = origins_of(facts, node(facts, name, -1))
        assert origins is not None and [ast.unparse(origin.node) for origin in origins] == [expected]
