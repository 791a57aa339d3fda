"""Batches in host memory, and where they are copied from there."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node

HEAD = """\
import numpy as np
import torch
from accelerate import Accelerator
from torch.autograd import Variable
from torch.utils.data import DataLoader

loader = DataLoader(data)
"""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("for x in other:\n    use(x)", id="another iterable"),
        pytest.param("for x, y in loader:\n    x = x.cuda()\n    use(x)", id="moved"),
        pytest.param(
            "accelerator = Accelerator()\nmodel, loader = accelerator.prepare(model, loader)\nfor x in loader:\n    use(x)",
            id="placed by a framework",
        ),
        pytest.param(
            "def ahead(it):\n    for b in it:\n        yield b.cuda()\nfor x in ahead(loader):\n    use(x)", id="placed by a generator"
        ),
        pytest.param("for x, y in loader:\n    if c:\n        x = x.cuda()\n    use(x)", id="perhaps moved"),
        pytest.param("for x, y in loader:\n    x = net(x)\n    use(x)", id="computed by a network"),
        pytest.param("for x, y in loader:\n    x = x / 255\n    use(x)", id="computed"),
        pytest.param("for batch in loader:\n    for x, value in batch.items():\n        use(x)", id="key of an entry"),
        pytest.param("def f(x):\n    use(x)\nfor a, b in loader:\n    f(a)\n    f(net(a))", id="not from every caller"),
    ],
)
def test_no_batch_on_the_host(text: str) -> None:
    """What did not come from a loader, or is no longer in host memory for sure, is no part of a batch."""
    facts = facts_of(HEAD + text)
    assert facts.batches.on_host(node(facts, "x", -1)) is None


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        pytest.param("for x in loader:\n    use(x)", True, id="the batch"),
        pytest.param("x = next(iter(loader))\nuse(x)", True, id="next"),
        pytest.param("for x, y in loader:\n    use(x)", False, id="entry"),
        pytest.param("for i, (x, y) in enumerate(loader):\n    use(x)", False, id="enumerated"),
        pytest.param("for batch in loader:\n    x = batch['image']\n    use(x)", False, id="entry of a dictionary"),
        pytest.param("for batch in loader:\n    for key, x in batch.items():\n        use(x)", False, id="every entry"),
        pytest.param("for batch in loader:\n    for x in batch.values():\n        use(x)", False, id="every value"),
        pytest.param("for batch in loader:\n    [use(x) for x in batch]", False, id="every part"),
        pytest.param("for x, y in loader:\n    x = x.view(-1).float().contiguous()\n    use(x)", False, id="shaped and cast"),
        pytest.param("for x, y in loader:\n    x = x.to(torch.half)\n    use(x)", False, id="cast by to"),
        pytest.param("for x, y in loader:\n    x = x.to('cpu')\n    use(x)", False, id="kept on the host"),
        pytest.param("for x, y in loader:\n    x = Variable(x)\n    use(x)", False, id="variable"),
        pytest.param("def f(x):\n    use(x)\nfor a, b in loader:\n    f(a)", False, id="handed to a function"),
    ],
)
def test_batch_on_the_host(text: str, is_whole: bool) -> None:
    """A batch is followed through loops, entries, shapes, casts and calls."""
    facts = facts_of(HEAD + text)
    part = facts.batches.on_host(node(facts, "x", -1))
    assert part is not None
    assert [loader.call.lineno for loader in part.loaders] == [7]
    assert (part.is_whole, part.is_made) == (is_whole, False)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("def ahead(it):\n    for b in it:\n        yield b\nfor x in ahead(loader):\n    use(x)", id="generator"),
        pytest.param("def ahead(it):\n    yield from it\nfor x in ahead(loader):\n    use(x)", id="yield from"),
        pytest.param(
            "class Log:\n    def every(self, it, n):\n        for b in it:\n"
            "            yield b\nfor x, y in Log().every(loader, 3):\n    use(x)",
            id="generator method",
        ),
        pytest.param(
            "def cycle(it):\n    while True:\n        for b in it:\n            yield b\n"
            "b = cycle(loader)\nfor i in range(9):\n    x = next(b)\n    use(x)",
            id="endless generator",
        ),
        pytest.param(
            "class W:\n    def __init__(self, it):\n        self.it = it\n"
            "    def __iter__(self):\n        for b in self.it:\n            yield b\n"
            "for x in W(loader):\n    use(x)",
            id="iterable of the project",
        ),
        pytest.param(
            "class W:\n    def __init__(self, it):\n        self.it = iter(it)\n    def __iter__(self):\n        return self\n"
            "    def __next__(self):\n        return next(self.it)\nfor x in W(loader):\n    use(x)",
            id="iterator of the project",
        ),
        pytest.param("from itertools import islice\nfor i, x in enumerate(islice(loader, 9)):\n    use(x)", id="islice"),
        pytest.param("from tqdm import tqdm\nfor x in tqdm(iterable=loader):\n    use(x)", id="tqdm by keyword"),
        pytest.param(
            "loaders = {'train': loader}\nfor phase, it in loaders.items():\n    for x in it:\n        use(x)", id="loop over loaders"
        ),
        pytest.param("for x, *rest in loader:\n    use(x)", id="beside a star"),
        pytest.param("for batch in loader:\n    x = batch.get('image')\n    use(x)", id="get"),
        pytest.param("class M:\n    def set(self, x):\n        use(x)\nm = M()\nfor b in loader:\n    m.set(b)", id="method of an object"),
        pytest.param(
            "class B:\n    def __init__(self, it):\n        self.it = it\n"
            "    def run(self):\n        for x in self.it:\n            use(x)\n"
            "class T(B):\n    def __init__(self, it, n):\n        super().__init__(it)\nT(loader, 3)",
            id="base class",
        ),
    ],
)
def test_batch_that_comes_through_code_of_the_project(text: str) -> None:
    """Generators, iterables, methods and base classes hand on what their own call was given."""
    facts = facts_of(HEAD + text)
    part = facts.batches.on_host(facts.tree.calls["use"][0].args[0])
    assert part is not None
    assert [loader.call.lineno for loader in part.loaders] == [7]


def test_generator_gives_each_caller_its_own_batches() -> None:
    """A generator that two loops share hands each of them the batches of the loader that it was given there."""
    text = "other = DataLoader(rest)\ndef go(it):\n    yield from it\nfor x in go(loader):\n    one(x)\nfor x in go(other):\n    two(x)\n"
    facts = facts_of(HEAD + text)
    parts = [facts.batches.on_host(facts.tree.calls[name][0].args[0]) for name in ("one", "two")]
    assert [[loader.call.lineno for loader in part.loaders] if part else None for part in parts] == [[7], [8]]


def test_tensor_made_of_a_batch_s_arrays() -> None:
    """The program made it itself, so no loader can have pinned it."""
    facts = facts_of(f"{HEAD}for a, b in loader:\n    x = torch.from_numpy(a).long()\n    use(x)\n")
    part = facts.batches.on_host(node(facts, "x", -1))
    assert part is not None
    assert part.is_made


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("place()", False, id="once"),
        pytest.param("for x in loader:\n    place()\n    break", False, id="first batch only"),
        pytest.param("def f():\n    place()\nf()", False, id="function that is called once"),
        pytest.param("def f():\n    f()\n    place()\nf()", False, id="function that calls itself"),
        pytest.param("for x in loader:\n    place()", True, id="loop"),
        pytest.param("for x in loader:\n    place()\n    if c:\n        break", True, id="loop that may end"),
        pytest.param("while c:\n    place()", True, id="while"),
        pytest.param("def f():\n    place()\nfor x in loader:\n    f()", True, id="function that is called in a loop"),
        pytest.param("def f():\n    place()\ng = f", True, id="callers out of sight"),
    ],
)
def test_repeated_places(text: str, expected: bool) -> None:
    """A place is repeated in a loop that goes on, or through a function that such a loop calls."""
    facts = facts_of(HEAD + text)
    assert facts.batches.is_repeated(node(facts, "place()")) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("x = x.cuda()\n    x.zero_()", False, id="the copy"),
        pytest.param("x.zero_()\n    z = x.cuda()", False, id="before the copy"),
        pytest.param("z = x.cuda()\n    z += 1", False, id="another name for the copy"),
        pytest.param("z = x.cuda()\n    x = x + 1", False, id="another tensor of that name"),
        pytest.param("z = x.cuda()\n    x += 1", True, id="added to"),
        pytest.param("z = x.view(-1).cuda()\n    x[0] = 1", True, id="element"),
        pytest.param("z = x.cuda()\n    torch.add(x, 1, out=x)", True, id="out"),
    ],
)
def test_writes_behind_a_copy(text: str, expected: bool) -> None:
    """Only a write into the tensor that is still being copied counts."""
    facts = facts_of(f"{HEAD}for x, y in loader:\n    {text}\n")
    call = next(iter(facts.calls.methods("cuda")))
    copy = facts.batches.copy(call)
    assert copy is not None
    assert (facts.batches.written_after(copy[0]) is not None) is expected


def test_another_tensor_put_into_the_batch_is_no_write() -> None:
    """``batch[key] = batch[key].cuda()`` writes into the dictionary, not into the tensor."""
    text = "for batch in loader:\n    batch['a'] = batch['a'].cuda()\n    for k, v in batch.items():\n        batch[k] = v.cuda()\n"
    facts = facts_of(HEAD + text)
    copies = [facts.batches.copy(call) for call in facts.calls.methods("cuda")]
    assert [facts.batches.written_after(copy[0]) for copy in copies if copy] == [None, None]


@pytest.mark.parametrize(
    ("call", "expected"),
    [("x.to('cpu')", None), ("x.to(torch.half)", None), ("y.cuda()", None), ("x.cuda()", {"cuda"}), ("x.to(where)", {"?"})],
)
def test_copies_from_the_host(call: str, expected: set[str] | None) -> None:
    """A copy leads from host memory to somewhere else, which need not be known."""
    facts = facts_of(f"{HEAD}for x in loader:\n    y = net(x)\n    {call}\n")
    found = next(item for item in ast.walk(facts.source.tree) if isinstance(item, ast.Call) and ast.unparse(item) == call)
    copy = facts.batches.copy(found)
    assert (set(copy[0].device.types) if copy else None) == expected
