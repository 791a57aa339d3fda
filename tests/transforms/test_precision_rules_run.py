"""The smaller rules of precision, executed: what they rewrite trains as before without CUDA, and on the pretend GPU as it should."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.running import ROOT, run_on_cpu, run_on_fake_gpu, skip_on_cuda_build
from tests.transforms.amp_programs import CLASSIFIER, CLIPPED, GAN, HEAD
from torchfix.result import Outcome
from torchfix.testing import run_transform

RECORDING = ROOT / "tests" / "recording.py"
Records = dict[str, dict[str, Any]]

# bce-with-logits ------------------------------------------------------------------------------------------------------

NETWORK = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 1)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        return torch.sigmoid(self.fc2(x))


model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
criterion = nn.BCELoss()
for x, y in batches:
    x, y = x.to(device), (y > 0).float().unsqueeze(1).to(device)
    optimizer.zero_grad()
    out = model(x)
    loss = criterion(out, y)
    loss.backward()
    optimizer.step()
    print(repr(loss.item()), ((out > 0.5) == y).sum().item())
"""
IN_THE_LOOP = """\
for x, y in batches:
    x, y = x.to(device), F.one_hot(y, 3).float().to(device)
    optimizer.zero_grad()
    p = torch.sigmoid(model(x))
    loss = F.binary_cross_entropy(p, y, reduction="sum") / len(x)
    loss.backward()
    optimizer.step()
    print(repr(loss.item()), p.round().sum().item())
"""
EACH_BY_ITSELF = """\
criterion = nn.BCELoss(reduction="none")
for x, y in batches:
    x, y = x.to(device), F.one_hot(y, 3).float().to(device)
    optimizer.zero_grad()
    loss = criterion(model(x).sigmoid().view(-1), y.view(-1)).mean()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""
ADVERSARIES = """\
criterion = nn.BCELoss()
for x, _ in batches:
    x = x.to(device)
    netD.zero_grad()
    output = netD(x)
    errD_real = criterion(output, ones)
    errD_real.backward()
    D_x = output.mean().item()
    fake = netG(x)
    errD_fake = criterion(netD(fake.detach()), zeros)
    errD_fake.backward()
    optD.step()
    netG.zero_grad()
    errG = criterion(netD(fake), ones)
    errG.backward()
    optG.step()
    print(repr(errD_real.item()), repr(errD_fake.item()), repr(errG.item()), repr(D_x))
"""
PROBABILITIES = {
    "a network that ends in a sigmoid": HEAD + NETWORK,
    "a sigmoid in the loop": HEAD + CLASSIFIER + IN_THE_LOOP,
    "a loss for each": HEAD + CLASSIFIER + EACH_BY_ITSELF,
    "adversaries": HEAD + GAN.replace("nn.Linear(16, 1)", "nn.Linear(16, 1), nn.Sigmoid()").replace("Adam", "SGD") + ADVERSARIES,
}

# unscale-before-clip --------------------------------------------------------------------------------------------------

SCALED = """\
use_amp = device.type == "cuda"
scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
"""
CLIPPING = """\
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    print(repr(loss.item()))
"""
CLIPPING_IN_A_FUNCTION = f"""\
def clip(parameters):
    nn.utils.clip_grad_norm_(parameters, 0.1)


{CLIPPING.replace("nn.utils.clip_grad_norm_(model.parameters(), 0.1)", "clip(model.parameters())")}"""
CLIPPING_EVERY_SECOND = """\
for i, (x, y) in enumerate(batches):
    with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
        loss = F.cross_entropy(model(x.to(device)), y.to(device)) / 2
    scaler.scale(loss).backward()
    if i % 2 == 1:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    print(repr(loss.item()))
"""
CLIPPING_FOR_ONE_OF_TWO = """\
head = nn.Linear(3, 3).to(device)
head_optimizer = torch.optim.SGD(head.parameters(), lr=0.2)
for x, y in batches:
    optimizer.zero_grad()
    head_optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
        loss = F.cross_entropy(head(model(x.to(device))), y.to(device))
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(head.parameters(), 0.1)
    scaler.step(head_optimizer)
    scaler.step(optimizer)
    scaler.update()
    print(repr(loss.item()))
"""
CLIPPINGS = {
    "plain": (CLIPPING, CLIPPED),
    "in a function": (CLIPPING_IN_A_FUNCTION, CLIPPED),
    "every second": (CLIPPING_EVERY_SECOND, "scale backward scale backward unscale clip step update"),
    "for one of two": (CLIPPING_FOR_ONE_OF_TWO, "scale backward unscale clip step step:2 update"),
}

# cudnn-benchmark ------------------------------------------------------------------------------------------------------

TORCHVISION = {
    "torchvision/__init__.py": "",
    "torchvision/datasets.py": """\
