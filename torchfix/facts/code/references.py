"""Uses of a torch name in one file: what is done with it there, which import brought it, and whether the program has a choice."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.names import canonical
from torchfix.facts.code.scopes import Bound, imported_module
from torchfix.facts.code.tree import FUNCTIONS

if TYPE_CHECKING:
    from torchfix.facts import Facts

# What Python raises where a name, or an argument, is not known to an older version of a package.
_MISSING = ("ImportError", "ModuleNotFoundError", "AttributeError", "NameError", "TypeError")
_MOST_HANDS = 4  # modules of the project that hand a name on to each other
_DECLARES = (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)


class Role(enum.Enum):
    """What a program does with the thing that it names."""

    CALLED = "called"
    DECORATING = "decorating"
    CHECKED = "checked"
    ANNOTATING = "annotating"
    DERIVED = "derived"
    COMPARED = "compared"
    REBOUND = "rebound"
    HANDED_ON = "handed on"


@dataclass(frozen=True, eq=False)
class Reference:
    """One use of a torch name.

    Args:
        node: the name or attribute chain as it is written.
        name: the dotted name that it means.
        role: what is done with it.
        call: the call of it, for :attr:`Role.CALLED`.
        statement: the import that brought the first name of the chain; it may be ``from module import *``.
        alias: the part of that import.
        is_lent: whether the import must stay: another file may take the name from this one, or the module that it runs does more.
    """

    node: ast.expr
    name: str
    role: Role
    call: ast.Call | None
    statement: ast.Import | ast.ImportFrom
    alias: ast.alias
    is_lent: bool = False

    @property
    def imported(self) -> tuple[str, str | None] | None:
        """The module, and the name of it, that the import brings; None where it brings more than this, or for others too."""
        if self.is_lent or self.alias.name == "*":
            return None
        if isinstance(self.statement, ast.ImportFrom):
            return imported_module(self.statement), self.alias.name
        return self.alias.name, None


class References:
    """The uses of torch names in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def to(self, names: Iterable[str]) -> list[Reference]:
        """Every use of these dotted names through an import, in text order; a use through a variable is not one."""
        wanted = frozenset(names)
        found = []
        for node in self._candidates({name.rpartition(".")[2] for name in wanted}):
            imported = self._import_of(node)
            if imported is None:
                continue
            name = self._facts.names.qualified(node)
            through = None if name in wanted else self._handed_by(node)
            if through is not None:
                name = through[1]
            if name in wanted:
                role, call = self._role(node)
                keeps = self._is_lent(node) or (through is not None and not _may_go(through[0], imported[0]))
                found.append(Reference(node, str(name), role, call, *imported, keeps))
        return sorted(found, key=lambda item: (item.node.lineno, item.node.col_offset))

    def _handed_by(self, node: ast.Name | ast.Attribute) -> tuple[Facts, str] | None:
        """The module of the project that only hands a name on, and the dotted name under which it got it from a library."""
        if isinstance(node, ast.Attribute):
            module, word = self._facts.names.module_of(node.value), node.attr
        else:
            statement, alias = self._import_of(node) or (None, None)
            if not isinstance(statement, ast.ImportFrom) or alias is None:
                return None
            module, word = self._facts.project.module(statement.module or "", self._facts.path, statement.level), alias.name
        got = module.references._got(word, 0) if module is not None else None
        return (module, got) if module is not None and got is not None else None

    def _got(self, word: str, depth: int) -> str | None:
        """The dotted name for which a name of this module stands, where an import that surely runs is all that binds it."""
        bindings = self._facts.names.module.bindings.get(word, [])
        node = bindings[0].node if len(bindings) == 1 else None
        if not isinstance(node, ast.ImportFrom) or node not in self._facts.tree.module.body or depth > _MOST_HANDS:
            return None
        module = self._facts.project.module(node.module or "", self._facts.path, node.level)
        if module is None:
            return canonical(bindings[0].origin)
        return module.references._got(bindings[0].origin.rpartition(".")[2], depth + 1)

    def _candidates(self, words: set[str]) -> Iterator[ast.Name | ast.Attribute]:
        tree, names = self._facts.tree, self._facts.names
        for word in words:
            yield from tree.attributes.get(word, ())
            for local in names.locals_of(word):
                yield from (use for use in tree.names.get(local, ()) if isinstance(use.ctx, ast.Load))

    def _import_of(self, node: ast.expr) -> tuple[ast.Import | ast.ImportFrom, ast.alias] | None:
        """The only import that brings the first name of a chain, and the part of it that does."""
        while isinstance(node, ast.Attribute):
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        bindings = self._facts.names.bindings(node)
        if not bindings:
            stars = self._facts.names.module.bindings.get("*", ())
            imports = [star.node for star in stars if isinstance(star.node, ast.ImportFrom)]
            return (imports[-1], imports[-1].names[0]) if imports else None
        if len(bindings) > 1:
            bindings = self._facts.flow.reaching(node)
        if any(binding.how is not Bound.IMPORT for binding in bindings):
            return None
        statement = bindings[0].node
        assert isinstance(statement, (ast.Import, ast.ImportFrom))
        brought = [alias for alias in statement.names if (alias.asname or alias.name).partition(".")[0] == node.id]
        return (statement, brought[0]) if brought else None

    def _is_lent(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        facts = self._facts
        if not isinstance(node, ast.Name):
            return False
        return any(_may_take(facts.project.file(path), node.id, facts.path) for path in facts.project.mentioning(node.id, facts.path))

    def _role(self, node: ast.expr) -> tuple[Role, ast.Call | None]:
        parent = self._facts.tree.parent(node)
        if isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            return Role.REBOUND, None
        if isinstance(parent, ast.Call) and parent.func is node:
            return Role.CALLED, parent
        if isinstance(parent, (*FUNCTIONS, ast.ClassDef)) and node in parent.decorator_list:
            return Role.DECORATING, None
        if isinstance(parent, ast.ClassDef):
            return Role.DERIVED, None
        if isinstance(parent, (ast.Compare, ast.MatchClass)):
            return Role.COMPARED, None
        inner: ast.AST = node
        for outer in self._facts.tree.ancestors(node):
            if isinstance(outer, ast.Call) and inner in outer.args[1:]:
                checked = self._facts.calls.meaning(outer) in ("builtins.isinstance", "builtins.issubclass")
                return (Role.CHECKED if checked else Role.HANDED_ON), None
            if isinstance(outer, (ast.arg, ast.AnnAssign)) and outer.annotation is inner:
                return Role.ANNOTATING, None
            if isinstance(outer, FUNCTIONS) and outer.returns is inner:
                return Role.ANNOTATING, None
            if not isinstance(outer, (ast.Tuple, ast.BinOp, ast.Subscript)):
                break
            inner = outer
        return Role.HANDED_ON, None

    # Choices between versions ---------------------------------------------------------------------------------

    def is_choice(self, reference: Reference, others: Iterable[str]) -> bool:
        """Whether the program uses a name in some versions of torch only, and may use ``others`` in the rest.

        So it is where the import, or the use, is tried; where a version is asked for; and where the other branch, or a
        branch that returned before, has one of the other names.
        """
        return self._is_tried(reference.statement) or self.is_branch(reference.node, others)

    def _is_tried(self, statement: ast.stmt) -> bool:
        """Whether the program goes on where an import fails."""
        tries = (outer for outer in self._facts.tree.ancestors(statement) if isinstance(outer, ast.Try))
        return any(not isinstance(handler.body[-1], ast.Raise) for outer in tries for handler in outer.handlers)

    def is_branch(self, node: ast.AST, others: Iterable[str] = ()) -> bool:
        """Whether a place runs in some versions only, or where what has one of the other names does not."""
        others = frozenset(others)
        inner: ast.AST = node
        for outer in self._facts.tree.ancestors(node):
            if isinstance(outer, ast.Try) and outer.handlers:
                if inner in outer.body and any(_catches_missing(handler) for handler in outer.handlers):
                    return True
                if inner in outer.handlers and self._names_any(outer.body, others):
                    return True
            if isinstance(outer, ast.If) and inner is not outer.test:
                other = outer.orelse if inner in outer.body else outer.body
                if self._asks_version(outer.test) or self._names_any(other, others):
                    return True
            if isinstance(outer, ast.IfExp) and inner is not outer.test:
                branch = outer.orelse if inner is outer.body else outer.body
                if self._asks_version(outer.test) or self._names_any([branch], others):
                    return True
            if isinstance(inner, ast.stmt) and not isinstance(inner, FUNCTIONS) and self._returned_before(inner, others):
                return True
            inner = outer
        return False

    def _returned_before(self, statement: ast.stmt, others: frozenset[str]) -> bool:
        _, block, index = self._facts.tree.place(statement)
        branches = (item for item in block[:index] if isinstance(item, ast.If) and isinstance(item.body[-1], ast.Return))
        return any(self._asks_version(item.test) or self._names_any(item.body, others) for item in branches)

    def _asks_version(self, test: ast.expr) -> bool:
        """Whether a condition asks which version of torch there is, or whether a module has a name."""
        names = [node for node in ast.walk(test) if isinstance(node, ast.Name)]
        made = [value.node for name in names for value in self._facts.values.of(name) or ()]
        for node in (inner for root in (test, *made) for inner in ast.walk(root)):
            if isinstance(node, ast.Attribute) and node.attr == "__version__":
                return True
            if isinstance(node, ast.Call) and node.args and self._facts.calls.meaning(node) == "builtins.hasattr":
                asked = self._facts.names.qualified(node.args[0]) or ""
                if asked.partition(".")[0] == "torch":
                    return True
        return False

    def _names_any(self, nodes: Iterable[ast.AST], wanted: frozenset[str]) -> bool:
        for root in nodes:
            for node in ast.walk(root):
                if isinstance(node, (ast.Name, ast.Attribute)) and self._facts.names.qualified(node) in wanted:
                    return True
        return False


def _may_take(facts: Facts | None, word: str, path: str) -> bool:
    """Whether a file may take a name from another one, by its path: through an import, or as what a module has."""
    if facts is None:
        return True
    for node in facts.tree.imports:
        if isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} & {word, "*"}:
            module = facts.project.module(node.module or "", facts.path, node.level)
            if module is not None and module.path == path:
                return True
    for use in facts.tree.attributes.get(word, ()):
        module = facts.names.module_of(use.value)
        if facts.names.qualified(use.value) is None or (module is not None and module.path == path):
            return True
    return False


def _may_go(module: Facts, statement: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import that brings a name of a module can do without that name: it brings others, or the module only declares."""
    declares = all(isinstance(item, _DECLARES) or _is_text(item) for item in module.tree.module.body)
    return len(statement.names) > 1 or (declares and not module.project.imports(module.path))


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _catches_missing(handler: ast.ExceptHandler) -> bool:
    """Whether a handler is for what a version of a package may lack."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(item, ast.Name) and item.id in _MISSING for item in caught)
