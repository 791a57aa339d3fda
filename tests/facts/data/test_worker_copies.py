from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.data.worker_copies import WorkerCopies

HEAD = """\
import random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torchvision import datasets, transforms


class D(Dataset):
    size = 3

    def __init__(self, root, transform=None):
        self.transform = transform
        self.level = 0

    def __getitem__(self, i):
        return self.transform(i)

    def harden(self):
        self._set(self.level + 1)

    def _set(self, level):
        self.level = level

    def name(self):
        return "d"

    @classmethod
    def grow(cls):
        cls.size = 4


class Noise:
    def __call__(self, x):
        return x

"""


CALLED = """
class C(D):
    def __call__(self, level):
        self.level = level
    def __enter__(self):
        vars(self)["level"] = 3
    def __exit__(self, *error): ...
    def bump(self, level):
        object.__setattr__(self, "level", level)
d = C('x')
loader = DataLoader(d)
"""


def changes(text: str, modules: dict[str, str] | None = None) -> list[str]:
    """The changes of what the workers of a script's first loader have a copy of."""
    facts = facts_of(HEAD + text, modules=modules)
    return [ast.unparse(node) for _, node in WorkerCopies(facts.loaders.all[0]).changes()]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("d = D('x')\nloader = DataLoader(d)\nprint(d.level, len(d), d[0], d.name())", id="only read"),
        pytest.param("d = D('x')\nloader = DataLoader(d)\nother = D('y')\nother.level = 3\nother.harden()", id="another dataset"),
        pytest.param(
            "d = D('x')\nloader = DataLoader(d, batch_sampler=s)\nloader.batch_sampler.set_epoch(3)", id="sampler of the main process"
        ),
        pytest.param("d = D('x')\nloader = DataLoader(d, sampler=s)\nloader.sampler.set_epoch(3)\ns.set_epoch(3)", id="sampler's epoch"),
        pytest.param("x = torch.zeros(3)\nloader = DataLoader(TensorDataset(x))\ny = x.cuda()\ny[0] = 1", id="copy changed"),
        pytest.param("opt = load()\nloader = DataLoader(D(opt.root))\nopt.lr = 3", id="options of which it was given one"),
        pytest.param("def f(opt):\n    opt.lr = 3\nloader = DataLoader(D(opt.root))", id="other options"),
    ],
)
def test_what_workers_never_see_is_no_change(text: str) -> None:
    """Reading a dataset, and changing other things, is free."""
    assert changes(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("d = D('x')\nloader = DataLoader(d)\nd.level = 3", "d.level", id="attribute"),
        pytest.param("d = D('x')\nloader = DataLoader(d)\nd.level += 1", "d.level", id="attribute counted up"),
        pytest.param("loader = DataLoader(D('x'))\nloader.dataset.level = 3", "loader.dataset.level", id="through the loader"),
        pytest.param("loader = DataLoader(D('x'))\nloader.dataset.harden()", "loader.dataset.harden()", id="method, through the loader"),
        pytest.param("d = D('x')\nloader = DataLoader(d)\nd.harden()", "d.harden()", id="method that changes it by another"),
        pytest.param("d = D('x')\nloader = DataLoader(Subset(d, [1]))\nd.level = 3", "d.level", id="dataset behind a view"),
        pytest.param("t = Noise()\nloader = DataLoader(D('x', t))\nt.p = 3", "t.p", id="transform"),
        pytest.param(
            "t = Noise()\nc = transforms.Compose([t])\nloader = DataLoader(D('x', c))\nc.transforms[0].p = 3",
            "c.transforms[0].p",
            id="part of a transform",
        ),
        pytest.param("d = D('x')\nloader = DataLoader(d)\nd.transform.p = 3", "d.transform.p", id="transform through the dataset"),
        pytest.param("rows = [1]\nloader = DataLoader(D(rows))\nrows.append(2)", "rows.append(2)", id="list"),
        pytest.param("rows = [1]\nloader = DataLoader(D(rows))\nrows += [2]", "rows", id="list added to"),
        pytest.param("rows = [1]\nloader = DataLoader(D(rows))\nrandom.shuffle(rows)", "random.shuffle(rows)", id="list shuffled"),
        pytest.param("x = torch.zeros(3)\nloader = DataLoader(TensorDataset(x))\nx[0] = 1", "x[0]", id="tensor"),
        pytest.param("x = torch.zeros(3)\nloader = DataLoader(TensorDataset(x))\nx.fill_(1)", "x.fill_(1)", id="tensor in place"),
        pytest.param("d = D('x')\nloader = DataLoader(d)\nsetattr(d, 'level', 3)", "setattr(d, 'level', 3)", id="by name"),
        pytest.param("loader = DataLoader(D('x'))\nD.size = 4", "D.size", id="attribute of the class"),
        pytest.param("loader = DataLoader(D('x'))\nD.grow()", "D.grow()", id="attribute of the class, by its method"),
        pytest.param("d = D('x')\nloader = DataLoader(d)\nD.harden(d)", "D.harden(d)", id="method of the class, given the object"),
        pytest.param("d = D('x')\nloader = DataLoader(d)\nhooks.append(d.harden)", "self._set", id="method that is handed on"),
        pytest.param("d = {'train': D('x')}\nloader = DataLoader(d['train'])\nd['train'].level = 3", "d['train'].level", id="entry"),
        pytest.param(
            "class E(D):\n    def __init__(self):\n        self.rows = {}\nd = E()\nrows = d.rows\nloader = DataLoader(d)\nrows[0] = 1",
            "rows[0]",
            id="part under a name of its own",
        ),
        pytest.param("rows = [1]\nloader = DataLoader(D(rows))\nrows.reverse()", "rows.reverse()", id="list reversed"),
        pytest.param("x = torch.zeros(3)\nloader = DataLoader(D(x))\ntorch.add(x, 1, out=x)", "x", id="tensor written by out="),
        pytest.param("loader = DataLoader(D('x'), collate_fn=f)\nloader.collate_fn.k = 3", "loader.collate_fn.k", id="what collates"),
        pytest.param(
            "def run():\n    k = 1\n    loader = DataLoader(D('x'), collate_fn=lambda b: b * k)\n    for k in range(3): ...",
            "for k in range(3):",
            id="variable that a lambda reads",
        ),
        pytest.param("loader = DataLoader(D('x'))\nloader.collate_fn = f", "loader.collate_fn", id="collate function"),
        pytest.param("loader = DataLoader(D('x'))\nloader.num_workers = 0", "loader.num_workers", id="number of workers"),
        pytest.param("def run(d):\n    loader = DataLoader(d)\n    d.level = 3", "d.level", id="dataset of unknown make"),
        pytest.param("def run(d):\n    loader = DataLoader(d)\n    d.set_epoch(3)", "d.set_epoch(3)", id="its epoch"),
        pytest.param(
            "def f(data):\n    data.level = 3\nd = D('x')\nloader = DataLoader(d)\nf(d)",
            "data.level",
            id="in a function that it is handed to",
        ),
        pytest.param(
            "class T:\n    def __init__(self):\n        self.d = D('x')\n        self.loader = DataLoader(self.d)\n"
            "    def f(self):\n        self.d.level = 3",
            "self.d.level",
            id="in a trainer",
        ),
        pytest.param(
            "class C:\n    def collate(self, b): ...\nc = C()\nloader = DataLoader(D('x'), collate_fn=c.collate)\nc.n = 3",
            "c.n",
            id="object that collates",
        ),
        pytest.param(
            "SIZE = 3\nclass E(Dataset):\n    def __getitem__(self, i):\n        return SIZE * i\n"
            "loader = DataLoader(E())\nfor SIZE in [1, 2]: ...",
            "for SIZE in [1, 2]:",
            id="variable of the module",
        ),
        pytest.param(
            "opt = load()\nclass E(Dataset):\n    def __getitem__(self, i):\n        return opt.size * i\n"
            "loader = DataLoader(E())\nopt.size = 4",
            "opt.size",
            id="option that samples read",
        ),
    ],
)
def test_changes_of_what_workers_have_are_found(text: str, expected: str) -> None:
    """Whatever name leads to it, a write into the dataset or into something that it was made of is found."""
    assert any(change.startswith(expected) for change in changes(text))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param("d(3)", "d(3)", id="object called"),
        pytest.param("loader.dataset(3)", "loader.dataset(3)", id="object called, through the loader"),
        pytest.param("def f(data):\n    data(3)\nf(d)", "data(3)", id="object called in a function that it is handed to"),
        pytest.param("with d:\n    pass", "d", id="object entered"),
        pytest.param("with d as e:\n    pass", "d", id="object entered by another name"),
        pytest.param("getattr(d, 'bump')(3)", "getattr(d, 'bump')(3)", id="method by its name"),
        pytest.param("getattr(d, name)(3)", "getattr(d, name)(3)", id="method by a name out of sight"),
        pytest.param("getattr(loader.dataset, 'bump')(3)", "getattr(loader.dataset, 'bump')(3)", id="method by name, through the loader"),
        pytest.param("hooks.append(getattr(d, 'bump'))", "object.__setattr__(self", id="method by its name that is handed on"),
        pytest.param("getattr(d, 'transform').p = 3", "getattr(d, 'transform').p", id="part by its name"),
        pytest.param("vars(d)['level'] = 3", "vars(d)['level']", id="entry of its attributes"),
        pytest.param("vars(d).update(level=3)", "vars(d).update(level=3)", id="attributes updated"),
        pytest.param("d.__dict__['level'] = 3", "d.__dict__['level']", id="entry of its dictionary"),
        pytest.param("object.__setattr__(d, 'level', 3)", "object.__setattr__(d, 'level', 3)", id="set by the base class"),
        pytest.param("def f(data):\n    setattr(data, 'level', 3)\nf(d)", "setattr(data, 'level', 3)", id="by name, in a function"),
        pytest.param("type(d).size = 3", "type(d).size", id="attribute of its class"),
        pytest.param("setattr(type(d), 'size', 3)", "setattr(type(d), 'size', 3)", id="attribute of its class by name"),
    ],
)
def test_dataset_changed_without_an_attribute_or_method_named(change: str, expected: str) -> None:
    """A dataset that is called, entered, or changed by the text of a name is changed all the same."""
    assert any(found.startswith(expected) for found in changes(CALLED + change))


