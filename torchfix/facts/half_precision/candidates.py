"""Training loops that could compute in half precision: what was proved of each, or what stands in the way."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.classes import lineage
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, Function, LoopNode
from torchfix.facts.half_precision.spelling import Spelling
from torchfix.facts.half_precision.stretches import Forward
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.companions import Companion
from torchfix.facts.training.loops import TrainingStep
from torchfix.facts.training.targets import Target
from torchfix.facts.training.updates import Update

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Training


# What runs a network in several threads, which do not know the precision that autocast was asked for.
_THREADS = ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel")

_SETTING = frozenset("setattr globals vars".split())  # what sets names that are given as texts


@dataclass(frozen=True, eq=False)
class Candidate:
    """A loop of which everything is known that a change to mixed precision needs.

    Args:
        facts: the file.
        loop: the training loop, or the function that a loop calls for each batch.
        target: where it runs.
        update: what goes backward and what steps.
        forward: what can run under autocast.
        companions: where a scaler can be made beside the optimizer, for each optimizer that the loop may be given.
    """

    facts: Facts
    loop: Training
    target: Target
    update: Update
    forward: Forward
    companions: tuple[Companion, ...]

    @property
    def parallel(self) -> bool:
        """Whether DataParallel may run the network or a part of it, which the network's code or a script may have wrapped."""
        files = self.facts.program.holding("DataParallel", "data_parallel")
        return any(next(facts.calls.to(*_THREADS), None) is not None for facts in files)

    def in_precision(self, dtype: str) -> Candidate | Obstacle:
        """The same loop, or why it cannot be computed in that precision (``auto``, ``bfloat16``, ``float16``)."""
        if dtype != "bfloat16" or not (self.parallel or not Spelling(self.facts, self.loop.node).has_bfloat16):
            return self
        why = "DataParallel's threads compute in float16" if self.parallel else "the project allows torch before 1.10"
        return Obstacle("no-bfloat16", f"{why}, and bfloat16 is asked for", 'set the option dtype to "float16" or "auto"')

    @property
    def evaluates(self) -> bool:
        """Whether what will run under autocast also runs without gradients: a loop that evaluates too, or a function that others call."""
        facts = self.facts
        switched = any(facts.regions.under(first, ("torch.set_grad_enabled",)) for first, _ in self.forward.regions)
        return switched or any(self._is_called_beside(function) for function, _ in self.forward.within)

    def _is_called_beside(self, function: Function) -> bool:
        facts = self.facts
        calls = facts.callers_everywhere(function) or facts.loops.named_calls(function)
        mine = [
            self.loop.node,
            *(item for item, _ in self.forward.within),
            *(item for relay in self.loop.relays for item in relay.functions),
        ]
        return calls is None or any(
            caller is not facts or not any(facts.tree.is_within(call, node) for node in mine) for caller, call in calls
        )

    @property
    def is_apart(self) -> bool:
        """Whether other functions than the one that steps run the networks, and must read whether autocast is on."""
        return bool(self.forward.within or self.forward.callers)

    @property
    def is_kept(self) -> bool:
        """Whether the state of an optimizer of the loop is saved or loaded anywhere."""
        return any(companion.facts.states.are_kept(companion.variable) for companion in self.companions)

    @property
    def files(self) -> tuple[Facts, ...]:
        """The loop's file, those through which its optimizers come, where they step without a scaler, and that share their object."""
        steps = [step for companion in self.companions for step in companion.passes]
        beside = [companion.facts for companion in self.companions]
        wrapped = (step.wrapped for step in self.update.steps if step.wrapped is not None)
        inside = [item.facts for item in wrapped if item.scaler is None]
        passed = (facts for step in steps for facts in (step.facts, step.caller))
        return tuple(dict.fromkeys((self.facts, *beside, *inside, *passed, *self._sharing())))

    def _sharing(self) -> Iterator[Facts]:
        """The files of the classes whose objects get the new attributes: those above and below the class that makes them."""
        for companion in self.companions:
            owner = companion.facts.tree.method_class(companion.after) if companion.owner else None
            if owner is not None:
                yield from (item.facts for item in lineage(Definition(companion.facts, owner)))
                yield from (item.facts for item in companion.facts.classes.heirs(owner))

    def fresh(self, *names: str) -> str:
        """The first of these names that is free in all of the files, also as an attribute where it must be one; else one with a number."""
        owned = any(companion.owner for companion in self.companions)
        numbered = (f"{names[-1]}_{number}" for number in itertools.count(2))
        return next(name for name in itertools.chain(names, numbered) if all(_is_free(facts, name, owned) for facts in self.files))


def _is_free(facts: Facts, name: str, owned: bool) -> bool:
    """Whether a name stands for nothing in a file, nor does a text that may set it: ``setattr(self, "scaler", x)``."""
    by_text = not _SETTING.isdisjoint(facts.tree.calls) or "__dict__" in facts.tree.attributes
    quoted = by_text and any(f"{mark}{name}{mark}" in facts.source.text for mark in "\"'")
    return facts.names.is_free(name) and not (owned and name in facts.tree.attributes) and not quoted


def _speaks_of_training(facts: Facts) -> bool:
    """Whether a file holds the words of which one stands wherever something trains; no rule reads the others for their loops."""
    return "backward" in facts.source.text or "optim" in facts.source.text


