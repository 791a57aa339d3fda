from __future__ import annotations

import textwrap

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.data.traits import Trait

HEAD = """\
import random
import cv2
import h5py
import numpy as np
import torch
import torchvision
from torch.utils import data
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import datasets, transforms
"""


def traits_of(text: str, modules: dict[str, str] | None = None) -> set[str]:
    """The traits of the code behind the last loader of a script, by name."""
    facts = facts_of(HEAD + textwrap.dedent(text), modules={path: HEAD + textwrap.dedent(body) for path, body in (modules or {}).items()})
    loader = facts.loaders.all[-1]
    return {mark.trait.name for mark in facts.datasets.behind(loader).marks}


def own(sample: str = "return self.x[i]", make: str = "self.x = np.load('x.npy')", more: str = "", given: str = "") -> str:
    """A script with a dataset of its own."""
    lines = ["class D(Dataset):", "    def __init__(self, *given, **named):", *indented(make), "    def __len__(self):", "        return 8"]
    lines += ["    def __getitem__(self, i):", *indented(sample), *(f"    {line}" for line in more.splitlines()), f"DataLoader(D({given}))"]
    return "\n".join(lines)


def indented(code: str) -> list[str]:
    return [f"        {line}" for line in code.splitlines()]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("DataLoader(TensorDataset(torch.zeros(8)))", id="tensors"),
        pytest.param("DataLoader(list(range(8)))", id="a list"),
        pytest.param(own(), id="indexing"),
        pytest.param(
            own("return torch.tensor(self.x[i]).float(), self.y[i + 1 : i + 5]", "self.x = self.y = np.zeros(9)"), id="conversion"
        ),
        pytest.param("DataLoader(data.Subset(TensorDataset(torch.zeros(8)), [1, 2]))", id="a part of tensors"),
        pytest.param(own("row = self.x[i]\nreturn {'x': row}", "self.x = np.load('x.npy')"), id="dictionary"),
    ],
)
def test_handing_on_what_memory_holds_is_no_work(text: str) -> None:
    """A dataset that only indexes has no trait at all."""
    assert traits_of(text) == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("DataLoader(unknown)", "UNSEEN", id="unknown name"),
        pytest.param("def make(ds):\n    return DataLoader(ds)", "UNSEEN", id="parameter without callers"),
        pytest.param("from somewhere import Stream\nDataLoader(Stream())", "UNSEEN", id="another library"),
        pytest.param("DataLoader(datasets.__dict__[name]('data'))", "UNSEEN", id="class by name"),
        pytest.param(own("return self.transform(self.x[i])", "self.transform = given[0]"), "UNSEEN", id="transform out of sight"),
        pytest.param("class D(Missing):\n    def __getitem__(self, i):\n        return 1\nDataLoader(D())", "UNSEEN", id="unknown base"),
        pytest.param("class D(Dataset):\n    pass\nDataLoader(D())", "UNSEEN", id="no sample method"),
        pytest.param("DataLoader(datasets.MNIST('data', **options))", "UNSEEN", id="hidden arguments"),
        pytest.param("DataLoader(datasets.MNIST('data', transform=unknown()))", "UNSEEN", id="unknown transform"),
        pytest.param("DataLoader(datasets.MNIST('data'), collate_fn=unknown)", "UNSEEN", id="unknown collate function"),
        pytest.param(own("return self.reader.read(i)", "self.reader = given[0]"), "UNSEEN", id="method of an unknown object"),
        pytest.param("def make(x):\n    return DataLoader(TensorDataset(x))", "UNSEEN_DATA", id="data of unknown make"),
        pytest.param("DataLoader(data.ConcatDataset(parts))", "UNSEEN", id="unknown parts"),
    ],
)
def test_code_that_is_not_seen_is_said_to_be_out_of_sight(text: str, expected: str) -> None:
    """Known or out of sight: nothing is taken to be harmless because it could not be found."""
    assert expected in traits_of(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("DataLoader(datasets.MNIST('data', transform=transforms.ToTensor()))", {"WORK"}, id="torchvision"),
        pytest.param("DataLoader(torchvision.datasets.ImageFolder('data', transforms.ToTensor()))", {"WORK"}, id="transform by position"),
        pytest.param(
            "DataLoader(datasets.CIFAR10('data', transform=transforms.Compose([transforms.RandomCrop(32), transforms.ToTensor()])))",
            {"WORK", "RANDOM"},
            id="random transform",
        ),
        pytest.param(
            "steps = [transforms.ToTensor()]\nsteps.append(transforms.RandomHorizontalFlip())\n"
            "DataLoader(datasets.CIFAR10('data', transform=transforms.Compose(steps)))",
            {"WORK", "RANDOM"},
            id="transform added later",
        ),
        pytest.param(
            "DataLoader(datasets.MNIST('data', transform=transforms.Lambda(lambda x: x * 2)))", {"WORK", "LOCAL"}, id="lambda transform"
        ),
        pytest.param("DataLoader(datasets.LSUN('data'))", {"HANDLE"}, id="keeps a database open"),
        pytest.param("from torchtext.datasets import IMDB\nDataLoader(IMDB())", {"ITERABLE"}, id="torchtext"),
        pytest.param("DataLoader(datasets.MNIST('a') + datasets.MNIST('b'))", {"WORK"}, id="sum of datasets"),
        pytest.param("a, b = data.random_split(datasets.MNIST('a'), [8, 2])\nDataLoader(b)", {"WORK"}, id="split"),
        pytest.param("DataLoader(data.ConcatDataset([datasets.MNIST('a'), datasets.LSUN('b')]))", {"WORK", "HANDLE"}, id="union"),
        pytest.param("sets = {x: datasets.MNIST(x) for x in names}\nDataLoader(sets['train'])", {"WORK"}, id="dictionary of datasets"),
        pytest.param(
            "sets = {}\nsets['train'] = datasets.MNIST('a')\nsets['val'] = datasets.LSUN('b')\nDataLoader(sets[x])",
            {"WORK", "HANDLE"},
            id="entries set one by one",
        ),
        pytest.param("first = DataLoader(datasets.MNIST('a'))\nDataLoader(first.dataset)", {"WORK"}, id="another loader's dataset"),
        pytest.param("from datasets import load_dataset\nDataLoader(load_dataset('x')['train'])", {"WORK"}, id="hugging face table"),
        pytest.param(
            "from datasets import load_dataset\nds = load_dataset('x', split='train')\nds = ds.map(lambda r: r)\nDataLoader(ds)",
            {"WORK"},
            id="hugging face table mapped before",
        ),
        pytest.param(
            "from datasets import load_dataset\nDataLoader(load_dataset('x', streaming=True)['a'])", {"WORK", "ITERABLE"}, id="stream"
        ),
        pytest.param(
            "import albumentations as A\nDataLoader(datasets.MNIST('a', transform=A.Compose([A.HorizontalFlip()])))",
            {"WORK", "GENERATOR"},
            id="transforms with a generator of their own",
        ),
    ],
)
def test_datasets_of_libraries_are_judged_by_a_table(text: str, expected: set[str]) -> None:
    """What a known library does is known, and the user's functions that it calls are read."""
    assert traits_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(own("return self.x[i].cuda()"), "DEVICE", id="cuda in the sample"),
        pytest.param(own(make="self.x = torch.zeros(8).cuda()"), "DEVICE", id="cuda in the constructor"),
        pytest.param(own("return self.x[i].to(self.device)", "self.device = given[0]"), "DEVICE", id="to a device"),
        pytest.param(own("return torch.zeros(3, device='cuda')"), "DEVICE", id="device argument"),
        pytest.param(own("return helper(self.x[i])") + "\n", "DEVICE", id="in a function that is called"),
        pytest.param(own("return torch.cuda.FloatTensor(self.x[i])"), "DEVICE", id="tensor type of cuda"),
        pytest.param("DataLoader(TensorDataset(torch.zeros(8).cuda()))", "DEVICE", id="tensors on the device"),
        pytest.param(
            "x = torch.zeros(8)\nx = x.to('cuda')\nDataLoader(TensorDataset(x[:4]))", "DEVICE", id="part of a tensor on the device"
        ),
        pytest.param(own("return self.x[i].clone().requires_grad_()"), "GRAPH", id="gradient"),
        pytest.param(own("return self.net(self.x[i])", "self.net = torch.nn.Linear(3, 3)"), "GRAPH", id="network"),
        pytest.param(own("self.f.seek(i)\nreturn self.f.read(3)", "self.f = open('x', 'rb')"), "HANDLE", id="open file"),
        pytest.param(own("return self.h['x'][i]", "self.h = h5py.File('x')"), "HANDLE", id="open database"),
        pytest.param(own("return self.h[i]", "f = h5py.File('x')\nself.h = f['x']"), "HANDLE", id="part of an open database"),
        pytest.param(own("return self.h[i]", "f = h5py.File('x')\nself.h = f.get('x')"), "HANDLE", id="part by a method"),
        pytest.param(own("return self.f[i].read(3)", "self.f = [open(p) for p in 'ab']"), "HANDLE", id="list of open files"),
        pytest.param(own("return self.f[i]", "self.f = []\nself.f.append(open('a'))"), "HANDLE", id="open files appended"),
        pytest.param(own("return self.rs.rand()", "self.rs = np.random.RandomState(0)"), "GENERATOR", id="NumPy generator"),
        pytest.param(own("return torch.rand(2, generator=self.g)", "self.g = torch.Generator()"), "GENERATOR", id="torch generator"),
        pytest.param("rng = np.random.default_rng(0)\n" + own("return rng.random()"), "GENERATOR", id="generator of the module"),
        pytest.param(own("self.seen += 1\nreturn self.x[i]"), "STATE", id="counter"),
        pytest.param(own("self.cache[i] = self.x[i]\nreturn self.cache[i]", "self.cache = {}"), "STATE", id="cache"),
        pytest.param(own("self.order.append(i)\nreturn self.x[i]", "self.order = []"), "STATE", id="list that grows"),
        pytest.param(own("random.shuffle(self.x)\nreturn self.x[i]"), "STATE", id="shuffled in place"),
        pytest.param(own("return next(self.rows)", "self.rows = iter(range(9))"), "STATE", id="kept iterator"),
        pytest.param(own("row = self.x[i]\nrow['a'] = 1\nreturn row"), "STATE", id="stored sample changed"),
        pytest.param("seen = 0\n" + own("global seen\nseen += 1\nreturn self.x[i]"), "STATE", id="global counter"),
        pytest.param("CACHE = {}\n" + own("CACHE[i] = 1\nreturn self.x[i]"), "STATE", id="global cache"),
        pytest.param(
            own("if self.last is not None:\n    i = self.last\nself.last = i\nreturn self.x[i]", "self.last = None"),
            "STATE",
            id="last one kept",
        ),
        pytest.param(
            "import functools\n" + own("return load(i)") + "\n@functools.lru_cache\ndef load(i): ...", "STATE", id="cached function"
        ),
        pytest.param("import multiprocessing\n" + own("return multiprocessing.Pool(2).map(len, self.x)"), "PROCESSES", id="pool"),
        pytest.param(own("return next(iter(DataLoader(self.x)))"), "PROCESSES", id="loader in the dataset"),
        pytest.param(own("return self.f(i)", "self.f = lambda i: i"), "LOCAL", id="lambda kept"),
        pytest.param("def main():\n" + textwrap.indent(own(), "    "), "LOCAL", id="class in a function"),
        pytest.param("if __name__ == '__main__':\n" + textwrap.indent(own(), "    "), "LOCAL", id="class under the guard"),
        pytest.param("DataLoader(datasets.MNIST('a'), collate_fn=lambda b: b)", "LOCAL", id="lambda collates"),
        pytest.param(
            "def make():\n    def init(i): ...\n    return DataLoader(datasets.MNIST('a'), worker_init_fn=init)",
            "LOCAL",
            id="local init function",
        ),
        pytest.param("if __name__ == '__main__':\n    size = 3\n" + own("return self.x[i] * size"), "MAIN_ONLY", id="set under the guard"),
        pytest.param(
            "def main():\n    global size\n    size = 3\n" + own("return self.x[i] * size"),
            "MAIN_ONLY",
            id="set by a function of the script",
        ),
        pytest.param(own("return self.x[i].to_sparse()"), "SPARSE", id="sparse"),
        pytest.param(own("return self.x[i] + np.random.rand()"), "NUMPY", id="NumPy's numbers"),
        pytest.param(own("return self.x[i] + torch.rand(3)"), "RANDOM", id="torch's numbers"),
        pytest.param(own("return self.x[random.randint(0, 3)]"), "RANDOM", id="Python's numbers"),
        pytest.param(own("return self.x[i].clone().normal_()"), "RANDOM", id="drawn in place"),
        pytest.param(own("return cv2.imread(self.x[i])"), "OPENCV", id="OpenCV"),
        pytest.param(
            "class D(data.IterableDataset):\n    def __iter__(self):\n        yield from range(8)\nDataLoader(D())",
            "ITERABLE",
            id="iterable",
        ),
    ],
)
def test_what_makes_code_unfit_is_found_where_it_stands(text: str, expected: str) -> None:
    """Each trait is found in the dataset's methods and in what these call."""
    helper = "\ndef helper(x):\n    return x.cuda()\n"
    body = helper + text if "helper(" in text else text
    assert expected in traits_of(body)


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        pytest.param(own("return self.x[i].to(torch.float32)"), "DEVICE", id="to a dtype"),
        pytest.param(own("return torch.zeros(3, device='cpu')"), "DEVICE", id="on the CPU"),
        pytest.param(own("y = torch.tensor(self.x[i])\nreturn torch.zeros(3, device=y.device)"), "DEVICE", id="where the sample is"),
        pytest.param(own(make="with open('x') as f:\n    self.x = f.read()"), "HANDLE", id="file read and closed"),
        pytest.param(own(make="self.x = h5py.File('x')['x'][:]"), "HANDLE", id="copy of an open database"),
        pytest.param(own(make="d = {'x': 1}\nself.x = d.get('x')"), "HANDLE", id="entry of a dictionary"),
        pytest.param(
            own("if self.h is None:\n    self.h = h5py.File('x')\nreturn self.h['x'][i]", "self.h = None"),
            "HANDLE",
            id="opened by each worker",
        ),
        pytest.param(own("with h5py.File('x') as f:\n    return f['x'][i]"), "HANDLE", id="opened for each sample"),
        pytest.param(own("rng = np.random.default_rng(i)\nreturn rng.random()"), "GENERATOR", id="generator for each sample"),
        pytest.param(
            own(make="self.order = np.random.RandomState(0).permutation(8)\nself.x = self.order"), "GENERATOR", id="used in making"
        ),
        pytest.param(own("if self.h is None:\n    self.h = 1\nreturn self.x[i]", "self.h = None"), "STATE", id="made once for itself"),
        pytest.param(
            own("self.steps = []\nself.steps.append(i)\nrandom.shuffle(self.steps)\nreturn self.steps"), "STATE", id="list made anew"
        ),
        pytest.param("N = 3\n" + own("global N\nreturn self.x[i] * N"), "STATE", id="global that is only read"),
        pytest.param(
            "class Box:\n    def __init__(self, x):\n        if x:\n            self.x = x\n" + own("return Box(self.x[i])"),
            "STATE",
            id="object made for each sample",
        ),
        pytest.param(own("self.now = i\nreturn self.x[self.now]"), "STATE", id="set anew for each sample"),
        pytest.param(
            own("self.now = i\nreturn self.x[self.now]") + "\nclass Other:\n    def show(self):\n        print(self.now)\nprint(np.now)",
            "STATE",
            id="set anew, and another object's of that name read",
        ),
        pytest.param(own("row = dict(self.x[i])\nrow['a'] = 1\nreturn row"), "STATE", id="copy changed"),
        pytest.param(own("rows = []\nrows.append(i)\nreturn rows"), "STATE", id="local list"),
        pytest.param(own("f = lambda v: v\nreturn f(self.x[i])"), "LOCAL", id="lambda used where it is made"),
        pytest.param("SIZE = 3\n" + own("return self.x[i] * SIZE"), "MAIN_ONLY", id="constant of the module"),
        pytest.param(own("with torch.no_grad():\n    return self.x[i].sum()"), "GRAPH", id="no network"),
        pytest.param(
            "class D(data.IterableDataset):\n    def __iter__(self):\n        info = data.get_worker_info()\n        yield from range(8)\n"
            "DataLoader(D())",
            "UNSEEN",
            id="iterable that is read",
        ),
    ],
)
def test_what_only_looks_unfit_is_left_alone(text: str, absent: str) -> None:
    """Code that resembles a trait and does no harm does not get it."""
    assert absent not in traits_of(text)


