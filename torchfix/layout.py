"""How a file lays out its statements: their lines, margins, headers and the comments that belong to them."""

from __future__ import annotations

import ast
import io
import keyword
import re
import tokenize
from collections.abc import Iterator
from functools import cached_property

from torchfix.facts.code.tree import Tree, indexed
from torchfix.source import SourceFile

_LINE_END = re.compile(r"\r\n?")
_COMMENT_LINE = re.compile(r"[ \t\f]*#")
_REST_OF_LINE = re.compile(r"[ \t\f]*;?[ \t\f]*(#.*)?$")
_DIVIDER = re.compile(r"[ \t]*#\s*(%%|fmt:|yapf:|isort:|torchfix:\s*ignore-file)")

Compound = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.If,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.Match,
    *((ast.TryStar,) if hasattr(ast, "TryStar") else ()),
)
"""The statements that hold blocks."""


def tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens of Python text, whatever its line ends; columns are those of the text."""
    return tokenize.generate_tokens(io.StringIO(_LINE_END.sub("\n", text)).readline)


class Layout:
    """The lay-out of one file. Offsets are in characters, lines are 1-based."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source

    @cached_property
    def tree(self) -> Tree:
        """The file's nodes and who holds whom."""
        return indexed(self.source.tree)

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """All statements in text order."""
        found = [node for node in ast.walk(self.source.tree) if isinstance(node, ast.stmt)]
        return sorted(found, key=lambda node: (node.lineno, node.col_offset))

    def line(self, number: int) -> str:
        """The text of a line without its end."""
        return self.source.lines[number - 1].rstrip("\r\n")

    def start(self, statement: ast.stmt) -> int:
        """The offset of a statement's first character, that of its first decorator included."""
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        if decorators:
            return self.source.text.rindex("@", 0, self.source.span(decorators[0])[0])
        return self.source.span(statement)[0]

    def first_line(self, statement: ast.stmt) -> int:
        """The line on which a statement begins, decorators included."""
        return self.source.position(self.start(statement))[0]

    def last_line(self, statement: ast.stmt) -> int:
        """The line on which a statement ends, with the comments behind its blocks that stand deeper than it does."""
        last = statement.end_lineno or statement.lineno
        if isinstance(statement, Compound):
            margin = self.source.margin(statement)
            for number, words in enumerate(self.source.lines[last:], last + 1):
                indent = _indent(words)
                if _COMMENT_LINE.match(words) and indent.startswith(margin) and indent != margin:
                    last = number
                elif words.strip():
                    break
        return last

    def first_comment(self, statement: ast.stmt) -> int:
        """The line at which the comments directly above a statement begin, its own first line if there are none.

        Comments that reach up to the first line of the file (licence, encoding) or that divide it (``# %%``,
        ``# fmt: off``) belong to no statement.
        """
        own = number = self.first_line(statement)
        margin = self.source.margin(statement)
        above = self._line_above(statement)
        while number > above + 1:
            words = self.line(number - 1)
            if not (_COMMENT_LINE.match(words) and _indent(words) == margin) or _DIVIDER.match(words):
                return number
            number -= 1
        return number if above else own

    def _line_above(self, statement: ast.stmt) -> int:
        """The line on which the code in front of a statement ends, or one above it; 0 for the first of the file."""
        owner, block, index = self.tree.place(statement)
        if index:
            return block[index - 1].end_lineno or 0
        return self.source.position(self.header(owner)[1])[0] if isinstance(owner, Compound) else 0

    def owns_lines(self, statement: ast.stmt) -> bool:
        """Whether a statement shares none of its lines with another one, or with the header of its block."""
        source = self.source
        start, end = self.start(statement), source.span(statement)[1]
        line, column = source.position(start)
        if self.line(line)[:column].strip(" \t\f") or source.text.startswith("elif", start):
            return False
        if line > 1 and self.line(line - 1).endswith("\\") and not _COMMENT_LINE.match(self.line(line - 1)):
            return False
        line, column = source.position(end)
        return bool(_REST_OF_LINE.match(self.line(line)[column:]))

    def header(self, statement: ast.stmt) -> tuple[int, int]:
        """The span of a statement's own text: a compound statement's header up to its colon, else all of it.

        Decorators are not part of it.
        """
        start, end = self.source.span(statement)
        if not isinstance(statement, Compound):
            return start, end
        block = statement.cases if isinstance(statement, ast.Match) else statement.body
        first = block[0]
        if isinstance(first, ast.match_case):
            stop = self.source.span(first.pattern)[0]
        else:
            stop = self.start(first)
        line, column = 0, 0
        for token in _until_error(tokens(self.source.text[start:stop])):
            if token.type == tokenize.OP and token.string == ":":
                line, column = token.end
        return start, self._moved(start, line, column)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The span at which a node is shown: a compound statement's header, what has no position by what holds it."""
        if isinstance(node, ast.stmt):
            return self.header(node)
        for outer in (node, *self.tree.ancestors(node)):
            if hasattr(outer, "lineno"):
                return self.source.span(outer)
        return 0, 0

    def _moved(self, start: int, line: int, column: int) -> int:
        """The offset of a token's position (1-based line) in the text that begins at ``start``."""
        if line <= 1:
            return start + column
        return self.source.line_start(self.source.position(start)[0] + line - 1) + column

    def comments(self, start: int, end: int) -> list[int]:
        """The offsets of the comments between two offsets, which must not cut a token in two."""
        text = self.source.text[start:end]
        if "#" not in text:
            return []
        found = []
        for token in _until_error(tokens("(" + text)):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                found.append(self._moved(start, line, column - (line == 1)))
        return found

    def expression(self, node: ast.expr) -> tuple[int, int]:
        """The span of an expression's own text: a generator that is a call's only argument lends its parentheses to the call."""
        start, end = self.source.span(node)
        call = self.tree.parent(node)
        if isinstance(node, ast.GeneratorExp) and isinstance(call, ast.Call) and self.source.span(call)[1] == end:
            return start + 1, end - 1
        return start, end

    def with_parentheses(self, node: ast.expr, outer: ast.expr) -> tuple[int, int]:
        """The span of an expression with the parentheses around it, which syntax trees leave out.

        Args:
            node: the expression.
            outer: one that holds it; parentheses are looked for inside.
        """
        begin, _ = self.source.span(outer)
        start, end = self.source.span(node)
        found: list[tuple[int, int, str]] = []
        for token in _until_error(tokens("(" + self.source.segment(outer))):
            if token.type not in (tokenize.COMMENT, tokenize.NL) and token.string:
                low, high = (self._moved(begin, line, column - (line == 1)) for line, column in (token.start, token.end))
                found.append((low, high, token.string))
        first = next(index for index, token in enumerate(found) if token[0] == start)
        last = max(index for index, token in enumerate(found) if token[1] <= end)
        while found[first - 1][2] == "(" and found[last + 1][2] == ")" and _opens_group(found[first - 2][2]):
            first, last = first - 1, last + 1
        return found[first][0], found[last][1]

    def in_f_string(self, node: ast.AST) -> bool:
        """Whether a node stands in an f-string, where its position is not to be trusted and its quotes are not free."""
        return any(type(outer).__name__ in ("JoinedStr", "TemplateStr") for outer in self.tree.ancestors(node))


def _opens_group(before: str) -> bool:
    """Whether a parenthesis behind this token groups, and calls nothing."""
    return keyword.iskeyword(before) or not (before.isidentifier() or before[-1:] in ")]}'\"")


def string_lines(text: str) -> set[int]:
    """The lines (1-based) of Python text that begin inside a string."""
    inside: set[int] = set()
    opened: list[int] = []
    for token in _until_error(tokens(text)):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
        elif kind in ("FSTRING_START", "TSTRING_START"):
            opened.append(token.start[0])
        elif kind in ("FSTRING_END", "TSTRING_END"):
            inside.update(range(opened.pop() + 1, token.end[0] + 1))
    return inside


def _until_error(stream: Iterator[tokenize.TokenInfo]) -> Iterator[tokenize.TokenInfo]:
    """Tokens of a cut-out text, whose end the tokenizer may take for an unclosed bracket."""
    try:
        yield from stream
    except (tokenize.TokenError, SyntaxError):
        return


def _indent(words: str) -> str:
    words = words.lstrip("\f")
    return words[: len(words) - len(words.lstrip(" \t"))]
