"""amp-loop where the loop leaves its step to a function: what the loop may not do beside it, and that the step still trains."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu, skip_on_cuda_build
from tests.transforms.test_amp_loop import RULE, SET_UP, STEP, program
from torchfix.result import Outcome
from torchfix.testing import check_held, check_transformed, run_on_program, run_transform

START = "torch.manual_seed(3)"
LEARN = f"def learn(x, y):\n{indent(STEP, '    ')}    return loss\n"
HANDED = f"""\
def learn(model, criterion, optimizer, x, y):
    \"\"\"One step.\"\"\"
{indent(STEP, "    ")}    return loss
"""
CALLED = "loss = learn(model, criterion, optimizer, x, y)\n"
AGENT = """\
class Agent:
    def __init__(self, device):
        self.device = device
        self.model = Net().to(device)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def learn(self, x, y):
        x, y = x.to(self.device), y.to(self.device)
        loss = self.criterion(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def fit(self, loader):
        for x, y in loader:
            print(repr(self.learn(x, y)))
"""


def with_function(function: str, step: str = "loss = learn(x, y)\n", **arguments: str) -> str:
    """The training script with a function in front of it."""
    return program(step, **arguments).replace(START, f"{function}\n\n{START}")


def with_agent(agent: str = AGENT) -> str:
    """A script whose training loop is a method of the object that trains."""
    head, _, _ = program().partition(START)
    return f"{head}{agent}\n\n{START}\nagent = Agent(device)\nagent.fit(batches())\n"


# What is held --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(with_function(LEARN, "loss = learn(x, y)\noptimizer.step()\n"), "steps beside", id="a second step in the loop"),
        pytest.param(
            with_function(LEARN, "loss = learn(x, y)\nprint(model.layers[0].weight.grad)\n"), "reads gradients", id="gradients are printed"
        ),
        pytest.param(
            with_function(
                f"def more(x, y):\n    send(x, y)\n\n\ndef send(x, y):\n    model(x).sum().backward()\n\n\n{LEARN}",
                "loss = learn(x, y)\nmore(x, y)\n",
            ),
            "goes backward beside",
            id="gradients that another function adds",
        ),
        pytest.param(with_function(LEARN.replace("return loss", "yield loss"), "loss = next(learn(x, y))\n"), "pauses", id="a generator"),
        pytest.param(
            with_function(
                LEARN,
                "loss = learn(x, y)\nschedule.step()\n",
                set_up="schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)\n",
            ),
            "steps beside",
            id="a schedule that counts the steps",
        ),
    ],
)
def test_holds_where_the_function_is_not_the_whole_step(text: str, words: str) -> None:
    """The words name the function and what stands beside it."""
    note = check_held(RULE, text, "backward-elsewhere")
    assert note.reason is not None and words in note.reason.text


def test_holds_where_a_later_loop_disturbs_the_function() -> None:
    """The finding stands on the first loop, which is free."""
    second = "\nfor x, y in batches():\n    learn(x.to(device), y.to(device))\n    optimizer.step()\n"
    note = check_held(RULE, with_function(LEARN) + second, "backward-elsewhere")
    assert note.reason is not None and "steps beside learn" in note.reason.text


def test_half_precision_does_not_leave_the_function() -> None:
    """A result that the function returns is float32 again."""
    text = with_function(LEARN.replace("criterion(model(x), y)", "criterion(out := model(x), y)").replace("return loss", "return out"))
    result = run_transform(RULE, text)
    assert result.outcome is Outcome.CLEAN or b".float()" in result.after


# What changes --------------------------------------------------------------------------------------------------------

REGION = 'with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):'
SCALED = f"""\
optimizer.zero_grad()
{REGION}
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""


def test_a_function_that_reads_globals_finds_the_scaler_there() -> None:
    """The scaler is made beside the optimizer, at module level."""
    after = LEARN.replace(indent(STEP, "    "), indent(SCALED, "    "))
    check_transformed(RULE, with_function(LEARN), with_function(after, set_up=SET_UP))


def test_a_function_that_is_handed_the_optimizer_is_handed_the_scaler() -> None:
    """It decides about autocast behind its docstring, from the scaler that it was given."""
    result = run_transform(RULE, with_function(HANDED, CALLED))
    assert result.outcome is Outcome.CHANGED, [note.reason for note in result.notes]
    after = result.after.decode()
    assert "def learn(model, criterion, optimizer, x, y, scaler):\n" in after
    assert "loss = learn(model, criterion, optimizer, x, y, scaler=scaler)\n" in after
    assert '"""One step."""\n    use_amp = ' in after
    assert indent(SCALED, "    ") in after


def test_a_method_of_the_object_that_trains_has_the_scaler_beside_its_optimizer() -> None:
    """Gradients are unscaled before the clip."""
    result = run_transform(RULE, with_agent())
    assert result.outcome is Outcome.CHANGED, [note.reason for note in result.notes]
    after = result.after.decode()
    assert 'self.use_amp = self.device.type == "cuda"' in after or 'self.use_amp = device.type == "cuda"' in after
    assert "        self.scaler.scale(loss).backward()\n        self.scaler.unscale_(self.optimizer)\n" in after
    assert "        self.scaler.step(self.optimizer)\n        self.scaler.update()\n" in after


SECOND = """
def again(x, y):
    return learn(x.to(device), y.to(device))


for x, y in batches():
    print(repr(again(x, y).item()))
"""
PROGRAMS = [
    pytest.param(with_function(LEARN) + SECOND, id="two loops, one through a function"),
    pytest.param(with_function(LEARN), id="globals"),
    pytest.param(with_function(HANDED, CALLED), id="parameters"),
    pytest.param(with_agent(), id="a method"),
]


@pytest.mark.parametrize("text", PROGRAMS)
def test_the_rewritten_program_is_quiet_and_prints_the_same_on_the_host(text: str, tmp_path: Path) -> None:
    """Bit for bit, and a second run finds nothing."""
    after = run_transform(RULE, text).after.decode()
    assert not run_transform(RULE, after).notes
    (tmp_path / "before.py").write_text(text)
    (tmp_path / "after.py").write_text(after)
    assert run_on_cpu(tmp_path / "before.py") == run_on_cpu(tmp_path / "after.py")


@pytest.mark.parametrize("capability", ["7.0", "8.0"])
@pytest.mark.parametrize("text", PROGRAMS)
def test_the_rewritten_program_trains_alike_on_a_gpu(text: str, capability: str, tmp_path: Path) -> None:
    """In float16 with a scaler and in bfloat16 without one, the numbers are near those of float32."""
    skip_on_cuda_build()
    (tmp_path / "before.py").write_text(text)
    (tmp_path / "after.py").write_text(run_transform(RULE, text).after.decode())
    before, _ = run_on_fake_gpu(tmp_path / "before.py", capability=capability)
    after, _ = run_on_fake_gpu(tmp_path / "after.py", capability=capability)
    assert after != before
    assert [float(line) for line in after.split()] == pytest.approx([float(line) for line in before.split()], rel=0.05, abs=0.05)


AGENT_FILE = f"""\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(8, 3)

    def forward(self, x):
        return self.layers(x)


{AGENT}"""
MAIN_FILE = """\
import agent
import torch


def play(player, batches):
    for x, y in batches:
        player.learn(x, y)
        {beside}


if __name__ == "__main__":
    play(getattr(agent, "Agent")(torch.device("cuda" if torch.cuda.is_available() else "cpu")), [])
"""


@pytest.mark.parametrize(
    ("beside", "outcome"),
    [
        pytest.param(("pass", "x.sum().backward()"), Outcome.CHANGED, id="in another"),
        pytest.param(("x.sum().backward()", "pass"), Outcome.CLEAN, id="in its own"),
    ],
)
def test_programs_of_one_project_do_not_disturb_each_other(beside: tuple[str, str], outcome: Outcome) -> None:
    """Each has a class and a loop of the same names; what goes backward beside a step counts in the step's own program."""
    texts = {f"{folder}/main.py": MAIN_FILE.format(beside=line) for folder, line in zip(("one", "two"), beside)}
    texts |= {f"{folder}/agent.py": AGENT_FILE.partition("    def fit")[0] for folder in ("one", "two")}
    assert run_on_program(RULE, texts)["one/agent.py"].outcome is outcome
