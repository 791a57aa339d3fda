from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.data.epochs import Epochs

HEAD = "from itertools import cycle\nfrom tqdm import tqdm\nfrom torch.utils.data import DataLoader\n"


def epochs_of(text: str, modules: dict[str, str] | None = None) -> Epochs:
    """The epochs of a script's first loader."""
    facts = facts_of(HEAD + text, modules=modules)
    return Epochs(facts.loaders.all[0])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("loader = DataLoader(d)\nprint(len(loader))", id="never iterated"),
        pytest.param("loader = DataLoader(d)\nfor x in loader: ...", id="one epoch"),
        pytest.param("for e in range(3):\n    for x in DataLoader(d): ...", id="made for every epoch"),
        pytest.param("for e in range(3):\n    loader = DataLoader(d)\n    for x in loader: ...", id="made anew in every epoch"),
        pytest.param("def make():\n    return DataLoader(d)\nfor e in range(3):\n    for x in make(): ...", id="made anew by a function"),
        pytest.param("def fit():\n    for x in DataLoader(d): ...\nfor e in range(3):\n    fit()", id="made where it is used"),
        pytest.param("it = iter(DataLoader(d))\nfor i in range(9):\n    x = next(it)", id="one endless iterator"),
        pytest.param("it = iter(DataLoader(d))\nfor e in range(3):\n    for x in it: ...", id="one iterator, looped over"),
        pytest.param("loader = DataLoader(d)\nwhile True:\n    for x in loader: ...\n    break", id="loop that ends at once"),
        pytest.param(
            "for e in range(3):\n    if a:\n        loader = DataLoader(d)\n    else:\n        loader = DataLoader(f)\n"
            "    for x in loader: ...",
            id="one or the other in every epoch",
        ),
    ],
)
def test_loaders_that_are_iterated_once_do_not_repeat(text: str) -> None:
    """New workers would be started once all the same."""
    assert not epochs_of(text).repeats


TRAINER = """
class Trainer:
    def __init__(self):
        self.loader = DataLoader(d)

    def train(self):
        for epoch in range(3):
            self.run_epoch()

    def run_epoch(self):
        for x in self.loader: ...

Trainer().train()
"""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("loader = DataLoader(d)\nfor e in range(3):\n    for x in loader: ...", id="epochs around"),
        pytest.param(
            "loader = DataLoader(d)\nfor e in tqdm(range(3)):\n    for i, x in enumerate(tqdm(loader)): ...", id="through enumerate"
        ),
        pytest.param("loader = DataLoader(d)\nfor e in range(3):\n    y = [x for x in loader]", id="comprehension"),
        pytest.param("loader = DataLoader(d)\nfor e in range(3):\n    x = next(iter(loader))", id="first batch, again and again"),
        pytest.param("loader = DataLoader(d)\nfor e in range(3):\n    i, x = next(enumerate(loader, 0))", id="numbered first batch"),
        pytest.param("loader = DataLoader(d)\nfor e in range(3):\n    for x, y in zip(other, loader): ...", id="beside another"),
        pytest.param(
            "loader = DataLoader(d)\ndef train():\n    for x in loader: ...\nfor e in range(3):\n    train()",
            id="function called by the loop",
        ),
        pytest.param(
            "def train(loader):\n    for x in loader: ...\ndef main():\n    loader = DataLoader(d)\n"
            "    for e in range(3):\n        train(loader)",
            id="handed to a function",
        ),
        pytest.param(
            "loader = DataLoader(d)\nit = iter(loader)\nwhile True:\n    try:\n        x = next(it)\n"
            "    except StopIteration:\n        it = iter(loader)",
            id="iterator that is renewed",
        ),
        pytest.param(
            "loader = DataLoader(d)\ndef forever():\n    while True:\n        for x in loader:\n            yield x", id="endless generator"
        ),
        pytest.param(
            "loader = DataLoader(d)\nfor e in range(3):\n    if e == 1:\n        loader = DataLoader(d)\n    for x in loader: ...",
            id="made anew once",
        ),
        pytest.param(
            "for fold in range(5):\n    loader = DataLoader(d)\n    for e in range(3):\n        for x in loader: ...", id="one a fold"
        ),
        pytest.param(TRAINER, id="trainer"),
    ],
)
def test_loaders_that_a_loop_iterates_again_repeat(text: str) -> None:
    """The epochs may be a loop around, or one around the call of a function or method that iterates."""
    assert epochs_of(text).repeats


