"""Objects that a program saves whole and brings back are of the class that it makes itself."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of, node

RESUMED = """
import torch
from net import Net

if resume:
    checkpoint = torch.load("last.pt")
    net = checkpoint["net"]
else:
    net = Net()
net(x)
state = {"net": <saved>, "epoch": 1}
torch.save(state, "last.pt")
"""


@pytest.mark.parametrize(
    ("saved", "known"),
    [("net.state_dict()", False), ("Other()", False), ("net", True), ("net.module", True), ("net.module if parallel else net", True)],
)
def test_a_network_out_of_a_checkpoint_is_of_the_class_that_the_program_saves_there(saved: str, known: bool) -> None:
    """Only where the object itself is saved."""
    net = "from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n"
    facts = facts_of(RESUMED.replace("<saved>", saved), modules={"net.py": net})
    assert (facts.models.of(node(facts, "net", 2)) is not None) is known


@pytest.mark.parametrize(("saved", "known"), [("net.state_dict()", False), ("net", True)])
def test_a_network_that_is_a_whole_file_is_of_the_class_that_the_program_saves(saved: str, known: bool) -> None:
    """The file holds the object and nothing else."""
    net = "from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n"
    text = (
        f"import torch\nfrom net import Net\n\nnet = torch.load('last.pt') if resume else Net()\nnet(x)\ntorch.save({saved}, 'last.pt')\n"
    )
    facts = facts_of(text, modules={"net.py": net})
    assert (facts.models.of(node(facts, "net", 1)) is not None) is known
