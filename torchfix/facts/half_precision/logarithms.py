"""Logarithms of what a network's own sigmoid gave: half precision has rounded it to 0 or 1, and no later conversion brings it back.

A float32 loss of it is then infinite for scores far smaller than before: bfloat16 rounds the sigmoid of 6.3 to 1.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import receiver
from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import FUNCTIONS, last_name, walk
from torchfix.facts.code.values import passed, returns
from torchfix.facts.half_precision import formulas, probabilities
from torchfix.facts.training.outputs import forward_of

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.models import Network

_DEPTH = 8  # names and calls followed into one another


def of_rounded(facts: Facts, calls: Iterable[ast.Call], code: Iterable[Definition]) -> tuple[Facts, ast.Call] | None:
    """A logarithm of what a network's sigmoid gave, with its file.

    Args:
        facts: the file of a training loop.
        calls: what the file calls on the way to the loss.
        code: the functions and classes of the project that compute losses there.
    """
    own = list(calls)
    for call in _logarithms(facts, own):
        if _is_rounded(facts, _operand(facts, call)):
            return facts, call
    for item in code:
        for call in _logarithms(item.facts, (node for node in walk(item.node) if isinstance(node, ast.Call))):
            works_on = _operand(item.facts, call)
            given = _reads_parameter(item.facts, works_on) and any(_is_rounded(facts, handed) for outer in own for handed in outer.args)
            if given or _is_rounded(item.facts, works_on):
                return item.facts, call
    return None


def _logarithms(facts: Facts, calls: Iterable[ast.Call]) -> Iterator[ast.Call]:
    for call in calls:
        meaning = facts.calls.meaning(call) or ""
        if last_name(call.func) in formulas.LOGARITHMS and (meaning.startswith("torch.") or (not meaning and receiver(call) is not None)):
            yield call


def _operand(facts: Facts, call: ast.Call) -> ast.expr | None:
    """What a function of torch is given first, or a method is called on."""
    if (facts.calls.meaning(call) or "").startswith("torch."):
        return call.args[0] if call.args else None
    return receiver(call)


def _reads_parameter(facts: Facts, node: ast.expr | None) -> bool:
    names = (inner for inner in walk(node) if isinstance(inner, ast.Name)) if node is not None else ()
    return any(binding.how is Bound.PARAMETER for name in names for binding in facts.flow.reaching(name))


def _is_rounded(facts: Facts, node: ast.expr | None, inside: bool = False, depth: int = 0) -> bool:
    """Whether an expression comes from a sigmoid of a network.

    Args:
        facts, node: the expression and its file.
        inside: whether it is computed in a network, and so under autocast.
        depth: how many names and calls were followed to it.
    """
    if node is None or depth > _DEPTH:
        return False
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, ast.MatMult) and any(_is_rounded(facts, item, inside, depth) for item in (node.left, node.right))
    if isinstance(node, ast.UnaryOp):
        return _is_rounded(facts, node.operand, inside, depth)
    if isinstance(node, ast.Subscript):
        return _is_rounded(facts, node.value, inside, depth)
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(_is_rounded(facts, item, inside, depth) for item in node.elts)
    if isinstance(node, ast.Name):
        return any(_is_bound_rounded(facts, binding, inside, depth + 1) for binding in facts.flow.reaching(node))
    return isinstance(node, ast.Call) and _gives_rounded(facts, node, inside, depth + 1)


def _is_bound_rounded(facts: Facts, binding: Binding, inside: bool, depth: int) -> bool:
    """Whether a binding gives its name what a sigmoid gave."""
    if binding.how is Bound.ASSIGN and binding.value is not None:
        whole = binding.value
        for step in binding.path:
            if isinstance(whole, ast.Tuple) and isinstance(step, int) and step < len(whole.elts):
                whole = whole.elts[step]
        return _is_rounded(facts, whole, inside, depth)
    function = facts.tree.function(binding.node)
    if binding.how is not Bound.PARAMETER or inside or function is None or not isinstance(binding.node, ast.arg):
        return False
    bound = facts.tree.class_of(function) is not None
    handed = ((home, passed(call, function, binding.node, bound)) for home, call in facts.callers_everywhere(function) or ())
    return any(_is_rounded(home, given, False, depth) for home, given in handed)


def _gives_rounded(facts: Facts, call: ast.Call, inside: bool, depth: int) -> bool:
    squashed = probabilities.operand(facts, call)
    if squashed is not None:
        return inside and not formulas.is_full(facts, squashed)
    networks = facts.models.of(call.func)
    if networks:
        return any(_ends_rounded(network, depth) for network in networks)
    if last_name(call.func) in formulas.ALIKE:
        return _is_rounded(facts, _operand(facts, call), inside, depth)
    functions = called(facts, call)
    return any(_is_rounded(home, value, inside, depth) for home, function in functions for value in returns(function))


def _ends_rounded(network: Network, depth: int) -> bool:
    """Whether a network's last layer, or what its ``forward`` returns, is a sigmoid."""
    made = network.value.node
    if network.definition is None:
        return isinstance(made, ast.Call) and probabilities.ends_in_sigmoid(network, made)
    forward = forward_of(network.definition)
    return isinstance(forward, FUNCTIONS) and any(_is_rounded(network.definition.facts, value, True, depth) for value in returns(forward))
