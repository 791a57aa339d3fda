"""Code that breaks, or quietly loses its meaning, where its tensors are half precision: found before autocast runs it.

Each hazard was met by people who switched mixed precision on by hand; the reasons name the line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from torchfix.facts.code.calls import is_constant
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, last_name, walk, walk_here
from torchfix.facts.half_precision import foreign_code, formulas, logarithms
from torchfix.facts.half_precision.autocast import BANNED
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.models import Network
from torchfix.facts.training.regions import AUTOCAST

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Methods by which a program asks to see gradients while the backward pass still runs.
GRADIENT_HOOKS = ("register_hook", "register_full_backward_hook", "register_backward_hook", "register_post_accumulate_grad_hook")
_FORWARD_HOOKS = ("register_forward_hook", "register_forward_pre_hook")
_LINEAR_ALGEBRA = frozenset(
    """cholesky cholesky_inverse cholesky_solve det eig eigh geqrf inverse linalg_inv logdet lstsq lu lu_solve matrix_exp matrix_power ormqr
    pca_lowrank pinverse qr slogdet solve svd svd_lowrank symeig triangular_solve""".split()
)
_SPECTRAL = frozenset("stft istft fft ifft rfft irfft complex polar view_as_complex view_as_real".split())
# Those of the other functions that raise on CUDA for half precision, and those that do for tensors of different precision.
_NO_HALF_FORM = frozenset("gammainc gammaincc histc histogram histogramdd igamma igammac nanquantile nextafter quantile zeta".split())
_SAME_DTYPE = frozenset("allclose isclose lerp lerp_".split())
_WIDE = frozenset(
    [
        "torch.float64",
        "torch.double",
        "torch.DoubleTensor",
        "torch.cuda.DoubleTensor",
        "torch.complex64",
        "torch.complex128",
        "torch.cfloat",
    ]
)
_HALF = frozenset(
    """torch.float16 torch.half torch.bfloat16 torch.HalfTensor torch.BFloat16Tensor torch.cuda.HalfTensor
    torch.cuda.BFloat16Tensor""".split()
)
_DTYPES = _WIDE | _HALF | {"torch.float32", "torch.float"}
_FLOAT_TYPES = frozenset(["torch.FloatTensor", "torch.cuda.FloatTensor", "torch.Tensor"])
_PRECISION = (*AUTOCAST, "torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.set_autocast_enabled")
_TO_HALF = ("half", "bfloat16")
_DEFAULTS = ("torch.set_default_dtype", "torch.set_default_tensor_type")
_ANOMALY = ("torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly")
# What takes gradients inside of a forward pass or a loss; those of torch.func and torch.autograd.functional all do.
_GRADIENTS = ("torch.autograd.grad", "torch.autograd.functional.", "torch.func.", "functorch.")
_ARRAYS = ("numpy.array", "numpy.asarray")
_FACTORISING = tuple(
    f"torch.distributions.{name}" for name in ("MultivariateNormal", "LowRankMultivariateNormal", "Wishart", "LKJCholesky")
)
# What each hazard is, and what the user can do; ``{name}`` is what the code calls it.
_WORDS = {
    "bce-loss": (
        "BCELoss of probabilities raises under autocast",
        "return logits and use BCEWithLogitsLoss",
    ),
    "custom-autograd": (
        "an autograd function without custom_fwd and custom_bwd",
        "decorate its forward with torch.amp.custom_fwd, its backward with custom_bwd",
    ),
    "custom-operator": ("code that is compiled outside of torch, which autocast does not know", "check that it takes half precision"),
    "distance-by-products": (
        "a distance from products of matrices, whose difference half precision rounds away",
        "use torch.cdist, or compute it in .float() with autocast switched off",
    ),
    "dtype-compared": ("a question about a dtype, whose answer half precision changes", "ask is_floating_point()"),
    "float64": ("float64 or complex numbers", "keep this code in its own precision"),
    "anomaly-mode": (
        "anomaly detection, which stops at the infinite gradients that a scaler looks for",
        "switch it off; it is for finding faults, not for training",
    ),
    "double-backward": (
        "gradients taken by hand, which a loss scale would change",
        "scale and unscale them by hand (torch's AMP examples, gradient penalty)",
    ),
    "forward-hooks": (
        "a hook that takes tensors out of the forward pass, where they are half precision",
        "convert them with .float() in the hook",
    ),
    "gradient-hooks": ("a hook that would see scaled gradients", "divide them by scaler.get_scale() in the hook"),
    "half-overflow": ("a number that float16 cannot hold", "use torch.finfo(x.dtype).min, or a smaller number"),
    "half-to-numpy": ("tensors that go to NumPy, which has no bfloat16", "convert them with .float() first"),
    "in-place-product": (
        "a matrix product that is written into a tensor, which torch wants in the precision of its factors",
        "give the product a tensor of its own",
    ),
    "index-write": (
        "a write by tensor index, which raises between tensors of different precision",
        "convert the value to the target's dtype",
    ),
    "no-half-form": ("{name}, which has no half-precision form", "compute it on .float() inputs with autocast switched off"),
    "one-dtype": ("{name}, which wants all its tensors in one precision", "convert them to the dtype of the first"),
    "linear-algebra": ("{name}, which has no half-precision form", "compute it on .float() inputs with autocast switched off"),
    "log-of-sigmoid": ("the logarithm of a sigmoid, which half precision rounds to 0 or 1", "use logsigmoid or BCEWithLogitsLoss"),
    "precision-chosen": ("code that already chooses its precision", "finish that change by hand, or take it out first"),
    "sharded": ("a network sharded over devices, which has a precision policy of its own", "set that policy (MixedPrecisionPolicy)"),
    "sparse-operator": ("{name} of a sparse matrix, which has no half-precision form", "compute it with autocast switched off"),
    "square-by-hand": (
        "a square of half precision that is summed up, and may be beyond float16",
        "write x ** 2, which autocast computes in float32",
    ),
    "sparse-gradients": ("an embedding with sparse gradients, which the scaler does not take", "use dense gradients"),
    "spectral": ("{name}, which has no general half-precision form", "compute it on .float() inputs with autocast switched off"),
    "tiny-epsilon": ("a number that is zero in float16 and is to keep a value from zero", "use 1e-6 or more, or compute in .float()"),
    "torchscript": ("TorchScript code", "put autocast inside the scripted code by hand"),
    "typed-tensor": ("a conversion to a fixed tensor type", "write .float(), or follow another tensor with .type_as()"),
    "unseen-layer": ("{name} of another package, whose code is out of sight", "check that it takes half precision"),
}
_SHARDED = ("torch.distributed.fsdp", "torch.distributed._composable", "torch.distributed.tensor", "torch.distributed._tensor")


class Hazards:
    """Questions about what half precision would meet."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def in_program(self) -> Obstacle | None:
        """What settles the precision of this file's programs: a framework, float64, a sharded network."""
        facts = self._facts
        for name in facts.program.in_charge:
            if name == "Apex":
                return Obstacle("apex", "Apex is in use, whose mixed precision torch has taken over", "move to torch.amp first")
            return Obstacle(
                "framework",
                f"{name} runs the training step, and has its own switch for mixed precision",
                f"set the precision through {name}",
            )
        for other, call in self._run("to", *_DEFAULTS):
            if not call.args or not _is_float32(other, call.args[0]):
                return _obstacle(other, call, "float64")
        for other, call in self._run("to", *_ANOMALY):
            if not any(is_constant(item, False) for item in (*call.args, *(item.value for item in call.keywords))):
                return _obstacle(other, call, "anomaly-mode")
        for other, call in self._run("methods", *_FORWARD_HOOKS):
            return _obstacle(other, call, "forward-hooks")
        for other, call in self._run("methods", *GRADIENT_HOOKS):
            if other is not facts:
                return _obstacle(other, call, "gradient-hooks")
        for other, call in self._run("methods", "double"):
            if isinstance(call.func, ast.Attribute) and other.models.is_module(call.func.value):
                return _obstacle(other, call, "float64")
        for node in facts.tree.imports:
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if any(module.startswith(_SHARDED) for module in modules):
                return _obstacle(facts, node, "sharded")
        return None

    def chosen(self) -> Obstacle | None:
        """Mixed or half precision that the file already uses somewhere, or that another file's code switches on for it."""
        for other, call in (*self._run("to", *_PRECISION), *self._run("methods", *_TO_HALF)):
            if not call.args or last_name(call.func) not in _TO_HALF:
                return _obstacle(other, call, "precision-chosen")
        for other, node in self._half_types():
            return _obstacle(other, node, "precision-chosen")
        return None

    def _half_types(self) -> Iterator[tuple[Facts, ast.AST]]:
        """The places where code of the programs hands on a half-precision dtype."""
        names = tuple(sorted({name.rpartition(".")[2] for name in _HALF}))
        for other in self._facts.program.holding(*names):
            uses = (use for name in names for use in other.tree.attributes.get(name, ()))
            for use in uses:
                handed = isinstance(other.tree.parent(use), (ast.Call, ast.keyword)) and other.names.qualified(use) in _HALF
                if handed and self._facts.program.may_run(other, use):
                    yield other, use

    def _run(self, how: Literal["to", "methods"], *names: str) -> Iterator[tuple[Facts, ast.Call]]:
        """The calls of functions or methods with these names, in this file and in what its programs run of other files."""
        for other in self._facts.program.holding(*dict.fromkeys(name.rpartition(".")[2] for name in names)):
            for call in getattr(other.calls, how)(*names):
                if other is self._facts or self._facts.program.may_run(other, call):
                    yield other, call

    def in_network(self, network: Network, methods: frozenset[str] = frozenset()) -> Obstacle | None:
        """What in a network's own code half precision would break, None where nothing was found.

        Layers of torch and of the well-known model collections are taken to be sound.

        Args:
            methods: names of methods that are called beside ``forward``.
        """
        facts = network.value.facts
        if "script" in network.wrappers:
            return _obstacle(facts, network.value.node, "torchscript")
        if network.definition is not None:
            return self.in_definitions([network.definition], methods)
        for call in (node for node in walk(network.value.node) if isinstance(node, ast.Call)):
            code = foreign_code.in_construction(facts, call)
            if code is not None:
                return _obstacle(facts, call, code)
        inside = [facts.names.definition(node) for node in walk(network.value.node) if isinstance(node, (ast.Name, ast.Attribute))]
        return self.in_definitions([definition for definition in inside if definition], methods)

    def in_definitions(self, definitions: Iterable[Definition], methods: frozenset[str] = frozenset()) -> Obstacle | None:
        """As :meth:`in_network`, for functions and classes of the project that will run under autocast.

        Args:
            methods: names of methods that are called beside ``forward``.
        """
        given = list(definitions)
        listed = {id(item.node): item for definition in given for item in definition.facts.models.hidden_classes(definition)}
        classes = [item for item in listed.values() if isinstance(item.node, ast.ClassDef)]
        running = _running([item for item in given if isinstance(item.node, FUNCTIONS)], classes, methods)
        for obstacle in (*map(_in_class, classes), *(_in_code(item.facts, item.node) for item in running)):
            if obstacle is not None:
                return obstacle
        return None

    def in_losses(self, calls: Iterable[ast.Call], definitions: Iterable[Definition]) -> Obstacle | None:
        """What a loss does that neither autocast nor a scaler allows, wherever it is computed.

        That is the binary cross entropy of probabilities and their logarithm by hand, gradients taken by hand, and precision of its own.

        Args:
            calls: what this file calls on the way to the loss.
            definitions: the functions and classes of the project among what it calls.
        """
        own, given = list(calls), list(definitions)
        reached = [item for definition in given for item in definition.facts.models.hidden_classes(definition)]
        listed = [(self._facts, call) for call in own]
        listed += [(item.facts, node) for item in reached for node in walk(item.node) if isinstance(node, ast.Call)]
        for facts, call in listed:
            if _is_banned(facts, call) or (facts.calls.meaning(call) or "").rpartition(".")[2] in BANNED:
                return _obstacle(facts, call, "bce-loss")
        rounded = logarithms.of_rounded(self._facts, own, reached)
        if rounded is not None:
            return _obstacle(*rounded, "log-of-sigmoid")
        classes = [item for item in reached if isinstance(item.node, ast.ClassDef)]
        for item in _running([item for item in given if isinstance(item.node, FUNCTIONS)], classes, frozenset()):
            for node in walk(item.node):
                code = _settled(item.facts, node) if isinstance(node, ast.Call) else None
                if code is not None:
                    return _obstacle(item.facts, node, code)
        return None

    def wide(self, expressions: Iterable[ast.expr]) -> Obstacle | None:
        """Float64 among some expressions of this file."""
        for node in (node for expression in expressions for node in walk(expression)):
            if isinstance(node, ast.Call) and last_name(node.func) == "double" and not node.args:
                return _obstacle(self._facts, node, "float64")
            if isinstance(node, ast.Attribute) and self._facts.names.qualified(node) in _WIDE:
                return _obstacle(self._facts, node, "float64")
        return None

    @cached_property
    def vanishing(self) -> bool:
        """Whether the file holds a number that float16 rounds to zero."""
        return formulas.holds_vanishing(self._facts.source.tree)

    @cached_property
    def excessive(self) -> bool:
        """Whether the file holds a number that is beyond float16."""
        return formulas.holds_excess(self._facts.source.tree)


