"""zero-grad: which gradients are dropped, which must stay tensors of zeros, and where the results stay the same."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.facts.project.versions import Version
from torchfix.result import Note, Outcome
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "zero-grad"
HEAD = """\
import torch
from torch import nn

net = nn.Linear(2, 2)
other = nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
"""
TRAIN = """\
for x in data:
    optimizer.zero_grad({})
    net(x).sum().backward()
    optimizer.step()
"""
FALSE = "set_to_none=False"
HAND = """\
for p in net.parameters():
    p.grad.zero_()
"""


def in_loop(lines: str) -> str:
    """A training script whose gradients are cleared by some lines behind the step."""
    return f"{HEAD}for x in data:\n    net(x).sum().backward()\n    optimizer.step()\n{indent(dedent(lines), '    ')}"


def changed(before: str, after: str, torch: Version | None = None) -> Note:
    """Check some lines behind the head; gives the one finding."""
    (note,) = check_transformed(RULE, HEAD + before, HEAD + after, torch=torch)
    return note


@pytest.mark.parametrize(
    ("text", "torch"),
    [
        pytest.param(TRAIN.format(""), None, id="torch not declared"),
        pytest.param(TRAIN.format(""), (2, 0), id="torch that drops by itself"),
        pytest.param(TRAIN.format(""), (1, 6), id="torch without the argument"),
        pytest.param(TRAIN.format("set_to_none=True"), (1, 8), id="dropped already"),
        pytest.param(TRAIN.format("set_to_none=choice"), None, id="by choice"),
        pytest.param(TRAIN.format("**options"), (1, 8), id="arguments out of sight"),
        pytest.param(in_loop(HAND)[len(HEAD) :], (1, 6), id="by hand, in a torch that cannot drop"),
        pytest.param(
            "for i, x in enumerate(data):\n    net(x).sum().backward()\n    if i % 4 == 0:\n        optimizer.step()\n"
            "        optimizer.zero_grad()\n",
            (1, 8),
            id="gradients that add up over batches",
        ),
        pytest.param("for p in net.parameters():\n    p.grad = None\n", None, id="dropped by hand"),
        pytest.param("for p in net.parameters():\n    p.data.zero_()\n", None, id="weights"),
        pytest.param("for p in net.parameters():\n    p.data -= 0.1 * p.grad\n    p.grad.zero_()\n", None, id="a step by hand"),
        pytest.param("w = torch.ones(2, requires_grad=True)\nw.grad.zero_()\n", None, id="one tensor"),
        pytest.param(
            "w, b = torch.ones(2), torch.zeros(2)\nfor p in [w, b]:\n    p.grad.zero_()\n", None, id="tensors that no network owns"
        ),
        pytest.param(
            "class Wrapper:\n    def zero_grad(self):\n        pass\nwrapper = Wrapper()\nwrapper.zero_grad()\n", (1, 8), id="own wrapper"
        ),
    ],
)
def test_left_alone(text: str, torch: Version | None) -> None:
    """What drops gradients already, cannot, or is no clearing of a network's gradients, is no finding."""
    check_noop(RULE, HEAD + text, torch=torch)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(TRAIN.format(FALSE).replace("False)", "False)  # keep the buffers"), "explicit", id="trap 2: comment beside"),
        pytest.param(TRAIN.format(FALSE).replace("    opt", "    # keep the buffers\n    opt", 1), "explicit", id="trap 2: comment above"),
        pytest.param(f"for x in data:\n    optimizer.zero_grad({FALSE})\n    print(net.weight.grad)\n", "gradients-read", id="trap 1"),
        pytest.param(
            f"{TRAIN.format(FALSE)}for p in net.parameters():\n    print(p.grad.norm())\n", "gradients-read", id="trap 1: behind the loop"
        ),
        pytest.param(
            f"for x in data:\n    optimizer.zero_grad({FALSE})\n    if x:\n        net(x).sum().backward()\n    total = net.weight.grad\n"
            "    optimizer.step()\n",
            "gradients-read",
            id="trap 1: without a backward pass",
        ),
        pytest.param(
            f"{TRAIN.format(FALSE)}def add(gradients):\n    for p, g in zip(net.parameters(), gradients):\n        p.grad += g\n",
            "gradients-read",
            id="trap 3",
        ),
        pytest.param(f"net.share_memory()\n{TRAIN.format(FALSE)}", "shared-gradients", id="trap 4: Hogwild"),
        pytest.param(f"import torch.distributed.rpc as rpc\n{TRAIN.format(FALSE)}", "shared-gradients", id="trap 4: parameter server"),
        pytest.param(f"from torch.distributed import rpc\n{TRAIN.format(FALSE)}", "shared-gradients", id="trap 4: parameter server's name"),
        pytest.param(
            f"def share(one, two):\n    for a, b in zip(one, two):\n        b._grad = a.grad\n{TRAIN.format(FALSE)}",
            "shared-gradients",
            id="trap 4: gradients handed on",
        ),
        pytest.param(f"graph = torch.cuda.CUDAGraph()\n{TRAIN.format(FALSE)}", "gradients-in-place", id="trap 5: CUDA graph"),
        pytest.param(
            f"ddp = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)\n{TRAIN.format(FALSE)}",
            "gradients-in-place",
            id="trap 5: views of buckets",
        ),
        pytest.param(
            f"solver = torch.optim.LBFGS(net.parameters())\nsolver.zero_grad({FALSE})\n", "closure", id="trap 7: optimizer with a closure"
        ),
        pytest.param(
            f"def closure():\n    optimizer.zero_grad({FALSE})\n    loss = net(x).sum()\n    loss.backward()\n    return loss\n"
            "optimizer.step(closure)\n",
            "closure",
            id="trap 7: closure",
        ),
        pytest.param(f"solver = make()\nsolver.zero_grad({FALSE})\n", "owner-not-seen", id="optimizer out of sight"),
        pytest.param("def clear(params):\n    for p in params:\n        p.grad.zero_()\n", "owner-not-seen", id="parameters out of sight"),
        pytest.param("model = make()\nfor p in model.parameters():\n    p.grad.zero_()\n", "owner-not-seen", id="network out of sight"),
        pytest.param("for p in net.parameters(False):\n    p.grad.zero_()\n", "owner-not-seen", id="some parameters only"),
        pytest.param(
            "class Net(nn.Module):\n    def zero_grad(self):\n        for p in self.parameters():\n            p.grad.zero_()\n",
            "own-method",
            id="own method",
        ),
        pytest.param("for p in net.parameters():\n    # start anew\n    p.grad.zero_()\n", "explicit", id="comment in the loop"),
        pytest.param(f"{HAND}{HAND}", "gradients-read", id="two loops that need tensors"),
    ],
)
def test_held(text: str, code: str) -> None:
    """Where zeros may be needed, or the parameters are not known, the call stays."""
    check_held(RULE, HEAD + text, code)


