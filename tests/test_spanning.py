"""Findings that span files: taken in all of them or in none, in an order that has nothing to do with discovery."""

from __future__ import annotations

import ast
import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.editing import transform
from torchfix.edits import AddImport, AddParameter, Edit, Elsewhere, Replace, SetArgument, by_file
from torchfix.engine import EngineSettings, advance
from torchfix.facts import Facts
from torchfix.facts.project.project import Project
from torchfix.result import Note, Outcome, Place, Result
from torchfix.spanning import Answer, Grounds, Neighbour, settle
from torchfix.testing import check_program, run_on_program
from torchfix.transform import Effect, Finding, Risk, Selected, Transform


def find_parameter(facts: Facts) -> Iterator[Finding]:
    """Functions named ``toy...`` without a parameter ``k``: it is added, and every caller of the project hands it on."""
    for function in facts.tree.functions:
        if function.name.startswith("toy") and not any(item.arg == "k" for item in function.args.args):
            edits: list[tuple[str, Edit]] = [(facts.path, AddParameter(function, "k"))]
            for other, call in facts.callers_everywhere(function) or ():
                edits += [(other.path, SetArgument(call, "k", "1"))]
            own, elsewhere = by_file(facts.path, edits)
            yield Finding(function, "no k", own, elsewhere=elsewhere, notes=("mind the k",))


def find_argument(facts: Facts) -> Iterator[Finding]:
    """Calls of ``f`` without the argument ``late``."""
    for call in facts.tree.calls.get("f", ()):
        if not any(keyword.arg == "late" for keyword in call.keywords):
            yield Finding(call, "not late", (SetArgument(call, "late", "0"),))


TOY = transform(find_parameter, "toy")
LATE = transform(find_argument, "late")
ENGINE = "def toy(a):\n    return a\n"
MAIN = "from engine import toy\n\nf(toy(2))\n"
OTHER = "import engine\n\nx = engine.toy(3)\n"
PROGRAM = {"engine.py": ENGINE, "main.py": MAIN, "other.py": OTHER}


def look_at(
    texts: Mapping[str, str],
    rules: Sequence[Transform] = (TOY,),
    *,
    order: Sequence[str] = (),
    ignored: Mapping[str, frozenset[str]] | None = None,
    risk: Risk = Risk.BEHAVIOR,
    within: Sequence[str] = (),
) -> dict[str, Result]:
    """What becomes of a program's files, everything that crosses processes pickled on its way."""
    data = {path: text.encode() for path, text in texts.items()}
    selected = [Selected(rule) for rule in rules]

    def look(names: Sequence[str], grounds: Grounds) -> dict[str, Answer]:
        plain: Grounds = pickle.loads(pickle.dumps(grounds))
        project = Project("", data.get, tuple(data)).reading(plain.texts)
        settings = EngineSettings(risk, "off")
        answers = {name: advance(name, data[name], project, _running(selected, name, ignored or {}), settings, plain) for name in names}
        loaded: dict[str, Answer] = pickle.loads(pickle.dumps(answers))
        return loaded

    named = list(order or within or data)
    grounds = Grounds({path: Neighbour(path, (ignored or {}).get(path, frozenset())) for path in named})
    return settle(look(named, Grounds()), grounds, look)


def _running(selected: Sequence[Selected], name: str, ignored: Mapping[str, frozenset[str]]) -> list[Selected]:
    return [chosen for chosen in selected if chosen.transform.name not in ignored.get(name, frozenset())]


def texts_of(results: Mapping[str, Result]) -> dict[str, str]:
    return {path: result.after.decode() for path, result in results.items()}


def fixed(results: Mapping[str, Result]) -> list[Note]:
    return [note for path in sorted(results) for note in results[path].notes if note.outcome == "fixed"]


def held(results: Mapping[str, Result]) -> list[str]:
    """The reasons of held findings, with their words."""
    reasons = (note.reason for path in sorted(results) for note in results[path].notes)
    return [f"{reason.code}: {reason.text}" for reason in reasons if reason is not None]


