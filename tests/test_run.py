"""Many files: projects, gates, processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import toys
from tests.conftest import SECONDS
from torchfix import files, registry
from torchfix import run as running
from torchfix.edits import AddParameter, Edit, SetArgument, by_file
from torchfix.engine import EngineSettings
from torchfix.facts import Facts
from torchfix.facts.project.project import Project
from torchfix.result import Outcome, Reason, Result
from torchfix.run import Mode, run
from torchfix.settings import Settings
from torchfix.style import Style
from torchfix.survey import Job, Survey
from torchfix.transform import Finding, NoOptions, Risk, Selected, Transform
from torchfix.usage import UsageError

pytestmark = pytest.mark.usefixtures("toy_rules")

TOY = "Toy(name)\n"


def lay(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)


def context(folder: Path, name: str = "a.py", settings: Settings | None = None) -> tuple[Project, tuple[Selected, ...], EngineSettings]:
    job = Survey(settings or Settings()).job(files.Found(name, str(folder / name)))
    return job.context.project, job.selected, job.context.settings


def test_a_file_without_a_rules_words_is_not_read_closely(folder: Path) -> None:
    """What surely holds nothing for any rule is clean, even if it would not parse."""
    lay(folder, a="print 'Python 2'\n")

    (result,) = run(["."], Mode.LIST, Settings()).results

    assert result.outcome is Outcome.CLEAN


def test_one_bad_file_does_not_stop_the_others(folder: Path) -> None:
    """Results come in path order, the failed one with its reason."""
    lay(folder, a=TOY, b="Toy(\n", c=TOY)

    results = run(["."], Mode.LIST, Settings()).results

    assert [(result.path, result.outcome) for result in results] == [
        ("a.py", Outcome.CHANGED),
        ("b.py", Outcome.FAILED),
        ("c.py", Outcome.CHANGED),
    ]
    assert results[1].reason is not None
    assert results[1].reason.code == "syntax"


def test_an_unreadable_file_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be read has its reason, and the others are done."""
    lay(folder, a=TOY, b=TOY)
    read = files.read

    def refusing(path: str) -> bytes:
        if path.endswith("a.py"):
            raise files.FileError(Reason("unreadable", "cannot be read: Permission denied"))
        return read(path)

    monkeypatch.setattr(files, "read", refusing)

    results = run(["."], Mode.LIST, Settings()).results

    assert [result.outcome for result in results] == [Outcome.FAILED, Outcome.CHANGED]


def test_listing_and_diff_write_nothing_and_apply_writes_the_same(folder: Path) -> None:
    """All three modes speak of one change."""
    lay(folder, a=TOY)

    listed, shown = (run(["."], mode, Settings()).results for mode in (Mode.LIST, Mode.DIFF))
    assert (folder / "a.py").read_text() == TOY
    applied = run(["."], Mode.APPLY, Settings()).results

    assert listed == shown == applied
    assert (folder / "a.py").read_bytes() == applied[0].after == b"Toy(name, size=2)\n"


def test_several_processes_give_what_one_gives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of processes changes nothing but the time; results stay in path order."""
    texts = {f"f{number:02}": TOY * (number + 1) + ("Toy(" if number % 7 == 3 else "") for number in range(30)}
    lay(folder, **texts)

    alone = run(["."], Mode.LIST, Settings(jobs=1))
    monkeypatch.setattr(running, "_POOL_BYTES", 0)
    together = run(["."], Mode.LIST, Settings(jobs=3))

    assert alone == together


def kill_oneself(jobs: Sequence[Job]) -> list[Result]:
    """Die of the file that kills, and of no other."""
    if any(job.path == "killer.py" for job in jobs):
        os.kill(os.getpid(), signal.SIGKILL)
    return [Result(job.path, Outcome.CLEAN) for job in jobs]


def test_a_file_that_kills_its_process_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a process dies, each of its files is tried again apart, and the deadly one is named."""
    lay(folder, a=TOY, b=TOY, killer=TOY, z=TOY)
    monkeypatch.setattr(running, "_POOL_BYTES", 0)
    monkeypatch.setattr(running, "_advance_some", kill_oneself)

    results = run(["."], Mode.LIST, Settings(jobs=2)).results

    assert [(result.path, result.outcome.value) for result in results] == [
        ("a.py", "clean"),
        ("b.py", "clean"),
        ("killer.py", "failed"),
        ("z.py", "clean"),
    ]
    assert results[2].reason is not None
    assert results[2].reason.code == "killed"


