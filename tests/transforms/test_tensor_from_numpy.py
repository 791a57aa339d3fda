"""tensor-from-numpy: which arrays stay copied, what is held and why, and that every value, dtype and memory is as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "tensor-from-numpy"
HEAD = """\
import gymnasium as gym
import numpy as np
import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
cuda = torch.cuda.is_available()
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
envs = gym.vector.SyncVectorEnv(makers)

"""


def changed(before: str, after: str) -> str:
    """Check one rewriting; the risk of its first finding."""
    note, *_ = check_transformed(RULE, f"{HEAD}{before}\n", f"{HEAD}{after}\n")
    return note.risk


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("t = torch.tensor(x)", id="trap 4: perhaps no array"),
        pytest.param("t = torch.tensor(np.float64(3.0))", id="trap 4: a number"),
        pytest.param("t = torch.tensor([1, 2])", id="a list of numbers"),
        pytest.param("t = torch.tensor(torch.zeros(3))", id="trap 5: a tensor"),
        pytest.param("t = torch.FloatTensor(3)", id="trap 6: a size"),
        pytest.param("t = torch.FloatTensor(np.int64(3))", id="trap 6: a size of numpy's"),
        pytest.param("t = torch.FloatTensor(np.array(3))", id="trap 6: an array without dimensions is a size"),
        pytest.param("t = torch.Tensor(2, 3)", id="trap 6: two sizes"),
        pytest.param("t = torch.FloatTensor([1.0, 2.0])", id="trap 7: a list of numbers"),
        pytest.param("t = torch.tensor(np.zeros(3), dtype=torch.float32)", id="a conversion copies anyway"),
        pytest.param("t = torch.tensor(np.zeros(3), device='cuda')", id="a move copies anyway"),
        pytest.param("t = torch.tensor(np.zeros(3), pin_memory=True)", id="pinned memory is other memory"),
        pytest.param("t = torch.from_numpy(np.zeros(3))", id="no copy already"),
        pytest.param("t = torch.tensor(np.load(p, mmap_mode='r'))", id="trap 9: a file in memory"),
        pytest.param("t = torch.tensor(np.frombuffer(b))", id="trap 3: memory of others"),
        pytest.param("t = Tensor(np.random.normal(mean, 1, (2, 3)))", id="draws around something unknown"),
        pytest.param("t = Tensor(np.random.normal(0, 1, shape))", id="draws of an unknown shape"),
        pytest.param("t = Tensor(np.concatenate(parts))", id="nothing to gain for the device"),
        pytest.param("t = Tensor(np.ones(3, dtype=np.int64))", id="with an argument beside the shape"),
        pytest.param("t = torch.tensor([np.zeros(3), x])", id="a list of something else"),
    ],
)
def test_left_alone(text: str) -> None:
    """What is not surely an array, or would be copied anyway, stays."""
    check_noop(RULE, HEAD + text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(
            "buf = np.zeros(3)\nfor i in range(3):\n    buf[:] = i\n    out.append(torch.tensor(buf))", "shared-memory", id="trap 1"
        ),
        pytest.param("a = np.zeros(3)\nt = torch.tensor(a)\nt += 1\nprint(a)", "shared-memory", id="trap 2: the array is read again"),
        pytest.param("t = torch.tensor(torch.zeros(3).numpy())", "shared-memory", id="the array is a tensor's"),
        pytest.param("a = b = np.zeros(3)\nt = torch.tensor(a)\nb[0] = 1", "shared-memory", id="an array of two names"),
        pytest.param("s.append(a := np.zeros(3))\nt = torch.tensor(a)", "shared-memory", id="named as it is handed on"),
        pytest.param("class A:\n    a = np.zeros(3)\n    t = torch.tensor(a)", "shared-memory", id="an array of a class"),
        pytest.param(
            "for i in s:\n    if i:\n        a[0] = i\n    a = np.zeros(3)\n    t = torch.tensor(a)",
            "shared-memory",
            id="written a round later",
        ),
        pytest.param("t = w * torch.tensor(buf)\nbuf = np.zeros(3)\nt = w * torch.tensor(buf)\nbuf[0] = 1", "shared-memory", id="a factor"),
        pytest.param("t = torch.tensor(np.asarray(image)) / 255", "shared-memory", id="trap 3: perhaps read only"),
        pytest.param("t = torch.tensor([np.zeros(3), np.ones(3, dtype=np.float32)])", "mixed-dtypes", id="two dtypes"),
        pytest.param("t = torch.tensor([np.array([x]), np.array([y])])", "mixed-dtypes", id="dtypes unknown"),
        pytest.param("t = torch.tensor([np.zeros(3) for x in xs])", "may-be-empty", id="perhaps empty"),
        pytest.param("t = torch.tensor(np.zeros(3))\nt.resize_(5)", "resized", id="trap 9: memory that cannot grow"),
        pytest.param("torch.set_default_dtype(torch.float64)\nt = torch.Tensor(np.zeros(3))", "default-dtype", id="trap 7: default dtype"),
        pytest.param("torch.set_default_device('cuda')\nt = torch.tensor(np.zeros(3))", "default-device", id="default device"),
        pytest.param(
            "with torch.device('cuda'):\n    t = torch.FloatTensor(np.zeros(3))", "default-device", id="default device of a block"
        ),
    ],
)
def test_held(text: str, code: str) -> None:
    """What would share memory, change dtype or move stays and says so."""
    assert check_held(RULE, HEAD + text, code).reason.help


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("t = torch.tensor(np.zeros(3) + 1)", "t = torch.from_numpy(np.zeros(3) + 1)", id="trap 10: float64 stays"),
        pytest.param("t = torch.tensor(np.array(x))", "t = torch.from_numpy(np.array(x))", id="a copy of anything"),
        pytest.param("t = torch.tensor(np.stack(xs)).to(device)", "t = torch.from_numpy(np.stack(xs)).to(device)", id="moved behind"),
        pytest.param(
            "t = torch.tensor(np.stack(xs), dtype=torch.float32, device=device)",
            "t = torch.as_tensor(np.stack(xs), dtype=torch.float32, device=device)",
            id="dtype and device",
        ),
        pytest.param(
            "t = torch.tensor(np.ones(3), requires_grad=True)", "t = torch.from_numpy(np.ones(3)).requires_grad_()", id="trap 8: a gradient"
        ),
        pytest.param("t = torch.tensor(np.ones(3), requires_grad=False)", "t = torch.from_numpy(np.ones(3))", id="trap 8: none"),
        pytest.param("a = np.ones(3)\na[0] = 2\nt = torch.tensor(a)", "a = np.ones(3)\na[0] = 2\nt = torch.from_numpy(a)", id="a last use"),
    ],
)
def test_a_new_array_becomes_the_tensor(before: str, after: str) -> None:
    """An array that nothing else holds need not be copied."""
    assert changed(before, after) == "exact"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("t = torch.FloatTensor(np.zeros(3))", "t = torch.as_tensor(np.zeros(3), dtype=torch.float32)", id="float"),
        pytest.param("t = torch.LongTensor(np.arange(3))", "t = torch.as_tensor(np.arange(3), dtype=torch.long)", id="long"),
        pytest.param("t = torch.Tensor(np.zeros(3))", "t = torch.as_tensor(np.zeros(3), dtype=torch.float32)", id="the default dtype"),
        pytest.param(
            "o, _ = envs.reset()\no = torch.Tensor(o).to(device)",
            "o, _ = envs.reset()\no = torch.as_tensor(o, dtype=torch.float32).to(device)",
            id="observations",
        ),
        pytest.param(
            "kept = torch.zeros(3)\no, r, d, t, i = envs.step(x)\nkept[0] = torch.tensor(r).view(-1)",
            "kept = torch.zeros(3)\no, r, d, t, i = envs.step(x)\nkept[0] = torch.as_tensor(r).view(-1)",
            id="rewards that are copied into a tensor",
        ),
    ],
)
def test_arrays_of_a_known_dtype_of_the_tensor(before: str, after: str) -> None:
    """The constructors share memory exactly where as_tensor does."""
    assert changed(before, after) == "exact"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "t = torch.tensor([np.zeros(3), np.ones(3)])", "t = torch.from_numpy(np.array([np.zeros(3), np.ones(3)]))", id="a list"
        ),
        pytest.param(
            "t = torch.FloatTensor([np.zeros(3), np.ones(3)])",
            "t = torch.as_tensor(np.array([np.zeros(3), np.ones(3)]), dtype=torch.float32)",
            id="of a dtype",
        ),
        pytest.param(
            "t = torch.tensor([np.zeros(3) for x in xs], dtype=torch.float32)",
            "t = torch.as_tensor(np.array([np.zeros(3) for x in xs]), dtype=torch.float32)",
            id="perhaps empty, of a dtype",
        ),
        pytest.param(
            "xs = []\nfor y in ys:\n    xs.append(np.random.rand(3))\nt = torch.Tensor(xs)",
            "xs = []\nfor y in ys:\n    xs.append(np.random.rand(3))\nt = torch.as_tensor(np.array(xs), dtype=torch.float32)",
            id="appended",
        ),
    ],
)
def test_a_list_of_arrays_is_joined_by_numpy(before: str, after: str) -> None:
    """Arrays of one dtype give the same tensor, whoever joins them."""
    assert changed(before, after) == "exact"


@pytest.mark.parametrize(
    ("before", "after", "risk"),
    [
        pytest.param("t = Tensor(np.ones((n, 1)))", "t = Tensor(n, 1).fill_(1.0)", "exact", id="ones"),
        pytest.param("t = Tensor(np.zeros((n, *patch)))", "t = Tensor(n, *patch).fill_(0.0)", "exact", id="zeros"),
        pytest.param("t = Tensor(np.random.normal(0, 1, (n, 3)))", "t = Tensor(n, 3).normal_(0, 1)", "numeric", id="normal"),
        pytest.param("t = Tensor(np.random.uniform(-1, 1, (n, 3)))", "t = Tensor(n, 3).uniform_(-1, 1)", "numeric", id="uniform"),
        pytest.param("t = Tensor(np.random.random((n, 1)))", "t = Tensor(n, 1).uniform_()", "numeric", id="random"),
        pytest.param("t = Tensor(np.random.randn(3, 4))", "t = Tensor(3, 4).normal_()", "numeric", id="randn"),
    ],
)
def test_values_are_made_where_the_tensor_is(before: str, after: str, risk: str) -> None:
    """A constructor that may be of the GPU fills or draws there; other numbers are drawn then."""
    assert changed(f"n = len(x)\n{before}", f"n = len(x)\n{after}") == risk


def test_the_draws_say_what_changes() -> None:
    """Whoever compares runs with a fixed seed must know."""
    result = run_transform(RULE, HEAD + "t = Tensor(np.random.randn(3, 4))\n")
    (note,) = result.notes
    assert note.effects == ("rng",)
    assert any("seed" in sentence for sentence in note.notes)


def test_names_are_spelled_as_the_file_spells_them() -> None:
    """Imports under other names serve; what is missing is imported."""
    before = "import numpy as numeric\nimport torch as th\n\nt = th.tensor([numeric.ones(2)])\n"
    after = "import numpy as numeric\nimport torch as th\n\nt = th.from_numpy(numeric.array([numeric.ones(2)]))\n"
    check_transformed(RULE, before, after)
    before = "from numpy import ones\nfrom torch import tensor\n\nt = tensor(ones(2))\n"
    after = "from numpy import ones\nimport torch\n\nt = torch.from_numpy(ones(2))\n"
    check_transformed(RULE, before, after)


def test_it_composes_with_creation_on_the_device() -> None:
    """The device goes into the call first, and the copy out of it then; the other order ends as well."""
    text = f"{HEAD}t = torch.tensor(np.stack(xs)).to(device)\n"
    first = run_transform(RULE, run_transform("create-on-device", text).after.decode()).after.decode()
    assert first == f"{HEAD}t = torch.as_tensor(np.stack(xs), device=device)\n"
    check_noop("create-on-device", run_transform(RULE, text).after.decode())


CONVERSIONS = """
import numpy as np
import torch

Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
rng = np.random.default_rng(0)


