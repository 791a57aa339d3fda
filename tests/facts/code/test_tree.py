"""Where statements stand."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of

TEXT = """
if c:
    one()
else:
    two()
try:
    three()
except E:
    four()
finally:
    five()
match x:
    case 1:
        six()
"""


@pytest.mark.parametrize(
    ("name", "owner", "block"),
    [
        ("one", ast.If, "body"),
        ("two", ast.If, "orelse"),
        ("three", ast.Try, "body"),
        ("four", ast.ExceptHandler, "body"),
        ("five", ast.Try, "finalbody"),
        ("six", ast.match_case, "body"),
    ],
)
def test_place_of_a_statement(name: str, owner: type[ast.AST], block: str) -> None:
    """A statement stands at an index in one block of the node around it."""
    tree = facts_of(TEXT).tree
    statement = tree.statement(tree.calls[name][0])
    around, statements, index = tree.place(statement)
    assert isinstance(around, owner)
    assert statements is getattr(around, block)
    assert statements[index] is statement


def test_places_of_a_block_are_read_once() -> None:
    """Asking for every statement of a long file takes one pass over it, not one for each statement."""
    tree = facts_of("call()\n" * 3).tree
    body = tree.module.body
    assert [tree.place(statement)[2] for statement in body] == [0, 1, 2]
    tree.module.body = []  # nothing is read again
    assert [tree.place(statement)[2] for statement in body] == [0, 1, 2]


def test_function_around_a_node() -> None:
    """Defaults and decorators are evaluated outside the function that they belong to."""
    tree = facts_of("def outer():\n    @mark(a())\n    def inner(x=b()):\n        c()\n").tree
    found = [tree.function(tree.calls[name][0]) for name in "abc"]
    assert [function.name if function else None for function in found] == ["outer", "outer", "inner"]
