"""What of a program goes with Apex's mixed precision."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.apex.imports import plain, shortened, unneeded


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("from apex import amp\namp.initialize()", [], id="a plain import is taken away where nothing uses it"),
        pytest.param("try:\n    from apex import amp\nexcept ImportError:\n    amp = None", ["try:"], id="an import that may fail"),
        pytest.param("try:\n    from apex import amp\nexcept ImportError:\n    raise", ["try:"], id="with a complaint"),
        pytest.param("try:\n    from apex import amp\nexcept ImportError:\n    found = False", ["from apex import amp"], id="with a flag"),
        pytest.param(
            "try:\n    from apex import amp\n    import x\nexcept ImportError:\n    raise", ["from apex import amp"], id="with another"
        ),
        pytest.param("if fp16:\n    from apex import amp", ["if fp16:"], id="on demand"),
        pytest.param("if ask():\n    from apex import amp", ["from apex import amp"], id="a condition that does something"),
        pytest.param("if fp16:\n    try:\n        from apex import amp\n    except ImportError:\n        raise", ["if fp16:"], id="both"),
        pytest.param(
            "try:\n    import apex\nexcept ImportError:\n    pass\napex.parallel.x()\napex.amp.x()", [], id="for something else too"
        ),
        pytest.param("from apex import amp\nif amp is None:\n    raise X", ["if amp is None:"], id="a complaint of its own"),
        pytest.param("from apex import amp\nif amp is None:\n    use()", [], id="another decision"),
    ],
)
def test_unneeded(text: str, lines: list[str]) -> None:
    """Whole statements, as far out as nothing else is in them."""
    assert [ast.unparse(item).partition("\n")[0] for item in unneeded(facts_of(text))] == lines


def test_shortened() -> None:
    """What an import brings beside it stays."""
    ((_, text),) = shortened(facts_of("try:\n    from apex import amp, optimizers as o\nexcept ImportError:\n    raise\n"))
    assert text == "from apex import optimizers as o"


def test_plain_imports() -> None:
    """By module and name, those at module level only, and nothing that serves another purpose."""
    text = "import apex.amp\nfrom apex import amp, parallel\nfrom apex.fp16_utils import *\nif x:\n    from apex import parallel\n"
    assert list(plain(facts_of(text))) == [("apex.amp", None), ("apex", "amp")]
