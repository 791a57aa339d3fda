"""Generated Python in every layout, and any edits of it, for property tests."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator

from hypothesis import strategies as st

from torchfix.edits import (
    AddDecorator,
    AddImport,
    AddParameter,
    Edit,
    InsertAfter,
    InsertBefore,
    Remove,
    RemoveArgument,
    RemoveImport,
    Replace,
    SetArgument,
    Wrap,
)
from torchfix.facts.code.tree import Tree
from torchfix.source import SourceFile

_ATOMS = ["a", "bé", "1", "'#'", "'''x\n  # y'''", "f'{a!r:>{b}} {{'", "True", "...", "-1", "a.b", "a[1:]", "(a,)", "b'\\n'"]
_HEADS = ["", "#!/usr/bin/python\n", '"""Doc."""\n', "from __future__ import annotations\n", "import os, re\nimport torch\n"]
_HEADERS = ["if a:", "while f(a):", "for i in f(a, b):", "with f(a) as c:", "class A(f):", "if a:  # type: ignore", "try:"]
_CALLS = [
    "f({0}, k={1})",
    "f({0},{1})",
    "f(\n{2}{0},  # one\n{2}k={1},\n{2}# two\n)",
    "f({0},\n{2}{1})",
    "f({0}, *a, k = {1}, **b)",
    "f(x for x in {0})",
    "{0}.m().n({1})",
    "f(\n{2}{0}, {1}  # one\n)",
]
_OTHERS = ["{0} + {1}", "lambda: {0}", "[{0}, {1}]", "{{'k': {0}}}", "{0} if {1} else a", "(  # one\n{2}{0}\n)", "[{0} for x in y]"]


@st.composite
def expressions(draw: st.DrawFn, depth: int = 2) -> str:
    """The text of an expression that may stand anywhere."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(_ATOMS))
    inner = [draw(expressions(depth - 1)) for _ in range(2)]
    text = draw(st.sampled_from(_CALLS + _OTHERS)).format(*(f"({part})" for part in inner), " " * draw(st.integers(0, 9)))
    return text if draw(st.booleans()) else f"({text})"


