"""Switches: what flags are in a plain run, and which places it reaches."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.project.switches import is_on, is_reached

HEAD = """
import os, argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--debug", action="store_true")
parser.add_argument("--boolean", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("--level", type=int, default=0)
parser.add_argument("--set-later", action="store_true")
args = parser.parse_args()
args.set_later = compute()
ON = True
EITHER = True if unknown else False
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unknown", None),
        ("unknown.attribute", None),
        ("config['debug']", None),
        ("args.set_later", None),
        ("EITHER", None),
        ("ON", True),
        ("not ON", False),
        ("args.debug", False),
        ("args.boolean", True),
        ("args.level", False),
        ("args.level == 0", True),
        ("args.level != 0", False),
        ("args.level > 0", None),
        ("ON and unknown", None),
        ("args.debug and unknown", False),
        ("ON or unknown", True),
        ("args.debug or args.level", False),
        ("os.environ.get('DEBUG')", False),
        ("os.getenv('DEBUG', '1') == '1'", True),
        ("os.environ.get('DEBUG') is not None", False),
        ("torch.cuda.is_available()", True),
    ],
)
def test_flags_in_a_plain_run(text: str, expected: bool | None) -> None:
    """Constants, and the defaults of options and variables, decide; anything else is not known."""
    facts = facts_of(f"{HEAD}check({text})\n")
    call = node(facts, f"check({text})")
    assert isinstance(call, ast.Call)
    assert is_on(facts, call.args[0]) is expected


def test_no_flag_is_not_known() -> None:
    """An argument that is not there decides nothing."""
    assert is_on(facts_of(""), None) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("mark()", True, id="module"),
        pytest.param("if unknown:\n    mark()", False, id="condition not known"),
        pytest.param("if args.debug:\n    pass\nelif ON:\n    mark()", True, id="elif"),
        pytest.param("for x in y:\n    if unknown:\n        continue\n    mark()", False, id="behind continue"),
        pytest.param("for x in y:\n    if args.debug:\n        continue\n    mark()", True, id="behind a continue that is off"),
        pytest.param("unknown or mark()", False, id="behind or"),
        pytest.param("f = lambda: mark()", False, id="lambda"),
        pytest.param("match x:\n    case 1:\n        mark()", False, id="case"),
        pytest.param("def f():\n    f()\n    mark()", False, id="calls only itself"),
        pytest.param("def g():\n    f()\ndef f():\n    mark()\ng()", True, id="through two functions"),
        pytest.param("def f():\n    mark()\nrun(f)", True, id="handed on"),
        pytest.param("class A:\n    def f(self):\n        mark()", False, id="class that nothing names"),
        pytest.param("class A:\n    def f(self):\n        mark()\nclass B(A): ...", True, id="class with a derived one"),
    ],
)
def test_places_that_a_plain_run_reaches(text: str, expected: bool) -> None:
    """A place is reached where all conditions around it are surely met and its function is run."""
    facts = facts_of(f"{HEAD}{text}\n")
    assert is_reached(facts, node(facts, "mark()")) is expected
