"""The command as users and scripts meet it: words, streams, exit codes."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import SECONDS, Ended
from torchfix import files
from torchfix.result import Reason
from torchfix.version import VERSION

Command = Callable[..., Ended]

TOY = b"import torch\n\ntoy = Toy(name)\n"
FIXED = b"import torch\n\ntoy = Toy(name, size=2)\n"
LINE = "train.py:3:7 toy-size [exact] the toy is built twice\n"


@pytest.fixture
def train(folder: Path) -> Path:
    """A file with one finding."""
    path = folder / "train.py"
    path.write_bytes(TOY)
    return path


# What changes nothing


def test_a_clean_folder(torchfix: Command, folder: Path) -> None:
    """Nothing to change is exit code 0, and nothing on standard output."""
    (folder / "a.py").write_text("import torch\n")

    ended = torchfix()

    assert (ended.code, ended.out, ended.error) == (0, b"", "0 files would change, 1 clean, 0 skipped, 0 failed\n")


def test_an_empty_folder(torchfix: Command) -> None:
    """A tree without Python files is no error."""
    assert torchfix().code == torchfix("--diff").code == torchfix("--apply").code == 0


def test_held_findings_never_change_the_exit_code(torchfix: Command, train: Path) -> None:
    """What was left alone is told, and the command is satisfied."""
    train.write_text("Toy(name, other)\n")

    ended = torchfix("train.py")

    assert ended.code == 0
    assert (
        ended.text == "train.py:1:1 toy-size [exact] the toy is built twice\n    held: the toy has company (give each toy its own line)\n"
    )
    assert "1 held: 1 crowded\n" in ended.error


def test_suppressed_findings_never_change_the_exit_code(torchfix: Command, train: Path) -> None:
    """What a comment forbids is neither changed nor told."""
    train.write_text("Toy(name)  # torchfix: ignore[toy-size]\n")

    ended = torchfix("train.py")

    assert (ended.code, ended.out) == (0, b"")


# The three modes


def test_the_plain_run_lists_and_writes_nothing(torchfix: Command, train: Path) -> None:
    """Findings go to standard output, the summary to standard error, and the code says that there is a change."""
    ended = torchfix()

    assert (ended.code, ended.text) == (1, LINE)
    assert ended.error.startswith("1 file would change, 0 clean, 0 skipped, 0 failed\n1 finding would be fixed: 1 exact\n")
    assert train.read_bytes() == TOY


def test_diff_prints_a_patch_and_nothing_else(torchfix: Command, train: Path) -> None:
    """Standard output is the patch to the byte; nothing is written."""
    ended = torchfix("--diff")

    assert ended.code == 1
    assert ended.out == b"--- a/train.py\n+++ b/train.py\n@@ -1,3 +1,3 @@\n import torch\n \n-toy = Toy(name)\n+toy = Toy(name, size=2)\n"
    assert train.read_bytes() == TOY


def test_apply_writes_and_a_second_run_is_quiet(torchfix: Command, train: Path) -> None:
    """The change is on the disk, the code is 0, and there is nothing left to do."""
    ended = torchfix("--apply")

    assert (ended.code, ended.text, train.read_bytes()) == (0, LINE, FIXED)
    assert ended.error.startswith("1 file changed")
    assert torchfix().code == 0


@pytest.mark.parametrize("command", [["git", "apply", "-"], ["patch", "-p1", "--binary", "--no-backup-if-mismatch"]], ids=["git", "patch"])
def test_the_patch_gives_what_apply_writes(torchfix: Command, folder: Path, command: list[str]) -> None:
    """Over all sorts of files the patch, taken by git or patch, and ``--apply`` give the same bytes."""
    texts = {
        "plain.py": TOY,
        "sub dir/blank name.py": TOY,
        "ünï.py": "# ü\nToy(größe)\n".encode(),
        "crlf.py": TOY.replace(b"\n", b"\r\n"),
        "mixed.py": b"a = 1\r\nToy(name)\nb = 2\n",
        "no_newline.py": TOY.rstrip(b"\n"),
        "crlf_no_newline.py": TOY.replace(b"\n", b"\r\n").rstrip(b"\r\n"),
        "bom.py": b"\xef\xbb\xbf" + TOY,
        "latin.py": b"# -*- coding: latin-1 -*-\n# \xe9\nToy(name)\n",
        "feed.py": b"a = 1\n\x0cToy(name)\n\x0c\nb = 2\n",
        "tabs.py": b"if x:\n\tToy(name)\n",
    }
    for name, data in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)

    patch = torchfix("--diff", "--format", "off").out
    assert torchfix("--apply", "--format", "off").code == 0
    applied = {name: (folder / name).read_bytes() for name in texts}
    for name, data in texts.items():
        (folder / name).write_bytes(data)
    subprocess.run(command, input=patch, cwd=folder, timeout=SECONDS, check=True, capture_output=True)

    assert all(applied[name] != data for name, data in texts.items())
    assert {name: (folder / name).read_bytes() for name in texts} == applied


def test_diff_and_apply_exclude_each_other(torchfix: Command, train: Path) -> None:
    """Who asks for both has not decided."""
    ended = torchfix("--diff", "--apply")

    assert (ended.code, ended.out, ended.error) == (2, b"", "error: --diff and --apply exclude each other\n")
    assert train.read_bytes() == TOY


def test_what_must_be_read_before_merging_stands_beside_the_patch(torchfix: Command, train: Path) -> None:
    """The patch cannot say it, so standard error does; the plain run says it under the finding."""
    train.write_text("Toy(wild)\n")

    assert "toy-size: feed the toy before use (train.py:1)\n" in torchfix("--diff").error
    assert torchfix().text.endswith("    note: feed the toy before use\n")


def test_a_patch_that_leads_out_of_the_folder_says_where_to_run(
    torchfix: Command, folder: Path, train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program takes upward paths from a patch, so the command names the folder from which there are none."""
    (folder / "sub").mkdir()
    monkeypatch.chdir(folder / "sub")

    assert "run torchfix in .. for a patch that they take\n" in torchfix("--diff", "../train.py").error
    assert "refuse paths" not in torchfix("--diff", ".").error


