"""Masks of attention: which keys a condition lets through, whether it is the causal one, and whether queries and keys are equally many."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, TypeAlias

from torchfix.facts.code.calls import argument, is_constant, receiver
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import last_name, walk

if TYPE_CHECKING:
    from torchfix.facts import Facts

_OPPOSITE: dict[type[ast.cmpop], str] = {ast.Eq: "!=", ast.NotEq: "=="}
# Methods that leave where the zeros of a mask are, and its last two dimensions.
_SHAPING = frozenset("view reshape unsqueeze bool to type byte int long float cuda cpu contiguous expand".split())
# Methods that give a tensor of the same shape wherever they get one of the same shape.
_ALIKE = frozenset("view reshape transpose permute contiguous unsqueeze squeeze flatten unflatten".split())
_Shape: TypeAlias = "tuple[object, ...]"


def kept(facts: Facts, filled: ast.expr) -> str:
    """The condition under which a key is kept, as code, where ``filled`` is the one under which it is masked."""
    if isinstance(filled, ast.Compare) and len(filled.ops) == 1 and type(filled.ops[0]) in _OPPOSITE:
        left, right = (facts.source.segment(side) for side in (filled.left, filled.comparators[0]))
        return f"{left} {_OPPOSITE[type(filled.ops[0])]} {right}"
    text = facts.source.segment(filled)
    if isinstance(filled, ast.UnaryOp) and isinstance(filled.op, ast.Invert):
        return facts.source.segment(filled.operand)
    owner = receiver(filled) if isinstance(filled, ast.Call) else None
    if isinstance(filled, ast.Call) and owner is not None and last_name(filled.func) in ("eq", "ne") and len(filled.args) == 1:
        turned = "ne" if last_name(filled.func) == "eq" else "eq"
        return f"{facts.source.segment(owner)}.{turned}({facts.source.segment(filled.args[0])})"
    if isinstance(filled, ast.Call) and last_name(filled.func) == "bool":
        return f"~{text}"
    return f"{text}.logical_not()" if isinstance(filled, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) else f"({text}).logical_not()"


def keeps_a_key(facts: Facts, filled: ast.expr) -> bool:
    """Whether a condition surely leaves each query a key: a triangle of ones, cut from its first column on."""
    return _triangle(facts, filled) is not None


def is_causal(facts: Facts, filled: ast.expr, query: ast.expr, key: ast.expr) -> bool:
    """Whether a condition masks just the keys behind each query, of which there are as many as queries.

    A triangle that is cut to one length both ways is square; queries and keys must surely have that length too, since a triangle
    of length one would let a single query see every key.
    """
    cut = _triangle(facts, filled)
    shapes = [_shape(facts, operand, 0) for operand in (query, key)]
    if not cut or None in shapes or shapes[0] != shapes[1]:
        return False
    return _mentions_length(facts, query, cut, 0)


def _triangle(facts: Facts, filled: ast.expr) -> str | None:
    """The length to which a condition cuts a triangle that masks what is behind each query; empty where it is not cut to a square."""
    node, lower = filled, True
    if isinstance(filled, ast.Compare):
        if len(filled.ops) != 1 or not isinstance(filled.ops[0], ast.Eq) or not _is_zero(filled.comparators[0]):
            return None
        node, lower = filled.left, False
    elif isinstance(filled, ast.UnaryOp) and isinstance(filled.op, ast.Invert):
        node, lower = filled.operand, False
    node = _shaped(node)
    cut = ""
    if isinstance(node, ast.Subscript):
        found = _cut(node.slice)
        if found is None:
            return None
        node, cut = _shaped(node.value), found
    made = _made(facts, node)
    return cut if made is not None and _is_triangle(facts, made, "triu" if lower else "tril") else None


def _is_zero(node: ast.expr) -> bool:
    return is_constant(node, 0) or is_constant(node, False) or is_constant(node, 0.0)


def _cut(index: ast.expr) -> str | None:
    """The length to which an index cuts the last two dimensions, empty where they differ; None where columns do not begin at the first."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if len(parts) < 2 or not all(isinstance(part, ast.Slice) or is_constant(part, ...) or is_constant(part, None) for part in parts):
        return None
    rows, columns = parts[-2:]
    if not isinstance(rows, ast.Slice) or not isinstance(columns, ast.Slice) or columns.lower is not None or columns.step is not None:
        return None
    same = rows.upper is not None and columns.upper is not None and ast.dump(rows) == ast.dump(columns)
    return ast.dump(rows.upper) if same and rows.upper is not None else ""


