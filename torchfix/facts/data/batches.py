"""Batches on their way through the host: which expressions are still in host memory as a loader made them, and where they are copied."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import receiver
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, Function, LoopNode, last_name
from torchfix.facts.code.values import ELEMENT, Value
from torchfix.facts.data.loaders import Loader
from torchfix.facts.tensors.devices import Device, Transfer
from torchfix.facts.tensors.identity import is_in_place

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Methods whose result is the tensor itself, or one like it, in host memory.
_ON_HOST = frozenset(
    """view reshape squeeze unsqueeze permute transpose flatten contiguous detach clone pin_memory
    float double half bfloat16 long int short byte bool""".split()
)
# Those of them whose result may share its memory, and what gives an array that does.
_SHARING = _ON_HOST - {"clone"} | {"numpy"}
# What gives an entry of a batch, and what gives a tensor's memory under another name.
_ENTRIES = frozenset(["items", "values", "get", "pop"])
_SHARING_PARTS = ("data", "T", "mT")
_SHARING_CALLS = ("torch.autograd.Variable", "torch.from_numpy", "torch.as_tensor", "numpy.asarray")
# Functions that make a tensor of values that are not tensors yet; the first makes it in host memory, whatever else it may be given.
_FROM_ARRAY = "torch.from_numpy"
_MAKING = (_FROM_ARRAY, "torch.tensor", "torch.as_tensor")

# Methods by which frameworks take loaders over: Accelerate's and Fabric's.
_PLACING = ("prepare", "prepare_data_loader", "setup_dataloaders", "_setup_dataloader")


@dataclass(frozen=True)
class Part:
    """A batch, or a part of one, in host memory.

    Args:
        loaders: the loaders that may have made it.
        is_whole: whether it is the batch as the loader gives it, rather than an entry of it.
        is_made: whether the program made the tensor itself (of numpy arrays), so that no loader can pin it.
    """

    loaders: tuple[Loader, ...]
    is_whole: bool = False
    is_made: bool = False


class Batches:
    """Questions about the batches that one file handles."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[int, Part | None] = {}
        self._repeated: dict[int, bool] = {}
        self._placed: dict[Loader, bool] = {}

    def on_host(self, expression: ast.expr) -> Part | None:
        """The part of a batch that an expression surely is, still in host memory; None for anything else."""
        key = id(expression)
        if key not in self._asked:
            self._asked[key] = Part(())  # ``x = x.float()``: the circle adds nothing new
            self._asked[key] = self._judge(expression)
        return self._asked[key]

    def _judge(self, expression: ast.expr) -> Part | None:
        values = self._facts.values.of(expression) or ()
        iterable = [value for value in values if not (value.path and isinstance(value.node, ast.Constant))]  # None gives no batch
        parts = [value.facts.batches._of_value(value) for value in iterable]
        known = [part for part in parts if part is not None]
        loaders = tuple(dict.fromkeys(loader for part in known for loader in part.loaders))
        if not loaders or len(known) != len(parts) or any(loader.facts.batches.are_placed(loader) for loader in loaders):
            return None
        return Part(loaders, any(part.is_whole for part in known), any(part.is_made for part in known))

    def are_placed(self, loader: Loader) -> bool:
        """Whether a framework is handed a loader of this file and may give its batches on the device (``accelerator.prepare``)."""
        if loader not in self._placed:
            self._placed[loader] = any(
                loader in (facts.loaders.of(item) or ())
                for facts in self._facts.program.holding(*_PLACING)
                for call in facts.calls.methods(*_PLACING)
                for item in (*call.args, *(given.value for given in call.keywords))
            )
        return self._placed[loader]

    def _of_value(self, value: Value) -> Part | None:
        node = value.node
        if isinstance(node, ast.Subscript):
            return self._entry(node.value)
        if not isinstance(node, ast.Call):
            return None
        meaning, method, source = self._facts.calls.meaning(node), last_name(node.func), receiver(node)
        if self._facts.loaders.makes(node) and value.path[:1] == (ELEMENT,):
            return Part((Loader(self._facts, node),), is_whole=len(value.path) == 1)
        if meaning == "torch.autograd.Variable" and node.args:
            return self.on_host(node.args[0])
        if meaning in _MAKING and node.args:
            inner = self.on_host(node.args[0]) or (self._partly(node.args[0]) if meaning == _FROM_ARRAY else None)
            return Part(inner.loaders, is_made=True) if inner is not None else None
        if source is None:
            return None
        if method in ("get", "pop") and len(node.args) == 1 and not value.path:
            return self._entry(source)
        if method in ("items", "values") and value.path[:1] == (ELEMENT,) and value.path[:2] != (ELEMENT, 0):
            return self._entry(source)
        return self.on_host(source) if method in _ON_HOST or self._stays(node) else None

    def _partly(self, expression: ast.expr) -> Part | None:
        """A part of a batch that an expression is where some of its origins are one, others arrays from elsewhere."""
        parts = [value.facts.batches._of_value(value) for value in self._facts.values.of(expression) or ()]
        loaders = tuple(dict.fromkeys(loader for part in parts if part is not None for loader in part.loaders))
        return Part(loaders) if loaders else None

    def _entry(self, batch: ast.expr) -> Part | None:
        inner = self.on_host(batch)
        return Part(inner.loaders, is_made=inner.is_made) if inner is not None else None

    def _stays(self, call: ast.Call) -> bool:
        """Whether ``.to(...)`` or ``.type(...)`` leaves a tensor on the host."""
        transfer = self._facts.devices.transfer(call)
        if transfer is not None:
            return transfer.device.only_cpu
        return last_name(call.func) in ("to", "type") and bool(call.args) and self._facts.kinds.is_dtype(call.args[0])

    @cached_property
    def copies(self) -> tuple[tuple[Transfer, Part], ...]:
        """The calls of the file that surely copy parts of batches to devices, in text order."""
        found = []
        for call in self._facts.calls.methods("to", "cuda", "type"):
            transfer = self._facts.devices.transfer(call)
            part = self.on_host(transfer.source) if transfer is not None and not transfer.device.only_cpu else None
            if transfer is not None and part is not None:
                found.append((transfer, part))
        return tuple(found)

    def copy(self, call: ast.Call) -> tuple[Transfer, Part] | None:
        """A call that copies a part of a batch from the host to a device.

        What ``.to(x)`` is given need not be known here: a device, a dtype and a tensor all leave the source on the host.
        """
        source = receiver(call)
        part = self.on_host(source) if source is not None else None
        if part is None or source is None:
            return None
        transfer = self._facts.devices.transfer(call)
        given = call.args[0] if call.args else None
        if transfer is None and last_name(call.func) == "to" and isinstance(given, (ast.Name, ast.Attribute)) and not self._stays(call):
            transfer = Transfer(call, source, given, Device(frozenset("?"), None))
        return None if transfer is None or transfer.device.only_cpu else (transfer, part)

    def is_repeated(self, node: ast.AST) -> bool:
        """Whether a place runs again and again: in a loop that goes on, or in a function that is called from one."""
        tree = self._facts.tree
        loop, function = tree.nearest(node, LOOPS), tree.function(node)
        if isinstance(loop, LOOPS) and (function is None or tree.is_within(loop, function)):
            return not _runs_once(loop)
        return function is not None and self._is_called_repeatedly(function)

    def _is_called_repeatedly(self, function: Function) -> bool:
        key = id(function)
        if key not in self._repeated:
            self._repeated[key] = False  # recursion alone is no loop
            calls = self._facts.callers_everywhere(function)
            self._repeated[key] = calls is None or any(facts.batches.is_repeated(call) for facts, call in calls)
        return self._repeated[key]

    def written_after(self, transfer: Transfer) -> ast.Name | None:
        """A place behind a copy, in the same loop or function, that writes into the tensor on the host."""
        tree = self._facts.tree
        around = tree.nearest(transfer.call, (*LOOPS, *FUNCTIONS)) or tree.module
        copied = self._memory(transfer.source, set())
        for use in (node for node in ast.walk(around) if isinstance(node, ast.Name)):
            later = (use.lineno, use.col_offset) > (transfer.call.lineno, transfer.call.col_offset)
            if later and self._facts.writes.is_write(use) and not self._replaces_entry(use):
                written = self._memory(use, set())
                if any(one is other and path[: len(way)] == way[: len(path)] for one, path in copied for other, way in written):
                    return use
        return None

    def _memory(self, expression: ast.expr, seen: set[int]) -> list[tuple[ast.AST, tuple[object, ...]]]:
        """What holds the memory of a tensor on the host, or of an array that shares it: what made it, and the way into that."""
        if id(expression) in seen:
            return []
        seen.add(id(expression))
        found: list[tuple[ast.AST, tuple[object, ...]]] = []
        for value in self._facts.values.of(expression) or ():
            there = value.facts.batches
            source = there._shared(value.node)
            found += there._memory(source, seen) if source is not None else [(value.node, value.path)]
        return found

    def _shared(self, node: ast.AST) -> ast.expr | None:
        """The expression whose memory an expression may have under another name, or of which it is an entry."""
        if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in _SHARING_PARTS):
            return node.value
        if not isinstance(node, ast.Call):
            return None
        if self._facts.calls.meaning(node) in _SHARING_CALLS:
            return next(iter(node.args), None)
        return receiver(node) if last_name(node.func) in _SHARING | _ENTRIES or self._stays(node) else None

    def written(self, loader: Loader) -> ast.expr | None:
        """A place in this file that writes into what a loader gives, while it is still in host memory."""
        tree = self._facts.tree
        names = (use for uses in tree.names.values() for use in uses if self._facts.writes.is_write(use) and not self._replaces_entry(use))
        calls = (source for name in tree.calls if is_in_place(name) for call in tree.calls[name] if (source := receiver(call)) is not None)
        arrays = (store.value for store in tree.stores if isinstance(store, ast.Subscript) and isinstance(store.value, ast.Call))
        for place in (*names, *calls, *arrays):
            if any(node is loader.call and path[:1] == (ELEMENT,) for node, path in self._memory(place, set())):
                return place
        return None

    def _replaces_entry(self, use: ast.Name) -> bool:
        """Whether ``batch[key] = value`` puts another tensor into a dictionary, rather than values into a tensor."""
        store = self._facts.tree.parent(use)
        if isinstance(store, ast.expr) and isinstance(self._facts.tree.parent(store), ast.AugAssign):
            return False
        if not (isinstance(store, ast.Subscript) and isinstance(store.ctx, ast.Store)):
            return False
        if isinstance(store.slice, ast.Constant):
            return isinstance(store.slice.value, str)
        parents = [self._facts.tree.parent(other) for other in self._facts.names.uses(use)]
        return any(isinstance(parent, ast.Attribute) and parent.attr in ("items", "keys", "values") for parent in parents)


def _runs_once(loop: LoopNode) -> bool:
    """Whether a loop ends with its first iteration."""
    return any(isinstance(statement, (ast.Break, ast.Return)) for statement in loop.body)
