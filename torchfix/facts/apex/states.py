"""Where a program saves the state of Apex in a checkpoint and loads it from one: torch's scaler cannot read what Apex wrote."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.apex.uses import Use
from torchfix.facts.code.tree import dotted, walk
from torchfix.facts.obstacle import Obstacle

if TYPE_CHECKING:
    from torchfix.facts import Facts

_KEYS = ("scaler", "grad_scaler", "amp_scaler")


@dataclass(frozen=True, eq=False)
class SavedStates:
    """What becomes of Apex's state.

    Args:
        key: the key under which a checkpoint has the scaler's state; empty where none is saved.
        renamed: the strings that are Apex's key.
        saved: the ``amp.state_dict()`` calls.
        loaded: the statements that load a state, each with the checkpoint that it loads from.
    """

    key: str
    renamed: tuple[tuple[Facts, ast.Constant], ...]
    saved: tuple[Use, ...]
    loaded: tuple[tuple[Use, ast.stmt, str], ...]


def states_of(uses: Sequence[Use], made: ast.stmt, owner: str) -> SavedStates | Obstacle:
    """Where the state of Apex goes, or why a scaler's cannot go there.

    Args:
        uses: what a program uses of Apex's mixed precision.
        made: the statement in whose place the scaler is made.
        owner: ``"self."`` where the scaler is an attribute.
    """
    home = next(use.facts for use in uses if use.word == "initialize")
    saved = tuple(use for use in uses if use.word == "state_dict")
    loaded: list[tuple[Use, ast.stmt, str]] = []
    renamed: list[tuple[Facts, ast.Constant]] = []
    for use in uses:
        if use.word not in ("state_dict", "load_state_dict"):
            continue
        key = _key_saved(use) if use.word == "state_dict" else _key_loaded(use)
        if key is None or not _sees(use, home, made, owner):
            return Obstacle(
                "apex-state",
                f"{use.facts.path}:{use.node.lineno} keeps Apex's state where torch's scaler cannot take its place",
                "keep it in a dictionary, under a key, in the function that initializes Apex",
            )
        renamed.append((use.facts, key))
        if use.word == "load_state_dict":
            assert use.call is not None and isinstance(use.call.args[0], ast.Subscript)
            checkpoint = use.call.args[0].value
            loaded.append((use, use.facts.tree.statement(use.call), ast.unparse(checkpoint)))
            renamed += ((use.facts, item) for item in _asked_for(use.facts, checkpoint, key.value))
    words = {node.value for facts, _ in renamed for node in walk(facts.tree.module) if isinstance(node, ast.Constant)}
    new = next((word for word in _KEYS if word not in words), "torch_scaler") if renamed else ""
    unique = {id(item): (facts, item) for facts, item in renamed}
    return SavedStates(new, tuple(unique.values()), saved, tuple(loaded))


def _key_saved(use: Use) -> ast.Constant | None:
    """The key of ``{"amp": amp.state_dict()}`` or ``checkpoint["amp"] = amp.state_dict()``."""
    tree = use.facts.tree
    if use.call is None or use.call.args or use.call.keywords:
        return None
    value: ast.AST = use.call
    while isinstance(outer := tree.parent(value), ast.IfExp):
        value = outer
    key: ast.AST | None = None
    if isinstance(outer, ast.Dict):
        key = next((key for key, item in zip(outer.keys, outer.values) if item is value), None)
    elif isinstance(outer, ast.Assign) and len(outer.targets) == 1 and isinstance(outer.targets[0], ast.Subscript):
        key = outer.targets[0].slice
    return key if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def _key_loaded(use: Use) -> ast.Constant | None:
    """The key of ``amp.load_state_dict(checkpoint["amp"])``, a statement of its own."""
    tree, call = use.facts.tree, use.call
    if call is None or len(call.args) != 1 or call.keywords or not isinstance(tree.parent(call), ast.Expr):
        return None
    given = call.args[0]
    if not isinstance(given, ast.Subscript) or dotted(given.value) is None:
        return None
    return given.slice if isinstance(given.slice, ast.Constant) and isinstance(given.slice.value, str) else None


def _asked_for(facts: Facts, checkpoint: ast.expr, key: object) -> Iterator[ast.Constant]:
    """The same key where the program asks whether the checkpoint has it: ``"amp" in checkpoint``, ``checkpoint.get("amp")``."""
    function = facts.tree.function(checkpoint) or facts.tree.module
    for node in walk(function):
        asked: ast.expr | None = None
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            table = node.comparators[0]
            if isinstance(table, ast.Call) and isinstance(table.func, ast.Attribute) and table.func.attr == "keys":
                table = table.func.value
            asked = node.left if dotted(table) == dotted(checkpoint) else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            asked = node.args[0] if dotted(node.func.value) == dotted(checkpoint) else None
        elif isinstance(node, ast.Subscript) and dotted(node.value) == dotted(checkpoint):
            asked = node.slice
        if isinstance(asked, ast.Constant) and asked.value == key:
            yield asked


def _sees(use: Use, home: Facts, made: ast.stmt, owner: str) -> bool:
    """Whether the scaler has its value where Apex's state is used."""
    tree = use.facts.tree
    if use.facts is not home:
        return False
    if owner:
        return tree.method_class(use.node) is tree.method_class(made)
    return tree.function(use.node) is tree.function(made) and use.node.lineno > made.lineno
