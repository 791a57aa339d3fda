"""Switches: what a flag is in a plain run, and whether a place is reached in one.

A plain run is a run on a machine with a GPU in which nobody sets an option: options of the command line and variables
of the environment have their defaults. Known or None: what is read from a configuration file may be anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument
from torchfix.facts.code.tree import FUNCTIONS, Function, last_name
from torchfix.facts.code.values import Value
from torchfix.facts.project.programs import is_main_guard

if TYPE_CHECKING:
    from torchfix.facts import Facts

_QUERIES = ("torch.cuda.is_available", "torch.cuda.device_count")
_ENVIRONMENT = ("os.environ.get", "os.getenv")
_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_UNKNOWN = object()


def is_on(facts: Facts, expression: ast.expr | None) -> bool | None:
    """Whether a flag or condition is true in a plain run; None where that is not known."""
    if expression is None:
        return None
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Not):
        inner = is_on(facts, expression.operand)
        return None if inner is None else not inner
    if isinstance(expression, ast.BoolOp):
        stops = isinstance(expression.op, ast.Or)  # the truth value that ends the evaluation
        parts = [is_on(facts, item) for item in expression.values]
        return stops if stops in parts else None if None in parts else not stops
    if isinstance(expression, ast.Compare):
        return True if is_main_guard(expression) else _compares(facts, expression)
    if isinstance(expression, ast.Call) and facts.calls.meaning(expression) in _QUERIES:
        return True
    found = _constant(facts, expression)
    return None if found is _UNKNOWN else bool(found)


def is_reached(facts: Facts, node: ast.AST) -> bool:
    """Whether a plain run surely comes to a node of a file that it runs.

    A function is reached where one of its calls is, or where it is handed on; a method where its class is named at all.
    """
    return _is_reached(facts, node, set())


def _is_reached(facts: Facts, node: ast.AST, seen: set[Function]) -> bool:
    inner = node
    for outer in facts.tree.ancestors(node):
        if isinstance(inner, ast.stmt) and _is_left_before(facts, inner):
            return False
        if isinstance(outer, (ast.If, ast.IfExp)) and inner is not outer.test:
            chosen = inner is outer.body if isinstance(outer, ast.IfExp) else inner in outer.body
            if is_on(facts, outer.test) is not chosen:
                return False
        elif isinstance(outer, ast.BoolOp):
            wanted = isinstance(outer.op, ast.And)
            if any(is_on(facts, item) is not wanted for item in outer.values[: outer.values.index(inner)]):  # type: ignore[arg-type]
                return False
        elif isinstance(outer, (ast.ExceptHandler, ast.match_case, ast.Lambda)):
            return False
        elif isinstance(outer, FUNCTIONS) and inner in outer.body:
            return _is_run(facts, outer, seen)
        inner = outer
    return True


def _is_left_before(facts: Facts, statement: ast.stmt) -> bool:
    """Whether a condition that may be true leaves the block before a statement of it."""
    _, block, index = facts.tree.place(statement)
    return any(
        isinstance(item, ast.If) and isinstance(item.body[-1], _LEAVING) and is_on(facts, item.test) is not False for item in block[:index]
    )


def _is_run(facts: Facts, function: Function, seen: set[Function]) -> bool:
    if function in seen:
        return False  # a function that only calls itself is not run
    seen.add(function)
    owner = facts.tree.class_of(function)
    calls = facts.callers_everywhere(function)
    if calls is not None and (calls or owner is None):
        return any(_is_reached(there, call, seen) for there, call in calls)
    return owner is None or _is_named(facts, owner)


def _is_named(facts: Facts, owner: ast.ClassDef) -> bool:
    """Whether the program names a class outside its own definition, so that objects of it may be made."""
    uses = (*facts.tree.names.get(owner.name, ()), *facts.tree.attributes.get(owner.name, ()))
    return any(not facts.tree.is_within(use, owner) for use in uses) or facts.project.mentions(owner.name, facts.path)


def _compares(facts: Facts, expression: ast.Compare) -> bool | None:
    """The outcome of one comparison for equality or identity between constants."""
    if len(expression.ops) != 1 or not isinstance(expression.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
        return None
    left, right = _constant(facts, expression.left), _constant(facts, expression.comparators[0])
    if left is _UNKNOWN or right is _UNKNOWN:
        return None
    return (left == right) is isinstance(expression.ops[0], (ast.Eq, ast.Is))


def _constant(facts: Facts, expression: ast.expr) -> object:
    """The one constant that an expression is in a plain run, :data:`_UNKNOWN` where there is none."""
    return _agreed(_of_value(value) for value in facts.values.of(expression) or ())


def _of_value(value: Value) -> object:
    node, facts = value.node, value.facts
    if value.path:
        return _UNKNOWN
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
        found = is_on(facts, node)
        return _UNKNOWN if found is None else found
    if isinstance(node, ast.Attribute):
        return _option(facts, node)
    if isinstance(node, ast.Call) and facts.calls.meaning(node) in _ENVIRONMENT:
        given = argument(node, "default", 1)
        return None if given is None else _constant(facts, given)
    return _UNKNOWN


def _option(facts: Facts, node: ast.Attribute) -> object:
    """The default of the command-line option that ``args.name`` reads."""
    declared = facts.options.declaration(node)
    if declared is None or not isinstance(declared.node, ast.Call) or facts.options.assigned(node):
        return _UNKNOWN
    default, action = argument(declared.node, "default"), argument(declared.node, "action")
    if default is not None:
        return _constant(declared.facts, default)
    word = action.value if isinstance(action, ast.Constant) else last_name(action) if action is not None else None
    return {"store_true": False, "store_false": True}.get(str(word))


def _agreed(found: Iterable[object]) -> object:
    """The one constant that all are, :data:`_UNKNOWN` where they differ or there are none."""
    constants = list(found)
    if not constants or _UNKNOWN in constants:
        return _UNKNOWN
    first = constants[0]
    return first if all(type(item) is type(first) and item == first for item in constants) else _UNKNOWN
