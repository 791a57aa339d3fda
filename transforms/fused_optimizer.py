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
    under a scaler, whose factor a fused step leaves in them. A state of an earlier run gets the setting before it is loaded.
    Programs in which a framework steps are left alone.

Reference:
    https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import AddImport, Edit, InsertBefore, SetArgument, by_file
from torchfix.facts import Facts
from torchfix.facts.code.calls import argument, has_stars, is_constant, keyword
from torchfix.facts.code.tree import LOOPS, dotted, walk
from torchfix.facts.half_precision.candidates import Candidate
from torchfix.facts.half_precision.spelling import Spelling
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.gradient_reads import reads_gradients
from torchfix.facts.training.loops import Training
from torchfix.facts.training.moves import always_happens, are_moved_before, copies_to_cuda, happens_where_available, moves_of_stepped
from torchfix.facts.training.optimizers import Optimizer
from torchfix.facts.training.owners import parameter_expressions
from torchfix.facts.training.restored import Restored, restores
from torchfix.facts.training.targets import Target
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_MESSAGE = "the optimizer updates parameters in several kernels instead of one"
_BECAUSE = "all of its parameters belong to networks in sight, whose gradients are dense"
_RESUMED = "A state that was saved before this change, if one is loaded into the optimizer, switches fused off again."
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
        loads = [item for item in restores(facts, optimizer) if item.facts.optimizers.of(item.optimizer)]
        held = _sparse(facts, call) or (_DEVICE if test is None else _late(facts, call)) or _read_late(training)
        held = held or (_RESTORED if any(item.state is None or dotted(item.optimizer) is None for item in loads) else None)
        if held is not None or test is None:
            yield Finding(call, _MESSAGE, effects=frozenset({Effect.NUMERICS}), held=held)
            continue
        edits: list[tuple[str, Edit]] = [(facts.path, SetArgument(call, "fused", test)), *map(_fused_before, loads)]
        if facts.names.spell("torch", call) is None and test.startswith("torch."):
            edits.append((facts.path, AddImport("torch")))
        own, elsewhere = by_file(facts.path, edits)
        notes = (_RESUMED,) if len(list(restores(facts, optimizer))) > len(loads) else ()
        yield Finding(call, _MESSAGE, own, frozenset({Effect.NUMERICS}), _BECAUSE, notes, elsewhere=elsewhere)


def _fused_before(load: Restored) -> tuple[str, Edit]:
    """What gives a state the optimizer's own setting before it is loaded: its tensors are then laid out for that."""
    source, group = load.facts.source, load.facts.names.fresh("group", "entry")
    assert load.state is not None
    state, optimizer = source.segment(load.state), source.segment(load.optimizer)
    code = f'for {group} in {state}["param_groups"]:\n    {group}["fused"] = {optimizer}.defaults["fused"]'
    return load.facts.path, InsertBefore(load.statement, code)


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
_RESTORED = Held(
    "state-loaded",
    "a state is loaded into it that was saved without this setting, which would switch it off again under a scaler that counts on it",
    "give the state a name, and set fused in its param_groups before it is loaded",
)
_READ_LATE = Held(
    "read-behind-step",
    "gradients may be read behind or inside the step of a scaler, and a fused step leaves the scaler's factor in them",
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
    """The test for CUDA as it can be written where the optimizer is made: of its network's own device, else of the loop's."""
    spelling, statement = Spelling(facts, call), facts.tree.statement(call)
    moves = moves_of_stepped(facts, call)
    if not moves:
        return None
    for move in (item.transfer for item in moves if item.is_beside(facts, call)):
        own = facts.targets.of(move, statement)
        if own.variable is not None or own.flag is not None:
            return spelling.on_cuda(_text(own.variable), _text(own.flag), is_object=own.is_object)
        return _literal_test(facts, [move.call], spelling) if own.types == {"cuda"} else None
    found = training.facts.companions.of(step)
    places = [] if isinstance(found, Obstacle) else [item for item in found if facts.tree.is_within(call, item.after)]
    word = target.variable or target.flag
    if word is None:
        return _literal_test(training.facts, copies_to_cuda(training), spelling) if target.types == {"cuda"} else None
    text = training.facts.companions.text(word, places[0]) if places else None
    if text is None:
        return None
    return spelling.on_cuda(*((text, None) if target.variable is not None else (None, text)), is_object=target.is_object)


def _text(expression: ast.expr | None) -> str | None:
    return None if expression is None else ast.unparse(expression)


def _literal_test(facts: Facts, copies: list[ast.Call], spelling: Spelling) -> str | None:
    """The test for CUDA of a program that writes ``.cuda()``: none where a copy always happens, else the one in front of all copies."""
    if always_happens(facts, copies):
        return "True"
    return spelling.on_cuda(None, None, is_object=False) if happens_where_available(facts, copies) else None


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
    late = any(getattr(node, "lineno", 0) > last and reads_gradients(facts, node) for node in training.nodes())
    if not (late or _is_watched(facts)) or "unscale_" in facts.tree.calls:
        return None
    found = dict(facts.candidates.all).get(training.node) if isinstance(training.node, LOOPS) else None
    return _READ_LATE if facts.loops.scales(training) or isinstance(found, Candidate) else None


def _is_watched(facts: Facts) -> bool:
    """Whether code of the program's own runs in an optimizer's step, where the scaler's factor would be in the gradients."""
    replaced = (use for use in facts.tree.attributes.get("step", ()) if isinstance(use.ctx, ast.Store))
    return "register_step_pre_hook" in facts.tree.calls or any(facts.optimizers.of(use.value) for use in replaced)


def _late(facts: Facts, call: ast.Call) -> Held | None:
    """Why the parameters may reach the GPU only after the optimizer was made, which torch takes since 2.4."""
    oldest = facts.project.torch
    return None if oldest is None or oldest >= _ANYWHERE or are_moved_before(facts, call) else _LATE


TRANSFORM = Transform.from_module(__name__, __doc__, group="precision", literals=(b"optim",), find=find, since="2.1")
