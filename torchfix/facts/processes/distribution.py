"""Whether a script's training can run as one process per GPU, and the places where its processes must know of each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import argument, is_constant, receiver
from torchfix.facts.code.tree import walk_here
from torchfix.facts.code.values import passed
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.processes import replication
from torchfix.facts.processes.lockstep import Decision
from torchfix.facts.processes.replicas import Wrap

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Loop

DISTRIBUTED = "torch.nn.parallel.DistributedDataParallel"
SAMPLER = "torch.utils.data.DistributedSampler"
_COUNTING = ("builtins.range", "tqdm.trange", "tqdm.auto.trange", "itertools.count")


class Distribution:
    """Questions about one file whose networks are replicated by ``nn.DataParallel``."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def obstacles(self, wrap: Wrap) -> list[Obstacle]:
        """Why a wrap cannot give way to a process per GPU: the first reason of each code; empty where it can."""
        found: dict[str, Obstacle] = {}
        for obstacle in self._all(wrap):
            found.setdefault(obstacle.code, obstacle)
        return list(found.values())

    def _all(self, wrap: Wrap) -> Iterator[Obstacle]:
        facts = self._facts
        yield from facts.script.owners()
        if wrap not in self._trained:
            yield from replication.past_the_wrapper(facts)
            yield self._untrained(wrap)
            return
        yield from facts.script.starts(wrap.call)
        yield from replication.obstacles(facts, wrap)
        yield from facts.placement.obstacles()
        yield from facts.shares.obstacles()
        yield from self._inputs()
        yield from facts.reports.obstacles()
        yield from self._files()
        yield from self._decisions()

    # The training ---------------------------------------------------------------------------------------------

    @cached_property
    def _trained(self) -> frozenset[Wrap]:
        """The wraps that training loops run, themselves or through functions that they call."""
        found: set[Wrap] = set()
        for loop in self._facts.shares.loops:
            for call in self._run_by(loop):
                if call in self._facts.replicas.forwards:
                    found |= set(self._facts.replicas.held_by(call.func) or ())
        return frozenset(found)

    def _run_by(self, loop: Loop) -> Iterator[ast.Call]:
        """The calls in a loop and, as far as they lead to a network, in the functions that it calls."""
        waiting = [node for node in loop.nodes() if isinstance(node, ast.Call)]
        seen: set[int] = set()
        while waiting:
            call = waiting.pop()
            yield call
            for facts, function in called(self._facts, call) if call in self._facts.lockstep.meetings else ():
                if facts is self._facts and id(function) not in seen:
                    seen.add(id(function))
                    waiting += [node for item in function.body for node in walk_here(item) if isinstance(node, ast.Call)]

    def _untrained(self, wrap: Wrap) -> Obstacle:
        facts = self._facts
        kept = wrap.assignment is not None and isinstance(wrap.assignment.targets[0], ast.Attribute)
        trains = bool(facts.loops.training) or next(facts.calls.methods("backward"), None) is not None
        returned = (node.value for function in facts.tree.functions for node in walk_here(function) if isinstance(node, ast.Return))
        if trains or kept or any(value is not None and wrap in (facts.replicas.held_by(value) or ()) for value in returned):
            words = "the loop that trains this network is not in this file, or cannot be followed"
            return Obstacle("loop-elsewhere", words, "keep network, loader and loop in one file")
        return Obstacle("inference-only", "the network is not trained here", "run it on one GPU, or start one process per part of the data")

    def epoch(self, loop: Loop) -> str | None:
        """The name, where a loop stands, of the epoch's number: the variable of a loop around it, or a parameter given one."""
        for outer in self._facts.tree.ancestors(loop.node):
            if isinstance(outer, ast.For) and self._facts.tree.function(outer) is loop.function:
                return outer.target.id if isinstance(outer.target, ast.Name) and self._counts(outer.iter) else None
        function = loop.function
        calls = self._facts.callers(function) if function is not None else None
        if function is None or not calls:
            return None
        bound = self._facts.tree.class_of(function) is not None
        for parameter in function.args.args[bound:]:
            if all(self._is_counter(passed(call, function, parameter, bound)) for call in calls):
                return parameter.arg
        return None

    def _is_counter(self, given: ast.expr | None) -> bool:
        bindings = self._facts.flow.reaching(given) if isinstance(given, ast.Name) else []
        return len(bindings) == 1 and isinstance(bindings[0].node, ast.For) and self._counts(bindings[0].node.iter)

    def _counts(self, iterable: ast.expr) -> bool:
        """Whether an iterable yields whole numbers: a range, also behind a progress bar."""
        return any(self._facts.calls.meaning(node) in _COUNTING for node in ast.walk(iterable) if isinstance(node, ast.Call))

    @property
    def neighbours(self) -> tuple[tuple[ast.expr, str], ...]:
        """What the file calls and new code will replace or accompany, each with the name of its companion."""
        wraps = ((wrap.call.func, DISTRIBUTED) for wrap in self._facts.replicas.wraps)
        return (*wraps, *((loader.call.func, SAMPLER) for loader in self._facts.shares.loaders))

    # Inputs ---------------------------------------------------------------------------------------------------

    @cached_property
    def moves(self) -> tuple[tuple[ast.expr, ast.Call], ...]:
        """The parts of batches that DataParallel moved to the GPUs, each with the move of another part of the same batch."""
        pairs = ((part, self._mover(part)) for _, part in self._facts.shares.unmoved())
        return tuple((part, call) for part, call in pairs if call is not None)

    def _mover(self, part: ast.expr) -> ast.Call | None:
        tree, batches = self._facts.tree, self._facts.batches
        left = batches.on_host(part)
        for transfer, moved in batches.copies:
            if left is not None and moved.loaders == left.loaders and tree.function(transfer.call) is tree.function(part):
                return transfer.call
        return None

    def _inputs(self) -> Iterator[Obstacle]:
        moved = {part for part, _ in self.moves}
        for call, part in self._facts.shares.unmoved():
            if part not in moved:
                yield Obstacle(
                    "inputs-not-moved",
                    f"line {call.lineno} leaves it to DataParallel to move {self._facts.source.segment(part)} to a GPU",
                    "move the batch to the device in the loop",
                )

    # Files ----------------------------------------------------------------------------------------------------

    @cached_property
    def loads(self) -> tuple[ast.Call, ...]:
        """The ``torch.load`` calls of the main line, in text order."""
        return tuple(call for call in self._facts.calls.to("torch.load") if self._facts.effects.in_main_line(call))

    @cached_property
    def late_loads(self) -> tuple[ast.Call, ...]:
        """Those that may read what this very run has saved: they come behind training, or between its epochs."""
        return tuple(call for call in self.loads if self._is_late(call))

    def _is_late(self, call: ast.Call) -> bool:
        tree = self._facts.tree
        home = tree.function(call)
        trains = [node for node in self._facts.lockstep.meetings if tree.function(node) is home]
        around = [outer for outer in tree.ancestors(call) if isinstance(outer, (ast.For, ast.While))]
        if any(node.lineno < call.lineno or any(tree.is_within(node, outer) for outer in around) for node in trains):
            return True
        callers = self._facts.callers(home) if home is not None else None
        return any(self._is_late(caller) for caller in callers or () if tree.function(caller) is not home)

    def _files(self) -> Iterator[Obstacle]:
        for call in self.late_loads:
            if call.args and self._facts.lockstep.differs(call.args[0]):
                words = f"line {call.lineno} loads what this run has saved, by a path that every process makes up differently"
                yield Obstacle("path-differs", words, "make the path of what is the same in all processes")

    # Decisions ------------------------------------------------------------------------------------------------

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """Where processes could part on the way to a run of the network, to a place where they wait, or to another learning rate."""
        shares = self._facts.shares
        parted = [loader.call for loader in shares.loaders if shares.inline(loader) is not None]
        prepared = [first for first, _ in self._facts.reports.preparations]
        return tuple(self._facts.lockstep.decisions([*prepared, *parted, *self.late_loads, *self._learning_rates]))

    @cached_property
    def _learning_rates(self) -> tuple[ast.stmt, ...]:
        """The statements that set a learning rate by hand: ``group["lr"] = ...``."""
        found = []
        for node in ast.walk(self._facts.source.tree):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and is_constant(node.slice, "lr"):
                found.append(self._facts.tree.statement(node))
        return tuple(found)

    @cached_property
    def measures(self) -> tuple[ast.expr, ...]:
        """What learning-rate schedulers and their like are told by ``step(...)`` that may differ between the processes."""
        facts = self._facts
        found = []
        for call in facts.calls.methods("step"):
            source, measured = receiver(call), argument(call, "metrics", 0)
            if source is None or measured is None or facts.optimizers.of(source) or facts.optimizers.of(measured):
                continue
            if facts.script.is_started_by_guard(call) and facts.lockstep.differs(measured):
                found.append(measured)
        return tuple(found)

    def _decisions(self) -> Iterator[Obstacle]:
        for statement in self._learning_rates:
            value = getattr(statement, "value", None)
            if value is not None and self._facts.lockstep.differs(value):
                words = f"line {statement.lineno} sets a learning rate by what one process finds, and the networks would drift apart"
                yield Obstacle("rank-decides", words, "use a scheduler of torch.optim.lr_scheduler")
        for decision in self.decisions:
            if decision.each_step or decision.test is None:
                line = getattr(decision.node, "lineno", 0)
                words = f"in line {line} what one process finds decides {decision.words}, and the others would wait for it for ever"
                yield Obstacle("rank-decides", words, "decide by something that is the same in all processes")
