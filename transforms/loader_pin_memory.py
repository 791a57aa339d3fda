"""Pin the memory of batches that are copied to a GPU.

Why:
    The driver copies to a GPU from page-locked memory only. A batch in ordinary, pageable memory is first copied into
    a page-locked buffer of the driver's, on the thread that trains, and the copy cannot run beside the program.

Before:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(TensorDataset(torch.zeros(8, 3)), batch_size=4)
    for (x,) in loader:
        x = x.to(device)

After:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(TensorDataset(torch.zeros(8, 3)), batch_size=4, pin_memory=True)
    for (x,) in loader:
        x = x.to(device)

Safety:
    Exact: the same values in other memory. Done where parts of the batch go to a device that may be CUDA as they come
    from the loader, and where the code behind the loader is seen to leave dense tensors on the CPU. The batches in
    flight stay in page-locked host memory, which cannot be swapped. Without CUDA torch warns once and pins nothing.

Reference:
    https://docs.pytorch.org/docs/stable/data.html#memory-pinning,
    https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

from collections.abc import Iterator

from torchfix.edits import SetArgument
from torchfix.facts import Facts
from torchfix.facts.code.calls import is_constant
from torchfix.facts.data.consumers import Consumers
from torchfix.facts.data.fitness import obstacle_to_pinning
from torchfix.transform import Finding, Held, NoOptions, Transform

_MESSAGE = "batches are copied from pageable memory"
_EXPLICIT = Held("explicit", "pin_memory=False is written out, so somebody may have had a reason", "remove the argument to have it judged")


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    for loader in facts.loaders.all:
        given = loader.setting("pin_memory")
        if loader.hides_arguments or not (given is None or is_constant(given, False)):
            continue
        moves = [(there, move) for there, move in Consumers(loader).moves() if move.device.may_be_cuda]
        if not moves:
            continue
        obstacle = obstacle_to_pinning(loader, moves) if given is None else None
        if given is not None or obstacle is not None:
            held = Held(obstacle.code, obstacle.text, obstacle.help) if obstacle is not None else _EXPLICIT
            yield Finding(loader.call, _MESSAGE, held=held)
            continue
        there, move = moves[0]
        yield Finding(
            loader.call,
            _MESSAGE,
            (SetArgument(loader.call, "pin_memory", "True"),),
            because=f"parts of the batch go to a device at {there.path}:{move.call.lineno}, and all code behind the loader leaves them"
            " on the CPU; the batches in flight take page-locked host memory",
        )


TRANSFORM = Transform.from_module(__name__, __doc__, group="data", literals=(b"DataLoader",), find=find, since="0.2")
