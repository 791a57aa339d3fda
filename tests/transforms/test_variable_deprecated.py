"""variable-deprecated: what is left alone, what is held and why, and that nothing computes another value without Variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import run_on_cpu, run_on_fake_gpu
from torchfix.testing import check_held, check_noop, check_transformed, run_transform

RULE = "variable-deprecated"
HEAD = """\
import numpy as np
import torch
from torch.autograd import Variable
from torch.utils.data import DataLoader, TensorDataset

net = torch.nn.Linear(2, 1)
criterion = torch.nn.MSELoss()
loader = DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4, 1)), batch_size=2)
cuda = torch.cuda.is_available()
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor

"""
WITHOUT = HEAD.replace("from torch.autograd import Variable\n", "")


def changed(before: str, after: str) -> None:
    """Check one rewriting, after which nothing needs the import."""
    for note in check_transformed(RULE, f"{HEAD}{before}\n", f"{WITHOUT}{after}\n"):
        assert note.risk == "exact"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("import tensorflow as tf\nv = tf.Variable(3)", id="of another package"),
        pytest.param("from torch.autograd import Variable", id="an import alone"),
        pytest.param("class Variable:\n    pass\nv = Variable()", id="the file's own"),
        pytest.param("from torch.autograd import Variable\nVariable._execution_engine.queue_callback(f)", id="an attribute of the class"),
        pytest.param("import torch\nx = torch.autograd.grad(y, z)", id="another name of the module"),
        pytest.param("image = output.data[0].numpy()", id="the first image of a batch"),
        pytest.param("x = batch.data[1]", id="another entry"),
    ],
)
def test_left_alone(text: str) -> None:
    """What wraps no tensor has nothing to lose."""
    check_noop(RULE, text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param("x = Variable(y, volatile=True)", "volatile", id="volatile"),
        pytest.param("x = Variable(y, volatile=not train)", "volatile", id="volatile by a variable"),
        pytest.param("x = Variable(y, False, True)", "volatile", id="volatile by position"),
        pytest.param("x = Variable(*y)", "hidden-arguments", id="starred"),
        pytest.param("x = Variable(y, **options)", "hidden-arguments", id="keywords of elsewhere"),
        pytest.param("x = Variable()", "no-tensor", id="of nothing"),
        pytest.param("xs = list(map(Variable, ys))", "handed-on", id="handed on"),
        pytest.param("class Own(Variable):\n    pass", "derived", id="derived"),
        pytest.param("known = type(x) == Variable", "never-true", id="compared"),
        pytest.param("known = issubclass(type(x), Variable)", "never-true", id="issubclass"),
        pytest.param("x = Variable(y) if torch.__version__ < '0.4' else y", "version-guard", id="for an old version"),
        pytest.param("loss = f()\nloss.backward()\nprint(loss.data[0])", "one-element", id="a loss of unknown shape"),
    ],
)
def test_held(text: str, code: str) -> None:
    """What meant more than a wrapper stays and says what to do."""
    assert check_held(RULE, HEAD + text, code).reason.help


def test_an_old_torch_needs_variables() -> None:
    """Before torch 0.4 only variables had a graph."""
    check_held(RULE, HEAD + "x = Variable(torch.zeros(3))", "torch-too-old", torch=(0, 3))


def test_f88_an_import_that_is_tried_stays() -> None:
    """A program that runs without the name is left to its choice; one that ends without it has none."""
    text = "try:\n    from torch.autograd import Variable\nexcept ImportError:\n    {}\nimport torch\nx = Variable(torch.zeros(3))\n"
    check_noop(RULE, text.format("Variable = None"))
    check_held(RULE, text.format("print('old')"), "version-guard")
    fixed = run_transform(RULE, text.format("raise")).after.decode()
    assert "x = torch.zeros(3)" in fixed and "import Variable" in fixed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("x = Variable(torch.zeros(3))", "x = torch.zeros(3)", id="a factory"),
        pytest.param("x = Variable(data=torch.zeros(3))", "x = torch.zeros(3)", id="by keyword"),
        pytest.param("x = Variable(torch.zeros(3), requires_grad=False)", "x = torch.zeros(3)", id="no gradient"),
        pytest.param("x = Variable(torch.zeros(3), volatile=False)", "x = torch.zeros(3)", id="not volatile"),
        pytest.param("x = Variable(torch.zeros(3)).cuda()", "x = torch.zeros(3).cuda()", id="moved behind"),
        pytest.param("x = Variable(torch.zeros(3).cuda())", "x = torch.zeros(3).cuda()", id="moved inside"),
        pytest.param("x = Variable(torch.ones(2) + torch.ones(2)).cuda()", "x = (torch.ones(2) + torch.ones(2)).cuda()", id="a sum"),
        pytest.param(
            "x = Variable(Tensor(3, 1).fill_(1.0), requires_grad=False)", "x = Tensor(3, 1).fill_(1.0)", id="a filled constructor"
        ),
        pytest.param("x = Variable(Tensor(np.ones(3)))", "x = Tensor(np.ones(3))", id="a constructor of an array"),
        pytest.param("x = Variable(torch.from_numpy(np.ones(3)).float())", "x = torch.from_numpy(np.ones(3)).float()", id="an array"),
        pytest.param("x = torch.autograd.Variable(torch.zeros(3))", "x = torch.zeros(3)", id="dotted"),
        pytest.param(
            "with torch.no_grad():\n    x = Variable(y, volatile=True)", "with torch.no_grad():\n    x = y.detach()", id="volatile, off"
        ),
    ],
)
def test_unwrapped(before: str, after: str) -> None:
    """A tensor that needs no gradient and is held by nobody else is its own Variable."""
    if "torch.autograd.Variable" in before:
        check_transformed(RULE, f"{WITHOUT}{before}\n", f"{WITHOUT}{after}\n")
    else:
        changed(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "x = Variable(torch.zeros(3), requires_grad=True)", "x = torch.zeros(3, requires_grad=True)", id="a factory takes the argument"
        ),
        pytest.param("x = Variable(torch.zeros(3), True)", "x = torch.zeros(3, requires_grad=True)", id="by position"),
        pytest.param("x = Variable(Tensor(3), requires_grad=True)", "x = Tensor(3).requires_grad_()", id="a constructor does not"),
        pytest.param("x = Variable(torch.zeros(3), requires_grad=on)", "x = torch.zeros(3).requires_grad_(on)", id="by a variable"),
        pytest.param("x = Variable(y, requires_grad=True)", "x = y.detach().requires_grad_()", id="of a tensor that others hold"),
        pytest.param("x = Variable(net(y), requires_grad=True)", "x = net(y).detach().requires_grad_()", id="of an output"),
    ],
)
def test_a_gradient_is_asked_of_the_same_object(before: str, after: str) -> None:
    """Another object is made to require a gradient only where the first one could be seen to do so."""
    changed(before, after)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("def f(y):\n    return {}", id="a parameter"),
        pytest.param("y = net(torch.zeros(1, 2))\nx = {}", id="an output"),
        pytest.param("y = net.weight\nx = {}", id="a parameter of a network"),
        pytest.param("y = torch.zeros(3)\ny.requires_grad_()\nx = {}", id="told to require a gradient"),
        pytest.param("y = torch.zeros(3)\ny[0] = net(torch.zeros(1, 2))\nx = {}", id="a gradient written into it"),
        pytest.param("y = torch.zeros(3)\nx = {}\nx.requires_grad = True\ny.sum()", id="trap: the copy requires one, the other is read"),
        pytest.param("y = torch.zeros(3)\nx = {}\nx += net.bias\ny.sum()", id="trap: a graph is written into the copy"),
        pytest.param("y = torch.zeros(3)\nx = {}\nkeep(x, y)", id="trap: other code sees both"),
    ],
)
def test_detached_where_the_object_matters(text: str) -> None:
    """Where the tensor has a graph, or it can be told which of the two objects is held, ``detach`` does what Variable did."""
    changed(text.format("Variable(y)"), text.format("y.detach()"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("x, y = Variable(x), Variable(y)\n", "", id="both"),
        pytest.param("x = Variable(x)\n    y = Variable(y)\n", "", id="one by one"),
        pytest.param("x, y = Variable(x.cuda()), Variable(y)\n", "x, y = x.cuda(), y\n", id="one is moved"),
    ],
)
def test_an_assignment_of_a_name_to_itself_goes(before: str, after: str) -> None:
    """What is left of ``x = Variable(x)`` does nothing."""
    text = "for x, y in loader:\n    {}    loss = criterion(net(x), y)"
    changed(text.format(before), text.replace("    {}", f"    {after}" if after else "").format())


def test_only_one_of_two_is_unwrapped_where_the_other_is_held() -> None:
    """A volatile one stays beside it, and with it the statement and the import."""
    text = HEAD + "for x, y in loader:\n    x, y = {}, {}\n    loss = criterion(net(x), y)\n"
    before, after = text.format("Variable(x, volatile=True)", "Variable(y)"), text.format("Variable(x, volatile=True)", "y")
    check_transformed(RULE, before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("ok = isinstance(x, Variable)", "ok = isinstance(x, torch.Tensor)", id="a check"),
        pytest.param("ok = isinstance(x, (list, Variable))", "ok = isinstance(x, (list, torch.Tensor))", id="one of several"),
        pytest.param("def f(x: Variable) -> Variable: ...", "def f(x: torch.Tensor) -> torch.Tensor: ...", id="annotations"),
    ],
)
def test_questions_about_the_class_become_questions_about_tensors(before: str, after: str) -> None:
    """``isinstance(x, Variable)`` is true of every tensor."""
    changed(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("loss = criterion(net(x), y)\nprint(loss.data[0])", "loss = criterion(net(x), y)\nprint(loss.item())", id="a loss"),
        pytest.param(
            "total = torch.nn.functional.mse_loss(x, y).data[0]",
            "total = torch.nn.functional.mse_loss(x, y).item()",
            id="a functional loss",
        ),
    ],
)
def test_the_number_of_a_loss(before: str, after: str) -> None:
    """A loss has had no dimension since torch 0.4, so that its first item cannot be taken."""
    check_transformed(RULE, f"{WITHOUT}{before}\n", f"{WITHOUT}{after}\n")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("loss = torch.nn.MSELoss(reduction='none')(x, y)\nprint(loss.data[0])", id="a value for each sample"),
        pytest.param("loss = torch.mean(x, 1)\nprint(loss.data[0])", id="a mean over one dimension"),
        pytest.param("loss = criterion(x, y).view(1)\nprint(loss.data[0])", id="given a dimension"),
        pytest.param(
            "loss = criterion(x, y)\nif torch.__version__ > '0.4':\n    print(loss.item())\nelse:\n    print(loss.data[0])",
            id="old torch only",
        ),
    ],
)
def test_first_items_of_tensors_with_a_dimension_stay(text: str) -> None:
    """Where there may be a first item it may be meant."""
    check_noop(RULE, WITHOUT + text)


def test_the_import_stays_where_another_file_takes_the_name_from_here() -> None:
    """``from data import *`` brings what this file imports."""
    data = "import torch\nfrom torch.autograd import Variable\n\ndef make():\n    return Variable(torch.zeros(3))\n"
    script = "from data import *\n\nx = Variable(make())\n"
    fixed = run_transform(RULE, data, path="data.py", modules={"train.py": script}).after.decode()
    assert fixed == data.replace("Variable(torch.zeros(3))", "torch.zeros(3)")
    fixed = run_transform(RULE, script, modules={"data.py": data}).after.decode()
    assert fixed == "from data import *\n\nx = make()\n"


def test_it_composes_with_creation_on_the_device() -> None:
    """Both rules change one expression, and neither has more to say afterwards."""
    text = f"{HEAD}x = Variable(torch.zeros(3)).cuda()\n"
    once = run_transform("create-on-device", run_transform(RULE, text).after.decode()).after.decode()
    other = run_transform(RULE, run_transform("create-on-device", text).after.decode()).after.decode()
    assert once == other == f'{WITHOUT}x = torch.zeros(3, device="cuda")\n'


TRAINING = """
import numpy as np
import torch
from torch.autograd import Variable

