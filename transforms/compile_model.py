"""Compile the network of a training loop.

Why:
    ``model.compile()`` turns the operations of a forward and backward pass into few fused kernels the first time that the
    network runs. It works in place: keys of the state dictionary, ``isinstance`` and copies stay as they were.

Before:
    import torch
    from torch import nn

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.ones(2, 4, 8):
        optimizer.zero_grad()
        model(x.to(device)).pow(2).mean().backward()
        optimizer.step()

After:
    import torch
    from torch import nn

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(8, 2).to(device)
    if device.type == "cuda":
        model.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.ones(2, 4, 8):
        optimizer.zero_grad()
        model(x.to(device)).pow(2).mean().backward()
        optimizer.step()

Safety:
    Off by default: what it gains depends on the network, the first batches take much longer, and kernels are made by Triton
    and a C++ compiler, which must be there. Effects ``numerics`` and ``rng``: kernels round differently, and dropout draws
    other numbers. Nothing changes without CUDA. Held where the forward pass reads values back, prints or decides by them,
    where gradients of gradients are taken, under DataParallel, and where hooks, TorchScript or ONNX look into the network.
    Programs in which a framework trains, or something is compiled already, are left alone.

Reference:
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.compile
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from torchfix.edits import InsertAfter
from torchfix.facts import Facts
from torchfix.facts.code.calls import is_constant, keyword
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, dotted, last_name, walk
from torchfix.facts.half_precision.spelling import Spelling
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.companions import Companion
from torchfix.facts.training.loops import Training
from torchfix.facts.training.models import Network
from torchfix.facts.training.moves import moves_of
from torchfix.facts.training.targets import Target
from torchfix.transform import Default, Effect, Finding, Held, NoOptions, Transform

_MESSAGE = "the network runs operation by operation"
_BECAUSE = "its forward pass reads nothing back and decides nothing by values"
_NOTE = "The first batches are slow while kernels are made, and a batch of another size makes them anew; measure before keeping it."
_READS = frozenset("item tolist numpy cpu nonzero unique masked_select".split())
_MEASURES = frozenset("sum any all mean max min isnan isinf norm equal".split())
_LOOKS = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_backward_hook")
_PARALLEL = Held("data-parallel", "DataParallel copies the network for each batch", "train with DistributedDataParallel first")
_LOOKED_INTO = Held("looked-into", "hooks, TorchScript or ONNX look into the network", "compile it where only training runs it")
_SECOND_ORDER = Held("double-backward", "gradients of gradients are taken, which compiled code lacks", "leave this network as it is")


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The networks of training loops on CUDA that are made in this file."""
    if facts.program.in_charge or any(map(_compiles, facts.program.files)):
        return
    done: set[tuple[ast.stmt, str]] = set()
    for training, call, place, target in _made_for_training(facts):
        name = dotted(place.variable)
        if name is None or (place.after, name) in done:
            continue
        done.add((place.after, name))
        effects = frozenset({Effect.NUMERICS, Effect.RNG})
        held = _held(facts, training.facts.models.run_by(call) or ())
        if held is not None:
            yield Finding(place.after, _MESSAGE, effects=effects, held=held)
            continue
        edit = InsertAfter(place.after, f"if {_test(training, place, target)}:\n    {name}.compile()")
        yield Finding(place.after, _MESSAGE, (edit,), effects, _BECAUSE, (_NOTE,))


def _made_for_training(facts: Facts) -> Iterator[tuple[Training, ast.Call, Companion, Target]]:
    """The calls of networks in code of the program that trains on CUDA, with where this file makes the networks."""
    for other in facts.program.files:
        for training in other.loops.all:
            target = other.targets.around(training.node)
            for call in training.forwards if target is not None and target.may_be_cuda else ():
                networks = other.models.run_by(call) or ()
                places = other.companions.of(call.func) if networks and moves_of(other, networks) else ()
                for place in () if isinstance(places, Obstacle) else places:
                    once = _where_made(place, networks) if place.facts is facts else None
                    if once is not None and target is not None:
                        yield training, call, replace(place, after=once), target


def _where_made(place: Companion, networks: tuple[Network, ...]) -> ast.stmt | None:
    """The last statement that names a network as often as it is made: ``model = model.train()`` in a loop is none."""
    facts, tree = place.facts, place.facts.tree
    makers = [network.value.node for network in networks if network.value.facts is facts]
    allowed = {tree.nearest(maker, LOOPS) for maker in makers if tree.function(maker) is tree.function(place.after)} or {None}
    named = facts.names.lookup(place.variable.id, place.variable) if isinstance(place.variable, ast.Name) else None
    bound = [tree.statement(item.node) for item in named[1] if item.how is Bound.ASSIGN] if named is not None and not place.passes else []
    found = [item for item in (*bound, place.after) if tree.nearest(item, LOOPS) in allowed and item.lineno <= place.after.lineno]
    return max(found, key=lambda item: item.lineno, default=None)


