"""What calling a network gives, and who makes it."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.code.names import Definition
from torchfix.facts.training.module_calls import OutOfSight
from torchfix.facts.training.outputs import forward_of, makers, own_attributes

NET = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.layer = nn.Linear(2, 1)

    def encode(self, x):
        return self.layer(x)

    def forward(self, x):
        return self.encode(x)


"""


def net(text: str = "", modules: dict[str, str] | None = None) -> Definition:
    """The class of the network, of a file with more text behind it."""
    facts = facts_of(NET + text, "net.py", modules)
    return Definition(facts, facts.tree.classes[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("nn.Module", "Base", id="another base"),
        pytest.param("    def encode", "    @cached\n    def forward", id="a decorated forward, and another one"),
        pytest.param("return self.layer(x)", "return self.forward(x)", id="forward by name"),
        pytest.param("return self.layer(x)", "return self(x)", id="called by itself"),
        pytest.param("def encode", "def __call__", id="called in its own way"),
        pytest.param("return self.encode(x)", "print(x)", id="nothing is returned"),
    ],
)
def test_networks_whose_forward_does_not_say_it_all(old: str, new: str) -> None:
    """Something else may run, or give the output."""
    facts = facts_of(NET.replace(old, new, 1))
    assert forward_of(Definition(facts, facts.tree.classes[0])) is None


def test_a_plain_network() -> None:
    """Its forward is what a call runs; its methods and layers are its own."""
    forward = forward_of(net())
    assert forward is not None and forward.name == "forward"
    assert own_attributes(net()) == {"encode", "layer"}


@pytest.mark.parametrize(
    ("body", "plain"),
    [
        pytest.param("for m in net.modules():\n        m.weight.data.zero_()", True, id="walks over its layers"),
        pytest.param("for m in net.modules():\n        m.weight.data.zero_()\n    net(x)", False, id="runs it"),
        pytest.param("last = list(net.modules())[-1]", False, id="picks a layer"),
        pytest.param("pass", False, id="does nothing with it"),
    ],
)
def test_a_network_that_hands_itself_to_a_function(body: str, plain: bool) -> None:
    """Weights may be initialised there; what else is done with the network is another way to run it."""
    text = NET.replace("nn.Linear(2, 1)\n", "nn.Linear(2, 1)\n        start(self)\n") + f"def start(net):\n    {body}\n"
    facts = facts_of(text)
    assert (forward_of(Definition(facts, facts.tree.classes[0])) is not None) is plain


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("NETS = [Net]\n", id="in a list"),
        pytest.param("made = globals()['Net']()\n", id="by its name"),
        pytest.param("class Big(Net):\n    pass\n", id="derived"),
        pytest.param("Other = Net\n", id="under another name"),
    ],
)
def test_makers_out_of_sight(text: str) -> None:
    """The class goes where more of it may be made."""
    with pytest.raises(OutOfSight):
        list(makers(net(text)))


def test_makers_of_all_files() -> None:
    """Imports, lists of exports, questions and types name the class without making it."""
    text = "__all__ = ['Net']\n__all__ += ['Net']\n\n\ndef f(net: Net):\n    return isinstance(net, Net)\n\n\nnet = Net()\n"
    found = makers(net(text, {"train.py": "from net import Net as Model\n\nModel()\n"}))
    assert [(facts.path, facts.source.segment(call)) for facts, call in found] == [("net.py", "Net()"), ("train.py", "Model()")]
