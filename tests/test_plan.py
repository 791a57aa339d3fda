"""Which findings go together in one round, and why the others wait or are held."""

from __future__ import annotations

import ast
import random
import time
from collections.abc import Callable

import pytest

from tests.editing import call, edited, expression, finding, function, read, statement
from torchfix.edits import AddImport, AddParameter, Edit, InsertAfter, InsertBefore, Remove, RemoveArgument, Replace, SetArgument, Wrap
from torchfix.plan import COMMENT, IN_F_STRING, SHARED_LINE, WAITS, plan
from torchfix.source import SourceFile
from torchfix.transform import Held

SOURCE = read(
    """
    x = f(a, g(b), k=h(c))
    for i in y:
        one(i)
        two(i)
        three(i)
    def function(p): return p
    """
)


def reasons(source: SourceFile, *findings: tuple[Edit, ...]) -> list[Held | None]:
    """What becomes of findings with these edits, in canonical order: None for an accepted one."""
    made = [finding(SOURCE.tree.body[0], *edits, message=str(index)) for index, edits in enumerate(findings)]
    planned = plan(made, source)
    deferred = {item.finding.message: item.reason for item in planned.deferred}
    return [deferred.get(str(index)) for index in range(len(findings))]


F, G, H = (call(SOURCE, name) for name in "fgh")
ONE, TWO, THREE = (statement(SOURCE, name) for name in ("one", "two", "three"))
LOOP = statement(SOURCE, "for")
FUNCTION = function(SOURCE, "function")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(SetArgument(F, "m", "1"), SetArgument(F, "n", "1"), id="arguments of different names"),
        pytest.param(SetArgument(F, "m", "1"), SetArgument(F, "m", "1"), id="the same argument twice"),
        pytest.param(SetArgument(F, "m", "1"), RemoveArgument(F, "k"), id="one comes and another goes"),
        pytest.param(RemoveArgument(F, 0), RemoveArgument(F, 0), id="the same removal twice"),
        pytest.param(SetArgument(F, "m", "1"), SetArgument(G, "m", "2"), id="a call in a call"),
        pytest.param(Replace(F, "z($g)", {"g": G}), SetArgument(G, "m", "1"), id="an edit inside a part"),
        pytest.param(Replace(F, "z($f)", {"f": F}), SetArgument(G, "m", "1"), id="an edit inside the whole as a part"),
        pytest.param(Wrap(ONE, TWO, "with a:"), Wrap(TWO, TWO, "with b:"), id="a wrap in a wrap"),
        pytest.param(Wrap(ONE, ONE, "with a:"), Wrap(TWO, THREE, "with b:"), id="wraps beside each other"),
        pytest.param(Wrap(ONE, TWO, "with a:"), Wrap(ONE, TWO, "with b:"), id="wraps of the same lines"),
        pytest.param(Wrap(LOOP, LOOP, "with a:"), Wrap(ONE, TWO, "with b:"), id="wraps of different blocks"),
        pytest.param(Wrap(ONE, TWO, "with a:"), InsertBefore(ONE, "z()"), id="an insertion at the edge of a wrap"),
        pytest.param(Remove(ONE), InsertAfter(ONE, "z()"), id="an insertion beside a removal"),
        pytest.param(Remove(TWO), Wrap(ONE, THREE, "with a:"), id="a removal inside a wrap"),
        pytest.param(InsertBefore(ONE, "y()"), InsertBefore(ONE, "z()"), id="two insertions"),
        pytest.param(Replace(ONE, "z()\ny()"), InsertBefore(ONE, "z()"), id="an insertion beside a replacement"),
        pytest.param(AddParameter(FUNCTION, "q=1"), AddParameter(FUNCTION, "r=1"), id="two parameters"),
        pytest.param(AddImport("os"), AddImport("os"), id="imports"),
    ],
)
def test_edits_that_go_together(first: Edit, second: Edit) -> None:
    """Both findings are taken, and what they say together can be written and proved."""
    assert reasons(SOURCE, (first,), (second,)) == [None, None]
    made = [finding(SOURCE.tree.body[0], edit, message=str(index)) for index, edit in enumerate((first, second))]
    edited(SOURCE, plan(made, SOURCE).edits)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(SetArgument(F, "m", "1"), SetArgument(F, "m", "2"), id="two values of one argument"),
        pytest.param(SetArgument(F, "k", "1"), SetArgument(H, "m", "2"), id="an edit in a value that is replaced"),
        pytest.param(SetArgument(F, "k", "1"), RemoveArgument(F, "k"), id="a value for what goes"),
        pytest.param(RemoveArgument(F, 1), SetArgument(G, "m", "2"), id="an edit in an argument that goes"),
        pytest.param(Replace(F, "z()"), SetArgument(F, "m", "1"), id="an edit of what is replaced"),
        pytest.param(Replace(F, "z($a)", {"a": F.args[0]}), SetArgument(G, "m", "1"), id="an edit outside the parts"),
        pytest.param(Replace(F, "z()", {"g": G}), SetArgument(G, "m", "1"), id="an edit in a part without a hole"),
        pytest.param(Replace(F, "z($a)", {"a": F.args[0]}), Replace(F, "y($a)", {"a": F.args[0]}), id="two replacements"),
        pytest.param(Wrap(ONE, TWO, "with a:"), Wrap(TWO, THREE, "with b:"), id="wraps that overlap"),
        pytest.param(Wrap(ONE, TWO, "with a:"), Remove(ONE), id="a wrap from a statement that goes"),
        pytest.param(Remove(LOOP), SetArgument(call(SOURCE, "one"), "m", "1"), id="an edit in a statement that goes"),
        pytest.param(Remove(LOOP), InsertBefore(ONE, "z()"), id="an insertion in a statement that goes"),
        pytest.param(Replace(ONE, "z()"), Remove(ONE), id="a replacement of what goes"),
        pytest.param(AddParameter(FUNCTION, "q=1"), AddParameter(FUNCTION, "q=2"), id="a parameter with two defaults"),
    ],
)
def test_edits_of_which_one_must_wait(first: Edit, second: Edit) -> None:
    """The later finding waits, whichever of the two it is, and so it does where one finding holds both."""
    assert reasons(SOURCE, (first,), (second,)) == [None, WAITS]
    assert reasons(SOURCE, (second,), (first,)) == [None, WAITS]
    assert reasons(SOURCE, (first, second)) == [WAITS]


