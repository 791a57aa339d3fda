"""Device expressions: whether an expression surely is a device, of which kinds, and copies between devices."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, receiver
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, dotted, last_name
from torchfix.facts.code.values import Value, default_of

if TYPE_CHECKING:
    from torchfix.facts import Facts


@dataclass(frozen=True)
class Device:
    """What is known of a device expression.

    Args:
        types: the device types that it may be (``{"cuda", "cpu"}``); ``"?"`` among them where some are not known.
        is_object: True for a ``torch.device``, False for a string or an index, None where both may be.
        may_be_none: whether it may be None, with which ``.to()`` leaves a tensor where it is and factories take the host.
    """

    types: frozenset[str]
    is_object: bool | None
    may_be_none: bool = False

    @property
    def may_be_cuda(self) -> bool:
        """Whether it can be a CUDA device."""
        return bool(self.types & {"cuda", "?"})

    def may_only_be(self, *kinds: str) -> bool:
        """Whether every device type that is known to be possible is among these."""
        return self.types - {"?"} <= set(kinds)

    @property
    def is_cuda_or_cpu(self) -> bool:
        """Whether it is surely CUDA or the CPU, whichever the machine has."""
        return self.types <= {"cuda", "cpu"}

    @property
    def only_cpu(self) -> bool:
        """Whether it is surely the CPU."""
        return self.types == {"cpu"}


_ANY = Device(frozenset("?"), None)
_NONE = Device(frozenset({"cpu"}), None, may_be_none=True)
# What torch.accelerator may find (torch.accelerator documentation).
_ACCELERATORS = frozenset({"cuda", "mps", "xpu", "mtia", "privateuseone"})
# Calls that number the devices of a machine.
ORDINALS = ("torch.cuda.current_device", "torch.distributed.get_rank", "builtins.int")
_OTHERS = ("mps", "xpu", "xla", "npu", "hpu", "mlu", "musa")
_DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu", "xla", "npu", "hpu", "meta", "mlu", "musa", "privateuseone")


@dataclass(frozen=True)
class Transfer:
    """A call that copies to a device: ``x.cuda(...)``, ``x.to(device, ...)`` or ``x.type(torch.cuda.FloatTensor)``.

    Args:
        call: the call.
        source: what is copied.
        target: the device argument, or the tensor type; None for a bare ``.cuda()``.
        device: what is known of the target.
    """

    call: ast.Call
    source: ast.expr
    target: ast.expr | None
    device: Device


class Devices:
    """Questions about devices in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[int, Device | None] = {}

    def of(self, expression: ast.expr) -> Device | None:
        """What is known of an expression as a device; None where it is not surely one.

        The name proves nothing: a parameter called ``device`` counts when its callers are seen, or when the same
        variable is used where torch takes nothing but a device.
        """
        key = id(expression)
        if key not in self._asked:
            self._asked[key] = None  # a circle of definitions is no proof
            self._asked[key] = self._judge(expression)
        return self._asked[key]

    def _judge(self, expression: ast.expr) -> Device | None:
        made = self.made_as(expression)
        if made is not None:
            return made
        if isinstance(expression, ast.Name) and self._declared_as_device(expression):
            return _ANY
        if isinstance(expression, (ast.Name, ast.Attribute)) and self._used_as_device(expression):
            return _ANY
        return None

    def made_as(self, expression: ast.expr) -> Device | None:
        """As :meth:`of`, but only by what made the expression, not by how it is declared or used."""
        judged = [value.facts.devices.of_value(value) for value in self._facts.values.of(expression) or ()]
        known = [device for device in judged if device is not None]
        return _join(known) if len(known) == len(judged) and any(device is not _NONE for device in known) else None

    def _declared_as_device(self, name: ast.Name) -> bool:
        """Whether a name is a parameter that its annotation or its default declares to be a device."""
        found = self._facts.flow.reaching(name)
        return bool(found) and all(binding.how is Bound.PARAMETER and self._is_device_parameter(binding.node) for binding in found)

    def _is_device_parameter(self, parameter: ast.AST) -> bool:
        assert isinstance(parameter, ast.arg)
        for part in ast.walk(parameter.annotation) if parameter.annotation is not None else ():
            if isinstance(part, (ast.Name, ast.Attribute)) and self._facts.names.qualified(part) == "torch.device":
                return True
        function = self._facts.tree.nearest(parameter, FUNCTIONS)
        default = default_of(function, parameter) if isinstance(function, FUNCTIONS) else None
        return default is not None and not _is_ordinal(default) and self.of(default) is not None

    def of_value(self, value: Value) -> Device | None:
        """What is known of one origin as a device."""
        node, facts = value.node, value.facts
        if value.path:
            return None
        if isinstance(node, ast.Constant):
            return _NONE if node.value is None else _constant(node)
        if isinstance(node, ast.JoinedStr):
            first = node.values[0] if node.values else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.startswith("cuda:"):
                return Device(frozenset({"cuda"}), False)
            return None
        if isinstance(node, ast.Call):
            return self._of_call(node, facts)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, facts)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
            left = facts.devices.of(node.left) if isinstance(node.op, ast.Add) else _constant(node.left)
            return Device(left.types, False) if left and left.is_object is False else None
        return None

    def _of_call(self, call: ast.Call, facts: Facts) -> Device | None:
        meaning = facts.calls.meaning(call)
        if meaning == "torch.device":
            given = argument(call, "device", 0) or argument(call, "type")
            inner = facts.devices.of(given) if given is not None else None
            return Device(inner.types if inner else frozenset("?"), True)
        if meaning in ORDINALS:
            return Device(frozenset({"cuda"}), False)
        if meaning == "torch.accelerator.current_accelerator":
            return Device(_ACCELERATORS, True, may_be_none=not _has_accelerator(facts, call))
        if meaning == "torch.get_default_device":
            return Device(frozenset("?"), True)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "format" and isinstance(call.func.value, ast.Constant):
            words = call.func.value.value
            return Device(frozenset({"cuda"}), False) if isinstance(words, str) and words.startswith("cuda:") else None
        return None

    def _of_attribute(self, node: ast.Attribute, facts: Facts) -> Device | None:
        option, given = facts.options.declaration(node), facts.options.assigned(node)
        if option is not None or given:
            judged = [_of_option(option)] if option is not None else []
            judged += [item.facts.devices.of(item.node) for item in given if isinstance(item.node, ast.expr)]
            return _join([device for device in judged if device]) if all(judged) else None
        if node.attr == "device" and facts.kinds.has_device(node.value):
            return Device(frozenset("?"), True)
        return None

    def _used_as_device(self, expression: ast.expr) -> bool:
        """Whether the same variable or attribute is used elsewhere where torch takes nothing but a device."""
        name = dotted(expression)
        if name is None:
            return False
        tree = self._facts.tree
        alike = (
            tree.names.get(expression.id, ()) if isinstance(expression, ast.Name) else tree.attributes.get(last_name(expression) or "", ())
        )
        for use in alike:
            if dotted(use) == name and self._same(use, expression) and self._in_device_place(use):
                return True
        return False

    def _same(self, one: ast.expr, other: ast.expr) -> bool:
        first, second = one, other
        while isinstance(first, ast.Attribute) and isinstance(second, ast.Attribute):
            first, second = first.value, second.value
        if not (isinstance(first, ast.Name) and isinstance(second, ast.Name)):
            return False
        if self._facts.names.same(first, second):
            return True
        both_self = self._facts.is_self(first) and self._facts.is_self(second)
        return both_self and self._facts.tree.method_class(one) is self._facts.tree.method_class(other)

    def _in_device_place(self, use: ast.expr) -> bool:
        tree, facts = self._facts.tree, self._facts
        parent = tree.parent(use)
        if isinstance(parent, ast.keyword) and parent.arg in ("device", "map_location"):
            call = tree.parent(parent)
            return isinstance(call, ast.Call) and (facts.calls.meaning(call) or "").startswith("torch.")
        if isinstance(parent, ast.Attribute) and parent.attr == "type" and isinstance(tree.parent(parent), ast.Compare):
            return True
        if isinstance(parent, ast.Call) and use in parent.args:
            if facts.calls.meaning(parent) in ("torch.device", "torch.cuda.set_device", "torch.cuda.device"):
                return True
            target = receiver(parent)
            moves = last_name(parent.func) == "to" and target is not None and facts.models.is_module(target)
            return moves and not _may_be_dtype(use)
        return False

    def names_others(self) -> bool:
        """Whether a file of the program speaks of devices other than CUDA and the host."""
        return any(facts.devices._names_others for facts in self._facts.program.holding(*_OTHERS))

    @cached_property
    def _names_others(self) -> bool:
        tree = self._facts.tree
        asked = (use for name in ("mps", "xpu") for use in tree.attributes.get(name, ()))
        if any((self._facts.names.qualified(use) or "").startswith("torch.") for use in asked):
            return True
        texts = (node.value for node in ast.walk(tree.module) if isinstance(node, ast.Constant) and isinstance(node.value, str))
        return any(text.partition(":")[0] in _OTHERS for text in texts)

    def transfer(self, call: ast.Call) -> Transfer | None:
        """A ``.cuda()``, ``.to(device)`` or ``.type(tensor type)`` call as a transfer; None where it is not surely one."""
        source = receiver(call)
        if source is None or not isinstance(call.func, ast.Attribute):
            return None
        if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
            return None
        if call.func.attr == "cuda":
            target = argument(call, "device", 0)
            return Transfer(call, source, target, Device(frozenset({"cuda"}), None if target is not None else False))
        if call.func.attr == "to":
            target = argument(call, "device", 0)
            device = self.of(target) if target is not None else None
            return Transfer(call, source, target, device) if device is not None else None
        return self._by_type(call, source) if call.func.attr == "type" else None

    def _by_type(self, call: ast.Call, source: ast.expr) -> Transfer | None:
        """``x.type(torch.cuda.FloatTensor)``, the type often chosen once for the whole script."""
        target = argument(call, "dtype", 0)
        values = self._facts.values.of(target) if target is not None else None
        meanings = [value.facts.names.qualified(value.node) or "" for value in values or () if isinstance(value.node, ast.expr)]
        if not meanings or not all(meaning.startswith("torch.") and meaning.endswith("Tensor") for meaning in meanings):
            return None
        return Transfer(call, source, target, Device(frozenset("cuda" if ".cuda." in meaning else "cpu" for meaning in meanings), False))


