from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node

HEAD = "import copy\nimport torch\nfrom torch import nn\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("model = nn.Linear(1, 1)\nuse(model)", False, id="plain network"),
        pytest.param("model = nn.DataParallel(net)\nuse(model)", True, id="wrapped"),
        pytest.param("model = nn.DataParallel(net).cuda()\nuse(model)", True, id="moved behind the wrap"),
        pytest.param("model = nn.DataParallel(net)\nmodel = model.to(device)\nuse(model)", True, id="moved in a later statement"),
        pytest.param("model = nn.Linear(1, 1)\nif x:\n    model = nn.DataParallel(model)\nuse(model)", True, id="perhaps wrapped"),
        pytest.param("model = torch.compile(nn.DataParallel(net))\nuse(model)", True, id="inside another wrapper"),
        pytest.param("def f(model):\n    use(model)\nf(nn.DataParallel(net))", True, id="through a parameter"),
        pytest.param("def f():\n    return nn.DataParallel(net)\nmodel = f()\nuse(model)", True, id="through a return"),
        pytest.param(
            "@torch.no_grad()\ndef f(model):\n    use(model)\nf(nn.DataParallel(net))",
            True,
            id="through a decorator that only switches gradients",
        ),
        pytest.param("def f(model):\n    use(model)\nrun(f)", None, id="callers out of sight"),
    ],
)
def test_a_replicated_network_is_followed(text: str, expected: bool | None) -> None:
    """Whether an expression may hold a DataParallel is known through assignments, moves, calls and returns, or not at all."""
    facts = facts_of(HEAD + text)
    use = node(facts, "use(model)")
    assert isinstance(use, ast.Call)
    held = facts.replicas.held_by(use.args[0])
    assert (None if held is None else bool(held)) is expected


def test_only_calls_of_the_wrapper_are_forwards() -> None:
    """Calling the wrapper runs the network; calling its methods or the plain network is not counted."""
    facts = facts_of(HEAD + "net = nn.Linear(1, 1)\nmodel = nn.DataParallel(net)\nnet(1)\nmodel(2)\nmodel.train()\nmodel.module(3)\n")
    assert [ast.unparse(call) for call in facts.replicas.forwards] == ["model(2)"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("model = nn.DataParallel(model)\nmodel(1)", False, id="no condition"),
        pytest.param("if __name__ == '__main__':\n    model = nn.DataParallel(model)\n    model(1)", False, id="main guard"),
        pytest.param("if train:\n    model = nn.DataParallel(model)\n    model(1)", False, id="all uses under the same condition"),
        pytest.param("if many:\n    model = nn.DataParallel(model)\nmodel(1)", True, id="used without the condition"),
        pytest.param(
            "def f():\n    if many:\n        return nn.DataParallel(model)\n    return model", True, id="returned under a condition"
        ),
    ],
)
def test_a_condition_counts_where_the_program_goes_on_without_it(text: str, expected: bool) -> None:
    """A wrap is conditional when the network is used outside the ``if`` that it stands under."""
    (wrap,) = facts_of(HEAD + text).replicas.wraps
    assert (wrap.condition is not None) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("model = nn.DataParallel(net.cuda())\nmodel.cuda()", None, id="moved inside"),
        pytest.param("model = nn.DataParallel(net).cuda()\nmodel.cuda()", None, id="moved in the chain"),
        pytest.param("net.cuda()\nmodel = nn.DataParallel(net)\nmodel.cuda()", None, id="moved before"),
        pytest.param("model = nn.DataParallel(net)\nx.cuda()", None, id="something else is moved"),
        pytest.param("model = nn.DataParallel(net)\nmodel.cuda()", "model.cuda()", id="moved behind"),
    ],
)
def test_a_network_may_be_moved_behind_the_wrap(text: str, expected: str | None) -> None:
    """The first move behind the wrap matters only where the network was not moved before."""
    (wrap,) = facts_of(HEAD + "net = nn.Linear(1, 1)\n" + text).replicas.wraps
    assert (wrap.later_placing and ast.unparse(wrap.later_placing)) == expected


@pytest.mark.parametrize(
    ("text", "conditional", "branch"),
    [
        pytest.param("model = nn.DataParallel(net)\nmodel.cuda()", False, False, id="in any case"),
        pytest.param("if many:\n    model = nn.DataParallel(net)\n    model.cuda()\nmodel(1)", False, False, id="under the same condition"),
        pytest.param("model = nn.DataParallel(net)\nif cuda:\n    model = model.cuda()", True, True, id="right behind"),
        pytest.param("model = nn.DataParallel(net)\nif cuda:\n    use(model.cuda(), model)", True, False, id="with another use"),
        pytest.param("model = nn.DataParallel(net)\nuse(model)\nif cuda:\n    model.cuda()", True, False, id="behind another use"),
        pytest.param("model = nn.DataParallel(net)\nmodel = model.cuda() if cuda else model", True, False, id="in an expression"),
        pytest.param("if many:\n    model = nn.DataParallel(net)\nif cuda:\n    model.cuda()", True, False, id="under another condition"),
    ],
)
def test_a_network_may_be_moved_only_under_a_condition(text: str, conditional: bool, branch: bool) -> None:
    """A move that is not always made cannot be made in front of the wrap; one in an ``if`` right behind it stays where it is."""
    (wrap,) = facts_of(HEAD + "net = nn.Linear(1, 1)\n" + text).replicas.wraps
    assert (wrap.is_moved_conditionally, wrap.moving_branch is not None) == (conditional, branch)
    assert not branch or wrap.later_move == ""
