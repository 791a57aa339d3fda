"""Where training loops clear which gradients."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

import pytest

from tests.facts.reading import facts_of

HEAD = """\
import torch
from torch import nn

def forget(optimizer, also=None):
    optimizer.zero_grad()

def perhaps(optimizer):
    if optimizer:
        optimizer.zero_grad()

a = nn.Linear(2, 2)
b = nn.Linear(2, 2)
one = torch.optim.SGD(a.parameters(), lr=0.1)
two = torch.optim.SGD(b.parameters(), lr=0.1)

def forget_both():
    two.zero_grad()
    one.zero_grad()

def forget_own():
    one = object()
    one.zero_grad()

for i, x in enumerate(batches):
    a(x).mean().backward()
    one.step()
"""


def cleared(body: str) -> list[list[str]]:
    """What each place of a loop with this body clears: names, and the calls that made networks."""
    facts = facts_of(HEAD + indent(dedent(body).strip("\n"), "    ") + "\n")
    (loop,) = facts.loops.training
    made = {call: name for name, call in (("a", facts.values.single(loop.backwards[0].func.value.func.value.func)),)}
    return [sorted(item if isinstance(item, str) else made.get(item, "b") for item in clear.targets) for clear in facts.clears.of(loop)]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("pass", id="nothing"),
        pytest.param("perhaps(one)", id="a function that may do it"),
        pytest.param("forget_own()", id="a function with a variable of its own"),
        pytest.param("unknown(one)", id="a function out of sight"),
        pytest.param("for p in a.parameters():\n    p.grad = None\n    print(p)", id="a loop that does something else too"),
        pytest.param("for p in tensors:\n    p.grad = None", id="tensors of no network"),
        pytest.param("for p in a.parameters():\n    q.grad = None", id="another one's gradient"),
    ],
)
def test_what_is_not_surely_cleared_is_none(body: str) -> None:
    """What stands under a condition, or out of sight, does not count."""
    assert cleared(body) == []


@pytest.mark.parametrize(
    ("body", "targets"),
    [
        pytest.param("one.zero_grad()", [["one"]], id="an optimizer"),
        pytest.param("a.zero_grad(set_to_none=True)", [["a"]], id="a network"),
        pytest.param("two.zero_grad()\none.zero_grad()", [["two"], ["one"]], id="in text order"),
        pytest.param("forget(one)", [["one"]], id="a function that is handed it"),
        pytest.param("forget_both()\nprint(two)", [["one", "two"]], id="a function that knows them"),
        pytest.param("forget(also=1, optimizer=one)", [["one"]], id="by keyword"),
        pytest.param("for p in a.parameters():\n    p.grad = None", [["a"]], id="by hand, to None"),
        pytest.param("for p in a.parameters():\n    p.grad.zero_()", [["a"]], id="by hand, to zeros"),
    ],
)
def test_calls_loops_and_functions_clear(body: str, targets: list[list[str]]) -> None:
    """Each place has what it clears."""
    assert cleared(body) == targets


def test_a_loop_over_several_clears_each_of_them() -> None:
    """The loop is the place; the call in it clears what its own variable holds."""
    assert ["one", "two"] in cleared("for each in (one, two):\n    each.zero_grad()")


def test_a_method_of_the_same_object_clears_what_it_names() -> None:
    """As `self.reset()` does."""
    facts = facts_of(
        """
        import torch
        from torch import nn

        class Solver:
            def __init__(self):
                self.net = nn.Linear(2, 2)
                self.one = torch.optim.SGD(self.net.parameters(), lr=0.1)

            def reset(self):
                self.one.zero_grad()

            def train(self, batches):
                for x in batches:
                    self.reset()
                    self.net(x).mean().backward()
                    self.one.step()
        """
    )
    (loop,) = facts.loops.training
    assert [clear.targets for clear in facts.clears.of(loop)] == [frozenset(["self.one"])]


OBJECT = """\
import torch
from torch import nn

class Wrapper:
    def __init__(self, net, optimizer):
        self.net = net
        self.inner = optimizer

    def zero_grad(self):
        {body}

    def forget(self):
        self.inner.step()
        self.inner.zero_grad()

class Net(nn.Module):
    def zero_grad(self):
        super().zero_grad()

net = Net()
wrapped = Wrapper(net, torch.optim.SGD(net.parameters(), lr=0.1))
for x in batches:
    net(x).mean().backward()
    {call}
    other.step()
    other.zero_grad()
"""


@pytest.mark.parametrize(
    ("body", "call", "expected"),
    [
        pytest.param("pass", "wrapped.zero_grad()", set(), id="by name only"),
        pytest.param("if self.net: self.inner.zero_grad()", "wrapped.zero_grad()", set(), id="under a condition"),
        pytest.param("self.inner.zero_grad()", "wrapped.zero_grad()", {"wrapped.inner"}, id="the optimizer inside"),
        pytest.param("self.net.zero_grad()", "wrapped.zero_grad()", {"Net()"}, id="the network inside"),
        pytest.param("pass", "wrapped.forget()", {"wrapped.inner"}, id="a method of another name"),
        pytest.param("pass", "net.zero_grad()", {"Net()"}, id="a method that does what its base class does"),
        pytest.param("pass", "wrapped.inner.zero_grad()", {"wrapped.inner"}, id="through the object"),
    ],
)
def test_what_a_method_of_the_project_clears_of_its_object(body: str, call: str, expected: set[str]) -> None:
    """As the call names that object."""
    facts = facts_of(OBJECT.format(body=body, call=call))
    (loop,) = facts.loops.training
    found = {item for clear in facts.clears.of(loop) for item in clear.targets} - {"other"}
    assert {item if isinstance(item, str) else ast.unparse(item.node) for item in found} == expected