def test_loops_in_other_files_count() -> None:
    """The loader, the loop over batches and the loop over epochs may stand in three files."""
    modules = {
        "engine.py": "def train(loader):\n    for x in loader: ...\n",
        "main.py": "from engine import train\nfrom train import make\nloader = make()\nfor e in range(3):\n    train(loader)\n",
    }
    assert epochs_of("def make():\n    return DataLoader(d)", modules).repeats


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("for e in range(3):\n    for x in loader: ...\n    for x in loader: ...", id="one after the other"),
        pytest.param("for e in range(3):\n    for x in loader: ...\nfor x in loader: ...", id="once more at the end"),
        pytest.param("for x in other:\n    y = next(iter(loader))", id="inside a loop over another"),
        pytest.param("x = next(iter(loader))\nfor e in range(3):\n    for x in loader: ...", id="a batch to look at first"),
        pytest.param(
            "it = iter(loader)\nx = next(it)\nfor e in range(3):\n    for x in loader: ...", id="iterator that is left alone later"
        ),
        pytest.param(
            "it = iter(loader)\nfor i in range(9):\n    try:\n        x = next(it)\n    except StopIteration:\n"
            "        it = iter(loader)\n        x = next(it)",
            id="iterator that is renewed",
        ),
        pytest.param("def forever():\n    while True:\n        for x in loader:\n            yield x\nit = forever()", id="one generator"),
        pytest.param(
            "def log(batches):\n    for x in batches:\n        yield x\nfor e in range(3):\n    for x in log(loader): ...\n"
            "    for i, x in enumerate(log(loader)): ...",
            id="generator that loops see through",
        ),
        pytest.param(
            "def f():\n    it = iter(loader)\n    x = next(it)\ndef g():\n    for x in loader: ...\nf() if a else g()",
            id="iterator of a function that has ended",
        ),
    ],
)
def test_iterations_that_follow_each_other_do_not_overlap(text: str) -> None:
    """Only one of them is under way at a time."""
    assert epochs_of(f"loader = DataLoader(d)\n{text}").overlap() is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("for x in loader:\n    for y in loader: ...", id="nested"),
        pytest.param("def score():\n    for y in loader: ...\nfor x in loader:\n    score()", id="function called inside"),
        pytest.param("for x, y in zip(loader, loader): ...", id="pairs of itself"),
        pytest.param("a = iter(loader)\nb = iter(loader)\nfor i in range(9):\n    next(a), next(b)", id="two iterators"),
        pytest.param("it = iter(loader)\nfor e in range(3):\n    for x in loader:\n        y = next(it)", id="kept iterator inside"),
        pytest.param(
            "def forever():\n    while True:\n        for x in loader:\n            yield x\na = forever()\nb = forever()",
            id="two generators",
        ),
        pytest.param(
            "def batches():\n    for x in loader:\n        yield x\nfor x in batches():\n    y = next(iter(loader))",
            id="generator and more",
        ),
    ],
)
def test_iterations_inside_each_other_overlap(text: str) -> None:
    """Both would take from the one iterator of workers that live on."""
    assert epochs_of(f"loader = DataLoader(d)\n{text}").overlap() is not None


def first(text: str, what: str) -> bool:
    """Whether the statement or expression with this text comes before all epochs."""
    facts = facts_of(HEAD + text)
    found = [node for node in ast.walk(facts.source.tree) if isinstance(node, ast.expr) and facts.source.segment(node) == what]
    return Epochs(facts.loaders.all[0]).comes_first(facts, found[0])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("mark()\nfor e in range(3):\n    for x in loader: ...", id="above the epochs"),
        pytest.param("for i in range(9):\n    mark()\nfor x in loader: ...", id="in a loop of its own"),
        pytest.param("def setup():\n    mark()\nsetup()\nfor x in loader: ...", id="function called above"),
        pytest.param("def run():\n    mark()\n    for x in loader: ...\nrun()", id="in the function that iterates, which runs once"),
    ],
)
def test_setting_up_comes_first(text: str) -> None:
    """What surely runs before the first batch and never again is no change for the workers."""
    assert first(f"loader = DataLoader(d)\n{text}", "mark()")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("hooks = [lambda: mark()]\nfor e in range(3):\n    for x in loader: ...", id="in a lambda above the epochs"),
        pytest.param("for e in range(3):\n    mark()\n    for x in loader: ...", id="in every epoch"),
        pytest.param("for x in loader: ...\nmark()", id="behind"),
        pytest.param("for x in loader:\n    mark()", id="in every step"),
        pytest.param(
            "def epoch():\n    mark()\n    for x in loader: ...\nfor e in range(3):\n    epoch()", id="in the function of an epoch"
        ),
        pytest.param(
            "def harden():\n    mark()\nfor e in range(3):\n    for x in loader: ...\n    harden()",
            id="in a function called between epochs",
        ),
        pytest.param(
            "def hook():\n    mark()\nfor e in range(3):\n    for x in loader: ...", id="in a function that nobody calls in sight"
        ),
    ],
)
def test_what_may_run_between_epochs_does_not_come_first(text: str) -> None:
    """Anything else may run when workers live already."""
    assert not first(f"loader = DataLoader(d)\n{text}", "mark()")


MAKE = "def make(d):\n    return DataLoader(d)\ntrain, test = make(a), make(b)\n"


def test_two_loaders_that_one_function_makes_do_not_overlap() -> None:
    """The loader for validation may be iterated within a training epoch, though the same line made both."""
    score = "def score(loader):\n    for y in loader: ...\n"
    assert epochs_of(f"{MAKE}for x in train:\n    for y in test: ...").overlap() is None
    assert epochs_of(f"{MAKE}{score}for x in train:\n    score(test)\nscore(train)").overlap() is None
    assert epochs_of(f"{MAKE}p, q = iter(train), iter(test)\nfor i in range(9):\n    next(p), next(q)").overlap() is None
    assert epochs_of(f"{MAKE}{score}for x in train:\n    score(train)").overlap() is not None
    assert epochs_of(f"{MAKE}{score}other = train\nfor x in train:\n    score(other)").overlap() is not None
