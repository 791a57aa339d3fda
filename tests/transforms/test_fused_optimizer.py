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
        pytest.param(SCRIPT, (1, 13), id="trap 6: torch before 2.0"),
        pytest.param(SCRIPT.replace("AdamW", "SGD"), (2, 2), id="SGD before 2.3"),
        pytest.param(SCRIPT.replace("AdamW", "Adagrad"), (2, 3), id="Adagrad before 2.4"),
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
        pytest.param(SCRIPT, SCRIPT.replace(MADE, FUSED), (2, 0), id="torch 2.0, moved before"),
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
    ],
)
def test_the_argument_follows_the_programs_device(before: str, after: str, torch: tuple[int, int] | None) -> None:
    """On the host the old kernels stay, bit for bit."""
    check_transformed(RULE, before, after, torch=torch)


def test_a_state_that_is_loaded_is_told() -> None:
    """Trap 4: the old state brings its own word for fused."""
    text = SCRIPT.replace("for x", 'optimizer.load_state_dict(torch.load("last.pt"))\nfor x')
    (note,) = check_transformed(RULE, text, text.replace(MADE, FUSED))
    assert "saved before" in note.notes[0]


def test_an_optimizer_whose_loop_stands_in_another_file_is_seen() -> None:
    """The finding is where it is made."""
    head, loop = SCRIPT.split("for x in", 1)
    library = "import torch\n\n\ndef train(model, optimizer, device):\n    for x in" + loop.replace("\n    ", "\n        ")
    results = run_on_program(RULE, {"engine.py": library, "main.py": f"from engine import train\n{head}train(model, optimizer, device)\n"})
    assert FUSED in results["main.py"].after.decode()
    assert not results["engine.py"].notes


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_training_stays_the_same_on_the_cpu_and_close_on_a_gpu(kind: str, tmp_path: Path) -> None:
    """Bit for bit without CUDA, and on the pretend GPU for SGD; the others round differently."""
    text = SCRIPT.replace("AdamW", kind)
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(text)
    after.write_bytes(run_transform(RULE, text).after)
    assert run_on_cpu(before) == run_on_cpu(after)
    old, new = ([float(line) for line in run_on_fake_gpu(path)[0].split()] for path in (before, after))
    assert new == (old if kind == "SGD" else pytest.approx(old, rel=1e-5))