def test_a_program_without_such_findings_is_looked_at_once() -> None:
    """Nothing is asked again, and every result is what the first look gave."""
    result = Result("a.py", Outcome.CLEAN)

    def never(names: Sequence[str], grounds: Grounds) -> dict[str, Answer]:
        raise AssertionError

    assert settle({"a.py": result}, Grounds({}), never) == {"a.py": result}


def test_a_finding_changes_all_of_its_files() -> None:
    """The function gets its parameter and every caller in the project hands it on; it is told once, where it stands."""
    results = look_at(PROGRAM)

    assert texts_of(results) == {
        "engine.py": "def toy(a, k):\n    return a\n",
        "main.py": "from engine import toy\n\nf(toy(2, k=1))\n",
        "other.py": "import engine\n\nx = engine.toy(3, k=1)\n",
    }
    (note,) = fixed(results)
    assert (note.line, note.column, note.message, note.notes) == (1, 0, "no k", ("mind the k",))
    assert note.elsewhere == (Place("main.py", 3, 2, 3, 8), Place("other.py", 3, 4, 3, 17))
    assert results["main.py"].outcome is Outcome.CHANGED
    assert results["main.py"].notes == ()


def test_the_order_of_the_files_has_no_meaning() -> None:
    """Whatever file is named first, the results are the same."""
    texts = {**PROGRAM, "second.py": "from engine import toy\n\n\ndef toy_two(b):\n    return toy(b)\n\n\nf(toy_two(1))\n"}
    expected = look_at(texts, (TOY, LATE))

    for order in itertools.permutations(texts):
        assert look_at(texts, (LATE, TOY), order=order) == expected
    assert len([note for note in fixed(expected) if note.rule == "toy"]) == 2


def test_findings_of_other_rules_are_made_on_top() -> None:
    """A finding of one file is taken on the new text, and its note stands at the author's place."""
    results = look_at({**PROGRAM, "main.py": "from engine import toy\n\n\nf(toy(2)); g()\nf(3)\n"}, (TOY, LATE))

    assert results["main.py"].after.decode() == "from engine import toy\n\n\nf(toy(2, k=1), late=0); g()\nf(3, late=0)\n"
    assert [(note.rule, note.line, note.column, note.end_column) for note in results["main.py"].notes] == [
        ("late", 4, 0, 9),
        ("late", 5, 0, 4),
    ]


def test_two_findings_that_share_a_file_are_taken_one_after_the_other() -> None:
    """Both are made, each on the text that the other left."""
    texts = {
        "a.py": "def toy_a(a):\n    pass\n",
        "b.py": "def toy_b(a):\n    pass\n",
        "main.py": "from a import toy_a\nfrom b import toy_b\n\ntoy_a(toy_b(1))\n",
    }

    results = look_at(texts)

    assert results["main.py"].after.decode().endswith("toy_a(toy_b(1, k=1), k=1)\n")
    assert [note.elsewhere for note in fixed(results)] == [(Place("main.py", 4, 0, 4, 15),), (Place("main.py", 4, 6, 4, 14),)]


def test_findings_of_one_file_that_say_the_same_elsewhere_share_it() -> None:
    """What two of them change alike in another file is changed once, and each names it."""

    def find(facts: Facts) -> Iterator[Finding]:
        other = facts.project.file("other.py")
        for call in facts.tree.calls.get("g", ()):
            assert other is not None
            node = other.tree.calls["h"][0]
            yield Finding(call, "g", (Replace(call, "i()"),), elsewhere=(Elsewhere("other.py", (SetArgument(node, "k", "1"),)),))

    results = look_at({"a.py": "g()\ng()\n", "other.py": "h()\n"}, (transform(find),))

    assert texts_of(results) == {"a.py": "i()\ni()\n", "other.py": "h(k=1)\n"}
    assert [(note.line, note.elsewhere) for note in fixed(results)] == [(line, (Place("other.py", 1, 0, 1, 3),)) for line in (1, 2)]