def _in_class(definition: Definition) -> Obstacle | None:
    found = foreign_code.in_class(definition)
    return _obstacle(definition.facts, *found) if found is not None else None


def _running(functions: list[Definition], classes: list[Definition], methods: frozenset[str]) -> list[Definition]:
    """The code that runs when networks are called: ``forward``, and the methods and functions that its code names."""
    names = {"forward", "__call__", *methods}
    found: dict[int, Definition] = {}
    new = functions
    while True:
        new += [
            Definition(item.facts, method)
            for item in classes
            if isinstance(item.node, ast.ClassDef)
            for method in item.node.body
            if isinstance(method, FUNCTIONS) and method.name in names and id(method) not in found
        ]
        if not new:
            return [item for item in found.values() if not isinstance(item.node, ast.ClassDef) and not _only_sets_up(item.node.name)]
        found |= {id(item.node): item for item in new}
        read = [(item.facts, node) for item in new for node in walk(item.node) if isinstance(node, (ast.Name, ast.Attribute))]
        names |= {node.attr for _, node in read if isinstance(node, ast.Attribute)}
        named = [facts.names.definition(node) for facts, node in read if isinstance(node.ctx, ast.Load)]
        new = [item for item in named if item is not None and isinstance(item.node, FUNCTIONS) and id(item.node) not in found]


