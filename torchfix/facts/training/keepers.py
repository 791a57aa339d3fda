"""What keeps values from one training step to the next: running sums, lists, and objects that are handed a value.

A value with a graph that is kept so keeps its graph alive, and with it all that made it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import receiver
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import LOOPS, last_name, walk
from torchfix.facts.training.gradients import GRAPHLESS_METHODS, SENDING, Fate
from torchfix.facts.training.regions import NO_GRAD

if TYPE_CHECKING:
    from torchfix.facts import Facts

_ADDERS = ("append", "appendleft", "insert", "put")


@dataclass(frozen=True)
class Kept:
    """One place that keeps a value from step to step.

    Args:
        node: the statement.
        terms: the parts of what it keeps that carry a graph, each as small as can be detached.
        kind: what keeps them.
        fate: what becomes of what is kept.
        target: what is added to, for a sum.
    """

    node: ast.stmt
    terms: tuple[ast.expr, ...]
    kind: Literal["sum", "list", "object"]
    fate: Fate
    target: ast.expr | None = None


def kept_graphs(facts: Facts) -> Iterator[Kept]:
    """The places at which a value with a graph is added to what lives longer than one training step, in text order."""
    if not any(there.tree.calls.keys() & SENDING for there in facts.program.everywhere):
        return
    for node in walk(facts.tree.module):
        if isinstance(node, (ast.Expr, ast.AugAssign, ast.Assign)):
            yield from (kept for kept in _by(facts, node) if not facts.regions.under(node, NO_GRAD))


def _by(facts: Facts, node: ast.Expr | ast.AugAssign | ast.Assign) -> Iterator[Kept]:
    """What one statement keeps."""
    if isinstance(node, ast.Expr):
        call = node.value if isinstance(node.value, ast.Call) else None
        source = receiver(call) if call is not None else None
        if call is not None and source is not None and last_name(call.func) in _ADDERS and call.args:
            yield from _in_list(facts, node, source, call.args[-1])
        elif call is not None:
            yield from _handed_over(facts, node, call)
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.value, (ast.List, ast.Tuple)):
        yield from _in_list(facts, node, node.target, node.value)
    else:
        target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
        added = _added(node)
        found = tuple(terms(facts, added)) if added is not None and _lives_on(facts, target, node) else ()
        if found:
            yield Kept(node, found, "sum", facts.gradients.of_variable(target), target)


def _in_list(facts: Facts, node: ast.stmt, container: ast.expr, value: ast.expr) -> Iterator[Kept]:
    if _lives_on(facts, container, node):
        found = tuple(term for item in _items(value) for term in terms(facts, item))
        if found:
            yield Kept(node, found, "list", facts.gradients.of_container(container))


def _added(node: ast.Assign | ast.AugAssign) -> ast.expr | None:
    """What ``total += x``, ``total = total + x`` and ``total = x + total`` add."""
    if isinstance(node, ast.AugAssign):
        return node.value if isinstance(node.op, ast.Add) else None
    value, target = node.value, node.targets[0]
    if len(node.targets) != 1 or not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    words = ast.unparse(target)
    return value.right if ast.unparse(value.left) == words else value.left if ast.unparse(value.right) == words else None


def _items(value: ast.expr) -> tuple[ast.expr, ...]:
    """What a container in the making holds: itself where it is none."""
    if isinstance(value, (ast.List, ast.Tuple)):
        return tuple(value.elts)
    return tuple(value.values) if isinstance(value, ast.Dict) else (value,)


def _handed_over(facts: Facts, node: ast.stmt, call: ast.Call) -> Iterator[Kept]:
    """A call by which an object of the project keeps its argument (``meter.update(loss)``)."""
    loop = facts.tree.nearest(call, LOOPS)
    if loop is None or next(called(facts, call), None) is None or not facts.autograd.trains_in([loop]):
        return
    for given in (*call.args, *(item.value for item in call.keywords)):
        found = tuple(terms(facts, given))
        fate = facts.gradients.of_value(given) if found else None
        if fate is not None and fate.kept:
            yield Kept(node, found, "object", fate)


def _lives_on(facts: Facts, target: ast.expr, node: ast.AST) -> bool:
    """Whether a target is older than the step that adds to it."""
    root = target
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    if not isinstance(root, ast.Name):
        return False
    reaching, home = facts.flow.reaching(root), facts.tree.function(node)
    for loop in facts.tree.ancestors(node):
        if loop is home:
            break
        older = any(not facts.tree.is_within(binding.node, loop) for binding in reaching)
        if isinstance(loop, LOOPS) and older and facts.autograd.trains_in([loop]):
            return True
    return home is not None and root is not target and facts.is_self(root) and facts.autograd.trains(home)


def terms(facts: Facts, value: ast.expr) -> list[ast.expr]:
    """The parts of a value that carry a graph, each as small as can be detached."""
    if isinstance(value, ast.BinOp):
        return [*terms(facts, value.left), *terms(facts, value.right)]
    if isinstance(value, ast.UnaryOp):
        return terms(facts, value.operand)
    if not isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
        return []
    if isinstance(value, ast.Call) and (last_name(value.func) in GRAPHLESS_METHODS or facts.calls.meaning(value) == "builtins.float"):
        return []
    if not facts.graphs.may_carry(value) or _is_given(facts, value):
        return []
    return [value] if facts.graphs.carries(value) or (isinstance(value, ast.Name) and facts.gradients.is_term(value)) else []


def _is_given(facts: Facts, value: ast.expr) -> bool:
    """Whether a value is a parameter, so that it is for the caller to detach it."""
    return isinstance(value, ast.Name) and any(binding.how is Bound.PARAMETER for binding in facts.flow.reaching(value))