def find_chain(facts: Facts) -> Iterator[Finding]:
    """First a word in this file, then what spans files: seen only once the first change was made."""
    for node in facts.tree.names.get("first", ()):
        yield Finding(node, "first", (Replace(node, "second"),))
    for node in facts.tree.names.get("second", ()):
        other = facts.project.file("other.py")
        assert other is not None
        call = other.tree.calls["g"][0]
        yield Finding(node, "second", (Replace(node, "third"),), elsewhere=(Elsewhere("other.py", (SetArgument(call, "k", "1"),)),))


def test_what_is_seen_only_in_a_later_round_is_taken_too() -> None:
    """The changes of one file that came before it stay, and are told once each."""
    results = look_at({"a.py": "x = first\n", "other.py": "g()\n"}, (transform(find_chain, "chain"),))

    assert texts_of(results) == {"a.py": "x = third\n", "other.py": "g(k=1)\n"}
    assert [note.message for note in fixed(results)] == ["first"]
    assert [place.path for note in fixed(results) for place in note.elsewhere] == ["other.py"]


def find_endless(facts: Facts) -> Iterator[Finding]:
    """Every look wants one argument more in the other file."""
    for call in facts.tree.calls.get("g", ()):
        other = facts.project.file("other.py")
        assert other is not None
        node = other.tree.calls["h"][0]
        yield Finding(call, "more", (Replace(call, "g(1)"),), elsewhere=(Elsewhere("other.py", (Replace(node, "h(2)"),)),))


def test_what_never_becomes_quiet_is_undone_everywhere() -> None:
    """The rule is named, and both files keep their text."""
    results = look_at({"a.py": "g()\n", "other.py": "h()\n"}, (transform(find_endless, "endless"),))

    assert texts_of(results) == {"a.py": "g()\n", "other.py": "h()\n"}
    assert not fixed(results)
    assert held(results) == ["other-file-failed: a.py must change too, and cannot: endless changes the same place again and again"]


def test_a_file_outside_the_run_holds_the_finding() -> None:
    """What the run was not given is not changed, and neither is the rest."""
    results = look_at(PROGRAM, within=["engine.py", "main.py"])

    assert {result.outcome for result in results.values()} == {Outcome.CLEAN}
    assert held(results) == ["other-file-outside: other.py must change too, and is not among the files of this run"]


def test_a_file_on_which_the_rule_does_not_run_holds_the_finding() -> None:
    """Where the configuration forbids the rule in one file, none of them changes."""
    results = look_at(PROGRAM, ignored={"main.py": frozenset({"toy"})})

    assert {result.outcome for result in results.values()} == {Outcome.CLEAN}
    assert held(results) == ["other-file-ignored: main.py must change too, and this rule does not run on it"]


@pytest.mark.parametrize(
    ("main", "line"),
    [
        pytest.param("from engine import toy\n\nf(toy(2))  # torchfix: ignore\n", 3, id="on the line"),
        pytest.param("from engine import toy\n\n# torchfix: ignore[toy]\nf(toy(2))\n", 3, id="above the line"),
        pytest.param("# torchfix: ignore-file[toys]\nfrom engine import toy\n\nf(toy(2))\n", 1, id="for the file"),
    ],
)
def test_a_comment_in_another_file_holds_the_finding(main: str, line: int) -> None:
    """A user's no counts in every file that would change, and is found by its line."""
    results = look_at({**PROGRAM, "main.py": main})

    assert {result.outcome for result in results.values()} == {Outcome.CLEAN}
    assert held(results) == [f"other-file-suppressed: main.py must change too, and a comment in its line {line} forbids it"]
    (note,) = results["engine.py"].notes
    assert [(place.path, place.line) for place in note.elsewhere] == [("main.py", line)]
    assert results["main.py"].unused_suppressions == ()


