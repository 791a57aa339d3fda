"""amp-loop where an iteration has several losses or several optimizers: one scaler, a region for each loss, one look at the end."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix.result import Outcome
from torchfix.testing import check_held, check_transformed, run_transform

RULE = "amp-loop"
SET_UP = """\
use_amp = device.type == "cuda"
amp_dtype = torch.bfloat16 if use_amp and torch.cuda.get_device_capability()[0] >= 8 else torch.float16
scaler = torch.amp.GradScaler("cuda", enabled=use_amp and amp_dtype is torch.float16)
"""
REGION = 'with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):'


def script(step: str, set_up: str = "") -> str:
    """A script with two networks and an optimizer for each, which prints its losses and the weights with every digit."""
    return f"""\
import itertools

import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def batches():
    generator = torch.Generator().manual_seed(5)
    for _ in range(8):
        yield torch.randn(4, 8, generator=generator), torch.randint(0, 3, (4,), generator=generator)


torch.manual_seed(3)
netE = nn.Linear(8, 8).to(device)
netG = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
netD = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
criterion = nn.BCEWithLogitsLoss()
optE = torch.optim.SGD(netE.parameters(), lr=0.1)
optD = torch.optim.SGD(netD.parameters(), lr=0.1)
optG = torch.optim.SGD(netG.parameters(), lr=0.1)
{set_up}for i, (x, y) in enumerate(batches()):
    x, y = x.to(device), y.to(device)
    ones, zeros = torch.ones(4, 1, device=device), torch.zeros(4, 1, device=device)
{indent(step, "    ")}    print(repr(total.item()))
print(repr(sum(p.sum().item() for net in (netE, netG, netD) for p in net.parameters())))
"""


DCGAN = """\
netD.zero_grad()
errD_real = criterion(netD(x), ones)
errD_real.backward()
fake = netG(x)
errD_fake = criterion(netD(fake.detach()), zeros)
errD_fake.backward()
total = errD_real + errD_fake
optD.step()
netG.zero_grad()
errG = criterion(netD(fake), ones)
errG.backward()
optG.step()
"""
DCGAN_AFTER = """\
netD.zero_grad()
with autocast:
    errD_real = criterion(netD(x), ones)
scaler.scale(errD_real).backward()
with autocast:
    fake = netG(x)
    errD_fake = criterion(netD(fake.detach()), zeros)
scaler.scale(errD_fake).backward()
total = errD_real + errD_fake
scaler.step(optD)
netG.zero_grad()
with autocast:
    errG = criterion(netD(fake), ones)
scaler.scale(errG).backward()
scaler.step(optG)
scaler.update()
"""
EVERY_SECOND = """\
optD.zero_grad()
fake = netG(x)
total = F.mse_loss(netD(x), ones) + F.mse_loss(netD(fake.detach()), zeros)
total.backward()
torch.nn.utils.clip_grad_norm_(netD.parameters(), 1.0)
optD.step()
if i % 2 == 0:
    optG.zero_grad()
    lossG = F.mse_loss(netD(netG(x)), ones)
    lossG.backward()
    torch.nn.utils.clip_grad_norm_(netG.parameters(), 1.0)
    optG.step()
"""
EVERY_SECOND_AFTER = """\
optD.zero_grad()
with autocast:
    fake = netG(x)
    total = F.mse_loss(netD(x), ones) + F.mse_loss(netD(fake.detach()), zeros)
scaler.scale(total).backward()
scaler.unscale_(optD)
torch.nn.utils.clip_grad_norm_(netD.parameters(), 1.0)
scaler.step(optD)
if i % 2 == 0:
    optG.zero_grad()
    with autocast:
        lossG = F.mse_loss(netD(netG(x)), ones)
    scaler.scale(lossG).backward()
    scaler.unscale_(optG)
    torch.nn.utils.clip_grad_norm_(netG.parameters(), 1.0)
    scaler.step(optG)
