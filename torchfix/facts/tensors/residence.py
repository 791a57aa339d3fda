"""Where the value of an expression lives: on the device, or in host memory.

What is asked of the host costs nothing; what is asked of the device makes the program wait for it.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import argument, receiver
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import FUNCTIONS, Function, last_name
from torchfix.facts.code.values import ELEMENT, Step, is_default, passed, returns

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Residence(enum.Enum):
    """Where a value lives.

    ``DEVICE``: in a tensor that the program computed on its device. ``LIKELY``: made from such a tensor by code that is
    out of sight. ``HOST``: in host memory, or no tensor at all.
    """

    DEVICE = "device"
    LIKELY = "likely"
    HOST = "host"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Methods of a tensor whose result is on the host: those that copy the values, and those that only tell of the tensor.
TO_HOST = _words("cpu numpy item tolist")
_TELLING = _words("""size dim numel nelement data_ptr get_device stride element_size ndimension is_floating_point is_contiguous is_complex
    type_as_string storage_offset""")
_DESCRIBING = _words("shape dtype device ndim requires_grad is_cuda is_leaf layout itemsize nbytes grad_fn")
_SAME_TENSOR = _words("data grad T H mT mH real imag")
_HOST_MODULES = ("numpy.", "math.", "time.", "random.", "os.", "sys.", "json.", "datetime.", "sklearn.", "scipy.", "pandas.", "cv2.")
_HOST_BUILTINS = _words("float int bool complex len str repr format isinstance issubclass hasattr type range id open input ord chr any all")
_TORCH_HOST = _words(
    """is_tensor is_floating_point numel device Size dtype load manual_seed get_rng_state finfo iinfo typename get_num_threads
    initial_seed seed Generator from_numpy"""
)
_DEEPEST = 6  # parts of parts that are followed
_FARTHEST = 40  # expressions on the way from a value to what made it
_SENDING = ("backward", "scale", "scale_loss")


class Residences:
    """Questions about where the values of one file live."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[tuple[ast.AST, tuple[Step, ...]], Residence | None] = {}
        self._depth = 0

    def of(self, expression: ast.expr, path: tuple[Step, ...] = ()) -> Residence | None:
        """Where the value of an expression, or a part of it, lives; None where that is not known.

        Of several ways in which the value may have been made, one on the device decides.
        """
        key = (expression, path)
        if len(path) > _DEEPEST or self._depth > _FARTHEST:
            return None  # a function that hands the parts of what it is given to itself, or a very long way
        if key not in self._asked:
            self._asked[key] = None  # ``x = x.f()``: the circle adds nothing new
            self._depth += 1
            self._asked[key] = None if self._facts.models.is_module(expression) else self._judge(expression, path)
            self._depth -= 1
        return self._asked[key]

    def is_on_device(self, expression: ast.expr) -> bool:
        """Whether an expression surely may hold values that the device computed."""
        return self.of(expression) is Residence.DEVICE

    def _judge(self, node: ast.expr, path: tuple[Step, ...]) -> Residence | None:
        match node:
            case ast.Name():
                return self._of_name(node, path)
            case ast.Attribute():
                return self._of_attribute(node, path)
            case ast.Subscript():
                return self._of_subscript(node, path)
            case ast.Call():
                return self._of_call(node, path)
            case ast.Tuple() | ast.List():
                if path and isinstance(path[0], int) and -len(node.elts) <= path[0] < len(node.elts):
                    return self.of(node.elts[path[0]], path[1:])
                return _any(self.of(item, path[1:]) for item in node.elts)
            case ast.Dict():
                return _any(self.of(item, path) for item in node.values)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self.of(node.elt, path[1:])
            case ast.BinOp():
                formats = isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
                return Residence.HOST if formats else _any([self.of(node.left), self.of(node.right)])
            case ast.UnaryOp():
                return Residence.HOST if isinstance(node.op, ast.Not) else self.of(node.operand)
            case ast.Compare():
                asks = any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops)
                return Residence.HOST if asks else _any(self.of(item) for item in (node.left, *node.comparators))
            case ast.BoolOp():
                return _any(self.of(item, path) for item in node.values)
            case ast.IfExp():
                return _any([self.of(node.body, path), self.of(node.orelse, path)])
            case ast.NamedExpr() | ast.Starred():
                return self.of(node.value, path)
            case ast.Constant() | ast.JoinedStr():
                return Residence.HOST
        return None

    # Variables ------------------------------------------------------------------------------------------------

    def _of_name(self, name: ast.Name, path: tuple[Step, ...]) -> Residence | None:
        if self.is_sent_backward(name):
            return Residence.DEVICE
        if self._facts.batches.on_host(name) is not None:
            return Residence.HOST
        found = [self._of_binding(binding, path) for binding in self._facts.flow.reaching(name)]
        stored = [self.of(value) for value in self._stored_in(name)]
        return _any([*found, *stored])

    def is_sent_backward(self, name: ast.Name) -> bool:
        """Whether the same variable is a loss that goes backward, which only a tensor does."""
        tree = self._facts.tree
        for use in self._facts.names.uses(name):
            parent = tree.parent(use)
            if isinstance(parent, ast.Attribute) and parent.attr == "backward":
                return True
            if isinstance(parent, ast.Call) and parent.args[:1] == [use] and isinstance(parent.func, ast.Attribute):
                if parent.func.attr in _SENDING:
                    return True
        return False

    def _stored_in(self, name: ast.Name) -> list[ast.expr]:
        """What ``name[key] = value`` puts into a variable."""
        found = []
        for use in self._facts.names.uses(name):
            store = self._facts.tree.parent(use)
            if isinstance(store, ast.Subscript) and store.value is use and isinstance(store.ctx, ast.Store):
                statement = self._facts.tree.parent(store)
                if isinstance(statement, ast.Assign):
                    found.append(statement.value)
        return found

    def _of_binding(self, binding: Binding, path: tuple[Step, ...]) -> Residence | None:
        if binding.how is Bound.ASSIGN and binding.value is not None:
            return self.of(binding.value, (*binding.path, *path))
        if binding.how is Bound.AUGMENTED and isinstance(binding.node, ast.AugAssign):
            return self.of(binding.node.value)
        if binding.how is Bound.LOOP and binding.value is not None:
            return self.of(binding.value, (ELEMENT, *binding.path, *path))
        if binding.how is Bound.PARAMETER and isinstance(binding.node, ast.arg):
            return self._of_parameter(binding.node, path)
        return None

    def _of_parameter(self, parameter: ast.arg, path: tuple[Step, ...]) -> Residence | None:
        """Where the callers that are seen pass the argument from."""
        signature = self._facts.tree.parent(parameter)
        function = self._facts.tree.parent(signature) if signature is not None else None
        if not isinstance(function, FUNCTIONS):
            return None
        found = []
        for facts, call in self._facts.callers_everywhere(function) or ():
            given = passed(call, function, parameter, bound=self._facts.tree.class_of(function) is not None)
            if given is not None and not is_default(given, function):
                found.append(facts.residences.of(given, path))
        return _any(found)

    # Parts ----------------------------------------------------------------------------------------------------

    def _of_attribute(self, node: ast.Attribute, path: tuple[Step, ...]) -> Residence | None:
        if node.attr in _DESCRIBING:
            return Residence.HOST
        assigned = self._facts.values.assigned(node)
        if assigned:
            return _any(self.of(value, (*inner, *path)) for value, inner in assigned)
        owner = self.of(node.value)
        if owner is Residence.DEVICE and node.attr not in _SAME_TENSOR:
            return Residence.LIKELY  # an object that a network gives, with tensors among its attributes
        return None if owner is Residence.HOST else owner

    def _of_subscript(self, node: ast.Subscript, path: tuple[Step, ...]) -> Residence | None:
        index = node.slice
        if isinstance(index, ast.Constant) and isinstance(index.value, int):
            return self.of(node.value, (index.value, *path))
        return self.of(node.value, (ELEMENT, *path))

    # Calls ----------------------------------------------------------------------------------------------------

    def _of_call(self, call: ast.Call, path: tuple[Step, ...]) -> Residence | None:
        facts = self._facts
        meaning, source = facts.calls.meaning(call) or "", receiver(call)
        if meaning.startswith("builtins."):
            return self._of_builtin(call, meaning.rpartition(".")[2], path)
        if meaning.startswith(_HOST_MODULES):
            return Residence.HOST
        if meaning.startswith("torch."):
            return self._of_torch(call, meaning)
        functions = list(called(facts, call))
        if functions:
            return self._returned(call, functions, path)
        if facts.models.is_loss(call.func):
            return _any(self.of(item) for item in _arguments(call))
        if facts.models.is_module(call.func):
            return Residence.DEVICE
        if source is not None and not meaning:
            method = self._of_method(call, source)
            if method is not None:
                return method
        inputs = [self.of(item) for item in _arguments(call)] + ([self.of(source)] if source is not None else [])
        if Residence.DEVICE in inputs and facts.cadence.runs_network(call):
            return Residence.DEVICE
        return Residence.LIKELY if Residence.DEVICE in inputs or Residence.LIKELY in inputs else None

    def _of_builtin(self, call: ast.Call, name: str, path: tuple[Step, ...]) -> Residence | None:
        if name in _HOST_BUILTINS:
            return Residence.HOST
        if name == "enumerate" and path[:1] == (ELEMENT,) and call.args:
            return Residence.HOST if path[1:2] == (0,) else self.of(call.args[0], (ELEMENT, *path[2:]))
        if name == "zip" and len(path) > 1 and isinstance(path[1], int) and path[1] < len(call.args):
            return self.of(call.args[path[1]], (ELEMENT, *path[2:]))
        if name in ("sum", "max", "min", "abs", "round", "pow"):
            return _any(self.of(item) for item in call.args)
        return _any(self.of(item, path) for item in call.args)

    def _of_torch(self, call: ast.Call, meaning: str) -> Residence | None:
        home, _, name = meaning.rpartition(".")
        if home == "torch" and name in _TORCH_HOST:
            return Residence.HOST
        if home == "torch.cuda":
            return Residence.DEVICE if name.endswith("Tensor") else Residence.HOST
        if self._facts.creations.factory(call) is not None:
            return self._of_factory(call)
        if home == "torch" or meaning.startswith(("torch.nn.functional.", "torch.autograd.", "torch.linalg.", "torch.special.")):
            return _any(self.of(item) for item in _arguments(call))
        if home in ("torch.nn", "torch.optim", "torch.utils.data"):
            return None
        return Residence.LIKELY if any(self.of(item) is Residence.DEVICE for item in _arguments(call)) else None

    def _of_factory(self, call: ast.Call) -> Residence | None:
        given = argument(call, "device")
        if given is not None:
            device = self._facts.devices.of(given)
            return None if device is None else Residence.DEVICE if device.may_be_cuda else Residence.HOST
        like = call.args[0] if call.args and (last_name(call.func) or "").endswith("_like") else None
        return self.of(like) if like is not None else Residence.HOST

    def _of_method(self, call: ast.Call, source: ast.expr) -> Residence | None:
        name = last_name(call.func) or ""
        if name in TO_HOST or name in _TELLING:
            return Residence.HOST
        if name in ("to", "cuda", "type"):
            transfer = self._facts.devices.transfer(call)
            if transfer is not None:
                return Residence.HOST if transfer.device.only_cpu else Residence.DEVICE if transfer.device.may_be_cuda else None
        owner = self.of(source)
        if owner is Residence.LIKELY:  # two tensors that are computed with together live in the same place
            return _any([owner, *(self.of(item) for item in call.args)])
        return owner

    def _returned(self, call: ast.Call, functions: list[tuple[Facts, Function]], path: tuple[Step, ...]) -> Residence | None:
        found = [facts.residences.of(value, path) for facts, function in functions for value in returns(function)]
        joined = _any(found)
        if joined is not None:
            return joined
        return Residence.LIKELY if any(self.of(item) is Residence.DEVICE for item in _arguments(call)) else None


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(item.value for item in call.keywords)]


def _any(found: Iterable[Residence | None]) -> Residence | None:
    """Where a value lives that was made in one of several ways, or of several operands."""
    seen = list(found)
    for residence in (Residence.DEVICE, Residence.LIKELY):
        if residence in seen:
            return residence
    return Residence.HOST if seen and all(item is Residence.HOST for item in seen) else None
