"""What runs in a loader's worker processes: datasets' methods, collate functions, and what those call."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, Function, last_name
from torchfix.facts.training.models import derives

if TYPE_CHECKING:
    from torchfix.facts import Facts

_DATASETS = ("torch.utils.data.Dataset", "torch.utils.data.IterableDataset", "torchvision.datasets.")
_IN_WORKERS = ("collate_fn", "worker_init_fn")


class Workers:
    """Questions about what one file runs in workers."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[int, bool] = {}

    def run(self, node: ast.AST) -> bool:
        """Whether the code at a node may run in a worker: in a dataset after it was made, or in a collate function."""
        function = self._facts.tree.function(node)
        return function is not None and self._runs(function)

    def _runs(self, function: Function) -> bool:
        key = id(function)
        if key not in self._asked:
            self._asked[key] = False  # a function that only calls itself runs nowhere
            self._asked[key] = self._is_dataset_method(function) or self._collates(function) or self._is_called_there(function)
        return self._asked[key]

    def _is_dataset_method(self, function: Function) -> bool:
        owner = self._facts.tree.class_of(function)
        if owner is None or function.name == "__init__":
            return False
        items = any(isinstance(item, FUNCTIONS) and item.name == "__getitem__" for item in owner.body)
        return items or derives(Definition(self._facts, owner), _DATASETS)

    def _collates(self, function: Function) -> bool:
        """Whether a loader of the project is given this function, by name, as a method or in a partial."""
        project = self._facts.project
        files = [self._facts, *(project.file(path) for path in project.mentioning(function.name, self._facts.path))]
        for facts in files:
            for call in facts.tree.calls.get("DataLoader", ()) if facts is not None else ():
                given = [item for name in _IN_WORKERS if (item := argument(call, name)) is not None]
                for node in (inner for item in given for inner in ast.walk(item)):
                    if isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) == function.name:
                        return True
        return False

    def _is_called_there(self, function: Function) -> bool:
        return any(facts.workers.run(call) for facts, call in self._facts.callers_everywhere(function) or ())
