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
        pytest.param(
            "p = torch.sigmoid(z)\np.view(-1).clamp_(0.1)\nloss = F.binary_cross_entropy(p, t)", "tied-to-the-output", id="a view"
        ),
        pytest.param("p = torch.sigmoid(z)\np.data.zero_()\nloss = F.binary_cross_entropy(p, t)", "tied-to-the-output", id="its data"),
        pytest.param(
            "p = torch.sigmoid(z)\np.view(-1)[0] = 1\nloss = F.binary_cross_entropy(p, t)", "tied-to-the-output", id="a view's item"
        ),
        pytest.param(
            "p = torch.sigmoid(z)\nloss = F.binary_cross_entropy(p, t)\np *= 2\nprint(p)", "tied-to-the-output", id="doubled later"
        ),
        pytest.param("p = torch.sigmoid(z)\nloss = F.binary_cross_entropy(p, t)\nprint(p.grad)", "tied-to-the-output", id="its gradient"),
        pytest.param(
            "p = torch.sigmoid(z)\np.retain_grad()\nloss = F.binary_cross_entropy(p, t)", "tied-to-the-output", id="which is kept"
        ),
        pytest.param(
            "p = torch.sigmoid(z)\ntorch.round(z, out=p)\nloss = F.binary_cross_entropy(p, t)", "tied-to-the-output", id="as a place"
        ),
        pytest.param(
            "def clip(p):\n    p.clamp_(0.1)\n\np = torch.sigmoid(z)\nclip(p)\nloss = F.binary_cross_entropy(p, t)",
            "tied-to-the-output",
            id="in place, by a function",
        ),
        pytest.param("p, q = make(z)\nloss = F.binary_cross_entropy(p, t)", "not-a-sigmoid", id="one of two, out of sight"),
        pytest.param("p = torch.sigmoid(z)\nloss = F.binary_cross_entropy(p[0], t)", "not-a-sigmoid", id="an item of a tensor or a tuple"),
        pytest.param(
            "def f(p, t):\n    return F.binary_cross_entropy(p, t)\n\nf(torch.sigmoid(z), t)\nf(q, t)",
            "not-a-sigmoid",
            id="one caller of two",
        ),
        pytest.param(
            "def f(p, t):\n    return F.binary_cross_entropy(p, t)\n\nf(*given)\nf(torch.sigmoid(z), t)",
            "not-a-sigmoid",
            id="a caller with stars",
        ),
        pytest.param(
            "def f(p, t):\n    return F.binary_cross_entropy(p, t)\n\nf(torch.sigmoid(z), t)\nfit(f)",
            "not-a-sigmoid",
            id="a function handed on",
        ),
        pytest.param(
            "def head(z):\n    return torch.sigmoid(z)\n\nloss = F.binary_cross_entropy(head(z), t)\nfit(head)",
            "not-a-sigmoid",
            id="a maker handed on",
        ),
        pytest.param(
            "def head(z):\n    if z.sum() > 0:\n        return z\n    return torch.sigmoid(z)\n\nloss = F.binary_cross_entropy(head(z), t)",
            "not-a-sigmoid",
            id="a maker that does so sometimes",
        ),
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
        pytest.param(
            "net = Net()\n", "net = Net()\nhook = net.register_forward_hook\n", "out-of-sight", id="asked for a method of every network"
        ),
        pytest.param(
            "torch.sigmoid(x)\n\n\nnet = Net()\n",
            "self.sigmoid(x)\n\n\nnet = Net()\nnet.sigmoid.register_forward_hook(h)\n",
            "not-a-sigmoid",
            id="a layer with a hook",
        ),
        pytest.param("net = Net()\n", "net = Net()\nnet.sigmoid = nn.Identity()\n", "out-of-sight", id="a layer exchanged from outside"),
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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "def f(p, t):\n    return F.binary_cross_entropy(p, t) + p.mean()\n\na = f(torch.sigmoid(z), t)\nb = f(t=u, p=y.sigmoid())",
            "def f(p, t):\n    return F.binary_cross_entropy_with_logits(p, t) + torch.sigmoid(p).mean()\n\na = f(z, t)\nb = f(t=u, p=y)",
            id="a parameter, all callers in sight",
        ),
        pytest.param(
            "def head(z):\n    return torch.sigmoid(z), z\n\np, raw = head(z)\nloss = F.binary_cross_entropy(p, t)\nprint(p, raw)",
            "def head(z):\n    return z, z\n\np, raw = head(z)\nloss = F.binary_cross_entropy_with_logits(p, t)\n"
            "print(torch.sigmoid(p), raw)",
            id="one of two that a function returns",
        ),
        pytest.param(
            "def head(z):\n    return torch.sigmoid(z), z\n\nout = head(z)\nloss = F.binary_cross_entropy(out[0], t)\nprint(out[0])",
            "def head(z):\n    return z, z\n\nout = head(z)\nloss = F.binary_cross_entropy_with_logits(out[0], t)\n"
            "print(torch.sigmoid(out[0]))",
            id="by its index",
        ),
        pytest.param(
            "p = torch.sigmoid(z)\nloss = F.binary_cross_entropy(p[:, 0], t)\nbest = p[mask].data.round()",
            "p = z\nloss = F.binary_cross_entropy_with_logits(p[:, 0], t)\nbest = torch.sigmoid(p)[mask].data.round()",
            id="some of a tensor",
        ),
        pytest.param(
            "c = nn.BCELoss()\nif cuda:\n    c = nn.BCELoss().cuda()\nloss = c(torch.sigmoid(z), t)",
            "c = nn.BCEWithLogitsLoss()\nif cuda:\n    c = nn.BCEWithLogitsLoss().cuda()\nloss = c(z, t)",
            id="either of two losses",
        ),
    ],
)
def test_sigmoids_behind_functions_and_tuples(before: str, after: str) -> None:
    """The way back goes through parameters, results, tuples and their parts, and the readers of each part are its own."""
    check_transformed(RULE, HEAD + before + "\n", HEAD + after + "\n")


