"""amp-loop where a loop calls a function or method that trains once for each batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix.result import Outcome
from torchfix.testing import check_held, check_noop, check_program, check_transformed, run_on_program, run_transform

RULE = "amp-loop"
HEAD = """\
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(3)
batches = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(6)]


"""
BY_HAND = """\
def train_step(model, criterion, optimizer, x, y):
    \"\"\"One batch.\"\"\"
    optimizer.zero_grad()
    loss = criterion(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    model = nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        print(train_step(model, nn.CrossEntropyLoss(), optimizer, x, y))


main()
"""
BY_HAND_AFTER = """\
def train_step(model, criterion, optimizer, x, y, scaler):
    \"\"\"One batch.\"\"\"
    use_amp = device.type == "cuda"
    amp_dtype = torch.bfloat16 if use_amp and not scaler.is_enabled() else torch.float16
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):
        loss = criterion(model(x.to(device)), y.to(device))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def main():
    model = nn.Linear(8, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=device.type == "cuda" and torch.cuda.get_device_capability()[0] < 8)
    for x, y in batches:
        print(train_step(model, nn.CrossEntropyLoss(), optimizer, x, y, scaler=scaler))


main()
"""
METHOD = """\
class Trainer:
    def __init__(self, model):
        self.model = model.to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, x, y):
        out = self.model(x.to(device))
        loss = nn.functional.cross_entropy(out, y.to(device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach(), out

    def fit(self):
        for x, y in batches:
            loss, out = self.step(x, y)
            print(loss.item(), out.dtype)


Trainer(nn.Linear(8, 3)).fit()
"""
METHOD_AFTER = """\
class Trainer:
    def __init__(self, model):
        self.model = model.to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.use_amp = device.type == "cuda"
        self.amp_dtype = torch.bfloat16 if self.use_amp and torch.cuda.get_device_capability()[0] >= 8 else torch.float16
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.use_amp and self.amp_dtype is torch.float16)

    def step(self, x, y):
        with torch.autocast("cuda", dtype=self.amp_dtype, enabled=self.use_amp):
            out = self.model(x.to(device)).float()
            loss = nn.functional.cross_entropy(out, y.to(device))
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach(), out

    def fit(self):
        for x, y in batches:
            loss, out = self.step(x, y)
            print(loss.item(), out.dtype)


Trainer(nn.Linear(8, 3)).fit()
"""


def after_of(text: str) -> str:
    """What the rule makes of a script."""
    result = run_transform(RULE, text)
    assert result.outcome is Outcome.CHANGED, [note.reason for note in result.notes]
    return result.after.decode()


def test_a_function_that_scales_by_itself_is_left() -> None:
    """Nothing is to be gained."""
    text = BY_HAND.replace("loss.backward()", "scaler.scale(loss).backward()").replace("optimizer.step()", "scaler.step(optimizer)")
    check_noop(RULE, HEAD + text)


def test_an_optimizer_that_one_caller_hides_is_held() -> None:
    """The scaler must reach the function from every caller."""
    text = BY_HAND.replace("\nmain()\n", "\ndef other(given, x, y):\n    train_step(*given, x, y)\n\n\nmain()\n")
    check_held(RULE, HEAD + text, "optimizer-not-seen")


@pytest.mark.parametrize(
    ("before", "after"),
    [pytest.param(BY_HAND, BY_HAND_AFTER, id="a function"), pytest.param(METHOD, METHOD_AFTER, id="a method")],
)
def test_what_trains_once_for_each_call_is_converted(before: str, after: str) -> None:
    """The scaler comes as the optimizer does: by parameter, or beside it in the object."""
    (note,) = check_transformed(RULE, HEAD + before, HEAD + after)
    assert (HEAD + before).splitlines()[note.line - 1].strip().startswith("for ")


def test_a_function_in_another_file_is_changed_with_its_caller() -> None:
    """One finding, at the loop."""
    function, rest = BY_HAND.split("def main", 1)
    after_function, after_rest = BY_HAND_AFTER.split("def main", 1)
    imports = HEAD[: HEAD.index("torch.manual_seed")]
    before = {"steps.py": f"{imports}\n\n{function}".rstrip() + "\n", "train.py": f"from steps import train_step\n{HEAD}def main{rest}"}
    after = {
        "steps.py": f"{imports}\n\n{after_function}".rstrip() + "\n",
        "train.py": f"from steps import train_step\n{HEAD}def main{after_rest}".replace(
            'device.type == "cuda"', "torch.cuda.is_available()"
        ),
    }
    (note,) = check_program(RULE, before, after)
    assert note.line


def test_two_loops_that_call_it_are_one_finding() -> None:
    """Also where they stand in two files."""
    function, rest = BY_HAND.split("def main", 1)
    imports = HEAD[: HEAD.index("torch.manual_seed")]
    text = f"from steps import train_step\n{HEAD}def main{rest}"
    results = run_on_program(RULE, {"steps.py": f"{imports}\n\n{function}", "first.py": text, "second.py": text})
    assert [note.outcome for result in results.values() for note in result.notes] == ["fixed"]
    assert all(result.outcome is Outcome.CHANGED for result in results.values())


def test_the_programs_train_as_before(tmp_path: Path) -> None:
    """Bit for bit on the CPU, and close to it in half precision on a GPU."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(HEAD + BY_HAND + METHOD)
    after.write_text(after_of(HEAD + BY_HAND + METHOD))
    assert run_on_cpu(before) == run_on_cpu(after)
    old, new = (run_on_fake_gpu(path, capability="8.0")[0].split() for path in (before, after))
    assert old != new
    for one, other in zip(old, new, strict=True):
        assert one == other or float(one) == pytest.approx(float(other), rel=3e-2)


def learner(text: str) -> str:
    """The class without its loop, with a network of its own."""
    own = text.replace("step(self, x, y)", "learn(self, x, y)").replace("__init__(self, model)", "__init__(self)")
    return own.replace("= model.to(device)", "= nn.Linear(8, 3).to(device)").partition("    def fit")[0]


def test_the_method_stands_for_a_loop_whose_object_is_not_seen() -> None:
    """Every call of that name is looked at, and what else touches gradients there holds it."""
    method, after = map(learner, (METHOD, METHOD_AFTER))
    loop = "trainer = globals()[name]()\nfor x, y in batches:\n    trainer.learn(x, y)\n"
    (note,) = check_transformed(RULE, f"{HEAD}{method}\n{loop}", f"{HEAD}{after}\n{loop}")
    assert f"{HEAD}{method}".splitlines()[note.line - 1].strip() == "def learn(self, x, y):"
    check_held(RULE, f"{HEAD}{method}\n{loop}    trainer.model.weight.grad.mul_(2)\n", "backward-elsewhere")
    check_noop(RULE, f"{HEAD}{method}")


def test_a_loop_of_another_object_says_nothing_of_the_method() -> None:
    """Where the object of a call is seen to be of another class, that call is another one's."""
    method, after = map(learner, (METHOD, METHOD_AFTER))
    other = "class Other:\n    def learn(self, x, y):\n        x.sum().backward()\n\n\n"
    loop = "other = Other()\ntrainer = globals()[name]()\nfor x, y in batches:\n    trainer.learn(x, y)\n"
    loops = f"{loop}for x, y in batches:\n    other.learn(x, y)\n"
    check_transformed(RULE, f"{HEAD}{other}{method}\n{loops}", f"{HEAD}{other}{after}\n{loops}")
