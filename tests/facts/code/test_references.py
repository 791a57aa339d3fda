"""Uses of a torch name: what is done with it, behind which import, and where the program chooses between versions."""

from __future__ import annotations

import textwrap

import pytest

from tests.facts.reading import facts_of
from torchfix.facts.code.references import Role

OLD, NEW = "torch.cuda.amp.GradScaler", "torch.amp.GradScaler"
HEAD = "import torch\nfrom torch.cuda.amp import GradScaler\n\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("from apex.amp import GradScaler\nGradScaler()", id="of another package"),
        pytest.param("from torch.amp import GradScaler\nGradScaler()", id="of today"),
        pytest.param("from torch.cuda.amp import GradScaler\nscaler = GradScaler\nGradScaler = 3\nscaler()", id="through a variable"),
        pytest.param("class GradScaler: pass\nGradScaler()", id="the file's own"),
        pytest.param("from torch.cuda.amp import GradScaler\ndef f(GradScaler):\n    GradScaler()", id="a parameter"),
    ],
)
def test_other_names_are_no_reference(text: str) -> None:
    """A name that something else may have bound is not torch's."""
    assert [item for item in facts_of(text).references.to([OLD]) if item.role is Role.CALLED] == []


@pytest.mark.parametrize(
    ("text", "role"),
    [
        pytest.param("GradScaler()", Role.CALLED, id="called"),
        pytest.param("@GradScaler\ndef f(): pass", Role.DECORATING, id="decorating"),
        pytest.param("isinstance(x, GradScaler)", Role.CHECKED, id="checked"),
        pytest.param("isinstance(x, (int, GradScaler))", Role.CHECKED, id="checked in a tuple"),
        pytest.param("isinstance(x, int | GradScaler)", Role.CHECKED, id="checked in a union"),
        pytest.param("def f(x: GradScaler): pass", Role.ANNOTATING, id="annotating a parameter"),
        pytest.param("def f() -> GradScaler | None: pass", Role.ANNOTATING, id="annotating a result"),
        pytest.param("x: list[GradScaler] = []", Role.ANNOTATING, id="annotating a variable"),
        pytest.param("class A(GradScaler): pass", Role.DERIVED, id="derived"),
        pytest.param("type(x) is GradScaler", Role.COMPARED, id="compared"),
        pytest.param("match x:\n    case GradScaler():\n        pass", Role.COMPARED, id="matched"),
        pytest.param("torch.cuda.amp.GradScaler = own", Role.REBOUND, id="something else put in its place"),
        pytest.param("made = GradScaler", Role.HANDED_ON, id="assigned"),
        pytest.param("f(GradScaler)", Role.HANDED_ON, id="passed first"),
        pytest.param("partial(f, GradScaler)", Role.HANDED_ON, id="passed"),
        pytest.param("isinstance(GradScaler, type)", Role.HANDED_ON, id="asked about itself"),
        pytest.param("GradScaler.step", Role.HANDED_ON, id="an attribute of it"),
    ],
)
def test_roles(text: str, role: Role) -> None:
    """What stands around a name tells what is done with it."""
    (found,) = facts_of(HEAD + text).references.to([OLD])
    assert found.role is role
    assert (found.call is not None) is (role is Role.CALLED)


