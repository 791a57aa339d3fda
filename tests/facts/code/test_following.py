"""Values, devices, networks, optimizers and modes followed through programs as people write them."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts import Facts
from torchfix.facts.training.loops import Kind

EITHER = "torch.device('cuda' if torch.cuda.is_available() else 'cpu')"
HEAD = "import torch\nfrom torch import nn, optim\nfrom functools import partial\n\n\nclass Net(nn.Module):\n    pass\n\n\n"


def used(facts: Facts) -> ast.expr:
    """What the snippet hands to ``use``."""
    return facts.tree.calls["use"][0].args[0]


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        pytest.param(
            "def train(args):\n    use(args.device)\n",
            {
                "main.py": "import argparse, torch\nfrom train import train\n\ndef main(args):\n"
                f"    args.device = {EITHER}\n    train(args)\n\nmain(argparse.ArgumentParser().parse_args())\n"
            },
            id="option that a function sets",
        ),
        pytest.param(
            "from options import Options\nopts = Options().parse()\nuse(opts.device)\n",
            {
                "options.py": "import argparse, torch\nclass Options:\n    def __init__(self):\n"
                "        self.parser = argparse.ArgumentParser()\n"
                f"    def parse(self):\n        self.opts = self.parser.parse_args()\n        self.opts.device = {EITHER}\n"
                "        return self.opts\n"
            },
            id="options object",
        ),
        pytest.param(
            "def train(config):\n    use(config.device)\n",
            {
                "main.py": "import torch\nfrom train import train\nclass Config:\n    def __init__(self):\n"
                f"        self.device = {EITHER}\ntrain(Config())\n"
            },
            id="object of another file",
        ),
        pytest.param(
            "from base import Base\nclass T(Base):\n    def f(self):\n        use(self.device)\n",
            {"base.py": f"import torch\nclass Base:\n    def __init__(self):\n        self.device = {EITHER}\n"},
            id="base class of another file",
        ),
        pytest.param(
            f"import torch\nfrom base import Base\nclass T(Base):\n    def f(self):\n        use(self.device)\nT({EITHER})\n",
            {"base.py": "class Base:\n    def __init__(self, device):\n        self.device = device\n"},
            id="constructor of a base class",
        ),
        pytest.param(
            "from importlib import import_module\nx = import_module('nets.' + name)\nuse(x.Config().device)\n",
            {
                f"nets/{name}.py": f"import torch\nclass Config:\n    def __init__(self):\n        self.device = {EITHER}\n"
                for name in ("a", "b")
            },
            id="module that is picked by its name",
        ),
        pytest.param("import config\nuse(config.device)\n", {"config.py": f"import torch\ndevice = {EITHER}\n"}, id="module"),
        pytest.param("from config import *\nuse(device)\n", {"config.py": f"import torch\ndevice = {EITHER}\n"}, id="star import"),
        pytest.param(f"import torch\nclass Config:\n    device = {EITHER}\nuse(Config.device)\n", {}, id="class"),
        pytest.param(f"import torch\ndef f(c):\n    use(c['device'])\nf(dict(device={EITHER}))\n", {}, id="dictionary"),
        pytest.param(f"import torch, types\nc = types.SimpleNamespace(device={EITHER})\nuse(c.device)\n", {}, id="namespace"),
        pytest.param(
            "import torch\nfrom dataclasses import dataclass\n@dataclass\nclass C:\n    lr: float = 1\n"
            f"    device: object = {EITHER}\nuse(C(lr=2).device)\n",
            {},
            id="field of a data class",
        ),
        pytest.param(f"import torch\nclass T:\n    def f(self, d):\n        use(d)\nT().f({EITHER})\n", {}, id="method of an object"),
        pytest.param(f"import torch\ndef f(d=None):\n    d = d or {EITHER}\n    use(d)\nf()\n", {}, id="or"),
    ],
)
def test_devices_are_followed(text: str, modules: dict[str, str]) -> None:
    """A device is known wherever the program keeps it."""
    facts = facts_of(text, modules=modules)
    device = facts.devices.of(used(facts))
    assert device is not None
    assert (device.types, device.is_object, device.may_be_none) == ({"cuda", "cpu"}, True, False)


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        pytest.param("class T:\n    def f(self, d):\n        use(d)\nT().f('cuda')\nstranger.f(1)\n", {}, id="method of something unknown"),
        pytest.param("class T:\n    def f(self, d):\n        use(d)\nt = T()\nt.f('cuda')\nrun(t.f)\n", {}, id="method handed on"),
        pytest.param(
            "@register\nclass T:\n    def __init__(self, d):\n        use(d)\nT('cuda')\n", {}, id="class that a decorator may make"
        ),
        pytest.param("c = dict(device='cuda')\nc.update(more)\nuse(c['device'])\n", {}, id="dictionary that takes more"),
        pytest.param("import config\nuse(config.device)\n", {"config.py": "device = make()\n"}, id="module"),
        pytest.param("class C:\n    pass\nuse(C().device)\n", {}, id="attribute that nothing sets"),
    ],
)
def test_devices_out_of_sight(text: str, modules: dict[str, str]) -> None:
    """One origin that is not seen makes the whole unknown."""
    facts = facts_of(text, modules=modules)
    assert facts.devices.of(used(facts)) is None


def test_object_of_a_subclass_may_hold_what_that_sets() -> None:
    """In a base class ``self`` may be of any class that derives from it."""
    text = "class A:\n    def __init__(self):\n        self.d = 'cuda'\n    def f(self):\n        use(self.d)\nclass B(A):\n    d = 'mps'\n"
    facts = facts_of(text)
    device = facts.devices.of(used(facts))
    assert device is not None
    assert device.types == {"cuda", "mps"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("nets = {'a': Net(), 'b': Net()}\nfor n in nets.values():\n    use(n)", id="values"),
        pytest.param("nets = []\nfor i in range(3):\n    nets.append(Net())\nfor n in nets:\n    use(n)", id="appended"),
        pytest.param("use([Net() for i in range(3)][0])", id="comprehension"),
        pytest.param("table = {'a': Net, 'b': nn.Linear}\nuse(table[k]())", id="table of classes"),
        pytest.param("made = Net if k else nn.Linear\nuse(made(3))", id="class that is chosen"),
        pytest.param("class T:\n    def __init__(self):\n        self.net = Net()\nuse(T().net)", id="attribute of an object"),
        pytest.param("net = nn.DataParallel(Net())\nuse(net.module)", id="inside a wrapper"),
        pytest.param("from accelerate import Accelerator\na = Accelerator()\nn, o = a.prepare(Net(), opt)\nuse(n)", id="prepared"),
        pytest.param("class F:\n    @staticmethod\n    def build():\n        return Net()\nuse(F.build())", id="static method"),
        pytest.param("use(torch.jit.script(Net()))", id="script"),
    ],
)
def test_networks_are_followed(text: str) -> None:
    """A network is known through containers, objects, tables and wrappers."""
    facts = facts_of(HEAD + text)
    assert facts.models.is_module(used(facts))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("use(net.module)", id="attribute of something unknown"),
        pytest.param("use(Net().module)", id="network without a wrapper"),
        pytest.param("table = {'a': Net, 'b': other}\nuse(table[k]())", id="one choice unknown"),
        pytest.param("nets = [Net()]\nnets.extend(more)\nuse(nets[0])", id="list that takes more"),
    ],
)
def test_what_may_be_no_network(text: str) -> None:
    """One other possibility is enough."""
    facts = facts_of(HEAD + text)
    assert not facts.models.is_module(used(facts))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("use({'g': optim.Adam(p)}['g'])", id="dictionary"),
        pytest.param("use(getattr(optim, name)(p))", id="by name"),
        pytest.param("use(optim.__dict__[name](p))", id="by name in the module"),
        pytest.param("table = {'a': optim.Adam, 'b': optim.SGD}\nuse(table[k](p))", id="table of classes"),
        pytest.param("class W:\n    def __init__(self, o):\n        self.inner = o\nuse(W(optim.Adam(p)).inner)", id="inside a wrapper"),
        pytest.param("from timm.optim import create_optimizer\nuse(create_optimizer(args, net))", id="of a library"),
    ],
)
def test_optimizers_are_followed(text: str) -> None:
    """An optimizer is known through containers, tables and the functions of well-known libraries."""
    facts = facts_of(HEAD + text)
    assert facts.optimizers.of(used(facts))


STEP = "    def step(self, x):\n        f(x).backward()\n        self.o.step()\n"
SCALER = "class Scaler:\n    def __call__(self, loss, o):\n        self.s.scale(loss).backward()\n        self.s.step(o)\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"class T:\n{STEP}t = T()\nfor x in b:\n    t.step(x)", Kind.TRAIN, id="method of an object"),
        pytest.param(
            f"class B:\n{STEP}class T(B):\n    def run(self):\n        for x in b:\n            self.step(x)", Kind.TRAIN, id="base"
        ),
        pytest.param(
            f"class B:\n    def run(self):\n        for x in b:\n            self.step(x)\nclass T(B):\n{STEP}", Kind.TRAIN, id="subclass"
        ),
        pytest.param(f"{SCALER}def run(s):\n    for x in b:\n        s(f(x), o)\nrun(Scaler())", Kind.TRAIN, id="object that is called"),
        pytest.param(
            "from timm.utils import NativeScaler\ns = NativeScaler()\nfor x in b:\n    s(f(x), o)", Kind.TRAIN, id="timm's scaler"
        ),
        pytest.param(
            "def go(x):\n    f(x).backward()\n\ndef run(g):\n    for x in b:\n        g(x)\nrun(go)", Kind.TRAIN, id="function handed on"
        ),
        pytest.param("for x in b:\n    def closure():\n        f(x).backward()\n    o.step(closure)", Kind.TRAIN, id="closure"),
        pytest.param("import torch\nfor x in b:\n    g = torch.autograd.grad(f(x), p)\n    o.step()", Kind.TRAIN, id="gradients by hand"),
        pytest.param("m.eval()\nfor x in b:\n    m(x)", Kind.EVAL, id="at module level"),
        pytest.param("def test(m):\n    for x in b:\n        m(x)\nnet.eval()\ntest(net)", Kind.EVAL, id="mode of the caller"),
        pytest.param(
            "import torch\ndef test(m):\n    for x in b:\n        m(x)\nwith torch.no_grad():\n    test(n)",
            Kind.EVAL,
            id="no_grad of the caller",
        ),
        pytest.param("def test(m):\n    m.train(False)\n    for x in b:\n        m(x)", Kind.EVAL, id="train(False)"),
        pytest.param(
            "class T:\n    def off(self):\n        for m in self.all:\n            m.eval()\n    def test(self):\n        self.off()\n"
            "        for x in b:\n            self.net(x)",
            Kind.EVAL,
            id="switched by a method",
        ),
        pytest.param(
            "def f(m):\n    m.eval()\n    check(m)\n    m.train()\n    for x in b:\n        go(m, x)", Kind.UNKNOWN, id="back to training"
        ),
        pytest.param(
            "def test(m):\n    for x in b:\n        m(x)\nnet.eval()\ntest(net)\nnet.train()\ntest(net)", Kind.UNKNOWN, id="two callers"
        ),
        pytest.param(
            "def run(s, o):\n    m.eval()\n    for x in b:\n        o.zero_grad()\n        s(m(x), o)",
            Kind.UNKNOWN,
            id="gradients are zeroed",
        ),
        pytest.param("for x in b:\n    print(x)", Kind.UNKNOWN, id="neither"),
    ],
)
def test_kinds_of_loops(text: str, expected: Kind) -> None:
    """What a loop does is known through what it calls, and by the mode that was switched to last."""
    facts = facts_of(text)
    asked = next(loop for loop in facts.tree.loops if isinstance(loop, ast.For) and facts.source.segment(loop.iter) == "b")
    assert facts.loops.kind(asked) is expected
