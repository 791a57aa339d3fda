"""Black on what we touched, and on nothing else."""

from __future__ import annotations

import pytest

from tests.editing import call, expression, read, statement
from torchfix.apply import apply
from torchfix.draft import Draft
from torchfix.edits import InsertBefore, PlacedEdit, Replace, SetArgument, Wrap
from torchfix.source import SourceFile
from torchfix.style import Style, formatted

LONG = "a" * 40


def after(source: SourceFile, edits: list[PlacedEdit], policy: str = "auto", style: Style | None = None) -> str:
    """The text after edits, formatted."""
    return formatted(source, apply(source, edits), style or Style(), policy)


def with_argument(text: str, policy: str = "auto", style: Style | None = None, value: str = LONG) -> str:
    """The snippet after its first call of ``f`` was given a long argument, formatted."""
    source = read(text)
    return after(source, [SetArgument(call(source, "f"), "k", value)], policy, style)


def test_unchanged_text_is_not_formatted() -> None:
    """Even the policy ``file`` leaves a file alone that no edit changed."""
    source = read("x  =  'a'\n")
    assert formatted(source, Draft.kept(source.text), Style(), "file") == source.text


def test_off_formats_nothing() -> None:
    """The policy ``off`` leaves the edits as they were written."""
    text = f"x = f({LONG}, {LONG})\n"
    assert with_argument(text, "off") == f"x = f({LONG}, {LONG}, k={LONG})\n"


def test_file_formats_everything() -> None:
    """The policy ``file`` formats the whole file, quotes included."""
    assert with_argument("y  = 'a'\nx = f(b)\n", "file", value="c") == 'y = "a"\nx = f(b, k=c)\n'


def test_clean_file_stays_clean() -> None:
    """A file that was in Black's format is in it afterwards, in every line."""
    text = f"x = f({LONG}, {LONG[:-5]})\n\n\ndef g():\n    return 1\n"
    expected = f"x = f(\n    {LONG},\n    {LONG[:-5]},\n    k={LONG},\n)\n\n\ndef g():\n    return 1\n"
    assert with_argument(text) == expected


def test_clean_file_gets_quotes_of_black() -> None:
    """In a clean file new strings have the quotes that Black gives them."""
    assert with_argument('y = "a"\nx = f(b)\n', value="'c'") == 'y = "a"\nx = f(b, k="c")\n'


def test_other_file_is_formatted_where_it_was_written() -> None:
    """In any other file only the statement that was written is formatted, and quotes are left alone."""
    text = f"y  = 'a'\nx=f('b',{LONG},{LONG})\nz  = 'c'\n"
    expected = f"y  = 'a'\nx = f(\n    'b',\n    {LONG},\n    {LONG},\n    k={LONG},\n)\nz  = 'c'\n"
    assert with_argument(text) == expected


def test_changed_formats_only_what_was_written_even_in_a_clean_file() -> None:
    """The policy ``changed`` never looks at the rest of the file."""
    assert with_argument('y = "a"\nx = f(b)\n', "changed", value="'c'") == "y = \"a\"\nx = f(b, k='c')\n"


@pytest.mark.parametrize("other", ["y  = 1", "y = 1"], ids=["file of its own style", "clean file"])
def test_function_in_a_class_gets_no_empty_line(other: str) -> None:
    """A header whose text we wrote stands where it stood, in a file that is Black-clean and in one that is not."""
    text = f"{other}\n\n\nclass A:\n    z = 1\n\n    def g(self, a=f(b)):\n        return a\n"
    assert with_argument(text, value="c") == text.replace("f(b)", "f(b, k=c)")


def test_statement_laid_out_by_hand_keeps_its_layout() -> None:
    """Several lines that were not in Black's format are not rebuilt."""
    text = f"y  = 1\nx = f(a,\n      {LONG})\n"
    assert with_argument(text) == f"y  = 1\nx = f(a,\n      {LONG},\n      k={LONG})\n"


