"""Comments by which a user says no: ``# torchfix: ignore``, ``ignore[rule, rule]`` and ``ignore-file``."""

from __future__ import annotations

import ast
import re
import tokenize
from dataclasses import dataclass

from torchfix.layout import Layout, tokens
from torchfix.source import SourceFile

_COMMENT = re.compile(r"#\s*torchfix:\s*(?P<kind>ignore-file|ignore)\b(?:\s*\[(?P<rules>[^\]]*)\])?")


@dataclass(frozen=True)
class Suppression:
    """One such comment.

    Args:
        offset: where it begins in the text.
        line: its line, 1-based.
        words: what it says.
        rules: the rules and groups that it names; None for all.
        whole_file: whether it speaks for the whole file.
        alone: whether it stands on a line of its own, and so speaks for the next one.
    """

    offset: int
    line: int
    words: str
    rules: frozenset[str] | None
    whole_file: bool
    alone: bool


def suppressions(source: SourceFile) -> tuple[Suppression, ...]:
    """The comments of a file that suppress findings, in text order.

    One for the whole file counts above the first statement that is neither an import nor a string.
    """
    if "torchfix:" not in source.text:
        return ()
    found: list[Suppression] = []
    top = starts = True
    try:
        for token in tokens(source.text):
            if token.type == tokenize.COMMENT:
                match = _COMMENT.match(token.string)
                if match and (top or match["kind"] == "ignore"):
                    found.append(_suppression(source, token, match))
            elif token.type in (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
                starts = starts or token.type == tokenize.NEWLINE
            elif starts:
                top = top and (token.type == tokenize.STRING or token.string in ("import", "from"))
                starts = False
    except (tokenize.TokenError, SyntaxError):
        return ()
    return tuple(found)


def _suppression(source: SourceFile, token: tokenize.TokenInfo, match: re.Match[str]) -> Suppression:
    line, column = token.start
    named = match["rules"]
    rules = None if named is None else frozenset(word.strip() for word in named.split(",") if word.strip())
    return Suppression(
        offset=source.line_start(line) + column,
        line=line,
        words=match[0],
        rules=rules,
        whole_file=match["kind"] == "ignore-file",
        alone=not token.line[:column].strip(),
    )


def forbidding(found: tuple[Suppression, ...], layout: Layout, node: ast.AST, names: tuple[str, ...]) -> tuple[Suppression, ...]:
    """The comments that forbid a finding.

    Args:
        found: the comments of the file.
        layout: its lay-out.
        node: where the finding stands.
        names: the names of its rule and of its group.
    """
    if not found:
        return ()
    first, last = _lines(layout, node)
    return tuple(
        comment
        for comment in found
        if (comment.rules is None or not comment.rules.isdisjoint(names))
        and (comment.whole_file or first <= comment.line <= last or (comment.alone and comment.line == first - 1))
    )


def _lines(layout: Layout, node: ast.AST) -> tuple[int, int]:
    """The first and the last line of the logical line on which a node stands; decorators belong to their header."""
    start, end = layout.span(node)
    lines = [layout.source.position(start)[0], layout.source.position(end)[0]]
    if not isinstance(node, ast.Module):
        statement = layout.tree.statement(node)
        lines += [layout.first_line(statement), layout.source.position(layout.header(statement)[1])[0]]
    return min(lines), max(lines)
