"""sync-in-loop: what is read from the device on each iteration, which reads are saved, and which are held with what to do."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.result import Outcome
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "sync-in-loop"
HEAD = """\
import math
import time
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
writer = SummaryWriter()


def train(data, meter, bar, rank, verbose, environment):
    model = nn.Linear(2, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data)
    total, losses, seen = 0.0, [], []
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        output = model(x)
        loss = F.cross_entropy(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def program(lines: str, head: str = HEAD) -> str:
    """A training loop with some lines at the end of its body."""
    return head + indent(lines, "        ") + "\n"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("pass", id="nothing"),
        pytest.param("if step % 100 == 0:\n    print(loss.item())", id="every hundredth step"),
        pytest.param("if rank == 0 and step % 10 == 0:\n    print(loss.item())", id="first process, now and then"),
        pytest.param("if rank == 0:\n    print(loss.item())", id="first process"),
        pytest.param("total += loss.item()", id="sum, for metric-on-device"),
        pytest.param("losses.append(loss.item())", id="list, for metric-on-device"),
        pytest.param("total += loss.item()\nlosses.append(loss.item())", id="sum and list, for metric-on-device"),
        pytest.param("value = loss.item()\ntotal += value", id="sum of a variable, for metric-on-device"),
        pytest.param("value = loss.item()\nmeter.total += value", id="held by metric-on-device"),
        pytest.param("total += loss.item()\nif step % 9 == 0:\n    print(loss.item())", id="sum, and a print now and then"),
        pytest.param("seen.append(output.detach().cpu().numpy())", id="predictions are collected on the host"),
        pytest.param("guess = output.cpu().numpy()\nseen = np.append(seen, guess)", id="predictions are collected in an array"),
        pytest.param("environment.step(output.argmax().item())", id="the environment needs the action"),
        pytest.param("action = output.cpu().numpy()\nenvironment.step(action)", id="the environment needs the actions"),
        pytest.param("print(step, x.shape, len(x), x.size(0))", id="the host knows"),
    ],
)
def test_left_alone(lines: str) -> None:
    """Guarded reads, what another rule answers for, and what the host must have yield nothing."""
    check_noop(RULE, program(lines))


def test_reads_behind_the_loop_are_left_alone() -> None:
    """Once an epoch is rare enough."""
    check_noop(RULE, HEAD + "    print(loss.item())\n")


def test_programs_for_the_cpu_are_left_alone() -> None:
    """On the host no read waits."""
    head = HEAD.replace('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"')
    check_noop(RULE, program("print(loss.item())\nprint(loss.item())", head))


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        pytest.param("if loss > 3:\n    break", "control-flow", id="F49 stops by the value"),
        pytest.param("if math.isnan(loss.item()):\n    break", "control-flow", id="F49 stops at a NaN"),
        pytest.param("value = loss.item()\nif not math.isfinite(value):\n    break", "control-flow", id="F49 through a variable"),
        pytest.param("assert y.min() >= 0 and y.max() < 3", "control-flow", id="assertion"),
        pytest.param("while loss.item() > 1:\n    pass", "control-flow", id="inner loop"),
        pytest.param("print(step, loss)", "logged-each-step", id="print"),
        pytest.param("print(f'{step} {loss.item():.3f}')", "logged-each-step", id="f-string"),
        pytest.param("bar.set_postfix(loss=loss.item())", "logged-each-step", id="progress bar"),
        pytest.param("writer.add_scalar('loss', loss, step)", "logged-each-step", id="writer"),
        pytest.param("text = '%d %.3f' % (step, loss.item())\nprint(text)", "logged-each-step", id="text"),
        pytest.param("meter.update(loss.item(), x.size(0))", "used-on-host", id="meter"),
        pytest.param("meter.update(output.argmax(1).cpu().numpy())", "used-on-host", id="confusion matrix"),
        pytest.param("where = torch.nonzero(output > 0)", "size-by-values", id="size"),
        pytest.param("torch.cuda.synchronize()", "synchronize", id="synchronize"),
        pytest.param("torch.cuda.synchronize()\nseen.append(time.time())", "timed", id="clock"),
    ],
)
def test_held(lines: str, code: str) -> None:
    """What is needed on each iteration is held, with what its author can do."""
    note = check_held(RULE, program(lines), code)
    assert note.reason is not None
    assert note.reason.help


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("print(loss.item())\nloss = loss / 2\nprint(loss.item())", id="bound anew"),
        pytest.param("print(loss.item())\nloss *= 2\nprint(loss.item())", id="scaled in place"),
        pytest.param("print(loss.item())\ntorch.distributed.all_reduce(loss)\nprint(loss.item())", id="averaged over processes"),
        pytest.param("print(loss.item())\nmeter(loss)\nprint(loss.item())", id="given to unknown code"),
        pytest.param("print(model.weight.sum().item())\noptimizer.step()\nprint(model.weight.sum().item())", id="weights"),
        pytest.param("if verbose:\n    print(loss.item())\nprint(loss.item())", id="the first one may not happen"),
        pytest.param("while loss.item() > 3:\n    print(loss.item())", id="asked again and again"),
    ],
)
def test_reads_that_may_differ_are_not_merged(lines: str) -> None:
    """Two reads of a value that may change in between stay two."""
    assert run_transform(RULE, program(lines)).outcome is Outcome.CLEAN


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "print(loss.item())\nmeter.update(loss.item())",
            "loss_value = loss.item()\nprint(loss_value)\nmeter.update(loss_value)",
            id="two statements",
        ),
        pytest.param(
            "total += loss.item()\nwriter.add_scalar('loss', loss.item(), step)\nbar.set_postfix(loss=loss.item())",
            "loss_value = loss.item()\ntotal += loss_value\nwriter.add_scalar('loss', loss_value, step)\nbar.set_postfix(loss=loss_value)",
            id="F49 three statements, one of them a sum",
        ),
        pytest.param(
            "meter.total += loss.item()\nmeter.all.append(loss.item())",
            "loss_value = loss.item()\nmeter.total += loss_value\nmeter.all.append(loss_value)",
            id="gathered twice, out of reach of metric-on-device",
        ),
        pytest.param("print(loss.item(), loss.item())", "loss_value = loss.item()\nprint(loss_value, loss_value)", id="one statement"),
        pytest.param("value = loss.item()\nprint(loss.item())", "value = loss.item()\nprint(value)", id="read into a variable"),
        pytest.param(
            "if loss.item() > 3:\n    print(loss.item())\nmeter.update(loss.item())",
            "loss_value = loss.item()\nif loss_value > 3:\n    print(loss.item())\nmeter.update(loss_value)",
            id="in a condition; what it guards stays",
        ),
        pytest.param(
            "print(float((output.argmax(1) == y).sum()))\nmeter.update(float((output.argmax(1) == y).sum()))",
            "value = float((output.argmax(1) == y).sum())\nprint(value)\nmeter.update(value)",
            id="hits",
        ),
    ],
)
def test_a_value_is_read_once(before: str, after: str) -> None:
    """What one iteration reads several times is read once, into a variable that keeps its number."""
    check_transformed(RULE, program(before), program(after))


