"""Declarations: the torch and Python that a project declares, in every kind of file and spelling."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent

import pytest

from torchfix.facts.project.declarations import Declarations, declared, is_declaring
from torchfix.facts.project.versions import Range, Version

NOTHING = Range()


def read(files: Mapping[str, str]) -> Declarations:
    """What some files declare; those that declare by their name are looked at first."""
    data = {name: dedent(text).encode() for name, text in files.items()}
    return declared([name for name in data if is_declaring(name)], data.get)


@pytest.mark.parametrize(
    ("words", "oldest", "below"),
    [
        pytest.param("torch", None, None, id="any"),
        pytest.param("torch>=1.10,<2", (1, 10), (2, 0), id="range"),
        pytest.param("torch >= 1.6 , < 1.13.0", (1, 6), (1, 13), id="range with spaces"),
        pytest.param("torch (>=1.6)", (1, 6), None, id="parentheses"),
        pytest.param("torch==1.7.1+cu110", (1, 7), (1, 8), id="build"),
        pytest.param("torch==2.1.0", (2, 1), (2, 2), id="one version"),
        pytest.param("torch===2.1.0", (2, 1), (2, 2), id="one version by its text"),
        pytest.param("torch==1.0", (1, 0), (1, 1), id="short version"),
        pytest.param("torch==2", (2, 0), (2, 1), id="major number"),
        pytest.param("torch==1.9.*", (1, 9), (1, 10), id="any patch"),
        pytest.param("torch==1.*", (1, 0), (2, 0), id="any minor"),
        pytest.param("torch~=2.0", (2, 0), (3, 0), id="compatible"),
        pytest.param("torch~=1.9.0", (1, 9), (1, 10), id="compatible patch"),
        pytest.param("torch>1.9", (1, 9), None, id="above"),
        pytest.param("torch<=1.13", None, (1, 14), id="at most"),
        pytest.param("torch<1.13.1", None, (1, 14), id="below a patch"),
        pytest.param("torch<2.0.0", None, (2, 0), id="below a first patch"),
        pytest.param("torch!=1.8.0", None, None, id="all but one"),
        pytest.param("torch>=1.7,!=1.8.0", (1, 7), None, id="all but one above"),
        pytest.param("torch>=2.0.0.dev20230101", (2, 0), None, id="nightly"),
        pytest.param("torch>=2.0a0", (2, 0), None, id="alpha"),
        pytest.param("torch>=1.8,>=1.10", (1, 10), None, id="twice"),
        pytest.param("Torch>=1.8", (1, 8), None, id="capital"),
        pytest.param("torch[opt-einsum]>=1.13", (1, 13), None, id="extra"),
        pytest.param("torch>=1.8  # cuda", (1, 8), None, id="comment"),
        pytest.param('torch>=1.8; python_version < "3.8"', (1, 8), None, id="marker"),
        pytest.param("torch==1.9.0 --hash=sha256:ab", (1, 9), (1, 10), id="hash"),
        pytest.param("torch==1.9.0 \\\n    --hash=sha256:ab", (1, 9), (1, 10), id="hash on the next line"),
        pytest.param("pytorch==1.3.1", (1, 3), (1, 4), id="wrong name"),
        pytest.param("torch @ https://host/torch-1.9.0-cp38-cp38-linux_x86_64.whl", (1, 9), (1, 10), id="address"),
        pytest.param("https://host/whl/cu111/torch-1.9.0%2Bcu111-cp38-cp38-linux_x86_64.whl", (1, 9), (1, 10), id="bare address"),
        pytest.param("torch @ git+https://github.com/pytorch/pytorch@v1.9.0", None, None, id="repository"),
        pytest.param("#torch==1.9", None, None, id="commented out"),
        pytest.param("torchvision==0.9", None, None, id="torchvision"),
        pytest.param("torch-scatter==2.0.9", None, None, id="torch-scatter"),
        pytest.param("torch_geometric>=2", None, None, id="torch_geometric"),
        pytest.param("torch.redstone==0.1", None, None, id="name with a dot"),
        pytest.param("pytorch-lightning>=1.5", None, None, id="pytorch-lightning"),
        pytest.param("efficientnet_pytorch==0.7", None, None, id="efficientnet_pytorch"),
        pytest.param("--find-links https://download.pytorch.org/whl/torch_stable.html", None, None, id="option"),
        pytest.param("-f https://download.pytorch.org/whl/torch_stable.html", None, None, id="short option"),
        pytest.param("git+https://github.com/x/torch-1.9.git", None, None, id="repository of another package"),
    ],
)
def test_requirements(words: str, oldest: Version | None, below: Version | None) -> None:
    """Each spelling of a line leaves its range, by major and minor number; other packages say nothing."""
    assert read({"requirements.txt": f"numpy\n{words}\ntqdm\n"}).torch == Range(oldest, below)


@pytest.mark.parametrize(
    ("words", "oldest", "below"),
    [
        pytest.param("pytorch", None, None, id="any"),
        pytest.param("pytorch=1.9", (1, 9), (1, 10), id="any patch"),
        pytest.param("pytorch=1", (1, 0), (2, 0), id="any minor"),
        pytest.param("pytorch==1.9.0", (1, 9), (1, 10), id="one version"),
        pytest.param("pytorch=1.9=py3.8_cuda11.1_cudnn8_0", (1, 9), (1, 10), id="build"),
        pytest.param("pytorch=1.10.2=py3.9_cuda11.3_cudnn8.2.0_0", (1, 10), (1, 11), id="build of a patch"),
        pytest.param("pytorch::pytorch=2.0", (2, 0), (2, 1), id="channel"),
        pytest.param("conda-forge/linux-64::pytorch-gpu=1.13", (1, 13), (1, 14), id="channel and variant"),
        pytest.param("pytorch>=1.9,<2", (1, 9), (2, 0), id="range"),
        pytest.param("pytorch >=1.9", (1, 9), None, id="space"),
        pytest.param("pytorch 1.9.*", (1, 9), (1, 10), id="bare version"),
        pytest.param("pytorch 1.9.0 py3.8_0", (1, 9), (1, 10), id="bare version and build"),
        pytest.param("pytorch=1.8|2.0", (1, 8), (2, 1), id="alternatives"),
        pytest.param('"pytorch=1.9"  # pinned', (1, 9), (1, 10), id="quotes and comment"),
        pytest.param("pytorch-cuda=11.7", None, None, id="pytorch-cuda"),
        pytest.param("pytorch-mutex=1.0", None, None, id="pytorch-mutex"),
        pytest.param("torchvision=0.11", None, None, id="torchvision"),
        pytest.param("efficientnet-pytorch=0.7.1", None, None, id="efficientnet-pytorch"),
    ],
)
def test_conda_packages(words: str, oldest: Version | None, below: Version | None) -> None:
    """Each spelling of a conda package leaves its range."""
    text = f"name: x\nchannels:\n  - pytorch\ndependencies:\n  - numpy=1.2\n  - {words}\n"
    assert read({"environment.yml": text}).torch == Range(oldest, below)


def test_pip_packages_of_an_environment() -> None:
    """Below ``- pip:`` the lines are those of pip; behind that list they are conda's again."""
    text = """
    name: x
    dependencies:
      - python=3.8
      - pip:
        - torch==1.9
        - pytorch-lightning==1.5
      - cudatoolkit=11
    """
    for name in ("environment.yml", "environment.yaml", "environment_gpu.yml", "conda.yml"):
        assert read({name: text}) == Declarations(Range((1, 9), (1, 10)), Range((3, 8), (3, 9)))


