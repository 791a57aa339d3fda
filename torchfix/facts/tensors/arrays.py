"""Numpy arrays: which expressions surely are one, whether anything else holds its memory, and what it is made of.

Numpy gives a plain number where an array would have no dimension, so most of what may be one is not surely an array.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, has_stars, is_constant, receiver
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import COMPREHENSIONS, FUNCTIONS, LOOPS, last_name
from torchfix.facts.code.values import ELEMENT, Path, Value

if TYPE_CHECKING:
    from torchfix.facts import Facts


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Numpy functions that are given a shape and make an array of it (numpy reference, "Array creation routines").
_SHAPED = {"zeros": "float64", "ones": "float64", "empty": "float64", "full": None}
# Those that give a new array with dimensions, whatever they are given.
_MAKING = _words(
    """stack vstack hstack dstack column_stack concatenate tile arange linspace logspace geomspace eye identity tri outer pad sort diff
    kron flatnonzero bincount"""
)
# The same, where what they are given is an array or written out: of other objects they call the method of that name.
_MAKING_OF_ARRAYS = _words("repeat cumsum cumprod argsort")
_WHOLE = _words("argsort flatnonzero bincount")
# Functions that are done to each element: of an array with dimensions they make a new one.
_ELEMENTWISE = _words(
    """exp log log2 log10 log1p expm1 sqrt square abs absolute sign sin cos tan tanh arctan arctan2 floor ceil rint round clip add subtract
    multiply divide true_divide power mod maximum minimum logical_and logical_or logical_not logical_xor equal not_equal less greater
    less_equal greater_equal isnan isinf isfinite where nan_to_num zeros_like ones_like empty_like full_like copy"""
)
# The places at which functions that are done to each element, and some others, take an array to write into.
_TWO_OPERANDS = _words(
    """arctan2 add subtract multiply divide true_divide power mod maximum minimum logical_and logical_or logical_xor equal not_equal less
    greater less_equal greater_equal"""
)
_WITHOUT_OUT = _words("where nan_to_num zeros_like ones_like empty_like full_like copy")
_OUT = {
    **{name: 2 if name in _TWO_OPERANDS else 1 for name in _ELEMENTWISE - _WITHOUT_OUT},
    **dict.fromkeys(("clip", "cumsum", "cumprod"), 3),
    **dict.fromkeys(("round", "outer", "stack", "concatenate"), 2),
}
_TRUTHS = _words(
    "logical_and logical_or logical_not logical_xor equal not_equal less greater less_equal greater_equal isnan isinf isfinite"
)
# The draws of numpy.random by the place of their size; without one they give a number.
_DRAWS = {"normal": 2, "uniform": 2, "random": 0, "random_sample": 0, "randint": 2, "integers": 2, "standard_normal": 0, "choice": 1}
_DRAWS_BY_DIMENSIONS = _words("rand randn")
_GENERATORS = ("numpy.random.default_rng", "numpy.random.RandomState", "numpy.random.Generator")
_DRAWN = {"randint": None, "integers": "int64", "choice": None}
# Methods of an array that give a new one, and those that may share its memory.
_NEW_METHODS = _words("astype copy flatten clip cumsum cumprod repeat round")
_SHARING_METHODS = _words("reshape transpose ravel swapaxes squeeze")
_KEEPING_DIMENSION = _words("astype copy flatten clip cumsum cumprod repeat round transpose ravel swapaxes")
# Environments that run several at once: they give arrays with a first dimension of their number (gymnasium, "VectorEnv").
_VECTOR_ENVIRONMENTS = frozenset(
    f"{package}.{name}"
    for package in ("gym", "gymnasium")
    for name in ("vector.SyncVectorEnv", "vector.AsyncVectorEnv", "vector.make", "make_vec")
)
_ROUNDS = (*LOOPS, *FUNCTIONS, *COMPREHENSIONS, ast.Lambda)
_SHAPE = _words("shape size ndim dtype nbytes itemsize")


@dataclass(frozen=True)
class Array:
    """What is known of a numpy array.

    Args:
        has_dimension: whether it surely has one; without one some constructors take it for a size.
        is_new: whether its memory is its own, can be written, and is held by nothing else.
        dtype: the name of its dtype, None where that is not known.
        is_exact: whether it surely is an array, rather than perhaps a sequence of some.
        is_writable: whether its memory can be written; torch warns of tensors over memory that cannot.
    """

    has_dimension: bool
    is_new: bool
    dtype: str | None = None
    is_exact: bool = True
    is_writable: bool = True


class Arrays:
    """Questions about the arrays of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[ast.expr, Array | None] = {}

    def of(self, expression: ast.expr) -> Array | None:
        """What is known of the array that an expression surely is, None for what may be something else."""
        if expression not in self._asked:
            self._asked[expression] = None  # made of itself alone is no proof
            self._asked[expression] = self._judge(expression)
        return self._asked[expression]

    def _judge(self, expression: ast.expr) -> Array | None:
        """An array where it is made; what comes from a variable, an attribute or a function is held there too."""
        made = self._made(expression)
        if made is not None or not isinstance(expression, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.IfExp)):
            return made
        found = self._of_origins(self._facts.values.of(expression))
        is_last = isinstance(expression, ast.Name) and self._is_last_use(expression)
        return found if found is None or is_last else replace(found, is_new=False)

    def _of_origins(self, values: tuple[Value, ...] | None) -> Array | None:
        """What all origins of a value agree in."""
        found = [value.facts.arrays._of_value(value) for value in values or ()]
        known = [item for item in found if item is not None]
        if not known or len(known) != len(found):
            return None
        dtypes = {item.dtype for item in known}
        return Array(
            all(item.has_dimension for item in known),
            all(item.is_new for item in known),
            dtypes.pop() if len(dtypes) == 1 else None,
            all(item.is_exact for item in known),
            all(item.is_writable for item in known),
        )

    def _of_value(self, value: Value) -> Array | None:
        if not isinstance(value.node, ast.expr):
            return None
        environment = self._of_environment(value.node, value.path)
        if environment is not None or value.path:
            return environment
        return self._made(value.node)

    def items(self, sequence: ast.expr) -> list[Array] | None:
        """What is known of the arrays that a list holds, one for each way in which an item comes in; None where one may be none."""
        values = self._facts.values.of(sequence, (ELEMENT,))
        found = [value.facts.arrays._of_value(value) for value in values or ()]
        known = [item for item in found if item is not None]
        return known if known and len(known) == len(found) else None

    # What makes arrays ----------------------------------------------------------------------------------------

    def _made(self, node: ast.expr) -> Array | None:
        if isinstance(node, ast.BinOp):
            joins = not isinstance(node.op, ast.MatMult) and self._compute([node.left, node.right])
            return Array(True, True) if joins else None
        if isinstance(node, ast.Attribute) and node.attr == "T":
            return self.of(node.value)
        if not isinstance(node, ast.Call):
            return None
        home, _, name = (self._facts.calls.meaning(node) or "").rpartition(".")
        if home == "numpy":
            return self._of_function(node, name)
        if home == "numpy.random":
            return self._drawn(node, name)
        if home == "numpy.linalg":
            return Array(True, True) if name in ("inv", "pinv", "cholesky") else None
        source = receiver(node)
        if source is None or home:
            return None
        if self._is_generator(source):
            return self._drawn(node, last_name(node.func) or "")
        return self._of_method(node, source, last_name(node.func) or "")

    def _of_function(self, call: ast.Call, name: str) -> Array | None:
        if argument(call, "out", _OUT.get(name)) is not None or has_stars(call) or not (call.args or call.keywords):
            return None
        first = call.args[0] if call.args else None
        if name in _SHAPED:
            shape = argument(call, "shape", 0)
            dtype = _dtype(call, 2 if name == "full" else 1, _SHAPED[name])
            return Array(shape is not None and self._is_shape(shape), True, dtype)
        if name in _MAKING_OF_ARRAYS and not (isinstance(first, (ast.List, ast.Tuple)) or (first is not None and self.of(first))):
            return None
        if name in _MAKING | _MAKING_OF_ARRAYS and argument(call, "retstep") is None:
            return Array(True, True, _dtype(call, None, "int64" if name in _WHOLE else self._kept(name, first)))
        if name in ("array", "asarray"):
            return self._converted(call, name, first)
        if name in _ELEMENTWISE and not (name == "where" and len(call.args) < 3) and argument(call, "copy") is None:
            return Array(True, True, "bool" if name in _TRUTHS else None) if self._compute(call.args) else None
        if name in ("expand_dims", "squeeze", "transpose", "reshape", "ravel") and first is not None:
            inner = self.of(first)
            return replace(inner, has_dimension=name in ("expand_dims", "ravel")) if inner is not None else None
        return None

    def _compute(self, operands: list[ast.expr]) -> bool:
        """Whether what is computed of operands, one by one, is an array: one has a dimension, the rest are numbers or arrays."""
        arrays = [self.of(item) for item in operands]
        others = [item for item, array in zip(operands, arrays) if array is None]
        return any(array is not None and array.has_dimension for array in arrays) and all(map(self._is_number, others))

    def _is_number(self, operand: ast.expr) -> bool:
        if isinstance(operand, (ast.BinOp, ast.UnaryOp)):
            return all(self._is_number(item) for item in ast.iter_child_nodes(operand) if isinstance(item, ast.expr))
        called = operand.func if isinstance(operand, ast.Call) else operand
        return (self._facts.names.qualified(called) or "").startswith("numpy.") or self._facts.numbers.is_plain(operand)

    def _kept(self, name: str, first: ast.expr | None) -> str | None:
        """The dtype of a function that keeps that of its arrays, or makes one of its own."""
        if name in ("linspace", "logspace", "geomspace", "eye", "identity", "tri"):
            return "float64"
        joined = name in ("stack", "vstack", "hstack", "dstack", "column_stack", "concatenate")
        items = self.items(first) if joined and first is not None else None
        dtypes = {item.dtype for item in items or ()}
        return dtypes.pop() if len(dtypes) == 1 else None

    def _converted(self, call: ast.Call, name: str, first: ast.expr | None) -> Array | None:
        """``np.array(x)`` copies; ``np.asarray(x)`` does of what is no array, and neither gives a number."""
        written = isinstance(first, (ast.List, ast.Tuple, ast.ListComp))
        inner = self.of(first) if first is not None and not written else None
        copies = name == "array" and argument(call, "copy", 2) is None
        sized = written or (inner is not None and inner.has_dimension)
        dtype = _dtype(call, 1, inner.dtype if inner is not None else None)
        return Array(sized, written or copies, dtype, is_writable=written or copies or (inner is not None and inner.is_writable))

    def _drawn(self, call: ast.Call, name: str) -> Array | None:
        if has_stars(call):
            return Array(True, True, "float64") if name in _DRAWS_BY_DIMENSIONS else None
        if name in _DRAWS_BY_DIMENSIONS:
            return Array(True, True, "float64") if call.args else None
        size = argument(call, "size", _DRAWS[name]) if name in _DRAWS else None
        if size is None or is_constant(size, None) or not (self._is_shape(size) or self._is_sizes(size)):
            return None
        return Array(self._is_shape(size), True, _dtype(call, None, _DRAWN.get(name, "float64")))

    def _is_generator(self, source: ast.expr) -> bool:
        values = self._facts.values.of(source) or ()
        return bool(values) and all(
            isinstance(value.node, ast.Call) and not value.path and value.facts.calls.meaning(value.node) in _GENERATORS for value in values
        )

    def _of_method(self, call: ast.Call, source: ast.expr, name: str) -> Array | None:
        if name == "numpy" and not call.args:
            return Array(False, False) if self._facts.kinds.is_tensor(source) else None
        inner = self.of(source) if name in _NEW_METHODS | _SHARING_METHODS else None
        out = argument(call, "out", _OUT[name] - 1 if name in _OUT else None)  # of a method the array itself is no argument
        if inner is None or not inner.is_exact or argument(call, "copy", 4) is not None or out is not None:
            return None
        sized = name in ("flatten", "ravel", "repeat") or (inner.has_dimension and name in _KEEPING_DIMENSION)
        if name == "reshape":
            sized = bool(call.args) and not (isinstance(call.args[0], ast.Tuple) and not call.args[0].elts)
        if not sized and name in ("clip", "round", "cumsum", "cumprod"):
            return None  # of an array without dimensions these give a number
        dtype = _dtype(call, 0, None) if name == "astype" else inner.dtype
        return Array(sized, name in _NEW_METHODS or inner.is_new, dtype, is_writable=name in _NEW_METHODS or inner.is_writable)

    def _of_environment(self, node: ast.expr, path: Path) -> Array | None:
        """What several environments at once give for a step: observations, rewards, ends."""
        source = receiver(node) if isinstance(node, ast.Call) else None
        name = last_name(node.func) if isinstance(node, ast.Call) else None
        if source is None or name not in ("step", "reset"):
            return None
        values = self._facts.values.of(source) or ()
        if not values or not all(
            isinstance(value.node, ast.Call) and value.facts.calls.meaning(value.node) in _VECTOR_ENVIRONMENTS for value in values
        ):
            return None
        if path == (0,) or (name == "reset" and not path):
            return Array(True, False, is_exact=False)
        return Array(True, False) if name == "step" and path in ((1,), (2,), (3,)) else None

    # Shapes and lives -----------------------------------------------------------------------------------------

    def _is_shape(self, shape: ast.expr) -> bool:
        """Whether a shape has a dimension at least."""
        if isinstance(shape, (ast.Tuple, ast.List)):
            return any(not isinstance(item, ast.Starred) for item in shape.elts)
        return self._facts.kinds.is_integer(shape)

    def _is_sizes(self, size: ast.expr) -> bool:
        """Whether an expression is the shape of something, which may have no dimension."""
        return isinstance(size, ast.Attribute) and size.attr == "shape"

    def _is_last_use(self, name: ast.Name) -> bool:
        """Whether a local variable holds an array that was made for it, that nothing reads behind this use, and that nothing else got."""
        facts = self._facts
        around = facts.tree.nearest(name, _ROUNDS)
        bindings = facts.flow.reaching(name)
        if self._is_read_elsewhere(name):
            return False
        for binding in bindings:
            made = self._made(binding.value) if binding.value is not None and _names_alone(binding) else None
            if made is None or not made.is_new or facts.tree.nearest(binding.node, _ROUNDS) is not around:
                return False
        here = (name.lineno, name.col_offset)
        uses = [use for use in facts.names.uses(name) if isinstance(use.ctx, ast.Load) and use is not name]
        same = [use for use in uses if any(binding in bindings for binding in facts.flow.reaching(use))]
        scope = facts.names.scope(name)
        before = all((use.lineno, use.col_offset) < here and facts.names.scope(use) is scope for use in same)
        return before and all(self._only_fills(use) and not self._is_of_round_before(use) for use in same)

    def _is_read_elsewhere(self, name: ast.Name) -> bool:
        """Whether a variable of a class or module may be read by other code than that of its scope."""
        scope = self._facts.names.scope(name).node
        files = self._facts.program.holding(name.id) if isinstance(scope, ast.Module) else ()
        return isinstance(scope, ast.ClassDef) or any(facts is not self._facts for facts in files)

    def _is_of_round_before(self, use: ast.Name) -> bool:
        """Whether a use may mean what the variable was given in the round of the loop before, further down in the text."""
        return any(self._facts.tree.statement(binding.node).lineno > use.lineno for binding in self._facts.flow.reaching(use))

    def _only_fills(self, use: ast.Name) -> bool:
        """Whether a use of a variable asks for the shape of its array, computes with it, or writes entries of it."""
        parent = self._facts.tree.parent(use)
        if isinstance(parent, ast.Attribute):
            return parent.attr in _SHAPE
        return isinstance(parent, (ast.BinOp, ast.Compare)) or (isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load))


def _names_alone(binding: Binding) -> bool:
    """Whether a binding is the assignment of a value to one variable, which is its only name."""
    node = binding.node
    alone = isinstance(node, ast.AnnAssign) or (isinstance(node, ast.Assign) and len(node.targets) == 1)
    return alone and binding.how is Bound.ASSIGN and not binding.path


def _dtype(call: ast.Call, place: int | None, otherwise: str | None) -> str | None:
    """The dtype that a call asks for by its name, or what it makes unasked."""
    given = argument(call, "dtype", place)
    if given is None or is_constant(given, None):
        return otherwise
    word = given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else last_name(given)
    return _DTYPES.get(str(word))


_DTYPES = {
    **{name: name for name in "float16 float32 float64 int8 int16 int32 int64 uint8 complex64 complex128".split()},
    "float": "float64",
    "double": "float64",
    "single": "float32",
    "half": "float16",
    "bool": "bool",
    "bool_": "bool",
    "longlong": "int64",
    "f4": "float32",
    "f8": "float64",
}
