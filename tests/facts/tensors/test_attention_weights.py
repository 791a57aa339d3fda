"""Attention weights that a function returns: whether any caller reads them."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.tensors.attention_weights import is_returned_for_nothing

FUNCTION = "def attend(x):\n    w = x\n    return x, w\n"
MODULE = """\
from torch import nn
class Attend(nn.Module):
    def forward(self, x):
        w = x
        return x, w
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = Attend()
    def forward(self, x):
        USE
net = Net()
"""


def is_for_nothing(text: str, **arguments: object) -> bool:
    """The answer for the last item that is returned in the first tuple of a text."""
    facts = facts_of(text, **arguments)  # type: ignore[arg-type]
    return is_returned_for_nothing(facts, [use for use in facts.tree.names["w"] if use.lineno == (3 if text.startswith("def") else 5)][0])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(FUNCTION, id="nobody calls"),
        pytest.param(FUNCTION + "y, a = attend(1)\nprint(a)\n", id="read"),
        pytest.param(FUNCTION + "y = attend(1)\n", id="kept together"),
        pytest.param(FUNCTION + "y, *a = attend(1)\n", id="starred"),
        pytest.param(FUNCTION + "y, a = attend(1)\nf(attend)\n", id="handed on"),
        pytest.param(MODULE.replace("USE", "return self.attend(x)"), id="a module returned on"),
        pytest.param(MODULE.replace("USE", "y, self.a = self.attend(x)"), id="kept"),
    ],
)
def test_weights_that_may_be_read(text: str) -> None:
    """Callers that read, keep or hide the item, or that are not seen, may need it."""
    assert not is_for_nothing(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(FUNCTION + "y, _ = attend(1)\n", id="passed over"),
        pytest.param(FUNCTION + "y, a = attend(1)\nz = attend(2)[0]\n", id="two callers"),
        pytest.param(MODULE.replace("USE", "y, a = self.attend(x)\n        return y"), id="a module"),
    ],
)
def test_weights_that_nobody_reads(text: str) -> None:
    """All callers are seen, and take the tuple apart without the item."""
    assert is_for_nothing(text)


def test_a_caller_in_another_file() -> None:
    """Callers in other files of the project count."""
    assert not is_for_nothing(FUNCTION, path="net.py", modules={"train.py": "from net import attend\ny, a = attend(1)\nprint(a)\n"})
