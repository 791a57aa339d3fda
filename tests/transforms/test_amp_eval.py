"""amp-eval: which evaluations get the autocast of their training, with which switch and precision, and what they print then."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.testing import check_held, check_noop, check_transformed, run_on_program, run_transform

RULE = "amp-eval"
NET = """\
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x):
        return self.layer(x)


"""
TRAIN = """\
def train(model, loader, optimizer, device):
    model.train()
    use_amp = device.type == "cuda"
    amp_dtype = torch.bfloat16 if use_amp and torch.cuda.get_device_capability()[0] >= 8 else torch.float16
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp and amp_dtype is torch.float16)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


"""
TEST = """\
def test(model, loader, device):
    model.eval()
    total = 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            output = model(x)
            total += (output.argmax(dim=1) == y).sum().item()
    return total


"""
MAIN = """\
def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = [(torch.randn(4, 8), torch.zeros(4, dtype=torch.long)) for _ in range(3)]
    for epoch in range(2):
        train(model, loader, optimizer, device)
        print(test(model, loader, device))


main()
"""
PROGRAM = NET + TRAIN + TEST + MAIN
PLAIN = "output = model(x)\n"
REGION = """\
with torch.autocast("cuda", dtype=autocast_dtype, enabled=amp_enabled):
    output = model(x)
"""
SET_UP = """\
        amp_enabled = device.type == "cuda"
        autocast_dtype = torch.bfloat16 if amp_enabled and torch.cuda.get_device_capability()[0] >= 8 else torch.float16
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            out"""


def _tested(loop_body: str) -> str:
    """The program with other statements behind the copies of a batch."""
    old = "            output = model(x)\n            total += (output.argmax(dim=1) == y).sum().item()\n"
    assert old in PROGRAM
    return PROGRAM.replace(old, indent(loop_body, " " * 12))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            PROGRAM.replace('with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):', "if True:"), id="trains in full precision"
        ),
        pytest.param(
            PROGRAM.replace(
                "            output = model(x)\n", '            with torch.autocast("cuda"):\n                output = model(x)\n'
            ),
            id="evaluates under autocast already",
        ),
        pytest.param(PROGRAM.replace("def test", '@torch.autocast("cuda")\ndef test'), id="the function is under autocast"),
        pytest.param(
            PROGRAM.replace(
                "        print(test(model, loader, device))",
                '        with torch.autocast("cuda"):\n            print(test(model, loader, device))',
            ),
            id="its caller is under autocast",
        ),
        pytest.param(
            PROGRAM.replace("test(model, loader, device))", "test(Net().to(device), loader, device))"), id="another network is evaluated"
        ),
        pytest.param(PROGRAM.replace('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"'), id="on the host"),
    ],
)
def test_nothing_to_do(text: str) -> None:
    """Without training under autocast of the same network on CUDA, or with it in the evaluation, there is nothing to say."""
    check_noop(RULE, text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(
            PROGRAM.replace("device):\n    model.train()", "device, use_amp=True):\n    model.train()").replace(
                '    use_amp = device.type == "cuda"\n', ""
            ),
            "precision-out-of-reach",
            id="the switch is a parameter of the training function",
        ),
        pytest.param(
            PROGRAM.replace("dtype=amp_dtype, enabled=use_amp", "cache_enabled=False"), "precision-out-of-reach", id="its cache is off"
        ),
        pytest.param(
            PROGRAM.replace(
                "        scaler.scale(loss)",
                "        if not use_amp:\n            loss = F.cross_entropy(model(x), y)\n        scaler.scale(loss)",
            ),
            "precision-out-of-reach",
            id="trap: trains with or without autocast as an option says",
        ),
        pytest.param(_tested("if model(x).sum() > 0:\n    total += 1\n"), "compound-statement", id="in the head of a statement"),
        pytest.param(_tested("total += F.binary_cross_entropy(model(x), y).item()\n"), "bce-loss", id="trap: BCELoss in the statement"),
        pytest.param(
            PROGRAM.replace("return self.layer(x)", "h = self.layer(x)\n        return torch.from_numpy(h.numpy())"),
            "half-to-numpy",
            id="trap: numpy in the network",
        ),
        pytest.param(_tested("total += measure(model(x))\n"), "unknown-code", id="unknown code in the statement"),
        pytest.param(
            _tested("output, rest = split(model)(x)\ntotal += keep(model(x))\n").replace(
                "return self.layer(x)", "return self.layer(x), {}"
            ),
            "unknown-code",
            id="unknown code is given a tuple",
        ),
        pytest.param(
            _tested("save(model(x))\n").replace("import torch\n", "import torch\nfrom other import save\n", 1),
            "unknown-code",
            id="code of another package in the statement",
        ),
        pytest.param(
            _tested("out, rest = model(x)\nkeep(out)\n").replace("return self.layer(x)", "return self.layer(x), {}"),
            "half-escapes",
            id="what leaves cannot be converted",
        ),
    ],
)
def test_held(text: str, code: str) -> None:
    """What cannot mean the same in the evaluation, or would break there, is left, with the reason."""
    check_held(RULE, text, code)


def test_the_switch_and_the_precision_are_made_anew_where_they_are_out_of_sight() -> None:
    """Variables of the training function are computed again from the evaluation's own device."""
    after = PROGRAM.replace("        for x, y in loader:\n            x, y = x.to(device), y.to(device)\n            out", SET_UP)
    after = after.replace(indent(PLAIN, " " * 12), indent(REGION, " " * 12))
    (note,) = check_transformed(RULE, PROGRAM, after)
    assert note.risk == "numeric"


