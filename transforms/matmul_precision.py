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
    first network, and only where the script trains on CUDA in float32, its networks have more matrix products than the last
    layer behind convolutions, no precision is chosen anywhere in it, no framework steps, and mixed precision, which gains
    more, cannot be had for all of its training loops.

Reference:
    https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from torchfix.edits import InsertBefore
from torchfix.facts import Facts
from torchfix.facts.code.calls import receiver
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.regions import AUTOCAST
from torchfix.transform import Effect, Finding, NoOptions, Transform

_MESSAGE = "float32 matrix products leave the GPU's tensor cores idle"
_BECAUSE = "the program trains on CUDA in float32 and chooses no precision of its own"
_NOTE = 'Products, those of metrics too, keep 10 bits of mantissa, sums stay float32; remove the lines, or write "highest", to undo it.'
_SWITCHES = ("allow_tf32", "fp32_precision", "set_float32_matmul_precision")
_WORDS = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32", "set_default_dtype", "set_default_tensor_type")
_OTHER_TYPES = ("half", "float16", "bfloat16", "double", "float64", "DoubleTensor", "complex64", "complex128", "cfloat", "cdouble")
# cuDNN computes convolutions, and the recurrent layers that are not cells, in TensorFloat-32 as it is.
_CONVOLUTIONS = tuple(f"torch.nn.Conv{transposed}{size}d" for transposed in ("", "Transpose") for size in (1, 2, 3))
_LAYERS = ("Bilinear", "MultiheadAttention", "Transformer", "RNNCell", "LSTMCell", "GRUCell")
_PRODUCTS = ("matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "tensordot", "linear", "scaled_dot_product_attention")


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The scripts whose programs train in float32 on CUDA."""
    files = facts.program.files
    if facts.program.in_charge or any(map(_chooses, files)) or (any(map(_convolves, files)) and not any(map(_multiplies, files))):
        return
    place = facts.startup.before_training()
    if place is None or not any(_trains_in_float32(facts, other) for other in files):
        return
    torch = facts.names.spell("torch", place)
    if torch is not None:
        code = f'if {torch}.cuda.is_available():\n    {torch}.set_float32_matmul_precision("high")'
        yield Finding(place, _MESSAGE, (InsertBefore(place, code),), frozenset({Effect.NUMERICS}), _BECAUSE, (_NOTE,))


def _trains_in_float32(script: Facts, facts: Facts) -> bool:
    """Whether a script runs a training loop of a file, on CUDA, that mixed precision cannot serve."""
    found = (loop for loop, judged in facts.candidates.all if isinstance(judged, Obstacle) and judged.code != "not-cuda")
    return any(script.program.runs(facts, loop) for loop in found)


def _chooses(facts: Facts) -> bool:
    """Whether a file has a word about precision: a switch, autocast, another type of number."""
    tree = facts.tree
    if any(name in tree.attributes or name in tree.calls for name in _SWITCHES) or any(word in facts.source.text for word in _WORDS):
        return True
    named = (use for name in _OTHER_TYPES for use in tree.attributes.get(name, ()))
    if any((facts.names.qualified(use) or "").startswith("torch.") for use in named):
        return True
    converted = (receiver(call) for call in facts.calls.methods("double"))  # a count or a metric may be: a network is float64 code
    if any(source is not None and facts.models.is_module(source) for source in converted):
        return True
    return any(True for _ in facts.calls.methods("half", "bfloat16")) or next(facts.calls.to(*AUTOCAST), None) is not None


def _convolves(facts: Facts) -> bool:
    return next(facts.calls.to(*_CONVOLUTIONS), None) is not None


def _multiplies(facts: Facts) -> bool:
    """Whether a file has matrix products, more than one layer behind convolutions."""
    tree = facts.tree
    if any(name in tree.calls for name in _PRODUCTS) or any(name.startswith(_LAYERS) for name in tree.calls):
        return True
    linear = Counter(tree.function(call) for call in tree.calls.get("Linear", ()))
    return any(count > 1 for count in linear.values()) or any(isinstance(node, ast.MatMult) for node in ast.walk(tree.module))


TRANSFORM = Transform.from_module(__name__, __doc__, group="precision", literals=(b"torch",), find=find, since="1.12")
