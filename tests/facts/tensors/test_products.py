"""Matrix products however they are spelled, and transposed operands."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.tensors.products import product_of, reordered, untransposed

HEAD = "import torch\nfrom torch import einsum\ndef f(a, b):\n    return "


@pytest.mark.parametrize("text", ["a * b", "torch.mul(a, b)", "torch.einsum('ij->ji', a)", "torch.matmul(*a)", "len(a)"])
def test_no_product(text: str) -> None:
    """Other operations on two tensors, and sums over one, are no products."""
    facts = facts_of(HEAD + text)
    assert product_of(facts, node(facts, text)) is None


@pytest.mark.parametrize("text", ["a @ b", "torch.matmul(a, b)", "a.matmul(b)", "torch.bmm(a, b)", "a.bmm(b)", "einsum('ij,jk->ik', a, b)"])
def test_products(text: str) -> None:
    """Left and right are what is multiplied, in that order."""
    facts = facts_of(HEAD + text)
    found = product_of(facts, node(facts, text))
    assert found is not None
    assert [facts.source.segment(side) for side in (found.left, found.right)] == ["a", "b"]


def test_an_einsum_tells_its_indexes() -> None:
    """Spaces between the letters mean nothing."""
    facts = facts_of(HEAD + "einsum('b h i d, b h j d -> b h i j', a, b)")
    found = product_of(facts, node(facts, "einsum('b h i d, b h j d -> b h i j', a, b)"))
    assert found is not None
    assert found.indexes == ("bhid", "bhjd", "bhij")


@pytest.mark.parametrize(
    ("text", "dimensions"),
    [
        pytest.param("a.mT", None, id="an attribute"),
        pytest.param("a.transpose(-2, -1)", None, id="from the end"),
        pytest.param("a.transpose(2, 3)", 4, id="of four"),
        pytest.param("a.permute(0, 2, 1)", 3, id="permuted"),
    ],
)
def test_transposed_operands(text: str, dimensions: int | None) -> None:
    """The tensor is found under what exchanges its last two dimensions."""
    facts = facts_of(HEAD + text)
    found = untransposed(node(facts, text))
    assert found is not None
    assert (facts.source.segment(found[0]), found[1]) == ("a", dimensions)


@pytest.mark.parametrize("text", ["a.transpose(0, 1)", "a.permute(2, 0, 1)", "a.transpose(i, j)", "a.view(2, 3)"])
def test_other_layouts_are_not_transposed(text: str) -> None:
    """Other dimensions, or ones that are not known, are no transposition of the last two."""
    facts = facts_of(HEAD + text)
    assert untransposed(node(facts, text)) is None


@pytest.mark.parametrize(
    ("letters", "wanted", "call"),
    [("bhld", "bhld", ""), ("blhd", "bhld", ".transpose(1, 2)"), ("ldbh", "bhld", ".permute(2, 3, 0, 1)"), ("bld", "bhld", None)],
)
def test_reordered(letters: str, wanted: str, call: str | None) -> None:
    """One call brings dimensions into another order, none is needed for the same, and none can invent one."""
    assert reordered(letters, wanted) == call
