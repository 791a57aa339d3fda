from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.processes.splits import free_draws

HEAD = """
import random
import numpy as np
import torch
from torch.utils.data import random_split
from sklearn.model_selection import train_test_split
"""
GUARD = "\nif __name__ == '__main__':\n    main()\n"


def draws(text: str, modules: dict[str, str] | None = None) -> list[str]:
    """The draws of a script that its processes would make differently, by file and line."""
    facts = facts_of(HEAD + text + GUARD, modules=modules)
    return [f"{home.path}:{call.lineno}" for home, call in free_draws(facts)]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("def main():\n    torch.manual_seed(0)\n    a, b = random_split(d, [1, 2])", id="seeded above"),
        pytest.param("torch.manual_seed(0)\ndef main():\n    a, b = random_split(d, [1, 2])", id="seeded on import"),
        pytest.param(
            "def f():\n    return random_split(d, [1, 2])\ndef main():\n    torch.manual_seed(0)\n    f()", id="seeded above the call"
        ),
        pytest.param("def seed(n):\n    np.random.seed(n)\ndef main():\n    seed(3)\n    np.random.shuffle(d)", id="seeded by a function"),
        pytest.param("def main():\n    random_split(d, [1, 2], generator=g)", id="generator of its own"),
        pytest.param("def main():\n    train_test_split(d, random_state=1)", id="state of its own"),
        pytest.param("def main():\n    args.seed = random.randint(0, 9)", id="draws a seed"),
        pytest.param("def other():\n    random.shuffle(d)\ndef main(): ...", id="never run"),
        pytest.param(
            "class D(torch.utils.data.Dataset):\n    def __getitem__(self, i):\n        return random.random()\ndef main():\n    D()",
            id="augmentation",
        ),
    ],
)
def test_draws_that_all_processes_make_alike(text: str) -> None:
    """A draw is alike where a fixed seed comes before it, where it has a generator of its own, and where it splits nothing."""
    assert draws(text) == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("def main():\n    a, b = random_split(d, [1, 2])", id="no seed"),
        pytest.param("def main():\n    a, b = random_split(d, [1, 2])\n    torch.manual_seed(0)", id="seeded below"),
        pytest.param("def main():\n    torch.manual_seed(0)\n    np.random.shuffle(d)", id="another generator seeded"),
        pytest.param("def main():\n    random.seed()\n    random.shuffle(d)", id="seeded by the clock"),
        pytest.param("def main():\n    train_test_split(d)", id="split of another library"),
    ],
)
def test_draws_that_each_process_makes_for_itself(text: str) -> None:
    """Without a seed that is the same everywhere and comes first, each process splits the data otherwise."""
    assert len(draws(text)) == 1


def test_draws_of_other_files_count() -> None:
    """A function of another file that the script calls draws for it."""
    modules = {"data.py": "import random\n\ndef load(d):\n    random.shuffle(d)\n"}
    assert draws("from data import load\ndef main():\n    load([])", modules) == ["data.py:4"]
    assert draws("from data import load\ndef main():\n    random.seed(0)\n    load([])", modules) == []
