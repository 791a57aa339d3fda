"""bce-with-logits: which losses keep their probabilities and why, which see logits, and that the programs still compute the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import ScriptFailed, run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.engine import EngineSettings, fix
from torchfix.facts.project.declarations import Declarations
from torchfix.facts.project.project import Project
from torchfix.facts.project.versions import Range
from torchfix.result import Outcome
from torchfix.testing import check_held, check_noop, check_program, check_transformed, run_on_program, run_transform
from torchfix.transform import Selected

RULE = "bce-with-logits"
HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

"""
NETWORK = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
        self.sigmoid = nn.Sigmoid()

    def forward(self, x):
        x = self.fc(x)
        return torch.sigmoid(x)


"""
TRAIN = """\
net = Net()
criterion = nn.BCELoss()
for x, y in loader:
    loss = criterion(net(x), y)
"""
SEEN = HEAD + NETWORK + TRAIN


def test_losses_of_logits_and_losses_that_nobody_calls_are_left_alone() -> None:
    """There is nothing to gain."""
    check_noop(RULE, HEAD + "loss = nn.BCEWithLogitsLoss()(z, t)\n")
    check_noop(RULE, HEAD + "criterion = nn.BCELoss()\n")


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        pytest.param("loss = F.binary_cross_entropy(z.softmax(1), t)", "not-a-sigmoid", id="softmax"),
        pytest.param("loss = F.binary_cross_entropy(torch.sigmoid(z) * mask, t)", "not-a-sigmoid", id="a product"),
        pytest.param("loss = F.binary_cross_entropy(torch.sigmoid(z).clamp(0.1, 0.9), t)", "not-a-sigmoid", id="clamped"),
        pytest.param("loss = F.binary_cross_entropy(a * torch.sigmoid(z) + (1 - a) * p, t)", "not-a-sigmoid", id="a mixture"),
        pytest.param("loss = F.binary_cross_entropy(p, t)", "not-a-sigmoid", id="out of sight"),
        pytest.param("def f(p, t):\n    return F.binary_cross_entropy(p, t)", "not-a-sigmoid", id="a parameter"),
        pytest.param("p = torch.sigmoid(z)\nif c:\n    p = q\nloss = F.binary_cross_entropy(p, t)", "not-a-sigmoid", id="one of two"),
        pytest.param("p = torch.sigmoid(z)\np += 0.1\nloss = F.binary_cross_entropy(p, t)", "not-a-sigmoid", id="added to"),
        pytest.param(
            "p = torch.sigmoid(z)\nloss = F.binary_cross_entropy(p, t)\nif c:\n    p = q\nprint(p)", "not-a-sigmoid", id="read with others"
        ),
        pytest.param("p = torch.sigmoid(z)\np.clamp_(0.1)\nloss = F.binary_cross_entropy(p, t)", "tied-to-the-output", id="in place"),
        pytest.param("p = torch.sigmoid(z)\np[0] = 1\nloss = F.binary_cross_entropy(p, t)", "tied-to-the-output", id="an item is set"),
        pytest.param("p = torch.sigmoid(z)\np.register_hook(h)\nloss = F.binary_cross_entropy(p, t)", "tied-to-the-output", id="a hook"),
        pytest.param(
            "p = torch.sigmoid(z)\nloss = F.binary_cross_entropy(p, t)\ng = torch.autograd.grad(loss, p)", "tied-to-the-output", id="grad"
        ),
        pytest.param("loss = F.binary_cross_entropy(*given)", "arguments-unseen", id="stars"),
        pytest.param("c = nn.BCELoss()\nloss = c(torch.sigmoid(z), t)\nfit(c)", "out-of-sight", id="the loss is handed on"),
        pytest.param("c = nn.BCELoss() if b else nn.MSELoss()\nloss = c(torch.sigmoid(z), t)", "out-of-sight", id="one loss of two"),
        pytest.param("c = {'bce': nn.BCELoss()}\nloss = c['bce'](torch.sigmoid(z), t)", "out-of-sight", id="a table of losses"),
    ],
)
def test_held(lines: str, code: str) -> None:
    """Probabilities that a sigmoid alone does not make, and losses that may be called unseen, are named and left."""
    check_held(RULE, HEAD + lines + "\n", code)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        pytest.param("return torch.sigmoid(x)", "return torch.sigmoid(x), x", "not-a-sigmoid", id="several heads"),
        pytest.param(
            "return torch.sigmoid(x)",
            "if x.sum() > 0:\n            return x\n        return torch.sigmoid(x)",
            "not-a-sigmoid",
            id="sometimes",
        ),
        pytest.param("net = Net()\n", "net = Net()\ntorch.save(net, 'net.pt')\n", "out-of-sight", id="saved whole"),
        pytest.param("net = Net()\n", "net = Net()\ntorch.onnx.export(net, x, 'net.onnx')\n", "out-of-sight", id="exported"),
        pytest.param("net = Net()\n", "net = torch.jit.script(Net())\n", "out-of-sight", id="scripted"),
        pytest.param("net = Net()\n", "net = Net()\nevaluate(net)\n", "out-of-sight", id="evaluated out of sight"),
        pytest.param("net = Net()\n", "net = Net()\nnet.register_forward_hook(h)\n", "out-of-sight", id="hooked"),
        pytest.param("net = Net()\n", "net = Net()\nprint(net.forward(x))\n", "out-of-sight", id="forward by name"),
        pytest.param("net = Net()\n", "nets = [Net() for _ in range(2)]\nnet = nets[0]\n", "out-of-sight", id="a list of networks"),
        pytest.param("net = Net()\n", "class Big(Net):\n    pass\n\n\nnet = Net()\n", "out-of-sight", id="a class below"),
        pytest.param("net = Net()\n", "NETS = {'Net': Net}\nnet = Net()\n", "out-of-sight", id="a table of classes"),
    ],
)
def test_networks_that_keep_their_sigmoid(old: str, new: str, code: str) -> None:
    """A network with a reader that is not seen, or with more than one output, keeps its sigmoid."""
    assert old in SEEN
    check_held(RULE, SEEN.replace(old, new), code)


def test_f05_a_network_that_another_file_hands_on_keeps_its_sigmoid() -> None:
    """All programs of the project that make the network count."""
    predict = "import torch\nfrom model import Net\n\nnet = Net()\ntorch.jit.save(torch.jit.script(net), 'net.pt')\n"
    results = run_on_program(
        RULE, {"model.py": HEAD + NETWORK, "train.py": HEAD + "from model import Net\n" + TRAIN, "predict.py": predict}
    )
    assert all(result.outcome is Outcome.CLEAN for result in results.values())
    assert [note.reason.code for note in results["train.py"].notes if note.reason] == ["out-of-sight"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("loss = nn.BCELoss()(torch.sigmoid(z), t)", "loss = nn.BCEWithLogitsLoss()(z, t)", id="in place"),
        pytest.param("loss = nn.BCELoss()(nn.Sigmoid()(z), t)", "loss = nn.BCEWithLogitsLoss()(z, t)", id="a layer in place"),
        pytest.param(
            "loss = F.binary_cross_entropy(F.sigmoid(z), t, w, reduction='sum')",
            "loss = F.binary_cross_entropy_with_logits(z, t, w, reduction='sum')",
            id="weighted function",
        ),
        pytest.param(
            "loss = torch.nn.BCELoss(weight=w, reduction='none')((a + b).sigmoid().view(-1), t)",
            "loss = torch.nn.BCEWithLogitsLoss(weight=w, reduction='none')((a + b).view(-1), t)",
            id="a method, then a view",
        ),
        pytest.param(
            "c = nn.BCELoss().cuda()\nfor z, t in loader:\n    p = torch.sigmoid(z)\n    loss = c(p, t)",
            "c = nn.BCEWithLogitsLoss().cuda()\nfor z, t in loader:\n    p = z\n    loss = c(p, t)",
            id="a variable",
        ),
        pytest.param(
            "z = a + b\nz = torch.sigmoid(z)\nloss = F.binary_cross_entropy(z, t)\nprint((z > 0.5).sum(), z.shape)",
            "z = a + b\nloss = F.binary_cross_entropy_with_logits(z, t)\nprint((torch.sigmoid(z) > 0.5).sum(), z.shape)",
            id="read again",
        ),
        pytest.param(
            "p = torch.sigmoid(z)\na = F.binary_cross_entropy(p, t)\nb = nn.BCELoss()(p, u)",
            "p = z\na = F.binary_cross_entropy_with_logits(p, t)\nb = nn.BCEWithLogitsLoss()(p, u)",
            id="two losses of one sigmoid",
        ),
    ],
)
def test_sigmoids_in_sight(before: str, after: str) -> None:
    """The loss takes what the sigmoid took; who else reads the probabilities applies it there."""
    check_transformed(RULE, HEAD + before + "\n", HEAD + after + "\n")


def test_names_that_are_imported_alone_are_exchanged() -> None:
    """The import of the old loss goes where nothing uses it."""
    check_transformed(
        RULE,
        "from torch import sigmoid\nfrom torch.nn import BCELoss\n\nloss = BCELoss()(sigmoid(z), t)\nprint(sigmoid(t))\n",
        "from torch import sigmoid\nfrom torch.nn import BCEWithLogitsLoss\n\nloss = BCEWithLogitsLoss()(z, t)\nprint(sigmoid(t))\n",
    )


def test_the_sigmoid_at_the_end_of_a_network_moves_to_its_readers() -> None:
    """Thresholds, roundings and returned predictions see probabilities as before."""
    rest = """\


