"""Objects that a program saves whole and brings back: ``torch.save({"net": net}, path)``, ``torch.load(path)["net"]``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.values import Value

if TYPE_CHECKING:
    from torchfix.facts import Facts


def is_saved_object(value: Value) -> bool:
    """Whether a value is an object that ``torch.load`` brings back, from a file such as this program saves."""
    facts, node = value.facts, value.node
    key = None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        key, origins = node.slice.value, facts.values.of(node.value) or ()
    else:
        origins = (value,)
    loads = [isinstance(item.node, ast.Call) and item.facts.calls.meaning(item.node) == "torch.load" for item in origins]
    if value.path or not loads or not all(loads):
        return False
    return any(_saves_object(facts, call, key) for call in facts.calls.to("torch.save"))


def _saves_object(facts: Facts, call: ast.Call, key: object) -> bool:
    """Whether a call of ``torch.save`` saves an object as it is, under this key of a dictionary if there is one."""
    saved = facts.values.of(call.args[0]) or () if call.args else ()
    tables = [value.node for value in saved if isinstance(value.node, ast.Dict)]
    if key is None:
        return bool(saved) and not tables and _are_variables(call.args[0])
    entries = [entry for table in tables for entry in zip(table.keys, table.values)]
    return any(isinstance(name, ast.Constant) and name.value == key and _are_variables(kept) for name, kept in entries)


def _are_variables(node: ast.expr) -> bool:
    """Whether an expression is a variable or an attribute, or a choice among such: the object itself, not what it gives."""
    if isinstance(node, ast.IfExp):
        return _are_variables(node.body) and _are_variables(node.orelse)
    return isinstance(node, (ast.Name, ast.Attribute))
