"""Let torch compute attention that is written by hand.

Why:
    Written out, attention keeps the scores of every query against every key in memory, several times, and reads them back
    for each step. ``scaled_dot_product_attention`` computes all of it in one kernel that never stores them.

Before:
    import math
    import torch
    import torch.nn.functional as F
    from torch import nn


    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.1)

        def forward(self, q, k, v, mask):
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            scores = scores.masked_fill(mask == 0, float("-inf"))
            weights = self.dropout(F.softmax(scores, dim=-1))
            return weights @ v


    x = torch.ones(1, 2, 3, 4)
    print(Attention().eval()(x, x, x, torch.ones(3, 3)))

After:
    import torch
    import torch.nn.functional as F
    from torch import nn


    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.1)

        def forward(self, q, k, v, mask):
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask != 0, dropout_p=self.dropout.p if self.dropout.training else 0.0
            )


    x = torch.ones(1, 2, 3, 4)
    print(Attention().eval()(x, x, x, torch.ones(3, 3)))

Safety:
    Effects ``numerics`` (rounding), and ``rng`` where there is dropout, which draws other numbers. Held where scores or
    weights are used otherwise, where the program takes gradients of gradients, which torch's kernels lack, where hooks may
    look at the layers, and where the softmax runs in a precision of its own.

Reference:
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import AddImport, Edit, Remove, RemoveImport, Replace
from torchfix.facts import Facts
from torchfix.facts.code.calls import is_constant, keyword
from torchfix.facts.code.tree import walk
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.tensors.attention import Attention, attentions
from torchfix.facts.tensors.attention_arguments import arguments
from torchfix.transform import Default, Effect, Finding, Held, NoOptions, Transform

_FUNCTION = "torch.nn.functional.scaled_dot_product_attention"
_MESSAGE = "attention is written by hand, which keeps the scores of all queries against all keys in memory"
_BECAUSE = "a softmax of a product of two tensors is multiplied with a third, and nothing else reads scores or weights"
_MODULES = ("math", "numpy")  # what scales are computed with
_SECOND = ("torch.autograd.functional.hessian", "torch.autograd.functional.hvp", "torch.autograd.gradgradcheck", "torch.func.hessian")
_LOOKS = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_backward_hook")
_SECOND_ORDER = Obstacle(
    "double-backward", "the program takes gradients of gradients, which torch's attention lacks", "leave this network as it is"
)
_HOOKS = Obstacle("hooks", "hooks look at the layers of a network, perhaps at its softmax or its dropout", "leave it as it is")
_DROPOUT = "Dropout draws other random numbers, so a run with the same seed gives other ones."


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The softmaxes that are attention."""
    for call, found in attentions(facts):
        given = _in_program(facts) or arguments(facts, found) if isinstance(found, Attention) else found
        if isinstance(given, Obstacle):
            yield Finding(call, _MESSAGE, held=Held(given.code, given.text, given.help))
        elif isinstance(found, Attention):
            effects = {Effect.NUMERICS, *([Effect.RNG] if found.dropout is not None else [])}
            notes = (*given.notes, *([_DROPOUT] if found.dropout is not None else []))
            yield Finding(call, _MESSAGE, tuple(_edits(facts, found, given.text)), frozenset(effects), _BECAUSE, notes)


def _in_program(facts: Facts) -> Obstacle | None:
    """What the programs of a file do with networks that torch's attention does not allow."""
    for there in facts.program.holding("create_graph", *(name.rpartition(".")[2] for name in _SECOND)):
        given = (keyword(call, "create_graph") for calls in there.tree.calls.values() for call in calls)
        if any(item is not None and not is_constant(item.value, False) for item in given) or next(there.calls.to(*_SECOND), None):
            return _SECOND_ORDER
    return _HOOKS if any(name in there.tree.calls for there in facts.program.holding(*_LOOKS) for name in _LOOKS) else None


def _edits(facts: Facts, attention: Attention, given: str) -> Iterator[Edit]:
    output = attention.output.node
    spelled = facts.names.spell(_FUNCTION, output)
    yield Replace(output, f"{spelled or _FUNCTION}({given}")
    for statement in attention.statements:
        yield Remove(statement)
    if spelled is None:
        yield AddImport("torch")
    gone = [node for statement in (*attention.statements, output) for node in walk(statement) if isinstance(node, ast.Name)]
    for module in _MODULES:
        if any(facts.names.qualified(node) == module for node in gone):
            yield RemoveImport(module)


_LITERALS = (b"softmax", b"Softmax")
TRANSFORM = Transform.from_module(__name__, __doc__, group="compile", literals=_LITERALS, find=find, since="2.0", default=Default.OFF)
