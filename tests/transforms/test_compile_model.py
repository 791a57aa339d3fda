"""compile-model: which networks are compiled in place, and which a compiled graph would not suit."""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import indent

import pytest

from tests.running import run_on_cpu
from torchfix import registry
from torchfix.testing import check_held, check_noop, check_transformed, run_on_program, run_transform

RULE = "compile-model"
SCRIPT = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x):
        return self.layer(x).relu()


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.ones(3, 4, 8):
    optimizer.zero_grad()
    loss = model(x.to(device)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
print(list(model.state_dict()), isinstance(model, Net))
"""
DOUBLE = "def double(x):\n    return 2 * x\n\n\n"
COUNT = "    def count(self, x):\n        return int(x.sum().item())\n\n    def forward"
COUNTED = SCRIPT.replace("    def forward", COUNT).replace("return self.layer", "return self.count(x) * self.layer")
MADE = "model = Net().to(device)\n"
COMPILED = f'{MADE}if device.type == "cuda":\n    model.compile()\n'
START = SCRIPT.index("model = ")
FOLDS = SCRIPT[:START] + "for fold in range(2):\n" + indent(SCRIPT[START:], "    ")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SCRIPT.replace(MADE, "model = torch.compile(Net().to(device))\n"), id="compiled already"),
        pytest.param(SCRIPT.replace(MADE, f"{MADE}model.compile()\n"), id="compiled in place already"),
        pytest.param(SCRIPT.replace('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"'), id="on the host"),
        pytest.param(SCRIPT.replace("class Net", f"@torch.compile\n{DOUBLE}class Net", 1), id="a function that is compiled"),
        pytest.param(SCRIPT.replace("Net().to(device)", "Net()"), id="a network that stays on the host"),
        pytest.param("from accelerate import Accelerator\nAccelerator()\n" + SCRIPT, id="a framework trains"),
        pytest.param(SCRIPT.replace("    loss.backward()\n    optimizer.step()\n", ""), id="nothing is trained"),
    ],
)
def test_leaves_networks_that_gain_nothing(text: str) -> None:
    """There is nothing to say."""
    check_noop(RULE, text)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        pytest.param("graph-breaks", SCRIPT.replace("return self", "print(x.shape)\n        return self"), id="trap: printing"),
        pytest.param("graph-breaks", SCRIPT.replace("return self", "return x.max().item() * self"), id="trap: reading back"),
        pytest.param("graph-breaks", SCRIPT.replace("return self", "return x if x.sum() > 0 else self"), id="by value"),
        pytest.param("looked-into", SCRIPT.replace("optimizer =", "model.register_forward_hook(print)\noptimizer ="), id="trap: hooks"),
        pytest.param("looked-into", SCRIPT + "torch.onnx.export(model, x, 'net.onnx')\n", id="trap: ONNX"),
        pytest.param("graph-breaks", COUNTED, id="in a method that forward calls"),
        pytest.param(
            "looked-into", SCRIPT.replace("class Net", f"@torch.jit.script\n{DOUBLE}class Net", 1), id="trap: a scripted function"
        ),
        pytest.param("looked-into", SCRIPT + "torch.jit.trace(model, x)\n", id="trap: TorchScript"),
        pytest.param("double-backward", SCRIPT.replace("loss.backward()", "loss.backward(create_graph=True)"), id="gradients of gradients"),
        pytest.param("data-parallel", SCRIPT.replace("Net().to(device)", "nn.DataParallel(Net()).to(device)"), id="trap: DataParallel"),
    ],
)
def test_holds_networks_that_a_compiled_graph_does_not_suit(code: str, text: str) -> None:
    """The reason names the line in the network where there is one."""
    check_held(RULE, text, code)


def test_torch_that_compiles_only_by_a_wrapper_is_held() -> None:
    """The wrapper changes the keys of checkpoints."""
    check_held(RULE, SCRIPT, "torch-too-old", torch=(2, 0))


def test_it_is_off_unless_it_is_asked_for() -> None:
    """What it gains depends on the network."""
    assert RULE not in [transform.name for transform in registry.select(registry.discover(), (), ())]


def test_the_documented_example_becomes_what_it_says() -> None:
    """Before and after of the rule's own text."""
    rule = registry.find(RULE)
    check_transformed(rule, rule.before, rule.after)


def test_the_network_is_compiled_where_it_is_made() -> None:
    """Under the program's own test for CUDA."""
    (note,) = check_transformed(RULE, SCRIPT, SCRIPT.replace(MADE, COMPILED))
    assert note.notes


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SCRIPT.replace("import torch\n", "import re\n\nimport torch\n", 1) + "re.compile('x')\n", id="a pattern is compiled"),
        pytest.param(SCRIPT.replace("    def forward", COUNT), id="a method that only others call reads back"),
        pytest.param(SCRIPT.replace("return self", "if max(x.shape) > 9:\n            return x\n        return self"), id="by its shape"),
        pytest.param(SCRIPT.replace("loss.backward()", "loss.backward(create_graph=False)"), id="no gradients of gradients"),
    ],
)
def test_what_a_compiled_graph_takes_does_not_hold_it(text: str) -> None:
    """Only what runs in the forward pass, and depends on values, breaks the graph."""
    check_transformed(RULE, text, text.replace(MADE, COMPILED))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            SCRIPT.replace("    optimizer.zero", "    model = model.train()\n    optimizer.zero"),
            SCRIPT.replace("    optimizer.zero", "    model = model.train()\n    optimizer.zero").replace(MADE, COMPILED),
            id="named again for each batch",
        ),
        pytest.param(FOLDS, FOLDS.replace(f"    {MADE}", indent(COMPILED, "    ")), id="made for each fold"),
    ],
)
def test_it_is_compiled_as_often_as_it_is_made(before: str, after: str) -> None:
    """Once for each network, not for each batch."""
    check_transformed(RULE, before, after)