def test_two_values_get_two_names() -> None:
    """The name of the variable tells what was read."""
    before = "other = loss / 2\nprint(loss.item(), other.item())\nmeter.update(loss.item(), other.item())"
    after = """\
other = loss / 2
loss_value = loss.item()
other_value = other.item()
print(loss_value, other_value)
meter.update(loss_value, other_value)"""
    check_transformed(RULE, program(before), program(after))


def test_a_name_that_is_taken_is_not_used() -> None:
    """A new variable hides none of the program's own."""
    before = "loss_value = 3\nprint(loss.item())\nmeter.update(loss.item(), loss_value)"
    after = "loss_value = 3\nloss_number = loss.item()\nprint(loss_number)\nmeter.update(loss_number, loss_value)"
    check_transformed(RULE, program(before), program(after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("print(f'{loss.item():.3f} of {step}')", "print(f'{loss_value:.3f} of {step}')", id="with a format"),
        pytest.param("print(f'{loss.item()} {loss.item()}')", "print(f'{loss_value} {loss_value}')", id="twice"),
        pytest.param("print('step' f'{loss.item()}')", "print('step' f'{loss_value}')", id="behind another string"),
    ],
)
def test_a_repetition_inside_an_f_string(before: str, after: str) -> None:
    """The string is written anew, with the variable in it."""
    check_transformed(
        RULE, program(f"meter.update(loss.item())\n{before}"), program(f"loss_value = loss.item()\nmeter.update(loss_value)\n{after}")
    )


def test_a_first_reading_inside_an_f_string() -> None:
    """It gets its name in front of the statement."""
    before, after = "print(f'{loss.item():.3f}')\nmeter.update(loss.item())", "print(f'{loss_value:.3f}')\nmeter.update(loss_value)"
    check_transformed(RULE, program(before), program(f"loss_value = loss.item()\n{after}"))


@pytest.mark.parametrize("text", ["f'{loss.item()=}'", "f'loss.item() {loss.item()}'"])
def test_a_repetition_inside_an_f_string_that_shows_its_own_code_is_held(text: str) -> None:
    """The string would show other words."""
    check_held(RULE, program(f"meter.update(loss.item())\nprint({text})"), "inside-f-string")


