"""What values are for that the host has read."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.metrics.purposes import Purpose

TEXT = """
import math
import sys
import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter()

def train(value, meter, bar, environment, helper, kept):
    LINES
"""


def purposes(lines: str) -> set[Purpose]:
    """What the first use of ``value`` in some lines is for."""
    facts = facts_of(TEXT.replace("LINES", lines.replace("\n", "\n    ")))
    return set(facts.purposes.of(node(facts, "value", 0)))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param("value", set(), id="nothing"),
        pytest.param("unused = value", set(), id="a variable that nobody reads"),
        pytest.param("if value > 3:\n    pass", {Purpose.DECIDES}, id="condition"),
        pytest.param("if not math.isfinite(float(value)):\n    pass", {Purpose.DECIDES}, id="condition through functions"),
        pytest.param("shown = 1 if value else 2", {Purpose.DECIDES}, id="conditional expression"),
        pytest.param("print('%f' % value)", {Purpose.SHOWN}, id="text"),
        pytest.param("bar.set_postfix(loss=value)", {Purpose.SHOWN}, id="bar"),
        pytest.param("writer.add_scalar('loss', value)", {Purpose.SHOWN}, id="log"),
        pytest.param("sys.stdout.write(str(value))", {Purpose.SHOWN}, id="stream"),
        pytest.param("raise ValueError(f'{value}')", {Purpose.SHOWN}, id="error"),
        pytest.param("kept.append(value)", {Purpose.COLLECTED}, id="list"),
        pytest.param("kept = np.append(kept, value)", {Purpose.COLLECTED}, id="array"),
        pytest.param("kept[0] = value", {Purpose.COLLECTED}, id="entry"),
        pytest.param("kept += value", {Purpose.COLLECTED}, id="sum"),
        pytest.param("obs = environment.step(value)", {Purpose.ACTED_ON}, id="environment"),
        pytest.param("meter.update(value)", {Purpose.TAKEN}, id="meter"),
        pytest.param("return value", {Purpose.TAKEN}, id="returned"),
        pytest.param("score = helper(value)", {Purpose.PROCESSED}, id="computed with"),
        pytest.param("a = value\nprint(a)\nif a:\n    pass", {Purpose.SHOWN, Purpose.DECIDES}, id="through a variable"),
        pytest.param("a = value\na = 1\nprint(a)", set(), id="a variable that is bound anew"),
    ],
)
def test_what_a_value_is_for(lines: str, expected: set[Purpose]) -> None:
    """A value is followed through variables and functions that give it another form."""
    assert purposes(lines) == expected
