"""Masks of attention: what they keep, and whether they are causal."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.tensors.attention_masks import is_causal, keeps_a_key, kept

CLASS = """\
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("low", torch.tril(torch.ones(n, n)).view(1, 1, n, n))
        self.register_buffer("high", torch.triu(torch.ones(n, n), diagonal=1).bool())
        self.register_buffer("other", torch.ones(n, n))
    def forward(self, x, mask, past):
        B, T, C = x.size()
        q = self.lin(x).view(B, T, 2, 2).transpose(1, 2)
        k = self.lin(x).view(B, T, 2, 2).transpose(1, 2)
        c = torch.cat((past, k), dim=-2)
        return f(CONDITION, q, KEY)
"""


def asked(condition: str, key: str = "k"):  # type: ignore[no-untyped-def]
    """The facts, and the condition, queries and keys of a call in a network."""
    facts = facts_of(CLASS.replace("CONDITION", condition).replace("KEY", key))
    (call,) = facts.tree.calls["f"]
    assert isinstance(call, ast.Call)
    return facts, *call.args


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ("mask == 0", "mask != 0"),
        ("mask != 1", "mask == 1"),
        ("~mask", "mask"),
        ("mask.eq(0)", "mask.ne(0)"),
        ("mask.bool()", "~mask.bool()"),
        ("mask", "mask.logical_not()"),
        ("mask < 1", "(mask < 1).logical_not()"),
    ],
)
def test_what_is_kept(condition: str, text: str) -> None:
    """The opposite of a condition is written as briefly as its type surely allows."""
    facts, filled, _, _ = asked(condition)
    assert kept(facts, filled) == text


@pytest.mark.parametrize(
    "condition", ["mask == 0", "self.other[:T, :T] == 0", "self.low[:, :, :T, 1:T] == 0", "self.low == 1", "self.high == 0"]
)
def test_masks_that_may_mask_whole_rows(condition: str) -> None:
    """Masks from elsewhere, other matrices and other polarities may leave a query no key."""
    facts, filled, query, key = asked(condition)
    assert not keeps_a_key(facts, filled)
    assert not is_causal(facts, filled, query, key)


@pytest.mark.parametrize("condition", ["self.low[:, :, :T, :T] == 0", "self.high[:T, :T]", "~self.low.bool()[:, :, :T, :T]"])
def test_causal_masks(condition: str) -> None:
    """A triangle cut to the length of queries and keys is the causal mask."""
    facts, filled, query, key = asked(condition)
    assert keeps_a_key(facts, filled)
    assert is_causal(facts, filled, query, key)


@pytest.mark.parametrize(
    ("condition", "key"),
    [
        pytest.param("self.low[:, :, :T, :T] == 0", "c", id="trap: keys of a cache"),
        pytest.param("self.low[:, :, :T, :C] == 0", "k", id="cut to two lengths"),
        pytest.param("self.low[:, :, :C, :C] == 0", "k", id="cut to another length"),
    ],
)
def test_triangles_that_may_not_be_square(condition: str, key: str) -> None:
    """Each query keeps a key, but the mask is not surely the causal one."""
    facts, filled, query, keys = asked(condition, key)
    assert keeps_a_key(facts, filled)
    assert not is_causal(facts, filled, query, keys)