def test_transforms_are_followed_through_constructors_and_files() -> None:
    """The object given to this very dataset is what its attribute holds, in whatever file its class stands."""
    modules = {"sets.py": """
            class Base(Dataset):
                def __init__(self, root, transform=None):
                    self.transform = transform

                def __getitem__(self, i):
                    return self.transform(i)

            class Photos(Base):
                def __init__(self, root, steps):
                    super().__init__(root, Chain(steps))

            class Chain:
                def __init__(self, steps):
                    self.steps = steps

                def __call__(self, x):
                    for step in self.steps:
                        x = step(x)
                    return x

            class Noise:
                def __call__(self, x):
                    return x + np.random.rand()
        """}
    assert "NUMPY" in traits_of("from sets import Noise, Photos\nDataLoader(Photos('x', [Noise()]))", modules)
    assert "NUMPY" not in traits_of("from sets import Chain, Photos\nDataLoader(Photos('x', [Chain([])]))", modules)
    assert "UNSEEN" in traits_of("from sets import Photos\nDataLoader(Photos('x', unknown))", modules)


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param("return Tools.crop(self.x[i])", id="static method"),
        pytest.param("return tools.Tools.crop(self.x[i])", id="static method through the module"),
        pytest.param("return chain(self.x[i])", id="object of another file"),
        pytest.param("return chain.crop(self.x[i])", id="method of an object of another file"),
        pytest.param("return list(map(crop, self.x[i]))", id="function handed on"),
        pytest.param("return list(map(self.own, self.x[i]))", id="method handed on"),
        pytest.param("return self.of_class(self.x[i])", id="class method"),
        pytest.param("return [self.own(x) for x in self.x]", id="in a comprehension"),
        pytest.param("def inner(x):\n    return crop(x)\nreturn inner(self.x[i])", id="in an inner function"),
    ],
)
def test_every_way_to_the_project_s_own_code_is_followed(sample: str) -> None:
    """Whichever way a sample's code calls a function of the project, that function is read."""
    tools = """
        class Tools:
            @staticmethod
            def crop(x):
                return x + np.random.rand()

            def __call__(self, x):
                return self.crop(x)

        def crop(x):
            return Tools.crop(x)

        chain = Tools()
    """
    more = "def own(self, x):\n    return crop(x)\n@classmethod\ndef of_class(cls, x):\n    return cls.other(x)\n"
    more += "@staticmethod\ndef other(x):\n    return crop(x)"
    found = traits_of("import tools\nfrom tools import Tools, chain, crop\n" + own(sample, more=more), {"tools.py": tools})
    assert "NUMPY" in found
    assert "UNSEEN" not in found


