"""amp-loop where functions or methods run the network for the loop: which of them get a region of their own, and which are held."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tests.transforms.amp_runs import run_before_and_after
from torchfix.result import Outcome
from torchfix.testing import check_held, check_program, check_transformed, run_on_program, run_transform

RULE = "amp-loop"
HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(x)


"""
SET_UP = """\
use_amp = device.type == "cuda"
amp_dtype = torch.bfloat16 if use_amp and torch.cuda.get_device_capability()[0] >= 8 else torch.float16
scaler = torch.amp.GradScaler("cuda", enabled=use_amp and amp_dtype is torch.float16)
"""
OWN_SET_UP = SET_UP.replace("amp_dtype", "self.amp_dtype").replace("use_amp", "self.use_amp").replace("scaler =", "self.scaler =")
REGION = 'with torch.autocast("cuda", dtype=self.amp_dtype, enabled=self.use_amp):'
OPTIMIZER = "self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)\n"
LOSSES = """\
def process_batch(self, batch):
    x, y = (item.to(device) for item in batch)
    out = self.model(x)
    losses = {"loss": self.criterion(out, y), "size": (out ** 2).mean()}
    return out, losses
"""
LOSSES_AFTER = """\
def process_batch(self, batch):
    x, y = (item.to(device) for item in batch)
    with autocast:
        out = self.model(x).float()
    losses = {"loss": self.criterion(out, y), "size": (out ** 2).mean()}
    return out, losses
"""
LOOP = """\
out, losses = self.process_batch(batch)
loss = losses["loss"]
self.optimizer.zero_grad()
loss.backward()
self.optimizer.step()
"""
WHOLE = "def compute_loss(self, batch):\n    x, y = batch\n    return self.criterion(self.model(x.to(device)), y.to(device))\n"
ONE = WHOLE.replace("    return", "    note(x)\n    return")  # what runs beside it must not come under autocast
ONE_AFTER = """\
def compute_loss(self, batch):
    x, y = batch
    note(x)
    with autocast:
        return self.criterion(self.model(x.to(device)), y.to(device))
"""
ONE_LOOP = "loss = self.compute_loss(batch)\n" + LOOP.split("\n", 2)[2]


def trainer(methods: str, loop: str, *, optimizer: str = OPTIMIZER, front: str = "", base: str = "") -> str:
    """A class that trains, with these methods and statements of its loop."""
    return (
        f"{HEAD}class Trainer{base}:\n    def __init__(self):\n{indent(front, '        ')}"
        "        self.model = Net().to(device)\n        self.criterion = nn.CrossEntropyLoss()\n"
        f"{indent(optimizer, '        ')}\n{indent(methods, '    ')}\n"
        f"    def fit(self, batches):\n        for batch in batches:\n{indent(loop, '            ')}            print(loss.item())\n"
    )


def scaled(loop: str) -> str:
    """The statements of a loop with its scaler."""
    text = loop.replace("loss.backward()", "self.scaler.scale(loss).backward()")
    return text.replace("self.optimizer.step()\n", "self.scaler.step(self.optimizer)\nself.scaler.update()\n")


def apart(given: str = "loss") -> str:
    """A script whose loss is computed by a function of another file."""
    step = f"{given} = compute_loss(model, x.to(device), y.to(device))\n" + ONE_LOOP.partition("\n")[2].replace("self.", "")
    made = "model = Net().to(device)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    return f"from steps import compute_loss\n\n{HEAD}{made}for x, y in batches:\n{indent(step, '    ')}"


def guarded(code: str, calls: str = "return compute_loss(batches[0])") -> str:
    """A script that trains behind its main guard, with a function beside it that may call that of the loss."""
    functions = ONE.replace("self, ", "").replace("self.", "") + f"\n\ndef evaluate(batches):\n    {calls}\n\n\n"
    made = "model, criterion = Net().to(device), nn.CrossEntropyLoss()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    return f"{HEAD}{functions}if __name__ == '__main__':\n{indent(made, '    ')}{code}"