def test_a_comment_in_its_own_file_suppresses_the_finding() -> None:
    """As for any other finding."""
    results = look_at({**PROGRAM, "engine.py": "def toy(a):  # torchfix: ignore\n    return a\n"})

    assert {result.outcome for result in results.values()} == {Outcome.CLEAN}
    assert [note.outcome for result in results.values() for note in result.notes] == ["suppressed"]


def test_a_script_without_a_python_name_changes_alone() -> None:
    """What is written together must be told from what a journal may never name."""

    def find(facts: Facts) -> Iterator[Finding]:
        other = facts.project.file("other.py")
        for call in facts.tree.calls.get("g", ()):
            assert other is not None
            yield Finding(call, "g", elsewhere=(Elsewhere("other.py", (Replace(other.tree.calls["h"][0], "i()"),)),))

    results = look_at({"tool": "g()\n", "other.py": "h()\n"}, (transform(find),))

    assert held(results) == ["no-python-name: only files named .py change together with others"]


def test_a_comment_about_another_rule_forbids_nothing() -> None:
    """Only the rule that is named is held."""
    results = look_at({**PROGRAM, "main.py": "from engine import toy\n\nf(toy(2))  # torchfix: ignore[other]\n"})

    assert results["main.py"].outcome is Outcome.CHANGED
    assert results["main.py"].unused_suppressions == ((3, "# torchfix: ignore[other]"),)


def test_a_risk_that_is_not_allowed_holds_the_finding() -> None:
    """The risk is that of the whole finding."""

    def risky(facts: Facts) -> Iterator[Finding]:
        return (replace(finding, effects=frozenset({Effect.RNG})) for finding in find_parameter(facts))

    results = look_at(PROGRAM, (transform(risky, "toy"),), risk=Risk.EXACT)

    assert {result.outcome for result in results.values()} == {Outcome.CLEAN}
    assert held(results) == ["risk: its risk is numeric and the run allows exact"]


def test_what_cannot_be_written_in_another_file_holds_the_finding() -> None:
    """An f-string in a caller keeps all of it, and the reason names the file."""
    results = look_at({**PROGRAM, "other.py": "import engine\n\nx = f'{engine.toy(3)}'\n"})

    assert {result.outcome for result in results.values()} == {Outcome.CLEAN}
    assert held(results) == ["inside-f-string: the code stands inside an f-string (in other.py)"]


def test_what_does_not_fit_the_encoding_of_another_file_holds_the_finding() -> None:
    """The text of the other file is encoded before anything is promised."""

    def find(facts: Facts) -> Iterator[Finding]:
        other = facts.project.file("other.py")
        for call in facts.tree.calls.get("g", ()):
            assert other is not None
            node = other.tree.calls["h"][0]
            yield Finding(call, "é", (Replace(call, "i()"),), elsewhere=(Elsewhere("other.py", (Replace(node, "'é'"),)),))

    results = look_at({"a.py": "g()\n", "other.py": "# coding: ascii\nh()\n"}, (transform(find, "toy"),))

    assert held(results) == ["encoding: the new text does not fit the encoding ascii of other.py"]


def test_a_file_that_fails_by_another_rule_undoes_the_finding_everywhere() -> None:
    """All that it spans keeps its text, and what is right by itself is done."""

    def fault(facts: Facts) -> Iterator[Finding]:
        if facts.path == "other.py":
            raise KeyError("lost")
        yield from ()

    results = look_at(PROGRAM, (TOY, LATE, transform(fault, "fault")))

    assert results["other.py"].outcome is Outcome.FAILED
    assert results["engine.py"].outcome is Outcome.CLEAN
    assert results["main.py"].after.decode() == "from engine import toy\n\nf(toy(2), late=0)\n"
    assert held(results)[0].startswith("other-file-failed: other.py must change too, and cannot: an error of torchfix itself")


