"""Evaluation loops whose network trains under autocast: which of their statements can run under it too, or what stands in the way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import LOOPS, Function, LoopNode, last_name, walk
from torchfix.facts.half_precision.autocast import is_operation
from torchfix.facts.half_precision.precision import FULL, MUTATORS, Reader, named
from torchfix.facts.half_precision.tensor_uses import takes_tensor, used_as_tensor
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.loops import Kind
from torchfix.facts.training.models import Network
from torchfix.facts.training.regions import AUTOCAST
from torchfix.facts.training.updates import called

if TYPE_CHECKING:
    from torchfix.facts import Facts

_DEPTH = 4  # callers asked above a function
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)


@dataclass(frozen=True, eq=False)
class Trained:
    """A forward pass of training under autocast.

    Args:
        facts: its file.
        place: the training loop.
        autocast: the call that made the region, None where that is a decorator, or where the loop also trains without one.
        networks: what runs there.
    """

    facts: Facts
    place: ast.AST
    autocast: ast.Call | None
    networks: frozenset[ast.AST]


@dataclass(frozen=True, eq=False)
class Evaluated:
    """An evaluation loop in full precision, of a network that trains under autocast.

    Args:
        loop: the loop.
        trained: the training passes of its networks.
        regions: the first and last statement of each stretch that can run under autocast too.
        restored: the calls there whose result must be converted back to float32.
        networks: what runs there.
    """

    loop: LoopNode
    trained: tuple[Trained, ...]
    regions: tuple[tuple[ast.stmt, ast.stmt], ...]
    restored: tuple[ast.Call, ...]
    networks: tuple[Network, ...]


def evaluated(facts: Facts) -> Iterator[tuple[ast.AST, Facts, LoopNode, Evaluated | Obstacle]]:
    """The evaluation loops, here or in other files of the programs, of networks that train under autocast here and evaluate without it.

    Gives the place of this file at which to speak of it, the loop's file, the loop, and what was proved or what stands in the way.
    Of several files that train the same network the first by its path answers.
    """
    if not _trained_in(facts):
        return
    trained = [item for other in facts.program.holding("autocast") for item in _trained_in(other)]
    for other in facts.program.holding("no_grad", "eval", "inference_mode"):
        for loop, calls in _running(other).items():
            networks = tuple(dict.fromkeys(network for call in calls for network in other.models.run_by(call) or ()))
            shared = tuple(item for item in trained if any(network.value.node in item.networks for network in networks))
            if shared and min(shared, key=lambda item: item.facts.path).facts is facts and _is_plain(other, loop):
                place = loop if other is facts else next(item.place for item in shared if item.facts is facts)
                yield place, other, loop, _read(other, loop, calls, networks, shared)


def _running(facts: Facts) -> dict[LoopNode, list[ast.Call]]:
    """The loops of a file that run networks outside of autocast, each with these calls."""
    homes: dict[LoopNode, list[ast.Call]] = {}
    for loop in facts.tree.loops:
        for call in (node for statement in loop.body for node in walk(statement) if isinstance(node, ast.Call)):
            if facts.tree.nearest(call, LOOPS) is loop and facts.models.run_by(call) and not facts.regions.under(call, AUTOCAST):
                homes.setdefault(loop, []).append(call)
    return homes


def _is_plain(facts: Facts, loop: LoopNode) -> bool:
    """Whether a loop only evaluates, on CUDA, and under no autocast of its callers."""
    target = facts.targets.around(loop)
    on_cuda = target is not None and target.may_be_cuda
    return on_cuda and facts.loops.kind(loop) is Kind.EVAL and not _called_under_autocast(facts, facts.tree.function(loop))


def _trained_in(facts: Facts) -> list[Trained]:
    """The forward passes under autocast in the training loops of a file."""
    found = []
    for loop in facts.loops.all if "autocast" in facts.source.text else ():
        calls = [node for node in loop.nodes() if isinstance(node, ast.Call)]
        runs = [(call, frozenset(network.value.node for network in facts.models.run_by(call) or ())) for call in calls]
        trains = [(call, networks) for call, networks in runs if networks and not facts.modes.evaluates(call)]
        full = frozenset(item for call, networks in trains if not facts.regions.under(call, AUTOCAST) for item in networks)
        for call, networks in trains:
            if facts.regions.under(call, AUTOCAST):
                found.append(Trained(facts, loop.node, None if networks & full else _region(facts, call), networks))
    return found


def _region(facts: Facts, node: ast.AST) -> ast.Call | None:
    """The call of autocast in the innermost ``with`` around a place."""
    for outer in facts.tree.ancestors(node):
        for item in outer.items if isinstance(outer, ast.With) else ():
            if isinstance(item.context_expr, ast.Call) and facts.calls.meaning(item.context_expr) in AUTOCAST:
                return item.context_expr
    return None


def _called_under_autocast(facts: Facts, function: Function | None, depth: int = 0) -> bool:
    """Whether some caller of a function, or one above it, runs it under autocast."""
    if function is None or depth > _DEPTH:
        return False
    return any(
        other.regions.under(call, AUTOCAST) or _called_under_autocast(other, other.tree.function(call), depth + 1)
        for other, call in facts.callers_everywhere(function) or ()
    )


def _read(
    facts: Facts, loop: LoopNode, calls: list[ast.Call], networks: tuple[Network, ...], trained: tuple[Trained, ...]
) -> Evaluated | Obstacle:
    statements = list(dict.fromkeys(facts.tree.statement(call) for call in calls))
    compound = next((item for item in statements if not isinstance(item, _SIMPLE)), None)
    if compound is not None:
        words = f"the network runs in the head of a larger statement on line {compound.lineno}"
        return Obstacle("compound-statement", words, "give the network's output a name in a statement of its own")
    unknown = next((outer for call in calls if (outer := _unknown_around(facts, call)) is not None), None)
    if unknown is not None:
        return _unknown(unknown)
    hazard = _hazard(facts, statements, calls, networks)
    if hazard is not None:
        return hazard
    restored = _restored(facts, loop, frozenset(statements))
    if isinstance(restored, Obstacle):
        return restored
    return Evaluated(loop, trained, tuple(_stretches(facts, statements)), restored, networks)


def _unknown_around(facts: Facts, run: ast.Call) -> ast.Call | None:
    """The code out of sight, in the statement of a forward pass, that is given what the network gives."""
    for outer in facts.tree.ancestors(run):
        if isinstance(outer, ast.stmt):
            return None
        if isinstance(outer, ast.Call):
            library = (facts.calls.meaning(outer) or "").startswith(("torch.", "builtins."))
            operation = isinstance(outer.func, ast.Attribute) and (is_operation(outer.func.attr) or outer.func.attr in ("numpy", *MUTATORS))
            if not (library or operation or called(facts, outer) is not None or facts.models.of(outer.func)):
                return outer
    return None


def _unknown(call: ast.Call) -> Obstacle:
    words = f"{ast.unparse(call.func)} on line {call.lineno} would run under autocast too, and its code is out of sight"
    return Obstacle("unknown-code", words, "give the network's output a name in a statement of its own")


def _hazard(facts: Facts, statements: list[ast.stmt], calls: list[ast.Call], networks: tuple[Network, ...]) -> Obstacle | None:
    """What in the networks' code, or beside them in their statements, half precision would break."""
    hazards = facts.hazards
    methods = frozenset(last_name(call.func) or "" for call in calls)
    found = hazards.in_program() or next((item for network in networks if (item := hazards.in_network(network, methods))), None)
    if found is not None:
        return found
    beside = [node for statement in statements for node in walk(statement) if isinstance(node, ast.Call)]
    definitions = [Definition(*function) for call in beside if (function := called(facts, call)) is not None]
    return hazards.in_losses(beside, definitions) or hazards.in_definitions(definitions) or hazards.wide(beside)