def predict(net, x):
    return (net(x).squeeze() >= 0.5).float()


def score(x):
    p = net(x)
    return p.round(), p.size(0)


print(predict(net, torch.ones(1, 4)))
"""
    after = SEEN.replace("torch.sigmoid(x)", "x").replace("BCELoss", "BCEWithLogitsLoss") + rest.replace("net(x)", "torch.sigmoid(net(x))")
    notes = check_transformed(RULE, SEEN + rest, after)
    assert any("outside this project" in note for note in notes[0].notes)


def test_two_losses_of_one_network_change_together() -> None:
    """A loss for training and one for testing; neither may see a sigmoid twice."""
    test = "\n\ndef test(x, y):\n    check = nn.BCELoss()\n    out = net(x)\n    return check(out, y), out > 0.5\n"
    after = SEEN.replace("torch.sigmoid(x)", "x") + test.replace("out >", "torch.sigmoid(out) >")
    check_transformed(RULE, SEEN + test, after.replace("BCELoss", "BCEWithLogitsLoss"))


def test_the_network_and_its_readers_may_stand_in_other_files() -> None:
    """One finding, taken in all files or in none."""
    train = HEAD + "from model import Net\n\n" + TRAIN
    predict = "import torch\nfrom model import Net\n\nnet = Net()\nnet.load_state_dict(torch.load('net.pt'))\nprint(net(x) > 0.5)\n"
    check_program(
        RULE,
        {"model.py": HEAD + NETWORK, "train.py": train, "predict.py": predict},
        {
            "model.py": HEAD + NETWORK.replace("torch.sigmoid(x)", "x"),
            "train.py": train.replace("BCELoss", "BCEWithLogitsLoss"),
            "predict.py": predict.replace("net(x)", "torch.sigmoid(net(x))"),
        },
    )


GAN = """\
import torch
from torch import nn

