"""unscale-before-clip: where gradients are read before they have their true size, and where nobody can tell."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.running import run_on_cpu
from torchfix import registry
from torchfix.testing import check_held, check_noop, check_transformed

RULE = "unscale-before-clip"
HEAD = """\
import torch
from torch import nn

torch.manual_seed(3)
model = nn.Linear(8, 3)
other = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
second = torch.optim.SGD(other.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def clip(parameters):
    nn.utils.clip_grad_norm_(parameters, 0.1)


def threshold():
    factor = scaler.get_scale()
    return 0.1 * factor


"""
STEP = """\
optimizer.zero_grad()
with torch.autocast("cuda"):
    loss = model(x).float().pow(2).mean()
scaler.scale(loss).backward()
nn.utils.clip_grad_norm_(model.parameters(), 0.1)
scaler.step(optimizer)
scaler.update()
"""
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 0.1)"
EVERY_SECOND = """\
scaler.scale(model(x).mean()).backward()
if i % 2:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
OPTIONAL = """\
loss = model(x).mean()
optimizer.zero_grad()
if scaler is not None:
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
else:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
"""
TWO = """\
optimizer.zero_grad()
second.zero_grad()
scaler.scale(model(x).mean() + other(x).mean()).backward()
nn.utils.clip_grad_norm_(other.parameters(), 0.1)
scaler.step(optimizer)
scaler.step(second)
scaler.update()
"""


def program(step: str) -> str:
    """A loop with this body."""
    return f"{HEAD}for i, x in enumerate(torch.ones(8, 4, 8)):\n{indent(dedent(step), '    ')}"


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(STEP.replace("nn.utils", "scaler.unscale_(optimizer)\nnn.utils"), id="unscaled already"),
        pytest.param(STEP.replace("nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n", ""), id="nothing reads"),
        pytest.param(STEP.replace("scaler.scale(loss)", "loss").replace("scaler.step(optimizer)", "optimizer.step()"), id="no scaler"),
        pytest.param(
            STEP.replace("nn.utils.clip_grad_norm_(model.parameters(), 0.1)", "log(model.parameters())"), id="read by who knows what"
        ),
    ],
)
def test_leaves_loops_whose_gradients_have_their_size(step: str) -> None:
    """There is nothing to say."""
    check_noop(RULE, program(step))


READ_BEHIND = (
    "loss = model(x).mean()\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nprint(model.weight.grad.norm())\nscaler.update()"
)


def test_leaves_gradients_that_are_read_behind_the_step() -> None:
    """A step takes the factor out of them."""
    check_noop(RULE, program(READ_BEHIND))


def test_a_fused_step_leaves_the_factor_in_what_is_read_behind_it() -> None:
    """Its kernel divides on the way."""
    before = program(READ_BEHIND).replace("lr=0.1)", "lr=0.1, fused=True)", 1)
    check_transformed(RULE, before, before.replace("    scaler.step", "    scaler.unscale_(optimizer)\n    scaler.step"))


def test_leaves_a_scaler_that_is_switched_off() -> None:
    """It multiplies by nothing."""
    check_noop(RULE, program(STEP).replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)'))


@pytest.mark.parametrize(
    ("code", "step"),
    [
        pytest.param("scaled-by-hand", STEP.replace("0.1)", "0.1 * scaler.get_scale())"), id="trap: a threshold times the factor"),
        pytest.param("scaled-by-hand", STEP.replace("0.1)", "threshold())"), id="trap: the same in a function"),
        pytest.param(
            "scaled-by-hand",
            STEP.replace(
                "nn.utils", "inverse = 1.0 / scaler.get_scale()\nfor p in model.parameters():\n    p.grad.mul_(inverse)\nnn.utils"
            ),
            id="trap: gradients divided by hand",
        ),
        pytest.param(
            "gradients-read-elsewhere",
            EVERY_SECOND.replace("if i", "nn.utils.clip_grad_norm_(model.parameters(), 0.1)\nif i").replace(
                "    nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n", ""
            ),
            id="trap: clipping in every micro-step, where unscaling twice raises",
        ),
        pytest.param("clip-parameters", TWO.replace("other.parameters()", "mine"), id="trap: two optimizers and parameters out of sight"),
    ],
)
def test_holds_what_it_cannot_place(code: str, step: str) -> None:
    """The finding says what stands in the way."""
    check_held(RULE, program(step), code)


