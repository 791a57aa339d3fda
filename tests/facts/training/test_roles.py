"""Models, optimizers, devices, loaders and loops, read from snippets."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.data.loaders import Role
from torchfix.facts.training.loops import Kind
from torchfix.facts.training.regions import NO_GRAD

MNIST = """
import argparse
import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets


class Net(nn.Module):
    def forward(self, x):
        return x


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = nn.functional.nll_loss(output, target)
        loss.backward()
        optimizer.step()


def test(model, device, test_loader):
    model.eval()
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)


def main():
    args = argparse.ArgumentParser().parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(datasets.MNIST("."), 64, True)
    test_loader = DataLoader(datasets.MNIST("."), batch_size=64)
    model = Net().to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
    for epoch in range(3):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()


if __name__ == "__main__":
    main()
"""


def test_training_loop_is_taken_apart_across_functions() -> None:
    """Model, optimizer, loader and batch are known although they come in as parameters."""
    facts = facts_of(MNIST)
    (loop,) = facts.loops.training
    assert [ast.unparse(call) for call in loop.forwards] == ["model(data)"]
    assert [ast.unparse(call) for call in loop.backwards] == ["loss.backward()"]
    assert loop.optimizer is not None
    assert loop.optimizer.kind == "torch.optim.SGD"
    assert [loader.call.lineno for loader in loop.loaders] == [36]


def test_loader_roles_follow_their_loops() -> None:
    """A loader trains when a training loop takes its batches, and evaluates when only evaluation loops do."""
    facts = facts_of(MNIST)
    assert [loader.role() for loader in facts.loaders.all] == [Role.TRAIN, Role.EVALUATION]


def test_epoch_loop_around_a_training_function_trains() -> None:
    """A loop that trains only through a function that it calls is still no evaluation."""
    facts = facts_of(MNIST)
    epochs = next(loop for loop in facts.tree.loops if isinstance(loop, ast.For) and facts.source.segment(loop.iter) == "range(3)")
    assert facts.loops.at(epochs) is None
    assert facts.loops.kind(epochs) is Kind.TRAIN


def test_device_of_a_parameter_is_what_the_caller_passes() -> None:
    """CUDA-or-CPU is known through the call."""
    facts = facts_of(MNIST)
    device = facts.devices.of(node(facts, "device", 1))
    assert device is not None
    assert device.types == {"cuda", "cpu"}
    assert device.is_object is True


def test_batch_is_known_before_and_after_its_transfer() -> None:
    """``data = data.to(device)`` is the loader's batch still."""
    facts = facts_of(MNIST)
    for occurrence in (1, 2, 3):
        assert facts.loaders.batch_source(node(facts, "data", occurrence)) is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("d = 'cuda'\nuse(d)", {"cuda"}, id="string"),
        pytest.param("d = torch.device('cuda:1')\nuse(d)", {"cuda"}, id="object"),
        pytest.param("d = 'cuda' if c else 'cpu'\nuse(d)", {"cuda", "cpu"}, id="choice"),
        pytest.param("d = torch.device('mps')\nuse(d)", {"mps"}, id="other device"),
        pytest.param("d = f'cuda:{i}'\nuse(d)", {"cuda"}, id="f-string"),
        pytest.param("d = 'cuda:{}'.format(i)\nuse(d)", {"cuda"}, id="format"),
        pytest.param("d = 'cuda:' + i\nuse(d)", {"cuda"}, id="sum"),
        pytest.param("p.add_argument('--device', default='cuda')\na = p.parse_args()\nd = a.device\nuse(d)", {"cuda", "?"}, id="option"),
        pytest.param("d = torch.float16\nuse(d)", None, id="dtype"),
        pytest.param("d = make()\nuse(d)", None, id="unknown"),
        pytest.param("def f(device):\n    use(device)", None, id="the name proves nothing"),
        pytest.param("def f(d):\n    torch.zeros(1, device=d)\n    use(d)", {"?"}, id="used as a device"),
        pytest.param("def f(d: torch.device | None):\n    use(d)", {"?"}, id="annotated"),
        pytest.param("def f(d='cuda'):\n    use(d)", {"?"}, id="default"),
        pytest.param("def f(d=1):\n    use(d)", None, id="default that is a number"),
        pytest.param("def f(d):\n    nn.Linear(1, 1).to(d)\n    use(d)", {"?"}, id="where a network goes"),
        pytest.param("def f(dtype):\n    nn.Linear(1, 1).to(dtype)\n    d = dtype\n    use(d)", None, id="what a network is cast to"),
        pytest.param("d = int(r)\nuse(d)", {"cuda"}, id="index"),
        pytest.param(
            "d = torch.accelerator.current_accelerator()\nuse(d)", {"cuda", "mps", "xpu", "mtia", "privateuseone"}, id="accelerator"
        ),
        pytest.param("a = p.parse_args()\na.device = 'cpu'\nd = a.device\nuse(d)", {"cpu"}, id="option that the program sets"),
    ],
)
def test_device_expressions(text: str, expected: set[str] | None) -> None:
    """A device is one by how it was made or used."""
    facts = facts_of("import torch\nfrom torch import nn\n" + text)
    device = facts.devices.of(node(facts, "device" if "(device)" in text else "d", -1))
    assert (set(device.types) if device else None) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("x.to(torch.half)", None, id="cast"),
        pytest.param("x.to(*a)", None, id="stars"),
        pytest.param("x.type(torch.int64)", None, id="cast by type"),
        pytest.param("x.type(unknown)", None, id="unknown type"),
        pytest.param("x.cuda()", {"cuda"}, id="cuda"),
        pytest.param("x.to('cpu')", {"cpu"}, id="to the host"),
        pytest.param("x.type(torch.FloatTensor)", {"cpu"}, id="type of the host"),
        pytest.param("T = torch.cuda.FloatTensor if c else torch.FloatTensor\nx.type(T)", {"cuda", "cpu"}, id="type of either"),
    ],
)
def test_transfers(text: str, expected: set[str] | None) -> None:
    """A copy to a device is known in its three spellings."""
    facts = facts_of("import torch\n" + text)
    (call,) = facts.calls.methods("to", "cuda", "type")
    transfer = facts.devices.transfer(call)
    assert (set(transfer.device.types) if transfer else None) == expected


