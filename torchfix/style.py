"""Black, on what we touched.

A file that was Black-clean stays so; in any other one only the statements whose text we wrote are formatted, and a
statement that its author laid out by hand keeps its layout.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix import trees
from torchfix.draft import Draft
from torchfix.facts.code.tree import children
from torchfix.layout import Compound, Layout
from torchfix.source import SourceError, SourceFile

if TYPE_CHECKING:
    from black.mode import Mode

_LINE_END = re.compile(r"\r\n|\r|\n")
_OFF = re.compile(r"\s*#\s*(fmt:\s*off|yapf:\s*disable)\b")
_ON = re.compile(r"\s*#\s*(fmt:\s*on|yapf:\s*enable)\b")
_LEFT_ALONE = re.compile(r"#\s*(type:|fmt:\s*skip|fmt:\s*off|yapf:\s*disable)")
_ALIGNED = re.compile(r"[\w)\]] {2,}=[^=]|[\w)\] ]= {2,}\S")
_WIDTH = 88
_USUAL_WIDTHS = (_WIDTH, 100, 120)
_STEP = "    "


@dataclass(frozen=True)
class Style:
    """What the target says about its format, from its ``[tool.black]``.

    Args:
        configured: whether there is such a table.
        line_length: in columns; None where it does not say.
        skip_string_normalization, skip_magic_trailing_comma, preview: as Black calls them.
        target_versions: as Black calls them (``py310``).
    """

    configured: bool = False
    line_length: int | None = None
    skip_string_normalization: bool = False
    skip_magic_trailing_comma: bool = False
    preview: bool = False
    target_versions: tuple[str, ...] = ()


def formatted(author: SourceFile, draft: Draft, style: Style, policy: str) -> str:
    """A draft's text in the target's format, or as it is where formatting would change what it means.

    Args:
        author: the file as it was.
        draft: its new text.
        style: what the target says.
        policy: ``auto``, ``changed``, ``file`` or ``off``.
    """
    if policy == "off" or draft.text == author.text:
        return draft.text
    change = _Change(author, draft)
    if policy == "file" or (policy == "auto" and _is_clean(change, style)):
        text = _whole(draft.text, author.newline, _mode(style, style.line_length or _WIDTH)) or draft.text
    else:
        text = _statements(change, style)
    return text if _means_the_same(author, draft.text, text) else draft.text


class _Change:
    """A file before and after, and which of its statements we wrote."""

    def __init__(self, author: SourceFile, draft: Draft) -> None:
        self.draft = draft
        self.old = Layout(author)
        self.new = Layout(replace(author, text=draft.text))

    @cached_property
    def written(self) -> list[ast.stmt]:
        """The new statements that we wrote something of, in text order; of a compound one its header counts."""
        new, draft = self.new, self.draft
        within = [node for node in new.statements if draft.written(*new.source.span(node))]
        return [node for node in within if draft.written(*new.header(node)) and _has_lines(new, node)]

    def before(self, statement: ast.stmt) -> ast.stmt | None:
        """The old statement that a new one was made from; None where all of it is new."""
        start, end = self.draft.origin(*self.new.header(statement))
        line = self.old.source.position(start)[0]
        if start < end:
            for node in reversed(self.old.statements):
                if node.lineno <= line <= (node.end_lineno or line):
                    low, high = self.old.header(node)
                    if low <= start and end <= high:
                        return node
        return None


def _means_the_same(author: SourceFile, text: str, other: str) -> bool:
    try:
        return trees.same(replace(author, text=text).tree, replace(author, text=other).tree)
    except SourceError:
        return False


def _mode(style: Style, width: int, keep_quotes: bool = False) -> Mode:
    from black.mode import Mode, TargetVersion

    return Mode(
        target_versions={version for version in TargetVersion if version.name.lower() in style.target_versions},
        line_length=width,
        string_normalization=not (style.skip_string_normalization or keep_quotes),
        magic_trailing_comma=not style.skip_magic_trailing_comma,
        preview=style.preview,
    )


def _black(text: str, mode: Mode) -> str | None:
    """Text with line feeds in Black's format, None where Black does not read it."""
    from black import format_str
    from black.parsing import InvalidInput

    try:
        return format_str(text, mode=mode)
    except InvalidInput:
        return None


def _whole(text: str, newline: str, mode: Mode) -> str | None:
    """A whole file in Black's format, its line ends and the lack of a last one kept; None where they are mixed."""
    if set(_LINE_END.findall(text)) - {newline}:
        return None
    found = _black(text.replace(newline, "\n"), mode)
    if found is None:
        return None
    return (found if text.endswith(newline) else found.removesuffix("\n")).replace("\n", newline)


