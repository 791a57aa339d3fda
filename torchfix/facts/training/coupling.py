"""Whether a loss looks at several samples of a batch at once, as contrastive losses and batch statistics do.

The mean of such a loss over equal shares of a batch is not the loss of the whole batch: a process sees only the pairs
inside its own share, where DataParallel brought all outputs together before the loss.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import is_constant, keyword
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.tree import FUNCTIONS, last_name
from torchfix.facts.training.models import derives

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Operations that relate the rows of their operands to one another; bmm and baddbmm stay inside each sample.
_PAIRING = frozenset("mm matmul einsum tensordot cdist pdist outer inner corrcoef cov".split())
# Operations that join everything along one dimension, which is the batch's where it is the first.
_JOINING = frozenset("mean sum std var max min amax amin median prod softmax log_softmax logsumexp cumsum sort normalize".split())


def coupling(facts: Facts, loss: ast.expr) -> tuple[Facts, ast.expr] | None:
    """The first operation on the way to a loss that relates samples to one another, with the facts of its file.

    Networks that are replicated are not looked into: under DataParallel, too, each of them sees only its part.
    """
    waiting: list[tuple[Facts, ast.AST]] = [(facts, loss)]
    seen: set[int] = set()
    while waiting:
        home, root = waiting.pop(0)
        if id(root) in seen:
            continue
        seen.add(id(root))
        for node in _outside_networks(home, root):
            if isinstance(node, ast.expr) and _relates(home, node):
                return home, node
            waiting += _behind(home, node)
    return None


def _outside_networks(facts: Facts, root: ast.AST) -> Iterator[ast.AST]:
    """The nodes below a node, what a replicated network is given left out."""
    waiting = [root]
    while waiting:
        node = waiting.pop(0)
        yield node
        if not (isinstance(node, ast.Call) and facts.replicas.held_by(node.func)):
            waiting += ast.iter_child_nodes(node)


def _behind(facts: Facts, node: ast.AST) -> Iterator[tuple[Facts, ast.AST]]:
    """The code that gives a node its value: what its name was bound to, the function or the loss that it calls."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        for binding in facts.flow.reaching(node):
            given = binding.node.value if isinstance(binding.node, ast.AugAssign) else binding.value
            if given is not None:
                yield facts, given
    if isinstance(node, ast.Call) and not facts.replicas.held_by(node.func):
        yield from called(facts, node)
        for network in facts.models.of(node.func) or ():
            made = network.definition
            forward = method_of(made, "forward") if made is not None and derives(made, ("torch.nn.",)) else None
            if forward is not None and isinstance(forward.node, FUNCTIONS):
                yield forward.facts, forward.node


def _relates(facts: Facts, node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult) or {_new_axis(node.left), _new_axis(node.right)} == {0, 1}
    if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
        return False
    name = last_name(node.func)
    if name in _PAIRING:
        return True
    function = (facts.calls.meaning(node) or "").startswith("torch.")
    given = node.args[1:] if function else node.args
    dim = keyword(node, "dim")
    return name in _JOINING and any(is_constant(item, 0) for item in (given[:1] if dim is None else [dim.value]))


def _new_axis(node: ast.expr) -> object:
    """Where an expression gives a tensor another axis (``x.unsqueeze(0)``); rows against columns make pairs."""
    given = node.args[:1] if isinstance(node, ast.Call) and last_name(node.func) == "unsqueeze" else []
    return given[0].value if given and isinstance(given[0], ast.Constant) else None
