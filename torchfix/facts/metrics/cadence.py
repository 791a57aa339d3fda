"""How often code runs in a training or evaluation loop: on each iteration, or only now and then, behind a guard."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, is_constant, receiver
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, Function, LoopNode, dotted, last_name, walk_here
from torchfix.facts.training.loops import Kind

if TYPE_CHECKING:
    from torchfix.facts import Facts


@dataclass(frozen=True, eq=False)
class Iteration:
    """One iteration of a training or evaluation loop that computes on a device.

    Args:
        facts: the file of the loop.
        loop: the loop.
        kind: whether it trains or evaluates.
        call: the call in the loop's body through which a place in a function is reached; None for a place in the loop itself.
    """

    facts: Facts
    loop: LoopNode
    kind: Kind
    call: ast.Call | None = None


class Cadence:
    """Questions about how often the code of one file runs."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._functions: dict[Function, Iteration | None] = {}

    @cached_property
    def loops(self) -> dict[LoopNode, Kind]:
        """The innermost training loops and the evaluation loops whose program may run on a CUDA device, in text order."""
        facts = self._facts
        kinds = {node: kind for node in facts.tree.loops if (kind := self._kind(node)) is not None}
        around = {outer for node, kind in kinds.items() if kind is Kind.TRAIN for outer in facts.tree.ancestors(node)}
        found = {}
        for node, kind in kinds.items():
            target = facts.targets.around(node) if kind is Kind.EVAL or node not in around else None
            if target is not None and target.may_be_cuda:
                found[node] = kind
        return found

    def _kind(self, node: LoopNode) -> Kind | None:
        """What a loop does with its batches; None where it takes none or runs no network on them."""
        loops = self._facts.loops
        if loops.at(node) is not None or node in loops.indirect:
            return Kind.TRAIN
        calls = [item for statement in node.body for item in walk_here(statement) if isinstance(item, ast.Call)]
        if not any(self.runs_network(call) for call in calls):
            return None
        if any(last_name(call.func) == "zero_grad" for call in calls):
            return Kind.TRAIN  # what steps is out of sight: a scaler's object, a wrapper
        return Kind.EVAL if self._evaluates(node) else None

    def _evaluates(self, node: LoopNode) -> bool:
        """Whether a loop that runs a network takes batch after batch, and trains on none of them."""
        if isinstance(node, ast.While) or any(isinstance(item, (ast.Break, ast.Return)) for item in node.body):
            return False
        kind, from_loader = self._facts.loops.kind(node), node in self._facts.loaders.by_loop
        counts = isinstance(node.iter, ast.Call) and self._facts.calls.meaning(node.iter) == "builtins.range"
        return kind is not Kind.TRAIN and (from_loader or (kind is Kind.EVAL and not counts))

    def runs_network(self, call: ast.Call) -> bool:
        """Whether a call runs a network: one that is seen to be made, or what the program switches to ``eval()``."""
        meaning, models = self._facts.calls.meaning(call), self._facts.models
        if meaning is not None and not meaning.startswith("."):
            return False  # a library's function
        if models.is_module(call.func):
            return not models.is_loss(call.func)
        name = dotted(call.func)
        switched = (receiver(other) for mode in ("eval", "train") for other in self._facts.tree.calls.get(mode, ()))
        return name is not None and any(source is not None and dotted(source) == name for source in switched)

    # Places ---------------------------------------------------------------------------------------------------

    def iteration(self, node: ast.AST) -> Iteration | None:
        """The loop on each of whose iterations a place runs, by itself or in a function that is called from there.

        None where the place is guarded, runs in no such loop, or in a function that is also called from elsewhere.
        """
        tree = self._facts.tree
        tests: list[ast.expr] = []
        inner = node
        for outer in tree.ancestors(node):
            if isinstance(outer, (ast.Lambda, ast.ClassDef, ast.ExceptHandler)) or (isinstance(outer, ast.Assert) and inner is outer.msg):
                return None
            tests += _tests_before(outer, inner)
            tests += self._skips_before(inner)
            if isinstance(outer, FUNCTIONS):
                guarded = any(self._is_guard(test, outer) for test in tests)
                return self.of_function(outer) if inner in outer.body and not guarded else None
            if isinstance(outer, LOOPS) and outer in self.loops and (inner in outer.body or _is_test(outer, inner)):
                guarded = any(self._is_guard(test, outer) for test in tests)
                return None if guarded else Iteration(self._facts, outer, self.loops[outer])
            inner = outer
        return None

    def is_each_time(self, node: ast.AST, loop: LoopNode) -> bool:
        """Whether a place stands in a loop itself, not in a function that it calls, and runs on each of its iterations."""
        iteration = self.iteration(node)
        return iteration is not None and iteration.loop is loop and iteration.call is None

    def of_function(self, function: Function) -> Iteration | None:
        """The iteration that calls a function, where all its callers are seen and each is on some loop's every iteration."""
        if function not in self._functions:
            self._functions[function] = None  # recursion alone is no loop
            calls = self._facts.callers_everywhere(function) or ()
            found = [(call, facts.cadence.iteration(call)) for facts, call in calls]
            if found and all(iteration is not None for _, iteration in found):
                call, iteration = found[0]
                assert iteration is not None
                self._functions[function] = Iteration(iteration.facts, iteration.loop, iteration.kind, iteration.call or call)
        return self._functions[function]

    def seldom(self, node: ast.AST, loop: LoopNode) -> ast.If | None:
        """The innermost ``if`` in a loop by which a place runs on few of its iterations, in every process and run alike.

        Its condition asks for a remainder (``step % 50 == 0``) or for one step by its number (``step == 0``), or its body
        leaves the loop.
        """
        inner = node
        for outer in self._facts.tree.ancestors(node):
            if outer is loop:
                return None
            if isinstance(outer, ast.If) and inner in outer.body:
                if self._is_seldom(outer.test, loop) or self._leaves(outer.body[-1], loop):
                    return outer
            inner = outer
        return None

    def _is_seldom(self, test: ast.expr, loop: LoopNode) -> bool:
        match test:
            case ast.BoolOp(op=ast.And()):
                return any(self._is_seldom(value, loop) for value in test.values)
            case ast.BoolOp():
                return all(self._is_seldom(value, loop) for value in test.values)
            case ast.UnaryOp(op=ast.Not(), operand=ast.BinOp(op=ast.Mod(), right=divisor)):
                return not is_constant(divisor, 1)
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                return any(self._takes_remainder(side) or self._counts_steps(side, loop) for side in (left, right))
            case ast.Compare(left=left, ops=[ast.In()]):
                return self._counts_steps(left, loop)
            case ast.Name():
                values = [binding.value for binding in self._facts.flow.reaching(test) if binding.how is Bound.ASSIGN and not binding.path]
                return bool(values) and all(value is not None and self._is_seldom(value, loop) for value in values)
        return False

    def _leaves(self, statement: ast.stmt, loop: LoopNode) -> bool:
        breaks = isinstance(statement, ast.Break) and self._facts.tree.nearest(statement, LOOPS) is loop
        return breaks or isinstance(statement, (ast.Return, ast.Raise))

    @staticmethod
    def _takes_remainder(side: ast.expr) -> bool:
        return isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod) and not is_constant(side.right, 1)

    def _counts_steps(self, side: ast.expr, loop: LoopNode) -> bool:
        """Whether an expression is the number of the step, give or take a constant."""
        if isinstance(side, ast.BinOp) and isinstance(side.right, ast.Constant) and isinstance(side.op, (ast.Add, ast.Sub)):
            side = side.left
        counter = self.counter(loop)
        return isinstance(side, ast.Name) and counter is not None and counter.id == side.id and self._facts.names.same(side, counter)

    def counter(self, loop: LoopNode) -> ast.Name | None:
        """The variable that numbers the steps of a loop from 0 or 1: of ``enumerate`` or ``range``, through progress bars."""
        if not isinstance(loop, ast.For):
            return None
        call = self._facts.values.single(loop.iter)
        made = call.node if call is not None and call.facts is self._facts and not call.path else None
        counts = made is not None and isinstance(made, ast.Call) and self._facts.calls.meaning(made)
        first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) and counts == "builtins.enumerate" else loop.target
        known = isinstance(first, ast.Name) and counts in ("builtins.enumerate", "builtins.range")
        return first if known and isinstance(first, ast.Name) and self._is_bound_once(first, loop) else None

    def _is_bound_once(self, name: ast.Name, loop: LoopNode) -> bool:
        """Whether nothing in a loop's body binds the variable of its header anew."""
        inside = (item for item in self._facts.names.bindings(name) if item.node is not loop)
        return not any(self._facts.tree.is_within(item.node, loop) for item in inside)

    def _skips_before(self, node: ast.AST) -> Iterator[ast.expr]:
        """The tests of ``if step % 10: continue`` in front of a statement, in its block."""
        if not isinstance(node, ast.stmt):
            return
        _, block, index = self._facts.tree.place(node)
        for statement in block[:index]:
            if isinstance(statement, ast.If) and isinstance(statement.body[-1], (ast.Continue, ast.Return)) and _counts(statement.test):
                yield statement.test

    def _is_guard(self, test: ast.expr, around: LoopNode | Function) -> bool:
        """Whether a condition keeps what it guards from running on every iteration.

        It does where it changes from one iteration to the next, where it asks for one process of several, and where
        the user must ask for it on the command line.
        """
        facts = self._facts
        for item in ast.walk(test):
            if isinstance(item, ast.Name) and any(self._is_bound_in(around, binding) for binding in facts.names.bindings(item)):
                return True
            if isinstance(item, ast.Attribute) and (self._is_stored(item, around) or self._is_switch(item)):
                return True
            if isinstance(item, ast.Call) and not facts.purity.is_pure(item):
                return True
        return _counts(test) or _asks_for_first(test)

    def _is_bound_in(self, around: ast.AST, binding: Binding) -> bool:
        return binding.how is not Bound.PARAMETER and self._facts.tree.is_within(binding.node, around)

    def _is_stored(self, attribute: ast.Attribute, around: ast.AST) -> bool:
        """Whether the same attribute is set in the loop or function."""
        name = dotted(attribute)
        alike = self._facts.tree.attributes.get(attribute.attr, ())
        return any(not isinstance(use.ctx, ast.Load) and dotted(use) == name and self._facts.tree.is_within(use, around) for use in alike)

    def _is_switch(self, attribute: ast.Attribute) -> bool:
        """Whether ``args.name`` is an option that is off unless the command line names it."""
        option = self._facts.options.declaration(attribute)
        return option is not None and isinstance(option.node, ast.Call) and is_constant(argument(option.node, "action"), "store_true")


