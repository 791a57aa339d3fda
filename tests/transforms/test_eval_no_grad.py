"""eval-no-grad: which forward passes lose their graph and in which form, which keep it, and which are held."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.result import Note
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "eval-no-grad"
HEAD = """\
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
teacher = nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(data)
"""
TRAIN = """\
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
"""


def noop(text: str, **arguments: object) -> None:
    """Check that some lines behind the head stay as they are."""
    check_noop(RULE, HEAD + dedent(text), **arguments)


def held(text: str, code: str, **arguments: object) -> Note:
    """Check that some lines behind the head are held."""
    return check_held(RULE, HEAD + dedent(text), code, **arguments)


def changed(before: str, after: str, **arguments: object) -> tuple[Note, ...]:
    """Check what becomes of some lines behind the head."""
    return check_transformed(RULE, HEAD + dedent(before), HEAD + dedent(after), **arguments)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(TRAIN, id="training"),
        pytest.param("with torch.no_grad():\n    for x, y in loader:\n        print(net(x).argmax(1))", id="around the loop"),
        pytest.param("for x, y in loader:\n    with torch.no_grad():\n        print(net(x).argmax(1))", id="inside the loop"),
        pytest.param("with torch.inference_mode():\n    for x, y in loader:\n        print(net(x).argmax(1))", id="inference mode"),
        pytest.param("with torch.set_grad_enabled(False):\n    for x, y in loader:\n        print(net(x).argmax(1))", id="switched off"),
        pytest.param("@torch.no_grad()\ndef f():\n    for x, y in loader:\n        print(net(x).argmax(1))\nf()", id="decorated"),
        pytest.param("@torch.no_grad\ndef f():\n    for x, y in loader:\n        print(net(x).argmax(1))\nf()", id="F91 without a call"),
        pytest.param("torch.set_grad_enabled(False)\nfor x, y in loader:\n    print(net(x).argmax(1))", id="switched off for good"),
        pytest.param("print(net(torch.ones(3, 2)).shape)", id="one forward of a demonstration"),
        pytest.param("for x, y in loader:\n    print(F.relu(x), nn.ReLU()(x))", id="no weights"),
        pytest.param("import pytest\nnet.eval()\nfor x, y in loader:\n    print(net(x).argmax(1))", id="a unit test"),
        pytest.param("for epoch in range(3):\n" + indent(TRAIN, "    ") + "    print(epoch)", id="epochs"),
    ],
)
def test_left_alone(text: str) -> None:
    """Training, what has gradients off already, and single forward passes yield nothing."""
    noop(text)


def test_callers_that_have_gradients_off_are_enough() -> None:
    """A function that is only called without gradients needs no switch of its own, also from another file."""
    text = """
    def scores():
        net.eval()
        for x, y in loader:
            print(net(x).argmax(1))
    """
    noop(text, path="engine.py", modules={"main.py": "import torch\nfrom engine import scores\nwith torch.no_grad():\n    scores()\n"})
    noop(text, path="engine.py", modules={"main.py": "import torch\nfrom engine import scores\n@torch.no_grad()\ndef f():\n    scores()\n"})


def test_lightning_hooks_are_left_alone() -> None:
    """Trap 10: Lightning switches gradients off around validation itself."""
    text = """
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(2, 2)

        def validation_step(self, batch, i):
            for x in batch:
                print(self.net(x).argmax(1))
    """
    noop(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            """
            def attack(x, y):
                net.eval()
                x.requires_grad_()
                loss = F.cross_entropy(net(x), y)
                loss.backward()
                return x + 0.1 * x.grad.sign()

            for x, y in loader:
                print(attack(x, y))
            """,
            id="adversarial attack",
        ),
        pytest.param(
            """
            net.eval()
            for x, y in loader:
                features = net(x)
                F.mse_loss(teacher(x), features).backward()
            """,
            id="an output used in a loss",
        ),
        pytest.param(
            """
            def encode(x):
                net.eval()
                return net(x)

            for x, y in loader:
                F.mse_loss(encode(x), y).backward()
            """,
            id="an output returned into a loss",
        ),
        pytest.param(
            """
            store = []
            net.eval()
            for x, y in loader:
                store.append(net(x))
            torch.cat(store).mean().backward()
            """,
            id="outputs kept for a loss",
        ),
        pytest.param(
            """
            class Trainer:
                def look(self):
                    net.eval()
                    for x, y in loader:
                        self.out = net(x)

                def learn(self):
                    self.out.mean().backward()
            """,
            id="an attribute read by training",
        ),
        pytest.param(
            """
            def penalty(real):
                scores = net(real)
                return torch.autograd.grad(scores.sum(), real, create_graph=True)[0].norm()

            for x, y in loader:
                print(penalty(x.requires_grad_()))
            """,
            id="gradient penalty",
        ),
        pytest.param(
            """
            for x, y in loader:
                def closure():
                    optimizer.zero_grad()
                    loss = F.cross_entropy(net(x), y)
                    loss.backward()
                    return loss
                optimizer.step(closure)
            """,
            id="closure",
        ),
    ],
)
def test_trap_outputs_that_training_uses_keep_their_graph(text: str) -> None:
    """Traps 1, 2, 3 and 7: attacks, penalties, features and closures."""
    result = run_transform(RULE, HEAD + dedent(text))
    assert not [note for note in result.notes if note.outcome == "fixed"]


def test_trap_a_loss_that_the_step_forgets_is_left_alone() -> None:
    """A loss beside a training step that never goes backward is a slip, which a switch would only hide."""
    text = """
    for x, y in loader:
        optimizer.zero_grad()
        real = F.cross_entropy(net(x), y)
        F.cross_entropy(net(x + 1), y).backward()
        optimizer.step()
        print(real.item())
    """
    noop(text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(
            """
            from unknown import report

            net.eval()
            for x, y in loader:
                report(net(x))
            """,
            "out-of-sight",
            id="outputs handed out of sight",
        ),
        pytest.param(
            """
            def predictions():
                net.eval()
                for x, y in loader:
                    yield net(x)
            """,
            "out-of-sight",
            id="a generator whose consumer is out of sight",
        ),
        pytest.param(
            """
            class Energy(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = nn.Linear(2, 1)

                def forward(self, x):
                    energy = self.layer(x.requires_grad_())
                    return torch.autograd.grad(energy.sum(), x)[0]

            energy = Energy()
            energy.eval()
            for x, y in loader:
                print(energy(x).mean().item())
            """,
            "gradients-used",
            id="a network that differentiates",
        ),
    ],
)
def test_held(text: str, code: str) -> None:
    """Evaluations on purpose that cannot be proved to need no gradients are held."""
    held(text, code)


def test_trap_padded_positions_are_held() -> None:
    """Trap 4: without gradients an encoder makes the outputs of padded positions zeros."""
    text = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2)

        def forward(self, x, mask):
            return self.encoder(x, src_key_padding_mask=mask)

    model = Model()
    model.eval()
    for x, mask in loader:
        print(model(x, mask).mean().item())
    """
    held(text, "padding-zeroed")


def test_f09_a_block_of_autocast_is_not_shared_with_training() -> None:
    """F09: weights cached without gradients would be found by the training pass."""
    text = """
    for x, y in loader:
        with torch.autocast("cuda"):
            soft = net(x).argmax(1)
            loss = F.cross_entropy(net(x), soft)
        loss.backward()
        optimizer.step()
    """
    held(text, "shared-autocast")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            """
            net.eval()
            right = 0
            for x, y in loader:
                right += net(x).argmax(1).eq(y).sum().item()
            print(right)
            """,
            """
            net.eval()
            right = 0
            with torch.no_grad():
                for x, y in loader:
                    right += net(x).argmax(1).eq(y).sum().item()
            print(right)
            """,
            id="a loop of a script",
        ),
        pytest.param(
            """
            def validate(model, criterion):
                model.eval()
                total = 0
                for x, y in loader:
                    out = model(x)
                    total += criterion(out, y)
                return total / len(loader)

            for epoch in range(2):
                print(validate(net, nn.CrossEntropyLoss()))
            """,
            """
            @torch.no_grad()
            def validate(model, criterion):
                model.eval()
                total = 0
                for x, y in loader:
                    out = model(x)
                    total += criterion(out, y)
                return total / len(loader)

            for epoch in range(2):
                print(validate(net, nn.CrossEntropyLoss()))
            """,
            id="a function",
        ),
        pytest.param(
            """
            def predictions():
                net.eval()
                for x, y in loader:
                    yield net(x).argmax(1)

            print(list(predictions()))
            """,
            """
            @torch.no_grad()
            def predictions():
                net.eval()
                for x, y in loader:
                    yield net(x).argmax(1)

            print(list(predictions()))
            """,
            id="trap 5, a generator, by its decorator",
        ),
        pytest.param(
            """
            class Trainer:
                @staticmethod  # no self
                # between
                def test():
                    for x, y in loader:
                        print(net(x).argmax(1))

            Trainer.test()
            """,
            """
            class Trainer:
                @staticmethod  # no self
                # between
                @torch.no_grad()
                def test():
                    for x, y in loader:
                        print(net(x).argmax(1))

            Trainer.test()
            """,
            id="F91 inside another decorator",
        ),
        pytest.param(
            """
            @click.command()
            def main():
                net.eval()
                for x, y in loader:
                    print(net(x).argmax(1))
            """,
            """
            @click.command()
            def main():
                net.eval()
                with torch.no_grad():
                    for x, y in loader:
                        print(net(x).argmax(1))
            """,
            id="F91 a decorator that changes the signature",
        ),
        pytest.param(
            """
            for i, (x, y) in enumerate(loader):
                optimizer.zero_grad()
                loss = F.cross_entropy(net(x), y)
                loss.backward()
                optimizer.step()
                if i % 10 == 0:
                    net.eval()
                    out = net(held_out)
                    loss = F.cross_entropy(out, targets)
                    print(loss.item(), out.argmax(1))
                    net.train()
            """,
            """
            for i, (x, y) in enumerate(loader):
                optimizer.zero_grad()
                loss = F.cross_entropy(net(x), y)
                loss.backward()
                optimizer.step()
                if i % 10 == 0:
                    net.eval()
                    with torch.no_grad():
                        out = net(held_out)
                    loss = F.cross_entropy(out, targets)
                    print(loss.item(), out.argmax(1))
                    net.train()
            """,
            id="a test inside the training loop",
        ),
        pytest.param(
            """
            for step in range(100):
                values = net(torch.Tensor(obs))
                action = torch.argmax(values, dim=1).cpu().numpy()
                obs = env.step(action)
                x, y = memory.sample()
                F.mse_loss(net(x), y).backward()
                optimizer.step()
            """,
            """
            for step in range(100):
                with torch.no_grad():
                    values = net(torch.Tensor(obs))
                action = torch.argmax(values, dim=1).cpu().numpy()
                obs = env.step(action)
                x, y = memory.sample()
                F.mse_loss(net(x), y).backward()
                optimizer.step()
            """,
            id="choice of an action",
        ),
        pytest.param(
            """
            for x, y in loader:
                soft = teacher(x).detach()
                F.mse_loss(net(x), soft).backward()
                optimizer.step()
            """,
            """
            for x, y in loader:
                with torch.no_grad():
                    soft = teacher(x).detach()
                F.mse_loss(net(x), soft).backward()
                optimizer.step()
            """,
            id="a teacher",
        ),
        pytest.param(
            """
            from unknown import plugins

            net.eval()
            for x, y in loader:
                print(net(x).argmax(1))
                plugins.hooks[0](net)
            """,
            """
            from unknown import plugins

            net.eval()
            for x, y in loader:
                with torch.no_grad():
                    print(net(x).argmax(1))
                plugins.hooks[0](net)
            """,
            id="beside code out of sight that is given the network",
        ),
        pytest.param(
            """
            net.eval()
            for x, y in loader:
                out = net(x)
                print(out.argmax(1), torch.is_grad_enabled())
            """,
            """
            net.eval()
            for x, y in loader:
                with torch.no_grad():
                    out = net(x)
                print(out.argmax(1), torch.is_grad_enabled())
            """,
            id="beside code that asks for gradients",
        ),
        pytest.param(
            """
            def run(x):
                return net(x)

            def train():
                for x, y in loader:
                    F.mse_loss(run(x), y).backward()
                    optimizer.step()

            def test():
                for x, y in loader:
                    print(run(x).argmax(1))

            train()
            test()
            """,
            """
            def run(x):
                return net(x)

            def train():
                for x, y in loader:
                    F.mse_loss(run(x), y).backward()
                    optimizer.step()

            @torch.no_grad()
            def test():
                for x, y in loader:
                    print(run(x).argmax(1))

            train()
            test()
            """,
            id="a helper that training uses too",
        ),
    ],
)
def test_gradients_go_off(before: str, after: str) -> None:
    """A decorator for a function that evaluates, a block for a loop, and for single forward passes their statements."""
    notes = changed(before, after)
    assert {note.risk for note in notes} == {"exact"}


