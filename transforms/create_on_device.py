"""Create tensors on the device that they are moved to.

Why:
    A factory without ``device=`` fills host memory; ``.cuda()`` or ``.to(device)`` behind it then allocates a second
    time and copies, and the copy waits until the device has caught up. With ``device=`` the device fills its own memory.

Before:
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    hidden = torch.zeros(2, 8).to(device)
    steps = torch.arange(8).unsqueeze(0).to(device)

After:
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    hidden = torch.zeros(2, 8, device=device)
    steps = torch.arange(8, device=device).unsqueeze(0)

Safety:
    Exact where every device makes the same values: fixed fills, whole-number ranges, copies of given data. Effect
    ``rng`` where random numbers are drawn: the device has a generator of its own, so that a run with a fixed seed gives
    other numbers, and later draws on the host shift. Effect ``numerics`` where the device computes the values with a
    kernel of its own (spacings, windows). Held where a tensor that requires a gradient would become a leaf, where the
    target is not surely a device, and where the code runs in a loader's worker.

Reference:
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html ("Create tensors directly on the target device")
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import AddImport, Edit, Remove, RemoveArgument, Replace, SetArgument
from torchfix.facts import Facts
from torchfix.facts.code.calls import argument, is_constant
from torchfix.facts.tensors.creations import LEGACY, Agreement, Creation, Given
from torchfix.facts.tensors.destinations import Destination
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

# Factories whose values have every dtype's own exact form, so that a cast behind them is a ``dtype=`` of theirs.
_DTYPE_FREE = ("zeros", "ones", "empty", "eye", "zeros_like", "ones_like", "empty_like")
_DEFAULTS = ("set_default_dtype", "set_default_tensor_type")
_EFFECTS: dict[Agreement, frozenset[Effect]] = {
    Agreement.EXACT: frozenset(),
    Agreement.ROUNDED: frozenset({Effect.NUMERICS}),
    Agreement.RANDOM: frozenset({Effect.RNG}),
}
_BECAUSE = {
    Agreement.EXACT: "the values are the same on every device",
    Agreement.ROUNDED: "the device computes the values with a kernel of its own",
    Agreement.RANDOM: "the device draws from a generator of its own",
}
_NOTES = {
    Agreement.EXACT: (),
    Agreement.ROUNDED: ("The values may differ from the host's in their last bit.",),
    Agreement.RANDOM: ("With a fixed seed the device draws other random numbers than the host did, and later draws on the host shift.",),
}

_LEAF = Held(
    "requires-grad",
    "moved, the tensor is no leaf of the graph; created on the device it would be one, and start to train",
    "write requires_grad_() behind the move, or device= in the factory, whichever is meant",
)
_HIDDEN = Held("hidden-arguments", "** may hand over a device or a generator", "write the arguments out")
_FIXED = {
    "out": Held("out-argument", "out= names the tensor that is written, and its device", "create that tensor on the device"),
    "generator": Held("generator", "the generator belongs to the host", "make the generator for the device as well"),
    "pin_memory": Held("pinned", "pin_memory= needs host memory", "drop it where the copy need not run beside the program"),
    "device": Held("placed-twice", "the factory names one device and the move another", "keep the device that is meant"),
}
_UNKNOWN = Held(
    "unknown-device",
    "the target is not surely a device: .to() takes dtypes and tensors too, and .cuda() takes None",
    "annotate the variable as torch.device",
)
_WORKER = Held(
    "in-worker",
    "a loader's worker process runs this code, and CUDA must not be used in a forked one",
    "leave the tensor on the host, and move the batch in the loop that takes it",
)
_AMBIGUOUS = Held(
    "sizes-or-data",
    "the constructor takes sizes or data, and which of the two this is cannot be told",
    "write torch.tensor(..., dtype=, device=) for data, torch.empty(..., dtype=, device=) for sizes",
)
_DEFAULT_DTYPE = Held("default-dtype", "the program changes the default dtype, which torch.Tensor follows", "use torch.tensor with dtype=")
_BROADCAST = Held(
    "broadcast-view",
    "moved, each expanded element has memory of its own; created on the device they would share it, and the tensor may be written",
    "write .contiguous() behind expand, or device= where nothing writes into the tensor",
)
_FLOAT64 = Held(
    "float64",
    "the program may run on a device without float64, and the values may be float64 until they are cast",
    "write dtype= in the factory",
)
_CHOSEN = Held(
    "chosen-type",
    "it makes its tensors where they are used already, CUDA's or the host's, in a form that is out of use",
    "choose a torch.device once, and write torch.full, torch.empty or torch.tensor with device=",
)
_UNSET = Held("device-not-set", "self.device is the host's until Lightning has moved the module", "use register_buffer")


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    for creation in (*facts.creations.moved(), *facts.creations.legacy_on_device()):
        destination = facts.destinations.of(creation)
        if destination is None or _is_there(facts, creation, destination):
            continue
        held = _obstacle(facts, creation, destination)
        if held is not None:
            yield Finding(creation.factory, _message(facts, creation), held=held)
            continue
        agreement = facts.creations.agreement(creation)
        yield Finding(
            creation.factory,
            _message(facts, creation),
            tuple(_edits(facts, creation, destination)),
            _EFFECTS[agreement],
            _BECAUSE[agreement],
            _NOTES[agreement],
        )


def _message(facts: Facts, creation: Creation) -> str:
    written = facts.source.segment(creation.factory.func)
    if creation.is_chosen:
        return f"{written} stands for one of two constructors from before device="
    if creation.move is None:
        return f"{written} is a constructor from before device=, which ties the code to CUDA"
    return f"{written} fills host memory, and a blocking copy moves it to the device"


def _is_there(facts: Facts, creation: Creation, destination: Destination) -> bool:
    """Whether the factory names the move's device already."""
    given = argument(creation.factory, "device")
    return given is not None and facts.source.segment(given) == destination.device


