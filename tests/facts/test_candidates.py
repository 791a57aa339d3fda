"""Which loops are candidates for mixed precision at all; what each of them proves is tested with the parts and the rule."""

from __future__ import annotations

from tests.facts.reading import facts_of
from torchfix.facts.candidates import Candidate
from torchfix.facts.obstacle import Obstacle

LOOP = """\
import torch
from torch import nn

model = nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in batches:
    loss = model(x.cuda()).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_plain_loop_is_a_candidate_with_all_of_its_parts() -> None:
    """Every part is known."""
    facts = facts_of(LOOP)
    ((node, found),) = facts.candidates.all()
    assert isinstance(found, Candidate)
    assert found.loop.node is node
    assert found.companion.after.lineno == 5


def test_loops_on_the_host_and_scaled_loops_are_none() -> None:
    """They have nothing to gain."""
    assert list(facts_of(LOOP.replace(".cuda()", "")).candidates.all()) == []
    assert list(facts_of(LOOP.replace("loss.backward", "scaler.scale(loss).backward")).candidates.all()) == []


def test_a_loop_that_trains_through_a_function_is_one_with_a_reason() -> None:
    """It is seen, and left."""
    text = LOOP.replace("for x in batches:\n", "\n\ndef learn(x):\n") + "\n\nfor x in batches:\n    learn(x)\n"
    ((node, found),) = facts_of(text).candidates.all()
    assert isinstance(found, Obstacle)
    assert found.code == "backward-elsewhere"
    assert node.lineno == 15