def _test(training: Training, place: Companion, target: Target) -> str:
    """The program's own test for CUDA where the network is made, else the machine's."""
    variable, flag = (training.facts.companions.text(word, place) for word in (target.variable, target.flag))
    if variable is None and flag is not None:
        return flag
    return Spelling(place.facts, place.after).on_cuda(variable, None, is_object=target.is_object)


def _compiles(facts: Facts) -> bool:
    """Whether a file compiles something with torch, rather than a pattern."""
    calls = facts.tree.calls.get("compile", ())
    return any(facts.calls.meaning(call) in ("torch.compile", None) for call in calls) or any(
        facts.names.qualified(use) == "torch.compile" for use in facts.tree.attributes.get("compile", ())
    )


def _held(facts: Facts, networks: tuple[Network, ...]) -> Held | None:
    """What stands in the way of compiling networks."""
    files = facts.program.files
    if any("DataParallel" in network.wrappers for network in networks):
        return _PARALLEL
    if any(name in other.tree.calls for other in files for name in _LOOKS) or any(_exports(other) for other in files):
        return _LOOKED_INTO
    if any(_differentiates(other) for other in files):
        return _SECOND_ORDER
    for network in networks:
        for definition in network.definition.facts.models.hidden_classes(network.definition) if network.definition else ():
            place = _breaks(definition.facts, definition.node)
            if place is not None:
                where = f"{definition.facts.path}:{getattr(place, 'lineno', 0)}"
                return Held("graph-breaks", f"{where} reads values back or decides by them, where a compiled network stops", "move it out")
    return None


def _exports(facts: Facts) -> bool:
    named = (use for name in ("script", "script_method", "ScriptModule", "trace", "export") for use in _uses(facts, name))
    return any((facts.names.qualified(use) or "").startswith(("torch.jit.", "torch.onnx.")) for use in named)


def _uses(facts: Facts, name: str) -> tuple[ast.expr, ...]:
    return (*facts.tree.attributes.get(name, ()), *facts.tree.names.get(name, ()))


def _differentiates(facts: Facts) -> bool:
    given = (keyword(call, "create_graph") for calls in facts.tree.calls.values() for call in calls)
    kept = any(item is not None and not is_constant(item.value, False) for item in given)
    return kept or next(facts.calls.to("torch.autograd.grad"), None) is not None


def _breaks(facts: Facts, definition: ast.AST) -> ast.AST | None:
    """The first place in a network's code that reads a value back, prints, or decides by the value of a tensor."""
    for node in (node for function in _forward(definition) for node in walk(function)):
        if isinstance(node, ast.Call):
            method = isinstance(node.func, ast.Attribute) and facts.calls.meaning(node) is None
            if (method and last_name(node.func) in _READS) or facts.calls.meaning(node) == "builtins.print":
                return node
        elif isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)) and _by_value(facts, node.test):
            return node
    return None


def _forward(definition: ast.AST) -> list[ast.AST]:
    """What of a function or class may run in a forward pass: ``forward`` and the methods that it calls, or all of another class."""
    if not isinstance(definition, ast.ClassDef):
        return [definition]
    methods = {item.name: item for item in definition.body if isinstance(item, FUNCTIONS)}
    if "forward" not in methods:
        return [item for name, item in methods.items() if not name.startswith(("__", "init", "reset"))]
    found = ["forward"]
    for name in found:  # grows while it is read
        named = {node.attr for node in walk(methods[name]) if isinstance(node, ast.Attribute)}
        found += [other for other in methods if other in named and other not in found]
    return [methods[name] for name in found]


def _by_value(facts: Facts, test: ast.expr) -> bool:
    """Whether a condition computes with tensors: sums, comparisons of all or any."""
    calls = (node for node in walk(test) if isinstance(node, ast.Call) and last_name(node.func) in _MEASURES)
    return any(not (facts.calls.meaning(node) or "").startswith(("builtins.", "math.")) for node in calls)


TRANSFORM = Transform.from_module(__name__, __doc__, group="compile", literals=(b"torch",), find=find, since="2.2", default=Default.OFF)
