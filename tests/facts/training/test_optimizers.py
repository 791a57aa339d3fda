"""What optimizers are, and what a class of the project makes of being one."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node

CLASS = """\
import torch


class Around(torch.optim.Optimizer):
    def __init__(self, inner):
        {body}

    {more}

optimizer = Around(torch.optim.SGD(net.parameters(), lr=0.1))
plain = torch.optim.SGD(net.parameters(), lr=0.1)
optimizer.step()
plain.step()
"""


@pytest.mark.parametrize(
    ("body", "more", "has"),
    [
        ("self.inner = inner", "", False),
        ("super().__init__(inner.param_groups, {})", "", True),
        ("torch.optim.Optimizer.__init__(self, inner.param_groups, {})", "", True),
        ("self.param_groups = inner.param_groups", "", True),
        ("self.inner = inner", "@property\n    def param_groups(self):\n        return self.inner.param_groups", True),
    ],
)
def test_whether_an_optimizer_lists_its_parameters_in_groups(body: str, more: str, has: bool) -> None:
    """A class that only says that it is one lists nothing; torch's own do."""
    facts = facts_of(CLASS.format(body=body, more=more))
    own, plain = (facts.optimizers.of(node(facts, name, 1)) for name in ("optimizer", "plain"))
    assert [item.has_groups for item in own or ()] == [has]
    assert [item.has_groups for item in plain or ()] == [True]
