"""The one pretend device: what it is called, what was counted on it, and its random stream."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

SLOT = "fakegpu"
"""The name under which PyTorch's C++ side knows the device."""

INSIDE = torch.device("privateuseone", 0)
"""The device of the slot, as PyTorch's C++ side sees it."""

OUTSIDE = torch.device("cuda", 0)
"""The device as Python code sees it."""

_FIRST_SEED = 4321
_UNLIKE_THE_HOST = 0x5EED


@dataclass
class Gpu:
    """What the device knows about itself. There is one, because PyTorch's kernels are global to the process.

    ``capability`` is the compute capability, (8, 0) and later meaning native bfloat16. ``touched`` says that this process has used
    the device, ``orphaned`` that it is a fork of one that had: CUDA cannot be used there.
    """

    active: bool = False
    touched: bool = False
    orphaned: bool = False
    capability: tuple[int, int] = (8, 0)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    stream: torch.Generator = field(default_factory=torch.Generator)

    def reset(self, capability: tuple[int, int]) -> None:
        """Become a fresh device: nothing counted, the random stream at its start."""
        self.touched = self.orphaned = False
        self.capability = capability
        self.counts = collections.Counter()
        self.seed(_FIRST_SEED)

    def seed(self, seed: int) -> None:
        """Start the random stream anew. As with CUDA, a seed does not give the numbers that it gives on the host."""
        self.stream.manual_seed(unlike_the_host(seed))

    def require(self) -> None:
        """Note a use of the device, or raise what PyTorch raises where CUDA cannot be used."""
        if not self.active:
            raise AssertionError("Torch not compiled with CUDA enabled")
        if self.orphaned:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"
            )
        self.touched = True

    def forked(self) -> None:
        """Called in the child after a fork."""
        self.orphaned = self.touched

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Let host kernels draw from the device's random stream and leave the host's own as it was."""
        with _DRAWING:
            host = torch.get_rng_state()
            torch.set_rng_state(self.stream.get_state())
            try:
                yield
            finally:
                self.stream.set_state(torch.get_rng_state())
                torch.set_rng_state(host)


GPU = Gpu()
_DRAWING = threading.Lock()


def unlike_the_host(seed: int) -> int:
    """The seed that a host generator needs in order to play the device's stream for ``seed``."""
    return (int(seed) ^ _UNLIKE_THE_HOST) & 0xFFFFFFFF


def is_gpu(device: object) -> bool:
    """Whether a value given as a device means the pretend one. Raises RuntimeError for a second CUDA device."""
    if isinstance(device, str):
        if device.split(":")[0] not in ("cuda", SLOT):
            return False
        device = torch.device(device)
    if not isinstance(device, torch.device) or device.type not in ("cuda", SLOT):
        return False
    if device.index:
        raise RuntimeError("CUDA error: invalid device ordinal")
    return True


def inside(device: object) -> object:
    """``device`` as C++ needs it: the slot for CUDA, anything else unchanged."""
    return INSIDE if is_gpu(device) else device


def on_gpu(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Mark a host storage as one of the device."""
    storage.on_fake_gpu = True  # type: ignore[attr-defined]
    return storage


def is_on_gpu(storage: object) -> bool:
    """Whether a storage was marked as one of the device."""
    return getattr(storage, "on_fake_gpu", False)
