"""sdpa-attention: which attention by hand torch computes itself, what must stay as it is, and that both give the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "sdpa-attention"
HEAD = """\
import math
import numpy as np
import torch
import torch.nn.functional as F
from torch import einsum, nn

"""
SELF = """\
class Attention(nn.Module):
    def __init__(self, width=8, heads=2, longest=16, p=0.0):
        super().__init__()
        self.heads, self.width = heads, width
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.drop = nn.Dropout(p)
        self.softmax = nn.Softmax(dim=-1)
        self.register_buffer("mask", torch.tril(torch.ones(longest, longest)).view(1, 1, longest, longest))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(self.width, dim=2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        BODY
        return y.transpose(1, 2).contiguous().view(B, T, C)
"""
FUNCTION = "def attention(q, k, v):\n    BODY\n"


def written(body: str, around: str = SELF) -> str:
    """A program whose attention is ``body``, in a module over an input or a function of three operands."""
    margin = "        " if around is SELF else "    "
    return HEAD + around.replace("BODY", body.replace("\n", f"\n{margin}"))


def rewritten(text: str, **arguments: Any) -> str:
    """What the rule makes of a program, which it must change."""
    result = run_transform(RULE, text, **arguments)
    assert result.outcome.value == "changed", [note.reason for note in result.notes]
    assert "scaled_dot_product_attention" in result.after.decode()
    return result.after.decode()


def computed(text: str, inputs: list[Any], name: str) -> list[torch.Tensor]:
    """The result of a program's module or function, and the gradients of its operands and weights."""
    scope: dict[str, Any] = {}
    exec(compile(text, "attention", "exec"), scope)
    torch.manual_seed(0)
    made = scope[name]() if name == "Attention" else scope[name]
    leaves = [item.clone().requires_grad_() if torch.is_tensor(item) and item.is_floating_point() else item for item in inputs]
    output = made(*leaves)
    (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum().backward()
    weights = list(made.parameters()) if isinstance(made, torch.nn.Module) else []
    return [output.detach(), *(item.grad for item in (*leaves, *weights) if torch.is_tensor(item) and item.grad is not None)]


def assert_alike(before: str, after: str, inputs: list[Any], name: str = "attention") -> None:
    """Results and gradients differ by rounding only."""
    for old, new in zip(computed(before, inputs, name), computed(after, inputs, name), strict=True):
        torch.testing.assert_close(new, old, atol=1e-5, rtol=1e-5)


def operands(queries: int = 5, keys: int = 5, seed: int = 0) -> list[torch.Tensor]:
    """Queries, keys and values of two samples, three heads and four features."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 3, length, 4, generator=draw) for length in (queries, keys, keys)]


WHOLE = """\
att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
att = F.softmax(att, dim=-1)
att = self.drop(att)
y = att @ v"""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(written("return F.softmax(q, dim=-1)", FUNCTION), id="probabilities"),
        pytest.param(written("return F.softmax(q @ k.transpose(-2, -1), dim=-1)", FUNCTION), id="weights alone"),
        pytest.param(written("return F.softmax(q @ k.transpose(-2, -1), dim=-2) @ v", FUNCTION), id="over the queries"),
        pytest.param(written("return F.softmax(q + k, dim=-1) @ v", FUNCTION), id="no product"),
        pytest.param(
            written(
                "if hasattr(F, 'x'):\n    return F.scaled_dot_product_attention(q, k, v)\nreturn F.softmax(q @ k.mT, -1) @ v", FUNCTION
            ),
            id="the fallback of torch's own",
        ),
    ],
)
def test_leaves_what_is_no_attention(text: str) -> None:
    """There is nothing to say."""
    check_noop(RULE, text)


def test_causal_attention_of_a_language_model() -> None:
    """The causal buffer becomes ``is_causal``, dropout a probability, and what is left unused goes."""
    notes = check_transformed(
        RULE,
        written(WHOLE),
        written(
            "y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.drop.p if self.drop.training else 0.0)"
        ).replace("import math\n", ""),
    )
    assert {*notes[0].effects} == {"numerics", "rng"}


@pytest.mark.parametrize("length", [1, 2, 7, 16])
def test_causal_attention_computes_the_same(length: int) -> None:
    """Outputs and gradients are the same for every length."""
    before = written(WHOLE)
    draw = torch.Generator().manual_seed(length)
    assert_alike(before, rewritten(before), [torch.randn(3, length, 8, generator=draw)], "Attention")


PLAIN = [
    pytest.param("return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v", "q, k, v", id="one expression"),
    pytest.param("return torch.softmax(torch.matmul(q, k.transpose(2, 3)), dim=-1).matmul(v)", "q, k, v, scale=1.0", id="no scale"),
    pytest.param("d = q.shape[-1]\ns = q @ k.mT\ns = s / d ** 0.5\nreturn s.softmax(-1) @ v", "q, k, v", id="a power"),
    pytest.param("q = q * 0.5\nreturn (q @ k.transpose(-1, -2)).softmax(dim=-1) @ v", "q, k, v, scale=0.5", id="queries scaled first"),
    pytest.param("s = q @ k.mT\ns /= 3\nw = nn.Softmax(dim=-1)(s)\nreturn w @ v", "q, k, v, scale=1 / 3", id="in place"),
    pytest.param(
        "B, H, L, D = q.shape\ns = q.matmul(k.mT).div(np.sqrt(D))\nw = s.softmax(dim=-1)\nreturn w @ v", "q, k, v", id="unpacked sizes"
    ),
]


@pytest.mark.parametrize(("body", "given"), PLAIN)
def test_plain_attention(body: str, given: str) -> None:
    """All spellings of products, scales and softmax give the same numbers, queries and keys of one number or not."""
    before = written(body, FUNCTION)
    after = rewritten(before)
    assert f"return F.scaled_dot_product_attention({given})\n" in after
    assert_alike(before, after, operands())
    assert_alike(before, after, operands(queries=1, keys=6))


@pytest.mark.parametrize(
    ("code", "body"),
    [
        pytest.param("weights-used", "w = (q @ k.mT).softmax(-1)\nreturn w @ v, w", id="trap: weights returned"),
        pytest.param("weights-used", "s = q @ k.mT\nprint(s.max())\nreturn s.softmax(-1) @ v", id="scores printed"),
        pytest.param("scores-changed", "s = (q @ k.mT).clamp(-5, 5)\nreturn s.softmax(-1) @ v", id="trap: clamped"),
        pytest.param("softmax-cast", "s = (q @ k.mT).float()\nreturn s.softmax(-1).type_as(q) @ v", id="trap: a softmax in float32"),
        pytest.param("operands-change", "w = (q @ k.mT).softmax(-1)\nq.zero_()\nreturn w @ v", id="operands written"),
    ],
)
def test_held(code: str, body: str) -> None:
    """What torch's attention cannot do, or would do otherwise, is held."""
    check_held(RULE, written(body, FUNCTION), code)


@pytest.mark.parametrize("line", ["loss.backward(create_graph=True)", "torch.autograd.grad(y, x, create_graph=True)"])
def test_double_backward_is_held(line: str) -> None:
    """Trap: gradients of gradients, which torch's kernels lack, anywhere in the program."""
    held = written("return F.softmax(q @ k.mT, -1) @ v", FUNCTION)
    check_held(RULE, held, "double-backward", path="net.py", modules={"train.py": f"from net import attention\n{line}\n"})
