from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node, texts
from torchfix.facts.values import ELEMENT


def origins(text: str, name: str, occurrence: int = -1, modules: dict[str, str] | None = None) -> list[str] | None:
    facts = facts_of(text, modules=modules)
    return texts(facts.values.of(node(facts, name, occurrence)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("x = 1\nx = 2\nuse(x)", ["2"], id="nearest assignment hides"),
        pytest.param("x = 1\nif c:\n    x = 2\nuse(x)", ["1", "2"], id="branch may happen"),
        pytest.param("if c:\n    x = 1\nelse:\n    x = 2\nuse(x)", ["1", "2"], id="one of two branches"),
        pytest.param("x = 0\nif c:\n    x = 1\nelse:\n    x = 2\nuse(x)", ["1", "2"], id="both branches hide"),
        pytest.param("x = 1\nfor i in r:\n    use(x)\n    x = 2", ["1", "2"], id="iteration before"),
        pytest.param("x = 1\nwith c:\n    x = 2\nuse(x)", ["2"], id="with happens"),
        pytest.param("x = 1\ntry:\n    x = 2\nexcept E:\n    pass\nuse(x)", ["1", "2"], id="try may fail"),
        pytest.param("x = 1\nif c:\n    x = 2\n    exit_now()\n    raise E\nuse(x)", ["1"], id="branch that leaves"),
        pytest.param("def f(c, k=3):\n    if c:\n        k = 4\n    use(k)\nf(1)", ["4", "3"], id="parameter default"),
        pytest.param("a, b = 1, 2\nx = b\nuse(x)", ["2"], id="unpacking"),
        pytest.param("x = 1 if c else 2\nuse(x)", ["1", "2"], id="conditional expression"),
    ],
)
def test_only_bindings_that_reach_the_use_count(text: str, expected: list[str]) -> None:
    """The order of statements decides which assignment a name has at a place."""
    name = "k" if "k=3" in text else "x"
    found = origins(text, name)
    assert found is not None
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("def f(x):\n    use(x)", id="nobody calls"),
        pytest.param("def f(x):\n    use(x)\nf(1)\ng = f", id="handed on as a value"),
        pytest.param("@decorated\ndef f(x):\n    use(x)\nf(1)", id="decorated"),
        pytest.param("def f(x):\n    use(x)\nf(*a)", id="star arguments"),
        pytest.param("x += 1\nuse(x)", id="augmented"),
    ],
)
def test_value_out_of_sight_is_none(text: str) -> None:
    """Where a caller or an operand is not seen, the value is unknown."""
    assert origins(text, "x") is None


def test_parameter_is_followed_to_every_caller() -> None:
    """A parameter may be whatever its callers pass."""
    assert origins("def f(x):\n    use(x)\nf(1)\nf(x=2)", "x") == ["1", "2"]


def test_caller_in_another_file_makes_a_parameter_unknown() -> None:
    """A function that another file of the project imports has callers that are not seen."""
    assert origins("def f(x):\n    use(x)\nf(1)", "x", 0, modules={"other.py": "from train import f\nf(5)\n"}) is None


def test_constructor_arguments_are_followed_through_the_class() -> None:
    """An attribute set from a parameter of ``__init__`` is what the class is called with."""
    text = "class T:\n    def __init__(self, m):\n        self.m = m\n    def run(self):\n        use(self.m)\nT(make())"
    assert origins(text, "self.m") == ["make()"]


def test_returned_tuple_is_taken_apart() -> None:
    """What a function returns reaches the names that its call is unpacked into."""
    assert origins("def both():\n    return first(), second()\na, b = both()\nuse(b)", "b") == ["second()"]


def test_function_of_another_file_is_followed() -> None:
    """The return value of a project function is its return expression over there."""
    assert origins("from data import get\nx = get()\nuse(x)", "x", modules={"data.py": "def get():\n    return make(3)\n"}) == ["make(3)"]


@pytest.mark.parametrize(
    "header",
    ["for x in loader:", "for i, x in enumerate(loader):", "for i, x in enumerate(tqdm(loader)):", "for x, y in zip(loader, other):"],
)
def test_loop_variable_is_an_element_of_what_is_iterated(header: str) -> None:
    """The batch is found through enumerate, tqdm and zip."""
    facts = facts_of(f"from tqdm import tqdm\nloader = make()\n{header}\n    use(x)\n")
    values = facts.values.of(node(facts, "x", -1))
    assert values is not None
    assert [(value.path, texts([value])) for value in values] == [((ELEMENT,), ["make()"])]


def test_next_of_an_iterator_is_an_element() -> None:
    """``next(iter(loader))`` is a batch too."""
    facts = facts_of("loader = make()\nit = iter(loader)\nx = next(it)\nuse(x)\n")
    values = facts.values.of(node(facts, "x", -1))
    assert values is not None
    assert [value.path for value in values] == [(ELEMENT,)]


def test_value_that_feeds_itself_ends() -> None:
    """A variable that is assigned from itself in a circle does not make the question endless."""
    assert origins("x = 1\nwhile c:\n    y = x\n    x = y\nuse(x)", "x") == ["1"]