def test_environment_in_one_line() -> None:
    """A list in brackets is read too."""
    assert read({"environment.yml": "dependencies: [python=3.9, 'pytorch=1.9']\n"}).torch == Range((1, 9), (1, 10))


@pytest.mark.parametrize(
    ("text", "torch", "python"),
    [
        pytest.param(
            '[project]\ndependencies = ["torch>=2.3", "tqdm"]\nrequires-python = ">=3.9"', Range((2, 3)), Range((3, 9)), id="project"
        ),
        pytest.param('[project.optional-dependencies]\ngpu = ["torch>=1.8"]', Range((1, 8)), NOTHING, id="extras"),
        pytest.param('[dependency-groups]\ndev = ["torch>=1.8", {include-group = "test"}]', Range((1, 8)), NOTHING, id="groups"),
        pytest.param('[tool.pdm.dev-dependencies]\ndev = ["torch>=1.8"]', Range((1, 8)), NOTHING, id="pdm"),
        pytest.param('[tool.uv]\ndev-dependencies = ["torch>=1.8"]', Range((1, 8)), NOTHING, id="uv"),
        pytest.param('[tool.hatch.envs.test]\ndependencies = ["torch>=1.8"]', Range((1, 8)), NOTHING, id="hatch"),
        pytest.param(
            '[tool.poetry.dependencies]\npython = "^3.8"\ntorch = "^1.13"', Range((1, 13), (2, 0)), Range((3, 8), (4, 0)), id="poetry"
        ),
        pytest.param('[tool.poetry.dependencies]\ntorch = "~1.9"', Range((1, 9), (1, 10)), NOTHING, id="poetry's tilde"),
        pytest.param('[tool.poetry.dependencies]\ntorch = "^0.4"', Range((0, 4), (0, 5)), NOTHING, id="poetry's caret below 1"),
        pytest.param('[tool.poetry.dependencies]\ntorch = "1.9.1"', Range((1, 9), (1, 10)), NOTHING, id="poetry's bare version"),
        pytest.param('[tool.poetry.dependencies]\ntorch = "*"', NOTHING, NOTHING, id="poetry's any"),
        pytest.param(
            '[tool.poetry.dependencies]\ntorch = ">=1.8,<1.10 || >=2.0,<2.1"', Range((1, 8), (2, 1)), NOTHING, id="poetry's alternatives"
        ),
        pytest.param(
            '[tool.poetry.dependencies]\ntorch = {version = ">=1.8", optional = true}', Range((1, 8)), NOTHING, id="poetry's table"
        ),
        pytest.param(
            '[[tool.poetry.dependencies.torch]]\nversion = "1.8"\n[[tool.poetry.dependencies.torch]]\nversion = "2.0"',
            Range((1, 8), (2, 1)),
            NOTHING,
            id="poetry's list",
        ),
        pytest.param(
            '[tool.poetry.dependencies]\ntorch = {url = "https://host/torch-1.9.0-cp38-linux.whl"}',
            Range((1, 9), (1, 10)),
            NOTHING,
            id="poetry's address",
        ),
        pytest.param('[tool.poetry.group.dev.dependencies]\ntorch = ">=1.8"', Range((1, 8)), NOTHING, id="poetry's group"),
        pytest.param('[tool.black]\ntarget-version = ["py38"]', NOTHING, NOTHING, id="nothing"),
        pytest.param("[project\n", NOTHING, NOTHING, id="broken"),
        pytest.param('project = "torch>=1"\ntool = 3', NOTHING, NOTHING, id="no tables"),
    ],
)
def test_pyproject(text: str, torch: Range, python: Range) -> None:
    """All the tables in which tools keep dependencies are read."""
    assert read({"pyproject.toml": text}) == Declarations(torch, python)


