"""Old names of mixed precision: which arguments the new ones would take from their surroundings, and who asks for a class."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.half_precision.superseded import Superseded

REGION = "with torch.cuda.amp.autocast():\n    pass\n"


@pytest.mark.parametrize(
    ("text", "followed"),
    [
        pytest.param("", (), id="nothing changes them"),
        pytest.param("import apex.amp\napex.amp.initialize(m)\n", (), id="Apex patches operators"),
        pytest.param("from accelerate import Accelerator\na = Accelerator()\n", ("dtype",), id="a framework"),
        pytest.param("torch.set_autocast_gpu_dtype(d)\n", ("dtype",), id="a setter"),
        pytest.param("torch.autocast('cuda', torch.bfloat16)\n", ("dtype",), id="a region by position"),
        pytest.param("f = partial(torch.autocast, 'cuda', dtype=d)\n", ("dtype",), id="a partial call"),
        pytest.param("f = partial(make, dtype=d)\n", (), id="a partial call of something else"),
        pytest.param("torch.autocast(**options)\n", ("dtype",), id="a region that may"),
        pytest.param("torch.set_autocast_cache_enabled(False)\n", ("cache_enabled",), id="the cache"),
    ],
)
def test_what_a_region_would_take_from_its_surroundings(text: str, followed: tuple[str, ...]) -> None:
    """Only what the program changes somewhere and the region is not given."""
    old = Superseded(facts_of(f"import torch\n{REGION}{text}"))
    assert old.followed(old.references[0]) == followed


@pytest.mark.parametrize(
    ("text", "followed"),
    [
        pytest.param("", (), id="nobody asks"),
        pytest.param("torch.autocast('cuda')\n", ("dtype",), id="a region inside may follow it"),
        pytest.param("d = torch.get_autocast_gpu_dtype()\n", ("dtype",), id="a getter"),
    ],
)
def test_a_region_that_is_off_has_a_precision_for_those_alone_who_ask(text: str, followed: tuple[str, ...]) -> None:
    """A region inside, without a precision of its own, follows it."""
    off = REGION.replace("()", "(False)")
    old = Superseded(facts_of(f"import torch\n{off}torch.autocast('cuda', torch.bfloat16)\n{text}"))
    assert old.followed(old.references[0]) == followed


def test_questions_for_a_class_are_those_of_the_whole_program() -> None:
    """A maker knows them; a question alone has none to bring along."""
    ask = "import torch\n\ndef ask(s):\n    return isinstance(s, torch.cuda.amp.GradScaler)\n"
    old = Superseded(facts_of("import torch\nfrom ask import ask\n\nask(torch.cuda.amp.GradScaler())\n", modules={"ask.py": ask}))
    assert [(there.path, use.node.lineno) for there, use in old.checks(old.references[0])] == [("ask.py", 4)]
    alone = Superseded(facts_of(ask))
    assert alone.checks(alone.references[0]) == []