def test_statement_of_several_lines_in_black_s_format_stays_in_it() -> None:
    """Several lines that were in Black's format are so afterwards."""
    text = f"y  = 1\nx = f(\n    {LONG}, {LONG}\n)\n"
    assert with_argument(text) == f"y  = 1\nx = f(\n    {LONG},\n    {LONG},\n    k={LONG},\n)\n"


def test_statement_that_becomes_one_line_is_formatted() -> None:
    """A hand-made layout that the edit itself ended is not kept."""
    source = read("y  = 1\nx = f(a)[\n   'b']\n")
    edits: list[PlacedEdit] = [Replace(source.tree.body[1].value, "g( 'c' )")]  # type: ignore[attr-defined]
    assert after(source, edits) == "y  = 1\nx = g('c')\n"


def test_lines_that_only_moved_are_not_restyled() -> None:
    """What a wrap moves to the right keeps its blanks and quotes, and its length."""
    source = read(f"y  = 1\nfor i in x:\n    a = f( 'b',{LONG},{LONG} )\n    b  = 2\n")
    a, b = statement(source, "a"), statement(source, "b")
    expected = f"y  = 1\nfor i in x:\n    with w:\n        a = f( 'b',{LONG},{LONG} )\n        b  = 2\n"
    assert after(source, [Wrap(a, b, "with w:")]) == expected


def test_inserted_statements_and_headers_are_formatted() -> None:
    """New lines are in Black's format, at whatever depth."""
    source = read("y  = 1\nif x:\n    for i in z:\n        a  = 2\n")
    edits: list[PlacedEdit] = [
        InsertBefore(statement(source, "a"), f"if b:\n    c = g({LONG}, {LONG[:-13]}, d)"),
        Wrap(statement(source, "a"), statement(source, "a"), f"with g({LONG}, {LONG[:-13]}, d):"),
    ]
    expected = (
        "y  = 1\nif x:\n    for i in z:\n        if b:\n            c = g(\n"
        f"                {LONG}, {LONG[:-13]}, d\n            )\n"
        f"        with g(\n            {LONG}, {LONG[:-13]}, d\n        ):\n            a  = 2\n"
    )
    assert after(source, edits) == expected


@pytest.mark.parametrize("line", ["x       = f(b)", "x    =    f(b)", "x =     f(b)"])
def test_line_that_is_aligned_with_its_neighbours_stays_so(line: str) -> None:
    """Spaces around an equals sign are a layout by hand, as the line breaks of a long statement are."""
    assert with_argument(f"value   = 1\nz  = 1\n{line}\n", value="2").splitlines()[-1] == line.replace(")", ", k=2)")


@pytest.mark.parametrize(
    ("line", "style", "width"),
    [
        pytest.param("y", Style(), 88, id="short lines"),
        pytest.param("y  = " + "b" * 85, Style(), 100, id="a line beyond Black's width"),
        pytest.param("y  = " + "b" * 97, Style(), 120, id="a line beyond the next usual width"),
        pytest.param("y  = " + "b" * 195, Style(), 120, id="too long a line"),
        pytest.param("# " + "b" * 95, Style(), 88, id="a long comment"),
        pytest.param("y  = " + "b" * 95, Style(configured=True), 88, id="Black's own table without a width"),
        pytest.param("y", Style(configured=True, line_length=100), 100, id="Black's own table"),
    ],
)
def test_width_is_the_target_s(line: str, style: Style, width: int) -> None:
    """Lines may become as long as the target says; where it says nothing, as the usual width that its lines keep to."""
    fits, over = (with_argument(f"{line}\nz  = 1\nx = f(b)\n", style=style, value="c" * (length - 12)) for length in (width, width + 1))
    assert len(fits.splitlines()[-1]) == width
    assert over.splitlines()[-1] == ")"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("if y:\n\tx=f('b')\n", id="tabs"),
        pytest.param("if y:\n  x=f('b')\n", id="two blanks"),
        pytest.param("z  = 1\nx=f('b')  # type: Foo\n", id="type comment"),
        pytest.param("z  = 1\nx=f('b')  # fmt: skip\n", id="skipped"),
        pytest.param("z  = 1\nx=f('b')  # yapf: disable\n", id="disabled for yapf"),
        pytest.param("# fmt: off\nx=f('b')\n# fmt: on\nz  = 1\n", id="switched off"),
        pytest.param("z  = 1\n# yapf: disable\nx=f('b')\n", id="switched off for yapf"),
        pytest.param("z  = 1; x=f('b')\n", id="shared line"),
        pytest.param("if  z: x=f('b')\n", id="suite of one line"),
        pytest.param("if y:\n   x=f('b')\n", id="three blanks"),
        pytest.param("if x :\n    z\nelif f('b') :\n    z\n", id="elif"),
    ],
)
def test_author_s_own_style_is_left_alone(text: str) -> None:
    """Where the author writes in a style of their own, or switched formatters off, nothing is formatted."""
    assert with_argument(text, value="c") == text.replace("f('b')", "f('b', k=c)").replace("='b', k", "='b',k")