# What is held --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words", "text"),
    [
        pytest.param(
            "forward-elsewhere",
            "compute_loss (line 24 of train.py) runs the network or its backward pass, and may run before the optimizer",
            trainer(ONE, ONE_LOOP, front="", optimizer="self.compute_loss((torch.ones(1, 8), torch.zeros(1).long()))\n" + OPTIMIZER),
            id="it runs in the constructor, before the optimizer is there",
        ),
        pytest.param(
            "forward-elsewhere",
            "binds variables of other scopes",
            trainer(ONE.replace("    x, y", "    global seen\n    seen = x, y"), ONE_LOOP),
            id="it binds globals",
        ),
        pytest.param(
            "forward-elsewhere",
            "is decorated",
            trainer("@timed\n" + ONE, ONE_LOOP),
            id="it is decorated",
        ),
        pytest.param(
            "forward-elsewhere",
            "may run before",
            trainer(ONE + f"\ndef set_up(self):\n    {OPTIMIZER}", ONE_LOOP, optimizer="self.set_up()\n"),
            id="a method that is no constructor makes the optimizer",
        ),
        pytest.param(
            "double-backward",
            "compute_loss (line 23 of train.py) takes gradients on line 28",
            trainer(
                ONE.replace("return self.criterion", "loss = self.criterion")
                + "    if y.any():\n        loss.backward(retain_graph=True)\n    return loss\n",
                ONE_LOOP,
            ),
            id="it may send something backward itself",
        ),
        pytest.param(
            "forward-elsewhere",
            "does so in a function of its own",
            trainer(ONE.replace("return self", "run = lambda x: self.model(x)\n    return self"), ONE_LOOP),
            id="a lambda in it runs the network",
        ),
        pytest.param(
            "forward-elsewhere",
            "calls features (line",
            trainer(
                ONE.replace("y.to(device))", "self.features(y))") + "\ndef features(self, y):\n    return self.model(y).argmax(1)\n",
                ONE_LOOP,
            ),
            id="another one that runs the network is called in its region",
        ),
        pytest.param(
            "half-escapes",
            "in process_batch (line",
            trainer(LOSSES.replace("(out, y)", "(out['all'], y)").replace("(out ** 2)", "out['all']"), LOOP).replace(
                "return self.fc(x)", "return {'all': self.fc(x)}"
            ),
            id="half precision leaves it in a dictionary",
        ),
        pytest.param(
            "forward-elsewhere",
            "may run where no optimizer is made",
            trainer(ONE, ONE_LOOP, optimizer=f"if train:\n    {OPTIMIZER}    self.fit(batches)\n"),
            id="the constructor trains as soon as it has an optimizer",
        ),
        pytest.param(
            "optimizer-elsewhere",
            "Other (line 37 of train.py) would inherit the training, but not make the scaler",
            trainer(ONE, ONE_LOOP) + "\n\nclass Other(Trainer):\n    def __init__(self):\n        self.model = Net()\n",
            id="a class below is made without it",
        ),
        pytest.param(
            "forward-elsewhere",
            "may run where no optimizer is made",
            guarded("    for batch in batches:\n" + indent(ONE_LOOP.replace("self.", ""), "        ") + "    evaluate(batches)\n"),
            id="a function of a script that others may import calls it too",
        ),
        pytest.param(
            "double-backward",
            "line 25 takes gradients by hand",
            trainer(ONE.replace("x, y = batch", "x, y = batch\n    torch.autograd.grad(x, y)"), ONE_LOOP),
            id="it takes gradients by hand",
        ),
    ],
)
def test_functions_that_run_the_network_are_held(code: str, words: str, text: str) -> None:
    """The words name the function and its line."""
    check_held(RULE, text, code)
    (note,) = run_transform(RULE, text).notes
    assert words in note.reason.text, note.reason.text


def test_a_function_in_another_file_that_must_be_read_alone_is_held() -> None:
    """What autocast needs is bound in the loop's file."""
    function = "def compute_loss(model, x, y):\n    out = model(x)\n    return nn.functional.cross_entropy(out, y), out\n"
    results = run_on_program(RULE, {"steps.py": f"from torch import nn\n\n\n{function}", "train.py": apart("loss, out")})
    (note,) = results["train.py"].notes
    assert note.reason is not None and note.reason.code == "forward-elsewhere" and "compute_loss (line 4 of steps.py)" in note.reason.text


