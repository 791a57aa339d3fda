"""Tensors that are made in host memory and then moved: the factory, what is done in between, and the move."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, is_constant, receiver
from torchfix.facts.code.tree import last_name

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Agreement(enum.IntEnum):
    """How far a factory's values on a device agree with those that the host makes."""

    EXACT = 0
    ROUNDED = 1
    RANDOM = 2


# Factories that take ``device=`` (torch documentation, "Creation Ops" and "Random sampling").
_COPYING = "zeros ones empty full eye tensor arange tril_indices triu_indices zeros_like ones_like empty_like full_like".split()
_COMPUTING = "linspace logspace hann_window hamming_window blackman_window bartlett_window kaiser_window".split()  # a kernel per device
_RANDOM = "rand randn randint randperm normal rand_like randn_like randint_like".split()
FACTORIES = {
    **dict.fromkeys(_COPYING, Agreement.EXACT),
    **dict.fromkeys(_COMPUTING, Agreement.ROUNDED),
    **dict.fromkeys(_RANDOM, Agreement.RANDOM),
}

# The constructors from before ``dtype=`` existed, with the dtype that each one makes.
LEGACY = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
    "ByteTensor": "uint8",
    "CharTensor": "int8",
    "ShortTensor": "int16",
    "IntTensor": "int32",
    "LongTensor": "long",
    "BoolTensor": "bool",
    "Tensor": "float32",
}

# Methods that give the same values on every device: other shapes, other dtypes, one value everywhere.
_SHAPING = frozenset(
    """view reshape unsqueeze squeeze expand expand_as view_as repeat permute transpose t flatten contiguous clone flip tile
    movedim swapaxes detach""".split()
)
_CASTING = frozenset("float double half bfloat16 long int short char byte bool".split())
_FILLING = frozenset(["zero_", "fill_"])
_DRAWING = frozenset("random_ normal_ uniform_ exponential_ bernoulli_ log_normal_ cauchy_ geometric_".split())
VARIABLE = "torch.autograd.Variable"


class Given(enum.Enum):
    """What a legacy constructor is given: the sizes of memory to leave as it is, or the values to copy."""

    SIZES = "sizes"
    DATA = "data"


@dataclass(frozen=True, eq=False)
class Creation:
    """A tensor that a factory makes and that is then moved.

    Args:
        factory: the call that makes it.
        name: the factory's own name (``zeros``, ``FloatTensor``).
        steps: the calls and subscripts around the factory, from the inside outwards, up to the move.
        move: the call that moves it; None for ``torch.cuda.FloatTensor(...)``, which is on the device at once.
        first: where the move is a statement of its own (``x = x.cuda()``), the assignment before it that makes ``x``.
        is_chosen: whether the constructor is a variable that stands for CUDA's or the host's, as the machine has it.
    """

    factory: ast.Call
    name: str
    steps: tuple[ast.expr, ...]
    move: ast.Call | None
    first: ast.Assign | None = None
    is_chosen: bool = False

    @property
    def is_legacy(self) -> bool:
        """Whether the factory is a constructor without ``dtype=`` and ``device=``."""
        return self.name in LEGACY

    @property
    def casts(self) -> bool:
        """Whether a step gives the tensor another dtype."""
        return self.step(*_CASTING, "to", "type") is not None

    def step(self, *names: str) -> ast.expr | None:
        """The first step that calls a method or function of one of these names."""
        return next((step for step in self.steps if isinstance(step, ast.Call) and last_name(step.func) in names), None)


