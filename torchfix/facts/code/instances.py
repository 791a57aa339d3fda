"""Objects of the project's classes: their methods through base classes, and what their attributes were made from.

Where :mod:`torchfix.facts.code.values` asks what any object of a class may hold, an :class:`Instance` knows the one call that
made it, so its answers are about that object.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, has_stars
from torchfix.facts.code.classes import bases, lineage
from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import Binding, Bound, parameters
from torchfix.facts.code.tree import FUNCTIONS, Function, walk_here
from torchfix.facts.code.values import Value, is_default, passed

if TYPE_CHECKING:
    from torchfix.facts import Facts

_LIMIT = 16  # steps followed back before an origin counts as unknown


@dataclass(frozen=True, eq=False)
class Origin:
    """One expression that made a value, where it is read, and the object in whose methods it stands.

    Args:
        facts: the file in which the expression stands.
        node: a call, a literal, a name of a definition or of a library, or whatever else cannot be followed further.
        within: the object whose ``self`` and constructor parameters it speaks of, None outside methods.
    """

    facts: Facts
    node: ast.expr
    within: Instance | None = None


@dataclass(frozen=True, eq=False)
class Instance:
    """An object of a class of the project.

    Args:
        definition: the class.
        made: the call that makes it.
    """

    definition: Definition
    made: Origin

    @cached_property
    def classes(self) -> tuple[Definition, ...]:
        """Its class and the base classes that the project defines, in the order in which methods are sought."""
        return tuple(lineage(self.definition))

    @cached_property
    def library_bases(self) -> tuple[str | None, ...]:
        """The base classes that are not the project's, by dotted name; None for one that is not known."""
        found = [base for definition in self.classes for base in bases(definition) if not isinstance(base, Definition)]
        return tuple(base for base in found if base != "builtins.object")

    def method(self, name: str, behind: Function | None = None) -> tuple[Facts, Function] | None:
        """A method by name, None where no class of the project defines it.

        Args:
            behind: the method from which ``super()`` asks: only classes behind its own count.
        """
        found = [(definition.facts, function) for definition in self.classes if (function := _defined(definition, name))]
        if behind is not None:
            owner = next((i for i, definition in enumerate(self.classes) if behind in _body(definition)), None)
            if owner is None:
                return None
            found = [(definition.facts, function) for definition in self.classes[owner + 1 :] if (function := _defined(definition, name))]
        return found[0] if found else None

    def attribute(self, name: str, _seen: frozenset[int] = frozenset()) -> tuple[Origin, ...] | None:
        """What an attribute was made from: empty where no class of the project assigns it, None where an origin is unknown."""
        found: list[Origin] = []
        for facts, value in self.assigned(name):
            origins = origins_of(facts, value, self, _seen) if value is not None else None
            if origins is None:
                return None
            found += origins
        return tuple(found)

    def assigned(self, name: str) -> Iterator[tuple[Facts, ast.expr | None]]:
        """The expressions that methods assign to an attribute of ``self``; None for what cannot be told."""
        for definition in self.classes:
            facts = definition.facts
            for use in facts.tree.attributes.get(name, ()):
                if isinstance(use.ctx, ast.Store) and self._is_own(use, facts, definition):
                    yield facts, _assigned_value(use, facts)
            for statement in _body(definition):
                if isinstance(statement, (ast.Assign, ast.AnnAssign)) and name in _targets(statement):
                    yield facts, statement.value

    def held(self, name: str) -> Iterator[tuple[Facts, ast.expr]]:
        """The expressions that methods assign to an attribute, and those that they put into the container that it holds."""
        for facts, value in self.assigned(name):
            if value is not None:
                yield facts, value
        for definition in self.classes:
            facts = definition.facts
            for use in facts.tree.attributes.get(name, ()):
                if isinstance(use.ctx, ast.Load) and self._is_own(use, facts, definition):
                    yield from ((facts, value) for value in _put_into(use, facts))

    @staticmethod
    def _is_own(use: ast.Attribute, facts: Facts, definition: Definition) -> bool:
        return isinstance(use.value, ast.Name) and facts.is_self(use.value) and facts.tree.method_class(use) is definition.node

    def attributes(self) -> frozenset[str]:
        """The names of the attributes that its methods assign to ``self``."""
        return frozenset(
            name
            for definition in self.classes
            for name, uses in definition.facts.tree.attributes.items()
            if any(isinstance(use.ctx, ast.Store) and self._is_own(use, definition.facts, definition) for use in uses)
        )

    def constructor_of(self, parameter: ast.arg) -> Function | None:
        """The constructor among those of its classes to which a parameter belongs."""
        found = [function for definition in self.classes if (function := _defined(definition, "__init__"))]
        return next((function for function in found if parameter in parameters(function.args)), None)

    def argument(self, constructor: Function, parameter: ast.arg, _seen: frozenset[int] = frozenset()) -> tuple[Origin, ...] | None:
        """What one of its constructors was given for a parameter; through ``super().__init__(...)`` for those of base classes."""
        constructors = [(d.facts, function) for d in self.classes if (function := _defined(d, "__init__"))]
        for place, (facts, function) in enumerate(constructors):
            if function is not constructor:
                continue
            if place == 0:
                given = passed(self._call, constructor, parameter, bound=True) if self._call is not None else None
                home, within = self.made.facts, self.made.within
            else:
                home, within = constructors[place - 1][0], self
                call = _super_call(constructors[place - 1][1])
                given = passed(call, constructor, parameter, bound=True) if call is not None else None
            if given is None:
                return None
            return origins_of(facts, given, None, _seen) if is_default(given, constructor) else origins_of(home, given, within, _seen)
        return None

    @property
    def _call(self) -> ast.Call | None:
        return self.made.node if isinstance(self.made.node, ast.Call) else None

    @property
    def library_call(self) -> Origin | None:
        """The call that gives a library's base class its arguments: ``super().__init__(...)``, or the one that makes the object."""
        constructors = [(d.facts, function) for d in self.classes if (function := _defined(d, "__init__"))]
        if not constructors:
            return self.made
        facts, function = constructors[-1]
        call = _super_call(function)
        return Origin(facts, call, self) if call is not None else None

    def given_to_library(self, name: str) -> tuple[Origin, ...] | None:
        """What a library's base class was given for a parameter by keyword; empty where it was given none."""
        origin = self.library_call
        if origin is None or not isinstance(origin.node, ast.Call) or has_stars(origin.node):
            return None
        given = argument(origin.node, name)
        return () if given is None else origins_of(origin.facts, given, origin.within)


