"""What torch's own attention is given."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.tensors.attention import Attention, attentions
from torchfix.facts.tensors.attention_arguments import arguments

HEAD = "import math\nimport torch\nfrom torch import nn\ndef attention(q, k, v, mask, scale, d):\n"


def given(*lines: str) -> str:
    """The arguments as code, or the code of what stands in the way."""
    facts = facts_of(HEAD + "".join(f"    {line}\n" for line in lines))
    ((_, found),) = attentions(facts)
    assert isinstance(found, Attention)
    made = arguments(facts, found)
    return made.code if isinstance(made, Obstacle) else made.text


@pytest.mark.parametrize(
    ("scaled", "text"),
    [
        ("(q @ k.mT) / math.sqrt(k.size(-1))", "q, k, v)"),
        ("(q @ k.mT) * q.shape[-1] ** -0.5", "q, k, v)"),
        ("(q @ k.mT) / math.sqrt(v.size(-1))", "q, k, v, scale=1 / math.sqrt(v.size(-1)))"),
        ("(q @ k.mT) / math.sqrt(d)", "q, k, v, scale=1 / math.sqrt(d))"),
        ("q @ k.mT", "q, k, v, scale=1.0)"),
        ("(q @ k.mT) / torch.sqrt(d)", "scale-is-a-tensor"),
        ("q @ k.mT + mask", "q, k, v, attn_mask=mask, scale=1.0)"),
        ("q @ k.mT - (1 - mask)", "q, k, v, attn_mask=-(1 - mask), scale=1.0)"),
    ],
)
def test_scales_and_masks(scaled: str, text: str) -> None:
    """The scale is left out only where it surely is torch's own."""
    assert given(f"return ({scaled}).softmax(-1) @ v") == text


def test_a_view_of_the_result_keeps_its_layout() -> None:
    """Trap: torch's attention may lay its result out otherwise than a product does."""
    assert given("return ((q @ k.mT).softmax(-1) @ v).view(2, -1)").endswith(").contiguous()")
