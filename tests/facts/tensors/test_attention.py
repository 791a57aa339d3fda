"""Attention by hand, followed from its softmax both ways."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.tensors.attention import Attention, Masking, attentions

HEAD = "import torch\nimport torch.nn.functional as F\ndef attention(q, k, v, mask=None):\n"


def found_in(*lines: str) -> list[Attention | Obstacle]:
    """What is found in a function of these statements."""
    return [found for _, found in attentions(facts_of(HEAD + "".join(f"    {line}\n" for line in lines)))]


def test_nothing_without_values() -> None:
    """Probabilities that weigh nothing are no attention."""
    assert not found_in("return (q @ k.mT).softmax(-1)")


def test_nothing_in_a_sum_of_scores() -> None:
    """Scores that are no product are no attention of this kind."""
    assert not found_in("return (q + k).softmax(-1) @ v")


def test_steps_in_the_order_in_which_they_are_applied() -> None:
    """Scales and masks are read through variables and under conditions, and the statements that make only them are known."""
    (found,) = found_in(
        "s = torch.matmul(q, k.transpose(-2, -1))",
        "s = s * 2",
        "if mask is not None:",
        "    s = s.masked_fill(mask == 0, -1e9)",
        "s = s + 1",
        "w = F.softmax(s, dim=-1)",
        "return torch.matmul(w, v)",
    )
    assert isinstance(found, Attention)
    assert [mask.how for mask in found.masks] == [Masking.FILL, Masking.ADD]
    assert [mask.guard is None for mask in found.masks] == [False, True]
    assert len(found.scales) == 1
    assert len(found.statements) == 5


def test_another_variable_of_the_same_name_is_no_use() -> None:
    """What is bound anew behind the attention is not the weights any more."""
    (found,) = found_in("w = (q @ k.mT).softmax(-1)", "y = w @ v", "w = 3", "return y, w")
    assert isinstance(found, Attention)


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        pytest.param("weights-used", ("w = (q @ k.mT).softmax(-1)", "return w @ v, w"), id="returned"),
        pytest.param("layout-not-seen", ("return (q @ k).softmax(-1) @ v",), id="keys laid out elsewhere"),
        pytest.param("scores-changed", ("return torch.tanh(q @ k.mT).softmax(-1) @ v",), id="changed"),
        pytest.param("operands-change", ("w = (q @ k.mT).softmax(-1)", "k += 1", "k = 1", "return w @ v"), id="bound anew"),
    ],
)
def test_obstacles(code: str, lines: tuple[str, ...]) -> None:
    """What stands in the way is named."""
    (found,) = found_in(*lines)
    assert isinstance(found, Obstacle)
    assert found.code == code
