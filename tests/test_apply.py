"""All edits of a plan into the text: what is untouched stays, what is new looks as if its author had written it."""

from __future__ import annotations

import ast
import itertools

import pytest

from tests.editing import call, edited, expression, function, read, statement
from torchfix.apply import apply
from torchfix.edits import AddDecorator, AddParameter, InsertAfter, InsertBefore, Remove, RemoveArgument, Replace, SetArgument, Wrap
from torchfix.source import SourceFile


def set_argument(text: str, name: str = "k", value: str = "v", of: str = "f") -> str:
    """The snippet after ``of`` was given the argument."""
    source = read(text)
    return edited(source, [SetArgument(call(source, of), name, value)])


def test_no_edit_leaves_every_byte() -> None:
    """Without edits the text comes back as it was, whatever it holds."""
    text = "\x0cif x:\r\n\ty = 1 \t\r z = '''a\n'''  \n\n  "
    source = SourceFile("train.py", text.replace("\r z", "\rz"))
    assert apply(source, []).text == source.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("f()", "f(k=v)", id="no argument yet"),
        pytest.param("f( )", "f( k=v)", id="blank in the brackets"),
        pytest.param("f(a)", "f(a, k=v)", id="one argument"),
        pytest.param("f(a, b=1)", "f(a, b=1, k=v)", id="one line"),
        pytest.param("f(a, b=1,)", "f(a, b=1, k=v,)", id="trailing comma on one line"),
        pytest.param("f(a,b=1)", "f(a,b=1,k=v)", id="commas without blanks"),
        pytest.param("f(a, b = 1)", "f(a, b = 1, k = v)", id="equal signs with blanks"),
        pytest.param("f(a, b = 1, c=2)", "f(a, b = 1, c=2, k=v)", id="equal signs of both kinds"),
        pytest.param("f(a, k=1, b=2)", "f(a, k=v, b=2)", id="it has the argument"),
        pytest.param("f(a, k = (1), b=2)", "f(a, k = v, b=2)", id="it has the argument in parentheses"),
        pytest.param("f(a, **kw)", "f(a, k=v, **kw)", id="before keywords of a dictionary"),
        pytest.param("f(**kw)", "f(k=v, **kw)", id="a dictionary alone"),
        pytest.param("f(**kw, b=1)", "f(**kw, b=1, k=v)", id="a dictionary in the middle"),
        pytest.param("f(*args, b=1, **kw, **kv)", "f(*args, b=1, k=v, **kw, **kv)", id="two dictionaries"),
        pytest.param("f(x for x in y)", "f((x for x in y), k=v)", id="a generator without parentheses"),
        pytest.param("f((x for x in y))", "f((x for x in y), k=v)", id="a generator with parentheses"),
        pytest.param("a = f(b)(c).d", "a = f(b, k=v)(c).d", id="in a chain"),
        pytest.param("a; f(b); c", "a; f(b, k=v); c", id="between other statements on the line"),
        pytest.param("if x: f(b)", "if x: f(b, k=v)", id="in a suite of one line"),
        pytest.param("x = f(b)  # type: Foo", "x = f(b, k=v)  # type: Foo", id="with a type comment"),
        pytest.param("ä = f('ü', b)", "ä = f('ü', b, k=v)", id="behind letters of several bytes"),
    ],
)
def test_argument_on_one_line(before: str, after: str) -> None:
    """A call on one line stays there and keeps its commas and blanks."""
    assert set_argument(before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            """
            f(a,
              b=1)
            """,
            """
            f(a,
              b=1,
              k=v)
            """,
            id="hand-aligned",
        ),
        pytest.param(
            """
            f(
                a,
                b=1,
            )
            """,
            """
            f(
                a,
                b=1,
                k=v,
            )
            """,
            id="one a line with trailing comma",
        ),
        pytest.param(
            """
            f(
                a,
                b=1
            )
            """,
            """
            f(
                a,
                b=1,
                k=v
            )
            """,
            id="one a line without trailing comma",
        ),
        pytest.param(
            """
            f(
                a  # the first
            )
            """,
            """
            f(
                a,  # the first
                k=v
            )
            """,
            id="comment of the only argument",
        ),
        pytest.param(
            """
            f(
                a,  # the first
                b=1,  # the second
                # c=2,
            )
            """,
            """
            f(
                a,  # the first
                b=1,  # the second
                # c=2,
                k=v,
            )
            """,
            id="comments stay with their arguments",
        ),
        pytest.param(
            """
            f(
                a, b=1
            )
            """,
            """
            f(
                a, b=1, k=v
            )
            """,
            id="all on one inner line",
        ),
        pytest.param(
            """
            f(
                g(1,
                  2),
                b=1, c=2)
            """,
            """
            f(
                g(1,
                  2),
                b=1, c=2,
                k=v)
            """,
            id="filled lines",
        ),
        pytest.param(
            """
            f(
                a,  # the first
                **kw  # the rest
            )
            """,
            """
            f(
                a,  # the first
                k=v,
                **kw  # the rest
            )
            """,
            id="before a dictionary",
        ),
        pytest.param(
            """
            f(
                a,
                b=1, **kw)
            """,
            """
            f(
                a,
                b=1,
                k=v, **kw)
            """,
            id="before a dictionary on the last line",
        ),
        pytest.param(
            """
            f(a, b,  # both
            )
            """,
            """
            f(a, b,  # both
                k=v,
            )
            """,
            id="a comment behind arguments of one line",
        ),
        pytest.param(
            """
            f(  # nothing yet
            )
            """,
            """
            f(  # nothing yet
                k=v
            )
            """,
            id="a comment and no argument",
        ),
        pytest.param(
            """
            x = (f(a)
                 .g())
            """,
            """
            x = (f(a, k=v)
                 .g())
            """,
            id="in a chain over lines",
        ),
    ],
)
def test_argument_over_several_lines(before: str, after: str) -> None:
    """A new argument goes where its author would have put it, and takes no comment along."""
    assert set_argument(before) == read(after).text


