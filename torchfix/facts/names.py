"""What a name means at a place, scopes respected, and how to spell a torch name in this file.

Known or None: a name that two statements bind to two meanings has none.
"""

from __future__ import annotations

import ast
import builtins
import enum
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchfix.facts.tree import COMPREHENSIONS, FUNCTIONS, Tree, dotted

if TYPE_CHECKING:
    from torchfix.facts import Facts


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


@dataclass(frozen=True)
class Definition:
    """A function or class of the user's project, with the facts of the file that holds it."""

    facts: Facts = field(compare=False)
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(eq=False)
class Scope:
    """A module, function, class or comprehension with the names bound in it."""

    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=lambda: defaultdict(list))
    outside: dict[str, str] = field(default_factory=dict)  # names declared global or nonlocal here

    def __repr__(self) -> str:
        return f"Scope({type(self.node).__name__})"


# Where torch defines things and where its documentation has them: the second is the name that facts use.
_HOMES = {
    "torch.utils.data.dataloader": "torch.utils.data",
    "torch.utils.data.dataset": "torch.utils.data",
    "torch.utils.data.sampler": "torch.utils.data",
    "torch.utils.data.distributed.DistributedSampler": "torch.utils.data.DistributedSampler",
    "torch.nn.parallel.data_parallel": "torch.nn",
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.distributed": "torch.nn.parallel",
    "torch.amp.autocast_mode.autocast": "torch.autocast",
    "torch.amp.autocast": "torch.autocast",
    "torch.amp.grad_scaler": "torch.amp",
    "torch.GradScaler": "torch.amp.GradScaler",
    "torch.cuda.amp.autocast_mode": "torch.cuda.amp",
    "torch.cuda.amp.grad_scaler": "torch.cuda.amp",
    "torch.autograd.grad_mode": "torch",
    "torch.autograd.no_grad": "torch.no_grad",
    "torch.autograd.variable": "torch.autograd",
    "torch.functional": "torch",
    "torch.nn.utils.clip_grad": "torch.nn.utils",
}


def canonical(name: str) -> str:
    """A torch name as torch's documentation has it, whichever module it was imported from."""
    for home, public in _HOMES.items():
        if name == home or name.startswith(home + "."):
            name = public + name[len(home) :]
    parts = name.split(".")
    if parts[:3] == ["torch", "nn", "modules"] and len(parts) >= 4:
        parts = ["torch", "nn", *(parts[4:] if parts[3].islower() and len(parts) > 4 else parts[3:])]
    elif parts[:2] == ["torch", "optim"] and len(parts) == 4 and parts[2] != "lr_scheduler":
        parts = ["torch", "optim", parts[3]]  # torch.optim.adam.Adam
    return ".".join(parts)


