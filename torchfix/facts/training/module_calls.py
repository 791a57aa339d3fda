"""Every call of a module that a program makes: through variables, parameters, attributes and wrappers, or where it goes out of sight.

Known or None: a module that is handed to code which is not seen may be called there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.classes import SELF_RETURNING, lineage
from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import Binding, Bound, parameters
from torchfix.facts.code.tree import FUNCTIONS, Function, last_name, walk
from torchfix.facts.code.values import passed, returns

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Methods of every module that neither run it nor change what it computes.
_HARMLESS = frozenset("parameters named_parameters state_dict load_state_dict zero_grad".split())
# Those that list what a module is made of; harmless where a loop walks over it.
_LISTING = frozenset("modules named_modules buffers named_buffers".split())
# Functions that take a module and return one that computes the same.
_WRAPPERS = ("torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel", "torch.compile")
RUNNERS = ("torch.nn.parallel.data_parallel",)
"""Functions that run the module that they are given first."""
_READERS = ("builtins.print", "builtins.id", "builtins.type")


class OutOfSight(Exception):
    """A module goes where its calls are not seen.

    Args:
        facts: the file of the place.
        node: what is done with it there.
    """

    def __init__(self, facts: Facts, node: ast.AST) -> None:
        super().__init__()
        self.facts = facts
        self.node = node


def calls_of(made: Iterable[tuple[Facts, ast.expr]], own: frozenset[str] = frozenset()) -> tuple[tuple[Facts, ast.Call], ...]:
    """The calls of the modules that some expressions make, each with the facts of its file, in the order in which they are met.

    A variable may hold now one of these modules and now another of them.

    Args:
        made: the expressions.
        own: what their class adds to ``nn.Module`` and may be asked for without running the module.

    Raises:
        OutOfSight: it may be called where that is not seen, or a variable that holds it may hold another object too.
    """
    search = _Search(own)
    for facts, expression in made:
        search.follow(facts, expression)
    search.check()
    return tuple(search.calls)


class _Search:
    """The way of one module through a program."""

    def __init__(self, own: frozenset[str]) -> None:
        self._own = own
        self.calls: list[tuple[Facts, ast.Call]] = []
        self._holding: set[ast.AST] = set()
        self._bindings: list[tuple[Facts, Binding]] = []
        self._functions: list[tuple[Facts, Function]] = []
        self._parameters: set[ast.AST] = set()
        self._passed: list[tuple[Facts, ast.Call, ast.expr | None]] = []

    def follow(self, facts: Facts, node: ast.expr) -> None:
        """Follow what an expression holds to what is done with it."""
        if node in self._holding:
            return
        self._holding.add(node)
        parent = facts.tree.parent(node)
        if isinstance(parent, ast.Call) and parent.func is node:
            self.calls.append((facts, parent))
        elif isinstance(parent, ast.Call):
            self._given(facts, parent, node)
        elif isinstance(parent, ast.keyword):
            call = facts.tree.parent(parent)
            self._given(facts, call, node) if isinstance(call, ast.Call) else self._lose(facts, node)
        elif isinstance(parent, ast.Attribute) and parent.value is node:
            self._asked(facts, parent)
        elif isinstance(parent, ast.Assign) and parent.value is node:
            for target in parent.targets:
                self._stored(facts, target)
        elif isinstance(parent, ast.Return):
            self._returned(facts, parent)
        elif not isinstance(parent, ast.Expr):
            self._lose(facts, node)

    def check(self) -> None:
        """Whether the variables, parameters and functions that hold the module never hold anything else."""
        for facts, binding in self._bindings:
            assigned = binding.how is Bound.ASSIGN and binding.value in self._holding and not binding.path
            if not assigned and binding.node not in self._parameters:
                self._lose(facts, binding.node)
        for facts, function in self._functions:
            for value in returns(function):
                if value not in self._holding:
                    self._lose(facts, value)
        for facts, call, given in self._passed:
            if given not in self._holding:
                self._lose(facts, call)

    @staticmethod
    def _lose(facts: Facts, node: ast.AST) -> None:
        raise OutOfSight(facts, node)

    def _asked(self, facts: Facts, attribute: ast.Attribute) -> None:
        """A method of the module, or what a wrapper keeps inside."""
        call = facts.tree.parent(attribute)
        if attribute.attr == "module" and isinstance(attribute.ctx, ast.Load):
            self.follow(facts, attribute)
        elif attribute.attr in self._own and isinstance(attribute.ctx, ast.Load):
            return
        elif not (isinstance(call, ast.Call) and call.func is attribute):
            self._lose(facts, attribute)
        elif isinstance(call, ast.Call) and attribute.attr in SELF_RETURNING - {"half", "double", "bfloat16", "type"}:
            self.follow(facts, call)
        elif attribute.attr not in _HARMLESS and not (isinstance(call, ast.Call) and _is_walked(facts, call)):
            self._lose(facts, attribute)

    def _given(self, facts: Facts, call: ast.Call, node: ast.expr) -> None:
        """The module is an argument of a call."""
        meaning = facts.calls.meaning(call)
        if meaning in _WRAPPERS and call.args and call.args[0] is node:
            self.follow(facts, call)
            return
        if meaning in RUNNERS and call.args and call.args[0] is node:
            self.calls.append((facts, call))
            return
        if meaning in _READERS:
            return
        found = list(called(facts, call))
        if len(found) != 1:
            self._lose(facts, node)
        home, function = found[0]
        bound = home.tree.class_of(function) is not None
        taking = [item for item in parameters(function.args) if passed(call, function, item, bound) is node]
        if len(taking) == 1 and only_lists(home, function, taking[0]):
            return
        callers = home.callers_everywhere(function)
        if len(taking) != 1 or not callers:
            self._lose(facts, node)
        self._passed += [(there, other, passed(other, function, taking[0], bound)) for there, other in callers or ()]
        self._parameters.add(taking[0])
        self._named(home, taking[0].arg, function.body[0])

    def _stored(self, facts: Facts, target: ast.expr) -> None:
        if isinstance(target, ast.Name):
            scope = facts.names.scope(target)
            if scope is facts.names.module and facts.project.mentions(target.id, facts.path):
                self._lose(facts, target)
            self._named(facts, target.id, target)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and facts.is_self(target.value):
            self._attribute(facts, target)
        else:
            self._lose(facts, target)

    def _named(self, facts: Facts, name: str, at: ast.AST) -> None:
        """A variable holds the module."""
        found = facts.names.lookup(name, at)
        if found is None or facts.tree.calls.get("locals") or facts.tree.calls.get("globals"):
            self._lose(facts, at)
            return
        scope, bindings = found
        if any(known is binding for _, known in self._bindings for binding in bindings):
            return
        self._bindings += [(facts, binding) for binding in bindings]
        for use in facts.tree.names.get(name, ()):
            seen = facts.names.lookup(name, use)
            if seen is not None and seen[0] is scope and isinstance(use.ctx, ast.Load):
                self.follow(facts, use)

    def _attribute(self, facts: Facts, target: ast.Attribute) -> None:
        """An attribute of an object holds the module: every attribute of this name is looked at, in all files."""
        owner = facts.tree.method_class(target)
        if owner is None or facts.classes.heirs(owner) or len(list(lineage(Definition(facts, owner)))) > 1:
            self._lose(facts, target)
        for path in {facts.path, *facts.project.holding(target.attr)}:
            there = facts if path == facts.path else facts.project.file(path)
            for use in there.tree.attributes.get(target.attr, ()) if there is not None else ():
                assert there is not None
                own = isinstance(use.value, ast.Name) and there.is_self(use.value)
                if own and there.tree.method_class(use) is not owner:
                    continue
                if not own and there.names.qualified(use) is None:
                    self._lose(there, use)
                if not own:
                    continue
                if isinstance(use.ctx, ast.Load):
                    self.follow(there, use)
                elif isinstance(use.ctx, ast.Store):
                    self._only(there, use)

    def _only(self, facts: Facts, target: ast.Attribute) -> None:
        """A store to the attribute binds it to the module, as far as that turns out."""
        parent = facts.tree.parent(target)
        if not isinstance(parent, ast.Assign):
            self._lose(facts, target)
            return
        self._bindings.append((facts, Binding(Bound.ASSIGN, target.attr, parent, parent.value)))

    def _returned(self, facts: Facts, statement: ast.Return) -> None:
        function = facts.tree.function(statement)
        callers = facts.callers_everywhere(function) if isinstance(function, FUNCTIONS) else None
        if function is None or not callers or facts.is_decorated(function):
            self._lose(facts, statement)
            return
        self._functions.append((facts, function))
        for home, call in callers:
            self.follow(home, call)


def only_lists(facts: Facts, function: Function, parameter: ast.arg) -> bool:
    """Whether a function only prints the module that it is given, or walks over its parts, as those do that initialise weights."""
    uses = [use for use in walk(function) if isinstance(use, ast.Name) and use.id == parameter.arg]
    return bool(uses) and all(isinstance(use.ctx, ast.Load) and _only_lists(facts, use) for use in uses)


def _only_lists(facts: Facts, use: ast.Name) -> bool:
    parent = facts.tree.parent(use)
    if isinstance(parent, ast.Call):
        return use in parent.args and facts.calls.meaning(parent) in _READERS
    call = facts.tree.parent(parent) if isinstance(parent, ast.Attribute) else None
    if not isinstance(call, ast.Call) or call.func is not parent:
        return False
    return last_name(call.func) in _HARMLESS or _is_walked(facts, call)


def _is_walked(facts: Facts, call: ast.Call) -> bool:
    """Whether a call lists a module's parts for a loop."""
    outer = facts.tree.parent(call)
    listed = last_name(call.func) in _LISTING and not call.args and not call.keywords
    return listed and isinstance(outer, (ast.For, ast.comprehension)) and outer.iter is call
