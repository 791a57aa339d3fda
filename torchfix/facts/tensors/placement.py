"""Where a program names a GPU by its number, so that every process of it would take the same one.

A process that has called ``torch.cuda.set_device`` means its own GPU by ``"cuda"`` and by a bare ``.cuda()``; a number
means the same GPU in all of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument
from torchfix.facts.code.tree import FUNCTIONS, last_name
from torchfix.facts.obstacle import Obstacle

if TYPE_CHECKING:
    from torchfix.facts import Facts

_NUMBERED = re.compile(r"cuda:(\d+)\Z")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_OTHERS = re.compile(r"(mps|xpu|npu|hpu|xla|mlu|musa)(:\d+)?\Z")


@dataclass(frozen=True, eq=False)
class Number:
    """One literal number of a GPU.

    Args:
        index: the number.
        node: the string ``"cuda:0"``, or the number itself.
        call: the ``.cuda(0)`` or ``torch.device("cuda", 0)`` that means the process's own GPU without it; None where
            ``"cuda"`` must take its place.
    """

    index: int
    node: ast.Constant
    call: ast.Call | None = None

    @property
    def argument(self) -> int | str:
        """The position or the keyword at which the call is given it."""
        assert self.call is not None
        named = next((item.arg for item in self.call.keywords if item.value is self.node and item.arg), None)
        return named if named is not None else self.call.args.index(self.node)


class Placement:
    """Questions about the GPUs that one file names."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def numbers(self) -> tuple[Number, ...]:
        """The literal numbers of GPUs, in text order."""
        found = [Number(int(match[1]), node) for node in self._strings() if (match := _NUMBERED.match(str(node.value)))]
        for call in self._facts.calls.methods("cuda", "to"):
            given = argument(call, "device", 0)
            if isinstance(given, ast.Constant) and type(given.value) is int:
                found.append(Number(given.value, given, call if last_name(call.func) == "cuda" else None))
        for call in self._facts.calls.to("torch.device"):
            index, only = argument(call, "index", 1), argument(call, "device", 0)
            for given, dropped in ((index, call), (only, None)):
                if isinstance(given, ast.Constant) and type(given.value) is int:
                    found.append(Number(given.value, given, dropped))
        return tuple(sorted(found, key=lambda number: (number.node.lineno, number.node.col_offset)))

    def _strings(self) -> Iterator[ast.Constant]:
        for node in ast.walk(self._facts.source.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node

    @property
    def selections(self) -> tuple[ast.Call, ...]:
        """The calls that make one GPU the current one: ``torch.cuda.set_device(...)``."""
        return tuple(self._facts.calls.to("torch.cuda.set_device"))

    def obstacles(self) -> Iterator[Obstacle]:
        """Why the GPUs of this file cannot be made each process's own."""
        yield from self._other_devices()
        if len({number.index for number in self.numbers}) > 1 or any(number.index for number in self.numbers):
            yield Obstacle(
                "several-devices",
                f"line {self.numbers[-1].node.lineno} names a GPU by a number other than 0",
                "leave the choice of GPUs to CUDA_VISIBLE_DEVICES and write cuda without a number",
            )
        for place in self._computed():
            yield Obstacle(
                "device-by-option",
                f"line {place.lineno} computes the number of a GPU, which would be the same in every process",
                "leave the choice of GPUs to CUDA_VISIBLE_DEVICES and write cuda without a number",
            )
        for call in self._facts.calls.to("torch.cuda.device"):
            yield Obstacle("device-block", f"line {call.lineno} switches to a GPU for a block of code", "drop the torch.cuda.device block")
        for place in self._hidden_choice():
            yield Obstacle(
                "visible-devices",
                f"line {place.lineno} sets {_VISIBLE} after the processes have taken their GPUs",
                f"set {_VISIBLE} in the shell, or at the top of the file",
            )
        yield from self._placed_on_import()

    def _other_devices(self) -> Iterator[Obstacle]:
        named = next((node for node in self._strings() if _OTHERS.match(str(node.value))), None)
        asked = next(
            (use for use in self._facts.tree.attributes.get("mps", ()) if "torch" in (self._facts.names.qualified(use) or "")), None
        )
        place = named or asked
        if place is not None:
            yield Obstacle(
                "other-devices",
                f"line {place.lineno} allows a device other than CUDA and the CPU",
                "convert by hand, with the process group of that device",
            )

    def _computed(self) -> Iterator[ast.expr]:
        """Where the number of a GPU is put together: ``"cuda:" + n``, ``f"cuda:{n}"``, ``.cuda(args.gpu)``."""
        for node in self._strings():
            words = str(node.value)
            if words.startswith("cuda:") and not _NUMBERED.match(words) and "\n" not in words and not self._is_help(node):
                yield node
        for call in self._facts.calls.methods("cuda"):
            given = argument(call, "device", 0)
            if given is not None and not isinstance(given, ast.Constant) and self._facts.devices.of(given) is None:
                yield given

    def _is_help(self, node: ast.Constant) -> bool:
        parent = self._facts.tree.parent(node)
        return isinstance(parent, ast.keyword) and parent.arg == "help"

    def _hidden_choice(self) -> Iterator[ast.Constant]:
        """Where a function or the guarded part chooses the visible GPUs."""
        for node in self._strings():
            if node.value == _VISIBLE and isinstance(self._facts.tree.parent(node), ast.Subscript):
                stored = isinstance(self._facts.tree.statement(node), ast.Assign)
                if stored and (self._facts.tree.function(node) is not None or self._facts.program.is_guarded(node)):
                    yield node

    def _placed_on_import(self) -> Iterator[Obstacle]:
        for call in self._facts.calls.methods("cuda", "to"):
            transfer = self._facts.devices.transfer(call)
            if transfer is not None and transfer.device.may_be_cuda and not self._is_inside(call):
                yield Obstacle(
                    "placed-on-import",
                    f"line {call.lineno} moves something to a GPU before the process has taken its own",
                    'move that line into a function or under if __name__ == "__main__":',
                )

    def _is_inside(self, node: ast.AST) -> bool:
        """Whether a node stands in a function or under the main guard."""
        inside = any(isinstance(outer, (*FUNCTIONS, ast.Lambda)) for outer in self._facts.tree.ancestors(node))
        return inside or self._facts.program.is_guarded(node)
