"""Where values go: ends in numbers and text, ways backward, and ways out of sight."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.training.gradients import End, gives_indices

HEAD = "import torch\nimport torch.nn.functional as F\nimport numpy as np\nx = start()\n"


def fate(text: str, asked: str = "start()", **arguments: object) -> End:
    """How the way of an expression's value ends."""
    facts = facts_of(HEAD + text, **arguments)  # type: ignore[arg-type]
    return facts.gradients.of_value(node(facts, asked)).end


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nobody reads it"),
        pytest.param("print(x.item(), float(x), f'{x}', '%f' % x)", id="numbers and text"),
        pytest.param("y = x.detach()\ny.backward()", id="detached"),
        pytest.param("y = x.data.mean()\ny.backward()", id="data"),
        pytest.param("if x > 3:\n    pass\nassert x.shape == y.shape", id="compared"),
        pytest.param("i = x.argmax(1)\n(w[i]).backward()", id="an index"),
        pytest.param("v, i = x.max(1)\nprint(v)\nw[i].backward()", id="the indices of a maximum"),
        pytest.param("i = torch.topk(x, 3)[1]\nw[i].backward()", id="the indices of the highest"),
        pytest.param("np.mean(x)", id="arrays"),
        pytest.param("x = other()\nx.backward()", id="bound anew"),
        pytest.param("a, b = x, other()\nb.backward()\nprint(a)", id="beside another in a tuple"),
        pytest.param("d = {'a': x, 'b': other()}\nd['b'].backward()", id="beside another in a dictionary"),
        pytest.param("def f(a, b):\n    b.backward()\nf(x, other())", id="beside another argument"),
        pytest.param("def f(a):\n    return a.item()\nf(x)", id="made a number in a function"),
        pytest.param("losses = []\nlosses.append(x)\nprint(sum(losses) / len(losses))", id="a list that is printed"),
        pytest.param("print(list(map(lambda y: y.item(), [x])), list(map(float, [x])))", id="numbers of the items of a list"),
        pytest.param("m.a = x\nprint(getattr(m, 'a').item())\ngetattr(m, 'b').backward()", id="an attribute read by its name"),
        pytest.param("m.loss_a = x\nfor n in names:\n    print(float(getattr(m, 'loss_' + n)))", id="attributes whose names begin alike"),
        pytest.param("m.a = x\nsave(vars(args))", id="the attributes of something else"),
        pytest.param("a = b = 0\na += x\nb = b + y\nb.backward()", id="beside another sum that began with the same number"),
        pytest.param(
            "class M:\n    def up(self, v):\n        self.s = v\n    @property\n    def avg(self):\n        return self.s / 2\n"
            "M().up(x)\nprint(float(m.avg))",
            id="a property that is printed",
        ),
    ],
)
def test_no_gradient_comes_back(text: str) -> None:
    """Numbers, indices, comparisons and text end a way, and what merely stands beside the value leads nowhere."""
    assert fate(text) is End.NOWHERE


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x.backward()", id="itself"),
        pytest.param("(x * 2 + 1).mean().backward()", id="through arithmetic"),
        pytest.param("v, i = x.max(1)\nv.sum().backward()", id="the values of a maximum"),
        pytest.param("F.mse_loss(x, y).backward()", id="through a loss"),
        pytest.param("scaler.scale(x).backward()", id="scaled"),
        pytest.param("accelerator.backward(x)", id="by a framework"),
        pytest.param("torch.autograd.grad(x, w)", id="by hand"),
        pytest.param("total = 0\nfor i in y:\n    total += x\ntotal.backward()", id="through a sum"),
        pytest.param("total = 0\ntotal = total + x\nz = [total]\nz[0].backward()", id="through a container"),
        pytest.param("losses = []\nlosses.append(x)\nsum(losses).backward()", id="through a list"),
        pytest.param("d = {}\nd['a'] = x\nfor k, v in d.items():\n    v.backward()", id="through a dictionary"),
        pytest.param("[y.backward() for y in [x]]", id="through a comprehension"),
        pytest.param("list(map(torch.Tensor.backward, [x]))", id="by a method that is applied to a list"),
        pytest.param("list(map(lambda y: y.backward(), [x]))", id="by a lambda that is applied to a list"),
        pytest.param("def f(y):\n    y.backward()\nlist(map(f, [x]))", id="by a function that is applied to a list"),
        pytest.param("def f(y):\n    return y * 2\nsum(map(f, [x])).backward()", id="through a function that is applied to a list"),
        pytest.param("m.a = x\ngetattr(m, 'a').backward()", id="through an attribute read by its name"),
        pytest.param("m.a = x\nfor n in ['a']:\n    getattr(m, n).backward()", id="through an attribute read by one of some names"),
        pytest.param("m.loss_a = x\nsum(getattr(m, f'loss_{n}') for n in names).backward()", id="through attributes named alike"),
        pytest.param("m.a = x\nvars(m)['a'].backward()", id="through the table of an object's attributes"),
        pytest.param("m.a = x\nm.__dict__['a'].backward()", id="through an object's dictionary"),
        pytest.param("a = b = torch.zeros(())\na += x\nb.backward()", id="through a tensor with two names"),
        pytest.param("a = b = []\na.append(x)\nb[0].backward()", id="through a list with two names"),
        pytest.param(
            "class M:\n    def up(self, v):\n        self.s = v\n    @property\n    def avg(self):\n        return self.s / 2\n"
            "M().up(x)\nm.avg.backward()",
            id="through a property",
        ),
        pytest.param("for i, y in enumerate([x]):\n    y.backward()", id="counted"),
        pytest.param("def f(a):\n    a.backward()\nf(x)", id="in a function"),
        pytest.param("def f(a):\n    return a * 2\nf(x).backward()", id="through a function"),
        pytest.param("def f(box):\n    box.append(x)\nmine = []\nf(mine)\nmine[0].backward()", id="through somebody's list"),
        pytest.param("class A:\n    def f(self):\n        self.x = x\n\n    def g(self):\n        self.x.backward()", id="an attribute"),
        pytest.param("class A:\n    x = 0\na = A()\na.x = x\na.x.backward()", id="an object's attribute"),
        pytest.param("y = x\ny += 1\nx.backward()", id="under another name"),
        pytest.param("print(x.requires_grad)", id="asked for its graph"),
        pytest.param("y = x if c else 0\n(y or z).backward()", id="through conditions"),
    ],
)
def test_a_gradient_may_come_back(text: str) -> None:
    """Whatever autograd follows is followed, and asking for the graph counts."""
    assert fate(text) is End.BACKWARD


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("unknown.f(x)", id="an object that is not known"),
        pytest.param("from lib import f\nf(x)", id="a function of a library"),
        pytest.param("def f():\n    y = start()\n    return y", id="returned to nobody in sight"),
        pytest.param("g = lambda: x", id="in a lambda"),
    ],
)
def test_out_of_sight_is_unseen(text: str) -> None:
    """What leaves the code in sight may be sent backward there."""
    asked = 1 if "y = start()" in text else 0
    facts = facts_of(HEAD + text)
    assert facts.gradients.of_value(node(facts, "start()", asked)).end is End.UNSEEN