@pytest.mark.parametrize(
    ("before", "argument", "after"),
    [
        pytest.param("f(a)", 0, "f()", id="the only one"),
        pytest.param("f(a, b, k=1)", 0, "f(b, k=1)", id="the first"),
        pytest.param("f(a, b, k=1)", 1, "f(a, k=1)", id="one in the middle"),
        pytest.param("f(a, b, k=1)", "k", "f(a, b)", id="the last"),
        pytest.param("f(a, b, k=1,)", "k", "f(a, b,)", id="the last with trailing comma"),
        pytest.param("f(*a, k=1, **kw)", "k", "f(*a, **kw)", id="between stars"),
        pytest.param("f(a,\n  k=1)", "k", "f(a)", id="the last on its own line"),
        pytest.param("f(\n    a,\n    k=1,\n)", "k", "f(\n    a,\n)", id="the last of one a line"),
        pytest.param("f(\n    a,\n    k=1\n)", "k", "f(\n    a\n)", id="the last without comma"),
        pytest.param("f(\n    k=1,  # why\n    b=2,\n)", "k", "f(\n    # why\n    b=2,\n)", id="comment of the first"),
        pytest.param(
            "f(\n    a,  # one\n    k=1,  # why\n    # about b\n    b=2,\n)",
            "k",
            "f(\n    a,  # one\n    # why\n    # about b\n    b=2,\n)",
            id="comments around",
        ),
        pytest.param("f(\n    a,\n    k=1  # why\n)", "k", "f(\n    a\n    # why\n)", id="comment of the last"),
        pytest.param("f(a, k=1,  # why\n  b=2)", "k", "f(a,  # why\n  b=2)", id="comment behind one line"),
    ],
)
def test_removed_argument(before: str, argument: str | int, after: str) -> None:
    """An argument leaves with its comma; comments stay."""
    source = read(before)
    assert edited(source, [RemoveArgument(call(source, "f"), argument)]) == after