@pytest.mark.parametrize(
    ("text", "torch", "python"),
    [
        pytest.param(
            "[options]\npython_requires = >=3.7\ninstall_requires =\n    numpy\n    torch>=1.6\n",
            Range((1, 6)),
            Range((3, 7)),
            id="options",
        ),
        pytest.param("[options.extras_require]\ntrain =\n    torch>=1.6\n", Range((1, 6)), NOTHING, id="extras"),
        pytest.param("[flake8]\nmax-line-length = 3\n", NOTHING, NOTHING, id="nothing"),
        pytest.param("no section\n", NOTHING, NOTHING, id="broken"),
    ],
)
def test_setup_cfg(text: str, torch: Range, python: Range) -> None:
    """The lists of setup.cfg are read, of extras too."""
    assert read({"setup.cfg": text}) == Declarations(torch, python)


@pytest.mark.parametrize(
    ("text", "torch", "python"),
    [
        pytest.param(
            'setup(python_requires=">=3.7", install_requires=["torch >= 1.6", "torchvision"])', Range((1, 6)), Range((3, 7)), id="list"
        ),
        pytest.param('needed = ["torch>=1.6"]\nsetup(install_requires=needed)', Range((1, 6)), NOTHING, id="variable"),
        pytest.param('needed = ["tqdm"] + ["torch>=1.6"]\nsetup(install_requires=needed)', Range((1, 6)), NOTHING, id="sum"),
        pytest.param('def needed():\n    return ["torch>=1.6"]\nsetup(install_requires=needed())', Range((1, 6)), NOTHING, id="function"),
        pytest.param('setup(extras_require={"gpu": ["torch>=1.6"]})', Range((1, 6)), NOTHING, id="extras"),
        pytest.param('OLDEST = "1.6"\nsetup(install_requires=[f"torch>={OLDEST}"])', Range((1, 6)), NOTHING, id="f-string"),
        pytest.param('PYTHON = ">=3.7"\nsetup(python_requires=PYTHON)', NOTHING, Range((3, 7)), id="python in a variable"),
        pytest.param('"""Needs torch>=1.6."""\nsetup(name="torch-tools")', NOTHING, NOTHING, id="words"),
        pytest.param('raise SystemExit("install torch>=1.6 first")', NOTHING, NOTHING, id="message"),
        pytest.param("setup(", NOTHING, NOTHING, id="broken"),
    ],
)
def test_setup_py(text: str, torch: Range, python: Range) -> None:
    """Requirements count wherever the script keeps them, sentences about them do not."""
    assert read({"setup.py": text}) == Declarations(torch, python)