scaler.update()
"""
ALTERNATING = """\
if i % 2 == 0:
    optD.zero_grad()
    total = F.mse_loss(netD(x), ones)
    total.backward()
    optD.step()
else:
    optG.zero_grad()
    total = F.mse_loss(netD(netG(x)), ones)
    total.backward()
    optG.step()
"""
ALTERNATING_AFTER = """\
if i % 2 == 0:
    optD.zero_grad()
    with autocast:
        total = F.mse_loss(netD(x), ones)
    scaler.scale(total).backward()
    scaler.step(optD)
    scaler.update()
else:
    optG.zero_grad()
    with autocast:
        total = F.mse_loss(netD(netG(x)), ones)
    scaler.scale(total).backward()
    scaler.step(optG)
    scaler.update()
"""
TOGETHER = """\
optG.zero_grad()
optD.zero_grad()
total = F.mse_loss(netD(netG(x)), ones)
total.backward()
torch.nn.utils.clip_grad_norm_(netG.parameters(), 1.0)
torch.nn.utils.clip_grad_norm_(netD.parameters(), 1.0)
optG.step()
optD.step()
"""
TOGETHER_AFTER = """\
optG.zero_grad()
optD.zero_grad()
with autocast:
    total = F.mse_loss(netD(netG(x)), ones)
scaler.scale(total).backward()
scaler.unscale_(optG)
torch.nn.utils.clip_grad_norm_(netG.parameters(), 1.0)
scaler.unscale_(optD)
torch.nn.utils.clip_grad_norm_(netD.parameters(), 1.0)
scaler.step(optG)
scaler.step(optD)
scaler.update()
"""
AT_ONCE = """\
optG.zero_grad()
optD.zero_grad()
total = F.mse_loss(netD(netG(x)), ones)
total.backward()
torch.nn.utils.clip_grad_norm_(itertools.chain(netG.parameters(), netD.parameters()), 1.0)
optG.step()
optD.step()
"""
AT_ONCE_AFTER = """\
optG.zero_grad()
optD.zero_grad()
with autocast:
    total = F.mse_loss(netD(netG(x)), ones)
scaler.scale(total).backward()
scaler.unscale_(optG)
scaler.unscale_(optD)
torch.nn.utils.clip_grad_norm_(itertools.chain(netG.parameters(), netD.parameters()), 1.0)
scaler.step(optG)
scaler.step(optD)
scaler.update()
"""
ACCUMULATING = """\
total = F.mse_loss(netD(netG(x)), ones) / 2
total.backward()
if (i + 1) % 2 == 0:
    torch.nn.utils.clip_grad_norm_([*netG.parameters(), *netD.parameters()], 1.0)
    optG.step()
    optD.step()
    optG.zero_grad()
    optD.zero_grad()
"""
ACCUMULATING_AFTER = """\
with autocast:
    total = F.mse_loss(netD(netG(x)), ones) / 2
scaler.scale(total).backward()
if (i + 1) % 2 == 0:
    scaler.unscale_(optG)
    scaler.unscale_(optD)
    torch.nn.utils.clip_grad_norm_([*netG.parameters(), *netD.parameters()], 1.0)
    scaler.step(optG)
    scaler.step(optD)
    scaler.update()
    optG.zero_grad()
    optD.zero_grad()
"""
TWO_LOSSES = """\
optG.zero_grad()
out = netG(x)
first = F.mse_loss(out, x)
first.backward(retain_graph=True)
total = F.l1_loss(out, -x)
total.backward()
optG.step()
"""
TWO_LOSSES_AFTER = """\
optG.zero_grad()
with autocast:
    out = netG(x)
    first = F.mse_loss(out, x)
scaler.scale(first).backward(retain_graph=True)
with autocast:
    total = F.l1_loss(out, -x)
scaler.scale(total).backward()
scaler.step(optG)
scaler.update()
"""
TWICE = """\
for part in x.split(2):
    optD.zero_grad()
    total = netD(part).sigmoid().mean()
    total.backward()
    optD.step()
    for p in netD.parameters():
        p.data.clamp_(-0.5, 0.5)