def _stretches(facts: Facts, statements: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """Statements that stand one behind the other in a block, as one stretch."""
    first = last = None
    for statement in statements:
        if last is not None and facts.tree.place(statement)[1:] == (facts.tree.place(last)[1], facts.tree.place(last)[2] + 1):
            last = statement
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = statement
    if first is not None and last is not None:
        yield first, last


def _restored(facts: Facts, loop: LoopNode, regions: frozenset[ast.stmt]) -> tuple[ast.Call, ...] | Obstacle:
    """The calls whose result must be float32 again: more are converted until nothing outside wants it."""
    restored: frozenset[ast.expr] = frozenset()
    while True:
        reader = Reader(facts, regions, restored)
        for _ in range(2):  # what one iteration leaves, the next one finds
            reader.block(loop.body)
        _read_behind(facts, loop, reader)
        new = reader.wanted - restored
        if not new:
            break
        for source in new:
            if not (isinstance(source, ast.Call) and (reader.made.get(source, FULL).tensor or _is_used_as_tensor(facts, source))):
                line = getattr(reader.places.get(source), "lineno", loop.lineno)
                words = f"{named(source)} is half precision, and line {line} uses it where float32 is expected"
                return Obstacle("half-escapes", words, "convert the tensors that leave the forward pass with .float()")
        restored |= new
    unknown = next((call for call in reader.opaque if any(facts.tree.is_within(call, item) for item in regions)), None)
    if unknown is not None:
        return _unknown(unknown)
    return tuple(sorted((item for item in restored if isinstance(item, ast.Call)), key=lambda item: (item.lineno, item.col_offset)))


def _read_behind(facts: Facts, loop: LoopNode, reader: Reader) -> None:
    """What the loop leaves behind and code around it reads."""
    owner: ast.AST = facts.tree.function(loop) or facts.tree.module
    for name, reading in list(reader.values.items()):
        for use in facts.tree.names.get(name, ()) if reading.sources else ():
            behind = facts.tree.is_within(use, owner) and not facts.tree.is_within(use, loop) and isinstance(use.ctx, ast.Load)
            if behind and any(facts.tree.is_within(binding.node, loop) for binding in facts.flow.reaching(use)):
                reader.want(reading, use)


def _is_used_as_tensor(facts: Facts, call: ast.Call) -> bool:
    """Whether the program treats a result as one tensor: at once, or in the statements behind."""
    parent = facts.tree.parent(call)
    if isinstance(parent, ast.Attribute):
        return is_operation(parent.attr)
    if isinstance(parent, ast.Call) and parent.args[:1] == [call]:
        return takes_tensor(facts, parent)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        _, block, index = facts.tree.place(parent)
        return used_as_tensor(facts, block[index + 1 :], parent.targets[0].id)
    return False
