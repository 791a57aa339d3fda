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
    Effects ``numerics``: rounding, and zeros for a query whose keys are all masked; and ``rng`` where there is dropout,
    which draws other numbers. Held where scores or weights are used otherwise, where the program takes gradients of
    gradients, which torch's kernels lack, where hooks may look at the layers, and where the softmax runs in a precision
    of its own. Weights that a function returns become None where each of its callers is seen to pass over them.

Reference:
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchfix.edits import AddImport, Edit, Remove, RemoveImport, Replace
from torchfix.facts import Facts
from torchfix.facts.code.calls import is_constant, keyword
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import last_name, walk
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.tensors.attention import Attention, attentions
from torchfix.facts.tensors.attention_arguments import arguments
from torchfix.transform import Default, Effect, Finding, Held, NoOptions, Transform

_FUNCTION = "torch.nn.functional.scaled_dot_product_attention"
_MESSAGE = "attention is written by hand, which keeps the scores of all queries against all keys in memory"
_BECAUSE = "a softmax of a product of two tensors is multiplied with a third, and nothing else reads scores or weights"
_MEASURES = ("torch.finfo", "math.sqrt", "numpy.sqrt")
_SECOND = ("torch.autograd.functional.hessian", "torch.autograd.functional.hvp", "torch.autograd.gradgradcheck", "torch.func.hessian")
_LOOKS = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_backward_hook")
_SECOND_ORDER = Obstacle(
    "double-backward", "the program takes gradients of gradients, which torch's attention lacks", "leave this network as it is"
)
_HOOKS = Obstacle("hooks", "hooks look at the layers of a network, perhaps at its softmax or its dropout", "leave it as it is")
_DROPOUT = "Dropout draws other random numbers, so a run with the same seed gives other ones."

_RETURNED = "The function returns None in the place of the attention weights, which none of its callers reads."


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The softmaxes that are attention."""
    for call, found in attentions(facts):
        given = _in_program(facts) or arguments(facts, found) if isinstance(found, Attention) else found
        if isinstance(given, Obstacle):
            yield Finding(call, _MESSAGE, held=Held(given.code, given.text, given.help))
        elif isinstance(found, Attention):
            effects = {Effect.NUMERICS, *([Effect.RNG] if found.dropout is not None else [])}
            told = ((_DROPOUT, found.dropout is not None), (_RETURNED, bool(found.returned)))
            notes = (*given.notes, *(note for note, holds in told if holds))
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
    outer = facts.tree.parent(output)
    if isinstance(output, ast.BinOp) and isinstance(outer, ast.Attribute):  # its parentheses go with it
        yield Replace(outer, f"{spelled or _FUNCTION}({given}.{outer.attr}")
    else:
        yield Replace(output, f"{spelled or _FUNCTION}({given}")
    for statement in attention.statements:
        yield Remove(statement)
    for use in attention.returned:
        yield Replace(use, "None")
    unused = _unused_module(facts, attention.softmax)
    if unused is not None:
        yield Remove(unused)
    if spelled is None:
        yield AddImport("torch")
    left = _left_unused(facts, attention, given)
    for statement in left:
        yield Remove(statement)
    gone = [node for part in (*attention.statements, *left, output) for node in walk(part) if isinstance(node, ast.Name)]
    for module, name in sorted({found for node in gone if (found := _import(facts, node))}, key=str):
        yield RemoveImport(module, name)


def _left_unused(facts: Facts, attention: Attention, given: str) -> list[ast.stmt]:
    """The assignments of variables that only the old code read: sizes for the scale, numbers for the mask."""
    parts = (*attention.statements, attention.output.node)
    names = [node for part in parts for node in walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    found: dict[ast.stmt, None] = {}
    for name in names:
        for binding in facts.flow.reaching(name):
            statement = binding.node
            target = facts.flow.only_variable(statement) if isinstance(statement, ast.Assign) and statement not in parts else None
            if not isinstance(statement, ast.Assign) or target is None or re.search(rf"\b{target.id}\b", given):
                continue
            reads = [use for use in facts.names.uses(target) if isinstance(use.ctx, ast.Load)]
            if all(any(facts.tree.is_within(use, part) for part in parts) for use in reads) and _only_measures(facts, statement.value):
                found[statement] = None
    return list(found)


def _only_measures(facts: Facts, value: ast.expr) -> bool:
    """Whether an expression only asks for sizes and limits of tensors, so that nothing is lost without it."""
    calls = [node for node in walk(value) if isinstance(node, ast.Call)]
    return all(last_name(call.func) in ("size", "float", "int") or facts.calls.meaning(call) in _MEASURES for call in calls)


def _import(facts: Facts, name: ast.Name) -> tuple[str, str | None] | None:
    """The import that brings a name, as its module and what is taken of it."""
    bindings = facts.names.bindings(name)
    if len(bindings) != 1 or bindings[0].how is not Bound.IMPORT:
        return None
    origin, node = bindings[0].origin, bindings[0].node
    return (origin, None) if isinstance(node, ast.Import) else (origin.rpartition(".")[0], origin.rpartition(".")[2])


def _unused_module(facts: Facts, softmax: ast.Call) -> ast.stmt | None:
    """The statement that makes the ``nn.Softmax`` of a class for this one call, which is left without use."""
    kept = softmax.func
    owner = facts.tree.method_class(softmax)
    if not isinstance(kept, ast.Attribute) or not isinstance(kept.value, ast.Name) or not facts.is_self(kept.value) or owner is None:
        return None
    uses = [use for use in facts.tree.attributes[kept.attr] if isinstance(use.value, ast.Name) and facts.is_self(use.value)]
    here = [use for use in uses if facts.tree.is_within(use, owner)]
    made = [facts.tree.parent(use) for use in here if isinstance(use.ctx, ast.Store)]
    if len(here) != 2 or len(made) != 1 or facts.classes.heirs(owner) or facts.project.mentions(kept.attr, facts.path):
        return None
    statement = made[0]
    single = isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.value, ast.Call)
    return statement if isinstance(statement, ast.Assign) and single else None


_LITERALS = (b"softmax", b"Softmax")
TRANSFORM = Transform.from_module(__name__, __doc__, group="compile", literals=_LITERALS, find=find, since="2.0", default=Default.OFF)
