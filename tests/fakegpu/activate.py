"""Switching the pretend device on and off."""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch
from torch._C import TensorBase
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from typing_extensions import Self

from tests.fakegpu import autocast, cuda, recurrent, storage
from tests.fakegpu.device import GPU, INSIDE, OUTSIDE, SLOT, inside, is_gpu
from tests.fakegpu.tensor import LEGACY_NAMES, FakeGpuTensor, GpuGenerator, run

_ABSENT = object()
Replacement = tuple[Any, str, Any]


class CudaIsFake:
    """Within this context ``cuda`` is the pretend device. Not nestable, one at a time in a process.

    ``capability`` is the compute capability to claim: (8, 0) has bfloat16, (7, 0) has not. Entering raises RuntimeError inside
    another such context and on a CUDA build of PyTorch.
    """

    def __init__(self, capability: tuple[int, int] = (8, 0)) -> None:
        self.capability = capability
        self._originals: list[Replacement] = []

    @property
    def counts(self) -> Counter[str]:
        """What was counted since the context was entered."""
        return GPU.counts

    def __enter__(self) -> Self:
        if GPU.active:
            raise RuntimeError("the fake GPU is already active")
        if torch.backends.cuda.is_built():
            raise RuntimeError("the fake GPU needs a CPU build of PyTorch; this one has CUDA kernels of its own")
        _register_once()
        GPU.reset(self.capability)
        for owner, name, value in _replacements():
            self._originals.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, value)
        self._swapped = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        _device_constructors.cache_clear()  # it lists torch.tensor among others, which is replaced
        GPU.active = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        GPU.active = False
        torch.__future__.set_swap_module_params_on_conversion(self._swapped)
        while self._originals:
            owner, name, value = self._originals.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        _device_constructors.cache_clear()


class _SlotModule:
    """What PyTorch asks of a device module: it becomes ``torch.fakegpu``."""

    def is_initialized(self) -> bool:
        return GPU.active

    def is_available(self) -> bool:
        return GPU.active

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return int(GPU.active)

    def _is_in_bad_fork(self) -> bool:
        return GPU.orphaned

    def manual_seed_all(self, seed: int) -> None:
        GPU.seed(seed)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


@functools.cache
def _register_once() -> tuple[torch.library.Library, ...]:
    """Take the PrivateUse1 slot and register the kernels; PyTorch allows this once in a process and never back."""
    _setup_privateuseone_for_python_backend(SLOT, backend_module=_SlotModule())
    fallbacks, operators = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")

    def kernel(operator: Any, *args: Any, **kwargs: Any) -> Any:
        return run(operator, args, kwargs)

    fallbacks.fallback(kernel, "PrivateUse1")
    fallbacks.fallback(kernel, "CUDA")
    for factory in (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default):
        operators.impl(factory.name().removeprefix("aten::"), functools.partial(kernel, factory), "PrivateUse1")
    autocast.register(operators, fallbacks)
    recurrent.register(operators)
    storage.register()
    os.register_at_fork(after_in_child=GPU.forked)
    return fallbacks, operators


def _replacements() -> Iterator[Replacement]:
    """Everything that is not reached through a dispatch key: owner, name, value."""
    for name, value in cuda.REPLACED.items():
        yield torch.cuda, name, value
    yield from _tensor_methods()
    yield from _constructors()
    yield from _autocast_state()
    yield torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda")
    yield torch.accelerator, "synchronize", cuda.synchronize
    yield torch.accelerator, "empty_cache", cuda.empty_cache
    yield torch.accelerator, "current_stream", cuda.current_stream
    yield torch, "Generator", _Generator
    yield sys.modules[torch.nn.DataParallel.__module__], "scatter_kwargs", _scatter_to_one
    yield torch.utils, "swap_tensors", _swap
    yield torch.storage._StorageBase, "cuda", storage.upload
    yield torch._utils, "_rebuild_tensor", storage.rebuilding(torch._utils._rebuild_tensor)


