"""fused-optimizer: which optimizers may update all parameters in one kernel, and where the device is not seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.testing import check_held, check_noop, check_transformed, run_on_program, run_transform

RULE = "fused-optimizer"
MADE = "torch.optim.AdamW(model.parameters(), lr=1e-3)"
SCRIPT = f"""\
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = nn.Linear(8, 2).to(device)
optimizer = {MADE}
for x in torch.ones(3, 4, 8):
    optimizer.zero_grad()
    loss = model(x.to(device)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
SPARSE = "class Net(nn.Module):\n    def __init__(self):\n        self.e = nn.Embedding(3, 2, sparse=True)\n\n\n"
SCALED = SCRIPT.replace("for x", 'scaler = torch.amp.GradScaler("cuda")\nfor x').replace(
    "    loss.backward()\n    optimizer.step()", "    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()"
)
ASKED = (
    SCRIPT.replace(".to(device)", "")
    .replace("    optimizer.zero", "    if torch.cuda.is_available():\n        x = x.cuda()\n    optimizer.zero")
    .replace("optimizer = ", "if torch.cuda.is_available():\n    model = model.cuda()\noptimizer = ")
)
STEPS = """\
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(8, 2).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def learn(x):
    optimizer.zero_grad()
    model(x.to(device)).pow(2).mean().backward()
    optimizer.step()


for x in torch.ones(3, 4, 8):
    learn(x)
"""
FUSED = MADE.replace("1e-3)", '1e-3, fused=device.type == "cuda")')


@pytest.mark.parametrize(
    ("text", "torch"),
    [
        pytest.param(SCRIPT.replace("lr=1e-3", "lr=1e-3, fused=True"), None, id="fused already"),
        pytest.param(SCRIPT.replace("lr=1e-3", "lr=1e-3, fused=False"), None, id="trap 3: not, by choice"),
        pytest.param(SCRIPT.replace("lr=1e-3", "lr=1e-3, foreach=True"), None, id="trap 8: foreach"),
        pytest.param(SCRIPT.replace("lr=1e-3", "lr=1e-3, capturable=True"), None, id="capturable"),
        pytest.param(SCRIPT.replace("lr=1e-3", "**options"), None, id="arguments out of sight"),
        pytest.param(SCRIPT.replace("AdamW", "RMSprop"), None, id="one that has no fused form"),
        pytest.param(SCRIPT, (2, 0), id="traps 5 and 6: torch before 2.1"),
        pytest.param(SCRIPT.replace("AdamW", "SGD"), (2, 2), id="SGD before 2.3"),
        pytest.param(SCRIPT.replace("AdamW", "Adagrad"), None, id="Adagrad, whose fused form is new on CUDA"),
        pytest.param(
            "from accelerate import Accelerator\n" + SCRIPT.replace("device =", "accelerator = Accelerator()\ndevice =", 1),
            None,
            id="a framework steps",
        ),
        pytest.param(SCRIPT.replace('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"'), None, id="on the host"),
        pytest.param(
            SCRIPT.replace("torch.optim.AdamW", "Adam").replace("device =", "class Adam(torch.optim.Adam):\n    pass\n\n\ndevice =", 1),
            None,
            id="trap 10: a class of the project",
        ),
    ],
)
def test_leaves_optimizers_that_are_or_cannot_be_fused(text: str, torch: tuple[int, int] | None) -> None:
    """Another way that was chosen stays."""
    check_noop(RULE, text, torch=torch)


@pytest.mark.parametrize(
    ("code", "text", "torch"),
    [
        pytest.param(
            "sparse-gradients",
            SCRIPT.replace("model = nn.Linear(8, 2)", "model = Net()").replace("device =", f"{SPARSE}device =", 1),
            None,
            id="trap 2: sparse gradients",
        ),
        pytest.param(
            "sparse-gradients",
            SCRIPT.replace("nn.Linear(8, 2)", "nn.Sequential(nn.EmbeddingBag(9, 8, sparse=True), nn.Linear(8, 2))"),
            None,
            id="trap 2: sparse gradients of a layer that is written out",
        ),
        pytest.param(
            "device-not-seen",
            SCRIPT.replace(".to(device)", "").replace("for x", "if gpus > 0:\n    model.cuda()\nfor x"),
            None,
            id="copied to CUDA on a condition of the program's own",
        ),
        pytest.param(
            "read-behind-step",
            SCALED + "    print(model.weight.grad.norm())\n",
            None,
            id="gradients read behind a scaler's step",
        ),
        pytest.param(
            "read-behind-step",
            SCRIPT + "    print(model.weight.grad.norm())\n",
            None,
            id="gradients read behind a step that mixed precision may scale",
        ),
        pytest.param(
            "read-behind-step",
            SCALED.replace("for x", "optimizer.register_step_pre_hook(show)\nfor x"),
            None,
            id="a hook in the step of a scaler",
        ),
        pytest.param("read-behind-step", SCALED.replace("for x", "optimizer.step = logged\nfor x"), None, id="a step that is replaced"),
        pytest.param(
            "device-not-seen", SCRIPT.replace("nn.Linear(8, 2).to(device)", "nn.Linear(8, 2)"), None, id="a network that stays on the host"
        ),
        pytest.param("parameters-not-seen", SCRIPT.replace("model.parameters(), lr", "weights, lr"), None, id="parameters out of sight"),
        pytest.param(
            "moved-later",
            SCRIPT.replace("nn.Linear(8, 2).to(device)", "nn.Linear(8, 2)").replace("for x", "model.to(device)\nfor x"),
            (2, 1),
            id="trap 1: moved behind the optimizer, before torch 2.4",
        ),
    ],
)
def test_holds_what_is_not_seen_to_be_dense_and_on_cuda(code: str, text: str, torch: tuple[int, int] | None) -> None:
    """The first step would raise."""
    check_held(RULE, text, code, torch=torch)


def test_the_documented_example_becomes_what_it_says() -> None:
    """Before and after of the rule's own text."""
    rule = registry.find(RULE)
    check_transformed(rule, rule.before, rule.after)


@pytest.mark.parametrize(
    ("before", "after", "torch"),
    [
        pytest.param(SCRIPT, SCRIPT.replace(MADE, FUSED), None, id="by the device object"),
        pytest.param(SCRIPT, SCRIPT.replace(MADE, FUSED), (2, 1), id="torch 2.1, moved before"),
        pytest.param(
            SCRIPT.replace("torch.device(", "(", 1),
            SCRIPT.replace("torch.device(", "(", 1).replace(MADE, FUSED.replace("device.type", "torch.device(device).type")),
            None,
            id="by a device word",
        ),
        pytest.param(
            SCRIPT.replace(".to(device)", ".cuda()"),
            SCRIPT.replace(".to(device)", ".cuda()").replace(MADE, MADE[:-1] + ", fused=True)"),
            None,
            id="always on CUDA",
        ),
        pytest.param(ASKED, ASKED.replace(MADE, MADE[:-1] + ", fused=torch.cuda.is_available())"), None, id="on CUDA where there is one"),
        pytest.param(
            SCRIPT.replace(
                'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")', 'device = int(os.environ["LOCAL_RANK"])'
            ),
            SCRIPT.replace(
                'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")', 'device = int(os.environ["LOCAL_RANK"])'
            ).replace(MADE, MADE[:-1] + ", fused=True)"),
            None,
            id="by the number of a GPU",
        ),
        pytest.param(STEPS, STEPS.replace(MADE, FUSED), None, id="stepped by a function for each batch"),
        pytest.param(
            SCALED.replace("    scaler.step", "    scaler.unscale_(optimizer)\n    scaler.step") + "    print(model.weight.grad.norm())\n",
            SCALED.replace(MADE, FUSED).replace("    scaler.step", "    scaler.unscale_(optimizer)\n    scaler.step")
            + "    print(model.weight.grad.norm())\n",
            None,
            id="gradients that are unscaled before the step",
        ),
        pytest.param(
            SCALED + "    for p in model.parameters():\n        if p.grad is not None:\n            p.grad.zero_()\n",
            SCALED.replace(MADE, FUSED) + "    for p in model.parameters():\n        if p.grad is not None:\n            p.grad.zero_()\n",
            None,
            id="gradients that are cleared behind the step",
        ),
    ],
)
def test_the_argument_follows_the_programs_device(before: str, after: str, torch: tuple[int, int] | None) -> None:
    """On the host the old kernels stay, bit for bit."""
    check_transformed(RULE, before, after, torch=torch)


LOADED = """\
checkpoint = torch.load("last.pt")
for group in checkpoint["optimizer"]["param_groups"]:
    group["fused"] = optimizer.defaults["fused"]
optimizer.load_state_dict(checkpoint["optimizer"])
for x"""
LOADS = """\
checkpoint = torch.load("last.pt")
optimizer.load_state_dict(checkpoint["optimizer"])
for x"""


def test_a_state_of_an_earlier_run_gets_the_setting_before_it_is_loaded() -> None:
    """Trap 4: the old state brings its own word for fused, and a step count where the old kernels want it."""
    text = SCRIPT.replace("for x", LOADS)
    finding = check_transformed(RULE, text, text.replace(MADE, FUSED).replace(LOADS, LOADED))[0]
    assert not finding.notes


def test_a_state_without_a_name_is_held() -> None:
    """It cannot be given the setting first."""
    check_held(RULE, SCRIPT.replace("for x", 'optimizer.load_state_dict(torch.load("last.pt"))\nfor x'), "state-loaded")


def test_a_state_of_something_that_is_not_known_is_told() -> None:
    """It may be the optimizer's."""
    text = SCRIPT.replace("for x", 'wrapped.load_state_dict(torch.load("last.pt"))\nfor x')
    (note,) = check_transformed(RULE, text, text.replace(MADE, FUSED))
    assert "saved before" in note.notes[0]


@pytest.mark.parametrize("line", ["scheduler.load_state_dict(s)", "model.load_state_dict(s)", "scaler.load_state_dict(s)"])
def test_states_of_other_objects_are_no_concern(line: str) -> None:
    """A schedule, a network, a scaler."""
    made = 'scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)\nscaler = torch.amp.GradScaler("cuda")\n'
    text = SCRIPT.replace("for x", f"{made}{line}\nfor x")
    (finding,) = check_transformed(RULE, text, text.replace(MADE, FUSED))
    assert not finding.notes


def test_a_state_that_another_file_loads_gets_the_setting_there() -> None:
    """The finding's edits stand in both files."""
    helper = "import torch\n\n\ndef resume(optimizer):\n    state = torch.load('last.pt')\n    optimizer.load_state_dict(state)\n"
    results = run_on_program(
        RULE, {"helper.py": helper, "main.py": "from helper import resume\n" + SCRIPT.replace("for x", "resume(optimizer)\nfor x")}
    )
    assert FUSED in results["main.py"].after.decode()
    assert (
        'for group in state["param_groups"]:\n        group["fused"] = optimizer.defaults["fused"]' in results["helper.py"].after.decode()
    )


def test_an_optimizer_whose_loop_stands_in_another_file_is_seen() -> None:
    """The finding is where it is made."""
    head, loop = SCRIPT.split("for x in", 1)
    library = "import torch\n\n\ndef train(model, optimizer, device):\n    for x in" + loop.replace("\n    ", "\n        ")
    results = run_on_program(RULE, {"engine.py": library, "main.py": f"from engine import train\n{head}train(model, optimizer, device)\n"})
    assert FUSED in results["main.py"].after.decode()
    assert not results["engine.py"].notes


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_training_stays_the_same_on_the_cpu_and_close_on_a_gpu(kind: str, tmp_path: Path) -> None:
    """Bit for bit without CUDA, and on the pretend GPU for SGD; the others round differently."""
    text = SCRIPT.replace("AdamW", kind)
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(text)
    after.write_bytes(run_transform(RULE, text).after)
    assert run_on_cpu(before) == run_on_cpu(after)
    old, new = ([float(line) for line in run_on_fake_gpu(path)[0].split()] for path in (before, after))
    assert new == (old if kind == "SGD" else pytest.approx(old, rel=1e-5))