# What is rewritten ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "after", "loop"),
    [
        pytest.param(LOSSES, LOSSES_AFTER, LOOP, id="losses in a dictionary"),
        pytest.param(ONE, ONE_AFTER, ONE_LOOP, id="the loss at once"),
        pytest.param(
            ONE.replace("self.model(x.to(device))", "self.predict(x)") + "\ndef predict(self, x):\n    return self.model(x.to(device))\n",
            ONE.replace("self.model(x.to(device))", "self.predict(x)")
            + "\ndef predict(self, x):\n    with autocast:\n        return self.model(x.to(device)).float()\n",
            ONE_LOOP,
            id="a method of a method",
        ),
        pytest.param(
            "def forward(self, x):\n    self.out = self.model(x.to(device))\n",
            "def forward(self, x):\n    with autocast:\n        self.out = self.model(x.to(device)).float()\n",
            "x, y = batch\nself.forward(x)\nloss = self.criterion(self.out, y.to(device))\n" + LOOP.split("\n", 2)[2],
            id="what it stores in the instance",
        ),
    ],
)
def test_a_method_that_runs_the_network_gets_a_region_of_its_own(methods: str, after: str, loop: str) -> None:
    """What it returns or stores stays float32, so that nobody else who reads it notices."""
    expected = trainer(after.replace("with autocast:", REGION), scaled(loop), optimizer=OPTIMIZER + OWN_SET_UP)
    check_transformed(RULE, trainer(methods, loop), expected)


def test_what_is_needed_is_made_also_where_only_training_makes_an_optimizer() -> None:
    """A method that evaluates reads the same attributes without it."""
    only = f"if torch.is_grad_enabled():\n    {OPTIMIZER}"
    check_transformed(
        RULE,
        trainer(ONE, ONE_LOOP, optimizer=only),
        trainer(ONE_AFTER.replace("with autocast:", REGION), scaled(ONE_LOOP), optimizer=only + OWN_SET_UP),
    )


def test_bfloat16_needs_no_scaler_there_either() -> None:
    """Only the switch stands beside the optimizer."""
    after = run_transform(RULE, trainer(ONE, ONE_LOOP), dtype="bfloat16")
    assert after.outcome is Outcome.CHANGED
    text = after.after.decode()
    assert "self.use_amp = device.type" in text and "scaler" not in text
    assert 'with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.use_amp):' in text


def test_a_function_of_the_script_reads_the_scripts_own_switch() -> None:
    """Both are global."""
    function = "def compute_loss(x, y):\n    note(x)\n    out = model(x.to(device))\n    return F.cross_entropy(out, y.to(device))\n\n\n"
    made = "model = Net().to(device)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    step = "loss = compute_loss(x, y)\n" + ONE_LOOP.partition("\n")[2]
    loop, loop_after = (f"for x, y in batches:\n{indent(text, '    ')}".replace("self.", "") for text in (step, scaled(step)))
    region = 'with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):\n'
    after = function.replace("    out =", f"    {region}        out =").replace("    return", "        return")
    check_transformed(RULE, HEAD + function + made + loop, HEAD + after + made + SET_UP + loop_after)


def test_a_function_of_which_all_can_run_under_autocast_is_called_there() -> None:
    """Nobody else who calls it notices; the loss of torch is float32, and half precision goes nowhere else."""
    loop = ONE_LOOP.replace("loss = self.compute_loss(batch)", f"{REGION}\n    loss = self.compute_loss(batch)")
    check_transformed(RULE, trainer(WHOLE, ONE_LOOP), trainer(WHOLE, scaled(loop), optimizer=OPTIMIZER + OWN_SET_UP))


def test_a_function_in_another_file_is_called_under_autocast() -> None:
    """That file stays as it is."""
    function = "from torch import nn\n\n\ndef compute_loss(model, x, y):\n    return nn.functional.cross_entropy(model(x), y)\n"
    call = "    loss = compute_loss(model, x.to(device), y.to(device))\n"
    region = REGION.replace("self.", "")
    made = "lr=0.1)\n"
    after = apart().replace("    optimizer.step()\n", "    scaler.step(optimizer)\n    scaler.update()\n").replace(made, made + SET_UP)
    after = after.replace("    loss.backward()", "    scaler.scale(loss).backward()")
    after = after.replace(call, f"    {region}\n    {call}")
    check_program(RULE, {"steps.py": function, "train.py": apart()}, {"steps.py": function, "train.py": after})


