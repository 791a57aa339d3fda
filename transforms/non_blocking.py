"""Copy batches to the device without waiting for each copy.

Why:
    ``x.to(device)`` makes the program wait until the copy is done. With ``non_blocking=True`` a copy from pinned memory
    runs beside the program, which goes on to the next copy and to the kernels; these run in the order in which they
    were given to the device, so they see the data.

Before:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(TensorDataset(torch.ones(8, 2), torch.zeros(8)), batch_size=4, pin_memory=True)
    for inputs, targets in loader:
        inputs = inputs.to(device)
        targets = targets.to(device)

After:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(TensorDataset(torch.ones(8, 2), torch.zeros(8)), batch_size=4, pin_memory=True)
    for inputs, targets in loader:
        inputs = inputs.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)

Safety:
    Exact. Only copies of what a DataLoader made in host memory, never towards the host, where values would be read
    before they are there. From memory that is not pinned the copy is as before. An error of a copy surfaces at the next
    place that waits for the device. Where the program may run on a device other than CUDA, whose copies keep another
    order, the flag asks the device for its type, or the finding is held. Held too where the host writes into the tensor
    behind the copy, where the copy itself is timed, on a stream of the program's own, and where the batch may be an
    object whose ``to`` does not know the argument.

Reference:
    https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import SetArgument
from torchfix.facts import Facts
from torchfix.facts.code.calls import CLOCKS, has_stars, is_constant
from torchfix.facts.code.tree import dotted, last_name, walk_here
from torchfix.facts.data.batches import Part
from torchfix.facts.data.traits import Trait
from torchfix.facts.tensors.devices import Transfer
from torchfix.transform import Finding, Held, NoOptions, Transform

_MESSAGE = "the program waits for each copy of a batch to the device"
_STREAMS = ("torch.cuda.stream", "torch.cuda.StreamContext")
# How many arguments by position are too many for non_blocking to be missing.
_POSITIONS = {"to": 3, "cuda": 2, "type": 2}

_OTHER_DEVICE = Held(
    "other-device",
    "the program may run on a device other than CUDA, where the host can overtake the copy",
    'make the device a torch.device, and write non_blocking=device.type == "cuda"',
)
_STREAM = Held("own-stream", "the copy runs on a stream of the program's own", "let the consumer wait for that stream, then add the flag")
_TIMED = Held(
    "timed", "the copy is timed, and the clock would stop before it is done", "call torch.cuda.synchronize() before the clock is read"
)
_WRITTEN = Held("written-later", "the host writes into the tensor behind the copy, which may not be done by then", "write into a clone")
_MADE = Held(
    "pageable-source",
    "the tensor is made of arrays in the loop, in memory that no loader has pinned, so the program waits all the same",
    "let the collate function make the tensors, and pin them in the loader",
)
_OWN_BATCH = Held(
    "own-batch",
    "the loader's batches may be objects of the program's own, whose method may not know the argument",
    "pass non_blocking=True on in that method",
)
_ON_DEVICE = Held(
    "device-batches",
    "the code behind the loader may use an accelerator, and a copy from there to the host must be waited for",
    "let the dataset leave its samples on the host",
)


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    for call in facts.calls.methods("to", "cuda", "type"):
        found = facts.batches.copy(call)
        if found is None or _says_already(call) or not facts.batches.is_repeated(call):
            continue
        transfer, part = found
        held = _obstacle(facts, transfer, part)
        if held is not None:
            yield Finding(call, _MESSAGE, held=held)
            continue
        flag = "True" if _is_safe(facts, transfer) else _asking(facts, transfer)
        yield Finding(call, _MESSAGE, (SetArgument(call, "non_blocking", str(flag)),), because=_because(facts, part))


def _is_safe(facts: Facts, transfer: Transfer) -> bool:
    """Whether the copy surely goes to CUDA or stays on the host."""
    known = transfer.device.types - {"?"} <= {"cuda", "cpu"}
    return known and not ("?" in transfer.device.types and facts.devices.names_others())


def _asking(facts: Facts, transfer: Transfer) -> str | None:
    """The flag that asks a device for its type, None where the target is not surely a device object that can be read twice."""
    name = dotted(transfer.target) if transfer.target is not None else None
    if name is None or transfer.device.is_object is not True or transfer.device.may_be_none or not transfer.device.may_be_cuda:
        return None
    return f"{name}.type == {facts.destinations.quoted('cuda')}"


def _says_already(call: ast.Call) -> bool:
    """Whether the call says itself whether it waits."""
    by_position = len(call.args) >= _POSITIONS[last_name(call.func) or ""] or any(is_constant(item, True) for item in call.args)
    return has_stars(call) or by_position or any(item.arg == "non_blocking" for item in call.keywords)


def _obstacle(facts: Facts, transfer: Transfer, part: Part) -> Held | None:
    """Why the program must go on waiting."""
    call = transfer.call
    if not _is_safe(facts, transfer) and _asking(facts, transfer) is None:
        return _OTHER_DEVICE
    if facts.regions.under(call, _STREAMS):
        return _STREAM
    if _is_timed(facts, call):
        return _TIMED
    if part.is_made:
        return _MADE
    if facts.batches.written_after(transfer) is not None:
        return _WRITTEN
    for loader in part.loaders:
        collated = not is_constant(loader.argument("collate_fn") or ast.Constant(None), None)
        unknown = part.is_whole and collated and not facts.kinds.is_tensor(transfer.source)
        if unknown or loader.facts.datasets.batch_is_own_object(loader):
            return _OWN_BATCH
        may_be_host = "cuda" not in transfer.device.types or len(transfer.device.types) > 1
        if may_be_host and loader.facts.datasets.behind(loader).have(Trait.DEVICE):
            return _ON_DEVICE
    return None


def _is_timed(facts: Facts, call: ast.Call) -> bool:
    """Whether a clock is read before and behind a copy, with nothing but copies between."""
    statement = facts.tree.statement(call)
    block = facts.tree.block(statement)
    index = next(place for place, item in enumerate(block) if item is statement)
    return _meets_clock(facts, block[:index][::-1]) and _meets_clock(facts, block[index + 1 :])


def _meets_clock(facts: Facts, statements: list[ast.stmt]) -> bool:
    """Whether one of these statements reads a clock before another does any work."""
    for statement in statements:
        calls = [node for node in walk_here(statement) if isinstance(node, ast.Call)]
        if any(facts.calls.meaning(node) in CLOCKS for node in calls):
            return True
        if any(facts.devices.transfer(node) is None for node in calls):
            return False
    return False


def _because(facts: Facts, part: Part) -> str:
    loader = part.loaders[0]
    place = f"line {loader.call.lineno}" if loader.facts is facts else f"{loader.facts.path}:{loader.call.lineno}"
    given = loader.argument("pin_memory")
    gain = "which pins them" if given is not None and not is_constant(given, False) else "and gains once that pins them"
    return f"the batches come from the loader at {place}, {gain}; an error of the copy surfaces at the next place that waits"


TRANSFORM = Transform.from_module(__name__, __doc__, group="transfer", literals=(b".to", b".cuda", b".type"), find=find, since="0.4")
