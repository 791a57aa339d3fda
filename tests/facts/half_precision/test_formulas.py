"""Which formulas lose their meaning in half precision, and which look alike and keep it."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.half_precision import formulas
from torchfix.facts.half_precision.formulas import is_full, number

NETWORK = """
import torch
import torch.nn.functional as F
from torch import nn

BIG, SMALL = -1e9, 1e-9


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.squash = nn.Sigmoid()
        self.big = 1e10

    def forward(self, x, mask=None, limit=-1e9):
        h = self.fc(x)
{body}
"""


def codes(body: str) -> set[str]:
    """The hazards of these statements of a network."""
    facts = facts_of(NETWORK.format(body="\n".join(f"        {line}" for line in body.splitlines())))
    sigmoids = formulas.sigmoid_names(facts, facts.tree.module)
    found: set[str | None] = set()
    for item in ast.walk(facts.tree.module):
        if isinstance(item, ast.Call):
            found.add(formulas.in_call(facts, item, sigmoids))
        elif isinstance(item, (ast.Assign, ast.AugAssign)):
            found.add(formulas.in_store(facts, item))
        elif isinstance(item, ast.BinOp):
            found.add(formulas.in_arithmetic(facts, item))
    return {code for code in found if code is not None}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("h = h.masked_fill(mask, -1e4)", id="a fill that float16 holds"),
        pytest.param("h = h.masked_fill(mask, float('-inf'))", id="minus infinity"),
        pytest.param("h = h.masked_fill(mask, torch.finfo(h.dtype).min)", id="the limit of the tensor's own type"),
        pytest.param("p = F.softmax(h, 1).masked_fill(mask, -1e9)", id="a fill of float32"),
        pytest.param("p = h.float()\np = p.masked_fill(mask, -1e9)", id="a fill of what was converted"),
        pytest.param("counts.add(100000)", id="a set"),
        pytest.param("n = len(x) + 1e-9", id="an epsilon beside a number"),
        pytest.param("h = h / (h.float().mean() + 1e-9)", id="an epsilon beside float32"),
        pytest.param("h = h / h.norm(dim=1, keepdim=True).clamp(min=1e-12)", id="a bound of a float32 norm"),
        pytest.param("h = F.normalize(h, eps=1e-12)", id="an epsilon of torch's own"),
        pytest.param("p = torch.log(torch.sigmoid(h.float()))", id="a sigmoid of float32"),
        pytest.param("p = torch.log(F.softmax(h, 1))", id="the log of a softmax, which is float32"),
        pytest.param("s = (h**2).sum()", id="a square by power, which is float32"),
        pytest.param("area = self.size * self.size", id="a square of numbers"),
        pytest.param("d = 2 * self.fc(h)", id="twice a layer's output"),
        pytest.param("y = torch.zeros(4, 3)\ny[mask] = torch.ones(2)", id="a write between float32 tensors"),
        pytest.param("y = torch.zeros(4, 3)\ny[:, 1] = h[:, 1]", id="a write by number"),
        pytest.param("y = torch.zeros(4, 3).scatter(1, mask, 1)", id="a number that is scattered"),
        pytest.param("y = torch.scatter_add(x, 0, mask, h)", id="a function that autocast widens"),
    ],
)
def test_sound_formulas_have_no_hazard(body: str) -> None:
    """Numbers in range, float32 operands, and what torch computes in float32 by itself."""
    assert codes(body) == set()


@pytest.mark.parametrize(
    ("code", "body"),
    [
        pytest.param("half-overflow", "h = h.masked_fill(mask, -1e9)", id="a fill"),
        pytest.param("half-overflow", "h = h.masked_fill(mask, BIG)", id="a fill with a name"),
        pytest.param("half-overflow", "h = h.masked_fill(mask, limit)", id="a default"),
        pytest.param("half-overflow", "h = h.masked_fill(mask, self.big)", id="an attribute"),
        pytest.param("half-overflow", "h = h.masked_fill(mask, float('-1e9'))", id="a number in words"),
        pytest.param("half-overflow", "h = h.masked_fill(mask, torch.finfo(torch.float32).min)", id="the limit of float32"),
        pytest.param("half-overflow", "h = torch.where(mask, h, torch.tensor(-1e9))", id="a tensor of one number"),
        pytest.param("half-overflow", "h = h.clamp(max=1e12)", id="a bound"),
        pytest.param("half-overflow", "h[mask] = -1e9", id="a number that is written"),
        pytest.param("half-overflow", "h = h + (1 - mask) * -1e9", id="a sum"),
        pytest.param("half-overflow", "h.add_(-1e9)", id="a sum in place"),
        pytest.param("tiny-epsilon", "h = h / (h.std() + 1e-8)", id="an epsilon"),
        pytest.param("tiny-epsilon", "h = h / (h.std() + SMALL)", id="an epsilon with a name"),
        pytest.param("tiny-epsilon", "h = 1 / h.clamp(min=1e-8)", id="a lower bound"),
        pytest.param("tiny-epsilon", "h = 1 / torch.max(h, torch.tensor(1e-8))", id="the greater of two"),
        pytest.param("log-of-sigmoid", "p = torch.sigmoid(h)\nl = torch.log(1 - p)", id="the log of a sigmoid"),
        pytest.param("log-of-sigmoid", "p = h.sigmoid()\nl = torch.log1p(-p)", id="by log1p"),
        pytest.param("log-of-sigmoid", "p = self.squash(h).clamp(1e-6, 1 - 1e-6)\nq = p.view(-1)\nl = q.log()", id="through others"),
        pytest.param("square-by-hand", "s = (h * h).sum()", id="a product with itself"),
        pytest.param("square-by-hand", "v = ((h - m) * (h - m)).mean(0)", id="a variance"),
        pytest.param("square-by-hand", "s = torch.sum(torch.square(h))", id="a square"),
        pytest.param("distance-by-products", "p = h @ h.t()\nd = n + n.t() - 2 * p", id="a distance"),
        pytest.param("distance-by-products", "d = -2 * torch.matmul(h, h.t())", id="half of one"),
        pytest.param("distance-by-products", "d = n - 2 * h @ h.t()", id="without brackets"),
        pytest.param("distance-by-products", "d = torch.addmm(n, h, h.t(), alpha=-2)", id="by addmm"),
        pytest.param("in-place-product", "y = torch.zeros(4, 4)\ny.addmm_(h, h)", id="a product in place"),
        pytest.param("in-place-product", "torch.mm(h, h, out=y)", id="a product into a tensor"),
        pytest.param("index-write", "y = torch.zeros(4, 3)\ny[mask] = h[mask]", id="a write by mask"),
        pytest.param("index-write", "y.index_copy_(0, mask, h)", id="index_copy_"),
        pytest.param("index-write", "y = torch.scatter(y, 0, mask, h)", id="scatter"),
        pytest.param("index-write", "y = y.scatter_reduce(0, mask, h, 'sum')", id="scatter_reduce"),
        pytest.param("index-write", "y.scatter_add_(0, mask, h)", id="scatter_add_, which autocast does not widen"),
        pytest.param("float64", "h = h * 1j", id="complex numbers"),
    ],
)
def test_formulas_that_half_precision_breaks_have_a_code(code: str, body: str) -> None:
    """Overflow, numbers that become zero, differences of rounded numbers, and writes between dtypes."""
    assert codes(body) == {code}


def test_numbers_are_read_as_they_are_written() -> None:
    """With a sign, as a power, in words, and as a tensor; nothing else is one."""
    facts = facts_of("a = -2\nb = 10**6\nc = float('1e9')\nd = torch.tensor(5)\ne = float(text)\nf = True\n")
    texts = ("-2", "10**6", "float('1e9')", "torch.tensor(5)", "float(text)", "True")
    assert [number(node(facts, text)) for text in texts] == [-2, 1e6, 1e9, 5, None, None]


def test_float32_is_told_from_what_may_be_half() -> None:
    """By what autocast does to the operation, through names and arithmetic."""
    facts = facts_of("import torch\nn = x.norm()\nm = x.mean()\nk = n\na = k * 2\nb = n * m\nc = x.to(torch.float32)\nd = torch.zeros(3)\n")
    assert [is_full(facts, node(facts, text)) for text in ("k * 2", "n * m", "x.to(torch.float32)", "torch.zeros(3)", "x.mean()")] == [
        True,
        False,
        True,
        True,
        False,
    ]
