"""What a name means at a place, how to spell a torch name in this file, and where the project defines it.

Known or None: a name that two statements bind to two meanings has none.
"""

from __future__ import annotations

import ast
import builtins
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchfix.facts.code.scopes import Binding, Bound, Scopes
from torchfix.facts.code.tree import FUNCTIONS, dotted

if TYPE_CHECKING:
    from torchfix.facts import Facts


@dataclass(frozen=True)
class Definition:
    """A function or class of the user's project, with the facts of the file that holds it."""

    facts: Facts = field(compare=False)
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


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
    "torch.cuda.memory": "torch.cuda",
    "torch.cuda.amp.autocast_mode": "torch.cuda.amp",
    "torch.cuda.amp.grad_scaler": "torch.cuda.amp",
    "torch.autograd.anomaly_mode": "torch.autograd",
    "torch.autograd.grad_mode": "torch",
    "torch.autograd.no_grad": "torch.no_grad",
    "torch.autograd.variable": "torch.autograd",
    "torch.functional": "torch",
    "torch.nn.utils.clip_grad": "torch.nn.utils",
}
# Modules whose name is a function's too, in the package above.
_FUNCTIONS_TOO = ("torch.nn.parallel.data_parallel",)


@functools.lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """A torch name as torch's documentation has it, whichever module it was imported from."""
    for home, public in _HOMES.items():
        if (name == home and name not in _FUNCTIONS_TOO) or name.startswith(home + "."):
            name = public + name[len(home) :]
    parts = name.split(".")
    if parts[:3] == ["torch", "nn", "modules"] and len(parts) >= 4:
        parts = ["torch", "nn", *(parts[4:] if parts[3].islower() and len(parts) > 4 else parts[3:])]
    elif parts[:2] == ["torch", "optim"] and len(parts) == 4 and parts[2] != "lr_scheduler":
        parts = ["torch", "optim", parts[3]]  # torch.optim.adam.Adam
    return ".".join(parts)


