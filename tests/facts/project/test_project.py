from __future__ import annotations

import pickle

import pytest

from torchfix.facts.project import project as project_module
from torchfix.facts.project.project import Project
from torchfix.source import SourceFile


def test_module_is_sought_beside_the_importer_first() -> None:
    """The script's own folder comes before the project's root."""
    project = Project.of_texts({"utils.py": "ROOT = 1", "sub/utils.py": "SUB = 1", "sub/train.py": "import utils"})
    found = project.module("utils", "sub/train.py")
    assert found is not None
    assert found.path == "sub/utils.py"


def test_broken_file_is_unknown() -> None:
    """A file of the project that does not parse says nothing rather than stopping the run."""
    assert Project.of_texts({"bad.py": "def ("}).module("bad", "train.py") is None


def test_a_big_project_is_let_go_between_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of a project is forgotten once it is much, and read again when it is asked for."""
    monkeypatch.setattr(project_module, "_MOST_TEXT", 10)
    project = Project.of_texts({"a.py": "x = 1\n", "b.py": "y = 2\n"})
    first = project.file("a.py")
    project.forget()
    assert project.file("a.py") is first
    assert project.file("b.py") is not None
    project.forget()
    assert project.file("a.py") is not first


def test_project_crosses_processes() -> None:
    """A project pickles, without what it has parsed."""
    project = Project.of_texts({"a.py": "x = 1"})
    assert project.file("a.py") is not None
    again = pickle.loads(pickle.dumps(project))
    assert again.file("a.py") is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("import other", [], id="another file"),
        pytest.param("# import data", [], id="a comment"),
        pytest.param("import data", ["train.py"], id="import"),
        pytest.param("from .data import make", ["train.py"], id="from"),
        pytest.param("from package import (\n    first,\n    data,\n)", ["train.py"], id="over several lines"),
    ],
)
def test_importers_name_the_file_in_an_import(text: str, expected: list[str]) -> None:
    """A file that names another in an import statement is its importer."""
    assert list(Project.of_texts({"data.py": "x = 1", "train.py": text}).importers("data.py")) == expected


def test_facts_of_the_text_on_disk_are_the_ones_that_others_see() -> None:
    """The file asked for and the file that another one reaches are the same nodes."""
    project = Project.of_texts({"data.py": "def make(): ...", "train.py": "import data"})
    facts = project.facts(SourceFile("data.py", "def make(): ..."))
    assert facts is project.file("data.py")


def test_facts_of_a_new_text_are_seen_by_the_others_around_it() -> None:
    """A text that was edited since takes the place of the old one in its own view of the project, and there alone."""
    project = Project.of_texts({"data.py": "def old(): ...", "train.py": "import data"})
    facts = project.facts(SourceFile("data.py", "def new(): ..."))
    there = facts.project.file("train.py")
    assert there is not None
    assert there.project.module("data", "train.py") is facts
    assert project.file("data.py") is not facts


def test_module_is_looked_for_up_to_the_root_of_an_absolute_path() -> None:
    """The folders above a file end at the root, also where the file's path is absolute because no project holds it."""
    assert Project.empty().module("data", "/somewhere/deep/train.py") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("import torch\nfrom numpy import array\n", (), id="libraries"),
        pytest.param("import net, data as d\n", ("net.py", "data.py"), id="modules"),
        pytest.param("from net import A, B\n", ("net.py",), id="names of a module"),
        pytest.param("from pkg import sub, other\n", ("pkg/__init__.py", "pkg/sub.py"), id="module of a package"),
        pytest.param("import pkg.sub as s\n", ("pkg/sub.py",), id="dotted"),
        pytest.param("def f():\n    from pkg.sub import (\n        a,  # one\n    )\n", ("pkg/sub.py",), id="in a function, over lines"),
        pytest.param("from net import a, \\\n    b\n", ("net.py",), id="continued"),
        pytest.param("import importlib\nimport\n", (), id="no statement"),
    ],
)
def test_imports_of_a_file(text: str, expected: tuple[str, ...]) -> None:
    """The files of the project that a file imports are read off its text."""
    project = Project.of_texts({"main.py": text, "net.py": "", "data.py": "", "pkg/__init__.py": "", "pkg/sub.py": "from ..net import A"})
    assert project.imports("main.py") == expected


def test_relative_imports_of_a_file() -> None:
    """Dots lead upwards from the file's own folder."""
    project = Project.of_texts({"pkg/a.py": "from . import b\nfrom .b import x\nfrom ..c import y\n", "pkg/b.py": "", "c.py": ""})
    assert project.imports("pkg/a.py") == ("pkg/b.py", "c.py")


def test_a_file_that_imports_its_own_name_means_another_one() -> None:
    """A script that is started further up finds the package there, not the file beside the one that imports."""
    project = Project.of_texts({"utils/model.py": "from model import Net\n", "model/__init__.py": "", "utils/other.py": ""})
    found = [project.module("model", importer) for importer in ("utils/model.py", "utils/other.py")]
    assert [facts.path for facts in found if facts is not None] == ["model/__init__.py", "utils/model.py"]
    assert project.imports("utils/model.py") == ("model/__init__.py",)


def test_files_that_hold_a_word() -> None:
    """A part of a longer word does not count."""
    project = Project.of_texts({"a.py": "x.step()", "b.py": "steps = 1", "c.py": ""})
    assert project.holding("step") == ("a.py",)
