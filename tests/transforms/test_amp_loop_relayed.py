"""amp-loop where methods or functions send losses backward for the code that steps: adversaries in methods, and one helper."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tests.transforms.amp_runs import run_before_and_after
from torchfix.result import Outcome
from torchfix.testing import check_held, check_program, check_transformed, run_on_program, run_transform

RULE = "amp-loop"
HEAD = """\
import itertools

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self, wide):
        super().__init__()
        layers = [nn.Linear(8, 16), nn.ReLU()]
        layers += [nn.Linear(16, wide)]
        self.model = nn.Sequential(*layers)

    def forward(self, x):
        return self.model(x)


class GANLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("real", torch.tensor(1.0))
        self.register_buffer("fake", torch.tensor(0.0))
        self.loss = nn.MSELoss()

    def __call__(self, prediction, is_real):
        target = self.real if is_real else self.fake
        return self.loss(prediction, target.expand_as(prediction))


"""
OPTIMIZERS = """\
self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=0.01)
self.optimizer_D = torch.optim.Adam(itertools.chain(self.netD_A.parameters(), self.netD_B.parameters()), lr=0.01)
"""
SET_UP = """\
self.use_amp = device.type == "cuda"
self.amp_dtype = torch.bfloat16 if self.use_amp and torch.cuda.get_device_capability()[0] >= 8 else torch.float16
self.scaler = torch.amp.GradScaler("cuda", enabled=self.use_amp and self.amp_dtype is torch.float16)
"""
REGION = 'with torch.autocast("cuda", dtype=self.amp_dtype, enabled=self.use_amp):'
PARTS = """\
def set_input(self, a, b):
    self.real_A, self.real_B = a.to(device), b.to(device)

def set_requires_grad(self, nets, flag):
    for net in nets:
        for parameter in net.parameters():
            parameter.requires_grad = flag

"""
METHODS = """\
def forward(self):
    self.fake_B = self.netG(self.real_A)

def backward_D_basic(self, netD, real, fake):
    pred_real = netD(real)
    loss_real = self.criterion(pred_real, True)
    pred_fake = netD(fake.detach())
    loss_fake = self.criterion(pred_fake, False)
    loss = (loss_real + loss_fake) * 0.5
    loss.backward()
    return loss

def backward_D_A(self):
    self.loss_D_A = self.backward_D_basic(self.netD_A, self.real_B, self.fake_B)

def backward_D_B(self):
    self.loss_D_B = self.backward_D_basic(self.netD_B, self.real_A, self.fake_B)

def backward_G(self):
    self.loss_A = self.criterion(self.netD_A(self.fake_B), True)
    self.loss_L1 = nn.functional.l1_loss(self.fake_B, self.real_B) * 10.0
    self.loss_G = self.loss_A + self.loss_L1
    self.loss_G.backward()
"""
METHODS_AFTER = """\
def forward(self):
    with autocast:
        self.fake_B = self.netG(self.real_A).float()

def backward_D_basic(self, netD, real, fake):
    with autocast:
        pred_real = netD(real).float()
    loss_real = self.criterion(pred_real, True)
    with autocast:
        pred_fake = netD(fake.detach()).float()
    loss_fake = self.criterion(pred_fake, False)
    loss = (loss_real + loss_fake) * 0.5
    self.scaler.scale(loss).backward()
    return loss

def backward_D_A(self):
    self.loss_D_A = self.backward_D_basic(self.netD_A, self.real_B, self.fake_B)

def backward_D_B(self):
    self.loss_D_B = self.backward_D_basic(self.netD_B, self.real_A, self.fake_B)

def backward_G(self):
    with autocast:
        self.loss_A = self.criterion(self.netD_A(self.fake_B).float(), True)
    self.loss_L1 = nn.functional.l1_loss(self.fake_B, self.real_B) * 10.0
    self.loss_G = self.loss_A + self.loss_L1
    self.scaler.scale(self.loss_G).backward()
"""
STEP = """\
self.forward()
self.set_requires_grad([self.netD_A, self.netD_B], False)
self.optimizer_G.zero_grad()
self.backward_G()
self.optimizer_G.step()
self.set_requires_grad([self.netD_A, self.netD_B], True)
self.optimizer_D.zero_grad()
self.backward_D_A()
self.backward_D_B()
self.optimizer_D.step()
"""
STEP_AFTER = (
    STEP.replace("self.optimizer_G.step()", "self.scaler.step(self.optimizer_G)").replace(
        "self.optimizer_D.step()", "self.scaler.step(self.optimizer_D)"
    )
    + "self.scaler.update()\n"
)
RUN = """\
torch.manual_seed(0)
gan = Adversaries()
for _ in range(4):
    gan.set_input(torch.randn(4, 8), torch.randn(4, 8))
    gan.optimize_parameters()
    print(repr(gan.loss_G.item()), repr(gan.loss_D_A.item()), repr(gan.loss_D_B.item()))
"""


def adversaries(methods: str = METHODS, step: str = STEP, *, set_up: str = "", run: str = RUN) -> str:
    """A class of adversaries with these methods, and a loop that trains one."""
    made = "self.netG = Net(8).to(device)\nif is_train:\n"
    trained = "self.netD_A, self.netD_B = Net(1).to(device), Net(1).to(device)\nself.criterion = GANLoss().to(device)\n" + OPTIMIZERS
    start = f"    def __init__(self, is_train=True):\n{indent(made + indent(trained, '    ') + set_up, '        ')}\n"
    body = indent(f"{PARTS}{methods}\ndef optimize_parameters(self):\n{indent(step, '    ')}", "    ")
    return f"{HEAD}class Adversaries:\n{start}{body}\n\n{run}"


AFTER = adversaries(METHODS_AFTER.replace("with autocast:", REGION), STEP_AFTER, set_up=SET_UP)

HELPER = """\
def send(loss, parts):
    (loss / parts).backward()