class Names(Scopes):
    """The names of one file."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts.tree, facts.project.scopes(facts.tree))
        self._facts = facts
        self._definitions: dict[ast.expr, Definition | None] = {}
        self._qualified: dict[ast.expr, str | None] = {}

    def qualified(self, expression: ast.expr) -> str | None:
        """The dotted name that an expression stands for (``torch.nn.Linear``), None where it is not known.

        Follows imports and plain aliases. Two bindings must agree; a star import that may have rebound the name
        makes it unknown. Definitions of the file itself are known by their bare name with a leading dot.
        """
        if expression not in self._qualified:
            found = self._find_qualified(expression, 0)
            if self._facts.project.followed:
                return found  # while a circle of star imports is gone round, less is known than will be
            self._qualified[expression] = found
        return self._qualified[expression]

    def _find_qualified(self, expression: ast.expr, depth: int) -> str | None:
        if isinstance(expression, ast.Attribute):
            base = self._find_qualified(expression.value, depth) if depth else self.qualified(expression.value)
            return None if base is None else canonical(f"{base}.{expression.attr}")
        if not isinstance(expression, ast.Name) or depth > 8:
            return None
        found = self.lookup(expression.id, expression)
        if found is None:
            return self._unbound(expression)
        scope, bindings = found
        if len(bindings) > 1:
            bindings = self._facts.flow.reaching(expression)
        meanings = {self._meaning(binding, depth) for binding in bindings}
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
            return self._find_qualified(binding.value, depth + 1)
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
        key = (self._facts.path, star.origin, name)
        if key in self._facts.project.followed:
            return ""
        self._facts.project.followed.add(key)
        try:
            return self._brought(star, name)
        finally:
            self._facts.project.followed.discard(key)

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

    def beside(self, neighbour: ast.expr, name: str) -> str:
        """How to write a dotted name at module level as its neighbour is written: bare beside a bare name, else as the file can.

        Bare too where the file has no other way; a bare name may need an import.
        """
        bare = name.rpartition(".")[2]
        spelled = self.spell(name, self._tree.module.body[-1])
        free = self.is_free(bare) or spelled == bare
        return bare if spelled is None or (free and isinstance(neighbour, ast.Name)) else spelled

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
            if name != origin and any(binding.origin != origin for binding in bindings):
                continue  # a module in which torch only keeps what its package shows
            found = self.lookup(local, at)
            if found is None or found[0] is not self.module or self._hidden_by_star(local, bindings):
                continue
            written = local + name[len(origin) :]
            if best is None or written.count(".") < best.count("."):
                best = written
        return best

    # Definitions, also in other files --------------------------------------------------------------------------

    def definition(self, expression: ast.expr) -> Definition | None:
        """The function or class of the user's project that an expression names, in this file or another."""
        if expression not in self._definitions:
            self._definitions[expression] = None  # two names that stand for each other are nothing
            self._definitions[expression] = self._find_definition(expression)
        return self._definitions[expression]

    def _find_definition(self, expression: ast.expr) -> Definition | None:
        if isinstance(expression, ast.Name):
            return self._defined(expression.id, self._facts.flow.reaching(expression), 0)
        if isinstance(expression, ast.Attribute):
            module = self.module_of(expression.value)
            return module.names.exported(expression.attr) if module else None
        return None

    def offered(self) -> frozenset[str]:
        """The names that other files may read from this module, its star imports among them, but for those with an underscore."""
        found: set[str] = set()
        waiting, seen = [self._facts], {self._facts.path}
        while waiting:
            names = waiting.pop().names
            found |= {name for name in names.module.bindings if name != "*" and not name.startswith("_")}
            brought = [names._star_module(star) for star in names.module.bindings.get("*", [])]
            new = [facts for facts in brought if facts is not None and facts.path not in seen]
            seen |= {facts.path for facts in new}
            waiting += new
        return frozenset(found)

    def brought_variable(self, name: ast.Name) -> tuple[Facts, list[Binding]] | None:
        """The file of the project from which a star import brings a variable, with what binds it there."""
        found = []
        for star in self.module.bindings.get("*", ()) if self.lookup(name.id, name) is None else ():
            module = self._star_module(star)
            if module is not None and module.names.exports(name.id) and module.names.module.bindings.get(name.id):
                found.append((module, module.names.module.bindings[name.id]))
        return found[0] if len(found) == 1 else None

    def exported(self, name: str, depth: int = 0) -> Definition | None:
        """The function or class that another file gets by importing ``name`` from this one."""
        return self._defined(name, self._left_at_end(name), depth)

    def _left_at_end(self, name: str) -> list[Binding]:
        """The bindings that a name of the module may have when the module has run: a last certain one hides the others."""
        bindings = self.module.bindings.get(name, [])
        last = max(bindings, key=lambda binding: getattr(binding.node, "lineno", 0), default=None)
        rebound = any(self._tree.function(binding.node) is not None for binding in bindings)
        return [last] if last is not None and last.node in self._tree.module.body and not rebound else bindings

    def _defined(self, name: str, bindings: list[Binding], depth: int) -> Definition | None:
        if depth > 8:
            return None
        if not bindings:
            found = [
                module.names.exported(name, depth + 1) for star in self.module.bindings.get("*", []) if (module := self._star_module(star))
            ]
            known = {id(definition.node): definition for definition in found if definition}  # two stars may bring the same one
            return next(iter(known.values())) if len(known) == 1 else None
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

    def is_visible(self, name: str, at: ast.AST) -> bool:
        """Whether new code at a node may read a name: a variable in sight there, or a builtin that nothing has rebound."""
        bound = self.lookup(name, at) is not None
        if hasattr(builtins, name):
            return not bound and self._unbound(ast.Name(name)) == f"builtins.{name}"
        return bound

    def has_module(self, name: str, at: ast.AST) -> bool:
        """Whether a name surely is the module of that name at a node: imported in a block around it, before it."""
        found = self.lookup(name, at)
        if found is None or any(binding.how is not Bound.IMPORT or binding.origin != name for binding in found[1]):
            return False
        imports = [binding.node for binding in found[1]]
        inner: ast.stmt | None = self._tree.statement(at)
        while inner is not None:
            _, block, index = self._tree.place(inner)
            if any(node in block[:index] for node in imports):
                return True
            inner = self._tree.nearest(inner, ast.stmt)
        return False

    def locals_of(self, name: str) -> set[str]:
        """The names under which something imported may be known here: its own, and what ``as`` made of it."""
        return {name} | {alias.asname for node in self._tree.imports for alias in node.names if alias.asname and alias.name == name}

    def may_be_imported(self, name: ast.Name) -> bool:
        """Whether an import is one of several bindings that a name may have here, so that its meaning is not known."""
        reaching = self._facts.flow.reaching(name)
        return len(reaching) > 1 and any(binding.how is Bound.IMPORT for binding in reaching)

    def module_of(self, expression: ast.expr) -> Facts | None:
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

    def any_definition(self, expression: ast.expr) -> tuple[Definition, ...]:
        """What an expression may name: :meth:`definition`, or that name in any module of a package where the program picks one.

        ``importlib.import_module("models." + name).Net`` is the ``Net`` of some module in ``models``.
        """
        found = self.definition(expression)
        if found is not None:
            return (found,)
        modules = self._picked_from(expression.value) if isinstance(expression, ast.Attribute) else []
        assert not modules or isinstance(expression, ast.Attribute)
        exported = [module.names.exported(expression.attr) for module in modules]  # type: ignore[attr-defined]
        return tuple(definition for definition in exported if definition is not None)

    def _picked_from(self, expression: ast.expr) -> list[Facts]:
        """The modules of which a name is one, chosen by a name that is not known."""
        bindings = self.bindings(expression) if isinstance(expression, ast.Name) else []
        made = bindings[0].value if len(bindings) == 1 and bindings[0].how is Bound.ASSIGN else None
        if not isinstance(made, ast.Call) or not made.args or self.qualified(made.func) != "importlib.import_module":
            return []
        given = made.args[0]
        parts = [given.left] if isinstance(given, ast.BinOp) else given.values[:1] if isinstance(given, ast.JoinedStr) else []
        prefix = "".join(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
        return self._facts.project.modules_in(prefix[:-1], self._facts.path) if prefix[:1] != "." and prefix.endswith(".") else []


# Builtins that numeric packages export under the same name, so that an unknown star import may have rebound them.
_REDEFINED = frozenset(
    [
        "abs",
        "all",
        "any",
        "bool",
        "complex",
        "divmod",
        "float",
        "input",
        "int",
        "max",
        "min",
        "object",
        "open",
        "pow",
        "round",
        "sum",
        "type",
    ]
)

# What ``from torch.x import *`` brings of the names that our rules ask about; anything else is left alone.
_TORCH_STARS = {
    "torch.nn": ("DataParallel", "Module", "Linear", "Sequential", "CrossEntropyLoss", "MSELoss", "BCELoss", "BCEWithLogitsLoss"),
    "torch.utils.data": ("DataLoader", "Dataset", "TensorDataset", "IterableDataset", "DistributedSampler"),
    "torch.cuda.amp": ("GradScaler", "autocast", "custom_bwd", "custom_fwd"),
    "torch.optim": ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"),
    "torch": ("tensor", "zeros", "ones", "rand", "randn", "device"),
}


def _exported_by_torch(module: str, name: str) -> bool:
    return name in _TORCH_STARS.get(module, ())
