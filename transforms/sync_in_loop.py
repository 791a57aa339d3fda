"""Read less from the device in training and evaluation loops.

Why:
    The program gives the device its work ahead of time. To read a value (``.item()``, ``.cpu()``, ``print(loss)``, ``if loss > 3``) it must
    wait until the device has caught up, and while it waits the device gets no new work. On each iteration that costs
    the overlap of the two.

Before:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(2, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(8, 2), torch.zeros(8, 1)), batch_size=4)
    for step, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        if step % 100 == 0:
            print(step, value)

After:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(2, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(8, 2), torch.zeros(8, 1)), batch_size=4)
    for step, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            value = loss.item()
            print(step, value)

Safety:
    Exact. A value that is read several times in one iteration is read once, one that is needed only now and then is read
    only then, one that nobody uses is not read, and hits are counted on the device instead of copying every one; each
    only where the value is proved to be the same. An error of the device may surface at a later line than before. All
    other reads are held, with what to do about them: how often to log is for the author to decide. Sums and lists of
    numbers are left to metric-on-device.

Reference:
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html ("Avoid unnecessary CPU-GPU synchronization")
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from torchfix.edits import Edit, InsertBefore, Remove, Replace
from torchfix.facts import Facts
from torchfix.facts.code.tree import last_name
from torchfix.facts.metrics.purposes import Purpose
from torchfix.facts.metrics.readings import Reading, Way
from torchfix.facts.metrics.savings import Repetition
from torchfix.facts.training.loops import Kind
from torchfix.transform import Finding, Held, NoOptions, Transform

_LATER = "an error of the device may surface at a later line than before"

_DECIDES = Held(
    "control-flow",
    "what the program does next depends on the value",
    "check it every N steps, or compute with a mask on the device instead of a branch",
)
_SHOWN = Held(
    "logged-each-step",
    "the value is shown or logged on each iteration, and how often it is needed is not for torchfix to decide",
    "log every N steps, and add up x.detach() on the device in between",
)
_TAKEN = Held(
    "used-on-host",
    "code on the host takes the value on each iteration",
    "give it x.detach() and read the result behind the loop, or take the value every N steps",
)
_SIZE = Held(
    "size-by-values",
    "the size of the result depends on the values, so the host must know them",
    "use a mask or torch.where with three arguments",
)
_WAIT = Held(
    "synchronize",
    "torch.cuda.synchronize() stops the program until the device has done all its work; torch orders the work by itself",
    "remove it, or call it only where a clock is read",
)
_TIMED = Held(
    "timed",
    "the loop reads a clock, for which the device must be done",
    "measure every N steps, or with torch.cuda.Event(enable_timing=True)",
)
_SPREAD = Held("spread-lines", "the expression spans several lines", "give it a name in front of the statement")


# What whole tensors are copied to the host for because the host is where they are needed.
_WHOLE = {
    Kind.TRAIN: frozenset({Purpose.COLLECTED, Purpose.ACTED_ON}),
    Kind.EVAL: frozenset({Purpose.COLLECTED, Purpose.ACTED_ON, Purpose.SHOWN, Purpose.PROCESSED}),
}


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    repeated = _repeated(facts)
    statements: dict[ast.stmt, list[Reading]] = defaultdict(list)
    for reading in facts.readings.all:
        statements[facts.tree.statement(reading.node)].append(reading)
    for statement, readings in statements.items():
        yield from repeated.get(statement) or _saved(facts, statement, readings) or _advice(facts, statement, readings)


def _repeated(facts: Facts) -> dict[ast.stmt, list[Finding]]:
    """What is read again in an iteration, by the statement that does so."""
    found: dict[ast.stmt, list[Finding]] = defaultdict(list)
    meant: dict[str, str] = {}
    for repetition in facts.savings.repetitions:
        words = facts.source.segment(repetition.first.node)
        variable = repetition.variable or _name(facts, repetition.first, meant)
        for reading in repetition.again:
            statement = facts.tree.statement(reading.node)
            message = f"the program waits for the device to read {words} again"
            if "\n" in words:
                found[statement].append(Finding(_place(statement, [reading]), message, held=_SPREAD))
                continue
            edits = (*_read_once(facts, repetition, variable, words), _named(facts, reading, variable, words))
            because = f"line {repetition.first.node.lineno} reads it in the same iteration, and nothing changes it in between"
            found[statement].append(Finding(_place(statement, [reading]), message, edits, because=because))
    return found


def _read_once(facts: Facts, repetition: Repetition, variable: str, words: str) -> tuple[Edit, ...]:
    """What gives the first reading a name, where it has none."""
    if repetition.variable is not None:
        return ()
    first = repetition.first
    return (InsertBefore(facts.tree.statement(first.node), f"{variable} = {words}"), _named(facts, first, variable, words))


def _named(facts: Facts, reading: Reading, variable: str, words: str) -> Replace:
    """A variable in the place of a reading; in an f-string the whole string is written anew, where that is all that changes in it."""
    strings = [outer for outer in facts.tree.ancestors(reading.node) if isinstance(outer, ast.JoinedStr)]
    if not strings:
        return Replace(reading.node, variable)
    code = facts.source.segment(strings[-1]).replace(words, variable)
    meant = ast.dump(strings[-1]).replace(ast.dump(reading.node), ast.dump(ast.Name(variable, ast.Load())))
    is_meant = ast.dump(ast.parse(f"({code})", mode="eval").body) == meant
    return Replace(strings[-1], code) if is_meant else Replace(reading.node, variable)


def _name(facts: Facts, reading: Reading, meant: dict[str, str]) -> str:
    """A name for what is read, the same wherever the file reads the same."""
    words = ast.unparse(reading.node)
    root: ast.AST | None = reading.source
    while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
        root = root.func if isinstance(root, ast.Call) else root.value
    base = f"{root.id}_" if isinstance(root, ast.Name) and not facts.names.qualified(root) else ""
    candidates = [name for name in (f"{base}value", f"{base}number") if meant.get(name, words) == words]
    name = facts.names.fresh(*candidates, f"{base}value_read")
    meant[name] = words
    return name


def _saved(facts: Facts, statement: ast.stmt, readings: list[Reading]) -> list[Finding]:
    """A statement whose readings are made too early, for nothing, or of too much."""
    words = _words(facts, readings)
    for reading in readings:
        if facts.savings.is_unused(reading):
            message = f"the program waits for the device to read {words}, which nobody uses"
            return [Finding(statement, message, (Remove(statement),), because=f"reading changes nothing; {_LATER}")]
        count = facts.savings.count(reading)
        if count is not None:
            test = "($mask)" if isinstance(count.mask, ast.Compare) else "$mask"
            method = last_name(count.reduction.func)
            counted = f"{test}.{method}()" + ("" if count.at_once else ".cpu()")
            edit = Replace(count.reduction, counted, {"mask": count.mask})
            message = "all truth values are copied to the host to be counted there"
            return [Finding(_place(statement, readings), message, (edit,), because="a count of truth values is the same on every device")]
        late = facts.savings.later_place(reading)
        if late is not None:
            assignment, place = late
            edits = (Remove(assignment), InsertBefore(place, facts.source.segment(assignment)))
            message = f"the program waits for the device to read {words} on iterations that do not use it"
            because = f"only line {place.lineno} and what follows it use the value, which is the same there; {_LATER}"
            return [Finding(statement, message, edits, because=because)]
    return []


def _advice(facts: Facts, statement: ast.stmt, readings: list[Reading]) -> list[Finding]:
    """A statement that must read what it reads, with what its author can do about it."""
    held = {reading: reason for reading in readings if (reason := _reason(facts, reading)) is not None}
    for reason in (_WAIT, _TIMED, _DECIDES, _SHOWN, _TAKEN, _SIZE):
        if reason in held.values():
            message = f"the program waits for the device on each iteration to read {_words(facts, list(held))}"
            if reason in (_WAIT, _TIMED):
                message = "the program waits for the device on each iteration"
            return [Finding(_place(statement, list(held)), message, held=reason)]
    return []


def _reason(facts: Facts, reading: Reading) -> Held | None:
    """Why a reading stays; None where it is another rule's, or what the program is there for."""
    if reading.way is Way.WAIT:
        measured = facts.readings.is_timed(reading)
        if measured and reading.iteration.call is not None:
            return None  # a function that measures
        return _TIMED if measured else _WAIT
    if reading.way is Way.SIZE:
        return _SIZE
    if reading.way is Way.TRUTH:
        return _DECIDES
    if reading.way in (Way.TEXT, Way.LOG):
        return _SHOWN
    if facts.readings.is_gathered(reading):
        return None
    purposes = facts.purposes.of(reading.node)
    if purposes == {Purpose.ACTED_ON} or (reading.way is Way.COPY and not purposes - _WHOLE[reading.iteration.kind]):
        return None
    if Purpose.DECIDES in purposes:
        return _DECIDES
    return _SHOWN if Purpose.SHOWN in purposes else _TAKEN


def _place(statement: ast.stmt, readings: list[Reading]) -> ast.AST:
    """Where a finding stands: the statement, or of one with a body what it reads in its header."""
    return readings[0].node if hasattr(statement, "body") else statement


def _words(facts: Facts, readings: list[Reading]) -> str:
    """What is read, in the words of the file."""
    sources = dict.fromkeys(ast.unparse(reading.source) for reading in readings if reading.source is not None)
    return ", ".join(sources)


TRANSFORM = Transform.from_module(
    __name__,
    __doc__,
    group="transfer",
    literals=(b"cuda", b".to(", b"device"),
    find=find,
    since="0.4",
)
