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
    Off by default: what it gains depends on the network, and the first batches take much longer. Effects ``numerics`` and
    ``rng``: kernels round differently, and dropout draws other numbers. Nothing changes without CUDA. Held where the
    forward pass reads values back, prints or decides by them, where gradients of gradients are taken, under DataParallel,
    and where hooks, TorchScript or ONNX look into the network.

Reference:
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.compile
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import InsertAfter
from torchfix.facts import Facts
from torchfix.facts.code.calls import keyword
from torchfix.facts.code.tree import dotted, last_name, walk
from torchfix.facts.half_precision.spelling import Spelling
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.loops import Training
from torchfix.facts.training.models import Network
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
    if any("compile" in other.tree.calls for other in facts.program.files):
        return
    done: set[tuple[ast.stmt, str]] = set()
    for training in facts.loops.all:
        target = facts.targets.around(training.node)
        for call in training.forwards if target is not None and target.may_be_cuda else ():
            networks, places = facts.models.run_by(call), facts.companions.of(call.func)
            for place in () if isinstance(places, Obstacle) or not networks else places:
                name = dotted(place.variable)
                if place.facts is not facts or name is None or (place.after, name) in done or target is None:
                    continue
                done.add((place.after, name))
                effects = frozenset({Effect.NUMERICS, Effect.RNG})
                held = _held(facts, networks or (), training)
                if held is not None:
                    yield Finding(place.after, _MESSAGE, effects=effects, held=held)
                    continue
                words = (facts.companions.text(item, place) for item in (target.variable, target.flag))
                test = Spelling(facts, place.after).on_cuda(*words, is_object=target.is_object)
                edit = InsertAfter(place.after, f"if {test}:\n    {name}.compile()")
                yield Finding(place.after, _MESSAGE, (edit,), effects, _BECAUSE, (_NOTE,))


def _held(facts: Facts, networks: tuple[Network, ...], training: Training) -> Held | None:
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
    calls = (call for name in ("script", "trace", "export") for call in facts.tree.calls.get(name, ()))
    return any((facts.calls.meaning(call) or "").startswith(("torch.jit.", "torch.onnx.")) for call in calls)


def _differentiates(facts: Facts) -> bool:
    kept = (call for calls in facts.tree.calls.values() for call in calls if keyword(call, "create_graph") is not None)
    return next(facts.calls.to("torch.autograd.grad"), None) is not None or any(True for _ in kept)


def _breaks(facts: Facts, definition: ast.AST) -> ast.AST | None:
    """The first place in a network's code that reads a value back, prints, or decides by the value of a tensor."""
    assert isinstance(definition, ast.ClassDef)
    methods = [item for item in definition.body if isinstance(item, ast.FunctionDef) and not item.name.startswith(("__", "init", "reset"))]
    for node in (node for method in methods for node in walk(method)):
        if isinstance(node, ast.Call):
            method = isinstance(node.func, ast.Attribute) and facts.calls.meaning(node) is None
            if (method and last_name(node.func) in _READS) or facts.calls.meaning(node) == "builtins.print":
                return node
        elif isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)) and _by_value(node.test):
            return node
    return None


def _by_value(test: ast.expr) -> bool:
    """Whether a condition computes with tensors: sums, comparisons of all or any."""
    return any(isinstance(node, ast.Call) and last_name(node.func) in _MEASURES for node in walk(test))


TRANSFORM = Transform.from_module(__name__, __doc__, group="compile", literals=(b"backward",), find=find, since="2.2", default=Default.OFF)