def test_f53_code_that_reads_gradients_after_zeroing() -> None:
    """F53: neither the call nor the loop changes where something reads gradients."""
    text = """
    import torch

    def norms(model, opt, loss):
        opt.zero_grad(set_to_none=False)
        loss.backward()
        for p in model.parameters():
            print(p.grad.norm())
            p.grad.zero_()

    net = torch.nn.Linear(1, 1)
    norms(net, torch.optim.SGD(net.parameters(), 0.1), net(torch.ones(1)))
    """
    check_held(RULE, text, "gradients-read")


def test_reader_in_another_file() -> None:
    """A file of the same program that reads gradients counts as well."""
    main = "from steps import train\nfrom model import net\ntrain(net)\nprint(net.weight.grad)\n"
    steps = (
        "import torch\nfrom model import net\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n\ndef train(net):\n"
        f"    optimizer.zero_grad({FALSE})\n"
    )
    model = "import torch\nnet = torch.nn.Linear(1, 1)\n"
    note = check_held(RULE, steps, "gradients-read", path="steps.py", modules={"main.py": main, "model.py": model})
    assert note.reason is not None
    assert "main.py:4" in note.reason.text


def test_documented_example() -> None:
    """What the rule says of itself is what it does, exactly."""
    rule = registry.find(RULE)
    (note,) = check_transformed(rule, rule.before, rule.after)
    assert (note.risk, note.effects) == ("exact", ())


