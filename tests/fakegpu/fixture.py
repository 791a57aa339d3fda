"""The pretend device as a pytest fixture. A test module asks for it with ``pytest_plugins = "tests.fakegpu.fixture"``."""

from collections.abc import Iterator

import pytest

from tests.fakegpu import CudaIsFake
from tests.running import skip_on_cuda_build


@pytest.fixture
def fake_gpu() -> Iterator[CudaIsFake]:
    """A fresh pretend CUDA device for one test; ``fake_gpu.counts`` is empty at its start."""
    skip_on_cuda_build()
    with CudaIsFake() as gpu:
        yield gpu
