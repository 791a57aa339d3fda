"""Code in a network that autocast does not know: autograd functions, compiled operators, TorchScript, layers of other packages.

Each question gives the code of a hazard, which :mod:`torchfix.facts.half_precision.hazards` has the words for.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, is_constant
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, Function, last_name, walk
from torchfix.facts.training.models import derives

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Packages whose layers and functions take half precision, or touch no tensor; ``ctypes`` runs compiled code.
_KNOWN = (sys.stdlib_module_names - {"ctypes"}) | set(
    """absl addict builtins cv2 easydict efficientnet_pytorch einops h5py joblib loguru matplotlib numpy omegaconf pandas PIL
    pretrainedmodels scipy segmentation_models_pytorch six skimage sklearn tensorboard tensorboardX termcolor timm torch torchvision tqdm
    transformers typing_extensions wandb yacs yaml""".split()
)
# What compiles TorchScript; the other names of torch.jit are marks and questions, which change nothing outside of it.
SCRIPTING = tuple(f"torch.jit.{name}" for name in ("script", "trace", "trace_module", "script_method", "load", "freeze", "ScriptModule"))
_COMPILING = ("torch.utils.cpp_extension.", "torch.library.", "ctypes.")
_OWN_OPERATORS = ("aten", "prims", "torchvision")  # of ``torch.ops``, those that torch and torchvision bring
_FORWARD_WRAPPERS = ("torch.amp.custom_fwd", "torch.cuda.amp.custom_fwd")
_BACKWARD_WRAPPERS = ("torch.amp.custom_bwd", "torch.cuda.amp.custom_bwd")
_EMBEDDINGS = ("torch.nn.Embedding", "torch.nn.EmbeddingBag")
_SPARSE_AT = 6  # the place of ``sparse`` among an embedding's arguments


def in_class(definition: Definition) -> tuple[ast.AST, str] | None:
    """What a class that takes part in a network brings along: the place and its code."""
    facts, node = definition.facts, definition.node
    assert isinstance(node, ast.ClassDef)
    if derives(definition, ("torch.autograd.Function",)):
        return None if _runs_under_autocast(definition) else (node, "custom-autograd")
    if derives(definition, ("torch.jit.",)):
        return node, "torchscript"
    for call in (item for item in walk(node) if isinstance(item, ast.Call)):
        code = in_construction(facts, call)
        if code is not None:
            return call, code
    return None


def in_construction(facts: Facts, call: ast.Call) -> str | None:
    """What a call that makes a part of a network brings along."""
    given = argument(call, "sparse", _SPARSE_AT if facts.calls.meaning(call) in _EMBEDDINGS else None)
    if given is not None and not is_constant(given, False):
        return "sparse-gradients"
    if facts.calls.meaning(call) in SCRIPTING:
        return "torchscript"
    return "unseen-layer" if (last_name(call.func) or "")[:1].isupper() and _is_unseen(facts, call.func) else None


def in_function(facts: Facts, function: Function) -> str | None:
    """What the decorators of a function turn it into."""
    for decorator in function.decorator_list:
        named = decorator.func if isinstance(decorator, ast.Call) else decorator
        meaning = facts.names.qualified(named) or ""
        if meaning in SCRIPTING:
            return "torchscript"
        if meaning.startswith(_COMPILING) or _is_unseen(facts, named):
            return "custom-operator"
    return None


def in_call(facts: Facts, call: ast.Call) -> str | None:
    """What a call runs that autocast does not know."""
    meaning = facts.calls.meaning(call) or ""
    if meaning.startswith("torch.ops."):
        return None if meaning.split(".")[2] in _OWN_OPERATORS else "custom-operator"
    if meaning in SCRIPTING:
        return "torchscript"
    if any(not _runs_under_autocast(item) for item in _applied(facts, call)):
        return "custom-autograd"
    if meaning.startswith(("torch.sparse.", "torch.spmm", "torch.smm", "torch.sspmm", "torch.hspmm")):
        return "sparse-operator"
    if meaning.startswith(_COMPILING):
        return "custom-operator"
    if _is_unseen(facts, call.func) and not any(_applied(facts, call)):
        return "unseen-layer"
    return _of_object(facts, call)


def _applied(facts: Facts, call: ast.Call) -> Iterator[Definition]:
    """The autograd functions of the project that a call applies, by ``F.apply(...)`` or by another name for ``F.apply``."""
    named = [(facts, call.func)]
    if isinstance(call.func, ast.Name):
        named = [(item.facts, item.node) for item in facts.values.of(call.func) or () if isinstance(item.node, ast.expr) and not item.path]
    for where, node in named:
        if isinstance(node, ast.Attribute) and node.attr == "apply":
            definition = where.names.definition(node.value)
            if definition is not None and derives(definition, ("torch.autograd.Function",)):
                yield definition


def _runs_under_autocast(definition: Definition) -> bool:
    """Whether an autograd function says for both of its passes what autocast is to do with it."""
    assert isinstance(definition.node, ast.ClassDef)
    methods = {item.name: item for item in definition.node.body if isinstance(item, FUNCTIONS)}
    wanted = (("forward", _FORWARD_WRAPPERS), ("backward", _BACKWARD_WRAPPERS))
    return all(name in methods and _is_wrapped(definition.facts, methods[name], wrappers) for name, wrappers in wanted)


def _is_wrapped(facts: Facts, method: Function, wrappers: tuple[str, ...]) -> bool:
    named = (item.func if isinstance(item, ast.Call) else item for item in method.decorator_list)
    return any((facts.names.qualified(item) or "") in wrappers for item in named)


def _of_object(facts: Facts, call: ast.Call) -> str | None:
    """What stands behind the object that a call goes to: compiled code, or something of another package."""
    part: ast.expr = call.func
    while isinstance(part, (ast.Attribute, ast.Subscript)):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and facts.is_self(part.value):
            break
        part = part.value
    if not isinstance(part, (ast.Name, ast.Attribute)) or facts.names.qualified(part) is not None:
        return None
    for value in facts.values.of(part) or ():
        if isinstance(value.node, ast.Call):
            if (value.facts.calls.meaning(value.node) or "").startswith(_COMPILING):
                return "custom-operator"
            if _is_unseen(value.facts, value.node.func):
                return "unseen-layer"
    return None


def _is_unseen(facts: Facts, named: ast.expr) -> bool:
    """Whether a name goes to another package that is not known to take half precision."""
    meaning = facts.names.qualified(named)
    if meaning is None or facts.names.definition(named) is not None:
        return False
    package = meaning.partition(".")[0]
    own = not package and facts.names.module.bindings.get(meaning.split(".")[1])  # ``.Net.build``: defined in this file
    return not own and package not in _KNOWN
