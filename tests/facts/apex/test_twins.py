"""What torch has in the place of Apex's other parts."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.apex.twins import Twin, twins_of
from torchfix.facts.obstacle import Obstacle


@pytest.mark.parametrize(
    ("text", "name", "dropped", "added"),
    [
        ("from apex.optimizers import FusedAdam as A\nA(p)", "torch.optim.AdamW", (), (("weight_decay", "0.0"), ("fused", "True"))),
        ("from apex.optimizers import FusedAdam as A\nA(p, weight_decay=1)", "torch.optim.AdamW", (), (("fused", "True"),)),
        ("from apex.optimizers import FusedAdam as A\nA(p, adam_w_mode=False)", "torch.optim.Adam", ("adam_w_mode",), (("fused", "True"),)),
        ("from apex.normalization import FusedLayerNorm\nisinstance(x, FusedLayerNorm)", "torch.nn.LayerNorm", (), ()),
    ],
)
def test_twins(text: str, name: str, dropped: tuple[str, ...], added: tuple[tuple[str, str], ...]) -> None:
    """With what Apex's defaults were."""
    ((_, twin),) = twins_of(facts_of(text))
    assert isinstance(twin, Twin)
    assert (twin.name, twin.dropped, twin.added) == (name, dropped, added)


def test_choices_of_the_program_are_none() -> None:
    """An import that may fail has a stand-in."""
    text = "try:\n    from apex.optimizers import FusedAdam\nexcept ImportError:\n    FusedAdam = None\nFusedAdam(p)\n"
    assert list(twins_of(facts_of(text))) == []


def test_layers_that_another_file_asks_for_are_left() -> None:
    """An object of torch's class is none of Apex's."""
    making = "from apex.normalization import FusedLayerNorm\nx = FusedLayerNorm(8)\n"
    asking = "from apex.normalization import FusedLayerNorm\nimport layers\nisinstance(layers.x, FusedLayerNorm)\n"
    for text, path, modules in ((making, "layers.py", {"train.py": asking}), (asking, "train.py", {"layers.py": making})):
        ((_, found),) = twins_of(facts_of(text, path=path, modules=modules))
        assert isinstance(found, Obstacle) and found.code == "checked-elsewhere"
