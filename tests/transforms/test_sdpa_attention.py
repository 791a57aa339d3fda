"""sdpa-attention: which attention by hand torch computes itself, what must stay as it is, and that both give the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.running import run_on_cpu, run_on_fake_gpu
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
    check_noop(RULE, result.after.decode(), **arguments)
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
        pytest.param(
            "from torch.nn.functional import scaled_dot_product_attention, softmax\n\n\ndef f(q, k, v, new):\n"
            "    return scaled_dot_product_attention(q, k, v) if new else softmax(q @ k.mT, dim=-1) @ v\n",
            id="the fallback of a bare name",
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
        pytest.param("mask-not-a-fraction", "m = q.sum() > 0\nreturn (q @ k.mT + m).softmax(-1) @ v", id="trap: truths added"),
        pytest.param("mask-not-a-fraction", "return (q @ k.mT + 0.5).softmax(-1) @ v", id="a number added"),
        pytest.param("mask-not-a-fraction", "m = torch.ones(5, 5).long()\nreturn (q @ k.mT + m).softmax(-1) @ v", id="wholes added"),
        pytest.param("mask-not-a-fraction", "i = torch.arange(5)\nreturn (q @ k.mT - i[:, None]).softmax(-1) @ v", id="distances added"),
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


def masked(steps: str, scores: str = "q @ k.mT * 0.5") -> str:
    """A function of operands and a mask, whose scores pass some steps."""
    body = f"s = {scores}\n{steps}\nreturn s.softmax(dim=-1) @ v"
    return HEAD + "def attention(q, k, v, mask=None):\n    " + body.replace("\n", "\n    ") + "\n"


def some_mask(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """True where a key is kept; each query keeps one."""
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.4
    kept[..., 0] = True
    return kept


INFINITE = 's = s.masked_fill(mask == 0, float("-inf"))'
FINITE = "s = s.masked_fill(mask == 0, -1e9)"
SHAPES = [(5, 6), (2, 1, 1, 6), (2, 3, 5, 6)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("step", "given", "kind"),
    [
        pytest.param(INFINITE, "attn_mask=mask != 0", "whole", id="trap: zeros mask"),
        pytest.param(INFINITE, "attn_mask=mask != 0", "float", id="trap: zeros mask, in fractions"),
        pytest.param(INFINITE, "attn_mask=mask != 0", "bool", id="zeros mask, in truths"),
        pytest.param("s.masked_fill_(mask.bool(), -np.inf)", "attn_mask=~mask.bool()", "inverted", id="trap: ones mask"),
        pytest.param("s = s.masked_fill(mask, -math.inf)", "attn_mask=mask.logical_not()", "inverted", id="trap: ones mask, type unseen"),
        pytest.param("s = s.masked_fill(~mask, -float('inf'))", "attn_mask=mask", "bool", id="a mask turned round"),
        pytest.param("s = torch.where(mask, s, float('-inf'))", "attn_mask=mask", "bool", id="where"),
        pytest.param("s = s + mask", "attn_mask=mask", "bias", id="trap: a bias"),
        pytest.param("s += mask", "attn_mask=mask", "bias", id="a bias in place"),
        pytest.param(FINITE, "attn_mask=mask != 0", "whole", id="filled with a number"),
    ],
)
def test_masks(step: str, given: str, kind: str, shape: tuple[int, ...]) -> None:
    """Masks of every kind, polarity and shape that broadcasts let the same keys through."""
    before = masked(step)
    after = rewritten(before)
    assert given in after
    kept = some_mask(shape)
    bias = torch.linspace(-2, 2, kept.numel()).view(shape)
    mask = {"whole": kept.long(), "float": kept.float(), "bool": kept, "inverted": ~kept, "bias": bias.detach()}[kind]
    assert_alike(before, after, [*operands(5, 6), mask])


@pytest.mark.parametrize("given", [True, False])
def test_a_mask_under_a_condition(given: bool) -> None:
    """Without a mask none is given on, and what else the condition does to the mask stays."""
    before = masked(f"if mask is not None:\n    mask = mask.unsqueeze(1)\n    {INFINITE}")
    after = rewritten(before)
    assert "attn_mask=None if mask is None else mask != 0" in after
    assert "if mask is not None:\n        mask = mask.unsqueeze(1)\n    return" in after
    assert_alike(before, after, [*operands(5, 6), *([some_mask((2, 5, 6)).long()] if given else [])])


def test_rows_that_are_masked_wholly_by_a_number() -> None:
    """Trap: a query all of whose keys are filled with -1e9 attended to all alike; it gives zeros now, which the user is told."""
    before = masked(FINITE)
    mask = some_mask((2, 1, 5, 6)).long()
    mask[0, :, 2] = 0
    (old, *_), (new, *gradients) = (computed(text, [*operands(5, 6), mask], "attention") for text in (before, rewritten(before)))
    assert new[0, :, 2].eq(0).all()
    assert all(part.isfinite().all() for part in gradients)
    rest = [0, 1, 3, 4]
    torch.testing.assert_close(new[:, :, rest], old[:, :, rest], atol=1e-5, rtol=1e-5)
    notes = [note for found in run_transform(RULE, before).notes for note in found.notes]
    assert any("zeros" in note for note in notes)


def test_fills_that_torch_cannot_stand_for_are_held() -> None:
    """A small number leaves masked keys some weight, and before torch 2.5 a query without keys gives NaN."""
    check_held(RULE, masked("s = s.masked_fill(mask == 0, -10.0)"), "shallow-mask")
    check_held(RULE, masked(FINITE), "masked-rows", torch=(2, 2))


@pytest.mark.parametrize("limit", ["-torch.finfo(s.dtype).max", "torch.finfo(q.dtype).min", "-1e9"])
def test_fills_in_variables(limit: str) -> None:
    """What only the old code read goes with it, also where it asked for the type of the scores."""
    before = masked(f"least = {limit}\ns = s.masked_fill(~mask, least)")
    after = rewritten(before)
    assert "least" not in after
    assert_alike(before, after, [*operands(5, 6), some_mask((2, 1, 5, 6))])


def test_a_fill_of_the_type_of_the_scores() -> None:
    """The scores' own type is read for the fill alone, which torch's attention does not need."""
    before = masked("s = s.masked_fill(~mask, -torch.finfo(s.dtype).max)")
    assert_alike(before, rewritten(before), [*operands(5, 6), some_mask((2, 1, 5, 6))])


def test_parentheses_go_with_the_product() -> None:
    """A method of the result is called without the parentheses that an operator needs."""
    after = rewritten(written("w = (q @ k.mT).softmax(-1)\nreturn (w @ v).transpose(1, 2)", FUNCTION))
    assert "return F.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2)\n" in after


def test_sizes_that_only_the_scale_read() -> None:
    """No variable is left that nothing reads."""
    body = "d_k = q.size(-1)\ns = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(d_k)\nw = F.softmax(s, dim=-1)\n"
    after = rewritten(written(f"{body}return torch.matmul(w, v)", FUNCTION))
    assert "d_k" not in after
    assert "import math" not in after
    assert "d_k" in rewritten(written(f"{body}y = torch.matmul(w, v)\nreturn y * d_k", FUNCTION))


def test_rows_that_are_masked_wholly_by_infinity_are_told_of() -> None:
    """Trap: NaN before, zeros now, which the user is told."""
    result = run_transform(RULE, masked(INFINITE))
    assert any("NaN" in note for found in result.notes for note in found.notes)


def test_causal_masks_of_a_cache_stay_masks() -> None:
    """Trap: with keys from a cache there are more keys than queries, where ``is_causal`` would mask others."""
    body = WHOLE.replace("att = (q", "k = torch.cat((k, k), dim=-2)\nv = torch.cat((v, v), dim=-2)\natt = (q", 1)
    before = written(body.replace(":T, :T", "T : 2 * T, : 2 * T").replace("att = self.drop(att)\n", ""))
    after = rewritten(before)
    assert "is_causal" not in after
    assert "attn_mask=self.mask[:, :, T : 2 * T, : 2 * T] != 0" in after
    assert_alike(before, after, [torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))], "Attention")


def test_a_causal_mask_and_another_are_joined() -> None:
    """Trap: torch's attention takes a mask or ``is_causal``, not both."""
    step = "s = s.masked_fill(torch.triu(torch.ones(5, 5), diagonal=1).bool(), float('-inf'))"
    before = masked(f"{step}\n{INFINITE}")
    after = rewritten(before)
    assert "is_causal" not in after
    assert "attn_mask=(~torch.triu(torch.ones(5, 5), diagonal=1).bool()) & (mask != 0)" in after
    assert_alike(before, after, [*operands(), some_mask((2, 1, 1, 5)).long()])
    check_held(RULE, masked(f"{step}\nif mask is not None:\n    {INFINITE}"), "several-masks")
    check_held(RULE, masked(f"s = s + mask * 0.5\n{INFINITE}"), "several-masks")