@pytest.mark.parametrize(
    ("text", "wrappers"),
    [
        pytest.param("m = nn.Linear(1, 1)\nuse(m)", [()], id="layer"),
        pytest.param("m = Net().cuda()\nuse(m)", [()], id="moved"),
        pytest.param("m = Net()\nm = nn.DataParallel(m)\nuse(m)", [("DataParallel",)], id="wrapped"),
        pytest.param("m = Net()\nif c:\n    m = nn.DataParallel(m)\nuse(m)", [(), ("DataParallel",)], id="wrapped under a condition"),
        pytest.param("m = make()\nuse(m)", None, id="unknown"),
        pytest.param("class Other: pass\nm = Other()\nuse(m)", None, id="no network"),
    ],
)
def test_networks(text: str, wrappers: list[tuple[str, ...]] | None) -> None:
    """A network is known by its class, through moves and wrappers."""
    facts = facts_of("from torch import nn\nclass Net(nn.Module): pass\n" + text)
    networks = facts.models.of(node(facts, "m", -1))
    assert (sorted(network.wrappers for network in networks) if networks else None) == wrappers


def test_network_class_of_another_file_is_followed_to_its_base() -> None:
    """A subclass of a project's base class of nn.Module is a network."""
    facts = facts_of(
        "from net import Net\nm = Net()\nuse(m)",
        modules={
            "net.py": "from base import Base\nclass Net(Base): pass\n",
            "base.py": "from torch import nn\nclass Base(nn.Module): pass\n",
        },
    )
    assert facts.models.is_module(node(facts, "m", -1))


def test_scheduler_is_no_optimizer() -> None:
    """A scheduler's ``step`` moves no parameters, so it makes no training loop of an epoch loop."""
    facts = facts_of("""
        from torch import nn, optim
        net = nn.Linear(1, 1)
        opt = optim.Adam(net.parameters())
        sched = optim.lr_scheduler.StepLR(opt, 1)
        for x in data:
            net(x).sum().backward()
            opt.step()
            sched.step()
        """)
    (loop,) = facts.loops.training
    assert [ast.unparse(call) for call in loop.steps] == ["opt.step()"]
    assert [ast.unparse(call) for call in loop.scheduler_steps] == ["sched.step()"]
    assert facts.optimizers.is_scheduler(node(facts, "sched", -1))


def test_environment_step_makes_no_training_loop() -> None:
    """``env.step(action)`` beside a backward steps no parameters."""
    facts = facts_of("for a in actions:\n    loss.backward()\n    env.step(a)\n")
    assert facts.loops.training == ()


