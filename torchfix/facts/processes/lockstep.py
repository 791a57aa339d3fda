"""Where a program decides by what may differ between the processes that train one model together.

Such processes run the same script on their own share of the batches, and must all come to every forward, backward and
barrier, or the others wait for ever. Batches, and whatever was computed from them, may differ; so may clocks and random
numbers. The command line, the files, the lengths of loaders and the numbers of epochs are the same everywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import keyword
from torchfix.facts.code.scopes import Binding, Bound, parameters
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, Function, dotted, walk_here
from torchfix.facts.code.values import ELEMENT, passed
from torchfix.facts.data.loaders import DATA_LOADER

if TYPE_CHECKING:
    from torchfix.facts import Facts

_DIFFERING = ("time.", "random.", "numpy.random.", "datetime.datetime.now", "datetime.datetime.today", "uuid.", "tempfile.", "os.getpid")
_DIFFERING_CALLS = frozenset(["builtins.input", "builtins.next", "builtins.id", "torch.cuda.memory_allocated", "torch.randperm"])
_DRAWS = frozenset(["rand", "randn", "randint", "bernoulli", "multinomial", "normal"])
_FIXED = (Bound.IMPORT, Bound.STAR, Bound.FUNCTION, Bound.CLASS)
_SEEDING = (".seed", ".manual_seed")
_LEAVING = frozenset(["sys.exit", "builtins.exit", "builtins.quit", "os._exit"])


@dataclass(frozen=True, eq=False)
class Decision:
    """A place where processes could part.

    Args:
        test: the condition that may differ, of an ``if`` or ``while``; None where it is something else.
        node: where it stands.
        each_step: whether it is met in every iteration of a training loop, rather than once in a while.
        words: what depends on it.
    """

    test: ast.expr | None
    node: ast.AST
    each_step: bool
    words: str


class Lockstep:
    """Questions about what the processes of one script have in common."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[int, bool] = {}
        self._functions: dict[int, bool] = {}
        self._fed: dict[int, bool] = {}
        self._handed: dict[tuple[Function, str], bool] = {}

    # What may differ ------------------------------------------------------------------------------------------

    def differs(self, expression: ast.AST) -> bool:
        """Whether the value of an expression may differ between the processes."""
        key = id(expression)
        if key not in self._asked:
            self._asked[key] = False  # a circle of definitions brings nothing new
            self._asked[key] = self._judge(expression)
        return self._asked[key]

    def _judge(self, node: ast.AST) -> bool:
        if isinstance(node, ast.expr) and self._is_kept_equal(node):
            return False
        if isinstance(node, ast.Name):
            return isinstance(node.ctx, ast.Load) and self._name_differs(node)
        if isinstance(node, ast.Attribute):
            return self._attribute_differs(node)
        if isinstance(node, ast.Call) and self._call_differs(node):
            return True
        return any(self.differs(child) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context))

    def _is_kept_equal(self, node: ast.expr) -> bool:
        """Whether an expression is a loader, whose batches differ but not their number, or a network or its optimizer."""
        facts = self._facts
        return bool(facts.loaders.of(node) or facts.replicas.held_by(node) or facts.models.is_module(node) or facts.optimizers.of(node))

    def _name_differs(self, name: ast.Name) -> bool:
        if self._facts.is_self(name):
            return False
        bindings = [binding for binding in self._facts.flow.reaching(name) if binding.how not in _FIXED]
        return any(self._binding_differs(binding) for binding in bindings) or (bool(bindings) and self._is_fed(name))

    def _binding_differs(self, binding: Binding) -> bool:
        if binding.how is Bound.PARAMETER:
            return self._parameter_differs(binding.node)
        if binding.value is None:
            return not isinstance(binding.node, ast.Delete)
        if binding.how is Bound.LOOP:
            return self._item_differs(binding.value, binding.path)
        return self.differs(binding.value) or self._is_decided(binding.node)

    def _item_differs(self, iterable: ast.expr, path: tuple[int, ...]) -> bool:
        """Whether what a loop takes from an iterable may differ: a batch does, its number does not."""
        values = self._facts.values.of(iterable, (ELEMENT, *path))
        for value in values or ():
            if isinstance(value.node, ast.Call) and value.path and value.facts.calls.meaning(value.node) == DATA_LOADER:
                return True
        return self.differs(iterable)

    def _parameter_differs(self, parameter: ast.AST) -> bool:
        signature = self._facts.tree.parent(parameter)
        function = self._facts.tree.parent(signature) if signature is not None else None
        if not isinstance(function, FUNCTIONS) or not isinstance(parameter, ast.arg):
            return True
        calls = self._facts.callers(function)
        if calls is None:
            return True
        given = [passed(call, function, parameter, bound=self._facts.tree.class_of(function) is not None) for call in calls]
        return any(item is None or self.differs(item) for item in given)

    def _attribute_differs(self, node: ast.Attribute) -> bool:
        name = dotted(node)
        if name is None:
            return self.differs(node.value)
        if self._facts.names.qualified(node) is not None:
            return False  # something of a module
        for other in self._facts.tree.attributes.get(node.attr, ()):
            if isinstance(other.ctx, ast.Store) and dotted(other) == name and self._same_owner(node, other):
                statement = self._facts.tree.statement(other)
                value = getattr(statement, "value", None)
                if value is None or self.differs(value) or self._is_decided(statement):
                    return True
        return self.differs(node.value) or self._is_fed(node)

    def _same_owner(self, one: ast.Attribute, other: ast.Attribute) -> bool:
        first, second = _root(one), _root(other)
        if first is None or second is None:
            return False
        if self._facts.is_self(first) and self._facts.is_self(second):
            return self._facts.tree.method_class(one) is self._facts.tree.method_class(other)
        return self._facts.names.same(first, second)

    def _is_fed(self, holder: ast.Name | ast.Attribute) -> bool:
        """Whether an object is given what may differ: by its methods, its call, its items, or a function that it is passed to."""
        key = id(holder)
        if key not in self._fed:
            self._fed[key] = False  # a circle of functions feeds nothing new
            name, tree = dotted(holder), self._facts.tree
            alike: Iterable[ast.expr] = tree.names[holder.id] if isinstance(holder, ast.Name) else tree.attributes[holder.attr]
            uses = [use for use in alike if dotted(use) == name and self._same_variable(holder, use)]
            self._fed[key] = any(self._feeds(use) for use in uses)
        return self._fed[key]

    def _feeds(self, use: ast.expr) -> bool:
        tree = self._facts.tree
        parent = tree.parent(use)
        if isinstance(parent, ast.Subscript) and parent.value is use and isinstance(parent.ctx, ast.Store):
            value = getattr(tree.statement(parent), "value", None)
            return value is None or self.differs(value)
        outer = tree.parent(parent) if isinstance(parent, (ast.Attribute, ast.keyword)) and parent.value is use else parent
        if not isinstance(outer, ast.Call):
            return False
        if outer.func is parent or outer.func is use:
            return any(self.differs(part) for part in (*outer.args, *(item.value for item in outer.keywords)))
        return any(facts.lockstep._feeds_parameter(outer, function, use) for facts, function in called(self._facts, outer))

    def _feeds_parameter(self, call: ast.Call, function: Function, given: ast.expr) -> bool:
        """Whether a function feeds the object that a call hands it."""
        bound = self._facts.tree.class_of(function) is not None
        taking = [item.arg for item in parameters(function.args) if passed(call, function, item, bound) is given]
        return any(self._is_fed_in(function, name) for name in taking)

    def _is_fed_in(self, function: Function, name: str) -> bool:
        key = (function, name)
        if key not in self._handed:
            self._handed[key] = False  # a function that calls itself adds nothing new
            uses = [use for use in self._facts.tree.names.get(name, ()) if self._facts.tree.function(use) is function]
            self._handed[key] = any(self._feeds(use) for use in uses)
        return self._handed[key]

    def _same_variable(self, one: ast.expr, other: ast.expr) -> bool:
        if isinstance(one, ast.Name) and isinstance(other, ast.Name):
            return self._facts.names.same(one, other)
        return isinstance(one, ast.Attribute) and isinstance(other, ast.Attribute) and self._same_owner(one, other)

    def _call_differs(self, call: ast.Call) -> bool:
        meaning = self._facts.calls.meaning(call) or ""
        if meaning.endswith(_SEEDING):
            return False
        if meaning.startswith(_DIFFERING) or meaning in _DIFFERING_CALLS:
            return True
        if meaning.startswith("torch.") and meaning.rpartition(".")[2] in _DRAWS:
            return keyword(call, "generator") is None
        return any(facts.lockstep._function_differs(function) for facts, function in called(self._facts, call))

    def _function_differs(self, function: Function) -> bool:
        """Whether what a function returns may differ for equal arguments: it draws, reads the clock or takes batches."""
        key = id(function)
        if key not in self._functions:
            self._functions[key] = False
            nodes = [node for statement in function.body for node in walk_here(statement)]
            self._functions[key] = any(isinstance(node, ast.Call) and self._call_differs(node) for node in nodes) or any(
                isinstance(node, LOOPS) and self._facts.loaders.by_loop.get(node) for node in nodes
            )
        return self._functions[key]

    def _is_decided(self, statement: ast.AST) -> bool:
        """Whether it depends on what may differ that a statement runs at all."""
        inner = statement
        for outer in self._facts.tree.ancestors(statement):
            if isinstance(outer, FUNCTIONS):
                return False
            if isinstance(outer, (ast.If, ast.While)) and inner is not outer.test and self.differs(outer.test):
                return True
            inner = outer
        return False

    # What all processes must come to ---------------------------------------------------------------------------

    @cached_property
    def meetings(self) -> frozenset[ast.Call]:
        """The calls that all processes must make alike: forward and backward of a replicated network, and what leads there."""
        replicas, tree = self._facts.replicas, self._facts.tree
        direct = {*replicas.forwards, *(call for loop in self._facts.loops.training for call in loop.backwards)}
        direct |= {call for calls in tree.calls.values() for call in calls if self._hands_on(call)}
        found = set(direct)
        functions: set[Function] = set()
        while True:
            new = {function for call in found if (function := tree.function(call)) is not None} - functions
            if not new:
                return frozenset(found)
            functions |= new
            found |= {call for calls in tree.calls.values() for call in calls if self._runs(call, new)}

    def _hands_on(self, call: ast.Call) -> bool:
        """Whether a function of another file is given a replicated network."""
        if all(facts is self._facts for facts, _ in called(self._facts, call)):
            return False
        return any(self._facts.replicas.held_by(part) for part in (*call.args, *(item.value for item in call.keywords)))

    def _runs(self, call: ast.Call, functions: set[Function]) -> bool:
        run = [function for _, function in called(self._facts, call)]
        if run:
            return any(function in functions for function in run)
        methods = {function.name for function in functions if self._facts.tree.class_of(function) is not None}
        return isinstance(call.func, ast.Attribute) and call.func.attr in methods

    def decisions(self, also: Iterable[ast.AST] = ()) -> Iterator[Decision]:
        """The places at which processes could part on the way to a meeting, in the order of the text.

        Args:
            also: further nodes that all processes must come to.
        """
        found: dict[int, Decision] = {}
        meetings = [*self.meetings, *also]
        for meeting in meetings:
            for decision in self._on_the_way(meeting):
                found.setdefault(id(decision.test or decision.node), decision)
        for jump, scope in self._jumps(meetings):
            for decision in self._between(jump, scope, "whether it goes on"):
                found.setdefault(id(decision.test or decision.node), decision)
        yield from sorted(found.values(), key=lambda item: (getattr(item.node, "lineno", 0), getattr(item.node, "col_offset", 0)))

    def _on_the_way(self, meeting: ast.AST) -> Iterator[Decision]:
        top = self._facts.tree.function(meeting) or self._facts.tree.module
        yield from self._between(meeting, top, "whether the network runs")

    def _between(self, node: ast.AST, scope: ast.AST, words: str) -> Iterator[Decision]:
        """What decides inside a scope whether a node is come to."""
        tree = self._facts.tree
        inner = node
        for outer in tree.ancestors(node):
            each_step = self._facts.loops.around(outer) is not None
            if isinstance(outer, (ast.If, ast.While, ast.IfExp)) and inner is not outer.test and outer is not scope:
                if self.differs(outer.test):
                    yield Decision(outer.test, outer, each_step, words)
            elif isinstance(outer, (ast.For, ast.AsyncFor)) and inner is not outer.iter and self.differs(outer.iter):
                yield Decision(None, outer, each_step, "how often the network runs")
            elif isinstance(outer, ast.BoolOp):
                earlier = outer.values[: next(i for i, item in enumerate(outer.values) if item is inner)]
                if any(self.differs(item) for item in earlier):
                    yield Decision(None, outer, each_step, words)
            elif isinstance(outer, ast.Try) and inner in outer.body and any(not _ends(handler) for handler in outer.handlers):
                yield Decision(None, outer, each_step, "an exception in one process")
            elif isinstance(outer, ast.ExceptHandler):
                yield Decision(None, outer, each_step, "an exception in one process")
            elif isinstance(outer, ast.Match) and self.differs(outer.subject):
                yield Decision(None, outer, each_step, words)
            if outer is scope:
                return
            inner = outer

    def _jumps(self, meetings: list[ast.AST]) -> Iterator[tuple[ast.AST, ast.AST]]:
        """What leaves a loop or function in which processes still have to meet, with that loop or function."""
        tree = self._facts.tree
        homes = {tree.function(meeting) for meeting in meetings}
        for home in homes:
            for statement in home.body if home is not None else tree.module.body:
                for node in walk_here(statement):
                    scope = self._left_by(node, home)
                    if scope is not None and any(self._still_to_come(meeting, node, scope) for meeting in meetings):
                        yield node, scope

    def _left_by(self, node: ast.AST, home: Function | None) -> ast.AST | None:
        if isinstance(node, (ast.Break, ast.Continue)):
            return self._facts.tree.nearest(node, (ast.For, ast.AsyncFor, ast.While))
        leaves = isinstance(node, ast.Return) or (isinstance(node, ast.Call) and self._facts.calls.meaning(node) in _LEAVING)
        return (home or self._facts.tree.module) if leaves else None

    def _still_to_come(self, meeting: ast.AST, jump: ast.AST, scope: ast.AST) -> bool:
        tree = self._facts.tree
        if not tree.is_within(meeting, scope):
            return False
        if isinstance(scope, LOOPS):
            return True
        behind = getattr(meeting, "lineno", 0) > getattr(jump, "lineno", 0)
        return behind or any(isinstance(outer, LOOPS) and tree.is_within(meeting, outer) for outer in tree.ancestors(jump))


def _ends(handler: ast.ExceptHandler) -> bool:
    """Whether a handler ends the program, or is for the interrupt that all processes get."""
    if isinstance(handler.type, ast.Name) and handler.type.id in ("KeyboardInterrupt", "SystemExit"):
        return True
    last = handler.body[-1]
    return isinstance(last, ast.Raise)


def _root(node: ast.expr) -> ast.Name | None:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node if isinstance(node, ast.Name) else None
