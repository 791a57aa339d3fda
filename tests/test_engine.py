"""The pure core: bytes and transforms in, a result out."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.editing import transform
from torchfix import stages
from torchfix.draft import Draft
from torchfix.edits import AddImport, InsertBefore, PlacedEdit, Replace, SetArgument, Wrap
from torchfix.engine import EngineSettings, fix
from torchfix.facts import Facts
from torchfix.facts.project.project import Project
from torchfix.result import Outcome, Result
from torchfix.source import SourceFile
from torchfix.style import Style
from torchfix.transform import Effect, Finding, Held, Risk, Selected, Transform


def calls(facts: Facts, name: str) -> list[ast.Call]:
    """The calls of a plain name, in text order."""
    found = [node for node in ast.walk(facts.source.tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == name]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def find_argument(facts: Facts) -> Iterator[Finding]:
    """Calls of ``f`` without the argument ``k``."""
    for call in calls(facts, "f"):
        if not any(keyword.arg == "k" for keyword in call.keywords):
            yield Finding(call, "no k", (SetArgument(call, "k", "1"),), because="there is none", notes=("mind the k",))


def find_wild(facts: Facts) -> Iterator[Finding]:
    """Calls of ``wild``, which is a matter of behaviour, and of ``noisy``, one of numbers."""
    for name, effect in (("wild", Effect.PROCESS), ("noisy", Effect.RNG)):
        for call in calls(facts, name):
            yield Finding(call, "too wild", (Replace(call, "tame()"),), frozenset({effect, Effect.NUMERICS}))


def find_held(facts: Facts) -> Iterator[Finding]:
    """Calls of ``h``, which are left alone, and of ``advice``, on which there is only advice."""
    for call in calls(facts, "h"):
        yield Finding(call, "an h", held=Held("no-h", "h stays", "do without h"))
    for call in calls(facts, "advice"):
        yield Finding(call, "an advice")


def find_loop(facts: Facts) -> Iterator[Finding]:
    """Loops that stand in no ``with``."""
    for loop in facts.tree.loops:
        if not isinstance(facts.tree.parent(loop), ast.With):
            yield Finding(loop, "a bare loop", (Wrap(loop, loop, "with w:"), InsertBefore(loop, "w = os.open()"), AddImport("os")))


def find_after(facts: Facts) -> Iterator[Finding]:
    """Calls of ``g`` in a loop that stands in a ``with``: seen from the second round on."""
    for call in calls(facts, "g"):
        loop = facts.tree.nearest(call, ast.For)
        if loop is not None and isinstance(facts.tree.parent(loop), ast.With):
            yield Finding(call, "a late g", (Replace(call, "late($a)", {"a": call.args[0]}),))


def find_restless(facts: Facts) -> Iterator[Finding]:
    """Every call of ``f``, for ever."""
    for call in calls(facts, "f"):
        yield Finding(call, "never enough", (Replace(call, "f(f)"),))


def find_fault(facts: Facts) -> Iterator[Finding]:
    """A transform with a fault of its own."""
    raise KeyError("lost")
    yield


ARGUMENT = transform(find_argument, "argument")
WILD = transform(find_wild, "wild")
HELD = transform(find_held, "held")
LOOP = transform(find_loop, "loop")
LATE = transform(find_after, "late")
ALL = (ARGUMENT, WILD, HELD, LOOP, LATE)


def fixed(
    data: str | bytes, *transforms: Transform, risk: Risk = Risk.BEHAVIOR, format: str = "off", path: str = "train.py", gates: bool = True
) -> Result:
    """What becomes of a file with these transforms, all toys if none are named."""
    data = data.encode() if isinstance(data, str) else data
    selected = [Selected(chosen) for chosen in transforms or ALL]
    return fix(path, data, Project.empty(), selected, EngineSettings(risk, format, Style(), gates))


def notes(result: Result) -> list[tuple[str, str, str]]:
    """Each note's rule, place and outcome, with its reason's code."""
    return [
        (note.rule, f"{note.line}:{note.column}-{note.end_line}:{note.end_column}", note.reason.code if note.reason else note.outcome)
        for note in result.notes
    ]


@pytest.mark.parametrize("data", [b"", b"x = 1\n", b"\xef\xbb\xbfx = 1", b"# f(1)\n"])
def test_file_without_findings_is_clean(data: bytes) -> None:
    """Nothing found means the same bytes and no note."""
    result = fixed(data)
    assert result == Result("train.py", Outcome.CLEAN, data, data)


def test_file_that_surely_concerns_no_transform_is_not_even_parsed() -> None:
    """Where no transform's literal stands, a broken file is clean; with the gates off it is read."""
    gated = replace(ARGUMENT, literals=(b"torch",))
    assert fixed("x = (", gated).outcome is Outcome.CLEAN
    assert fixed("x = (", gated, gates=False).outcome is Outcome.FAILED


