"""Whether some statements need gradients: what they use of autograd, what leaves them with a graph, and what is out of sight.

Where nothing is found, gradients may be off around them: every number that they make is the same, without its graph.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import receiver
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import LOOPS, Function, last_name, walk_here
from torchfix.facts.code.values import returns
from torchfix.facts.data.traits import Trait
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.gradients import End, Fate
from torchfix.facts.training.regions import AUTOCAST

if TYPE_CHECKING:
    from torchfix.facts import Facts

_MEMOISING = ("functools.lru_cache", "functools.cache")
_STORING = frozenset("append extend insert add appendleft update setdefault put".split())


class GradientNeeds:
    """Questions about the statements of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._unseen: dict[Function, Obstacle | None] = {}

    def of(self, statements: Sequence[ast.stmt], whole: bool = False) -> Obstacle | None:
        """Why gradients must stay on around neighbouring statements; None where they may go.

        Args:
            statements: of one block.
            whole: whether they are all of a function's, so that gradients go and come back with it even where it yields.
        """
        used = self._facts.autograd.used_in(statements)
        if used is not None:
            facts, node = used
            return Obstacle(
                "gradients-used",
                f"gradients are used inside, at {facts.path}:{getattr(node, 'lineno', 1)}",
                "switch gradients off around the forward passes that do without",
            )
        if not whole:
            for node in (node for statement in statements for node in walk_here(statement)):
                if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
                    return Obstacle(
                        "generator", "a block without gradients would stay open while the consumer runs", "decorate the function instead"
                    )
        return self._out_of_sight_inside(statements) or self._escape(statements) or self._shared_autocast(statements)

    def _out_of_sight_in(self, function: Function) -> Obstacle | None:
        """As :meth:`_out_of_sight_inside`, of a function that is called."""
        if function not in self._unseen:
            self._unseen[function] = None  # a function that calls itself adds nothing new
            self._unseen[function] = self._out_of_sight_inside(function.body)
        return self._unseen[function]

    def _out_of_sight_inside(self, statements: Sequence[ast.stmt]) -> Obstacle | None:
        """A call that cannot be read and may train: it is given a network, or steps something that is not known."""
        facts = self._facts
        for call in (node for item in statements for node in walk_here(item) if isinstance(node, ast.Call)):
            meaning = facts.calls.meaning(call) or ""
            if (meaning and not meaning.startswith(".")) or facts.models.of(call.func) or facts.passes.is_evaluated_object(call.func):
                continue
            functions = list(called(facts, call))
            for there, function in functions:
                obstacle = there.gradient_needs._out_of_sight_in(function)
                if obstacle is not None:
                    return obstacle
            if functions or facts.names.definition(call.func) is not None:
                continue
            source = receiver(call)
            given = (*call.args, *(item.value for item in call.keywords))
            steps = last_name(call.func) == "step" and not given
            own = isinstance(source, ast.Name) and facts.is_self(source) and not facts.passes.is_in_network(call)
            inherited = own and not facts.values.assigned(_attribute(call.func))
            if steps or inherited or any(facts.models.of(item) or facts.passes.is_evaluated_object(item) for item in given):
                return Obstacle(
                    "out-of-sight",
                    f"{facts.path}:{call.lineno} calls {ast.unparse(call.func)}, whose code is out of sight and may use gradients",
                    "switch gradients off around the forward passes by hand",
                )
        loaders = [loader for item in statements if isinstance(item, LOOPS) for loader in facts.loaders.by_loop.get(item, ())]
        if any(loader.facts.datasets.behind(loader).have(Trait.GRAPH) for loader in loaders):
            return Obstacle("graph-in-dataset", "the dataset behind the loop computes with a network", "give it its own gradient switch")
        return None

    def _escape(self, statements: Sequence[ast.stmt]) -> Obstacle | None:
        """A value with a graph that leaves some statements and may be sent backward, or is changed in place by them."""
        changed = self._changed(statements)
        if changed is not None:
            return Obstacle(
                "written-in-place",
                f"line {changed.lineno} writes into a tensor with a graph, which would not know of it",
                "write into a copy",
            )
        for fate in (*self._leaving(statements), *self._facts.remembered.by(statements)):
            if fate.end is not End.NOWHERE:
                return not_followed(fate)
        seen: set[Function] = set()
        waiting = [(self._facts, node) for item in statements for node in walk_here(item) if isinstance(node, ast.Call)]
        while waiting:
            facts, call = waiting.pop()
            for there, function in called(facts, call):
                if function in seen or not there.passes.lends(function):
                    continue
                seen.add(function)
                nodes = [node for item in function.body for node in walk_here(item)]
                waiting += [(there, node) for node in nodes if isinstance(node, ast.Call)]
                for fate in (*there.gradient_needs._kept(nodes), *there.gradient_needs._memoised(function)):
                    if fate.end is not End.NOWHERE:
                        return not_followed(fate)
        return None

    def _leaving(self, statements: Sequence[ast.stmt]) -> Iterator[Fate]:
        """What becomes of the values with a graph that are read behind some statements."""
        facts = self._facts
        nodes = [node for item in statements for node in walk_here(item)]
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bindings = [item for item in facts.names.bindings(node) if facts.tree.is_within(node, item.node)]
                values = [item.value for item in bindings if item.how in (Bound.ASSIGN, Bound.AUGMENTED, Bound.WITH)]
                outside = [use for use in facts.names.uses(node) if isinstance(use.ctx, ast.Load) and not self._holds(statements, use)]
                read = any(item in facts.flow.reaching(use) for use in outside for item in bindings)
                if read and any(value is None or facts.graphs.may_carry(value) for value in values):
                    yield facts.gradients.of_variable(node)
            elif isinstance(node, (ast.Return, ast.Yield)) and node.value is not None and facts.graphs.may_carry(node.value):
                yield facts.gradients.of_value(node.value)
        yield from self._kept(nodes)

    def _changed(self, statements: Sequence[ast.stmt]) -> ast.Name | None:
        """A tensor with a graph from before some statements that they write in place, which its graph would not know of."""
        facts = self._facts
        for node in (node for item in statements for node in walk_here(item)):
            if isinstance(node, ast.Name) and facts.writes.is_write(node):
                older = [item for item in facts.flow.reaching(node) if not self._holds(statements, item.node)]
                if any(item.value is not None and facts.graphs.carries(item.value) for item in older):
                    return node
        return None

    def _kept(self, nodes: list[ast.AST]) -> Iterator[Fate]:
        """What becomes of the values with a graph that some nodes put into attributes and containers."""
        facts = self._facts
        for node in nodes:
            if isinstance(node, (ast.Assign, ast.AugAssign)) and facts.graphs.may_carry(node.value):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, (ast.Attribute, ast.Subscript)):
                        yield facts.gradients.of_variable(target)
            elif isinstance(node, ast.Call) and last_name(node.func) in _STORING and isinstance(facts.tree.parent(node), ast.Expr):
                source = receiver(node)
                if source is not None and any(map(facts.graphs.may_carry, node.args)) and next(called(facts, node), None) is None:
                    yield facts.gradients.of_container(source)

    def _memoised(self, function: Function) -> Iterator[Fate]:
        """What becomes of what a function gives, where its callers get what an earlier call has made."""
        names = (self._facts.names.qualified(item.func if isinstance(item, ast.Call) else item) for item in function.decorator_list)
        if any(name in _MEMOISING for name in names):
            yield from (self._facts.gradients.of_value(value) for value in returns(function))

    def _shared_autocast(self, statements: Sequence[ast.stmt]) -> Obstacle | None:
        """A training pass under the same autocast, whose cached weights would come from here, without gradients (pytorch#112583)."""
        facts = self._facts
        for outer in facts.tree.ancestors(statements[0]):
            if isinstance(outer, ast.With) and facts.regions.under(outer.body[0], AUTOCAST):
                if any(facts.tree.is_within(call, outer) and not self._holds(statements, call) for call in facts.passes.all):
                    return Obstacle(
                        "shared-autocast",
                        "a training pass shares the autocast block, and would find weights cached without gradients",
                        "give each of the two an autocast block of its own",
                    )
        return None

    def _holds(self, statements: Sequence[ast.stmt], node: ast.AST) -> bool:
        return any(self._facts.tree.is_within(node, item) for item in statements)


def _attribute(func: ast.expr) -> ast.Attribute:
    assert isinstance(func, ast.Attribute)
    return func


def not_followed(fate: Fate) -> Obstacle:
    """Why a value with such a fate needs its graph."""
    if fate.end is End.BACKWARD:
        return Obstacle(
            "used-in-training",
            f"what is computed here is sent backward, or asked for its graph, at {fate.place}",
            "detach it where it is read",
        )
    return Obstacle(
        "out-of-sight",
        f"what is computed here leaves the code in sight at {fate.place}, where it might be sent backward",
        "put the evaluation under torch.no_grad() if it only evaluates",
    )
