"""The JSON that scripts read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from torchfix.report.json import document
from torchfix.result import Note, Outcome, Place, Reason, Result
from torchfix.version import VERSION

FIXED = Note(
    "loader-workers", "data", 47, 14, 48, 62, "batches are loaded in the training process", "fixed", "behavior",
    effects=("process", "rng"), because="the loader feeds a training loop", notes=("start it under a main guard",),
)  # fmt: skip
HELD = Note(
    "amp-loop", "precision", 3, 0, 3, 9, "trains in float32", "held", "exact", reason=Reason("closure", "the step takes a closure", "none")
)


def parsed(*results: Result) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(document(results))
    return loaded


def test_a_run_without_files() -> None:
    """Nothing looked at is a document all the same."""
    assert parsed() == {
        "schema": 1,
        "version": VERSION,
        "files": [],
        "summary": {"files": 0, "changed": 0, "clean": 0, "skipped": 0, "failed": 0, "fixed": 0, "held": 0, "suppressed": 0},
    }


def test_clean_files_are_counted_and_not_listed() -> None:
    """A file without findings appears in the counts only."""
    whole = parsed(Result("a.py", Outcome.CLEAN))

    assert whole["files"] == []
    assert whole["summary"]["clean"] == 1


def test_every_field_of_a_finding() -> None:
    """A fixed finding has all that the contract promises, and its notes."""
    (file,) = parsed(Result("src/train.py", Outcome.CHANGED, b"", b"x", (FIXED,)))["files"]

    assert file == {
        "path": "src/train.py",
        "outcome": "changed",
        "reason": None,
        "findings": [
            {
                "rule": "loader-workers",
                "group": "data",
                "line": 47,
                "column": 14,
                "end_line": 48,
                "end_column": 62,
                "cell": None,
                "elsewhere": [],
                "message": "batches are loaded in the training process",
                "outcome": "fixed",
                "risk": "behavior",
                "effects": ["process", "rng"],
                "because": "the loader feeds a training loop",
                "notes": ["start it under a main guard"],
                "reason": None,
            }
        ],
    }


def test_a_finding_of_several_files_names_its_other_places() -> None:
    """It is listed once, in its own file; a file that only changes with it is listed without findings."""
    note = replace(FIXED, elsewhere=(Place("main.py", 3, 4, 3, 9),))

    own, other = parsed(Result("a.py", Outcome.CHANGED, b"", b"x", (note,)), Result("main.py", Outcome.CHANGED, b"", b"x"))["files"]

    assert own["findings"][0]["elsewhere"] == [{"path": "main.py", "line": 3, "column": 4, "end_line": 3, "end_column": 9}]
    assert (other["path"], other["outcome"], other["findings"]) == ("main.py", "changed", [])


def test_a_clean_file_with_a_held_finding_is_listed() -> None:
    """What was left alone is told with its reason, code, words and help."""
    (file,) = parsed(Result("a.py", Outcome.CLEAN, notes=(HELD,)))["files"]

    assert file["outcome"] == "clean"
    assert file["findings"][0]["reason"] == {"code": "closure", "text": "the step takes a closure", "help": "none"}


def test_skipped_and_failed_files_have_a_reason() -> None:
    """A file that could not be handled is listed with why."""
    reason = Reason("syntax", "line 3: invalid syntax", "correct it")

    files = parsed(Result("a.py", Outcome.FAILED, reason=reason), Result("b.py", Outcome.SKIPPED, reason=reason))["files"]

    assert [file["outcome"] for file in files] == ["failed", "skipped"]
    assert all(file["reason"] == {"code": "syntax", "text": "line 3: invalid syntax", "help": "correct it"} for file in files)


def test_the_document_is_ascii_whatever_the_names() -> None:
    """Names in other scripts, or that are no text at all, neither break the encoding nor the parser."""
    name = b"\xe9\xc3\xbc.py".decode("utf-8", "surrogateescape")
    data = document([Result(name, Outcome.SKIPPED, reason=Reason("outside", "ü"))])

    assert data.isascii()
    assert json.loads(data)["files"][0]["path"] == name
