from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.data.consumers import Consumers

HEAD = "import torch\nfrom torch.autograd import Variable\nfrom torch.utils.data import DataLoader, Dataset\nds = [1]\n"


def consumers(text: str, modules: dict[str, str] | None = None) -> Consumers:
    """The consumers of a script's first loader."""
    facts = facts_of(HEAD + text, modules=modules)
    return Consumers(facts.loaders.all[0])


def moves(text: str, modules: dict[str, str] | None = None) -> list[str]:
    return [ast.unparse(transfer.call) for _, transfer in consumers(text, modules).moves()]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("for x in DataLoader(ds):\n    x.numpy()", id="read on the host"),
        pytest.param("for x in DataLoader(ds):\n    y = net(x)\n    y.cuda()", id="result of a network"),
        pytest.param("loader = DataLoader(ds)\nfor x in other:\n    x.cuda()", id="another loop"),
        pytest.param("for x in DataLoader(ds):\n    torch.from_numpy(x).cuda()", id="tensor made of the batch"),
        pytest.param("for x in DataLoader(ds):\n    x.type(torch.FloatTensor)\n    x.type(kind)", id="casts"),
    ],
)
def test_batches_that_stay_on_the_host_are_not_moved(text: str) -> None:
    """Only a copy of the batch itself is a move; a cast to a CPU type may be one that goes nowhere."""
    assert all(transfer.device.only_cpu for _, transfer in consumers(text).moves())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("for x, y in DataLoader(ds):\n    x, y = x.cuda(), y.cuda()", ["x.cuda()", "y.cuda()"], id="cuda"),
        pytest.param("for x in DataLoader(ds):\n    x.to('cuda')", ["x.to('cuda')"], id="to"),
        pytest.param("loader = DataLoader(ds)\nfor i, (x, y) in enumerate(loader):\n    x.cuda()", ["x.cuda()"], id="enumerate"),
        pytest.param("it = iter(DataLoader(ds))\nwhile True:\n    x = next(it)\n    x.cuda()", ["x.cuda()"], id="iterator"),
        pytest.param("for b in DataLoader(ds):\n    b['x'].cuda()", ["b['x'].cuda()"], id="entry"),
        pytest.param("for x in DataLoader(ds):\n    Variable(x).cuda()", ["Variable(x).cuda()"], id="variable"),
        pytest.param("for x in DataLoader(ds):\n    x.float().cuda()", ["x.float().cuda()"], id="cast that may do nothing"),
        pytest.param(
            "T = torch.cuda.FloatTensor if cuda else torch.FloatTensor\nfor x in DataLoader(ds):\n    Variable(x.type(T))",
            ["x.type(T)"],
            id="tensor type chosen once",
        ),
        pytest.param("def f(x):\n    return x.cuda()\nfor x in DataLoader(ds):\n    f(x)", ["x.cuda()"], id="in a helper"),
    ],
)
def test_moves_of_batches_are_found(text: str, expected: list[str]) -> None:
    """Whatever way the batch takes to the copy, the copy is found."""
    assert moves(text) == expected


def test_moves_are_found_in_other_files_of_the_program() -> None:
    """The loop may stand in another file than the loader, above or below it."""
    engine = "def run(loader):\n    for x in loader:\n        x.cuda()"
    assert moves("import engine\nloader = DataLoader(ds)\nengine.run(loader)", {"engine.py": engine}) == ["x.cuda()"]
    main = "from train import make\nfor x in make():\n    x.cuda()"
    assert moves("def make():\n    return DataLoader(ds)", {"main.py": main}) == ["x.cuda()"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("loader = DataLoader(ds)\nx = next(iter(loader))", 0, id="once, to look at a batch"),
        pytest.param("it = iter(DataLoader(ds))\nfor i in range(9):\n    x = next(it)", 0, id="one iterator"),
        pytest.param("loader = DataLoader(ds)\nfor i in range(9):\n    x = next(iter(loader))", 1, id="in a loop"),
        pytest.param("loader = DataLoader(ds)\ndef sample():\n    return next(iter(loader))", 1, id="in a function"),
    ],
)
def test_fresh_iterators_are_the_ones_that_repeat(text: str, expected: int) -> None:
    """``next(iter(loader))`` starts the loader anew; done once it costs little, repeated it costs that each time."""
    assert len(list(consumers(text).fresh_iterators())) == expected


DATASET = """
class D(Dataset):
    def __getitem__(self, i): ...
    def harden(self):
        self.level += 1
    def name(self):
        return 'd'

d = D()
loader = DataLoader(d)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("for e in range(3):\n    d.epoch = e\n    for x in loader:\n        use(x)", [], id="between epochs"),
        pytest.param("for x in loader:\n    d.name()\n    other.level = 3", [], id="nothing changes"),
        pytest.param("for x in loader:\n    d.level = 3", ["d.level"], id="attribute"),
        pytest.param("for x in loader:\n    loader.dataset.level = 3", ["loader.dataset.level"], id="through the loader"),
        pytest.param("for x in loader:\n    d.harden()", ["d.harden"], id="method that changes the object"),
    ],
)
def test_dataset_changes_inside_the_loop_are_found(text: str, expected: list[str]) -> None:
    """A change between two epochs reaches new workers, one during an epoch does not reach the running ones."""
    assert [ast.unparse(place) for _, place in consumers(DATASET + text).dataset_changes()] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "def main():\n    for x in DataLoader(ds): ...\nif __name__ == '__main__':\n    main()", False, id="all under the guard"
        ),
        pytest.param(
            "loader = DataLoader(ds)\nprint(len(loader), loader.dataset)\ndef main():\n    for x in loader: ...\n"
            "if __name__ == '__main__':\n    main()",
            False,
            id="made outside, iterated under the guard",
        ),
        pytest.param("def make():\n    return DataLoader(ds)", False, id="nobody makes it"),
        pytest.param("loader = DataLoader(ds)\nfor x in loader: ...", True, id="flat script"),
        pytest.param("loader = DataLoader(ds)\ndef main():\n    for x in loader: ...\nmain()", True, id="function called by the script"),
        pytest.param("for x in DataLoader(ds): ...", True, id="made in the loop's header"),
        pytest.param("def make():\n    return DataLoader(ds)\nfor x in make(): ...", True, id="made by a function"),
        pytest.param("loader = DataLoader(ds)\nfit(loader)", True, id="handed on"),
    ],
)
def test_start_outside_the_guard_is_where_the_script_iterates(text: str, expected: bool) -> None:
    """Making a loader starts nothing; iterating it does."""
    assert consumers(text).start_unguarded() is expected


def test_script_that_imports_the_loader_decides() -> None:
    """A loader of a library file is started unguarded by the flat script that uses it."""
    assert consumers(
        "def make():\n    return DataLoader(ds)", {"main.py": "from train import make\nfor x in make(): ..."}
    ).start_unguarded()
