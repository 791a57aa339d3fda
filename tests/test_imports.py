"""Where an import goes, and whether one may leave."""

from __future__ import annotations

import pytest

from tests.editing import call, edited, expression, read, statement
from torchfix.edits import AddImport, InsertAfter, Remove, RemoveImport, Replace, SetArgument
from torchfix.source import SourceFile


@pytest.mark.parametrize(
    ("text", "module", "name"),
    [
        pytest.param("import os\n", "os", None, id="module"),
        pytest.param("import os, sys\n", "sys", None, id="one of several"),
        pytest.param("import torch.nn\n", "torch", None, id="package of a submodule"),
        pytest.param("from torch import nn\n", "torch", "nn", id="name"),
        pytest.param("from torch import (\n    nn,\n    optim,\n)\n", "torch", "optim", id="name in parentheses"),
        pytest.param("x = 1\nimport os\n", "os", None, id="behind code that was not edited"),
        pytest.param("# only a comment\n", "os", None, id="a file without code"),
    ],
)
def test_import_that_holds_is_not_written_again(text: str, module: str, name: str | None) -> None:
    """Nothing is added where a plain import at module level gives the name already."""
    assert edited(read(text), [AddImport(module, name)]) == text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("import argparse\nimport time\n", "import argparse\nimport os\nimport time\n", id="by the alphabet"),
        pytest.param("import time\n\nimport torch\n", "import os\nimport time\n\nimport torch\n", id="before the first"),
        pytest.param("import numpy\nimport torch\n", "import os\nimport numpy\nimport torch\n", id="no other of the standard library"),
        pytest.param("# about argparse\nimport time\n", "# about argparse\nimport os\nimport time\n", id="below the head"),
        pytest.param("import os as system\n", "import os as system\nimport os\n", id="under another name"),
        pytest.param("from os import path\n", "import os\nfrom os import path\n", id="only a name of it"),
        pytest.param('"""Doc."""\nx = 1\n', '"""Doc."""\n\nimport os\nx = 1\n', id="behind the docstring"),
        pytest.param("x = 1\n", "import os\nx = 1\n", id="no import at all"),
        pytest.param("x = 1\nimport sys\n", "import os\nx = 1\nimport sys\n", id="no import at the head"),
        pytest.param("try:\n    import os\nexcept:\n    pass\n", "import os\ntry:\n    import os\nexcept:\n    pass\n", id="in a try"),
        pytest.param("from __future__ import annotations\nx = 1\n", "from __future__ import annotations\nimport os\nx = 1\n", id="future"),
        pytest.param("import sys; x = 1\n", "import os\nimport sys; x = 1\n", id="on a line with code that may need it"),
        pytest.param("import re; import sys\n", "import os\nimport re; import sys\n", id="between two on a line"),
        pytest.param("import torch; import sys\n", "import os\nimport torch; import sys\n", id="above the second on a line"),
        pytest.param('"""Doc."""; import torch\n', '"""Doc."""; import torch\nimport os\n', id="on the docstring's line"),
        pytest.param("x = 1; y = (2,\n3); import re\n", "import os\nx = 1; y = (2,\n3); import re\n", id="on lines that hang together"),
        pytest.param("import re\r\nimport sys\r\n", "import os\r\nimport re\r\nimport sys\r\n", id="line ends of Windows"),
    ],
)
def test_standard_library_joins_its_own(before: str, after: str) -> None:
    """A module of the standard library goes among its own in the run of imports at the head, by the alphabet."""
    assert edited(SourceFile("train.py", before), [AddImport("os")]) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("import os\nimport torch\nimport z\n", "import os\nimport torch\nNEW\nimport z\n", id="behind import torch"),
        pytest.param("from torch import nn\nimport torch\n", "from torch import nn\nNEW\nimport torch\n", id="behind the first of torch"),
        pytest.param("import torch.nn as nn, os\n", "import torch.nn as nn, os\nNEW\n", id="torch among others"),
        pytest.param("import os\nx = 1\nimport torch\n", "import os\nx = 1\nimport torch\nNEW\n", id="torch behind code"),
        pytest.param("import os\nimport numpy\nfrom . import z\n", "import os\nimport numpy\nNEW\nfrom . import z\n", id="no torch"),
        pytest.param("from . import z\n", "NEW\nfrom . import z\n", id="only relative ones"),
        pytest.param("import torchvision\nimport z\n", "import torchvision\nimport z\nNEW\n", id="only a name that begins alike"),
    ],
)
def test_torch_goes_behind_torch(before: str, after: str) -> None:
    """An import of torch follows the file's first import of torch, else the others that are not relative."""
    source = read(before)
    assert edited(source, [AddImport("torch.distributed")]) == after.replace("NEW", "import torch.distributed")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("from torch.nn import Module\n", "from torch.nn import Module, Linear\n", id="one name"),
        pytest.param("from torch.nn import Module  # base\n", "from torch.nn import Module, Linear  # base\n", id="with a comment"),
        pytest.param("from torch.nn import Module as M\n", "from torch.nn import Module as M, Linear\n", id="under another name"),
        pytest.param(
            "from torch.nn import (\n    Module,\n)\n",
            "from torch.nn import (\n    Module,\n)\nfrom torch.nn import Linear\n",
            id="in parentheses",
        ),
        pytest.param("from torch.nn import *\n", "from torch.nn import *\nfrom torch.nn import Linear\n", id="a star"),
        pytest.param(
            "from torch.nn import Module; x = 1\n",
            "from torch.nn import Linear\nfrom torch.nn import Module; x = 1\n",
            id="on a shared line",
        ),
        pytest.param(
            f"from torch.nn import {'M' * 70}\n", f"from torch.nn import {'M' * 70}\nfrom torch.nn import Linear\n", id="a long line"
        ),
    ],
)
def test_a_name_joins_the_import_of_its_module(before: str, after: str) -> None:
    """A name is added to a plain one-line import of the same module, else it follows that import."""
    assert edited(read(before), [AddImport("torch.nn", "Linear")]) == after