def _obstacle(facts: Facts, creation: Creation, destination: Destination) -> Held | None:
    """Why the factory must not be given the device."""
    factory = creation.factory
    if creation.is_chosen:
        return _CHOSEN
    if any(item.arg is None for item in factory.keywords):
        return _HIDDEN
    if facts.creations.requires_grad(creation):
        return _LEAF
    for name, held in _FIXED.items():
        given = argument(factory, name)
        if given is not None and not is_constant(given, None) and not is_constant(given, False):
            return held
    if destination.device is None:
        return _UNKNOWN
    if facts.workers.run(factory):
        return _WORKER
    if creation.is_legacy and facts.creations.given(factory) is None:
        return _AMBIGUOUS
    if creation.name == "Tensor" and any(name in item.tree.calls for item in facts.program.holding(*_DEFAULTS) for name in _DEFAULTS):
        return _DEFAULT_DTYPE
    if creation.step("expand", "expand_as") is not None and creation.move is not None and not facts.writes.is_only_read(creation.move):
        return _BROADCAST
    elsewhere = destination.known is not None and not destination.known.may_only_be("cuda", "cpu")
    if elsewhere and (destination.dtype is not None or creation.casts) and facts.creations.may_be_float64(creation):
        return _FLOAT64
    return _UNSET if _is_before_lightning_moves(facts, creation) else None


def _is_before_lightning_moves(facts: Facts, creation: Creation) -> bool:
    """Whether the device is a LightningModule's ``self.device`` while that is still the host's."""
    given = argument(creation.move, "device", 0) if creation.move is not None else None
    function = facts.tree.function(creation.factory)
    if not (isinstance(given, ast.Attribute) and isinstance(given.value, ast.Name) and facts.is_self(given.value)):
        return False
    early = function is not None and function.name in ("__init__", "setup", "prepare_data", "configure_model")
    return early and facts.kinds.has_device(given.value)


def _edits(facts: Facts, creation: Creation, destination: Destination) -> Iterator[Edit]:
    factory, move = creation.factory, creation.move
    if creation.is_legacy:
        yield from _modern(facts, creation)
    folded = destination.dtype is not None and _takes_dtype(creation)
    if folded:
        yield SetArgument(factory, "dtype", str(destination.dtype))
    yield SetArgument(factory, "device", str(destination.device))
    if destination.needs_torch:
        yield AddImport("torch")
    if move is None:
        return
    if (destination.dtype is not None and not folded) or argument(move, "memory_format") is not None:
        yield from _only_cast(facts, move)
    elif creation.first is not None:
        yield Remove(facts.tree.statement(move))
    else:
        assert isinstance(move.func, ast.Attribute)
        yield Replace(move, "$made", {"made": move.func.value})


def _takes_dtype(creation: Creation) -> bool:
    """Whether the dtype of a move can be the factory's own, bit for bit."""
    untouched = not creation.casts and creation.step("fill_") is None
    return creation.name in _DTYPE_FREE and untouched and argument(creation.factory, "dtype") is None


def _only_cast(facts: Facts, move: ast.Call) -> Iterator[Edit]:
    """Leave the dtype and the memory format of a move, and take its device away."""
    given = argument(move, "device", 0)
    if facts.destinations.is_like_another(move):
        return  # it casts too, and finds the device right
    by_keyword = any(item.arg == "device" for item in move.keywords)
    if given is not None:
        yield RemoveArgument(move, "device" if by_keyword else 0)
    for item in move.keywords:
        if item.arg in ("non_blocking", "copy"):
            yield RemoveArgument(move, item.arg)


def _modern(facts: Facts, creation: Creation) -> Iterator[Edit]:
    """The constructor of today that makes what a legacy one makes."""
    factory, dtype = creation.factory, LEGACY[creation.name]
    inner = creation.steps[0] if creation.steps else None
    zeroed = inner if inner is creation.step("zero_") else None
    sizes = "zeros" if zeroed is not None else "empty"
    name = "tensor" if facts.creations.given(factory) is Given.DATA else sizes
    spelled = {item: facts.names.spell(f"torch.{item}", factory) for item in (name, dtype)}
    if None in spelled.values():
        yield AddImport("torch")
    yield Replace(factory.func, spelled[name] or f"torch.{name}")
    yield SetArgument(factory, "dtype", spelled[dtype] or f"torch.{dtype}")
    if zeroed is not None and name == "zeros":
        yield Replace(zeroed, "$made", {"made": factory})


TRANSFORM = Transform.from_module(
    __name__,
    __doc__,
    group="device",
    literals=(b".cuda", b".to", b".type_as"),
    find=find,
    since="0.4",
)
