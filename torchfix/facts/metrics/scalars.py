"""Numbers that the host reads out of tensors: ``loss.item()``, ``float(loss)``, ``loss.cpu().item()``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, has_stars, is_constant, receiver
from torchfix.facts.code.numbers import Number
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import LoopNode, last_name
from torchfix.facts.tensors.residence import Residence

if TYPE_CHECKING:
    from torchfix.facts import Facts

_READERS = ("builtins.float", "builtins.int")
_COPIES = ("cpu", "detach", "numpy", "item")
_COUNTING = ("sum", "long", "int", "detach")
# Operations whose whole numbers have 64 bits.
_WIDE = ("sum", "count_nonzero", "argmax", "argmin", "long")
# Operations that leave no dimension where no dimension is named.
_REDUCING = ("mean", "sum", "norm", "max", "min", "prod", "count_nonzero")


@dataclass(frozen=True, eq=False)
class Scalar:
    """One number that the host reads from a tensor.

    Args:
        node: the whole expression.
        use: where its value is used: the expression itself, or the only use of the variable that it is assigned to.
        tensor: the tensor that holds the number, still on the device.
        number: the kind of Python number that it gives; None where that is not known.
        holds: the kind of number that the tensor holds.
        copy: a copy to the host by which ``tensor`` was made and that it could do without.
        is_certain: whether it surely is a tensor, rather than made from one by code that is out of sight.
    """

    node: ast.expr
    use: ast.expr
    tensor: ast.expr
    number: Number | None
    holds: Number | None
    copy: ast.Call | None
    is_certain: bool


class Scalars:
    """Questions about the numbers that one file reads from the device."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def statements(self) -> tuple[ast.stmt, ...]:
        """The statements with something that looks like a number read from a tensor, in no order; quick to say, and no proof."""
        calls = (call for name in ("item", "float", "int") for call in self._facts.tree.calls.get(name, ()))
        reading = dict.fromkeys(self._facts.tree.statement(call) for call in calls)
        using = (use for statement in reading if (use := self.only_use(statement)) is not None)
        return tuple(reading | dict.fromkeys(self._facts.tree.statement(use) for use in using))

    def only_use(self, statement: ast.stmt) -> ast.Name | None:
        """The one place, in the same block, that uses the variable that an assignment alone gives a value; None where it is not that."""
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            return None
        target = self._facts.flow.only_variable(statement)
        uses = [use for use in self._facts.names.uses(target) if use is not target] if target is not None else []
        if len(uses) != 1 or self._facts.names.scope(uses[0]) is not self._facts.names.scope(statement.targets[0]):
            return None
        _, block, index = self._facts.tree.place(statement)
        return uses[0] if self._facts.tree.statement(uses[0]) in block[index + 1 :] else None

    def within(self, value: ast.expr) -> Iterator[Scalar]:
        """The numbers in an expression that are read from the device, the outermost expressions that do so."""
        found = self.at(value)
        if found is not None:
            yield found
            return
        for child in ast.iter_child_nodes(value):
            if isinstance(child, ast.expr):
                yield from self.within(child)
            elif isinstance(child, ast.keyword):
                yield from self.within(child.value)

    def is_read_each_time(self, value: ast.expr, loop: LoopNode) -> bool:
        """Whether a value holds a number that is read on each iteration of a loop itself."""
        return any(self._facts.cadence.is_each_time(read.node, loop) for read in self.within(value))

    def at(self, expression: ast.expr) -> Scalar | None:
        """An expression as a number that the host reads from the device; None for anything else.

        A variable that only takes such a number to one later place is that number, if its tensor is the same there.
        """
        facts = self._facts
        if isinstance(expression, ast.Name):
            return self._carried(expression)
        node, given = expression, ""
        reads = False
        while True:
            if isinstance(node, ast.Attribute) and node.attr == "data":
                node = node.value
            elif not isinstance(node, ast.Call):
                break
            elif facts.calls.meaning(node) in _READERS and len(node.args) == 1 and not node.keywords:
                given, reads, node = given or (facts.calls.meaning(node) or "").rpartition(".")[2], True, node.args[0]
            elif isinstance(node.func, ast.Attribute) and self._only_copies(node, node.func.attr):
                reads, node = reads or node.func.attr == "item", node.func.value
            else:
                break
        if not reads:
            return None
        copy = self._host_copy(node)
        where = facts.residences.of(receiver(copy) or node if copy is not None else node)
        if where not in (Residence.DEVICE, Residence.LIKELY):
            return None
        holds = facts.numbers.of(node)
        number = {"float": Number.FRACTION, "int": Number.WHOLE}.get(given, holds)
        return Scalar(expression, expression, node, number, holds, copy, where is Residence.DEVICE)

    def _carried(self, use: ast.Name) -> Scalar | None:
        bindings = self._facts.flow.reaching(use)
        made = bindings[0].node if len(bindings) == 1 and bindings[0].how is Bound.ASSIGN else None
        if not isinstance(made, ast.Assign) or isinstance(made.value, ast.Name) or self.only_use(made) is not use:
            return None
        read, span = self.at(made.value), self._facts.stability.span(made, self._facts.tree.statement(use))
        same = read is not None and span is not None and self._facts.stability.keeps(read.tensor, span)
        return replace(read, use=use) if read is not None and same else None

    def original(self, tensor: ast.expr) -> ast.expr:
        """The tensor that an expression copies to the host or detaches, with the same numbers in it; the expression itself otherwise."""
        while True:
            if isinstance(tensor, ast.Attribute) and tensor.attr == "data":
                tensor = tensor.value
            elif isinstance(tensor, ast.Call) and isinstance(tensor.func, ast.Attribute) and self._only_copies(tensor, tensor.func.attr):
                tensor = tensor.func.value
            else:
                return tensor

    def _only_copies(self, call: ast.Call, name: str) -> bool:
        return (name in _COPIES and not call.args) or self._copies_back(call)

    def _copies_back(self, call: ast.Call) -> bool:
        transfer = self._facts.devices.transfer(call) if isinstance(call.func, ast.Attribute) and call.func.attr == "to" else None
        return transfer is not None and transfer.device.only_cpu

    def _host_copy(self, node: ast.expr) -> ast.Call | None:
        """The copy to the host by which a tensor was made and that it could do without; None where there is none.

        ``loss.cpu()`` holds the same number, and so does the count ``hits.cpu().sum()``; a variable may hold either as
        long as nothing but its number is read.
        """
        if isinstance(node, ast.Name):
            bindings = self._facts.flow.reaching(node)
            made = bindings[0] if len(bindings) == 1 and bindings[0].how is Bound.ASSIGN and not bindings[0].path else None
            if made is None or made.value is None or isinstance(made.value, ast.Name):
                return None
            only = all(self._is_read_out(use) for use in self._facts.writes.reached_by(made, node))
            return self._host_copy(made.value) if only else None
        counts = False
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args and not node.keywords:
            if node.func.attr == "cpu":
                kept = not counts or self._facts.numbers.of(node) in (Number.WHOLE, Number.TRUTH)
                return node if kept else None
            if node.func.attr not in _COUNTING:
                return None
            counts |= node.func.attr == "sum"
            node = node.func.value
        return None

    def _is_read_out(self, use: ast.Name) -> bool:
        """Whether nothing but the number of a variable is read: ``hits.item()``, ``float(hits)``."""
        parent = self._facts.tree.parent(use)
        if isinstance(parent, ast.Call):
            return use in parent.args and self._facts.calls.meaning(parent) in _READERS
        return isinstance(parent, ast.Attribute) and parent.attr == "item"

    def is_wide(self, tensor: ast.expr) -> bool:
        """Whether the whole numbers in a tensor surely have 64 bits, as counts and indices do."""
        values = self._facts.values.of(tensor)
        return bool(values) and all(value.facts.scalars._is_wide_value(value.node) for value in values or ())

    def _is_wide_value(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or node.keywords:
            return False
        source, name = receiver(node), last_name(node.func)
        return name in _WIDE or (name in ("cpu", "detach") and source is not None and self.is_wide(source))

    def is_single(self, tensor: ast.expr) -> bool:
        """Whether a tensor surely has no dimension, rather than one of length 1."""
        if isinstance(tensor, ast.BinOp):
            return all(self.is_single(side) or self._facts.numbers.is_plain(side) for side in (tensor.left, tensor.right))
        values = self._facts.values.of(tensor)
        return bool(values) and all(
            isinstance(value.node, (ast.Call, ast.BinOp)) and not value.path and value.facts.scalars._is_single_value(value.node)
            for value in values or ()
        )

    def _is_single_value(self, node: ast.Call | ast.BinOp) -> bool:
        if isinstance(node, ast.BinOp):
            return self.is_single(node)
        meaning, name = self._facts.calls.meaning(node) or "", last_name(node.func) or ""
        if has_stars(node):
            return False
        if meaning.startswith("torch.nn.functional.") and "loss" in name or name.endswith("entropy"):
            return _reduces(node)
        if self._facts.models.is_loss(node.func):
            made = [value.node for value in self._facts.values.of(node.func) or ()]
            return all(isinstance(item, ast.Call) and _reduces(item) for item in made)
        given = len(node.args) - (1 if meaning.startswith("torch.") else 0)
        source = receiver(node)
        if name == "detach" and source is not None:
            return self.is_single(source)
        return name in _REDUCING and given == 0 and not node.keywords


def _reduces(loss: ast.Call) -> bool:
    """Whether a loss makes one number of a batch."""
    given = argument(loss, "reduction")
    return given is None or is_constant(given, "mean") or is_constant(given, "sum")
