"""Where a move takes a tensor: the device and the dtype of ``.cuda()``, ``.to(...)`` and ``.type_as(...)``, as code."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument
from torchfix.facts.code.tree import dotted, last_name, walk
from torchfix.facts.tensors.creations import Creation
from torchfix.facts.tensors.devices import Device

if TYPE_CHECKING:
    from torchfix.facts import Facts


@dataclass(frozen=True)
class Destination:
    """What a move makes of a tensor.

    Args:
        device: the device as code; None where the argument is not surely a device.
        known: what is known of the device, None for the device of another tensor.
        dtype: the dtype as code, None where the move leaves it.
        needs_torch: whether ``device`` is written with the name ``torch`` that the file does not import.
    """

    device: str | None
    known: Device | None = None
    dtype: str | None = None
    needs_torch: bool = False


_UNKNOWN = Destination(None)


class Destinations:
    """Questions about where the moves of one file go."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of(self, creation: Creation) -> Destination | None:
        """Where a creation is moved; None for a mere cast, for the CPU, and where the tensor itself names the device."""
        move = creation.move
        if move is None:
            return Destination(self.quoted("cuda"))
        given = argument(move, "device", 0)
        if self.is_like_another(move):
            other = argument(move, "other", 0)
            name = dotted(other) if other is not None else None
            return Destination(f"{name}.device", None, f"{name}.dtype") if name is not None else None
        transfer = self._facts.devices.transfer(move)
        if transfer is None:
            return None if given is None or self._facts.kinds.is_dtype(given) else _UNKNOWN
        if transfer.device.only_cpu or (creation.first is not None and _reads(given, transfer.source)):
            return None
        if last_name(move.func) == "cuda":
            return self._of_cuda(given, transfer.device)
        if given is None:
            return None
        dtype = argument(move, "dtype", 1)
        return Destination(self._text(given), transfer.device, self._text(dtype) if dtype is not None else None)

    def is_like_another(self, move: ast.Call) -> bool:
        """Whether a move takes device and dtype from another tensor: ``.type_as(x)``, ``.to(x)``."""
        given = argument(move, "other", 0)
        if given is None or last_name(move.func) == "cuda":
            return False
        return last_name(move.func) == "type_as" or self._facts.kinds.is_tensor(given)

    def _of_cuda(self, given: ast.expr | None, device: Device) -> Destination:
        """The device that ``.cuda(given)`` means."""
        if given is None:
            return Destination(self.quoted("cuda"), device)
        if isinstance(given, ast.Constant) and type(given.value) is int:
            return Destination(self.quoted(f"cuda:{given.value}"), device)
        if self._facts.kinds.is_ordinal(given):
            spelled = self._facts.names.spell("torch.device", given)
            return Destination(f"{spelled or 'torch.device'}({self.quoted('cuda')}, {self._text(given)})", device, None, spelled is None)
        # Known by its use alone it may be None, which means the current device to .cuda() and the host to a factory.
        made = self._facts.devices.made_as(given)
        return Destination(self._text(given), device) if made is not None and not made.may_be_none else _UNKNOWN

    def _text(self, node: ast.expr) -> str:
        return self._facts.source.segment(node)

    def quoted(self, words: str) -> str:
        """A string literal in the quotes that the file prefers."""
        return f"'{words}'" if self._prefers_single_quotes else f'"{words}"'

    @cached_property
    def _prefers_single_quotes(self) -> bool:
        strings = [node for node in walk(self._facts.source.tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        opened = Counter(self._text(node)[:1] for node in strings)
        return opened["'"] > opened['"']


def _reads(given: ast.expr | None, source: ast.expr) -> bool:
    """Whether a device expression reads the tensor that is moved (``x = x.to(x.device)``)."""
    names = {node.id for node in walk(given) if isinstance(node, ast.Name)} if given is not None else set()
    return isinstance(source, ast.Name) and source.id in names