ORPHAN = """
import os, signal, time
from concurrent.futures import ProcessPoolExecutor
from torchfix import run

pool = ProcessPoolExecutor(1, initializer=run._end_with_the_run)
pool.submit(time.sleep, 0).result()
pool.submit(time.sleep, 600)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_end_when_the_run_is_killed() -> None:
    """No process outlives the run: whoever waits for the end of its output is not kept waiting."""
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, timeout=SECONDS, check=False)

    assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"")


def test_an_interrupt_starts_nothing_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a process is given up, so that an interrupt does not wait for the whole run."""
    lay(folder, a=TOY, b=TOY)
    given_up = []

    class Pool(ProcessPoolExecutor):
        def submit(self, *job: Any, **options: Any) -> Any:
            raise KeyboardInterrupt

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            given_up.append(cancel_futures)
            super().shutdown(wait, cancel_futures=cancel_futures)

    monkeypatch.setattr(running, "_POOL_BYTES", 0)
    monkeypatch.setattr(running, "ProcessPoolExecutor", Pool)

    with pytest.raises(KeyboardInterrupt):
        run(["."], Mode.LIST, Settings(jobs=2))

    assert given_up[0]


def test_a_small_run_starts_no_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the size where processes pay there are none, however many are allowed."""
    lay(folder, a=TOY, b=TOY)
    monkeypatch.setattr(running, "ProcessPoolExecutor", None)

    assert len(run(["."], Mode.LIST, Settings(jobs=8)).results) == 2


def find_parcel(facts: Facts, options: object) -> Iterator[Finding]:
    """Functions named ``parcel...`` without a parameter ``k``, which every caller in the project is to hand on."""
    for function in facts.tree.functions:
        if function.name.startswith("parcel") and len(function.args.args) < 2:
            calls = facts.callers_everywhere(function) or []
            edits: list[tuple[str, Edit]] = [(other.path, SetArgument(call, "k", "1")) for other, call in calls]
            own, elsewhere = by_file(facts.path, [(facts.path, AddParameter(function, "k")), *edits])
            yield Finding(function, "a parcel", own, elsewhere=elsewhere)


PARCEL = Transform.from_module(
    "toy_parcel", toys.__doc__, group="toys", literals=(b"def parcel",), find=find_parcel, since="1.0", options=NoOptions
)


@pytest.fixture
def parcels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A program of several files of which findings span some, and its texts by path."""
    monkeypatch.setattr(registry, "discover", lambda: (*toys.TOYS, PARCEL))
    lay(
        folder,
        setup="",
        engine="def parcel(a):\n    return a\n",
        other="def parcel_two(a):\n    return Toy(a)\n",
        main="from engine import parcel\nfrom pack.tools import both\n\nToy(parcel(1))\nboth(3)\n",
    )
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "pack" / "tools.py").write_text("import engine\nimport other\n\n\ndef both(b):\n    other.parcel_two(engine.parcel(b))\n")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.py")}