def test_edits_of_one_call_do_not_disturb_each_other() -> None:
    """Positions of removed arguments are those of the old call, in whatever order they are named."""
    source = read("f(a, b, c, k=1)")
    at = call(source, "f")
    edits = [RemoveArgument(at, 0), RemoveArgument(at, 2), SetArgument(at, "n", "2"), RemoveArgument(at, "k")]
    texts = {edited(source, list(order)) for order in itertools.permutations(edits)}
    assert texts == {"f(b, n=2)"}


@pytest.mark.parametrize(
    ("before", "node", "template", "part", "after"),
    [
        pytest.param("x = a.cuda()", "a.cuda()", "$p", "a", "x = a", id="a name"),
        pytest.param("x = (a + b).cuda()", "(a + b).cuda()", "f($p)", "a + b", "x = f(a + b)", id="no parentheses in brackets"),
        pytest.param("x = (a + b).cuda()", "(a + b).cuda()", "$p.to(d)", "a + b", "x = (a + b).to(d)", id="parentheses before a dot"),
        pytest.param("x = (a + b).cuda() * 2", "(a + b).cuda()", "$p", "a + b", "x = (a + b) * 2", id="parentheses outside"),
        pytest.param("x = (a * b).cuda() + 2", "(a * b).cuda()", "$p", "a * b", "x = a * b + 2", id="no parentheses outside"),
        pytest.param("x = f(y.n)", "y.n", "$p, 1", "y", "x = f((y, 1))", id="a tuple as an argument"),
        pytest.param("x = y.n", "y.n", "$p if q else r", "y", "x = y if q else r", id="a condition"),
        pytest.param("x = y.n[0]", "y.n", "$p if q else r", "y", "x = (y if q else r)[0]", id="a condition before a bracket"),
        pytest.param("x = f(lambda: 1)", "f(lambda: 1)", "g($p, 2)", "lambda: 1", "x = g(lambda: 1, 2)", id="a lambda in brackets"),
        pytest.param("x = f(lambda: 1)", "f(lambda: 1)", "$p or 2", "lambda: 1", "x = (lambda: 1) or 2", id="a lambda on the left"),
        pytest.param("x = f(-1)", "f(-1)", "$p ** 2", "-1", "x = (-1) ** 2", id="a sign before a power"),
        pytest.param("x = f(await y)", "f(await y)", "$p.z", "await y", "x = (await y).z", id="an await"),
        pytest.param("x = f(1)", "f(1)", "$p.real", "1", "x = (1).real", id="a number before a dot"),
        pytest.param("x = f(a +\n      b)", "f(a +\n      b)", "$p", "a +\n      b", "x = (a +\n      b)", id="line breaks need brackets"),
        pytest.param("f(a)[i] = 1", "f(a)", "$p", "a", "a[i] = 1", id="in a target"),
        pytest.param("x = f(  # why\n    a)", "a", "g($p)", "a", "x = f(  # why\n    g(a))", id="a comment outside"),
        pytest.param("x = f(g(a,  # y\n b)).c", "f(g(a,  # y\n b)).c", "$p", "g(a,  # y\n b)", "x = g(a,  # y\n b)", id="a comment inside"),
        pytest.param("x = f(a)", "f(a)", '"$q" % $p', "a", 'x = "$q" % a', id="a dollar that is no hole"),
        pytest.param("x = f(a, a)", "f(a, a)", "$p + $p", "a", "x = a + a", id="a hole twice"),
        pytest.param("f(x for x in y)", "(x for x in y)", "g($p)", "y", "f(g(y))", id="a generator in the brackets of a call"),
        pytest.param(
            "f(x for x in y)", "(x for x in y)", "$p, 1", "(x for x in y)", "f(((x for x in y), 1))", id="such a generator as a part"
        ),
        pytest.param("@f(a)\ndef g(): pass", "f(a)", "$p", "a", "@a\ndef g(): pass", id="a decorator"),
        pytest.param("x: f(a) = 1", "f(a)", "$p", "a", "x: a = 1", id="an annotation"),
        pytest.param("def g(x=f(a)): pass", "f(a)", "$p if q else r", "a", "def g(x=a if q else r): pass", id="a default"),
    ],
)
def test_replaced_expression(before: str, node: str, template: str, part: str, after: str) -> None:
    """Holes take the text of their parts, in parentheses only where it would be read otherwise."""
    source = read(before)
    edit = Replace(expression(source, node), template, {"p": expression(source, part)})
    assert edited(source, [edit]) == after