@pytest.mark.parametrize(
    ("files", "torch"),
    [
        pytest.param({"requirements.txt": "-r base/all.txt", "base/all.txt": "torch>=1.8"}, Range((1, 8)), id="included"),
        pytest.param({"requirements/gpu.txt": "-r base.txt", "requirements/base.txt": "torch>=1.8"}, Range((1, 8)), id="beside"),
        pytest.param({"requirements/gpu.txt": "--requirement=../all.txt", "all.txt": "torch>=1.8"}, Range((1, 8)), id="above"),
        pytest.param({"requirements.txt": "-c limits.txt", "limits.txt": "torch>=1.8"}, Range((1, 8)), id="constraints"),
        pytest.param({"requirements.txt": "-r requirements.txt\ntorch>=1.8"}, Range((1, 8)), id="itself"),
        pytest.param({"requirements.txt": "-r missing.txt\ntorch>=1.8"}, Range((1, 8)), id="missing"),
        pytest.param({"requirements-dev.txt": "torch>=1.8"}, Range((1, 8)), id="other name"),
        pytest.param({"requirements.in": "torch>=1.8"}, Range((1, 8)), id="source of a lock file"),
        pytest.param({"setup.py": 'needs = open("needs.txt").read()', "needs.txt": "torch>=1.8"}, Range((1, 8)), id="read by setup.py"),
        pytest.param(
            {"setup.cfg": "[options]\ninstall_requires = file: needs.txt\n", "needs.txt": "torch>=1.8"},
            Range((1, 8)),
            id="read by setup.cfg",
        ),
        pytest.param(
            {"pyproject.toml": '[tool.setuptools.dynamic]\ndependencies = {file = ["needs.txt"]}', "needs.txt": "torch>=1.8"},
            Range((1, 8)),
            id="read by pyproject.toml",
        ),
        pytest.param({"README.md": "needs\ntorch>=1.8"}, NOTHING, id="README"),
        pytest.param({"notes.txt": "torch>=1.8"}, NOTHING, id="another text"),
    ],
)
def test_files_that_declare(files: Mapping[str, str], torch: Range) -> None:
    """Files count by their names, and because others include them."""
    assert read(files).torch == torch