def test_findings_that_span_files_are_the_same_in_every_run(folder: Path, parcels: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process or several, folders or files in any order: the same results, which --apply writes."""
    alone = run(["."], Mode.LIST, Settings(jobs=1))
    backward = run(["pack", "other.py", "main.py", "engine.py", "setup.py"], Mode.DIFF, Settings(jobs=1))
    monkeypatch.setattr(running, "_POOL_BYTES", 0)
    together = run(["."], Mode.LIST, Settings(jobs=3))
    applied = run(["."], Mode.APPLY, Settings(jobs=3))

    assert alone == backward == together
    assert alone.results == applied.results
    assert [result.path for result in applied.results if result.outcome is Outcome.CHANGED] == [
        "engine.py", "main.py", "other.py", "pack/tools.py",
    ]  # fmt: skip
    assert all((folder / result.path).read_bytes() == result.after for result in applied.results)
    assert (folder / "pack" / "tools.py").read_text().endswith("other.parcel_two(engine.parcel(b, k=1), k=1)\n")
    assert (folder / "main.py").read_text().endswith("Toy(parcel(1, k=1), size=2)\nboth(3)\n")
    notes = [note for result in applied.results for note in result.notes if note.rule == "toy-parcel"]
    assert [[place.path for place in note.elsewhere] for note in notes] == [["main.py", "pack/tools.py"], ["pack/tools.py"]]
    assert {result.outcome for result in run(["."], Mode.LIST, Settings()).results} == {Outcome.CLEAN}


def test_other_files_are_named_as_the_user_sees_them(folder: Path, parcels: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places and reasons name other files from the working folder, wherever their project's root is."""
    monkeypatch.chdir(folder / "pack")

    done = run([".."], Mode.LIST, Settings())
    alone = run(["../engine.py"], Mode.LIST, Settings())

    places = [place.path for result in done.results for note in result.notes for place in note.elsewhere]
    assert places == ["../main.py", "tools.py", "tools.py"]
    assert alone.results[0].notes[0].reason is not None


@pytest.mark.parametrize(
    ("paths", "settings", "code"),
    [
        pytest.param(["engine.py", "main.py"], {}, "other-file-outside", id="outside the given paths"),
        pytest.param(["."], {"exclude": ("pack",)}, "other-file-outside", id="excluded"),
        pytest.param(["."], {"per_file_ignores": {"main.py": ("toy-parcel",)}}, "other-file-ignored", id="a rule that does not run there"),
    ],
)
def test_a_file_that_may_not_change_holds_what_spans_it(
    folder: Path, parcels: dict[str, bytes], paths: list[str], settings: dict[str, Any], code: str
) -> None:
    """The finding is held where it stands, and none of its files changes for it."""
    done = run(paths, Mode.APPLY, Settings(origin=str(folder / "torchfix.toml"), exclude_folder=str(folder), **settings))

    reasons = {note.reason.code for result in done.results for note in result.notes if note.reason is not None and "engine" in result.path}
    assert reasons == {code}
    assert (folder / "engine.py").read_bytes() == parcels["engine.py"]


def test_an_unreadable_file_holds_what_spans_it(folder: Path, parcels: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the project may see and the run cannot read is not changed, and neither is the rest."""
    read = files.read

    def refusing(path: str) -> bytes:
        if path.endswith("main.py") and sys._getframe(1).f_code.co_name != "read_if_there":
            raise files.FileError(Reason("unreadable", "cannot be read: Permission denied"))
        return read(path)

    monkeypatch.setattr(files, "read", refusing)

    results = {result.path: result for result in run(["."], Mode.LIST, Settings()).results}

    assert results["main.py"].outcome is Outcome.FAILED
    assert results["engine.py"].outcome is Outcome.CLEAN
    (note,) = results["engine.py"].notes
    assert note.reason == Reason("other-file-failed", "main.py must change too, and cannot: cannot be read: Permission denied")


def test_standard_input_changes_no_other_file(folder: Path, parcels: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text under a file's name is all that may change."""
    monkeypatch.setattr(files, "read_standard_input", (folder / "engine.py").read_bytes)

    (result,) = run(["-"], Mode.LIST, Settings(), "engine.py").results

    assert result.outcome is Outcome.CLEAN
    assert [note.reason.code for note in result.notes if note.reason is not None] == ["other-file-outside"]


def test_what_a_killed_run_left_is_mended_first(folder: Path, parcels: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next ``--apply`` finishes it, says so, and goes on from there; other modes write nothing."""
    promote = files.promote

    class Killed(BaseException):
        pass

    def killing(temporary: str, path: str) -> None:
        promote(temporary, path)
        monkeypatch.setattr(files, "read", lambda path: (_ for _ in ()).throw(Killed))
        raise Killed

    original = files.read
    monkeypatch.setattr(files, "promote", killing)
    with pytest.raises(Killed):
        run(["."], Mode.APPLY, Settings())
    monkeypatch.setattr(files, "read", original)
    monkeypatch.setattr(files, "promote", promote)
    assert list(folder.glob(".torchfix-*.journal"))
    run(["."], Mode.DIFF, Settings())
    assert list(folder.glob(".torchfix-*.journal"))

    done = run(["pack/tools.py"], Mode.APPLY, Settings())

    assert done.warnings == (
        "a run was killed while it changed engine.py, main.py, other.py, pack/tools.py together; the rest was done",
    )
    assert not list(folder.rglob(".torchfix-*"))
    assert {result.outcome for result in run(["."], Mode.LIST, Settings()).results} == {Outcome.CLEAN}


def test_what_was_mended_is_said_before_a_refusal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the run then refuses to write, its error begins with what was mended."""
    lay(folder, a=TOY)
    monkeypatch.setattr(running, "mend", lambda folders: iter(["a run was killed"]))

    def refusing(*words: object) -> None:
        raise UsageError("nothing was written")

    monkeypatch.setattr(running, "write_all", refusing)

    with pytest.raises(UsageError, match="^a run was killed\nnothing was written$"):
        run(["."], Mode.APPLY, Settings())


def test_a_project_declares_its_torch(folder: Path) -> None:
    """The lower bound of the project holds for its files; the option holds over it; without both it is unknown."""
    assert context(folder)[0].torch is None
    (folder / "requirements.txt").write_text("torch>=1.10\n")

    assert context(folder)[0].torch == (1, 10)
    assert context(folder, settings=Settings(torch=(2, 1)))[0].torch == (2, 1)


def test_what_writes_newer_code_is_held(folder: Path) -> None:
    """A finding whose change the oldest torch would not understand is held, and says what would free it."""
    lay(folder, a=TOY)

    (newer,) = run(["a.py"], Mode.LIST, Settings(torch=(1, 0), select=("toy-size",))).results
    (older,) = run(["a.py"], Mode.LIST, Settings(torch=(0, 4), select=("toy-size",))).results

    assert newer.outcome is Outcome.CHANGED
    assert older.outcome is Outcome.CLEAN
    assert older.notes[0].reason == Reason(
        "torch-too-old",
        "it writes what torch 1.0 brought, and the code must run on torch 0.4",
        "raise the project's lower bound, or set it with --torch 1.0",
    )


def test_each_project_has_its_own_view(folder: Path) -> None:
    """Files of one project share its reader and its file list; another project has others."""
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "requirements.txt").write_text("torch==2.1\n" if name == "one" else "")
        (folder / name / "train.py").write_text(TOY)

    survey = Survey(Settings())
    one, two = (survey.job(files.Found(f"{name}/train.py", str(folder / name / "train.py"))) for name in ("one", "two"))

    assert one.context.project.root == str(folder / "one")
    assert tuple(one.context.project.paths) == ("train.py",)
    assert one.context.project.read("../two/train.py") is None
    assert survey.torch == {(2, 1), None}
    assert two.context is not one.context


def test_rules_ignored_for_some_files(folder: Path) -> None:
    """``per-file-ignores`` names rules or groups by pattern, counted from the configuration file."""
    settings = Settings(per_file_ignores={"tests/**": ("toys",)}, origin=str(folder / "torchfix.toml"))

    assert "toy-size" in [choice.transform.name for choice in context(folder, "a.py", settings)[1]]
    assert "toy-size" not in [choice.transform.name for choice in context(folder, "tests/a.py", settings)[1]]


@pytest.mark.parametrize(
    "settings",
    [
        Settings(per_file_ignores={"a": ("toy-sise",)}, origin="torchfix.toml"),
        Settings(rules={"toy-sise": {}}),
        Settings(select=("toy-sise",)),
        Settings(ignore=("toy-sise",)),
    ],
)
def test_an_unknown_rule_is_refused_wherever_it_stands(folder: Path, settings: Settings) -> None:
    """A mistyped rule in a selection, in ignores or as a table is an error before any file is read."""
    with pytest.raises(UsageError, match="toy-sise; nearest: toy-size"):
        run(["."], Mode.LIST, settings)


def test_black_speaks_through_the_targets_own_table(folder: Path) -> None:
    """The style is that of the nearest ``pyproject.toml`` with a Black table, up to the root of the work tree."""
    assert context(folder)[2] == EngineSettings(Risk.BEHAVIOR, "auto", Style())
    (folder / "src").mkdir()
    (folder / ".git").mkdir()
    (folder / "pyproject.toml").write_text("[tool.black]\nline-length = 110\n")
    (folder / "src" / "pyproject.toml").write_text("[project]\nname = 'no black'\n")

    assert context(folder, "src/a.py")[2].style == Style(line_length=110, configured=True)


def test_black_of_another_work_tree_is_not_heard(folder: Path) -> None:
    """A table above the root of the work tree is somebody else's."""
    (folder / "pyproject.toml").write_text("[tool.black]\nline-length = 110\n")
    (folder / "repository" / ".git").mkdir(parents=True)

    assert context(folder, "repository/a.py")[2].style == Style()


def test_the_engine_gets_what_was_asked_for(folder: Path) -> None:
    """Risk and format reach the engine as they were given."""
    engine_settings = context(folder, settings=Settings(risk=Risk.EXACT, format="off"))[2]

    assert (engine_settings.risk, engine_settings.format) == (Risk.EXACT, "off")


def test_the_options_of_a_rule_that_does_not_run_are_checked(folder: Path) -> None:
    """A broken table is an error whether or not its rule is selected."""
    with pytest.raises(UsageError, match="expected a whole number"):
        run(["."], Mode.LIST, Settings(ignore=("toys",), rules={"toy-size": {"most": "many"}}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("[tool.black\n", "not valid TOML", id="no TOML"),
        pytest.param("[tool]\nblack = 100\n", "[tool.black] must be a table", id="no table"),
        pytest.param(f"black = {'[' * 5000}\n", "not valid TOML", id="nested too deeply"),
    ],
)
def test_a_broken_configuration_of_black_is_told_and_stops_nothing(folder: Path, text: str, words: str) -> None:
    """The file is not ours, so its fault is a warning, said once, and what we write has Black's default format."""
    (folder / ".git").mkdir()
    (folder / "pyproject.toml").write_text(text)
    (folder / "one").mkdir()
    (folder / "one" / "setup.py").write_text("Toy(name)\n")
    (folder / "a.py").write_text("Toy(name)\n")

    done = run(["."], Mode.LIST, Settings())

    assert [result.outcome for result in done.results] == [Outcome.CHANGED, Outcome.CHANGED]
    (warning,) = done.warnings
    assert warning.startswith("pyproject.toml: ")
    assert words in warning
    assert warning.endswith("; Black's defaults are used")