class Creations:
    """The tensors of one file that are made and then moved."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def moved(self) -> Iterator[Creation]:
        """Every creation with a move behind it: ``.cuda()``, ``.to(...)`` or ``.type_as(...)``, in text order."""
        for move in self._facts.calls.methods("cuda", "to", "type_as"):
            source = receiver(move)
            assert source is not None
            made = self._made(source)
            first = None
            if made is None and isinstance(source, ast.Name):
                first = self._assignment_before(move, source)
                made = self._made(first.value) if first is not None else None
            if made is not None:
                factory, name, steps = made
                yield Creation(factory, name, steps, move, first)

    def legacy_on_device(self) -> Iterator[Creation]:
        """Every ``torch.cuda.FloatTensor(...)`` that copies data or fills its memory in a second step.

        Through a variable too that stands for ``torch.cuda.FloatTensor if cuda else torch.FloatTensor``.
        """
        direct = self._facts.calls.to(*(f"torch.cuda.{name}" for name in LEGACY if name != "Tensor"))
        for call, name, is_chosen in (*((call, last_name(call.func) or "", False) for call in direct), *self._chosen()):
            above = self._facts.tree.parent(call)
            filling = self._facts.tree.parent(above) if isinstance(above, ast.Attribute) and above.attr in _FILLING else None
            steps = (filling,) if isinstance(filling, ast.Call) else ()
            if self.given(call) is Given.DATA or (self.given(call) is Given.SIZES and steps):
                yield Creation(call, name, steps, None, is_chosen=is_chosen)

    def _chosen(self) -> Iterator[tuple[ast.Call, str, bool]]:
        """The calls of variables that stand for a constructor of CUDA or its twin of the host, with its name."""
        facts, tree = self._facts, self._facts.tree
        for name in LEGACY:
            for use in tree.attributes.get(name, ()):
                choice = tree.parent(use)
                statement = tree.parent(choice) if isinstance(choice, ast.IfExp) and use is choice.body else None
                if not isinstance(choice, ast.IfExp) or not isinstance(statement, ast.Assign):
                    continue
                meant = {facts.names.qualified(choice.body), facts.names.qualified(choice.orelse)}
                target = statement.targets[0]
                if meant == {f"torch.cuda.{name}", f"torch.{name}"} and isinstance(target, ast.Name):
                    calls = (call for call in tree.calls.get(target.id, ()) if isinstance(call.func, ast.Name))
                    alike = [call for call in calls if isinstance(call.func, ast.Name) and facts.names.same(call.func, target)]
                    yield from ((call, name, True) for call in alike if len(facts.names.bindings(target)) == 1)

    def _made(self, expression: ast.expr) -> tuple[ast.Call, str, tuple[ast.expr, ...]] | None:
        """The factory call at the bottom of an expression, its name and the steps around it."""
        steps: list[ast.expr] = []
        node = expression
        while True:
            name = self.factory(node)
            if name is not None:
                assert isinstance(node, ast.Call)
                return node, name, tuple(reversed(steps))
            inner = self._inside(node)
            if inner is None:
                return None
            steps.append(node)
            node = inner

    def factory(self, node: ast.expr) -> str | None:
        """The name of the torch factory that a call calls, None for anything else."""
        if not isinstance(node, ast.Call):
            return None
        home, _, name = (self._facts.calls.meaning(node) or "").rpartition(".")
        if home != "torch" or (name not in FACTORIES and name not in LEGACY):
            return None
        if name == "normal" and argument(node, "size", 2) is None:
            return None  # normal(mean, std) of tensors follows their device
        return name

    def _inside(self, node: ast.expr) -> ast.expr | None:
        """What a step is done to, None for what is no step."""
        if isinstance(node, ast.Subscript):
            return node.value if _only_adds_axes(node.slice) else None
        if not isinstance(node, ast.Call):
            return None
        if self._facts.calls.meaning(node) == VARIABLE:
            return node.args[0] if node.args else None
        source, name = receiver(node), last_name(node.func)
        if source is None or not (name in _SHAPING | _CASTING | _FILLING | _DRAWING | {"requires_grad_"} or self._casts(node, name)):
            return None
        return source

    def _casts(self, call: ast.Call, name: str | None) -> bool:
        """Whether a call is ``.to(dtype)`` or ``.type(dtype)``."""
        given = argument(call, "dtype", 0)
        others = [item for item in call.keywords if item.arg != "dtype"]
        return name in ("to", "type") and given is not None and not others and len(call.args) <= 1 and self._facts.kinds.is_dtype(given)

    def _assignment_before(self, move: ast.Call, name: ast.Name) -> ast.Assign | None:
        """The assignment directly before ``x = x.cuda()`` that gives ``x`` its value."""
        tree = self._facts.tree
        statement = tree.parent(move)
        if not isinstance(statement, ast.Assign) or not _assigns_only(statement, name.id):
            return None
        _, block, index = tree.place(statement)
        before = block[index - 1] if index else None
        return before if isinstance(before, ast.Assign) and _assigns_only(before, name.id) else None

    def agreement(self, creation: Creation) -> Agreement:
        """How far the values agree when the factory and the steps run on the device instead of the host."""
        if creation.step(*_DRAWING) is not None:
            return Agreement.RANDOM
        if creation.name == "arange" and not self._counts_exactly(creation.factory):
            return Agreement.ROUNDED
        return FACTORIES.get(creation.name, Agreement.EXACT)

    def _counts_exactly(self, call: ast.Call) -> bool:
        """Whether ``arange`` counts whole numbers: every float of its sum is then exact on any device."""
        bounds = [*call.args, *(item.value for item in call.keywords if item.arg in ("start", "end", "step"))]
        return len(bounds) == 1 or all(self._facts.kinds.is_integer(bound) for bound in bounds)

    def requires_grad(self, creation: Creation) -> bool:
        """Whether the tensor requires a gradient before it is moved, so that the moved one is no leaf."""
        wrappers = [step for step in creation.steps if isinstance(step, ast.Call) and self._facts.calls.meaning(step) == VARIABLE]
        given = [argument(call, "requires_grad") for call in (creation.factory, *wrappers)]
        return creation.step("requires_grad_") is not None or any(item is not None and not is_constant(item, False) for item in given)

    def may_be_float64(self, creation: Creation) -> bool:
        """Whether the factory may make float64 values, which some devices do not know."""
        dtype = argument(creation.factory, "dtype")
        if dtype is None:
            return creation.name in ("tensor", "DoubleTensor")
        return self._facts.names.qualified(dtype) in ("torch.float64", "torch.double") or not self._facts.kinds.is_dtype(dtype)

    def given(self, call: ast.Call) -> Given | None:
        """Whether a legacy constructor is given sizes or data; None where the one argument may be either."""
        if call.keywords or not call.args:
            return None
        if len(call.args) > 1 or isinstance(call.args[0], ast.Starred) or self._facts.kinds.is_integer(call.args[0]):
            return Given.SIZES
        directly = self._given_by(call.args[0])
        if directly is not None:
            return directly
        values = self._facts.values.of(call.args[0])
        judged = {value.facts.creations._given_by(value.node) if not value.path else None for value in values or ()}
        return judged.pop() if len(judged) == 1 else None

    def _given_by(self, node: ast.AST) -> Given | None:
        if isinstance(node, (ast.List, ast.Tuple, ast.ListComp)):
            return Given.DATA
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add)):
            return Given.DATA if any(isinstance(side, (ast.List, ast.ListComp)) for side in (node.left, node.right)) else None
        if isinstance(node, ast.Attribute) and node.attr == "shape":
            return Given.SIZES if self._facts.kinds.is_tensor(node.value) else None
        if isinstance(node, ast.Call):
            meaning = self._facts.calls.meaning(node) or ""
            if meaning in _SEQUENCES or self._is_array(node, meaning):
                return Given.DATA
            if last_name(node.func) == "size" and not node.args and not node.keywords:
                return Given.SIZES
        return None

    def _is_array(self, call: ast.Call, meaning: str) -> bool:
        """Whether a call makes a numpy array that has a dimension: ``np.array(3)`` has none and counts as a size."""
        if meaning in ("numpy.array", "numpy.asarray"):
            return bool(call.args) and isinstance(call.args[0], (ast.List, ast.Tuple, ast.ListComp))
        return meaning in _ARRAYS


_SEQUENCES = ("builtins.list", "builtins.sorted", "builtins.range")
_ARRAYS = frozenset(f"numpy.{name}" for name in "stack concatenate arange linspace vstack hstack eye".split())


def _assigns_only(statement: ast.Assign, name: str) -> bool:
    return len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name) and statement.targets[0].id == name


def _only_adds_axes(index: ast.expr) -> bool:
    """Whether an index is made of ``None``, ``:`` and ``...``, so that it picks nothing out."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(
        is_constant(part, None) or is_constant(part, ...) or (isinstance(part, ast.Slice) and not (part.lower or part.upper or part.step))
        for part in parts
    )
