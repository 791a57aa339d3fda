"""Where the program of a script begins its work, so that a switch for the whole run can be set there."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.tree import FUNCTIONS, child_blocks, walk_here
from torchfix.facts.project.programs import is_main_guard

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Startup:
    """Questions about the beginning of one file's program."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def before(self) -> ast.stmt | None:
        """The statement of a script in front of which a switch works for all that follows.

        That is where the first network is made, in the code that the script runs by itself: what its main guard runs, or
        its own statements. None for a file that is there to be imported, and where no network is made.
        """
        guards = [item for item in self._facts.tree.module.body if isinstance(item, ast.If) and is_main_guard(item.test)]
        if guards:
            return self._first(guards[0].body, 0)
        return self._first(self._facts.tree.module.body, 0)

    def before_training(self) -> ast.stmt | None:
        """As :meth:`before`, for the script of a program that sends something backward; None where it sends nothing."""
        sends = next(iter(self._facts.program.holding("backward")), None) is not None
        return self.before() if sends else None

    def _first(self, block: list[ast.stmt], depth: int) -> ast.stmt | None:
        """The statement of a block, or of a function that the block calls, that makes the first network."""
        for statement in block:
            if isinstance(statement, (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)):
                continue
            if self._makes_network(statement):
                inner = [item for item in child_blocks(statement) if isinstance(statement, (ast.With, ast.Try))]
                return next((found for item in inner if (found := self._first(item, depth)) is not None), statement)
            for call in (node for node in walk_here(statement) if isinstance(node, ast.Call)):
                definition = self._facts.names.definition(call.func)
                if definition is None or definition.facts is not self._facts or not isinstance(definition.node, FUNCTIONS) or depth > 2:
                    continue
                found = self._first(definition.node.body, depth + 1)
                if found is not None:
                    return found if self._is_called_once(definition.node.name) else statement
        return None

    def _makes_network(self, statement: ast.stmt) -> bool:
        models = self._facts.models
        return any(isinstance(node, ast.Call) and models.is_module(node) and not models.is_loss(node) for node in walk_here(statement))

    def _is_called_once(self, name: str) -> bool:
        return len(self._facts.tree.calls.get(name, ())) == 1
