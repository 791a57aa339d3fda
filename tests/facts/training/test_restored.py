"""Where the state of an earlier run is loaded into an optimizer."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.training.restored import restores

HEAD = """\
import torch
from torch import nn

net = nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=1)
other = torch.optim.SGD(net.parameters(), lr=1)
scheduler = torch.optim.lr_scheduler.StepLR(opt, 1)
{line}
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        pytest.param("net.load_state_dict(s)", [], id="of the network"),
        pytest.param("scheduler.load_state_dict(s)", [], id="of a schedule"),
        pytest.param("other.load_state_dict(s)", [], id="of another optimizer"),
        pytest.param("s = opt.state_dict()\nopt.load_state_dict(s)", [], id="taken from it before"),
        pytest.param("opt.load_state_dict(s)", ["s"], id="a variable"),
        pytest.param("opt.load_state_dict(c['opt'])", ["c['opt']"], id="out of a dictionary"),
        pytest.param("opt.load_state_dict(torch.load(p))", [None], id="without a name"),
        pytest.param("done = opt.load_state_dict(s)", [None], id="in a larger statement"),
        pytest.param("unknown.load_state_dict(s)", ["s"], id="of what is not known"),
    ],
)
def test_states_that_an_optimizer_may_be_given(line: str, found: list[str | None]) -> None:
    """With the state where it can be named again."""
    facts = facts_of(HEAD.format(line=line))
    optimizers = facts.optimizers.of(node(facts, "opt"))
    assert optimizers is not None
    states = [item.state for item in restores(facts, optimizers[0])]
    assert [ast.unparse(state) if state is not None else None for state in states] == found
