"""Formulas that lose their meaning in half precision: numbers beyond its range, epsilons that vanish, rounded probabilities, writes.

Each question gives the code of a hazard, which :mod:`torchfix.facts.half_precision.hazards` has the words for. Float16 is
what they are asked about: it holds numbers between 6e-8 and 65504, and bfloat16 has fewer digits still.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, is_constant, keyword
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, last_name, walk
from torchfix.facts.code.values import default_of
from torchfix.facts.half_precision.autocast import Treatment, treatment

if TYPE_CHECKING:
    from torchfix.facts import Facts

LARGEST_HALF = 65504.0
SMALLEST_HALF = 5.97e-8  # the smallest number above zero that float16 holds is 2 ** -24

_FILLS = frozenset("masked_fill fill full_like new_full index_fill where clamp clip clamp_min clamp_max".split())
_FILLS_IN_PLACE = ("add_", "sub_")
_BOUNDS = frozenset("clamp clip clamp_min maximum max".split())
LOGARITHMS = frozenset("log log2 log10 log1p".split())
ALIKE = frozenset(
    "clamp clip clamp_min clamp_max view reshape squeeze unsqueeze max min maximum minimum mul add sub div float to clone detach".split()
)
# Writes by index, with the place of what they write among a method's arguments. Autocast widens the functions
# ``index_put`` and ``scatter_add`` by itself, and none of those that write in place.
_INDEX_WRITES = {
    "scatter": 2,
    "scatter_": 2,
    "scatter_add_": 2,
    "scatter_reduce": 2,
    "scatter_reduce_": 2,
    "index_add": 2,
    "index_add_": 2,
    "index_copy": 2,
    "index_copy_": 2,
    "index_reduce": 2,
    "index_reduce_": 2,
    "index_put_": 1,
    "masked_scatter": 1,
    "masked_scatter_": 1,
}
_PRODUCTS = frozenset("mm bmm matmul einsum inner".split())
_ADDED_PRODUCTS = frozenset("addmm baddbmm addbmm".split())
_REDUCTIONS = frozenset("sum mean".split())
_FLOAT32 = ("torch.float32", "torch.float")
_NEW_TENSORS = frozenset("torch.zeros torch.ones torch.empty torch.arange torch.linspace torch.eye torch.rand torch.randn".split())
_DEPTH = 6  # names and calls followed into one another


def in_call(facts: Facts, call: ast.Call, sigmoids: frozenset[str]) -> str | None:
    """What half precision would break in a call.

    Args:
        sigmoids: the names that the code around gives to outputs of a sigmoid.
    """
    name, meaning = last_name(call.func) or "", facts.calls.meaning(call) or ""
    torch = meaning.startswith("torch.")
    if not torch and (meaning or not isinstance(call.func, ast.Attribute)):
        return None
    plain, given = name.rstrip("_"), [*call.args, *(item.value for item in call.keywords)]
    works_on = _operand(call, torch)
    filled = plain in _FILLS or name in _FILLS_IN_PLACE
    if filled and any(_is_beyond_half(facts, item) for item in given) and not is_full(facts, works_on):
        return "half-overflow"
    if plain in _BOUNDS and any(_is_vanishing(facts, item) for item in given) and not is_full(facts, works_on):
        return "tiny-epsilon"
    if name in _INDEX_WRITES and not _keeps_dtype(facts, call, torch):
        return "index-write"
    if name in LOGARITHMS and works_on is not None and _is_sigmoid(facts, works_on, sigmoids):
        return "log-of-sigmoid"
    if plain == "square" and not is_full(facts, works_on) and _is_reduced(facts, call):
        return "square-by-hand"
    if plain in _ADDED_PRODUCTS and any(_is_two(item) for item in given):
        return "distance-by-products"
    if treatment(name) is Treatment.LOW and (name.endswith("_") or keyword(call, "out") is not None):
        return "in-place-product"
    return None


def in_store(facts: Facts, node: ast.Assign | ast.AugAssign) -> str | None:
    """A write by index into a tensor, where index or mask is itself a tensor: torch wants equal dtypes there."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in (item for item in targets if isinstance(item, ast.Subscript)):
        if _is_basic_index(facts, target.slice) or _is_python_container(facts, target.value):
            continue
        if _is_beyond_half(facts, node.value) and not is_full(facts, target.value):
            return "half-overflow"
        if number(node.value) is None and not (is_full(facts, node.value) and is_full(facts, target.value)):
            return "index-write"
    return None