# Standard input


def test_standard_input_comes_out_fixed(torchfix: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` makes the command a filter: the fixed text on standard output, the report on standard error."""
    give(monkeypatch, TOY.replace(b"\n", b"\r\n"))

    ended = torchfix("-", "--stdin-filename", "src/train.py")

    assert (ended.code, ended.out) == (1, FIXED.replace(b"\n", b"\r\n"))
    assert ended.error.startswith("src/" + LINE)


def give(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("words", [(), ("--apply",)])
def test_standard_input_that_needs_no_change_or_cannot_be_read_comes_out_as_it_was(
    torchfix: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """A filter never loses its text."""
    for data, code in ((b"import torch\n", 0), (b"Toy(\n", 3), (b"\xff Toy", 3), (b"", 0)):
        give(monkeypatch, data)
        ended = torchfix("-", *words)
        assert (ended.code, ended.out) == (code, data)


def test_standard_input_with_diff_and_json(torchfix: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``--diff`` the patch comes out, with JSON the document, and nothing else."""
    give(monkeypatch, TOY)
    assert torchfix("-", "--diff", "--stdin-filename", "a.py").out.startswith(b"--- a/a.py\n+++ b/a.py\n")
    give(monkeypatch, TOY)
    assert json.loads(torchfix("-", "--output-format", "json").out)["summary"]["fixed"] == 1


def test_standard_input_under_the_name_of_a_file(torchfix: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is shown as any other path, and one that is excluded by force comes out as it was."""
    give(monkeypatch, TOY)
    assert torchfix("-", "--diff", "--stdin-filename", str(folder / "sub" / "a.py")).out.startswith(b"--- a/sub/a.py\n")
    give(monkeypatch, TOY)
    assert torchfix("-", "--exclude", "a.py", "--stdin-filename", "a.py").out == FIXED
    give(monkeypatch, TOY)
    assert torchfix("-", "--exclude", "a.py", "--force-exclude", "--stdin-filename", "a.py").out == TOY


def test_standard_input_that_is_closed(torchfix: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to read is not the same as an empty file."""
    monkeypatch.setattr(sys, "stdin", None)

    ended = torchfix("-")

    assert (ended.code, ended.out, ended.error) == (2, b"", "error: standard input is closed\n")


def test_standard_input_beside_other_paths_is_refused(torchfix: Command, train: Path) -> None:
    """A filter has one text."""
    ended = torchfix("-", "train.py")

    assert (ended.code, ended.error) == (2, "error: - (standard input) cannot be mixed with other paths\n")


# Wrong usage: code 2, and nothing done


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nope.py"], "error: no such file or folder: nope.py\n"),
        (
            ["--select", "toy-sise"],
            "error: there is no rule or group toy-sise; nearest: toy-size, toy-sleep, toys ('torchfix rules' lists them all)\n",
        ),
        (["--ignore", "toy-size,tois"], "error: there is no rule or group tois; nearest: toys ('torchfix rules' lists them all)\n"),
        (["--select", ""], "error: --select: it names no rule or group\n"),
        (["--risk", "exat"], "error: --risk: 'exat' is none of exact, numeric, behavior; nearest: exact\n"),
        (["--torch", "new"], "error: --torch: expected a version such as '2.4', found 'new'\n"),
        (["--num-workers", "4 +"], "error: --num-workers: '4 +' is no Python expression\n"),
        (["--jobs", "0"], "error: --jobs: expected a number of processes, 1 or more, found 0\n"),
        (["--output-file", "gone/x.json"], "error: gone/x.json cannot be written: its folder does not exist\n"),
        (["--output-file", ""], "error: the output file has no name\n"),
        (["--config", "gone.toml"], "error: gone.toml: cannot be read: No such file or directory\n"),
    ],
)
def test_wrong_usage(torchfix: Command, train: Path, words: list[str], error: str) -> None:
    """A request that cannot be met ends with 2, one line of words, and every file as it was."""
    ended = torchfix("--apply", *words)

    assert (ended.code, ended.out, ended.error) == (2, b"", error)
    assert train.read_bytes() == TOY


@pytest.mark.parametrize("words", [(), ("train.py",), ("-",), ("rules",)])
def test_a_working_folder_that_is_gone(torchfix: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    """Where nothing has a place any more, the command says so."""
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()

    ended = torchfix(*words)

    assert (ended.code, ended.out) == (2, b"")
    assert ended.error == "error: the working folder cannot be used: No such file or directory; change into another one\n"


def test_an_unknown_option_names_the_nearest(torchfix: Command) -> None:
    """A mistyped option is wrong usage."""
    ended = torchfix("--slect", "toys")

    assert ended.code == 2
    assert "No such option: --slect" in ended.error
    assert "--select" in ended.error


def test_a_wrong_configuration(torchfix: Command, folder: Path, train: Path) -> None:
    """An unknown key is an error that names the file, the key and the nearest known one."""
    (folder / "pyproject.toml").write_text("[tool.torchfix]\nselct = ['toys']\n")

    ended = torchfix("--apply")

    assert (ended.code, ended.out) == (2, b"")
    assert ended.error == "error: pyproject.toml: selct is not a key of torchfix's configuration; nearest: select\n"
    assert train.read_bytes() == TOY
    assert torchfix("--isolated").code == 1


def test_a_broken_configuration_that_is_not_ours(torchfix: Command, folder: Path, train: Path) -> None:
    """What cannot be read of Black's settings is a warning beside the findings."""
    (folder / "pyproject.toml").write_text("[tool.black\n")

    ended = torchfix()

    assert (ended.code, ended.text) == (1, LINE)
    assert ended.error.startswith("warning: pyproject.toml: not valid TOML: ")


# Bad files: code 3, the others done


def test_bad_files_do_not_stop_the_others(torchfix: Command, folder: Path, train: Path) -> None:
    """A file that does not parse, is no text or speaks Python 2 is named with line and reason; the rest is written."""
    bad = {"broken.py": b"Toy(\n", "binary.py": b"\x00Toy", "latin.py": b"# Toy\n\n# \xe9\n", "old.py": b"Toy\nprint 'x'\n"}
    for name, data in bad.items():
        (folder / name).write_bytes(data)

    ended = torchfix("--apply")

    assert ended.code == 3
    assert train.read_bytes() == FIXED
    assert {name: (folder / name).read_bytes() for name in bad} == bad
    for line in (
        "broken.py: failed: line 1: ",
        "binary.py: failed: ",
        "latin.py: failed: line 3: ",
        "old.py: failed: line 2: Python 2 print statement",
    ):
        assert f"\n{line}" in f"\n{ended.error}"


@pytest.mark.parametrize("words", [(), ("--diff",), ("--apply",), ("--exit-zero",), ("--quiet",)])
def test_a_failure_wins_over_a_change(torchfix: Command, folder: Path, train: Path, words: tuple[str, ...]) -> None:
    """In every mode one failed file makes the code 3, and is named."""
    (folder / "broken.py").write_text("Toy(\n")

    ended = torchfix(*words)

    assert ended.code == 3
    assert "broken.py: failed: line 1: " in ended.error


def test_a_file_that_cannot_be_read(torchfix: Command, train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing permission is named with the next step."""
    (train.parent / "locked.py").write_bytes(TOY)
    real = open

    def refusing(path: object, *arguments: object, **options: object) -> object:
        if str(path).endswith("locked.py"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(files, "open", refusing, raising=False)

    ended = torchfix("--apply")

    assert (ended.code, train.read_bytes()) == (3, FIXED)
    assert "locked.py: failed: cannot be read: Permission denied (give yourself the right to read it (chmod u+r))\n" in ended.error


def test_a_file_that_cannot_be_written(torchfix: Command, train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk fails the file, keeps its old text and is named with the next step."""

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)

    ended = torchfix("--apply")

    assert (ended.code, train.read_bytes()) == (3, TOY)
    assert "train.py: failed: cannot be written: No space left on device (free some space and run again)\n" in ended.error
    assert os.listdir(train.parent) == ["train.py"]


def test_an_internal_fault_has_its_own_code(torchfix: Command, train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody foresaw does not look like "there is a change"."""

    def broken(*arguments: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(files, "walk", broken)

    ended = torchfix()

    assert ended.code == 3
    assert "a fault of ours" in ended.error
    assert "please report it" in ended.error


# Options


def test_selecting_and_ignoring(torchfix: Command, train: Path) -> None:
    """Rules and groups can be chosen, repeatedly and in lists."""
    assert torchfix("--select", "toy-sleep,future-toy").code == 0
    assert torchfix("--select", "toy-sleep", "--select", "toys").code == 1
    assert torchfix("--ignore", "toys").code == 0


def test_a_narrower_risk(torchfix: Command, train: Path) -> None:
    """What is riskier than allowed is listed as held, and the summary says what a wider risk would add."""
    train.write_text("Toy(wild)\n")

    ended = torchfix("--risk", "numeric")

    assert ended.code == 0
    assert ended.text.startswith("train.py:1:1 toy-size [behavior] the toy is built twice\n")
    assert "    held: " in ended.text
    assert "--risk behavior would fix 1 more: 1 behavior\n" in ended.error
    assert torchfix("--risk", "behavior").code == 1


def test_json_alone_on_standard_output(torchfix: Command, folder: Path, train: Path) -> None:
    """In every mode the JSON is the whole of standard output, and failures are in it as well as on standard error."""
    (folder / "broken.py").write_text("Toy(\n")

    for words in ((), ("--diff",), ("--apply",)):
        ended = torchfix(*words, "--output-format", "json")
        document = json.loads(ended.out)
        assert [(file["path"], file["outcome"]) for file in document["files"]] == [("broken.py", "failed"), ("train.py", "changed")]
        assert "broken.py: failed: " in ended.error


def test_an_output_file(torchfix: Command, folder: Path, train: Path) -> None:
    """What belongs on standard output goes to the file, whole and without colours."""
    for words in ((), ("--diff",), ("--output-format", "json")):
        expected = torchfix(*words)
        ended = torchfix(*words, "--output-file", "out.txt")
        assert (ended.code, ended.out) == (1, b"")
        assert (folder / "out.txt").read_bytes() == expected.out


def test_an_output_file_that_fails_late_is_a_failure(torchfix: Command, train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that cannot be written after all is code 3, for the files may have been."""

    def full(path: str, data: bytes) -> None:
        raise files.FileError(Reason("unwritable", "cannot be written: No space left on device"))

    monkeypatch.setattr(files, "write_whole", full)

    ended = torchfix("--apply", "--output-file", "out.txt")

    assert (ended.code, train.read_bytes()) == (3, FIXED)
    assert ended.error.endswith("error: cannot be written: No space left on device\n")


def test_an_output_file_may_be_a_device(torchfix: Command, train: Path) -> None:
    """What takes bytes but is on no disk is written like a file."""
    assert torchfix("--diff", "--output-file", os.devnull).code == 1


def test_an_output_that_cannot_be_written_is_a_failure(torchfix: Command, train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk behind standard output is code 3, and the summary is still told."""

    class Full(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Full())))

    ended = torchfix("--apply")

    assert (ended.code, train.read_bytes()) == (3, FIXED)
    assert ended.error.startswith("1 file changed, ")
    assert ended.error.endswith("error: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["rules", "--help"]])
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_what_the_command_says_of_itself_can_fail_too(words: list[str]) -> None:
    """A full disk behind the version or the help is code 3 and a sentence, no traceback."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "torchfix", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (3, "error: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_an_output_that_is_closed_is_not_missed(torchfix: Command, train: Path, monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    """A caller who closes a stream does not want to read it; the work is done all the same."""
    monkeypatch.setattr(sys, closed, None)

    ended = torchfix("--apply")
    getattr(sys, closed).close()

    assert (ended.code, train.read_bytes()) == (0, FIXED)


def test_what_acts_on_a_terminal_is_spelled_out_in_errors_too(torchfix: Command) -> None:
    """A name in a message cannot move the cursor."""
    assert torchfix("no\x1b[31m.py").error == "error: no such file or folder: no\\x1b[31m.py\n"


def test_quiet_leaves_out_the_summary(torchfix: Command, train: Path) -> None:
    """With ``-q`` only findings and failures are told."""
    ended = torchfix("-q")

    assert (ended.text, ended.error) == (LINE, "")


def test_verbose_tells_the_rest(torchfix: Command, folder: Path, train: Path) -> None:
    """With ``-v`` suppressed findings, unused suppressions and clean files are told, and beside a patch the findings."""
    (folder / "clean.py").write_text("import torch\n")
    (folder / "quiet.py").write_text("Toy(name)  # torchfix: ignore\n")

    assert "quiet.py:1:1 toy-size [exact] the toy is built twice\n    suppressed by a comment\n" in torchfix("-v").text
    ended = torchfix("-v", "--diff")
    assert "clean.py: clean\n" in ended.error
    assert LINE in ended.error


def test_statistics(torchfix: Command, train: Path) -> None:
    """Counts by rule are part of what standard error says, so that they do not disturb a patch."""
    ended = torchfix("--statistics", "--diff", "-q")

    assert ended.error == "rule           fixed        held  suppressed\ntoy-size           1           0           0\n"


def test_exit_zero(torchfix: Command, train: Path) -> None:
    """``--exit-zero`` makes 1 into 0 and nothing else."""
    assert torchfix("--exit-zero").code == 0
    assert torchfix("--exit-zero", "nope.py").code == 2


def test_excluding(torchfix: Command, folder: Path, train: Path) -> None:
    """Excluded files are not looked at, named ones only where that is forced."""
    assert torchfix("--exclude", "train.py").code == 0
    assert torchfix("--exclude", "train.py", "train.py").code == 1
    assert torchfix("--exclude", "train.py", "--force-exclude", "train.py").code == 0


def test_the_number_of_workers_reaches_the_rules(torchfix: Command, train: Path) -> None:
    """An option that a rule has under the same name is handed to it."""
    assert b"Toy(name, size=args.workers)" in torchfix("--num-workers", "args.workers", "--diff").out


def test_colours_on_demand(torchfix: Command, train: Path) -> None:
    """A pipe gets colours only when they are asked for; a patch never does."""
    assert b"\x1b[" not in torchfix().out
    assert b"\x1b[" in torchfix("--color", "always").out
    assert b"\x1b[" not in torchfix("--color", "always", "--diff").out


def test_the_configuration_beside_the_files(torchfix: Command, folder: Path, train: Path) -> None:
    """Options of a file hold for a run, and what is typed holds over them."""
    (folder / "torchfix.toml").write_text("ignore = ['toys']\noutput-format = 'json'\n[rules.toy-size]\nsize = '7'\n")

    assert json.loads(torchfix().out)["summary"]["fixed"] == 0
    assert b"size=7" in torchfix("--ignore", "future-toy", "--output-format", "text", "--diff").out


def test_the_summary_names_the_torch_that_was_assumed(torchfix: Command, folder: Path, train: Path) -> None:
    """Users see which torch the code was written for, and why."""
    assert "assumes torch 2.13, the newest known" in torchfix().error
    assert "written for torch 2.4 and newer\n" in torchfix("--torch", "2.4").error
    (folder / "requirements.txt").write_text("torch>=0.4\n")
    ended = torchfix()
    assert (ended.code, "1 held: 1 torch-too-old\nwritten for torch 0.4 and newer\n" in ended.error) == (0, True)


# Git


def test_apply_refuses_uncommitted_files(torchfix: Command, git: Callable[..., str], train: Path) -> None:
    """In a work tree nothing is written where something could be lost; a commit or ``--allow-dirty`` opens the way."""
    git("init", "-q")

    ended = torchfix("--apply")

    assert (ended.code, train.read_bytes()) == (2, TOY)
    assert (
        ended.error
        == "error: nothing was written, for these files have uncommitted changes; commit them or add --allow-dirty:\n  train.py\n"
    )
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert (torchfix("--apply").code, train.read_bytes()) == (0, FIXED)


def test_allow_dirty(torchfix: Command, git: Callable[..., str], train: Path) -> None:
    """With ``--allow-dirty`` uncommitted files are written, and the way back is told, quiet or not."""
    git("init", "-q")

    ended = torchfix("--apply", "--allow-dirty", "-q")

    assert (ended.code, train.read_bytes()) == (0, FIXED)
    assert ended.error.startswith("undo with: patch -p1 < ")


# The rest of the command


@pytest.mark.parametrize("words", [["--version"], ["--version", "-q"]])
def test_the_version(torchfix: Command, words: list[str]) -> None:
    """Alone or among other options ``--version`` prints one line."""
    assert torchfix(*words) == Ended(0, f"torchfix {VERSION}\n".encode(), "")


def test_help(torchfix: Command) -> None:
    """Help names every option of the command, and how to reach the rules."""
    ended = torchfix("--help")

    assert ended.code == 0
    for word in ("--diff", "--apply", "--select", "--risk", "--torch", "--exit-zero", "torchfix rules"):
        assert word in ended.text


def test_the_rules(torchfix: Command) -> None:
    """``rules`` lists them, with a name it explains one, and as JSON it gives them to scripts."""
    assert "toy-size" in torchfix("rules").text
    assert "A toy of unknown size is built twice." in torchfix("rules", "toy-size").text
    assert [rule["name"] for rule in json.loads(torchfix("rules", "--output-format", "json").out)] == [
        "future-toy",
        "toy-size",
        "toy-sleep",
    ]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["rules", "toy-sise"], "error: there is no rule toy-sise; nearest: toy-size, toy-sleep ('torchfix rules' lists them all)\n"),
        (["rules", "--output-format", "xml"], "error: --output-format: 'xml' is none of text, json\n"),
    ],
)
def test_wrong_questions_about_rules(torchfix: Command, words: list[str], error: str) -> None:
    """An unknown rule or format is wrong usage."""
    assert torchfix(*words) == Ended(2, b"", error)


def test_a_folder_called_rules(torchfix: Command, folder: Path) -> None:
    """A path named like the sub-command is written with its folder."""
    (folder / "rules").mkdir()
    (folder / "rules" / "train.py").write_bytes(TOY)

    assert torchfix("./rules").text.startswith("rules/train.py:3:7 toy-size")


# In a process of its own


def test_the_whole_command_in_a_process(torchfix_process: Command, train: Path) -> None:
    """As installed, with a plugin's rule: the patch on standard output, the summary on standard error."""
    ended = torchfix_process("--select", "toys", "--diff")

    assert ended.code == 1
    assert ended.out.endswith(b"-toy = Toy(name)\n+toy = Toy(name, size=2)\n")
    assert "1 finding would be fixed: 1 exact" in ended.error


def test_many_files_in_several_processes(torchfix_process: Command, folder: Path) -> None:
    """Above a megabyte the files are shared out, and the patch is the same to the byte."""
    for number in range(24):
        (folder / f"file{number:02}.py").write_bytes(TOY + b"# " + b"x" * 60_000 + b"\n")

    alone, together = (torchfix_process("--select", "toys", "--diff", "--format", "off", "--jobs", jobs) for jobs in ("1", "2"))

    assert alone.out.count(b"+toy = Toy(name, size=2)\n") == 24
    assert together == alone


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_any_locale(torchfix_process: Command, folder: Path, locale: str) -> None:
    """Names and texts in other scripts come out as UTF-8 whatever the locale says."""
    (folder / "größe.py").write_bytes("Toy('ü')\n".encode())

    ended = torchfix_process("--select", "toys", LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")

    assert (ended.code, ended.out) == (1, "größe.py:1:1 toy-size [exact] the toy is built twice\n".encode())


def test_a_reader_that_leaves_early(folder: Path, plugin: Path) -> None:
    """A closed pipe ends the command without a traceback."""
    for number in range(3):
        (folder / f"file{number}.py").write_bytes(TOY)
    environment = {**os.environ, "PYTHONPATH": str(plugin)}
    command = subprocess.Popen(
        [sys.executable, "-m", "torchfix", "--select", "toys"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=folder
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    error = command.stderr.read().decode()
    command.stderr.close()

    assert command.wait(timeout=SECONDS) == 1
    assert "Traceback" not in error
    assert "BrokenPipe" not in error
    assert "3 files would change" in error


@pytest.mark.parametrize("signal_sent", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
@pytest.mark.parametrize("attempt", range(3))
def test_an_end_in_the_middle_of_apply(folder: Path, plugin: Path, signal_sent: signal.Signals, attempt: int) -> None:
    """Whenever the command is ended, each file is the old one or the new one, and the next run finishes the work."""
    paths = [folder / f"file{number:02}.py" for number in range(60)]
    for path in paths:
        path.write_bytes(TOY)
    environment = {**os.environ, "PYTHONPATH": str(plugin)}
    words = [sys.executable, "-m", "torchfix", "--select", "toys", "--apply", "--format", "off"]
    command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=folder)
    limit = time.monotonic() + SECONDS
    while paths[attempt * 20].read_bytes() == TOY and command.poll() is None and time.monotonic() < limit:
        time.sleep(0.001)
    command.send_signal(signal_sent)
    command.communicate(timeout=SECONDS)

    texts = {path.read_bytes() for path in paths}
    again = subprocess.run(words, capture_output=True, env=environment, cwd=folder, timeout=SECONDS, check=False)

    assert texts <= {TOY, FIXED}
    assert again.returncode == 0
    assert {path.read_bytes() for path in paths} == {FIXED}
