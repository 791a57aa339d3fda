"""non-blocking: which copies of batches wait no longer, which stay as they are, and which are held."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.result import Note, Outcome
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "non-blocking"
HEAD = """\
import time
import torch
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(2, 2).to(device)
loader = DataLoader(data, pin_memory=True)
"""


def changed(before: str, after: str, head: str = HEAD, **arguments: object) -> tuple[Note, ...]:
    """Check some lines behind the head."""
    return check_transformed(RULE, f"{head}{before}\n", f"{head}{after}\n", **arguments)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("for x in other:\n    x = x.to(device)", id="no loader"),
        pytest.param("net = net.to(device)", id="a network"),
        pytest.param("for x, y in loader:\n    x = x.to(device, non_blocking=True)", id="does not wait"),
        pytest.param("for x, y in loader:\n    x = x.to(device, non_blocking=flag)", id="waits by choice"),
        pytest.param("for x, y in loader:\n    x = x.cuda(0, True)", id="does not wait, by position"),
        pytest.param("for x, y in loader:\n    x = x.to(device, torch.half, True)", id="does not wait, by third position"),
        pytest.param("for x, y in loader:\n    x = x.to(device, **options)", id="arguments out of sight"),
        pytest.param("for x, y in loader:\n    x = x.to(torch.half)", id="a cast"),
        pytest.param('for x, y in loader:\n    x = x.to("cpu")', id="to the host"),
        pytest.param("for x, y in loader:\n    x = x.type(torch.FloatTensor)", id="to a type of the host"),
        pytest.param("for x, y in loader:\n    z = net(x.to(device, non_blocking=True))\n    z = z.to(out_device)", id="F45 an output"),
        pytest.param("for x, y in loader:\n    x = x.to(device, non_blocking=True)\n    a = x.to(second)", id="F45 from the device"),
        pytest.param("x, y = next(iter(loader))\nx = x.to(device)", id="one batch"),
        pytest.param("for x, y in loader:\n    x = x.cuda()\n    break", id="the first batch only"),
        pytest.param(
            "def f(x):\n    return x.to(device)\nfor x, y in loader:\n    z = net(f(x))\n    f(z)", id="helper that moves outputs too"
        ),
    ],
)
def test_left_alone(text: str) -> None:
    """Copies that do not wait, go to the host, or are no batch's, yield nothing."""
    check_noop(RULE, f"{HEAD}{text}\n")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param('mps = torch.device("mps")\nfor x, y in loader:\n    x = x.to(mps)', "other-device", id="MPS"),
        pytest.param(
            "d = torch.accelerator.current_accelerator()\nfor x, y in loader:\n    x = x.to(d)", "other-device", id="any accelerator"
        ),
        pytest.param(
            'def f(d):\n    for x, y in loader:\n        x = x.to(d)\nf("mps" if torch.backends.mps.is_available() else "cpu")',
            "other-device",
            id="MPS through a parameter",
        ),
        pytest.param(
            "ok = torch.backends.mps.is_available()\ndef f(d):\n    for x, y in loader:\n        x = x.to(d)",
            "other-device",
            id="MPS in the file",
        ),
        pytest.param("for x, y in loader:\n    with torch.cuda.stream(s):\n        x = x.cuda()", "own-stream", id="stream"),
        pytest.param(
            "for x, y in loader:\n    start = time.time()\n    x = x.to(device)\n    y = y.to(device)\n    copying += time.time() - start",
            "timed",
            id="timed",
        ),
        pytest.param("for x, y in loader:\n    z = x.to(device)\n    x.zero_()", "written-later", id="written behind"),
        pytest.param("for x, y in loader:\n    z = x.to(device)\n    x += 1", "written-later", id="added to behind"),
        pytest.param("for x, y in loader:\n    h = x[:2]\n    z = x.to(device)\n    h.zero_()", "written-later", id="a part of it written"),
        pytest.param("for x, y in loader:\n    n = x.numpy()\n    z = x.to(device)\n    n[:] = 0", "written-later", id="its array written"),
        pytest.param("for x, y in loader:\n    x = torch.from_numpy(x).float().to(device)", "pageable-source", id="arrays"),
    ],
)
def test_held(text: str, code: str) -> None:
    """Where the flag may change what the program sees, or gains nothing, it is held."""
    check_held(RULE, f"{HEAD}{text}\n", code)


GUARDED = """\
ok = flag and torch.accelerator.is_available()
if ok:
    d = torch.accelerator.current_accelerator()
else:
    d = torch.device("cpu")
"""