def origins_of(
    facts: Facts, expression: ast.expr, within: Instance | None = None, _seen: frozenset[int] = frozenset()
) -> tuple[Origin, ...] | None:
    """Every expression that may have made a value; None where one of them is not known.

    Args:
        facts: the file in which the expression stands.
        expression: what is asked for.
        within: the object in whose method it stands.
    """
    if id(expression) in _seen:
        return ()  # a circle adds nothing new
    if len(_seen) > _LIMIT:
        return None
    seen = _seen | {id(expression)}
    if isinstance(expression, ast.IfExp):
        return _all(facts, [expression.body, expression.orelse], within, seen)
    if isinstance(expression, ast.BoolOp):
        return _all(facts, expression.values, within, seen)
    if isinstance(expression, ast.Name):
        return _name(facts, expression, within, seen)
    if isinstance(expression, ast.Attribute) and within is not None and isinstance(expression.value, ast.Name):
        if facts.is_self(expression.value):
            if next(within.assigned(expression.attr), None) is None:
                return (Origin(facts, expression, within),)
            return within.attribute(expression.attr, seen)
    values = facts.values.of(expression)
    return None if values is None else tuple(_read(value, expression, facts, within) for value in values)


def _read(value: Value, expression: ast.expr, facts: Facts, within: Instance | None) -> Origin:
    """A value as an origin; a part of a whole is read as the expression that takes it."""
    if value.path or not isinstance(value.node, ast.expr):
        return Origin(facts, expression, within)
    return Origin(value.facts, value.node, within if value.facts is facts else None)


def _all(facts: Facts, expressions: list[ast.expr], within: Instance | None, seen: frozenset[int]) -> tuple[Origin, ...] | None:
    found: list[Origin] = []
    for expression in expressions:
        origins = origins_of(facts, expression, within, seen)
        if origins is None:
            return None
        found += origins
    return tuple(found)


def _name(facts: Facts, name: ast.Name, within: Instance | None, seen: frozenset[int]) -> tuple[Origin, ...] | None:
    found: list[Origin] = []
    bindings = facts.flow.reaching(name)
    if not bindings or facts.names.definition(name) is not None:
        return (Origin(facts, name, within),)
    for binding in bindings:
        origins = _binding(facts, name, binding, within, seen)
        if origins is None:
            return None
        found += origins
    return tuple(found)


def _binding(facts: Facts, name: ast.Name, binding: Binding, within: Instance | None, seen: frozenset[int]) -> tuple[Origin, ...] | None:
    if binding.how is Bound.ASSIGN and binding.value is not None and not binding.path:
        return origins_of(facts, binding.value, within, seen)
    if binding.how is Bound.PARAMETER and within is not None and isinstance(binding.node, ast.arg):
        constructor = within.constructor_of(binding.node)
        if constructor is not None:
            return within.argument(constructor, binding.node, seen)
    values = facts.values.bound([binding])
    if values is not None:
        return tuple(_read(value, name, facts, within) for value in values)
    return (Origin(facts, name, within),) if binding.how is Bound.IMPORT and facts.names.qualified(name) is not None else None


def _body(definition: Definition) -> list[ast.stmt]:
    return definition.node.body


def _defined(definition: Definition, name: str) -> Function | None:
    found = [item for item in _body(definition) if isinstance(item, FUNCTIONS) and item.name == name]
    return found[-1] if found else None


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _assigned_value(target: ast.Attribute, facts: Facts) -> ast.expr | None:
    statement = facts.tree.parent(target)
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return statement.value
    if isinstance(statement, (ast.Tuple, ast.List)):
        assignment = facts.tree.parent(statement)
        if isinstance(assignment, ast.Assign):
            value = assignment.value
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(statement.elts):
                return value.elts[statement.elts.index(target)]
            return value
    return None


def _put_into(container: ast.Attribute, facts: Facts) -> list[ast.expr]:
    """The expressions that one use of a container puts into it: ``self.items.append(x)``, ``self.items[key] = x``."""
    parent = facts.tree.parent(container)
    outer = facts.tree.parent(parent) if parent is not None else None
    if isinstance(parent, ast.Attribute) and parent.attr in ("append", "add", "insert", "extend") and isinstance(outer, ast.Call):
        return outer.args if outer.func is parent else []
    if isinstance(parent, ast.Subscript) and isinstance(outer, ast.Assign) and parent in outer.targets:
        return [outer.value]
    return []


def _super_call(constructor: Function) -> ast.Call | None:
    """The call by which a constructor gives its base class the arguments."""
    found = [
        node
        for statement in constructor.body
        for node in walk_here(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__"
    ]
    call = found[0] if len(found) == 1 else None
    if call is None or not (isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call)):
        return None  # ``Base.__init__(self, ...)`` counts its arguments differently
    return call