@pytest.mark.parametrize(
    ("body", "given"),
    [
        pytest.param(
            "s = einsum('b h i d, b h j d -> b h i j', q, k) * 0.5\nreturn einsum('b h i j, b h j d -> b h i d', s.softmax(-1), v)",
            "(q, k, v, scale=0.5)\n",
            id="heads in front",
        ),
        pytest.param(
            "s = torch.einsum('blhe,bshe->bhls', q, k)\nreturn torch.einsum('bhls,bshd->blhd', torch.softmax(0.5 * s, dim=-1), v)",
            "(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scale=0.5).transpose(1, 2)\n",
            id="heads behind",
        ),
        pytest.param(
            "s = torch.einsum('bhid,bhjd->bhij', q, k)\nreturn torch.einsum('bhnm,bhmc->bnhc', s.softmax(dim=3), v)",
            "(q, k, v, scale=1.0).transpose(1, 2)\n",
            id="other letters",
        ),
    ],
)
def test_einsums(body: str, given: str) -> None:
    """Trap: einsums are read by their letters, and the dimensions laid out as torch's attention wants them."""
    before = written(body, FUNCTION)
    after = rewritten(before)
    assert given in after
    assert_alike(before, after, operands())


def test_einsums_of_shared_heads_are_held() -> None:
    """Keys that all heads share have a dimension less."""
    body = "s = einsum('bhid,bjd->bhij', q, k)\nreturn einsum('bhij,bjd->bhid', s.softmax(-1), v)"
    check_held(RULE, written(body, FUNCTION), "einsum-layout")


