"""channels-last: which networks and batches are laid out anew together, and what reads memory as it lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.engine import EngineSettings, fix
from torchfix.facts.project.project import Project
from torchfix.result import Outcome
from torchfix.testing import check_held, check_noop, check_transformed, run_on_program, run_transform
from torchfix.transform import Selected

RULE = "channels-last"
MODEL = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.conv2 = nn.Conv2d(8, 8, 3)
        self.fc = nn.Linear(128, 2)

    def forward(self, x):
        x = self.conv1(x).relu()
        x = self.conv2(x).relu()
        x = x.flatten(1)
        return self.fc(x)
"""
TRAINING = """\


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
loader = DataLoader(TensorDataset(torch.randn(8, 3, 8, 8), torch.zeros(8, dtype=torch.long)), batch_size=4)
model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    x, y = x.to(device), y.to(device)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
IMPORTS = "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
SCRIPT = IMPORTS + MODEL + TRAINING
LAYOUT = "memory_format=torch.channels_last"
CONVERTED = SCRIPT.replace("Net().to(device)", f"Net().to(device, {LAYOUT})").replace("x.to(device)", f"x.to(device, {LAYOUT})")
FLAT = "        x = x.flatten(1)\n"


def adapted(old: str, new: str, text: str = SCRIPT) -> str:
    """A script with one part of it changed."""
    assert old in text, old
    return text.replace(old, new)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(CONVERTED, id="converted already"),
        pytest.param(
            adapted("self.conv1(x)", "self.conv1(x.contiguous(memory_format=torch.channels_last))"), id="in the network's own code"
        ),
        pytest.param(adapted("    loss.backward()\n    optimizer.step()\n", ""), id="nothing is trained"),
        pytest.param(adapted('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"'), id="on the host"),
        pytest.param(
            adapted("nn.Conv2d(3, 8, 3)", "nn.Linear(8, 8)").replace("nn.Conv2d(8, 8, 3)", "nn.Linear(8, 8)"), id="no convolutions"
        ),
        pytest.param(adapted("nn.Conv2d(8, 8, 3)", "nn.TransformerEncoderLayer(8, 2)"), id="one convolution, to cut patches"),
        pytest.param("import lightning\n" + SCRIPT, id="a framework runs the loop"),
    ],
)
def test_leaves_networks_that_gain_nothing(text: str) -> None:
    """There is nothing to say."""
    check_noop(RULE, text)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        pytest.param(
            "full-precision",
            adapted('    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):', "    if True:"),
            id="trap: float32",
        ),
        pytest.param("data-parallel", adapted("Net().to(device)", "nn.DataParallel(Net()).to(device)"), id="DataParallel"),
        pytest.param("other-device", adapted('else "cpu"', 'else "mps"'), id="another device"),
        pytest.param(
            "three-dimensions",
            adapted("self.fc =", "self.video = nn.Conv3d(3, 8, 3)\n        self.fc ="),
            id="trap: Conv3d, whose weights have five dimensions",
        ),
        pytest.param("input-not-seen", adapted("output = model(x)", "output = model(x * 2)"), id="images that the loop computes"),
        pytest.param("input-not-seen", adapted("self.conv1(x)", "self.conv1(x.unsqueeze(1))"), id="trap: input of three dimensions"),
        pytest.param("input-not-seen", adapted("for x, y in loader:", "for x, y in make():"), id="batches from out of sight"),
        pytest.param("memory-read", adapted(FLAT, f"        print(x.data_ptr())\n{FLAT}"), id="trap: data_ptr"),
        pytest.param("memory-read", adapted(FLAT, FLAT.replace("x.flatten(1)", "x.as_strided((4, 128), (128, 1))")), id="as_strided"),
        pytest.param("memory-read", adapted(FLAT, f"        x.view(-1)[0] = 0\n{FLAT}"), id="a write through a view"),
        pytest.param("memory-read", adapted(FLAT, f"        rows = x.view(-1)\n        rows[0] = 0\n{FLAT}"), id="a write into a view"),
        pytest.param("memory-read", adapted("    loss.backward()", "    x.view(-1)\n    loss.backward()"), id="a view of the images"),
        pytest.param(
            "memory-read",
            adapted("    optimizer.step()", "    norm = sum(p.grad.view(-1).norm() for p in model.parameters())\n    optimizer.step()"),
            id="a view of gradients",
        ),
        pytest.param(
            "memory-read",
            adapted("    optimizer.step()", "    nn.utils.parameters_to_vector(model.parameters())\n    optimizer.step()"),
            id="parameters as one vector",
        ),
        pytest.param("memory-read", adapted("torch.optim.SGD", "torch.optim.LBFGS"), id="an optimizer that joins gradients by view"),
        pytest.param(
            "memory-read",
            adapted(f"{FLAT}        return self.fc(x)", "        return x").replace("(output, y)", "(output.view(4, -1), y)"),
            id="a view of images that the network gives",
        ),
        pytest.param(
            "fused-state",
            adapted("lr=0.1)", 'lr=0.1, fused=True)\noptimizer.load_state_dict(torch.load("state.pt"))'),
            id="a fused optimizer whose old state would be given to other weights",
        ),
        pytest.param(
            "unseen-layer",
            "from fast_kernels import Warp\n" + adapted("self.fc =", "self.warp = Warp()\n        self.fc ="),
            id="trap: operators out of sight",
        ),
    ],
)
def test_holds_networks_that_the_layout_would_break_or_not_help(code: str, text: str) -> None:
    """Network and images are converted together, or neither is."""
    check_held(RULE, text, code)


def test_torch_before_memory_formats_is_held() -> None:
    """Modules take a memory format since torch 1.5."""
    check_held(RULE, SCRIPT, "torch-too-old", torch=(1, 4))


def test_it_is_off_unless_it_is_asked_for() -> None:
    """What it gains depends on the network."""
    assert RULE not in [transform.name for transform in registry.select(registry.discover(), (), ())]


def test_the_documented_example_becomes_what_it_says() -> None:
    """Before and after of the rule's own text."""
    rule = registry.find(RULE)
    check_transformed(rule, rule.before, rule.after)


