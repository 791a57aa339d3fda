from __future__ import annotations

import pickle

import pytest

from torchfix.facts import project as project_module
from torchfix.facts.project import Project, declared, only_forks
from torchfix.source import SourceFile


@pytest.mark.parametrize(
    ("name", "text", "torch", "python"),
    [
        pytest.param("requirements.txt", "numpy\ntorch>=1.10,<2\n", (1, 10), None, id="requirements"),
        pytest.param("requirements.txt", "torch==2.1.0+cu118\ntorchvision==0.16\n", (2, 1), None, id="pinned"),
        pytest.param("requirements.txt", "torch\n", None, None, id="no version"),
        pytest.param("requirements.txt", "torchvision>=0.9\npytorch-lightning>=1.5\n", None, None, id="other packages"),
        pytest.param(
            "pyproject.toml",
            '[project]\nrequires-python = ">=3.9"\ndependencies = ["torch>=2.3", "tqdm"]\n',
            (2, 3),
            (3, 9),
            id="pyproject",
        ),
        pytest.param("pyproject.toml", '[tool.poetry.dependencies]\npython = "^3.8"\ntorch = "^1.13"\n', (1, 13), (3, 8), id="poetry"),
        pytest.param("setup.py", 'setup(python_requires=">=3.7", install_requires=["torch >= 1.6"])\n', (1, 6), (3, 7), id="setup.py"),
        pytest.param("environment.yml", "dependencies:\n  - python=3.10\n  - pytorch::pytorch=2.0\n", (2, 0), (3, 10), id="conda"),
        pytest.param("requirements.txt", "torch<2\n", None, None, id="upper bound only"),
    ],
)
def test_declared_lower_bounds(name: str, text: str, torch: tuple[int, int] | None, python: tuple[int, int] | None) -> None:
    """The oldest version that a declaration allows is read from each kind of file."""
    assert declared({name: text}) == (torch, python)


def test_oldest_of_several_declarations_wins() -> None:
    """The code must run on the oldest torch that any file allows."""
    assert declared({"requirements.txt": "torch>=2.0", "setup.py": 'install_requires=["torch>=1.8"]'})[0] == (1, 8)


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
        pytest.param('requires-python = ">=3.9,<3.14"', False, id="systems not named"),
        pytest.param('classifiers = ["Operating System :: POSIX :: Linux"]', False, id="python open upwards"),
        pytest.param(
            'requires-python = ">=3.9,<3.13"\nclassifiers = ["Operating System :: POSIX :: Linux", "Operating System :: MacOS"]',
            False,
            id="two systems",
        ),
        pytest.param('requires-python = ">=3.9,<4"\nclassifiers = ["Operating System :: POSIX :: Linux"]', False, id="bound above"),
        pytest.param('python = "^3.9"\nclassifiers = ["Operating System :: POSIX :: Linux"]', False, id="caret"),
        pytest.param('requires-python = ">=3.9,<3.14"\nclassifiers = ["Operating System :: POSIX :: Linux"]', True, id="linux below 3.14"),
        pytest.param('requires-python = "==3.10.*"\nclassifiers = ["Operating System :: POSIX :: Linux"]', True, id="one version"),
    ],
)
def test_fork_is_declared_by_system_and_python(text: str, expected: bool) -> None:
    """Only Linux together with a Python below 3.14 means that new processes are forks."""
    assert only_forks({"pyproject.toml": text}) is expected


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
