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
    Effect ``numerics``: Adam and AdamW round differently in the last digits, on CUDA only. The optimizer is torch's own, in
    a version that has the argument for it; the parameters are those of networks in sight, without sparse gradients; before
    torch 2.4 the network is seen to be on the GPU before the optimizer is made. Held where gradients are read behind a step
    under a scaler, whose factor a fused step leaves in them. Programs in which a framework steps are left alone.

Reference:
    https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import AddImport, Edit, SetArgument
from torchfix.facts import Facts
from torchfix.facts.code.calls import argument, has_stars, is_constant, keyword, receiver
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, walk
from torchfix.facts.half_precision.candidates import Candidate
from torchfix.facts.half_precision.spelling import Spelling
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.loops import Training
from torchfix.facts.training.optimizers import Optimizer
from torchfix.facts.training.owners import parameter_expressions
from torchfix.facts.training.targets import Target
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_MESSAGE = "the optimizer updates parameters in several kernels instead of one"
_BECAUSE = "all of its parameters belong to networks in sight, whose gradients are dense"
_RESUMED = "A state that was saved before this change switches fused off again when it is loaded, until the next fresh start."
# The oldest torch that has the argument for each optimizer, with all corrections that training needs.
# Adam's loads states of its own since 2.1. Adagrad's is new for CUDA in torch 2.13, and not always faster.
_SINCE = {"Adam": (2, 1), "AdamW": (2, 1), "SGD": (2, 3)}
_ANYWHERE = (2, 4)  # since then parameters may reach the GPU after the optimizer was made
_OTHER_WAYS = ("fused", "foreach", "capturable", "differentiable")


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The optimizers of torch that step parameters on CUDA and are not fused."""
    if facts.program.in_charge:
        return
    done: set[ast.Call] = set()
    for training, step, optimizer in _stepped(facts):
        call, target = optimizer.call, training.facts.targets.around(training.node)
        if call in done or not _could_be_fused(facts, optimizer) or target is None or not target.may_be_cuda:
            continue
        done.add(call)
        test = _test(facts, training, step, call, target)
        held = _sparse(facts, call) or (_DEVICE if test is None else _late(facts, call)) or _read_late(training)
        if held is not None or test is None:
            yield Finding(call, _MESSAGE, effects=frozenset({Effect.NUMERICS}), held=held)
            continue
        edits: tuple[Edit, ...] = (SetArgument(call, "fused", test),)
        if facts.names.spell("torch", call) is None and test.startswith("torch."):
            edits = (*edits, AddImport("torch"))
        notes = (_RESUMED,) if any(map(_loads_state, facts.program.holding("load_state_dict"))) else ()
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
_READ_LATE = Held(
    "read-behind-step",
    "gradients are read behind the step of a scaler, and a fused step leaves the scaler's factor in them",
    "call scaler.unscale_(optimizer) in front of the step first",
)


def _could_be_fused(facts: Facts, optimizer: Optimizer) -> bool:
    """Whether every torch that the project allows has the argument for it, and nothing else is chosen."""
    since, oldest = _SINCE.get(optimizer.kind.rpartition(".")[2]), facts.project.torch
    chosen = has_stars(optimizer.call) or any(keyword(optimizer.call, word) for word in _OTHER_WAYS)
    return optimizer.kind.startswith("torch.optim.") and since is not None and not chosen and (oldest is None or oldest >= since)


def _stepped(facts: Facts) -> Iterator[tuple[Training, ast.expr, Optimizer]]:
    """The optimizers that this file makes and some training loop, or function that trains, of the program steps."""
    for other in facts.program.files:
        for training in other.loops.all:
            for call in training.steps:
                stepped = other.optimizers.stepped_by(call)
                for optimizer in (other.optimizers.of(stepped) or ()) if stepped is not None else ():
                    if optimizer.value.facts is facts and stepped is not None:
                        yield training, stepped, optimizer


def _test(facts: Facts, training: Training, step: ast.expr, call: ast.Call, target: Target) -> str | None:
    """The test for CUDA as it can be written where the optimizer is made."""
    found = training.facts.companions.of(step)
    places = [] if isinstance(found, Obstacle) else [item for item in found if facts.tree.is_within(call, item.after)]
    spelling = Spelling(facts, call)
    word = target.variable or target.flag
    if word is None:
        return _literal_test(training, spelling) if target.types == {"cuda"} else None
    text = training.facts.companions.text(word, places[0]) if places else None
    if text is None:
        return None
    return spelling.on_cuda(*((text, None) if target.variable is not None else (None, text)), is_object=target.is_object)


def _literal_test(training: Training, spelling: Spelling) -> str | None:
    """The test for CUDA of a program that writes ``.cuda()``: none where a copy always happens, else the one in front of all copies."""
    facts = training.facts
    inside = [node for node in training.nodes() if isinstance(node, ast.Call) and _is_copy(facts, node)]
    anywhere = (call for call in facts.calls.methods("cuda", "to") if _is_copy(facts, call))
    conditions = [_conditions(facts, call) for call in inside or anywhere]
    if not all(conditions):
        return "True"
    asked = (test for listed in conditions for test in listed)
    known = all(isinstance(test, ast.Call) and facts.calls.meaning(test) == "torch.cuda.is_available" for test in asked)
    return spelling.on_cuda(None, None, is_object=False) if known else None


def _is_copy(facts: Facts, call: ast.Call) -> bool:
    transfer = facts.devices.transfer(call)
    return transfer is not None and transfer.device.types == {"cuda"}


def _conditions(facts: Facts, call: ast.Call) -> list[ast.expr]:
    """The conditions on which a copy depends, in the loop around it or in its function."""
    found = []
    for outer in facts.tree.ancestors(call):
        if isinstance(outer, (*LOOPS, *FUNCTIONS)):
            break
        if isinstance(outer, (ast.If, ast.IfExp)) and not facts.program.is_guarded(call):
            found.append(outer.test)
    return found


def _sparse(facts: Facts, call: ast.Call) -> Held | None:
    """Why the parameters may not be dense ones of a network in sight."""
    networks = [facts.models.of(item) for item in parameter_expressions(facts, argument(call, "params", 0))]
    if not networks or None in networks:
        return _UNSEEN
    for network in (network for listed in networks for network in listed or ()):
        definition = network.definition
        parts = [item.node for item in definition.facts.models.hidden_classes(definition)] if definition is not None else []
        for node in (node for part in (network.value.node, *parts) for node in walk(part)):
            sparse = keyword(node, "sparse") if isinstance(node, ast.Call) else None
            if sparse is not None and not is_constant(sparse.value, False):
                return _SPARSE
    return None


def _read_late(training: Training) -> Held | None:
    """Why the factor of a scaler, that there is or will be, may be in gradients when they are read."""
    facts, last = training.facts, max(step.lineno for step in training.steps)
    late = any(isinstance(node, ast.Attribute) and node.lineno > last and _is_read(facts, node) for node in training.nodes())
    if not late or "unscale_" in facts.tree.calls:
        return None
    found = dict(facts.candidates.all).get(training.node) if isinstance(training.node, LOOPS) else None
    return _READ_LATE if facts.loops.scales(training) or isinstance(found, Candidate) else None


def _is_read(facts: Facts, node: ast.Attribute) -> bool:
    """Whether an attribute is a gradient that is read, rather than cleared or compared with None."""
    if node.attr != "grad" or not isinstance(node.ctx, ast.Load) or (facts.names.qualified(node) or "").startswith("torch."):
        return False
    outer = facts.tree.parent(node)
    while isinstance(outer, ast.Attribute):
        if outer.attr in ("zero_", "detach_"):
            return False
        outer = facts.tree.parent(outer)
    return not (isinstance(outer, ast.Compare) and all(isinstance(item, (ast.Is, ast.IsNot)) for item in outer.ops))


def _loads_state(facts: Facts) -> bool:
    """Whether a file may load the state of an optimizer."""
    sources = (receiver(item) for item in facts.calls.methods("load_state_dict"))
    return any(source is not None and not facts.models.is_module(source) for source in sources)


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
