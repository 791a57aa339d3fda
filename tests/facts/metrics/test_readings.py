"""What makes the host wait for the device on each iteration of a loop, and what does not."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.metrics.readings import Way

TEXT = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(2, 1).to(device)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data)
writer = SummaryWriter()
losses = []
total = 0.0
for step, (x, y) in enumerate(loader):
    x, y = x.to(device), y.to(device)
    output = model(x)
    loss = criterion(output, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {}
"""


def found(lines: str) -> list[tuple[str, Way]]:
    """What waits in some lines at the end of a training loop's body."""
    facts = facts_of(TEXT.format(lines.replace("\n", "\n    ")))
    return [(facts.source.segment(reading.node), reading.way) for reading in facts.readings.all]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("print(step, x.shape, loss.dtype, output.size(0), len(x))", id="what is known without waiting"),
        pytest.param("if step % 10 == 0:\n    print(loss.item())", id="every tenth step"),
        pytest.param("if step == 0:\n    print(loss.item())", id="first step"),
        pytest.param("late = step % 10 == 9\nif late:\n    print(loss.item())", id="guard with a name"),
        pytest.param("if step % 10:\n    continue\nprint(loss.item())", id="skipped steps"),
        pytest.param("shown = loss.item() if step % 10 == 0 else None", id="conditional expression"),
        pytest.param("step % 10 == 0 and print(loss.item())", id="short circuit"),
        pytest.param("if rank == 0:\n    print(loss.item())", id="first process"),
        pytest.param("assert step >= 0, loss.item()", id="message of an assertion"),
        pytest.param("values = np.zeros(3)\nprint(values[0].item())", id="array"),
        pytest.param("if output is None or isinstance(output, tuple):\n    pass", id="tests that tell nothing of values"),
        pytest.param("kept = loss.detach()\nwriter.add_scalar('lr', 0.1, step)", id="nothing of the device"),
        pytest.param("show = lambda: loss.item()", id="function that is not called"),
    ],
)
def test_what_does_not_wait_on_each_iteration(lines: str) -> None:
    """Guarded reads and questions that the host answers by itself are no readings."""
    assert found(lines) == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param("print(loss.item())", [("loss.item()", Way.NUMBER)], id="item"),
        pytest.param("total += float(loss)", [("float(loss)", Way.NUMBER)], id="float"),
        pytest.param("a = output.cpu().numpy()", [("output.cpu()", Way.COPY)], id="copy once"),
        pytest.param("a = output.to('cpu')", [("output.to('cpu')", Way.COPY)], id="to the host"),
        pytest.param("a = output.detach().tolist()", [("output.detach().tolist()", Way.NUMBER)], id="list"),
        pytest.param("print(step, loss)", [("loss", Way.TEXT)], id="print"),
        pytest.param("text = f'{step} {loss:.3f}'", [("loss", Way.TEXT)], id="f-string"),
        pytest.param("text = '%d %.3f' % (step, loss)", [("loss", Way.TEXT)], id="percent"),
        pytest.param("text = '{} {}'.format(step, loss)", [("loss", Way.TEXT)], id="format"),
        pytest.param("if loss > 3:\n    break", [("loss > 3", Way.TRUTH)], id="if"),
        pytest.param("assert y.min() >= 0 and step < 5", [("y.min() >= 0", Way.TRUTH)], id="assert"),
        pytest.param("if not torch.isfinite(loss):\n    break", [("torch.isfinite(loss)", Way.TRUTH)], id="not"),
        pytest.param("writer.add_scalar('loss', loss, step)", [("loss", Way.LOG)], id="writer"),
        pytest.param("torch.cuda.synchronize()", [("torch.cuda.synchronize()", Way.WAIT)], id="synchronize"),
        pytest.param("where = torch.nonzero(output > 0)", [("torch.nonzero(output > 0)", Way.SIZE)], id="size by values"),
        pytest.param("for k in range(3):\n    print(output[k].item())", [("output[k].item()", Way.NUMBER)], id="inner loop"),
        pytest.param("with torch.no_grad():\n    a = (output - y).abs().mean().item()", [("(output - y).abs().mean().item()", Way.NUMBER)]),
        pytest.param("if verbose:\n    print(loss.item())", [("loss.item()", Way.NUMBER)], id="guard that never changes"),
    ],
)
def test_what_waits_on_each_iteration(lines: str, expected: list[tuple[str, Way]]) -> None:
    """Each place at which the host needs a value of the device is a reading, the innermost one of a chain."""
    assert found(lines) == expected


def test_programs_without_a_gpu_never_wait() -> None:
    """Where nothing goes to a device, all values are on the host already."""
    text = TEXT.replace(".to(device)", "").format("print(loss.item())")
    assert facts_of(text).readings.all == ()


FUNCTION = """
def report(value, step):
    print(value.item())


for x, y in loader:
    loss = criterion(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {}
"""


@pytest.mark.parametrize(
    ("call", "count"),
    [
        pytest.param("report(loss, 1)", 1, id="each step"),
        pytest.param("if step % 10 == 0:\n        report(loss, 1)", 0, id="some steps"),
        pytest.param("pass", 0, id="never"),
        pytest.param("report(loss, 1)\nreport(loss, 2)", 0, id="also elsewhere"),
    ],
)
def test_functions_read_as_often_as_they_are_called(call: str, count: int) -> None:
    """A read in a function counts where every call of it stands on a loop's every iteration."""
    text = TEXT.partition("losses = []")[0] + FUNCTION.format(call)
    assert len(facts_of(text).readings.all) == count


@pytest.mark.parametrize(
    ("line", "gathered"),
    [
        pytest.param("total += loss.item()", True, id="sum"),
        pytest.param("total += loss.item() * x.size(0)", True, id="weighted sum"),
        pytest.param("total = total + float(loss)", True, id="written out"),
        pytest.param("losses.append(loss.item())", True, id="list"),
        pytest.param("losses += [loss.item()]", True, id="list that is added"),
        pytest.param("print(loss.item())", False, id="print"),
        pytest.param("meter.update(loss.item())", False, id="meter"),
        pytest.param("value = loss.item()", False, id="variable"),
        pytest.param("total -= loss.item()", False, id="difference"),
    ],
)
def test_totals_and_lists_are_told_from_the_rest(line: str, gathered: bool) -> None:
    """Numbers that are only added up or collected could stay on the device."""
    facts = facts_of(TEXT.format(line))
    (reading,) = facts.readings.all
    assert facts.readings.is_gathered(reading) is gathered
