"""What runs when some statements run: their calls, and those of the functions of the project that they reach.

More rather than less: every function that a call may run counts, and so do functions that are defined on the way.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from torchfix.facts.code.callees import called, choices
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, Function, walk_here

if TYPE_CHECKING:
    from torchfix.facts import Facts

Run: TypeAlias = "tuple[Facts, ast.Call]"


class Reach:
    """What the code of one file runs."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._direct: dict[Function, tuple[tuple[ast.Call, ...], tuple[tuple[Facts, Function], ...]]] = {}

    def calls(self, statements: Iterable[ast.stmt]) -> Iterator[Run]:
        """The calls in statements of this file and in what they reach, each with the facts of its file; the nearest first."""
        calls, functions = self._read(statements)
        yield from ((self._facts, call) for call in calls)
        seen = {function for _, function in functions}
        waiting = list(functions)
        while waiting:
            facts, function = waiting.pop(0)
            inner, further = facts.reach._of(function)
            yield from ((facts, call) for call in inner)
            for item in further:
                if item[1] not in seen:
                    seen.add(item[1])
                    waiting.append(item)

    def _of(self, function: Function) -> tuple[tuple[ast.Call, ...], tuple[tuple[Facts, Function], ...]]:
        if function not in self._direct:
            calls, functions = self._read(function.body)
            self._direct[function] = tuple(calls), tuple(functions)
        return self._direct[function]

    def _read(self, statements: Iterable[ast.stmt]) -> tuple[list[ast.Call], list[tuple[Facts, Function]]]:
        """The calls of some statements, and the functions that they may run."""
        nodes = [node for statement in statements for node in _here(statement)]
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        functions = [item for call in calls for item in self._run_by(call)]
        functions += [(self._facts, node) for node in nodes if isinstance(node, FUNCTIONS)]
        return calls, list(dict.fromkeys(functions))

    def _run_by(self, call: ast.Call) -> Iterator[tuple[Facts, Function]]:
        found = list(called(self._facts, call))
        yield from found
        if not found and self._facts.calls.meaning(call) is None:
            for choice in choices(self._facts, call):
                if isinstance(choice, Definition) and isinstance(choice.node, FUNCTIONS):
                    yield choice.facts, choice.node
        method = self._facts.own_method(call)
        owner = self._facts.tree.method_class(call) if method is not None or not found else None
        for heir in self._facts.classes.heirs(owner) if owner is not None and self._is_through_self(call) else ():
            assert isinstance(call.func, ast.Attribute)
            for item in heir.node.body:
                if isinstance(item, FUNCTIONS) and item.name == call.func.attr:
                    yield heir.facts, item

    def _is_through_self(self, call: ast.Call) -> bool:
        func = call.func
        return isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and self._facts.is_self(func.value)


def _here(statement: ast.stmt) -> tuple[ast.AST, ...]:
    return (statement,) if isinstance(statement, FUNCTIONS) else walk_here(statement)