class Names:
    """The scopes of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._tree: Tree = facts.tree
        self._scopes: dict[ast.AST, Scope] = {}
        self._asking: set[tuple[str, str]] = set()  # star imports being followed, so that a circle of them ends
        self.module = Scope(self._tree.module, None)
        self._scopes[self._tree.module] = self.module
        self._collect(self._tree.module.body, self.module)
        self._apply_outside()

    # Building -------------------------------------------------------------------------------------------------

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
                scope.bindings["*"].append(Binding(Bound.STAR, "*", node, origin=_module(node)))
            else:
                name = alias.asname or alias.name
                scope.bindings[name].append(Binding(Bound.IMPORT, name, node, origin=f"{_module(node)}.{alias.name}"))

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
            starred = any(isinstance(item, ast.Starred) for item in target.elts)
            for index, item in enumerate(target.elts):
                if starred:
                    inner = item.value if isinstance(item, ast.Starred) else item
                    self._bind_target(inner, scope, Bound.OTHER, node, None)
                else:
                    self._bind_target(item, scope, how, node, value, (*path, index))

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

    # Asking ---------------------------------------------------------------------------------------------------

    def scope(self, node: ast.AST) -> Scope:
        """The scope in which a node is evaluated."""
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
            return child in owner.body
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
        if one.id != other.id:
            return False
        first, second = self.lookup(one.id, one), self.lookup(other.id, other)
        return (first[0] if first else None) is (second[0] if second else None)

    def uses(self, name: ast.Name) -> Iterator[ast.Name]:
        """All uses of the variable that a name means here, this one included, in text order."""
        for other in self._tree.names.get(name.id, ()):
            if self.same(name, other):
                yield other

    def qualified(self, expression: ast.expr, _depth: int = 0) -> str | None:
        """The dotted name that an expression stands for (``torch.nn.Linear``), None where it is not known.

        Follows imports and plain aliases. Two bindings must agree; a star import that may have rebound the name
        makes it unknown. Definitions of the file itself are known by their bare name with a leading dot.
        """
        if isinstance(expression, ast.Attribute):
            base = self.qualified(expression.value, _depth)
            return None if base is None else canonical(f"{base}.{expression.attr}")
        if not isinstance(expression, ast.Name) or _depth > 8:
            return None
        found = self.lookup(expression.id, expression)
        if found is None:
            return self._unbound(expression)
        scope, bindings = found
        if len(bindings) > 1:
            bindings = self._facts.flow.reaching(expression)
        meanings = {self._meaning(binding, _depth) for binding in bindings}
        if len(meanings) != 1:
            return None
        meaning = meanings.pop()
        if meaning is not None and scope is self.module and self._hidden_by_star(expression.id, bindings):
            return None
        return meaning

    def _meaning(self, binding: Binding, depth: int) -> str | None:
        if binding.how is Bound.IMPORT:
            return canonical(binding.origin)
        if binding.how in (Bound.FUNCTION, Bound.CLASS):
            return f".{binding.name}"
        if binding.how is Bound.ASSIGN and binding.value is not None and not binding.path and dotted(binding.value):
            return self.qualified(binding.value, depth + 1)
        return None

    def _unbound(self, name: ast.Name) -> str | None:
        """A name that nothing in the file binds: a builtin, or brought by the only star import that can."""
        stars = self.module.bindings.get("*", [])
        brought = {self._from_star(star, name.id) for star in stars}
        brought.discard("")
        if hasattr(builtins, name.id) and (not brought or (brought == {None} and name.id not in _REDEFINED)):
            return f"builtins.{name.id}"
        return brought.pop() if len(brought) == 1 else None

    def _from_star(self, star: Binding, name: str) -> str | None:
        """What a star import binds a name to: ``""`` for nothing, None where that is not known."""
        if (star.origin, name) in self._asking:
            return ""
        self._asking.add((star.origin, name))
        try:
            return self._brought(star, name)
        finally:
            self._asking.discard((star.origin, name))

    def _brought(self, star: Binding, name: str) -> str | None:
        facts = self._star_module(star)
        if facts is None:
            if star.origin.partition(".")[0] == "torch":
                return canonical(f"{star.origin}.{name}") if _exported_by_torch(star.origin, name) else ""
            return None
        names = facts.names
        if not names.exports(name):
            return ""
        bindings = names.module.bindings.get(name, [])
        if bindings and all(binding.how is Bound.IMPORT for binding in bindings):
            origins = {canonical(binding.origin) for binding in bindings}
            return origins.pop() if len(origins) == 1 else None
        if not bindings:
            nested = {names._from_star(inner, name) for inner in names.module.bindings.get("*", [])} - {""}
            return nested.pop() if len(nested) == 1 else None
        return f"{star.origin}.{name}"

    def exports(self, name: str) -> bool:
        """Whether ``from this import *`` may bind a name."""
        bindings = self.module.bindings
        declared = bindings.get("__all__", [])
        if len(declared) == 1 and isinstance(declared[0].value, (ast.List, ast.Tuple)):
            return any(isinstance(item, ast.Constant) and item.value == name for item in declared[0].value.elts)
        if name.startswith("_"):
            return False
        if bindings.get(name):
            return True
        return any(self._from_star(star, name) != "" for star in bindings.get("*", []))

    def _star_module(self, star: Binding) -> Facts | None:
        node = star.node
        assert isinstance(node, ast.ImportFrom)
        facts = self._facts
        return facts.project.module(node.module or "", facts.path, node.level)

    def _hidden_by_star(self, name: str, bindings: list[Binding]) -> bool:
        """Whether a star import behind the last binding may have given the name another meaning."""
        last = max(getattr(binding.node, "lineno", 0) for binding in bindings)
        meant = {self._meaning(binding, 0) for binding in bindings}
        for star in self.module.bindings.get("*", []):
            if getattr(star.node, "lineno", 0) > last:
                brought = self._from_star(star, name)
                if brought == "" or brought in meant:
                    continue
                if brought is None and name == "torch":
                    continue  # a module that exports the name torch exports the package torch
                return True
        return False

    # Definitions, also in other files --------------------------------------------------------------------------

    def definition(self, expression: ast.expr) -> Definition | None:
        """The function or class of the user's project that an expression names, in this file or another."""
        if isinstance(expression, ast.Name):
            return self._defined(expression.id, self._facts.flow.reaching(expression), 0)
        if isinstance(expression, ast.Attribute):
            module = self._module_of(expression.value)
            return module.names.exported(expression.attr) if module else None
        return None

    def exported(self, name: str, depth: int = 0) -> Definition | None:
        """The function or class that another file gets by importing ``name`` from this one."""
        return self._defined(name, self.module.bindings.get(name, []), depth)

    def _defined(self, name: str, bindings: list[Binding], depth: int) -> Definition | None:
        if depth > 8:
            return None
        if not bindings:
            found = [module.names.exported(name, depth + 1) for star in self.module.bindings.get("*", []) if (module := self._star_module(star))]
            known = [definition for definition in found if definition]
            return known[0] if len(known) == 1 else None
        if len(bindings) != 1:
            return None
        binding = bindings[0]
        if isinstance(binding.node, (*FUNCTIONS, ast.ClassDef)):
            return Definition(self._facts, binding.node)
        if isinstance(binding.node, ast.ImportFrom):
            original = binding.origin.rpartition(".")[2]
            module = self._facts.project.module(binding.node.module or "", self._facts.path, binding.node.level)
            return module.names.exported(original, depth + 1) if module else None
        if binding.how is Bound.ASSIGN and isinstance(binding.value, (ast.Name, ast.Attribute)) and not binding.path:
            return self.definition(binding.value)
        return None

    def _module_of(self, expression: ast.expr) -> Facts | None:
        """The file of the project that a name or attribute chain means as a module."""
        project, path = self._facts.project, self._facts.path
        if isinstance(expression, ast.Name):
            bindings = self.bindings(expression)
            if len(bindings) != 1 or bindings[0].how is not Bound.IMPORT:
                return None
            node = bindings[0].node
            if isinstance(node, ast.ImportFrom):
                original = bindings[0].origin.rpartition(".")[2]
                return project.module(f"{node.module}.{original}" if node.module else original, path, node.level)
            return project.module(bindings[0].origin, path)
        if isinstance(expression, ast.Attribute):
            name = dotted(expression)
            root = expression
            while isinstance(root, ast.Attribute):
                root = root.value  # type: ignore[assignment]
            if name is None or not isinstance(root, ast.Name):
                return None
            bindings = self.bindings(root)
            if len(bindings) == 1 and bindings[0].how is Bound.IMPORT and isinstance(bindings[0].node, ast.Import):
                return project.module(bindings[0].origin + name[len(root.id) :], path)
        return None

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

    def spell(self, name: str, at: ast.AST) -> str | None:
        """How to write a dotted name at a node with the file's own module-level imports, None where it has none.

        ``spell("torch.nn.Linear", node)`` is ``nn.Linear`` in a file that has ``from torch import nn``.
        """
        best: str | None = None
        for local, bindings in self.module.bindings.items():
            meanings = {canonical(binding.origin) for binding in bindings if binding.how is Bound.IMPORT}
            if len(meanings) != 1 or any(binding.how is not Bound.IMPORT for binding in bindings):
                continue
            if not all(binding.node in self._tree.module.body for binding in bindings):
                continue  # under try or if the name may be missing
            origin = meanings.pop()
            if not (name == origin or name.startswith(origin + ".")):
                continue
            found = self.lookup(local, at)
            if found is None or found[0] is not self.module or self._hidden_by_star(local, bindings):
                continue
            written = local + name[len(origin) :]
            if best is None or written.count(".") < best.count("."):
                best = written
        return best


