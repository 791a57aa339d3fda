"""How a file lays out its statements."""

from __future__ import annotations

import pytest

from tests.editing import expression, read, statement
from torchfix.layout import Layout, string_lines
from torchfix.source import SourceFile


@pytest.mark.parametrize(
    ("text", "beginning", "owns"),
    [
        pytest.param("a\n", "a", True, id="alone"),
        pytest.param("  \n\x0ca  # c\n", "a", True, id="page break and comment"),
        pytest.param("if x:\n  a", "a", True, id="no last line end"),
        pytest.param("a ; # c", "a", True, id="a semicolon and nothing behind it"),
        pytest.param("# c \\\na", "a", True, id="below a comment that ends with a backslash"),
        pytest.param("if x: a", "if", True, id="the compound statement around a suite of one line"),
        pytest.param("@d\n@e(1)\ndef f():\n  a\n", "def", True, id="decorated"),
        pytest.param("if x: a", "a", False, id="suite of one line"),
        pytest.param("a; b", "a", False, id="first of two"),
        pytest.param("a; b", "b", False, id="second of two"),
        pytest.param("b; \\\n  a", "a", False, id="continued"),
        pytest.param("a \\\n\n", "a", False, id="continued by nothing"),
        pytest.param("if x:\n  b\nelif y:\n  a\n", "elif", False, id="elif"),
        pytest.param("if x:\n  b\nelse:\n  if y:\n    a\n", "if y", True, id="if in an else"),
    ],
)
def test_own_lines(text: str, beginning: str, owns: bool) -> None:
    """A statement has its lines to itself when nothing but comments stands beside it."""
    source = SourceFile("train.py", text)
    assert Layout(source).owns_lines(statement(source, beginning)) is owns


@pytest.mark.parametrize(
    ("text", "beginning", "header"),
    [
        pytest.param("a = f(\n  1)  # c\n", "a", "a = f(\n  1)", id="simple"),
        pytest.param("for a in b:  # c: d\n  # e: f\n  g\n", "for", "for a in b:", id="for"),
        pytest.param("for a in b: g\n", "for", "for a in b:", id="suite of one line"),
        pytest.param("while (a,\n   {1: 2}):\r\n  g\n", "while", "while (a,\n   {1: 2}):", id="over two lines"),
        pytest.param("if a[1:2] : # x\n  g\nelse:\n  h\n", "if", "if a[1:2] :", id="if"),
        pytest.param("with a as b:\n  @d(x)\n  # y: z\n  def f(): g\n", "with", "with a as b:", id="decorated body"),
        pytest.param("@d(1)\n# c\ndef f(a: int = 1) -> 'x: y':\n  g\n", "def", "def f(a: int = 1) -> 'x: y':", id="function"),
        pytest.param("async def f(a=lambda: 1): g\n", "async", "async def f(a=lambda: 1):", id="async function"),
        pytest.param("class A(B, c=D): ...\n", "class", "class A(B, c=D):", id="class"),
        pytest.param("try:\n  a\nfinally:\n  b\n", "try", "try:", id="try"),
        pytest.param("match a:\n  # c: d\n  case {'x': 1}:\n    b\n", "match", "match a:", id="match"),
        pytest.param("for ä in 'üö:': # ä\n  g\n", "for", "for ä in 'üö:':", id="letters of several bytes"),
    ],
)
def test_header(text: str, beginning: str, header: str) -> None:
    """A compound statement's own text ends with the colon of its header."""
    source = SourceFile("train.py", text)
    start, end = Layout(source).header(statement(source, beginning))
    assert text[start:end] == header


def test_comments_are_found_where_they_really_are() -> None:
    """A number sign in a string is no comment; columns behind letters of several bytes are right."""
    source = SourceFile("train.py", "x = f('#', ä,  # one\r\n  # zwei\r\n  b)  # outside\r\n")
    layout = Layout(source)
    found = layout.comments(*source.span(expression(source, "f('#', ä,  # one\r\n  # zwei\r\n  b)")))
    assert [source.text[offset : offset + 5] for offset in found] == ["# one", "# zwe"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("a\nb\n", set(), id="no string"),
        pytest.param("a = '''\n\nb'''\nc = 1", {2, 3}, id="triple quotes"),
        pytest.param("a = 'b\\\nc'\n", {2}, id="backslash"),
        pytest.param("a = ('b'\n  'c')\n", set(), id="two strings on two lines"),
        pytest.param("a = f'''{b\n}'''\nc", {2}, id="f-string"),
        pytest.param("    a = '''\r\n  b'''\r\n    c\r\n", {2}, id="indented"),
    ],
)
def test_lines_inside_strings(text: str, lines: set[int]) -> None:
    """A line begins inside a string when the string began on an earlier one."""
    assert string_lines(text) == lines


def test_comments_below_belong_to_the_block_that_they_are_as_deep_as() -> None:
    """A comment deeper than a compound statement is one of its lines; a simple statement has none below."""
    source = read("if x:\n    a\n    # deep\n# flat\nb\n    # odd\nc\n")
    layout = Layout(source)
    assert layout.last_line(statement(source, "if")) == 3
    assert layout.last_line(statement(source, "b")) == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("f(here)", "here", id="the call's own"),
        pytest.param("f((here))", "(here)", id="one pair"),
        pytest.param("f(a, (  # c\n ( here\n )  # d\n))", "(  # c\n ( here\n )  # d\n)", id="two pairs with comments"),
        pytest.param("f(k=(here), b=(1))", "(here)", id="a keyword's value"),
        pytest.param("f(not (here))", "(here)", id="behind a keyword of the language"),
        pytest.param("f((here).a)", "(here)", id="before a dot"),
        pytest.param("f((a)(here))", "here", id="of a call of a call"),
        pytest.param("f(*(here,))", "here", id="a tuple's own"),
    ],
)
def test_parentheses_around_an_expression(text: str, expected: str) -> None:
    """Parentheses that only group belong to the expression in them; those of calls and tuples do not."""
    source = SourceFile("train.py", text)
    start, end = Layout(source).with_parentheses(expression(source, "here"), expression(source, text))
    assert text[start:end] == expected
