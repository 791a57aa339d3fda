"""What kind of object an expression surely is: a tensor, a dtype, a whole number."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, is_constant, receiver
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import last_name
from torchfix.facts.code.values import ELEMENT, Value
from torchfix.facts.training.models import is_lightning_class

if TYPE_CHECKING:
    from torchfix.facts import Facts

DTYPES = frozenset(
    f"torch.{name}"
    for name in """float float16 float32 float64 bfloat16 half double int int8 int16 int32 int64 long short uint8 bool
    complex64 complex128 cfloat cdouble""".split()
)

# Methods that of what torch programs pass around only tensors have, and those that numpy's arrays have too.
_ONLY_OF_TENSORS = frozenset("size dim unsqueeze permute new_zeros new_ones new_full numel detach expand masked_fill softmax".split())
_OF_ARRAYS_TOO = frozenset("shape ndim dtype view reshape squeeze transpose item repeat".split())
_PARAMETER_ATTRIBUTES = ("weight", "bias", "data", "grad")
_TENSOR_METHODS = frozenset(
    """abs add all any argmax argmin bool clamp clone contiguous cpu cuda cumsum detach double exp expand flatten float half int log
    log_softmax long masked_fill max mean min mm mul neg norm ones_like permute pow repeat reshape round sigmoid softmax sqrt
    squeeze std sub sum t tanh to transpose type type_as unsqueeze var view new_zeros new_ones new_full new_empty new_tensor""".split()
)
# torch functions whose result is no tensor.
_NO_TENSOR = frozenset("device dtype Size Generator Storage is_tensor numel load save compile jit manual_seed get_rng_state".split())
# Layers of torch.nn that return tuples.
_OF_TUPLES = ("torch.nn.RNN", "torch.nn.LSTM", "torch.nn.GRU", "torch.nn.LSTMCell", "torch.nn.MultiheadAttention")
_ORDINAL_CALLS = ("builtins.int", "builtins.len", "torch.distributed.get_rank", "torch.cuda.current_device", "torch.cuda.device_count")


class Kinds:
    """Questions about the kinds of objects in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._integers: dict[int, bool] = {}
        self._tensors: dict[ast.Name, bool] = {}

    # Tensors --------------------------------------------------------------------------------------------------

    def is_tensor(self, expression: ast.expr) -> bool:
        """Whether an expression is a tensor, judged by what made it and by what is done with it."""
        facts = self._facts
        if isinstance(expression, ast.Name):
            if expression not in self._tensors:
                self._tensors[expression] = False  # made of itself alone is no proof
                made = self._used_as_tensor(expression) or self._made_as_tensor(expression)
                self._tensors[expression] = not facts.is_self(expression) and made
            return self._tensors[expression]
        if isinstance(expression, ast.Call):
            return self._returns_tensor(expression)
        if isinstance(expression, ast.Subscript):
            return self.is_tensor(expression.value)
        return isinstance(expression, ast.Attribute) and expression.attr in _PARAMETER_ATTRIBUTES

    def _used_as_tensor(self, name: ast.Name) -> bool:
        for use in self._facts.names.uses(name):
            parent = self._facts.tree.parent(use)
            if isinstance(parent, ast.Attribute):
                called = self._facts.tree.parent(parent)
                if parent.attr == "is_cuda" or (parent.attr in _ONLY_OF_TENSORS and isinstance(called, ast.Call) and called.func is parent):
                    return True
        return False

    def _made_as_tensor(self, name: ast.Name) -> bool:
        values = self._facts.values.of(name)
        return bool(values) and all(
            not value.path and isinstance(value.node, ast.Call) and value.facts.kinds._returns_tensor(value.node) for value in values or ()
        )

    def _returns_tensor(self, call: ast.Call) -> bool:
        facts = self._facts
        meaning = facts.calls.meaning(call) or ""
        if meaning == "builtins.next":
            return bool(call.args) and isinstance(call.args[0], ast.Call) and last_name(call.args[0].func) == "parameters"
        if meaning.startswith("torch."):
            parts = meaning.split(".")
            return (len(parts) == 2 and parts[1] not in _NO_TENSOR) or meaning.startswith("torch.nn.functional.")
        source = receiver(call)
        if source is not None and last_name(call.func) in _TENSOR_METHODS:
            return self.is_tensor(source)
        layers = facts.models.of(call.func) or ()
        return bool(layers) and all((layer.library or "").startswith("torch.nn.") and layer.library not in _OF_TUPLES for layer in layers)

    def has_device(self, expression: ast.expr) -> bool:
        """Whether the ``.device`` of an expression is a device: of a tensor, or of a LightningModule's ``self``."""
        if isinstance(expression, ast.Name) and self._facts.is_self(expression):
            owner = self._facts.tree.method_class(expression)
            return owner is not None and is_lightning_class(Definition(self._facts, owner))
        return self.is_tensor(expression) or (isinstance(expression, ast.Name) and self._used_as_array(expression))

    def _used_as_array(self, name: ast.Name) -> bool:
        parents = (self._facts.tree.parent(use) for use in self._facts.names.uses(name))
        return any(isinstance(parent, ast.Attribute) and parent.attr in _OF_ARRAYS_TOO for parent in parents)

    # Dtypes ---------------------------------------------------------------------------------------------------

    def is_dtype(self, expression: ast.expr) -> bool:
        """Whether an expression is one of torch's dtypes."""
        values = self._facts.values.of(expression)
        return bool(values) and all(not value.path and value.facts.kinds._names_dtype(value.node) for value in values or ())

    def _names_dtype(self, node: ast.AST) -> bool:
        return isinstance(node, (ast.Name, ast.Attribute)) and (
            self._facts.names.qualified(node) in DTYPES or (isinstance(node, ast.Attribute) and node.attr == "dtype")
        )

    # Whole numbers --------------------------------------------------------------------------------------------

    def is_integer(self, expression: ast.expr) -> bool:
        """Whether an expression is a Python integer, through arithmetic, sizes and ``range``."""
        key = id(expression)
        if key not in self._integers:
            self._integers[key] = False  # what is made of itself alone (``n = n``) proves nothing
            if isinstance(expression, (ast.BinOp, ast.UnaryOp)):
                self._integers[key] = self._computes_integer(expression)
            else:
                values = self._facts.values.of(expression)
                self._integers[key] = bool(values) and all(value.facts.kinds._is_integer_value(value) for value in values or ())
        return self._integers[key]

    def is_ordinal(self, expression: ast.expr) -> bool:
        """Whether an expression numbers a device as ``.cuda(i)`` does: an integer, or None for the current device."""
        values = self._facts.values.of(expression)
        return bool(values) and all(value.facts.kinds._is_integer_value(value, or_none=True) for value in values or ())

    def _computes_integer(self, node: ast.expr) -> bool:
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, (ast.USub, ast.UAdd, ast.Invert)) and self.is_integer(node.operand)
        whole = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift)
        return isinstance(node, ast.BinOp) and isinstance(node.op, whole) and self.is_integer(node.left) and self.is_integer(node.right)

    def _is_integer_value(self, value: Value, or_none: bool = False) -> bool:
        node = value.node
        if isinstance(node, ast.Call) and self._facts.calls.meaning(node) == "builtins.range":
            return value.path == (ELEMENT,)
        if isinstance(node, ast.Call) and last_name(node.func) == "size" and len(node.args) + len(value.path) == 1:
            return True  # ``x.size(0)``, ``n, m = x.size()``
        if isinstance(node, ast.Attribute) and node.attr == "shape" and len(value.path) == 1:
            return True
        if value.path:
            return False
        if isinstance(node, ast.Constant):
            return type(node.value) is int or (or_none and node.value is None)
        if isinstance(node, (ast.BinOp, ast.UnaryOp)):
            return self._computes_integer(node)
        if isinstance(node, ast.Subscript):
            inner = node.value
            return isinstance(inner, ast.Attribute) and inner.attr == "shape" and not isinstance(node.slice, ast.Slice)
        if isinstance(node, ast.Attribute):
            return self._is_integer_option(node, or_none)
        if isinstance(node, ast.Call):
            return self._facts.calls.meaning(node) in _ORDINAL_CALLS or (last_name(node.func) in ("numel", "dim") and not node.args)
        return False

    def _is_integer_option(self, node: ast.Attribute, or_none: bool) -> bool:
        """Whether ``args.name`` reads a command-line option of type int, given or with a default."""
        option = self._facts.options.declaration(node)
        if option is None or not isinstance(option.node, ast.Call):
            return False
        kind, default = argument(option.node, "type"), argument(option.node, "default")
        required = is_constant(argument(option.node, "required"), True)
        whole = isinstance(kind, ast.Name) and kind.id == "int"
        if default is None or is_constant(default, None):
            return whole and (required or or_none)
        return whole and isinstance(default, ast.Constant) and type(default.value) is int
