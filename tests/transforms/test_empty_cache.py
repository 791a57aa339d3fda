"""empty-cache: which calls go, which stay without a word, and which are held."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.result import Note, Outcome
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "empty-cache"
HEAD = """\
import gc
import time
import torch
from torch import nn
from torch.utils.data import DataLoader

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(2, 2).to(device)
other = nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(data)
"""
LOOP = """\
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        loss = net(x.to(device)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
CALL = "torch.cuda.empty_cache()"


def at_end(lines: str) -> str:
    """A training script with some lines at the end of each batch."""
    return HEAD + LOOP + indent(dedent(lines), " " * 8)


def changed(before: str, after: str) -> tuple[Note, ...]:
    """Check some lines at the end of each batch."""
    return check_transformed(RULE, at_end(before), at_end(after))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{CALL}\n", id="once"),
        pytest.param(f"{LOOP}    {CALL}\n", id="once an epoch"),
        pytest.param(f"{LOOP}    if torch.cuda.is_available():\n        {CALL}\n", id="once an epoch, guarded"),
        pytest.param(f"{LOOP}{CALL}\n", id="at the end"),
        pytest.param(f"def clean():\n    {CALL}\n{LOOP}    clean()\n", id="in a function that is called once an epoch"),
        pytest.param(f"for trial in range(3):\n    del model\n    {CALL}\n", id="between trials, after a deletion"),
        pytest.param(f"{LOOP}        try:\n            net(x)\n        except RuntimeError:\n            {CALL}\n", id="after an error"),
        pytest.param(
            f"{LOOP}        full = False\n        try:\n            net(x)\n        except RuntimeError:\n            full = True\n"
            f"        if full:\n            {CALL}\n            net(x[:1])\n",
            id="before a second try",
        ),
        pytest.param(
            f"def run():\n    for x, y in loader:\n        net(x)\n{LOOP}        if i % 9 == 0:\n            {CALL}\n            run()\n",
            id="before a periodic evaluation",
        ),
        pytest.param(
            f"{LOOP}        if i % 9 == 0:\n            net.eval()\n            validate(net)\n            if torch.cuda.is_available():\n"
            f"                {CALL}\n",
            id="after a periodic evaluation",
        ),
        pytest.param(f"{LOOP}        later(lambda: {CALL})\n", id="callback"),
        pytest.param(f"{LOOP}        torch.mps.empty_cache()\n        torch.xpu.empty_cache()\n", id="other devices"),
        pytest.param(f"{LOOP}        empty_cache()\n", id="a function of another name"),
        pytest.param(f"class Trainer:\n    def step(self):\n        {CALL}\n", id="a method that nothing is seen to call"),
    ],
)
def test_left_alone(text: str) -> None:
    """Calls that do not run for every batch, or only after an error, are no finding."""
    check_noop(RULE, HEAD + text)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        pytest.param(f"other.cpu()\n{CALL}\nother.cuda()\n", "network-leaves", id="networks swapped"),
        pytest.param(f'net = net.to("cpu")\n{CALL}\n', "network-leaves", id="network moved to the host"),
        pytest.param(f'self.teacher.to("cpu")\n{CALL}\n', "network-leaves", id="something moved as a statement"),
        pytest.param(f"del net\n{CALL}\n", "network-leaves", id="network deleted"),
        pytest.param(f"judge = load(i)\njudge(x)\ndel judge\n{CALL}\n", "network-leaves", id="something callable deleted"),
        pytest.param(f"try:\n    pass\nfinally:\n    {CALL}\n", "error-path", id="finally"),
        pytest.param(f"{CALL}\nprint(torch.cuda.max_memory_reserved())\n", "memory-measured", id="memory measured"),
        pytest.param(f"torch.cuda.reset_peak_memory_stats()\n{CALL}\n", "memory-measured", id="peak reset"),
        pytest.param(f"if torch.cuda.memory_allocated() > limit:\n    {CALL}\n", "memory-guard", id="memory runs short"),
        pytest.param(f"used = torch.cuda.memory_allocated()\nif used > limit:\n    {CALL}\n", "memory-guard", id="memory in a variable"),
        pytest.param(f"{CALL}\nend = time.time()\n", "timed", id="clock behind"),
        pytest.param(f"if torch.cuda.is_available():\n    {CALL}\nend = time.perf_counter()\n", "timed", id="clock behind the condition"),
        pytest.param(f"{CALL}\ntorch.cuda.synchronize()\nstop.record()\n", "timed", id="event behind"),
        pytest.param(f"if i in milestones:\n    {CALL}\n", "now-and-then", id="rare event"),
        pytest.param(f"if loss > 9:\n    print(loss)\n    {CALL}\n", "now-and-then", id="event of a batch"),
        pytest.param(f"with torch.cuda.device(1):\n    {CALL}\n", "own-context", id="context of its own"),
        pytest.param(f"if config.clear_often:\n    {CALL}\n", "own-option", id="option of its own"),
        pytest.param(
            f"if config.every > 0 and i % config.every == 0:\n    gc.collect()\n    {CALL}\n", None, id="option beside other work"
        ),
    ],
)
def test_held(lines: str, code: str | None) -> None:
    """Where something else may need the memory, or the call has an owner, it stays and the reason is told."""
    if code is None:
        assert run_transform(RULE, at_end(lines)).outcome is Outcome.CHANGED
    else:
        assert "memory" in check_held(RULE, at_end(lines), code).effects


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(f"def clean():\n    gc.collect()\n    {CALL}\n{LOOP}        clean()\n", "own-function", id="function for this alone"),
        pytest.param(
            f"def log(x):\n    print(x)\n    {CALL}\n{LOOP}        log(x)\n    log(0)\n",
            "shared-function",
            id="function called elsewhere too",
        ),
        pytest.param(
            f"def train(clear):\n{indent(LOOP, '    ')}            if clear:\n                {CALL}\n", "own-option", id="parameter"
        ),
        pytest.param(f"import ray\n{LOOP}        {CALL}\n", "shared-device", id="actors"),
        pytest.param(f"net.share_memory()\n{LOOP}        {CALL}\n", "shared-device", id="shared weights"),
        pytest.param(
            f"import torch.multiprocessing as mp\n{LOOP}        {CALL}\nmp.Process(target=act).start()\n", "shared-device", id="processes"
        ),
    ],
)
def test_held_by_the_program(text: str, code: str) -> None:
    """Functions for this alone, functions with other callers, and processes that share a device keep the call."""
    check_held(RULE, HEAD + text, code)


