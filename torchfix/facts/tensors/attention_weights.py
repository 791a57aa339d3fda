"""Who calls the code that computes attention, and whether any of them reads the weights that it returns beside its result."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.callers import constructions
from torchfix.facts.code.tree import Function
from torchfix.facts.training.module_calls import OutOfSight, calls_of

if TYPE_CHECKING:
    from torchfix.facts import Facts


def is_returned_for_nothing(facts: Facts, use: ast.Name) -> bool:
    """Whether a variable is an item of a returned tuple which no caller reads, all callers being seen."""
    items = facts.tree.parent(use)
    statement = facts.tree.parent(items) if isinstance(items, ast.Tuple) else None
    function = facts.tree.function(use)
    if not isinstance(items, ast.Tuple) or not isinstance(statement, ast.Return) or function is None:
        return False
    index = items.elts.index(use)
    calls = callers(facts, function)
    return bool(calls) and all(_passes_over(there, call, index) for there, call in calls or ())


def callers(facts: Facts, function: Function) -> list[tuple[Facts, ast.Call]] | None:
    """Every call of a function, or of the modules whose forward pass it is; None where one may be out of sight."""
    owner = facts.tree.class_of(function)
    if function.name != "forward" or not isinstance(owner, ast.ClassDef):
        return facts.callers_everywhere(function)
    made = constructions(facts, owner)
    if not made or facts.classes.heirs(owner) or any(isinstance(use.ctx, ast.Load) for use in facts.tree.attributes.get("forward", ())):
        return None
    try:
        return list(calls_of(made))
    except OutOfSight:
        return None


def _passes_over(facts: Facts, call: ast.Call, index: int) -> bool:
    """Whether a caller takes a returned tuple apart and does nothing with one of its items."""
    parent = facts.tree.parent(call)
    if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant) and isinstance(parent.slice.value, int):
        return 0 <= parent.slice.value != index
    target = parent.targets[0] if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None
    if not isinstance(target, ast.Tuple) or index >= len(target.elts) or any(isinstance(item, ast.Starred) for item in target.elts):
        return False
    item = target.elts[index]
    if not isinstance(item, ast.Name):
        return False
    reads = (use for use in facts.names.uses(item) if isinstance(use.ctx, ast.Load))
    return not any(binding.node is parent for use in reads for binding in facts.flow.reaching(use))
