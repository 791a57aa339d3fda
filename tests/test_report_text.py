"""Findings and summaries as people read them."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

from torchfix.report import exit_code, summary, text
from torchfix.report.screen import Paint, printable
from torchfix.result import Note, Outcome, Place, Reason, Result
from torchfix.run import Mode, Run
from torchfix.transform import Effect
from torchfix.writing import Undo

PLAIN = Paint("never", sys.stdout)
FIXED = Note(
    "loader-workers", "data", 47, 14, 48, 62, "batches are loaded in the training process", "fixed", "behavior",
    effects=("process",), notes=("start it under a main guard",),
)  # fmt: skip
HELD = Note(
    "amp-loop",
    "precision",
    3,
    0,
    3,
    9,
    "trains in float32",
    "held",
    "exact",
    reason=Reason("closure", "the step takes a closure", "see F11"),
)
RISKY = Note("amp-loop", "precision", 9, 0, 9, 9, "trains in float32", "held", "numeric", reason=Reason("risk", "its risk is numeric"))
QUIET = Note("zero-grad", "memory", 5, 4, 5, 9, "gradients are zeroed", "suppressed", "exact")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_no_findings_are_no_text() -> None:
    """A clean run prints nothing."""
    assert text.findings([Result("a.py", Outcome.CLEAN)], PLAIN, verbose=True) == ""


def test_suppressed_findings_are_told_only_when_asked() -> None:
    """What a comment forbids is silent, and with ``-v`` says so."""
    result = Result("a.py", Outcome.CLEAN, notes=(QUIET,))

    assert text.findings([result], PLAIN, verbose=False) == ""
    assert text.findings([result], PLAIN, verbose=True) == "a.py:5:5 zero-grad [exact] gradients are zeroed\n    suppressed by a comment\n"


def test_a_fixed_finding() -> None:
    """A line with place, rule, risk and message; under it each effect as a sentence and each note."""
    assert text.findings([Result("train.py", Outcome.CHANGED, b"", b"x", (FIXED,))], PLAIN, verbose=False) == (
        "train.py:47:15 loader-workers [behavior] batches are loaded in the training process\n"
        "    process: other processes take part; what they need must be importable and picklable\n"
        "    note: start it under a main guard\n"
    )


SPANNING = replace(FIXED, elsewhere=(Place("main.py", 12, 4, 12, 30), Place("main.py", 40, 8, 40, 9), Place("other.py", 3, 0, 3, 9)))


def test_a_finding_of_several_files_is_told_once_with_its_other_places() -> None:
    """Each place in another file stands indented under it."""
    results = [Result("train.py", Outcome.CHANGED, b"", b"x", (SPANNING,)), Result("main.py", Outcome.CHANGED, b"", b"x")]

    assert text.findings(results, PLAIN, verbose=False) == (
        "train.py:47:15 loader-workers [behavior] batches are loaded in the training process\n"
        "    process: other processes take part; what they need must be importable and picklable\n"
        "    also: main.py:12:5\n"
        "    also: main.py:40:9\n"
        "    also: other.py:3:1\n"
        "    note: start it under a main guard\n"
    )


def test_a_patch_of_several_files_says_which_belong_together() -> None:
    """Beside a patch it is said that one file's change needs that of the others."""
    result = Result("train.py", Outcome.CHANGED, b"", b"x", (SPANNING,))

    assert list(summary.before_merging([result])) == [
        "loader-workers: this change also needs that of main.py, other.py; merge all of it or none (train.py:47)",
        "loader-workers: start it under a main guard (train.py:47)",
    ]


def test_a_held_finding() -> None:
    """The reason stands under the line, with what the user can do about it."""
    assert text.findings([Result("train.py", Outcome.CLEAN, notes=(HELD,))], PLAIN, verbose=False) == (
        "train.py:3:1 amp-loop [exact] trains in float32\n    held: the step takes a closure (see F11)\n"
    )