def test_a_name_joins_an_import_that_new_code_follows() -> None:
    """Code that is put behind an import leaves it as it is, so that a name may still join it."""
    source = read("from torch.nn import Module\nx = 1\n")
    edits = [AddImport("torch.nn", "Linear"), InsertAfter(statement(source, "from"), "y = 2")]
    assert edited(source, edits) == "from torch.nn import Module, Linear\ny = 2\nx = 1\n"


def test_several_imports_come_in_one_order() -> None:
    """Modules come before names, each by the alphabet, in whatever order they are asked for."""
    source = read("import torch\n\nx = 1\n")
    edits = [AddImport("torch.nn", "Linear"), AddImport("torch.distributed"), AddImport("torch", "nn"), AddImport("torch.distributed")]
    expected = "import torch\nimport torch.distributed\nfrom torch import nn\nfrom torch.nn import Linear\n\nx = 1\n"
    assert edited(source, edits) == expected
    assert edited(source, edits[::-1]) == expected


def test_f67_import_stands_before_its_first_need() -> None:
    """An import goes above the first edited statement that runs on import, behind docstring and ``__future__``."""
    source = read("""
        '''Doc.'''
        from __future__ import annotations

        import sys
        sys.path.insert(0, "lib")

        BASE = make() if False else None
        'a bare string in the middle'
        import torch

        def make():
            return torch.nn.DataParallel(torch.nn.Linear(1, 1))
        """)
    late = [SetArgument(call(source, "torch.nn.Linear"), "bias", "os.sep"), AddImport("os"), AddImport("torch.distributed")]
    text = edited(source, late)
    assert text.index("annotations") < text.index("import os\nimport sys\n") < text.index("sys.path")
    assert "import torch\nimport torch.distributed\n" in text
    early = [SetArgument(call(source, "sys.path.insert"), "x", "torch.distributed"), AddImport("torch.distributed")]
    assert "import sys\nimport torch.distributed\nsys.path" in edited(source, early)


def test_import_that_comes_too_late_for_an_edit_is_written_above() -> None:
    """An import below an edited statement of the module does not count for it; for a function's body it does."""
    source = read("def f():\n    g()\nh()\nimport os\n")
    assert edited(source, [SetArgument(call(source, "h"), "k", "os"), AddImport("os")]).startswith("import os\ndef")
    assert edited(source, [SetArgument(call(source, "g"), "k", "os"), AddImport("os")]) == source.text.replace("g()", "g(k=os)")


def test_import_goes_above_what_else_is_inserted_there() -> None:
    """Code that is inserted behind an import may need the new one."""
    source = read("import torch\nx = 1\n")
    edits = [InsertAfter(statement(source, "import"), "y = dist.f()"), AddImport("torch.distributed")]
    assert edited(source, edits) == "import torch\nimport torch.distributed\ny = dist.f()\nx = 1\n"


