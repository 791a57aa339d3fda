"""Lay images and the weights of convolutions out in memory with their channels last.

Why:
    The GPU's half-precision units convolve images whose channels lie side by side in memory. torch lays them out plane by
    plane, so cuDNN turns each tensor around before and behind a convolution. With ``torch.channels_last`` for the network
    and for its images nothing is turned around, and layers in between pass the layout on.

Before:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(TensorDataset(torch.ones(8, 3, 8, 8), torch.zeros(8, dtype=torch.long)), batch_size=4)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Flatten()).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        x = x.to(device)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = nn.functional.cross_entropy(model(x), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

After:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(TensorDataset(torch.ones(8, 3, 8, 8), torch.zeros(8, dtype=torch.long)), batch_size=4)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Flatten()).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        x = x.to(device, memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = nn.functional.cross_entropy(model(x), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Safety:
    Off by default: grouped convolutions may become slower. Effects ``numerics`` and ``rng``, without CUDA too: convolutions
    add up in another order, and dropout gives its random numbers to other places. The network is made of two-dimensional
    convolutions and trains in half precision on CUDA; the batches that it is fed are converted with it, or neither is;
    it is converted before DistributedDataParallel wraps it. A ``view`` in its code, which wants the old layout, becomes
    ``reshape``; anything else that reads memory as it lies is held, and so are states of fused optimizers that are loaded.

Reference:
    https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import AddImport, Edit, InsertAfter, InsertBefore, Replace, SetArgument, by_file
from torchfix.facts import Facts
from torchfix.facts.code.calls import keyword, receiver
from torchfix.facts.code.classes import SELF_RETURNING
from torchfix.facts.code.tree import dotted, last_name, walk
from torchfix.facts.half_precision.foreign_code import in_call
from torchfix.facts.half_precision.spelling import Spelling
from torchfix.facts.tensors.channels_last import ChannelsLast, copying_twin
from torchfix.facts.training.images import Trained, copies_of_images, parts, third_dimension, trained_networks
from torchfix.facts.training.models import WRAPPERS, Network
from torchfix.transform import Default, Effect, Finding, Held, NoOptions, Transform

_MESSAGE = "images and weights of convolutions are turned around in memory for each half-precision convolution"
_BECAUSE = "the network is made of two-dimensional convolutions, and the batches that it is fed are converted with it"
_NOTE = "Losses agree with the old ones in their first digits; measure before keeping it, since grouped convolutions may become slower."
_EFFECTS = frozenset({Effect.NUMERICS, Effect.RNG})
_FOREIGN = ("unseen-layer", "custom-operator", "torchscript")
_FULL_PRECISION = Held(
    "full-precision", "the loop computes in float32, where the layout may cost more than it gains", "use mixed precision first"
)
_PARALLEL = Held("data-parallel", "DataParallel copies weights in the old layout", "train with DistributedDataParallel first")
_OTHER_DEVICE = Held("other-device", "the program may run on a device other than CUDA", "convert network and batches under a test for CUDA")
_INPUT = Held(
    "input-not-seen",
    "the batches of images that the network is fed are not seen to be copied to the device in one call",
    "give network and images memory_format=torch.channels_last by hand, both or neither",
)
_MADE = Held("network-not-seen", "the statement that makes the network is not seen", "convert network and images by hand, both or neither")
_FUSED = Held(
    "fused-state",
    "the state of a fused optimizer is loaded, whose numbers lie in the old order and would be given to other weights",
    "convert the network by hand once no old state is loaded",
)


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The networks of two-dimensional convolutions that this file makes and trains on CUDA."""
    if facts.program.frameworks or _chooses(facts):
        return
    for trained in trained_networks(facts):
        if any(_chooses(other) for network in trained.networks for other, _ in parts(network)):
            continue
        place = next(iter(trained.makers), trained.place.after)
        found = _held(facts, trained) or _edits(facts, trained)
        if isinstance(found, Held):
            yield Finding(place, _MESSAGE, effects=_EFFECTS, held=found)
            continue
        own, elsewhere = by_file(facts.path, found)
        yield Finding(place, _MESSAGE, own, _EFFECTS, _BECAUSE, (_NOTE,), elsewhere=elsewhere)


def _chooses(facts: Facts) -> bool:
    """Whether a file chooses a layout for some of its tensors."""
    return "memory_format" in facts.source.text


def _held(facts: Facts, trained: Trained) -> Held | None:
    """What stands in the way of the layout, apart from the batches."""
    for training, _ in trained.runs:
        target = training.facts.targets.around(training.node)
        if target is None or not target.types <= {"cuda", "cpu", "?"}:
            return _OTHER_DEVICE
        if not training.facts.loops.scales(training):
            return _FULL_PRECISION
    for network in trained.networks:
        if "DataParallel" in network.wrappers:
            return _PARALLEL
        layer = third_dimension(network)
        if layer is not None:
            where = f"{layer[0].path}:{layer[1].lineno}"
            return Held("three-dimensions", f"{where} works in three dimensions, and conversion would raise", "convert its other parts")
        foreign = _foreign(network)
        if foreign is not None:
            return foreign
    return _FUSED if any(map(_fuses, facts.program.files)) and any(map(_loads_state, facts.program.files)) else None