@pytest.mark.parametrize(
    ("before", "after", "torch"),
    [
        pytest.param(FALSE, "", None, id="keyword"),
        pytest.param("False", "", None, id="position"),
        pytest.param(FALSE, "", (2, 1), id="newer torch"),
        pytest.param(FALSE, "set_to_none=True", (1, 13), id="keyword, older torch"),
        pytest.param("False", "set_to_none=True", (1, 13), id="position, older torch"),
        pytest.param("", "set_to_none=True", (1, 13), id="not said, older torch"),
        pytest.param("", "set_to_none=True", (1, 7), id="not said, oldest torch"),
    ],
)
def test_calls_drop_gradients(before: str, after: str, torch: Version | None) -> None:
    """The call says what the oldest torch of the project needs to hear, and no more."""
    note = changed(TRAIN.format(before), TRAIN.format(after), torch)
    assert note.risk == "exact"


@pytest.mark.parametrize(
    ("loop", "call"),
    [
        pytest.param(HAND, "net.zero_grad()\n", id="plain"),
        pytest.param("for p in net.parameters():\n    p.grad.data.zero_()\n", "net.zero_grad()\n", id="data"),
        pytest.param("for p in net.parameters():\n    p.grad.fill_(0)\n", "net.zero_grad()\n", id="fill"),
        pytest.param("for n, p in net.named_parameters():\n    p.grad.zero_()\n", "net.zero_grad()\n", id="named"),
        pytest.param("for p in net.parameters():\n    if p.grad is not None:\n        p.grad.zero_()\n", "net.zero_grad()\n", id="guarded"),
        pytest.param(
            "for p in net.parameters():\n    if p.grad is not None:\n        p.grad.detach_()\n        p.grad.zero_()\n",
            "net.zero_grad()\n",
            id="as torch once did",
        ),
        pytest.param(
            "for p in net.parameters():\n    if p.grad is None:\n        continue\n    p.grad.zero_()\n", "net.zero_grad()\n", id="skipped"
        ),
        pytest.param(
            "for p in net.parameters():\n    if p.grad is not None:\n        if p.grad.grad_fn is not None:\n            p.grad.detach_()\n"
            "        else:\n            p.grad.requires_grad_(False)\n        p.grad.zero_()\n",
            "net.zero_grad()\n",
            id="as torch does",
        ),
        pytest.param(
            "for group in optimizer.param_groups:\n    for p in group['params']:\n        p.grad.zero_()\n",
            "optimizer.zero_grad()\n",
            id="groups of an optimizer",
        ),
    ],
)
def test_loops_become_calls(loop: str, call: str) -> None:
    """Every spelling of the loop becomes the one call that covers the same parameters (trap 6)."""
    (note,) = check_transformed(RULE, in_loop(loop), in_loop(call))
    assert note.risk == "exact"


def test_loop_over_a_list_of_parameters() -> None:
    """A list that was made of the parameters of a network stands for it."""
    text = "params = list(net.parameters())\nfor p in params:\n    p.grad.zero_()\n"
    changed(text, "params = list(net.parameters())\nnet.zero_grad()\n")


def test_loop_in_older_torch_says_that_it_drops() -> None:
    """Below torch 2.0 the call would fill with zeros unless told otherwise."""
    check_transformed(RULE, in_loop(HAND), in_loop("net.zero_grad(set_to_none=True)\n"), torch=(1, 9))


PLAIN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))

