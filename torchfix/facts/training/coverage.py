"""Whether every weight of a network takes part in every forward pass.

A process that trains a replica waits for the gradient of each weight; one that a pass leaves out never comes. And a
weight without a gradient is not stepped at all, where one with a gradient of zeros still decays and keeps its momentum.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import receiver
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, Function, last_name, walk_here
from torchfix.facts.code.values import returns
from torchfix.facts.training.models import Network, is_module_class, is_module_name

if TYPE_CHECKING:
    from torchfix.facts import Facts

# The layers of torch.nn without weights begin with one of these.
_WITHOUT_WEIGHTS = tuple(
    f"torch.nn.{name}"
    for name in """ReLU Dropout Sigmoid Tanh Softmax LogSoftmax MaxPool AvgPool AdaptiveAvgPool AdaptiveMaxPool Flatten Identity GELU
    SiLU LeakyReLU ELU Upsample PixelShuffle ZeroPad ReflectionPad ReplicationPad CosineSimilarity""".split()
)


# What gives values that no gradient comes back from.
_CUTS = frozenset(
    """detach detach_ data item tolist numpy no_grad inference_mode argmax argmin argsort round floor ceil sign long int bool byte
    one_hot multinomial bernoulli eq ne gt lt ge le isnan zeros_like ones_like checkpoint requires_grad_""".split()
)

_TENSORS = tuple(f"torch.{name}" for name in ("zeros", "ones", "rand", "randn", "empty", "full", "tensor"))


def left_out(definition: Definition) -> Iterator[tuple[Definition, ast.Attribute]]:
    """The layers of a network's class, and of the classes that it is made of, that a forward pass may leave out.

    A condition on nothing but ``self`` counts as the same in every pass. Layers that are reached by ``getattr`` are not judged.
    """
    for owner in definition.facts.models.hidden_classes(definition):
        if isinstance(owner.node, ast.ClassDef) and is_module_class(owner):
            for layer in _layers(owner):
                if not _is_always_used(owner, layer):
                    yield owner, layer


def reaches_every_weight(network: Network) -> bool:
    """Whether a backward pass from what a network gives surely brings every weight of it a gradient.

    Seen of torch's own layers, alone and in sequences, and of classes whose forward pass is plain: it gives one result,
    leaves no layer out, calls nothing but layers and torch, and neither keeps nor detaches anything on the way.
    """
    if any(wrapper != "DataParallel" for wrapper in network.wrappers):
        return False
    call, facts = network.value.node, network.value.facts
    if network.definition is None:
        return isinstance(call, ast.Call) and _is_plain_layer(facts, call)
    reached = network.definition.facts.models.hidden_classes(network.definition)
    return next(left_out(network.definition), None) is None and all(_is_plain(owner) for owner in reached)


def _is_plain_layer(facts: Facts, call: ast.Call) -> bool:
    """Whether a call makes one of torch's layers, or a sequence of such calls."""
    meaning = facts.calls.meaning(call) or ""
    if meaning == "torch.nn.Sequential":
        return all(isinstance(item, ast.Call) and _is_plain_layer(facts, item) for item in call.args) and not call.keywords
    return meaning.startswith("torch.nn.") and is_module_name(meaning) and not meaning.endswith(("List", "Dict", "Container"))


def _is_plain(owner: Definition) -> bool:
    facts = owner.facts
    if not isinstance(owner.node, ast.ClassDef) or [facts.names.qualified(base) for base in owner.node.bases] != ["torch.nn.Module"]:
        return False
    methods = {item.name: item for item in owner.node.body if isinstance(item, FUNCTIONS)}
    if methods.keys() != {"__init__", "forward"} or _is_subclassed(owner):
        return False
    made = (node for statement in methods["__init__"].body for node in walk_here(statement))
    if not all(_makes_plainly(owner, node) for node in made if isinstance(node, ast.Call)):
        return False
    given = returns(methods["forward"])
    if len(given) != 1 or isinstance(given[0], (ast.Tuple, ast.List, ast.Dict, ast.IfExp)):
        return False
    passing = (node for statement in methods["forward"].body for node in walk_here(statement))
    return all(_passes_on(facts, node, methods["forward"]) for node in passing)