def test_the_documented_example_becomes_what_it_says() -> None:
    """Before and after of the rule's own text."""
    rule = registry.find(RULE)
    notes = check_transformed(rule, rule.before, rule.after)
    assert "threshold" in notes[0].notes[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(STEP, STEP.replace("nn.utils", "scaler.unscale_(optimizer)\nnn.utils"), id="plain"),
        pytest.param(EVERY_SECOND, EVERY_SECOND.replace("    nn.utils", "    scaler.unscale_(optimizer)\n    nn.utils"), id="accumulating"),
        pytest.param(TWO, TWO.replace("nn.utils", "scaler.unscale_(second)\nnn.utils"), id="the optimizer whose gradients they are"),
        pytest.param(
            STEP.replace("nn.utils.clip_grad_norm_(model.parameters(), 0.1)", "clip(model.parameters())"),
            STEP.replace("nn.utils.clip_grad_norm_(model.parameters(), 0.1)", "scaler.unscale_(optimizer)\nclip(model.parameters())"),
            id="trap: clipping in a helper",
        ),
        pytest.param(
            OPTIONAL, OPTIONAL.replace("    nn.utils", "    scaler.unscale_(optimizer)\n    nn.utils", 1), id="in the branch with a scaler"
        ),
        pytest.param(
            STEP.replace("scaler.update()", "before = scaler.get_scale()\nscaler.update()\nskipped = scaler.get_scale() < before"),
            STEP.replace("scaler.update()", "before = scaler.get_scale()\nscaler.update()\nskipped = scaler.get_scale() < before").replace(
                "nn.utils", "scaler.unscale_(optimizer)\nnn.utils"
            ),
            id="asking whether the scale fell",
        ),
    ],
)
def test_gradients_are_unscaled_before_their_first_reader(before: str, after: str) -> None:
    """In the branch that steps, once for each optimizer whose gradients are read."""
    texts = [program(step).replace('GradScaler("cuda")', 'GradScaler("cuda") if amp else None') for step in (before, after)]
    check_transformed(RULE, program(before), program(after))
    check_transformed(RULE, *(text.replace("torch.manual_seed(3)", "amp = True\ntorch.manual_seed(3)") for text in texts))


def test_f01_training_then_equals_the_run_without_a_scaler(tmp_path: Path) -> None:
    """With a scaler on the CPU and plain float32 the parameters are equal to the last bit; before they were not."""
    end = "print([p.tolist() for p in model.parameters()])\n"
    plain = (
        STEP.replace("scaler.scale(loss)", "loss").replace("scaler.step(optimizer)", "optimizer.step()").replace("scaler.update()\n", "")
    )
    rule = registry.find(RULE)
    (note,) = check_transformed(rule, program(STEP), program(STEP.replace("nn.utils", "scaler.unscale_(optimizer)\nnn.utils")))
    assert note.line
    texts = {"plain": plain, "before": STEP, "after": STEP.replace("nn.utils", "scaler.unscale_(optimizer)\nnn.utils")}
    printed = {}
    for name, step in texts.items():
        path = tmp_path / f"{name}.py"
        path.write_text(program(step).replace('autocast("cuda")', 'autocast("cpu", enabled=False)').replace('"cuda"', '"cpu"') + end)
        printed[name] = run_on_cpu(path)
    assert printed["after"] == printed["plain"]
    assert printed["before"] != printed["plain"]
