"""Evaluations: what they span, where they stand, and in which form gradients may go."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of

HEAD = "import torch\nfrom torch import nn\nnet = nn.Linear(2, 2)\noptimizer = torch.optim.SGD(net.parameters(), lr=1)\n"


def evaluations(text: str) -> list[tuple[int, int, int, str | None]]:
    """Of each evaluation the line where it stands, its first and last line, and the function that it fills."""
    return [
        (
            getattr(item.place, "lineno", 0) - 4,
            item.statements[0].lineno - 4,
            (item.statements[-1].end_lineno or 0) - 4,
            item.function.name if item.function else None,
        )
        for item in facts_of(HEAD + text).evaluations.all
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("for x in y:\n    print(net(x))", [(1, 1, 2, None)], id="a loop"),
        pytest.param("for e in z:\n    for x in y:\n        print(net(x))", [(2, 1, 3, None)], id="the outermost loop, at the innermost"),
        pytest.param("net.eval()\nprint(net(x))", [(2, 2, 2, None)], id="a statement"),
        pytest.param("net.eval()\na = net(x)\nn = 3\nb = net(z)\nprint(a, b)", [(2, 2, 4, None)], id="neighbouring statements"),
        pytest.param("def f():\n    n = 0\n    for x in y:\n        n += net(x).item()\n    return n", [(3, 2, 5, "f")], id="a function"),
        pytest.param("def f():\n    m = nn.Linear(2, 2)\n    for x in y:\n        print(m(x))", [(3, 3, 4, None)], id="beside the making"),
        pytest.param("async def f():\n    for x in y:\n        print(net(x))", [(2, 2, 3, None)], id="a coroutine"),
        pytest.param(
            "for x in y:\n    a = net(x).argmax()\n    net(x).mean().backward()\n    optimizer.step()",
            [(2, 2, 2, None)],
            id="beside training",
        ),
        pytest.param("for x in y:\n    net(x).mean().backward()\n    optimizer.step()", [], id="training"),
    ],
)
def test_what_an_evaluation_spans(text: str, expected: list[tuple[int, int, int, str | None]]) -> None:
    """All of a function, the outermost loop, or the statements of the forward passes."""
    assert evaluations(text) == expected


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        pytest.param("phase == 'train'", ("phase == 'train'", None), id="phases"),
        pytest.param("optimizer is not None", None, id="no parameter"),
        pytest.param("x.shape[0] > 1", None, id="something else"),
    ],
)
def test_conditions_that_tell_training_from_evaluation(test: str, expected: tuple[str, None] | None) -> None:
    """A phase out of a list of words surely is a bool when compared; other conditions say nothing of training."""
    text = (
        f"for phase in ['train', 'val']:\n    for x in y:\n        loss = net(x).mean()\n        if {test}:\n            loss.backward()\n"
    )
    found = facts_of(HEAD + text).evaluations.all
    assert [(ast.unparse(item.condition), item.obstacle) for item in found if item.condition] == ([expected] if expected else [])