def _is_clean(change: _Change, style: Style) -> bool:
    """Whether the file was in Black's format before.

    Strings and the statements that were changed are asked first, since Black takes long for a whole file.
    """
    author, mode = change.old.source, _mode(style, style.line_length or _WIDTH)
    if mode.string_normalization and _has_single_quotes(author):
        return False
    touched = [own for statement in change.written if (own := change.before(statement))]
    if not all(_is_formatted(change.old, own, mode) for own in touched):
        return False
    return _whole(author.text, author.newline, mode) == author.text


def _has_single_quotes(source: SourceFile) -> bool:
    """Whether a file surely holds a string that Black would give double quotes: without any inside, nor in an f-string."""
    if "fmt:" in source.text or "yapf:" in source.text:
        return False  # what formatters are kept from may stay as it is
    waiting: list[ast.AST] = [source.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = source.segment(node)
            if words.startswith("'") and '"' not in words and "\\" not in words:
                return True
        elif not isinstance(node, ast.JoinedStr):
            waiting += children(node)
    return False


def _statements(change: _Change, style: Style) -> str:
    """The text with every statement formatted that we wrote and that is not laid out by hand."""
    old, new, text = change.old, change.new, change.draft.text
    if old.source.indent != _STEP:
        return text
    mode = _mode(style, _width(old.source, style), keep_quotes=True)
    off = set(_off_lines(new.source))
    for statement in reversed(change.written):
        start, end = _lines(new, statement)
        if statement.lineno in off or _LEFT_ALONE.search(text, start, end):
            continue
        own = change.before(statement)
        by_hand = own is not None and (_is_aligned(old, own) or (_is_long(old, own) and _is_long(new, statement)))
        if own is None or not by_hand or _is_formatted(old, own, mode):
            text = text[:start] + (_in_format(new, statement, mode) or text[start:end]) + text[end:]
    return text


def _width(author: SourceFile, style: Style) -> int:
    if style.line_length is not None or style.configured:
        return style.line_length or _WIDTH
    longest = max((len(line.rstrip()) for line in author.lines if not line.lstrip().startswith("#")), default=0)
    return next((width for width in _USUAL_WIDTHS if longest <= width), _USUAL_WIDTHS[-1])


def _has_lines(layout: Layout, statement: ast.stmt) -> bool:
    """Whether a statement's own text is all of its lines but for a comment."""
    start, end = _lines(layout, statement)
    _, stop = layout.header(statement)
    rest = layout.source.text[stop:end].strip()
    return layout.owns_lines(statement) and (not rest or rest.startswith("#"))


def _lines(layout: Layout, statement: ast.stmt) -> tuple[int, int]:
    """The whole lines of a statement's own text, decorators and line end left out."""
    source = layout.source
    start, end = layout.header(statement)
    first, last = source.position(start)[0], source.position(end)[0]
    return source.line_start(first), source.line_start(last) + len(layout.line(last))


def _is_long(layout: Layout, statement: ast.stmt) -> bool:
    """Whether a statement's own text goes over several lines."""
    start, end = _lines(layout, statement)
    return _LINE_END.search(layout.source.text, start, end) is not None


def _is_aligned(layout: Layout, statement: ast.stmt) -> bool:
    """Whether a statement's first line is lined up with its neighbours' by spaces around an equals sign."""
    return _ALIGNED.search(layout.line(layout.first_line(statement))) is not None


def _is_formatted(layout: Layout, statement: ast.stmt, mode: Mode) -> bool:
    start, end = _lines(layout, statement)
    return _in_format(layout, statement, mode) == layout.source.text[start:end]


def _in_format(layout: Layout, statement: ast.stmt, mode: Mode) -> str | None:
    """The lines of a statement's own text as Black would write them at their depth, None where that cannot be said."""
    source = layout.source
    margin = source.margin(statement)
    depth = len(margin) // len(_STEP)
    start, end = _lines(layout, statement)
    text = _LINE_END.sub("\n", source.text[start:end])
    if margin != _STEP * depth or not text.startswith(margin):
        return None
    around = "".join(f"{_STEP * level}if 1:\n" for level in range(depth))
    body = f"{margin}{_STEP}pass\n" if isinstance(statement, Compound) else ""
    found = _black(f"{around}{text}\n{body}", mode)
    if found is None or not found.startswith(around) or not found.endswith(body):
        return None
    # Black wants an empty line in front of a function in a condition, which ours stands in only for its depth.
    return found[len(around) : len(found) - len(body)].strip("\n").replace("\n", source.newline)


def _off_lines(source: SourceFile) -> Iterator[int]:
    """The lines on which the author has switched formatters off."""
    off = False
    for number, line in enumerate(source.lines, 1):
        off = bool(_OFF.match(line)) or (off and not _ON.match(line))
        if off:
            yield number
