"""What runs in a loader's workers."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node

HEAD = "from functools import partial\nfrom torch.utils.data import DataLoader, Dataset, IterableDataset\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("place()", False, id="module"),
        pytest.param("def f():\n    place()", False, id="function"),
        pytest.param("class D(Dataset):\n    def __init__(self):\n        place()", False, id="making a dataset"),
        pytest.param("class M:\n    def forward(self):\n        place()", False, id="method"),
        pytest.param("class D(Dataset):\n    def __getitem__(self, i):\n        place()", True, id="dataset"),
        pytest.param("class D(IterableDataset):\n    def read(self):\n        place()", True, id="iterable dataset"),
        pytest.param(
            "class D:\n    def __getitem__(self, i):\n        return 1\n    def load(self):\n        place()", True, id="any class of items"
        ),
        pytest.param("def f(b):\n    place()\nDataLoader(d, collate_fn=f)", True, id="collate function"),
        pytest.param("def f(b):\n    place()\nDataLoader(d, collate_fn=partial(f, 1))", True, id="partial collate function"),
        pytest.param("def f(i):\n    place()\nDataLoader(d, worker_init_fn=f)", True, id="start of a worker"),
        pytest.param(
            "def g():\n    place()\nclass D(Dataset):\n    def __getitem__(self, i):\n        g()", True, id="called by a dataset"
        ),
        pytest.param(
            "class C:\n    def __call__(self, b):\n        place()\n    def f(self, b):\n        place()\nDataLoader(d, collate_fn=c.f)",
            True,
            id="method that collates",
        ),
    ],
)
def test_code_of_workers(text: str, expected: bool) -> None:
    """Datasets after they were made, collate functions, and what those call, run in workers."""
    facts = facts_of(HEAD + text)
    assert facts.workers.run(node(facts, "place()", -1)) is expected


def test_dataset_of_another_file_calls_a_helper() -> None:
    """A function that a dataset elsewhere calls runs in workers too."""
    data = (
        "from torch.utils.data import Dataset\nfrom sound import spectrum\n"
        "class D(Dataset):\n    def __getitem__(self, i):\n        return spectrum(i)\n"
    )
    facts = facts_of("def spectrum(i):\n    place()\n", "sound.py", {"data.py": data})
    assert facts.workers.run(node(facts, "place()"))
