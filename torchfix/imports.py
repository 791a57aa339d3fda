"""Where an import goes, and whether one may leave: import edits turned into edits that name their statement."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence

from torchfix.edits import AddImport, Edit, InsertAfter, InsertBefore, PlacedEdit, Remove, RemoveImport, Replace, places
from torchfix.layout import Layout
from torchfix.proof import intended
from torchfix.source import SourceFile

Import = (ast.Import, ast.ImportFrom)
_WIDEST_LINE = 88  # of an import that a name joins
_Name = tuple[str, str | None]
"""What an import brings: a module, and a name of it or None for the module itself."""


def placed(source: SourceFile, edits: Sequence[Edit]) -> tuple[PlacedEdit, ...]:
    """The same edits, with each import edit turned into an edit of a statement at module level, or into none.

    An import that must hold is written only if no import at module level, in front of the first edited statement that
    runs on import, gives it already. An import that may go does so only if the edited tree does not use it.
    """
    others = tuple(edit for edit in edits if not isinstance(edit, (AddImport, RemoveImport)))
    wanted = {(edit.module, edit.name) for edit in edits if isinstance(edit, AddImport)}
    unwanted = {(edit.module, edit.name) for edit in edits if isinstance(edit, RemoveImport)} - wanted
    if not wanted and not unwanted:
        return others
    layout = Layout(source)
    removed = _removable(layout, others, unwanted)
    added = _added(layout, others, wanted, {alias for aliases in removed.values() for alias in aliases})
    return (*added, *others, *_removed(removed))


def _added(layout: Layout, others: Sequence[PlacedEdit], wanted: set[_Name], removed: set[ast.alias]) -> Iterator[PlacedEdit]:
    body = layout.source.tree.body
    if not body:
        return  # no code, and so none that needs it
    limit = _first_run(layout, others)
    gone = {edit.statement for edit in others if isinstance(edit, Remove)}
    brought = {name for statement in body[:limit] if statement not in gone for name in _brings(statement, removed)}
    taken = {node for edit in others if not isinstance(edit, (InsertAfter, InsertBefore)) for node in places(edit)}
    joined: dict[ast.ImportFrom, list[str]] = defaultdict(list)
    for module, name in sorted(wanted - brought, key=_order):
        host = _host(layout, [item for item in body[:limit] if item not in gone and item not in taken], module, removed) if name else None
        if host is not None and name is not None:
            joined[host].append(name)
        else:
            yield _placed(layout, body[:limit], module, _words(module, name))
    for host, names in joined.items():
        words = f"{layout.source.segment(host)}, {', '.join(names)}"
        if len(words) <= _WIDEST_LINE:
            yield Replace(host, words)
        else:
            yield from (_behind(layout, host, _words(host.module or "", name)) for name in names)


def _host(layout: Layout, body: Sequence[ast.stmt], module: str, removed: set[ast.alias]) -> ast.ImportFrom | None:
    """The plain import of other names of the same module that a name can join: one line of its own, nothing leaving it."""
    for item in body:
        if isinstance(item, ast.ImportFrom) and item.module == module and not item.level:
            plain = "(" not in layout.source.segment(item) and item.lineno == item.end_lineno
            names = {alias.name for alias in item.names}
            if plain and "*" not in names and not removed.intersection(item.names) and layout.owns_lines(item):
                return item
    return None


def _first_run(layout: Layout, others: Sequence[PlacedEdit]) -> int:
    """The index at module level before which an import must stand: that of the first new code that runs on import."""
    body = layout.source.tree.body
    limit = len(body)
    for edit in others:
        if isinstance(edit, Remove):
            continue
        for node in places(edit):
            top = layout.tree.top(node)
            index = next(index for index, item in enumerate(body) if item is top)
            if isinstance(edit, InsertAfter) and node is top:
                limit = min(limit, index + 1)
            elif node is top or not isinstance(top, (ast.FunctionDef, ast.AsyncFunctionDef)):
                limit = min(limit, index)
    return limit


def _brings(statement: ast.stmt, removed: set[ast.alias]) -> Iterator[_Name]:
    """What a plain import gives; ``import a.b`` gives ``a`` too."""
    if not isinstance(statement, Import):
        return
    for alias in statement.names:
        if alias.asname is not None or alias in removed:
            continue
        if isinstance(statement, ast.Import):
            parts = alias.name.split(".")
            yield from ((".".join(parts[:count]), None) for count in range(1, len(parts) + 1))
        elif not statement.level:
            yield (statement.module or "", alias.name)


def _placed(layout: Layout, body: Sequence[ast.stmt], module: str, code: str) -> PlacedEdit:
    """The edit that puts an import among the statements ``body``: those of the module that stand before the first need."""
    root = module.partition(".")[0]
    head, run = _leading(body)
    if root == "torch":
        first = next((item for item in body if isinstance(item, Import) and "torch" in _roots(item)), None)
        if first is not None:
            return _behind(layout, first, code)
    if run and root in sys.stdlib_module_names:
        own = [item for item in run if _roots(item) <= sys.stdlib_module_names]
        smaller = [item for item in own if _statement_order(item) <= _order((module, None if code.startswith("import") else ""))]
        if smaller:
            return _behind(layout, smaller[-1], code)
        return _above(layout, (own or run)[0], code)
    absolute = [item for item in run if not (isinstance(item, ast.ImportFrom) and item.level)]
    if absolute:
        return _behind(layout, absolute[-1], code)
    if run:
        return _above(layout, run[0], code)
    if head:
        return _behind(layout, head[-1], f"\n{code}" if _is_docstring(head[-1]) else code)
    return InsertBefore(layout.source.tree.body[0], code)


def _leading(body: Sequence[ast.stmt]) -> tuple[list[ast.stmt], list[ast.Import | ast.ImportFrom]]:
    """Docstring and ``__future__`` imports, and the run of imports that follows them."""
    head = [item for item in body[:1] if _is_docstring(item)]
    run: list[ast.Import | ast.ImportFrom] = []
    for item in body[len(head) :]:
        if not isinstance(item, Import):
            break
        if isinstance(item, ast.ImportFrom) and item.module == "__future__":
            head.append(item)
        else:
            run.append(item)
    return head, run


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)


def _roots(statement: ast.Import | ast.ImportFrom) -> set[str]:
    """The top-level packages that a statement imports from; the empty one for a relative import."""
    if isinstance(statement, ast.Import):
        return {alias.name.partition(".")[0] for alias in statement.names}
    return {"" if statement.level else (statement.module or "").partition(".")[0]}


def _behind(layout: Layout, statement: ast.stmt, code: str) -> PlacedEdit:
    """Code on the line behind an import; in front of it where other statements, which may need it, share the line."""
    shared = _sharing(layout, statement)
    return InsertAfter(statement, code) if shared[-1] is statement else _above(layout, statement, code)


def _above(layout: Layout, statement: ast.stmt, code: str) -> PlacedEdit:
    """Code on the line above a statement; behind it where what must stay first in the file shares the line."""
    shared = _sharing(layout, statement)
    if shared[0] in _leading(layout.source.tree.body)[0]:
        return InsertAfter(shared[-1], code)
    return InsertBefore(shared[0], code)


def _sharing(layout: Layout, statement: ast.stmt) -> list[ast.stmt]:
    """The statements at module level that hang together with one by shared lines, itself among them, in text order."""
    body = layout.source.tree.body
    low = high = body.index(statement)
    while low and (body[low - 1].end_lineno or 0) >= body[low].lineno:
        low -= 1
    while high + 1 < len(body) and body[high + 1].lineno <= (body[high].end_lineno or 0):
        high += 1
    return body[low : high + 1]


def _order(name: _Name) -> tuple[bool, str, str]:
    """Whole modules first, then by name."""
    return (name[1] is not None, name[0], name[1] or "")


def _statement_order(statement: ast.Import | ast.ImportFrom) -> tuple[bool, str, str]:
    if isinstance(statement, ast.Import):
        return _order((statement.names[0].name, None))
    return _order((statement.module or "", ""))


def _words(module: str, name: str | None) -> str:
    return f"import {module}" if name is None else f"from {module} import {name}"


def _removable(layout: Layout, others: Sequence[PlacedEdit], unwanted: set[_Name]) -> dict[ast.Import | ast.ImportFrom, list[ast.alias]]:
    """The aliases of plain imports at module level that nothing uses once the other edits are made."""
    found: dict[ast.Import | ast.ImportFrom, list[ast.alias]] = defaultdict(list)
    if not unwanted or os.path.basename(layout.source.path) == "__init__.py":
        return found
    edited = intended(layout.source.tree, others)
    used = _used_words(edited)
    if "__all__" in used:
        return found
    targets = {node for edit in others for node in places(edit)}
    for statement in layout.source.tree.body:
        if not isinstance(statement, Import) or statement in targets or not layout.owns_lines(statement):
            continue
        unused = [alias for alias in statement.names if _name_of(statement, alias) in unwanted and _bound(alias) not in used]
        whole = len(unused) == len(statement.names)
        if unused and (whole or not layout.comments(*layout.source.span(statement))):
            found[statement] = unused
    return found


def _name_of(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> _Name:
    if isinstance(statement, ast.Import):
        return (alias.name, None)
    return ("." * statement.level + (statement.module or ""), alias.name)


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _used_words(tree: ast.Module) -> set[str]:
    """Every name that code uses, and every word of its strings, which may be annotations; docstrings do not count."""
    used: set[str] = set()
    prose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            used.update(node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            used.update(re.findall(r"\w+", node.value))
    return used


def _removed(removed: dict[ast.Import | ast.ImportFrom, list[ast.alias]]) -> Iterator[PlacedEdit]:
    for statement, aliases in removed.items():
        kept = [alias for alias in statement.names if alias not in aliases]
        if not kept:
            yield Remove(statement)
        elif isinstance(statement, ast.Import):
            yield Replace(statement, ast.unparse(ast.Import(kept)))
        else:
            yield Replace(statement, ast.unparse(ast.ImportFrom(statement.module, kept, statement.level)))
