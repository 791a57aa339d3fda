"""Whose weights the gradients of a loss surely reach.

Asked backwards, from the loss to the networks that took part in it. Gradients flow on through networks, arithmetic and
torch's functions, and end where a value is detached or gradients are off. That the loss can be sent backward is taken
for granted, so a variable's values without any graph do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import is_constant, keyword, receiver
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import COMPREHENSIONS, FUNCTIONS, Function, dotted, last_name, walk_here
from torchfix.facts.code.values import Value, returns
from torchfix.facts.training.gradients import GRAPHLESS_ATTRIBUTES, GRAPHLESS_FUNCTIONS, GRAPHLESS_METHODS
from torchfix.facts.training.models import Network
from torchfix.facts.training.regions import NO_GRAD

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Recipients:
    """Questions about the losses of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def includes(self, loss: ast.expr, owners: frozenset[object]) -> bool:
        """Whether a loss surely sends gradients to one of the networks that were made in these places."""
        return _Search(owners).reach(self._facts, loss)

    def may_be_none(self, loss: ast.expr) -> bool:
        """Whether a loss may send gradients to nothing: a constant that only asks for them, which losses without a term give."""
        if isinstance(loss, ast.Name):
            made = [binding.value for binding in self._facts.flow.reaching(loss) if binding.how is Bound.ASSIGN and not binding.path]
            return any(value is not None and not isinstance(value, ast.Name) and self.may_be_none(value) for value in made)
        if not isinstance(loss, ast.Call):
            return False
        return _asks_for_gradients(loss) or _gives_constant(self._facts, loss)