"""
LOOP = """\
for _ in range(4):
    x, y = torch.randn(4, 8).to(device), torch.randint(0, 3, (4,)).to(device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    send(loss, 2)
    optimizer.step()
    print(repr(loss.item()))
"""
LOOP_AFTER = """\
for _ in range(4):
    x, y = torch.randn(4, 8).to(device), torch.randint(0, 3, (4,)).to(device)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):
        loss = nn.functional.cross_entropy(model(x), y)
    send(loss, 2)
    scaler.step(optimizer)
    scaler.update()
    print(repr(loss.item()))
"""


def helped(loop: str = LOOP, helper: str = HELPER, set_up: str = "") -> str:
    """A script whose loop leaves its backward pass to a function."""
    made = "torch.manual_seed(0)\nmodel = Net(3).to(device)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    return f"{HEAD}{helper}{made}{set_up}{loop}"


HELPED_AFTER = helped(LOOP_AFTER, HELPER.replace("(loss / parts)", "scaler.scale(loss / parts)"), SET_UP.replace("self.", ""))


# What is held --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text"),
    [
        pytest.param("backward-elsewhere", helped(LOOP + "send(loss, 1)\n"), id="somebody else calls the helper"),
        pytest.param("backward-elsewhere", helped(helper=HELPER.replace("    (", "    if parts:\n        (")), id="it may send nothing"),
        pytest.param(
            "backward-form", helped(LOOP.replace("send(loss, 2)", "send(model(x).mean(), 2)")), id="the network runs in its arguments"
        ),
        pytest.param(
            "gradients-kept",
            adversaries(step=STEP.replace("self.optimizer_D.zero_grad()\n", "")),
            id="gradients stay from one step to the next",
        ),
        pytest.param(
            "conditional-backward",
            adversaries(step=STEP.replace("self.backward_G()", "self.backward_D_A()")),
            id="the losses do not reach an optimizer's network",
        ),
    ],
)
def test_backward_passes_in_functions_are_held(code: str, text: str) -> None:
    """Each step must have its own, which nobody else asks for."""
    check_held(RULE, text, code)


# What is rewritten ---------------------------------------------------------------------------------------------------


def test_adversaries_in_methods_share_the_objects_scaler() -> None:
    """Each network runs in a region where it is called, each loss is scaled where it goes backward, and one update ends the step."""
    (note,) = check_transformed(RULE, adversaries(), AFTER)
    assert adversaries().splitlines()[note.line - 1].startswith("for _ in range")


def test_the_method_stands_for_a_loop_whose_object_is_not_seen() -> None:
    """What happens beside each call of that name is looked at all the same."""
    hidden = RUN.replace("Adversaries()", "make()")
    before = adversaries(run=f"def make():\n    return globals()['Adversaries']()\n\n\n{hidden}")
    (note,) = run_transform(RULE, before).notes
    assert note.outcome == "fixed" and before.splitlines()[note.line - 1].strip() == "def optimize_parameters(self):"
    check_held(
        RULE,
        before.replace("    gan.optimize", "    torch.nn.utils.clip_grad_norm_(gan.netG.parameters(), 1.0)\n    gan.optimize"),
        "backward-elsewhere",
    )


def test_the_loop_may_stand_in_another_file() -> None:
    """One finding, at the loop, with all edits in the file of the class."""
    run = f"import torch\n\nfrom gan import Adversaries\n\n{RUN}".replace("Adversaries()", "Adversaries(True)")
    texts = {"gan.py": adversaries(run="").rstrip() + "\n", "train.py": run}
    (note,) = check_program(
        RULE,
        texts,
        {
            **texts,
            "gan.py": adversaries(METHODS_AFTER.replace("with autocast:", REGION), STEP_AFTER, set_up=SET_UP, run="").rstrip() + "\n",
        },
    )
    assert note.outcome == "fixed"


def test_new_attributes_are_none_that_a_class_above_has() -> None:
    """Also where that class stands in another file."""
    base = "class Base:\n    def scale(self, x):\n        return self.scaler(x)\n"
    text = adversaries(run="").replace("class Adversaries:", "class Adversaries(Base):")
    texts = {
        "base.py": base,
        "gan.py": f"from base import Base\n{text}",
        "train.py": f"import torch\n\nfrom gan import Adversaries\n\n{RUN}",
    }
    assert "self.grad_scaler.step(self.optimizer_G)" in run_on_program(RULE, texts)["gan.py"].after.decode()


def test_a_helper_that_sends_the_loss_scales_it() -> None:
    """The loop keeps its forward pass and its step."""
    check_transformed(RULE, helped(), HELPED_AFTER)


def test_they_train_as_before(tmp_path: Path) -> None:
    """Bit for bit without CUDA; nearly so in bfloat16 and float16, with every layer in half precision and every step by the scaler."""
    run_before_and_after({"adversaries": (adversaries(), AFTER), "a helper": (helped(), HELPED_AFTER)}, tmp_path)


def test_a_second_run_finds_nothing(tmp_path: Path) -> None:
    """The scaler in the methods is seen."""
    for text in (AFTER, HELPED_AFTER):
        result = run_transform(RULE, text)
        assert result.outcome is Outcome.CLEAN and not result.notes