def in_arithmetic(facts: Facts, node: ast.BinOp) -> str | None:
    """What half precision would break in a sum or product."""
    for one, other in ((node.left, node.right), (node.right, node.left)):
        code = _beside_operand(facts, node, one, other)
        if code is not None and not is_full(facts, other):
            return code
    if isinstance(node.op, ast.MatMult) and isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Mult):
        if _is_two(node.left.left) or _is_two(node.left.right):
            return "distance-by-products"
    if isinstance(node.op, ast.Mult) and ast.dump(node.left) == ast.dump(node.right) and not is_full(facts, node.left):
        return "square-by-hand" if _is_reduced(facts, node) else None
    return None


def _beside_operand(facts: Facts, node: ast.BinOp, one: ast.expr, other: ast.expr) -> str | None:
    """What one operand of a sum or product does to the other, should that be half precision."""
    if isinstance(one, ast.Constant) and isinstance(one.value, complex):
        return "float64"
    if _is_beyond_half(facts, one):
        return "half-overflow"
    if isinstance(node.op, (ast.Add, ast.Sub)) and _is_vanishing(facts, one):
        return "tiny-epsilon"
    if isinstance(node.op, ast.Mult) and _is_two(one) and _is_product(facts, other):
        return "distance-by-products"
    return None


def sigmoid_names(facts: Facts, code: ast.AST) -> frozenset[str]:
    """The names that a piece of code gives to outputs of a sigmoid."""
    found: frozenset[str] = frozenset()
    while True:
        size = len(found)
        found |= {
            target.id
            for node in walk(code)
            if isinstance(node, ast.Assign) and _is_sigmoid(facts, node.value, found)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        if len(found) == size:
            return found


def is_full(facts: Facts, node: ast.expr | None, depth: int = 0) -> bool:
    """Whether an expression surely is float32 under autocast whatever went into it, or no tensor of fractions at all."""
    if node is None or depth > _DEPTH:
        return False
    if number(node) is not None or isinstance(node, (ast.Constant, ast.Compare)):
        return True
    if isinstance(node, ast.UnaryOp):
        return is_full(facts, node.operand, depth)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.MatMult):
            return False
        return isinstance(node.op, ast.Pow) or (is_full(facts, node.left, depth) and is_full(facts, node.right, depth))
    if isinstance(node, ast.Subscript):
        return is_full(facts, node.value, depth)
    if isinstance(node, ast.Attribute):
        return node.attr in ("shape", "ndim") or (node.attr in ("data", "T", "mT") and is_full(facts, node.value, depth))
    if isinstance(node, ast.Name):
        bindings = facts.flow.reaching(node)
        return bool(bindings) and all(
            binding.how is Bound.ASSIGN and not binding.path and binding.value is not None and is_full(facts, binding.value, depth + 1)
            for binding in bindings
        )
    return isinstance(node, ast.Call) and _gives_full(facts, node, depth)


