"""Let float32 matrix products use TensorFloat-32.

Why:
    Since torch 1.12 float32 matrix products leave the tensor cores of an Ampere or newer GPU idle unless they are asked.
    With ``torch.set_float32_matmul_precision("high")`` they multiply numbers of 10 bits of mantissa and add them up in
    float32, several times faster.

Before:
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.LBFGS(model.parameters())
    for x in torch.ones(2, 4, 8):
        loss = model(x.to(device)).pow(2).mean()
        loss.backward()
        optimizer.step(lambda: loss)

After:
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.LBFGS(model.parameters())
    for x in torch.ones(2, 4, 8):
        loss = model(x.to(device)).pow(2).mean()
        loss.backward()
        optimizer.step(lambda: loss)

Safety:
    Effect ``numerics``, on GPUs of compute capability 8 and more only. The line goes into the script, where it makes its
    first network, and only where the program trains on CUDA in float32, no precision is chosen anywhere in it, and mixed
    precision, which gains more, cannot be had for all of its training loops.

Reference:
    https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html
"""

from __future__ import annotations

from collections.abc import Iterator

from torchfix.edits import InsertBefore
from torchfix.facts import Facts
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.regions import AUTOCAST
from torchfix.transform import Effect, Finding, NoOptions, Transform

_MESSAGE = "float32 matrix products leave the GPU's tensor cores idle"
_BECAUSE = "the program trains on CUDA in float32 and chooses no precision of its own"
_NOTE = 'Products keep 10 bits of mantissa, sums stay float32; take the lines out, or write "highest", for the old digits.'
_SWITCHES = ("allow_tf32", "fp32_precision", "set_float32_matmul_precision", "half", "bfloat16", "double", "float64", "complex64")
_WORDS = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32", "set_default_dtype", "set_default_tensor_type")


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The scripts whose programs train in float32 on CUDA."""
    place = facts.startup.before_training()
    if place is None or not any(_trains_in_float32(other) for other in facts.program.files) or any(map(_chooses, facts.program.files)):
        return
    if facts.program.frameworks:
        return
    torch = facts.names.spell("torch", place)
    if torch is not None:
        code = f'if {torch}.cuda.is_available():\n    {torch}.set_float32_matmul_precision("high")'
        yield Finding(place, _MESSAGE, (InsertBefore(place, code),), frozenset({Effect.NUMERICS}), _BECAUSE, (_NOTE,))


def _trains_in_float32(facts: Facts) -> bool:
    """Whether a file has a training loop on CUDA that mixed precision cannot serve."""
    return any(isinstance(found, Obstacle) and found.code != "not-cuda" for _, found in facts.candidates.all)


def _chooses(facts: Facts) -> bool:
    """Whether a file has a word about precision: a switch, autocast, another type of number."""
    names = any(name in facts.tree.attributes or name in facts.tree.calls for name in _SWITCHES)
    return names or any(word in facts.source.text for word in _WORDS) or next(facts.calls.to(*AUTOCAST), None) is not None


TRANSFORM = Transform.from_module(__name__, __doc__, group="precision", literals=(b"torch",), find=find, since="1.12")
