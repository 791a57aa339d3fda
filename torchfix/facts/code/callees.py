"""Which functions of the project a call runs: a function by name, a constructor, a method of a known object."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import receiver
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, Function

if TYPE_CHECKING:
    from torchfix.facts import Facts


def called(facts: Facts, call: ast.Call) -> Iterator[tuple[Facts, Function]]:
    """The functions of the project that a call may run, each with the facts of its file; none for a library's.

    A class stands for its constructor. Calling a network is not counted as running its ``forward``.
    """
    definition = facts.names.definition(call.func)
    if definition is not None:
        found = method_of(definition, "__init__") if isinstance(definition.node, ast.ClassDef) else definition
        if found is not None and isinstance(found.node, FUNCTIONS):
            yield found.facts, found.node
        return
    source = receiver(call)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    owners = [(owner, name) for owner in classes_of(facts, source)] if source is not None else []
    for owner, sought in owners or [(owner, "__call__") for owner in classes_of(facts, call.func)]:
        found = method_of(owner, sought)
        if found is not None and isinstance(found.node, FUNCTIONS):
            yield found.facts, found.node


def choices(facts: Facts, call: ast.Call) -> tuple[str | Definition, ...]:
    """What a call may call where a variable, a table or a module's name chooses it: definitions, and dotted names of libraries.

    Empty where one of the choices is not known.
    """
    if isinstance(call.func, ast.Call):
        return ()
    picked = facts.names.any_definition(call.func)
    if picked:
        return picked
    found: list[str | Definition] = []
    for value in facts.values.of(call.func) or ():
        if value.path or not isinstance(value.node, (ast.Name, ast.Attribute)):
            return ()
        meant = value.facts.names.definition(value.node) or value.facts.names.qualified(value.node)
        if meant is None:
            return ()
        found.append(meant)
    return tuple(found)


def picked_from(facts: Facts, made_by: ast.expr) -> ast.expr | None:
    """The module out of which a name picks what is called: that in ``module.__dict__[name]`` and ``getattr(module, name)``."""
    if isinstance(made_by, ast.Subscript) and isinstance(made_by.value, ast.Attribute) and made_by.value.attr == "__dict__":
        return made_by.value.value
    if isinstance(made_by, ast.Call) and facts.calls.meaning(made_by) == "builtins.getattr" and made_by.args:
        return made_by.args[0]
    return None


def classes_of(facts: Facts, expression: ast.expr) -> Iterator[Definition]:
    """The classes of the project of which an expression may be an object."""
    if isinstance(expression, ast.Name) and facts.is_self(expression):
        owner = facts.tree.method_class(expression)
        if owner is not None:
            yield Definition(facts, owner)
        return
    networks = facts.models.of(expression)  # through ``.to(device)``, ``.eval()`` and their like
    if networks:
        yield from (network.definition for network in networks if network.definition is not None)
        return
    for value in facts.values.of(expression) or ():
        if isinstance(value.node, ast.Call) and not value.path:
            made = value.facts.names.definition(value.node.func)
            if made is not None and isinstance(made.node, ast.ClassDef):
                yield made