def _tensor_methods() -> Iterator[Replacement]:
    original_new, original_type = torch.Tensor.new, torch.Tensor.type

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return TensorBase.to(self, *map(inside, args), **{name: inside(value) for name, value in kwargs.items()})

    def move_to_cuda(
        self: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
    ) -> torch.Tensor:
        cuda.set_device(device)
        return TensorBase.to(self, INSIDE, non_blocking=non_blocking, memory_format=memory_format)

    def type_of(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is None and isinstance(self, FakeGpuTensor):
            return f"torch.cuda.{LEGACY_NAMES[self.dtype]}"
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            dtype = cuda.LEGACY_TYPES[dtype.removeprefix("torch.cuda.")]
        if isinstance(dtype, cuda.LegacyTensorType):
            return self.to(OUTSIDE, dtype.dtype, non_blocking)
        return original_type(self, dtype, non_blocking, **kwargs)

    def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(self, FakeGpuTensor):
            return cuda.LEGACY_TYPES[LEGACY_NAMES[self.dtype]](*args)
        return original_new(self, *args, **kwargs)

    yield torch.Tensor, "new", new
    yield torch.Tensor, "to", to
    yield torch.Tensor, "cuda", move_to_cuda
    yield torch.Tensor, "type", type_of
    yield torch.Tensor, "pin_memory", storage.pin_memory
    yield torch.Tensor, "is_pinned", storage.is_pinned


def _constructors() -> Iterator[Replacement]:
    """Functions that build on the host and copy in C++, which cannot copy to ``cuda`` without an index."""

    build, view, convert = torch.tensor, torch.as_tensor, torch.asarray

    def wanted(device: Any) -> Any:
        """``device``, or else that of ``torch.set_default_device`` and ``with torch.device(...)``."""
        defaults = [mode.device for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
        return device if device is not None else defaults[-1] if defaults else None

    def tensor(data: Any, *, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> torch.Tensor:
        if not is_gpu(wanted(device)):
            return build(data, device=wanted(device), requires_grad=requires_grad, **kwargs)
        return build(data, device="cpu", **kwargs).to(INSIDE).requires_grad_(requires_grad)

    def new_tensor(self: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> torch.Tensor:
        return tensor(data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)

    def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
        made = view(data, dtype=dtype)
        return made if wanted(device) is None else made.to(wanted(device))

    def asarray(data: Any, *, device: Any = None, **kwargs: Any) -> torch.Tensor:
        made = convert(data, **kwargs)
        return made if wanted(device) is None else made.to(wanted(device))

    yield torch, "tensor", tensor
    yield torch.Tensor, "new_tensor", new_tensor
    yield torch, "as_tensor", as_tensor
    yield torch, "asarray", asarray


def _autocast_state() -> Iterator[Replacement]:
    """The switches behind ``torch.autocast("cuda")``, turned for the slot. Without a device type they mean CUDA, as always."""

    def for_slot(function: Callable[..., Any], default: tuple[str, ...] = ()) -> Callable[..., Any]:
        @functools.wraps(function)
        def answer(*args: Any) -> Any:
            first, *rest = args or default
            return function(SLOT if first == "cuda" else first, *rest)

        return answer

    yield torch, "is_autocast_enabled", for_slot(torch.is_autocast_enabled, default=("cuda",))
    yield torch, "set_autocast_enabled", for_slot(torch.set_autocast_enabled)
    yield torch, "get_autocast_dtype", for_slot(torch.get_autocast_dtype)
    yield torch, "set_autocast_dtype", for_slot(torch.set_autocast_dtype)
    yield torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cuda")


def _swap(one: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange two tensors' contents and keep the objects.

    ``module.cuda()`` calls this, so that its Parameter objects stay the same as they do on CUDA and an optimizer made before it
    goes on working. PyTorch's own function refuses tensors that a graph knows (``weight_norm``); here such a graph raises
    when it is run backward.
    """

    def stale(grad_outputs: Any) -> None:
        raise RuntimeError("backward through a graph made before its parameters were moved")

    for tensor in (one, other):
        if tensor.is_leaf and tensor.requires_grad:
            torch.autograd.graph.get_gradient_edge(tensor).node.register_prehook(stale)
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    torch._C._swap_tensor_impl(one, other)


def _scatter_to_one(inputs: tuple[Any, ...], kwargs: dict[str, Any], device_ids: Any, dim: int = 0) -> tuple[list[Any], list[Any]]:
    """``nn.DataParallel`` on one device: inputs are moved there and nothing is split."""

    def place(value: Any) -> Any:
        return value.to(OUTSIDE) if isinstance(value, torch.Tensor) else value

    return [pytree.tree_map(place, inputs)], [pytree.tree_map(place, kwargs)]


class _EitherGenerator(type(torch.Generator)):  # type: ignore[misc]
    """Lets ``torch.Generator`` stay a class for ``isinstance`` while its call makes generators of both devices."""

    def __call__(cls, device: Any = "cpu") -> torch._C.Generator:
        return GpuGenerator() if is_gpu(device) else torch._C.Generator(device)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch._C.Generator)


class _Generator(metaclass=_EitherGenerator):
    """``torch.Generator`` while the pretend device is there."""