@pytest.mark.parametrize(
    ("head", "flag"),
    [
        pytest.param(GUARDED, 'd.type == "cuda"', id="accelerator where there is one"),
        pytest.param("d = torch.device('mps' if mps else 'cuda')\n", 'd.type == "cuda"', id="MPS or CUDA"),
        pytest.param("torch.backends.mps.is_available()\nd = torch.zeros(1).device\n", 'd.type == "cuda"', id="a tensor's device"),
    ],
)
def test_the_flag_asks_a_device_that_may_be_another(head: str, flag: str) -> None:
    """Where a device object may be of another type than CUDA, the program decides as it runs."""
    loop = "for x, y in loader:\n    x = x.to(d{})\n"
    check_transformed(RULE, f"{HEAD}{head}{loop.format('')}", f"{HEAD}{head}{loop.format(f', non_blocking={flag}')}")


OWN_CLASS = """
import torch
from torch.utils.data import DataLoader


class Batch:
    def __init__(self, samples):
        self.x = torch.stack(samples)

    def to(self, device):
        self.x = self.x.to(device)
        return self


def collate(samples):
    return Batch(samples)


for batch in DataLoader(data, collate_fn=collate):
    batch = batch.to("cuda")
"""


@pytest.mark.parametrize("text", [OWN_CLASS, OWN_CLASS.replace("collate_fn=collate", "collate_fn=collator")])
def test_batch_of_a_class_of_its_own_is_held(text: str) -> None:
    """``to`` of a class of the program may not know the argument, be it in sight or not."""
    check_held(RULE, text, "own-batch")


def test_batch_that_may_be_on_the_device_already_is_held() -> None:
    """F45: a copy from the device to the host must be waited for."""
    text = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Data(Dataset):
        def __getitem__(self, i):
            return torch.zeros(3).cuda()

    device = "cuda" if use_cuda else "cpu"
    for x in DataLoader(Data()):
        x = x.to(device)
    """
    check_held(RULE, text, "device-batches")


def test_f45_only_the_copy_of_the_batch_changes() -> None:
    """F45: of several copies in one loop only the one from the host gets the flag."""
    changed(
        dedent("""\
            def infer(model, loader, device, out_device="cpu"):
                res = []
                for x in loader:
                    y = model(x.to(device))
                    res.append(y.to(out_device).numpy())
                    mask = (y > 0).to("cpu")
                    res.append(mask.float().mean())
                return res

            infer(net, loader, device)"""),
        dedent("""\
            def infer(model, loader, device, out_device="cpu"):
                res = []
                for x in loader:
                    y = model(x.to(device, non_blocking=True))
                    res.append(y.to(out_device).numpy())
                    mask = (y > 0).to("cpu")
                    res.append(mask.float().mean())
                return res

            infer(net, loader, device)"""),
    )


def test_documented_example() -> None:
    """What the rule says of itself is what it does."""
    rule = registry.find(RULE)
    assert len(check_transformed(rule, rule.before, rule.after)) == 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("x = x.to(device)", "x = x.to(device, non_blocking=True)", id="to"),
        pytest.param("x = x.cuda()", "x = x.cuda(non_blocking=True)", id="cuda"),
        pytest.param("x = x.cuda(0)", "x = x.cuda(0, non_blocking=True)", id="cuda by number"),
        pytest.param("x = x.to(device=device)", "x = x.to(device=device, non_blocking=True)", id="to by keyword"),
        pytest.param("x = x.to(device, torch.half)", "x = x.to(device, torch.half, non_blocking=True)", id="with a dtype"),
        pytest.param(
            "x = x.to(device, memory_format=torch.channels_last)",
            "x = x.to(device, memory_format=torch.channels_last, non_blocking=True)",
            id="with a memory format",
        ),
        pytest.param("x = x.type(torch.cuda.FloatTensor)", "x = x.type(torch.cuda.FloatTensor, non_blocking=True)", id="by type"),
        pytest.param(
            "x, y = x.to(device), y.to(device)", "x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)", id="two"
        ),
        pytest.param("x = x.view(-1, 784).to(device)", "x = x.view(-1, 784).to(device, non_blocking=True)", id="view before"),
        pytest.param("x = x.cuda().float()", "x = x.cuda(non_blocking=True).float()", id="cast behind"),
        pytest.param("x = x.to(device); y.zero_()", "x = x.to(device, non_blocking=True); y.zero_()", id="another part is written"),
        pytest.param("x = x.to(device); x.zero_()", "x = x.to(device, non_blocking=True); x.zero_()", id="the copy is written"),
        pytest.param("z = net(x.to(device))", "z = net(x.to(device, non_blocking=True))", id="in a call"),
        pytest.param("if cuda:\n        x = x.cuda()", "if cuda:\n        x = x.cuda(non_blocking=True)", id="under a condition"),
        pytest.param(
            "t = time.time()\n    x = x.to(device)\n    z = net(x)\n    print(time.time() - t)",
            "t = time.time()\n    x = x.to(device, non_blocking=True)\n    z = net(x)\n    print(time.time() - t)",
            id="whole step timed",
        ),
    ],
)
def test_copies_of_a_batch_wait_no_longer(before: str, after: str) -> None:
    """Every spelling of a copy from the host gets the flag, exactly."""
    for note in changed(f"for x, y in loader:\n    {before}", f"for x, y in loader:\n    {after}"):
        assert (note.risk, note.effects) == ("exact", ())
        assert "line 9, which pins them" in note.because


@pytest.mark.parametrize(
    ("loop", "part"),
    [
        pytest.param("for x in loader:\n    {}", "x", id="single tensors"),
        pytest.param("for i, (x, y) in enumerate(tqdm(loader)):\n    {}", "x", id="enumerate and tqdm"),
        pytest.param("for batch in loader:\n    {}", 'batch["image"]', id="dictionary"),
        pytest.param("for batch in loader:\n    {}", "batch[0]", id="tuple"),
        pytest.param("batches = iter(loader)\nwhile True:\n    x, y = next(batches)\n    {}", "x", id="iterator"),
        pytest.param("batches = iter(loader)\nfor i in range(9):\n    {}", "next(batches)", id="next"),
        pytest.param("def step(x):\n    {}\nfor x, y in loader:\n    step(x)", "x", id="helper"),
        pytest.param("def run(batches):\n    for x, y in batches:\n        {}\nrun(loader)", "x", id="loader handed on"),
        pytest.param("loaders = {{'train': loader, 'val': loader}}\nfor x, y in loaders[phase]:\n    {}", "x", id="loader of a phase"),
        pytest.param("for x, y in loader:\n    with torch.no_grad():\n        {}", "x", id="evaluation"),
    ],
)
def test_batches_are_known_by_where_they_come_from(loop: str, part: str) -> None:
    """Loops, iterators, dictionaries, helpers and handed-on loaders all lead back to the loader."""
    changed(loop.format(f"z = {part}.to(device)"), loop.format(f"z = {part}.to(device, non_blocking=True)"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("batch = [t.to(device) for t in batch]", "batch = [t.to(device, non_blocking=True) for t in batch]"),
        (
            "batch = {k: v.to(device) for k, v in batch.items()}",
            "batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}",
        ),
        ("x, y = (t.cuda() for t in batch)", "x, y = (t.cuda(non_blocking=True) for t in batch)"),
        (
            "for k, v in batch.items():\n        batch[k] = v.to(device)",
            "for k, v in batch.items():\n        batch[k] = v.to(device, non_blocking=True)",
        ),
    ],
)
def test_all_parts_of_a_batch(before: str, after: str) -> None:
    """Comprehensions and loops over a batch's entries are copies of the batch."""
    changed(f"for batch in loader:\n    {before}", f"for batch in loader:\n    {after}")


