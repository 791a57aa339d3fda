"""Whether the program treats what a call gives, or a variable holds, as one tensor: only a tensor can be used so."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import has_stars
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.scopes import parameters
from torchfix.facts.code.tree import FUNCTIONS, Function, dotted, last_name, walk_here
from torchfix.facts.code.values import passed
from torchfix.facts.half_precision.autocast import is_operation
from torchfix.facts.training.updates import called

if TYPE_CHECKING:
    from torchfix.facts import Facts


def result_is_tensor(facts: Facts, call: ast.Call) -> bool:
    """Whether the program treats a result as one tensor wherever it is made: at once, or in the statements behind."""
    tree = facts.tree
    parent = tree.parent(call)
    if isinstance(parent, ast.Attribute):
        return is_operation(parent.attr)
    if isinstance(parent, ast.Call) and parent.args[:1] == [call]:
        return takes_tensor(facts, parent) or _parameter_is_tensor(facts, parent, call)
    target = parent.targets[0] if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None
    if isinstance(target, ast.Attribute):
        return _attribute_is_tensor(facts, target)
    return isinstance(target, ast.Name) and name_is_tensor(facts, target)


def name_is_tensor(facts: Facts, target: ast.Name) -> bool:
    """Whether the statements behind the one that binds a name surely use it as one tensor."""
    tree = facts.tree
    _, block, index = tree.place(tree.statement(target))
    return used_as_tensor(facts, block[index + 1 :], target.id)


def function_run(facts: Facts, call: ast.Call) -> tuple[Facts, Function] | None:
    """The function of the project that a call runs, for the object of a class its ``forward``."""
    function = called(facts, call)
    networks = facts.models.of(call.func)
    if function is None and networks is not None and len(networks) == 1 and networks[0].definition is not None:
        methods = (method_of(networks[0].definition, name) for name in ("__call__", "forward"))
        method = next((item for item in methods if item is not None), None)
        if method is not None and isinstance(method.node, FUNCTIONS):
            return method.facts, method.node
    return function


def _attribute_is_tensor(facts: Facts, target: ast.Attribute) -> bool:
    """Whether the class uses an attribute of its object as one tensor: where it is set, or whenever one of its methods runs."""
    tree = facts.tree
    if not isinstance(target.value, ast.Name) or not facts.is_self(target.value):
        return False
    same = (use for use in tree.attributes[target.attr] if isinstance(use.ctx, ast.Load) and dotted(use) == dotted(target))
    for use in same:
        block, function = tree.block(tree.statement(use)), tree.function(use)
        plain = function is not None and block is function.body or block is tree.block(tree.statement(target))
        if plain and tree.method_class(use) is tree.method_class(target) and _is_tensor_use(facts, use):
            return True
    return False


def _parameter_is_tensor(facts: Facts, call: ast.Call, given: ast.expr) -> bool:
    """Whether a function or loss of the project uses what it is given as one tensor."""
    function = function_run(facts, call) if not has_stars(call) else None
    if function is None:
        return False
    bound = function[0].tree.class_of(function[1]) is not None
    taking = (item for item in parameters(function[1].args) if passed(call, function[1], item, bound) is given)
    return any(used_as_tensor(function[0], function[1].body, item.arg) for item in taking)


def used_as_tensor(facts: Facts, block: list[ast.stmt], name: str) -> bool:
    """Whether statements of a block, those that always run, use a name as nothing but one tensor can be used."""
    for statement in block:
        if isinstance(statement, (ast.If, ast.For, ast.While, ast.Try, ast.With)):
            continue
        for node in walk_here(statement):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) and _is_tensor_use(facts, node):
                return True
    return False


def _is_tensor_use(facts: Facts, node: ast.expr) -> bool:
    """Whether a place uses what it reads as nothing but one tensor can be used."""
    outer = facts.tree.parent(node)
    if isinstance(outer, ast.Attribute):
        return is_operation(outer.attr) or outer.attr in ("shape", "dtype", "device")
    if isinstance(outer, (ast.Tuple, ast.List)):
        joined = facts.tree.parent(outer)
        return isinstance(joined, ast.Call) and joined.args[:1] == [outer] and facts.calls.meaning(joined) in ("torch.cat", "torch.stack")
    return isinstance(outer, ast.Call) and outer.args[:1] == [node] and takes_tensor(facts, outer)


def takes_tensor(facts: Facts, call: ast.Call) -> bool:
    """Whether a call's first argument surely is a tensor: torch's functions and losses."""
    meaning, name = facts.calls.meaning(call) or "", last_name(call.func) or ""
    listed = ("cat", "stack", "concat", "hstack", "vstack", "to", "data")
    operation = meaning in (f"torch.{name}", f"torch.nn.functional.{name}") and is_operation(name) and name not in listed
    return operation or facts.models.is_loss(call.func)
