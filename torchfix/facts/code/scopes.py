"""The scopes of one file: which statement binds which name where, and which variable a name belongs to."""

from __future__ import annotations

import ast
import builtins
import enum
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from torchfix.facts.code.tree import COMPREHENSIONS, FUNCTIONS, Tree


class Bound(enum.Enum):
    """How a statement binds a name."""

    IMPORT = "import"
    STAR = "star"
    ASSIGN = "assign"
    AUGMENTED = "augmented"
    PARAMETER = "parameter"
    LOOP = "loop"
    WITH = "with"
    FUNCTION = "function"
    CLASS = "class"
    OTHER = "other"


@dataclass(frozen=True, eq=False)
class Binding:
    """One place that binds a name.

    Args:
        how: the kind of statement.
        name: the name that it binds.
        node: the statement, parameter or clause that binds it.
        value: for an assignment the expression assigned, for a loop the iterable, for ``with`` the context.
        path: where the name takes a part of the value: indexes into nested tuples.
        origin: for an import the dotted name that it stands for.
    """

    how: Bound
    name: str
    node: ast.AST
    value: ast.expr | None = None
    path: tuple[int, ...] = ()
    origin: str = ""


@dataclass(eq=False)
class Scope:
    """A module, function, class or comprehension with the names bound in it."""

    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=lambda: defaultdict(list))
    outside: dict[str, str] = field(default_factory=dict)  # names declared global or nonlocal here

    def __repr__(self) -> str:
        return f"Scope({type(self.node).__name__})"