def test_static_collate_function_is_read() -> None:
    """A function that a class only holds is read without an object."""
    more = "@staticmethod\ndef collate(batch):\n    return random.sample(batch, 3)"
    found = traits_of(own(more=more).replace("DataLoader(D())", "DataLoader(D(), collate_fn=D.collate)"))
    assert "RANDOM" in found
    assert "UNSEEN" not in found


def test_library_bases_bring_their_own_samples() -> None:
    """A class that only changes a library's dataset is read for what it changes, and judged by the table for the rest."""
    text = """
        class Pairs(datasets.MNIST):
            def __getitem__(self, i):
                image, label = super().__getitem__(i)
                return image, label + random.random()

        DataLoader(Pairs('x', transform=transforms.ToTensor()))
    """
    assert traits_of(text) == {"WORK", "RANDOM"}


def test_class_chosen_by_a_dictionary_counts_as_all_of_them() -> None:
    """Where a name chooses the class, every class of the dictionary is read."""
    text = """
        class A(Dataset):
            def __getitem__(self, i):
                return random.random()

        class B(Dataset):
            def __getitem__(self, i):
                return torch.zeros(3).cuda()

        def pick(name):
            return {"a": A, "b": B}[name]

        made = pick(name)
        DataLoader(made())
    """
    assert {"RANDOM", "DEVICE"} <= traits_of(text)
    trainer = """
        class Trainer:
            def __init__(self, name):
                self.kind = {"a": A, "b": B}[name]
                self.loader = DataLoader(self.kind())
    """
    held = textwrap.dedent(text).partition("made =")[0] + textwrap.dedent(trainer)
    assert {"RANDOM", "DEVICE"} <= traits_of(held)
    assert "UNSEEN" not in traits_of(held)


