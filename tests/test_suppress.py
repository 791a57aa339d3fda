"""Comments by which a user says no."""

from __future__ import annotations

import ast

import pytest

from tests.editing import read, statement
from torchfix.layout import Layout
from torchfix.source import SourceFile
from torchfix.suppress import forbidding, suppressions


def forbidden(text: str, rule: str = "toy", group: str = "toys") -> bool:
    """Whether a finding on the call of ``here`` is forbidden."""
    source = read(text)
    node = next(item for item in ast.walk(source.tree) if isinstance(item, ast.Name) and item.id == "here")
    return bool(forbidding(suppressions(source), Layout(source), node, (rule, group)))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("here()", id="no comment"),
        pytest.param("here()  # torchfix: ignore[other]", id="another rule"),
        pytest.param("here()  # torchfix: ignore[]", id="no rule"),
        pytest.param("here('# torchfix: ignore')", id="in a string"),
        pytest.param("'''\n# torchfix: ignore\n'''\nhere()", id="in a string above"),
        pytest.param("x = 1  # torchfix: ignore\nhere()", id="behind the statement above"),
        pytest.param("# torchfix: ignore\n\nhere()", id="not directly above"),
        pytest.param("here()\n# torchfix: ignore", id="below"),
        pytest.param("for x in here():\n    y()  # torchfix: ignore\n", id="in the block of the header"),
        pytest.param("x = 1\n# torchfix: ignore-file\nhere()", id="for the file, behind code"),
        pytest.param("here()  # torchfix: ignored", id="another word"),
        pytest.param("# torchfix: ignore-file[other]\nhere()", id="for the file, another rule"),
    ],
)
def test_finding_is_not_forbidden(text: str) -> None:
    """A comment that is not about the finding's logical line, its file or its rule says nothing."""
    assert not forbidden(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("here()  # torchfix: ignore", id="behind"),
        pytest.param("here()  # torchfix:ignore because", id="with other words"),
        pytest.param("here()  # torchfix: ignore[toy]", id="the rule"),
        pytest.param("here()  # torchfix: ignore[other, toy]", id="one of several rules"),
        pytest.param("here()  # torchfix: ignore[toys]", id="the group"),
        pytest.param("# torchfix: ignore\nhere()", id="alone above"),
        pytest.param("if x:\n    # torchfix: ignore\n    here()", id="alone above, indented"),
        pytest.param("f(\n    a,\n    here(),\n    b,  # torchfix: ignore\n)", id="on another line of the statement"),
        pytest.param("f(  # torchfix: ignore\n    here(),\n)", id="on the first line of the statement"),
        pytest.param("# torchfix: ignore\nf(\n    here(),\n)", id="above the first line of the statement"),
        pytest.param("for x in here():  # torchfix: ignore\n    y()\n", id="on the header"),
        pytest.param("for x in (\n    here()\n):  # torchfix: ignore\n    y()\n", id="on the last line of the header"),
        pytest.param("# torchfix: ignore\n@here\ndef f(): pass\n", id="above the decorators"),
        pytest.param("@a\n@here\ndef f(): pass  # torchfix: ignore\n", id="on the header of a decorated function"),
        pytest.param("a; here(); b  # torchfix: ignore", id="behind another statement of the line"),
        pytest.param("# torchfix: ignore-file\nimport x\nhere()", id="for the file"),
        pytest.param("'''doc'''\nimport x\n# torchfix: ignore-file[toy]\nhere()", id="for the file, below imports"),
    ],
)
def test_finding_is_forbidden(text: str) -> None:
    """A comment on the logical line, alone above it or for the whole file forbids a finding."""
    assert forbidden(text)


def test_comments_know_their_place_and_words() -> None:
    """A comment is listed with its line and what it says, so that an unused one can be named."""
    text = "x = 1\r\nä = 'ü'  # torchfix: ignore[a, b] since then\r\n"
    (found,) = suppressions(SourceFile("train.py", text))
    assert (found.line, found.words, found.rules) == (2, "# torchfix: ignore[a, b]", {"a", "b"})
    assert text[found.offset :].startswith("# torchfix")


def test_statement_of_a_block_is_not_forbidden_by_its_header() -> None:
    """A comment on a loop's header speaks for the header, not for the statements in it."""
    source = read("for x in y:  # torchfix: ignore\n    here()\n")
    found = suppressions(source)
    assert forbidding(found, Layout(source), source.tree.body[0], ("toy",))
    assert not forbidding(found, Layout(source), statement(source, "here"), ("toy",))


def test_text_that_cannot_be_tokenized_has_no_comments() -> None:
    """A broken file is reported as such elsewhere."""
    assert suppressions(SourceFile("train.py", "x = (\n# torchfix: ignore\n")) == ()
