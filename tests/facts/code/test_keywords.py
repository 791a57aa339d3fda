from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts import Facts
from torchfix.facts.code.keywords import Table, tables, takers


def call(facts: Facts, occurrence: int = 0) -> ast.Call:
    """One of the calls of ``use`` in a snippet."""
    return facts.tree.calls["use"][occurrence]


def entries(text: str) -> dict[str, str] | None:
    """What the first ``use(...)`` of a snippet may be given by dictionaries; the last of several values."""
    facts = facts_of(text)
    found = tables(facts, call(facts))
    if found is None:
        return None
    return {name: ast.unparse(value) for table in found for name, value in table.entries()}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("use(*given)", id="positions"),
        pytest.param("use(**load())", id="made elsewhere"),
        pytest.param("def f(**options):\n    use(**options)", id="parameter"),
        pytest.param("d = {key: 1}\nuse(**d)", id="key that is no text"),
        pytest.param("d = {'a': 1}\nd.pop('a')\nuse(**d)", id="entry taken away"),
        pytest.param("d = {'a': 1}\nfill(d)\nuse(**d)", id="handed on"),
        pytest.param("d = {'a': 1}\nd[k] = 2\nuse(**d)", id="any key stored"),
        pytest.param("d = {'a': 1}\nd['b'], x = 1, 2\nuse(**d)", id="unpacked into"),
        pytest.param("d = {'a': 1}\nd.update(load())\nuse(**d)", id="unknown update"),
        pytest.param("d = {'a': 1}\ne = d\nuse(**d)", id="another name for it"),
        pytest.param("for d in all: use(**d)", id="loop variable"),
    ],
)
def test_dictionaries_out_of_sight_are_unknown(text: str) -> None:
    """Where an entry may come from elsewhere nothing is known."""
    assert entries(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("use(a=1)", {}, id="no dictionary"),
        pytest.param("use(**{'a': 1})", {"a": "1"}, id="display in the call"),
        pytest.param("d = dict(a=1, b=2)\nuse(**d)", {"a": "1", "b": "2"}, id="dict()"),
        pytest.param("d = {'a': 1} if c else {}\nuse(**d)", {"a": "1"}, id="either"),
        pytest.param("d = {}\nif c:\n    d = {'a': 1}\nuse(**d)", {"a": "1"}, id="bound twice"),
        pytest.param("d = {}\nd['a'] = 1\nuse(**d)", {"a": "1"}, id="stored"),
        pytest.param("d = {'a': 1}\nd.update({'b': 2}, c=3)\nuse(**d)", {"a": "1", "b": "2", "c": "3"}, id="updated"),
        pytest.param("d = {}\ne = {'a': 1}\nd.update(e)\nuse(**d)", {"a": "1"}, id="updated from a variable"),
        pytest.param("e = {'a': 1}\nd = {**e, 'b': 2}\nuse(**d)", {"a": "1", "b": "2"}, id="unpacked from a variable"),
        pytest.param("e = {'a': 1}\nd = dict(e, b=2)\nuse(**d)", {"a": "1", "b": "2"}, id="dict() of a variable"),
        pytest.param("d = {'a': 1}\nprint(d, d['a'], d.get('b'), 'a' in d)\nuse(**d)", {"a": "1"}, id="read"),
        pytest.param("def f():\n    d = {'a': 1}\n    use(**d)", {"a": "1"}, id="in a function"),
    ],
)
def test_dictionaries_that_are_written_out_are_read(text: str, expected: dict[str, str]) -> None:
    """Every entry that may be given counts."""
    assert entries(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("use(**{'a': 1})", 1, id="in the call"),
        pytest.param("d = {'a': 1}\nuse(**d)\nuse(x, **d)", 2, id="two calls"),
        pytest.param("e = {'a': 1}\nd = {}\nd.update(e)\nuse(**d)\nf = {'b': 1}\nf.update(e)\nuse(**f)", 2, id="through updates"),
        pytest.param("e = {'a': 1}\nd = {**e}\nuse(**d)", 1, id="through another display"),
        pytest.param("d = {'a': 1}\nd['b'] = 2\nuse(**d)", 1, id="entry stored later"),
        pytest.param("d = {'a': 1}\nuse(**d)\nother(**d)", 2, id="another function"),
        pytest.param("d = {'a': 1}\nuse(**d)\nfill(d)", None, id="handed on"),
        pytest.param("d = {'a': 1}\nuse(**d)\ne = d.copy()", None, id="copied"),
    ],
)
def test_all_calls_that_take_from_a_table_are_found(text: str, expected: int | None) -> None:
    """Whoever changes a table changes it for all of them."""
    facts = facts_of(text)
    first = next(item for item in ast.walk(facts.source.tree) if isinstance(item, ast.Dict))
    found = takers(facts, Table(first))
    assert (None if found is None else len(found)) == expected


def test_a_table_that_another_file_imports_has_takers_out_of_sight() -> None:
    """A variable of the module may be read wherever the module is imported."""
    facts = facts_of("d = {'a': 1}\nuse(**d)", modules={"main.py": "from train import d\nuse(**d)"})
    (table,) = tables(facts, call(facts)) or ()
    assert takers(facts, table) is None