def test_network_and_images_are_converted_where_they_are_moved() -> None:
    """One argument each, and labels stay as they are."""
    (note,) = check_transformed(RULE, SCRIPT, CONVERTED)
    assert note.notes
    assert note.effects == ("numerics", "rng")


@pytest.mark.parametrize(
    ("made", "converted"),
    [
        pytest.param("model = Net().cuda()", f"model = Net().cuda()\nmodel.to({LAYOUT})", id="moved by cuda"),
        pytest.param(
            "model = Net()\nmodel = model.to(device)", f"model = Net()\nmodel.to({LAYOUT})\nmodel = model.to(device)", id="moved later"
        ),
        pytest.param(
            "model = nn.parallel.DistributedDataParallel(Net().to(device))",
            f"model = nn.parallel.DistributedDataParallel(Net().to(device, {LAYOUT}))",
            id="trap: in front of DistributedDataParallel, in one line",
        ),
        pytest.param(
            "model = nn.parallel.DistributedDataParallel(Net().cuda())",
            f"model = nn.parallel.DistributedDataParallel(Net().to({LAYOUT}).cuda())",
            id="in front of DistributedDataParallel, moved by cuda",
        ),
        pytest.param(
            "net = Net().cuda()\nmodel = nn.parallel.DistributedDataParallel(net)",
            f"net = Net().cuda()\nnet.to({LAYOUT})\nmodel = nn.parallel.DistributedDataParallel(net)",
            id="in front of DistributedDataParallel, by name",
        ),
        pytest.param(
            "model = Net()\nif parallel:\n    model = nn.parallel.DistributedDataParallel(model)",
            f"model = Net()\nmodel.to({LAYOUT})\nif parallel:\n    model = nn.parallel.DistributedDataParallel(model)",
            id="in front of DistributedDataParallel under a condition",
        ),
    ],
)
def test_the_network_is_converted_in_front_of_its_wrapper(made: str, converted: str) -> None:
    """DistributedDataParallel lays gradients out as it finds the weights."""
    check_transformed(RULE, adapted("model = Net().to(device)", made), adapted(f"model = Net().to(device, {LAYOUT})", converted, CONVERTED))


def test_evaluation_batches_of_the_same_network_are_converted_too() -> None:
    """Its weights are in the new layout there as well."""
    evaluation = "with torch.no_grad():\n    for x, y in loader:\n        print(model(x.to(device)).argmax(1))\n"
    check_transformed(RULE, SCRIPT + evaluation, CONVERTED + evaluation.replace("x.to(device)", f"x.to(device, {LAYOUT})"))


@pytest.mark.parametrize(
    ("view", "after"),
    [
        pytest.param("x = x.view(x.size(0), -1)", "x = x.reshape(x.size(0), -1)", id="to rows"),
        pytest.param("x = x.view(-1, 128)", "x = x.reshape(-1, 128)", id="to rows of a known length"),
        pytest.param("x = x.view_as(x).flatten(1)", "x = x.reshape_as(x).flatten(1)", id="view_as"),
        pytest.param("x = x.contiguous().view(4, -1)", "x = x.contiguous().view(4, -1)", id="of a copy in the old order: stays"),
        pytest.param("x = x.flatten(1).view(4, -1)", "x = x.flatten(1).view(4, -1)", id="of rows: stays"),
    ],
)
def test_views_in_the_network_copy_where_they_must(view: str, after: str) -> None:
    """``view`` raises where dimensions do not lie beside each other; ``reshape`` gives the same numbers."""
    check_transformed(RULE, adapted("x = x.flatten(1)", view), adapted("x = x.flatten(1)", after, CONVERTED))


def test_a_view_behind_a_pool_to_one_pixel_stays() -> None:
    """There channels lie side by side in either layout."""
    pooled = adapted("self.fc = nn.Linear(128, 2)", "self.pool = nn.AdaptiveAvgPool2d((1, 1))\n        self.fc = nn.Linear(8, 2)")
    pooled = adapted(FLAT, "        x = self.pool(x)\n        x = x.view(x.size(0), -1)\n", pooled)
    result = run_transform(RULE, pooled)
    assert result.outcome is Outcome.CHANGED
    assert b"x.view(x.size(0), -1)" in result.after


