"""What outlives a forward pass beside its output: what a network stores in itself, and what hooks keep of its layers.

A later reading of it may send it backward, and then needs the graph of the pass that stored it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called, classes_of
from torchfix.facts.code.calls import receiver
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, Function, last_name, walk_here
from torchfix.facts.code.values import returns
from torchfix.facts.training.gradients import End, Fate, are_related
from torchfix.facts.training.models import is_module_class

if TYPE_CHECKING:
    from torchfix.facts import Facts

_HOOKS = ("register_forward_hook", "register_forward_pre_hook")
_KEEPING = frozenset("append extend insert add appendleft update setdefault".split())
_DEPTH = 3  # callers asked above a reading


class Remembered:
    """Questions about the networks that one file runs."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._classes: dict[ast.AST, tuple[Fate, ...]] = {}

    def by(self, statements: Iterable[ast.AST]) -> Iterator[Fate]:
        """What becomes of what the forward passes in some statements, or in what they call, leave behind."""
        passes = False
        seen: set[Function] = set()
        waiting = [(self._facts, node) for item in statements for node in walk_here(item) if isinstance(node, ast.Call)]
        while waiting:
            facts, call = waiting.pop()
            networks = facts.models.run_by(call) or ()
            passes = passes or bool(networks) or facts.passes.is_evaluated_object(call.func)
            for definition in (network.definition for network in networks if network.definition is not None):
                for reached in definition.facts.models.hidden_classes(definition):
                    yield from reached.facts.remembered._of_class(reached)
            for there, function in called(facts, call):
                if function not in seen:
                    seen.add(function)
                    nodes = (node for item in function.body for node in walk_here(item))
                    waiting += [(there, node) for node in nodes if isinstance(node, ast.Call)]
        if passes:
            yield from self._by_hooks

    # What a network stores ------------------------------------------------------------------------------------

    def _of_class(self, definition: Definition) -> tuple[Fate, ...]:
        if definition.node not in self._classes:
            self._classes[definition.node] = ()  # what is stored in layers that hold each other adds nothing new
            if isinstance(definition.node, ast.ClassDef) and is_module_class(definition):
                names = {name for function in self._forwards(definition.node) for name in self._stored(function)}
                readings = (fate for name in sorted(names) for fate in self._readings(definition.node, name))
                self._classes[definition.node] = tuple(readings)
        return self._classes[definition.node]

    def _forwards(self, owner: ast.ClassDef) -> list[Function]:
        """The forward pass of a class, and the methods of the class that it runs."""
        found = [item for item in owner.body if isinstance(item, FUNCTIONS) and item.name in ("forward", "__call__")]
        for function in found:
            calls = (node for item in function.body for node in walk_here(item) if isinstance(node, ast.Call))
            found += [method for call in calls if (method := self._facts.own_method(call)) is not None and method not in found]
        return found

    def _stored(self, function: Function) -> Iterator[str]:
        """The attributes of ``self`` in which a method puts what weights took part in."""
        weigh = self._facts.graphs.has_weights
        for node in (node for item in function.body for node in walk_here(item)):
            if isinstance(node, (ast.Assign, ast.AugAssign)) and weigh(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (name for target in targets if (name := self._attribute(target)) is not None)
            elif isinstance(node, ast.Call) and last_name(node.func) in _KEEPING and any(map(weigh, node.args)):
                source = receiver(node)
                name = self._attribute(source) if source is not None else None
                if name is not None:
                    yield name

    def _attribute(self, target: ast.expr) -> str | None:
        """The attribute of ``self`` that a target is, or is an entry of."""
        while isinstance(target, ast.Subscript):
            target = target.value
        own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and self._facts.is_self(target.value)
        return target.attr if own and isinstance(target, ast.Attribute) else None

    def _readings(self, owner: ast.ClassDef, name: str) -> Iterator[Fate]:
        """What becomes of an attribute where it is read without a new forward pass, or a new value, just before."""
        for there in self._facts.program.everywhere:
            for use in there.tree.attributes.get(name, ()):
                other = there.tree.method_class(use) if isinstance(use.value, ast.Name) and there.is_self(use.value) else None
                if not isinstance(use.ctx, ast.Load) or (other is not None and not are_related(self._facts, owner, there, other)):
                    continue
                parent = there.tree.parent(use)
                keeps = isinstance(parent, ast.Attribute) and parent.attr in _KEEPING
                if not keeps and there.names.qualified(use) is None and not there.remembered._is_fresh(use, owner, name):
                    yield there.gradients.of_value(use)

    def _is_fresh(self, node: ast.AST, owner: ast.ClassDef, name: str, _depth: int = 0) -> bool:
        """Whether an attribute surely got its value in this training step before it is read at a place, or nobody runs that place."""
        tree = self._facts.tree
        inner = tree.statement(node)
        while True:
            around, block, index = tree.place(inner)
            if any(self._sets(statement, owner, name) for statement in block[:index]):
                return True
            if isinstance(around, (ast.Module, ast.ClassDef, *FUNCTIONS)):
                break
            inner = tree.statement(around)
        function = tree.function(node)
        calls = self._facts.callers_everywhere(function) if function is not None and _depth < _DEPTH else None
        return calls is not None and all(there.remembered._is_fresh(call, owner, name, _depth + 1) for there, call in calls)

    def _sets(self, statement: ast.stmt, owner: ast.ClassDef, name: str) -> bool:
        """Whether a statement surely sets an attribute, itself or by a forward pass of a network that holds the class."""
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            return any(self._sets(item, owner, name) for item in statement.body)
        if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)):
            return False
        for node in walk_here(statement):
            if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store):
                return True
            for network in (self._facts.models.run_by(node) or ()) if isinstance(node, ast.Call) else ():
                made = network.definition
                if made is not None and any(item.node is owner for item in made.facts.models.hidden_classes(made)):
                    return True
        return False

    # What hooks keep ------------------------------------------------------------------------------------------

    @cached_property
    def _by_hooks(self) -> tuple[Fate, ...]:
        """What becomes of what hooks are given in the programs of this file."""
        found = []
        for there in self._facts.program.holding(*_HOOKS):
            for call in there.calls.methods(*_HOOKS):
                handlers = list(there.remembered._handlers(call.args[0])) if call.args else []
                found += [facts.gradients.of_parameters(handler) for facts, handler in handlers] or [Fate(End.UNSEEN, there, call)]
        return tuple(found)

    def _handlers(self, given: ast.expr) -> Iterator[tuple[Facts, Function | ast.Lambda]]:
        """The functions that a hook may be: itself, a method, or what a function of the project gives."""
        facts = self._facts
        if isinstance(given, ast.Lambda):
            yield facts, given
        elif isinstance(given, ast.Call):
            if facts.calls.meaning(given) == "functools.partial" and given.args:
                yield from self._handlers(given.args[0])
            for there, function in called(facts, given):
                for result in returns(function):
                    yield from there.remembered._handlers(result)
        else:
            definition = facts.names.definition(given)
            methods = [definition] if definition is not None else []
            if definition is None and isinstance(given, ast.Attribute):
                methods = [found for owner in classes_of(facts, given.value) if (found := method_of(owner, given.attr)) is not None]
            yield from ((found.facts, found.node) for found in methods if isinstance(found.node, FUNCTIONS))
