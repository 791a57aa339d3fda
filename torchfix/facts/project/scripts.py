"""The script that a file is: its main guard, what that starts, and whether it already runs in several processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.obstacle import Obstacle
from torchfix.facts.project.programs import is_main_guard

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Script:
    """Questions about one file as a program of its own."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def guard(self) -> ast.If | None:
        """The ``if __name__ == "__main__":`` of the module; None where there is none or several."""
        found = [node for node in self._facts.tree.module.body if isinstance(node, ast.If) and is_main_guard(node.test)]
        return found[0] if len(found) == 1 else None

    @property
    def guarded(self) -> list[ast.stmt]:
        """The statements under the guard; empty where there is none."""
        return self.guard.body if self.guard is not None else []

    def is_started_by_guard(self, node: ast.AST) -> bool:
        """Whether a node runs from the main guard and never on import."""
        if self.guard is None or self._facts.program.runs_unguarded(node):
            return False
        function = self._facts.tree.function(node)
        return self._facts.tree.is_within(node, self.guard) if function is None else function in self._facts.program.guarded

    def owners(self) -> Iterator[Obstacle]:
        """Who else decides in which processes the script runs."""
        facts = self._facts
        if facts.path.endswith(".ipynb"):
            yield Obstacle("notebook", "a notebook is one process", "move the training code into a script")
            return
        if facts.program.runs_process_per_device or self._names_a_rank():
            yield Obstacle(
                "already-distributed",
                "the program already knows how to run one process per GPU",
                "start it that way (torchrun), and drop the DataParallel branch",
            )
        frameworks = facts.program.frameworks
        if frameworks:
            words = f"the program imports {frameworks[0]}, which may run the training"
            yield Obstacle("framework", words, f"ask {frameworks[0]} for its own distributed strategy")

    def starts(self, node: ast.AST) -> Iterator[Obstacle]:
        """Why the part of the script that holds a node does not start from its main guard."""
        if not self.is_started_by_guard(node):
            yield Obstacle(
                "no-main-guard",
                'the training does not start from an if __name__ == "__main__": of this file alone',
                'move the module-level code into a main() function and call it under if __name__ == "__main__":',
            )

    def _names_a_rank(self) -> bool:
        """Whether the file reads the rank of its process, or imports what it needs to have one."""
        words = {"LOCAL_RANK", "WORLD_SIZE", "--local_rank", "--local-rank"}
        if any(
            isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in words
            for node in ast.walk(self._facts.source.tree)
        ):
            return True
        found = [alias.name for node in self._facts.tree.imports if isinstance(node, ast.Import) for alias in node.names]
        found += [node.module or "" for node in self._facts.tree.imports if isinstance(node, ast.ImportFrom)]
        return any(name.startswith("torch.distributed") for name in found)
