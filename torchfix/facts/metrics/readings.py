"""Where the host waits for the device on each iteration of a training or evaluation loop."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import CLOCKS, argument, is_constant, receiver
from torchfix.facts.code.scopes import parameters
from torchfix.facts.code.tree import FUNCTIONS, Function, last_name, walk_here
from torchfix.facts.metrics.cadence import Iteration
from torchfix.facts.project.effects import Effect
from torchfix.facts.tensors.residence import TO_HOST, Residence

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Way(enum.Enum):
    """How the host reads."""

    NUMBER = "number"  # .item(), float(t), int(t), .tolist()
    COPY = "copy"  # .cpu(), .numpy(), .to("cpu")
    TRUTH = "truth"  # if t > 0, assert t.min() >= 0, bool(t)
    TEXT = "text"  # print(t), f"{t}", "%f" % t
    LOG = "log"  # writer.add_scalar(tag, t), wandb.log({tag: t})
    SIZE = "size"  # t.nonzero(): the size of the result depends on the values
    WAIT = "wait"  # torch.cuda.synchronize()


@dataclass(frozen=True, eq=False)
class Reading:
    """One expression that makes the host wait for the device.

    Args:
        node: the expression.
        source: the tensor that is read; None where the host waits for everything.
        way: how it is read.
        iteration: the loop on each of whose iterations this happens.
    """

    node: ast.expr
    source: ast.expr | None
    way: Way
    iteration: Iteration


_NUMBERS = ("builtins.float", "builtins.int")
_SIZED = ("nonzero", "masked_select", "unique", "unique_consecutive", "argwhere")
_SYNCHRONIZE = ("torch.cuda.synchronize", "torch.accelerator.synchronize")
_CHEAP = ("item", "cpu", "numpy", "tolist", "float", "int", "bool", "print", "synchronize")


class Readings:
    """Questions about what one file reads from the device."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def all(self) -> tuple[Reading, ...]:
        """Every place at which the host waits for the device on each iteration of a training or evaluation loop, in text order."""
        found: dict[ast.expr, Reading] = {}
        for node in self._nodes():
            for expression, source, way in self.waits(node):
                if expression in found:
                    continue
                iteration = self._facts.cadence.iteration(expression)
                if iteration is not None:
                    found[expression] = Reading(expression, source, way, iteration)
        return tuple(sorted(found.values(), key=lambda reading: (reading.node.lineno, reading.node.col_offset)))

    def at(self, node: ast.AST) -> tuple[Reading, ...]:
        """The readings inside a node, itself included."""
        return tuple(reading for reading in self.all if self._facts.tree.is_within(reading.node, node))

    def is_gathered(self, reading: Reading) -> bool:
        """Whether the number that is read goes into a running total or a list: ``total += x.item()``, ``losses.append(x.item())``."""
        return self._is_gathered(reading.node)

    def _is_gathered(self, expression: ast.expr) -> bool:
        node: ast.AST = expression
        for outer in self._facts.tree.ancestors(expression):
            match outer:
                case ast.BinOp() | ast.UnaryOp() | ast.List() | ast.Tuple() | ast.Attribute():
                    pass
                case ast.Call() if node is outer.func:
                    pass
                case ast.AugAssign():
                    return isinstance(outer.op, ast.Add) and node is outer.value
                case ast.Assign(value=ast.BinOp(op=ast.Add()) as addition):
                    words = [ast.unparse(target) for target in outer.targets]
                    return any(ast.unparse(side) in words for side in (addition.left, addition.right))
                case ast.Assign() if node is outer.value:
                    use = self._facts.scalars.only_use(outer)
                    return use is not None and self._facts.scalars.at(use) is not None and self._is_gathered(use)
                case ast.Call(func=ast.Attribute(attr="append" | "extend")):
                    return node in outer.args
                case ast.Call() if self._facts.calls.meaning(outer) in (*_NUMBERS, "builtins.round"):
                    pass
                case _:
                    return False
            node = outer
        return False

    def is_timed(self, reading: Reading) -> bool:
        """Whether a clock is read around a reading, in its loop or in its function, so that the host may wait on purpose."""
        there = reading.iteration.facts
        if any(there.tree.is_within(call, reading.iteration.loop) for call in there.calls.to(*CLOCKS)):
            return True
        function = self._facts.tree.function(reading.node)
        return function is not None and any(self._facts.tree.is_within(call, function) for call in self._facts.calls.to(*CLOCKS))

    def _nodes(self) -> Iterator[ast.AST]:
        for loop in self._facts.cadence.loops:
            for statement in loop.body:
                yield from walk_here(statement)
            if isinstance(loop, ast.While):
                yield loop
        for function in self._called_functions():
            for statement in function.body:
                yield from walk_here(statement)

    def _called_functions(self) -> list[Function]:
        """The functions that some loop calls on each of its iterations, those without anything that looks like a read left out."""
        tree = self._facts.tree
        candidates = {tree.function(call) for name in _CHEAP for call in tree.calls.get(name, ())}
        return [item for item in tree.functions if item in candidates and self._facts.cadence.of_function(item) is not None]

    # What waits -----------------------------------------------------------------------------------------------

    def waits(self, node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None, Way]]:
        """What in a node itself, its children left out, makes the host wait for the device: the expression, what it reads, and how."""
        match node:
            case ast.Call():
                yield from self._call(node)
            case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
                yield from self._test(node.test)
            case ast.FormattedValue() if self._is_tensor(node.value):
                yield node.value, node.value, Way.TEXT
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str())):
                items = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
                yield from ((item, item, Way.TEXT) for item in items if self._is_tensor(item))

    def _test(self, test: ast.expr) -> Iterator[tuple[ast.expr, ast.expr | None, Way]]:
        """The parts of a condition whose truth is on the device."""
        if isinstance(test, ast.BoolOp):
            for value in test.values:
                yield from self._test(value)
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield from self._test(test.operand)
        elif self._is_tensor(test):
            yield test, test, Way.TRUTH

    def _call(self, call: ast.Call) -> Iterator[tuple[ast.expr, ast.expr | None, Way]]:
        facts, source, name = self._facts, receiver(call), last_name(call.func) or ""
        meaning = facts.calls.meaning(call) or ""
        if meaning in _SYNCHRONIZE:
            yield call, None, Way.WAIT
        elif source is not None and not call.keywords and name in ("item", "tolist", "cpu", "numpy") and self._may_be_tensor(source):
            yield call, source, Way.NUMBER if name in ("item", "tolist") else Way.COPY
        elif source is not None and name == "to" and self._copies_back(call) and self._may_be_tensor(source):
            yield call, source, Way.COPY
        elif name in _SIZED and (meaning.startswith("torch.") or not meaning):
            given = source if not meaning else call.args[0] if call.args else None
            if given is not None and self._is_tensor(given):
                yield call, given, Way.SIZE
        elif self._only_reads(call):
            yield from ((call, item, Way.COPY) for item in call.args[:1] if self._is_tensor(item))
        elif meaning in (*_NUMBERS, "builtins.bool") and len(call.args) == 1:
            if self._is_tensor(call.args[0]):
                yield call, call.args[0], Way.NUMBER if meaning in _NUMBERS else Way.TRUTH
        elif name == "format" and isinstance(source, ast.Constant):
            yield from ((item, item, Way.TEXT) for item in _given(call) if self._is_tensor(item))
        elif self._may_report(name, meaning):
            effect = facts.effects.own(call)
            if effect in (Effect.PRINT, Effect.LOG):
                way = Way.TEXT if effect is Effect.PRINT else Way.LOG
                yield from ((item, item, way) for item in _given(call) if self._is_tensor(item))

    def _only_reads(self, call: ast.Call) -> bool:
        """Whether a call runs a function of the project that does nothing but give its argument to the host."""
        definition = self._facts.names.definition(call.func)
        function = definition.node if definition is not None else None
        if not isinstance(function, FUNCTIONS) or not isinstance(function.body[-1], ast.Return) or len(parameters(function.args)) != 1:
            return False
        node = function.body[-1].value
        reads = False
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            reads = reads or node.func.attr in TO_HOST
            node = node.func.value
        return reads and isinstance(node, ast.Name) and node.id == parameters(function.args)[0].arg

    def _may_report(self, name: str, meaning: str) -> bool:
        return name in ("print", "info", "debug", "warning", "log", "write") or name.startswith("add_") or meaning.startswith("wandb.")

    def _copies_back(self, call: ast.Call) -> bool:
        transfer = self._facts.devices.transfer(call)
        waits = argument(call, "non_blocking", 2)
        return transfer is not None and transfer.device.only_cpu and (waits is None or is_constant(waits, False))

    def _is_tensor(self, expression: ast.expr) -> bool:
        """Whether an expression surely holds what the device computed."""
        return self._facts.residences.of(expression) is Residence.DEVICE

    def _may_be_tensor(self, expression: ast.expr) -> bool:
        """Whether an expression, of which only a tensor's method is called, was made from what the device computed."""
        return self._facts.residences.of(expression) in (Residence.DEVICE, Residence.LIKELY)


def _given(call: ast.Call) -> Iterator[ast.expr]:
    """The arguments of a call, those inside a dictionary or tuple one by one."""
    for item in (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(item, ast.Dict):
            yield from item.values
        elif isinstance(item, (ast.Tuple, ast.List)):
            yield from item.elts
        else:
            yield item
