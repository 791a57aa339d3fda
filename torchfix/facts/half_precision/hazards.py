"""Code that breaks, or quietly loses its meaning, where its tensors are half precision: found before autocast runs it.

Each hazard was met by people who switched mixed precision on by hand; the reasons name the line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, is_constant, keyword
from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, last_name, walk
from torchfix.facts.half_precision.autocast import BANNED, Treatment, treatment
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.models import Network, derives
from torchfix.facts.training.regions import AUTOCAST

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Methods by which a program asks to see gradients while the backward pass still runs.
GRADIENT_HOOKS = ("register_hook", "register_full_backward_hook", "register_backward_hook", "register_post_accumulate_grad_hook")
_FORWARD_HOOKS = ("register_forward_hook", "register_forward_pre_hook")
LARGEST_HALF = 65504.0
SMALLEST_HALF = 5.97e-8  # the smallest number above zero that float16 holds is 2 ** -24

_FILLS = frozenset("masked_fill fill full_like new_full index_fill where clamp clip".split())
_INDEX_WRITES = frozenset(
    "scatter_ scatter_add_ scatter_reduce_ index_add_ index_copy_ index_put_ masked_scatter_ index_add masked_scatter".split()
)
_LINEAR_ALGEBRA = frozenset(
    """cholesky cholesky_inverse cholesky_solve det eig eigh geqrf inverse linalg_inv logdet lstsq lu lu_solve matrix_exp matrix_power ormqr
    pca_lowrank pinverse qr slogdet solve svd svd_lowrank symeig triangular_solve""".split()
)
_SPECTRAL = frozenset("stft istft fft ifft rfft irfft complex polar view_as_complex view_as_real".split())
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
_FLOAT_TYPES = frozenset(["torch.FloatTensor", "torch.cuda.FloatTensor", "torch.Tensor"])
_PRECISION = (*AUTOCAST, "torch.amp.GradScaler", "torch.cuda.amp.GradScaler")
_FORWARD_WRAPPERS = ("torch.amp.custom_fwd", "torch.cuda.amp.custom_fwd")
# What each hazard is, and what the user can do; ``{name}`` is what the code calls it.
_WORDS = {
    "bce-loss": (
        "BCELoss of probabilities raises under autocast",
        "return logits and use BCEWithLogitsLoss",
    ),
    "custom-autograd": (
        "an autograd function without custom_fwd",
        "decorate its forward with torch.amp.custom_fwd, its backward with custom_bwd",
    ),
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
    "index-write": (
        "a write by tensor index, which raises between tensors of different precision",
        "convert the value to the target's dtype",
    ),
    "linear-algebra": ("{name}, which has no half-precision form", "compute it on .float() inputs with autocast switched off"),
    "log-of-sigmoid": ("the logarithm of a sigmoid, which half precision rounds to 0 or 1", "use logsigmoid or BCEWithLogitsLoss"),
    "precision-chosen": ("code that already chooses its precision", "finish that change by hand, or take it out first"),
    "sharded": ("a network sharded over devices, which has a precision policy of its own", "set that policy (MixedPrecisionPolicy)"),
    "sparse-gradients": ("an embedding with sparse gradients, which the scaler does not take", "use dense gradients"),
    "spectral": ("{name}, which has no general half-precision form", "compute it on .float() inputs with autocast switched off"),
    "tiny-epsilon": ("a number that is zero in float16 and is to keep a value from zero", "use 1e-6 or more, or compute in .float()"),
    "torchscript": ("TorchScript code", "put autocast inside the scripted code by hand"),
    "typed-tensor": ("a conversion to a fixed tensor type", "write .float(), or follow another tensor with .type_as()"),
    "unseen-layer": ("{name} of another package, whose code is out of sight", "check that it takes half precision"),
}
_SHARDED = ("torch.distributed.fsdp", "torch.distributed._composable", "torch.distributed.tensor", "torch.distributed._tensor")
# Packages whose layers and functions take half precision, or touch no tensor.
_KNOWN = frozenset(
    """abc argparse builtins collections contextlib copy dataclasses easydict efficientnet_pytorch einops enum functools inspect
    itertools json logging math numbers numpy omegaconf operator os pathlib pickle pretrainedmodels random re
    segmentation_models_pytorch string sys time timm torch torchvision tqdm transformers types typing typing_extensions warnings
    yaml""".split()
)


class Hazards:
    """Questions about what half precision would meet."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def in_program(self) -> Obstacle | None:
        """What settles the precision of this file's programs: a framework, float64, a sharded network."""
        facts = self._facts
        for name in facts.program.frameworks:
            if name == "Apex":
                return Obstacle("apex", "Apex is in use, whose mixed precision torch has taken over", "move to torch.amp first")
            return Obstacle(
                "framework",
                f"{name} runs the training step, and has its own switch for mixed precision",
                f"set the precision through {name}",
            )
        for call in facts.calls.to("torch.set_default_dtype", "torch.set_default_tensor_type"):
            if not call.args or not _is_float32(facts, call.args[0]):
                return _obstacle(facts, call, "float64")
        for call in facts.calls.to("torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly"):
            if not any(is_constant(item, False) for item in (*call.args, *(item.value for item in call.keywords))):
                return _obstacle(facts, call, "anomaly-mode")
        for call in facts.calls.methods(*_FORWARD_HOOKS):
            return _obstacle(facts, call, "forward-hooks")
        for call in facts.calls.methods("double"):
            if isinstance(call.func, ast.Attribute) and facts.models.is_module(call.func.value):
                return _obstacle(facts, call, "float64")
        for node in facts.tree.imports:
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if any(module.startswith(_SHARDED) for module in modules):
                return _obstacle(facts, node, "sharded")
        return None

    def chosen(self) -> Obstacle | None:
        """Mixed or half precision that the file already uses somewhere."""
        facts = self._facts
        call = next(facts.calls.to(*_PRECISION), None) or next(facts.calls.methods("half", "bfloat16"), None)
        return _obstacle(facts, call, "precision-chosen") if call else None

    def in_network(self, network: Network, methods: frozenset[str] = frozenset()) -> Obstacle | None:
        """What in a network's own code half precision would break, None where nothing was found.

        Layers of torch and of the well-known model collections are taken to be sound.

        Args:
            methods: names of methods that are called beside ``forward``.
        """
        if network.definition is not None:
            return self.in_definitions([network.definition], methods)
        facts = network.value.facts
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

    def bce(self, calls: Iterable[ast.Call], definitions: Iterable[Definition]) -> Obstacle | None:
        """The binary cross entropy of probabilities, among some calls of this file or inside functions and classes of the project."""
        listed = [(self._facts, call) for call in calls]
        for definition in definitions:
            for item in definition.facts.models.hidden_classes(definition):
                listed += [(item.facts, node) for node in walk(item.node) if isinstance(node, ast.Call)]
        for facts, call in listed:
            if _is_banned(facts, call) or (facts.calls.meaning(call) or "").rpartition(".")[2] in BANNED:
                return _obstacle(facts, call, "bce-loss")
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
        return any(
            isinstance(node, ast.Constant) and type(node.value) is float and 0 < node.value < SMALLEST_HALF
            for node in walk(self._facts.source.tree)
        )


