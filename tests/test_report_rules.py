"""What is said of the rules themselves."""

from __future__ import annotations

import json
import sys

from tests.toys import EXPLICIT, TOYS
from torchfix.report.rules import document, explanation, listing
from torchfix.report.screen import Paint

PLAIN = Paint("never", sys.stdout)


def test_no_rules() -> None:
    """Without rules there is nothing to list."""
    assert listing((), PLAIN) == ""
    assert json.loads(document(())) == []


def test_the_list_is_by_group() -> None:
    """A line a rule under its group, with what is off marked."""
    assert listing(TOYS, PLAIN) == (
        "tomorrow\n"
        "  future-toy          Make toys explicit.\n"
        "toys\n"
        "  toy-size            Make toys explicit.\n"
        "  toy-sleep   off     Make toys explicit.\n"
    )


def test_an_explanation_has_all_sections() -> None:
    """A rule is explained by its own docstring and its options."""
    assert explanation(EXPLICIT, PLAIN) == (
        "toy-size (toys; on; writes code for torch 1.0 and newer)\n"
        "\n"
        "Make toys explicit.\n"
        "\n"
        "Why\n"
        "    A toy of unknown size is built twice.\n"
        "\n"
        "Before\n"
        "    toy = Toy(name)\n"
        "\n"
        "After\n"
        "    toy = Toy(name, size=2)\n"
        "\n"
        "Safety\n"
        "    Exact for toys of size 2.\n"
        "\n"
        "Options\n"
        "    size = '2'\n"
        "    num-workers = None\n"
        "    most = 9\n"
        "\n"
        "Reference\n"
        "    The tests of the door, which need a rule that never changes.\n"
    )


def test_colours_highlight_the_code() -> None:
    """With colours the code is shown as Python, and no line is wrapped or padded."""
    page = explanation(EXPLICIT, Paint("always", sys.stdout))

    assert "\x1b[" in page
    assert max(map(len, page.splitlines())) < 120


def test_the_json_of_a_rule() -> None:
    """Scripts get every section by name."""
    (rule,) = json.loads(document((EXPLICIT,)))

    assert rule == {
        "name": "toy-size",
        "group": "toys",
        "default": "on",
        "since": "1.0",
        "options": {"size": "2", "num-workers": None, "most": 9},
        "summary": "Make toys explicit.",
        "why": "A toy of unknown size is built twice.",
        "before": "toy = Toy(name)\n",
        "after": "toy = Toy(name, size=2)\n",
        "safety": "Exact for toys of size 2.",
        "reference": "The tests of the door, which need a rule that never changes.",
    }
