"""Nodes by their text, and texts edited and proved, for the tests of the core."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torchfix.apply import apply
from torchfix.edits import Edit
from torchfix.facts import Facts
from torchfix.imports import placed
from torchfix.proof import prove
from torchfix.source import SourceFile
from torchfix.transform import Default, Effect, Finding, Held, NoOptions, Transform


def read(text: str) -> SourceFile:
    """A snippet as a file, its common margin taken away."""
    return SourceFile("train.py", textwrap.dedent(text).removeprefix("\n"))


def expression(source: SourceFile, text: str, occurrence: int = 0) -> ast.expr:
    """The expression with exactly this text."""
    found = [node for node in ast.walk(source.tree) if isinstance(node, ast.expr) and source.segment(node) == text]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))[occurrence]


def call(source: SourceFile, name: str, occurrence: int = 0) -> ast.Call:
    """The call of what is written like this."""
    calls = (node for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    found = [node for node in calls if source.segment(node.func) == name]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))[occurrence]


def statement(source: SourceFile, beginning: str) -> ast.stmt:
    """The first statement whose text begins like this, decorators left out."""
    found = [node for node in ast.walk(source.tree) if isinstance(node, ast.stmt) and source.segment(node).startswith(beginning)]
    return min(found, key=lambda node: (node.lineno, node.col_offset))


def function(source: SourceFile, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """The function of this name."""
    functions = (node for node in ast.walk(source.tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return next(node for node in functions if node.name == name)


def edited(source: SourceFile, edits: Sequence[Edit]) -> str:
    """The text with the edits made, proved to mean what they intend."""
    settled = placed(source, edits)
    draft = apply(source, settled)
    prove(source.tree, settled, replace(source, text=draft.text))
    for piece in draft.pieces:
        if piece.origin is not None:
            assert source.text[piece.origin : piece.origin + len(piece.text)] == piece.text
    return draft.text


Find = Callable[[Facts], Iterator[Finding]]


def transform(find: Find, name: str = "toy", literals: tuple[bytes, ...] = (b"",)) -> Transform:
    """A transform made of a function over facts."""
    return Transform(
        name=name,
        group="toys",
        literals=literals,
        find=lambda facts, options: find(facts),
        options=NoOptions,
        since="2.0",
        default=Default.ON,
        summary="Change a toy.",
        why="It is a toy.",
        before="toy\n",
        after="toy\n",
        safety="It is a toy.",
        reference="These tests.",
    )


def finding(
    node: ast.AST, *edits: Edit, transform: str = "toy", effects: tuple[Effect, ...] = (), held: Held | None = None, message: str = "a toy"
) -> Finding:
    """A finding with a standard message."""
    return Finding(node, message, edits, frozenset(effects), held=held, transform=transform)
