"""What edits mean, read on the tree alone."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from tests.editing import call, function, read, statement
from torchfix.edits import (
    AddParameter,
    InsertAfter,
    InsertBefore,
    PlacedEdit,
    Remove,
    RemoveArgument,
    Replace,
    SetArgument,
    Wrap,
)
from torchfix.proof import ProofError, intended, prove

SOURCE = read(
    """
    x = f(a, *b, k=1, **kw)
    for i in y:
        one(g(i))
        two(i)
    def function(p, *q): return p
    """
)
F, G = call(SOURCE, "f"), call(SOURCE, "g")
ONE, TWO = statement(SOURCE, "one"), statement(SOURCE, "two")
LOOP, FUNCTION = statement(SOURCE, "for"), function(SOURCE, "function")


@pytest.mark.parametrize(
    ("edits", "old", "new"),
    [
        pytest.param([], "", "", id="nothing"),
        pytest.param([SetArgument(F, "n", "2")], "k=1, **kw", "k=1, n=2, **kw", id="new argument"),
        pytest.param([SetArgument(F, "k", "2")], "k=1", "k=2", id="new value"),
        pytest.param([RemoveArgument(F, 0), RemoveArgument(F, "k")], "a, *b, k=1", "*b", id="arguments gone"),
        pytest.param([RemoveArgument(F, 1)], "*b, ", "", id="starred argument gone"),
        pytest.param([Replace(G, "h($i) + $i", {"i": G.args[0]})], "g(i)", "h(i) + i", id="replaced expression"),
        pytest.param([Replace(G, "h($g)", {"g": G})], "g(i)", "h(g(i))", id="the whole as a part"),
        pytest.param([SetArgument(G, "n", "(1,\n2)")], "g(i)", "g(i, n=(1, 2))", id="value over two lines"),
        pytest.param([Replace(ONE, "$g[0] = 1\nz()", {"g": G})], "one(g(i))", "g(i)[0] = 1; z()", id="replaced statement"),
        pytest.param(
            [InsertBefore(ONE, "z()"), InsertAfter(TWO, "y()")],
            "one(g(i))\n    two(i)",
            "z(); one(g(i)); two(i); y()",
            id="insertions",
        ),
        pytest.param([Remove(ONE)], "one(g(i))\n    ", "", id="removal"),
        pytest.param([Remove(ONE), Remove(TWO)], "one(g(i))\n    two(i)", "pass", id="all removed"),
        pytest.param([Wrap(ONE, TWO, "if a:")], "one(g(i))\n    two(i)", "if a: one(g(i)); two(i)", id="wrap"),
        pytest.param(
            [Wrap(ONE, ONE, "try:", "finally:\n    z()")],
            "one(g(i))",
            "try: one(g(i))\n    finally: z()",
            id="wrap with footer",
        ),
        pytest.param(
            [Wrap(LOOP, LOOP, "with a:\n    with b:")],
            "for i in y:\n    one(g(i))\n    two(i)",
            "with a:\n  with b:\n    for i in y:\n        one(g(i))\n        two(i)",
            id="wrap under two headers",
        ),
        pytest.param([AddParameter(FUNCTION, "r")], "(p, *q)", "(p, r, *q)", id="parameter"),
        pytest.param([AddParameter(FUNCTION, "r: int = 1")], "(p, *q)", "(p, r: int = 1, *q)", id="parameter with default"),
    ],
)
def test_intended_tree(edits: list[PlacedEdit], old: str, new: str) -> None:
    """The tree is that of the text that a person would write for the edits, and the old one is as it was."""
    before = ast.dump(SOURCE.tree)
    expected = ast.parse(SOURCE.text.replace(old, new, 1) if old else SOURCE.text)
    assert ast.dump(intended(SOURCE.tree, edits)) == ast.dump(expected)
    assert ast.dump(SOURCE.tree) == before


def test_untouched_statements_are_the_old_ones() -> None:
    """What no edit touches is not rebuilt, and so cannot differ."""
    tree = intended(SOURCE.tree, [SetArgument(G, "n", "1")])
    assert tree.body[0] is SOURCE.tree.body[0]
    assert tree.body[1] is not SOURCE.tree.body[1]
    assert tree.body[2] is SOURCE.tree.body[2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("x = f(1", "does not parse", id="broken"),
        pytest.param("x = f(2)\n", "something else than intended at its line 1", id="another value"),
        pytest.param("x = f(True)\n", "something else", id="a value that only compares equal"),
        pytest.param("x = f(1)\n\ny\n", "something else", id="one statement more"),
        pytest.param("x = f(1.0)\n", "something else", id="another kind of number"),
        pytest.param("x = f((1, ))\n", "something else", id="a tuple"),
    ],
)
def test_text_that_means_something_else_is_refused(text: str, words: str) -> None:
    """Any difference between the new text's tree and the intended one is found."""
    source = read("x = f(1)\n")
    with pytest.raises(ProofError, match=words):
        prove(source.tree, [], replace(source, text=text))


def test_layout_does_not_count() -> None:
    """Blanks, comments and parentheses that change no meaning are no difference."""
    source = read("x = f(1)\n")
    prove(source.tree, [], replace(source, text="x = f(  # why\n (1))"))


def test_text_that_parses_but_does_not_compile_is_refused() -> None:
    """A statement before a ``__future__`` import parses, yet no Python runs it."""
    source = read("from __future__ import annotations\n")
    edit = InsertBefore(source.tree.body[0], "import os")
    with pytest.raises(ProofError, match="does not compile"):
        prove(source.tree, [edit], replace(source, text="import os\nfrom __future__ import annotations\n"))


def test_file_that_never_compiled_is_not_held_against_an_edit() -> None:
    """A ``return`` outside a function was there before."""
    source = read("return f()\n")
    prove(source.tree, [SetArgument(call(source, "f"), "k", "1")], replace(source, text="return f(k=1)\n"))
