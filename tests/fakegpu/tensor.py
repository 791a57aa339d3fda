"""Tensors of the pretend device, and the kernels that run every operator on them."""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree
from typing_extensions import Self

from tests.fakegpu.device import GPU, INSIDE, OUTSIDE, is_gpu, on_gpu, unlike_the_host

aten = torch.ops.aten

LEGACY_NAMES = {
    torch.float32: "FloatTensor",
    torch.float64: "DoubleTensor",
    torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor",
    torch.uint8: "ByteTensor",
    torch.int8: "CharTensor",
    torch.int16: "ShortTensor",
    torch.int32: "IntTensor",
    torch.int64: "LongTensor",
    torch.bool: "BoolTensor",
}
"""The old class names of tensors by dtype (``torch.cuda.FloatTensor``)."""

_WAITS = {
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique_consecutive",
    "unique_dim",
}
"""Operators whose result, or whose result's shape, the host needs before it can go on."""

_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
"""Operators whose indices may lie on the host."""


class FakeGpuTensor(torch.Tensor):
    """A tensor that says it is on CUDA, around the host tensor ``raw`` that holds its numbers.

    Only this class's kernels touch ``raw``; autograd, views and version counters are PyTorch's own, kept on the wrapper.
    """

    raw: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> Self:
        wrapper: Self = torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), dtype=raw.dtype, storage_offset=raw.storage_offset(), device=INSIDE
        )
        wrapper.raw = raw
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        return run(operator, args, kwargs or {})

    @property
    def device(self) -> torch.device:
        return OUTSIDE

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def data(self) -> torch.Tensor:
        return torch._C.TensorBase.data.__get__(self)

    @data.setter
    def data(self, value: FakeGpuTensor) -> None:
        torch._C.TensorBase.data.__set__(self, value)  # takes over shape and dtype only: a wrapper has no storage of its own
        self.raw = value.raw

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def get_device(self) -> int:
        return OUTSIDE.index

    def is_pinned(self, device: object = None) -> bool:
        return False

    def record_stream(self, stream: object) -> None:
        return None

    def share_memory_(self) -> FakeGpuTensor:
        return self  # as on CUDA, where memory is shared by handle

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def __format__(self, spec: str) -> str:
        if self.dim() == 0 and not getattr(self, "_is_param", False):
            return format(self.detach().item(), spec)
        return object.__format__(self, spec)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        GPU.counts["sync"] += 1
        head = "Parameter containing:\n" if getattr(self, "_is_param", False) else ""
        opening = "tensor("
        numbers = torch._tensor_str._tensor_str(self.raw, len(opening))
        facts = [f"device='{OUTSIDE}'"]
        if self.numel() == 0 and self.dim() != 1:
            facts.append(f"size={tuple(self.shape)}")
        if self.dtype not in (torch.get_default_dtype(), torch.int64, torch.bool):
            facts.append(f"dtype={self.dtype}")
        if self.grad_fn is not None:
            facts.append(f"grad_fn=<{self.grad_fn.name()}>")
        elif self.requires_grad:
            facts.append("requires_grad=True")
        return head + torch._tensor_str._add_suffixes(opening + numbers, facts, len(opening), force_newline=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.")
        twin: torch.Tensor = FakeGpuTensor(copy.deepcopy(self.raw, memo))
        if getattr(self, "_is_param", False):
            twin = torch.nn.Parameter(twin)
        twin.requires_grad_(self.requires_grad)
        if self.grad is not None:
            twin.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = twin
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a CUDA tensor: by its storage, which ``storage.py`` labels ``cuda:0`` in the file."""
        if getattr(self, "_is_param", False):
            return torch._utils._rebuild_parameter, (self.data, self.requires_grad, OrderedDict())
        storage = torch.TypedStorage(wrap_storage=on_gpu(self.raw.untyped_storage()), dtype=self.dtype, _internal=True)
        position = (self.raw.storage_offset(), tuple(self.raw.size()), self.raw.stride())
        return torch._utils._rebuild_tensor_v2, (storage, *position, self.requires_grad, OrderedDict())


class GpuGenerator(torch.Generator):
    """What ``torch.Generator("cuda")`` gives.

    An operator receives another Python object for the same C++ generator, so ``by_address`` remembers which are ours.
    """

    by_address: ClassVar[weakref.WeakValueDictionary[int, GpuGenerator]] = weakref.WeakValueDictionary()

    def __init__(self) -> None:
        self.by_address[self._cdata] = self
        self.manual_seed(0)

    @property
    def device(self) -> torch.device:
        return OUTSIDE

    def manual_seed(self, seed: int) -> GpuGenerator:
        super().manual_seed(unlike_the_host(seed))
        return self


def run(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """One operator with a tensor of the device among its arguments, or with the device as its ``device``."""
    GPU.require()
    name = operator.overloadpacket.__name__
    if name in _BETWEEN_DEVICES:
        return _BETWEEN_DEVICES[name](*args, **kwargs)
    leaves = pytree.tree_leaves((args, kwargs))
    on_device = [leaf for leaf in leaves if isinstance(leaf, FakeGpuTensor)]
    _check_devices(name, args, leaves)
    if on_device and (name in _WAITS or _indexes_by_mask(name, args)):
        GPU.counts["sync"] += 1

    kwargs = dict(kwargs)
    onto_gpu = bool(on_device)
    if kwargs.get("device") is not None:
        onto_gpu = is_gpu(kwargs["device"])
        kwargs["device"] = torch.device("cpu")
    host_args, host_kwargs = pytree.tree_map(_raw, (tuple(args), kwargs))
    if onto_gpu and torch.Tag.nondeterministic_seeded in operator.tags and not _own_generator(leaves):
        with GPU.drawing():
            result = operator(*host_args, **host_kwargs)
    else:
        result = operator(*host_args, **host_kwargs)

    if operator._schema.is_mutable:
        for tensor in on_device:
            _follow_shape(tensor)
    wrapper_of = {id(tensor.raw): tensor for tensor in on_device}

    def back(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not onto_gpu:
            return value
        return wrapper_of[id(value)] if id(value) in wrapper_of else FakeGpuTensor(value)

    return pytree.tree_map(back, result)


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, FakeGpuTensor) else value


def _to_copy(source: torch.Tensor, *, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> torch.Tensor:
    was_gpu = isinstance(source, FakeGpuTensor)
    becomes_gpu = was_gpu if device is None else is_gpu(device)
    kwargs.pop("pin_memory", None)
    _count_copy(source, was_gpu, becomes_gpu, non_blocking)
    copied = aten._to_copy(_raw(source), **kwargs)
    return FakeGpuTensor(copied) if becomes_gpu else copied


def _copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _count_copy(source, isinstance(source, FakeGpuTensor), isinstance(target, FakeGpuTensor), non_blocking)
    _raw(target).copy_(_raw(source))
    return target


def _pack_padded_sequence(padded: FakeGpuTensor, lengths: torch.Tensor, batch_first: bool) -> tuple[FakeGpuTensor, torch.Tensor]:
    data, batch_sizes = aten._pack_padded_sequence(padded.raw, lengths, batch_first)
    return FakeGpuTensor(data), batch_sizes


_BETWEEN_DEVICES: dict[str, Callable[..., Any]] = {
    "_to_copy": _to_copy,
    "copy_": _copy_,
    "_pack_padded_sequence": _pack_padded_sequence,
}
"""Operators that by nature have tensors on both sides."""


def _count_copy(source: torch.Tensor, from_gpu: bool, to_gpu: bool, non_blocking: bool) -> None:
    if from_gpu == to_gpu:
        return
    direction = "h2d" if to_gpu else "d2h"
    GPU.counts[direction] += 1
    if non_blocking:
        GPU.counts[f"{direction}_non_blocking"] += 1
    if to_gpu and source.is_pinned():
        GPU.counts["h2d_pinned"] += 1


def _check_devices(name: str, args: Sequence[Any], leaves: Sequence[Any]) -> None:
    """Raise as CUDA does where tensors of both devices meet; a host tensor without dimensions counts as a number.

    An index may come from the host, from where it is copied.
    """
    if name == "_pack_padded_sequence_backward":  # the sizes of its batches stay on the host
        return
    if name in _INDEXING:
        indices = [index for index in args[1] if index is not None]
        if not isinstance(args[0], FakeGpuTensor) and any(isinstance(index, FakeGpuTensor) for index in indices):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        for index in indices:
            _count_copy(index, isinstance(index, FakeGpuTensor), to_gpu=True, non_blocking=False)
        leaves = pytree.tree_leaves((args[0], args[2:]))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    from_host = [tensor for tensor in tensors if not isinstance(tensor, FakeGpuTensor)]
    if len(from_host) < len(tensors) and any(tensor.dim() for tensor in from_host):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({name})")


def _indexes_by_mask(name: str, args: Sequence[Any]) -> bool:
    """Whether an index is a mask: its number of hits decides the result's shape."""
    return name in _INDEXING and any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _own_generator(leaves: Sequence[Any]) -> bool:
    """Whether the caller brought a generator of the device. Raises RuntimeError for one of the host, as CUDA does."""
    generators = [leaf for leaf in leaves if isinstance(leaf, torch._C.Generator)]
    if any(generator._cdata not in GpuGenerator.by_address for generator in generators):
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    return bool(generators)


def _follow_shape(tensor: FakeGpuTensor) -> None:
    """Give the wrapper its raw tensor's shape after an operator has changed that in place (``squeeze_``, ``resize_``)."""
    if tensor.size() != tensor.raw.size() or tensor.stride() != tensor.raw.stride():
        torch._C.TensorBase.data.__set__(tensor, FakeGpuTensor(tensor.raw))
