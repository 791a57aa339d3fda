"""Unified patches that ``git apply`` and ``patch -p1`` take as they are."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchfix.patch import changes, unified

SECONDS = 60


def applied_by(command: list[str], folder: Path, patch: bytes) -> None:
    subprocess.run(command, cwd=folder, input=patch, capture_output=True, timeout=SECONDS, check=True)


PROGRAMS = pytest.mark.parametrize(
    "command", [["git", "apply", "-"], ["patch", "-p1", "--no-backup-if-mismatch", "--binary"]], ids=["git", "patch"]
)


def test_equal_texts_make_no_patch() -> None:
    """A file that did not change leaves no trace in the patch."""
    assert unified("a.py", b"x\n", b"x\n") == b""


def test_a_changed_line_in_its_context() -> None:
    """Three lines of context stand around a change, as everywhere."""
    before = b"".join(b"%d\n" % number for number in range(1, 11))

    patch = unified("a.py", before, before.replace(b"5\n", b"five\n"))

    assert patch == b"--- a/a.py\n+++ b/a.py\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"


CHANGES = {
    "a line in the middle": (b"1\n2\n3\n", b"1\ntwo\n3\n"),
    "two hunks": (b"a\n" + b"-\n" * 20 + b"b\n", b"A\n" + b"-\n" * 20 + b"B\n"),
    "hunks whose context touches": (b"a\n1\n2\n3\n4\n5\n6\nb\n", b"A\n1\n2\n3\n4\n5\n6\nB\n"),
    "no newline at the end, before and after": (b"1\n2", b"1\ntwo"),
    "a newline at the end is new": (b"1\n2", b"1\n2\n"),
    "the newline at the end goes": (b"1\n2\n", b"1\n2"),
    "carriage returns": (b"1\r\n2\r\n3\r\n", b"1\r\ntwo\r\n3\r\n"),
    "mixed and lone carriage returns": (b"1\r2\r\n3\n", b"1\r2\r\nthree\n"),
    "form feed, line separator and next line": (b"1\n\x0c\n\xe2\x80\xa8\xc2\x85\n2\n", b"1\n\x0c\n\xe2\x80\xa8\xc2\x85\ntwo\n"),
    "bytes that are no UTF-8": (b"# \xe9\n1\n", b"# \xe9\none\n"),
    "lines at the beginning": (b"1\n2\n", b"0\n1\n2\n"),
    "lines at the end": (b"1\n2\n", b"1\n2\n3\n"),
    "from nothing": (b"", b"1\n"),
}


@PROGRAMS
@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES.keys())
def test_the_patch_is_taken(tmp_path: Path, command: list[str], before: bytes, after: bytes) -> None:
    """Both programs make the new bytes out of the old ones, whatever the line ends and the encoding."""
    file = tmp_path / "train.py"
    file.write_bytes(before)

    applied_by(command, tmp_path, unified("train.py", before, after))

    assert file.read_bytes() == after


@PROGRAMS
@pytest.mark.parametrize("name", ["a b.py", "sub folder/a b.py", 'quo"te.py', "back\\slash.py", "tab\there.py", "ünï.py"])
def test_names_that_need_care_are_taken(tmp_path: Path, command: list[str], name: str) -> None:
    """Names with blanks, quotes, control characters or other letters survive the header."""
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"1\n")

    applied_by(command, tmp_path, unified(name, b"1\n", b"2\n"))

    assert file.read_bytes() == b"2\n"


@PROGRAMS
def test_a_name_that_is_no_text_is_taken(tmp_path: Path, command: list[str]) -> None:
    """A name whose bytes are no UTF-8 stands in the header as these bytes."""
    name = b"n\xe9.py".decode("utf-8", "surrogateescape")
    (tmp_path / name).write_bytes(b"1\n")

    applied_by(command, tmp_path, unified(name, b"1\n", b"2\n"))

    assert (tmp_path / name).read_bytes() == b"2\n"


def test_the_patch_is_taken_below_the_root_of_a_git_work_tree(tmp_path: Path) -> None:
    """Paths count from the folder that the command ran in, also where git's own root is further up."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, timeout=SECONDS, check=True)
    below = tmp_path / "src"
    below.mkdir()
    (below / "train.py").write_bytes(b"1\n")

    applied_by(["git", "apply", "-"], below, unified("train.py", b"1\n", b"2\n"))

    assert (below / "train.py").read_bytes() == b"2\n"


@given(
    st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n"]), max_size=12),
    st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"x\n"]), max_size=12),
)
def test_changes_turn_one_text_into_the_other(old: list[bytes], new: list[bytes]) -> None:
    """Replacing the changed stretches of the old lines by those of the new ones gives the new text, and nothing else changed."""
    built: list[bytes] = []
    at = 0
    for a, b, c, d in changes(old, new):
        assert old[at:a] == new[len(built) : c]
        assert (a, c) != (b, d)
        built += old[at:a] + new[c:d]
        at = b
    assert built + old[at:] == new


def test_few_changes_in_a_repetitive_table_are_shown_alone() -> None:
    """Of thousands of equal rows without an anchor between them only those that changed are shown."""
    old = [b"    [0.1, 0.2],\n"] * 4000
    new = list(old)
    new[0] = new[2000] = new[3999] = b"    [0.3, 0.2],\n"

    assert sum(b - a + d - c for a, b, c, d in changes(old, new)) == 6


@pytest.mark.parametrize("step", [2, 3, 50])
@pytest.mark.parametrize("row", [b"    [0.1, 0.2],\n", b"    [%d, 0.2],\n"], ids=["equal rows", "unlike rows"])
def test_the_cost_follows_the_length(row: bytes, step: int) -> None:
    """Eight times the rows of a table with many changes takes nothing like sixty-four times as long."""

    def seconds(length: int) -> float:
        old = [row % number if b"%" in row else row for number in range(length)]
        new = [line.replace(b"[", b"(") if number % step == 0 else line for number, line in enumerate(old)]
        start = time.process_time()
        changes(old, new)
        return time.process_time() - start

    seconds(1000)
    assert seconds(8000) < 24 * max(seconds(1000), 0.005)
