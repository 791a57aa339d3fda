"""amp-loop where a network computes its activations again in the backward pass, or is compiled: autocast stays around the call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from tests.transforms.test_amp_loop_several import REGION, SET_UP
from torchfix.result import Outcome
from torchfix.testing import check_transformed, run_transform

RULE = "amp-loop"


def script(step: str, set_up: str = "", call: str = "checkpoint(self.first, x, use_reentrant=False)", wrapped: str = "net") -> str:
    """A script whose network has two stages, of which ``call`` runs the first; it prints its losses and weights with every digit."""
    return f"""\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.first = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        x = {call}
        return self.last(x)


def batches():
    generator = torch.Generator().manual_seed(5)
    for _ in range(6):
        yield torch.randn(4, 8, generator=generator), torch.randint(0, 3, (4,), generator=generator)


torch.manual_seed(3)
net = Net().to(device)
model = {wrapped}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
{set_up}for x, y in batches():
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad()
{step}    print(repr(loss.item()))
print(repr(sum(p.sum().item() for p in net.parameters())))
"""


BEFORE = """\
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
AFTER = f"""\
    {REGION}
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
CALLS = {
    "without reentrance": "checkpoint(self.first, x, use_reentrant=False)",
    "with reentrance": "checkpoint(self.first, x, use_reentrant=True)",
    "in segments": "checkpoint_sequential(self.first, 2, x, use_reentrant=False)",
}


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in CALLS.items()])
def test_stages_that_are_computed_again_keep_their_autocast(call: str) -> None:
    """Torch restores the state of autocast there, so that the region stands around the forward pass as ever."""
    check_transformed(RULE, script(BEFORE, call=call), script(AFTER, SET_UP, call=call))


def test_autocast_stays_outside_of_what_is_compiled() -> None:
    """The compiled network is called inside the region."""
    check_transformed(RULE, script(BEFORE, wrapped="torch.compile(net)"), script(AFTER, SET_UP, wrapped="torch.compile(net)"))


def after_of(text: str) -> str:
    """What the rule makes of a script."""
    result = run_transform(RULE, text)
    assert result.outcome is Outcome.CHANGED, [note.reason for note in result.notes]
    return result.after.decode()


def test_they_train_bit_for_bit_as_before_on_the_cpu(tmp_path: Path) -> None:
    """All of them in one run."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    scripts = [script(BEFORE, call=call) for call in CALLS.values()]
    before.write_text("".join(scripts))
    after.write_text("".join(map(after_of, scripts)))
    assert run_on_cpu(before) == run_on_cpu(after)


@pytest.mark.parametrize("capability", [pytest.param("7.5", id="float16"), pytest.param("8.0", id="bfloat16")])
def test_they_train_in_half_precision_on_a_gpu(capability: str, tmp_path: Path) -> None:
    """Close to float32, and no operator is banned, also while activations are computed again."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    scripts = [script(BEFORE, call=call) for call in CALLS.values()]
    before.write_text("".join(scripts))
    after.write_text("".join(map(after_of, scripts)).replace('Scaler("cuda", ', 'Scaler("cuda", init_scale=64.0, '))
    old, new = ([float(line) for line in run_on_fake_gpu(path, capability=capability)[0].split()] for path in (before, after))
    assert new == pytest.approx(old, rel=2e-2, abs=2e-2)
    assert new != old