def _in_class(definition: Definition) -> Obstacle | None:
    facts, node = definition.facts, definition.node
    assert isinstance(node, ast.ClassDef)
    methods = [item for item in node.body if isinstance(item, FUNCTIONS)]
    if derives(definition, ("torch.autograd.Function",)):
        forward = next((item for item in methods if item.name == "forward"), None)
        wrapped = forward is not None and any(_means(facts, item, _FORWARD_WRAPPERS) for item in forward.decorator_list)
        return None if wrapped else _obstacle(facts, node, "custom-autograd")
    if derives(definition, ("torch.jit.",)):
        return _obstacle(facts, node, "torchscript")
    for call in (item for item in walk(node) if isinstance(item, ast.Call)):
        sparse = keyword(call, "sparse")
        if sparse is not None and not (isinstance(sparse.value, ast.Constant) and sparse.value.value is False):
            return _obstacle(facts, call, "sparse-gradients")
        if _is_unseen_layer(facts, call):
            return _obstacle(facts, call, "unseen-layer")
    return None


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
    sigmoids = _sigmoid_names(facts, code)
    for node in walk(code):
        obstacle = None
        if isinstance(node, ast.Call):
            obstacle = _in_call(facts, node, sigmoids)
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            obstacle = _in_store(facts, node)
        elif isinstance(node, ast.BinOp):
            obstacle = _in_arithmetic(facts, node)
        elif isinstance(node, ast.Attribute) and facts.names.qualified(node) in _WIDE:
            obstacle = _obstacle(facts, node, "float64")
        elif isinstance(node, FUNCTIONS) and any(_means(facts, item, ("torch.jit.",)) for item in node.decorator_list):
            obstacle = _obstacle(facts, node, "torchscript")
        if obstacle is not None:
            return obstacle
    return None