optG.zero_grad()
lossG = F.mse_loss(netD(netG(x)), ones)
lossG.backward()
optG.step()
"""
TWICE_AFTER = """\
for part in x.split(2):
    optD.zero_grad()
    with autocast:
        total = netD(part).float().sigmoid().mean()
    scaler.scale(total).backward()
    scaler.step(optD)
    scaler.update()
    for p in netD.parameters():
        p.data.clamp_(-0.5, 0.5)
optG.zero_grad()
with autocast:
    lossG = F.mse_loss(netD(netG(x)), ones)
scaler.scale(lossG).backward()
scaler.step(optG)
scaler.update()
"""
FROZEN = """\
for p in netD.parameters():
    p.requires_grad_(False)
optG.zero_grad()
fake = netG(x)
lossG = criterion(netD(fake), ones) + 10 * F.l1_loss(fake, x)
lossG.backward()
optG.step()
for p in netD.parameters():
    p.requires_grad_(True)
optD.zero_grad()
total = 0.5 * (criterion(netD(x), ones) + criterion(netD(fake.detach()), zeros))
total.backward()
optD.step()
"""
FROZEN_AFTER = """\
for p in netD.parameters():
    p.requires_grad_(False)
optG.zero_grad()
with autocast:
    fake = netG(x)
    lossG = criterion(netD(fake), ones) + 10 * F.l1_loss(fake, x)
scaler.scale(lossG).backward()
scaler.step(optG)
for p in netD.parameters():
    p.requires_grad_(True)
optD.zero_grad()
with autocast:
    total = 0.5 * (criterion(netD(x), ones) + criterion(netD(fake.detach()), zeros))
scaler.scale(total).backward()
scaler.step(optD)
scaler.update()
"""
CRITIC_FIRST = """\
value = netD(x)
critic_loss = F.mse_loss(value, ones)
optD.zero_grad()
critic_loss.backward()
optD.step()
advantage = (ones - value).detach()
total = (F.log_softmax(netG(x), 1)[:, :1] * -advantage).mean()
optG.zero_grad()
total.backward()
optG.step()
"""
CRITIC_FIRST_AFTER = """\
with autocast:
    value = netD(x).float()
    critic_loss = F.mse_loss(value, ones)
optD.zero_grad()
scaler.scale(critic_loss).backward()
scaler.step(optD)
advantage = (ones - value).detach()
with autocast:
    total = (F.log_softmax(netG(x), 1)[:, :1] * -advantage).mean()
optG.zero_grad()
scaler.scale(total).backward()
scaler.step(optG)
scaler.update()
"""
TASKS = """\
out = netG(x)
tasks = [F.cross_entropy(out, y), F.mse_loss(out, x), F.l1_loss(out, x)]
total = 0.2 * tasks[0] + 0.3 * tasks[1] + 0.5 * tasks[2]
optG.zero_grad()
total.backward()
optG.step()
"""
TASKS_AFTER = """\
with autocast:
    out = netG(x)
    tasks = [F.cross_entropy(out, y), F.mse_loss(out, x), F.l1_loss(out, x)]
total = 0.2 * tasks[0] + 0.3 * tasks[1] + 0.5 * tasks[2]
optG.zero_grad()
scaler.scale(total).backward()
scaler.step(optG)
scaler.update()
"""
AUTOENCODER = """\
optE.zero_grad()
optG.zero_grad()
code = netE(x)
lossE = F.mse_loss(netG(code), x) + 0.01 * F.l1_loss(code, torch.zeros_like(x))
lossE.backward()
optE.step()
optG.step()
optG.zero_grad()
lossG = criterion(netD(netG(code.detach())), ones)
lossG.backward()
optG.step()
optD.zero_grad()
total = criterion(netD(x), ones) + criterion(netD(netG(code.detach()).detach()), zeros)
total.backward()
optD.step()
"""
AUTOENCODER_AFTER = """\
optE.zero_grad()
optG.zero_grad()
with autocast:
    code = netE(x)
    lossE = F.mse_loss(netG(code), x) + 0.01 * F.l1_loss(code, torch.zeros_like(x))