class Scopes:
    """The scopes of one file, built once.

    Args:
        tree: the file's.
        known: what was built of it before, to be shared.
    """

    def __init__(self, tree: Tree, known: Scopes | None = None) -> None:
        self._tree = tree
        self._scopes: dict[ast.AST, Scope] = known._scopes if known else {}
        self._around: dict[ast.AST, Scope] = known._around if known else {}
        self._uses: dict[tuple[Scope | None, str], list[ast.Name]] = known._uses if known else {}
        self.module: Scope = known.module if known else Scope(tree.module, None)
        if known is None:
            self._scopes[tree.module] = self.module
            self._collect(tree.module.body, self.module)
            self._apply_outside()

    def _collect(self, nodes: list[ast.stmt] | list[ast.expr], scope: Scope) -> None:
        for node in nodes:
            self._visit(node, scope)

    def _open(self, node: ast.AST, scope: Scope) -> Scope:
        inner = Scope(node, scope)
        self._scopes[node] = inner
        return inner

    def _visit(self, node: ast.AST, scope: Scope) -> None:
        bind = scope.bindings
        if isinstance(node, FUNCTIONS):
            bind[node.name].append(Binding(Bound.FUNCTION, node.name, node))
            self._visit_signature(node.args, scope, self._open(node, scope), node.decorator_list, node.returns)
            self._collect(node.body, self._scopes[node])
        elif isinstance(node, ast.Lambda):
            self._visit_signature(node.args, scope, self._open(node, scope), [], None)
            self._visit(node.body, self._scopes[node])
        elif isinstance(node, ast.ClassDef):
            bind[node.name].append(Binding(Bound.CLASS, node.name, node))
            self._collect([*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)], scope)
            self._collect(node.body, self._open(node, scope))
        elif isinstance(node, COMPREHENSIONS):
            self._visit_comprehension(node, scope)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._visit_import(node, scope)
        else:
            self._visit_binding(node, scope)

    def _visit_signature(
        self, arguments: ast.arguments, outer: Scope, inner: Scope, decorators: list[ast.expr], returns: ast.expr | None
    ) -> None:
        for parameter in parameters(arguments):
            inner.bindings[parameter.arg].append(Binding(Bound.PARAMETER, parameter.arg, parameter))
            if parameter.annotation is not None:
                self._visit(parameter.annotation, outer)
        evaluated_outside = [*decorators, *arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]
        self._collect([*evaluated_outside, *([returns] if returns is not None else [])], outer)

    def _visit_comprehension(self, node: ast.AST, scope: Scope) -> None:
        generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
        self._visit(generators[0].iter, scope)
        inner = self._open(node, scope)
        for index, generator in enumerate(generators):
            if index:
                self._visit(generator.iter, inner)
            self._bind_target(generator.target, inner, Bound.LOOP, generator, generator.iter)
            self._collect(generator.ifs, inner)
        for name in ("elt", "key", "value"):
            value = getattr(node, name, None)
            if value is not None:
                self._visit(value, inner)

    def _visit_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                name = alias.asname or alias.name.partition(".")[0]
                origin = alias.name if alias.asname else name
                scope.bindings[name].append(Binding(Bound.IMPORT, name, node, origin=origin))
            elif alias.name == "*":
                scope.bindings["*"].append(Binding(Bound.STAR, "*", node, origin=imported_module(node)))
            else:
                name = alias.asname or alias.name
                scope.bindings[name].append(Binding(Bound.IMPORT, name, node, origin=f"{imported_module(node)}.{alias.name}"))

    def _visit_binding(self, node: ast.AST, scope: Scope) -> None:
        bind = scope.bindings
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind_target(target, scope, Bound.ASSIGN, node, node.value)
        elif isinstance(node, ast.AnnAssign):
            self._bind_target(node.target, scope, Bound.ASSIGN if node.value else Bound.OTHER, node, node.value)
        elif isinstance(node, ast.AugAssign):
            self._bind_target(node.target, scope, Bound.AUGMENTED, node, node.value)
        elif isinstance(node, ast.NamedExpr):
            home = scope
            while isinstance(home.node, COMPREHENSIONS) and home.parent is not None:
                home = home.parent
            self._bind_target(node.target, home, Bound.ASSIGN, node, node.value)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._bind_target(node.target, scope, Bound.LOOP, node, node.iter)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._bind_target(node.optional_vars, scope, Bound.WITH, node, node.context_expr)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bind[node.name].append(Binding(Bound.OTHER, node.name, node))
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    bind[target.id].append(Binding(Bound.OTHER, target.id, node))
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            for name in node.names:
                scope.outside[name] = "global" if isinstance(node, ast.Global) else "nonlocal"
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            bind[node.name].append(Binding(Bound.OTHER, node.name, node))
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bind[node.rest].append(Binding(Bound.OTHER, node.rest, node))
        for child in ast.iter_child_nodes(node):
            self._visit(child, scope)

    def _bind_target(
        self, target: ast.expr, scope: Scope, how: Bound, node: ast.AST, value: ast.expr | None, path: tuple[int, ...] = ()
    ) -> None:
        if isinstance(target, ast.Name):
            scope.bindings[target.id].append(Binding(how, target.id, node, value, path))
        elif isinstance(target, (ast.Tuple, ast.List)):
            star = next((index for index, item in enumerate(target.elts) if isinstance(item, ast.Starred)), len(target.elts))
            for index, item in enumerate(target.elts):
                if isinstance(item, ast.Starred):
                    self._bind_target(item.value, scope, Bound.OTHER, node, None)
                else:  # behind a star places count from the end
                    self._bind_target(item, scope, how, node, value, (*path, index if index < star else index - len(target.elts)))

    def _apply_outside(self) -> None:
        """Move what a function binds under ``global`` or ``nonlocal`` to the scope that it belongs to."""
        for scope in list(self._scopes.values()):
            for name, kind in scope.outside.items():
                if name in scope.bindings:
                    home = self.module if kind == "global" else self._enclosing(scope, name)
                    home.bindings[name].extend(scope.bindings.pop(name))

    def _enclosing(self, scope: Scope, name: str) -> Scope:
        outer = scope.parent
        while outer is not None:
            if isinstance(outer.node, FUNCTIONS) and name in outer.bindings:
                return outer
            outer = outer.parent
        return self.module

    def scope(self, node: ast.AST) -> Scope:
        """The scope in which a node is evaluated."""
        found = self._around.get(node)
        if found is None:
            found = self._around[node] = self._find_scope(node)
        return found

    def _find_scope(self, node: ast.AST) -> Scope:
        inner: ast.AST = node
        evaluated_around: ast.AST | None = None  # a comprehension whose first iterable holds the node
        for outer in self._tree.ancestors(node):
            scope = self._scopes.get(outer)
            if scope is not None and outer is not evaluated_around and self._inside(inner, outer):
                return scope
            if isinstance(outer, ast.comprehension) and inner is outer.iter:
                owner = self._tree.parent(outer)
                evaluated_around = owner if owner is not None and owner.generators[0] is outer else None  # type: ignore[attr-defined]
            inner = outer
        return self.module

    @staticmethod
    def _inside(child: ast.AST, owner: ast.AST) -> bool:
        """Whether a direct child is evaluated in the owner's scope rather than around it."""
        if isinstance(owner, (*FUNCTIONS, ast.ClassDef)):
            return isinstance(child, ast.stmt)
        if isinstance(owner, ast.Lambda):
            return child is owner.body
        return True

    def own(self, node: ast.AST) -> Scope:
        """The scope that a module, function, class or comprehension opens."""
        return self._scopes[node]

    def lookup(self, name: str, at: ast.AST) -> tuple[Scope, list[Binding]] | None:
        """The scope that a name belongs to when read at a node, with everything that binds it there."""
        scope: Scope | None = self.scope(at)
        first = True
        while scope is not None:
            if scope.outside.get(name) == "global":
                scope = self.module
            visible = first or not isinstance(scope.node, ast.ClassDef)
            if visible and scope.bindings.get(name):
                return scope, scope.bindings[name]
            first = False
            scope = scope.parent
        return None

    def bindings(self, name: ast.Name) -> list[Binding]:
        """Everything that may bind a name as it is read here; empty for a builtin or an unknown name."""
        found = self.lookup(name.id, name)
        return found[1] if found else []

    def same(self, one: ast.Name, other: ast.Name) -> bool:
        """Whether two uses of a name mean the same variable."""
        return one.id == other.id and self._home(one) is self._home(other)

    def _home(self, name: ast.Name) -> Scope | None:
        """The scope of the variable that a name means."""
        found = self.lookup(name.id, name)
        return found[0] if found else None

    def uses(self, name: ast.Name) -> Iterator[ast.Name]:
        """All uses of the variable that a name means here, this one included, in text order."""
        home = self._home(name)
        if (home, name.id) not in self._uses:
            self._uses[home, name.id] = [other for other in self._tree.names.get(name.id, ()) if self._home(other) is home]
        return iter(self._uses[home, name.id])

    def is_free(self, name: str) -> bool:
        """Whether no scope of the file binds, reads or declares a name, so that new code may use it."""
        if name in self._tree.names or hasattr(builtins, name):
            return False
        return not any(name in scope.bindings or name in scope.outside for scope in self._scopes.values())

    def fresh(self, *candidates: str) -> str:
        """The first of these names that is free in the whole file, else the last with a number behind it."""
        for candidate in candidates:
            if self.is_free(candidate):
                return candidate
        number = 2
        while not self.is_free(f"{candidates[-1]}_{number}"):
            number += 1
        return f"{candidates[-1]}_{number}"


def parameters(arguments: ast.arguments) -> list[ast.arg]:
    """All parameters of a function in the order of the text."""
    listed = [*arguments.posonlyargs, *arguments.args]
    if arguments.vararg:
        listed.append(arguments.vararg)
    listed += arguments.kwonlyargs
    if arguments.kwarg:
        listed.append(arguments.kwarg)
    return listed


def imported_module(node: ast.ImportFrom) -> str:
    """The module of a ``from`` import, with its leading dots."""
    return "." * node.level + (node.module or "")