def _in_call(facts: Facts, call: ast.Call, sigmoids: frozenset[str]) -> Obstacle | None:
    name, meaning = last_name(call.func) or "", facts.calls.meaning(call) or ""
    method = isinstance(call.func, ast.Attribute) and not meaning
    torch = meaning.startswith("torch.")
    if _is_banned(facts, call):
        return _obstacle(facts, call, "bce-loss")
    if meaning in _PRECISION or (method and name in ("half", "bfloat16") and not call.args):
        return _obstacle(facts, call, "precision-chosen")
    if method and name == "double" and not call.args:
        return _obstacle(facts, call, "float64")
    if method and name in GRADIENT_HOOKS:
        return _obstacle(facts, call, "gradient-hooks")
    if method and name in _FORWARD_HOOKS:
        return _obstacle(facts, call, "forward-hooks")
    if meaning == "torch.autograd.grad":
        return _obstacle(facts, call, "double-backward")
    if meaning.startswith("torch.jit."):
        return _obstacle(facts, call, "torchscript")
    if method and name == "numpy":
        return _obstacle(facts, call, "half-to-numpy")
    if (
        (torch or method)
        and name.rstrip("_") in _FILLS
        and any(_is_beyond_half(item) for item in (*call.args, *(k.value for k in call.keywords)))
    ):
        return _obstacle(facts, call, "half-overflow")
    if (torch or method) and name in _INDEX_WRITES and not _writes_constant(call, name):
        return _obstacle(facts, call, "index-write")
    if (meaning.startswith("torch.linalg.") and "norm" not in name) or ((torch or method) and name in _LINEAR_ALGEBRA):
        return _obstacle(facts, call, "linear-algebra")
    if meaning.startswith("torch.fft.") or ((torch or method) and name in _SPECTRAL):
        return _obstacle(facts, call, "spectral")
    if method and name == "type" and call.args and _is_float_type(facts, call.args[0]):
        return _obstacle(facts, call, "typed-tensor")
    if name in ("log", "log2", "log10") and (torch or method) and _is_sigmoid(facts, _operand(call, torch), sigmoids):
        return _obstacle(facts, call, "log-of-sigmoid")
    if _is_unseen(facts, call):
        return _obstacle(facts, call, "unseen-layer")
    return None


def _in_store(facts: Facts, node: ast.Assign | ast.AugAssign) -> Obstacle | None:
    """A write by index into a tensor, where index or mask is itself a tensor: torch wants equal dtypes there."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in (item for item in targets if isinstance(item, ast.Subscript)):
        if _is_number(node.value) and not _is_beyond_half(node.value):
            continue
        if not _is_basic_index(facts, target.slice) and not _is_python_container(facts, target.value):
            return _obstacle(facts, node, "index-write")
    return None


def _in_arithmetic(facts: Facts, node: ast.BinOp) -> Obstacle | None:
    for one, other in ((node.left, node.right), (node.right, node.left)):
        if _is_number(other):
            continue
        if _is_beyond_half(one):
            return _obstacle(facts, node, "half-overflow")
        if isinstance(node.op, (ast.Add, ast.Sub)) and _is_vanishing(facts, one) and not _is_full(facts, other):
            return _obstacle(facts, node, "tiny-epsilon")
    return None


# Small questions -------------------------------------------------------------------------------------------------


def _is_banned(facts: Facts, call: ast.Call) -> bool:
    """Whether a call computes the binary cross entropy of probabilities: torch's function, or an object of its class."""
    if facts.calls.meaning(call) == "torch.nn.functional.binary_cross_entropy":
        return True
    return any(network.library == "torch.nn.BCELoss" for network in facts.models.of(call.func) or ())


