"""Which files change together."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.apex.program import sharing
from torchfix.facts.obstacle import Obstacle

START = "from apex import amp\nimport engine\namp.initialize(m, o)\n"
ENGINE = "from apex import amp\ndef f():\n    amp.scale_loss(l, o)\n"


def test_a_file_without_apex_shares_nothing() -> None:
    """Even beside one that uses it."""
    assert sharing(facts_of("import engine", modules={"engine.py": ENGINE})) is None


@pytest.mark.parametrize("modules", [{}, {"other.py": "from apex import amp\namp.initialize(m, o)\n"}])
def test_scripts_are_programs_of_their_own(modules: dict[str, str]) -> None:
    """Each initializes Apex for itself."""
    found = sharing(facts_of("from apex import amp\namp.initialize(m, o)\n", modules=modules))
    assert found is not None and not isinstance(found, Obstacle)
    assert [facts.path for facts in found] == ["train.py"]


def test_the_file_that_initializes_comes_first() -> None:
    """From either of the files."""
    files = {"train.py": START, "engine.py": ENGINE}
    for path, text in files.items():
        found = sharing(facts_of(text, path=path, modules={name: other for name, other in files.items() if name != path}))
        assert found is not None and not isinstance(found, Obstacle)
        assert [facts.path for facts in found] == ["train.py", "engine.py"]


@pytest.mark.parametrize(
    ("text", "modules", "code"),
    [
        (ENGINE, {}, "apex-initialized"),
        (START + "amp.initialize(m, o)\n", {"engine.py": ENGINE}, "apex-initialized"),
        (START, {"engine.py": ENGINE, "other.py": START}, "apex-elsewhere"),
        (START, {"engine.py": ENGINE, "above.py": "import train\nfrom apex import amp\namp.state_dict()\n"}, "apex-elsewhere"),
    ],
)
def test_what_cannot_change_together(text: str, modules: dict[str, str], code: str) -> None:
    """No beginning, several, or a file between two of them."""
    found = sharing(facts_of(text, modules=modules))
    assert isinstance(found, Obstacle) and found.code == code
