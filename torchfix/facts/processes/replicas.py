"""Replication over GPUs: every ``nn.DataParallel`` of a file and the expressions that hold its result."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, has_stars, is_constant, receiver
from torchfix.facts.code.classes import SELF_RETURNING
from torchfix.facts.code.tree import FUNCTIONS, dotted
from torchfix.facts.project.programs import is_main_guard
from torchfix.facts.training.models import WRAPPERS

if TYPE_CHECKING:
    from torchfix.facts import Facts

DATA_PARALLEL = "torch.nn.DataParallel"
_DECIDING = (ast.If, ast.IfExp, ast.BoolOp, ast.For, ast.While, ast.ExceptHandler, ast.match_case)
_POSITIONS = ("module", "device_ids", "output_device", "dim")


@dataclass(frozen=True)
class Wrap:
    """One call of ``nn.DataParallel``."""

    facts: Facts
    call: ast.Call

    def __hash__(self) -> int:
        return hash(id(self.call))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wrap) and self.call is other.call

    def argument(self, name: str) -> ast.expr | None:
        """The value of one of its parameters; None where it is absent or the literal None."""
        found = argument(self.call, name, _POSITIONS.index(name))
        return None if is_constant(found, None) else found

    @property
    def hides_arguments(self) -> bool:
        """Whether arguments are behind ``*`` or ``**``."""
        return has_stars(self.call)

    @property
    def module(self) -> ast.expr | None:
        """The network that is replicated."""
        return self.argument("module")

    @cached_property
    def placing(self) -> tuple[ast.Call, ...]:
        """The calls chained behind it that return the network again (``.cuda()``, ``.to(device)``), innermost first."""
        found: list[ast.Call] = []
        current: ast.AST = self.call
        while True:
            attribute = self.facts.tree.parent(current)
            outer = self.facts.tree.parent(attribute) if attribute is not None else None
            if not (isinstance(attribute, ast.Attribute) and attribute.attr in SELF_RETURNING):
                return tuple(found)
            if not isinstance(outer, ast.Call) or outer.func is not attribute:
                return tuple(found)
            found.append(outer)
            current = outer

    @property
    def whole(self) -> ast.Call:
        """The call with everything chained behind it."""
        return self.placing[-1] if self.placing else self.call

    @property
    def assignment(self) -> ast.Assign | None:
        """The statement that does nothing but give the result one name or attribute."""
        statement = self.facts.tree.statement(self.call)
        if isinstance(statement, ast.Assign) and statement.value is self.whole and len(statement.targets) == 1:
            return statement if isinstance(statement.targets[0], (ast.Name, ast.Attribute)) else None
        return None

    @property
    def renames(self) -> bool:
        """Whether the result gets another name than the network has."""
        return self.assignment is not None and (self.module is None or dotted(self.assignment.targets[0]) != dotted(self.module))

    @cached_property
    def later_placing(self) -> ast.Call | None:
        """The ``.cuda()`` or ``.to(device)`` behind the wrap that first moves the network; None where it was moved before."""
        moves = [call for call in self.facts.calls.methods("cuda", "to") if self.facts.devices.transfer(call) is not None]
        if self.placing or any(self._is_moved_by(call) for call in moves):
            return None
        return next((call for call in moves if self._moves(call)), None)

    @property
    def later_move(self) -> str:
        """The text of that move, ``.to(device)``; empty where there is none, or where its own branch stays in front of the wrap."""
        return self.facts.calls.tail(self.later_placing) if self.later_placing is not None and self.moving_branch is None else ""

    @cached_property
    def is_moved_conditionally(self) -> bool:
        """Whether something decides whether that move is made, though the network is wrapped in any case."""
        tree = self.facts.tree
        around = tree.ancestors(self.later_placing) if self.later_placing is not None else iter(())
        return any(isinstance(outer, _DECIDING) and not tree.is_within(self.call, outer) for outer in around)

    @cached_property
    def moving_branch(self) -> ast.If | None:
        """The ``if`` right behind the wrap that makes that move, and does nothing else with the wrapper."""
        later, assignment, tree = self.later_placing, self.assignment, self.facts.tree
        if later is None or assignment is None or self.condition is not None:
            return None
        _, block, index = tree.place(assignment)
        branch = next(iter(block[index + 1 :]), None)
        if not isinstance(branch, ast.If) or not tree.is_within(later, branch):
            return None
        moved = {receiver(call) for call in self.facts.calls.methods("cuda", "to")}
        written = dotted(assignment.targets[0])
        uses = (node for node in ast.walk(branch) if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) == written)
        return branch if all(isinstance(use.ctx, ast.Store) or use in moved for use in uses) else None

    def _moves(self, call: ast.Call) -> bool:
        """Whether a call moves the wrapper, elsewhere than under the condition that it is wrapped under."""
        source = receiver(call)
        held = self.facts.replicas.held_by(source) if source is not None else None
        return self in (held or ()) and not (self.condition is not None and self.facts.tree.is_within(call, self.condition))

    def _is_moved_by(self, call: ast.Call) -> bool:
        """Whether a call moves the network before it is wrapped."""
        source, tree = receiver(call), self.facts.tree
        if self.module is None or source is None:
            return False
        if tree.is_within(call, self.module) or any(value.node is call for value in self.facts.values.of(self.module) or ()):
            return True
        before = tree.function(call) is tree.function(self.call) and call.lineno < self.call.lineno
        return before and dotted(source) is not None and dotted(source) == dotted(self.module)

    @cached_property
    def condition(self) -> ast.If | None:
        """The ``if`` that decides whether the network is wrapped; None where what uses the wrapper depends on it alike."""
        facts = self.facts
        for outer in facts.tree.ancestors(self.call):
            if isinstance(outer, FUNCTIONS) or (isinstance(outer, ast.If) and is_main_guard(outer.test)):
                return None
            if isinstance(outer, ast.If) and self._is_used_outside(outer):
                return outer
        return None

    def is_all_of(self, block: ast.If) -> bool:
        """Whether an ``if`` does nothing but wrap the network, reporting aside."""
        others = [item for item in block.body if item is not self.assignment and not self.facts.reports.only_reports(item)]
        return not others and not block.orelse and not self.placing

    def _is_used_outside(self, block: ast.If) -> bool:
        tree, assignment = self.facts.tree, self.assignment
        if assignment is None:
            return isinstance(tree.statement(self.call), ast.Return)
        target = assignment.targets[0]
        alike: Iterable[ast.expr] = self.facts.names.uses(target) if isinstance(target, ast.Name) else tree.attributes[_attribute(target)]
        return any(
            isinstance(use.ctx, ast.Load) and not tree.is_within(use, block) for use in alike if isinstance(use, (ast.Name, ast.Attribute))
        )


class Replicas:
    """Questions about replicated networks in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[int, tuple[Wrap, ...] | None] = {}

    @cached_property
    def wraps(self) -> tuple[Wrap, ...]:
        """Every ``nn.DataParallel(...)`` of the file, in text order."""
        return tuple(Wrap(self._facts, call) for call in self._facts.calls.to(DATA_PARALLEL))

    def held_by(self, expression: ast.expr) -> tuple[Wrap, ...] | None:
        """The wraps that an expression may hold: none where it surely holds none, None where it is not known."""
        key = id(expression)
        if key not in self._asked:
            self._asked[key] = ()  # ``net = net.to(device)``: the circle adds nothing new
            self._asked[key] = self._held(expression)
        return self._asked[key]

    def _held(self, expression: ast.expr) -> tuple[Wrap, ...] | None:
        bindings = self._facts.flow.reaching(expression) if isinstance(expression, ast.Name) else []
        if bindings and all(binding.value is not None and self._unwraps(binding.value) for binding in bindings):
            return ()
        values = self._facts.values.of(expression)
        if values is None:
            return None
        found: list[Wrap] = []
        for value in values:
            node, facts = value.node, value.facts
            if not isinstance(node, ast.Call) or value.path:
                continue
            meaning = facts.calls.meaning(node)
            source = receiver(node)
            inner: tuple[Wrap, ...] | None = ()
            if meaning == DATA_PARALLEL:
                inner = (Wrap(facts, node),)
            elif meaning in WRAPPERS and node.args:
                inner = facts.replicas.held_by(node.args[0])
            elif source is not None and isinstance(node.func, ast.Attribute) and node.func.attr in SELF_RETURNING:
                inner = facts.replicas.held_by(source)
            if inner is None:
                return None
            found += inner
        return tuple(dict.fromkeys(found))

    def _unwraps(self, expression: ast.expr) -> bool:
        """Whether an expression is ``m.module`` where ``m`` has one, and ``m`` otherwise."""
        if not isinstance(expression, ast.IfExp) or not isinstance(expression.test, ast.Call) or len(expression.test.args) != 2:
            return False
        inner, asked = expression.body, expression.test.args
        named = self._facts.calls.meaning(expression.test) == "builtins.hasattr" and is_constant(asked[1], "module")
        typed = (
            self._facts.calls.meaning(expression.test) == "builtins.isinstance" and self._facts.names.qualified(asked[1]) == DATA_PARALLEL
        )
        same = dotted(asked[0]) is not None and isinstance(inner, ast.Attribute) and inner.attr == "module"
        return (named or typed) and same and isinstance(inner, ast.Attribute) and dotted(inner.value) == dotted(asked[0])

    @cached_property
    def mentions(self) -> tuple[ast.Name | ast.Attribute, ...]:
        """The places that name ``nn.DataParallel`` without calling it, in text order."""
        tree = self._facts.tree
        called = {id(wrap.call.func) for wrap in self.wraps}
        words = {
            "DataParallel",
            *(item.asname for node in tree.imports for item in node.names if item.name == "DataParallel" and item.asname),
        }
        nodes = [node for word in words for node in (*tree.names.get(word, ()), *tree.attributes.get(word, ()))]
        found = [node for node in nodes if id(node) not in called and self._facts.names.qualified(node) == DATA_PARALLEL]
        return tuple(sorted(found, key=lambda node: (node.lineno, node.col_offset)))

    @cached_property
    def forwards(self) -> tuple[ast.Call, ...]:
        """The calls that run a replicated network, in text order."""
        calls = (call for calls in self._facts.tree.calls.values() for call in calls if not self._facts.models.is_loss(call.func))
        found = [call for call in calls if isinstance(call.func, (ast.Name, ast.Attribute)) and self.held_by(call.func)]
        return tuple(sorted(found, key=lambda call: (call.lineno, call.col_offset)))

    def uses(self, attribute: str) -> Iterator[ast.Attribute]:
        """The reads of an attribute (``module``, ``state_dict``) of what may be a replicated network, or may be anything."""
        for use in self._facts.tree.attributes.get(attribute, ()):
            if isinstance(use.ctx, ast.Load) and self.held_by(use.value) != ():
                yield use


def _attribute(target: ast.expr) -> str:
    return target.attr if isinstance(target, ast.Attribute) else ""
