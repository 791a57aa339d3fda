"""Where the state of Apex goes in checkpoints."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.apex.states import SavedStates, states_of
from torchfix.facts.apex.uses import amp_uses
from torchfix.facts.obstacle import Obstacle

HEAD = "from apex import amp\nm, o = amp.initialize(m, o)\n"


def states(text: str) -> SavedStates | Obstacle:
    """What is read of a script."""
    facts = facts_of(HEAD + text)
    return states_of(amp_uses(facts), facts.source.tree.body[1], "")


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        ("", "", []),
        ("s = {'amp': amp.state_dict()}", "scaler", [3]),
        ("s = {'amp': amp.state_dict() if on else None, 'scaler': 1}", "grad_scaler", [3]),
        ("s = {}\ns['amp'] = amp.state_dict()", "scaler", [4]),
        ("if 'amp' in c.keys():\n    amp.load_state_dict(c['amp'])\nif d['amp']:\n    pass", "scaler", [4, 3]),
    ],
)
def test_states(text: str, key: str, lines: list[int]) -> None:
    """The key is new, and each place that has Apex's for this checkpoint is known."""
    found = states(text)
    assert isinstance(found, SavedStates)
    assert (found.key, [constant.lineno for _, constant in found.renamed]) == (key, lines)


@pytest.mark.parametrize("text", ["save(amp.state_dict())", "amp.load_state_dict(load())", "def f():\n    s = {'amp': amp.state_dict()}"])
def test_states_that_are_not_followed(text: str) -> None:
    """Not an entry under a key, or not where the scaler is."""
    found = states(text)
    assert isinstance(found, Obstacle) and found.code == "apex-state"