def test_an_expression_over_several_lines_is_held() -> None:
    """A new statement of several lines would depend on the brackets around the old one."""
    read = "float((output.argmax(1)\n    == y).sum())"
    check_held(RULE, program(f"print({read})\nmeter.update({read})"), "spread-lines")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "value = loss.item()\nif step % 100 == 0:\n    print(value)",
            "if step % 100 == 0:\n    value = loss.item()\n    print(value)",
            id="one use",
        ),
        pytest.param(
            "value = round(loss.item(), 3)\nlate = step % 10 == 9\nif late:\n    print(step)\n    print(value)\n    meter(value)",
            "late = step % 10 == 9\nif late:\n    print(step)\n    value = round(loss.item(), 3)\n    print(value)\n    meter(value)",
            id="several uses",
        ),
    ],
)
def test_a_value_that_is_needed_now_and_then_is_read_then(before: str, after: str) -> None:
    """The read moves under the guard in front of its first use."""
    check_transformed(RULE, program(before), program(after))


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("value = loss.item()\nif step % 10 == 0:\n    print(value)\nelse:\n    meter(value)", id="used in both branches"),
        pytest.param("value = loss.item()\nif step % 10 == 0:\n    print(value)\nmeter.update(value)", id="used behind the guard"),
        pytest.param("value = loss.item()\nif value > 3 and step % 10 == 0:\n    print(value)", id="used by the guard"),
        pytest.param("value = loss.item()\nloss = loss / 2\nif step % 10 == 0:\n    print(value)", id="the value changes before the guard"),
        pytest.param("value = loss.item()\ndel loss\nif step % 10 == 0:\n    print(value)", id="the tensor is deleted"),
        pytest.param("value = 0\nvalue = loss.item()\nif step % 10 == 0:\n    print(value)", id="a variable with another value too"),
        pytest.param("value = loss.item()\nif step % 10 == 0:\n    seen.append(lambda: value)", id="used later by a function"),
    ],
)
def test_reads_that_cannot_move_stay(lines: str) -> None:
    """A read that something else needs, or that would give another value later, stays where it is."""
    assert run_transform(RULE, program(lines)).outcome is Outcome.CLEAN


def test_a_value_that_is_read_behind_the_loop_stays() -> None:
    """The value of the last iteration must be there."""
    text = program("value = loss.item()\nif step % 10 == 0:\n    print(value)") + "    return value\n"
    assert run_transform(RULE, text).outcome is Outcome.CLEAN


@pytest.mark.parametrize("line", ["loss.item()", "value = loss.item()", "guess = output.argmax(1).cpu()"])
def test_a_value_that_nobody_uses_is_not_read(line: str) -> None:
    """Reading changes nothing."""
    check_transformed(RULE, program(f"{line}\nprint(step)"), program("print(step)"))


def test_a_read_beside_a_clock_is_left() -> None:
    """It may be there to wait."""
    assert run_transform(RULE, program("loss.item()\nseen.append(time.time())")).outcome is Outcome.CLEAN


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("n = (output.argmax(1) == y).cpu().sum()", "n = (output.argmax(1) == y).sum().cpu()", id="comparison"),
        pytest.param("n = output.argmax(1).eq(y).cpu().sum()", "n = output.argmax(1).eq(y).sum().cpu()", id="method"),
        pytest.param("n = output.argmax(1).eq(y).cpu().sum().item()", "n = output.argmax(1).eq(y).sum().item()", id="read at once"),
        pytest.param("n = int((output > 0).cpu().sum())", "n = int((output > 0).sum())", id="converted at once"),
        pytest.param("n = (output > 0).cpu().any()", "n = (output > 0).any().cpu()", id="any"),
    ],
)
def test_hits_are_counted_on_the_device(before: str, after: str) -> None:
    """One number is copied instead of all truth values."""
    check_transformed(RULE, program(f"{before}\nmeter.update(n)"), program(f"{after}\nmeter.update(n)"))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("n = output.cpu().sum()", id="floats add up in another order"),
        pytest.param("n = (output > 0).cpu().float().mean()", id="a mean is rounded"),
        pytest.param("n = (output > 0).cpu().sum(dim=0)", id="several sums"),
    ],
)
def test_other_reductions_stay_on_the_host(line: str) -> None:
    """Only counts of truth values are sure to be the same everywhere."""
    assert run_transform(RULE, program(f"{line}\nmeter.update(n)")).outcome is Outcome.CLEAN


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.arange(48.0).reshape(24, 2) / 48, torch.arange(24) % 3)


def main():
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.arange(6.0).reshape(3, 2))
        model.bias.zero_()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for step, (x, y) in enumerate(DataLoader(data, batch_size=4)):
        x, y = x.to(device), y.to(device)
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        largest = output.max().item()
        unused = loss.item()
        history.append(str(loss.item()))
        print(step, loss.item())
        print((output.argmax(1) == y).cpu().sum().item())
        if step % 3 == 0:
            print(largest)
    print(history)


main()
"""


def test_rewritten_program_prints_the_same_and_waits_less(tmp_path: Path) -> None:
    """Before and after print the same numbers on the CPU and on the pretend GPU, which is waited for less often."""
    result = run_transform(RULE, SCRIPT)
    assert result.outcome is Outcome.CHANGED
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SCRIPT)
    after.write_bytes(result.after)
    assert run_on_cpu(before) == run_on_cpu(after)
    old, waited = run_on_fake_gpu(before)
    new, waits = run_on_fake_gpu(after)
    assert old == new
    assert waits["sync"] + waits["d2h"] < waited["sync"] + waited["d2h"]
    assert waits["d2h"] < waited["d2h"]


def test_example_of_the_rule() -> None:
    """The rule does to its Before what its After shows."""
    transform = registry.find(RULE)
    check_transformed(transform, transform.before, transform.after)
