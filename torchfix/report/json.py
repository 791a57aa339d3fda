"""Results as JSON, schema 1; it grows by additions only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torchfix.report.summary import Counts
from torchfix.result import Note, Outcome, Reason, Result
from torchfix.version import VERSION

SCHEMA = 1


def document(results: Sequence[Result]) -> bytes:
    """Every file that has a finding, changes, was skipped or failed, and the counts; lines from 1, columns from 0."""
    told = [result for result in results if result.notes or result.outcome is not Outcome.CLEAN]
    whole = {
        "schema": SCHEMA,
        "version": VERSION,
        "files": [_file(result) for result in told],
        "summary": asdict(Counts.of(results)),
    }
    return json.dumps(whole, indent=2).encode("ascii") + b"\n"


def _file(result: Result) -> dict[str, Any]:
    return {
        "path": result.path,
        "outcome": result.outcome.value,
        "reason": _reason(result.reason),
        "findings": [_finding(note) for note in result.notes],
    }


def _finding(note: Note) -> dict[str, Any]:
    return {**asdict(note), "effects": list(note.effects), "notes": list(note.notes), "reason": _reason(note.reason)}


def _reason(reason: Reason | None) -> dict[str, str] | None:
    return None if reason is None else {"code": reason.code, "text": reason.text, "help": reason.help}
