from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.metrics.displays import Pace

TEXT = """
import sys
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

def draw(n):
    parts = []
    parts.append(str(n))
    sys.stdout.write("\\r" + "".join(parts))

def store(n):
    kept.append(n)
    sys.stdout.write("\\r")

loader = DataLoader(TensorDataset(data))
bar = tqdm(total=9)
HEADER
    STEP
"""


def drawn(step: str) -> str | None:
    """The text of the display around the name ``total`` in the step of a loop."""
    facts = facts_of(TEXT.replace("HEADER", "for i, x in enumerate(loader):").replace("STEP", step.replace("\n", "\n    ")))
    display = facts.displays.around(node(facts, "total"), facts.tree.loops[-1])
    if display is None:
        return None
    lines = facts.source.text.splitlines()[display.first.lineno - 1 : display.last.end_lineno]
    return "\n".join(line.strip() for line in lines)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("print(total)", id="a line that stays"),
        pytest.param("other.set_postfix(a=total)", id="no known bar"),
        pytest.param("bar.set_postfix(a=record(total))", id="does more than show"),
        pytest.param("bar.update(total)", id="counts"),
        pytest.param("store(total)", id="stores"),
        pytest.param("text = str(total)\nbar.set_description(text)\nlog(text)", id="shown and used elsewhere"),
        pytest.param("while total:\n    bar.set_postfix(a=total)", id="in another loop"),
        pytest.param("if x > 3:\n    bar.set_postfix(a=total)", id="on some steps"),
        pytest.param("if ready():\n    bar.set_postfix(a=total)", id="on steps that a function picks"),
    ],
)
def test_what_is_for_more_than_display(step: str) -> None:
    """Lines that stay, and statements with other effects, cannot be left out."""
    assert drawn(step) is None


@pytest.mark.parametrize(
    "step",
    [
        "bar.set_postfix(a=total)",
        "bar.set_postfix(**{'a': total / 3})",
        "bar.set_description_str(f'{total:.3f}')",
        "print(total, end='\\r')",
        "sys.stdout.write('\\r%.3f' % total)",
        "draw(total)",
        "text = str(total)\nbar.set_description(text)",
        "if rank == 0: bar.set_postfix(a=total)",
        "bar.set_description('x')\nbar.set_postfix(a=total)",
    ],
)
def test_displays(step: str) -> None:
    """What is drawn over by the next step is a display, with what is computed for it alone."""
    assert drawn(step) == step.replace("\\r", "\\r")


@pytest.mark.parametrize(
    ("header", "step", "expected"),
    [
        pytest.param("for x in loader:", "pass", Pace("step % 10 == 0 or step + 1 == len(loader)", "step", True), id="no counter"),
        pytest.param("for i, x in enumerate(loader):", "pass", Pace("i % 10 == 0 or i + 1 == len(loader)", "i", False), id="enumerate"),
        pytest.param("for i, x in enumerate(loader, 1):", "pass", Pace("i % 10 == 1 or i == len(loader)", "i", False), id="from one"),
        pytest.param("for i in range(n):", "pass", Pace("i % 10 == 0 or i + 1 == n", "i", False), id="range"),
        pytest.param(
            "for i, x in enumerate(loader):",
            "if i >= n: break",
            Pace("i % 10 == 0 or i + 1 in (n, len(loader))", "i", False),
            id="limited",
        ),
        pytest.param("for i, x in enumerate(unknown):", "pass", None, id="no known length"),
        pytest.param("for i, x in enumerate(loader):", "if x: break", None, id="left early"),
        pytest.param("for i, x in enumerate(loader):", "if x: continue", None, id="steps left early"),
        pytest.param("for i, x in enumerate(loader, n):", "pass", None, id="from somewhere"),
        pytest.param("while loader:", "pass", None, id="while"),
    ],
)
def test_paces(header: str, step: str, expected: Pace | None) -> None:
    """Every tenth step and the last one, where it is known which that is."""
    facts = facts_of(TEXT.replace("HEADER", header).replace("STEP", step))
    assert facts.displays.pace(facts.tree.loops[-1]) == expected