def _foreign(network: Network) -> Held | None:
    """Code of a network that is out of sight, and may read memory as it lies."""
    for facts, part in parts(network):
        for call in (node for node in walk(part) if isinstance(node, ast.Call)):
            code = in_call(facts, call)
            if code in _FOREIGN:
                words = f"{facts.path}:{call.lineno} runs {last_name(call.func)}, whose code is out of sight and may read memory as it lies"
                return Held(code, words, "check that it takes images in the channels-last layout")
    return None


def _fuses(facts: Facts) -> bool:
    """Whether a file makes an optimizer that may be fused."""
    made = (call for calls in facts.tree.calls.values() for call in calls if keyword(call, "fused") is not None)
    return any((facts.calls.meaning(call) or "").startswith("torch.optim.") for call in made)


def _loads_state(facts: Facts) -> bool:
    """Whether a file loads the state of an optimizer."""
    sources = (receiver(call) for call in facts.calls.methods("load_state_dict"))
    return any(source is not None and bool(facts.optimizers.of(source)) for source in sources)


def _edits(facts: Facts, trained: Trained) -> list[tuple[str, Edit]] | Held:
    """The change in all of its files, each edit with the path of its file."""
    fed: dict[ast.Call, Facts] = {}
    for training, call in trained.runs:
        copies = copies_of_images(training.facts, call, trained.networks)
        if not copies:
            return _INPUT
        fed |= copies
    for other, call in trained.other_runs():
        fed |= copies_of_images(other, call, trained.networks)
    makers = trained.makers
    if not makers or not all(facts.models.is_module(maker.value) for maker in makers):
        return _MADE
    found: list[tuple[str, Edit]] = [(facts.path, _conversion(facts, maker, dotted(trained.place.variable))) for maker in makers]
    for copy, other in fed.items():
        if keyword(copy, "memory_format") is None:
            found.append((other.path, SetArgument(copy, "memory_format", _format(other, copy))))
    copying = _copying(facts, trained, ChannelsLast(fed))
    if isinstance(copying, Held):
        return copying
    imports = {other.path: AddImport("torch") for other in (facts, *fed.values()) if other.names.spell("torch", other.tree.module) is None}
    return [*found, *copying, *imports.items()]


def _copying(facts: Facts, trained: Trained, layout: ChannelsLast) -> list[tuple[str, Edit]] | Held:
    """What must copy, in the networks' code, where it joins dimensions of images now; held where that cannot be written."""
    inside = {part: other for network in trained.networks for other, part in parts(network)}
    joined = {call: other for part, other in inside.items() for call in layout.needing_order(other, part) if not _only_builds(other, call)}
    found: list[tuple[str, Edit]] = []
    for call, other in joined.items():
        twin = copying_twin(other, call)
        if twin is None or not isinstance(call.func, ast.Attribute):
            return _reads(other, call)
        found.append((other.path, Replace(call.func, f"$tensor.{twin}", {"tensor": call.func.value})))
    for other in facts.program.files:
        for call in layout.needing_order(other, other.tree.module):
            if not any(outer in inside for outer in other.tree.ancestors(call)) and _may_run(other, call):
                return _reads(other, call)
    return found


def _reads(facts: Facts, call: ast.Call) -> Held:
    words = f"{facts.path}:{call.lineno} reads memory as it lies ({last_name(call.func)})"
    return Held("memory-read", words, "write reshape, or call contiguous() first")


def _only_builds(facts: Facts, call: ast.Call) -> bool:
    """Whether a place runs while a network is made, before it is converted."""
    function = facts.tree.function(call)
    return function is not None and function.name == "__init__"


def _may_run(facts: Facts, call: ast.Call) -> bool:
    """Whether a place is in a function that somebody calls, as far as can be seen, or in none."""
    function = facts.tree.function(call)
    return function is None or facts.callers_everywhere(function) != []


def _conversion(facts: Facts, maker: ast.Assign, name: str | None) -> Edit:
    """The conversion of a network where it gets its name: in the move to its device, or as a statement, in front of any wrapper."""
    made, move, wrapped, layout = maker.value, None, False, _format(facts, maker)
    while isinstance(made, ast.Call):
        source, inner = receiver(made), _wrapped(facts, made)
        if source is not None and last_name(made.func) in SELF_RETURNING and facts.models.is_module(source):
            move, made = (made if facts.devices.transfer(made) and last_name(made.func) == "to" else move), source
        elif inner is not None:
            move, made, wrapped = None, inner, True
        else:
            break
    if move is not None:
        return SetArgument(move, "memory_format", layout)
    if not wrapped:
        return InsertAfter(maker, f"{name}.to(memory_format={layout})")
    if isinstance(made, (ast.Name, ast.Attribute)):
        return InsertBefore(maker, f"{dotted(made)}.to(memory_format={layout})")
    return Replace(made, f"$network.to(memory_format={layout})", {"network": made})


def _wrapped(facts: Facts, call: ast.Call) -> ast.expr | None:
    """The network that a call takes to return one that stands for it."""
    definition = facts.names.definition(call.func)
    if facts.calls.meaning(call) not in WRAPPERS and (definition is None or isinstance(definition.node, ast.ClassDef)):
        return None
    return next((item for item in call.args if facts.models.is_module(item)), None)


def _format(facts: Facts, at: ast.AST) -> str:
    return Spelling(facts, at).torch("channels_last")


TRANSFORM = Transform.from_module(__name__, __doc__, group="precision", literals=(b"torch",), find=find, since="1.5", default=Default.OFF)
