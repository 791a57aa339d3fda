"""The few kinds of change that a transform may ask for.

An edit names nodes of the file's ``ast`` tree and carries new code as text. It knows nothing of text positions:
:mod:`torchfix.apply` turns edits into text, :mod:`torchfix.proof` into the tree that the text must parse to.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

_HOLE = re.compile(r"\$([A-Za-z_]\w*)")


@dataclass(frozen=True, eq=False)
class SetArgument:
    """Give ``call`` the keyword argument ``name`` with the expression ``value``, replacing the value it has."""

    call: ast.Call
    name: str
    value: str


@dataclass(frozen=True, eq=False)
class RemoveArgument:
    """Take an argument away from ``call``: a keyword by name, or a positional one by its index."""

    call: ast.Call
    argument: str | int


@dataclass(frozen=True, eq=False)
class Replace:
    """Put ``template`` in the place of ``node``.

    A hole ``$name`` in the template is filled with the text of ``parts[name]``, a node inside ``node`` (or ``node``
    itself); edits inside that part survive. For a statement the template may hold several statements, written
    without indentation.
    """

    node: ast.expr | ast.stmt
    template: str
    parts: Mapping[str, ast.expr] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """The template as Python text: each hole is a name that :func:`hole` gives."""
        return _HOLE.sub(lambda found: hole(found[1]) if found[1] in self.parts else found[0], self.template)

    @property
    def used(self) -> frozenset[ast.expr]:
        """The parts whose hole the template holds."""
        return frozenset(self.parts[name] for name in _HOLE.findall(self.template) if name in self.parts)


@dataclass(frozen=True, eq=False)
class InsertBefore:
    """Put ``code`` (one or more statements, without indentation) in front of ``statement``, in its block."""

    statement: ast.stmt
    code: str


@dataclass(frozen=True, eq=False)
class InsertAfter:
    """Put ``code`` (one or more statements, without indentation) behind ``statement``, in its block."""

    statement: ast.stmt
    code: str


@dataclass(frozen=True, eq=False)
class Remove:
    """Take ``statement`` away; ``pass`` stays where it was its block's only one."""

    statement: ast.stmt


@dataclass(frozen=True, eq=False)
class Wrap:
    """Indent the statements from ``first`` to ``last`` of one block under ``header`` (``with open(p) as f:``).

    The header may go on with statements that stand in front of the wrapped ones (``"if x:\\n    y()"``). ``footer`` is what
    follows at the header's own depth, for instance ``"finally:\\n    close()"``.
    """

    first: ast.stmt
    last: ast.stmt
    header: str
    footer: str = ""


@dataclass(frozen=True, eq=False)
class AddParameter:
    """Append a parameter to ``function``, behind its last one that may be passed by position.

    ``parameter`` is a name, with its default if it has one (``"scaler=None"``).
    """

    function: ast.FunctionDef | ast.AsyncFunctionDef
    parameter: str


@dataclass(frozen=True, eq=False)
class AddDecorator:
    """Put a decorator, written without its ``@``, right above ``function``, inside the decorators that it has."""

    function: ast.FunctionDef | ast.AsyncFunctionDef
    decorator: str


@dataclass(frozen=True, eq=False)
class AddImport:
    """Make ``import module``, or ``from module import name``, hold at module level; nothing if it already does."""

    module: str
    name: str | None = None


@dataclass(frozen=True, eq=False)
class RemoveImport:
    """Take away ``import module`` or the ``name`` of ``from module import name``, if nothing uses it any more.

    Only plain imports at module level go: one inside ``try`` or ``if``, or in a module that declares ``__all__`` or
    is a package's face, may be a probe or a re-export and stays.
    """

    module: str
    name: str | None = None


ArgumentEdit: TypeAlias = SetArgument | RemoveArgument
StatementEdit: TypeAlias = InsertBefore | InsertAfter | Remove | Wrap
ImportEdit: TypeAlias = AddImport | RemoveImport
FunctionEdit: TypeAlias = AddParameter | AddDecorator
Edit: TypeAlias = ArgumentEdit | Replace | StatementEdit | FunctionEdit | ImportEdit
PlacedEdit: TypeAlias = ArgumentEdit | Replace | StatementEdit | FunctionEdit
"""An edit that names its nodes; :mod:`torchfix.imports` turns import edits into such ones."""


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """Edits of another file of the project, made together with those of a finding's own file or not at all.

    Args:
        path: the other file, POSIX, relative to the project's root.
        edits: they name nodes of the tree that the project holds for it (``facts.project.file(path)``).
    """

    path: str
    edits: tuple[Edit, ...]


def by_file(home: str, edits: Iterable[tuple[str, Edit]]) -> tuple[tuple[Edit, ...], tuple[Elsewhere, ...]]:
    """Edits with the paths of their files, as a finding carries them: those of its own file, and those of others by path."""
    found: dict[str, list[Edit]] = defaultdict(list)
    for path, edit in edits:
        found[path].append(edit)
    own = tuple(found.pop(home, ()))
    return own, tuple(Elsewhere(path, tuple(found[path])) for path in sorted(found))


def hole(name: str) -> str:
    """The Python name that stands for the hole ``$name`` of a template."""
    return f"__hole_{name}__"


def places(edit: PlacedEdit) -> tuple[ast.expr | ast.stmt, ...]:
    """The nodes at which an edit is made."""
    match edit:
        case SetArgument() | RemoveArgument():
            return (edit.call,)
        case Replace():
            return (edit.node,)
        case InsertBefore() | InsertAfter() | Remove():
            return (edit.statement,)
        case Wrap():
            return (edit.first, edit.last)
        case AddParameter() | AddDecorator():
            return (edit.function,)
