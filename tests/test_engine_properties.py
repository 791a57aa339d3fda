"""What must hold for every file: generated ones, and those of the installed torch package.

A normal run takes a sample of the package's files; ``TORCHFIX_CORPUS=all`` takes all of them.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import random
import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.editing import edited, finding, transform
from tests.generated import any_edits, sources
from torchfix.edits import AddImport, AddParameter, Edit, InsertAfter, InsertBefore, Remove, Replace, SetArgument, Wrap
from torchfix.engine import EngineSettings, fix
from torchfix.facts import Facts
from torchfix.facts.project.project import Project
from torchfix.layout import tokens
from torchfix.plan import plan
from torchfix.result import Outcome, Result
from torchfix.source import SourceFile
from torchfix.transform import Finding, Selected

SAMPLE = 30
LARGEST = 40_000
_PRAGMA = re.compile(r"#\s*type:")


def find_calls(facts: Facts) -> Iterator[Finding]:
    """Calls of what begins with one of a few letters, to be given an argument."""
    for call in ast.walk(facts.source.tree):
        if isinstance(call, ast.Call) and re.search(r"\b[acet]\w+$", ast.unparse(call.func)):
            if not any(keyword.arg == "mark" for keyword in call.keywords):
                yield Finding(call, "a call", (SetArgument(call, "mark", "2 if os else 3"), AddImport("os")))


def find_loops(facts: Facts) -> Iterator[Finding]:
    """Loops, to be put under a ``with``, behind a new statement."""
    for loop in facts.tree.loops:
        parent = facts.tree.parent(loop)
        if not (isinstance(parent, ast.With) and ast.unparse(parent.items[0]) == "mark"):
            yield Finding(loop, "a loop", (Wrap(loop, loop, "with mark:"), InsertBefore(loop, "if mark:\n    pass"), AddImport("torch.nn")))


def find_chains(facts: Facts) -> Iterator[Finding]:
    """Methods called without arguments, to become functions."""
    for call in ast.walk(facts.source.tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and not call.args and not call.keywords:
            yield Finding(call, "a chain", (Replace(call, f"mark($value, {call.func.attr!r})", {"value": call.func.value}),))


def find_functions(facts: Facts) -> Iterator[Finding]:
    """Functions without decorators, to be given a parameter."""
    for function in facts.tree.functions:
        names = [parameter.arg for parameter in ast.walk(function.args) if isinstance(parameter, ast.arg)]
        if "mark" not in names and not function.decorator_list:
            yield Finding(function, "a function", (AddParameter(function, "mark=None"),))


def find_assertions(facts: Facts) -> Iterator[Finding]:
    """Assertions, to make place for another statement."""
    for statement in ast.walk(facts.source.tree):
        if isinstance(statement, ast.Assert):
            yield Finding(statement, "an assertion", (Remove(statement), InsertAfter(statement, "mark()")))


FINDS = {"calls": find_calls, "loops": find_loops, "chains": find_chains, "functions": find_functions, "assertions": find_assertions}
TOYS = tuple(Selected(transform(find, name)) for name, find in FINDS.items())


def fixed(path: str, data: bytes, toys: Sequence[Selected] = TOYS, format: str = "off") -> Result:
    """What becomes of a file with toy transforms that find much everywhere."""
    return fix(path, data, Project.empty(), toys, EngineSettings(format=format))


def compiles(data: bytes) -> bool:
    """Whether Python takes a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(data, "file.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
    return True


def check(path: str, data: bytes, format: str) -> None:
    """What must hold for any file."""
    result = fixed(path, data, format=format)
    if result.outcome is Outcome.FAILED:
        assert result.reason is not None
        assert result.reason.code in ("syntax", "python-2", "newer-python", "encoding", "too-deep"), (path, result.reason)
        assert result.after == data
        return
    assert compiles(result.after) or not compiles(data), path
    joined = any(note.reason is not None and note.reason.code == "shared-line" for note in result.notes)
    if format != "file" or not joined:  # Black puts joined statements on lines of their own, where they can be changed
        again = fixed(path, result.after, format=format)
        assert [note for note in again.notes if note.outcome == "fixed"] == [], path
        assert again.after == result.after, path


def corpus() -> list[Path]:
    """Files of the installed torch package: a sample spread over all, the small ones of it."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return []
    files = sorted(Path(found.submodule_search_locations[0]).rglob("*.py"))
    if os.environ.get("TORCHFIX_CORPUS") == "all":
        return files
    small = [path for path in files if path.stat().st_size <= LARGEST]
    return small[:: max(len(small) // SAMPLE, 1)]


def name_of(path: Path) -> str:
    """A file of the corpus as a test's name."""
    return "/".join(path.parts[-3:])


def comments(text: str) -> Counter[str]:
    """The comments of a text, but for instructions to tools, which leave with their statement."""
    found = (token.string.rstrip() for token in tokens(text) if token.type == tokenize.COMMENT)
    return Counter(comment for comment in found if not _PRAGMA.match(comment))


@pytest.mark.parametrize("path", corpus(), ids=name_of)
def test_every_file_of_the_corpus(path: Path) -> None:
    """No crash; what compiled compiles; a second run is quiet and changes no byte."""
    data = path.read_bytes()
    format = "changed" if len(data) % 5 == 0 else "off"
    check(str(path), data, format)


@pytest.mark.parametrize("path", corpus()[::3], ids=name_of)
def test_lines_beside_a_change_stay_to_the_byte(path: Path) -> None:
    """All lines that no finding stands on are in the new text, in their order and to the byte, margins included."""
    data = path.read_bytes()
    result = fixed(str(path), data, [toy for toy in TOYS if toy.transform.name in ("calls", "chains")])
    touched = {line for note in result.notes for line in range(note.line, note.end_line + 1) if note.outcome == "fixed"}
    kept = [line for number, line in enumerate(data.splitlines(keepends=True), 1) if number not in touched]
    new = iter(result.after.splitlines(keepends=True))
    assert all(line in new for line in kept)


@pytest.mark.parametrize("path", corpus()[1::3], ids=name_of)
def test_notes_stand_where_their_author_wrote(path: Path) -> None:
    """Every note, also of a later round, spans text of the author that its message is about."""
    data = path.read_bytes()
    result = fixed(str(path), data)
    source = SourceFile.from_bytes(str(path), data)
    begins = {"a loop": ("for", "while", "async for"), "a function": ("def", "async def"), "an assertion": ("assert",)}
    for note in result.notes:
        start = source.line_start(note.line) + note.column
        end = source.line_start(note.end_line) + note.end_column
        text = source.text[start:end]
        assert text.startswith(begins.get(note.message, ("",))), (note, text)
        assert text.endswith((")", ":") if note.message != "an assertion" else ("",)), (note, text)


@given(source=sources(), chance=st.randoms(use_true_random=False), count=st.sampled_from([1, 3, 9, 20]))
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_edits_of_any_text(source: SourceFile, chance: random.Random, count: int) -> None:
    """Whatever edits are asked for: what is planned is written as intended, in any order, and no comment is lost."""
    edits = list(any_edits(source, chance, count))
    findings = [finding(source.tree.body[0], edit, message=str(number)) for number, edit in enumerate(edits)]
    planned = plan(findings, source)
    text = edited(source, planned.edits)
    chance.shuffle(findings)
    assert edited(source, plan(findings, source).edits) == text
    ended = source.text.endswith(("\n", "\r"))
    assert ended or not text.endswith(("\n", "\r"))
    if not any(removes_block(edit) for edit in planned.edits):
        assert comments(source.text) - comments(text) == Counter()


def removes_block(edit: Edit) -> bool:
    """Whether comments may leave with the block that they stand in."""
    return (isinstance(edit, Remove) and hasattr(edit.statement, "body")) or (isinstance(edit, Replace) and hasattr(edit.node, "body"))


@given(source=sources(), format=st.sampled_from(["off", "auto", "changed", "file"]))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_engine_on_any_text(source: SourceFile, format: str) -> None:
    """No crash; what compiled compiles; a second run is quiet and changes no byte."""
    check("train.py", source.encode(source.text), format)


@given(data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_engine_on_any_bytes(data: bytes) -> None:
    """Bytes that are no program end with an outcome too, and are never changed into another broken one."""
    result = fixed("train.py", data)
    assert result.before == data
    assert result.outcome in (Outcome.FAILED, Outcome.CLEAN) or compiles(result.after) or not compiles(data)
