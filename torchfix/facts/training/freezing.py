"""Networks whose weights a program takes out of training for a while: ``p.requires_grad = False``, ``net.requires_grad_(i > 9)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import is_constant, receiver
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import Function
from torchfix.facts.training.owners import parameter_owners

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Training


@dataclass(frozen=True, eq=False)
class Switch:
    """One place that switches the gradients of whole networks.

    Args:
        node: the call or the target.
        value: what it sets; None where it switches them on.
        owners: where the networks were made.
    """

    node: ast.expr
    value: ast.expr | None
    owners: frozenset[object]

    @property
    def is_on(self) -> bool:
        """Whether it surely switches them on."""
        return self.value is None or is_constant(self.value, True)


def frozen_at(loop: Training, owners: frozenset[object] | None) -> ast.expr | None:
    """Where all weights of these networks may be left out of a training loop's backward passes; None if nowhere, or if none is known.

    A loop that itself switches them off and on again, as one that trains two networks in turn, is taken to do so around the
    passes of the other.
    """
    found = [item for item in _switches(loop.facts) if owners and owners <= item.owners]
    inside = _run_by(loop) if any(not item.is_on for item in found) else frozenset()
    again = any(item.is_on and _is_run(loop, item, inside) for item in found)
    for item in found:
        in_turn = again and is_constant(item.value, False) and _is_run(loop, item, inside)
        if not item.is_on and not in_turn and not _is_told(loop.facts, item.value):
            return item.node
    return None


def _run_by(loop: Training) -> frozenset[Function]:
    """The functions of the project that a loop runs."""
    return frozenset(function for facts, call in loop.facts.reach.calls(loop.node.body) for _, function in called(facts, call))


def _is_run(loop: Training, switch: Switch, functions: frozenset[Function]) -> bool:
    tree = loop.facts.tree
    return tree.is_within(switch.node, loop.node) or tree.function(switch.node) in functions


def _is_told(facts: Facts, value: ast.expr | None) -> bool:
    """Whether a function is told by its callers what to set, and by one of them to switch gradients on."""
    told = facts.values.of(value) if isinstance(value, ast.Name) else None
    constants = [item.node for item in told or () if isinstance(item.node, ast.Constant)]
    return len(constants) == len(told or ()) and any(is_constant(item, True) for item in constants)


def _switches(facts: Facts) -> Iterator[Switch]:
    """The places of a file that switch the gradients of whole networks."""
    for call in facts.tree.calls.get("requires_grad_", ()):
        source = receiver(call)
        given = [*call.args, *(item.value for item in call.keywords)]
        owners = _switched(facts, source) if source is not None else None
        if owners:
            yield Switch(call, given[0] if given else None, owners)
    for target in facts.tree.attributes.get("requires_grad", ()):
        statement = facts.tree.parent(target)
        owners = _switched(facts, target.value) if isinstance(statement, ast.Assign) else None
        if isinstance(statement, ast.Assign) and owners:
            yield Switch(target, statement.value, owners)


def _switched(facts: Facts, source: ast.expr) -> frozenset[object] | None:
    """The networks that an expression stands for, or of whose parameters it is each in turn."""
    networks = facts.models.of(source)
    if networks:
        return frozenset(network.value for network in networks)
    bindings = facts.flow.reaching(source) if isinstance(source, ast.Name) else []
    if len(bindings) != 1 or bindings[0].how is not Bound.LOOP or not isinstance(bindings[0].node, ast.For):
        return None
    around = facts.tree.statement(source)
    return parameter_owners(facts, bindings[0].value) if facts.tree.parent(around) is bindings[0].node else None
