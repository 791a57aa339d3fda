"""Tensors, dtypes and whole numbers, known by how they were made and used."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node

HEAD = "import argparse\nimport torch\nimport torch.nn.functional as F\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("def f(x):\n    use(x)", False, id="unknown parameter"),
        pytest.param("x = load()\nuse(x)", False, id="unknown call"),
        pytest.param("x = torch.device('cuda')\nuse(x)", False, id="device"),
        pytest.param("x = torch.load(p)\nuse(x)", False, id="loaded"),
        pytest.param("class A:\n    def f(x):\n        x.view(1)\n        use(x)", False, id="self"),
        pytest.param("x = torch.zeros(3)\nuse(x)", True, id="factory"),
        pytest.param("x = F.relu(y)\nuse(x)", True, id="functional"),
        pytest.param("x = torch.zeros(3).float().sum()\nuse(x)", True, id="methods of a tensor"),
        pytest.param("x = torch.zeros(3) if c else torch.ones(3)\nuse(x)", True, id="either of two"),
        pytest.param("net = torch.nn.Sequential(torch.nn.Linear(1, 1))\nx = net(y)\nuse(x)", True, id="output of a layer"),
        pytest.param("net = torch.nn.LSTM(1, 1)\nx = net(y)\nuse(x)", False, id="output of a recurrent layer"),
        pytest.param("def f(x):\n    n = x.shape[0]\n    use(x)", False, id="may be an array"),
        pytest.param("def f(x):\n    n = x.size(0)\n    use(x)", True, id="used as one"),
    ],
)
def test_tensors(text: str, expected: bool) -> None:
    """A tensor is one by what made it, or by an attribute that only tensors have."""
    facts = facts_of(HEAD + text)
    assert facts.kinds.is_tensor(node(facts, "x", -1)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("d = torch.device('cuda')\nuse(d)", False, id="device"),
        pytest.param("def f(d):\n    use(d)", False, id="unknown"),
        pytest.param("d = torch.float16\nuse(d)", True, id="dtype"),
        pytest.param("d = torch.half if c else torch.float\nuse(d)", True, id="either of two"),
        pytest.param("d = x.dtype\nuse(d)", True, id="of a tensor"),
    ],
)
def test_dtypes(text: str, expected: bool) -> None:
    """A dtype is torch's own or a tensor's."""
    facts = facts_of(HEAD + text)
    assert facts.kinds.is_dtype(node(facts, "d", -1)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("n = 1.0\nuse(n)", False, id="float"),
        pytest.param("n = True\nuse(n)", False, id="bool"),
        pytest.param("n = 6 / 2\nuse(n)", False, id="division"),
        pytest.param("def f(n):\n    use(n)", False, id="unknown"),
        pytest.param("n = n\nuse(n)", False, id="of itself"),
        pytest.param("n = None if c else 1\nuse(n)", False, id="may be None"),
        pytest.param("n = 3\nuse(n)", True, id="literal"),
        pytest.param("n = -len(x) // 2 * 3\nuse(n)", True, id="arithmetic"),
        pytest.param("n = x.size(0)\nuse(n)", True, id="size"),
        pytest.param("m, n = x.size()\nuse(n)", True, id="unpacked size"),
        pytest.param("n = x.shape[-1]\nuse(n)", True, id="shape"),
        pytest.param("for n in range(3):\n    use(n)", True, id="range"),
        pytest.param("def f(n):\n    use(n)\nf(2)", True, id="what callers pass"),
    ],
)
def test_whole_numbers(text: str, expected: bool) -> None:
    """An integer is one through arithmetic, sizes, ranges and calls."""
    facts = facts_of(HEAD + text)
    assert facts.kinds.is_integer(node(facts, "n", -1)) is expected


@pytest.mark.parametrize(
    ("declaration", "integer", "ordinal"),
    [
        pytest.param('"--n"', False, False, id="text"),
        pytest.param('"--n", type=float, default=1.0', False, False, id="float"),
        pytest.param('"--n", type=int', False, True, id="may be None"),
        pytest.param('"--n", type=int, default=-1', False, False, id="below zero"),
        pytest.param('"--n", type=int, default=0', True, True, id="with a default"),
        pytest.param('"--n", type=int, required=True', True, True, id="required"),
    ],
)
def test_whole_numbers_of_the_command_line(declaration: str, integer: bool, ordinal: bool) -> None:
    """An option is an integer by its type; without a default it may be None, which numbers the current device."""
    facts = facts_of(f"{HEAD}p = argparse.ArgumentParser()\np.add_argument({declaration})\nargs = p.parse_args()\nuse(args.n)\n")
    option = node(facts, "args.n")
    assert (facts.kinds.is_integer(option), facts.kinds.is_ordinal(option)) == (integer, ordinal)


@pytest.mark.parametrize("text", ["v = v.cuda()\nuse(v)", "v = load()\nw = torch.zeros(3).to(v)\nv = w\nuse(v)", "v = w\nw = v\nuse(v)"])
def test_a_name_that_is_made_of_itself_ends(text: str) -> None:
    """What is only known through itself is asked once."""
    facts = facts_of(HEAD + text)
    facts.kinds.is_tensor(node(facts, "v", -1))
    assert facts.kinds.is_tensor(node(facts, "v", 0)) in (True, False)
