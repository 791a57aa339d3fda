"""What kind of numbers an expression holds, in a tensor or not: fractions, whole numbers or truths."""

from __future__ import annotations

import ast
import enum
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from torchfix.facts.code.calls import argument, receiver
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import FUNCTIONS, last_name
from torchfix.facts.code.values import Step, Value, returns

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Number(enum.Enum):
    """A kind of number, of a Python object or of each element of a tensor."""

    FRACTION = "float"
    WHOLE = "int"
    TRUTH = "bool"


_Kinds: TypeAlias = "frozenset[Number] | None"  # every kind that may be; None where one is not known


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Methods of a tensor, and the functions of torch of the same name, by what they give.
_TRUTHS = _words("eq ne gt lt ge le any all isclose isnan isinf isfinite isin logical_and logical_or logical_not logical_xor bool")
_WHOLES = _words("argmax argmin argsort long int short count_nonzero bincount size numel dim nelement")
_FRACTIONS = _words(
    """mean std var norm exp log log2 log10 log1p expm1 softmax log_softmax sigmoid tanh sqrt rsqrt float double half bfloat16 div
    true_divide reciprocal logsumexp cosine_similarity dist rand randn erf cdist"""
)
_ALIKE = _words(
    """abs max min amax amin clamp clamp_min clamp_max clip squeeze unsqueeze view view_as reshape flatten permute transpose t cpu cuda
    detach clone contiguous expand expand_as repeat index_select gather masked_select masked_fill narrow select neg sort topk unbind item
    mul add sub stack cat median mode kthvalue numpy tolist requires_grad_ prod sum cumsum take diag diagonal trace flip roll"""
)
_COUNTING = _words("sum prod cumsum trace")  # of truths they make whole numbers
_PAIRS = _words("max min sort topk median mode kthvalue cummax cummin")  # with a dimension they give values and indices
_DTYPES = {
    **dict.fromkeys(["float", "float16", "float32", "float64", "double", "half", "bfloat16"], Number.FRACTION),
    **dict.fromkeys(["int", "int8", "int16", "int32", "int64", "long", "short", "uint8"], Number.WHOLE),
    "bool": Number.TRUTH,
}
_BUILTINS = {"float": Number.FRACTION, "int": Number.WHOLE, "len": Number.WHOLE, "bool": Number.TRUTH}
_NOT_FRACTIONS = ("one_hot", "pad", "relu", "threshold", "embedding")  # of torch.nn.functional


