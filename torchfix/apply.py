"""All edits of a plan into the text.

Sites nest: what lies inside is written first, and the text of a place holds the new text of the places in it. A call
or a function header is given to LibCST alone, exactly as it stands, and the changed text is put back by position; the
rest of the file is never parsed by LibCST. Blocks are changed by whole lines.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from torchfix import trees
from torchfix.draft import Draft
from torchfix.edits import (
    AddDecorator,
    AddParameter,
    InsertAfter,
    InsertBefore,
    PlacedEdit,
    Remove,
    RemoveArgument,
    Replace,
    SetArgument,
    Wrap,
    hole,
    places,
)
from torchfix.layout import Compound, Layout, string_lines
from torchfix.source import SourceFile

_LINE_END = re.compile(r"\r\n|\r|\n")
_WRAPPED = "__wrapped__"
_PRAGMA = re.compile(r"#\s*(noqa|type:|pylint:|pyright:|mypy:|ruff:|isort:|fmt:|yapf:|torchfix:|pragma:|nosec|nolint)")
_HOLE = re.compile(r"__hole_(\w+?)__")


def apply(source: SourceFile, edits: Sequence[PlacedEdit]) -> Draft:
    """A file's new text, with every edit made.

    Args:
        source: the file.
        edits: what a plan accepted, in its order, imports already placed.

    Raises:
        torchfix.segments.UnfaithfulError: LibCST does not reproduce a segment.
    """
    return _Writer(source, edits).module()


@dataclass(frozen=True)
class _Site:
    """A span of the old text and what is put there."""

    start: int
    end: int
    draft: Draft


class _Writer:
    def __init__(self, source: SourceFile, edits: Sequence[PlacedEdit]) -> None:
        self._source = source
        self._layout = Layout(source)
        self._at: dict[ast.AST, list[PlacedEdit]] = defaultdict(list)
        self._touched: set[ast.AST] = set()
        for edit in edits:
            for node in dict.fromkeys(places(edit)):
                self._at[node].append(edit)
                self._touched.update((node, *self._layout.tree.ancestors(node)))

    def module(self) -> Draft:
        text = self._source.text
        draft = self._woven(0, len(text), self._below(self._source.tree))
        if text and not text.endswith(("\n", "\r")):
            return draft.cut(0, len(draft.text.rstrip("\r\n")))
        return draft

    def _woven(self, start: int, end: int, sites: Sequence[_Site]) -> Draft:
        """The text from ``start`` to ``end`` with the sites that lie in it."""
        text, drafts = self._source.text, []
        for site in sites:
            drafts += [Draft.kept(text, start, site.start), site.draft]
            start = site.end
        return Draft.joined([*drafts, Draft.kept(text, start, end)])

    def _below(self, node: ast.AST) -> list[_Site]:
        """The outermost sites inside a node, in text order."""
        sites: list[_Site] = []
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                sites += self._block(value)
            else:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST) and child in self._touched:
                        sites += self._site(child)
        return sorted(sites, key=lambda site: (site.start, site.end))

    def _site(self, node: ast.AST) -> list[_Site]:
        """An edited expression as a site of its own; for any other node the sites inside it."""
        if self._at.get(node) and isinstance(node, ast.expr):
            return [_Site(*self._layout.expression(node), self._expression(node))]
        return self._below(node)

    # Expressions

    def _expression(self, node: ast.expr) -> Draft:
        """An expression with the edits on it and in it."""
        edits = self._at.get(node, [])
        for edit in edits:
            if isinstance(edit, Replace):
                return self._fitted(node, self._filled(edit, edit.code.replace("\r\n", "\n").replace("\n", self._source.newline)))
        from torchfix import segments  # LibCST is slow to import

        draft = self._inner(node)
        for argument in _removed(edits):
            draft = draft.rewritten(segments.remove_argument(draft.text, argument))
        for edit in edits:
            if isinstance(edit, SetArgument):
                draft = draft.rewritten(segments.set_argument(draft.text, edit.name, edit.value, self._source.newline))
        return draft

    def _inner(self, node: ast.expr) -> Draft:
        """An expression with the edits in it, not those on itself."""
        return self._woven(*self._layout.expression(node), self._below(node) if node in self._touched else [])

    def _filled(self, edit: Replace, code: str) -> Draft:
        """Template text with the parts in its holes, in parentheses where they would be read otherwise."""
        template = trees.module(edit.code) if isinstance(edit.node, ast.stmt) else trees.expression(edit.code)
        drafts = {hole(name): self._inner(part) if part is edit.node else self._expression(part) for name, part in edit.parts.items()}
        bare = {}
        for name, draft in drafts.items():
            wanted = trees.filled(template, {name: trees.expression(draft.text)})
            if _reads_as(edit.code.replace(name, draft.text), wanted):
                bare[name] = draft
        out, end = [], 0
        for found in _HOLE.finditer(code):
            name = found[0]
            if name in drafts:
                out += [Draft.new(code[end : found.start()]), bare.get(name) or _parenthesized(drafts[name])]
                end = found.end()
        return Draft.joined([*out, Draft.new(code[end:])])

    def _fitted(self, node: ast.expr, draft: Draft) -> Draft:
        """What replaces an expression, in parentheses where its surroundings would read it otherwise."""
        outer = next(outer for outer in self._layout.tree.ancestors(node) if isinstance(outer, (ast.expr, ast.stmt)))
        if isinstance(outer, (ast.For, ast.AsyncFor)) and node is outer.target:
            return draft  # a tuple needs no parentheses there
        new = trees.expression(draft.text)
        if isinstance(outer, ast.expr):
            (start, end), (low, high) = self._layout.expression(outer), self._layout.expression(node)
            wanted = trees.in_context(trees.replaced(outer, {node: new}), ast.Load())
            text = f"({self._source.text[start:low]}{draft.text}{self._source.text[high:end]})"
        else:  # whatever can be the body of a lambda can stand in every place that a statement has for an expression
            wanted = trees.filled(trees.expression("lambda: _"), {"_": new})
            text = f"lambda: {draft.text}"
        return draft if _reads_as(text, wanted) else _parenthesized(draft)

    # Blocks

    def _block(self, block: Sequence[ast.stmt]) -> list[_Site]:
        """The sites of a block's statements."""
        if not any(statement in self._touched for statement in block):
            return []
        wraps = [edit for statement in block for edit in self._at.get(statement, []) if isinstance(edit, Wrap) and edit.first is statement]
        places = {statement: index for index, statement in enumerate(block)}
        wraps.sort(key=lambda wrap: -places[wrap.last])
        return self._run(block, wraps, outermost=True)

    def _run(self, statements: Sequence[ast.stmt], wraps: Sequence[Wrap], outermost: bool) -> list[_Site]:
        """The sites of neighbouring statements; inside a wrap, insertions at its two edges belong to its outside."""
        source, layout = self._source, self._layout
        sites: list[_Site] = []
        index = 0
        while index < len(statements):
            first = statements[index]
            wrap = next((wrap for wrap in wraps if wrap.first is first), None)
            stop = index + 1
            while wrap is not None and statements[stop - 1] is not wrap.last:
                stop += 1
            group = statements[index:stop]
            start, end = source.line_start(layout.first_line(first)), source.line_start(layout.last_line(group[-1]) + 1)
            if outermost or index > 0:
                top = source.line_start(layout.first_comment(first))
                sites += [_Site(top, top, draft) for draft in self._inserted(InsertBefore, first)]
            if wrap is not None:
                inner = self._run(group, [other for other in wraps if other is not wrap], outermost=False)
                sites.append(_Site(start, end, self._wrapped(wrap, self._woven(start, end, inner), end)))
            elif any(isinstance(edit, Remove) for edit in self._at.get(first, [])):
                sites.append(_Site(start, end, self._rest(first)))
            else:
                sites += self._statement(first)
            if outermost or stop < len(statements):
                sites += [_Site(end, end, self._behind(end, draft)) for draft in self._inserted(InsertAfter, group[-1])]
            index = stop
        return sites

    def _inserted(self, kind: type[InsertBefore] | type[InsertAfter], statement: ast.stmt) -> list[Draft]:
        """The lines that are inserted on one side of a statement."""
        return [self._lines(edit.code, statement) for edit in self._at.get(statement, []) if isinstance(edit, kind)]

    def _lines(self, code: str, beside: ast.stmt) -> Draft:
        """New statements as whole lines at the margin of another."""
        from torchfix import segments  # LibCST is slow to import

        laid = segments.lay_out(code, self._source.indent, self._source.newline)
        return _indented(Draft.new(laid), "", self._source.margin(beside))

    def _behind(self, end: int, lines: Draft) -> Draft:
        """Lines as they follow the old line that ends at an offset: one without a line end takes theirs."""
        text, newline = self._source.text, self._source.newline
        if text[:end].endswith(("\n", "\r")) or not lines.text:
            return lines
        return Draft.joined([Draft.new(newline, margin=True), lines.cut(0, len(lines.text) - len(newline))])

    def _statement(self, statement: ast.stmt) -> list[_Site]:
        """The sites of one statement, insertions around it and its removal not among them."""
        if statement not in self._touched:
            return []
        source = self._source
        edits = self._at.get(statement, [])
        sites = []
        for edit in edits:
            if isinstance(edit, Replace):
                laid = self._lines(edit.code, statement).text[len(source.margin(statement)) :]
                draft = self._filled(edit, laid[: len(laid) - len(source.newline)])
                return [_Site(self._layout.start(statement), source.span(statement)[1], draft)]
        sites = self._below(statement)
        for edit in edits:
            if isinstance(edit, AddDecorator):
                above = source.line_start(statement.lineno)
                sites.append(_Site(above, above, Draft.new(f"{source.margin(statement)}@{edit.decorator}{source.newline}")))
        sites.sort(key=lambda site: (site.start, site.end))
        parameters = [edit.parameter for edit in edits if isinstance(edit, AddParameter)]
        if parameters:
            from torchfix import segments  # LibCST is slow to import

            start, end = self._layout.header(statement)
            inside = [site for site in sites if start <= site.start < end]
            draft = self._woven(start, end, inside)
            for parameter in parameters:
                draft = draft.rewritten(segments.add_parameter(draft.text, parameter))
            sites = sorted([*(site for site in sites if site not in inside), _Site(start, end, draft)], key=lambda site: site.start)
        return sites

    def _wrapped(self, wrap: Wrap, core: Draft, end: int) -> Draft:
        """The lines of a wrap's statements, which end at an offset, under its header and one step deeper."""
        header = wrap.header.rstrip()
        last = header.splitlines()[-1]
        indent = last[: len(last) - len(last.lstrip())] + ("    " if last.endswith(":") else "")
        margin = self._source.margin(wrap.first)
        lines = _lines_of(self._lines(f"{header}\n{indent}{_WRAPPED}\n{wrap.footer}", wrap.first).text)
        place = next(index for index, line in enumerate(lines) if line.strip() == _WRAPPED)
        deeper = lines[place][len(margin) : lines[place].index(_WRAPPED)]
        head, foot = (Draft.new("".join(part)) for part in (lines[:place], lines[place + 1 :]))
        return Draft.joined([head, _indented(core, margin, deeper), self._behind(end, foot)])

    def _rest(self, statement: ast.stmt) -> Draft:
        """What stays where a statement was: the comments on its lines, and ``pass`` if its block would be empty."""
        source, layout = self._source, self._layout
        margin, newline = source.margin(statement), Draft.new(source.newline)
        rest: list[Draft] = []
        if not isinstance(statement, Compound):
            start, end = source.span(statement)[0], source.line_start(layout.last_line(statement) + 1)
            for comment in layout.comments(start, end):
                line, _ = source.position(comment)
                words = layout.line(line)[comment - source.line_start(line) :].rstrip()
                if not _PRAGMA.match(words):
                    rest += [Draft.new(margin), Draft.kept(source.text, comment, comment + len(words)), newline]
        if self._empties_block(statement):
            rest.append(Draft.new(f"{margin}pass{source.newline}"))
        return Draft.joined(rest)

    def _empties_block(self, statement: ast.stmt) -> bool:
        """Whether nothing of a block is left, and this statement is the first that went."""
        block = self._layout.tree.block(statement)
        edits = [self._at.get(item, []) for item in block]
        stays = any(not any(isinstance(edit, Remove) for edit in here) for here in edits)
        filled = any(isinstance(edit, (InsertBefore, InsertAfter)) for here in edits for edit in here)
        return not stays and not filled and statement is block[0]


