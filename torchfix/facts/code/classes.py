"""Classes of the project: their bases and heirs, their methods, and where the attributes of their objects are set."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, Function, last_name, walk_here

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Methods of nn.Module that return the module itself.
SELF_RETURNING = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "float",
        "half",
        "double",
        "bfloat16",
        "train",
        "eval",
        "requires_grad_",
        "type",
        "share_memory",
        "apply",
        "to_empty",
    ]
)

_LIMIT = 8  # base classes followed upwards
# Decorators under which a method still runs as it is written.
_DESCRIPTORS = ("builtins.staticmethod", "builtins.classmethod", "builtins.property", "functools.cached_property")


@dataclass(frozen=True, eq=False)
class Store:
    """One place that sets an attribute of an object.

    Args:
        facts: its file.
        value: the expression assigned; None where it cannot be told (a loop's target, ``+=``).
        path: where the attribute takes a part of the value: indexes into nested tuples.
    """

    facts: Facts
    value: ast.expr | None
    path: tuple[int, ...] = ()


class Classes:
    """The classes of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._heirs: dict[ast.ClassDef, tuple[Definition, ...]] = {}

    def heirs(self, owner: ast.ClassDef) -> tuple[Definition, ...]:
        """The classes that derive from a class of this file, here and in the files that import it."""
        if owner not in self._heirs:
            project = self._facts.project
            header = re.compile(rb"\bclass\s+\w+\s*\([^)]*\b" + re.escape(owner.name.encode()) + rb"\b")
            deriving = [path for path in project.mentioning(owner.name, self._facts.path) if header.search(project.read(path) or b"")]
            files = [self._facts, *(project.file(path) for path in deriving)]
            self._heirs[owner] = tuple(
                Definition(facts, other)
                for facts in files
                if facts is not None
                for other in facts.tree.classes
                if other is not owner and any(item.node is owner for item in lineage(Definition(facts, other)))
            )
        return self._heirs[owner]


def bases(definition: Definition) -> list[str | Definition | None]:
    """The bases of a class: dotted names of libraries, definitions of the project, None for what is not known."""
    assert isinstance(definition.node, ast.ClassDef)
    found: list[str | Definition | None] = []
    for base in definition.node.bases:
        found.append(definition.facts.names.definition(base) or definition.facts.names.qualified(base))
    return found


def lineage(definition: Definition, _depth: int = 0) -> Iterator[Definition]:
    """A class and the base classes that the project defines, in the order in which methods are sought."""
    yield definition
    for base in bases(definition) if _depth < _LIMIT else ():
        if isinstance(base, Definition) and isinstance(base.node, ast.ClassDef):
            yield from lineage(base, _depth + 1)


def method_of(definition: Definition, name: str) -> Definition | None:
    """A class's method by name, its own or that of the nearest base in the project."""
    if not isinstance(definition.node, ast.ClassDef):
        return None
    for owner in lineage(definition):
        found = [item for item in owner.node.body if isinstance(item, FUNCTIONS) and item.name == name]
        if found:
            return Definition(owner.facts, found[-1])
    return None


def behind(definition: Definition, name: str, owner: ast.ClassDef) -> Definition | None:
    """The method that ``super()`` means in a method of ``owner``, for an object of a class: the next one behind ``owner``."""
    classes = list(lineage(definition))
    place = next((index for index, item in enumerate(classes) if item.node is owner), None)
    for other in classes[place + 1 :] if place is not None else ():
        found = [item for item in other.node.body if isinstance(item, FUNCTIONS) and item.name == name]
        if found:
            return Definition(other.facts, found[-1])
    return None


def stores(classes: Iterator[Definition] | tuple[Definition, ...], name: str) -> Iterator[Store]:
    """The places where classes set an attribute of their objects: through ``self``, or in the class's own body."""
    for definition in classes:
        facts, owner = definition.facts, definition.node
        assert isinstance(owner, ast.ClassDef)
        for binding in facts.names.own(owner).bindings.get(name, ()):
            if binding.how is Bound.ASSIGN:
                yield Store(facts, binding.value, binding.path)
        for use in facts.tree.attributes.get(name, ()):
            own = isinstance(use.value, ast.Name) and facts.is_self(use.value) and facts.tree.method_class(use) is owner
            if isinstance(use.ctx, ast.Store) and own:
                yield store_at(facts, use)


def store_at(facts: Facts, target: ast.expr) -> Store:
    """What an assignment's target is set to."""
    path: list[int] = []
    node: ast.AST = target
    parent = facts.tree.parent(node)
    while isinstance(parent, (ast.Tuple, ast.List)):
        if any(isinstance(item, ast.Starred) for item in parent.elts):
            return Store(facts, None)
        path.insert(0, next(index for index, item in enumerate(parent.elts) if item is node))
        node, parent = parent, facts.tree.parent(parent)
    if isinstance(parent, (ast.Assign, ast.AnnAssign)):
        return Store(facts, parent.value, tuple(path))
    return Store(facts, None)


def listing(classes: Iterable[Definition]) -> tuple[Facts, ast.AST] | None:
    """Where classes limit the attributes of their objects, or go through all of them, so that a new one would be refused or found.

    ``__slots__``, ``__setattr__``, ``vars(self)`` and ``self.__dict__``, of which one entry, or a way to set some, is neither.
    """
    for definition in classes:
        facts, owner = definition.facts, definition.node
        for node in ast.walk(owner) if isinstance(owner, ast.ClassDef) else ():
            if isinstance(node, ast.Name) and node.id == "__slots__" and facts.tree.parent(facts.tree.statement(node)) is owner:
                return facts, node
            if isinstance(node, FUNCTIONS) and node.name == "__setattr__" and facts.tree.class_of(node) is owner:
                return facts, node
            if isinstance(node, ast.Call) and last_name(node.func) == "vars" and _is_own(facts, node.args):
                return facts, node
            if isinstance(node, ast.Attribute) and node.attr == "__dict__" and _is_own(facts, [node.value]):
                outer = facts.tree.parent(node)
                sets = isinstance(outer, ast.Attribute) and outer.attr in ("update", "get", "setdefault")
                if not sets and not isinstance(outer, (ast.Subscript, ast.Compare)):
                    return facts, node
    return None


def _is_own(facts: Facts, given: list[ast.expr]) -> bool:
    return bool(given) and isinstance(given[0], ast.Name) and facts.is_self(given[0])


def is_property(definition: Definition) -> bool:
    """Whether a method is read like an attribute."""
    return any(_decorates(definition, item, _DESCRIPTORS[2:]) for item in definition.node.decorator_list)


def is_static(definition: Definition) -> bool:
    """Whether a method is called without an object in front of its arguments."""
    return any(_decorates(definition, item, _DESCRIPTORS[:1]) for item in definition.node.decorator_list)


def runs_as_written(definition: Definition) -> bool:
    """Whether calling a function runs its body, no decorator standing between but those that bind methods or switch gradients."""
    function = definition.node
    if not isinstance(function, FUNCTIONS):
        return False
    return all(_decorates(definition, item, _DESCRIPTORS) or definition.facts.switches_gradients(item) for item in function.decorator_list)


def is_data_class(definition: Definition) -> bool:
    """Whether a class gets its constructor from ``dataclasses.dataclass``."""
    called = (item.func if isinstance(item, ast.Call) else item for item in definition.node.decorator_list)
    return any(definition.facts.names.qualified(item) == "dataclasses.dataclass" for item in called)


def fields(owner: ast.ClassDef) -> list[str]:
    """The fields of a data class in the order of its constructor."""
    return [item.target.id for item in owner.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]


def super_call(constructor: Function) -> ast.Call | None:
    """The one ``super().__init__(...)`` of a constructor, None where there is none or several."""
    calls = [node for statement in constructor.body for node in walk_here(statement) if isinstance(node, ast.Call)]
    made = [(call, call.func) for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__"]
    found = [call for call, func in made if is_super(func.value)]
    return found[0] if len(found) == 1 else None


def is_super(node: ast.expr) -> bool:
    """Whether an expression is ``super()``, with or without arguments."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _decorates(definition: Definition, decorator: ast.expr, names: tuple[str, ...]) -> bool:
    return definition.facts.names.qualified(decorator) in names