def test_a_model_out_of_sight_that_is_put_into_evaluation_is_numeric() -> None:
    """``model.eval()`` tells a network; whether it holds an encoder with a fast path is not seen, which the user reads."""
    text = """
    def validate(model):
        model.eval()
        for x, y in loader:
            print(model(x).argmax(1))
    """
    (note,) = changed(text, text.replace("    def validate", "    @torch.no_grad()\n    def validate"))
    assert note.effects == ("numerics",)
    assert "TransformerEncoder" in note.notes[0]


def test_trap_an_encoder_in_another_file_is_numeric() -> None:
    """Trap 4: its fast path is taken where gradients are off, so the last digits may differ."""
    model = "from torch import nn\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    model += "        self.layer = nn.TransformerEncoderLayer(8, 2)\n\n    def forward(self, x):\n        return self.layer(x)\n"
    text = "from models import Model\n\nmodel = Model()\nmodel.eval()\n"
    before = text + "for x, y in loader:\n    print(model(x).argmax(1))\n"
    after = text + "with torch.no_grad():\n    for x, y in loader:\n        print(model(x).argmax(1))\n"
    (note,) = changed(before, after, modules={"models.py": model})
    assert note.risk == "numeric"


PHASES = """
for epoch in range(3):
    for phase in ["train", "val"]:
        for x, y in loader:
            optimizer.zero_grad()
            out = net(x)
            loss = F.cross_entropy(out, y)
            if phase == "train":
                loss.backward()
                optimizer.step()
            print(loss.item())
"""