def _removed(edits: Sequence[PlacedEdit]) -> list[str | int]:
    """The arguments that leave a call, positional ones from the last to the first, so that positions hold."""
    removed = {edit.argument for edit in edits if isinstance(edit, RemoveArgument)}
    positional = sorted((argument for argument in removed if isinstance(argument, int)), reverse=True)
    return [*positional, *sorted(argument for argument in removed if isinstance(argument, str))]


def _reads_as(text: str, wanted: ast.expr | ast.Module) -> bool:
    """Whether text, on lines as they are, is read as a tree."""
    try:
        found = trees.module(text)
    except SyntaxError:
        return False
    if isinstance(wanted, ast.expr):
        return len(found.body) == 1 and isinstance(found.body[0], ast.Expr) and trees.same(wanted, found.body[0].value)
    return trees.same(wanted, found)


def _parenthesized(draft: Draft) -> Draft:
    return Draft.joined([Draft.new("("), draft, Draft.new(")")])


def _indented(draft: Draft, margin: str, deeper: str) -> Draft:
    """Whole lines moved to the right, behind the margin that they have.

    Empty lines, lines that begin inside a string and lines that stand to the left of the margin stay.
    """
    text = draft.text
    inside = string_lines(text) if deeper else set()
    drafts, done, start = [], 0, 0
    for number, line in enumerate(_lines_of(text), 1):
        feed = len(line) - len(line.lstrip("\f"))
        if number not in inside and line.strip() and line.startswith(margin, feed):
            place = start + feed + len(margin)
            drafts += [draft.cut(done, place), Draft.new(deeper, margin=True)]
            done = place
        start += len(line)
    return Draft.joined([*drafts, draft.cut(done, len(text))])


def _lines_of(text: str) -> list[str]:
    """The lines with their ends, cut where Python cuts them."""
    ends = [0, *(found.end() for found in _LINE_END.finditer(text))]
    return [text[low:high] for low, high in zip(ends, [*ends[1:], len(text)]) if low < high]
