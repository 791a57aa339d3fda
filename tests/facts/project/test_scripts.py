from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node

GUARD = 'if __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def main():\n    go()\n" + GUARD, True),
        ("def inner():\n    go()\n\ndef main():\n    inner()\n" + GUARD, True),
        ("class A:\n    def fit(self):\n        go()\n\ndef main():\n    A().fit()\n" + GUARD, True),
        ('if __name__ == "__main__":\n    go()\n', True),
        ("def main():\n    go()\n", False),
        ("def main():\n    go()\n\nmain()\n", False),
        ("def main():\n    go()\n" + GUARD + "main()\n", False),
        ("def other():\n    go()\n\ndef main(): ...\n" + GUARD, False),
    ],
)
def test_what_the_main_guard_starts(text: str, expected: bool) -> None:
    """Code counts as started by the guard where the guard reaches it and nothing else does on import."""
    facts = facts_of(text)
    assert facts.script.is_started_by_guard(node(facts, "go()")) is expected
    assert bool(list(facts.script.starts(node(facts, "go()")))) is not expected


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import torch.distributed", "already-distributed"),
        ("import os\nrank = os.environ['LOCAL_RANK']", "already-distributed"),
        ("import torch\ntorch.multiprocessing.spawn(f)", "already-distributed"),
        ("import accelerate", "framework"),
    ],
)
def test_who_else_decides_about_processes(text: str, code: str) -> None:
    """Programs that know of ranks, and frameworks, start processes themselves."""
    assert [obstacle.code for obstacle in facts_of(text).script.owners()] == [code]


def test_a_plain_script_is_its_own_master() -> None:
    """Nothing is said of a script that runs in one process."""
    assert list(facts_of("import torch\n" + GUARD).script.owners()) == []


def test_a_notebook_is_one_process() -> None:
    """Cells have no main guard and cannot be started several times."""
    assert [obstacle.code for obstacle in facts_of("x = 1", "train.ipynb").script.owners()] == ["notebook"]