def test_finding_is_taken_whole_or_not_at_all() -> None:
    """One edit in conflict keeps all edits of its finding back."""
    findings = (SetArgument(F, "m", "1"),), (SetArgument(F, "m", "2"), SetArgument(G, "m", "2"))
    assert reasons(SOURCE, *findings) == [None, WAITS]
    planned = plan([finding(F, *edits, message=str(index)) for index, edits in enumerate(findings)], SOURCE)
    assert planned.edits == findings[0]


def test_edits_that_say_the_same_are_made_once() -> None:
    """What two findings both ask for is written once."""
    made = [finding(F, InsertBefore(LOOP, "z()"), SetArgument(F, "m", "1"), message=str(index)) for index in range(2)]
    planned = plan(made, SOURCE)
    assert len(planned.accepted) == 2
    assert edited(SOURCE, planned.edits).count("z()") == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param("b; a()", "a", id="behind a semicolon"),
        pytest.param("a(); b", "a", id="before a semicolon"),
        pytest.param("if x: a()", "a", id="suite of one line"),
        pytest.param("class A: a()", "a", id="class of one line"),
        pytest.param("b; \\\na()", "a", id="continued line"),
        pytest.param("if x:\n    b()\nelif a:\n    c()\n", "elif", id="elif"),
    ],
)
@pytest.mark.parametrize("kind", ["before", "after", "remove", "wrap", "replace"])
def test_statement_without_its_own_lines_is_held(text: str, name: str, kind: str) -> None:
    """No line is given to, or taken from, a statement that shares its own."""
    source = read(text)
    at = statement(source, name)
    edits: dict[str, Edit] = {
        "before": InsertBefore(at, "z()"),
        "after": InsertAfter(at, "z()"),
        "remove": Remove(at),
        "wrap": Wrap(at, at, "with z:"),
        "replace": Replace(at, "z()\ny()"),
    }
    assert reasons(source, (edits[kind],)) == [SHARED_LINE]


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda source: SetArgument(call(source, "f"), "k", "1"), id="argument"),
        pytest.param(lambda source: Replace(expression(source, "g(f(b))"), "z"), id="expression"),
        pytest.param(lambda source: Replace(statement(source, "g"), "z($x)", {"x": call(source, "f")}), id="one by one statement"),
    ],
)
@pytest.mark.parametrize("text", ["a; g(f(b)); c", "if x: g(f(b))"])
def test_edits_inside_a_shared_line_are_taken(text: str, edit: Callable[[SourceFile], Edit]) -> None:
    """What stays inside a statement needs no line of its own."""
    source = read(text)
    made = edit(source)
    assert reasons(source, (made,)) == [None]
    edited(source, [made])