@pytest.mark.parametrize(
    ("step", "given"),
    [
        pytest.param("w = self.drop(w)", "dropout_p=self.drop.p if self.drop.training else 0.0", id="a module"),
        pytest.param("w = F.dropout(w, 0.3, self.training)", "dropout_p=0.3 if self.training else 0.0", id="trap: a function"),
        pytest.param("w = F.dropout(w, p=0.3)", "dropout_p=0.3", id="also in evaluation, as written"),
        pytest.param(
            "if self.heads > 1:\n    w = self.drop(w)",
            "dropout_p=self.drop.p if self.heads > 1 and self.drop.training else 0.0",
            id="under a condition",
        ),
    ],
)
def test_dropout(step: str, given: str) -> None:
    """Trap: torch's attention drops whenever it is given a chance, so this is guarded by training."""
    after = rewritten(written(f"w = F.softmax(q @ k.mT, dim=-1)\n{step}\ny = w @ v"))
    assert given in after


def test_evaluation_draws_nothing() -> None:
    """Trap: in evaluation there is no dropout, before and after."""
    before = written(WHOLE).replace("p=0.0", "p=0.5")
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    outputs = []
    for text in (before, rewritten(before)):
        scope: dict[str, Any] = {}
        exec(compile(text, "attention", "exec"), scope)
        torch.manual_seed(0)
        outputs.append(scope["Attention"]().eval()(x))
    torch.testing.assert_close(outputs[0], outputs[1], atol=1e-5, rtol=1e-5)


def test_unknown_modules_on_the_weights_are_held() -> None:
    """What is not surely dropout may be anything."""
    check_held(RULE, written("w = F.softmax(q @ k.mT, dim=-1)\nw = self.other(w)\ny = w @ v"), "dropout-not-known")


def test_a_softmax_module_that_nobody_else_uses_goes() -> None:
    """No layer is left that nothing calls, and another use of it keeps it."""
    body = "w = self.softmax(q @ k.mT)\ny = w @ v"
    assert "nn.Softmax" not in rewritten(written(body))
    kept = written(body) + "\n    def other(self, x):\n        return self.softmax(x)\n"
    assert "nn.Softmax" in rewritten(kept)


def test_dropout_that_a_forward_pass_is_given() -> None:
    """A parameter is dropout where every call of the module gives dropout or None."""
    inner = "class Attend(nn.Module):\n    def forward(self, q, drop=None):\n        w = (q @ q.mT).softmax(-1)\n"
    inner += "        if drop is not None:\n            w = drop(w)\n        return w @ q\n\n\n"
    outer = "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.drop = nn.Dropout(0.1)\n"
    outer += "        self.attend = Attend()\n\n    def forward(self, x):\n        return self.attend(x, drop=self.drop)\n"
    after = rewritten(HEAD + inner + outer)
    assert "dropout_p=drop.p if drop is not None and drop.training else 0.0" in after
    check_held(RULE, HEAD + inner, "dropout-not-known")


def test_a_softmax_in_branches_is_held() -> None:
    """What goes on behind the branches may have come from any of them."""
    branches = "s = q @ k.mT\nif len(q) > 1:\n    w = s.softmax(-1)\nelse:\n    w = s.softmax(-1)\nreturn w @ v"
    check_held(RULE, written(branches, FUNCTION), "several-branches")