def test_edits_inside_parts_survive() -> None:
    """What a replaced expression keeps is kept with the edits made inside it, several levels deep."""
    source = read("x = torch.rand(2, f(3).cuda()).cuda()\n")
    outer, inner = expression(source, "torch.rand(2, f(3).cuda()).cuda()"), expression(source, "f(3).cuda()")
    made = call(source, "torch.rand")
    edits = [
        Replace(outer, "$made", {"made": made}),
        SetArgument(made, "device", '"cuda"'),
        Replace(inner, "$made.to(d)", {"made": call(source, "f")}),
        SetArgument(call(source, "f"), "k", "1"),
    ]
    assert edited(source, edits) == 'x = torch.rand(2, f(3, k=1).to(d), device="cuda")\n'


def test_part_may_be_the_replaced_expression_itself() -> None:
    """A value can be put into a call of something else, with the edits inside it."""
    source = read("x = f(g(a))\n")
    whole = expression(source, "f(g(a))")
    edits = [Replace(whole, "float($x)", {"x": whole}), SetArgument(call(source, "g"), "k", "1")]
    assert edited(source, edits) == "x = float(f(g(a, k=1)))\n"


@pytest.mark.parametrize(
    ("before", "template", "after"),
    [
        pytest.param("loss.backward()", "scaler.scale($x).backward()", "scaler.scale(loss).backward()", id="one by one"),
        pytest.param("if y: loss.backward()", "f($x)", "if y: f(loss)", id="in a suite of one line"),
        pytest.param("a; loss.backward(); b", "f($x)", "a; f(loss); b", id="on a shared line"),
        pytest.param("if y:\n  loss.backward()  # go", "a = $x\nf(a)", "if y:\n  a = loss\n  f(a)  # go", id="one by two"),
        pytest.param(
            "def g():\n\tif y:\n\t\tloss.backward()\n",
            "if a:\n    f($x)\nelse:\n    g()",
            "def g():\n\tif y:\n\t\tif a:\n\t\t\tf(loss)\n\t\telse:\n\t\t\tg()\n",
            id="by a block, with tabs",
        ),
    ],
)
def test_replaced_statement(before: str, template: str, after: str) -> None:
    """A statement gives way to others at its margin, in the file's own indentation."""
    source = read(before)
    edit = Replace(statement(source, "loss"), template, {"x": expression(source, "loss")})
    assert edited(source, [edit]) == after


def test_replaced_function_goes_with_its_decorators() -> None:
    """Decorators belong to the statement that is replaced; the comment above stays."""
    source = read("""
        # about f
        @a
        @b(1)
        def f(): pass
        x = 1
        """)
    assert edited(source, [Replace(statement(source, "def f"), "f = None")]) == "# about f\nf = None\nx = 1\n"


