"""Loops that train through what they call, and loops that use mixed precision already."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("def learn(x):\n    f(x).backward()\n    o.step()\n\n\nfor x in b:\n    learn(x)\n", {6: "backward"}, id="a function"),
        pytest.param(
            "class T:\n    def learn(self, x):\n        f(x).backward()\n\n    def run(self):\n        while 1:\n            self.learn(x)",
            {6: "backward"},
            id="a method",
        ),
        pytest.param(
            "class O:\n    def update(self):\n        self.o.step()\n\n\nfor x in b:\n    f(x).backward()\n    o.update()\n",
            {6: "step"},
            id="a wrapper's step",
        ),
        pytest.param(
            "def epoch():\n    for x in b:\n        f(x).backward()\n        o.step()\n\n\nfor e in n:\n    epoch()\n", {}, id="epochs"
        ),
        pytest.param("for x in b:\n    f(x).backward()\n", {}, id="gradients alone"),
        pytest.param("def show(x):\n    print(x)\n\n\nfor x in b:\n    show(x)\n", {}, id="no training"),
    ],
)
def test_loops_that_train_through_what_they_call_are_told(text: str, expected: dict[int, str]) -> None:
    """Each with the part that stands elsewhere; loops around them are not among them."""
    facts = facts_of(text)
    assert {node.lineno: part for node, part in facts.loops.indirect.items()} == expected


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        pytest.param(
            "def send(x):\n    f(x).backward()\n\n\nfor x in b:\n    send(x)\n    o.step()\n",
            "backward-elsewhere",
            "the backward pass stands in send (line 1 of train.py)",
            id="a function",
        ),
        pytest.param(
            "class O:\n    def update(self):\n        self.o.step()\n\n\no = O()\nfor x in b:\n    f(x).backward()\n    o.update()\n",
            "step-elsewhere",
            "o.update() on line 9 leaves the optimizer's step to update (line 2 of train.py)",
            id="a wrapper",
        ),
        pytest.param(
            "class O:\n    def update(self):\n        self.o.step()\n\n\nfor x in b:\n    f(x).backward()\n    o.update()\n",
            "step-elsewhere",
            "o.update() on line 8 leaves the optimizer's step to a method of another object",
            id="a wrapper whose making is not seen",
        ),
    ],
)
def test_where_the_rest_of_the_step_stands_is_told(text: str, code: str, words: str) -> None:
    """By function, line and file where the function is surely known."""
    facts = facts_of(text)
    (node,) = facts.loops.indirect
    found = facts.loops.elsewhere(node)
    assert found.code == code and words in found.text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("loss.backward()", False, id="plain"),
        pytest.param("scaler.scale(loss).backward()", True, id="scaled"),
        pytest.param("loss.backward()\n    scaler.unscale_(o)", True, id="unscaled"),
        pytest.param("with amp.scale_loss(loss, o) as s:\n        s.backward()", True, id="scaled by apex"),
        pytest.param("with torch.autocast('cuda'):\n        f(x)\n    loss.backward()", True, id="under autocast"),
    ],
)
def test_loops_that_use_mixed_precision_already_are_told(body: str, expected: bool) -> None:
    """By autocast or by a scaled loss."""
    facts = facts_of(f"import torch\nfor x in b:\n    {body}\n    o.step()\n    o.zero_grad()\n")
    (loop,) = facts.loops.training
    assert facts.loops.scales(loop) is expected


@pytest.mark.parametrize("name", ["torch.optim.lr_scheduler.LRScheduler", "torch.optim.lr_scheduler._LRScheduler"])
def test_a_schedule_of_the_projects_own_is_no_second_optimizer(name: str) -> None:
    """A class that derives from torch's schedulers moves the learning rate, and steps no parameters."""
    facts = facts_of(
        """
        import torch
        from warmup import WarmUp

        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = WarmUp(optimizer)
        for x in batches:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            schedule.step()
        """,
        modules={"warmup.py": f"import torch\n\nclass WarmUp({name}):\n    def get_lr(self):\n        return self.base_lrs\n"},
    )
    (loop,) = facts.loops.training
    assert [ast.unparse(call.func) for call in loop.steps] == ["optimizer.step"]
    assert [ast.unparse(call.func) for call in loop.scheduler_steps] == ["schedule.step"]


def test_a_loop_starts_at_the_outermost_loop_of_its_own_function() -> None:
    """A loop around the call of its function is another matter."""
    inner = "for x in b:\n{0}    f(x).backward()\n{0}    o.step()\n{0}    o.zero_grad()\n"
    alone = facts_of(inner.format("")).loops.training[0]
    assert alone.start is alone.node
    text = "def run():\n    while 1:\n        for e in n:\n            " + inner.format("            ") + "\n\nfor r in s:\n    run()\n"
    (loop,) = facts_of(text).loops.training
    assert (loop.node.lineno, loop.start.lineno) == (4, 2)
