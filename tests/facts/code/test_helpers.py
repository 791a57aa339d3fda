from __future__ import annotations

import ast

from tests.facts.reading import facts_of
from torchfix.facts.code.helpers import Helpers

PROGRAM = '''
import contextlib
import os
import torch


def count():
    """How many."""
    return torch.cuda.device_count()


@contextlib.contextmanager
def first():
    """As count() says."""
    if count() > 1:
        yield


def unused():
    """Of what system."""
    return os.name
'''


def test_a_helper_brings_what_it_calls_and_its_modules() -> None:
    """Only what is needed comes along, in the order of the program, decorators included."""
    helpers = Helpers(facts_of("import torch\ndef main(): ..."), PROGRAM, {"torch": "torch"})
    assert helpers.name("first") == "first"
    code = helpers.code()
    assert [item.name for item in ast.parse(code).body if isinstance(item, ast.FunctionDef)] == ["count", "first"]
    assert "@contextlib.contextmanager\ndef first():" in code
    assert list(helpers.modules()) == ["contextlib", "torch"]


def test_helpers_take_names_that_are_free() -> None:
    """A name that the file has already is replaced wherever the functions use it, in words too."""
    helpers = Helpers(facts_of("import torch as th\ncount = 3"), PROGRAM, {"torch": "th"})
    helpers.name("first")
    code = helpers.code()
    assert helpers.name("count") == "count_2"
    assert "def count_2():" in code
    assert "if count_2() > 1:" in code
    assert "As count_2() says." in code
    assert "th.cuda.device_count()" in code


def test_builtins_that_the_file_gives_another_meaning_are_in_the_way() -> None:
    """What only shows how the functions are used may use any builtin; a name inside another function is nobody's business."""
    program = 'def size(x):\n    """How many."""\n    return len(x)\n\ndef main():\n    print(size([]))\n'
    assert Helpers.obstacles(facts_of("def print(): ...\ndef f(len): ...\n"), program) == []
    for text in ("len = 3\n", "def len(x): ...\n", "def f():\n    global len\n    len = 3\n"):
        (obstacle,) = Helpers.obstacles(facts_of(text), program)
        assert obstacle.code == "builtin-taken"
        assert "len" in obstacle.text


def test_helpers_stand_before_the_first_definition() -> None:
    """Behind imports and constants, in front of the first function, class or the main guard."""
    facts = facts_of("import torch\nN = 3\n\nclass A: ...\n\ndef f(): ...")
    behind, before = Helpers(facts, PROGRAM, {}).place()
    assert behind is facts.tree.module.body[1]
    assert before is facts.tree.module.body[2]


def test_helpers_may_begin_a_file() -> None:
    """Where the file begins with a definition there is nothing to stand behind."""
    facts = facts_of("def f(): ...")
    assert Helpers(facts, PROGRAM, {}).place() == (None, facts.tree.module.body[0])