def _makes_plainly(owner: Definition, call: ast.Call) -> bool:
    """Whether a call of a constructor makes a layer of torch or of the project, or calls the constructor of the base class."""
    facts = owner.facts
    made = facts.names.definition(call.func)
    if made is not None:
        return isinstance(made.node, ast.ClassDef)
    base = receiver(call)
    if last_name(call.func) == "super" or (isinstance(base, ast.Call) and last_name(base.func) == "super"):
        return True
    meaning = facts.calls.meaning(call) or ""
    if meaning in ("torch.nn.Module.__init__", "torch.nn.Parameter", "torch.nn.parameter.Parameter") or meaning in _TENSORS:
        return True
    return meaning.startswith(("builtins.", "math.", "torch.nn.init.")) or _is_plain_layer(facts, call)


def _passes_on(facts: Facts, node: ast.AST, forward: Function) -> bool:
    """Whether a node of a forward pass only hands values on to where a gradient comes back from."""
    if isinstance(node, (ast.With, ast.Expr, ast.Lambda, ast.Try)):
        return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Load) and node.attr not in _CUTS
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return any(isinstance(use.ctx, ast.Load) and facts.tree.is_within(use, forward) for use in facts.tree.names[node.id])
    if not isinstance(node, ast.Call):
        return True
    meaning = facts.calls.meaning(node) or ""
    own = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and facts.is_self(node.func.value)
    method = isinstance(node.func, ast.Attribute) and not meaning
    return own or method or (meaning.startswith("torch.") and last_name(node.func) not in _CUTS)


def _layers(owner: Definition) -> Iterator[ast.Attribute]:
    """The attributes that the constructor gives layers with weights."""
    made = method_of(owner, "__init__")
    if made is None or made.facts is not owner.facts or made.node not in owner.node.body:
        return
    for node in (item for statement in made.node.body for item in walk_here(statement)):
        if isinstance(node, ast.Assign) and _has_weights(owner.facts, node.value):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and owner.facts.is_self(target.value):
                    yield target


def _has_weights(facts: Facts, value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    meaning = facts.calls.meaning(value) or ""
    if meaning in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
        return True
    if is_module_name(meaning):
        return not meaning.startswith(_WITHOUT_WEIGHTS) and not meaning.endswith("Loss")
    made = facts.names.definition(value.func)
    return made is not None and isinstance(made.node, ast.ClassDef) and is_module_class(made)


def _is_always_used(owner: Definition, layer: ast.Attribute) -> bool:
    tree = owner.facts.tree
    if any(
        tree.method_class(call) is owner.node
        for name in ("getattr", "children", "modules", "named_children")
        for call in tree.calls.get(name, ())
    ):
        return True
    uses = [use for use in tree.attributes.get(layer.attr, ()) if isinstance(use.ctx, ast.Load) and tree.method_class(use) is owner.node]
    if _is_subclassed(owner):
        return True  # a derived class may use it
    return any(not _is_conditional(owner.facts, use) for use in uses)


def _is_subclassed(owner: Definition) -> bool:
    return any(owner.facts.names.definition(base) == owner for other in owner.facts.tree.classes for base in other.bases)


def _is_conditional(facts: Facts, use: ast.Attribute) -> bool:
    """Whether a use happens only under a condition on what a pass is given."""
    inner: ast.AST = use
    for outer in facts.tree.ancestors(use):
        if isinstance(outer, (ast.If, ast.IfExp, ast.While)) and inner is not outer.test and not _asks_only_self(facts, outer.test):
            return True
        if isinstance(outer, FUNCTIONS):
            return any(
                _leaves_early(facts, item) for item in outer.body if item.lineno < use.lineno and not facts.tree.is_within(use, item)
            )
        inner = outer
    return False


def _leaves_early(facts: Facts, statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and not _asks_only_self(facts, statement.test)
        and any(isinstance(node, ast.Return) for node in walk_here(statement))
    )


def _asks_only_self(facts: Facts, test: ast.expr) -> bool:
    names = [node for node in ast.walk(test) if isinstance(node, ast.Name)]
    return all(facts.is_self(name) or (facts.names.qualified(name) or "").startswith(("torch", "builtins.")) for name in names)