def parameters(arguments: ast.arguments) -> list[ast.arg]:
    """All parameters of a function in the order of the text."""
    listed = [*arguments.posonlyargs, *arguments.args]
    if arguments.vararg:
        listed.append(arguments.vararg)
    listed += arguments.kwonlyargs
    if arguments.kwarg:
        listed.append(arguments.kwarg)
    return listed


def _module(node: ast.ImportFrom) -> str:
    return "." * node.level + (node.module or "")


# Builtins that numeric packages export under the same name, so that an unknown star import may have rebound them.
_REDEFINED = frozenset(["abs", "all", "any", "bool", "complex", "divmod", "float", "input", "int", "max", "min", "object", "open", "pow", "round", "sum", "type"])

# What ``from torch.x import *`` brings of the names that our rules ask about; anything else is left alone.
_TORCH_STARS = {
    "torch.nn": ("DataParallel", "Module", "Linear", "Sequential", "CrossEntropyLoss", "MSELoss", "BCELoss", "BCEWithLogitsLoss"),
    "torch.utils.data": ("DataLoader", "Dataset", "TensorDataset", "IterableDataset", "DistributedSampler"),
    "torch.optim": ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"),
    "torch": ("tensor", "zeros", "ones", "rand", "randn", "device"),
}


def _exported_by_torch(module: str, name: str) -> bool:
    return name in _TORCH_STARS.get(module, ())
