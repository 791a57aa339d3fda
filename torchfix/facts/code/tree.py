"""The one walk over a file's syntax tree: parents, statements and blocks, calls by their last name, definitions."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias, TypeVar

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"
LoopNode: TypeAlias = "ast.For | ast.AsyncFor | ast.While"

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")

N = TypeVar("N", bound=ast.AST)


class Tree:
    """A module's nodes, indexed once.

    Attributes:
        calls: every call by the last name of what is called (``DataLoader`` for ``data.DataLoader(...)``).
        attributes: every attribute access by its name.
        names: every use of a plain name by that name.
    """

    def __init__(self, module: ast.Module) -> None:
        self.module = module
        self.calls: dict[str, list[ast.Call]] = defaultdict(list)
        self.attributes: dict[str, list[ast.Attribute]] = defaultdict(list)
        self.names: dict[str, list[ast.Name]] = defaultdict(list)
        self.functions: list[Function] = []
        self.classes: list[ast.ClassDef] = []
        self.loops: list[LoopNode] = []
        self.comprehensions: list[ast.comprehension] = []
        self.stores: list[ast.Attribute | ast.Subscript] = []
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self._parents: dict[ast.AST, ast.AST] = {}
        self._first: dict[ast.AST, int] = {}  # a node's number in the order of the walk
        self._last: dict[ast.AST, int] = {}  # the highest number below it
        self._places: dict[ast.stmt, tuple[ast.AST, list[ast.stmt], int]] = {}
        self._functions: dict[ast.AST, Function | None] = {}
        self._index(module)

    def _index(self, module: ast.Module) -> None:
        parents = self._parents
        stack: list[ast.AST] = [module]
        while stack:
            node = stack.pop()
            self._first[node] = self._last[node] = len(self._first)
            held = children(node)
            for child in held:
                if not isinstance(child, (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)):
                    parents[child] = node
            stack.extend(reversed(held))  # so that the indexes are in the order of the text
            self._note(node)
        for node in reversed(self._first):
            parent = parents.get(node)
            if parent is not None and self._last[parent] < self._last[node]:
                self._last[parent] = self._last[node]

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            self.stores.append(node)
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            if name is not None:
                self.calls[name].append(node)
        elif isinstance(node, ast.Attribute):
            self.attributes[node.attr].append(node)
        elif isinstance(node, ast.Name):
            self.names[node.id].append(node)
        elif isinstance(node, FUNCTIONS):
            self.functions.append(node)
        elif isinstance(node, ast.ClassDef):
            self.classes.append(node)
        elif isinstance(node, LOOPS):
            self.loops.append(node)
        elif isinstance(node, ast.comprehension):
            self.comprehensions.append(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imports.append(node)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node that directly holds this one."""
        return self._parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around this one, from the nearest outwards."""
        current = self._parents.get(node)
        while current is not None:
            yield current
            current = self._parents.get(current)

    def nearest(self, node: ast.AST, kinds: type[N] | tuple[type[N], ...]) -> N | None:
        """The nearest node of one of these kinds around this one."""
        return next((outer for outer in self.ancestors(node) if isinstance(outer, kinds)), None)

    def outermost_loop(self, node: ast.AST) -> LoopNode | None:
        """The outermost loop around a node in its own function."""
        function = self.function(node)
        loops = [outer for outer in self.ancestors(node) if isinstance(outer, LOOPS) and self.function(outer) is function]
        return loops[-1] if loops else None

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds a node, or the node itself.

        Raises:
            ValueError: the node is the module, or no node of this tree.
        """
        current: ast.AST | None = node
        while current is not None and not isinstance(current, ast.stmt):
            current = self._parents.get(current)
        if current is None:
            raise ValueError("no statement holds this node")
        return current

    def top(self, node: ast.AST) -> ast.stmt:
        """The statement at module level that holds a node, or the node itself.

        Raises:
            ValueError: the node is the module, or no node of this tree.
        """
        top = self.statement(node)
        for outer in self.ancestors(top):
            if isinstance(outer, ast.stmt):
                top = outer
        return top

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that a statement stands in."""
        return self.place(statement)[1]

    def place(self, statement: ast.stmt) -> tuple[ast.AST, list[ast.stmt], int]:
        """The node that owns a statement's block, the block, and the statement's index in it."""
        if statement not in self._places:
            owner = self._parents[statement]
            for block in (block for name in _BLOCKS if isinstance(block := getattr(owner, name, None), list)):
                self._places.update((item, (owner, block, index)) for index, item in enumerate(block))
        return self._places[statement]

    def function(self, node: ast.AST) -> Function | None:
        """The innermost function whose body holds a node; decorators, defaults and annotations are outside it."""
        if node not in self._functions:
            self._functions[node] = self._find_function(node)
        return self._functions[node]

    def _find_function(self, node: ast.AST) -> Function | None:
        inner = node
        for outer in self.ancestors(node):
            if isinstance(outer, FUNCTIONS) and isinstance(inner, ast.stmt):
                return outer
            inner = outer
        return None

    def class_of(self, function: ast.AST) -> ast.ClassDef | None:
        """The class whose method a function is."""
        parent = self._parents.get(function)
        return parent if isinstance(parent, ast.ClassDef) else None

    def method_class(self, node: ast.AST) -> ast.ClassDef | None:
        """The class in one of whose methods a node stands, closures inside the method included."""
        function = self.function(node)
        while function is not None:
            owner = self.class_of(function)
            if owner is not None:
                return owner
            function = self.function(function)
        return None

    def is_within(self, node: ast.AST, outer: ast.AST) -> bool:
        """Whether a node is ``outer`` or stands inside it."""
        first = self._first.get(outer)
        return first is not None and first <= self._first.get(node, -1) <= self._last[outer]


@lru_cache(maxsize=64)
def indexed(module: ast.Module) -> Tree:
    """The index of a syntax tree, made once for all who ask for it soon after each other."""
    return Tree(module)


def last_name(expression: ast.expr) -> str | None:
    """The last name of a name or attribute chain: ``DataLoader`` for ``torch.utils.data.DataLoader``."""
    if isinstance(expression, ast.Name):
        return expression.id
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return None


def dotted(expression: ast.expr) -> str | None:
    """The dotted text of a chain of names (``args.device``), None for anything else."""
    if isinstance(expression, ast.Name):
        return expression.id
    if isinstance(expression, ast.Attribute):
        base = dotted(expression.value)
        return None if base is None else f"{base}.{expression.attr}"
    return None


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes that a node directly holds, in the order of its fields."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk_here(node: ast.AST) -> tuple[ast.AST, ...]:
    """A node and all below it in text order, without the bodies of functions and classes defined there."""
    return node, *_below(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda))


def walk_evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """As :func:`walk_here`, with what lambdas do and without functions and classes that are defined there."""
    yield node
    yield from (item for item in _below(node, (*FUNCTIONS, ast.ClassDef)) if not isinstance(item, (*FUNCTIONS, ast.ClassDef)))


@lru_cache(maxsize=1024)
def walk(node: ast.AST) -> tuple[ast.AST, ...]:
    """A node and all below it, those of one depth after those above, as :func:`ast.walk` gives them; kept, since many ask the same."""
    found = [node]
    for inner in found:
        found += children(inner)
    return tuple(found)


@lru_cache(maxsize=1024)  # asked again and again of the same loops and functions
def _below(node: ast.AST, closed: tuple[type[ast.AST], ...]) -> tuple[ast.AST, ...]:
    """All nodes below one in text order, without what stands in nodes of these kinds."""
    found: list[ast.AST] = []
    waiting = children(node)[::-1]
    while waiting:
        inner = waiting.pop()
        found.append(inner)
        if not isinstance(inner, closed):
            waiting += reversed(children(inner))
    return tuple(found)


def child_blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of a compound statement in text order, those of ``except`` and ``case`` among them; none of a function or class."""
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return []
    found: list[list[ast.stmt]] = []
    for owner in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        found += [block for name in _BLOCKS if isinstance(block := getattr(owner, name, None), list) and block]
    return sorted((block for block in found if isinstance(block[0], ast.stmt)), key=lambda block: block[0].lineno)


def statements_here(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block and of the blocks in it, in text order, without nested functions and classes."""
    for statement in block:
        for node in walk_here(statement):
            if isinstance(node, ast.stmt):
                yield node