def test_f65_comments_around_a_removed_import_stay() -> None:
    """The comment above a removed import stays, and so does the one behind it."""
    source = read("""
        # keep: legal wants this line
        from torch.cuda.amp import autocast
        # keep: second note
        import os  # trailing note

        print(autocast)
        """)
    edits = [
        Replace(expression(source, "autocast"), "torch.autocast"),
        RemoveImport("torch.cuda.amp", "autocast"),
        RemoveImport("os"),
        AddImport("torch"),
    ]
    expected = """
        # keep: legal wants this line
        import torch
        # keep: second note
        # trailing note

        print(torch.autocast)
        """
    assert edited(source, edits) == read(expected).text


@pytest.mark.parametrize(
    ("text", "path"),
    [
        pytest.param("import os\nprint(os.sep)\n", "train.py", id="used"),
        pytest.param("import os\ndef f(x: 'os.PathLike'): pass\n", "train.py", id="used in a quoted annotation"),
        pytest.param("import os\ndel os\n", "train.py", id="deleted"),
        pytest.param("import os\ndef f():\n    global os\n", "train.py", id="declared global"),
        pytest.param("import os\n__all__ = ['f']\n", "train.py", id="module that declares its names"),
        pytest.param("import os\n", "package/__init__.py", id="package's face"),
        pytest.param("if x:\n    import os\n", "train.py", id="in an if"),
        pytest.param("def f():\n    import os\n", "train.py", id="in a function"),
        pytest.param("import os; x = 1\n", "train.py", id="on a shared line"),
        pytest.param("import sys\n", "train.py", id="another module"),
    ],
)
def test_import_that_may_be_needed_stays(text: str, path: str) -> None:
    """An import leaves only where nothing can need it."""
    assert edited(SourceFile(path, text), [RemoveImport("os")]) == text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("try:\n    from torch.cuda.amp import autocast\n    AMP = True\nexcept ImportError:\n    AMP = False\n", id="try"),
        pytest.param("from torch.cuda.amp import (\n    autocast,  # why\n    GradScaler,\n)\n", id="comment among the names"),
        pytest.param("from .amp import autocast\n", id="relative"),
    ],
)
def test_f87_probing_imports_stay(text: str) -> None:
    """An import in a ``try`` is a probe; one whose comments would be lost stays too."""
    assert edited(read(text), [RemoveImport("torch.cuda.amp", "autocast")]) == text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("import os\nx = 1\n", "x = 1\n", id="alone"),
        pytest.param("import os, sys\n", "import sys\n", id="among others"),
        pytest.param("import os as system\nx = os\n", "x = os\n", id="under another name"),
        pytest.param('import os\ndef f():\n    "Uses os."\n', 'def f():\n    "Uses os."\n', id="named in a docstring"),
        pytest.param("import os\n", "pass\n", id="the only statement"),
    ],
)
def test_import_that_nothing_needs_leaves(before: str, after: str) -> None:
    """An unused import leaves, with its line or without its neighbours."""
    assert edited(read(before), [RemoveImport("os")]) == after


def test_f93_bare_names_go_together_with_their_import() -> None:
    """An import leaves when the edits themselves took its last use away, and stays while another use is left."""
    source = read("import torch\nfrom torch import zeros, ones\n\na = zeros(2)\nb = ones(2)\nc = ones(3)\n")
    swap = [Replace(expression(source, "zeros"), "torch.zeros"), Replace(expression(source, "ones"), "torch.ones")]
    edits = [*swap, RemoveImport("torch", "zeros"), RemoveImport("torch", "ones")]
    assert edited(source, edits) == "import torch\nfrom torch import ones\n\na = torch.zeros(2)\nb = torch.ones(2)\nc = ones(3)\n"


def test_import_asked_for_by_one_and_unwanted_by_another_stays() -> None:
    """Who needs an import wins over who no longer does."""
    assert edited(read("import os\n"), [RemoveImport("os"), AddImport("os")]) == "import os\n"


def test_import_that_leaves_counts_for_nobody() -> None:
    """What a removed statement gave does not hold for another edit, and its line may take the new import."""
    source = read("import torch.distributed, x\ny = f()\n")
    edits = [Remove(statement(source, "import torch")), AddImport("torch.distributed")]
    assert edited(source, edits) == "import torch.distributed\ny = f()\n"
