"""Spelling of mixed precision by version and by the file's imports."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.half_precision.spelling import Spelling


def spelling(imports: str = "import torch") -> Spelling:
    """At the end of a file with these imports, of a project that declares no torch."""
    facts = facts_of(f"{imports}\npass\n")
    return Spelling(facts, facts.tree.module.body[-1])


def test_names_are_those_of_the_file() -> None:
    """An alias of torch is used throughout."""
    there = spelling("import torch as th")
    assert there.autocast("d", "on") == 'with th.autocast("cuda", dtype=d, enabled=on):'
    assert there.scaler("on") == 'th.amp.GradScaler("cuda", enabled=on)'
    assert there.choice("x") == "th.bfloat16 if x else th.float16"
    assert there.capability == "th.cuda.get_device_capability()[0]"


@pytest.mark.parametrize(
    ("variable", "flag", "is_object", "test"),
    [
        pytest.param("device", None, True, 'device.type == "cuda"', id="an object"),
        pytest.param("device", None, False, 'torch.device(device).type == "cuda"', id="a word"),
        pytest.param(None, "args.cuda", False, "bool(args.cuda)", id="a flag"),
        pytest.param(None, None, False, "torch.cuda.is_available()", id="nothing"),
    ],
)
def test_the_test_for_cuda_follows_the_programs_variable(variable: str | None, flag: str | None, is_object: bool, test: str) -> None:
    """Only without one is the machine asked."""
    assert spelling().on_cuda(variable, flag, is_object=is_object) == test