@pytest.mark.parametrize(
    "use",
    [
        pytest.param("other = C('y')\nother(3)", id="another object called"),
        pytest.param("other = C('y')\nwith other:\n    pass", id="another object entered"),
        pytest.param("other = C('y')\nvars(other)['level'] = 3\nsetattr(other, 'level', 3)", id="another object's attributes"),
        pytest.param("other = type(d)('y')", id="another of its class made"),
        pytest.param("print(getattr(d, 'level'), vars(d)['level'], getattr(d, 'name')())", id="only read by name"),
    ],
)
def test_dataset_read_by_name_is_no_change(use: str) -> None:
    """Reading an attribute by the text of its name, and calling or changing another object, is free."""
    assert changes(CALLED + use) == []


def test_option_that_samples_do_not_read_is_no_change() -> None:
    """Of a variable that samples read an attribute of, only that attribute counts."""
    text = (
        "opt = load()\nclass E(Dataset):\n    def __getitem__(self, i):\n        return opt.size * i\nloader = DataLoader(E())\nopt.lr = 4"
    )
    assert "opt.lr" not in changes(text)


def test_changes_in_other_files_are_found() -> None:
    """A callback in another file reaches the dataset through its parameter, or a setting through its module's variable."""
    assert "data.level" in changes(
        "from engine import harden\nd = D('x')\nloader = DataLoader(d)\nharden(d)", {"engine.py": "def harden(data):\n    data.level = 3\n"}
    )
    text = (
        "from config import cfg\nclass E(Dataset):\n    def __getitem__(self, i):\n        return cfg.size * i\nloader = DataLoader(E())\n"
    )
    modules = {"config.py": "cfg = make()\n", "main.py": "import train\nfrom config import cfg\ncfg.size = 3\ncfg.lr = 4\n"}
    found = changes(text, modules)
    assert "cfg.size" in found
    assert "cfg.lr" not in found


@pytest.mark.parametrize("read", ["import settings\nSIZE = None", "from settings import size_of"])
def test_variables_that_another_file_sets_in_a_module_are_found(read: str) -> None:
    """Code for samples may read a module's variable from outside or inside; whoever sets it by the module's name changes it."""
    sample = "settings.SIZE * i" if "import settings" in read else "size_of(i)"
    text = f"{read}\nclass E(Dataset):\n    def __getitem__(self, i):\n        return {sample}\nloader = DataLoader(E())\n"
    settings = "SIZE = 3\nLR = 4\ndef size_of(i):\n    return SIZE * i\n"
    main = "import train\nimport settings\nsettings.SIZE = 4\nsettings.LR = 5\n"
    found = changes(text, {"settings.py": settings, "main.py": main})
    assert "settings.SIZE" in found
    assert "settings.LR" not in found
