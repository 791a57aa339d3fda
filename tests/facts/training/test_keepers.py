"""What keeps values with a graph from one training step to the next."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.training.keepers import kept_graphs

HEAD = "from torch import nn\nnet = nn.Linear(2, 2)\ntotal, kept = 0, []\n"
STEP = "for x in y:\n    loss = net(x).mean()\n    loss.backward()\n    "


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("total += loss", ("sum", ["loss"]), id="sum"),
        pytest.param("total += loss * 2 + aux", ("sum", ["loss"]), id="the parts that carry a graph"),
        pytest.param("total = loss + total", ("sum", ["loss"]), id="sum written out"),
        pytest.param("kept.append((loss, x))", ("list", ["loss"]), id="pairs"),
        pytest.param("kept += [loss]", ("list", ["loss"]), id="list by addition"),
        pytest.param("total += loss.item()", None, id="a number"),
        pytest.param("total -= loss", None, id="no sum"),
        pytest.param("here = 0\n    here += loss", None, id="of one step"),
        pytest.param("print(loss)", None, id="printed"),
    ],
)
def test_what_is_kept(line: str, expected: tuple[str, list[str]] | None) -> None:
    """Sums and lists that are older than the step."""
    facts = facts_of(HEAD + STEP + line)
    found = [(item.kind, [ast.unparse(term) for term in item.terms]) for item in kept_graphs(facts)]
    assert found == ([expected] if expected else [])


def test_loops_that_do_not_train_keep_nothing_from_step_to_step() -> None:
    """Inside one forward pass everything is kept anyway."""
    facts = facts_of(
        HEAD + "def f(parts):\n    total = 0\n    for x in parts:\n        total += net(x)\n    return total\nf(1).backward()\n"
    )
    assert list(kept_graphs(facts)) == []


def test_an_object_that_keeps_what_it_is_given() -> None:
    """By a method of its class in sight; what only prints is none."""
    meter = "class M:\n    def update(self, v):\n        self.v = v\n    def show(self, v):\n        print(v)\nm = M()\n"
    facts = facts_of(HEAD + meter + STEP + "m.update(loss)\n    m.show(loss)")
    assert [(item.kind, ast.unparse(item.node)) for item in kept_graphs(facts)] == [("object", "m.update(loss)")]
