"""How a program brings Apex, with what it does where Apex is missing, and what of that goes once Apex is not needed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.apex.uses import AMP, Use, amp_uses, imports_of, uses_of
from torchfix.facts.code.calls import has_stars
from torchfix.facts.code.tree import walk
from torchfix.facts.half_precision.autocast import Treatment, treatment

if TYPE_CHECKING:
    from torchfix.facts import Facts

# What Apex is told of a function, and how autocast must treat it for that to be said already.
_REGISTERED = {"register_half_function": Treatment.LOW, "register_float_function": Treatment.FULL}


def serves_amp(facts: Facts, statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    """Whether a part of an import of Apex is there for its mixed precision and nothing else."""
    if isinstance(statement, ast.ImportFrom):
        return f"{statement.module}.{alias.name}".startswith(AMP)
    local = alias.asname or "apex"
    uses = [use for use in uses_of(facts) if use.root.id == local]
    return alias.name.startswith(AMP) or (alias.name == "apex" and bool(uses) and all(use.name.startswith(AMP) for use in uses))


def complaint(use: Use) -> ast.If | None:
    """The ``if amp is None: raise ...`` in whose condition ``amp`` is used, None where it is used otherwise."""
    tree = use.facts.tree
    missing = tree.parent(use.node)
    if use.name != AMP or not _asks_for_none(missing) or missing is None:
        return None
    test: ast.AST = missing
    while isinstance(outer := tree.parent(test), ast.BoolOp) and isinstance(outer.op, ast.And):
        test = outer
    statement = tree.parent(test)
    if not isinstance(statement, ast.If) or statement.test is not test or statement.orelse:
        return None
    return statement if len(statement.body) == 1 and isinstance(statement.body[0], ast.Raise) else None


def _asks_for_none(node: ast.AST | None) -> bool:
    if isinstance(node, ast.Compare):
        other = node.comparators[0]
        return isinstance(node.ops[0], ast.Is) and isinstance(other, ast.Constant) and other.value is None
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def registration(use: Use) -> ast.Expr | None:
    """The statement that tells Apex of a torch function what autocast does by itself, None for any other use."""
    call, wanted = use.call, _REGISTERED.get(use.word)
    if call is None or wanted is None or has_stars(call) or len(call.args) != 2:
        return None
    module, name = call.args
    torch = (use.facts.names.qualified(module) or "").partition(".")[0] == "torch"
    statement = use.facts.tree.parent(call)
    if not torch or not isinstance(name, ast.Constant) or not isinstance(name.value, str) or not isinstance(statement, ast.Expr):
        return None
    return statement if treatment(name.value) is wanted else None


def plain(facts: Facts) -> Iterator[tuple[str, str | None]]:
    """What plain imports at module level bring for mixed precision: a module, and a name of it or None for the module itself."""
    for statement, alias in imports_of(facts):
        if statement in facts.tree.module.body and serves_amp(facts, statement, alias):
            yield (statement.module or "", alias.name) if isinstance(statement, ast.ImportFrom) else (alias.name, None)


def unneeded(facts: Facts) -> tuple[ast.stmt, ...]:
    """The statements that go with Apex's mixed precision, each with the branches and ``try`` statements that hold nothing else.

    Imports that are no plain ones at module level, complaints that Apex is missing, and what it is told of functions.
    """
    found: dict[ast.stmt, None] = {}
    for statement, alias in imports_of(facts):
        if serves_amp(facts, statement, alias) and statement not in facts.tree.module.body and len(statement.names) == 1:
            found[statement] = None
    for use in amp_uses(facts):
        item = complaint(use) or registration(use)
        found |= {item: None} if item is not None else {}
    while True:
        whole = next((outer for item in found if (outer := _only_for(facts, item, found)) is not None), None)
        if whole is None:
            return tuple(found)
        found = {item: None for item in found if not facts.tree.is_within(item, whole)} | {whole: None}


def shortened(facts: Facts) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """The imports in branches and ``try`` statements that bring other names too, each with its text without Apex's mixed precision."""
    for statement, alias in imports_of(facts):
        if serves_amp(facts, statement, alias) and statement not in facts.tree.module.body and len(statement.names) > 1:
            kept = [item for item in statement.names if item is not alias]
            rest = ast.ImportFrom(statement.module, kept, statement.level) if isinstance(statement, ast.ImportFrom) else ast.Import(kept)
            yield statement, ast.unparse(rest)


def _only_for(facts: Facts, statement: ast.stmt, going: dict[ast.stmt, None]) -> ast.If | ast.Try | None:
    """What stands around a statement and does nothing but what goes."""
    outer = facts.tree.parent(statement)
    if not isinstance(outer, (ast.If, ast.Try)) or not all(item in going for item in outer.body) or outer.orelse:
        return None
    if isinstance(outer, ast.If):
        return None if any(isinstance(node, ast.Call) for node in walk(outer.test)) else outer
    local = {alias.asname or alias.name for item in outer.body for alias in walk(item) if isinstance(alias, ast.alias)}
    complains = all(_only_complains(item, local) for handler in outer.handlers for item in handler.body)
    return outer if complains and not outer.finalbody else None


def _only_complains(statement: ast.stmt, local: set[str]) -> bool:
    """Whether a statement says that an import failed, or puts None in the place of what it would have brought."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id in local for target in statement.targets)
    return isinstance(statement, (ast.Raise, ast.Pass, ast.Expr))
