"""Keep the memory that torch has at hand from one batch to the next.

Why:
    torch keeps the device memory of freed tensors and hands it out again at once. ``torch.cuda.empty_cache()`` gives it
    back to the driver, for which the device must be idle, and the next batch asks the driver for all of it again. It
    frees no memory that a tensor of the program could not have had anyway.

Before:
    import torch

    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in torch.ones(3, 2, 4):
        loss = net(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.empty_cache()

After:
    import torch

    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in torch.ones(3, 2, 4):
        loss = net(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Safety:
    The same values; effect ``memory``: more of the device's memory stays reserved, which other processes miss, and a
    program that just fits may need another layout of it. Stays after an error, around an evaluation, and once an epoch.
    Held where a network leaves the device, where memory is measured or runs short, where processes share the device,
    where a clock is read behind the call, where a condition may seldom hold, and where an option or a function exists
    for this alone.

Reference:
    https://github.com/huggingface/transformers/issues/31372,
    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import Remove, RemoveImport, Replace
from torchfix.facts import Facts
from torchfix.facts.project.repetition import Repeated
from torchfix.facts.training.cached_memory import EMPTY_CACHE, is_after_error, is_beside_evaluation, who_needs_it
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_MESSAGE = "cached device memory is given back for every batch and asked of the driver again"
_MEMORY = frozenset({Effect.MEMORY})
_NOTE = (
    "More device memory stays reserved; where a program whose inputs vary in size runs out of it, set"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
)
_SHARED = Held("shared-function", "its function runs for every batch, and elsewhere too", "take its call out of the loop over batches")


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    imported = {reference.call: reference.imported for reference in facts.references.to([EMPTY_CACHE])}
    for call in facts.calls.to(EMPTY_CACHE):
        statement = facts.tree.parent(call)
        if not isinstance(statement, ast.Expr):
            continue
        repeated = facts.repetition.of(call)
        whole = _whole(facts, statement)
        if repeated is Repeated.SELDOM or is_after_error(facts, call) or is_beside_evaluation(facts, whole):
            continue
        obstacle = who_needs_it(facts, whole)
        if obstacle is not None:
            yield Finding(call, _MESSAGE, effects=_MEMORY, held=Held(obstacle.code, obstacle.text, obstacle.help))
        elif repeated is Repeated.BOTH:
            yield Finding(call, _MESSAGE, effects=_MEMORY, held=_SHARED)
        else:
            brought = imported.get(call)
            edits = (_without(facts, whole), *([RemoveImport(*brought)] if brought is not None else []))
            yield Finding(call, _MESSAGE, edits, _MEMORY, _because(facts, call), (_NOTE,))


def _whole(facts: Facts, statement: ast.stmt) -> ast.stmt:
    """The outermost condition that does nothing but this statement, and whose test does nothing but ask."""
    guard = _guard(facts, statement)
    return _whole(facts, guard) if guard is not None and facts.purity.is_pure(guard.test) else statement


def _without(facts: Facts, statement: ast.stmt) -> Remove | Replace:
    """The edit that takes a statement away, and of a condition that guards nothing else leaves the call that it asks."""
    guard = _guard(facts, statement)
    asks = guard is not None and isinstance(guard.test, ast.Call)
    return Replace(guard, "$test", {"test": guard.test}) if guard is not None and asks else Remove(statement)


def _guard(facts: Facts, statement: ast.stmt) -> ast.If | None:
    """The condition that does nothing but this statement, and that can go as a whole."""
    owner, block, _ = facts.tree.place(statement)
    if not isinstance(owner, ast.If) or len(block) > 1 or owner.orelse or _has_comments(facts, owner):
        return None
    around = facts.tree.parent(owner)
    return None if isinstance(around, ast.If) and owner in around.orelse else owner


def _has_comments(facts: Facts, statement: ast.If) -> bool:
    """Whether the lines of a condition may hold comments, which would go with it."""
    return any("#" in line for line in facts.source.lines[statement.lineno - 1 : statement.end_lineno])


def _because(facts: Facts, call: ast.Call) -> str:
    loop = facts.repetition.around(call)
    if loop is not None:
        return f"the loop at line {loop.lineno} takes one batch at a time; the next batch needs the same memory again"
    function = facts.tree.function(call)
    assert function is not None, "what runs for every batch stands in a loop or in a function"
    return f"{function.name} runs for every batch; the next batch needs the same memory again"


TRANSFORM = Transform.from_module(__name__, __doc__, group="memory", literals=(b"empty_cache",), find=find, since="0.4")
