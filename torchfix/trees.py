"""Syntax trees compared and rebuilt; positions do not count."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from typing import TypeVar

N = TypeVar("N", bound=ast.AST)


def module(text: str) -> ast.Module:
    """The tree of statements, without the warnings that Python has for what they say.

    Raises:
        SyntaxError: the text does not parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def expression(text: str) -> ast.expr:
    """The tree of one expression, which may go over several lines.

    Raises:
        SyntaxError: the text does not parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(f"({text})", mode="eval").body


def difference(expected: ast.AST, actual: ast.AST) -> ast.AST | None:
    """The first node of ``actual`` in text order that differs from its counterpart in ``expected``; None if all are equal."""
    stack: list[tuple[object, object, ast.AST]] = [(expected, actual, actual)]
    while stack:
        one, other, near = stack.pop()
        if one is other:
            continue
        if type(one) is not type(other):
            return near
        if isinstance(one, ast.AST) and isinstance(other, ast.AST):
            near = other
            stack.extend((getattr(one, name, None), getattr(other, name, None), near) for name in reversed(one._fields))
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return near
            stack.extend((left, right, near) for left, right in zip(reversed(one), reversed(other)))
        elif one != other:
            return near
    return None


def same(one: ast.AST, other: ast.AST) -> bool:
    """Whether two trees are equal."""
    return difference(one, other) is None


def replaced(tree: N, swaps: Mapping[ast.AST, ast.AST]) -> N:
    """A copy of a tree in which some nodes are swapped for others; what holds none of them is shared with the old tree."""
    if tree in swaps:
        return swaps[tree]  # type: ignore[return-value]
    changes = {}
    for name, value in ast.iter_fields(tree):
        if isinstance(value, ast.AST):
            new: object = replaced(value, swaps)
            if new is not value:
                changes[name] = new
        elif isinstance(value, list):
            items = [replaced(item, swaps) if isinstance(item, ast.AST) else item for item in value]
            if any(item is not old for item, old in zip(items, value)):
                changes[name] = items
    return with_fields(tree, changes) if changes else tree


def with_fields(node: N, changes: Mapping[str, object]) -> N:
    """A copy of one node with other values for some of its fields."""
    copy = type(node)(**{**dict(ast.iter_fields(node)), **changes})
    return ast.copy_location(copy, node)


def filled(template: N, parts: Mapping[str, ast.expr]) -> N:
    """A copy of a tree in which every name that ``parts`` holds is the expression given there, as the place reads or writes it."""
    names = [node for node in ast.walk(template) if isinstance(node, ast.Name) and node.id in parts]
    return replaced(template, {name: in_context(parts[name.id], name.ctx) for name in names})


def in_context(node: ast.expr, context: ast.expr_context) -> ast.expr:
    """An expression as it stands where it is read, assigned or deleted."""
    if not hasattr(node, "ctx") or type(node.ctx) is type(context):
        return node
    changes: dict[str, object] = {"ctx": context}
    if isinstance(node, (ast.Tuple, ast.List)):
        changes["elts"] = [in_context(item, context) for item in node.elts]
    elif isinstance(node, ast.Starred):
        changes["value"] = in_context(node.value, context)
    return with_fields(node, changes)