@st.composite
def blocks(draw: st.DrawFn, margin: str, step: str, depth: int) -> str:
    """The lines of a block, each ending with a line feed."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        lines.append(draw(st.sampled_from(["", "", "", "\n", f"{margin}# above\n", "# left\n", f"{margin}{step}# right\n", "\x0c\n"])))
        kind = draw(st.integers(0, 9))
        end = draw(st.sampled_from(["\n", "\n", "  # behind\n", " \n", ";\n"]))
        value = f"({draw(expressions())})"
        if kind < 4:
            lines.append(f"{margin}{draw(st.sampled_from(['', 'x = ', 'x += ', 'assert ', 'x: int = ']))}{value}{end}")
        elif kind == 4:
            lines.append(f"{margin}a; f({value}); x = {value}{end}")
        elif kind == 5:
            lines.append(f"{margin}if a: f({value}){end}")
        elif kind == 6:
            lines.append(f"{margin}x = a \\\n  .b \\\n{margin}{step}.m({value}){end}")
        elif depth == 0:
            lines.append(f"{margin}pass{end}")
        elif kind == 7:
            header = draw(st.sampled_from(["def g(a, b=1):", "async def g(*, k): # c: d", "def g(\n  a,  # type: int\n  **k\n) -> a:"]))
            decorator = draw(st.sampled_from(["", f"{margin}@a\n", f"{margin}# about\n{margin}@f({value})\n{margin}# between\n"]))
            lines.append(f"{decorator}{margin}{header}\n{draw(blocks(margin + step, step, depth - 1))}")
        else:
            header = draw(st.sampled_from(_HEADERS))
            lines.append(f"{margin}{header}\n{draw(blocks(margin + step, step, depth - 1))}")
            if header == "try:":
                lines.append(f"{margin}finally:\n{draw(blocks(margin + step, step, 0))}")
            elif header.startswith("if") and draw(st.booleans()):
                lines.append(f"{margin}elif b:\n{margin}{step}b\n{margin}else: a\n")
    return "".join(lines)


@st.composite
def sources(draw: st.DrawFn) -> SourceFile:
    """A file: its head, its line ends, its indentation, with or without a last line end."""
    step = draw(st.sampled_from(["    ", "  ", "\t"]))
    text = draw(st.sampled_from(_HEADS)) + draw(blocks("", step, 2))
    if draw(st.integers(0, 3)) == 0:
        text = text.rstrip("\n")
    return SourceFile("train.py", text.replace("\n", draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))))


def any_edits(source: SourceFile, chance: random.Random, count: int) -> Iterator[Edit]:
    """Edits of every kind at any places of a file, fitting or not."""
    tree = Tree(source.tree)
    nodes = [node for node in ast.walk(source.tree) if hasattr(node, "lineno")]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    statements = [node for node in nodes if isinstance(node, ast.stmt) and not _is_head(node)]
    functions = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    values = [node for node in nodes if isinstance(node, ast.expr) and _is_value(node, tree)]
    for _ in range(count):
        kind = chance.randrange(11)
        if kind < 2 and calls:
            call = chance.choice(calls)
            names = [keyword.arg for keyword in call.keywords if keyword.arg]
            yield SetArgument(call, chance.choice(["new", "other", *names]), chance.choice(["1", "a if b else c", "f('x', y)"]))
        elif kind == 2 and calls:
            call = chance.choice(calls)
            arguments: list[str | int] = [keyword.arg for keyword in call.keywords if keyword.arg]
            arguments += range(len(call.args))
            if arguments:
                yield RemoveArgument(call, chance.choice(arguments))
        elif kind < 5 and values:
            node = chance.choice(values)
            inner = [part for part in ast.walk(node) if part in values]
            template = chance.choice(["f($p)", "$p + $q", "$q.y", "lambda: $p", "-$p", "($p,)", "$p, 1", "not $q", "$q if $p else 0"])
            yield Replace(node, template, {"p": chance.choice(inner), "q": chance.choice(inner)})
        elif kind == 5 and statements:
            yield InsertBefore(chance.choice(statements), chance.choice(["new = 1", "if new:\n    '''a\n  b'''\nelse:\n    pass"]))
        elif kind == 6 and statements:
            yield InsertAfter(chance.choice(statements), chance.choice(["new = 1", "for new in a:\n    new()"]))
        elif kind == 7 and statements:
            yield Remove(chance.choice([node for node in statements if not hasattr(node, "body")] or statements))
        elif kind == 8 and statements:
            first = chance.choice(statements)
            block = tree.block(first)
            start = next(index for index, item in enumerate(block) if item is first)
            last = block[chance.randrange(start, len(block))]
            yield chance.choice([Wrap(first, last, "with a as b:"), Wrap(first, last, "try:", "finally:\n    close()")])
        elif kind == 9 and functions:
            function = chance.choice(functions)
            yield chance.choice([AddParameter(function, "new=None"), AddDecorator(function, "new.one()")])
        else:
            added = [AddImport("os"), AddImport("torch"), AddImport("torch.nn", "Linear"), AddImport("numpy")]
            yield chance.choice([*added, RemoveImport("os"), RemoveImport("re")])


def _is_head(node: ast.stmt) -> bool:
    """Whether nothing may stand above a statement."""
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _is_value(node: ast.expr, tree: Tree) -> bool:
    """Whether an expression is read, and may stand wherever one is."""
    context = getattr(node, "ctx", None)
    loads = context is None or isinstance(context, ast.Load)
    slices = isinstance(node, ast.Tuple) and any(isinstance(item, ast.Slice) for item in node.elts)
    pattern = tree.nearest(node, ast.pattern)
    return loads and not slices and pattern is None and not isinstance(node, (ast.Slice, ast.Starred, ast.FormattedValue))