def test_a_fault_that_shows_only_after_the_change_undoes_it_everywhere() -> None:
    """A file that fails on its new text is taken back together with all that changed with it."""

    def fault(facts: Facts) -> Iterator[Finding]:
        if "k=1" in facts.source.text and facts.path == "main.py":
            raise KeyError("lost")
        yield from ()

    results = look_at(PROGRAM, (TOY, transform(fault, "fault")))

    assert texts_of(results) == PROGRAM
    assert {result.outcome for result in results.values()} == {Outcome.CLEAN}
    assert held(results)[0].startswith("other-file-failed: main.py must change too")


def test_a_wrong_text_of_another_file_is_never_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of a finding is proved against its own tree."""
    from torchfix import stages
    from torchfix.draft import Draft

    apply = stages.apply
    monkeypatch.setattr(stages, "apply", lambda source, edits: Draft.new("x = 9\n") if "main" in source.path else apply(source, edits))

    results = look_at(PROGRAM)

    assert texts_of(results) == PROGRAM
    assert results["engine.py"].reason is not None
    assert results["engine.py"].reason.code == "proof"


def test_imports_of_another_file_are_placed_there() -> None:
    """An import edit needs no node, and goes where that file's imports stand."""

    def find(facts: Facts) -> Iterator[Finding]:
        other = facts.project.file("other.py")
        for call in facts.tree.calls.get("g", ()):
            assert other is not None
            edits = (AddImport("os"), Replace(other.tree.calls["h"][0], "os.getcwd()"))
            yield Finding(call, "g", (Replace(call, "i()"),), elsewhere=(Elsewhere("other.py", edits),))

    after = {"a.py": "i()\n", "other.py": "import os\nimport sys\n\nos.getcwd()\n"}
    (note,) = check_program(transform(find, "toy"), {"a.py": "g()\n", "other.py": "import sys\n\nh()\n"}, after)
    assert note.elsewhere == (Place("other.py", 3, 0, 3, 3),)


def test_a_finding_may_change_other_files_only() -> None:
    """It stands in one file, and that one stays as it is."""

    def find(facts: Facts) -> Iterator[Finding]:
        other = facts.project.file("other.py")
        for call in facts.tree.calls.get("g", ()):
            assert other is not None
            for node in other.tree.calls["h"]:
                yield Finding(call, "g", elsewhere=(Elsewhere("other.py", (Replace(node, "i()"),)),))

    results = run_on_program(transform(find, "toy"), {"a.py": "g()\n", "other.py": "h()\n"})
    assert texts_of(results) == {"a.py": "g()\n", "other.py": "i()\n"}
    assert results["a.py"].outcome is Outcome.CLEAN
    assert [note.outcome for note in results["a.py"].notes] == ["fixed"]


def test_a_file_that_the_project_lacks_is_a_fault_of_the_rule() -> None:
    """It fails the file in which the finding stands, as any other fault."""

    def find(facts: Facts) -> Iterator[Finding]:
        yield Finding(facts.source.tree.body[0], "g", elsewhere=(Elsewhere("lost.py", (AddImport("os"),)),))

    def look(names: Sequence[str], grounds: Grounds) -> dict[str, Answer]:
        return {"a.py": advance("a.py", b"x = 1\n", Project.empty(), [Selected(transform(find))], EngineSettings(), grounds)}

    (result,) = settle(look(["a.py"], Grounds()), Grounds({"a.py": Neighbour("a.py")}), look).values()
    assert result.reason is not None
    assert "a finding changes lost.py, which the project does not have" in result.reason.text


def test_edits_are_told_apart_by_their_files() -> None:
    """A finding's own edits keep their order; other files come by path."""
    node = ast.parse("f()").body[0]
    first, second, third = (Replace(node, word) for word in "abc")

    own, elsewhere = by_file("m.py", [("z.py", first), ("m.py", second), ("b.py", third), ("z.py", second)])

    assert own == (second,)
    assert [(part.path, part.edits) for part in elsewhere] == [("b.py", (third,)), ("z.py", (first, second))]
