"""The statements that belong under autocast, in a training loop that ran under Apex.

Apex changed torch's functions for all of the program. Where the forward pass can be read, the regions are those of any
training loop; where the network is out of sight, all that computes the loss is one, since this program computed it in
half precision before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.tree import child_blocks, last_name, walk_here
from torchfix.facts.half_precision.autocast import Treatment, treatment
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.regions import NO_GRAD
from torchfix.facts.training.updates import Update

if TYPE_CHECKING:
    from torchfix.facts import Facts

# What autocast meets otherwise than Apex did: Apex let a loss be registered, and changed what backward passes call.
_NEW_UNDER_AUTOCAST = ("bce-loss", "custom-autograd")
# Methods and functions that make or move a batch, or look at a loss, beside torch's own that do not compute.
_PREPARING = frozenset(
    """next iter set_epoch len range int float str bool tuple list dict zip enumerate isinstance hasattr getattr print update append keys
    values items get mean sum Variable from_numpy tensor ones zeros is_available train eval zero_grad time format""".split()
)
_Regions = tuple[tuple[tuple[ast.stmt, ast.stmt], ...], tuple["ast.Call | ast.Name", ...]]


def regions_of(facts: Facts, update: Update) -> _Regions | Obstacle:
    """The first and last statement of each stretch, and the results that must be float32 again behind them."""
    forward = facts.forwards.of(update)
    if not isinstance(forward, Obstacle) and not forward.inline:
        return forward.regions, forward.restored
    if isinstance(forward, Obstacle) and forward.code in _NEW_UNDER_AUTOCAST:
        return forward
    stretches = list(_stretches(facts, update))
    if any(_shares_weights(facts, stretch) for stretch in stretches):
        return Obstacle(
            "no-grad-pass",
            "one network runs with and without gradients in the same statement",
            "write the pass without gradients as a statement of its own",
        )
    if stretches:
        ends = [(stretch[0], stretch[-1]) for stretch in stretches]
        return tuple(sorted(ends, key=lambda item: item[0].lineno)), ()
    return Obstacle(
        "forward-elsewhere",
        "the forward pass of the loss that is scaled stands in another function",
        "write forward, backward and step in one function",
    )


def _stretches(facts: Facts, update: Update) -> Iterator[list[ast.stmt]]:
    """All that computes the losses, in each block as far as no backward pass or step comes between."""
    tree, loop = facts.tree, update.loop
    feeding = facts.forwards.feeding(update).statements
    apart = (*loop.backwards, *loop.steps)
    waiting = [loop.node.body]
    while waiting:
        current: list[ast.stmt] = []
        for statement in waiting.pop():
            inner = [block for block in child_blocks(statement) if any(tree.is_within(call, item) for call in apart for item in block)]
            if inner or any(tree.is_within(call, statement) for call in apart):
                yield from _cut(facts, current, feeding)
                current = []
                waiting += inner
            else:
                current.append(statement)
        yield from _cut(facts, current, feeding)


def _cut(facts: Facts, statements: list[ast.stmt], feeding: frozenset[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """From the first statement that computes a part of the loss to the last; a pass without gradients stands alone (its weight cache)."""
    feeds = (item for item in statements if any(facts.tree.is_within(inner, item) for inner in feeding))
    computing = [item for item in feeds if any(_computes(node) for node in walk_here(item))]
    if not computing:
        return
    current: list[ast.stmt] = []
    for statement in statements[statements.index(computing[0]) : statements.index(computing[-1]) + 1]:
        if _blind(facts, statement):
            yield from [current] if current else []
            yield [statement]
            current = []
        else:
            current.append(statement)
    yield from [current] if current else []


def _blind(facts: Facts, statement: ast.stmt) -> list[ast.Call]:
    """The calls in a statement that may run a network without gradients."""
    return [node for node in walk_here(statement) if isinstance(node, ast.Call) and _computes(node) and facts.regions.under(node, NO_GRAD)]


def _shares_weights(facts: Facts, stretch: list[ast.stmt]) -> bool:
    """Whether what runs without gradients in a stretch also runs with them in it, not only in another branch."""
    blind = [call for statement in stretch for call in _blind(facts, statement)]
    others = [node for item in stretch if blind for node in walk_here(item) if isinstance(node, ast.Call) and node not in blind]
    for call in blind:
        for other in others:
            if ast.dump(call.func) == ast.dump(other.func) and not _exclusive(facts, call, other):
                return True
    return False


def _exclusive(facts: Facts, one: ast.AST, other: ast.AST) -> bool:
    """Whether two places stand in different branches of one ``if``, so that only one of them runs."""
    tree = facts.tree
    around = (outer for outer in tree.ancestors(one) if isinstance(outer, ast.If) and tree.is_within(other, outer))
    return any(len({any(tree.is_within(node, item) for item in outer.body) for node in (one, other)}) == 2 for outer in around)


def _computes(node: ast.AST) -> bool:
    """Whether a node may be the call of a network or a loss, rather than one that makes or moves what they are given."""
    name = last_name(node.func) if isinstance(node, ast.Call) else ""
    if name is None:
        return True
    return bool(name) and name not in _PREPARING and treatment(name) not in (Treatment.EXACT, Treatment.PLAIN)
