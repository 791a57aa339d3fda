"""The card of one file: what it holds, read once and shared by all transforms, each entry computed when first asked."""

from __future__ import annotations

import ast
from functools import cached_property

from torchfix.facts.calls import Calls
from torchfix.facts.devices import Devices
from torchfix.facts.flow import Flow
from torchfix.facts.loaders import Loaders
from torchfix.facts.loops import Loops
from torchfix.facts.models import Models
from torchfix.facts.names import Names
from torchfix.facts.optimizers import Optimizers
from torchfix.facts.project import Project
from torchfix.facts.regions import Regions
from torchfix.facts.tree import FUNCTIONS, Function, Tree
from torchfix.facts.values import Values
from torchfix.source import SourceFile


class Facts:
    """What one file says.

    Args:
        source: the file.
        project: the user's other files and declarations.
    """

    def __init__(self, source: SourceFile, project: Project) -> None:
        self.source = source
        self.project = project
        self.path = project.relative(source.path)

    @cached_property
    def tree(self) -> Tree:
        """Nodes, parents and indexes."""
        return Tree(self.source.tree)

    @cached_property
    def names(self) -> Names:
        """What names mean."""
        return Names(self)

    @cached_property
    def calls(self) -> Calls:
        """Calls by meaning."""
        return Calls(self)

    @cached_property
    def flow(self) -> Flow:
        """Which bindings reach a use."""
        return Flow(self)

    @cached_property
    def values(self) -> Values:
        """Where values come from."""
        return Values(self)

    @cached_property
    def models(self) -> Models:
        """Networks."""
        return Models(self)

    @cached_property
    def loaders(self) -> Loaders:
        """Data loaders."""
        return Loaders(self)

    @cached_property
    def optimizers(self) -> Optimizers:
        """Optimizers and what they step."""
        return Optimizers(self)

    @cached_property
    def devices(self) -> Devices:
        """Device expressions and copies."""
        return Devices(self)

    @cached_property
    def loops(self) -> Loops:
        """Training and evaluation loops."""
        return Loops(self)

    @cached_property
    def regions(self) -> Regions:
        """What surrounds a place: no_grad, autocast, frameworks."""
        return Regions(self)

    def is_self(self, name: ast.Name) -> bool:
        """Whether a name is the instance parameter of the method that it stands in."""
        found = self.names.lookup(name.id, name)
        if found is None or not isinstance(found[0].node, FUNCTIONS):
            return False
        function = found[0].node
        owner = self.tree.class_of(function)
        listed = [*function.args.posonlyargs, *function.args.args]
        static = any(isinstance(item, ast.Name) and item.id in ("staticmethod", "classmethod") for item in function.decorator_list)
        return owner is not None and bool(listed) and listed[0].arg == name.id and not static

    def own_method(self, call: ast.Call) -> Function | None:
        """The method of the same class that ``self.method(...)`` calls, None for anything else."""
        func = call.func
        if not (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and self.is_self(func.value)):
            return None
        owner = self.tree.method_class(call)
        found = [item for item in (owner.body if owner else []) if isinstance(item, FUNCTIONS) and item.name == func.attr]
        return found[0] if len(found) == 1 else None

    def callers(self, function: Function) -> list[ast.Call] | None:
        """Every call of a function or method, None where one may be out of sight.

        A function that is handed on as a value, decorated, or named in another file of the project has callers that
        are not seen; of a method only calls through ``self`` count, and for ``__init__`` the calls of its class.
        """
        tree, names = self.tree, self.names
        if function.decorator_list:
            return None
        owner = tree.class_of(function)
        if owner is not None and function.name == "__init__":
            return self._calls_of_name(owner.name, owner)
        if owner is not None:
            found = []
            for use in tree.attributes.get(function.name, ()):
                call = tree.parent(use)
                inside = isinstance(use.value, ast.Name) and self.is_self(use.value) and tree.method_class(use) is owner
                if not inside or not isinstance(call, ast.Call) or call.func is not use:
                    return None
                found.append(call)
            return None if self.project.mentions(function.name, self.path) else found
        home = names.scope(function)
        if home is not names.module and not isinstance(home.node, FUNCTIONS):
            return None
        return self._calls_of_name(function.name, function)

    def _calls_of_name(self, name: str, definition: ast.AST) -> list[ast.Call] | None:
        tree, names = self.tree, self.names
        found = []
        for use in tree.names.get(name, ()):
            bindings = names.bindings(use)
            if not any(binding.node is definition for binding in bindings):
                continue
            call = tree.parent(use)
            if len(bindings) != 1 or not isinstance(call, ast.Call) or call.func is not use:
                return None
            found.append(call)
        return None if self.project.mentions(name, self.path) else found