def _tests_before(outer: ast.AST, inner: ast.AST) -> list[ast.expr]:
    """The conditions under which a node evaluates one of its children."""
    match outer:
        case ast.If() | ast.IfExp() if inner is not outer.test:
            return [outer.test]
        case ast.BoolOp():
            return outer.values[: outer.values.index(inner)] if inner in outer.values else []
        case ast.comprehension() if inner in outer.ifs:
            return outer.ifs[: outer.ifs.index(inner)]
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp() if not isinstance(inner, ast.comprehension):
            return [test for generator in outer.generators for test in generator.ifs]
        case ast.match_case():
            return [outer.guard] if outer.guard is not None and inner is not outer.guard else []
    return []


def _is_test(loop: LoopNode, inner: ast.AST) -> bool:
    return isinstance(loop, ast.While) and inner is loop.test


def _counts(test: ast.expr) -> bool:
    """Whether a condition takes the remainder of a count."""
    return any(isinstance(item, ast.BinOp) and isinstance(item.op, ast.Mod) for item in ast.walk(test))


def _asks_for_first(test: ast.expr) -> bool:
    """Whether a condition compares with zero, as ``rank == 0`` and ``i == 0`` do."""
    return any(
        isinstance(item, ast.Compare) and isinstance(item.ops[0], ast.Eq) and is_constant(item.comparators[0], 0) for item in ast.walk(test)
    )