device = torch.device("cuda")


class Discriminator(nn.Module):
    def __init__(self, ngpu):
        super().__init__()
        self.ngpu = ngpu
        self.main = nn.Sequential(
            nn.Linear(8, 16),
            nn.LeakyReLU(0.2),
            nn.Linear(16, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        if x.is_cuda and self.ngpu > 1:
            output = nn.parallel.data_parallel(self.main, x, range(self.ngpu))
        else:
            output = self.main(x)
        return output.view(-1, 1).squeeze(1)


torch.manual_seed(3)
netD = Discriminator(1).to(device)
criterion = nn.BCELoss()
optimizer = torch.optim.SGD(netD.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(5)
for i in range(6):
    real = torch.randn(4, 8, generator=generator).to(device)
    label = torch.full((4,), float(i % 2), device=device)
    optimizer.zero_grad()
    output = netD(real).view(-1)
    loss = criterion(output, label)
    loss.backward()
    optimizer.step()
    print(loss.item(), output.mean().item(), int((output > 0.5).sum()))
torch.save(netD.state_dict(), "netD.pt")
"""


def numbers(text: str) -> list[float]:
    """The numbers that a script printed."""
    return [float(word) for word in text.split()]


def test_a_discriminator_computes_the_same(tmp_path: Path) -> None:
    """On the host losses, means and hits are the old ones up to rounding, and the saved names stay."""
    result = run_transform(RULE, GAN.replace('"cuda"', '"cpu"'))
    assert result.outcome is Outcome.CHANGED
    (tmp_path / "before.py").write_text(GAN.replace('"cuda"', '"cpu"') + "print(len(netD.state_dict()))\n")
    (tmp_path / "after.py").write_bytes(result.after + b"print(len(netD.state_dict()))\n")
    before, after = (numbers(run_on_cpu(tmp_path / name)) for name in ("before.py", "after.py"))
    assert after == pytest.approx(before, abs=1e-5)


def test_mixed_precision_takes_the_loop_in_the_same_run(tmp_path: Path) -> None:
    """What CUDA's autocast refuses before, it runs behind this rule; one run does both."""
    project = Project.of_texts({"train.py": GAN}, Declarations(Range(None)))
    rules = [Selected(rule, rule.options()) for rule in map(registry.find, (RULE, "amp-loop"))]
    result = fix("train.py", GAN.encode(), project, rules, EngineSettings(format="off"))
    after = result.after.decode()
    assert "BCEWithLogitsLoss" in after
    assert "torch.autocast" in after
    assert not any(note.reason and note.reason.code == "bce-loss" for note in result.notes)
    region = "with torch.autocast('cuda'):\n        loss = criterion(output, label)"
    (tmp_path / "banned.py").write_text(GAN.replace("loss = criterion(output, label)", region))
    with pytest.raises(ScriptFailed, match="unsafe to autocast"):
        run_on_fake_gpu(tmp_path / "banned.py")
    (tmp_path / "before.py").write_text(GAN)
    (tmp_path / "after.py").write_text(after)
    before, now = (numbers(run_on_fake_gpu(tmp_path / name)[0]) for name in ("before.py", "after.py"))
    assert now == pytest.approx(before, abs=0.05)
