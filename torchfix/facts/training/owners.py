"""Whose parameters an expression lists: the networks behind ``net.parameters()``, in sums, lists and variables."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import receiver
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import walk

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.models import Network


def parameter_owners(facts: Facts, given: ast.expr | None) -> frozenset[object] | None:
    """The networks whose ``.parameters()`` an expression holds, None where one of them is not known."""
    found: set[object] = set()
    for expression in parameter_expressions(facts, given):
        networks = facts.models.of(expression) or _itself(facts, expression)
        if not networks:
            return None
        found |= {network.value for network in networks}
    return frozenset(found) or None


def all_owners(found: Iterable[frozenset[object] | None]) -> frozenset[object] | None:
    """All of these networks together, None where some are not known or there are none."""
    listed = list(found)
    return frozenset[object]().union(*(item or () for item in listed)) if listed and None not in listed else None


def parameter_expressions(facts: Facts, given: ast.expr | None) -> Iterator[ast.expr]:
    """The ``x`` of every ``x.parameters()`` in an expression, and in what its names were made from."""
    for node in walk(given) if given is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("parameters", "named_parameters"):
            yield node.func.value
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            for binding in facts.flow.reaching(node):
                if binding.how is Bound.ASSIGN and binding.value is not None and binding.value is not given:
                    yield from parameter_expressions(facts, binding.value) if not facts.models.of(node) else ()


def _itself(facts: Facts, expression: ast.expr) -> tuple[Network, ...] | None:
    """What a network is inside a method of it that one call runs: the network there, as in ``net.configure_optimizers(config)``."""
    method = facts.tree.function(expression)
    calls = facts.callers_everywhere(method) if isinstance(expression, ast.Name) and facts.is_self(expression) and method else None
    if calls is None or len(calls) != 1:
        return None
    caller, call = calls[0]
    source = receiver(call)
    return caller.models.of(source) if source is not None else None