def test_line_with_two_statements_is_held() -> None:
    """A line that holds another statement too is not torn apart."""
    check_held(RULE, at_end(f"del loss; {CALL}\n"), "shared-line")


def test_the_import_goes_with_its_last_use() -> None:
    """A name that was imported for the call alone is not left behind; one that is still used is."""
    head = HEAD.replace("from torch import nn\n", "from torch import nn\nfrom torch.cuda import empty_cache\n")
    step, once = f"{LOOP}        print(x)\n", "    empty_cache()\n"
    check_transformed(RULE, f"{head}{step}        empty_cache()\n", f"{HEAD}{step}")
    check_transformed(RULE, f"{head}{step}        empty_cache()\n{once}", f"{head}{step}{once}")


def test_documented_example() -> None:
    """What the rule says of itself is what it does."""
    rule = registry.find(RULE)
    (note,) = check_transformed(rule, rule.before, rule.after)
    assert (note.risk, note.effects) == ("behavior", ("memory",))
    assert "expandable_segments" in note.notes[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(f"{CALL}\n", "", id="plain"),
        pytest.param(f"# make room\n{CALL}\n", "# make room\n", id="comment above"),
        pytest.param(f"{CALL}  # make room\n", "# make room\n", id="comment beside"),
        pytest.param(
            f"del x, y, loss\ngc.collect()\n{CALL}\n", "del x, y, loss\ngc.collect()\n", id="tensors deleted and garbage collected"
        ),
        pytest.param(f"if torch.cuda.is_available():\n    {CALL}\n", "", id="on a GPU"),
        pytest.param(f"if device.type == 'cuda':\n    {CALL}\n", "", id="on the GPU in use"),
        pytest.param(f"if i % 10 == 0:\n    {CALL}\n", "", id="every ten batches"),
        pytest.param(f"if i % 10 == 0: {CALL}\n", "", id="on the condition's line"),
        pytest.param(f"if i % 10 == 0:\n    if torch.cuda.is_available():\n        {CALL}\n", "", id="two conditions"),
        pytest.param(f"if next(flags):\n    {CALL}\n", "next(flags)\n", id="condition with an effect"),
        pytest.param(f"if next(flags): {CALL}\n", "next(flags)\n", id="condition with an effect on the same line"),
        pytest.param(
            f"if next(flags):\n    if torch.cuda.is_available():\n        {CALL}\n",
            "next(flags)\n",
            id="condition with an effect around another",
        ),
        pytest.param(f"if not next(flags):\n    {CALL}\n", "if not next(flags):\n    pass\n", id="condition that is no call alone"),
        pytest.param(
            f"if i % 10 == 0:\n    # make room\n    {CALL}\n", "if i % 10 == 0:\n    # make room\n    pass\n", id="condition with a comment"
        ),
        pytest.param(f"if i % 10 == 0:\n    print(i)\n    {CALL}\n", "if i % 10 == 0:\n    print(i)\n", id="condition with other work"),
        pytest.param(
            f"if i % 2:\n    print(i)\nelse:\n    {CALL}\n",
            "if i % 2:\n    print(i)\nelse:\n    pass\n",
            id="the only statement of an else clause",
        ),
        pytest.param(
            f"if i % 2:\n    print(i)\nelif i % 3:\n    {CALL}\n",
            "if i % 2:\n    print(i)\nelif i % 3:\n    pass\n",
            id="the only statement of an elif clause",
        ),
        pytest.param(f"with torch.no_grad():\n    net(x)\n    {CALL}\n", "with torch.no_grad():\n    net(x)\n", id="in a context"),
        pytest.param(f"for part in x:\n    net(part)\n    {CALL}\n", "for part in x:\n    net(part)\n", id="several times for a batch"),
        pytest.param(f"{CALL}\nprint(torch.cuda.memory_allocated())\n", "print(torch.cuda.memory_allocated())\n", id="tensors measured"),
        pytest.param(f"start = time.time()\n{CALL}\nnet(x)\n", "start = time.time()\nnet(x)\n", id="clock read before"),
        pytest.param("torch.cuda.memory.empty_cache()\n", "", id="from its home"),
        pytest.param(f"x = x.cpu()\n{CALL}\n", "x = x.cpu()\n", id="behind a tensor that leaves"),
    ],
)
def test_calls_for_every_batch_go(before: str, after: str) -> None:
    """The call goes with the conditions that guard nothing else; what stands beside it and all comments stay."""
    (note,) = changed(before, after)
    assert note.effects == ("memory",)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"with torch.no_grad():\n    for x, y in loader:\n        net(x)\n        {CALL}\n", id="evaluation"),
        pytest.param(
            f"def test(net, batches):\n    net.eval()\n    for x in batches:\n        net(x.to(device))\n        {CALL}\n",
            id="evaluation with a loader out of sight",
        ),
        pytest.param(f"def tidy(x):\n    print(x)\n    {CALL}\n{LOOP}        tidy(x)\n", id="function called for every batch"),
        pytest.param(
            f"def tidy(x):\n    print(x)\n    {CALL}\n{LOOP}        if i % 10 == 0:\n            tidy(x)\n", id="called now and then"
        ),
        pytest.param(
            f"class Trainer:\n    def step(self, x):\n        loss = net(x).sum()\n        loss.backward()\n        {CALL}\n"
            "    def fit(self):\n        for x, y in loader:\n            self.step(x)\n",
            id="method called for every batch",
        ),
        pytest.param(
            f"class Model(nn.Module):\n    def forward(self, x):\n        {CALL}\n        return x\nnet = Model()\n{LOOP}",
            id="forward pass",
        ),
        pytest.param(
            f"import pytorch_lightning as pl\nclass Net(pl.LightningModule):\n    def training_step(self, batch):\n        {CALL}\n"
            "        return self(batch)\n",
            id="Lightning's training step",
        ),
        pytest.param(
            f"import lightning as L\nclass Tidy(L.Callback):\n    def on_train_batch_end(self):\n        log()\n        {CALL}\n",
            id="Lightning's callback",
        ),
    ],
)
def test_every_kind_of_loop_over_batches(text: str) -> None:
    """Evaluation, functions and methods that a loop calls, and what Lightning calls count alike."""
    result = run_transform(RULE, HEAD + text)
    assert CALL not in result.after.decode()


