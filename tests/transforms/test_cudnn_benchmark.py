"""cudnn-benchmark: which scripts have convolutions on images of one size, and which ask for determinism."""

from __future__ import annotations

import pytest

from torchfix import registry
from torchfix.testing import check_noop, check_transformed, run_on_program

RULE = "cudnn-benchmark"
SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
steps = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
data = datasets.ImageFolder("data", steps)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=64):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
    optimizer.step()
"""
SWITCH = "torch.backends.cudnn.benchmark = True\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SCRIPT.replace("transforms.RandomResizedCrop(224), ", ""), id="trap: images of many sizes"),
        pytest.param(SCRIPT.replace("RandomResizedCrop(224)", "Resize(224)"), id="trap: only the shorter side is fixed"),
        pytest.param(SCRIPT.replace("batch_size=64", "batch_size=64, collate_fn=pad"), id="trap: batches of the program's own making"),
        pytest.param(SCRIPT.replace("steps =", "torch.backends.cudnn.deterministic = True\nsteps ="), id="trap: deterministic"),
        pytest.param(SCRIPT.replace("steps =", "torch.use_deterministic_algorithms(True)\nsteps ="), id="trap: deterministic algorithms"),
        pytest.param(
            SCRIPT.replace("device =", "def set_seed():\n    torch.backends.cudnn.benchmark = False\n\n\ndevice ="),
            id="trap: a seed helper that switches it off",
        ),
        pytest.param(SCRIPT.replace("steps =", SWITCH + "steps ="), id="set already"),
        pytest.param(SCRIPT.replace("steps =", "torch.backends.cudnn.enabled = False\nsteps ="), id="no cuDNN"),
        pytest.param(
            SCRIPT.replace("steps =", "torch.backends.cudnn.set_flags(True, _deterministic=True)\nsteps ="), id="trap: flags by a function"
        ),
        pytest.param(
            SCRIPT.replace("steps =", "from monai.utils import set_determinism\nset_determinism(0)\nsteps ="),
            id="trap: determinism by a library's function",
        ),
        pytest.param(
            SCRIPT.replace("data =", "raw = transforms.Compose([transforms.ToTensor()])\ndata ="),
            id="trap: images for evaluation that keep their size",
        ),
        pytest.param("import lightning as L\nL.Trainer()\n" + SCRIPT, id="a framework trains"),
        pytest.param(SCRIPT.replace('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"'), id="on the host"),
        pytest.param(SCRIPT.replace("nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), ", ""), id="no convolutions"),
    ],
)
def test_leaves_programs_that_gain_nothing_or_ask_for_the_same_digits(text: str) -> None:
    """Measuring pays where sizes stay the same."""
    check_noop(RULE, text)


def test_the_documented_example_becomes_what_it_says() -> None:
    """Before and after of the rule's own text."""
    rule = registry.find(RULE)
    check_transformed(rule, rule.before, rule.after)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param("RandomResizedCrop(224)", id="a crop"),
        pytest.param("Resize((64, 48))", id="height and width"),
        pytest.param("Resize(256), transforms.CenterCrop(224)", id="a crop behind a resize"),
    ],
)
def test_the_switch_stands_in_front_of_the_first_network(size: str) -> None:
    """Under the name that the file gives to torch."""
    before = SCRIPT.replace("RandomResizedCrop(224)", size)
    (note,) = check_transformed(RULE, before, before.replace("model = ", SWITCH + "model = "))
    assert note.notes


def test_a_choice_in_another_file_of_the_program_counts() -> None:
    """Seed helpers often stand in one of their own."""
    files = {
        "seeds.py": "import torch\n\n\ndef seed():\n    torch.backends.cudnn.deterministic = True\n",
        "main.py": f"import seeds\n{SCRIPT}",
    }
    assert not any(result.notes for result in run_on_program(RULE, files).values())