def test_f77_switched_off_regions_keep_their_alignment() -> None:
    """A rewrite in a region without formatter, or on a line that skips it, changes nothing beside itself."""
    source = SourceFile(
        "train.py",
        "import torch\n\n# fmt: off\nM = torch.tensor([[1, 0,\n                   0, 1]]).cuda()\nloader_kw = {'num_workers' : 0,\n"
        "             'batch_size'  : 8}\n# fmt: on\ndef step(opt): opt.zero_grad(set_to_none = False)  # fmt: skip\n",
    )
    edits: list[PlacedEdit] = [
        SetArgument(call(source, "torch.tensor"), "device", "d"),
        Replace(expression(source, "0", 2), "4"),
        SetArgument(call(source, "opt.zero_grad"), "set_to_none", "True"),
    ]
    expected = (
        source.text.replace("1]]).cuda", "1]], device=d).cuda").replace("'num_workers' : 0", "'num_workers' : 4").replace("False)", "True)")
    )
    assert after(source, edits) == expected


@pytest.mark.parametrize("policy", ["auto", "changed", "file"])
@pytest.mark.parametrize("newline", ["\r\n", "\n"])
@pytest.mark.parametrize("end", [True, False])
def test_line_ends_stay(policy: str, newline: str, end: bool) -> None:
    """Formatted lines have the file's own ends, and a missing last one stays missing."""
    text = newline.join([f"x = f({LONG}, {LONG[:-5]})", "y = 1"]) + (newline if end else "")
    source = SourceFile("train.py", text)
    found = after(source, [SetArgument(call(source, "f"), "k", LONG)], policy)
    lines = ["x = f(", f"    {LONG},", f"    {LONG[:-5]},", f"    k={LONG},", ")", "y = 1"]
    assert found == newline.join(lines) + (newline if end else "")


def test_settings_of_the_target_hold() -> None:
    """Quotes and magic trailing commas are as the target's table says."""
    kept = Style(configured=True, skip_string_normalization=True, skip_magic_trailing_comma=True, target_versions=("py310",))
    assert with_argument("y = 'a'\nx = f(\n    b,\n)\n", "file", kept, value="'c'") == "y = 'a'\nx = f(b, k='c')\n"


def test_strings_over_several_lines_keep_their_inside() -> None:
    """Formatting a deep statement does not move the lines of its strings."""
    source = read("y  = 1\nif a:\n    if b:\n        c\n")
    found = after(source, [InsertBefore(statement(source, "c"), "x=f( '''d\n  e\n''' )")])
    assert found == "y  = 1\nif a:\n    if b:\n        x = f('''d\n  e\n''')\n        c\n"


def test_what_black_cannot_read_stays_as_written() -> None:
    """A statement or file that Black does not take is left as the edits wrote it."""
    text = "y  = 1\nx=f('b')\nprint(*a for a in b)\n"
    source = read("y  = 1\nx=f('b')\n")
    draft = apply(source, [SetArgument(call(source, "f"), "k", "c")])
    assert formatted(source, draft.rewritten(text), Style(), "file") == text