def _only_sets_up(name: str) -> bool:
    """Whether a method runs before training: constructors and those that give weights their first values."""
    return name == "reset_parameters" or "init" in name or (name.startswith("__") and name != "__call__")


def _in_code(facts: Facts, code: ast.AST) -> Obstacle | None:
    """The first hazard in a function, method or statement that runs under autocast."""
    sigmoids = formulas.sigmoid_names(facts, code)
    for node in walk(code):
        found = None
        if isinstance(node, ast.Call):
            found = _in_call(facts, node) or foreign_code.in_call(facts, node) or formulas.in_call(facts, node, sigmoids)
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            found = formulas.in_store(facts, node)
        elif isinstance(node, ast.BinOp):
            found = formulas.in_arithmetic(facts, node)
        elif isinstance(node, ast.Attribute) and facts.names.qualified(node) in _WIDE:
            found = "float64"
        elif isinstance(node, ast.Compare):
            found = "dtype-compared" if _asks_for_dtype(facts, node) else None
        elif isinstance(node, FUNCTIONS):
            found = foreign_code.in_function(facts, node)
        if found is not None:
            return _obstacle(facts, node, found)
    return None


def _in_call(facts: Facts, call: ast.Call) -> str | None:
    """The code of what a single call does to half precision."""
    name, meaning = last_name(call.func) or "", facts.calls.meaning(call) or ""
    method = isinstance(call.func, ast.Attribute) and not meaning
    operation = method or meaning.startswith("torch.")
    if _is_banned(facts, call):
        return "bce-loss"
    if method and name == "double" and not call.args:
        return "float64"
    if method and name in GRADIENT_HOOKS:
        return "gradient-hooks"
    if method and name in _FORWARD_HOOKS:
        return "forward-hooks"
    brought = any(isinstance(item, ast.Attribute) and item.attr in ("cpu", "detach") for item in walk_here(call))
    if (method and name == "numpy") or (meaning in _ARRAYS and brought):
        return "half-to-numpy"
    if meaning in _FACTORISING or (meaning.startswith("torch.linalg.") and "norm" not in name) or (operation and name in _LINEAR_ALGEBRA):
        return "linear-algebra"
    if operation and name in _NO_HALF_FORM:
        return "no-half-form"
    if operation and name in _SAME_DTYPE:
        return "one-dtype"
    if meaning.startswith("torch.fft.") or (operation and name in _SPECTRAL):
        return "spectral"
    if method and name == "type" and call.args and _is_float_type(facts, call.args[0]):
        return "typed-tensor"
    return _settled(facts, call)