def _means(facts: Facts, expression: ast.expr, names: tuple[str, ...]) -> bool:
    meaning = facts.names.qualified(expression.func if isinstance(expression, ast.Call) else expression) or ""
    return meaning in names or any(name.endswith(".") and meaning.startswith(name) for name in names)


def _obstacle(facts: Facts, node: ast.AST, code: str) -> Obstacle:
    text, help = _WORDS[code]
    name = last_name(node.func) if isinstance(node, ast.Call) else None
    return Obstacle(code, f"{facts.path}:{getattr(node, 'lineno', 0)}: {text.format(name=name)}", help)


def _number(node: ast.expr) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = _number(node.left), _number(node.right)
        return base**power if base is not None and power is not None and base > 0 and abs(power) < 100 else None
    return None


def _is_number(node: ast.expr) -> bool:
    return _number(node) is not None


def _is_beyond_half(node: ast.expr) -> bool:
    value = _number(node)
    return value is not None and LARGEST_HALF < abs(value) < float("inf")


def _is_vanishing(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression is a number above zero that float16 cannot hold, written out or under a name."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        values = (facts.values.of(node) if facts.hazards.vanishing else None) or ()
        return any(
            isinstance(value.node, ast.expr) and not value.path and _is_vanishing(value.facts, value.node)
            for value in values
            if value.node is not node
        )
    value = _number(node)
    return value is not None and 0 < value < SMALLEST_HALF


def _is_full(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression is float32 under autocast, whatever went into it."""
    return isinstance(node, ast.Call) and treatment(last_name(node.func) or "") is Treatment.FULL


def _is_float_type(facts: Facts, node: ast.expr) -> bool:
    """Whether an argument is one of the old tensor types that hold float32."""
    if isinstance(node, ast.Constant):
        return node.value in _FLOAT_TYPES
    return facts.names.qualified(node) in _FLOAT_TYPES


def _is_float32(facts: Facts, node: ast.expr) -> bool:
    return _is_float_type(facts, node) or facts.names.qualified(node) in ("torch.float32", "torch.float")


def _writes_constant(call: ast.Call, name: str) -> bool:
    """Whether an index write puts one number in place, which takes any dtype."""
    if keyword(call, "value") is not None and keyword(call, "src") is None:
        return True
    source = argument(call, "src", 2) or argument(call, "source", 2)
    return name.startswith("scatter") and source is not None and _is_number(source)


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


def _operand(call: ast.Call, torch: bool) -> ast.expr | None:
    """What a function or a method works on."""
    if torch:
        return call.args[0] if call.args else None
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _is_sigmoid(facts: Facts, node: ast.expr | None, names: frozenset[str]) -> bool:
    """Whether a value is the output of a sigmoid, a small number added or not."""
    if isinstance(node, ast.BinOp):
        return _is_sigmoid(facts, node.left, names) or _is_sigmoid(facts, node.right, names)
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("sigmoid", "sigmoid_") or any(
            item.library == "torch.nn.Sigmoid" for item in facts.models.of(node.func) or ()
        )
    return isinstance(node, ast.Name) and node.id in names


def _sigmoid_names(facts: Facts, code: ast.AST) -> frozenset[str]:
    """The names that a piece of code gives to sigmoids."""
    return frozenset(
        target.id
        for node in walk(code)
        if isinstance(node, ast.Assign) and _is_sigmoid(facts, node.value, frozenset())
        for target in node.targets
        if isinstance(target, ast.Name)
    )


def _is_unseen(facts: Facts, call: ast.Call) -> bool:
    """Whether a call goes to another package that is not known to take half precision."""
    meaning = facts.calls.meaning(call)
    if meaning is None or facts.names.definition(call.func) is not None or meaning.lstrip(".") == last_name(call.func):
        return False
    return meaning.partition(".")[0] not in _KNOWN


def _is_unseen_layer(facts: Facts, call: ast.Call) -> bool:
    return (last_name(call.func) or "")[:1].isupper() and _is_unseen(facts, call)
