from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node, texts
from torchfix.facts.code.values import ELEMENT


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
        pytest.param("x = 1\ntry:\n    x = 2\nexcept E:\n    x = 3\nuse(x)", ["2", "3"], id="try and its handler"),
        pytest.param("x = 1\ntry:\n    x = 2\nexcept E:\n    raise\nuse(x)", ["2"], id="handler that leaves"),
        pytest.param("x = 1\ntry:\n    x = 2\n    y = 3\nfinally:\n    x = 4\nuse(x)", ["4"], id="finally"),
        pytest.param("x = 1\ntry:\n    x = 2\n    x = 3\nexcept E:\n    pass\nuse(x)", ["1", "2", "3"], id="try that fails between"),
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


@pytest.mark.parametrize("decorator", ["torch.no_grad()", "torch.inference_mode", "torch.enable_grad()"])
def test_decorators_that_only_switch_gradients_are_looked_through(decorator: str) -> None:
    """Such a function is called with what its callers pass, and returns what it returns."""
    text = f"import torch\n@{decorator}\ndef f(x):\n    use(x)\n    return 3\ny = f(1)\nuse(y)"
    assert origins(text, "x") == ["1"]
    assert origins(text, "y") == ["3"]


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


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        pytest.param({"main.py": "from engine import f\nf(1)\ng = f"}, None, id="handed on in another file"),
        pytest.param(
            {"main.py": "from engine import f\nf(1)", "other.py": "import engine\nrun(engine.f)"}, None, id="handed on by its module"
        ),
        pytest.param(
            {"main.py": "try:\n    from engine import f\nexcept ImportError:\n    from fallback import f\nf(1)"},
            ["1"],
            id="imported from two places",
        ),
        pytest.param(
            {"main.py": "from engine import f\nf(1)", "broken.py": "from engine import f\nf(2"}, None, id="a caller does not parse"
        ),
        pytest.param({"main.py": "from engine import f\nf(1)", "other.py": "model.f()"}, ["1"], id="another method of that name"),
        pytest.param({"main.py": "import engine\nengine.f(1)"}, ["1"], id="through the module"),
        pytest.param({"main.py": "from engine import f as go\ngo(1)"}, ["1"], id="under another name"),
        pytest.param({"main.py": "from engine import *\nf(1)", "b.py": "from engine import f\nf(2)"}, ["1", "2"], id="two files"),
        pytest.param(
            {"package/__init__.py": "from engine import f", "main.py": "from package import f\nf(1)"}, ["1"], id="through a package's face"
        ),
    ],
)
def test_parameter_comes_from_callers_in_other_files(modules: dict[str, str], expected: list[str] | None) -> None:
    """A parameter is what every caller in the project passes, and unknown where one caller may be out of sight."""
    facts = facts_of("def f(x):\n    use(x)", "engine.py", modules)
    found = texts(facts.values.of(node(facts, "x")))
    assert found == expected if found is None or expected is None else sorted(found) == expected


def test_default_is_read_in_the_function_s_own_file() -> None:
    """A default is a name of the file that defines the function, not of its callers."""
    facts = facts_of("SIZE = 3\ndef f(x=SIZE):\n    use(x)", "engine.py", {"main.py": "from engine import f\nSIZE = 4\nf()"})
    assert texts(facts.values.of(node(facts, "x"))) == ["3"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("d = load()\nuse(d['a'])", ["d['a']"], id="table out of sight"),
        pytest.param("d = {'a': 1, **other}\nuse(d['a'])", ["d['a']"], id="other table inside"),
        pytest.param("d = {'a': 1}\nd.update(other)\nuse(d['a'])", ["d['a']"], id="updated"),
        pytest.param("d = {'a': 1}\nd['b'], c = 2, 3\nuse(d['b'])", ["d['b']"], id="unpacked into"),
        pytest.param("d = {'a': 1, 'b': 2}\nuse(d['b'])", ["2"], id="constant key"),
        pytest.param("d = {'a': 1, 'b': 2}\nuse(d[k])", ["1", "2"], id="any key"),
        pytest.param("d = {'a': 1, 'b': 2, 'c': 3}\nfor k in ['a', 'b']:\n    use(d[k])", ["1", "2"], id="key that a loop gives"),
        pytest.param("d = {'a': 'a'}\nk = d[k]\nk = d[k]\nuse(d[k])", ["'a'"], id="key out of the table itself"),
        pytest.param("d = {k: make(k) for k in keys}\nuse(d['a'])", ["make(k)"], id="comprehension"),
        pytest.param("d = {}\nd['a'] = 1\nd[k] = 2\nd['b'] = 3\nuse(d['a'])", ["1", "2"], id="stored"),
        pytest.param(
            "class T:\n    def __init__(self):\n        self.d = {}\n        self.d['a'] = 1\n    def f(self):\n        use(self.d['a'])",
            ["1"],
            id="attribute",
        ),
        pytest.param("def f(d):\n    use(d['a'])\nf({'a': 1})", ["1"], id="handed to a function"),
    ],
)
def test_entry_of_a_dictionary_that_is_written_out(text: str, expected: list[str]) -> None:
    """``d[key]`` is what the file puts there, and itself where more may come in."""
    facts = facts_of(text)
    asked = next(item for item in ast.walk(facts.source.tree) if isinstance(item, ast.Call) and ast.unparse(item.func) == "use").args[0]
    assert texts(facts.values.of(asked)) == expected


@pytest.mark.parametrize("method", ["next", "__next__"])
def test_next_as_a_method_is_an_element(method: str) -> None:
    """``iterator.next()`` of old code is a batch too."""
    facts = facts_of(f"it = iter(make())\nx = it.{method}()\nuse(x)\n")
    values = facts.values.of(node(facts, "x", -1))
    assert values is not None
    assert [(value.path, texts([value])) for value in values] == [((ELEMENT,), ["make()"])]


def test_files_that_import_a_name_from_each_other_end_the_question() -> None:
    """A circle of imports makes nothing."""
    facts = facts_of("from a import x\ny = x\n", modules={"a.py": "from b import x\n", "b.py": "from a import x\n"})
    assert not any(isinstance(value.node, ast.Call) for value in facts.values.of(node(facts, "x")) or ())