@pytest.mark.parametrize(
    ("files", "torch"),
    [
        pytest.param({"requirements.txt": "torch>=2.0", "setup.py": 'x = ["torch>=1.8"]'}, Range((1, 8)), id="the oldest wins"),
        pytest.param({"requirements.txt": "torch==2.0.1", "setup.py": 'x = ["torch>=1.8"]'}, Range((1, 8)), id="open above"),
        pytest.param(
            {"requirements.txt": "torch==2.0.1", "setup.py": 'x = ["torch>=1.8,<2"]'}, Range((1, 8), (2, 1)), id="the newest wins"
        ),
        pytest.param({"requirements.txt": "torch", "setup.py": 'x = ["torch>=1.8,<2"]'}, Range((1, 8)), id="one says nothing"),
    ],
)
def test_several_declarations(files: Mapping[str, str], torch: Range) -> None:
    """Any of several declarations may be followed, so the range holds them all."""
    assert read(files).torch == torch


def test_classifiers_tell_of_python_where_nothing_else_does() -> None:
    """The lowest version that the classifiers name is the oldest; newer ones are not excluded by silence."""
    classifiers = '"Programming Language :: Python :: 3", "Programming Language :: Python :: 3.8", "Programming Language :: Python :: 3.9"'
    assert read({"setup.py": f"setup(classifiers=[{classifiers}])"}).python == Range((3, 8))
    assert read({"pyproject.toml": f"[project]\nclassifiers = [{classifiers}]"}).python == Range((3, 8))
    assert read({"setup.cfg": "[metadata]\nclassifiers =\n    Programming Language :: Python :: 3.8\n"}).python == Range((3, 8))
    assert read({"setup.py": f'setup(python_requires=">=3.7", classifiers=[{classifiers}])'}).python == Range((3, 7))


@pytest.mark.parametrize(
    ("python", "systems", "expected"),
    [
        pytest.param(">=3.9,<3.14", (), False, id="systems not named"),
        pytest.param("", ("POSIX :: Linux",), False, id="python not named"),
        pytest.param(">=3.9", ("POSIX :: Linux",), False, id="python open upwards"),
        pytest.param(">=3.9,<3.13", ("POSIX :: Linux", "MacOS"), False, id="two systems"),
        pytest.param(">=3.9,<4", ("POSIX :: Linux",), False, id="bound above"),
        pytest.param(">=3.9,<3.14", ("POSIX :: Linux",), True, id="linux below 3.14"),
        pytest.param("<=3.13", ("POSIX :: Linux",), True, id="at most 3.13"),
        pytest.param("==3.10.*", ("POSIX :: Linux",), True, id="one version"),
    ],
)
def test_fork_is_declared_by_system_and_python(python: str, systems: tuple[str, ...], expected: bool) -> None:
    """Only Linux together with a Python below 3.14 means that new processes are forks."""
    classifiers = ", ".join(f'"Operating System :: {name}"' for name in systems)
    assert read({"pyproject.toml": f'[project]\nrequires-python = "{python}"\nclassifiers = [{classifiers}]'}).only_forks is expected


def test_bytes_that_are_no_text() -> None:
    """A byte order mark, and bytes of another encoding, are no obstacle."""
    assert declared(["requirements.txt"], {"requirements.txt": b"\xef\xbb\xbftorch>=1.8\n# \xe9\n"}.get).torch == Range((1, 8))
