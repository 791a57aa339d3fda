"""Where the program of a script begins its work, so that a switch for the whole run can be set there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, child_blocks, walk, walk_here
from torchfix.facts.project.programs import is_main_guard

if TYPE_CHECKING:
    from torchfix.facts import Facts

_DEPTH = 3  # functions followed into one another


class Startup:
    """Questions about the beginning of one file's program."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._leading: dict[ast.AST, bool] = {}

    def before(self) -> ast.stmt | None:
        """The statement of a script in front of which a switch works for all that follows.

        That is where the first network is made, in the code that the script runs by itself: what its main guard runs, or
        its own statements. Where code of another file or a class makes it, that is where the script calls them. None for a
        file that is there to be imported, and where no network is made.
        """
        guards = [item for item in self._facts.tree.module.body if isinstance(item, ast.If) and is_main_guard(item.test)]
        return self._first(guards[0].body if guards else self._facts.tree.module.body, 0)

    def before_training(self) -> ast.stmt | None:
        """As :meth:`before`, for a script that may run code which trains; None for others, though they may import such code.

        Where processes train that the script starts, the statement is in code which they run, or there is none.
        """
        program = self._facts.program
        trained = [
            facts.tree.function(training.node.body[0])
            for facts in program.files
            for training in facts.loops.all
            if program.runs(facts, training.node.body[0])
        ]
        place = self.before() if trained else None
        if place is None or not any(function in program.run_apart for function in trained):
            return place
        return place if self._facts.tree.function(place) in program.run_apart else None

    def _first(self, block: list[ast.stmt], depth: int) -> ast.stmt | None:
        """The statement of a block, or of a function that the block runs, that makes the first network."""
        for statement in block:
            if isinstance(statement, (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)):
                continue
            if self._makes_network(statement):
                inner = [item for item in child_blocks(statement) if isinstance(statement, (ast.With, ast.Try))]
                return next((found for item in inner if (found := self._first(item, depth)) is not None), statement)
            for definition, is_called in self._run_by(statement):
                node = definition.node
                if definition.facts is not self._facts or not isinstance(node, FUNCTIONS):
                    if is_called and self._leads_to_network(definition, depth):
                        return statement
                    continue
                found = self._first(node.body, depth + 1) if depth < _DEPTH else None
                if found is not None:
                    return found if not is_called or self._is_called_once(node.name) else statement
        return None

    def _run_by(self, statement: ast.stmt) -> Iterator[tuple[Definition, bool]]:
        """What of the project a statement calls, or hands to a library that calls it (``Fire(main)``, ``mp.spawn(worker)``)."""
        for call in (node for node in walk_here(statement) if isinstance(node, ast.Call)):
            definition = self._facts.names.definition(call.func)
            if definition is not None:
                yield definition, True
                continue
            for given in (*call.args, *(item.value for item in call.keywords)):
                handed = self._facts.names.definition(given) if isinstance(given, (ast.Name, ast.Attribute)) else None
                if handed is not None:
                    yield handed, False

    def _makes_network(self, statement: ast.stmt) -> bool:
        return any(isinstance(node, ast.Call) and _is_network(self._facts, node) for node in walk_here(statement))

    def _leads_to_network(self, definition: Definition, depth: int) -> bool:
        """Whether a function, or a method of a class, makes a network, itself or through what it calls."""
        if definition.node in self._leading:
            return self._leading[definition.node]
        self._leading[definition.node] = False
        facts = definition.facts
        calls = [node for node in walk(definition.node) if isinstance(node, ast.Call)]
        found = any(_is_network(facts, call) for call in calls)
        if not found and depth < _DEPTH:
            inner = (named for call in calls if (named := facts.names.definition(call.func)) is not None)
            found = any(self._leads_to_network(named, depth + 1) for named in inner)
        self._leading[definition.node] = found
        return found

    def _is_called_once(self, name: str) -> bool:
        return len(self._facts.tree.calls.get(name, ())) == 1


def _is_network(facts: Facts, call: ast.Call) -> bool:
    return facts.models.is_module(call) and not facts.models.is_loss(call)
