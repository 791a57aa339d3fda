"""Code that autocast does not know: what is taken to be sound, and what each of the others is called."""

from __future__ import annotations

import ast

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS
from torchfix.facts.half_precision import foreign_code

FUNCTION = """
import torch
{imports}

class Round(torch.autograd.Function):
    @staticmethod
    {forward}
    def forward(ctx, x):
        return x.round()

    @staticmethod
    {backward}
    def backward(ctx, g):
        return g


{text}
"""
BARE = {"forward": "", "backward": ""}


def codes(text: str, imports: str = "", forward: str = "", backward: str = "", modules: dict[str, str] | None = None) -> set[str]:
    """What the calls, functions and classes of a file run that autocast does not know."""
    facts = facts_of(FUNCTION.format(text=text, imports=imports, forward=forward, backward=backward), modules=modules)
    found: set[str | None] = set()
    for item in ast.walk(facts.tree.module):
        if isinstance(item, ast.Call):
            found.add(foreign_code.in_call(facts, item))
        elif isinstance(item, FUNCTIONS):
            found.add(foreign_code.in_function(facts, item))
        elif isinstance(item, ast.ClassDef) and item.name != "Round":
            in_class = foreign_code.in_class(Definition(facts, item))
            found.add(in_class[1] if in_class else None)
    return {code for code in found if code is not None}


@pytest.mark.parametrize(
    ("imports", "text"),
    [
        pytest.param("", "y = torch.relu(x)", id="torch"),
        pytest.param("import queue", "q = queue.Queue()", id="the standard library"),
        pytest.param("from einops import rearrange", "y = rearrange(x, 'a b -> b a')", id="a package that only moves"),
        pytest.param("", "y = torch.ops.torchvision.nms(x, x, 0.5)", id="torchvision's operators"),
        pytest.param("", "if torch.jit.is_scripting():\n    pass", id="a question about TorchScript"),
        pytest.param("", "@torch.jit.ignore\ndef f(x):\n    return x", id="a mark of TorchScript"),
        pytest.param("", "class Net(torch.nn.Module):\n    layer = torch.nn.Embedding(8, 2, sparse=False)", id="dense gradients"),
    ],
)
def test_known_code_is_no_hazard(imports: str, text: str) -> None:
    """Torch, what comes with Python, and packages that take half precision or touch no tensor."""
    assert codes(text, imports) == set()


def test_an_autograd_function_that_says_what_autocast_is_to_do_is_sound() -> None:
    """For both of its passes; for one of them alone it is not."""
    forward, backward = "@torch.amp.custom_fwd(device_type='cuda', cast_inputs=torch.float32)", "@torch.amp.custom_bwd(device_type='cuda')"
    assert codes("y = Round.apply(x)", forward=forward, backward=backward) == set()
    assert codes("y = Round.apply(x)", forward="@torch.cuda.amp.custom_fwd", backward="@torch.cuda.amp.custom_bwd") == set()
    assert codes("y = Round.apply(x)", forward=forward) == {"custom-autograd"}


@pytest.mark.parametrize(
    ("code", "imports", "text"),
    [
        pytest.param("custom-autograd", "", "y = Round.apply(x)", id="an autograd function"),
        pytest.param("custom-autograd", "", "rounded = Round.apply\ny = rounded(x)", id="an autograd function by another name"),
        pytest.param("custom-operator", "", "y = torch.ops.mine.act(x)", id="an operator of one's own"),
        pytest.param(
            "custom-operator",
            "from torch.utils.cpp_extension import load",
            "extension = load(name='e', sources=[])\n\n\ndef f(x):\n    return extension.forward(x)",
            id="an extension that is built at run time",
        ),
        pytest.param("custom-operator", "import ctypes", "library = ctypes.CDLL('l.so')\nlibrary.act(x)", id="a library of C"),
        pytest.param(
            "custom-operator",
            "",
            "@torch.library.custom_op('m::a', mutates_args=())\ndef act(x):\n    return x",
            id="a registered operator",
        ),
        pytest.param("custom-operator", "import triton", "@triton.jit\ndef act(x):\n    pass", id="a kernel"),
        pytest.param("unseen-layer", "import roi_cuda", "y = roi_cuda.forward(x)", id="a compiled module"),
        pytest.param("unseen-layer", "from . import _C", "y = _C.forward(x)", id="a compiled module beside the file"),
        pytest.param("unseen-layer", "import cupy", "k = cupy.RawKernel('', 'k')\nk((1,), (1,), (x,))", id="another package's object"),
        pytest.param("sparse-operator", "", "y = torch.sparse.mm(a, x)", id="a product of a sparse matrix"),
        pytest.param("torchscript", "", "f = torch.jit.script(g)", id="TorchScript"),
        pytest.param("torchscript", "", "@torch.jit.script\ndef f(x):\n    return x", id="TorchScript by decorator"),
        pytest.param("sparse-gradients", "", "class Net(torch.nn.Module):\n    e = torch.nn.Embedding(8, 2, sparse=flag)", id="by a flag"),
        pytest.param(
            "sparse-gradients",
            "",
            "class Net(torch.nn.Module):\n    e = torch.nn.EmbeddingBag(8, 2, None, 2.0, False, 'mean', True)",
            id="by position",
        ),
    ],
)
def test_unknown_code_has_a_code(code: str, imports: str, text: str) -> None:
    """By what it is, however it is called."""
    assert codes(text, imports) == {code}


def test_an_autograd_function_of_another_file_is_followed() -> None:
    """A file of operators hands on its function's ``apply``."""
    operators = FUNCTION.format(text="rounded = Round.apply", imports="", **BARE)
    facts = facts_of("from operators import rounded\n\ny = rounded(x)\n", modules={"operators.py": operators})
    (call,) = (item for item in ast.walk(facts.tree.module) if isinstance(item, ast.Call))
    assert foreign_code.in_call(facts, call) == "custom-autograd"