def test_weights_that_no_caller_reads() -> None:
    """Trap: returned weights become None where every caller is seen to pass over them."""
    inner = "def attend(q, k, v):\n    w = (q @ k.mT).softmax(-1)\n    return w @ v, w\n\n\n"
    caller = "def attention(q, k, v):\n    y, w = attend(q, k, v)\n    return y\n"
    before = HEAD + inner + caller
    after = rewritten(before)
    assert "return F.scaled_dot_product_attention(q, k, v, scale=1.0), None\n" in after
    assert_alike(before, after, operands())
    check_held(RULE, HEAD + inner + caller.replace("return y", "return y, w"), "weights-used")
    check_held(RULE, HEAD + inner, "weights-used")


@pytest.mark.parametrize(
    ("factor", "given"),
    [
        pytest.param("torch.sqrt(torch.FloatTensor([4]))", "(q / self.root, k, v, scale=1.0)", id="of one number"),
        pytest.param("nn.Parameter(torch.ones(1))", "(q / self.root, k, v, scale=1.0)", id="learned"),
    ],
)
def test_scales_that_are_tensors(factor: str, given: str) -> None:
    """A tensor of one number scales the queries, since torch's attention takes none; its gradient stays."""
    before = written("y = ((q @ k.mT) / self.root).softmax(-1) @ v").replace(
        "self.heads, ", f"self.root = {factor}\n        self.heads, ", 1
    )
    after = rewritten(before)
    assert given in after
    assert_alike(before, after, [torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))], "Attention")
    check_held(RULE, before.replace(factor, "nn.Parameter(torch.ones(2, 1, 1))"), "scale-is-a-tensor")


def test_torch_2_0_has_no_scale() -> None:
    """Before torch 2.1 only the scale of torch itself can be had, and before 2.0 nothing."""
    own = written("return (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1) @ v", FUNCTION)
    other = written("return (q @ k.mT / math.sqrt(v.size(-1))).softmax(-1) @ v", FUNCTION)
    rewritten(own, torch=(2, 0))
    check_held(RULE, other, "scale-not-sure", torch=(2, 0))
    check_held(RULE, own, "torch-too-old", torch=(1, 13))


def test_hooks_are_held() -> None:
    """Trap: hooks that record attention look at a layer that would not run any more."""
    text = written(WHOLE) + "\n\nAttention().drop.register_forward_hook(print)\n"
    check_held(RULE, text, "hooks")


def test_results_that_are_viewed_at_once_keep_their_layout() -> None:
    """Trap: torch's attention may lay out its result otherwise than a product."""
    before = written("y = q @ k.mT\ny = y.softmax(-1) @ v\nreturn y.view(6, -1)", FUNCTION)
    after = rewritten(before)
    assert "F.scaled_dot_product_attention(q, k, v, scale=1.0).contiguous()" in after
    assert_alike(before, after, operands())


@pytest.mark.parametrize("seed", range(8))
def test_random_shapes(seed: int) -> None:
    """Any numbers of samples, heads, queries, keys and features, with any mask, give the same."""
    draw = torch.Generator().manual_seed(seed)
    samples, heads, queries, keys, features = (int(torch.randint(1, 9, (), generator=draw)) for _ in range(5))
    shapes = [(samples, heads, length, features) for length in (queries, keys, keys)]
    inputs: list[Any] = [torch.randn(shape, generator=draw) for shape in shapes]
    mask = some_mask((samples, 1, queries, keys), seed).long()
    for step in (INFINITE, FINITE):
        before = masked(step)
        assert_alike(before, rewritten(before), [*inputs, mask])


def test_under_autocast_on_the_cpu() -> None:
    """In bfloat16 both differ by the rounding of that type only."""
    before = masked(FINITE)
    after = rewritten(before)
    mask = some_mask((2, 1, 5, 6)).long()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        old, new = (computed(text, [*operands(5, 6), mask], "attention") for text in (before, after))
    for one, other in zip(old, new, strict=True):
        torch.testing.assert_close(other.float(), one.float(), atol=0.05, rtol=0.05)


PROGRAM = f"""{written(WHOLE)}

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = Attention().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.linspace(-1, 1, 240).view(3, 2, 5, 8):
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        loss = model(x.to(device)).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
print(len(model.state_dict()))
"""


def test_training_runs_as_before(tmp_path: Path) -> None:
    """On the CPU in float32, and on the pretend GPU under autocast, losses and the keys of the weights stay."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(PROGRAM)
    after.write_text(rewritten(PROGRAM))
    runs = [(run_on_cpu(before), run_on_cpu(after), 1e-5), (run_on_fake_gpu(before)[0], run_on_fake_gpu(after)[0], 2e-2)]
    for old, new, tolerance in runs:
        assert [float(line) for line in new.split()] == pytest.approx([float(line) for line in old.split()], rel=tolerance)