def _may_be_dtype(use: ast.expr) -> bool:
    """Whether a name speaks of number formats: ``net.to(x)`` proves a device unless ``x`` may be a dtype."""
    return re.search(r"type|precision|half|float", last_name(use) or "") is not None


def _is_ordinal(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _constant(node: ast.AST) -> Device | None:
    if not isinstance(node, ast.Constant):
        return None
    if isinstance(node.value, str):
        kind = node.value.partition(":")[0]
        return Device(frozenset({kind}), False) if kind in _DEVICE_TYPES else None
    if type(node.value) is int:
        return Device(frozenset({"cuda"}), False)
    return None


def _of_option(option: Value) -> Device | None:
    """A command-line option is a device when its default or its choices are."""
    assert isinstance(option.node, ast.Call)
    default = argument(option.node, "default")
    judged = option.facts.devices.of(default) if default is not None and not _is_ordinal(default) else None
    if judged is None:
        return None
    choices = argument(option.node, "choices")
    types = judged.types | {"?"}
    if isinstance(choices, (ast.List, ast.Tuple)):
        allowed = [_constant(item) for item in choices.elts]
        if all(allowed):
            types = judged.types.union(*(item.types for item in allowed if item))
    return Device(frozenset(types), False)


def _join(devices: list[Device]) -> Device:
    objects = {device.is_object for device in devices}
    types: frozenset[str] = frozenset().union(*(device.types for device in devices))
    return Device(types, objects.pop() if len(objects) == 1 else None, any(device.may_be_none for device in devices))


def _has_accelerator(facts: Facts, call: ast.Call) -> bool:
    """Whether a place is only reached where ``torch.accelerator.is_available()``."""
    inner: ast.AST = call
    for outer in facts.tree.ancestors(call):
        if isinstance(outer, (ast.If, ast.IfExp)) and _asks_for_accelerator(facts, outer.test):
            body = outer.body if isinstance(outer.body, list) else [outer.body]
            if any(item is inner for item in body):
                return True
        inner = outer
    return False


def _asks_for_accelerator(facts: Facts, test: ast.expr) -> bool:
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    if any(isinstance(part, ast.Call) and facts.calls.meaning(part) == "torch.accelerator.is_available" for part in parts):
        return True
    bindings = facts.flow.reaching(test) if isinstance(test, ast.Name) else []
    given = bindings[0].value if len(bindings) == 1 and bindings[0].how is Bound.ASSIGN and not bindings[0].path else None
    return given is not None and not isinstance(given, ast.Name) and _asks_for_accelerator(facts, given)
