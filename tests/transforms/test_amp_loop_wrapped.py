"""amp-loop where the optimizer steps in a method of an object that holds it, as schedules do that are older than torch's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.running import ROOT, run_on_cpu, run_on_fake_gpu, skip_on_cuda_build
from torchfix.testing import check_held, check_noop, check_program, check_transformed, run_on_program

RULE = "amp-loop"
RECORDING = ROOT / "tests" / "recording.py"

HEAD = """\
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(3)
batches = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(6)]


"""
SCHEDULE = """\
class ScheduledOptim:
    def __init__(self, optimizer, warmup):
        self._optimizer = optimizer
        self.warmup = warmup
        self.n_steps = 0

    def step_and_update_lr(self):
        "Step with the inner optimizer"
        self._update_learning_rate()
        self._optimizer.step()

    def zero_grad(self):
        "Zero out the gradients with the inner optimizer"
        self._optimizer.zero_grad()

    def _update_learning_rate(self):
        self.n_steps += 1
        for group in self._optimizer.param_groups:
            group["lr"] = 0.2 * min(self.n_steps**-0.5, self.n_steps * self.warmup**-1.5)
"""
SCHEDULE_AFTER = SCHEDULE.replace("step_and_update_lr(self)", "step_and_update_lr(self, scaler)").replace(
    "self._optimizer.step()", "scaler.step(self._optimizer)"
)
TRAINING = """\


def train_epoch(model, optimizer, criterion):
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step_and_update_lr()
        print(repr(loss.item()))


def main():
    model = nn.Linear(8, 3).to(device)
    optimizer = ScheduledOptim(torch.optim.Adam(model.parameters(), betas=(0.9, 0.98)), 4)
    train_epoch(model, optimizer, nn.CrossEntropyLoss())


main()
"""
TRAINING_AFTER = """\


def train_epoch(model, optimizer, criterion, scaler):
    use_amp = device.type == "cuda"
    amp_dtype = torch.bfloat16 if use_amp and not scaler.is_enabled() else torch.float16
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer._optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step_and_update_lr(scaler=scaler)
        scaler.update()
        print(repr(loss.item()))


def main():
    model = nn.Linear(8, 3).to(device)
    optimizer = ScheduledOptim(torch.optim.Adam(model.parameters(), betas=(0.9, 0.98)), 4)
    scaler = torch.amp.GradScaler("cuda", enabled=device.type == "cuda" and torch.cuda.get_device_capability()[0] < 8)
    train_epoch(model, optimizer, nn.CrossEntropyLoss(), scaler=scaler)


main()
"""
BEFORE = HEAD + SCHEDULE + TRAINING
AFTER = HEAD + SCHEDULE_AFTER + TRAINING_AFTER

TRAINER = """\


class Trainer:
    def __init__(self, model):
        self.model = model.to(device)
        self.optim = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.schedule = ScheduledOptim(self.optim, 4)

    def iteration(self):
        for x, y in batches:
            loss = nn.functional.cross_entropy(self.model(x.to(device)), y.to(device))
            self.schedule.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
            self.schedule.step_and_update_lr()
            print(repr(loss.item()))


Trainer(nn.Linear(8, 3)).iteration()
"""

# The wrapper makes the optimizer itself, and comes out of a function with the network, in files of their own.
OPTIMIZER = """\
import torch


class ScheduledOptim:
    def __init__(self, model, current_step):
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        self.current_step = current_step

    def step_and_update_lr(self):
        self.current_step += 1
        for group in self._optimizer.param_groups:
            group["lr"] = 0.2 * self.current_step**-0.5
        self._optimizer.step()

    def zero_grad(self):
        self._optimizer.zero_grad()

    def load_state_dict(self, state):
        self._optimizer.load_state_dict(state)
"""
MODEL = """\
import os

import torch
from torch import nn

from optimizer import ScheduledOptim


def get_model(device, train=False):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
    if train:
        optimizer = ScheduledOptim(model, 0)
        if os.path.exists("last.pt"):
            optimizer.load_state_dict(torch.load("last.pt")["optimizer"])
        model.train()
        return model, optimizer
    model.eval()
    return model
"""
MAIN = """\
import torch
from torch import nn

from model import get_model

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main():
    torch.manual_seed(3)
    batches = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(6)]
    model, optimizer = get_model(device, train=True)
    model = nn.DataParallel(model)
    step = 1
    for x, y in batches:
        output = model(x.to(device))
        loss = nn.functional.cross_entropy(output, y.to(device)) / 2
        loss.backward()
        if step % 2 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step_and_update_lr()
            optimizer.zero_grad()
        print(repr(loss.item()))
        step += 1
    torch.save({"optimizer": optimizer._optimizer.state_dict()}, "last.pt")