def test_views_of_labels_and_scores_do_not_matter() -> None:
    """The accuracy that every classifier's script has: views of what is no image."""
    accuracy = (
        "\n\ndef accuracy(output, target):\n"
        "    _, pred = output.topk(1, 1)\n"
        "    correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))\n"
        "    return correct[:1].view(-1).float().sum()\n\n"
    )
    text = adapted("\n\ntorch.manual_seed(0)\n", f"{accuracy}\ntorch.manual_seed(0)\n")
    text = adapted("    print(loss.item())\n", "    print(accuracy(output, y))\n", text)
    result = run_transform(RULE, text)
    assert result.outcome is Outcome.CHANGED
    assert result.after.count(b"channels_last") == 2


def test_network_loop_and_the_scripts_that_share_them_are_changed_together() -> None:
    """The network's view and the loop's copy once, and the network of each script."""
    loop = (
        "import torch\nfrom torch import nn\n\n\ndef train(model, loader, optimizer, scaler):\n    for x, y in loader:\n"
        "        with torch.autocast('cuda'):\n            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())\n"
        "        optimizer.zero_grad()\n        scaler.scale(loss).backward()\n        scaler.step(optimizer)\n        scaler.update()\n"
    )
    main = (
        f"{IMPORTS}from engine import train\nfrom net import Net\n\nmodel = Net().cuda()\n"
        "loader = DataLoader(TensorDataset(torch.randn(8, 3, 8, 8), torch.zeros(8, dtype=torch.long)), batch_size=4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "train(model, loader, optimizer, torch.amp.GradScaler('cuda'))\n"
    )
    files = {"main.py": main, "again.py": main, "engine.py": loop, "net.py": adapted("x.flatten(1)", "x.view(4, -1)", MODEL)}
    after = {path: result.after.decode() for path, result in run_on_program(RULE, files).items()}
    for script in ("main.py", "again.py"):
        assert after[script] == adapted("model = Net().cuda()\n", f"model = Net().cuda()\nmodel.to({LAYOUT})\n", main)
    assert after["engine.py"] == adapted("x.cuda()", f"x.cuda({LAYOUT})", loop)
    assert after["net.py"] == adapted("x.flatten(1)", "x.reshape(4, -1)", MODEL)


def test_a_chain_of_layers_that_a_function_makes_takes_images() -> None:
    """As in networks that are written down as a list of numbers."""
    made = (
        "def layers(sizes):\n    made, last = [], 3\n    for size in sizes:\n        made += [nn.Conv2d(last, size, 3), nn.ReLU()]\n"
        "        made += [nn.Conv2d(size, size, 3)]\n        last = size\n    return nn.Sequential(*made)\n\n\n"
    )
    text = adapted("class Net", f"{made}class Net")
    text = adapted("self.conv1 = nn.Conv2d(3, 8, 3)", "self.conv1 = layers([8])", text)
    text = adapted("self.conv2 = nn.Conv2d(8, 8, 3)", "self.conv2 = nn.ReLU()", text)
    result = run_transform(RULE, text)
    assert result.outcome is Outcome.CHANGED


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SCRIPT, id="flatten"),
        pytest.param(adapted("x.flatten(1)", "x.view(x.size(0), -1)"), id="view"),
        pytest.param(adapted("lr=0.1)", "lr=0.1, momentum=0.9, fused=True)"), id="a fused optimizer that starts afresh"),
    ],
)
def test_on_the_host_losses_are_the_same_within_rounding(text: str, tmp_path: Path) -> None:
    """Before and after train alike, with half precision switched off."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(text)
    after.write_bytes(run_transform(RULE, text).after)
    old, new = ([float(line) for line in run_on_cpu(path).splitlines()] for path in (before, after))
    assert new == pytest.approx(old, rel=1e-5)


def test_on_cuda_convolutions_get_and_give_the_new_layout(tmp_path: Path) -> None:
    """In half precision too: images, weights, activations and gradients."""
    seen = "    print(all(t.is_contiguous(memory_format=torch.channels_last) for t in (x, model.conv1(x), model.conv1.weight)))\n"
    script = tmp_path / "after.py"
    script.write_bytes(run_transform(RULE, adapted("x.flatten(1)", "x.view(4, -1)")).after + seen.encode())
    printed, _ = run_on_fake_gpu(script)
    assert printed.split()[1::2] == ["True", "True"]


def test_in_one_run_with_mixed_precision_both_are_had() -> None:
    """A loop in float32 is held by this rule alone, and served once the same run has put it into half precision."""
    text = adapted('    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):', "    if True:")
    selected = [Selected(registry.find(name), registry.find(name).options()) for name in ("amp-loop", "fused-optimizer", RULE)]
    result = fix("train.py", text.encode(), Project.of_texts({"train.py": text}), selected, EngineSettings(format="off"))
    assert [(note.rule, note.outcome) for note in result.notes] == [
        (RULE, "fixed"),
        ("fused-optimizer", "fixed"),
        ("amp-loop", "fixed"),
    ]