def test_variables_of_the_module_are_read() -> None:
    """A global that is bound once, before the evaluation is ever called, is the same there."""
    text = PROGRAM.replace('    use_amp = device.type == "cuda"\n', "")
    text = text.replace("dtype=amp_dtype", "dtype=torch.bfloat16").replace("def main", "use_amp = torch.cuda.is_available()\n\n\ndef main")
    written = run_transform(RULE, text).after.decode()
    header = 'with torch.autocast("cuda", dtype=torch.bfloat16, enabled=use_amp):\n'
    assert written == text.replace(indent(PLAIN, " " * 12), indent(header, " " * 12) + indent(PLAIN, " " * 16))


def test_a_global_that_is_bound_later_is_not_read() -> None:
    """The evaluation may run before the statement that binds it; the switch is made anew."""
    text = (
        PROGRAM.replace('    use_amp = device.type == "cuda"\n', "")
        .replace("dtype=amp_dtype, ", "")
        .replace("main()\n", "main()\nuse_amp = torch.cuda.is_available()\n")
    )
    text = text.replace("def main()\nuse_amp = torch.cuda.is_available()\n", "def main()")
    assert b"enabled=amp_enabled" in run_transform(RULE, text).after


def test_attributes_that_the_constructor_sets_are_read() -> None:
    """Both loops of a trainer have the same ``self``."""
    text = (
        NET
        + """\
class Trainer:
    def __init__(self, loader):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = Net().to(self.device)
        self.loader = loader
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.use_amp = self.device.type == "cuda"
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.use_amp)

    def train(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", enabled=self.use_amp):
                loss = F.cross_entropy(self.model(x.to(self.device)), y.to(self.device))
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        for x, y in self.loader:
            print(self.model(x.to(self.device)).argmax(dim=1))
"""
    )
    last = "            print(self.model(x.to(self.device)).argmax(dim=1))\n"
    header = '            with torch.autocast("cuda", enabled=self.use_amp):\n'
    check_transformed(RULE, text, text.replace(last, header + "    " + last))


@pytest.mark.parametrize(
    ("body", "written"),
    [
        pytest.param("print(model(x).cpu().numpy())\n", "print(model(x).float().cpu().numpy())", id="numpy has no bfloat16"),
        pytest.param("out = model(x)\nprint(out.cpu().numpy())\n", "out = model(x).float()", id="numpy later"),
        pytest.param("out = model(x)\ntotal += F.mse_loss(out, out).item()\n", "out = model(x).float()", id="a loss outside"),
    ],
)
def test_what_leaves_is_float32(body: str, written: str) -> None:
    """Metrics and files are computed outside of the region, on float32."""
    assert written in run_transform(RULE, _tested(body)).after.decode()


