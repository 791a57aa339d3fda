"""Who takes a loader's batches, in all files of its programs: loops, fresh iterators, and copies to devices."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.instances import Origin
from torchfix.facts.code.tree import COMPREHENSIONS, LOOPS, LoopNode, last_name, walk_here
from torchfix.facts.data.loaders import Loader
from torchfix.facts.data.samples import instances_of
from torchfix.facts.data.traits import changes_kept
from torchfix.facts.tensors.devices import Transfer

if TYPE_CHECKING:
    from torchfix.facts import Facts

# What can be read of a loader without iterating it.
_READ = ("dataset", "batch_size", "sampler", "batch_sampler", "num_workers", "drop_last", "collate_fn")


class Consumers:
    """Questions about who takes the batches of one loader."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._files = loader.facts.program.everywhere

    def loops(self) -> Iterator[tuple[Facts, LoopNode]]:
        """The loops that surely take their batches from the loader, each with the facts of its file."""
        for facts in self._files:
            for node, loaders in facts.loaders.by_loop.items():
                if self._loader in loaders:
                    yield facts, node

    def moves(self) -> Iterator[tuple[Facts, Transfer]]:
        """The copies of batches, or of parts of them as the loader made them, to devices."""
        for facts in self._files:
            for transfer, part in facts.batches.copies:
                if self._loader in part.loaders and not part.is_made:
                    yield facts, transfer

    def fresh_iterators(self) -> Iterator[tuple[Facts, ast.Call]]:
        """The ``next(iter(loader))`` calls that a loop or function repeats, each of which starts the loader anew."""
        for facts in self._files:
            for call in facts.tree.calls.get("next", ()):
                inner = call.args[0] if call.args else None
                if not isinstance(inner, ast.Call) or last_name(inner.func) != "iter" or not inner.args:
                    continue
                repeated = facts.tree.function(call) is not None or facts.tree.nearest(call, (*LOOPS, *COMPREHENSIONS)) is not None
                if repeated and self._loader in (facts.loaders.of(inner.args[0]) or ()):
                    yield facts, call

    def dataset_changes(self) -> Iterator[tuple[Facts, ast.expr]]:
        """The places in loops over the loader that change its dataset: an attribute of it, or by a method that does."""
        made = {value.node for value in self._loader.dataset_values() or () if not value.path}
        for facts, loop in self.loops():
            for node in (item for statement in loop.body for item in walk_here(statement)):
                if isinstance(node, ast.Attribute) and self._is_dataset(facts, node.value, made):
                    if isinstance(node.ctx, ast.Store) or self._changes_itself(node.attr):
                        yield facts, node

    def _is_dataset(self, facts: Facts, expression: ast.expr, made: set[ast.AST]) -> bool:
        if isinstance(expression, ast.Attribute) and expression.attr == "dataset":
            return self._loader in (facts.loaders.of(expression.value) or ())
        return any(value.node in made for value in facts.values.of(expression) or ())

    def _changes_itself(self, name: str) -> bool:
        """Whether the dataset has a method of that name that changes what the object keeps."""
        for value in self._loader.dataset_values() or ():
            for instance in instances_of(Origin(value.facts, value.node)) if isinstance(value.node, ast.Call) else ():
                method = instance.method(name)
                if method is not None and any(changes_kept(method[0], node) for node in ast.walk(method[1])):
                    return True
        return False

    def exist(self) -> bool:
        """Whether anything may iterate the loader at all."""
        return self._variable is None or next(self._uses(), None) is not None

    def start_unguarded(self) -> bool:
        """Whether some program may iterate the loader while its main script is imported, outside the main guard."""
        return next(self._unguarded(), None) is not None

    def unguarded_start(self) -> tuple[Facts, ast.stmt] | None:
        """The first statement at the top of a script, outside its main guard, that may come to iterate the loader."""
        found = (there.program.unguarded_start(use) for there, use in self._unguarded())
        return min((start for start in found if start is not None), key=lambda start: start[1].lineno, default=None)

    def _unguarded(self) -> Iterator[tuple[Facts, ast.expr]]:
        """The places that may iterate the loader while a script is imported."""
        facts, call = self._loader.facts, self._loader.call
        if facts.program.runs_unguarded(call):
            places = self._uses() if self._variable is not None else iter([(facts, call)])
            yield from ((there, use) for there, use in places if there.program.runs_unguarded(use))

    def _uses(self) -> Iterator[tuple[Facts, ast.expr]]:
        """The places that read the loader's variable for more than its length and settings, by its name."""
        name = last_name(self._variable) or "" if self._variable is not None else ""
        for facts in self._files:
            for use in (*facts.tree.names.get(name, ()), *facts.tree.attributes.get(name, ())):
                if isinstance(use.ctx, ast.Load) and not _only_reads(facts, use):
                    yield facts, use

    @cached_property
    def _variable(self) -> ast.Name | ast.Attribute | None:
        """The variable or attribute that the loader is assigned to as it is made; None where it goes elsewhere."""
        statement = self._loader.facts.tree.parent(self._loader.call)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        return targets[0] if len(targets) == 1 and isinstance(targets[0], (ast.Name, ast.Attribute)) else None


def _only_reads(facts: Facts, use: ast.expr) -> bool:
    """Whether a use of a loader asks for its length or settings only."""
    parent = facts.tree.parent(use)
    if isinstance(parent, ast.Attribute):
        return parent.attr in _READ
    return isinstance(parent, ast.Call) and facts.calls.meaning(parent) == "builtins.len"
