"""Detach tensors before they are copied to the host, and with ``detach()`` rather than ``.data``.

Why:
    ``x.cpu().detach()`` has autograd record the copy, for a backward pass that never comes; ``x.detach().cpu()`` records
    nothing. ``x.data`` gives the values too, but hides from autograd what is written into them: a gradient that is wrong
    for it is computed without an error. ``x.detach()`` costs the same and raises.

Before:
    import torch

    x = torch.ones(3, requires_grad=True)
    y = x * 2
    print(y.cpu().detach().numpy(), y.data.cpu().numpy(), y.sum().data.item())

After:
    import torch

    x = torch.ones(3, requires_grad=True)
    y = x * 2
    print(y.detach().cpu().numpy(), y.detach().cpu().numpy(), y.sum().item())

Safety:
    Exact. Of ``.data`` only where the object surely is a tensor (batches of graphs and texts, datasets and packed
    sequences have an attribute of this name too) and its result is only read: who writes through ``.data``, as optimizers
    and initialisers do, means to. Held where the result goes out of sight, and where a graph may keep it while the tensor
    itself changes.

Reference:
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html,
    https://pytorch.org/blog/pytorch-0_4_0-migration-guide/ ("What about .data?")
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import Replace
from torchfix.facts import Facts
from torchfix.facts.tensors.detachments import Detachment, Fate
from torchfix.transform import Finding, Held, NoOptions, Transform

_RECORDED = "autograd records the copy to the host, though nothing goes back through it"
_HIDDEN = "`.data` would hide from autograd any write through it; `.detach()` costs the same"
_NEEDLESS = "`.data` is needless where only a number or a size is asked for"

_AWAY = Held(
    "out-of-sight",
    "the result of .data goes where it is not seen whether something writes into it, which .detach() would report to autograd",
    "write .detach() where nothing does",
)
_CHANGES = Held(
    "written-later",
    "a graph may keep the result while the tensor itself is written in place, which raises an error with .detach()",
    "write .detach().clone() where the old values are meant",
)
# Expressions that a method can be called on without parentheses around them.
_PRIMARY = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    for detachment in facts.detachments.all():
        of_weight = detachment.is_weight and detachment.fate is not Fate.READ  # code that updates or initialises a network
        if detachment.fate is Fate.WRITTEN or of_weight:
            continue
        if detachment.fate is Fate.AWAY:
            yield Finding(detachment.node, _HIDDEN, held=_AWAY)
        elif detachment.fate is Fate.COMPUTED_WITH and facts.detachments.may_change_later(detachment):
            yield Finding(detachment.node, _HIDDEN, held=_CHANGES)
        else:
            yield _fixed(detachment)


def _fixed(detachment: Detachment) -> Finding:
    source = "$source" if isinstance(detachment.source, _PRIMARY) else "($source)"
    parts = {"source": detachment.source}
    if detachment.needs_none and detachment.copies is None:
        return Finding(detachment.node, _NEEDLESS, (Replace(detachment.node, source, parts),), because="nothing of it is in a graph")
    if detachment.copies is None:
        because = "the result is only read, in all that is done with it"
        return Finding(detachment.node, _HIDDEN, (Replace(detachment.node, f"{source}.detach()", parts),), because=because)
    copy = detachment.copies
    target = copy.args[0] if copy.args else None
    parts |= {"target": target} if target is not None else {}
    copied = ".cpu()" if target is None else ".to($target)"
    edit = Replace(detachment.node, f"{source}.detach(){copied}", parts)
    return Finding(detachment.node, _RECORDED, (edit,), because="the copy has the same values, and neither has a graph")


TRANSFORM = Transform.from_module(__name__, __doc__, group="transfer", literals=(b".data", b".detach("), find=find, since="0.4")
