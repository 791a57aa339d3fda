"""A pretend CUDA device on a machine that has none, for tests of CUDA training code.

Inside ``with CudaIsFake() as gpu:`` the word ``cuda`` means a second device with real numbers: its tensors live in host memory
but behave as CUDA tensors do. They refuse to mix with host tensors, draw from a random stream of their own, refuse
``.numpy()``, follow CUDA's autocast lists, and every transfer and synchronisation is counted in ``gpu.counts``::

    with CudaIsFake() as gpu:
        x = torch.ones(3).cuda(non_blocking=True)
        print(x.sum().item(), gpu.counts)        # 3.0 Counter({'h2d': 1, 'h2d_non_blocking': 1, 'sync': 1})

``python -m tests.fakegpu script.py ARGS`` runs an unmodified script on it; ``tests.running`` does so from tests.

How it works. PyTorch's PrivateUse1 slot gets kernels written in Python (``tensor.py``): each operator unwraps its tensors, runs
on the CPU, and wraps what comes out. A fallback on the CUDA dispatch key, empty in a CPU build, sends every factory called
with ``device="cuda"`` to the same kernels, so that no function has to be intercepted for it and threads need no care. To
Python code such a tensor says ``device(type='cuda', index=0)``; only C++ sees the slot's true name. What has no dispatch key
(``torch.cuda.*``, ``Tensor.cuda``, generators, autocast state) is replaced for the time of the ``with`` (``activate.py``).

Counts: ``h2d`` and ``d2h`` copies between host and device, of these ``h2d_non_blocking``, ``h2d_pinned`` (from page-locked memory)
and ``d2h_non_blocking`` (a race unless something synchronises); ``pin`` tensors copied into page-locked memory; ``sync`` places
where the host waits for a value (``item``, ``nonzero``, printing, ``torch.cuda.synchronize``); ``empty_cache`` calls.
A blocking copy from the device waits too, but counts as ``d2h`` alone.

Limits. A CPU build of PyTorch, as a CUDA build has kernels of its own in the way. One device. Time means nothing: copies are
immediate, streams and events do nothing. Recurrent and attention layers take the way of devices and agree with the CPU up to
rounding; other layers run the CPU's own kernels and give its numbers. No ``torch.compile``, TorchScript, sparse tensors, CUDA
graphs, NCCL, or ``pin_memory=True`` in a factory. ``torch.device(0)``, storages and C++ error texts show the slot's name. A
CUDA generator is not refused on the host. Counts of forked loader workers stay in the workers, and spawned ones see no CUDA.
The slot can be registered only once and stays registered after the ``with``, where it answers as a machine without CUDA; the
names of PyTorch that this package leans on are experimental, hence the pinned test dependency.
"""

from tests.fakegpu.activate import CudaIsFake

__all__ = ["CudaIsFake"]