def test_data_parallel_keeps_float16() -> None:
    """The threads of DataParallel compute in float16 whatever autocast is told."""
    text = PROGRAM.replace("Net().to(device)", "nn.DataParallel(Net()).to(device)")
    written = run_transform(RULE, text).after.decode()
    assert 'with torch.autocast("cuda", dtype=torch.float16, enabled=amp_enabled):\n                output = model(x)' in written


def test_before_torch_1_10_the_old_class_is_written() -> None:
    """The evaluation has the spelling of its training."""
    text = PROGRAM.replace('torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp)', "torch.cuda.amp.autocast(use_amp)")
    assert b"with torch.cuda.amp.autocast(enabled=amp_enabled):" in run_transform(RULE, text, torch=(1, 6)).after


def test_an_evaluation_in_another_file() -> None:
    """The evaluation's file is changed with a finding of the file that trains, which is only read."""
    evaluate = "import torch\n\n\n" + TEST
    train = "from evaluate import test\n" + NET + TRAIN + MAIN
    results = run_on_program(RULE, {"train.py": train, "evaluate.py": evaluate})
    assert b"enabled=use_amp" in results["evaluate.py"].after
    assert [note.outcome for note in results["train.py"].notes] == ["fixed"]


def test_the_program_prints_the_same_on_the_cpu(tmp_path: Path) -> None:
    """Without CUDA the region is switched off, and every number stays to the last bit."""
    text = _tested("out = model(x)\nprint(out.cpu().numpy().tolist())\n")
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(text)
    after.write_bytes(run_transform(RULE, text).after)
    assert run_on_cpu(before) == run_on_cpu(after)


@pytest.mark.parametrize(("capability", "dtype"), [("8.0", "bfloat16"), ("7.0", "float16")])
def test_the_network_computes_in_half_precision_on_the_gpu(tmp_path: Path, capability: str, dtype: str) -> None:
    """On the pretend GPU the layer gives what training gives, and NumPy is handed float32."""
    text = _tested("out = model(x)\nprint(out.cpu().numpy().dtype)\n")
    text = text.replace("return self.layer(x)", "h = self.layer(x)\n        print(h.dtype)\n        return h")
    script = tmp_path / "train.py"
    script.write_bytes(run_transform(RULE, text).after)
    printed, _ = run_on_fake_gpu(script, capability=capability)
    lines = printed.splitlines()
    assert {line for line in lines if line.startswith("torch.")} == {f"torch.{dtype}"}
    assert lines.count("float32") == 6


def test_what_amp_loop_writes_is_followed_at_once(tmp_path: Path) -> None:
    """One run converts the training loop, and then the evaluation of its network."""
    amp_loop = registry.find("amp-loop")
    plain = PROGRAM.replace('    use_amp = device.type == "cuda"\n', "").replace(
        "    amp_dtype = torch.bfloat16 if use_amp and torch.cuda.get_device_capability()[0] >= 8 else torch.float16\n", ""
    )
    plain = plain.replace('    scaler = torch.amp.GradScaler("cuda", enabled=use_amp and amp_dtype is torch.float16)\n', "")
    plain = plain.replace('        with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):\n            loss', "        loss")
    plain = plain.replace("scaler.scale(loss).backward()", "loss.backward()").replace("scaler.step(optimizer)", "optimizer.step()")
    plain = plain.replace("        scaler.update()\n", "")
    mixed = run_transform(amp_loop, plain).after.decode()
    both = run_transform(RULE, mixed).after
    assert both.count(b"with torch.autocast(") == 2
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(plain)
    after.write_bytes(both)
    assert run_on_cpu(before) == run_on_cpu(after)
    check_noop("amp-loop", both.decode())