@pytest.mark.parametrize(
    ("newline", "indent"),
    [
        pytest.param("\n", "    ", id="four blanks"),
        pytest.param("\n", "  ", id="two blanks"),
        pytest.param("\n", "\t", id="tabs"),
        pytest.param("\r\n", "    ", id="line ends of Windows"),
        pytest.param("\r", "    ", id="line ends of old Macs"),
    ],
)
def test_blocks_take_the_file_s_own_white_space(newline: str, indent: str) -> None:
    """Inserted, wrapped and replaced lines have the margins, the step and the line ends of their file."""

    def in_style(text: str) -> str:
        return text.replace("    ", indent).replace("\n", newline)

    source = SourceFile("train.py", in_style("def f():\n    for x in y:\n        a(x)\n        # then\n        b(x)\n    return 1\n"))
    a, b = statement(source, "a("), statement(source, "b(")
    edits = [
        InsertBefore(statement(source, "for"), "if new:\n    s = 1"),
        Wrap(a, b, "with w:"),
        InsertBefore(a, "before()"),
        InsertAfter(b, "after()"),
        InsertAfter(a, "between()"),
    ]
    expected = """\
def f():
    if new:
        s = 1
    for x in y:
        before()
        with w:
            a(x)
            between()
            # then
            b(x)
        after()
    return 1
"""
    assert edited(source, edits) == in_style(expected)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("a = 1\n# about b\nb = 2\n", "a = 1\nnew()\n# about b\nb = 2\n", id="above the comment"),
        pytest.param("a = 1\n# far\n\nb = 2\n", "a = 1\n# far\n\nnew()\nb = 2\n", id="below a comment that stands off"),
        pytest.param("# licence\nb = 2\n", "# licence\nnew()\nb = 2\n", id="below the head of the file"),
        pytest.param("a = 1\n# %%\nb = 2\n", "a = 1\n# %%\nnew()\nb = 2\n", id="below a cell mark"),
        pytest.param("a = 1\n# fmt: off\nb = 2\n", "a = 1\n# fmt: off\nnew()\nb = 2\n", id="below a formatter switch"),
        pytest.param("if x:\n    a = 1\n    # done\nb = 2\n", "if x:\n    a = 1\n    # done\nnew()\nb = 2\n", id="below a deeper comment"),
        pytest.param("if x:\n    # about b\n    b = 2\n", "if x:\n    new()\n    # about b\n    b = 2\n", id="at the head of a block"),
        pytest.param("a = 1\n\x0cb = 2\n", "a = 1\nnew()\n\x0cb = 2\n", id="above a page break"),
    ],
)
def test_insertion_in_front(before: str, after: str) -> None:
    """The comment directly above a statement belongs to it, unless it heads the file or divides it."""
    source = read(before)
    assert edited(source, [InsertBefore(statement(source, "b"), "new()")]) == after


def test_f91_insertion_goes_above_decorators_and_their_comments() -> None:
    """Nothing is put between a decorator and its function, or between them and the comment above."""
    source = read("""
        import torch

        @torch.jit.script  # compiled: leave alone
        def a(x: torch.Tensor):
            return x + torch.zeros(2).to(x.device)

        # about b
        @torch.no_grad()
        # between
        @staticmethod
        def b(x):
            def inner(y):
                return y.cuda().item()
            return inner(x)
        """)
    edits = [InsertBefore(function(source, "a"), "one = 1"), InsertBefore(function(source, "b"), "two = 2")]
    expected = source.text.replace("@torch.jit", "one = 1\n@torch.jit").replace("# about b", "two = 2\n# about b")
    assert edited(source, edits) == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("a = 1  # one\nb = 2\n", "a = 1  # one\nnew()\nb = 2\n", id="behind its comment"),
        pytest.param("a = 1", "a = 1\nnew()", id="no last line end"),
        pytest.param("if x:\n    a = 1", "if x:\n    a = 1\n    new()", id="no last line end in a block"),
        pytest.param("a = (1,\n  2)\nb = 2\n", "a = (1,\n  2)\nnew()\nb = 2\n", id="several lines"),
    ],
)
def test_insertion_behind(before: str, after: str) -> None:
    """What is inserted behind a statement follows its last line."""
    source = read(before)
    assert edited(source, [InsertAfter(statement(source, "a"), "new()")]) == after


def test_insertion_behind_a_block_leaves_the_block_its_comments() -> None:
    """Comments that stand deeper than a compound statement still belong to it."""
    source = read("for x in y:\n    a()\n\n    # done\n\nb()\n")
    assert edited(source, [InsertAfter(statement(source, "for"), "new()")]) == "for x in y:\n    a()\n\n    # done\nnew()\n\nb()\n"