def test_no_grad_is_seen_as_block_and_as_decorator() -> None:
    """Both spellings turn gradients off around a place."""
    facts = facts_of("import torch\n@torch.no_grad()\ndef f():\n    one()\nwith torch.no_grad():\n    two()\nthree()\n")
    seen = [facts.regions.under(node(facts, f"{name}()"), NO_GRAD) for name in ("one", "two", "three")]
    assert seen == [True, True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from .lightning import x", ()),
        ("from transformers import AutoModel", ()),
        ("import transformers\ntransformers.AutoModel()", ()),
        ("import mmcv", ()),
        ("class Trainer: ...\nmodule.Trainer()", ()),
        ("import pytorch_lightning as pl\nfrom accelerate import Accelerator", ("Lightning", "Accelerate")),
        ("from lightning.pytorch import Trainer", ("Lightning",)),
        ("from lightning.fabric import Fabric", ("Fabric",)),
        ("from lightning import Fabric", ("Fabric",)),
        ("from transformers import AutoModel, Trainer", ("Transformers' Trainer",)),
        ("from transformers.trainer import Trainer", ("Transformers' Trainer",)),
        ("import transformers\ntransformers.Seq2SeqTrainer()", ("Transformers' Trainer",)),
        ("def train():\n    import deepspeed", ("DeepSpeed",)),
        ("try:\n    from apex import amp\nexcept ImportError:\n    amp = None", ("Apex",)),
        ("import horovod.torch as hvd", ("Horovod",)),
        ("import torch_xla.core.xla_model as xm", ("PyTorch/XLA",)),
        ("from mmcv.runner import EpochBasedRunner", ("MMCV",)),
        ("from detectron2.engine import DefaultTrainer", ("Detectron2",)),
        ("from ignite.engine import Engine\nfrom fastai.vision.all import *\nimport composer", ("Ignite", "fastai", "Composer")),
    ],
)
def test_frameworks_are_named_as_people_know_them(text: str, expected: tuple[str, ...]) -> None:
    """An import tells who owns the training loop; a relative import of the same name does not."""
    assert facts_of(text).regions.frameworks() == expected


def test_module_of_the_project_is_no_framework() -> None:
    """A file of the user's own may be called like a package."""
    assert facts_of("import composer\n", modules={"composer.py": "x = 1"}).regions.frameworks() == ()


def test_loader_or_nothing_is_the_loader() -> None:
    """Where a variable holds a loader or None, what iterates it iterates the loader."""
    text = "from torch.utils.data import DataLoader\n\ndef run(loader):\n    for x in loader: ...\n\nrun(DataLoader([1]))\nrun(None)\n"
    facts = facts_of(text)
    assert list(facts.loaders.by_loop.values()) == [facts.loaders.all]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("    pass", 1, id="a name of its own"),
        pytest.param("    def describe(self):\n        return len(self)", 1, id="a method more"),
        pytest.param("    def __init__(self, *args, **kwargs):\n        super().__init__(*args, **kwargs)", 1, id="all handed on"),
        pytest.param("    def __init__(self, *a, **k):\n        super().__init__(*a, num_workers=2, **k)", 0, id="one added"),
        pytest.param("    def __init__(self, data, **kwargs):\n        super().__init__(data, **kwargs)", 0, id="another signature"),
        pytest.param("    def __init__(self, *a, **k):\n        super().__init__(*a, **k)\n        self.timeout = 1", 0, id="changed"),
        pytest.param("    def __iter__(self):\n        yield 1", 0, id="batches of its own"),
    ],
)
def test_subclass_that_hands_its_arguments_on_is_a_loader(body: str, expected: int) -> None:
    """A class of the project that takes what DataLoader takes, and does what it does, is one; any other is not."""
    sets = f"from torch.utils.data import DataLoader\n\nclass AudioDataLoader(DataLoader):\n{body}\n"
    text = "from sets import AudioDataLoader\nloader = AudioDataLoader(d, 8, num_workers=2)\nfor x in loader: ...\n"
    facts = facts_of(text, modules={"sets.py": sets})
    assert len(facts.loaders.all) == expected
    assert list(facts.loaders.by_loop.values()) == ([facts.loaders.all] if expected else [])


def test_loaders_of_other_libraries_are_none() -> None:
    """Their classes take other arguments."""
    for library in ("torch_geometric.loader", "monai.data", "dgl.dataloading", "timm.data", "torchdata.nodes"):
        assert not facts_of(f"from {library} import DataLoader\nloader = DataLoader(d)\n").loaders.all