scaler.scale(lossE).backward()
scaler.step(optE)
scaler.step(optG)
scaler.update()
optG.zero_grad()
with autocast:
    lossG = criterion(netD(netG(code.detach())), ones)
scaler.scale(lossG).backward()
scaler.step(optG)
scaler.update()
optD.zero_grad()
with autocast:
    total = criterion(netD(x), ones) + criterion(netD(netG(code.detach()).detach()), zeros)
scaler.scale(total).backward()
scaler.step(optD)
scaler.update()
"""
SHAPES = {
    "dcgan": (DCGAN, DCGAN_AFTER),
    "generator every second step": (EVERY_SECOND, EVERY_SECOND_AFTER),
    "alternating": (ALTERNATING, ALTERNATING_AFTER),
    "one loss for two": (TOGETHER, TOGETHER_AFTER),
    "both clipped at once": (AT_ONCE, AT_ONCE_AFTER),
    "accumulating for two": (ACCUMULATING, ACCUMULATING_AFTER),
    "two losses for one": (TWO_LOSSES, TWO_LOSSES_AFTER),
    "one steps in a loop of its own": (TWICE, TWICE_AFTER),
    "a critic that is frozen meanwhile": (FROZEN, FROZEN_AFTER),
    "actor and critic": (CRITIC_FIRST, CRITIC_FIRST_AFTER),
    "an autoencoder that also generates": (AUTOENCODER, AUTOENCODER_AFTER),
    "several tasks": (TASKS, TASKS_AFTER),
}


def after_of(text: str) -> str:
    """What the rule makes of a script."""
    result = run_transform(RULE, text)
    assert result.outcome is Outcome.CHANGED, [note.reason for note in result.notes]
    return result.after.decode()


@pytest.mark.parametrize(
    ("code", "step"),
    [
        pytest.param("gradients-kept", DCGAN.replace("netG.zero_grad()\n", ""), id="one that is never cleared"),
        pytest.param(
            "gradients-kept", TOGETHER.replace("optG.step()", "optG.step()\nif i == 5:\n    continue"), id="an iteration that is left"
        ),
        pytest.param(
            "conditional-backward",
            DCGAN.replace("errG.backward()", "if i % 2:\n    errG.backward()"),
            id="a step that may have no gradients",
        ),
        pytest.param(
            "gradients-kept", TOGETHER.replace("optG.zero_grad()", "if i % 2:\n    optG.zero_grad()"), id="one that is cleared at times"
        ),
        pytest.param("conditional-backward", TOGETHER.replace("netG(x)", "netG(x).detach()"), id="one that the loss does not reach"),
        pytest.param("conditional-backward", "netG.requires_grad_(i % 2 == 0)\n" + TOGETHER, id="one that is frozen at times"),
        pytest.param("clip-parameters", TOGETHER.replace("clip_grad_norm_(netG", "clip_grad_norm_(net"), id="clipping what is not seen"),
        pytest.param("closure", DCGAN.replace("optG.step()", "optG.step(lambda: errG)"), id="a closure in one of them"),
    ],
)
def test_holds_what_one_scaler_cannot_serve(code: str, step: str) -> None:
    """A scale may only change where no gradient of the old one is needed any more."""
    check_held(RULE, script(step), code)


@pytest.mark.parametrize(("step", "after"), [pytest.param(*shape, id=name) for name, shape in SHAPES.items()])
def test_each_loss_has_its_region_and_the_scaler_looks_once(step: str, after: str) -> None:
    """Each backward pass is scaled and each step goes through the one scaler, which is made behind the last optimizer."""
    check_transformed(RULE, script(step), script(after.replace("with autocast:", REGION), SET_UP))


def test_the_scripts_train_bit_for_bit_as_before_on_the_cpu(tmp_path: Path) -> None:
    """All shapes in one run each."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text("".join(script(step) for step, _ in SHAPES.values()))
    after.write_text("".join(after_of(script(step)) for step, _ in SHAPES.values()))
    assert run_on_cpu(before) == run_on_cpu(after)