torch.manual_seed(0)
np.random.seed(0)
cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
generator, critic = torch.nn.Linear(3, 2).to(device), torch.nn.Linear(2, 1).to(device)
criterion = torch.nn.BCEWithLogitsLoss()
optimizer = torch.optim.SGD([*generator.parameters(), *critic.parameters()], lr=0.1)
for step in range(3):
    real = torch.ones(4, 2) * step
    valid = Variable(Tensor(real.size(0), 1).fill_(1.0), requires_grad=False)
    real = Variable(real.type(Tensor))
    z = Variable(Tensor(np.random.normal(0, 1, (real.size(0), 3))))
    fake = generator(z)
    mixed = Variable(0.5 * real + 0.5 * fake, requires_grad=True)
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    loss = criterion(critic(fake), valid) + criterion(critic(Variable(fake)), valid) + slope.norm()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), mixed.requires_grad, isinstance(mixed, Variable))
for parameter in (*generator.parameters(), *critic.parameters()):
    print(parameter.tolist())
"""


def test_the_rewritten_program_computes_the_same(tmp_path: Path) -> None:
    """Gradients stop where they stopped before: every loss and every weight is the same to the last bit, on both devices."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(TRAINING)
    after.write_bytes(run_transform(RULE, TRAINING).after)
    assert "Variable" not in after.read_text()
    assert run_on_cpu(before) == run_on_cpu(after)
    assert run_on_fake_gpu(before) == run_on_fake_gpu(after)


OBJECTS = """
import torch
from torch.autograd import Variable

y = torch.zeros(3)
x = Variable(y)
x.requires_grad = True
w = torch.ones(3, requires_grad=True)
z = Variable(w * 2)
v = Variable(w)
v.add_(1)
print(y.requires_grad, x.requires_grad, z.requires_grad, v.requires_grad, w.tolist(), x is y, type(v) is torch.Tensor)
"""


def test_the_objects_are_told_apart_as_before(tmp_path: Path) -> None:
    """Which object requires a gradient, and which shares memory, is as it was."""
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(OBJECTS)
    after.write_bytes(run_transform(RULE, OBJECTS).after)
    assert "Variable" not in after.read_text()
    assert run_on_cpu(before) == run_on_cpu(after)
