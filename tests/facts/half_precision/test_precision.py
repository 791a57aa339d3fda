"""Which values become half precision: what networks return, and what happens to it on its way through a program."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.half_precision.precision import FULL, FULL_TENSOR, Reader, Reading, join, named

NETWORK = """
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.loss = nn.CrossEntropyLoss()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x, y=None):
{body}

    def helper(self, x):
        return self.fc(x)

    def remember(self, x):
        self.memory = self.fc(x)


model = Block()
out = model(x)
"""


def result(*body: str) -> Reading:
    """What the network with these statements returns under autocast."""
    facts = facts_of(NETWORK.format(body="\n".join(f"        {line}" for line in body)))
    call = node(facts, "model(x)")
    assert isinstance(call, ast.Call)
    networks = facts.models.run_by(call)
    assert networks is not None
    return facts.precision.of_network(networks, call)


@pytest.mark.parametrize(
    ("body", "half", "tensor"),
    [
        pytest.param(["return self.fc(x)"], True, True, id="a layer"),
        pytest.param(["return self.act(self.fc(x)).view(2, -1)"], True, True, id="activation and view keep half"),
        pytest.param(["return F.log_softmax(self.fc(x), 1)"], False, True, id="log_softmax is float32"),
        pytest.param(["return self.loss(self.fc(x), y)"], False, True, id="torch's loss is float32"),
        pytest.param(["return self.fc(x).mean()"], True, True, id="a mean is half"),
        pytest.param(["return ((self.fc(x) - y) ** 2).sum()"], False, True, id="a sum is float32"),
        pytest.param(["return x @ x.t()"], True, True, id="a product of float32 is half"),
        pytest.param(["return x * 2"], False, False, id="nothing runs"),
        pytest.param(["return self.helper(x)"], True, True, id="a method"),
        pytest.param(["for layer in self.layers:", "    x = layer(x)", "return x"], True, False, id="a layer of a list"),
        pytest.param(["found = []", "found.append(self.fc(x))", "return found"], True, False, id="a list that is filled"),
        pytest.param(["found = {}", "found['a'] = self.fc(x)", "return found"], True, False, id="a dictionary that is filled"),
        pytest.param(["self.kept = self.fc(x)", "return self.kept"], True, True, id="an attribute"),
        pytest.param(["self.remember(x)", "return self.memory"], True, False, id="an attribute that a method sets"),
        pytest.param(["yield self.fc(x)"], True, False, id="a generator"),
        pytest.param(["return unknown(x)"], True, False, id="code out of sight"),
        pytest.param(["if y is None:", "    return x.relu()", "return self.fc(x)"], True, True, id="one of two ways"),
        pytest.param(["x = self.fc(x)", "x = x.float()", "return x"], False, True, id="converted"),
        pytest.param(["return self.fc(x).to(torch.float32)"], False, True, id="converted by dtype"),
        pytest.param(["return torch.distributions.Categorical(logits=self.fc(x))"], True, False, id="a distribution"),
    ],
)
def test_what_a_network_returns_is_read_from_its_code(body: list[str], half: bool, tensor: bool) -> None:
    """Whether it may be half, and whether it surely is one tensor."""
    found = result(*body)
    assert (bool(found.sources), found.tensor) == (half, tensor)


def test_the_elements_of_a_tuple_are_told_apart() -> None:
    """A network may return a float32 loss beside half scores."""
    parts = result("h = self.fc(x)", "return self.loss(h, y), h").parts
    assert parts is not None
    assert [bool(part.sources) for part in parts] == [False, True]


@pytest.mark.parametrize(
    ("use", "wanted"),
    [
        pytest.param("print(out.shape)", False, id="its shape"),
        pytest.param("hits = (out.argmax(1) == y).sum()", False, id="its largest index"),
        pytest.param("_, best = out.max(1)\nhits = best == y", False, id="the index beside the largest value"),
        pytest.param("values.append(out.item())", False, id="a number"),
        pytest.param("print(f'{out}')", False, id="printed"),
        pytest.param("again = model(out.detach())", True, id="another pass outside any region"),
        pytest.param("p = F.softmax(out, 1)", True, id="softmax outside"),
        pytest.param("best, _ = out.max(1)\nkept = best * 2", True, id="arithmetic"),
        pytest.param("a = out.cpu().numpy()", True, id="NumPy"),
        pytest.param("all_of_them.append(out)", True, id="a list"),
        pytest.param("self.out = out", True, id="an attribute"),
        pytest.param("same = out == y", True, id="equality"),
        pytest.param("def later():\n    return out + 1", True, id="a closure"),
        pytest.param("g = lambda: out + 1", True, id="a lambda"),
        pytest.param("library.show(out)", True, id="code out of sight"),
        pytest.param("good(out)", False, id="a function that only picks"),
        pytest.param("bad(out)", True, id="a function that computes"),
    ],
)
def test_outside_a_region_only_picking_and_reading_may_stay_half(use: str, wanted: bool) -> None:
    """Whatever computes with a half value, stores it or hands it on wants float32."""
    functions = "\ndef good(t):\n    return t.topk(2)[1].tolist()\n\n\ndef bad(t):\n    return t.exp().sum()\n\n\n"
    text = NETWORK.format(body="        return self.fc(x)").replace("model = Block()", f"{functions}model = Block()") + use + "\n"
    facts = facts_of(text)
    made = facts.tree.statement(node(facts, "model(x)"))
    reader = Reader(facts, frozenset([made]))
    reader.block(facts.tree.module.body)
    assert (node(facts, "model(x)") in reader.wanted) is wanted


def test_an_in_place_sum_keeps_the_precision_of_a_float32_tensor() -> None:
    """``loss += half`` leaves a float32 loss float32."""
    assert not result("loss = self.loss(self.fc(x), y)", "loss += self.fc(x).mean()", "return loss").sources
    assert result("loss = 0.0", "loss += self.fc(x).mean()", "return loss").sources


def test_joining_readings_keeps_what_all_of_them_have() -> None:
    """Half if one is, a tensor if all are, elements where all have as many."""
    half = Reading(frozenset([ast.Constant(1)]), True)
    assert join([half, FULL_TENSOR]) == Reading(half.sources, True)
    assert not join([half, FULL]).tensor
    assert join([]) == FULL
    assert join([Reading(parts=(FULL, FULL)), Reading(parts=(FULL,))]).parts is None


def test_a_value_is_told_by_its_name_or_as_what_a_call_returns() -> None:
    """The name of a part of a tuple is no function."""
    assert [named(ast.parse(text, mode="eval").body) for text in ("out", "self.model(x)")] == ["out", "what self.model(x) returns"]
