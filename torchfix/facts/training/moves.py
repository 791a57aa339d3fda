"""Where the networks whose parameters an optimizer steps are moved to a device, and on what conditions."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument
from torchfix.facts.code.tree import FUNCTIONS, LOOPS
from torchfix.facts.project.programs import is_main_guard
from torchfix.facts.training.owners import parameter_expressions

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.tensors.devices import Transfer
    from torchfix.facts.training.loops import Training
    from torchfix.facts.training.models import Network


@dataclass(frozen=True, eq=False)
class Move:
    """One move of a network.

    Args:
        facts: the file.
        transfer: the call, and where it goes.
    """

    facts: Facts
    transfer: Transfer

    def is_beside(self, facts: Facts, call: ast.Call) -> bool:
        """Whether it stands in the same function as a call."""
        return self.facts is facts and facts.tree.function(self.transfer.call) is facts.tree.function(call)


def moves_of_stepped(facts: Facts, made: ast.Call) -> list[Move]:
    """The moves, anywhere in the programs, of networks whose parameters are given to an optimizer.

    Args:
        facts: the file that makes the optimizer.
        made: the call that makes it.
    """
    stepped = parameter_expressions(facts, argument(made, "params", 0))
    return moves_of(facts, (network for item in stepped for network in facts.models.of(item) or ()))


def moves_of(facts: Facts, networks: Iterable[Network]) -> list[Move]:
    """The moves of some networks, anywhere in the programs of a file."""
    wanted = {network.value for network in networks}
    found = []
    for other in facts.program.holding("to", "cuda") if wanted else ():
        for call in other.calls.methods("to", "cuda"):
            transfer = other.devices.transfer(call)
            if transfer is not None and any(network.value in wanted for network in other.models.of(transfer.source) or ()):
                found.append(Move(other, transfer))
    return found


def are_moved_before(facts: Facts, made: ast.Call) -> bool:
    """Whether all of these networks are moved, in the function that makes the optimizer, before it is made."""
    beside = [move.transfer for move in moves_of_stepped(facts, made) if move.is_beside(facts, made)]
    before = [transfer for transfer in beside if transfer.call.lineno < facts.tree.statement(made).lineno]
    moved = {network.value for transfer in before for network in facts.models.of(transfer.source) or ()}
    for expression in parameter_expressions(facts, argument(made, "params", 0)):
        wanted = {network.value for network in facts.models.of(expression) or ()}
        if not wanted or not wanted <= moved:
            return False
    return True


def copies_to_cuda(training: Training) -> list[ast.Call]:
    """The copies of a loop to nothing but CUDA, else those of its file."""
    facts = training.facts
    inside = [node for node in training.nodes() if isinstance(node, ast.Call) and _goes_to_cuda(facts, node)]
    return inside or [call for call in facts.calls.methods("cuda", "to") if _goes_to_cuda(facts, call)]


def always_happens(facts: Facts, copies: Iterable[ast.Call]) -> bool:
    """Whether one of some copies depends on no condition in its loop or function."""
    return any(not _conditions(facts, call) for call in copies)


def happens_where_available(facts: Facts, copies: Iterable[ast.Call]) -> bool:
    """Whether all of some copies depend on ``torch.cuda.is_available()`` and nothing else."""
    tests = [test for call in copies for test in _conditions(facts, call)]
    return all(isinstance(test, ast.Call) and facts.calls.meaning(test) == "torch.cuda.is_available" for test in tests)


def _goes_to_cuda(facts: Facts, call: ast.Call) -> bool:
    transfer = facts.devices.transfer(call)
    return transfer is not None and transfer.device.types == {"cuda"}


def _conditions(facts: Facts, call: ast.Call) -> list[ast.expr]:
    """The conditions on which a copy depends, in the loop around it or in its function; not those whose other branch copies too."""
    found: list[ast.expr] = []
    inner: ast.AST = call
    for outer in facts.tree.ancestors(call):
        if isinstance(outer, (*LOOPS, *FUNCTIONS)):
            break
        if isinstance(outer, (ast.If, ast.IfExp)) and not is_main_guard(outer.test):
            body = outer.body if isinstance(outer.body, list) else [outer.body]
            if not facts.targets.copies_in(outer.orelse if inner in body else outer.body):
                found.append(outer.test)
        inner = outer
    return found