def test_an_attribute_that_holds_now_one_loss_and_now_another_is_one_of_logits_in_both_cases() -> None:
    """Both constructions change in one finding."""
    before = """
    from torch import nn

    class Trainer:
        def __init__(self, cuda):
            self.net = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
            self.loss = nn.BCELoss()
            self.to_cuda(cuda)

        def to_cuda(self, cuda):
            if cuda:
                self.loss = nn.BCELoss().cuda()

        def step(self, x, y):
            return self.loss(self.net(x), y)
    """
    check_transformed(RULE, before, before.replace("BCELoss", "BCEWithLogitsLoss").replace(", nn.Sigmoid()", ""))


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


def test_a_sigmoid_outside_of_networks_is_nobody_elses_business() -> None:
    """What the network gives stays what it was, and so there is nothing to say of it."""
    notes = check_transformed(
        RULE,
        HEAD + "p = torch.sigmoid(z)\nloss = F.binary_cross_entropy(p, t)\nprint(p)\n",
        HEAD + "p = z\nloss = F.binary_cross_entropy_with_logits(p, t)\nprint(torch.sigmoid(p))\n",
    )
    assert not any("outside this project" in note for note in notes[0].notes)


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


def test_a_network_of_a_package_that_lists_and_hands_on_its_name() -> None:
    """``__all__`` and the package's face only name the class."""
    model = '__all__ = ["Net"]\n' + HEAD + NETWORK
    train = HEAD + "from nets import Net\n\n" + TRAIN
    check_program(
        RULE,
        {"nets/__init__.py": 'from .net import Net\n\n__all__ = ["Net"]\n', "nets/net.py": model, "train.py": train},
        {
            "nets/__init__.py": 'from .net import Net\n\n__all__ = ["Net"]\n',
            "nets/net.py": model.replace("torch.sigmoid(x)", "x"),
            "train.py": train.replace("BCELoss", "BCEWithLogitsLoss"),
        },
    )


def test_a_loss_of_the_project_in_another_file() -> None:
    """Its parameter holds logits for all who call it."""
    loss = HEAD + "def objective(output, target):\n    return F.binary_cross_entropy(output, target)\n"
    train = HEAD + "from loss import objective\n\nfor z, y in loader:\n    value = objective(torch.sigmoid(z), y)\n"
    check_program(
        RULE,
        {"loss.py": loss, "train.py": train},
        {"loss.py": loss.replace("entropy", "entropy_with_logits"), "train.py": train.replace("torch.sigmoid(z)", "z")},
    )


