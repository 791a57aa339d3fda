"""Matrix products of two tensors, however they are spelled: `@`, `matmul`, `bmm` and `einsum`, and transposed operands."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import has_stars, receiver
from torchfix.facts.code.tree import last_name

if TYPE_CHECKING:
    from torchfix.facts import Facts

_FUNCTIONS = ("torch.matmul", "torch.bmm")
_METHODS = ("matmul", "bmm")
_LAST_TWO = ((-2, -1), (-1, -2))


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two tensors.

    Args:
        node: the expression.
        left, right: what is multiplied.
        indexes: for an einsum the letters of left, right and result; else None.
        dimensions: how many dimensions both have, None where the spelling does not say.
    """

    node: ast.expr
    left: ast.expr
    right: ast.expr
    indexes: tuple[str, str, str] | None = None
    dimensions: int | None = None


def product_of(facts: Facts, node: ast.expr) -> Product | None:
    """An expression as a product, None where it is none."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return Product(node, node.left, node.right)
    if not isinstance(node, ast.Call) or node.keywords or has_stars(node):
        return None
    name, meaning = last_name(node.func), facts.calls.meaning(node)
    if meaning in _FUNCTIONS and len(node.args) == 2:
        return Product(node, node.args[0], node.args[1], dimensions=3 if name == "bmm" else None)
    if meaning == "torch.einsum" and len(node.args) == 3:
        return _einsum(node)
    owner = receiver(node)
    if name in _METHODS and meaning is None and owner is not None and len(node.args) == 1:
        return Product(node, owner, node.args[0], dimensions=3 if name == "bmm" else None)
    return None


def _einsum(call: ast.Call) -> Product | None:
    equation = call.args[0]
    if not isinstance(equation, ast.Constant) or not isinstance(equation.value, str):
        return None
    operands, arrow, result = equation.value.replace(" ", "").partition("->")
    letters = operands.split(",")
    if not arrow or len(letters) != 2 or not all(part.isalpha() and len(set(part)) == len(part) for part in (*letters, result)):
        return None
    return Product(call, call.args[1], call.args[2], (letters[0], letters[1], result))


def untransposed(node: ast.expr) -> tuple[ast.expr, int | None] | None:
    """A tensor whose last two dimensions an expression exchanges, and the number of its dimensions where that is told; else None."""
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        return node.value, None
    if not isinstance(node, ast.Call) or node.keywords:
        return None
    owner, arguments = receiver(node), list(node.args)
    if owner is None:
        return None
    numbers = [_number(item) for item in arguments]
    if None in numbers:
        return None
    order = tuple(number for number in numbers if number is not None)
    if last_name(node.func) in ("transpose", "swapaxes", "swapdims"):
        if order in _LAST_TWO:
            return owner, None
        if len(order) == 2 and sorted(order) in ([1, 2], [2, 3]):
            return owner, max(order) + 1
    if last_name(node.func) == "permute" and len(order) > 2 and order == (*range(len(order) - 2), len(order) - 1, len(order) - 2):
        return owner, len(order)
    return None


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return -inner if inner is not None else None
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def reordered(letters: str, wanted: str) -> str | None:
    """The method call that brings the dimensions of a tensor into another order: ``.transpose(1, 2)``, or nothing; None if none can."""
    if sorted(letters) != sorted(wanted):
        return None
    moved = [place for place, letter in enumerate(letters) if wanted[place] != letter]
    if not moved:
        return ""
    if len(moved) == 2:
        return f".transpose({moved[0]}, {moved[1]})"
    return f".permute({', '.join(str(letters.index(letter)) for letter in wanted)})"