import torch


class FakeData(torch.utils.data.Dataset):
    def __init__(self, size, transform=None):
        generator = torch.Generator().manual_seed(5)
        self.images = torch.rand(size, 3, 10, 10, generator=generator)
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(self.images[index]), index % 3
""",
    "torchvision/transforms.py": """\
class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


class CenterCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        return image[:, : self.size, : self.size]
""",
}
IMAGES = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(3)
data = datasets.FakeData(24, transform=transforms.Compose([transforms.CenterCrop(8)]))
loader = DataLoader(data, batch_size=8)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        print(repr(loss.item()))
"""

# What they do ---------------------------------------------------------------------------------------------------------

PROGRAMS = {
    **{name: (text, "bce-with-logits") for name, text in PROBABILITIES.items()},
    **{name: (HEAD + CLASSIFIER + SCALED + text, "unscale-before-clip") for name, (text, _) in CLIPPINGS.items()},
    "images": (IMAGES, "cudnn-benchmark"),
}


def rewritten(text: str, rule: str) -> str:
    """What a rule makes of a program; a second run must find nothing more."""
    result = run_transform(rule, text, path="main.py")
    assert result.outcome is Outcome.CHANGED, (rule, [note.reason for note in result.notes])
    after = result.after.decode()
    assert run_transform(rule, after, path="main.py").after.decode() == after
    return after


def laid(folder: Path, programs: Mapping[str, str]) -> str:
    """Programs on the disk, each in a folder of its own, which has what little of torchvision they need."""
    for name, text in programs.items():
        for path, content in {"main.py": text, **TORCHVISION}.items():
            place = folder / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
    return str(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Records]:
    """The records of all programs, before and after, on the host and on the GPU, and of those that saw logits in mixed precision."""
    skip_on_cuda_build()
    home = tmp_path_factory.mktemp("programs")
    changed = {name: rewritten(text, rule) for name, (text, rule) in PROGRAMS.items()}
    before = laid(home / "before", {name: text for name, (text, _) in PROGRAMS.items()})
    after = laid(home / "after", changed)
    mixed = laid(home / "mixed", {name: rewritten(changed[name], "amp-loop") for name in PROBABILITIES})
    host = json.loads(run_on_cpu(RECORDING, before, after))
    gpu = json.loads(run_on_fake_gpu(RECORDING, before, after, mixed, capability="7.5")[0])
    records = {f"{kind} on {place}": of for place, kinds in (("host", host), ("GPU", gpu)) for kind, of in kinds.items()}
    assert not [(kind, name, record["error"]) for kind, of in records.items() for name, record in of.items() if record["error"]]
    return records


def distances(one: Records, other: Records, names: Iterable[str]) -> list[float]:
    """How far apart the weights of programs end up."""
    pairs = [zip(one[name]["parameters"], other[name]["parameters"], strict=True) for name in names]
    return [max(abs(a - b) for a, b in pair) for pair in pairs]


def test_logits_train_as_probabilities_did(trained: dict[str, Records]) -> None:
    """Within rounding; and mixed precision, which CUDA refuses to probabilities, then trains every network in float16."""
    assert max(distances(trained["after on host"], trained["before on host"], PROBABILITIES)) < 1e-5
    assert max(distances(trained["mixed on GPU"], trained["before on host"], PROBABILITIES)) < 0.005
    assert {layer for record in trained["mixed on GPU"].values() for layer in record["layers"]} == {"training torch.float16"}


def test_clipping_sees_true_gradients(trained: dict[str, Records]) -> None:
    """Without CUDA nothing changes; in float16 the weights come out as in float32, which they did not before."""
    assert set(distances(trained["after on host"], trained["before on host"], CLIPPINGS)) == {0.0}
    assert max(distances(trained["after on GPU"], trained["before on host"], CLIPPINGS)) < 0.001
    assert min(distances(trained["before on GPU"], trained["before on host"], CLIPPINGS)) > 0.01
    for name, (_, order) in CLIPPINGS.items():
        calls, each = trained["after on GPU"][name]["calls"], order.split()
        assert calls == each * (len(calls) // len(each)), name


def test_measuring_convolutions_changes_no_number_where_nothing_is_measured(trained: dict[str, Records]) -> None:
    """On the CPU, and on a GPU without cuDNN."""
    for place in ("host", "GPU"):
        assert trained[f"after on {place}"]["images"]["printed"] == trained[f"before on {place}"]["images"]["printed"]
        assert distances(trained[f"after on {place}"], trained[f"before on {place}"], ["images"]) == [0.0]
