"""matmul-precision: which scripts get the switch, once, and which choose their precision by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.testing import check_held, check_noop, check_transformed, run_on_program, run_transform

RULE = "matmul-precision"
SCRIPT = """\
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
model = nn.Linear(8, 2).to(device)
optimizer = torch.optim.LBFGS(model.parameters())
for x in torch.ones(2, 4, 8):
    x = x.to(device)
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step(lambda: model(x).pow(2).mean())
    print(loss.item())
"""
WORD = 'import os\nos.environ["NVIDIA_TF32_OVERRIDE"] = "0"'
OLD = "torch.backends.cuda.matmul.allow_tf32 = True"
HIGHEST = 'torch.set_float32_matmul_precision("highest")'
SWITCH = 'if torch.cuda.is_available():\n    torch.set_float32_matmul_precision("high")\n'


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SCRIPT.replace('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"'), id="on the host"),
        pytest.param(SCRIPT.replace("LBFGS", "SGD").replace("lambda: model(x).pow(2).mean()", ""), id="where mixed precision can be had"),
        pytest.param(
            SCRIPT.replace("torch.manual", "torch.backends.cuda.matmul.allow_tf32 = True\ntorch.manual"), id="trap 1: an old switch"
        ),
        pytest.param(
            SCRIPT.replace("torch.manual", 'torch.backends.cuda.matmul.fp32_precision = "ieee"\ntorch.manual'), id="trap 1: a new switch"
        ),
        pytest.param(SCRIPT.replace("torch.manual", f"{HIGHEST}\ntorch.manual"), id="set already"),
        pytest.param(
            SCRIPT.replace("torch.manual", 'import os\nos.environ["NVIDIA_TF32_OVERRIDE"] = "0"\ntorch.manual'), id="by environment"
        ),
        pytest.param(SCRIPT.replace("nn.Linear(8, 2)", "nn.Linear(8, 2).double()"), id="trap: float64 code"),
        pytest.param(SCRIPT.replace("mean()\n    loss.b", "mean().to(torch.float64)\n    loss.b"), id="trap: float64 by its name"),
        pytest.param("import lightning as L\nL.Trainer()\n" + SCRIPT, id="a framework trains"),
        pytest.param(
            SCRIPT.replace("nn.Linear(8, 2)", "nn.Sequential(nn.Conv1d(4, 2, 1), nn.Linear(8, 2))"),
            id="convolutions with one last layer, which cuDNN computes in TensorFloat-32 as it is",
        ),
        pytest.param(SCRIPT.replace("    loss =", '    with torch.autocast("cuda"):\n        model(x)\n    loss ='), id="under autocast"),
        pytest.param(SCRIPT.replace("model = ", "def build():\n    return ").split("optimizer")[0], id="a file to be imported"),
    ],
)
def test_leaves_programs_with_nothing_to_gain_or_a_choice_of_their_own(text: str) -> None:
    """A global switch is only set where nobody set one."""
    check_noop(RULE, text)


def test_torch_that_lacks_the_switch_is_held() -> None:
    """It came with torch 1.12."""
    check_held(RULE, SCRIPT, "torch-too-old", torch=(1, 11))


def test_the_documented_example_becomes_what_it_says() -> None:
    """Before and after of the rule's own text."""
    rule = registry.find(RULE)
    check_transformed(rule, rule.before, rule.after)


def test_the_switch_stands_in_front_of_the_first_network() -> None:
    """Under a test for CUDA, since on a CPU it may choose bfloat16 kernels (trap 4)."""
    (note,) = check_transformed(RULE, SCRIPT, SCRIPT.replace("model = ", SWITCH + "model = "))
    assert note.notes


@pytest.mark.parametrize(
    ("before", "place"),
    [
        pytest.param(
            SCRIPT.replace("import torch\n", "import numpy as np\nimport torch\n", 1) + "    np.float64(0)\n",
            "model = ",
            id="numbers of numpy choose nothing",
        ),
        pytest.param(SCRIPT + "    print((x > 0).double().mean().item())\n", "model = ", id="a metric in float64"),
        pytest.param(
            SCRIPT.replace("nn.Linear(8, 2)", "nn.Sequential(nn.Conv1d(4, 4, 1), nn.Linear(8, 8), nn.Linear(8, 2))"),
            "model = ",
            id="several layers behind convolutions",
        ),
    ],
)
def test_what_says_nothing_of_the_networks_precision_does_not_count(before: str, place: str) -> None:
    """Numbers on the host, and counts, may be of any type."""
    check_transformed(RULE, before, before.replace(place, SWITCH + place, 1))


def test_a_script_that_only_evaluates_is_left_alone() -> None:
    """It imports the file that trains, and runs another function of it."""
    head, loop = SCRIPT.split("for x in", 1)
    library = f"import torch\n\n\ndef train(model, optimizer, device):\n    for x in{loop}".replace("\n    ", "\n        ")
    library = library.replace("\n        for x", "\n    for x") + "\n\ndef test(model):\n    print(model)\n"
    results = run_on_program(RULE, {"engine.py": library, "test.py": f"from engine import test\n{head}test(model)\n"})
    assert not any(result.notes for result in results.values())


def test_a_class_that_trains_gets_it_where_the_script_makes_it() -> None:
    """The usual form of a larger program: a solver in one file, its script in another."""
    body = SCRIPT.split("\n\n", 1)[1].replace("\n", "\n        ").rstrip()
    solver = f"import torch\nfrom torch import nn\n\n\nclass Solver:\n    def train(self):\n        {body}\n"
    main = "import torch\nfrom solver import Solver\n\nif __name__ == '__main__':\n    solver = Solver()\n    solver.train()\n"
    results = run_on_program(RULE, {"solver.py": solver, "main.py": main})
    indented = "    " + SWITCH.replace("\n    ", "\n        ").rstrip() + "\n"
    assert results["main.py"].after.decode() == main.replace("    solver = ", f"{indented}    solver = ")
    assert not results["solver.py"].notes


def test_the_script_gets_it_and_the_library_does_not() -> None:
    """The loop may stand in another file."""
    head, loop = SCRIPT.split("for x in", 1)
    library = f"import torch\n\n\ndef train(model, optimizer, device):\n    for x in{loop}".replace("\n    ", "\n        ")
    library = library.replace("\n        for x", "\n    for x")
    files = {"engine.py": library, "main.py": f"from engine import train\n{head}train(model, optimizer, device)\n"}
    results = run_on_program(RULE, files)
    assert not results["engine.py"].notes
    assert SWITCH in results["main.py"].after.decode()


def test_on_the_cpu_nothing_changes(tmp_path: Path) -> None:
    """Bit for bit; and the pretend GPU takes the line."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SCRIPT)
    after.write_bytes(run_transform(RULE, SCRIPT).after)
    assert run_on_cpu(before) == run_on_cpu(after)
    assert run_on_fake_gpu(before)[0] == run_on_fake_gpu(after)[0]