def test_loader_of_another_file() -> None:
    """The loop is found from the file that makes the loader, and the user is told what the loader must do."""
    main = "from torch.utils.data import DataLoader\nfrom engine import train\ntrain(DataLoader(data), 'cuda')\n"
    (note,) = check_transformed(
        RULE,
        "def train(loader, device):\n    for x, y in loader:\n        x = x.to(device)\n",
        "def train(loader, device):\n    for x, y in loader:\n        x = x.to(device, non_blocking=True)\n",
        path="engine.py",
        modules={"main.py": main},
    )
    assert "main.py:3, and gains once that pins them" in note.because


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(torch.randn(12, 3), torch.randn(12, 1))
    loader = DataLoader(data, batch_size=4, shuffle=True, pin_memory=torch.cuda.is_available())
    net = nn.Linear(3, 1).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in loader:
            x, y = x.to(device), y.to(device=device, dtype=torch.float32)
            loss = nn.functional.mse_loss(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(repr(loss.item()), net(x).to("cpu").sum().item())


if __name__ == "__main__":
    main()
"""


def test_rewritten_program_trains_bit_for_bit(tmp_path: Path) -> None:
    """Losses are the same, the copies to the device wait no longer, and none to the host does so."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SCRIPT)
    result = run_transform(RULE, SCRIPT)
    assert result.outcome is Outcome.CHANGED
    after.write_bytes(result.after)
    old, waiting = run_on_fake_gpu(before)
    new, copies = run_on_fake_gpu(after)
    assert new == old
    assert waiting["h2d_non_blocking"] == 0
    assert copies["h2d_non_blocking"] == 12
    assert copies["d2h_non_blocking"] == 0
    assert run_on_cpu(after) == run_on_cpu(before)


def test_a_program_for_several_devices_waits_no_longer_on_cuda(tmp_path: Path) -> None:
    """The flag that asks the device is on where that is CUDA, and the losses are the same."""
    script = SCRIPT.replace('torch.device("cuda" if', 'torch.device("mps" if torch.backends.mps.is_available() else "cuda" if')
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(script)
    result = run_transform(RULE, script)
    assert b'x.to(device, non_blocking=device.type == "cuda")' in result.after
    after.write_bytes(result.after)
    old, _ = run_on_fake_gpu(before)
    new, copies = run_on_fake_gpu(after)
    assert new == old
    assert copies["h2d_non_blocking"] == 12
    assert run_on_cpu(after) == run_on_cpu(before)