def test_only_transforms_whose_literal_stands_there_are_asked() -> None:
    """Each transform has its own gate, which is asked again for every new text."""
    fault = transform(find_fault, "fault", (b"os",))
    assert fixed("f()\n", fault, ARGUMENT).outcome is Outcome.CHANGED
    assert fixed("for x in y: g(x)\n", fault, LOOP).reason is not None


@pytest.mark.parametrize("text", ["f(1)\n", "for a in b:\n    g(f(a))\nwild()\n", "x = 1\n"])
def test_gates_change_no_finding(text: str) -> None:
    """The same is found with the gates on and off."""
    gated = [replace(chosen, literals=(literal,)) for chosen, literal in zip(ALL, (b"f(", b"wild", b"h(", b"for", b"g("))]
    assert fixed(text, *gated) == fixed(text, *gated, gates=False)


def test_change_is_made_and_noted() -> None:
    """A finding is changed, and its note says where, what and on what ground."""
    result = fixed("x = 1\ny = f(2,\n  3)\n", ARGUMENT)
    assert result.outcome is Outcome.CHANGED
    assert result.after == b"x = 1\ny = f(2,\n  3,\n  k=1)\n"
    assert result.before == b"x = 1\ny = f(2,\n  3)\n"
    (note,) = result.notes
    assert (note.rule, note.group, note.message, note.outcome, note.risk) == ("argument", "toys", "no k", "fixed", "exact")
    assert (note.line, note.column, note.end_line, note.end_column) == (2, 4, 3, 4)
    assert (note.because, note.notes, note.effects, note.reason, note.cell) == ("there is none", ("mind the k",), (), None, None)


def test_what_is_held_is_listed_with_its_reason() -> None:
    """A held finding and mere advice change nothing and say why."""
    result = fixed("h(1)\nadvice(2)\n")
    assert result.outcome is Outcome.CLEAN
    assert notes(result) == [("held", "1:0-1:4", "no-h"), ("held", "2:0-2:9", "advice")]
    assert result.notes[0].reason is not None
    assert (result.notes[0].reason.text, result.notes[0].reason.help) == ("h stays", "do without h")


def test_what_is_above_the_allowed_risk_is_held() -> None:
    """A narrower risk leaves alone what it does not cover, and says what would allow it."""
    text = "wild()\nnoisy()\nf()\n"
    assert fixed(text).after == b"tame()\ntame()\nf(k=1)\n"
    numeric = fixed(text, risk=Risk.NUMERIC)
    assert numeric.after == b"wild()\ntame()\nf(k=1)\n"
    assert notes(numeric) == [("wild", "1:0-1:6", "risk"), ("wild", "2:0-2:7", "fixed"), ("argument", "3:0-3:3", "fixed")]
    assert fixed(text, risk=Risk.EXACT).after == b"wild()\nnoisy()\nf(k=1)\n"
    (held, changed, _) = numeric.notes
    assert held.reason is not None
    assert "--risk behavior" in held.reason.help
    assert (held.risk, held.effects) == ("behavior", ("numerics", "process"))
    assert (changed.risk, changed.effects) == ("numeric", ("numerics", "rng"))


def test_what_a_comment_forbids_is_suppressed() -> None:
    """A suppressed finding is listed as such and changes nothing; a comment that forbade nothing is named."""
    text = "f()  # torchfix: ignore[argument]\nf()\nh()  # torchfix: ignore\nx = 1  # torchfix: ignore[loop]\n"
    result = fixed(text)
    assert result.after == text.replace("\nf()", "\nf(k=1)").encode()
    assert notes(result) == [("argument", "1:0-1:3", "suppressed"), ("argument", "2:0-2:3", "fixed"), ("held", "3:0-3:3", "suppressed")]
    assert result.unused_suppressions == ((4, "# torchfix: ignore[loop]"),)


