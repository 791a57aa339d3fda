"""What autocast does to operations: our tables beside torch's own behaviour, seen through tensors without data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

from torchfix.facts.half_precision.autocast import (
    LOSS_FUNCTIONS,
    SAFE_LOSSES,
    Treatment,
    is_harmless,
    is_operation,
    layer_treatment,
    treatment,
)


@pytest.fixture
def half() -> Iterator[torch.Tensor]:
    """A half-precision CUDA tensor without data, under CUDA's autocast."""
    was = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with FakeTensorMode():
        tensor = torch.rand(4, 8, device="cuda").half()
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.float16)
        try:
            yield tensor
        finally:
            torch.set_autocast_enabled("cuda", was[0])
            torch.set_autocast_dtype("cuda", was[1])


FULL = (
    "softmax log_softmax sum prod cumsum norm exp log log1p pow reciprocal rsqrt logsumexp cosh tan layer_norm normalize cosine_similarity"
)
SAME = "mean std var sqrt sigmoid tanh relu gelu silu logsigmoid clamp_min abs mul add"
ARGUMENTS = {
    "softmax": (1,),
    "log_softmax": (1,),
    "cumsum": (0,),
    "logsumexp": (1,),
    "pow": (2,),
    "layer_norm": ((8,),),
    "clamp_min": (0,),
    "mul": (2,),
    "add": (2,),
}


def function(name: str) -> object:
    """A function of torch by its last name."""
    return getattr(torch, name, None) or getattr(F, name)


@pytest.mark.parametrize("name", FULL.split())
def test_operations_on_the_float32_list_give_float32(name: str, half: torch.Tensor) -> None:
    """Softmax, sums, powers and norms leave half precision."""
    other = (half,) if name == "cosine_similarity" else ()
    assert function(name)(half, *other, *ARGUMENTS.get(name, ())).dtype is torch.float32
    assert treatment(name) is Treatment.FULL


@pytest.mark.parametrize("name", SAME.split())
def test_operations_on_no_list_keep_half(name: str, half: torch.Tensor) -> None:
    """A chain of such operations stays half precision; no table calls one of them float32."""
    assert function(name)(half, *ARGUMENTS.get(name, ())).dtype is torch.float16
    assert treatment(name) in (Treatment.SAME, Treatment.EXACT)


@pytest.mark.parametrize("name", ["mm", "matmul", "linear", "einsum"])
def test_matrix_products_give_half_even_of_float32(name: str, half: torch.Tensor) -> None:
    """They are what mixed precision is for."""
    full = half.float()
    result = torch.einsum("ij,kj->ik", full, full) if name == "einsum" else function(name)(full, full if name == "linear" else full.t())
    assert result.dtype is torch.float16
    assert treatment(name) is Treatment.LOW


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("name", sorted(LOSS_FUNCTIONS - {"ctc_loss", "gaussian_nll_loss"}))
def test_safe_losses_take_half_and_give_float32(name: str, half: torch.Tensor) -> None:
    """Every loss that may stand in a region; the two left out need real values to check their arguments."""
    labels, sign = torch.zeros(4, dtype=torch.long, device="cuda"), torch.ones(4, device="cuda")
    given = {
        "cross_entropy": (labels,),
        "nll_loss": (labels,),
        "multi_margin_loss": (labels,),
        "multilabel_margin_loss": (torch.zeros(4, 8, dtype=torch.long, device="cuda"),),
        "triplet_margin_loss": (half, half),
        "margin_ranking_loss": (half, half),
        "cosine_embedding_loss": (half, sign),
    }
    assert getattr(F, name)(half, *given.get(name, (half,))).dtype is torch.float32
    assert treatment(name) is Treatment.FULL


def test_the_banned_loss_raises(half: torch.Tensor) -> None:
    """Binary cross entropy of probabilities, as a function and as a module."""
    with pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(half, half)
    assert treatment("binary_cross_entropy") is Treatment.BANNED
    assert layer_treatment("BCELoss") is Treatment.BANNED


def test_loss_modules_are_told_from_layers() -> None:
    """A loss gives float32, an activation keeps what it gets."""
    assert {layer_treatment(name) for name in SAFE_LOSSES} == {Treatment.FULL}
    assert layer_treatment("Softmax") is Treatment.FULL
    assert layer_treatment("ReLU") is Treatment.SAME
    assert all(hasattr(torch.nn, name) or name == "NLLLoss2d" for name in SAFE_LOSSES)


def test_formulas_are_told_from_layers() -> None:
    """Products and means by hand are steps of a formula; activations, pooling and picking are not."""
    assert not any(is_harmless(name) for name in ("mul", "mean", "mm", "masked_fill_", "index_add_", "clamp"))
    assert all(is_harmless(name) for name in ("dropout", "gelu", "view", "softmax", "argmax", "max_pool2d"))


def test_names_that_no_tensor_has_are_no_operations() -> None:
    """A meter's update, a list's append, a layer's name."""
    assert not any(is_operation(name) for name in ("update", "append", "encoder", "step"))
    assert all(is_operation(name) for name in ("view", "clamp_", "mean", "log_softmax", "item"))