def show(t):
    print(t.dtype, t.shape, t.stride() if t.numel() else (), t.requires_grad, t.is_leaf, t.cpu().tolist())


for dtype in ("float16", "float32", "float64", "int32", "int64", "uint8"):
    show(torch.tensor(np.arange(6).astype(dtype).reshape(2, 3).T))
    show(torch.FloatTensor(np.arange(6).astype(dtype) * 3))
    show(torch.Tensor(np.array([0.1, 2.7]).astype(dtype)))
show(torch.tensor(rng.normal(0, 1, (2, 2)), requires_grad=True))
show(torch.tensor([rng.uniform(size=(2,)), rng.uniform(size=(2,))]))
show(torch.FloatTensor([rng.uniform(size=(2,)) for i in range(3)]))
show(torch.FloatTensor([np.zeros(2) for i in range(0)]))
show(torch.tensor(np.logical_or(np.zeros(2), np.ones(2))))
show(Tensor(np.ones((2, 2))))
shared = np.arange(3.0).astype(np.float32)
view = torch.FloatTensor(shared)
shared[0] = 7
view[1] = 8
print(shared, view.tolist())
"""


def test_values_dtypes_and_memory_are_the_same(tmp_path: Path) -> None:
    """Every tensor has the same values to the last bit, and shares memory where it did before."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(CONVERSIONS)
    after.write_bytes(run_transform(RULE, CONVERSIONS).after)
    text = after.read_text()
    assert "torch.tensor(" not in text and "torch.FloatTensor(" not in text and "torch.Tensor(" not in text
    assert run_on_cpu(before) == run_on_cpu(after)


LABELS = """
import numpy as np
import torch

Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
total = Tensor(np.zeros((4, 1)))
for step in range(5):
    valid = Tensor(np.ones((4, 1)))
    total = total + valid * step
print(total.tolist())
"""


def test_fills_on_the_gpu_are_not_copied_there(tmp_path: Path) -> None:
    """On the pretend GPU the same numbers are printed, and no labels come from the host any more."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(LABELS)
    after.write_bytes(run_transform(RULE, LABELS).after)
    printed, counts = run_on_fake_gpu(before)
    again, fewer = run_on_fake_gpu(after)
    assert printed == again
    assert fewer["h2d"] < counts["h2d"]