def _gives_full(facts: Facts, call: ast.Call, depth: int) -> bool:
    name, meaning = last_name(call.func) or "", facts.calls.meaning(call) or ""
    if meaning.startswith("builtins."):
        return name in ("len", "int", "float", "bool", "range")
    if meaning in _NEW_TENSORS:
        return all(facts.names.qualified(item.value) in _FLOAT32 for item in call.keywords if item.arg == "dtype")
    torch = meaning.startswith("torch.")
    if not torch and (meaning or not isinstance(call.func, ast.Attribute)):
        return False
    how, works_on = treatment(name), _operand(call, torch)
    if name in ("to", "type"):
        given = [*call.args, *(item.value for item in call.keywords)]
        return is_full(facts, works_on, depth) or any(facts.names.qualified(item) in _FLOAT32 for item in given)
    if how in (Treatment.FULL, Treatment.PLAIN):
        return True
    operands = call.args if torch else [works_on, *call.args]
    return how is not Treatment.LOW and bool(operands) and all(is_full(facts, item, depth) for item in operands if item is not None)


# Numbers ----------------------------------------------------------------------------------------------------------


def number(node: ast.expr) -> float | None:
    """The value of a number that is written out, also as ``float("-1e9")`` or ``torch.tensor(1e-8)``."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = number(node.left), number(node.right)
        return base**power if base is not None and power is not None and base > 0 and abs(power) < 100 else None
    if isinstance(node, ast.Call) and len(node.args) == 1 and last_name(node.func) in ("float", "tensor"):
        given = node.args[0]
        if isinstance(given, ast.Constant) and isinstance(given.value, str):
            try:
                return float(given.value)
            except ValueError:
                return None
        return number(given)
    return None


def holds_vanishing(tree: ast.Module) -> bool:
    """Whether a file holds a number that float16 rounds to zero."""
    return any(isinstance(node, ast.expr) and _vanishes(number(node)) for node in walk(tree))


def holds_excess(tree: ast.Module) -> bool:
    """Whether a file holds a number that is beyond float16, or asks for the limits of a wider type."""
    return any(
        isinstance(node, ast.expr) and (_is_excess(number(node)) or (isinstance(node, ast.Attribute) and node.attr == "finfo"))
        for node in walk(tree)
    )


def _vanishes(value: float | None) -> bool:
    return value is not None and 0 < value < SMALLEST_HALF


def _is_excess(value: float | None) -> bool:
    return value is not None and LARGEST_HALF < abs(value) < float("inf")


def _is_beyond_half(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression is a number that float16 cannot hold, written out or under a name."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        if isinstance(node, ast.Attribute) and node.attr in ("min", "max") and isinstance(node.value, ast.Call):
            limits = facts.calls.meaning(node.value) in ("torch.finfo", "numpy.finfo") and node.value.args
            return bool(limits) and last_name(node.value.args[0]) in ("float32", "float", "double", "float64", "bfloat16")
        return facts.hazards.excessive and any(_is_beyond_half(*origin) for origin in _origins(facts, node))
    return _is_excess(number(node))


def _is_vanishing(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression is a number above zero that float16 cannot hold, written out or under a name."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        return facts.hazards.vanishing and any(_is_vanishing(*origin) for origin in _origins(facts, node))
    return _vanishes(number(node))


def _origins(facts: Facts, node: ast.Name | ast.Attribute) -> Iterator[tuple[Facts, ast.expr]]:
    """The expressions that may have made a value, as far as they are known; a parameter's default is one."""
    for value in facts.values.of(node) or ():
        if isinstance(value.node, ast.expr) and not value.path and value.node is not node:
            yield value.facts, value.node
    for binding in facts.flow.reaching(node) if isinstance(node, ast.Name) else ():
        function = facts.tree.nearest(binding.node, FUNCTIONS)
        if isinstance(binding.node, ast.arg) and isinstance(function, FUNCTIONS):
            default = default_of(function, binding.node)
            yield from [(facts, default)] if default is not None else []


def _is_two(node: ast.expr) -> bool:
    value = number(node)
    return value is not None and abs(value) == 2


# Operands ---------------------------------------------------------------------------------------------------------


