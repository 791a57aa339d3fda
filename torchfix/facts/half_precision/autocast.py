"""What ``torch.autocast("cuda")`` does to each operation: the precision that it runs in and the precision that it gives.

The lists follow torch's autocast operator reference (torch.amp documentation, "CUDA Op-Specific Behavior"). What is on
none of them runs in the precision of its inputs, so that a chain of convolution, activation and pooling stays half.
"""

from __future__ import annotations

import enum


class Treatment(enum.Enum):
    """How an operation behaves in a region under autocast."""

    LOW = "runs in half precision"
    FULL = "runs in float32 and gives float32"
    SAME = "computes in the precision of its inputs"
    EXACT = "picks, moves or reshapes values without arithmetic"
    PLAIN = "gives no floating-point tensor of half precision: indexes, sizes, booleans, Python numbers, float32"
    BANNED = "raises under autocast"


_LOW = frozenset(
    """linear matmul mm bmm mv addmm addmv addr addbmm baddbmm chain_matmul multi_dot conv1d conv2d conv3d conv_transpose1d
    conv_transpose2d conv_transpose3d conv_tbc prelu einsum tensordot scaled_dot_product_attention""".split()
)
_FULL = frozenset(
    """acos asin cosh cosine_similarity cosine_embedding_loss cdist cross_entropy ctc_loss cumprod cumsum dist erfinv exp expm1
    group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm rms_norm log log10 log1p log2 log_softmax logsumexp
    margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss norm normalize pdist poisson_nll_loss pow
    prod reciprocal renorm rsqrt sinh smooth_l1_loss soft_margin_loss softmax softmin softplus sum tan triplet_margin_loss
    binary_cross_entropy_with_logits gaussian_nll_loss""".split()
)
_EXACT = frozenset(
    """detach detach_ data clone contiguous view view_as reshape reshape_as flatten unflatten squeeze unsqueeze permute transpose t
    narrow select index_select gather take chunk split unbind expand expand_as repeat repeat_interleave flip roll cpu cuda to max min
    amax amin topk sort kthvalue mode median neg requires_grad_ cat stack concat hstack vstack where relu clamp_min masked_select
    movedim swapaxes diagonal pin_memory type_as select_scatter""".split()
)
_PLAIN = frozenset(
    """argmax argmin argsort size dim numel stride element_size item tolist float double long int short byte bool nonzero is_floating_point
    isnan isinf isfinite isclose gt ge lt le greater less bincount count_nonzero any all get_device is_contiguous""".split()
)
# On no list and harmless in half precision: what stands between layers.
_LAYER = frozenset(
    """adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d avg_pool2d avg_pool3d batch_norm celu dropout dropout2d
    elu embedding gelu glu hardsigmoid hardswish hardtanh instance_norm interpolate leaky_relu logsigmoid max_pool1d max_pool2d
    max_pool3d pad pixel_shuffle pixel_unshuffle relu6 rrelu selu sigmoid silu tanh unfold upsample""".split()
)
# On no list, and steps of a formula rather than layers: sums and products by hand, fills, writes by index.
_FORMULA = frozenset(
    """abs add addcdiv addcmul atan bernoulli ceil clamp clip copy cos div erf fill floor index_add index_copy index_fill index_put
    inverse lerp masked_fill masked_scatter maximum mean minimum mul multiply new_empty new_full new_ones new_zeros round scatter
    scatter_add sign sin sqrt std sub tril triu true_divide var zero""".split()
)
BANNED = frozenset(["binary_cross_entropy", "BCELoss"])

# Operations whose second result is an index.
WITH_INDEX = frozenset("max min topk sort kthvalue mode median".split())

# Torch's own loss functions that take half-precision inputs under autocast and compute in float32, and their modules.
SAFE_LOSSES = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "NLLLoss2d": "nll_loss",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "KLDivLoss": "kl_div",
    "CTCLoss": "ctc_loss",
    "TripletMarginLoss": "triplet_margin_loss",
    "MarginRankingLoss": "margin_ranking_loss",
    "CosineEmbeddingLoss": "cosine_embedding_loss",
    "HingeEmbeddingLoss": "hinge_embedding_loss",
    "MultiMarginLoss": "multi_margin_loss",
    "MultiLabelMarginLoss": "multilabel_margin_loss",
    "SoftMarginLoss": "soft_margin_loss",
    "PoissonNLLLoss": "poisson_nll_loss",
    "GaussianNLLLoss": "gaussian_nll_loss",
}
LOSS_FUNCTIONS = frozenset(SAFE_LOSSES.values())
# Layers without weights whose function is on the float32 list.
_FULL_LAYERS = frozenset(
    "Softmax Softmax2d LogSoftmax Softmin Softplus LayerNorm GroupNorm RMSNorm CosineSimilarity PairwiseDistance".split()
)


def treatment(operation: str) -> Treatment:
    """What autocast does to a torch function or tensor method, by its last name (``softmax``, ``mm``)."""
    name = operation.rstrip("_") if not operation.startswith("_") else operation
    if name in BANNED:
        return Treatment.BANNED
    for names, how in ((_LOW, Treatment.LOW), (_FULL, Treatment.FULL), (_EXACT, Treatment.EXACT), (_PLAIN, Treatment.PLAIN)):
        if name in names:
            return how
    return Treatment.SAME


def is_harmless(name: str) -> bool:
    """Whether an operation on half precision inside a region is as good as on float32: no step of a formula by hand."""
    return name in _LAYER or treatment(name) in (Treatment.FULL, Treatment.EXACT, Treatment.PLAIN)


def is_operation(name: str) -> bool:
    """Whether a method of this name is a tensor's, so that an object that has it is taken for a tensor."""
    return treatment(name) is not Treatment.SAME or name.rstrip("_") in _LAYER | _FORMULA


def layer_treatment(layer: str) -> Treatment:
    """What autocast does to the call of a ``torch.nn`` module, by its class name (``Linear``, ``CrossEntropyLoss``)."""
    if layer in BANNED:
        return Treatment.BANNED
    if layer in SAFE_LOSSES or layer in _FULL_LAYERS:
        return Treatment.FULL
    return Treatment.SAME
