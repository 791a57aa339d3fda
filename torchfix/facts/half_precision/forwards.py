"""The forward part of code that trains: the statements that compute the loss, and why none is seen or may run under autocast."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from torchfix.facts.code.scopes import Bound, parameters
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, Function, LoopNode, dotted, last_name, statements_here, walk_here
from torchfix.facts.code.values import passed
from torchfix.facts.half_precision.autocast import is_operation
from torchfix.facts.half_precision.precision import MUTATORS
from torchfix.facts.half_precision.stretches import Feeding, Forward, Split, Stage, computed
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.regions import NO_GRAD
from torchfix.facts.training.updates import Sent, Update, called

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Forwards:
    """Questions about the forward part of one file's training loops."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of(self, update: Update) -> Forward | Obstacle:
        """The part of a loop that autocast may run, or why it cannot be told or may not."""
        feeding, loop = self.feeding(update), update.loop
        here = (call for call in dict.fromkeys(feeding.calls()) if self._facts.tree.is_within(call, loop.node))
        runs = [call for call in here if self._facts.models.run_by(call)]
        delegated = self._facts.delegations.of(update, feeding) if not runs or loop.relays else None
        if not runs or isinstance(delegated, Obstacle):
            return delegated or self._of_callers(update) or self._unseen(feeding)
        stage = Stage(loop.node, self._sent_here(update), (*loop.backwards, *loop.steps, *loop.zero_grads, *loop.scheduler_steps))
        found = Split(self._facts, stage, feeding, runs).whole()
        if isinstance(found, Obstacle):
            return found
        found = replace(found, old=self._old_output(update, feeding, runs))
        return found if delegated is None else delegated.beside(found)

    def _sent_here(self, update: Update) -> tuple[Sent, ...]:
        """The backward passes by their statements in the loop; what a function sends is there what the loop hands it."""
        statement, functions = self._facts.tree.statement, {relay.call for relay in update.loop.relays}
        handed = (Sent(relay.place, loss, statement(relay.place)) for relay in update.loop.relays for loss in relay.given)
        return (*(item for item in update.sent if item.call not in functions), *handed)

    def within(self, function: Function, sent: tuple[Sent, ...] = (), apart: tuple[ast.Call, ...] = ()) -> Forward | Obstacle | None:
        """The part of a function that autocast may run, so that all it returns or stores stays float32; None where it runs no network.

        Args:
            sent: its backward passes.
            apart: these, and other calls that no region may hold.
        """
        feeding = Feeding(*self._all_of(function))
        runs = [call for call in dict.fromkeys(feeding.calls()) if self._facts.models.run_by(call)]
        return Split(self._facts, Stage(function, sent, apart), feeding, runs).whole() if runs else None

    @staticmethod
    def _all_of(function: Function) -> tuple[frozenset[ast.stmt], tuple[ast.expr, ...]]:
        """The statements of a function, and what they compute their values from."""
        statements = tuple(statements_here(function.body))
        return frozenset(statements), tuple(part for item in statements for part in computed(item))

    def _old_output(self, update: Update, feeding: Feeding, runs: list[ast.Call]) -> ast.Name | None:
        """What the same network gave without gradients outside the loop, where the loss compares it with what it gives now.

        Reinforcement learning does so: the ratio of two probabilities would be that of two precisions too.
        """
        facts, loop = self._facts, update.loop
        around = loop.function or facts.tree.module
        mine = {network.value for call in runs for network in facts.models.run_by(call) or ()}
        outside = [item for item in statements_here(around.body) if not facts.tree.is_within(item, loop.node)]
        calls = {call for item in outside for part in computed(item) for call in walk_here(part) if isinstance(call, ast.Call)}
        blind = (call for call in calls if facts.regions.under(call, NO_GRAD))
        old = {call for call in blind if mine & {network.value for network in facts.models.run_by(call) or ()}}
        held: set[str] = set()
        size = -1
        while old and len(held) != size:
            size = len(held)
            for item in outside:
                nodes = [node for part in computed(item) for node in walk_here(part)]
                if any(node in old or (isinstance(node, ast.Name) and node.id in held) for node in nodes):
                    held |= _given_names(item)
        read = (node for part in feeding.expressions for node in walk_here(part) if isinstance(node, ast.Name) and node.id in held)
        return next((node for node in read if not self._is_bound_in(node, loop.node)), None)

    def _is_bound_in(self, name: ast.Name, loop: ast.AST) -> bool:
        """Whether a name has its value from statements inside a loop only."""
        return all(self._facts.tree.is_within(binding.node, loop) for binding in self._facts.flow.reaching(name))

    def feeding(self, update: Update) -> Feeding:
        """Everything in the loop that its losses are computed from."""
        expressions: list[ast.expr] = [item.loss for item in update.sent]
        expressions += [loss for relay in update.loop.relays for loss in relay.given]
        for function in dict.fromkeys(function for relay in update.loop.relays for function in relay.functions):
            expressions += self._all_of(function)[1]
        return self._feeding(update.loop.node, expressions)

    def _feeding(self, loop: LoopNode | Function, expressions: list[ast.expr]) -> Feeding:
        """These expressions, and everything in a loop or function that they are computed from."""
        statements: dict[ast.stmt, None] = {}
        for expression in expressions:  # grows while it is read
            for node in walk_here(expression):
                for statement in self._givers(node, loop):
                    if statement not in statements:
                        statements[statement] = None
                        expressions += computed(statement)
        return Feeding(frozenset(statements), tuple(expressions))

    def _givers(self, node: ast.AST, loop: ast.stmt) -> Iterator[ast.stmt]:
        """The statements inside the loop that give a variable or attribute its value, in place or not."""
        facts, tree = self._facts, self._facts.tree
        if isinstance(node, ast.Name):
            bindings = [binding for binding in facts.flow.reaching(node) if binding.how is not Bound.PARAMETER]
            found = [tree.statement(binding.node) for binding in bindings]
            if any(tree.is_within(statement, loop) and statement is not loop for statement in found):
                found += [tree.statement(use) for use in facts.names.uses(node) if _is_mutation(tree.parent(use))]
        elif isinstance(node, ast.Attribute) and (name := dotted(node)) is not None:
            found = [tree.statement(use) for use in tree.attributes[node.attr] if isinstance(use.ctx, ast.Store) and dotted(use) == name]
        else:
            return
        yield from (statement for statement in found if statement is not loop and tree.is_within(statement, loop))

    def _of_callers(self, update: Update) -> Forward | Obstacle | None:
        """The forward pass in those who call a function that is given its loss, sends it backward and steps; None for other code."""
        facts, function = self._facts, update.loop.node
        names = {item.arg: item for item in parameters(function.args)} if isinstance(function, FUNCTIONS) else {}
        sent = [names.get(item.loss.id) if isinstance(item.loss, ast.Name) else None for item in update.sent]
        if not isinstance(function, FUNCTIONS) or not any(sent):
            return None
        calls = facts.callers_everywhere(function)
        if None in sent or not calls or any(caller is not facts for caller, _ in calls):
            return _handed(update, "is given the loss, whose callers are not all in this file")
        bound = facts.tree.class_of(function) is not None
        units: dict[LoopNode | Function, list[Sent]] = defaultdict(list)
        for _, call in calls:
            unit, given = self._unit(call), [passed(call, function, item, bound) for item in sent if item is not None]
            if unit is None or any(item is None for item in given):
                return _handed(update, f"is given the loss on line {call.lineno}, where it is not seen to be computed")
            units[unit] += [Sent(call, item, facts.tree.statement(call)) for item in given if item is not None]
        found = []
        for unit, handed in units.items():
            feeding = self._feeding(unit, [item.loss for item in handed])
            here = (call for call in dict.fromkeys(feeding.calls()) if facts.tree.is_within(call, unit))
            runs = [call for call in here if facts.models.run_by(call)]
            stage = Stage(unit, tuple(handed), tuple(item.call for item in handed))
            part = Split(facts, stage, feeding, runs).whole() if runs else None
            if not isinstance(part, Forward):
                line = handed[0].call.lineno
                return part or _handed(update, f"is given the loss on line {line}, which no network in sight computes there")
            found.append((facts.tree.function(handed[0].call), part))
        networks = tuple(dict.fromkeys(network for _, part in found for network in part.networks))
        return Forward((), (), (), networks, callers=tuple(found))

    def _unit(self, call: ast.Call) -> LoopNode | Function | None:
        """The innermost loop around a call in its own function, else that function."""
        tree = self._facts.tree
        function, loop = tree.function(call), tree.nearest(call, LOOPS)
        return loop if isinstance(loop, LOOPS) and tree.function(loop) is function else function

    def _unseen(self, feeding: Feeding) -> Obstacle:
        """Why no network was found in what the loss is computed from."""
        for call in feeding.calls():
            known = self._facts.calls.meaning(call) or self._facts.models.of(call.func) or called(self._facts, call)
            if not known and not is_operation(last_name(call.func) or ""):
                return Obstacle(
                    "model-not-seen",
                    f"the class of {ast.unparse(call.func)} is out of sight, and with it what half precision would meet there",
                    "construct the network where torchfix can follow it to its class",
                )
        for call in feeding.calls():
            if called(self._facts, call) is not None:
                return Obstacle(
                    "forward-elsewhere",
                    f"the forward pass stands in another function, {ast.unparse(call.func)}",
                    "call the network in the loop that steps",
                )
        return Obstacle("model-not-seen", "the network that the loss comes from is out of sight", "call it in the loop that steps")


def _handed(update: Update, words: str) -> Obstacle:
    function = update.loop.node
    assert isinstance(function, FUNCTIONS)
    return Obstacle(
        "forward-elsewhere",
        f"{function.name} (line {function.lineno} of {update.loop.facts.path}) {words}",
        "write forward, backward and step in one function",
    )


def _given_names(statement: ast.stmt) -> set[str]:
    """The variables to which a statement gives something: bound, written into by index, or appended to."""
    targets = [node for node in walk_here(statement) if isinstance(getattr(node, "ctx", None), ast.Store)]
    targets += [call.func.value for call in walk_here(statement) if isinstance(call, ast.Call) and _is_mutation(call.func)]  # type: ignore[attr-defined]
    found = set()
    for target in targets:
        while isinstance(target, ast.Subscript):
            target = target.value
        found |= {target.id} if isinstance(target, ast.Name) else set()
    return found


def _is_mutation(outer: ast.AST | None) -> bool:
    """Whether a name's use is ``x.append(...)`` or ``x[i] = ...``."""
    if isinstance(outer, ast.Subscript):
        return isinstance(outer.ctx, ast.Store)
    return isinstance(outer, ast.Attribute) and outer.attr in MUTATORS