def test_a_method_that_a_class_below_may_write_anew_is_not_called_under_autocast() -> None:
    """That version is not read; the one that is gets a region of its own."""
    text = trainer(WHOLE, ONE_LOOP) + "\n\nclass Other(Trainer):\n    def compute_loss(self, batch):\n        return library.loss(batch)\n"
    after = run_transform(RULE, text).after.decode()
    assert f"x, y = batch\n        {REGION}\n            return self.criterion" in after


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("    scores = out @ out.T\n", id="a product by hand"),
        pytest.param("    size = (out * out).mean()\n", id="arithmetic on half precision"),
        pytest.param("    keep(out)\n", id="half precision goes out of sight"),
        pytest.param("    x = library.augment(x)\n", id="code out of sight"),
        pytest.param("    x = twist(x, y)\n", id="a function of the project that multiplies matrices"),
        pytest.param("    self.out = out\n", id="half precision stays in the object"),
        pytest.param(
            "    with torch.no_grad():\n        self.model(x.to(device)).argmax(1)\n", id="the network also runs without gradients"
        ),
    ],
)
def test_a_function_that_does_more_is_not_called_under_autocast(code: str) -> None:
    """It would compute something else, or something of it would stay half."""
    body = f"    x, y = batch\n    out = self.model(x.to(device))\n{code}    return self.criterion(out, y.to(device))\n"
    text = trainer(f"def compute_loss(self, batch):\n{body}", ONE_LOOP).replace(
        "class Trainer", "def twist(x, y):\n    return x @ y\n\n\nclass Trainer"
    )
    result = run_transform(RULE, text)
    assert f"{REGION}\n                loss = self.compute_loss(batch)" not in result.after.decode()


def test_a_script_reads_the_switch_behind_its_main_guard() -> None:
    """Where nothing else calls the function."""
    loop = "    for batch in batches:\n" + indent(ONE_LOOP.replace("self.", ""), "        ")
    after = run_transform(RULE, guarded(loop, calls="pass")).after.decode()
    assert f"lr=0.1)\n{indent(SET_UP, '    ')}    for batch" in after
    assert f"    note(x)\n    {REGION}\n".replace("self.", "") in after


def test_a_method_that_evaluates_too_is_told() -> None:
    """Its evaluation computes in half precision as well."""
    evaluation = "\n@torch.no_grad()\ndef evaluate(self, batch):\n    return self.compute_loss(batch).item()\n"
    (note,) = run_transform(RULE, trainer(ONE + evaluation, ONE_LOOP)).notes
    assert any("evaluation batches" in words for words in note.notes), note


RUN = """\
torch.manual_seed(0)
trainer = Trainer()
trainer.fit([(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(4)])
"""


PROGRAMS = {
    "losses in a dictionary": (LOSSES, LOOP),
    "called under autocast": (WHOLE, ONE_LOOP),
    "a region in the method": (ONE.replace("note(x)", "print(x.dtype)"), ONE_LOOP),
    "what it stores in the instance": (
        "def forward(self, x):\n    self.out = self.model(x.to(device))\n",
        "x, y = batch\nself.forward(x)\nloss = self.criterion(self.out, y.to(device))\n" + LOOP.split("\n", 2)[2],
    ),
}


def test_they_train_as_before(tmp_path: Path) -> None:
    """Bit for bit without CUDA; nearly so in bfloat16 and float16, with every layer in half precision and every step by the scaler."""
    texts = {name: f"{trainer(*parts)}\n\n{RUN}" for name, parts in PROGRAMS.items()}
    run_before_and_after({name: (text, run_transform(RULE, text).after.decode()) for name, text in texts.items()}, tmp_path)


TWO_OPTIMIZERS = f"""{HEAD}class Agent:
    def __init__(self):
        self.actor = Net().to(device)
        self.actor_optimizer = torch.optim.SGD(self.actor.parameters(), lr=0.1)
        self.critic = Net().to(device)
        self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.1)

    def act(self, batches):
        optimizer = self.actor_optimizer
        for x, y in batches:
            loss = F.cross_entropy(self.actor(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(repr(loss.item()))

    def criticize(self, batches):
        for x, y in batches:
            loss = F.cross_entropy(self.critic(x.to(device)), y.to(device))
            self.critic_optimizer.zero_grad()
            loss.backward()
            self.critic_optimizer.step()
            print(repr(loss.item()))


torch.manual_seed(3)
agent = Agent()
for epoch in range(2):
    agent.act([(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(3)])
    agent.criticize([(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(3)])
"""


def test_the_optimizers_of_an_object_share_a_scaler_that_lives_as_long() -> None:
    """It is made once, behind the last of them, and not anew where a method gives one of them a shorter name."""
    result = run_transform(RULE, TWO_OPTIMIZERS)
    assert result.outcome is Outcome.CHANGED
    text = result.after.decode()
    made = "self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.1)\n" + OWN_SET_UP
    assert indent(made, "        ") in text
    assert text.count("GradScaler(") == 1
    assert "self.scaler.step(optimizer)\n" in text


def test_they_train_as_before_and_keep_its_scale(tmp_path: Path) -> None:
    """Bit for bit on the CPU, and close to float32 in half precision."""
    run_before_and_after({"two": (TWO_OPTIMIZERS, run_transform(RULE, TWO_OPTIMIZERS).after.decode())}, tmp_path)
