"""Whether an expression keeps its value from one place to another."""

from __future__ import annotations

import ast
from textwrap import indent

import pytest

from tests.facts.reading import facts_of

TEXT = """
import torch
from torch import nn
import torch.nn.functional as F

def train(model, loader, optimizer, scaler, criterion, helper):
    for x, y in loader:
        output = model(x)
        loss = F.mse_loss(output, y)
        other = loss
        shown = MADE
        FIRST
        BETWEEN
        LAST
        loss.backward()
"""


def keeps(value: str, between: str, made: str = "None") -> bool:
    """Whether a value is the same in front of some lines and behind them."""
    between = between.replace("\n", "\n        ")
    text = TEXT.replace("MADE", made).replace("FIRST", "first = 0").replace("LAST", f"last = {value}").replace("BETWEEN", between)
    facts = facts_of(text)
    first, last = (
        next(node for node in ast.walk(facts.source.tree) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name)
        for name in ("first", "last")
    )
    span = facts.stability.span(first, last)
    assert span is not None
    return facts.stability.keeps(last.value, span)


@pytest.mark.parametrize(
    ("value", "between"),
    [
        pytest.param("loss.item()", "loss = loss / 2", id="bound anew"),
        pytest.param("loss.item()", "loss /= 2", id="divided in place"),
        pytest.param("loss.item()", "loss.mul_(2)", id="in-place method"),
        pytest.param("loss.item()", "loss.data.mul_(2)", id="in-place method of its data"),
        pytest.param("loss.item()", "loss[0] = 1", id="item stored"),
        pytest.param("loss.item()", "del loss", id="deleted"),
        pytest.param("loss.item()", "for loss in y:\n    pass", id="loop variable"),
        pytest.param("loss.item()", "if x is None:\n    loss = y", id="bound anew in a branch"),
        pytest.param("loss.item()", "torch.distributed.all_reduce(loss)", id="reduced over processes"),
        pytest.param("loss.item()", "helper(loss)", id="given to unknown code"),
        pytest.param("loss.item()", "helper(value=loss.detach())", id="a view given to unknown code"),
        pytest.param("loss.item()", "view = loss.view(-1)\nview += 1", id="written through a view"),
        pytest.param("loss.item()", "log = {'loss': loss}\nhelper(log)", id="given to unknown code in a dictionary"),
        pytest.param("loss.item()", "helper.loss = loss\nhelper.run()", id="kept by an object"),
        pytest.param("loss.item()", "helper.scale(loss)", id="given to unknown code that is named like a scaler's"),
        pytest.param("loss.item()", "for one in (loss,):\n    one += 1", id="written by the name of a loop"),
        pytest.param("loss.item()", "one, two = loss, y\none += 1", id="written by an unpacked name"),
        pytest.param("loss.item()", "(one := loss).add_(1)", id="written by a name inside an expression"),
        pytest.param("loss.item()", "one = loss if y else x\none += 1", id="written by a name that may be another"),
        pytest.param("loss.item()", "kept = [loss]\nhelper(kept)", id="given to unknown code in a list"),
        pytest.param("loss.item()", "change = lambda: loss.add_(1)\nchange()", id="written by a function inside"),
        pytest.param("other.item()", "loss += 1", id="another name, written by the first"),
        pytest.param("loss.item()", "yield loss", id="given to the caller of a generator"),
        pytest.param("shown.item()", "yield 1", id="a parameter, while the caller of a generator runs"),
        pytest.param("loss.item()", "torch.neg(y, out=loss)", id="written as out"),
        pytest.param("output.item()", "optimizer.step()", id="what a network gives may be a parameter"),
        pytest.param("shown.item()", "optimizer.step()", id="a parameter"),
        pytest.param("model.scale.item()", "pass", id="attribute of an object"),
        pytest.param("shown['loss'].item()", "pass", id="entry of a dictionary"),
        pytest.param("helper()", "pass", id="unknown code"),
        pytest.param("torch.rand(1).item()", "pass", id="random number"),
    ],
)
def test_what_may_change(value: str, between: str) -> None:
    """A value that may be bound anew, written in place, or reached by code out of sight does not keep."""
    assert not keeps(value, between, made="model.scale")


@pytest.mark.parametrize(
    ("value", "between"),
    [
        pytest.param("loss.item()", "pass", id="nothing between"),
        pytest.param("loss.item()", "print(loss)", id="shown"),
        pytest.param("loss.item()", "loss.backward()\noptimizer.step()", id="loss of an update"),
        pytest.param("loss.item()", "scaler.scale(loss).backward()\nscaler.step(optimizer)", id="scaled loss"),
        pytest.param("loss.item()", "helper(loss.item())", id="number given to unknown code"),
        pytest.param("loss.item()", "total = loss + 1\nhelper(total)", id="sum given to unknown code"),
        pytest.param("float(torch.sum(output == y))", "print(y.shape)", id="hits"),
        pytest.param("output.item()", "print(output.item())", id="what a network gives, only shown"),
        pytest.param("shown.item()", "helper()", id="a mean"),
    ],
)
def test_what_keeps_its_value(value: str, between: str) -> None:
    """A loss keeps its value through backward pass, update, logs and everything that is not given it."""
    assert keeps(value, between, made="(output - y).abs().mean()")


