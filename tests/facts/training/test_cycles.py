"""Cycles of gradients: what each step takes, and where a scaler may look."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.cycles import Cycle

HEAD = """\
import torch
from torch import nn

a = nn.Linear(2, 2)
b = nn.Linear(2, 2)
one = torch.optim.SGD(a.parameters(), lr=0.1)
two = torch.optim.SGD(b.parameters(), lr=0.1)
for i, x in enumerate(batches):
    first, second = a(x).mean(), b(x).mean()
    loss = first + second
"""


def cycle(body: str) -> Cycle | Obstacle:
    """The cycle of a loop with this body."""
    facts = facts_of(HEAD + indent(dedent(body).strip("\n"), "    ") + "\n")
    (loop,) = facts.loops.training
    return facts.cycles.of(loop)


def read(body: str) -> tuple[list[str], dict[str, list[str]]]:
    """The closing statements, and what each step takes, in words."""
    found = cycle(body)
    assert isinstance(found, Cycle), found
    taken = {ast.unparse(step): [ast.unparse(call) for call in calls] for step, calls in found.sources.items()}
    return [ast.unparse(item).splitlines()[0] for item in found.closing], taken


def test_two_optimizers_close_behind_the_last() -> None:
    """Each takes what was sent since its own gradients were cleared."""
    closing, taken = read(
        """
        one.zero_grad()
        first.backward()
        one.step()
        two.zero_grad()
        second.backward()
        two.step()
        """
    )
    assert closing == ["two.step()"]
    assert taken == {"one.step()": ["first.backward()"], "two.step()": ["second.backward()"]}


def test_gradients_are_also_cleared_through_the_network() -> None:
    """Where it is the only one that the optimizer steps."""
    closing, taken = read("a.zero_grad()\nb.zero_grad()\nloss.backward()\none.step()\ntwo.step()")
    assert closing == ["two.step()"]
    assert taken == {"one.step()": ["loss.backward()"], "two.step()": ["loss.backward()"]}


def test_a_step_under_a_condition_closes_behind_the_condition() -> None:
    """The other one has surely been looked at."""
    closing, _ = read(
        """
        one.zero_grad()
        first.backward()
        one.step()
        if i % 5 == 0:
            two.zero_grad()
            second.backward()
            two.step()
        """
    )
    assert closing == ["if i % 5 == 0:"]


def test_steps_in_branches_close_each_for_itself() -> None:
    """Only one of them runs in an iteration."""
    closing, _ = read(
        """
        if i % 2:
            one.zero_grad()
            first.backward()
            one.step()
        else:
            two.zero_grad()
            second.backward()
            two.step()
        """
    )
    assert closing == ["one.step()", "two.step()"]


def test_a_step_in_an_inner_loop_closes_there() -> None:
    """It would step twice under one scale otherwise."""
    closing, _ = read(
        """
        for part in x:
            one.zero_grad()
            first.backward()
            one.step()
        two.zero_grad()
        second.backward()
        two.step()
        """
    )
    assert closing == ["one.step()", "two.step()"]


def test_steps_in_a_row_close_behind_the_last_of_them() -> None:
    """Where one of them steps again later in the same iteration."""
    closing, taken = read(
        """
        one.zero_grad()
        two.zero_grad()
        loss.backward()
        one.step()
        two.step()
        one.zero_grad()
        first.backward()
        one.step()
        """
    )
    assert closing == ["two.step()", "one.step()"]
    assert taken == {"one.step()": ["first.backward()"], "two.step()": ["loss.backward()"]}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("one.zero_grad()\nfirst.backward()\none.step()", id="before"),
        pytest.param("first.backward()\none.step()\none.zero_grad()", id="behind"),
        pytest.param("if not x:\n    continue\none.zero_grad()\nfirst.backward()\none.step()", id="all of the turn may be left out"),
        pytest.param("first.backward()\nif i % 2:\n    one.step()\n    one.zero_grad()", id="with the step"),
        pytest.param("first.backward()\none.step()\nfor p in a.parameters():\n    p.grad = None", id="by hand"),
        pytest.param("for each in (one, two):\n    each.zero_grad()\nfirst.backward()\none.step()", id="each of several"),
        pytest.param(
            "if i % 2 == 0:\n    one.zero_grad()\nfirst.backward()\nif (i + 1) % 2 == 0 or i == 7:\n    one.step()", id="in the same rhythm"
        ),
        pytest.param("first.backward()\nif i % 2 == 0:\n    one.step()\nif i % 2 == 0:\n    one.zero_grad()", id="in two conditions"),
    ],
)
def test_a_single_step_closes_where_gradients_are_surely_cleared_for_it(body: str) -> None:
    """Once for each step, before they are sent again."""
    closing, taken = read(body)
    assert closing == ["one.step()"]
    assert taken == {"one.step()": ["first.backward()"]}


@pytest.mark.parametrize(
    ("code", "body"),
    [
        pytest.param("gradients-kept", "loss.backward()\none.step()\ntwo.step()\none.zero_grad()", id="never cleared"),
        pytest.param(
            "gradients-kept",
            "one.zero_grad()\ntwo.zero_grad()\nloss.backward()\nif i:\n    one.step()\nif i > 3:\n    two.step()",
            id="a loss for two steps under conditions",
        ),
        pytest.param(
            "gradients-kept",
            "one.zero_grad()\ntwo.zero_grad()\nloss.backward()\none.step()\nif i:\n    continue\ntwo.step()",
            id="left between the steps",
        ),
        pytest.param(
            "gradients-kept",
            "if i % 2:\n    one.zero_grad()\nfirst.backward()\none.step()\ntwo.zero_grad()\nsecond.backward()\ntwo.step()",
            id="cleared less often than stepped",
        ),
        pytest.param("gradients-kept", "first.backward()\none.step()", id="a single one that is never cleared"),
        pytest.param("gradients-kept", "two.zero_grad()\nfirst.backward()\none.step()", id="another one is cleared"),
        pytest.param("gradients-kept", "first.backward()\none.step()\nif i:\n    continue\none.zero_grad()", id="left before the clearing"),
        pytest.param(
            "gradients-kept",
            "if i % 2 == 0:\n    one.zero_grad()\nfirst.backward()\nif (i + 1) % 4 == 0:\n    one.step()",
            id="cleared in another rhythm",
        ),
        pytest.param(
            "gradients-kept",
            "if n % 2 == 0:\n    one.zero_grad()\nfirst.backward()\nif (n + 1) % 2 == 0 or i == 7:\n    one.step()",
            id="an extra step of a counter that goes on",
        ),
        pytest.param(
            "conditional-backward",
            "one.zero_grad()\ntwo.zero_grad()\nfirst.backward()\none.step()\ntwo.step()",
            id="a loss that one of two takes no part in",
        ),
        pytest.param(
            "conditional-backward",
            "one.zero_grad()\ntwo.zero_grad()\nloss = a(b(x).detach()).mean()\nloss.backward()\none.step()\ntwo.step()",
            id="a detached part",
        ),
        pytest.param(
            "conditional-backward",
            "one.zero_grad()\nif i:\n    loss.backward()\none.step()\ntwo.zero_grad()\nsecond.backward()\ntwo.step()",
            id="a step without gradients",
        ),
        pytest.param(
            "conditional-backward",
            "one.zero_grad()\nif not i:\n    loss = torch.zeros(1, requires_grad=True)\nloss.backward()\none.step()",
            id="a loss that may be a constant",
        ),
    ],
)
def test_what_no_scaler_could_serve_has_a_reason(code: str, body: str) -> None:
    """The words name the optimizer's step."""
    found = cycle(body)
    assert isinstance(found, Obstacle)
    assert found.code == code


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("if i:\n    one.step()\nelse:\n    {between}one.step()", id="two branches"),
        pytest.param(
            "if i > 2:\n    one.step()\nelif i:\n    print(i)\n    one.step()\nelse:\n    {between}one.step()", id="three branches"
        ),
    ],
)
def test_steps_of_one_optimizer_in_each_branch_of_a_choice_close_behind_it(body: str) -> None:
    """Whichever branch runs, it steps once."""
    found = cycle("one.zero_grad()\nfirst.backward()\n" + body.format(between=""))
    assert isinstance(found, Cycle)
    assert [ast.unparse(item).splitlines()[0] for item in found.closing] == [body.splitlines()[0]]
    twice = cycle("one.zero_grad()\nfirst.backward()\n" + body.format(between="one.step()\n    "))
    assert isinstance(twice, Obstacle)