net = Net()
optimizer = torch.optim.Adam(net.parameters())
"""


@pytest.mark.parametrize(
    ("text", "risk"),
    [
        pytest.param(PLAIN + TRAIN, "exact", id="every layer is used"),
        pytest.param(PLAIN.replace("self.b(torch", "(torch") + TRAIN, "numeric", id="a layer is left out"),
        pytest.param(PLAIN.replace("self.a(x)", "self.a(x) if x.sum() > 0 else x") + TRAIN, "numeric", id="a layer is used at times"),
        pytest.param(PLAIN.replace("self.a(x)", "self.a(x).detach()") + TRAIN, "numeric", id="a layer is cut off"),
        pytest.param(PLAIN.replace("return self.b", "return x, self.b") + TRAIN, "numeric", id="two results"),
        pytest.param(PLAIN + "net.a.weight.requires_grad = False\n" + TRAIN, "numeric", id="frozen weights"),
        pytest.param("net = torch.hub.load('x', 'y')\noptimizer = torch.optim.Adam(net.parameters())\n" + TRAIN, "numeric", id="library"),
        pytest.param("optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], 0.1)\n" + TRAIN, "numeric", id="two networks"),
        pytest.param(TRAIN.replace("    net(x)", "    if x:\n        net(x)"), "numeric", id="no backward pass at times"),
        pytest.param(TRAIN.replace("optimizer.step()", "other_optimizer.step()"), "numeric", id="another optimizer steps"),
    ],
)
def test_exact_only_where_every_parameter_gets_a_gradient(text: str, risk: str) -> None:
    """A parameter without a gradient is skipped instead of moved on by momentum, which may change results."""
    note = changed(text.replace("{}", FALSE), text.replace("{}", ""))
    assert note.risk == risk
    assert bool(note.notes) is (risk == "numeric")


def test_reading_behind_the_backward_pass_is_no_obstacle_where_all_get_gradients() -> None:
    """Between the backward pass and the next clearing every gradient is a tensor."""
    text = TRAIN.replace("    optimizer.step()", "    print(net.weight.grad.norm())\n    optimizer.step()")
    changed(text.format(FALSE), text.format(""))


def test_reading_with_a_guard_is_no_obstacle() -> None:
    """Code that asks whether there is a gradient is ready for None."""
    guards = """
norm = sum(p.grad.norm() for p in net.parameters() if p.grad is not None)
for p in net.parameters():
    if p.grad is None:
        continue
    norm += p.grad.norm()
if not (net.weight.grad is None or norm == 0):
    print(net.weight.grad)
print(net.bias.grad is not None and net.bias.grad.norm())
"""
    changed(TRAIN.format(FALSE) + guards, TRAIN.format("") + guards)


SCRIPT = """
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

zeroed = 0


class Counter(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        global zeroed
        zeroed += function.overloadpacket.__name__ in ("zero_", "_foreach_zero_")
        return function(*args, **(kwargs or {}))


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
with Counter():
    for x in torch.randn(6, 4, 3).to(device):
        optimizer.zero_grad(set_to_none=False)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        print(repr(loss.item()))
print("zeroed", zeroed)
"""


def test_rewritten_program_trains_bit_for_bit(tmp_path: Path) -> None:
    """Losses are the same, and no gradient is filled with zeros any more."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SCRIPT)
    result = run_transform(RULE, SCRIPT)
    assert result.outcome is Outcome.CHANGED
    after.write_bytes(result.after)
    for run in (run_on_cpu, lambda path: run_on_fake_gpu(path)[0]):
        (*old, many), (*new, none) = run(before).splitlines(), run(after).splitlines()
        assert new == old
        assert (many, none) == ("zeroed 20", "zeroed 0")


def test_a_loss_that_may_come_from_elsewhere_is_numeric() -> None:
    """In steps whose loss leaves the network out, momentum moves weights on where their gradients are zeros."""
    step = TRAIN.replace("net(x).sum()", "(net(x).sum() if x.any() else other(x).sum())")
    assert changed(step.format(FALSE), step.format("")).risk == "numeric"


def test_a_gradient_read_by_its_name_is_held() -> None:
    """``getattr(p, "grad")`` reads a gradient as ``p.grad`` does."""
    reading = '    print([getattr(p, "grad").sum() for p in net.parameters()])\n    net(x)'
    text = HEAD + TRAIN.format(FALSE).replace("    net(x)", reading, 1)
    check_held(RULE, text, "gradients-read")
