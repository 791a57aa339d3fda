"""Numpy arrays: what surely is one, whether it is new, and what is known of its dtype."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.tensors.arrays import Array

HEAD = """\
import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn

envs = gym.vector.SyncVectorEnv(makers)
rng = np.random.default_rng(0)
a = np.zeros((2, 3), dtype=np.float32)
"""


def array(text: str) -> Array | None:
    """What is known of the argument of ``use`` in a snippet."""
    facts = facts_of(HEAD + text)
    (call,) = facts.tree.calls["use"]
    return facts.arrays.of(call.args[0])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("use(x)", id="unknown name"),
        pytest.param("def f(x):\n    use(x)", id="a parameter"),
        pytest.param("use(load(p))", id="unknown call"),
        pytest.param("use([1, 2])", id="a list"),
        pytest.param("use(np.float64(3.0))", id="trap 4: a number of numpy"),
        pytest.param("use(np.sum(a))", id="a sum is a number"),
        pytest.param("use(a.mean())", id="a mean is a number"),
        pytest.param("use(a[0])", id="an entry may be a number"),
        pytest.param("use(np.array(3.0) * 2)", id="arithmetic of an array without dimensions"),
        pytest.param("use(a @ b)", id="a product of two vectors"),
        pytest.param("use(a * t)", id="with what may be a tensor"),
        pytest.param("use(x.astype(np.float32))", id="of what may be a series"),
        pytest.param("use(np.repeat(x, 2))", id="of what may be a series, by its own method"),
        pytest.param("use(np.random.normal(0, 1))", id="a draw is a number"),
        pytest.param("use(np.random.randn())", id="a draw without dimensions"),
        pytest.param("use(np.where(a > 0))", id="indices are a tuple"),
        pytest.param("use(np.linspace(0, 1, retstep=True))", id="two results"),
        pytest.param("use(np.load(p))", id="a file may be an archive"),
        pytest.param("use(np.frombuffer(b))", id="trap 3: memory of others"),
        pytest.param("use(np.broadcast_to(a, (4, 2, 3)))", id="trap 3: read only"),
        pytest.param("use(np.add(a, a, out=buf))", id="written elsewhere"),
        pytest.param("use(np.add(a, a, buf))", id="written elsewhere, said by position"),
        pytest.param("use(np.exp(a, buf))", id="written elsewhere, of one operand"),
        pytest.param("use(a.clip(0, 1, buf))", id="written elsewhere by a method"),
        pytest.param("use(np.stack([a, a], 0, buf))", id="joined elsewhere"),
        pytest.param("x, _ = env.step(0)\nuse(x)", id="an environment of its own"),
        pytest.param("x = 3\nif c:\n    x = np.zeros(3)\nuse(x)", id="a number or an array"),
    ],
)
def test_what_may_be_something_else(text: str) -> None:
    """A number of numpy, or what another library may have made, is no array for sure."""
    assert array(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("use(np.zeros(3))", Array(True, True, "float64"), id="zeros"),
        pytest.param("use(np.ones((2, n), dtype='float32'))", Array(True, True, "float32"), id="ones of a dtype"),
        pytest.param("use(np.zeros(()))", Array(False, True, "float64"), id="without dimensions"),
        pytest.param("use(np.zeros(shape))", Array(False, True, "float64"), id="perhaps without dimensions"),
        pytest.param("use(np.array([1, 2]))", Array(True, True), id="of a list"),
        pytest.param("use(np.array(x))", Array(False, True), id="a copy of anything"),
        pytest.param("use(np.asarray([1.0], dtype=np.float32))", Array(True, True, "float32"), id="asarray of a list"),
        pytest.param("use(np.asarray(x))", Array(False, False, is_writable=False), id="asarray of anything shares"),
        pytest.param("use(np.stack([a, a]))", Array(True, True, "float32"), id="a stack keeps the dtype"),
        pytest.param("use(np.concatenate(parts))", Array(True, True), id="joined"),
        pytest.param("use(a + 1)", Array(True, True), id="arithmetic"),
        pytest.param("use(np.linalg.pinv(x))", Array(True, True), id="an inverse"),
        pytest.param("use(np.exp(a))", Array(True, True), id="elementwise"),
        pytest.param("use(np.logical_or(a, a))", Array(True, True, "bool"), id="truths"),
        pytest.param("use(a.astype(np.float64))", Array(True, True, "float64"), id="cast"),
        pytest.param("use((a * 2).T)", Array(True, True), id="transposed"),
        pytest.param("use(np.random.normal(0, 1, (2, 3)))", Array(True, True, "float64"), id="draws"),
        pytest.param("use(np.random.randn(2, 3))", Array(True, True, "float64"), id="draws by dimensions"),
        pytest.param("use(rng.uniform(size=(2, 3)))", Array(True, True, "float64"), id="draws of a generator"),
        pytest.param("use(a)", Array(True, True, "float32"), id="a variable at its last use"),
        pytest.param("use(a)\nprint(a)", Array(True, False, "float32"), id="a variable that is read again"),
        pytest.param("b = a\nuse(a)", Array(True, False, "float32"), id="under another name"),
        pytest.param("b = c = np.zeros(3)\nuse(b)", Array(True, False, "float64"), id="with two names from the start"),
        pytest.param("f(b := np.zeros(3))\nuse(b)", Array(True, False, "float64"), id="named as it is handed on"),
        pytest.param("class A:\n    b = np.zeros(3)\n    use(b)", Array(True, False, "float64"), id="of a class"),
        pytest.param(
            "for i in s:\n    if i:\n        b[0] = i\n    b = np.zeros(3)\n    use(b)",
            Array(True, False, "float64"),
            id="of the round before",
        ),
        pytest.param("for i in range(3):\n    a[:] = i\n    use(a)", Array(True, False, "float32"), id="trap 1: a buffer"),
        pytest.param("xs = [use(a) for i in range(3)]", Array(True, False, "float32"), id="again and again"),
        pytest.param("b = np.zeros(3)\nb[0] = 1\nuse(b)", Array(True, True, "float64"), id="filled before"),
        pytest.param("use(a.reshape(3, 2))\nprint(a)", Array(True, False, "float32"), id="a view"),
        pytest.param("def make():\n    return np.zeros(3)\nuse(make())", Array(True, False, "float64"), id="of a function"),
        pytest.param(
            "class A:\n    def f(self):\n        self.b = np.zeros(3)\n        use(self.b)", Array(True, False, "float64"), id="attribute"
        ),
        pytest.param("t = torch.zeros(3)\nuse(t.numpy())", Array(False, False), id="of a tensor"),
        pytest.param("o, r, d, t, i = envs.step(x)\nuse(r)", Array(True, False), id="rewards of environments"),
        pytest.param("o, _ = envs.reset()\nuse(o)", Array(True, False, is_exact=False), id="observations may be several"),
    ],
)
def test_arrays(text: str, expected: Array) -> None:
    """An array is known by what made it; it is new where nothing else can hold its memory."""
    assert array(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("use([a, x])", None, id="one is unknown"),
        pytest.param("use([])", None, id="none"),
        pytest.param("use(xs)", None, id="an unknown list"),
        pytest.param("use([a, np.zeros(3)])", ["float32", "float64"], id="written out"),
        pytest.param("use([np.zeros(3) for i in range(2)])", ["float64"], id="a comprehension"),
        pytest.param("xs = []\nfor i in range(2):\n    xs.append(np.ones(3))\nuse(xs)", ["float64"], id="appended"),
    ],
)
def test_lists_of_arrays(text: str, expected: list[str] | None) -> None:
    """A list is one of arrays where everything that comes in is one."""
    facts = facts_of(HEAD + text)
    items = facts.arrays.items(node(facts, facts.source.segment(facts.tree.calls["use"][0])).args[0])  # type: ignore[attr-defined]
    assert (items and [item.dtype for item in items]) == expected


def test_an_array_of_a_module_that_another_file_may_write() -> None:
    """A variable of a module is no last use where another file of the program has its name."""
    facts = facts_of(f"{HEAD}b = np.zeros(3)\nuse(b)\n", "state.py", {"train.py": "import state\nstate.b[0] = 1\n"})
    (call,) = facts.tree.calls["use"]
    assert facts.arrays.of(call.args[0]) == Array(True, False, "float64")