main()
"""
MAIN_AFTER = """\
import torch
from torch import nn

from model import get_model

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main():
    torch.manual_seed(3)
    batches = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(6)]
    model, optimizer = get_model(device, train=True)
    use_amp = device.type == "cuda"
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    model = nn.DataParallel(model)
    step = 1
    for x, y in batches:
        with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
            output = model(x.to(device))
            loss = nn.functional.cross_entropy(output, y.to(device)) / 2
        scaler.scale(loss).backward()
        if step % 2 == 0:
            scaler.unscale_(optimizer._optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step_and_update_lr(scaler=scaler)
            scaler.update()
            optimizer.zero_grad()
        print(repr(loss.item()))
        step += 1
    torch.save({"optimizer": optimizer._optimizer.state_dict(), "scaler": scaler.state_dict()}, "last.pt")


main()
"""
PROGRAM = {"main.py": MAIN, "model.py": MODEL, "optimizer.py": OPTIMIZER}
PROGRAM_AFTER = {
    "main.py": MAIN_AFTER,
    "model.py": MODEL,
    "optimizer.py": OPTIMIZER.replace("lr(self)", "lr(self, scaler)").replace("self._optimizer.step()", "scaler.step(self._optimizer)"),
}


def test_a_wrapper_through_which_a_scaler_already_steps_is_left() -> None:
    """The loop scales its loss."""
    check_noop(RULE, AFTER)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        pytest.param(
            "        self._optimizer.step()",
            "        if self.n_steps % 2:\n            self._optimizer.step()",
            "under a condition",
            id="condition",
        ),
        pytest.param("        self._optimizer.step()", "        self._optimizer.step()\n" * 2, "steps more than once", id="twice"),
        pytest.param("\n\nmain()\n", "\n\nmain()\nScheduledOptim.step_and_update_lr\n", "may have callers", id="handed on"),
        pytest.param(
            "    train_epoch(model",
            "    optimizer.step_and_update_lr()\n    train_epoch(model",
            "step_and_update_lr (line 15 of train.py), which steps, is also called on line 44 of train.py",
            id="another caller",
        ),
    ],
)
def test_what_is_more_than_a_plain_step_is_held(old: str, new: str, words: str) -> None:
    """The words name the method and its line."""
    note = check_held(RULE, BEFORE.replace(old, new), "step-elsewhere")
    assert note.reason is not None
    assert words in note.reason.text


def test_a_wrapper_that_does_not_clear_its_optimizer_is_held() -> None:
    """Its ``zero_grad`` is one by name only."""
    check_held(RULE, BEFORE.replace("self._optimizer.zero_grad()", "pass"), "gradients-kept")


def test_clipping_before_an_optimizer_that_the_loop_cannot_name_is_held() -> None:
    """Its name begins with two underscores."""
    check_held(RULE, BEFORE.replace("_optimizer", "__optimizer"), "gradients-read-elsewhere")


@pytest.mark.parametrize("base", ["torch.optim.Optimizer", "Base"])
def test_an_optimizer_of_the_projects_own_is_none_of_these(base: str) -> None:
    """A class that derives from torch's optimizers, and one whose optimizer is out of sight, steps as it likes."""
    text = BEFORE.replace("class ScheduledOptim:", f"class ScheduledOptim({base}):").replace("= optimizer\n", "= wrap(optimizer)\n")
    check_held(RULE, text, "step-elsewhere")


def test_an_optimizer_by_name_that_has_no_parameter_groups_is_held() -> None:
    """The scaler looks there for gradients."""
    text = BEFORE.replace("class ScheduledOptim:", "class ScheduledOptim(torch.optim.Optimizer):").replace("step_and_update_lr", "step")
    check_held(RULE, text, "optimizer-form")


def test_steps_in_both_branches_of_a_choice_are_one() -> None:
    """Clipping stands before the choice, and the scale is updated behind it."""
    frozen = "    def step_frozen(self, rate):\n        self._optimizer.step()\n\n    def zero_grad"
    plain = "        optimizer.step_and_update_lr()\n"
    scaled = "        optimizer.step_and_update_lr(scaler=scaler)\n"
    choice = "        if len(batches) > 9:\n            optimizer.step_frozen(0.1{0})\n        else:\n    {1}"
    before = BEFORE.replace("    def zero_grad", frozen).replace(plain, choice.format("", plain))
    after = AFTER.replace(
        "    def zero_grad", frozen.replace("rate)", "rate, scaler)").replace("self._optimizer.step()", "scaler.step(self._optimizer)")
    )
    check_transformed(RULE, before, after.replace(scaled, choice.format(", scaler=scaler", scaled)))


def test_the_method_steps_through_the_scaler_that_the_loop_hands_it() -> None:
    """Gradients are unscaled by the inner optimizer's name, and the scale is updated behind the call."""
    (note,) = check_transformed(RULE, BEFORE, AFTER)
    assert any("step_and_update_lr (line 15 of train.py) also moves the learning rate" in text for text in note.notes)


def test_a_method_that_moves_no_rate_needs_no_note() -> None:
    """A skipped step is a skipped step."""
    plain = BEFORE.replace("        self._update_learning_rate()\n", "")
    results = run_on_program(RULE, {"train.py": plain})
    (note,) = results["train.py"].notes
    assert not any("moves the learning rate" in text for text in note.notes)


def test_a_step_method_named_as_torch_names_it_takes_the_scaler_too() -> None:
    """``step()`` of a wrapper is no step of an optimizer, and other steps in the file are not its callers."""
    (note,) = check_transformed(RULE, BEFORE.replace("step_and_update_lr", "step"), AFTER.replace("step_and_update_lr", "step"))
    assert note.line


def test_gradients_cleared_through_the_inner_optimizer_or_behind_the_step_in_the_method_are_cleared() -> None:
    """Both say surely which gradients go."""
    inner = ("        optimizer.zero_grad()\n", "        optimizer._optimizer.zero_grad()\n")
    check_transformed(RULE, BEFORE.replace(*inner), AFTER.replace(*inner))
    ours = ("        self._optimizer.step()\n", "        self._optimizer.step()\n        self._optimizer.zero_grad()\n")
    theirs = ("        scaler.step(self._optimizer)\n", "        scaler.step(self._optimizer)\n        self._optimizer.zero_grad()\n")
    gone = ("        optimizer.zero_grad()\n", "")
    check_transformed(RULE, BEFORE.replace(*ours).replace(*gone), AFTER.replace(*theirs).replace(*gone))


def test_bfloat16_alone_leaves_the_wrapper_as_it_is() -> None:
    """Without a scaler nothing steps otherwise."""
    results = run_on_program(RULE, {"train.py": BEFORE}, dtype="bfloat16")
    text = results["train.py"].after.decode()
    assert SCHEDULE in text
    assert "optimizer.step_and_update_lr()" in text
    assert "torch.bfloat16" in text


def test_a_wrapper_that_comes_with_the_network_out_of_a_function_is_changed_in_its_own_file() -> None:
    """``get_model(train=True)`` returns both; its checkpoints gain the scaler's state and load as before."""
    notes = check_program(RULE, PROGRAM, PROGRAM_AFTER)
    assert any("DataParallel" in text for note in notes for text in note.notes)


def test_a_wrapper_beside_the_network_in_a_trainer() -> None:
    """The scaler is an attribute beside it, and goes to the method as an argument."""
    text = HEAD + SCHEDULE + TRAINER
    after = run_on_program(RULE, {"train.py": text})["train.py"].after.decode()
    assert "self.scaler = torch.amp.GradScaler" in after
    assert "self.schedule.step_and_update_lr(scaler=self.scaler)\n            self.scaler.update()" in after
    assert "self.scaler.unscale_(self.schedule._optimizer)" in after
    assert SCHEDULE_AFTER in after


OTHER = """\
import torch
from torch import nn

from schedule import ScheduledOptim

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(3)
batches = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(6)]
model = nn.Linear(8, 3).to(device)
optimizer = ScheduledOptim(torch.optim.Adam(model.parameters()), 4)
for x, y in batches:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step_and_update_lr()
    print(repr(loss.item()))
"""
SHARED = {"first.py": OTHER, "second.py": OTHER, "schedule.py": SCHEDULE}


def test_a_method_that_several_loops_call_takes_the_scaler_where_it_is_given_one() -> None:
    """Each loop is a finding of its own; the second finds the method ready, and so does one that cannot be scaled."""
    results = run_on_program(RULE, SHARED)
    schedule = results["schedule.py"].after.decode()
    assert "def step_and_update_lr(self, scaler=None):" in schedule
    assert (
        "        if scaler is None:\n            self._optimizer.step()\n        else:\n            scaler.step(self._optimizer)\n"
        in schedule
    )
    for name in ("first.py", "second.py"):
        after = results[name].after.decode()
        assert after.count("optimizer.step_and_update_lr(scaler=scaler)\n    scaler.update()\n") == 1
    after = {name: result.after.decode() for name, result in results.items()}
    assert {name: result.after.decode() for name, result in run_on_program(RULE, after).items()} == after
    cpu = {**SHARED, "second.py": OTHER.replace('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"')}
    results = run_on_program(RULE, cpu)
    assert results["second.py"].after.decode() == cpu["second.py"]
    assert results["schedule.py"].after.decode() == schedule


def test_a_loop_that_may_leave_gradients_to_another_one_is_held() -> None:
    """Where both run in one program, the other one would step with them under another scale, or none."""
    accumulated = OTHER.replace("    optimizer.zero_grad()\n", "").replace(
        "    optimizer.step_and_update_lr()\n",
        "    if x.sum() > 0:\n        optimizer.step_and_update_lr()\n        optimizer.zero_grad()\n",
    )
    apart = run_on_program(RULE, {**SHARED, "second.py": accumulated})
    assert [note.outcome for result in apart.values() for note in result.notes] == ["fixed", "fixed"]
    together = run_on_program(RULE, {**SHARED, "second.py": "import first\n" + accumulated})
    reasons = {note.reason.code for note in together["second.py"].notes if note.reason is not None}
    assert reasons == {"gradients-kept"}
    turned = run_on_program(RULE, {**SHARED, "first.py": accumulated, "second.py": "import first\n" + OTHER})
    assert {note.reason.code for note in turned["first.py"].notes if note.reason is not None} == {"gradients-kept"}


# What the rewritten programs do ---------------------------------------------------------------------------------------

PROGRAMS = {
    "one file": {"main.py": BEFORE},
    "a trainer": {"main.py": HEAD + SCHEDULE + TRAINER},
    "three files": PROGRAM,
    "two scripts": {"main.py": OTHER, "second.py": OTHER, "schedule.py": SCHEDULE},
}
CLIPPED = "scale backward unscale clip step update".split()
ORDER = {
    "one file": CLIPPED * 6,
    "a trainer": CLIPPED * 6,
    "three files": ["scale", "backward", *CLIPPED] * 3,
    "two scripts": "scale backward step update".split() * 6,
}


def laid(folder: Path, programs: Mapping[str, Mapping[str, str]]) -> str:
    """Programs on the disk, each in a folder of its own."""
    for name, texts in programs.items():
        (folder / name).mkdir(parents=True)
        for path, text in texts.items():
            (folder / name / path).write_text(text)
    return str(folder)


def rewritten() -> dict[str, dict[str, str]]:
    """What the rule makes of the programs."""
    results = {name: run_on_program(RULE, texts) for name, texts in PROGRAMS.items()}
    return {name: {path: result.after.decode() for path, result in found.items()} for name, found in results.items()}


def records(printed: str, kind: str) -> dict[str, dict[str, Any]]:
    """What the recorder saw of each program in a folder."""
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(printed)
    assert not {name: record["error"] for name, record in found[kind].items() if record["error"]}
    return found[kind]


def losses(record: Mapping[str, Any]) -> list[float]:
    return [float(line) for line in record["printed"].split()]


def test_without_cuda_they_train_as_before_to_the_last_bit(tmp_path: Path) -> None:
    """Autocast and scaler are switched off, and the calls come in the promised order."""
    printed = run_on_cpu(RECORDING, laid(tmp_path / "before", PROGRAMS), laid(tmp_path / "after", rewritten()))
    before, after = records(printed, "before"), records(printed, "after")
    for name, record in after.items():
        assert (record["printed"], record["parameters"]) == (before[name]["printed"], before[name]["parameters"])
        assert record["parameters"]
        assert record["calls"] == ORDER[name]


@pytest.mark.parametrize("capability", [None, "7.5"])
def test_in_half_precision_they_train_nearly_as_before(capability: str | None, tmp_path: Path) -> None:
    """In bfloat16 on the CPU and in float16 on a GPU, each with a scaler that is switched on."""
    before = records(run_on_cpu(RECORDING, laid(tmp_path / "before", PROGRAMS)), "before")
    home = laid(tmp_path / "after", rewritten())
    if capability is None:
        printed = run_on_cpu(RECORDING, "--bfloat16", home)
    else:
        skip_on_cuda_build()
        printed, _ = run_on_fake_gpu(RECORDING, home, capability=capability)
    for name, record in records(printed, "after").items():
        assert record["calls"] == ORDER[name]
        assert losses(record) == pytest.approx(losses(before[name]), rel=0.05)
        assert losses(record) != losses(before[name])
        assert all(finite and changed for finite, changed in record["steps"])
