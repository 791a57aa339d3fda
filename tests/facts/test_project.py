from __future__ import annotations

import pickle

import pytest

from torchfix.facts.project import Project, declared


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


def test_project_crosses_processes() -> None:
    """A project pickles, without what it has parsed."""
    project = Project.of_texts({"a.py": "x = 1"})
    assert project.file("a.py") is not None
    again = pickle.loads(pickle.dumps(project))
    assert again.file("a.py") is not None
