"""Autocast on the pretend device, by CUDA's lists.

The lists are those of the page "CUDA Ops that can autocast" of PyTorch's AMP reference. They differ from the CPU's, which is
why autocast on the CPU proves little about a CUDA program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.fakegpu.device import SLOT
from tests.fakegpu.tensor import FakeGpuTensor

Cast = Callable[[Any, Any], tuple[Any, Any]]

_KEY = "AutocastPrivateUse1"

_LOW_PRECISION = """
    addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    convolution einsum gru_cell linalg_multi_dot linalg_vecdot linear lstm_cell matmul mm mv prelu rnn_relu_cell rnn_tanh_cell
    scaled_dot_product_attention
"""

_FLOAT32 = """
    acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity cumprod cumsum dist erfinv exp expm1
    group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm linalg_matrix_norm linalg_vector_norm log log10 log1p log2
    log_softmax logsumexp margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss nll_loss2d norm pdist
    poisson_nll_loss pow prod reciprocal renorm rms_norm rsqrt sinh smooth_l1_loss soft_margin_loss softmax softplus sum tan
    triplet_margin_loss upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d
"""

_WIDEST = "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot"

_REFUSED = "binary_cross_entropy"


def register(library: torch.library.Library, fallbacks: torch.library.Library) -> None:
    """Add the autocast kernels to ``library`` (of aten) and let every other operator through."""
    fallbacks.fallback(torch.library.fallthrough_kernel, _KEY)
    for names, cast in ((_LOW_PRECISION, _to_low_precision), (_FLOAT32, _to_float32), (_WIDEST, _to_widest), (_REFUSED, _refuse)):
        for name in names.split():
            packet = getattr(torch.ops.aten, name)
            for overload in packet.overloads():
                if "out" not in overload:
                    _register_overload(library, getattr(packet, overload), cast)


def _register_overload(library: torch.library.Library, operator: Any, cast: Cast) -> None:
    below = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            args, kwargs = cast(args, kwargs)
            return operator(*args, **kwargs)

    library.impl(operator.name().removeprefix("aten::"), kernel, _KEY)


def _eligible(value: Any) -> bool:
    return isinstance(value, FakeGpuTensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(args: Any, kwargs: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    result: tuple[Any, Any] = pytree.tree_map(lambda value: value.to(dtype) if _eligible(value) else value, (args, kwargs))
    return result


def _to_low_precision(args: Any, kwargs: Any) -> tuple[Any, Any]:
    return _cast(args, kwargs, torch.get_autocast_dtype(SLOT))


def _to_float32(args: Any, kwargs: Any) -> tuple[Any, Any]:
    asked = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.dtype)]
    return (args, kwargs) if asked else _cast(args, kwargs, torch.float32)  # softmax(x, dtype=...) means what it says


def _to_widest(args: Any, kwargs: Any) -> tuple[Any, Any]:
    dtypes = {value.dtype for value in pytree.tree_leaves((args, kwargs)) if _eligible(value)}
    return _cast(args, kwargs, torch.float32) if len(dtypes) > 1 else (args, kwargs)


def _refuse(args: Any, kwargs: Any) -> tuple[Any, Any]:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast; "
        "use binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss"
    )
