"""Give the binary cross entropy logits instead of probabilities.

Why:
    Half precision rounds probabilities to 0 and 1, whose logarithms mean nothing; so ``nn.BCELoss`` raises under CUDA's
    autocast. ``nn.BCEWithLogitsLoss`` has the sigmoid inside, is exact in the tails, and can run in mixed precision.

Before:
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    criterion = nn.BCELoss()
    x, y = torch.ones(2, 4), torch.ones(2, 1)
    output = net(x)
    loss = criterion(output, y)
    print((output > 0.5).sum())

After:
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(4, 1))
    criterion = nn.BCEWithLogitsLoss()
    x, y = torch.ones(2, 4), torch.ones(2, 1)
    output = net(x)
    loss = criterion(output, y)
    print((torch.sigmoid(output) > 0.5).sum())

Safety:
    Effect ``numerics``: losses are the same up to rounding, but for logits beyond 15 or so, where BCELoss has lost its
    digits and cuts its logarithms off at -100. Only where a sigmoid is seen to make all that the loss is given, also
    through functions and parts of tuples. A sigmoid at the end of a network goes only where every call of the network in
    the project is seen; whoever else reads its output gets the sigmoid there. The names in saved states stay as they are.

Reference:
    https://docs.pytorch.org/docs/stable/amp.html#prefer-binary-cross-entropy-with-logits-over-binary-cross-entropy
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import AddImport, Edit, Remove, RemoveArgument, RemoveImport, Replace, by_file
from torchfix.facts import Facts
from torchfix.facts.code.tree import dotted
from torchfix.facts.half_precision.probabilities import LOSS_CLASS, LOSS_FUNCTION, Logits, logits_of, losses, operand
from torchfix.facts.obstacle import Obstacle
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_WITH_LOGITS = {LOSS_CLASS: "torch.nn.BCEWithLogitsLoss", LOSS_FUNCTION: "torch.nn.functional.binary_cross_entropy_with_logits"}
_MESSAGE = "the binary cross entropy is given probabilities, which it cannot take in half precision"
_BECAUSE = "a sigmoid makes all that the loss is given"
_TAILS = "The loss differs where a logit is beyond 15 or so: BCELoss cuts its logarithms off at -100, the new loss is exact."
_OUTPUT = "The network gives logits now: programs outside this project that load its weights must apply the sigmoid themselves."
# Expressions that a method can be called on without parentheses around them.
_PRIMARY = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The losses that take probabilities: objects of the class, and calls of the function."""
    for loss in losses(facts):
        found = logits_of(facts, loss)
        if isinstance(found, Obstacle):
            yield Finding(loss, _MESSAGE, held=Held(found.code, found.text, found.help))
        elif loss is min(found.losses, key=lambda item: (item[0].path, item[1].lineno, item[1].col_offset))[1] and _is_used(found):
            yield _fixed(facts, loss, found)


def _is_used(logits: Logits) -> bool:
    """Whether the losses are given anything at all."""
    return bool(logits.sigmoids or logits.layers)


def _fixed(facts: Facts, loss: ast.Call, logits: Logits) -> Finding:
    edits: list[tuple[str, Edit]] = []
    for home, call in logits.losses:
        edits += [(home.path, edit) for edit in _renamed(home, call)]
    for home, call in logits.sigmoids:
        edits.append((home.path, _without(home, call)))
    for home, call in logits.layers:
        edits.append((home.path, RemoveArgument(call, len(call.args) - 1)))
    for home, node in logits.readers:
        edits += [(home.path, edit) for edit in _with(home, node)]
    own, elsewhere = by_file(facts.path, edits)
    notes = (_TAILS, _OUTPUT) if logits.changes_network else (_TAILS,)
    return Finding(loss, _MESSAGE, own, frozenset({Effect.NUMERICS}), _BECAUSE, notes, elsewhere=elsewhere)


def _renamed(facts: Facts, loss: ast.Call) -> Iterator[Edit]:
    """The loss of logits in the place of the one of probabilities."""
    function, name = loss.func, facts.calls.meaning(loss) or ""
    new = _WITH_LOGITS[name]
    module, _, last = new.rpartition(".")
    if isinstance(function, ast.Attribute):
        yield Replace(function, f"$module.{last}", {"module": function.value})
        return
    spelled = facts.names.beside(function, new)
    yield Replace(function, spelled)
    if spelled == last:
        yield AddImport(module, last)
        yield RemoveImport(module, name.rpartition(".")[2])


def _without(facts: Facts, call: ast.Call) -> Edit:
    """The operand of a sigmoid in its place."""
    inner = operand(facts, call)
    assert inner is not None
    parent = facts.tree.parent(call)
    if isinstance(parent, ast.Assign) and isinstance(inner, ast.Name) and [dotted(target) for target in parent.targets] == [inner.id]:
        return Remove(parent)  # ``x = torch.sigmoid(x)``
    alone = isinstance(inner, _PRIMARY) or not isinstance(parent, ast.Attribute)
    return Replace(call, "$inner" if alone else "($inner)", {"inner": inner})


def _with(facts: Facts, node: ast.expr) -> Iterator[Edit]:
    """A sigmoid around a reader of what holds logits now."""
    spelled = facts.names.spell("torch.sigmoid", node)
    yield Replace(node, f"{spelled or 'torch.sigmoid'}($node)", {"node": node})
    if spelled is None:
        yield AddImport("torch")


_LITERALS = (b"BCELoss", b"binary_cross_entropy")
TRANSFORM = Transform.from_module(__name__, __doc__, group="precision", literals=_LITERALS, find=find, since="0.4")