def test_they_train_in_half_precision_on_a_gpu(tmp_path: Path) -> None:
    """Float16 with a scaler, whose first scale is small enough here to skip nothing: close to float32, no operator is banned."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text("".join(script(step) for step, _ in SHAPES.values()))
    after.write_text(
        "".join(after_of(script(step)) for step, _ in SHAPES.values()).replace('Scaler("cuda", ', 'Scaler("cuda", init_scale=64.0, ')
    )
    old, new = ([float(line) for line in run_on_fake_gpu(path, capability="7.5")[0].split()] for path in (before, after))
    assert new == pytest.approx(old, rel=2e-2, abs=2e-2)
    assert new != old


def on_the_cpu(text: str) -> str:
    """A rewritten script whose region computes in bfloat16 on the CPU, with its scaler switched on."""
    text = text.replace('use_amp = device.type == "cuda"', "use_amp = True").replace("torch.cuda.get_device_capability()[0] >= 8", "False")
    text = text.replace('torch.autocast("cuda", dtype=amp_dtype', 'torch.autocast("cpu", dtype=torch.bfloat16')
    return text.replace('GradScaler("cuda"', 'GradScaler("cpu"')


def test_the_structure_also_trains_in_bfloat16_on_the_cpu(tmp_path: Path) -> None:
    """With true scaling and unscaling each shape stays close to float32."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text("".join(script(step) for step, _ in SHAPES.values()))
    after.write_text("".join(on_the_cpu(after_of(script(step))) for step, _ in SHAPES.values()))
    old, new = ([float(line) for line in run_on_cpu(path).split()] for path in (before, after))
    assert new == pytest.approx(old, rel=3e-2, abs=3e-2)
    assert new != old


def test_an_infinite_loss_on_the_cpu_skips_the_steps_that_take_it(tmp_path: Path) -> None:
    """One loss for two optimizers: neither steps, and the scale is halved once."""
    text = on_the_cpu(after_of(script(TOGETHER))).replace("scaler.scale(total)", "scaler.scale(total * (float('inf') if i == 3 else 1.0))")
    shown = "print(scaler.get_scale(), netG[0].weight.sum().item(), netD[0].weight.sum().item())"
    path = tmp_path / "train.py"
    path.write_text(text.replace("    scaler.update()\n", f"    scaler.update()\n    {shown}\n"))
    rows = [line.split() for line in run_on_cpu(path).splitlines() if len(line.split()) == 3]
    assert [row[0] for row in rows[2:5]] == ["65536.0", "32768.0", "32768.0"]
    assert rows[3][1:] == rows[2][1:]
    assert rows[4][1] != rows[3][1]


def test_an_infinite_loss_of_one_network_leaves_only_that_one_alone(tmp_path: Path) -> None:
    """The other one steps; the scale is halved once."""
    text = after_of(script(DCGAN)).replace("scaler.scale(errG)", "scaler.scale(errG * (float('inf') if i == 3 else 1.0))")
    text = text.replace(
        "    scaler.update()\n",
        "    scaler.update()\n    print(scaler.get_scale(), netG[0].weight.sum().item(), netD[0].weight.sum().item())\n",
    )
    path = tmp_path / "train.py"
    path.write_text(text)
    rows = [line.split() for line in run_on_fake_gpu(path, capability="7.5")[0].splitlines() if len(line.split()) == 3]
    assert rows[2][0] == "65536.0"
    assert rows[3][0] == "32768.0"
    assert rows[3][1] == rows[2][1]
    assert rows[3][2] != rows[2][2]
