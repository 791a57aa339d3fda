"""Gradients that outlive their step: kept in a variable, a tensor or a container, or added to weights by hand.

A scaler skips a step whose gradients are infinite, and the next backward pass makes new ones. What a program has kept of the
old ones stays infinite, and comes to the weights with a later step, of whose own gradients the scaler saw only finite ones.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import receiver
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, Function, LoopNode, last_name, walk, walk_here
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.gradient_reads import reads_gradients
from torchfix.facts.training.gradients import KEEPING

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Training

_Place: TypeAlias = "LoopNode | Function"

_DEPTH = 3  # functions followed into one another
# What makes a number of a gradient, or something that is always finite.
_REDUCTIONS = frozenset(
    """norm vector_norm item sum mean std var max min amax amin dot isnan isinf isfinite any all numel size dim shape dtype device
    is_cuda is_sparse sign nan_to_num nan_to_num_ count_nonzero tolist numpy histc""".split()
)


def carried_over(loop: Training) -> Obstacle | None:
    """Where a training loop keeps gradients for later steps, itself or in functions that it calls."""
    for facts, gradient, around in _gradients(loop):
        taker = _taker(facts, gradient)
        if any(not _is_gradient(target) and _lives_on(facts, target, around) for target in _targets(taker)):
            return Obstacle(
                "gradients-carried",
                f"{facts.path}:{gradient.lineno} keeps gradients beyond their step; those of a step that a scaler skips are infinite",
                "keep gradients only where torch.isfinite finds all of them finite",
            )
    return None


def _gradients(loop: Training) -> Iterator[tuple[Facts, ast.expr, _Place]]:
    """Each gradient that the loop or a function that it calls looks at or is given, with the loop or function."""
    waiting: list[tuple[Facts, _Place, int]] = [(loop.facts, loop.node, 0)]
    seen: set[ast.AST] = {loop.node}
    while waiting:
        facts, around, depth = waiting.pop()
        for node in (node for statement in around.body for node in walk_here(statement)):
            if isinstance(node, ast.Attribute) and _names_gradient(node) and reads_gradients(facts, node):
                yield facts, node, around
            elif isinstance(node, ast.Call) and depth < _DEPTH and reads_gradients(facts, node):
                for there, function in called(facts, node):
                    if _returns_gradient(there, function):
                        yield facts, node, around
                    if function not in seen:
                        seen.add(function)
                        waiting.append((there, function, depth + 1))


def _names_gradient(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "grad"


def _returns_gradient(facts: Facts, function: Function) -> bool:
    """Whether a function gives back a whole gradient."""
    nodes = (node for statement in function.body for node in walk_here(statement))
    return any(_names_gradient(node) and isinstance(_taker(facts, node), ast.Return) for node in nodes)


def _taker(facts: Facts, gradient: ast.AST) -> ast.AST | None:
    """The statement that takes a gradient, or what is computed of it, or the call that puts it into something; None if it ends before."""
    inner = gradient
    for outer in facts.tree.ancestors(gradient):
        if isinstance(outer, ast.stmt):
            return outer
        if isinstance(outer, ast.Compare) or (isinstance(outer, ast.Attribute) and outer.attr in _REDUCTIONS):
            return None
        if isinstance(outer, ast.Call) and outer.func is not inner:
            if _puts(facts, outer):
                return outer
            known = receiver(outer) is not None or (facts.calls.meaning(outer) or "").startswith("torch.")
            if last_name(outer.func) in _REDUCTIONS or not known:
                return None
        inner = outer
    return None


def _puts(facts: Facts, call: ast.Call) -> bool:
    """Whether a call puts its arguments into what it is called on: into a container, or into a tensor in place."""
    name = last_name(call.func) or ""
    if receiver(call) is None or (facts.calls.meaning(call) or "").startswith("torch."):
        return False
    return (name in KEEPING and isinstance(facts.tree.parent(call), ast.Expr)) or (name.endswith("_") and not name.startswith("_"))


def _targets(taker: ast.AST | None) -> list[ast.expr]:
    """What a gradient is put into."""
    if isinstance(taker, ast.Call):
        source = receiver(taker)
        return [source] if source is not None else []
    if isinstance(taker, ast.Assign):
        return [item for target in taker.targets for item in (target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target])]
    return [taker.target] if isinstance(taker, ast.AugAssign) else []


def _is_gradient(target: ast.expr) -> bool:
    """Whether a target is a gradient itself, or a part of one."""
    return any(_names_gradient(node) for node in walk(target))


def _lives_on(facts: Facts, target: ast.expr, around: _Place) -> bool:
    """Whether what is put into a target is there in a later iteration, or once a function has ended."""
    root = target
    while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
        root = root.func if isinstance(root, ast.Call) else root.value
    if not isinstance(root, ast.Name):
        return False
    if root is target and isinstance(root.ctx, ast.Store):
        return _is_carried(facts, root, around)
    made = facts.flow.reaching(root)
    return not made or any(_is_older(facts, item.node, item.how, item.value, around) for item in made)


def _is_older(facts: Facts, node: ast.AST, how: Bound, value: ast.expr | None, around: _Place) -> bool:
    """Whether a binding gives something that is there before the iteration, or before the function is called."""
    if how is Bound.PARAMETER or not facts.tree.is_within(node, around):
        return True
    names = [item for item in walk(value) if isinstance(item, ast.Name)] if how is Bound.LOOP and value is not None else []
    older = (item for name in names for item in facts.flow.reaching(name))
    return any(item.how is Bound.PARAMETER or not facts.tree.is_within(item.node, around) for item in older)


def _is_carried(facts: Facts, target: ast.Name, around: _Place) -> bool:
    """Whether an iteration may read what an earlier one has left in a variable, or others what a function has."""
    home = facts.names.lookup(target.id, target)
    if isinstance(around, FUNCTIONS) and home is not None and home[0].node is not around:
        return True
    mine = [item for item in facts.names.bindings(target) if facts.tree.is_within(target, item.node)]
    for use in facts.names.uses(target):
        reaching = facts.flow.reaching(use) if isinstance(use.ctx, ast.Load) and facts.tree.is_within(use, around) else []
        older = any(not facts.tree.is_within(item.node, around) for item in reaching)
        if any(item in mine for item in reaching) and (older or use.lineno < target.lineno):
            return True
    return isinstance(facts.tree.parent(target), ast.AugAssign) and any(
        not facts.tree.is_within(item.node, around) for item in facts.names.bindings(target)
    )