def test_f85_code_in_an_f_string_is_held() -> None:
    """A place inside an f-string is left alone, a place that holds one is not."""
    source = read("""print(f"{torch.zeros(n).cuda().item():.{n}f} {f'{n!r:>{n}}'}")\n""")
    inner = next(node for node in ast.walk(source.tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    assert reasons(source, (SetArgument(inner, "k", "1"),)) == [IN_F_STRING]
    assert reasons(source, (SetArgument(call(source, "print"), "k", "1"),)) == [None]


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        pytest.param("x = (f(a)  # y\n.g())", lambda s: Replace(call(s, "f(a)  # y\n.g"), "$x", {"x": call(s, "f")}), id="between"),
        pytest.param("x = f(k=[  # why\n  1])", lambda s: SetArgument(call(s, "f"), "k", "2"), id="in a value that is replaced"),
        pytest.param("x = f(k=[  # why\n  1])", lambda s: RemoveArgument(call(s, "f"), "k"), id="in a value that goes"),
        pytest.param("x = f(a, ((  # why\n  1)))", lambda s: RemoveArgument(call(s, "f"), 1), id="in parentheses around it"),
        pytest.param("x = f(k=(  # why\n  1))", lambda s: SetArgument(call(s, "f"), "k", "2"), id="in parentheses around a value"),
        pytest.param("x = f(  # why\n  1)", lambda s: Replace(s.tree.body[0], "y = 2"), id="in a statement"),
        pytest.param("@a  # why\ndef f(): pass", lambda s: Replace(s.tree.body[0], "f = 2"), id="behind a decorator"),
    ],
)
def test_comment_that_would_be_lost_holds_the_edit(text: str, edit: Callable[[SourceFile], Edit]) -> None:
    """Code with a comment in it is not replaced where the comment has no place in the new code."""
    source = read(text)
    assert reasons(source, (edit(source),)) == [COMMENT]


def test_comment_inside_a_part_holds_nothing() -> None:
    """A comment that lives on in a part is no obstacle, and neither is a number sign in a string."""
    source = read("x = f(g(a,  # why\n  b), '#').h\n")
    whole = expression(source, "f(g(a,  # why\n  b), '#').h")
    assert reasons(source, (Replace(whole, "$x", {"x": call(source, "g")}),)) == [None]


def test_order_of_discovery_has_no_meaning() -> None:
    """Whatever the order in which findings come, the same are taken and the same text is written."""
    source = read("x = f(a)\nfor i in y:\n    g(i).cuda()\n    h(i)\n")
    f, g, h = (call(source, name) for name in "fgh")
    cuda, loop, last = call(source, "g(i).cuda"), statement(source, "for"), statement(source, "h")
    findings = [
        finding(f, SetArgument(f, "m", "1"), transform="b"),
        finding(f, SetArgument(f, "n", "1"), AddImport("os"), transform="a"),
        finding(f, SetArgument(f, "m", "2"), transform="c"),
        finding(cuda, Replace(cuda, "$x", {"x": g}), SetArgument(g, "device", "d"), transform="b"),
        finding(loop, Wrap(loop, loop, "with a:"), transform="a"),
        finding(loop, Wrap(loop, loop, "with b:"), InsertBefore(loop, "z()"), transform="b"),
        finding(h, Wrap(last, last, "if h:"), AddImport("re"), transform="b"),
        finding(h, SetArgument(h, "k", "1"), InsertAfter(last, "q()"), transform="c"),
    ]
    chance = random.Random(3)
    texts = set()
    for _ in range(20):
        chance.shuffle(findings)
        texts.add(edited(source, plan(findings, source).edits))
    assert texts == {
        "import os\nimport re\nx = f(a, n=1, m=1)\nz()\nwith a:\n    with b:\n        for i in y:\n"
        "            g(i, device=d)\n            if h:\n                h(i, k=1)\n            q()\n"
    }


def test_node_of_another_tree_is_refused() -> None:
    """An edit that names a node of another file is a mistake of its transform, not a change."""
    with pytest.raises(ValueError, match="not in the file's tree"):
        plan([finding(F, SetArgument(F, "m", "1"))], read("f()"))


def test_many_findings_are_planned_in_little_time() -> None:
    """The time for a file full of findings grows with their number, not with its square."""
    source = read("".join(f"x{number} = f(a, g({number}).cuda())\n" for number in range(1500)))
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    findings = [finding(node, SetArgument(node, "k", "1")) for node in calls]
    start = time.process_time()
    assert len(plan(findings, source).accepted) == len(findings)
    assert time.process_time() - start < 5