def test_calls_do_not_mix() -> None:
    """What a function is given at one call is not what it returns at another."""
    assert fate("def f(a):\n    return a\nprint(f(x))\nf(other()).backward()") is End.NOWHERE


def test_other_files_are_followed() -> None:
    """An imported function that trains on what it is given, and a reader of a module's variable."""
    assert fate("from a import f\nf(x)", modules={"a.py": "def f(loss):\n    loss.backward()\n"}) is End.BACKWARD
    assert fate("", modules={"b.py": "from train import x\nx.backward()\n"}) is End.UNSEEN


def test_ends_inside_a_statement_need_not_count() -> None:
    """So that what happens under a condition can be set aside."""
    facts = facts_of(HEAD + "if train:\n    x.backward()\nprint(x)")
    branch = next(item for item in ast.walk(facts.tree.module) if isinstance(item, ast.If))
    assert facts.gradients.of_value(node(facts, "start()"), beside=branch).end is End.NOWHERE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("loss.backward()", True, id="itself"),
        pytest.param("(loss + aux).mean().backward()", True, id="in a sum"),
        pytest.param("parts = [loss]\nsum(parts).backward()", True, id="in a list"),
        pytest.param("net(loss).backward()", False, id="as an input of a network"),
        pytest.param("print(loss)", False, id="printed"),
    ],
)
def test_terms_of_a_loss(text: str, expected: bool) -> None:
    """Only sums and means make a term of a loss; what a network is given is none."""
    facts = facts_of(f"loss = f()\nasked(loss)\n{text}")
    assert facts.gradients.is_term(node(facts, "loss", 1)) is expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [("x.max(1)", True), ("x.max(dim=1)", True), ("x.max()", False), ("x.max(y)", False), ("x.topk(3)", True), ("x.mean(1)", False)],
)
def test_pairs_of_values_and_indices(call: str, expected: bool) -> None:
    """A maximum along a dimension gives a pair; that of two tensors, or of all values, a tensor."""
    assert gives_indices(ast.parse(call, mode="eval").body, 0) is expected  # type: ignore[arg-type]


def test_circles_end() -> None:
    """Functions that call each other, and variables made of each other, end."""
    text = "def f(a):\n    return g(a)\ndef g(a):\n    return f(a)\nwhile c:\n    y = f(x)\n    x = y\nprint(y)"
    assert fate(text) in End