class _Search:
    """One walk from a loss back to some networks; an expression is taken for connected while it is being looked at."""

    def __init__(self, owners: frozenset[object]) -> None:
        self._owners = owners
        self._known: dict[ast.expr, bool] = {}

    def reach(self, facts: Facts, node: ast.expr) -> bool:
        """Whether gradients surely flow from a value to one of the networks."""
        if node not in self._known:
            self._known[node] = True  # ``h = net(h)``: what h was at first decides
            self._known[node] = self._reach(facts, node)
        return self._known[node]

    def _any(self, facts: Facts, nodes: list[ast.expr]) -> bool:
        return any(self.reach(facts, node) for node in nodes)

    def _reach(self, facts: Facts, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return self._variable(facts, node)
        if isinstance(node, ast.IfExp):
            return self.reach(facts, node.body) and self.reach(facts, node.orelse)
        if isinstance(node, ast.Call):
            return self._call(facts, node)
        if isinstance(node, ast.Attribute):
            return node.attr not in GRAPHLESS_ATTRIBUTES and (self._stored(facts, node) or self.reach(facts, node.value))
        if isinstance(node, ast.Subscript):
            return self.reach(facts, node.value)
        if isinstance(node, COMPREHENSIONS):
            return self.reach(facts, node.value if isinstance(node, ast.DictComp) else node.elt)
        held = isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Dict, ast.Starred, ast.NamedExpr))
        return held and self._any(facts, [item for item in ast.iter_child_nodes(node) if isinstance(item, ast.expr)])

    def _variable(self, facts: Facts, name: ast.Name) -> bool:
        bindings = [binding for binding in facts.flow.reaching(name) if not self._has_no_graph(facts, binding)]
        if bindings and all(self._bound(facts, binding) for binding in bindings):
            return True
        written = dict.fromkeys(facts.tree.statement(use) for use in (*facts.writes.to(name), *facts.graphs.collecting(name)))
        return self._any(facts, [item for statement in written for item in _put(statement)])

    @staticmethod
    def _has_no_graph(facts: Facts, binding: Binding) -> bool:
        value = binding.value if binding.how is Bound.ASSIGN and not binding.path else None
        return value is not None and not _asks_for_gradients(value) and not facts.graphs.may_carry(value)

    def _bound(self, facts: Facts, binding: Binding) -> bool:
        value = binding.value
        if value is None or binding.how not in (Bound.ASSIGN, Bound.AUGMENTED, Bound.LOOP):
            return False
        if isinstance(binding.node, ast.AugAssign) and self.reach(facts, binding.node.target):
            return True
        for index in binding.path if binding.how is Bound.ASSIGN else ():
            if not isinstance(value, (ast.Tuple, ast.List)) or any(isinstance(item, ast.Starred) for item in value.elts):
                break
            value = value.elts[index]
        return self.reach(facts, value)

    def _stored(self, facts: Facts, node: ast.Attribute) -> bool:
        """Whether the same function stores such a value in an attribute, wherever it does; else whether all methods of the class do."""
        name, home = dotted(node), facts.tree.function(node)
        stores = [use for use in facts.tree.attributes[node.attr] if isinstance(use.ctx, ast.Store) and dotted(use) == name]
        if isinstance(node.value, ast.Name) and facts.is_self(node.value) and all(facts.tree.function(use) is not home for use in stores):
            own = [use for use in stores if facts.tree.method_class(use) is facts.tree.method_class(node)]
            home, stores = None, own if len(own) == len(stores) else []
        near = [facts.tree.parent(use) for use in stores if home is None or facts.tree.function(use) is home]
        return name is not None and bool(near) and all(isinstance(item, ast.Assign) and self.reach(facts, item.value) for item in near)

    def _call(self, facts: Facts, call: ast.Call) -> bool:
        if last_name(call.func) in GRAPHLESS_METHODS | GRAPHLESS_FUNCTIONS or facts.regions.under(call, NO_GRAD):
            return False
        if self._are_sought(facts.models.run_by(call)):
            return True
        source = receiver(call)
        given = [*call.args, *(item.value for item in call.keywords), *([source] if source is not None else [])]
        if self._any(facts, given):
            return not _gives_constant(facts, call)
        functions = list(called(facts, call)) if not facts.models.run_by(call) else []
        handed = any(self._are_sought(facts.models.of(item)) for item in given)
        return bool(functions) and (handed or all(self._returned(there, function) for there, function in functions))

    def _returned(self, facts: Facts, function: Function) -> bool:
        nodes = [node for statement in function.body for node in walk_here(statement)]
        returned = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
        return bool(returned) and all(self.reach(facts, value) for value in returned)

    def _are_sought(self, networks: tuple[Network, ...] | None) -> bool:
        """Whether something surely is one of the networks sought, whichever it is."""
        return bool(networks) and all(self._has(network) for network in networks or ())

    def _has(self, network: Network) -> bool:
        """Whether a network is one of those sought, or its class makes one of them as a part of itself."""
        if network.value in self._owners:
            return True
        reached = network.definition.facts.models.hidden_classes(network.definition) if network.definition is not None else ()
        parts = [owner for owner in self._owners if isinstance(owner, Value)]
        return any(item.facts.tree.is_within(part.node, item.node) for item in reached for part in parts if part.facts is item.facts)


def _gives_constant(facts: Facts, call: ast.Call) -> bool:
    """Whether a loss of the project may give a constant that only looks like a loss: ``torch.zeros([], requires_grad=True)``."""
    runs = list(called(facts, call))
    for network in facts.models.of(call.func) or ():
        forward = method_of(network.definition, "forward") if network.definition is not None else None
        runs += [(forward.facts, forward.node)] if forward is not None and isinstance(forward.node, FUNCTIONS) else []
    given = (value for there, function in runs for item in returns(function) for value in there.values.of(item) or ())
    return any(isinstance(value.node, ast.expr) and _asks_for_gradients(value.node) for value in given)


def _asks_for_gradients(node: ast.expr) -> bool:
    """Whether an expression makes a tensor of its own that asks for gradients, which go no further."""
    asked = keyword(node, "requires_grad") if isinstance(node, ast.Call) else None
    return asked is not None and not is_constant(asked.value, False)


def _put(statement: ast.stmt) -> Iterator[ast.expr]:
    """What a statement puts into something: ``x[i] = y``, ``x.append(y)``."""
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        yield statement.value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield from statement.value.args
