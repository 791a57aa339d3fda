"""Let cuDNN measure which convolution algorithm is fastest.

Why:
    cuDNN knows several algorithms for each convolution and takes one by a rule of thumb. With
    ``torch.backends.cudnn.benchmark = True`` it tries them once for each input size and keeps the fastest, which pays
    where the sizes stay the same.

Before:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms

    data = datasets.CIFAR10("data", transform=transforms.ToTensor())
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(7200, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()

After:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms

    data = datasets.CIFAR10("data", transform=transforms.ToTensor())
    torch.backends.cudnn.benchmark = True
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(7200, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()

Safety:
    Effects ``numerics`` and ``memory``: another algorithm sums in another order, and may need a larger workspace. The line
    goes into the script, where it makes its first network, and only where the script trains a network with convolutions on
    CUDA, all of its images have one size that can be read (a crop, a resize to height and width, a dataset of small images),
    no framework steps, and nothing in the program chooses cuDNN's algorithms or asks for determinism.

Reference:
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#enable-cudnn-auto-tuner
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import InsertBefore
from torchfix.facts import Facts
from torchfix.facts.code.calls import argument
from torchfix.transform import Effect, Finding, NoOptions, Transform

_MESSAGE = "cuDNN takes convolution algorithms by a rule of thumb"
_BECAUSE = "the images have one size, and nothing asks for determinism"
_NOTE = "Runs differ in the last digits from one to the next, and the first batches and a smaller last batch are measured anew."
_CROPS = ("CenterCrop", "RandomCrop", "RandomResizedCrop", "FiveCrop", "TenCrop")
_SMALL = ("MNIST", "FashionMNIST", "KMNIST", "QMNIST", "EMNIST", "CIFAR10", "CIFAR100", "SVHN", "STL10", "USPS")
_CHOOSING = ("benchmark", "deterministic", "use_deterministic_algorithms", "set_deterministic")
# What asks for determinism, or for no cuDNN, in other words: of torch, of CUDA, and of libraries.
_WORDS = (
    "cudnn.enabled",
    "CUBLAS_WORKSPACE_CONFIG",
    "set_determinism",
    "enable_full_determinism",
    "deterministic=True",
    "set_deterministic_debug_mode",
)
_VARYING = ("collate_fn", "torchvision.models.detection", "multi_scale", "multiscale")
_CONVOLUTIONS = tuple(f"torch.nn.Conv{transposed}{size}d" for transposed in ("", "Transpose") for size in (1, 2, 3))


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The scripts that train networks with convolutions on images of one size."""
    files = facts.program.files
    if facts.program.in_charge or any(map(_chooses, files)) or any(map(_varies, files)):
        return
    if not any(map(_convolves, files)) or not any(map(_has_one_size, files)) or not any(_trains_on_cuda(facts, other) for other in files):
        return
    place = facts.startup.before_training()
    cudnn = facts.names.spell("torch.backends.cudnn", place) if place is not None else None
    if place is not None and cudnn is not None:
        edit = InsertBefore(place, f"{cudnn}.benchmark = True")
        yield Finding(place, _MESSAGE, (edit,), frozenset({Effect.NUMERICS, Effect.MEMORY}), _BECAUSE, (_NOTE,))


def _trains_on_cuda(script: Facts, facts: Facts) -> bool:
    """Whether a script runs code of a file that trains on CUDA."""
    return any(
        (target := facts.targets.around(training.node)) is not None
        and target.may_be_cuda
        and script.program.runs(facts, training.node.body[0])
        for training in facts.loops.all
    )


def _chooses(facts: Facts) -> bool:
    """Whether a file chooses cuDNN's algorithms, does without it, or asks for determinism."""
    named = any(name in facts.tree.attributes or name in facts.tree.calls for name in _CHOOSING)
    return named or any(word in facts.source.text for word in _WORDS) or _sets_flags(facts)


def _sets_flags(facts: Facts) -> bool:
    return next(facts.calls.to("torch.backends.cudnn.flags", "torch.backends.cudnn.set_flags"), None) is not None


def _convolves(facts: Facts) -> bool:
    return next(facts.calls.to(*_CONVOLUTIONS), None) is not None or any(
        (facts.calls.meaning(call) or "").startswith("torchvision.models.") for calls in facts.tree.calls.values() for call in calls
    )


def _has_one_size(facts: Facts) -> bool:
    """Whether a file brings its images to one size: by a crop, by height and width, or by taking a dataset of small ones."""
    return _takes_small(facts) or next(_fixing(facts), None) is not None


def _takes_small(facts: Facts) -> bool:
    return next(facts.calls.to(*(f"torchvision.datasets.{name}" for name in _SMALL)), None) is not None


def _fixing(facts: Facts) -> Iterator[ast.Call]:
    """The transforms of a file that give all images one size."""
    for name in (*_CROPS, "Resize"):
        for call in facts.calls.to(f"torchvision.transforms.{name}", f"torchvision.transforms.v2.{name}"):
            if name != "Resize" or isinstance(argument(call, "size", 0), (ast.Tuple, ast.List)):
                yield call


def _varies(facts: Facts) -> bool:
    """Whether a file has batches of its own making, detectors, several scales, or images that it leaves as large as they are."""
    if any(word in facts.source.text for word in _VARYING):
        return True
    chains = [call for call in facts.calls.to("torchvision.transforms.Compose", "torchvision.transforms.v2.Compose") if call.args]
    written = [call for call in chains if isinstance(call.args[0], ast.List)]
    fixing = list(_fixing(facts))
    small = _takes_small(facts)
    return not small and bool(fixing) and any(not any(facts.tree.is_within(item, call) for item in fixing) for call in written)


TRANSFORM = Transform.from_module(__name__, __doc__, group="precision", literals=(b"torch",), find=find, since="0.2")
