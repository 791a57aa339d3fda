"""Which findings go together in one round, and why the others wait or are held."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchfix.edits import (
    AddDecorator,
    AddImport,
    AddParameter,
    Edit,
    InsertAfter,
    InsertBefore,
    PlacedEdit,
    Remove,
    RemoveArgument,
    RemoveImport,
    Replace,
    SetArgument,
    Wrap,
    places,
)
from torchfix.layout import Compound, Layout
from torchfix.source import SourceFile
from torchfix.transform import Finding, Held

WAITS = Held(
    "waits",
    "another change of the same place must come first, and the two did not settle",
    "run torchfix again after this change, or select one of the two rules",
)
SHARED_LINE = Held("shared-line", "the statement shares its line with other code", "put it on a line of its own")
IN_F_STRING = Held("inside-f-string", "the code stands inside an f-string", "give the expression a name in front of the string")
COMMENT = Held("comment", "a comment stands inside the code that would be replaced", "move the comment above the statement")


@dataclass(frozen=True)
class Deferred:
    """A finding that is not taken this round; where the reason is :data:`WAITS` the next one may."""

    finding: Finding
    reason: Held


@dataclass(frozen=True)
class Plan:
    """The findings of one round, in canonical order."""

    accepted: tuple[Finding, ...]
    deferred: tuple[Deferred, ...]

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits of the accepted findings, those that say the same merged into one."""
        merged: dict[object, Edit] = {}
        for finding in self.accepted:
            for edit in finding.edits:
                merged.setdefault(_meaning(edit), edit)
        return tuple(merged.values())


def plan(findings: Iterable[Finding], source: SourceFile) -> Plan:
    """Take findings whole or not at all, so that no edit undoes or hides another.

    The order in which findings come has no meaning: they are taken by position, then by transform.

    Raises:
        ValueError: an edit names a node that is not in the file's tree.
    """
    layout = Layout(source)
    taken = _Taken(layout)
    accepted: list[Finding] = []
    deferred: list[Deferred] = []
    for finding in sorted(findings, key=canonical):
        edits = [edit for edit in finding.edits if not isinstance(edit, (AddImport, RemoveImport))]
        reason = next((reason for edit in edits if (reason := _obstacle(edit, layout))), None)
        if reason is None and not taken.take(edits):
            reason = WAITS
        if reason is None:
            accepted.append(finding)
        else:
            deferred.append(Deferred(finding, reason))
    return Plan(tuple(accepted), tuple(deferred))


class _Taken:
    """The edits that were taken, found by where they are made."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._at: dict[ast.AST, list[PlacedEdit]] = defaultdict(list)
        self._within: dict[ast.AST, list[PlacedEdit]] = defaultdict(list)

    def take(self, edits: Sequence[PlacedEdit]) -> bool:
        """Take all of some edits; none where one of them conflicts with an edit taken before or with another of them."""
        for index, edit in enumerate(edits):
            if any(_conflict(edit, other, self._layout) for other in (*self._near(edit), *edits[:index])):
                return False
        for edit in edits:
            for node in places(edit):
                self._at[node].append(edit)
                for outer in (node, *self._layout.tree.ancestors(node)):
                    self._within[outer].append(edit)
        return True

    def _near(self, edit: PlacedEdit) -> Iterator[PlacedEdit]:
        """Every edit that may conflict with this one: those around it, those it may take away, wraps of its neighbours."""
        tree = self._layout.tree
        for node in places(edit):
            for outer in (node, *tree.ancestors(node)):
                yield from self._at.get(outer, ())
            if isinstance(edit, (Replace, Remove, RemoveArgument, SetArgument)):
                yield from self._within.get(node, ())
        if isinstance(edit, Wrap):
            for statement in tree.block(edit.first):
                yield from self._at.get(statement, ())


def canonical(finding: Finding) -> tuple[object, ...]:
    """What findings are ordered by: their places, then their rules."""
    node = finding.node
    start = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    end = (-getattr(node, "end_lineno", 0), -getattr(node, "end_col_offset", 0))
    return (start, finding.transform, end, finding.message)


def _obstacle(edit: PlacedEdit, layout: Layout) -> Held | None:
    """Why an edit cannot be written into this file's text, None if it can."""
    nodes = places(edit)
    if any(layout.tree.parent(node) is None for node in nodes):
        raise ValueError("an edit names a node that is not in the file's tree")
    if any(layout.in_f_string(node) for node in (*nodes, *(edit.used if isinstance(edit, Replace) else ()))):
        return IN_F_STRING
    statements = [node for node in nodes if isinstance(node, ast.stmt)]
    if _needs_own_lines(edit) and not all(layout.owns_lines(statement) for statement in statements):
        return SHARED_LINE
    if _loses_comment(edit, layout):
        return COMMENT
    return None


def _needs_own_lines(edit: PlacedEdit) -> bool:
    """Whether an edit is about whole lines; one simple statement can stand wherever another one did."""
    if isinstance(edit, Replace) and isinstance(edit.node, ast.stmt):
        new = ast.parse(edit.code).body
        return len(new) != 1 or isinstance(new[0], Compound) or isinstance(edit.node, Compound)
    return isinstance(edit, (InsertBefore, InsertAfter, Remove, Wrap, AddDecorator))