def test_collate_function_is_read_as_function_method_and_object() -> None:
    """Whatever makes the batch is code behind the loader."""
    collate = "return torch.stack(batch) + random.random()"
    function = f"def collate(batch):\n    {collate}\nDataLoader(datasets.MNIST('a'), collate_fn=collate)"
    method = own(more=f"def collate(self, batch):\n    {collate}").replace(
        "DataLoader(D())", "d = D()\nDataLoader(d, collate_fn=d.collate)"
    )
    made = f"class C:\n    def __call__(self, batch):\n        {collate}\nDataLoader(datasets.MNIST('a'), collate_fn=C())"
    partial = f"import functools\ndef collate(n, batch):\n    {collate}\nDataLoader([1], collate_fn=functools.partial(collate, 2))"
    for text in (function, method, made, partial):
        assert "RANDOM" in traits_of(text)
        assert "UNSEEN" not in traits_of(text)


@pytest.mark.parametrize(
    ("collate", "expected"),
    [
        pytest.param("return torch.stack(batch)", False, id="tensor"),
        pytest.param("return [x for x in batch]", False, id="list"),
        pytest.param("return Batch(batch)", True, id="own class"),
        pytest.param("out = Batch(batch)\nreturn out", True, id="own class by a variable"),
        pytest.param("BUFFER[0] = batch\nreturn BUFFER", True, id="kept buffer"),
    ],
)
def test_batches_of_own_classes_are_told_from_plain_containers(collate: str, expected: bool) -> None:
    """torch pins what plain containers hold; objects of other classes it leaves, and a kept buffer would be copied."""
    text = HEAD + "BUFFER = {}\nclass Batch: ...\ndef collate(batch):\n" + textwrap.indent(collate, "    ")
    facts = facts_of(text + "\nDataLoader(datasets.MNIST('a'), collate_fn=collate)")
    assert facts.datasets.batch_is_own_object(facts.loaders.all[0]) is expected