def test_trap_training_and_evaluation_in_one_loop() -> None:
    """Trap 6: where a condition tells the two apart and surely is a bool, gradients follow it."""
    after = PHASES.replace(
        "            out = net(x)\n", '            with torch.set_grad_enabled(phase == "train"):\n                out = net(x)\n'
    ).replace('(phase == "train"):\n    ', "(phase == 'train'):\n    ")
    changed(PHASES, after)


EPOCH = """
def run_epoch(train):
    for x, y in loader:
        out = net(x)
        loss = F.cross_entropy(out, y)
        if train:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(loss.item())

run_epoch(True)
run_epoch(False)
"""


def test_trap_a_function_for_training_and_evaluation() -> None:
    """Trap 6: a parameter that is only ever True or False is a bool; another one is held."""
    changed(EPOCH, EPOCH.replace("        out = net(x)\n", "        with torch.set_grad_enabled(train):\n            out = net(x)\n"))
    held(EPOCH.replace("run_epoch(False)", "run_epoch(options.train)"), "train-and-eval")


def test_f57_inference_mode_is_neither_written_nor_changed() -> None:
    """F57: what is made under ``no_grad`` can still be used by training; what its author put under ``inference_mode`` stays."""
    before = "net.eval()\nfor x, y in loader:\n    print(net(x).argmax(1))\n"
    assert "inference_mode" not in run_transform(RULE, HEAD + before).after.decode()
    noop("with torch.inference_mode():\n    " + before.replace("\n", "\n    ").rstrip(" "))


