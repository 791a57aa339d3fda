"""What an `nn.Sequential` ends in: the layers that may be its last, also where they are collected in a list first."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import last_name

if TYPE_CHECKING:
    from torchfix.facts import Facts

_OTHER_CHANGES = frozenset("clear extend insert pop remove reverse sort".split())


def last_layers(facts: Facts, call: ast.Call) -> list[ast.expr]:
    """The expressions that may be the last layer of a Sequential; none where that is not seen.

    Args:
        call: the call that makes it.
    """
    last = call.args[-1] if call.args else None
    if last is None or not isinstance(last, ast.Starred):
        return [last] if last is not None else []
    if isinstance(last.value, (ast.List, ast.Tuple)):
        return last.value.elts[-1:]
    return _ends(facts, last.value) if isinstance(last.value, ast.Name) else []


def _ends(facts: Facts, collected: ast.Name) -> list[ast.expr]:
    """What a list may end in where a name of it is read: its own last items, and those that are added to it."""
    found: list[ast.expr] = []
    for binding in facts.flow.reaching(collected):
        items = binding.value
        if binding.how not in (Bound.ASSIGN, Bound.AUGMENTED) or not isinstance(items, ast.List) or binding.path:
            return []
        found += items.elts[-1:]
    for use in facts.names.uses(collected):
        outer = facts.tree.parent(use)
        call = facts.tree.parent(outer) if isinstance(outer, ast.Attribute) else None
        if isinstance(call, ast.Call) and call.func is outer:
            if last_name(call.func) in _OTHER_CHANGES:
                return []
            found += call.args if last_name(call.func) == "append" else []
        if isinstance(outer, ast.Subscript) and isinstance(outer.ctx, (ast.Store, ast.Del)):
            return []
    return [] if any(isinstance(item, ast.Starred) for item in found) else found
