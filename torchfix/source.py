"""A file's bytes as text, with encoding and line ends, parsed at most once; positions of nodes in the text."""

from __future__ import annotations

import ast
import codecs
import io
import re
import sys
import tokenize
import warnings
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache

_LINE_END = re.compile(r"\r\n|\r|\n")
_CORRECT_COOKIE = "correct the encoding cookie or save the file as UTF-8"


class SourceError(Exception):
    """A file that cannot be read as Python: a stable code, the words, the line (1-based) if there is one."""

    def __init__(self, code: str, text: str, line: int | None = None, help: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text if line is None else f"line {line}: {text}"
        self.line = line
        self.help = help


@dataclass(frozen=True)
class SourceFile:
    """Python source as its author wrote it.

    Args:
        path: as the user gave it, for messages.
        text: decoded, line ends untouched, without the byte order mark.
        encoding: the codec to write it back with.
        bom: whether the file began with a byte order mark.
    """

    path: str
    text: str
    encoding: str = "utf-8"
    bom: bool = False

    @classmethod
    def from_bytes(cls, path: str, data: bytes) -> SourceFile:
        """Decode by the rules of the language: byte order mark, then cookie, then UTF-8.

        Raises:
            SourceError: the bytes are no text, or the declared encoding does not fit or is unknown.
        """
        if b"\0" in data:
            line = _line_of_byte(data, data.index(b"\0"))
            raise SourceError("not-text", "the file holds null bytes, so it is no Python text", line, "save it as UTF-8 if it is text")
        codec = _declared_encoding(data)
        bom = data.startswith(codecs.BOM_UTF8)
        body = data[len(codecs.BOM_UTF8) :] if bom else data
        try:
            text = body.decode(codec)
            exact = text.encode(codec) == body
        except UnicodeError as error:
            line = _line_of_byte(body, getattr(error, "start", 0))
            raise SourceError("encoding", f"not valid {codec} text", line, "save the file as UTF-8 or declare its encoding") from error
        except LookupError as error:  # rot13, hex: codecs between bytes, or between texts
            raise SourceError("encoding", f"{codec} is no encoding of text", help=_CORRECT_COOKIE) from error
        if not exact:
            raise SourceError("encoding", f"the codec {codec} does not give the same bytes back", help="save the file as UTF-8")
        return cls(path, text, codec, bom)

    def encode(self, text: str) -> bytes:
        """The bytes of a new text of this file, in its own encoding and with its own byte order mark.

        Raises:
            UnicodeEncodeError: the text holds a character that the encoding lacks.
        """
        return (codecs.BOM_UTF8 if self.bom else b"") + text.encode(self.encoding)

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree.

        Raises:
            SourceError: the text does not parse under the running Python; says what it seems to be.
        """
        try:
            return _parsed(self.path, self.text)
        except SyntaxError as error:
            raise self._explain(error) from error
        except (RecursionError, MemoryError) as error:
            help = "split the expression or the chain of elif"
            raise SourceError("too-deep", "the code is nested too deeply for Python's parser", help=help) from error
        except ValueError as error:
            raise SourceError("syntax", str(error)) from error

    def _explain(self, error: SyntaxError) -> SourceError:
        line = error.lineno or 1
        words = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        message = error.msg or "invalid syntax"
        if "Missing parentheses in call to" in message or re.match(r"\s*(exec|print)\s+[^=(\s]", words):
            statement = "exec" if re.match(r"\s*exec\b", words) or "'exec'" in message else "print"
            return SourceError("python-2", f"Python 2 {statement} statement", line, "convert the file to Python 3 first (2to3 or futurize)")
        if re.match(r"\s*except\s+[\w.()]+\s*,\s*\w+\s*:", words) or re.search(r"(\b0\d+\b|`|<>|\b[uU][rR]['\"])", words):
            return SourceError("python-2", f"Python 2 syntax ({message})", line, "convert the file to Python 3 first (2to3 or futurize)")
        if re.search(r"\basync\s*=", words):
            return SourceError(
                "python-2", "'async' as an argument name, a keyword since Python 3.7", line, "write non_blocking= instead of async="
            )
        newer = _newer_syntax(message, words)
        if newer:
            return SourceError(
                "newer-python", f"syntax of Python {newer}; torchfix runs under {running} here", line, f"run torchfix under Python {newer}"
            )
        return SourceError(
            "syntax", f"{message} (torchfix runs under Python {running} here)", line, "correct the syntax error; the other files were done"
        )

    @cached_property
    def lines(self) -> list[str]:
        """The physical lines with their ends, cut where the tokenizer cuts them."""
        starts = self._starts
        return [self.text[a:b] for a, b in zip(starts, [*starts[1:], len(self.text)])]

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    @cached_property
    def newline(self) -> str:
        """The line end that new lines take: the file's most frequent."""
        found = Counter(_LINE_END.findall(self.text))
        return found.most_common(1)[0][0] if found else "\n"

    @cached_property
    def indent(self) -> str:
        """One step of indentation as this file writes it: its first indented block's own."""
        for node in ast.walk(self.tree):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block and isinstance(node, ast.stmt) and block[0].lineno > node.lineno:
                    outer, inner = self.margin(node), self.margin(block[0])
                    if inner.startswith(outer) and len(inner) > len(outer):
                        return inner[len(outer) :]
        return "    "

    def quoted(self, word: str) -> str:
        """A word as a string, in the quotes that this file has more of."""
        return f"'{word}'" if self.text.count("'") > self.text.count('"') else f'"{word}"'

    def margin(self, node: ast.stmt | ast.expr) -> str:
        """The white space in front of the line on which a node begins."""
        line = self.lines[node.lineno - 1].lstrip("\x0c")
        return line[: len(line) - len(line.lstrip(" \t"))]

    def offset(self, line: int, column: int) -> int:
        """The character offset of an ``ast`` position: 1-based line, column in UTF-8 bytes."""
        start = self._starts[line - 1]
        words = self.lines[line - 1]
        if words.isascii():
            return start + column
        return start + len(words.encode("utf-8")[:column].decode("utf-8", "ignore"))

    def position(self, offset: int) -> tuple[int, int]:
        """The 1-based line and 0-based column, in characters, of an offset."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1]

    def line_start(self, line: int) -> int:
        """The offset of the first character of a 1-based line; the text's length for the line behind the last."""
        return self._starts[line - 1] if line <= len(self._starts) else len(self.text)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The character offsets at which a node's text begins and ends; decorators are not counted in.

        Raises:
            ValueError: the node has no position of its own (``ast.arguments``, operators).
        """
        line, end_line = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
        if line is None or end_line is None:
            raise ValueError(f"{type(node).__name__} has no position")
        return self.offset(line, node.col_offset), self.offset(end_line, node.end_col_offset)  # type: ignore[attr-defined]

    def segment(self, node: ast.AST) -> str:
        """A node's own text."""
        start, end = self.span(node)
        return self.text[start:end]


@lru_cache(maxsize=64)  # of one file in turn its author, the project, the proof and the formatter ask
def _parsed(path: str, text: str) -> ast.Module:
    """The syntax tree of a text; two files of the same text have nodes of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _declared_encoding(data: bytes) -> str:
    """The codec that a file's byte order mark or cookie names, UTF-8 without either.

    Raises:
        SourceError: there is no such codec, or mark and cookie contradict each other.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        words = str(error)
        if "missing encoding declaration" in words:
            return "utf-8"  # there is no cookie, and decoding finds the line that does not fit
        if words == "encoding problem: utf-8":
            words = "the byte order mark says UTF-8 and the encoding cookie another encoding"
        raise SourceError("encoding", words, help=_CORRECT_COOKIE) from error
    return "utf-8" if encoding == "utf-8-sig" else encoding


def _line_of_byte(body: bytes, index: int) -> int:
    return body[:index].count(b"\n") + 1


def _newer_syntax(message: str, words: str) -> str:
    """The Python version that brought what the running one stumbled over, as far as the line shows it."""
    running = sys.version_info[:2]
    if running < (3, 12) and (re.match(r"\s*type\s+\w+.*=", words) or re.match(r"\s*(?:async\s+)?(?:def|class)\s+\w+\[", words)):
        return "3.12"
    if running < (3, 12) and "f-string" in message:
        return "3.12"
    if running < (3, 11) and re.match(r"\s*except\s*\*", words):
        return "3.11"
    if running < (3, 14) and (re.search(r"""\b[tT][rR]?["']""", words) or re.match(r"\s*except\s+\w+(\s*,\s*\w+)+\s*:", words)):
        return "3.14"
    return ""