def test_comment_that_forbids_in_a_later_round_is_used() -> None:
    """What is suppressed only in the text of a later round counts for its comment in the author's text."""
    result = fixed("for a in b:\n    g(a)  # torchfix: ignore[late]\n")
    assert notes(result) == [("loop", "1:0-1:11", "fixed"), ("late", "2:4-2:8", "suppressed")]
    assert result.unused_suppressions == ()


@pytest.mark.parametrize(
    ("text", "span"),
    [
        pytest.param("for a in b:  # why\n    c\n", "1:0-1:11", id="for"),
        pytest.param("while (a and\n       b):\n    c\n", "1:0-2:10", id="while"),
        pytest.param("if x:\n    for a in b: c\n", "2:4-2:15", id="suite of one line"),
    ],
)
def test_finding_on_a_loop_spans_its_header(text: str, span: str) -> None:
    """A loop is shown by its header, not by its body."""
    assert notes(fixed(text, LOOP)) == [("loop", span, "fixed")]


def test_columns_are_characters() -> None:
    """Letters of several bytes count as one."""
    assert notes(fixed("ä = 'üö', f()\n", ARGUMENT)) == [("argument", "1:10-1:13", "fixed")]


def test_later_rounds_speak_of_the_author_s_own_lines() -> None:
    """What is found only after other changes stands where the author wrote it."""
    text = "'''Doc.'''\nx = 1\nif x:\n  for a in b:\n    c = (1,\n      g(a))\nf()\n"
    result = fixed(text)
    assert notes(result) == [
        ("loop", "4:2-4:13", "fixed"),
        ("late", "6:6-6:10", "fixed"),
        ("argument", "7:0-7:3", "fixed"),
    ]
    lines = ["  w = os.open()", "  with w:", "    for a in b:", "      c = (1,", "        late(a))", "f(k=1)", ""]
    assert result.after.decode() == "'''Doc.'''\n\nimport os\nx = 1\nif x:\n" + "\n".join(lines)


def test_held_findings_of_the_last_round_stand_in_the_author_s_lines() -> None:
    """A held finding in lines that were moved is listed once, where its author wrote it."""
    result = fixed("for a in b:\n    h(a)\n")
    assert notes(result) == [("loop", "1:0-1:11", "fixed"), ("held", "2:4-2:8", "no-h")]


def test_place_that_a_later_round_goes_over_again_is_told_once() -> None:
    """What a rule changes twice is one finding for the user, with the effects of both."""

    def find(facts: Facts) -> Iterator[Finding]:
        for call in calls(facts, "f"):
            size = len(call.keywords)
            if size < 2:
                effects = frozenset({Effect.RNG if size else Effect.MEMORY})
                yield Finding(call, f"round {size}", (SetArgument(call, f"k{size}", "1"),), effects, notes=(f"note {size}",))

    result = fix("a.py", b"x = f()\n", Project.empty(), [Selected(transform(find))], EngineSettings(format="off"))
    (note,) = result.notes
    assert result.after == b"x = f(k0=1, k1=1)\n"
    assert (note.message, note.risk, note.effects, note.notes) == ("round 0", "behavior", ("rng", "memory"), ("note 0", "note 1"))


def test_findings_in_conflict_are_settled_in_the_next_round() -> None:
    """Of two changes of one place the second is tried on the new text."""

    def find_two(facts: Facts) -> Iterator[Finding]:
        for call in calls(facts, "f"):
            yield Finding(call, "no value", (SetArgument(call, "k", "g(2)"),)) if not call.keywords else Finding(
                call, "a value", (Replace(call, "done($v)", {"v": call.keywords[0].value}),)
            )

    two = transform(find_two, "two")
    result = fixed("f()\n", two, ARGUMENT)
    assert result.after == b"done(1)\n"
    assert notes(result) == [("argument", "1:0-1:3", "fixed"), ("two", "1:0-1:3", "fixed")]


def test_conflict_that_does_not_settle_is_held() -> None:
    """A finding that waits in the last round as well is listed as held, with the reason."""

    def find_comment(facts: Facts) -> Iterator[Finding]:
        for call in calls(facts, "g"):
            yield Finding(call, "a g", (Replace(call, "late()"),))

    assert notes(fixed("x = g(  # why\n  1)\n", transform(find_comment, "g"))) == [("g", "1:4-2:4", "comment")]
    assert notes(fixed("x; f()\n", transform(find_lines, "lines"))) == [("lines", "1:3-1:6", "shared-line")]


