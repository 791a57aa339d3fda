"""The statements that belong under autocast, in a training loop that ran under Apex.

Apex changed torch's functions for all of the program. Where the forward pass can be read, the regions are those of any
training loop; where the network is out of sight, all that computes the loss is one, since this program computed it in
half precision before.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import child_blocks, dotted, last_name, walk_here
from torchfix.facts.half_precision.autocast import LOSS_FUNCTIONS, Treatment, treatment
from torchfix.facts.half_precision.stretches import NO_GRAD_PASS
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.regions import NO_GRAD
from torchfix.facts.training.updates import Update

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Training

# What autocast meets otherwise than Apex did: Apex let a loss be registered, and changed what backward passes call.
_NEW_UNDER_AUTOCAST = ("bce-loss", "custom-autograd")
# Methods and functions that make or move a batch, or look at a loss, beside torch's own that do not compute.
_PREPARING = frozenset(
    """next iter set_epoch len range int float str bool tuple list dict zip enumerate isinstance hasattr getattr print update append keys
    values items get mean sum Variable from_numpy tensor ones zeros is_available train eval zero_grad time format""".split()
)
# Methods by which a network is told or asked something.
_OF_NETWORKS = ("train", "parameters", "named_parameters")
_Regions = tuple[tuple[tuple[ast.stmt, ast.stmt], ...], tuple["ast.Call | ast.Name", ...]]


def regions_of(facts: Facts, update: Update) -> _Regions | Obstacle:
    """The first and last statement of each stretch, and the results that must be float32 again behind them."""
    forward = facts.forwards.of(update)
    if not isinstance(forward, Obstacle) and not forward.inline:
        return forward.regions, forward.restored
    if isinstance(forward, Obstacle) and forward.code in _NEW_UNDER_AUTOCAST:
        return forward
    objects = _objects(facts, update.loop)
    surely, perhaps = (list(_stretches(facts, update, runs)) for runs in (lambda node: _runs(facts, node, objects), _computes))
    stretches = surely or perhaps
    if any(_shares_weights(facts, stretch) for stretch in stretches):
        return NO_GRAD_PASS
    if stretches:
        ends = [(stretch[0], stretch[-1]) for stretch in stretches]
        return tuple(sorted(ends, key=lambda item: item[0].lineno)), ()
    return Obstacle(
        "forward-elsewhere",
        "the forward pass of the loss that is scaled stands in another function",
        "write forward, backward and step in one function",
    )


def _stretches(facts: Facts, update: Update, runs: Callable[[ast.AST], bool]) -> Iterator[list[ast.stmt]]:
    """All that computes the losses, in each block as far as no backward pass or step comes between.

    Args:
        facts: the file.
        update: the losses.
        runs: whether a node runs a network or a loss, so that a stretch may begin with it.
    """
    tree, loop = facts.tree, update.loop
    feeding = facts.forwards.feeding(update).statements
    apart = (*loop.backwards, *loop.steps)
    waiting = [loop.node.body]
    while waiting:
        current: list[ast.stmt] = []
        for statement in waiting.pop():
            inner = [block for block in child_blocks(statement) if any(tree.is_within(call, item) for call in apart for item in block)]
            if inner or any(tree.is_within(call, statement) for call in apart):
                yield from _cut(facts, current, feeding, runs)
                current = []
                waiting += [block for block in inner if not _is_plain(facts, block, update)]
            else:
                current.append(statement)
        yield from _cut(facts, current, feeding, runs)


def _is_plain(facts: Facts, block: list[ast.stmt], update: Update) -> bool:
    """Whether a block is the branch in which losses go backward without Apex."""
    scaled = {item.call for item in update.sent}
    sends = [call for call in update.loop.backwards if any(facts.tree.is_within(call, item) for item in block)]
    return bool(sends) and scaled.isdisjoint(sends)


def _cut(
    facts: Facts, statements: list[ast.stmt], feeding: frozenset[ast.stmt], runs: Callable[[ast.AST], bool]
) -> Iterator[list[ast.stmt]]:
    """From the first statement that runs a network or a loss to the last that computes; a pass without gradients stands alone.

    Autocast keeps the weights that it has converted until its region ends, those of a pass without gradients too.
    """
    feeds = [item for item in statements if any(facts.tree.is_within(inner, item) for inner in feeding)]
    running = [item for item in feeds if any(map(runs, walk_here(item)))]
    computing = [item for item in feeds if any(_computes(node) for node in walk_here(item))]
    if not running:
        return
    current: list[ast.stmt] = []
    for statement in statements[statements.index(running[0]) : statements.index(computing[-1]) + 1]:
        if _blind(facts, statement):
            yield from [current] if current else []
            yield [statement]
            current = []
        else:
            current.append(statement)
    yield from [current] if current else []


def _objects(facts: Facts, loop: Training) -> frozenset[str]:
    """The variables that hold networks and losses, as far as their use shows it: they are called, or asked for their weights."""
    found: set[str] = set()
    around = loop.function or facts.tree.module
    for node in (item for statement in around.body for item in walk_here(statement)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_NETWORKS:
            found |= {dotted(node.func.value) or ""}
        elif isinstance(node, ast.Call) and _is_object(facts, node):
            found |= {dotted(node.func) or ""}
    return frozenset(found - {"", "self"})


def _is_object(facts: Facts, call: ast.Call) -> bool:
    """Whether what is called is the value of a variable, an attribute or an entry, rather than a function or a class by name."""
    if isinstance(call.func, ast.Name):
        bound = facts.names.lookup(call.func.id, call.func)
        return bound is not None and all(item.how in (Bound.PARAMETER, Bound.ASSIGN, Bound.LOOP) for item in bound[1])
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and facts.is_self(call.func.value):
        return facts.own_method(call) is None
    return isinstance(call.func, ast.Subscript)


def _runs(facts: Facts, node: ast.AST, objects: frozenset[str]) -> bool:
    """Whether a node is the call of a network or a loss, or of what is given one."""
    if not isinstance(node, ast.Call) or not _computes(node):
        return False
    if isinstance(node.func, ast.Subscript) or any(_is_part(item, objects) for item in (node.func, *node.args)):
        return True
    name = last_name(node.func) or ""
    torch = (facts.calls.meaning(node) or "").startswith("torch.")
    return bool(facts.models.run_by(node)) or (torch and (treatment(name) is Treatment.LOW or name in LOSS_FUNCTIONS))


def _is_part(expression: ast.expr, objects: frozenset[str]) -> bool:
    """Whether an expression is one of some objects, or of their parts."""
    while True:
        if dotted(expression) in objects:
            return True
        if not isinstance(expression, ast.Attribute):
            return False
        expression = expression.value


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