def _loses_comment(edit: PlacedEdit, layout: Layout) -> bool:
    """Whether a comment stands in the text that an edit puts another one for."""
    span = layout.source.span
    match edit:
        case Replace():
            start = layout.start(edit.node) if isinstance(edit.node, ast.stmt) else span(edit.node)[0]
            kept = [span(part) for part in edit.used]
            comments = layout.comments(start, span(edit.node)[1])
            return any(not any(low <= comment < high for low, high in kept) for comment in comments)
        case SetArgument() | RemoveArgument():
            if "#" not in layout.source.segment(edit.call):
                return False
            values = _argument(edit.call, edit.name if isinstance(edit, SetArgument) else edit.argument)
            return any(layout.comments(*layout.with_parentheses(value, edit.call)) for value in values)
    return False


def _conflict(edit: PlacedEdit, other: PlacedEdit, layout: Layout) -> bool:
    """Whether two edits cannot both be made on the same text."""
    if _meaning(edit) == _meaning(other):
        return False
    if _takes(edit, other, layout) or _takes(other, edit, layout):
        return True
    match edit, other:
        case (SetArgument(), SetArgument()):
            return edit.call is other.call and edit.name == other.name
        case (AddParameter(), AddParameter()):
            return edit.function is other.function and _parameter_name(edit) == _parameter_name(other)
        case (Wrap(), Wrap()):
            return _overlap(edit, other, layout)
    return False


def _takes(edit: PlacedEdit, other: PlacedEdit, layout: Layout) -> bool:
    """Whether an edit takes away, or rebuilds, what another one names."""
    tree = layout.tree
    nodes = places(other)
    beside = isinstance(other, (InsertBefore, InsertAfter, Wrap))
    match edit:
        case Replace():
            if edit.node in nodes:
                return not beside
            return any(tree.is_within(node, edit.node) and not _in_part(node, edit, layout) for node in nodes)
        case Remove():
            if edit.statement in nodes:
                return not isinstance(other, (InsertBefore, InsertAfter))
            return any(tree.is_within(node, edit.statement) for node in nodes)
        case RemoveArgument():
            if isinstance(other, SetArgument) and other.call is edit.call and other.name == edit.argument:
                return True
            return _in_argument(nodes, edit.call, edit.argument, layout)
        case SetArgument():
            return _in_argument(nodes, edit.call, edit.name, layout)
    return False


def _in_part(node: ast.AST, edit: Replace, layout: Layout) -> bool:
    """Whether a node inside a replaced one lives on in a part, whole."""
    return any(layout.tree.is_within(node, part) for part in edit.used)


def _in_argument(nodes: Iterable[ast.AST], call: ast.Call, argument: str | int, layout: Layout) -> bool:
    """Whether one of the nodes stands in the argument that a call has now."""
    return any(layout.tree.is_within(node, value) for node in nodes for value in _argument(call, argument))


def _argument(call: ast.Call, argument: str | int) -> list[ast.expr]:
    """The value of a call's argument, by keyword or by position; none where the call does not have it."""
    if isinstance(argument, int):
        return call.args[argument : argument + 1]
    return [keyword.value for keyword in call.keywords if keyword.arg == argument]


def _overlap(one: Wrap, other: Wrap, layout: Layout) -> bool:
    """Whether two wraps of one block neither nest nor keep apart."""
    block = layout.tree.block(one.first)
    if not any(item is other.first for item in block):
        return False
    (low, high), (first, last) = (_range(block, wrap) for wrap in (one, other))
    nested = (low <= first and last <= high) or (first <= low and high <= last)
    return not nested and low <= last and first <= high


def _range(block: Sequence[ast.stmt], wrap: Wrap) -> tuple[int, int]:
    places = {item: index for index, item in enumerate(block)}
    return places[wrap.first], places[wrap.last]


def _parameter_name(edit: AddParameter) -> str:
    return edit.parameter.partition("=")[0].partition(":")[0].strip()


def _meaning(edit: Edit) -> object:
    """What an edit says, equal for edits that say the same of the same nodes."""
    match edit:
        case SetArgument():
            return (SetArgument, edit.call, edit.name, edit.value)
        case RemoveArgument():
            return (RemoveArgument, edit.call, edit.argument)
        case InsertBefore() | InsertAfter():
            return (type(edit), edit.statement, edit.code)
        case Remove():
            return (Remove, edit.statement)
        case Replace():
            return (Replace, edit.node, edit.template, tuple(sorted(edit.parts.items(), key=lambda part: part[0])))
        case Wrap():
            return (Wrap, edit.first, edit.last, edit.header, edit.footer)
        case AddParameter():
            return (AddParameter, edit.function, edit.parameter)
        case AddDecorator():
            return (AddDecorator, edit.function, edit.decorator)
        case AddImport() | RemoveImport():
            return (type(edit), edit.module, edit.name)
