"""Whether it matters which of two tensor objects a program holds, when both have the same memory and the same values.

It does where the object itself is changed: where it is told to require a gradient, gets another shape in place, keeps a
gradient, or becomes part of a graph because something that has one is written into it.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import receiver
from torchfix.facts.code.containers import uses
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import COMPREHENSIONS, FUNCTIONS, LOOPS, last_name
from torchfix.facts.code.writes import VIEWS
from torchfix.facts.tensors.creations import FACTORIES

if TYPE_CHECKING:
    from torchfix.facts import Facts


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What an object has for itself, apart from the memory behind it.
_OWN = _words("requires_grad requires_grad_ grad retain_grad register_hook is_leaf grad_fn set_ names")
# Methods that may give the object itself.
_ITSELF = VIEWS | _words("to cuda cpu type type_as float double half bfloat16 long int short byte bool contiguous expand_as view_as")
# Methods whose result is a new tensor.
_MAKING = _words(
    """clone new_zeros new_ones new_full new_empty new_tensor add sub mul div pow exp log sqrt abs neg sum mean std var max min clamp
    sigmoid tanh softmax log_softmax matmul mm bmm repeat gather masked_fill index_select"""
)
# Methods of a container that give away nothing that it holds.
_OF_CONTAINERS = _words("append extend insert clear keys")
_SHAPE = _words("shape size dim ndim dtype device numel")
_READING = ("builtins.print", "builtins.len", "builtins.isinstance", "builtins.float", "builtins.int", "builtins.range", "builtins.type")
_MAKING_FUNCTIONS = frozenset([*FACTORIES, "from_numpy", "cat", "stack", "where", "sum", "mean", "mm", "matmul", "add", "mul"])


def is_sole(facts: Facts, expression: ast.expr) -> bool:
    """Whether nothing else in the program reads the tensor object that an expression gives, apart from its shape."""
    if isinstance(expression, ast.BinOp):
        return True
    if isinstance(expression, ast.Call):
        return _is_sole_result(facts, expression)
    if isinstance(expression, ast.Attribute):
        return expression.attr == "data" and _is_tensor(facts, expression.value)  # another object at each access
    return isinstance(expression, (ast.Name, ast.Subscript)) and _is_sole_use(facts, expression)


def _is_tensor(facts: Facts, expression: ast.expr) -> bool:
    """Whether an expression is a tensor, what a network returns included."""
    return facts.kinds.is_tensor(expression) or (isinstance(expression, ast.Call) and bool(facts.models.of(expression.func)))


def _is_sole_result(facts: Facts, call: ast.Call) -> bool:
    home, _, name = (facts.calls.meaning(call) or "").rpartition(".")
    if facts.constructors.of(call) is not None or (home == "torch" and name in _MAKING_FUNCTIONS):
        return True
    source, method = receiver(call), last_name(call.func) or ""
    if source is None or home:
        return False
    return method in _MAKING or ((method in _ITSELF or is_in_place(method)) and is_sole(facts, source))


def _is_sole_use(facts: Facts, expression: ast.Name | ast.Subscript) -> bool:
    """Whether a use of a variable, or of one entry of it, is the only one of an object that was made for it alone."""
    root = expression.value if isinstance(expression, ast.Subscript) else expression
    key = expression.slice if isinstance(expression, ast.Subscript) else None
    if not isinstance(root, ast.Name) or (key is not None and not isinstance(key, ast.Constant)):
        return False
    bindings = facts.flow.reaching(root)
    made = (key is None and _is_made_here(facts, root, bindings)) or _is_from_loader(facts, expression)
    return made and all(use is root or _reads_less(facts, use, key) for use in facts.names.uses(root) if isinstance(use.ctx, ast.Load))


def _is_made_here(facts: Facts, name: ast.Name, bindings: list[Binding]) -> bool:
    """Whether a local variable was given a new object in the same round of the loop around its use."""
    around = facts.tree.nearest(name, (*LOOPS, *FUNCTIONS))
    return bool(bindings) and all(
        binding.how is Bound.ASSIGN
        and binding.value is not None
        and not binding.path
        and facts.tree.nearest(binding.node, (*LOOPS, *FUNCTIONS)) is around
        and not isinstance(binding.value, ast.Name)
        and is_sole(facts, binding.value)
        for binding in bindings
    )


def _is_from_loader(facts: Facts, expression: ast.expr) -> bool:
    """Whether an expression is a part of a batch as a loader has put it together for this round of its loop."""
    part = facts.batches.on_host(expression)
    return part is not None and all(
        loader.argument("collate_fn") is None and loader.argument("batch_size") is not None and not loader.hides_arguments
        for loader in part.loaders
    )


def _reads_less(facts: Facts, use: ast.Name, key: ast.Constant | None) -> bool:
    """Whether another use of a variable asks for the shape, writes an entry, or reads another one."""
    parent = facts.tree.parent(use)
    if isinstance(parent, ast.Subscript) and parent.value is use:
        if key is not None:
            return isinstance(parent.slice, ast.Constant) and parent.slice.value != key.value
        while isinstance(above := facts.tree.parent(parent), ast.Subscript) and above.value is parent:
            parent = above
        return not isinstance(parent.ctx, ast.Load)
    return isinstance(parent, ast.Attribute) and parent.attr in _SHAPE


def is_consumed(facts: Facts, expression: ast.expr) -> bool:
    """Whether a tensor is only read, at once: by arithmetic, or to be copied into a part of another tensor."""
    node, parent = expression, facts.tree.parent(expression)
    while isinstance(parent, ast.Attribute) and parent.attr in _ITSELF:
        call = facts.tree.parent(parent)
        if not isinstance(call, ast.Call) or call.func is not parent:
            return False
        node, parent = call, facts.tree.parent(call)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Subscript):
        return facts.kinds.is_tensor(parent.targets[0].value)
    if isinstance(parent, ast.BinOp) and not isinstance(parent.op, (ast.Add, ast.Sub)):
        # a product may keep both factors until it is sent backward
        return facts.numbers.is_plain(parent.right if parent.left is node else parent.left)
    return isinstance(parent, (ast.BinOp, ast.Compare))


def is_in_place(method: str) -> bool:
    """Whether a method writes into its object; torch marks these with one underscore at the end."""
    return method.endswith("_") and not method.startswith("_")


def is_unchanged(facts: Facts, expression: ast.expr) -> bool:
    """Whether the object that an expression gives stays as it is, as far as it goes; False where it goes out of sight."""
    return _is_unchanged(facts, expression, set())


def _is_unchanged(facts: Facts, node: ast.expr, seen: set[int], holds: bool = False) -> bool:
    """As :func:`is_unchanged`, of an object, or of one that a container ``holds`` which an expression gives."""
    if id(node) in seen:
        return True
    seen.add(id(node))
    parent = facts.tree.parent(node)
    if holds and isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.ctx, ast.Load):
        return _is_unchanged(facts, parent, seen, holds=isinstance(parent.slice, ast.Slice))
    if holds and isinstance(parent, ast.Attribute):
        return parent.attr in _OF_CONTAINERS
    if isinstance(parent, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Expr, ast.FormattedValue, ast.If, ast.While, ast.Assert)):
        return True
    if isinstance(parent, ast.Subscript):
        # a write into an entry may bring a graph, and a view of it is another object
        return isinstance(parent.ctx, ast.Load)
    if isinstance(parent, ast.Attribute):
        return _is_attribute_harmless(facts, parent, seen)
    if isinstance(parent, ast.keyword):
        call = facts.tree.parent(parent)
        return parent.arg != "out" and isinstance(call, ast.Call) and _only_reads(facts, call)
    if isinstance(parent, ast.Call):
        return _only_reads(facts, parent)
    if isinstance(parent, (ast.Tuple, ast.List, ast.IfExp, *COMPREHENSIONS)):
        target = _matched(facts, parent, node)
        if target is not None:
            return _is_target_unchanged(facts, target, seen, holds)
        return _is_unchanged(facts, parent, seen, holds or not isinstance(parent, ast.IfExp))
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        return _is_target_unchanged(facts, parent.targets[0], seen, holds)
    return isinstance(parent, (ast.For, ast.comprehension)) and parent.iter is node and _is_target_unchanged(facts, parent.target, seen)


def _matched(facts: Facts, items: ast.expr, node: ast.expr) -> ast.expr | None:
    """The target that gets one item of ``a, b = x, y``."""
    statement = facts.tree.parent(items)
    if not isinstance(items, (ast.Tuple, ast.List)) or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    targets = statement.targets[0]
    if not isinstance(targets, (ast.Tuple, ast.List)) or any(isinstance(item, ast.Starred) for item in (*targets.elts, *items.elts)):
        return None
    return targets.elts[items.elts.index(node)] if len(targets.elts) == len(items.elts) else None


def _is_target_unchanged(facts: Facts, target: ast.expr, seen: set[int], holds: bool = False) -> bool:
    """Whether what is stored in a variable or attribute, or what is held by it, stays as it is at all of its uses."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(_is_target_unchanged(facts, item, seen) for item in target.elts)
    if not isinstance(target, (ast.Name, ast.Attribute)):
        return False
    for use in uses(facts, target):
        if isinstance(facts.tree.parent(use), ast.AugAssign) and not isinstance(use.ctx, ast.Load):  # type: ignore[attr-defined]
            return False
        if isinstance(use.ctx, ast.Load) and not _is_unchanged(facts, use, seen, holds):  # type: ignore[attr-defined]
            return False
    return True


def _is_attribute_harmless(facts: Facts, node: ast.Attribute, seen: set[int]) -> bool:
    call = facts.tree.parent(node)
    if node.attr in _OWN or not isinstance(node.ctx, ast.Load):
        return False
    if not isinstance(call, ast.Call) or call.func is not node:
        return True
    if is_in_place(node.attr):
        return False
    return node.attr not in _ITSELF or _is_unchanged(facts, call, seen)


def _only_reads(facts: Facts, call: ast.Call) -> bool:
    """Whether a call leaves the tensors that it is given as they are: torch's own, a network, a loss, or what only prints."""
    meaning = facts.calls.meaning(call) or ""
    if meaning.startswith("torch.") or meaning in _READING:
        return not is_in_place(last_name(call.func) or "")
    source = receiver(call)
    if facts.models.of(call.func) or facts.models.is_loss(call.func):
        return True
    return source is not None and not is_in_place(last_name(call.func) or "") and facts.kinds.is_tensor(source)