def _operand(call: ast.Call, torch: bool) -> ast.expr | None:
    """What a function of torch or a tensor's method works on."""
    if torch:
        tensors = [item for item in call.args if number(item) is None]
        at = 1 if last_name(call.func) == "where" else 0
        return tensors[at] if len(tensors) > at else None
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _is_product(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression multiplies matrices by hand, or is a name for such a product."""
    if isinstance(node, ast.Name):
        made = (binding.value for binding in facts.flow.reaching(node) if not binding.path)
        return any(isinstance(value, (ast.BinOp, ast.Call)) and _is_product(facts, value) for value in made)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return isinstance(node, ast.Call) and last_name(node.func) in _PRODUCTS


def _is_reduced(facts: Facts, node: ast.expr) -> bool:
    """Whether the elements of an expression are summed up at once."""
    outer = facts.tree.parent(node)
    if isinstance(outer, ast.Attribute):
        return outer.attr in _REDUCTIONS
    return isinstance(outer, ast.Call) and (facts.calls.meaning(outer) or "") in {f"torch.{name}" for name in _REDUCTIONS}


def _is_sigmoid(facts: Facts, node: ast.expr, names: frozenset[str]) -> bool:
    """Whether a value is the output of a sigmoid, with a small number added or held away from its limits or not."""
    if isinstance(node, ast.BinOp):
        return _is_sigmoid(facts, node.left, names) or _is_sigmoid(facts, node.right, names)
    if isinstance(node, ast.UnaryOp):
        return _is_sigmoid(facts, node.operand, names)
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        works_on = _operand(node, (facts.calls.meaning(node) or "").startswith("torch."))
        if name in ("sigmoid", "sigmoid_"):
            return not is_full(facts, works_on)
        if any(item.library == "torch.nn.Sigmoid" for item in facts.models.of(node.func) or ()):
            return not is_full(facts, node.args[0] if node.args else None)
        return name in ALIKE and works_on is not None and _is_sigmoid(facts, works_on, names)
    return isinstance(node, ast.Name) and node.id in names


# Writes -----------------------------------------------------------------------------------------------------------


def _keeps_dtype(facts: Facts, call: ast.Call, torch: bool) -> bool:
    """Whether a write by index puts a number in place, which takes any dtype, or joins two float32 tensors."""
    name = last_name(call.func) or ""
    if keyword(call, "value") is not None and keyword(call, "src") is None:
        return True
    at = _INDEX_WRITES[name] + torch
    source = argument(call, "src", at) or argument(call, "source", at) or argument(call, "values", at)
    if source is None:
        return False
    if name.rstrip("_") == "scatter" and (number(source) is not None or is_constant(source, True)):
        return True
    return is_full(facts, source) and is_full(facts, _operand(call, torch))


def _is_basic_index(facts: Facts, index: ast.expr) -> bool:
    """Whether an index is made of numbers, slices and words, for which a write converts the dtype by itself."""
    if isinstance(index, (ast.Slice, ast.Constant, ast.JoinedStr)):
        return True
    if isinstance(index, ast.Tuple):
        return all(_is_basic_index(facts, item) for item in index.elts)
    if isinstance(index, ast.UnaryOp):
        return _is_basic_index(facts, index.operand)
    if isinstance(index, ast.BinOp):
        return _is_basic_index(facts, index.left) and _is_basic_index(facts, index.right)
    if isinstance(index, ast.Call):
        return facts.calls.meaning(index) in ("builtins.len", "builtins.int", "builtins.str")
    if isinstance(index, ast.Name):
        bindings = facts.flow.reaching(index)
        return bool(bindings) and all(
            binding.how is Bound.LOOP
            or (binding.value is not None and not binding.path and binding.value is not index and _is_basic_index(facts, binding.value))
            for binding in bindings
        )
    return False


def _is_python_container(facts: Facts, node: ast.expr) -> bool:
    values = facts.values.of(node)
    return bool(values) and all(
        isinstance(value.node, (ast.Dict, ast.List, ast.DictComp, ast.ListComp))
        or (isinstance(value.node, ast.Call) and (value.facts.calls.meaning(value.node) or "").startswith(("builtins.", "collections.")))
        for value in values or ()
    )
