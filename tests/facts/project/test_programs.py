from __future__ import annotations

import pytest

from tests.facts.reading import ONLY_FORKS, facts_of, node
from torchfix.facts.project.project import Project
from torchfix.source import SourceFile

GUARDED = 'if __name__ == "__main__":\n    main()\n'


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("def main():\n    load()\n" + GUARDED, id="main function under the guard"),
        pytest.param("if '__main__' == __name__:\n    load()", id="guard written backwards"),
        pytest.param("if __name__ == '__main__' and ready:\n    load()", id="guard with a condition"),
        pytest.param("try:\n    if __name__ == '__main__':\n        load()\nfinally:\n    done()", id="guard in a try block"),
        pytest.param("def main():\n    load()", id="nobody calls"),
        pytest.param("class Trainer:\n    def run(self):\n        load()\n\nx = Trainer()", id="method that nothing runs"),
        pytest.param(
            "class Base:\n    def __init__(self):\n        load()\n\nclass Trainer(Base):\n    pass\n\n"
            "def main():\n    Trainer()\n" + GUARDED,
            id="class that is derived but not made",
        ),
    ],
)
def test_what_only_the_guard_starts_does_not_run_on_import(text: str) -> None:
    """Code under the main guard, and functions that only it reaches, do not run when the script is imported."""
    facts = facts_of(text)
    assert not facts.program.runs_unguarded(node(facts, "load()"))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("load()", id="module level"),
        pytest.param("if __name__ != '__main__':\n    load()", id="the other branch"),
        pytest.param("if __name__ == '__main__':\n    pass\nelse:\n    load()", id="the guard's else"),
        pytest.param("def main():\n    load()\n\nmain()", id="called function"),
        pytest.param("def main():\n    load()\n\nrun(main)", id="function handed on"),
        pytest.param("def inner():\n    load()\n\ndef main():\n    inner()\n\nmain()", id="through another function"),
        pytest.param("class Trainer:\n    def run(self):\n        load()\n\nTrainer().run()", id="method"),
        pytest.param("class Trainer:\n    def __init__(self):\n        load()\n\nTrainer()", id="constructor"),
        pytest.param("class A:\n    def __init__(self):\n        load()\n\nclass B(A):\n    pass\n\nB()", id="constructor of the base"),
        pytest.param("class A:\n    x = load()", id="class body"),
    ],
)
def test_what_a_script_does_by_itself_runs_on_import(text: str) -> None:
    """Whatever module-level code may reach runs again in every process that imports the script."""
    facts = facts_of(text)
    assert facts.program.runs_unguarded(node(facts, "load()"))


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        pytest.param("from data import make\n\ndef main():\n    make()\n" + GUARDED, False, id="script with a guard"),
        pytest.param("from data import make\nmake()", True, id="script without"),
        pytest.param("import data as d\nd.make()", True, id="through the module"),
        pytest.param("def make(): ...\nmake()", False, id="script that does not import it"),
    ],
)
def test_the_scripts_that_import_a_file_decide(main: str, expected: bool) -> None:
    """A function of a library file runs unguarded where a script that imports the file runs it so."""
    facts = facts_of("def make():\n    load()\n", "data.py", {"main.py": main})
    assert facts.program.runs_unguarded(node(facts, "load()")) is expected


def test_programs_hold_the_files_that_import_and_the_ones_that_are_imported() -> None:
    """A file's scripts are its importers, and their programs all that these import."""
    modules = {"main.py": "import data\nimport engine", "engine.py": "import logs", "logs.py": "", "stranger.py": "import logs"}
    facts = facts_of("import shapes", "data.py", {**modules, "shapes.py": ""})
    assert {script.path for script in facts.program.scripts} == {"data.py", "main.py"}
    assert {file.path for file in facts.program.everywhere} == {"data.py", "shapes.py", "main.py", "engine.py", "logs.py"}


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        pytest.param("import data", False, id="single process"),
        pytest.param("import data\nimport torch.distributed as dist\ndist.init_process_group('nccl')", True, id="process group"),
        pytest.param("import data\nimport setup_helper", True, id="process group in a helper of the script"),
        pytest.param("import data\nimport horovod.torch as hvd", True, id="horovod"),
    ],
)
def test_process_per_device_is_found_in_the_whole_program(main: str, expected: bool) -> None:
    """The script, or what it imports, may be where the processes meet."""
    helper = "import torch\ntorch.distributed.init_process_group('nccl')"
    facts = facts_of("def make(): ...", "data.py", {"main.py": main, "setup_helper.py": helper})
    assert facts.program.runs_process_per_device is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("x = 1", False, id="nothing said"),
        pytest.param("import multiprocessing as mp\nmp.set_start_method('spawn')", False, id="spawn"),
        pytest.param("import multiprocessing as mp\nmp.set_start_method(method)", False, id="unknown"),
        pytest.param("import torch.multiprocessing as mp\nmp.set_start_method('fork')", True, id="fork"),
    ],
)
def test_fork_is_what_the_script_sets(text: str, expected: bool) -> None:
    """Without a word in the script the start method depends on the system and the Python version."""
    assert facts_of(text).program.forks is expected