def _shaped(node: ast.expr) -> ast.expr:
    """A tensor before what only changes its leading dimensions, its type or its device."""
    while isinstance(node, ast.Call) and last_name(node.func) in _SHAPING and (owner := receiver(node)) is not None:
        node = owner
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if all(is_constant(part, None) or is_constant(part, ...) for part in parts):
            return _shaped(node.value)
    return node


def _made(facts: Facts, node: ast.expr) -> ast.expr | None:
    """What made a mask: the expression itself, what a variable was assigned, or a buffer of the class."""
    if isinstance(node, ast.Name):
        bindings = facts.flow.reaching(node)
        one = bindings[0] if len(bindings) == 1 else None
        return _shaped(one.value) if one is not None and one.how is Bound.ASSIGN and one.value is not None and not one.path else None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and facts.is_self(node.value):
        owner = facts.tree.method_class(node)
        inside = [call for call in facts.tree.calls.get("register_buffer", ()) if owner is not None and facts.tree.is_within(call, owner)]
        found = [argument(call, "tensor", 1) for call in inside if is_constant(argument(call, "name", 0), node.attr)]
        stored = [use for use in facts.tree.attributes.get(node.attr, ()) if isinstance(use.ctx, ast.Store)]
        given = found[0] if len(found) == 1 and not stored else None
        return _shaped(given) if given is not None else None
    return node


def _is_triangle(facts: Facts, node: ast.expr, name: str) -> bool:
    """Whether an expression is a square of ones of which the triangle below and on the diagonal is one, or the one above it."""
    if isinstance(node, ast.Name):
        inner = _made(facts, node)
        return inner is not None and not isinstance(inner, ast.Name) and _is_triangle(facts, inner, name)
    if not isinstance(node, ast.Call) or last_name(node.func) != name:
        return False
    is_function = (facts.calls.meaning(node) or "").startswith("torch.")
    square = _shaped(node.args[0]) if is_function and node.args else receiver(node)
    diagonal = argument(node, "diagonal", 1 if is_function else 0)
    right = is_constant(diagonal, 1) if name == "triu" else diagonal is None or is_constant(diagonal, 0)
    if not right or not isinstance(square, ast.Call) or facts.calls.meaning(square) != "torch.ones":
        return False
    sizes = list(square.args)
    if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = sizes[0].elts
    return len(sizes) >= 2 and ast.dump(sizes[-1]) == ast.dump(sizes[-2])


# Lengths ------------------------------------------------------------------------------------------------------------------


def _shape(facts: Facts, node: ast.expr, depth: int) -> _Shape | None:
    """What the length of a tensor follows from, alike for tensors that are made alike; None where it is not seen."""
    if depth > 12:
        return None
    if isinstance(node, ast.Name):
        bindings = facts.flow.reaching(node)
        if len(bindings) != 1:
            return None
        one = bindings[0]
        if one.how is Bound.PARAMETER:
            return ("parameter", one.node)
        if one.how is not Bound.ASSIGN or one.value is None:
            return None
        return ("part", one.value) if one.path else _shape(facts, one.value, depth + 1)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.value, ast.Name):
        bindings = facts.flow.reaching(node.value)
        return ("part", bindings[0].node) if len(bindings) == 1 else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        return _shape(facts, node.left, depth + 1)
    if not isinstance(node, ast.Call):
        return None
    owner = receiver(node)
    if last_name(node.func) in _ALIKE and owner is not None and facts.calls.meaning(node) is None:
        inner = _shape(facts, owner, depth + 1)
        given = tuple(ast.dump(item) for item in node.args) + tuple(ast.dump(word) for word in node.keywords)
        return (last_name(node.func), given, inner) if inner is not None else None
    layers = facts.models.of(node.func) or ()
    if layers and all(layer.library == "torch.nn.Linear" for layer in layers) and len(node.args) == 1:
        inner = _shape(facts, node.args[0], depth + 1)
        return ("linear", inner) if inner is not None else None
    return None


def _mentions_length(facts: Facts, node: ast.expr, length: str, depth: int) -> bool:
    """Whether a tensor was laid out with that very length as one of its dimensions."""
    if depth > 12:
        return False
    if isinstance(node, ast.Name):
        bindings = facts.flow.reaching(node)
        value = bindings[0].value if len(bindings) == 1 else None
        return value is not None and _mentions_length(facts, value, length, depth + 1)
    for inner in walk(node):
        if (
            isinstance(inner, ast.Call)
            and last_name(inner.func) in ("view", "reshape")
            and any(ast.dump(item) == length for item in inner.args)
        ):
            return True
    root: ast.expr | None = node
    while isinstance(root, ast.Call):
        root = receiver(root)
    if isinstance(root, ast.Subscript):
        root = root.value
    return isinstance(root, ast.Name) and _mentions_length(facts, root, length, depth + 1)
