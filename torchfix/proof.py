"""An independent reading of what edits mean: the tree that the new text must parse to.

Nothing here looks at text. What :mod:`torchfix.apply` writes is believed only where its text parses to the tree that
is built here, which shares every untouched statement with the old one.
"""

from __future__ import annotations

import ast
import warnings
from collections import defaultdict
from collections.abc import Sequence

from torchfix import trees
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
from torchfix.facts.code.tree import indexed
from torchfix.source import SourceError, SourceFile

_WRAPPED = "__wrapped__"


class ProofError(Exception):
    """The new text does not mean what was intended."""


def prove(tree: ast.Module, edits: Sequence[PlacedEdit], after: SourceFile) -> None:
    """Make sure that a new text means the old tree with the edits made, and nothing else.

    Raises:
        ProofError: it does not parse, or to another tree.
    """
    try:
        found = trees.difference(intended(tree, edits), after.tree)
    except SourceError as error:
        raise ProofError(f"the new text does not parse: {error.text}") from error
    if found is not None:
        raise ProofError(f"the new text means something else than intended at its line {getattr(found, 'lineno', 1)}")
    if _fault(after.tree) is not None and _fault(tree) is None:
        raise ProofError(f"the new text does not compile: {_fault(after.tree)}")


def _fault(tree: ast.Module) -> str | None:
    """What the compiler has against a tree that the parser took: a late ``__future__`` import, a ``return`` outside a function."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(tree, "<text>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return str(error)
    return None


def intended(tree: ast.Module, edits: Sequence[PlacedEdit]) -> ast.Module:
    """The tree with all edits made; ``tree`` itself stays as it is."""
    return _Reading(tree, edits).module()


class _Reading:
    def __init__(self, module: ast.Module, edits: Sequence[PlacedEdit]) -> None:
        self._module = module
        self._at: dict[ast.AST, list[PlacedEdit]] = defaultdict(list)
        self._touched: set[ast.AST] = set()
        tree = indexed(module)
        for edit in edits:
            for node in places(edit):
                if edit not in self._at[node]:
                    self._at[node].append(edit)
                self._touched.update((node, *tree.ancestors(node)))

    def module(self) -> ast.Module:
        return self._inside(self._module)

    def _inside(self, node: trees.N) -> trees.N:
        """A node whose children are as intended, the edits on itself not yet made."""
        if node not in self._touched:
            return node
        changes: dict[str, object] = {}
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                changes[name] = self._block(value)
            elif isinstance(value, list):
                changes[name] = [self._node(item) if isinstance(item, ast.AST) else item for item in value]
            elif isinstance(value, ast.AST):
                changes[name] = self._node(value)
        return trees.with_fields(node, changes)

    def _node(self, node: ast.AST) -> ast.AST:
        """An expression, or any other node that is no statement, as intended."""
        if node not in self._touched:
            return node
        edits = self._at.get(node, [])
        for edit in edits:
            if isinstance(edit, Replace):
                filled = trees.filled(trees.expression(edit.code), self._parts(edit))
                return trees.in_context(filled, getattr(node, "ctx", ast.Load()))
        new = self._inside(node)
        if isinstance(new, ast.Call):
            new = _with_arguments(new, edits)
        return new

    def _parts(self, edit: Replace) -> dict[str, ast.expr]:
        parts = {}
        for name, part in edit.parts.items():
            new = self._inside(part) if part is edit.node else self._node(part)
            assert isinstance(new, ast.expr)
            parts[hole(name)] = new
        return parts

    def _block(self, block: Sequence[ast.stmt]) -> list[ast.stmt]:
        wraps = [edit for statement in block for edit in self._at.get(statement, []) if isinstance(edit, Wrap) and edit.first is statement]
        wraps.sort(key=lambda wrap: -_position(block, wrap.last))
        return self._run(block, 0, len(block), wraps) or [ast.Pass()]

    def _run(self, block: Sequence[ast.stmt], low: int, high: int, wraps: Sequence[Wrap], wrapped: bool = False) -> list[ast.stmt]:
        """The statements from ``low`` to ``high``; what a wrap holds leaves out the insertions at its two edges."""
        out: list[ast.stmt] = []
        index = low
        while index < high:
            first = block[index]
            wrap = next((wrap for wrap in wraps if wrap.first is first), None)
            end = index + 1 if wrap is None else _position(block, wrap.last) + 1
            if index > low or not wrapped:
                out += self._inserted(InsertBefore, first)
            if wrap is None:
                out += self._statement(first)
            else:
                inner = [other for other in wraps if other is not wrap]
                out += _wrapped(wrap, self._run(block, index, end, inner, wrapped=True))
            if end < high or not wrapped:
                out += self._inserted(InsertAfter, block[end - 1])
            index = end
        return out

    def _inserted(self, kind: type[InsertBefore] | type[InsertAfter], statement: ast.stmt) -> list[ast.stmt]:
        return [new for edit in self._at.get(statement, []) if isinstance(edit, kind) for new in trees.module(edit.code).body]

    def _statement(self, statement: ast.stmt) -> list[ast.stmt]:
        edits = self._at.get(statement, [])
        if any(isinstance(edit, Remove) for edit in edits):
            return []
        for edit in edits:
            if isinstance(edit, Replace):
                return [trees.filled(new, self._parts(edit)) for new in trees.module(edit.code).body]
        new = self._inside(statement)
        for edit in edits:
            if isinstance(edit, AddParameter) and isinstance(new, (ast.FunctionDef, ast.AsyncFunctionDef)):
                new = trees.with_fields(new, {"args": _with_parameter(new.args, edit.parameter)})
            if isinstance(edit, AddDecorator) and isinstance(new, (ast.FunctionDef, ast.AsyncFunctionDef)):
                new = trees.with_fields(new, {"decorator_list": [*new.decorator_list, trees.expression(edit.decorator)]})
        return [new]


def _position(block: Sequence[ast.stmt], statement: ast.stmt) -> int:
    return next(index for index, item in enumerate(block) if item is statement)


def _with_arguments(call: ast.Call, edits: Sequence[PlacedEdit]) -> ast.Call:
    removed = {edit.argument for edit in edits if isinstance(edit, RemoveArgument)}
    args = [arg for index, arg in enumerate(call.args) if index not in removed]
    keywords = [keyword for keyword in call.keywords if keyword.arg is None or keyword.arg not in removed]
    for edit in edits:
        if isinstance(edit, SetArgument):
            value = trees.expression(edit.value)
            new = ast.keyword(arg=edit.name, value=value)
            names = [keyword.arg for keyword in keywords]
            if edit.name in names:
                keywords[names.index(edit.name)] = new
            else:
                end = len(names)
                while end and names[end - 1] is None:
                    end -= 1
                keywords.insert(end, new)
    return trees.with_fields(call, {"args": args, "keywords": keywords})


def _with_parameter(arguments: ast.arguments, parameter: str) -> ast.arguments:
    function = trees.module(f"def f({parameter}): pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    new = function.args
    return trees.with_fields(arguments, {"args": [*arguments.args, *new.args], "defaults": [*arguments.defaults, *new.defaults]})


def _wrapped(wrap: Wrap, body: list[ast.stmt]) -> list[ast.stmt]:
    header = wrap.header.rstrip()
    last = header.splitlines()[-1]
    indent = last[: len(last) - len(last.lstrip())] + ("    " if last.endswith(":") else "")
    template = trees.module(f"{header}\n{indent}{_WRAPPED}\n{wrap.footer}")
    for node in ast.walk(template):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and any(_is_wrapped(item) for item in value):
                setattr(node, name, [new for item in value for new in (body if _is_wrapped(item) else [item])])
                return template.body
    raise ProofError(f"the header {wrap.header!r} opens no block")


def _is_wrapped(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Name) and node.value.id == _WRAPPED