def find_lines(facts: Facts) -> Iterator[Finding]:
    """Statements that call ``f``, to be preceded by another."""
    for call in calls(facts, "f"):
        yield Finding(call, "an f", (InsertBefore(facts.tree.statement(call), "new()"),))


def test_transform_that_is_never_quiet_fails_the_file() -> None:
    """A file that is found fault with after every round is left as it was, and the transforms are named."""
    result = fixed("f()\n", transform(find_restless, "restless"), HELD)
    assert result.outcome is Outcome.FAILED
    assert result.after == b"f()\n"
    assert result.reason is not None
    assert result.reason.code == "not-quiet"
    assert "restless" in result.reason.text


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        pytest.param(b"f(\n", "syntax", "line 1", id="syntax error"),
        pytest.param(b"x = 1\nprint 'f'\n", "python-2", "line 2: Python 2 print statement", id="Python 2"),
        pytest.param(b"f = '\xff'\n", "encoding", "line 1", id="not UTF-8"),
        pytest.param(b"# coding: nonsense\nf()\n", "encoding", "nonsense", id="unknown encoding"),
        pytest.param(b"# coding: rot13\nf()\n", "encoding", "rot13 is no encoding of text", id="codec between texts"),
        pytest.param(b"# coding: hex\nf()\n", "encoding", "hex is no encoding of text", id="codec between bytes"),
        pytest.param(b"\xef\xbb\xbf# coding: latin-1\nf()\n", "encoding", "mark says UTF-8", id="mark against cookie"),
        pytest.param(b"x = 1\nf\0()\n", "not-text", "line 2: the file holds null bytes", id="not text"),
    ],
)
def test_file_that_cannot_be_read_fails_with_line_and_reason(data: bytes, code: str, words: str) -> None:
    """A broken file is named with its reason and stays as it is."""
    result = fixed(data)
    assert (result.outcome, result.before, result.after) == (Outcome.FAILED, data, data)
    assert result.reason is not None
    assert result.reason.code == code
    assert words in result.reason.text


def test_fault_of_a_transform_fails_the_file_and_names_it() -> None:
    """An exception in a transform ends the file, not the run."""
    result = fixed("f()\n", ARGUMENT, transform(find_fault, "fault"))
    assert (result.outcome, result.after) == (Outcome.FAILED, b"f()\n")
    assert result.reason is not None
    assert result.reason.code == "internal"
    assert "the rule fault" in result.reason.text
    assert "KeyError" in result.reason.text


def test_code_nested_too_deeply_fails_the_file() -> None:
    """Deep nesting ends the file with a reason, whether the parser or a transform gives up."""
    deep = "x = " + "(" * 5000 + "f()" + ")" * 5000 + "\n"
    result = fixed(deep, ARGUMENT)
    assert result.outcome is Outcome.FAILED
    assert result.reason is not None
    assert result.reason.code in ("too-deep", "syntax")

    def find_deep(facts: Facts) -> Iterator[Finding]:
        def down(depth: int) -> int:
            return down(depth + 1)

        yield Finding(facts.source.tree.body[down(0)], "never")

    result = fixed("f()\n", transform(find_deep, "deep"))
    assert result.reason is not None
    assert result.reason.code == "too-deep"


def test_long_chain_of_operators_is_no_obstacle() -> None:
    """A sum of thousands of terms is deep as a tree, and still can be edited around."""
    text = "x = " + " + ".join(["a"] * 700) + "\nf()\n"
    assert fixed(text, ARGUMENT).after.decode() == text.replace("f()", "f(k=1)")