@pytest.mark.parametrize(
    ("made", "same"),
    [
        pytest.param("loss = F.mse_loss(output, y)", True, id="each iteration makes another tensor"),
        pytest.param("if x is None:\n            loss = F.mse_loss(output, y)", False, id="some iterations keep the tensor"),
    ],
)
def test_what_is_given_away_later(made: str, same: bool) -> None:
    """Code that is given a tensor behind both places can only reach the tensor of an iteration before."""
    text = TEXT.replace("loss = F.mse_loss(output, y)", made).replace("        other = loss\n", "").replace("MADE", "None")
    text = (
        text.replace("FIRST", "first = loss.item()")
        .replace("BETWEEN", "helper.run()")
        .replace("LAST", "last = loss.item()\n        helper.keep(loss)")
    )
    facts = facts_of(text)
    first, last = (
        next(node for node in ast.walk(facts.source.tree) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name)
        for name in ("first", "last")
    )
    span = facts.stability.span(first, last)
    assert span is not None
    assert facts.stability.keeps(last.value, span) is same


@pytest.mark.parametrize(("log", "same"), [("{}", True), ("dict(a=1)", True), ("helper.log", False)])
def test_what_is_given_away_while_an_entry_is_stored(log: str, same: bool) -> None:
    """An entry of a dictionary is no part of a tensor; who knows what one of an unknown object is."""
    assert keeps("torch.sum(output == y).item()", f"log = {log}\nlog['a'] = 1", made="helper(output)") is same


def test_numbers_are_no_views_of_a_tensor() -> None:
    """Python's own ``float(loss)`` makes a number, ``loss.float()`` may hand out the tensor itself."""
    assert keeps("loss.item()", "helper(float(loss))")
    assert not keeps("loss.item()", "helper(loss.float())")


def spanned(body: str) -> bool:
    """Whether ``b`` is called whenever ``a`` is."""
    facts = facts_of(f"def f(x):\n    for i in x:\n{indent(body, '        ')}\n")
    one, other = (facts.tree.statement(facts.tree.calls[name][0]) for name in "ab")
    return facts.stability.beside(one, other) is not None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a()\nb()", True),
        ("b()\na()", True),
        ("if x:\n    a()\nb()", True),
        ("a()\nwith x:\n    b()", True),
        ("a()\nif x:\n    b()", False),
        ("if x:\n    a()\nelse:\n    b()", False),
        ("a()\nif x:\n    continue\nb()", False),
        ("b()\nif x:\n    continue\na()", True),
    ],
)
def test_statements_that_run_whenever_another_does(body: str, expected: bool) -> None:
    """A statement in a block around another runs with it, unless something leaves the block in between."""
    assert spanned(body) is expected


def test_expressions_of_the_same_words() -> None:
    """Two expressions are alike where their variables are the same too."""
    facts = facts_of("x = 1\ny = x + 1\nz = x + 1\ndef f(x):\n    y = x + 1\n")
    one, other, inner = (node for node in ast.walk(facts.source.tree) if isinstance(node, ast.BinOp))
    assert facts.stability.is_alike(one, other)
    assert not facts.stability.is_alike(one, inner)


@pytest.mark.parametrize(
    ("made", "own"),
    [
        pytest.param("F.mse_loss(output, y)", True, id="loss"),
        pytest.param("helper(output, y).sum()", True, id="sum of what unknown code made"),
        pytest.param("output[0]", False, id="view"),
        pytest.param("helper(output)", False, id="unknown code"),
        pytest.param("output.mean()\n        other = shown\n        other.mul_(2)", False, id="written by another name"),
        pytest.param("output.mean()\n        helper(shown)", False, id="given to unknown code"),
        pytest.param("output.mean()\n        shown += 1", False, id="written"),
    ],
)
def test_tensors_with_memory_that_nothing_writes(made: str, own: bool) -> None:
    """A tensor that each iteration makes anew, and that no name of it writes, keeps its value."""
    facts = facts_of(TEXT.replace("MADE", made).replace("FIRST", "pass").replace("BETWEEN", "pass").replace("LAST", "print(shown)"))
    call = next(call for call in facts.tree.calls["print"] if ast.unparse(call) == "print(shown)")
    assert facts.stability.has_own_memory(call.args[0], facts.tree.loops[0]) is own


def test_a_place_that_runs_alone_is_no_later_place() -> None:
    """From one branch of a condition to the other there is no way."""
    facts = facts_of("if a:\n    b = 1\nelse:\n    c = 2\n")
    (first,), (last,) = (facts.source.tree.body[0].body, facts.source.tree.body[0].orelse)  # type: ignore[attr-defined]
    assert facts.stability.span(first, last) is None