def test_wrap_moves_code_and_comments_but_no_text_of_strings() -> None:
    """Lines that begin inside a string, and lines left of the margin, stay where they are."""
    source = read("""
        def f():
            # start
            a = '''
            text
        text'''
            # middle
        #   commented = out

            b = g(1,
                  2)
            c = 1 + \\
                2
            # end
        """)
    edit = Wrap(statement(source, "a"), statement(source, "c"), "with w as v:")
    expected = """
        def f():
            # start
            with w as v:
                a = '''
            text
        text'''
                # middle
        #   commented = out

                b = g(1,
                      2)
                c = 1 + \\
                    2
            # end
        """
    assert edited(source, [edit]) == read(expected).text


def test_wraps_nest_and_carry_the_edits_inside() -> None:
    """A wrap in a wrap is indented twice; what is edited in it is written first."""
    source = read("""
        a(1)
        for x in y:
            b(x,
              2)
        c(3)
        """)
    a, loop, c = statement(source, "a"), statement(source, "for"), statement(source, "c")
    edits = [
        Wrap(a, c, "try:", "finally:\n    close()"),
        Wrap(loop, loop, "with w:"),
        Wrap(statement(source, "b"), statement(source, "b"), "if x:"),
        SetArgument(call(source, "b"), "k", "3"),
    ]
    expected = """
        try:
            a(1)
            with w:
                for x in y:
                    if x:
                        b(x,
                          2,
                          k=3)
            c(3)
        finally:
            close()
        """
    assert edited(source, edits) == read(expected).text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("for x in xs:\n    f(x)\n", "for i, x in xs:\n    f(x)\n"),
        ("for x, y in xs:\n    f(x)\n", "for i, (x, y) in xs:\n    f(x)\n"),
        ("for (x, y) in xs:\n    f(x)\n", "for i, (x, y) in xs:\n    f(x)\n"),
    ],
)
def test_replaced_target_of_a_loop(before: str, after: str) -> None:
    """What is put in the place of a target is a target."""
    source = read(before)
    loop = source.tree.body[0]
    assert isinstance(loop, ast.For)
    assert edited(source, [Replace(loop.target, "i, $target", {"target": loop.target})]) == after


def test_header_that_goes_on_with_statements() -> None:
    """Statements behind the line that opens the block stand in front of the wrapped ones, at their depth."""
    source = read("for x in y:\n\ta(x)  # why\n\tb(x)\n")
    edit = Wrap(statement(source, "a"), statement(source, "b"), "if x:\n    c = int(c)\n    d()")
    assert edited(source, [edit]) == "for x in y:\n\tif x:\n\t\tc = int(c)\n\t\td()\n\t\ta(x)  # why\n\t\tb(x)\n"


def test_wrap_of_the_last_lines_of_a_file_without_line_end() -> None:
    """The last line stays without a line end, also where a footer follows."""
    source = read("a()\nb()")
    edit = Wrap(statement(source, "a"), statement(source, "b"), "try:", "finally:\n    c()")
    assert edited(source, [edit]) == "try:\n    a()\n    b()\nfinally:\n    c()"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("# above\na()\nb()\n", "# above\nb()\n", id="the comment above stays"),
        pytest.param("a()  # why\nb()\n", "# why\nb()\n", id="the comment behind stays"),
        pytest.param("a()  # noqa: E501\nb()\n", "b()\n", id="an instruction to a tool goes"),
        pytest.param("a(  # one\n  # two\n)\nb()\n", "# one\n# two\nb()\n", id="comments inside stay"),
        pytest.param("if x:\n    a()  # why\nb()\n", "if x:\n    # why\n    pass\nb()\n", id="the only one of its block"),
        pytest.param("try:\n    a()\nfinally:\n    b()\n", "try:\n    pass\nfinally:\n    b()\n", id="the only one of a try"),
        pytest.param("b()\na()", "b()", id="the last without line end"),
    ],
)
def test_removed_statement(before: str, after: str) -> None:
    """A statement leaves with its lines; comments stay, and so does a block."""
    source = read(before)
    assert edited(source, [Remove(statement(source, "a"))]) == after


