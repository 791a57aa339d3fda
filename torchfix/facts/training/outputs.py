"""What calling a network gives: the ``forward`` that alone says so, and every place that makes such a network."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import parameters
from torchfix.facts.code.tree import FUNCTIONS, Function, walk
from torchfix.facts.code.values import passed, returns
from torchfix.facts.training.module_calls import OutOfSight, only_lists

if TYPE_CHECKING:
    from torchfix.facts import Facts


def forward_of(definition: Definition) -> Function | None:
    """The ``forward`` of a network's class where it alone says what calling the network gives."""
    owner = definition.node
    assert isinstance(owner, ast.ClassDef)
    found = [item for item in owner.body if isinstance(item, FUNCTIONS) and item.name == "forward"]
    plain = len(owner.bases) == 1 and definition.facts.names.qualified(owner.bases[0]) == "torch.nn.Module"
    called = any(isinstance(item, FUNCTIONS) and item.name == "__call__" for item in owner.body)
    bare = any(
        isinstance(node, ast.Name)
        and definition.facts.is_self(node)
        and not isinstance(definition.facts.tree.parent(node), ast.Attribute)
        and not _is_super(definition.facts, node)
        and not _is_initialised(definition.facts, node)
        for node in walk(owner)
    )
    forward = any(isinstance(node, ast.Attribute) and node.attr == "forward" for node in walk(owner))
    usable = len(found) == 1 and plain and not called and not bare and not forward
    return found[0] if usable and not found[0].decorator_list and returns(found[0]) else None


def own_attributes(definition: Definition) -> frozenset[str]:
    """What a network's class adds to ``nn.Module``, ``forward`` excepted: its methods, and the attributes that it sets."""
    owner = definition.node
    assert isinstance(owner, ast.ClassDef)
    methods = {item.name for item in owner.body if isinstance(item, FUNCTIONS)}
    stored = (node for node in walk(owner) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    kept = {node.attr for node in stored if isinstance(node.value, ast.Name) and definition.facts.is_self(node.value)}
    return frozenset(name for name in methods | kept if name != "forward" and not name.startswith("__"))


def makers(definition: Definition) -> Iterator[tuple[Facts, ast.Call]]:
    """Every construction of a network's class in the project.

    Raises:
        OutOfSight: the class may be made where that is not seen.
    """
    home, owner = definition.facts, definition.node
    assert isinstance(owner, ast.ClassDef)
    if home.classes.heirs(owner) or owner.decorator_list:
        raise OutOfSight(home, owner)
    for path in sorted({home.path, *home.project.holding(owner.name)}):
        there = home if path == home.path else home.project.file(path)
        if there is None:
            raise OutOfSight(home, owner)
        yield from _makers_in(there, owner)


def _makers_in(facts: Facts, owner: ast.ClassDef) -> Iterator[tuple[Facts, ast.Call]]:
    names = {owner.name, *facts.names.locals_of(owner.name)}
    for node in walk(facts.source.tree):
        if isinstance(node, ast.Constant) and node.value == owner.name and not _is_declared(facts, node):
            raise OutOfSight(facts, node)
        if not isinstance(node, (ast.Name, ast.Attribute)) or (node.id if isinstance(node, ast.Name) else node.attr) not in names:
            continue
        meant, parent = facts.names.definition(node), facts.tree.parent(node)
        if meant is not None and meant.node is not owner:
            continue
        if meant is not None and isinstance(parent, ast.Call) and parent.func is node:
            yield facts, parent
        elif not _only_named(facts, node):
            raise OutOfSight(facts, node)


def _only_named(facts: Facts, node: ast.expr) -> bool:
    """Whether a class is named for ``super()``, ``isinstance`` or as a type, rather than made or handed on."""
    parent = facts.tree.parent(node)
    if isinstance(parent, ast.Call):
        place = next((index for index, item in enumerate(parent.args) if item is node), None)
        asked = facts.calls.meaning(parent)
        return (place == 0 and asked == "builtins.super") or (place == 1 and asked == "builtins.isinstance")
    return isinstance(parent, (ast.arg, ast.AnnAssign)) and parent.annotation is node


def _is_declared(facts: Facts, node: ast.Constant) -> bool:
    """Whether a word stands in ``__all__``, which only says what a star import brings."""
    listed = facts.tree.parent(node)
    statement = facts.tree.parent(listed) if isinstance(listed, (ast.List, ast.Tuple)) else None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(statement, ast.AugAssign) else []
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _is_super(facts: Facts, node: ast.Name) -> bool:
    """Whether an object is named to reach its base class: ``super(Net, self)``, or the old ``nn.Module.__init__(self)``."""
    parent = facts.tree.parent(node)
    if not isinstance(parent, ast.Call):
        return False
    is_init = isinstance(parent.func, ast.Attribute) and parent.func.attr == "__init__"
    return is_init or facts.calls.meaning(parent) == "builtins.super"


def _is_initialised(facts: Facts, node: ast.Name) -> bool:
    """Whether a network hands itself to a function of the project that only walks over its parts: ``initialize_weights(self)``."""
    call = facts.tree.parent(node)
    found = list(called(facts, call)) if isinstance(call, ast.Call) and node in call.args else []
    if len(found) != 1 or not isinstance(call, ast.Call):
        return False
    home, function = found[0]
    bound = home.tree.class_of(function) is not None
    taking = [item for item in parameters(function.args) if passed(call, function, item, bound) is node]
    return len(taking) == 1 and only_lists(home, function, taking[0])
