"""What a call of a function can come to: its conditions on parameters are decided by the constants that the call passes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import Function

if TYPE_CHECKING:
    from torchfix.facts import Facts

Given: TypeAlias = Callable[[ast.arg], "ast.expr | None"]
"""What a call passes for a parameter, None where that is not known."""


def may_come_to(facts: Facts, function: Function, node: ast.AST, given: Given) -> bool:
    """Whether a run of a function may come to a node of its body (``if train: return model, optimizer``, called with ``train=True``).

    Args:
        facts: the function's file.
        function: the function.
        node: a node of its body.
        given: what the call passes.
    """
    inner = node
    for outer in facts.tree.ancestors(node):
        if isinstance(inner, ast.stmt):
            _, block, index = facts.tree.place(inner)
            if any(_surely_leaves(facts, item, given) for item in block[:index]):
                return False
        if outer is function:
            break
        if isinstance(outer, ast.If) and inner is not outer.test and _truth(facts, outer.test, given) not in (None, inner in outer.body):
            return False
        inner = outer
    return True


def _surely_leaves(facts: Facts, statement: ast.stmt, given: Given) -> bool:
    """Whether a statement takes the run out of the function, in the branches that it may take."""
    if not isinstance(statement, ast.If):
        return isinstance(statement, (ast.Return, ast.Raise))
    holds = _truth(facts, statement.test, given)
    branches = [statement.body, statement.orelse] if holds is None else [statement.body if holds else statement.orelse]
    return all(any(_surely_leaves(facts, item, given) for item in branch) for branch in branches)


def _truth(facts: Facts, test: ast.expr, given: Given) -> bool | None:
    """Whether a condition holds, None where that is not known."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(facts, test.operand, given)
        return None if inner is None else not inner
    if isinstance(test, ast.Compare):
        left, right = _constant(facts, test.left, given), _constant(facts, test.comparators[0], given)
        if left is None or right is None or len(test.ops) > 1 or not isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
            return None
        same = type(left.value) is type(right.value) and left.value == right.value
        return same is isinstance(test.ops[0], (ast.Eq, ast.Is))
    found = _constant(facts, test, given)
    return None if found is None else bool(found.value)


def _constant(facts: Facts, node: ast.expr, given: Given) -> ast.Constant | None:
    """The constant that an expression is: a literal, or a parameter for which the call passes one and that nothing else binds."""
    if isinstance(node, ast.Name):
        bindings = facts.flow.reaching(node)
        parameter = bindings[0].node if len(bindings) == 1 and bindings[0].how is Bound.PARAMETER else None
        passed = given(parameter) if isinstance(parameter, ast.arg) else None
        return passed if isinstance(passed, ast.Constant) else None
    return node if isinstance(node, ast.Constant) else None