def test_fork_is_what_the_project_declares() -> None:
    """A project for Linux and a Python below 3.14 forks."""
    project = Project.of_texts({"train.py": "x = 1"}, ONLY_FORKS)
    assert project.facts(SourceFile("train.py", "x = 1")).program.forks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("from multiprocessing import Process\nProcess(target=work).start()", False, id="plain process"),
        pytest.param("from multiprocessing import Process\nProcess(target=work, daemon=False)", False, id="declared not to be"),
        pytest.param("from multiprocessing import Process\nProcess(target=other, daemon=True)", False, id="another function"),
        pytest.param("from multiprocessing import Process\nProcess(target=work, daemon=True)", True, id="daemon"),
        pytest.param("from multiprocessing import Process\np = Process(target=work)\np.daemon = True", True, id="set later"),
        pytest.param("import multiprocessing\nmultiprocessing.Pool(2).map(work, jobs)", True, id="pool"),
        pytest.param("from multiprocessing import Pool\nwith Pool() as p:\n    p.apply_async(outer)", True, id="through a function"),
    ],
)
def test_daemonic_processes_are_pools_and_daemons(text: str, expected: bool) -> None:
    """Workers of a pool, and processes with the flag, may not start processes of their own."""
    facts = facts_of("def work(job):\n    load()\n\ndef outer():\n    work(1)\n\ndef other(): ...\n" + text)
    assert facts.program.is_daemonic(node(facts, "load()")) is expected


def test_files_of_the_programs_that_hold_a_word() -> None:
    """Only files of programs that this file is a part of count, and the file itself always does."""
    modules = {"main.py": "import train, tools", "tools.py": "def save(): ...", "alone.py": "def save(): ..."}
    facts = facts_of("x = 1", modules=modules)
    assert [other.path for other in facts.program.holding("save")] == ["train.py", "tools.py"]


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        pytest.param({"main.py": "import data"}, (), id="none"),
        pytest.param({"other.py": "import deepspeed"}, (), id="another program"),
        pytest.param({"main.py": "import data\nimport deepspeed"}, ("DeepSpeed",), id="the script"),
        pytest.param({"main.py": "import data\nimport engine", "engine.py": "import deepspeed"}, ("DeepSpeed",), id="a file beside it"),
        pytest.param(
            {"main.py": "import middle", "middle.py": "import data", "x.py": "import middle, ignite"}, ("Ignite",), id="one script"
        ),
    ],
)
def test_frameworks_of_the_programs(modules: dict[str, str], expected: tuple[str, ...]) -> None:
    """A file trains under what any file of its programs imports."""
    assert facts_of("def make(): ...", "data.py", modules).program.frameworks == expected


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        pytest.param({"main.py": "import data\nfrom accelerate import Accelerator"}, (), id="only imported"),
        pytest.param({"main.py": "import data\nimport accelerate.utils\naccelerate.utils.set_seed(1)"}, (), id="a tool of it"),
        pytest.param({"main.py": "import data\nimport accelerate as a\nrun = a.Accelerator()"}, ("Accelerate",), id="used"),
        pytest.param({"main.py": "import data\nimport lightning as L\nclass M(L.LightningModule): ..."}, ("Lightning",), id="a base class"),
        pytest.param({"main.py": "import data\nfrom fastai.vision.all import *"}, ("fastai",), id="everything"),
    ],
)
def test_frameworks_that_run_the_step_are_those_whose_runner_is_used(modules: dict[str, str], expected: tuple[str, ...]) -> None:
    """An import alone changes no training."""
    assert facts_of("def make(): ...", "data.py", modules).program.in_charge == expected


@pytest.mark.parametrize(
    ("helper", "expected"),
    [
        pytest.param("place()", True, id="while it is imported"),
        pytest.param("if __name__ == '__main__':\n    place()", False, id="as a script of its own"),
        pytest.param("def used():\n    place()", True, id="in a function that the script names"),
        pytest.param("def unused():\n    place()", False, id="in a function that nobody names"),
        pytest.param("def used():\n    inner()\n\ndef inner():\n    place()", True, id="through another one"),
    ],
)
def test_what_of_another_file_a_program_may_run_is_told_by_name(helper: str, expected: bool) -> None:
    """The file is imported by the script that trains."""
    facts = facts_of("import helper\n\nif __name__ == '__main__':\n    helper.used()\n", modules={"helper.py": helper})
    (other,) = facts.program.imports
    assert facts.program.may_run(other, node(other, "place()")) is expected