def test_a_held_finding_brings_no_effects_with_it() -> None:
    """Nothing changes where a finding is held: under it stands why, and what else is in the way."""
    held = replace(HELD, effects=("process",), notes=("line 9 is in the way too",))

    assert text.findings([Result("train.py", Outcome.CLEAN, notes=(held,))], PLAIN, verbose=False) == (
        "train.py:3:1 amp-loop [exact] trains in float32\n"
        "    held: the step takes a closure (see F11)\n"
        "    note: line 9 is in the way too\n"
    )


def test_findings_in_a_row_share_their_details() -> None:
    """A reason that several findings of a rule have, one behind the other, is told once, with how many it is said of."""
    later, other = replace(HELD, line=8), replace(HELD, line=9, reason=Reason("opaque", "nobody knows"))
    notes = (replace(HELD, line=2, outcome="fixed"), HELD, later, other, replace(QUIET, outcome="fixed"), replace(HELD, line=11))

    assert text.findings([Result("train.py", Outcome.CHANGED, b"", b"x", notes)], PLAIN, verbose=False) == (
        "train.py:2:1 amp-loop [exact] trains in float32\n"
        "train.py:3:1 amp-loop [exact] trains in float32\n"
        "train.py:8:1 amp-loop [exact] trains in float32\n"
        "    these 2:\n"
        "    held: the step takes a closure (see F11)\n"
        "train.py:9:1 amp-loop [exact] trains in float32\n"
        "    held: nobody knows\n"
        "train.py:5:5 zero-grad [exact] gradients are zeroed\n"
        "train.py:11:1 amp-loop [exact] trains in float32\n"
        "    held: the step takes a closure (see F11)\n"
    )


def test_every_effect_has_a_sentence() -> None:
    """An effect that a transform may have is one that the report can explain."""
    assert set(text.EFFECTS) == {effect.value for effect in Effect}


def test_control_characters_do_not_reach_the_terminal() -> None:
    """Escape sequences in names and messages are spelled out; other scripts and undecodable bytes stay."""
    assert printable("a\x1b[2Jb\n.py") == "a\\x1b[2Jb\\n.py"
    assert printable("ünï 模型.py") == "ünï 模型.py"
    assert printable("\udce9.py") == "\udce9.py"


