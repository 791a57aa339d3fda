"""Which bindings of a variable may reach a use of it: the order of statements, branches and loops respected."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import FUNCTIONS, LOOPS

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Flow:
    """Questions about the order in which one file binds its names."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[ast.Name, list[Binding]] = {}

    def reaching(self, name: ast.Name) -> list[Binding]:
        """The bindings that may have given a name its value where it is read.

        Inside the function (or module) that owns the variable the nearest certain binding hides the earlier ones;
        read from an inner function, every binding counts.
        """
        if name not in self._asked:
            self._asked[name] = self._reaching(name)
        return self._asked[name]

    def only_variable(self, statement: ast.stmt) -> ast.Name | None:
        """The variable that an assignment alone gives a value, in its own function or in a module that nobody imports it from."""
        facts = self._facts
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
            return None
        target = statement.targets[0]
        outside = facts.names.scope(target) is facts.names.module and facts.project.mentions(target.id, facts.path)
        alone = len(facts.names.bindings(target)) == 1 and all(
            use is target or isinstance(use.ctx, ast.Load) for use in facts.names.uses(target)
        )
        return target if alone and not outside and not facts.tree.calls.get("locals") else None

    def _reaching(self, name: ast.Name) -> list[Binding]:
        found = self._facts.names.lookup(name.id, name)
        if found is None:
            return []
        scope, bindings = found
        if len(bindings) == 1 or self._facts.names.scope(name) is not scope:
            return bindings
        if not isinstance(scope.node, (ast.Module, *FUNCTIONS)):
            return bindings
        reached = self._backwards(name, scope.node, bindings)
        return reached or bindings

    def _backwards(self, name: ast.Name, owner_of_scope: ast.AST, bindings: list[Binding]) -> list[Binding]:
        tree = self._facts.tree
        at = {id(binding): tree.statement(binding.node) for binding in bindings if binding.how is not Bound.PARAMETER}
        reached: list[Binding] = []

        def inside(statement: ast.AST) -> list[Binding]:
            return [b for b in bindings if id(b) in at and tree.is_within(at[id(b)], statement)]

        def certain(statement: ast.stmt) -> bool:
            """Note the bindings of one earlier statement; whether one of them surely happened."""
            if isinstance(statement, ast.If):
                branches = [through(statement.body), through(statement.orelse)]
                return all(branches)
            if isinstance(statement, (ast.With, ast.AsyncWith)):
                if through(statement.body):
                    return True
                own = [b for b in inside(statement) if at[id(b)] is statement]
                reached.extend(own)
                return bool(own)
            here = inside(statement)
            if isinstance(statement, ast.Try):
                if through(statement.finalbody):
                    return True
                ways = [through(block) for block in ([*statement.body, *statement.orelse], *(item.body for item in statement.handlers))]
                if all(ways):
                    return True
                here = [b for b in here if b not in reached]  # what the body had done when it failed
            reached.extend(here)
            simple = not isinstance(statement, (*LOOPS, ast.Try, ast.Match))
            return simple and any(at[id(b)] is statement for b in here)

        def through(block: list[ast.stmt]) -> bool:
            """Walk a block from its end; whether a certain binding was met."""
            if block and isinstance(block[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break)):
                return True  # this way never reaches the use
            return any(certain(statement) for statement in reversed(block))

        current = tree.statement(name)
        while True:
            owner, block, index = tree.place(current)
            if any(certain(statement) for statement in reversed(block[:index])):
                return reached
            if isinstance(owner, LOOPS) and block is owner.body:
                own = [b for b in inside(owner) if at[id(b)] is owner]
                reached.extend(own)
                if own and not isinstance(owner, ast.While):
                    return reached
                reached.extend(b for b in inside(owner) if b not in reached)  # from the iteration before
            elif isinstance(owner, ast.stmt):
                own = [b for b in inside(owner) if at[id(b)] is owner]
                reached.extend(own)
                if own:
                    return reached
            if isinstance(owner, ast.Try) and block is not owner.body:
                reached.extend(b for statement in owner.body for b in inside(statement) if b not in reached)
            if isinstance(owner, ast.ExceptHandler):
                outer = tree.parent(owner)
                if isinstance(outer, ast.Try):
                    reached.extend(b for statement in outer.body for b in inside(statement) if b not in reached)
                    owner = outer
            if owner is owner_of_scope or not isinstance(owner, ast.stmt):
                reached.extend(b for b in bindings if b.how is Bound.PARAMETER)
                return reached
            current = owner
