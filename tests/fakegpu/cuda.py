"""What the module ``torch.cuda`` answers while the pretend device is there. Each name here replaces its namesake."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from types import SimpleNamespace, TracebackType
from typing import Any

import torch

from tests.fakegpu.device import GPU, OUTSIDE, is_gpu
from tests.fakegpu.tensor import LEGACY_NAMES, FakeGpuTensor

_MEMORY = 16 * 2**30


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return GPU.touched


def init() -> None:
    GPU.require()


def _lazy_init() -> None:
    GPU.require()


def _is_in_bad_fork() -> bool:
    return GPU.orphaned


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def set_device(device: Any) -> None:
    _check(device)


class device(contextlib.AbstractContextManager[None]):
    """``with torch.cuda.device(0):``"""

    def __init__(self, device: Any) -> None:
        _check(device)
        self.idx = 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None


def get_device_name(device: Any = None) -> str:
    return "Fake GPU"


def get_device_capability(device: Any = None) -> tuple[int, int]:
    return GPU.capability


def get_device_properties(device: Any = None) -> SimpleNamespace:
    major, minor = GPU.capability
    return SimpleNamespace(name=get_device_name(), major=major, minor=minor, total_memory=_MEMORY, multi_processor_count=1)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return including_emulation or GPU.capability >= (8, 0)


def manual_seed(seed: int) -> None:
    GPU.seed(seed)


def manual_seed_all(seed: int) -> None:
    GPU.seed(seed)


def get_rng_state(device: Any = "cuda") -> torch.Tensor:
    return GPU.stream.get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state()]


def set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    GPU.stream.set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for state in new_states:
        set_rng_state(state)


def synchronize(device: Any = None) -> None:
    GPU.require()
    GPU.counts["sync"] += 1


def empty_cache() -> None:
    GPU.counts["empty_cache"] += 1


def ipc_collect() -> None:
    return None


def reset_peak_memory_stats(device: Any = None) -> None:
    return None


def memory_allocated(device: Any = None) -> int:
    return 0


def memory_reserved(device: Any = None) -> int:
    return 0


def max_memory_allocated(device: Any = None) -> int:
    return 0


def max_memory_reserved(device: Any = None) -> int:
    return 0


def mem_get_info(device: Any = None) -> tuple[int, int]:
    return _MEMORY, _MEMORY


class Stream:
    """A stream on which everything is already done."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = OUTSIDE

    def wait_stream(self, stream: Any) -> None:
        return None

    def wait_event(self, event: Any) -> None:
        return None

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        synchronize()

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False


class Event:
    """A point in time on the host's clock."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.seconds: float | None = None

    def record(self, stream: Any = None) -> None:
        self.seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        return None

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        if self.seconds is None or end_event.seconds is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event.seconds - self.seconds) * 1000


_STREAM = Stream()


def current_stream(device: Any = None) -> Stream:
    return _STREAM


def default_stream(device: Any = None) -> Stream:
    return _STREAM


def stream(stream: Stream | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def is_current_stream_capturing() -> bool:
    return False


class LegacyTensorType(type):
    """The class of ``torch.cuda.FloatTensor`` and its like: a constructor, a dtype and an ``isinstance`` test in one."""

    dtype: torch.dtype

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, FakeGpuTensor) and value.dtype is cls.dtype

    def __call__(cls, *args: Any) -> torch.Tensor:
        if args and isinstance(args[0], (list, tuple)) and not isinstance(args[0], torch.Size):
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        if args and not isinstance(args[0], (int, torch.Size)):
            return torch.as_tensor(args[0], dtype=cls.dtype, device="cuda")
        return torch.empty(*args or (0,), dtype=cls.dtype, device="cuda")


LEGACY_TYPES = {name: LegacyTensorType(name, (), {"dtype": dtype}) for dtype, name in LEGACY_NAMES.items()}


def _check(device: Any) -> None:
    is_gpu(f"cuda:{device}" if isinstance(device, int) and device >= 0 else device)


REPLACED = {
    name: value
    for name, value in globals().items()
    if getattr(value, "__module__", None) == __name__ and not isinstance(value, LegacyTensorType) and hasattr(torch.cuda, name)
} | LEGACY_TYPES
"""Every name of ``torch.cuda`` that this module answers for."""