def test_mark_says_where_it_stands() -> None:
    """A finding can name the line that speaks against it."""
    facts = facts_of(HEAD + own("return self.x[i].cuda()"))
    mark = facts.datasets.behind(facts.loaders.all[0]).mark(Trait.DEVICE)
    assert mark is not None
    assert mark.place == f"train.py:{HEAD.count(chr(10)) + 7}"


@pytest.mark.parametrize("chosen", ["datasets.__dict__[name]", "getattr(datasets, name)", "getattr(torchvision.datasets, name)"])
def test_dataset_of_a_library_may_be_chosen_by_name(chosen: str) -> None:
    """Whichever of the library's datasets it is, it reads each sample for itself."""
    assert traits_of(f"DataLoader({chosen}('x', train=True, transform=transforms.ToTensor()))") == {"WORK"}
    assert "UNSEEN" in traits_of(f"DataLoader({chosen}('x'))")  # it may be LSUN, which keeps a database open


def test_variable_that_first_holds_the_dataset_s_name_is_the_dataset() -> None:
    """A word that chooses the dataset, and None where there is none, bring no code along."""
    body = "    if d == 'a':\n        d = datasets.MNIST('x')\n    return DataLoader(d)\nmake('a')\nmake(None)"
    assert traits_of(f"def make(d):\n{body}") == {"WORK"}


def test_module_that_is_one_of_two_libraries_is_no_code_of_the_project() -> None:
    """A fallback for older Pythons is a library as well."""
    head = "try:\n    import xml.etree.cElementTree as ET\nexcept ImportError:\n    import xml.etree.ElementTree as ET\n"
    assert "UNSEEN" not in traits_of(head + own("return ET.parse(self.x[i]).getroot()"))
