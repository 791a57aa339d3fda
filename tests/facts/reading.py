"""Build the facts of a snippet and find its nodes by their text."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping

from torchfix.facts import Facts
from torchfix.facts.project.declarations import Declarations
from torchfix.facts.project.project import Project
from torchfix.facts.project.versions import Range
from torchfix.source import SourceFile

ONLY_FORKS = Declarations(python=Range(None, (3, 14)), systems=frozenset({"POSIX :: Linux"}))
"""What a project declares on whose platforms a new process is a fork."""


def facts_of(text: str, path: str = "train.py", modules: Mapping[str, str] | None = None) -> Facts:
    """The facts of a snippet; ``modules`` are the project's other files by path."""
    text = textwrap.dedent(text)
    return Project.of_texts({path: text, **(modules or {})}).facts(SourceFile.from_bytes(path, text.encode()))


def node(facts: Facts, text: str, occurrence: int = 0) -> ast.expr:
    """The expression with this text, the first in the file unless another ``occurrence`` is asked for."""
    found = [item for item in ast.walk(facts.source.tree) if isinstance(item, ast.expr) and facts.source.segment(item) == text]
    return sorted(found, key=lambda item: (item.lineno, item.col_offset))[occurrence]


def texts(values: object) -> list[str] | None:
    """The texts of values, for assertions; None stays None."""
    if values is None:
        return None
    return [ast.unparse(value.node) for value in values]  # type: ignore[attr-defined]