def test_file_without_torch_itself_gets_the_import() -> None:
    """Where ``torch`` has no name in the file, its import is added."""
    before = "from torch import nn\n\nnet = nn.Linear(2, 2)\nnet.eval()\nfor x in batches:\n    print(net(x).argmax(1))\n"
    result = run_transform(RULE, before).after.decode()
    assert "import torch\n" in result
    assert "with torch.no_grad():\n    for x in batches:" in result


SCRIPT = """
import torch
from torch import nn
import torch.nn.functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 2)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batches = [(torch.randn(6, 3).to(device), torch.randint(2, (6,)).to(device)) for _ in range(4)]
saved = []


def count(tensor):
    saved.append(tensor)
    return tensor


def validate(model):
    model.eval()
    total, right = 0.0, 0
    for x, y in batches:
        out = model(x)
        total += F.cross_entropy(out, y).item()
        right += (out.argmax(1) == y).sum().item()
    return total, right


for epoch in range(2):
    net.train()
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        guess = net(x).argmax(1)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        total, right = validate(net)
    print(f"{total:.9f}", right, guess.tolist())
print([f"{value:.9f}" for p in net.parameters() for value in p.detach().flatten().tolist()])
"""


@pytest.mark.parametrize("run", [lambda path: run_on_cpu(path), lambda path: run_on_fake_gpu(path)[0]], ids=["cpu", "fakegpu"])
def test_numbers_stay_and_nothing_is_saved_for_a_backward_pass(run: object, tmp_path: Path) -> None:
    """Bit-equal totals and parameters; validation saves no tensor any more."""
    after = run_transform(RULE, SCRIPT).after.decode()
    assert "@torch.no_grad()\ndef validate" in after
    assert "with torch.no_grad():\n            guess" in after
    (tmp_path / "before.py").write_text(SCRIPT + "print(len(saved))\n")
    (tmp_path / "after.py").write_text(after + "print(len(saved))\n")
    *numbers, many = run(tmp_path / "before.py").splitlines()  # type: ignore[operator]
    *same, none = run(tmp_path / "after.py").splitlines()  # type: ignore[operator]
    assert numbers == same
    assert int(many) > 0
    assert int(none) == 0