def test_block_whose_statements_all_leave_keeps_one_pass() -> None:
    """Two removals that empty a block leave a single ``pass``; an insertion beside them makes it needless."""
    source = read("if x:\n    a()\n    b()\n")
    a, b = statement(source, "a"), statement(source, "b")
    assert edited(source, [Remove(a), Remove(b)]) == "if x:\n    pass\n"
    assert edited(source, [Remove(a), Remove(b), InsertBefore(b, "c()")]) == "if x:\n    c()\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("def f(): pass", "def f(p=1): pass", id="none yet"),
        pytest.param("def f(a, b=2) -> int: return a", "def f(a, b=2, p=1) -> int: return a", id="behind the last"),
        pytest.param("def f(a, *args, k, **kw): pass", "def f(a, p=1, *args, k, **kw): pass", id="before a star"),
        pytest.param("def f(*, k): pass", "def f(p=1, *, k): pass", id="before a bare star"),
        pytest.param("def f(a, /): pass", "def f(a, /, p=1): pass", id="behind a slash"),
        pytest.param("def f(a, /, *b): pass", "def f(a, /, p=1, *b): pass", id="between a slash and a star"),
        pytest.param("def f(**kw): pass", "def f(p=1, **kw): pass", id="before a dictionary"),
        pytest.param("async def f(a): pass", "async def f(a, p=1): pass", id="async"),
        pytest.param(
            "def f(\n    a,  # type: int\n    b,  # type: str\n):\n    # type: (...) -> int\n    pass\n",
            "def f(\n    a,  # type: int\n    b,  # type: str\n    p=1,\n):\n    # type: (...) -> int\n    pass\n",
            id="with type comments",
        ),
        pytest.param("def f(a: 'lambda: 1' = {1: 2}): # x: y\n  pass", "def f(a: 'lambda: 1' = {1: 2}, p=1): # x: y\n  pass", id="colons"),
    ],
)
def test_added_parameter(before: str, after: str) -> None:
    """A parameter goes behind the last that may be passed by position."""
    source = read(before)
    assert edited(source, [AddParameter(function(source, "f"), "p=1")]) == after


def test_added_parameter_leaves_decorator_and_body_their_edits() -> None:
    """Edits in the decorator, the header and the body of the function all hold."""
    source = read("@d(1)\ndef f(a=g(2)):\n    h(3)\n")
    edits = [AddParameter(function(source, "f"), "p=None"), *(SetArgument(call(source, name), "k", "v") for name in "dgh")]
    assert edited(source, edits) == "@d(1, k=v)\ndef f(a=g(2, k=v), p=None):\n    h(3, k=v)\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("def f(): pass\n", "@d()\ndef f(): pass\n", id="plain"),
        pytest.param("async def f(): pass\n", "@d()\nasync def f(): pass\n", id="async"),
        pytest.param("class C:\n\n\t@a  # why\n\t# between\n\tdef f(self): pass\n", None, id="behind the others"),
        pytest.param("# about f\ndef f():\r\n    pass\r\n", "# about f\n@d()\r\ndef f():\r\n    pass\r\n", id="line ends"),
    ],
)
def test_added_decorator(before: str, after: str | None) -> None:
    """F91: a decorator goes right above the function; comments keep their lines."""
    source = read(before)
    expected = after if after is not None else before.replace("\tdef", "\t@d()\n\tdef")
    assert edited(source, [AddDecorator(function(source, "f"), "d()")]) == expected


def test_f69_line_ends_stay() -> None:
    """A file with line ends of Windows keeps them all."""
    source = SourceFile("train.py", "import torch\r\n\r\ndef f(n):\r\n    return torch.zeros(n).cuda()\r\n")
    edit = Replace(expression(source, "torch.zeros(n).cuda()"), "$x", {"x": call(source, "torch.zeros")})
    assert edited(source, [edit]) == "import torch\r\n\r\ndef f(n):\r\n    return torch.zeros(n)\r\n"


def test_line_ends_inside_a_call_stay_as_mixed_as_they_are() -> None:
    """Every line end keeps its kind, also those in the text that goes through LibCST; new ones are of the file's kind."""
    source = SourceFile("train.py", "f(a,\r\n  b,\n  c,\r  d)\r\n")
    assert edited(source, [SetArgument(call(source, "f"), "k", "v")]) == "f(a,\r\n  b,\n  c,\r  d,\r  k=v)\r\n"


