"""Add up losses and counts on the device, and read the sums behind the loop.

Why:
    ``total += loss.item()`` makes the host wait on every step until the device has computed the loss, so that the kernels
    of the next step are given to a device that stands idle. The sum is needed behind the loop only. Added up on the
    device, it costs one small kernel a step, and the host runs ahead.

Before:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(2, 3).to(device)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(TensorDataset(torch.ones(8, 2), torch.zeros(8, dtype=torch.long)), batch_size=4)

    model.eval()
    total_loss, correct = 0.0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            total_loss += criterion(outputs, targets).item() * inputs.size(0)
            correct += (outputs.argmax(1) == targets).sum().item()
    print(total_loss / len(loader.dataset), correct)

After:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(2, 3).to(device)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(TensorDataset(torch.ones(8, 2), torch.zeros(8, dtype=torch.long)), batch_size=4)

    model.eval()
    total_loss, correct = 0.0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            total_loss = total_loss + criterion(outputs, targets).detach().double() * inputs.size(0)
            correct = correct + (outputs.argmax(1) == targets).sum()
        total_loss = float(total_loss)
        correct = int(correct)
    print(total_loss / len(loader.dataset), correct)

Safety:
    Exact. A Python float is a float64, and so is the sum on the device: every addition, subtraction and product gives the
    same bits, whatever the precision of the loss; counts are added as whole numbers. The sum is turned back into a Python
    number right behind the loop, and where the loop itself uses it every so many steps. A list of numbers holds detached
    tensors for a while, and is read at once behind the loop; so is a sum where the device may not know float64. An error on
    the device surfaces at the next place that waits. Effect ``numerics`` where each number is divided before it is added,
    which the device does by a reciprocal. Effect ``sync`` where a progress display shows the sum on every step: it is then
    drawn on every tenth step and on the last. Effect ``memory`` where a list grows through several runs of the loop. Held
    where the loop decides by the sum, prints it or hands it on at every step, where it may be seen before the code behind
    the loop has run, where it is not surely that of a tensor, and where the loop reads the same tensor on every step anyway:
    sync-in-loop makes one read of the two.

Reference:
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html ("Avoid unnecessary CPU-GPU synchronization")
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain

from torchfix.edits import AddImport, Edit, InsertAfter, InsertBefore, Replace, Wrap
from torchfix.facts import Facts
from torchfix.facts.code.calls import receiver
from torchfix.facts.code.numbers import Number
from torchfix.facts.code.tree import LoopNode
from torchfix.facts.metrics.accumulators import Accumulator
from torchfix.facts.metrics.gathered import Gathered
from torchfix.facts.metrics.scalars import Scalar
from torchfix.facts.obstacle import Obstacle
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_ADDED = "the host waits for the device on every step to add up a number that is used later"
_COLLECTED = "the host waits for the device on every step to collect a number that is used later"


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    reasons = {item: facts.gains.of_sum(item) for item in facts.accumulators.all}
    for accumulator, obstacle in reasons.items():
        statement: ast.stmt = next(addition.statement for addition in accumulator.additions if addition.reads)
        if obstacle is not None:
            yield Finding(statement, _ADDED, held=_held(obstacle))
            continue
        beside = [item for item, reason in reasons.items() if reason is None and item.loop is accumulator.loop]
        listed = facts.deferral.is_listed(accumulator)
        edits = _listed(facts, accumulator) if listed else chain(_sum_edits(facts, accumulator), _drawn(facts, accumulator, beside))
        because = _because(facts, accumulator, listed)
        yield Finding(statement, _ADDED, tuple(edits), _effects(facts, accumulator), because, tuple(_notes(facts, accumulator)))
    for found in facts.gatherings.all:
        statement = next(entry.statement for entry in found.entries if entry.reads)
        obstacle = facts.gains.of_list(found)
        if obstacle is not None:
            yield Finding(statement, _COLLECTED, held=_held(obstacle))
            continue
        grows = found.whole is not found.loop
        note = f"Each step keeps its number on the device, in 512 bytes, until the loop of line {found.whole.lineno} is through."
        because = "read at once, the numbers are the same, for 512 bytes a step; an error surfaces at the next place that waits"
        effects = frozenset({Effect.MEMORY}) if grows else frozenset()
        yield Finding(statement, _COLLECTED, tuple(_list_edits(facts, found)), effects, because, (note,) if grows else ())
    for statement, obstacle in facts.deferral.elsewhere():
        yield Finding(statement, _COLLECTED if isinstance(statement, ast.Expr) else _ADDED, held=_held(obstacle))


def _held(obstacle: Obstacle) -> Held:
    return Held(obstacle.code, obstacle.text, obstacle.help)


# Sums --------------------------------------------------------------------------------------------------------------


def _sum_edits(facts: Facts, accumulator: Accumulator) -> Iterator[Edit]:
    """Add up on the device, and turn the sum into a number where it is used."""
    name, loop = accumulator.name.id, accumulator.loop
    for addition in accumulator.additions:
        for read in addition.reads:
            yield from _kept_there(read, _wide(facts, read, facts.deferral.number(accumulator)))
        if addition.reads and isinstance(addition.statement, ast.AugAssign):
            yield Replace(addition.statement, f"{name} = {name} + $value", {"value": addition.value})
    converted = _converted(facts, accumulator)
    for place in facts.deferral.used_seldom(accumulator):
        if facts.source.segment(place) != converted:
            yield InsertBefore(place, converted)
    _, block, index = facts.tree.place(loop)
    behind = (facts.source.segment(item) for item in block[index + 1 :])
    if accumulator.is_used_outside and converted not in behind:
        yield InsertAfter(loop, converted)


def _kept_there(read: Scalar, template: str) -> Iterator[Edit]:
    """The tensor in the place of its number, not copied to the host on the way."""
    yield Replace(read.node, template, {"tensor": read.tensor})
    source = receiver(read.copy) if read.copy is not None else None
    if read.copy is not None and source is not None:
        yield Replace(read.copy, "$tensor", {"tensor": source})


def _wide(facts: Facts, read: Scalar, number: Number | None) -> str:
    """The template of a tensor that takes part in a sum: detached, and with all digits that a Python number has."""
    whole = read.holds in (Number.WHOLE, Number.TRUTH)
    code = "$tensor" if whole else "$tensor.detach()"
    cut = read.number is Number.WHOLE and not whole  # int(loss) cuts the fraction off
    if number is Number.FRACTION:
        return f"{code}.long().double()" if cut else f"{code}.double()"
    return code if whole and facts.scalars.is_wide(read.tensor) else f"{code}.long()"


def _converted(facts: Facts, accumulator: Accumulator) -> str:
    """The statement that turns the sum back into a Python number."""
    word = "float" if facts.deferral.number(accumulator) is Number.FRACTION else "int"
    return f"{accumulator.name.id} = {word}({accumulator.name.id})"


def _drawn(facts: Facts, accumulator: Accumulator, beside: list[Accumulator]) -> Iterator[Edit]:
    """Draw the displays of a sum on some steps only, with all sums that they show turned into numbers first."""
    for display in facts.deferral.displays(accumulator):
        pace = facts.displays.pace(display.loop)
        assert pace is not None
        shown = [item for item in beside if any(other.first is display.first for other in facts.deferral.displays(item))]
        yield Wrap(display.first, display.last, "\n    ".join([f"if {pace.test}:", *(_converted(facts, item) for item in shown)]))
        if pace.is_new and isinstance(display.loop, ast.For):
            yield Replace(display.loop.iter, "enumerate($iterable)", {"iterable": display.loop.iter})
            yield Replace(display.loop.target, f"{pace.counter}, $target", {"target": display.loop.target})


def _listed(facts: Facts, accumulator: Accumulator) -> Iterator[Edit]:
    """Collect what a sum adds, and add it up on the host behind the loop."""
    name, (addition,) = accumulator.name.id, accumulator.additions
    values = facts.names.fresh(f"{name}_values", f"{name}_per_step")
    yield InsertBefore(accumulator.loop, f"{values} = []")
    yield Replace(addition.statement, f"{values}.append($value)", {"value": addition.value})
    yield from _kept_there(addition.reads[0], _detached(facts, addition.reads[0], accumulator.loop))
    item = facts.names.fresh("value", f"{name}_value")
    numbers = _read_at_once(facts, values, accumulator.loop, [addition.reads[0]])
    yield InsertAfter(accumulator.loop, f"for {item} in {numbers}:\n    {name} += {item}")
    yield from _torch(facts, accumulator.loop)


# Lists -------------------------------------------------------------------------------------------------------------


def _list_edits(facts: Facts, found: Gathered) -> Iterator[Edit]:
    """Collect tensors, and read them at once behind the loop."""
    reads = [read for entry in found.entries for read in entry.reads]
    for entry in found.entries:
        for read in entry.reads:
            yield from _kept_there(read, _detached(facts, read, found.loop) if entry.is_bare else _wide(facts, read, Number.FRACTION))
    converted = f"{found.name.id} = {_read_at_once(facts, found.name.id, found.whole, reads)}"
    for place in facts.deferral.read_seldom(found):
        yield InsertBefore(place, converted)
    if found.is_used_outside:
        yield InsertAfter(found.whole, converted)
    yield from _torch(facts, found.whole)


def _detached(facts: Facts, read: Scalar, loop: LoopNode) -> str:
    """The template of a tensor that is kept: without its graph, and apart from memory that is written later."""
    whole = read.holds in (Number.WHOLE, Number.TRUTH)
    apart = facts.stability.has_own_memory(read.tensor, loop)
    code = ("$tensor" if whole else "$tensor.detach()") + ("" if apart else ".clone()")
    if read.number is Number.WHOLE and read.holds is not Number.WHOLE:
        return f"{code}.long()"
    return f"{code}.double()" if read.number is Number.FRACTION and read.holds is not Number.FRACTION else code


def _read_at_once(facts: Facts, values: str, at: ast.stmt, reads: list[Scalar]) -> str:
    flat = "" if all(facts.scalars.is_single(read.tensor) for read in reads) else ".flatten()"
    stack = facts.names.spell("torch.stack", at) or "torch.stack"
    return f"{stack}({values}){flat}.tolist() if {values} else []"


def _torch(facts: Facts, at: ast.stmt) -> Iterator[Edit]:
    if facts.names.spell("torch.stack", at) is None:
        yield AddImport("torch")


# What is said ------------------------------------------------------------------------------------------------------


def _divides(facts: Facts, accumulator: Accumulator) -> bool:
    return any(ast.Div in facts.deferral.operators(addition) for addition in accumulator.additions)


def _effects(facts: Facts, accumulator: Accumulator) -> frozenset[Effect]:
    effects = {Effect.NUMERICS: _divides(facts, accumulator), Effect.SYNC: bool(facts.deferral.displays(accumulator))}
    return frozenset(effect for effect, holds in effects.items() if holds)


def _because(facts: Facts, accumulator: Accumulator, listed: bool) -> str:
    others = facts.gains.still_waiting(accumulator.loop)
    also = f"; line {others[0].lineno} makes the host wait on every step all the same" if others else ""
    same = "read at once, the numbers are added in the same order" if listed else "the sum on the device has the digits of a Python number"
    return f"{same}; an error surfaces at the next place that waits{also}"


def _notes(facts: Facts, accumulator: Accumulator) -> Iterator[str]:
    for display in facts.deferral.displays(accumulator):
        yield f"The progress display of line {display.first.lineno} is drawn on every tenth step and on the last one."
    if _divides(facts, accumulator):
        yield "The device divides by multiplying with the reciprocal, so the last digit of the sum may differ."


TRANSFORM = Transform.from_module(
    __name__,
    __doc__,
    group="transfer",
    literals=(b".item(", b"float(", b" int(", b"(int(", b"=int(", b"+int("),
    find=find,
    since="0.4",
)