def test_example_of_the_rule_runs_the_same(tmp_path: Path) -> None:
    """What the rule prints as Before and After is what it does, and prints the same number."""
    rule = registry.find(RULE)
    check_transformed(RULE, rule.before, rule.after)
    (tmp_path / "before.py").write_text(rule.before)
    (tmp_path / "after.py").write_text(rule.after)
    assert run_on_cpu(tmp_path / "before.py") == run_on_cpu(tmp_path / "after.py")


def test_an_lstm_is_numeric() -> None:
    """On the CPU ``nn.LSTM`` takes another kernel without gradients, in training mode too: the last digits may differ."""
    text = """
    lstm = nn.LSTM(3, 3)

    def validate():
        total = 0
        for x, y in loader:
            total += lstm(x)[0].sum().item()
        return total
    """
    (note,) = changed(text, text.replace("    def validate", "    @torch.no_grad()\n    def validate"))
    assert note.effects == ("numerics",)


def test_state_that_a_recursive_function_detaches_is_followed() -> None:
    """A function that calls itself for the parts of a hidden state is entered once, and what it gives has no graph."""
    text = """
    cell = nn.RNN(3, 3)

    def repackage(h):
        if isinstance(h, torch.Tensor):
            return h.detach()
        return tuple(repackage(v) for v in h)

    def validate():
        cell.eval()
        h = None
        for x, y in loader:
            out, h = cell(x, h)
            h = repackage(h)
            print(out.sum().item())
    """
    changed(text, text.replace("    def validate", "    @torch.no_grad()\n    def validate"))


STORING = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        self.seen = self.first(x)
        return self.second(self.seen)

net = Net()

def validate():
    net.eval()
    for x, y in loader:
        print(net(x).argmax(1))
"""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(STORING + "validate()\nnet.seen.sum().backward()\n", "used-in-training", id="features that the network stores"),
        pytest.param(
            STORING + "kept = []\nnet.first.register_forward_hook(lambda m, i, o: kept.append(o))\nvalidate()\nkept[0].sum().backward()\n",
            "used-in-training",
            id="features that a hook keeps",
        ),
        pytest.param(
            "import functools\n@functools.lru_cache()\ndef embed(i):\n    return net(table[i])\n"
            "def validate():\n    net.eval()\n    for i in range(9):\n        print(embed(i).argmax(1))\n"
            "def train():\n    embed(3).sum().backward()\n",
            "out-of-sight",
            id="outputs that a cache gives again",
        ),
        pytest.param(
            "import functools\nslope = functools.partial(torch.autograd.grad, create_graph=True)\n"
            "class Energy(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(3, 1)\n"
            "    def forward(self, x):\n        return slope(self.layer(x).sum(), self.layer.weight)[0]\n"
            "net = Energy()\ndef validate():\n    net.eval()\n    for x, y in loader:\n        print(net(x).norm().item())\n",
            "gradients-used",
            id="gradients by a partial function",
        ),
    ],
)
def test_what_outlives_a_pass_is_held(text: str, code: str) -> None:
    """What an evaluation leaves behind in networks, hooks and caches, and gradients that it takes itself, keep gradients on."""
    held(text, code)