def test_function_of_another_file() -> None:
    """A function counts as called for every batch where another file's loop calls it."""
    main = HEAD + "from engine import step\n" + LOOP + "        step(x)\n"
    check_transformed(
        RULE,
        f"import torch\n\ndef step(x):\n    print(torch.is_tensor(x))\n    {CALL}\n",
        "import torch\n\ndef step(x):\n    print(torch.is_tensor(x))\n",
        path="engine.py",
        modules={"main.py": main},
    )


SCRIPT = f"""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
loader = DataLoader(TensorDataset(torch.randn(12, 3), torch.randn(12, 1)), batch_size=4)
net = nn.Linear(3, 1).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.mse_loss(net(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(repr(loss.item()))
        if torch.cuda.is_available():
            {CALL}
    {CALL}
"""


def test_rewritten_program_trains_bit_for_bit(tmp_path: Path) -> None:
    """Losses are the same, and the cache is emptied once an epoch instead of once a batch more."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SCRIPT)
    result = run_transform(RULE, SCRIPT)
    assert result.outcome is Outcome.CHANGED
    after.write_bytes(result.after)
    old, counts = run_on_fake_gpu(before)
    new, fewer = run_on_fake_gpu(after)
    assert new == old
    assert (counts["empty_cache"], fewer["empty_cache"]) == (8, 2)
    assert run_on_cpu(after) == run_on_cpu(before)