def test_a_flag_is_asked_as_it_is() -> None:
    """An ``if`` takes any value."""
    text = SCRIPT.replace('device = torch.device("cuda" if torch.cuda.is_available() else "cpu")', "use_cuda = torch.cuda.is_available()")
    text = text.replace("Net().to(device)", "Net()").replace(
        "    optimizer.zero", "    if use_cuda:\n        x = x.cuda()\n    optimizer.zero"
    )
    text = text.replace("x.to(device)", "x").replace("optimizer = ", "if use_cuda:\n    model.cuda()\noptimizer = ")
    check_transformed(RULE, text, text.replace("model = Net()\n", "model = Net()\nif use_cuda:\n    model.compile()\n"))


def test_a_network_whose_loop_stands_in_another_file_is_compiled_where_it_is_made() -> None:
    """The finding is in the script."""
    head, loop = SCRIPT.split("for x in", 1)
    library = "import torch\n\n\ndef train(model, optimizer, device):\n    for x in" + loop.split("print(list")[0].replace(
        "\n    ", "\n        "
    )
    results = run_on_program(RULE, {"engine.py": library, "main.py": f"from engine import train\n{head}train(model, optimizer, device)\n"})
    assert COMPILED in results["main.py"].after.decode()
    assert not results["engine.py"].notes


def test_without_cuda_nothing_changes(tmp_path: Path) -> None:
    """Bit for bit, keys and class included."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SCRIPT)
    after.write_bytes(run_transform(RULE, SCRIPT).after)
    assert run_on_cpu(before) == run_on_cpu(after)


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for the CPU needs a C++ compiler")
def test_a_compiled_network_trains_alike_and_keeps_its_keys(tmp_path: Path) -> None:
    """Compiled on the CPU for once: within rounding, with the old keys and the old class."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SCRIPT)
    after.write_text(run_transform(RULE, SCRIPT).after.decode().replace('if device.type == "cuda":', "if True:"))
    *old, keys = run_on_cpu(before).splitlines()
    *new, same = run_on_cpu(after, timeout=240).splitlines()
    assert same == keys
    assert [float(line) for line in new] == pytest.approx([float(line) for line in old], rel=1e-5)
