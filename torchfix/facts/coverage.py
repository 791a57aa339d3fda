"""Whether every weight of a network takes part in every forward pass.

A process that trains a replica waits for the gradient of each weight; one that a pass leaves out never comes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.callees import method_of
from torchfix.facts.models import is_module_class, is_module_name
from torchfix.facts.names import Definition
from torchfix.facts.tree import FUNCTIONS, walk_here

if TYPE_CHECKING:
    from torchfix.facts import Facts

# The layers of torch.nn without weights begin with one of these.
_WITHOUT_WEIGHTS = tuple(
    f"torch.nn.{name}"
    for name in """ReLU Dropout Sigmoid Tanh Softmax LogSoftmax MaxPool AvgPool AdaptiveAvgPool AdaptiveMaxPool Flatten Identity GELU
    SiLU LeakyReLU ELU Upsample PixelShuffle ZeroPad ReflectionPad ReplicationPad CosineSimilarity""".split()
)


def left_out(definition: Definition) -> Iterator[tuple[Definition, ast.Attribute]]:
    """The layers of a network's class, and of the classes that it is made of, that a forward pass may leave out.

    A condition on nothing but ``self`` counts as the same in every pass. Layers that are reached by ``getattr`` are not judged.
    """
    for owner in definition.facts.models.hidden_classes(definition):
        if isinstance(owner.node, ast.ClassDef) and is_module_class(owner):
            for layer in _layers(owner):
                if not _is_always_used(owner, layer):
                    yield owner, layer


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