@pytest.mark.parametrize(
    ("text", "imported"),
    [
        pytest.param("from torch.cuda.amp import GradScaler as G\nG()", ("torch.cuda.amp", "GradScaler"), id="the name"),
        pytest.param("from torch.cuda import amp\namp.GradScaler()", ("torch.cuda", "amp"), id="its module"),
        pytest.param("import torch.cuda.amp as amp\namp.GradScaler()", ("torch.cuda.amp", None), id="its module, aliased"),
        pytest.param("import os, torch\ntorch.cuda.amp.GradScaler()", ("torch", None), id="the package"),
        pytest.param("from torch.cuda.amp.grad_scaler import GradScaler\nGradScaler()", ("torch.cuda.amp.grad_scaler", "GradScaler")),
    ],
)
def test_the_import_behind_a_name_is_known(text: str, imported: tuple[str, str | None]) -> None:
    """The import is given as it is written, so that it can be taken away."""
    (found,) = facts_of(text).references.to([OLD])
    assert found.imported == imported


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("GradScaler()", False, id="no choice"),
        pytest.param("if use_amp:\n    GradScaler()\nelse:\n    scaler = None", False, id="another condition"),
        pytest.param("try:\n    GradScaler()\nexcept KeyboardInterrupt:\n    pass", False, id="other errors are caught"),
        pytest.param("try:\n    GradScaler()\nfinally:\n    pass", False, id="nothing is caught"),
        pytest.param("if flag:\n    return_ = torch.amp.GradScaler()\nGradScaler()", False, id="a branch that goes on"),
        pytest.param("if new:\n    torch.amp.GradScaler()\nelse:\n    GradScaler()", True, id="other branch"),
        pytest.param("torch.amp.GradScaler() if new else GradScaler()", True, id="other arm"),
        pytest.param("if torch.__version__ < '2.4':\n    GradScaler()", True, id="version"),
        pytest.param("if not hasattr(torch.amp, 'GradScaler'):\n    GradScaler()", True, id="hasattr"),
        pytest.param("try:\n    GradScaler()\nexcept AttributeError:\n    pass", True, id="tried"),
        pytest.param("try:\n    torch.amp.GradScaler()\nexcept Exception:\n    GradScaler()", True, id="fallback"),
        pytest.param("def f():\n    if new:\n        return torch.amp.GradScaler()\n    return GradScaler()", True, id="returned before"),
    ],
)
def test_choices_between_versions(text: str, expected: bool) -> None:
    """A program that has both spellings for one purpose, or asks for the version, supports versions that lack one."""
    references = facts_of(HEAD + text).references
    (found,) = references.to([OLD])
    assert references.is_choice(found, [NEW]) is expected


def test_an_import_that_is_tried_is_a_choice() -> None:
    """What the handler binds may be used where the name is missing."""
    text = """
    try:
        from torch.cuda.amp import GradScaler
        HAS_AMP = True
    except ImportError:
        HAS_AMP = False
    GradScaler()
    """
    references = facts_of(textwrap.dedent(text)).references
    (found,) = references.to([OLD])
    assert references.is_choice(found, [NEW])


@pytest.mark.parametrize(
    ("modules", "text", "found"),
    [
        pytest.param({"own.py": "from torch.cuda.amp import GradScaler\n"}, "from own import GradScaler as G\nG()", True, id="imported"),
        pytest.param({"own.py": "from torch.cuda.amp import GradScaler\n"}, "import own\nown.GradScaler()", True, id="its attribute"),
        pytest.param(
            {"a.py": "from b import GradScaler\n", "b.py": "from torch.cuda.amp import GradScaler\n"},
            "from a import GradScaler\nGradScaler()",
            True,
            id="handed on twice",
        ),
        pytest.param({"own.py": "class GradScaler: pass\n"}, "from own import GradScaler\nGradScaler()", False, id="its own"),
        pytest.param(
            {"own.py": "if new:\n    from torch.cuda.amp import GradScaler\n"},
            "from own import GradScaler\nGradScaler()",
            False,
            id="perhaps",
        ),
        pytest.param({"own.py": "from train import GradScaler\n"}, "from own import GradScaler\nGradScaler()", False, id="a circle"),
    ],
)
def test_names_that_a_module_of_the_project_hands_on(modules: dict[str, str], text: str, found: bool) -> None:
    """A module whose import is all that binds the name gives what it got."""
    assert [item.name for item in facts_of(text, modules=modules).references.to([OLD])] == [OLD] * found


@pytest.mark.parametrize(
    ("other", "lent"),
    [
        pytest.param("import train\nfrom torch.cuda.amp import GradScaler\n", False, id="has it from torch"),
        pytest.param("import train\nimport torch\ntorch.cuda.amp.GradScaler()\n", False, id="has it from torch, by its whole name"),
        pytest.param("from train import GradScaler\n", True, id="imports it"),
        pytest.param("from train import *\nGradScaler()\n", True, id="imports all"),
        pytest.param("import train\ntrain.GradScaler()\n", True, id="reads it"),
        pytest.param("import train\nmodules = [train]\nmodules[0].GradScaler()\n", True, id="reads it of something"),
    ],
)
def test_imports_that_other_files_live_on_stay(other: str, lent: bool) -> None:
    """A file that only holds the same word does not take it from here."""
    (found,) = facts_of(HEAD + "GradScaler()", modules={"other.py": other}).references.to([OLD])
    assert found.is_lent is lent
