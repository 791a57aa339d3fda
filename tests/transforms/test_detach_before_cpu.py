"""detach-before-cpu: which detachments are mended, which objects and writes are left alone, and what is held."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix import registry
from torchfix.result import Outcome
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "detach-before-cpu"
HEAD = """\
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

net = nn.Linear(2, 3).cuda()
rnn = nn.LSTM(2, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def step(batch, y, dataset, helper, kept):
    x = torch.ones(4, 2).cuda()
    output = net(x)
    loss = F.cross_entropy(output, y)
"""


def program(lines: str) -> str:
    """A function with some lines at its end."""
    return HEAD + indent(lines, "    ") + "\n"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("a = output.detach().cpu().numpy()", id="in order"),
        pytest.param("a = output.detach()", id="stays on the device"),
        pytest.param("kept.append(output.cpu())", id="frees memory of the device"),
        pytest.param("with torch.no_grad():\n    a = output.cpu().detach().numpy()", id="no graph anyway"),
        pytest.param("a = helper.cpu(1).detach()", id="another cpu"),
        pytest.param("net.weight.data.copy_(x)", id="weights are copied into"),
        pytest.param("net.weight.data = x", id="weights are replaced"),
        pytest.param("net.weight.data += x", id="weights are added to"),
        pytest.param("net.weight.data[0] = 1", id="a weight is set"),
        pytest.param("net.weight.data.view(-1).mul_(2)", id="weights are written through a view"),
        pytest.param("nn.init.xavier_uniform_(net.weight.data)", id="weights are initialised"),
        pytest.param("for p in net.parameters():\n    p.data.add_(p.grad.data, alpha=-0.1)", id="a hand-made step"),
        pytest.param("for p, q in zip(net.parameters(), kept):\n    q.data.copy_(0.9 * q.data + 0.1 * p.data)", id="moving average"),
        pytest.param("net.weight.data = 0.9 * net.weight.data", id="moving average of a layer"),
        pytest.param("output.data = output.data.mul(2)", id="new values for a tensor"),
        pytest.param("a = output.data\na.zero_()", id="written through a variable"),
        pytest.param("torch.neg(x, out=output.data)", id="written as out"),
        pytest.param("a = batch.data.max()", id="a batch of texts"),
        pytest.param("a = batch.data.cpu().numpy()", id="a batch of graphs"),
        pytest.param("a = dataset.data[0].cpu()", id="a dataset"),
        pytest.param("packed = pack_padded_sequence(x, y)\na = packed.data.max()", id="a packed sequence"),
        pytest.param("packed = pack_padded_sequence(x, y)\na, _ = rnn(packed)\nb = F.relu(a.data)", id="what a recurrent layer gives"),
        pytest.param("packed = pack_padded_sequence(x, y).cpu().data.numpy()", id="a packed sequence on the host"),
        pytest.param("a, _ = rnn(x)\nb = a.data.max()\na = F.relu(b)", id="a name that is a tensor only later"),
        pytest.param("a = helper(x).data()", id="a method"),
        pytest.param("a = loss.data[0]", id="a number as torch 0.3 read it"),
        pytest.param("a = type(output.data)", id="nothing but its type"),
        pytest.param("a = output.data_ptr()", id="its address"),
    ],
)
def test_left_alone(lines: str) -> None:
    """Writes through ``.data``, other objects that have such an attribute, and what is in order yield nothing."""
    check_noop(RULE, program(lines))


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        pytest.param("kept.append(output.data)", "out-of-sight", id="kept"),
        pytest.param("helper(output.data)", "out-of-sight", id="given to unknown code"),
        pytest.param("return output.data", "out-of-sight", id="returned"),
        pytest.param("target = output.data\na = x * target\noutput += 1", "written-later", id="the tensor is written behind it"),
        pytest.param("a = F.mse_loss(net(x), output.data)\nb = net(output)", "written-later", id="a network takes the tensor behind it"),
    ],
)
def test_held(lines: str, code: str) -> None:
    """Where a write may be hidden by ``.data``, ``.detach()`` may raise; so that is held."""
    check_held(RULE, program(lines), code)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("a = output.cpu().detach().numpy()", "a = output.detach().cpu().numpy()", id="copy first"),
        pytest.param("a = output.to('cpu').detach()", "a = output.detach().to('cpu')", id="copy with to"),
        pytest.param("a = (output + x).cpu().detach()", "a = (output + x).detach().cpu()", id="sum"),
        pytest.param("a = output.cpu().data.numpy()", "a = output.detach().cpu().numpy()", id="copy, then data"),
        pytest.param("a = output.data.cpu().numpy()", "a = output.detach().cpu().numpy()", id="data, then copy"),
        pytest.param("a = loss.data.item()", "a = loss.item()", id="number"),
        pytest.param("a = loss.data.tolist()", "a = loss.tolist()", id="list"),
        pytest.param("a = output.data.size(0)", "a = output.size(0)", id="size"),
        pytest.param("_, a = torch.max(output.data, 1)", "_, a = torch.max(output.detach(), 1)", id="hits"),
        pytest.param("a = output.data.max(1)[1].eq(y).sum()", "a = output.detach().max(1)[1].eq(y).sum()", id="hits by method"),
        pytest.param("print('%f %f' % (1.0, loss.data))", "print('%f %f' % (1.0, loss.detach()))", id="text"),
        pytest.param("a = output.data.new_zeros(2)", "a = output.new_zeros(2)", id="another tensor alike"),
        pytest.param("print(loss.data)", "print(loss.detach())", id="print"),
        pytest.param("a = output.data.clone()\na.zero_()", "a = output.detach().clone()\na.zero_()", id="clone"),
        pytest.param("a = output.data[:2]\nprint(a.mean())", "a = output.detach()[:2]\nprint(a.mean())", id="slice"),
        pytest.param("a, b = output.data, 1\nprint(a)", "a, b = output.detach(), 1\nprint(a)", id="unpacked"),
        pytest.param("a = (output.data > 0).sum()", "a = (output.detach() > 0).sum()", id="comparison"),
        pytest.param("a = F.mse_loss(net(x), output.data)", "a = F.mse_loss(net(x), output.detach())", id="target of a loss"),
        pytest.param(
            "for name, p in net.named_parameters():\n    print(name, p.data.cpu().numpy())",
            "for name, p in net.named_parameters():\n    print(name, p.detach().cpu().numpy())",
            id="weights that are shown",
        ),
    ],
)
def test_mended(before: str, after: str) -> None:
    """Tensors are detached first, with ``detach()``, and not at all where only a number is asked for."""
    check_transformed(RULE, program(before), program(after))


def test_a_function_of_the_project_is_read() -> None:
    """What a function only reads is given to it detached, wherever it is defined."""
    modules = {
        "metrics.py": """
        def accuracy(output, target):
            hits = output.topk(1)[1].eq(target)
            return hits.float().mean()

        def clear(output):
            output.zero_()
        """
    }
    head = "from metrics import accuracy, clear\n" + HEAD
    before = head + "    print(accuracy(output.data, y))\n    clear(output.data)\n"
    after = head + "    print(accuracy(output.detach(), y))\n    clear(output.data)\n"
    check_transformed(RULE, before, after, modules=modules)


def test_what_is_only_read_is_not_said_to_be_written() -> None:
    """The message tells what a write would do, for a tensor that nothing writes into."""
    before, after = program("print(output.data.cpu().tolist())"), program("print(output.detach().cpu().tolist())")
    (note,) = check_transformed(RULE, before, after)
    assert "would hide from autograd any write" in note.message


def test_code_inside_an_f_string_is_held() -> None:
    """F-strings are not rewritten."""
    check_held(RULE, program("print(f'{loss.data.item()}')"), "inside-f-string")


SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(2, 3)
with torch.no_grad():
    net.weight.copy_(torch.arange(6.0).reshape(3, 2) / 6)
    net.bias.zero_()
net.to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    x = (torch.arange(8.0).reshape(4, 2) + step).to(device)
    output = net(x)
    loss = nn.functional.mse_loss(output, output.data * 0.5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(output.cpu().detach().tolist(), output.data.cpu().tolist(), loss.data.item(), torch.max(output.data, 1)[1].tolist())
"""


def test_rewritten_program_prints_the_same(tmp_path: Path) -> None:
    """Training goes the same to the last bit, on the CPU and on the pretend GPU, which copies no more than before."""
    result = run_transform(RULE, SCRIPT)
    assert result.outcome is Outcome.CHANGED
    assert b".data" not in result.after
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SCRIPT)
    after.write_bytes(result.after)
    assert run_on_cpu(before) == run_on_cpu(after)
    assert run_on_fake_gpu(before) == run_on_fake_gpu(after)


def test_a_copy_behind_detach_is_not_recorded() -> None:
    """What the rule saves: the graph node of the copy."""
    import torch

    x = torch.ones(2, requires_grad=True) * 2
    assert x.to(torch.float64).grad_fn is not None
    assert x.detach().to(torch.float64).grad_fn is None


def test_example_of_the_rule() -> None:
    """The rule does to its Before what its After shows."""
    transform = registry.find(RULE)
    check_transformed(transform, transform.before, transform.after)