class Numbers:
    """Questions about the kinds of numbers in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[tuple[ast.AST, tuple[Step, ...]], _Kinds] = {}

    def of(self, expression: ast.expr) -> Number | None:
        """The kind of number that an expression holds; None where it is not known, or where several may be."""
        return _single(self._of(expression, ()))

    def bound(self, bindings: Iterable[Binding]) -> Number | None:
        """The kind of number that some bindings of a variable give; None where it is not known, or where several may be."""
        return _single(_either(self._of_binding(binding, ()) for binding in bindings))

    def is_plain(self, expression: ast.expr) -> bool:
        """Whether an expression surely is a Python number: neither a tensor, nor an array, nor one of an array's numbers."""
        if isinstance(expression, ast.BinOp):
            return self.is_plain(expression.left) and self.is_plain(expression.right)
        if isinstance(expression, ast.UnaryOp):
            return self.is_plain(expression.operand)
        if self._facts.kinds.is_integer(expression):
            return True
        values = self._facts.values.of(expression)
        return bool(values) and all(value.facts.numbers.is_plain_value(value) for value in values or ())

    def is_plain_value(self, value: Value) -> bool:
        """As :meth:`is_plain`, of one origin in this file."""
        node = value.node
        if value.path or not isinstance(node, ast.expr):
            return False
        if isinstance(node, ast.Constant):
            return type(node.value) in (int, float)
        if isinstance(node, (ast.BinOp, ast.UnaryOp)) or self._facts.kinds.is_integer(node):
            return self.is_plain(node)
        if isinstance(node, ast.Attribute):
            option = self._facts.options.declaration(node)
            kind = argument(option.node, "type") if option is not None and isinstance(option.node, ast.Call) else None
            return isinstance(kind, ast.Name) and kind.id in ("int", "float")
        return isinstance(node, ast.Call) and self._facts.calls.meaning(node) in ("builtins.float", "builtins.int", "builtins.len")

    # ----------------------------------------------------------------------------------------------------------

    def _of(self, expression: ast.expr, path: tuple[Step, ...]) -> _Kinds:
        key = (expression, path)
        if key not in self._asked:
            self._asked[key] = frozenset()  # a circle adds nothing new
            self._asked[key] = self._judge(expression, path)
        return self._asked[key]

    def _judge(self, node: ast.expr, path: tuple[Step, ...]) -> _Kinds:
        if isinstance(node, ast.Name):
            if self._facts.residences.is_sent_backward(node) and not path:
                return frozenset({Number.FRACTION})
            return _either(self._of_binding(binding, path) for binding in self._facts.flow.reaching(node) or (None,))
        values = self._facts.values.of(node, path)
        return None if values is None else _either(value.facts.numbers._of_value(value) for value in values)

    def _of_binding(self, binding: Binding | None, path: tuple[Step, ...]) -> _Kinds:
        if binding is None:
            return None
        if isinstance(binding.node, ast.AugAssign):
            return _joined(self._of(binding.node.target, ()), self._of(binding.node.value, ()), binding.node.op)
        if binding.how is Bound.ASSIGN and binding.value is not None:
            return self._of(binding.value, (*binding.path, *path))
        values = self._facts.values.bound([binding], path)
        return None if values is None else _either(value.facts.numbers._of_value(value) for value in values)

    def _of_value(self, value: Value) -> _Kinds:
        node, path = value.node, value.path
        match node:
            case ast.Name():
                return None  # nothing binds it
            case ast.Constant(value=number) if type(number) in (int, float, bool):
                return frozenset({_BUILTINS[type(number).__name__]})
            case ast.Compare():
                return frozenset({Number.TRUTH})
            case ast.BinOp():
                return _joined(self._of(node.left, ()), self._of(node.right, ()), node.op)
            case ast.UnaryOp():
                return frozenset({Number.TRUTH}) if isinstance(node.op, ast.Not) else self._of(node.operand, path)
            case ast.Subscript():
                return self._of(node.value, ())
            case ast.Attribute(attr="data" | "values" | "T" | "grad"):
                return self._of(node.value, path)
            case ast.Attribute(attr="indices"):
                return frozenset({Number.WHOLE})
            case ast.Call():
                return self._of_call(node, path)
        return frozenset({Number.WHOLE}) if isinstance(node, ast.expr) and not path and self._facts.kinds.is_integer(node) else None

    def _of_call(self, call: ast.Call, path: tuple[Step, ...]) -> _Kinds:
        meaning, name, source = self._facts.calls.meaning(call) or "", last_name(call.func) or "", receiver(call)
        home = meaning.rpartition(".")[0]
        if home == "builtins":
            return frozenset({_BUILTINS[name]}) if name in _BUILTINS else None
        if home == "torch.nn.functional" and name not in _NOT_FRACTIONS:
            return frozenset({Number.FRACTION})
        if home == "torch":
            return self._of_operation(name, call.args[0] if call.args else None, path, call)
        if self._facts.models.is_loss(call.func):
            return frozenset({Number.FRACTION})
        networks = self._facts.models.of(call.func)
        if networks:
            forwards = [method_of(network.definition, "forward") if network.definition else None for network in networks]
            return _either(
                item.facts.numbers._returned(item.node, path) if item is not None and isinstance(item.node, FUNCTIONS) else None
                for item in forwards
            )
        return self._of_operation(name, source, path, call) if source is not None and not meaning else None

    def _returned(self, function: ast.FunctionDef | ast.AsyncFunctionDef, path: tuple[Step, ...]) -> _Kinds:
        """What a network's ``forward`` returns."""
        return _either(self._of(value, path) for value in returns(function) or ()) or None

    def _of_operation(self, name: str, operand: ast.expr | None, path: tuple[Step, ...], call: ast.Call) -> _Kinds:
        """What an operation of torch gives, by its name and by what it is done to."""
        dtype = argument(call, "dtype") or (call.args[0] if name in ("to", "type") and call.args else None)
        meant = self._facts.names.qualified(dtype) if dtype is not None else None
        if meant is not None and meant.startswith("torch.") and meant[6:] in _DTYPES:
            return frozenset({_DTYPES[meant[6:]]})
        if name in _PAIRS and path[:1] == (1,):
            return frozenset({Number.WHOLE})
        for words, kind in ((_TRUTHS, Number.TRUTH), (_WHOLES, Number.WHOLE), (_FRACTIONS, Number.FRACTION)):
            if name in words:
                return frozenset({kind})
        if operand is None or (name == "to" and not self._is_copy(call)):
            return None
        if name == "arange" and dtype is None:
            return functools.reduce(lambda one, other: _joined(one, other, ast.Add()), (self._of(item, ()) for item in call.args))
        if name in ("stack", "cat"):
            return self._of(operand, (0,))
        if name not in _ALIKE and name != "to":
            return None
        found = self._of(operand, ())
        if name in ("mul", "add", "sub") and len(call.args) > 0:
            return _joined(found, self._of(call.args[-1], ()), ast.Mult())
        if name in _COUNTING and found is not None:
            return frozenset(Number.WHOLE if kind is Number.TRUTH else kind for kind in found)
        return found

    def _is_copy(self, call: ast.Call) -> bool:
        return self._facts.devices.transfer(call) is not None


def _single(kinds: _Kinds) -> Number | None:
    return next(iter(kinds)) if kinds is not None and len(kinds) == 1 else None


def _either(found: Iterable[_Kinds]) -> _Kinds:
    """The kinds of a value that was made in one of several ways."""
    kinds: frozenset[Number] = frozenset()
    for item in found:
        if item is None:
            return None
        kinds |= item
    return kinds


def _joined(one: _Kinds, other: _Kinds, operator: ast.operator) -> _Kinds:
    """The kinds of what arithmetic makes of two operands."""
    fraction = frozenset({Number.FRACTION})
    if isinstance(operator, ast.Div) or fraction in (one, other):
        return fraction  # whatever a fraction is joined with
    if one is None or other is None:
        return None
    if not one or not other or isinstance(operator, (ast.BitAnd, ast.BitOr, ast.BitXor)):
        return one | other
    return frozenset({Number.WHOLE}) if Number.WHOLE in one | other and Number.FRACTION not in one | other else None