def test_value_over_several_lines_has_the_file_s_line_ends() -> None:
    """New line breaks inside a value are of the file's kind."""
    source = SourceFile("train.py", "x = f(a)\r\n")
    assert edited(source, [SetArgument(call(source, "f"), "k", "[1,\n   2]")]) == "x = f(a, k=[1,\r\n   2])\r\n"


def test_code_with_parts_of_the_file_itself_has_its_line_ends_once() -> None:
    """A template that quotes the file brings the file's line breaks along."""
    source = SourceFile("train.py", "save({\r\n    'a': 1,\r\n})\r\n")
    call = source.tree.body[0].value  # type: ignore[attr-defined]
    edit = Replace(call.args[0], "{\r\n    'a': 1,\n    'b': 2,\r\n}")
    assert edited(source, [edit]) == "save({\r\n    'a': 1,\r\n    'b': 2,\r\n})\r\n"


def test_f73_page_breaks_and_tabs_stay() -> None:
    """Page breaks are kept and inserted lines copy the tabs."""
    source = SourceFile("train.py", "import torch\n\x0c\ndef f(n):\n\tif n:\n\t\treturn torch.zeros(n).cuda()\n\treturn None\n")
    edits = [
        SetArgument(call(source, "torch.zeros"), "device", "d"),
        InsertBefore(statement(source, "return torch"), "for x in y:\n    z()"),
    ]
    inserted = "\t\tfor x in y:\n\t\t\tz()\n\t\treturn torch.zeros(n, device=d).cuda()\n"
    expected = f"import torch\n\x0c\ndef f(n):\n\tif n:\n{inserted}\treturn None\n"
    assert edited(source, edits) == expected


def test_f75_statements_joined_by_semicolon_and_backslash_stay_apart() -> None:
    """A rewrite inside one of several statements on a logical line touches no separator."""
    source = SourceFile("train.py", "import torch; x = \\\n    torch.zeros(2) \\\n    .cuda(); y = 1; \\\nz = x + y\n")
    whole = call(source, "torch.zeros(2) \\\n    .cuda")
    edits = [Replace(whole, "$x", {"x": call(source, "torch.zeros")}), SetArgument(call(source, "torch.zeros"), "device", "d")]
    assert edited(source, edits) == "import torch; x = \\\n    torch.zeros(2, device=d); y = 1; \\\nz = x + y\n"


def test_f79_type_comments_stay_on_their_lines() -> None:
    """A type comment keeps its place behind an assignment, a loop header and a parameter."""
    source = read("""
        def f(
            a,  # type: int
            b,  # type: torch.Tensor
        ):
            # type: (...) -> torch.Tensor
            x = torch.zeros(a).cuda()  # type: torch.Tensor
            for i in range(a):  # type: int
                x = x + b.cuda()
            return x
        """)
    loop = statement(source, "for")
    edits = [
        Replace(expression(source, "torch.zeros(a).cuda()"), "$x", {"x": call(source, "torch.zeros")}),
        SetArgument(call(source, "torch.zeros"), "device", "d"),
        Wrap(loop, loop, "with w:"),
    ]
    expected = source.text.replace("torch.zeros(a).cuda()", "torch.zeros(a, device=d)").replace(
        "    for i in range(a):  # type: int\n        x = x + b.cuda()\n",
        "    with w:\n        for i in range(a):  # type: int\n            x = x + b.cuda()\n",
    )
    assert edited(source, edits) == expected


@pytest.mark.parametrize("text", ["f(a)", "if x:\n    f(a)\n", "with w:\n    f(a,\n      b)  # c\n"])
def test_untouched_text_is_kept_by_origin(text: str) -> None:
    """The new text knows of each kept character where it stood."""
    source = read(text)
    draft = apply(source, [SetArgument(call(source, "f"), "k", "v")])
    kept = "".join(piece.text for piece in draft.pieces if piece.origin is not None)
    assert kept == source.text
