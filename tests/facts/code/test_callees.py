from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of, node
from torchfix.facts.code.callees import called
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.names import Definition

TEXT = """
    import torch

    class Base:
        def close(self): ...

    class Log(Base):
        def __init__(self, path): ...
        def add(self, x): ...
        def __call__(self, x):
            self.add(x)

    class Net(torch.nn.Module):
        def forward(self, x): ...

    def f(): ...

    log = Log("a")
    f()
    log.add(1)
    log.close()
    log(2)
    torch.save(1, 2)
    stranger.add(3)
    Net()(4)
"""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        pytest.param("torch.save(1, 2)", [], id="library"),
        pytest.param("stranger.add(3)", [], id="method of something unknown"),
        pytest.param("Net()(4)", [], id="network, whose forward is not counted"),
        pytest.param("f()", ["f"], id="function"),
        pytest.param('Log("a")', ["__init__"], id="constructor"),
        pytest.param("log.add(1)", ["add"], id="method of a known object"),
        pytest.param("log.close()", ["close"], id="method of a base class"),
        pytest.param("self.add(x)", ["add"], id="method of self"),
        pytest.param("log(2)", ["__call__"], id="object that is called"),
    ],
)
def test_a_call_runs_functions_of_the_project(call: str, expected: list[str]) -> None:
    """A call is followed to the function, constructor or method that the project defines for it."""
    facts = facts_of(TEXT)
    found = node(facts, call)
    assert isinstance(found, ast.Call)
    assert [function.name for _, function in called(facts, found)] == expected


def test_functions_of_other_files_are_found_with_their_facts() -> None:
    """What a call runs is told together with the file that it stands in."""
    facts = facts_of("import tools\ntools.f()", modules={"tools.py": "def f(): ..."})
    found = node(facts, "tools.f()")
    assert isinstance(found, ast.Call)
    assert [home.path for home, _ in called(facts, found)] == ["tools.py"]


def test_classes_that_derive_from_each_other_end_the_search() -> None:
    """A circle of base classes has no method."""
    facts = facts_of("class A(B): ...\nclass B(A): ...")
    assert method_of(Definition(facts, facts.tree.classes[0]), "f") is None
