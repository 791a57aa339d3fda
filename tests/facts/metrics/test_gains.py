"""What reading numbers behind the loop gains."""

from __future__ import annotations

import pytest

from tests.facts.reading import facts_of
from torchfix.facts import Facts

TEXT = """
import torch
from torch import nn
device = torch.device("cuda")
model = nn.Linear(3, 5).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(loader):
    total, losses, bar = 0.0, [], tqdm(loader)
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        outputs = model(x)
        loss = criterion(outputs, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        STEP
    return total, losses, len(loader)
"""


def facts(step: str) -> Facts:
    """The facts of a training loop."""
    return facts_of(
        TEXT.replace("STEP", step.replace("\n", "\n        ")).replace("import torch\n", "import torch\nfrom tqdm import tqdm\n", 1)
    )


def test_what_keeps_making_the_host_wait() -> None:
    """Readings other than those of the sums themselves stay."""
    here = facts("total += loss.item()\nprint(outputs.sum().item())")
    assert [item.lineno for item in here.gains.still_waiting(here.tree.loops[0])] == [20]


@pytest.mark.parametrize("step", ["unused = loss.item()", "value = loss.item()\nif i % 9 == 0:\n    print(value)"])
def test_what_an_iteration_can_do_without_makes_nobody_wait(step: str) -> None:
    """A reading that is made for nothing, or too early, does not count."""
    here = facts(f"total += loss.item()\n{step}")
    assert not here.gains.still_waiting(here.tree.loops[0])


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param("total += loss.item()", None, id="alone"),
        pytest.param("total += loss.item()\nprint(outputs.sum().item())", None, id="beside another reading"),
        pytest.param("total += loss.item()\nprint(loss.item())", "read-anyway", id="read behind"),
        pytest.param("print(loss.item())\ntotal += loss.item()", "read-anyway", id="read before"),
        pytest.param("if flag:\n    total += loss.item()\nprint(loss.item())", "read-anyway", id="read behind a branch"),
        pytest.param("total += float(loss)\nprint(loss.item())", "read-anyway", id="read by a method"),
        pytest.param("total += loss.item()\nprint(loss.detach())", "read-anyway", id="detached and printed"),
        pytest.param("total += loss.item()\nprint(f'{loss.detach():.3f}')", "read-anyway", id="detached in a text"),
        pytest.param("print(loss.data.cpu().numpy())\ntotal += loss.item()", "read-anyway", id="copied as an array"),
        pytest.param("value = loss.detach()\ntotal += value.item()\nprint(float(loss))", "read-anyway", id="detached into a variable"),
        pytest.param("value = loss.cpu()\nprint(loss)\ntotal += value.item()", "read-anyway", id="copied into a variable"),
        pytest.param("total += loss.item()\nvalue = loss.detach()\nprint(float(value))", "read-anyway", id="read through a variable"),
        pytest.param(
            "total += loss.item()\nvalue = loss.detach()\nvalue = -value\nprint(float(value))", None, id="a variable that changes"
        ),
        pytest.param("value = loss.detach().cpu()\ntotal += float(value)", None, id="its own copy"),
        pytest.param("value = loss.detach()\nloss = -loss\ntotal += value.item()\nprint(loss)", None, id="detached from another tensor"),
        pytest.param("total += float(loss)\nif i % 9 == 0:\n    print(loss.detach())", None, id="detached and printed now and then"),
        pytest.param("if flag:\n    total += loss.item()\nelse:\n    print(loss.item())", None, id="read in another branch"),
        pytest.param("total += loss.item()\nloss = -loss\nprint(loss.item())", None, id="another tensor of the name"),
        pytest.param("total += loss.item() + outputs.sum().item()\nprint(loss.item())", None, id="one number of two"),
        pytest.param("total += loss.item()\nbar.set_postfix(a=total, b=loss.item())", None, id="in a display that is drawn less often"),
        pytest.param(
            "total += loss.item()\nbar.set_postfix(a=total)\nprint(outputs.sum().item())", "still-waiting", id="a display for nothing"
        ),
    ],
)
def test_sums(step: str, expected: str | None) -> None:
    """A sum stays where each step reads its number anyway, and where a display would be drawn less often for nothing."""
    here = facts(step)
    obstacle = here.gains.of_sum(here.accumulators.all[0])
    assert (obstacle.code if obstacle is not None else None) == expected


def test_a_sum_that_stays_keeps_a_list_of_the_same_number() -> None:
    """What is read for the one is there for the other."""
    here = facts("total += loss.item()\nlosses.append(loss.item())\nbar.set_postfix(a=total)\nprint(outputs.sum().item())")
    assert [here.gains.of_sum(item).code for item in here.accumulators.all] == ["still-waiting"]  # type: ignore[union-attr]
    assert [here.gains.of_list(item).code for item in here.gatherings.all] == ["read-anyway"]  # type: ignore[union-attr]
    assert not any(map(here.gains.leaves, here.readings.all))


def test_readings_that_leave_the_loop() -> None:
    """Those of sums that can wait, and those of displays that show them."""
    here = facts("total += loss.item()\na = total / 2\nb = loss.item()\nbar.set_postfix(a=a, b=b)")
    assert [here.gains.leaves(reading) for reading in here.readings.all] == [True, True]
