"""What a program repeats for every batch: loops over batches, and the functions that they call, guarded or not."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import receiver
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, Function, LoopNode
from torchfix.facts.training.models import derives, is_lightning_class

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Repeated(enum.Enum):
    """How often a place runs.

    ``BATCH``: once or more for every batch, where its conditions let it. ``BOTH``: so, and from elsewhere too.
    ``SELDOM``: for no batch, as far as is seen.
    """

    BATCH = "batch"
    BOTH = "both"
    SELDOM = "seldom"


# What Lightning calls for every batch (Lightning documentation, LightningModule and Callback hooks).
_HOOKS = frozenset(
    """training_step validation_step test_step predict_step on_train_batch_start on_train_batch_end on_validation_batch_start
    on_validation_batch_end on_test_batch_start on_test_batch_end on_predict_batch_start on_predict_batch_end optimizer_step
    on_before_backward on_after_backward on_before_optimizer_step on_before_zero_grad""".split()
)
_CALLBACKS = ("pytorch_lightning.", "lightning.pytorch.", "lightning.Callback")
_MOVES = ("to", "cuda")


class Repetition:
    """Questions about how often the code of one file runs."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._loops: dict[LoopNode, bool] = {}
        self._functions: dict[Function, Repeated] = {}

    def takes_batches(self, node: ast.AST) -> bool:
        """Whether a node is a loop that takes one batch at a time, to train or to evaluate."""
        if not isinstance(node, LOOPS):
            return False
        if node not in self._loops:
            self._loops[node] = self._takes_batches(node)
        return self._loops[node]

    def _takes_batches(self, node: LoopNode) -> bool:
        facts = self._facts
        if isinstance(node, (ast.For, ast.AsyncFor)) and self._moves_target(node):
            return True
        return facts.loops.at(node) is not None or node in facts.loaders.by_loop or node in facts.loops.indirect

    def _moves_target(self, node: ast.For | ast.AsyncFor) -> bool:
        """Whether a loop copies what it iterates over to a device, as batches are; a network would be moved as it is."""
        targets = {item.id for item in ast.walk(node.target) if isinstance(item, ast.Name)}
        for call in self._facts.calls.methods(*_MOVES):
            source = receiver(call)
            if source is None or not self._facts.tree.is_within(call, node) or isinstance(self._facts.tree.parent(call), ast.Expr):
                continue
            if any(isinstance(item, ast.Name) and item.id in targets for item in ast.walk(source)):
                return not self._facts.models.is_module(source)
        return False

    def around(self, node: ast.AST) -> LoopNode | None:
        """The nearest loop over batches in whose body a node stands, in the same function."""
        inner = node
        for outer in self._facts.tree.ancestors(node):
            if isinstance(outer, (*FUNCTIONS, ast.Lambda)):
                return None
            if isinstance(outer, LOOPS) and inner in outer.body and self.takes_batches(outer):
                return outer
            inner = outer
        return None

    def of(self, node: ast.AST) -> Repeated:
        """How often a node runs: by the loops around it, or by those that call its function."""
        if self.around(node) is not None:
            return Repeated.BATCH
        function = self._facts.tree.function(node)
        return self.of_function(function) if function is not None else Repeated.SELDOM

    def of_function(self, function: Function) -> Repeated:
        """How often a function runs, by its calls in all files of the project."""
        if function not in self._functions:
            self._functions[function] = Repeated.SELDOM  # recursion alone repeats nothing for a batch
            self._functions[function] = self._of_function(function)
        return self._functions[function]

    def _of_function(self, function: Function) -> Repeated:
        owner = self._facts.tree.class_of(function)
        if owner is not None and function.name in _HOOKS and _is_lightning(Definition(self._facts, owner)):
            return Repeated.BATCH
        if owner is not None and function.name == "forward" and self._is_trained(owner):
            return Repeated.BATCH
        found = {facts.repetition.of(call) for facts, call in self._calls(function, owner is not None)}
        if Repeated.BATCH not in found and Repeated.BOTH not in found:
            return Repeated.SELDOM
        return Repeated.BATCH if found == {Repeated.BATCH} else Repeated.BOTH

    def _calls(self, function: Function, is_method: bool) -> Iterator[tuple[Facts, ast.Call]]:
        """The calls that may run a function, in its file and in those that import it."""
        for facts in self._mentioning(function.name):
            for call in _named(facts, function.name):
                found = [item for _, item in called(facts, call)]
                if function in found or (is_method and not found and _may_be_of_project(facts, call)):
                    yield facts, call

    def _mentioning(self, word: str) -> Iterator[Facts]:
        """This file, and those that import it and hold a word, by way of its package too."""
        yield self._facts
        project, seen = self._facts.project, {self._facts.path}
        waiting = [self._facts.path]
        while waiting:
            for path in project.mentioning(word, waiting.pop()):
                facts = project.file(path) if path not in seen else None
                seen.add(path)
                if facts is not None:
                    yield facts
                    waiting += [path] if path.endswith("__init__.py") else []

    def _is_trained(self, owner: ast.ClassDef) -> bool:
        """Whether a training loop of the project runs a network that holds this class."""
        project = self._facts.project
        trained = (self._facts if path == self._facts.path else project.file(path) for path in project.holding("backward"))
        for facts in (facts for facts in trained if facts is not None):
            networks = (network for loop in facts.loops.training for call in loop.forwards for network in facts.models.of(call.func) or ())
            for made in (network.definition for network in networks):
                if made is not None and any(item.node is owner for item in made.facts.models.hidden_classes(made)):
                    return True
        return False


def _named(facts: Facts, name: str) -> Iterator[ast.Call]:
    """The calls of something by a name, or by what an import makes of it."""
    others = {alias.asname for node in facts.tree.imports for alias in node.names if alias.asname and alias.name == name}
    for local in {name} | others:
        yield from facts.tree.calls.get(local, ())


def _may_be_of_project(facts: Facts, call: ast.Call) -> bool:
    """Whether a method call whose object is not known may be that of a class of the project, rather than torch's."""
    source = receiver(call)
    if source is None:
        return False
    made = [value.facts.calls.meaning(value.node) for value in facts.values.of(source) or () if isinstance(value.node, ast.Call)]
    return not made or any(not (meaning or "").startswith("torch.") for meaning in made)


def _is_lightning(owner: Definition) -> bool:
    return is_lightning_class(owner) or derives(owner, _CALLBACKS)