def test_a_method_that_a_class_below_replaces_keeps_its_sigmoid() -> None:
    """What runs may be the other one."""
    text = """
    import torch
    import torch.nn.functional as F

    class Task:
        def head(self, z):
            return torch.sigmoid(z)

        def loss(self, z, t):
            return F.binary_cross_entropy(self.head(z), t)

    class Soft(Task):
        def head(self, z):
            return z.softmax(1)
    """
    check_held(RULE, text, "not-a-sigmoid")


def test_a_part_that_goes_out_of_sight_keeps_its_sigmoid() -> None:
    """A tuple that is handed on whole is read by whoever gets it."""
    heads = SEEN.replace("return torch.sigmoid(x)", "return torch.sigmoid(x), x")
    heads = heads.replace("loss = criterion(net(x), y)", "out = net(x)\n    loss = criterion(out[0], y)\n    save(out)")
    check_held(RULE, heads, "not-a-sigmoid")


def numbers(text: str) -> list[float]:
    """The numbers that a script printed."""
    return [float(word) for word in text.split()]


AUTOENCODER = """\
import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda")


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 6)
        self.mean = nn.Linear(6, 2)
        self.spread = nn.Linear(6, 2)
        self.fc3 = nn.Linear(2, 6)
        self.fc4 = nn.Linear(6, 8)
        self.kind = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid())

    def encode(self, x):
        hidden = F.relu(self.fc1(x))
        return self.mean(hidden), self.spread(hidden), hidden

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mean, spread, hidden = self.encode(x)
        return self.decode(mean + 0.1 * torch.exp(0.5 * spread)), mean, spread, self.kind(hidden)


def objective(seen, x, mean, spread):
    return F.binary_cross_entropy(seen, x, reduction="sum") - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())


torch.manual_seed(2)
model = VAE().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kind_loss = nn.BCELoss()
generator = torch.Generator().manual_seed(5)
for step in range(6):
    x = torch.rand(4, 8, generator=generator).to(device)
    kind = (x[:, :1] > 0.5).float()
    optimizer.zero_grad()
    seen, mean, spread, guessed = model(x)
    loss = objective(seen, x, mean, spread) + kind_loss(guessed, kind)
    loss.backward()
    optimizer.step()
    hits = (guessed.data > 0.5).float().sum()
    print(loss.item(), seen.float().mean().item(), guessed.float().mean().item(), hits.item())
model.eval()
with torch.no_grad():
    out, _, _, sure = model(torch.full((2, 8), 0.25, device=device))
    print(out.float().sum().item(), sure.float().round().sum().item(), model.decode(torch.ones(1, 2, device=device)).float().sum().item())
"""


def test_an_autoencoder_with_two_heads_computes_the_same(tmp_path: Path) -> None:
    """Both heads give logits, to their losses; pictures, thresholds and samples see probabilities as before."""
    text = AUTOENCODER.replace('"cuda"', '"cpu"')
    result = run_transform(RULE, text)
    after = result.after.decode()
    assert "binary_cross_entropy(" not in after and "BCELoss" not in after and "nn.Sigmoid" not in after
    assert "torch.sigmoid(model.decode(" in after
    (tmp_path / "before.py").write_text(text)
    (tmp_path / "after.py").write_text(after)
    before, now = (numbers(run_on_cpu(tmp_path / name)) for name in ("before.py", "after.py"))
    assert len(before) == 27
    assert now == pytest.approx(before, abs=1e-4)


def test_an_autoencoder_trains_in_mixed_precision_behind_this_rule(tmp_path: Path) -> None:
    """One run gives its losses logits and its loop autocast."""
    project = Project.of_texts({"train.py": AUTOENCODER}, Declarations(Range(None)))
    rules = [Selected(rule, rule.options()) for rule in map(registry.find, (RULE, "amp-loop"))]
    result = fix("train.py", AUTOENCODER.encode(), project, rules, EngineSettings(format="off"))
    assert "torch.autocast" in result.after.decode(), [note.reason for note in result.notes]
    (tmp_path / "before.py").write_text(AUTOENCODER)
    (tmp_path / "after.py").write_bytes(result.after)
    before, now = (numbers(run_on_fake_gpu(tmp_path / name)[0]) for name in ("before.py", "after.py"))
    assert now == pytest.approx(before, rel=0.02, abs=0.05)


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
