"""Which device a training loop runs on, in the program's own words."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.training.targets import Target


def target(text: str, modules: dict[str, str] | None = None) -> Target | None:
    """The device of the first loop."""
    facts = facts_of(f"import torch\nfrom torch import nn\n{text}", modules=modules)
    return facts.targets.around(facts.tree.loops[0])


@pytest.mark.parametrize(
    ("text", "types", "variable", "flag"),
    [
        pytest.param("for x in b:\n    x = x.cuda()\n", {"cuda"}, None, None, id="cuda()"),
        pytest.param("for x in b:\n    x = x.to('cuda')\n", {"cuda"}, None, None, id="a word"),
        pytest.param("d = torch.device('cuda')\nfor x in b:\n    x = x.to(d)\n", {"cuda"}, "d", None, id="a device"),
        pytest.param(
            "d = torch.device('cuda' if c else 'cpu')\nfor x in b:\n    x = x.to(d)\n", {"cuda", "cpu"}, "d", None, id="one of two"
        ),
        pytest.param("d = 'cuda'\nfor x in b:\n    x = x.to(d)\n", {"cuda"}, "d", None, id="a variable with a word"),
        pytest.param("d = 0\nfor x in b:\n    x = x.cuda(d)\n", {"cuda"}, None, None, id="an index"),
        pytest.param("gpu = True\nfor x in b:\n    if gpu:\n        x = x.cuda()\n", {"cuda"}, None, "gpu", id="under a flag"),
        pytest.param(
            "for x in b:\n    if train:\n        x = x.cuda()\n    else:\n        x = x.cuda()[0]\n", {"cuda"}, None, None, id="either way"
        ),
        pytest.param(
            "gpu = 1\nfor x in b:\n    if gpu:\n        if train:\n            x = x.cuda()\n        else:\n            x = x[0].cuda()\n",
            {"cuda"},
            None,
            "gpu",
            id="either way, under a flag",
        ),
        pytest.param("d = int(s)\nfor x in b:\n    x = x.to(d)\n", {"cuda"}, None, None, id="a number that is read"),
        pytest.param("m = nn.Linear(1, 1).cuda()\nfor x in b:\n    m(x)\n", {"cuda"}, None, None, id="only the network is moved"),
        pytest.param("d = torch.device('mps')\nfor x in b:\n    x = x.to(d)\n", {"mps"}, "d", None, id="another device"),
    ],
)
def test_the_copies_of_a_loop_say_where_it_runs(text: str, types: set[str], variable: str | None, flag: str | None) -> None:
    """Their variable is the program's own word for it."""
    found = target(text)
    assert found is not None
    assert found.types == types
    assert (ast.unparse(found.variable) if found.variable else None) == variable
    assert (ast.unparse(found.flag) if found.flag else None) == flag


def test_a_device_is_told_from_its_name() -> None:
    """Only a torch.device surely has a type."""
    device, word = target("d = torch.device('cuda')\nfor x in b:\n    x.to(d)\n"), target("d = 'cuda'\nfor x in b:\n    x.to(d)\n")
    assert device is not None
    assert word is not None
    assert device.is_object
    assert not word.is_object


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("for x in b:\n    d = torch.device('cuda')\n    x = x.to(d)\n", id="in the loop"),
        pytest.param("for e in n:\n    d = torch.device('cuda')\n    for x in b:\n        x = x.to(d)\n", id="in the loop around it"),
        pytest.param("for x in b:\n    m(x)\n\n\ndef f():\n    d = torch.device('cuda')\n    m.to(d)\n", id="in another function"),
    ],
)
def test_a_variable_that_does_not_exist_in_front_of_the_loop_is_not_told(text: str) -> None:
    """The device is known, its name is of no use."""
    found = target(text)
    assert found is not None
    assert found.may_be_cuda
    assert found.variable is None


def test_without_a_copy_anywhere_a_loop_runs_on_the_host() -> None:
    """There is no target to speak of."""
    assert target("for x in b:\n    x.sum()\n") is None


def test_another_file_of_the_program_may_move_the_network() -> None:
    """The loop then runs on CUDA where there is one."""
    main = "from torch import nn\nfrom train import fit\n\nfit(nn.Linear(1, 1).cuda())\n"
    found = target("def fit(m):\n    for x in b:\n        m(x)\n", {"main.py": main})
    assert found is not None
    assert found.may_be_cuda
    assert found.variable is None


MOVER = "import torch\n\n\ndef prepare(net):\n    net.cuda()\n\n\nprepare(torch.nn.Linear(1, 1))\n"


@pytest.mark.parametrize(
    ("text", "on_host"),
    [
        pytest.param("def f():\n    m = nn.Linear(1, 1)\n    for x in b:\n        m(x)\n", True, id="of the loop's function"),
        pytest.param(
            "if __name__ == '__main__':\n    m = nn.Linear(1, 1)\n    for x in b:\n        m(x)\n", True, id="of the script's part"
        ),
        pytest.param(
            "def f():\n    m = nn.Linear(1, 1)\n    o = torch.optim.SGD(m.parameters(), 1)\n    for x in b:\n        m(x)\n",
            True,
            id="handed to torch",
        ),
        pytest.param("m = nn.Linear(1, 1)\nfor x in b:\n    m(x)\n", False, id="that other files can read"),
        pytest.param(
            "def f():\n    m = nn.Linear(1, 1)\n    prepare(m)\n    for x in b:\n        m(x)\n", False, id="handed to another file"
        ),
        pytest.param("def f(m):\n    for x in b:\n        m(x)\n", False, id="of the caller"),
    ],
)
def test_networks_that_only_this_file_knows_stay_where_it_makes_them(text: str, on_host: bool) -> None:
    """What other files of the program copy to CUDA is something else then."""
    assert (target(f"from mover import prepare\n{text}", {"mover.py": MOVER}) is None) is on_host