def test_text_that_is_not_what_was_intended_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the new text means something else than its edits, the file fails and stays as it is."""

    def wrong(source: SourceFile, edits: tuple[PlacedEdit, ...]) -> Draft:
        return Draft.kept(source.text).rewritten(source.text.replace("f()", "f(k=2)"))

    monkeypatch.setattr(stages, "apply", wrong)
    result = fixed("f()\n", ARGUMENT)
    assert (result.outcome, result.after) == (Outcome.FAILED, b"f()\n")
    assert result.reason is not None
    assert result.reason.code == "proof"
    assert "argument" in result.reason.text


def test_new_text_that_does_not_fit_the_encoding_fails_the_file() -> None:
    """A letter that the file's encoding lacks is not replaced by another."""

    def find_letter(facts: Facts) -> Iterator[Finding]:
        for call in calls(facts, "f"):
            yield Finding(call, "an f", (Replace(call, "'\u0416'"),))

    data = "# coding: latin-1\nä = f()\n".encode("latin-1")
    result = fixed(data, transform(find_letter, "letter"))
    assert (result.outcome, result.after) == (Outcome.FAILED, data)
    assert result.reason is not None
    assert result.reason.code == "encoding"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xef\xbb\xbf# -*- coding: utf-8 -*-\nimport torch\nx = f()\n", id="byte order mark and cookie"),
        pytest.param(b"\xef\xbb\xbff()", id="byte order mark alone"),
        pytest.param("# coding: latin-1\nä = f()\n".encode("latin-1"), id="latin-1"),
        pytest.param("#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\r\n€ = f()\r\n".replace("€", "x").encode("cp1252"), id="cp1252"),
        pytest.param(b"x = 1\r\n\r\nf()\r\n", id="line ends of Windows"),
        pytest.param(b"x = 1\rf()\r", id="line ends of old Macs"),
        pytest.param(b"x = 1\nf()\r\n\n\ty = 2 if x else \\\r\n 3".replace(b"\n\ty", b"\ny"), id="mixed line ends and none at the end"),
        pytest.param(b"\x0cf()\n\x0c\nif x:\n\tf.g\n", id="page breaks and tabs"),
    ],
)
@pytest.mark.parametrize("format", ["off", "auto", "changed"])
def test_f71_bytes_that_no_edit_touches_stay(data: bytes, format: str) -> None:
    """Mark, cookie, encoding, line ends, page breaks and a missing last line end are kept to the byte."""
    result = fixed(data, ARGUMENT, format=format)
    assert result.after == data.replace(b"f()", b"f(k=1)")


def test_new_import_leaves_cookie_and_interpreter_line_at_the_top() -> None:
    """An import never comes above the lines that must be the first."""
    data = "#!/usr/bin/env python\n# -*- coding: latin-1 -*-\nfor ä in b: c\n".encode("latin-1")
    expected = "#!/usr/bin/env python\n# -*- coding: latin-1 -*-\nimport os\nw = os.open()\nwith w:\n    for ä in b: c\n"
    assert fixed(data, LOOP).after == expected.encode("latin-1")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is newer than this Python")
def test_f85_newest_syntax_is_read() -> None:
    """Type parameters and f-strings in f-strings are no obstacle to an edit beside them."""
    text = "type A[T] = list[T]\ndef g[T](x: T) -> T:\n    return f(f'{x + f'{x!r}'}')\n"
    assert fixed(text, ARGUMENT).after.decode() == text.replace("}')", "}', k=1)")


def test_f85_new_syntax_is_edited() -> None:
    """Pattern matching, assignment expressions and nested f-strings are read and written as they are."""
    text = (
        "def g(cmd, n, /, *, z):\n    match cmd:\n        case {'n': int(k)} if (m := k * 2) > 3:\n            return f(m)\n"
        "        case [a, *rest]:\n            return f(len(rest))\n    print(f\"{n:.{n}f} {f'{n!r:>{n}}'}\", f(*a, **b))\n"
    )
    expected = text.replace("f(m)", "f(m, k=1)").replace("f(len(rest))", "f(len(rest), k=1)").replace("f(*a, **b)", "f(*a, k=1, **b)")
    assert fixed(text, ARGUMENT).after.decode() == expected


def test_format_changes_only_what_the_policy_says() -> None:
    """The engine formats after the last round, with the target's settings."""
    text = "x  = 1\ny=f(2)\n"
    assert fixed(text, ARGUMENT, format="auto").after == b"x  = 1\ny = f(2, k=1)\n"
    assert fixed(text, ARGUMENT, format="file").after == b"x = 1\ny = f(2, k=1)\n"
    assert fixed(text, ARGUMENT, format="off").after == b"x  = 1\ny=f(2, k=1)\n"


@pytest.mark.parametrize("format", ["off", "auto", "changed", "file"])
def test_second_run_is_quiet(format: str) -> None:
    """What was changed needs no change any more."""
    text = "for a in b:\n    g(a); f(a)\n    x = f(a,\n        2)\n"
    first = fixed(text, format=format)
    assert first.outcome is Outcome.CHANGED
    assert fixed(first.after, format=format) == Result("train.py", Outcome.CLEAN, first.after, first.after)
