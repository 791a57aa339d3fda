"""Where a storage lives: page-locked host memory, and files that look as if a GPU had written them.

A storage of the device carries the label ``cuda:0`` into the file, so that a checkpoint must be read with ``map_location`` on a
machine without CUDA, and comes back on the device where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.fakegpu.device import GPU, OUTSIDE, is_gpu, is_on_gpu, on_gpu
from tests.fakegpu.tensor import FakeGpuTensor

_BEFORE_THE_CPU = 5
"""Priority among PyTorch's location handlers; its own for the CPU, which would claim our storages, has 10."""


def upload(storage: torch.UntypedStorage, device: object = None, non_blocking: bool = False) -> torch.UntypedStorage:
    """``storage.cuda()``, as used in ``map_location`` functions."""
    if is_on_gpu(storage):
        return storage
    GPU.require()
    GPU.counts["h2d"] += 1
    return on_gpu(storage.clone())


def pin_memory(tensor: torch.Tensor, device: object = None) -> torch.Tensor:
    """``Tensor.pin_memory``: a copy in memory that counts as page-locked. Raises RuntimeError for a tensor of the device."""
    if isinstance(tensor, FakeGpuTensor):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")  # noqa: TRY004, as PyTorch
    if is_pinned(tensor):
        return tensor
    copied = tensor.clone()
    copied.untyped_storage().page_locked = True  # type: ignore[attr-defined]
    GPU.counts["pin"] += 1
    return copied


def is_pinned(tensor: torch.Tensor, device: object = None) -> bool:
    """``Tensor.is_pinned``; a view of pinned memory is pinned too."""
    return getattr(tensor.untyped_storage(), "page_locked", False)


def rebuilding(rebuild: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """PyTorch's function that makes a tensor over a storage read from a file, taught to wrap ours."""

    def rebuild_on_its_device(storage: Any, offset: int, size: Any, stride: Any) -> torch.Tensor:
        tensor = rebuild(storage, offset, size, stride)
        return FakeGpuTensor(tensor) if is_on_gpu(storage._untyped_storage) else tensor

    return rebuild_on_its_device


def _label(storage: Any) -> str | None:
    return str(OUTSIDE) if is_on_gpu(storage) else None


def _restore(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    return upload(storage) if GPU.active and is_gpu(location) else None


def register() -> None:
    """Join PyTorch's list of storage locations, once in a process."""
    torch.serialization.register_package(_BEFORE_THE_CPU, _label, _restore)
