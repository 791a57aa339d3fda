"""Advise against anomaly detection that was left on.

Why:
    Under anomaly detection autograd keeps the stack trace of every operation of the forward pass, and looks for NaN in
    the result of every function of the backward pass, for which the program waits. Training takes several times as long.

Before:
    import torch

    torch.autograd.set_detect_anomaly(True)
    weight = torch.ones(3, requires_grad=True)
    (weight * 2).sum().backward()

After:
    import torch

    torch.autograd.set_detect_anomaly(True)
    weight = torch.ones(3, requires_grad=True)
    (weight * 2).sum().backward()

Safety:
    Changes nothing, only advises: with the switch the error goes that tells of a NaN in a gradient, and a program may
    count on it. Says nothing where detection is turned on by a condition, an option or an argument that is not true
    unless somebody asks for it, after an error, in a class or function that nothing uses, and in tests.

Reference:
    https://docs.pytorch.org/docs/stable/autograd.html#debugging-and-anomaly-detection,
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#disable-debugging-apis
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from torchfix.facts import Facts
from torchfix.facts.code.calls import argument, keyword
from torchfix.facts.code.tree import FUNCTIONS
from torchfix.facts.project.switches import is_on, is_reached
from torchfix.transform import Default, Finding, Held, NoOptions, Transform

_SWITCH = "torch.autograd.set_detect_anomaly"
_CONTEXT = "torch.autograd.detect_anomaly"
_TRAINERS = tuple(
    f"{package}.{name}"
    for package in ("pytorch_lightning", "lightning", "lightning.pytorch")
    for name in ("Trainer", "trainer.Trainer", "trainer.trainer.Trainer")
)
_MESSAGE = "anomaly detection is on, which slows every forward and backward pass"
_ADVICE = Held(
    "advice",
    "it is meant for a search after a NaN; without it a NaN in a gradient raises no error",
    "turn it on by an option that is off by default, or remove it once the search is over",
)


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    for node in _switched_on(facts):
        if is_reached(facts, node) and not _is_test(facts, node):
            yield Finding(node, _MESSAGE, held=_ADVICE)


def _switched_on(facts: Facts) -> Iterator[ast.expr]:
    """The calls that surely turn detection on where they are reached; for a trainer the argument that does."""
    for call in facts.calls.to(_CONTEXT):
        yield call
    for call in facts.calls.to(_SWITCH):
        if is_on(facts, argument(call, "mode", 0)):
            yield call
    for call in facts.calls.to(*_TRAINERS):
        given = keyword(call, "detect_anomaly")
        if given is not None and is_on(facts, given.value):
            yield given.value


def _is_test(facts: Facts, node: ast.expr) -> bool:
    """Whether a node stands in a function that pytest collects."""
    name = os.path.basename(facts.path)
    functions = (outer for outer in facts.tree.ancestors(node) if isinstance(outer, FUNCTIONS))
    return (name.startswith("test_") or name.endswith("_test.py")) and any(function.name.startswith("test") for function in functions)


TRANSFORM = Transform.from_module(
    __name__, __doc__, group="profiling", literals=(b"detect_anomaly",), find=find, since="1.0", default=Default.ADVICE
)