@pytest.mark.parametrize(
    ("wanted", "terminal", "variables", "on"),
    [
        ("auto", False, {}, False),
        ("auto", True, {}, True),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"TERM": "dumb"}, False),
        ("auto", False, {"FORCE_COLOR": "1"}, True),
        ("always", False, {"NO_COLOR": "1"}, True),
        ("never", True, {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colours_are_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, wanted: str, terminal: bool, variables: dict[str, str], on: bool
) -> None:
    """By default a terminal has colours and a pipe has none; variables say otherwise, and the option wins over them."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert Paint(wanted, Terminal() if terminal else io.StringIO()).on is on


def test_colours_add_nothing_but_colours() -> None:
    """Without its escape sequences the coloured text is the plain one."""
    results = [Result("train.py", Outcome.CHANGED, b"", b"x", (FIXED, HELD))]

    coloured = text.findings(results, Paint("always", sys.stdout), verbose=False)

    assert "\x1b[" in coloured
    for code in ("0", "1", "31", "32", "33", "36"):
        coloured = coloured.replace(f"\x1b[{code}m", "")
    assert coloured == text.findings(results, PLAIN, verbose=False)


def lines(run: Run, mode: Mode = Mode.LIST) -> list[str]:
    return list(summary.lines(run, mode))


def test_the_summary_of_nothing() -> None:
    """Only the files are counted where there is no finding."""
    assert lines(Run((Result("a.py", Outcome.CLEAN),))) == ["0 files would change, 1 clean, 0 skipped, 0 failed"]


def test_the_summary_of_everything() -> None:
    """Files by outcome, findings by risk and by reason, what a wider risk would add, and the torch that was assumed."""
    results = (
        Result("a.py", Outcome.CHANGED, b"", b"x", (FIXED, HELD, HELD, QUIET)),
        Result("b.py", Outcome.CLEAN, notes=(RISKY,)),
        Result("c.py", Outcome.SKIPPED),
        Result("d.py", Outcome.FAILED),
    )

    assert lines(Run(results, torch=frozenset({None, (1, 13)}))) == [
        "1 file would change, 1 clean, 1 skipped, 1 failed",
        "1 finding would be fixed: 1 behavior",
        "2 held: 2 closure",
        "1 suppressed by comments",
        "--risk numeric would fix 1 more: 1 numeric",
        "written for torch 1.13 and newer",
        "assumes torch 2.13, the newest known, for want of a declared lower bound (--torch sets one)",
    ]


def test_the_summary_after_writing() -> None:
    """What was done is told as done."""
    assert lines(Run((Result("a.py", Outcome.CHANGED, b"", b"x", (FIXED,)),), frozenset({(2, 1)})), Mode.APPLY) == [
        "1 file changed, 0 clean, 0 skipped, 0 failed",
        "1 finding fixed: 1 behavior",
        "written for torch 2.1 and newer",
    ]


def test_the_way_back() -> None:
    """The undo patch is told as a command that can be pasted, with its folder where that is another one."""
    (line,) = summary.undo(Run((), undo=Undo("/state/a b.patch", "/elsewhere")))

    assert line == "undo with: patch -p1 -d /elsewhere < '/state/a b.patch'"


def test_failures_are_always_told_and_skips_unless_quiet() -> None:
    """A failed file is named with its reason in every run."""
    results = [
        Result("a.py", Outcome.FAILED, reason=Reason("syntax", "line 3: no", "mend it")),
        Result("b.py", Outcome.SKIPPED, reason=Reason("x", "why")),
    ]

    assert list(summary.failures(results, PLAIN, quiet=False)) == ["a.py: failed: line 3: no (mend it)", "b.py: skipped: why"]
    assert list(summary.failures(results, PLAIN, quiet=True)) == ["a.py: failed: line 3: no (mend it)"]


def test_details_are_clean_files_and_unused_suppressions() -> None:
    """A verbose run tells what else was looked at."""
    results = [Result("a.py", Outcome.CLEAN), Result("b.py", Outcome.CHANGED, unused_suppressions=((4, "ignore[amp-loop]"),))]

    assert list(summary.details(results)) == ["a.py: clean", "b.py:4: unused suppression: ignore[amp-loop]"]


def test_what_to_read_before_merging_is_said_once() -> None:
    """A sentence that holds for many places stands once, with the first of them; held findings have none to say."""
    results = [Result(f"{name}.py", Outcome.CHANGED, b"", b"x", (FIXED, HELD)) for name in "abcde"]

    assert list(summary.before_merging(results)) == ["loader-workers: start it under a main guard (a.py:47, b.py:47, c.py:47 and 2 more)"]


def test_statistics_are_a_table() -> None:
    """Each rule with a finding has a row, each outcome a column."""
    assert list(summary.statistics([Result("a.py", Outcome.CHANGED, b"", b"x", (FIXED, HELD, RISKY, QUIET))])) == [
        "rule                 fixed        held  suppressed",
        "amp-loop                 0           2           0",
        "loader-workers           1           0           0",
        "zero-grad                0           0           1",
    ]
    assert list(summary.statistics([])) == []


CHANGED, CLEAN, FAILED, SKIPPED = (Result("a.py", outcome) for outcome in (Outcome.CHANGED, Outcome.CLEAN, Outcome.FAILED, Outcome.SKIPPED))


@pytest.mark.parametrize(
    ("results", "mode", "exit_zero", "code"),
    [
        ((), Mode.LIST, False, 0),
        ((CLEAN, SKIPPED), Mode.DIFF, False, 0),
        ((Result("a.py", Outcome.CLEAN, notes=(HELD,)),), Mode.LIST, False, 0),
        ((CHANGED, CLEAN), Mode.LIST, False, 1),
        ((CHANGED,), Mode.DIFF, False, 1),
        ((CHANGED,), Mode.DIFF, True, 0),
        ((CHANGED,), Mode.APPLY, False, 0),
        ((CHANGED, FAILED), Mode.LIST, False, 3),
        ((CHANGED, FAILED), Mode.APPLY, True, 3),
    ],
)
def test_exit_codes(results: tuple[Result, ...], mode: Mode, exit_zero: bool, code: int) -> None:
    """A failure is 3 and wins; a change that was only shown is 1; held findings never count."""
    assert exit_code(Run(results), mode, exit_zero) == code
