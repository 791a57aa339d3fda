"""Let the optimizer update all parameters in one kernel.

Why:
    An optimizer that goes over its parameters in several kernels reads and writes each of them several times. With
    ``fused=True`` one kernel does all of it, which shows most in networks of many small tensors.

Before:
    import torch
    from torch import nn

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x in torch.ones(2, 4, 8):
        optimizer.zero_grad()
        model(x.to(device)).pow(2).mean().backward()
        optimizer.step()

After:
    import torch
    from torch import nn

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    for x in torch.ones(2, 4, 8):
        optimizer.zero_grad()
        model(x.to(device)).pow(2).mean().backward()
        optimizer.step()

Safety:
    Effect ``numerics``: Adam, AdamW and Adagrad round differently in the last digits, on CUDA only. The optimizer is
    torch's own, in a version that has the argument for it; the parameters are those of networks in sight, without
    sparse gradients; before torch 2.4 the network is seen to be on the GPU before the optimizer is made.

Reference:
    https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import AddImport, Edit, SetArgument
from torchfix.facts import Facts
from torchfix.facts.code.calls import argument, has_stars, keyword
from torchfix.facts.code.tree import walk
from torchfix.facts.half_precision.spelling import Spelling
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.loops import Loop
from torchfix.facts.training.optimizers import Optimizer
from torchfix.facts.training.owners import parameter_expressions
from torchfix.facts.training.targets import Target
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_MESSAGE = "the optimizer updates parameters in several kernels instead of one"
_BECAUSE = "all of its parameters belong to networks in sight, whose gradients are dense"
_RESUMED = "A state that was saved before this change switches fused off again when it is loaded, until the next fresh start."
# The oldest torch that has the argument for each optimizer, with all corrections that training needs.
_SINCE = {"Adam": (2, 0), "AdamW": (2, 0), "SGD": (2, 3), "Adagrad": (2, 4)}
_ANYWHERE = (2, 4)  # since then parameters may reach the GPU after the optimizer was made
_OTHER_WAYS = ("fused", "foreach", "capturable", "differentiable")


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The optimizers of torch that step parameters on CUDA and are not fused."""
    done: set[ast.Call] = set()
    for loop, step, optimizer in _stepped(facts):
        call, target = optimizer.call, loop.facts.targets.around(loop.node)
        if call in done or not _could_be_fused(facts, optimizer) or target is None or not target.may_be_cuda:
            continue
        done.add(call)
        test = _test(facts, loop, step, call, target)
        held = _sparse(facts, call) or (_DEVICE if test is None else _late(facts, call))
        if held is not None or test is None:
            yield Finding(call, _MESSAGE, effects=frozenset({Effect.NUMERICS}), held=held)
            continue
        edits: tuple[Edit, ...] = (SetArgument(call, "fused", test),)
        if facts.names.spell("torch", call) is None and test.startswith("torch."):
            edits = (*edits, AddImport("torch"))
        loads = (item.func.value for item in facts.calls.methods("load_state_dict") if isinstance(item.func, ast.Attribute))
        notes = (_RESUMED,) if any(facts.optimizers.of(item) for item in loads) else ()
        yield Finding(call, _MESSAGE, edits, frozenset({Effect.NUMERICS}), _BECAUSE, notes)


_DEVICE = Held(
    "device-not-seen", "the device of its parameters has no name that can be read here", "write fused=True where they are on CUDA"
)
_LATE = Held(
    "moved-later",
    "torch before 2.4 wants the parameters on the GPU when the optimizer is made, which is not seen here",
    "move the network to its device first, or raise the project's lower bound to torch 2.4",
)
_UNSEEN = Held(
    "parameters-not-seen", "what it steps is not seen to be a network's parameters", "add fused=True if all of them are dense and on CUDA"
)
_SPARSE = Held("sparse-gradients", "an embedding of its network has sparse gradients", "use dense gradients")


def _could_be_fused(facts: Facts, optimizer: Optimizer) -> bool:
    """Whether every torch that the project allows has the argument for it, and nothing else is chosen."""
    since, oldest = _SINCE.get(optimizer.kind.rpartition(".")[2]), facts.project.torch
    chosen = has_stars(optimizer.call) or any(keyword(optimizer.call, word) for word in _OTHER_WAYS)
    return optimizer.kind.startswith("torch.optim.") and since is not None and not chosen and (oldest is None or oldest >= since)


def _stepped(facts: Facts) -> Iterator[tuple[Loop, ast.expr, Optimizer]]:
    """The optimizers that this file makes and some training loop of the program steps."""
    for other in facts.program.files:
        for loop in other.loops.training:
            for call in loop.steps:
                stepped = other.optimizers.stepped_by(call)
                for optimizer in (other.optimizers.of(stepped) or ()) if stepped is not None else ():
                    if optimizer.value.facts is facts and stepped is not None:
                        yield loop, stepped, optimizer


def _test(facts: Facts, loop: Loop, step: ast.expr, call: ast.Call, target: Target) -> str | None:
    """The test for CUDA as it can be written where the optimizer is made."""
    found = loop.facts.companions.of(step)
    places = [] if isinstance(found, Obstacle) else [item for item in found if facts.tree.is_within(call, item.after)]
    word = target.variable or target.flag
    if word is None:
        return "True" if target.types == {"cuda"} else None
    text = loop.facts.companions.text(word, places[0]) if places else None
    if text is None:
        return None
    spelling = Spelling(facts, call)
    return spelling.on_cuda(*((text, None) if target.variable is not None else (None, text)), is_object=target.is_object)


def _sparse(facts: Facts, call: ast.Call) -> Held | None:
    """Why the parameters may not be dense ones of a network in sight."""
    networks = [facts.models.of(item) for item in parameter_expressions(facts, argument(call, "params", 0))]
    if not networks or None in networks:
        return _UNSEEN
    for definition in (network.definition for listed in networks for network in listed or ()):
        classes = definition.facts.models.hidden_classes(definition) if definition is not None else ()
        inner = (node for item in classes for node in walk(item.node) if isinstance(node, ast.Call))
        if any(keyword(node, "sparse") is not None for node in inner):
            return _SPARSE
    return None


def _late(facts: Facts, call: ast.Call) -> Held | None:
    """Why the parameters may reach the GPU only after the optimizer was made, which torch takes since 2.4."""
    oldest = facts.project.torch
    return None if oldest is None or oldest >= _ANYWHERE or _is_moved(facts, call) else _LATE


def _is_moved(facts: Facts, call: ast.Call) -> bool:
    """Whether the networks are moved to a device before the optimizer is made."""
    tree, statement = facts.tree, facts.tree.statement(call)
    moved = [
        item for item in facts.calls.methods("to", "cuda") if item.lineno < statement.lineno and tree.function(item) is tree.function(call)
    ]
    for expression in parameter_expressions(facts, argument(call, "params", 0)):
        wanted = {network.value for network in facts.models.of(expression) or ()}
        seen = {
            network.value
            for item in moved
            if isinstance(item.func, ast.Attribute) and facts.devices.transfer(item) is not None
            for network in facts.models.of(item.func.value) or ()
        }
        if not wanted or not wanted <= seen:
            return False
    return True


TRANSFORM = Transform.from_module(__name__, __doc__, group="precision", literals=(b"optim",), find=find, since="2.0")
