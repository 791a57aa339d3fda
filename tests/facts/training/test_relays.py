"""Backward passes in functions: which calls stand for them, and which code leaves its backward passes to functions."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

import pytest

from tests.facts.reading import facts_of
from torchfix.facts import Facts

HEAD = """\
import torch
from torch import nn

model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


"""


def read(functions: str, loop: str) -> Facts:
    body = indent(dedent(loop).strip(), "    ")
    return facts_of(f"{HEAD}{dedent(functions).strip()}\n\n\nfor x in batches:\n    optimizer.zero_grad()\n{body}\n    optimizer.step()\n")


def relayed(functions: str, loop: str) -> list[tuple[str, list[str], str]]:
    """By what, through what, and which loss, for each backward pass that a loop leaves to functions."""
    units = read(functions, loop).relays.units
    found = [relay for unit in units for relay in unit.relays]
    return [(ast.unparse(item.place), [function.name for function in item.functions], ast.unparse(item.loss)) for item in found]


SEND = """
def send(loss):
    loss.backward()
"""


def test_a_loop_that_sends_by_itself_relays_nothing() -> None:
    """It is a training loop as it stands."""
    facts = read(SEND, "model(x).sum().backward()")
    assert not facts.relays.units and len(facts.loops.training) == 1


@pytest.mark.parametrize(
    "functions",
    [
        pytest.param("def send(loss):\n    print(loss)\n    if loss > 0:\n        loss.backward()", id="it may send nothing"),
        pytest.param("def send(loss):\n    if loss > 0:\n        return\n    loss.backward()", id="it may return before"),
        pytest.param("def send(loss):\n    loss.backward()\n    optimizer.step()", id="it steps as well"),
        pytest.param("@timed\ndef send(loss):\n    loss.backward()", id="it is decorated"),
        pytest.param(SEND + "\n\nsend(torch.ones(1, requires_grad=True))", id="it is called elsewhere"),
        pytest.param(SEND + "\n\nregister(send)", id="it is handed on"),
        pytest.param("from other import send", id="it is out of sight"),
    ],
)
def test_functions_that_do_not_stand_for_their_backward_pass(functions: str) -> None:
    """One must come of each call, and of nobody else's."""
    assert relayed(functions, "send(model(x).sum())") == []


def test_a_method_that_a_class_below_writes_anew_does_not_stand_for_it() -> None:
    """Another one may run."""
    text = f"""{HEAD}
class Trainer:
    def send(self, loss):
        loss.backward()

    def step(self, x):
        self.send(model(x).sum())
        optimizer.step()
        optimizer.zero_grad()
"""
    assert [unit.node.lineno for unit in facts_of(text).relays.units] == [13]
    assert not facts_of(text + "\n\nclass Other(Trainer):\n    def send(self, loss):\n        pass\n").relays.units


METHOD = f"""{HEAD}
class Trainer:
    def backward(self):
        loss = self.out.mean()
        loss.backward()

    def step(self, x):
        self.out = model(x)
        self.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_method_may_have_the_name_that_tensors_have() -> None:
    """What nothing else is asked of than a tensor can answer is none of its objects."""
    other = "\n\ndef train(model, trainer):\n    out = model(1)\n    out.mean().backward()\n    (out + 1).backward()\n"
    (unit,) = facts_of(METHOD + other).relays.units
    assert [relay.function.name for relay in unit.relays] == ["backward"]
    assert not facts_of(METHOD + "\n\ndef train(trainer):\n    trainer.backward()\n").relays.units
    assert not facts_of(METHOD + "\n\nmade = make()\nmade.step(1)\nmade.backward()\n").relays.units


def test_a_call_stands_for_the_backward_passes_of_its_function() -> None:
    """All of them, also through functions in between."""
    assert relayed(SEND, "send(model(x).sum())") == [("send(model(x).sum())", ["send"], "loss")]
    through = SEND + "\n\ndef send_both(one, other):\n    send(one)\n    (other * 2).backward()\n"
    found = relayed(through, "loss = model(x).sum()\nsend_both(loss, loss)")
    assert found == [("send_both(loss, loss)", ["send_both", "send"], "loss"), ("send_both(loss, loss)", ["send_both"], "other * 2")]


def test_what_goes_backward_is_each_pass_once() -> None:
    """Also where two calls run one function."""
    facts = read(SEND, "send(model(x).sum())\nmodel(x).mean().backward()\nsend(model(x).max())")
    (unit,) = facts.relays.units
    assert [ast.unparse(loss) for _, loss in unit.sends] == ["model(x).mean()", "loss"]
    assert len(unit.backwards) == 3 and unit.relays[0].given[0] is unit.backwards[0].args[0]