def _settled(facts: Facts, call: ast.Call) -> str | None:
    """The code of a call that takes gradients, or chooses a precision, by itself."""
    name, meaning = last_name(call.func) or "", facts.calls.meaning(call) or ""
    method = isinstance(call.func, ast.Attribute) and not meaning
    if meaning in _PRECISION or (method and name in _TO_HALF and not call.args):
        return "precision-chosen"
    differentiates = meaning.startswith(_GRADIENTS) and meaning not in ("torch.func.functional_call", "torch.func.vmap")
    return "double-backward" if differentiates or (method and name == "backward") else None


def _asks_for_dtype(facts: Facts, node: ast.Compare) -> bool:
    """Whether a comparison is between a tensor's dtype and one of floating-point numbers."""
    sides = (node.left, *node.comparators)
    parts = [inner for side in sides for inner in walk(side) if isinstance(inner, ast.Attribute)]
    return any(item.attr == "dtype" for item in parts) and any(facts.names.qualified(item) in _DTYPES for item in parts)


def _is_banned(facts: Facts, call: ast.Call) -> bool:
    """Whether a call computes the binary cross entropy of probabilities: torch's function, or an object of its class."""
    if facts.calls.meaning(call) == "torch.nn.functional.binary_cross_entropy":
        return True
    return any(network.library == "torch.nn.BCELoss" for network in facts.models.of(call.func) or ())


def _obstacle(facts: Facts, node: ast.AST, code: str) -> Obstacle:
    text, help = _WORDS[code]
    name = last_name(node.func) if isinstance(node, ast.Call) else None
    return Obstacle(code, f"{facts.path}:{getattr(node, 'lineno', 0)}: {text.format(name=name)}", help)


def _is_float_type(facts: Facts, node: ast.expr) -> bool:
    """Whether an argument is one of the old tensor types that hold float32."""
    if isinstance(node, ast.Constant):
        return node.value in _FLOAT_TYPES
    return facts.names.qualified(node) in _FLOAT_TYPES


def _is_float32(facts: Facts, node: ast.expr) -> bool:
    return _is_float_type(facts, node) or facts.names.qualified(node) in ("torch.float32", "torch.float")