class Candidates:
    """Questions about mixed precision in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def all(self) -> tuple[tuple[LoopNode | Function, Candidate | Obstacle], ...]:
        """The loops that train on CUDA in full precision, each with what was proved or what could not be.

        Where the project calls a method that trains once for each call, but which object's is not seen, the method stands for the loop.
        """
        return tuple(self._found())

    def _found(self) -> Iterator[tuple[LoopNode | Function, Candidate | Obstacle]]:
        facts = self._facts
        loops = {loop.node: loop for loop in (*facts.loops.training, *facts.relays.units) if not isinstance(loop.node, FUNCTIONS)}
        for loop in loops.values():
            target = facts.targets.around(loop.node)
            if target is not None and target.types != {"cpu"} and not facts.loops.scales(loop):
                yield loop.node, self._read(loop, target)
        yield from self._called_from_afar()
        for node, part in facts.loops.indirect.items() if _speaks_of_training(facts) else ():
            if node in loops:
                continue
            steps = facts.loops.steps_of(node)
            if any(step.facts.loops.scales(step) for step in steps):
                continue
            step = next(iter(steps)) if len(steps) == 1 and part == "backward" else None
            target = facts.targets.around(node)
            if step is not None and target is not None and target.may_be_cuda:
                if self._is_first(node, step):
                    yield node, step.facts.loops.beside(step) or step.facts.candidates.of_step(step) or facts.loops.elsewhere(node)
            elif target is not None and target.may_be_cuda:
                yield node, facts.loops.elsewhere(node)

    def _called_from_afar(self) -> Iterator[tuple[Function, Candidate | Obstacle]]:
        """The functions that train once for each call, where no loop is seen that could answer for them."""
        facts = self._facts
        steps = {step.node: step for step in (*facts.loops.step_functions.values(), *facts.relays.units) if isinstance(step, TrainingStep)}
        for step in steps.values():
            afar = facts.loops.named_calls(step.node) if not facts.callers_everywhere(step.node) else self._loops_apart(step)
            target = facts.targets.around(step.node) if afar and not facts.loops.scales(step) else None
            if target is not None and target.may_be_cuda:
                yield step.node, facts.loops.beside(step) or self._read(step, target)

    @staticmethod
    def _loops_apart(step: TrainingStep) -> bool:
        """Whether loops call a function, directly or through others, and none of them can answer for it.

        That is so where the calls in between hide it, and in files that do not speak of training.
        """
        waiting: list[tuple[Facts, Function]] = [(step.facts, step.node)]
        apart: list[bool] = []
        for there, function in waiting:  # grows while it is read
            for caller, call in there.callers_everywhere(function) or ():
                around, loop = caller.tree.function(call), caller.tree.nearest(call, LOOPS)
                if isinstance(loop, LOOPS):
                    apart.append(not _speaks_of_training(caller) or step not in caller.loops.steps_of(loop))
                elif around is not None and (caller, around) not in waiting:
                    waiting.append((caller, around))
        return bool(apart) and all(apart)

    def of_step(self, step: TrainingStep) -> Candidate | Obstacle | None:
        """A function of this file that trains once for each call: what was proved, or what could not be; None off any device."""
        target = self._facts.targets.around(step.node)
        return self._read(step, target) if target is not None else None

    def _is_first(self, node: LoopNode, step: TrainingStep) -> bool:
        """Whether a loop is the first of those that call a function that trains, so that it answers for the function."""
        calls = step.facts.callers_everywhere(step.node) or ()
        around = ((facts.path, loop.lineno, loop) for facts, call in calls if (loop := facts.tree.nearest(call, LOOPS)) is not None)
        return min(around, key=lambda item: item[:2], default=("", 0, node))[2] is node

    def _read(self, loop: Training, target: Target) -> Candidate | Obstacle:
        facts = self._facts
        if not target.may_be_cuda:
            types = ", ".join(sorted(target.types))
            return Obstacle("not-cuda", f"the loop runs on {types}, for which there is no recipe here", "use torch.autocast by hand")
        if facts.project.torch is not None and facts.project.torch < (1, 6):
            return Obstacle("torch-too-old", "the project still allows torch without mixed precision", "raise its lower bound to torch 1.6")
        obstacle = facts.hazards.in_program()
        if obstacle is not None:
            return obstacle
        update = facts.updates.of(loop)
        if isinstance(update, Obstacle):
            return update
        forward = facts.forwards.of(update)
        if isinstance(forward, Obstacle):
            return forward
        inline = [item for part in forward.all for item in part.inline]
        if any(not (isinstance(item.statement, ast.Expr) and item.statement.value is item.call) for item in inline):
            return Obstacle("backward-form", "the backward pass is part of a larger statement", "write it as a statement of its own")
        companions = self._companions(update)
        if isinstance(companions, Obstacle):
            return companions
        beside = facts.delegations.beside(update, forward, companions)
        if isinstance(beside, Obstacle):
            return beside
        companions = tuple(item.facts.companions.shared(item, loop.node, facts) for item in beside) if beside is companions else beside
        return facts.hazards.chosen() or Candidate(facts, loop, target, update, forward, companions)

    def _companions(self, update: Update) -> tuple[Companion, ...] | Obstacle:
        """Where the one scaler can be made: beside the optimizer that is made last, as this loop's file tells it."""
        found = [self._facts.companions.of(step.optimizer) for step in update.steps]
        made = [item for item in found if not isinstance(item, Obstacle)]
        return max(made, key=lambda item: item[0].after.lineno) if made else found[0]
