"""Optimizers: which expressions surely are ``torch.optim`` objects, and over which networks."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import choices, picked_from
from torchfix.facts.code.calls import argument, receiver
from torchfix.facts.code.classes import lineage, method_of, stores
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, Function, dotted, walk_here
from torchfix.facts.code.values import Value
from torchfix.facts.training.models import derives
from torchfix.facts.training.owners import all_owners, parameter_owners

if TYPE_CHECKING:
    from torchfix.facts import Facts

_SCHEDULERS = "torch.optim.lr_scheduler."
# What torch.optim holds beside optimizers.
_NO_OPTIMIZERS = (_SCHEDULERS, "torch.optim.swa_utils.")
_ANY = "torch.optim.*"  # the kind of one that is picked by a name which is not known
_SCALERS = ("timm.utils.NativeScaler", "timm.utils.ApexScaler", "timm.utils.cuda.NativeScaler", "timm.utils.cuda.ApexScaler")
# What makes optimizers of torch's kind.
_LIBRARIES = (
    "torch.optim.",
    "timm.optim.",
    "apex.optimizers.",
    "bitsandbytes.optim.",
    "transformers.AdamW",
    "transformers.Adafactor",
    "transformers.optimization.AdamW",
    "transformers.optimization.Adafactor",
)


@dataclass(frozen=True)
class Optimizer:
    """One optimizer.

    Args:
        value: the call that constructs it.
        kind: its dotted name (``torch.optim.Adam``), or the class's own name for one of the project; ends in ``*`` where
            one of several is chosen.
    """

    value: Value
    kind: str

    @property
    def call(self) -> ast.Call:
        """The call that constructs it."""
        assert isinstance(self.value.node, ast.Call)
        return self.value.node

    @property
    def takes_closure(self) -> bool:
        """Whether its step calls the loss again, so that ``step`` needs a closure."""
        return self.kind.rpartition(".")[2] == "LBFGS"

    @property
    def has_groups(self) -> bool:
        """Whether it surely lists its parameters in groups as torch's do; a class of the project may only hold one that does."""
        definition = self.value.facts.names.definition(self.call.func)
        if definition is None or not isinstance(definition.node, ast.ClassDef):
            return True
        own = method_of(definition, "__init__")
        constructs = own is None or not isinstance(own.node, FUNCTIONS) or _calls_base(own.node)
        return constructs or method_of(definition, "param_groups") is not None or any(stores(lineage(definition), "param_groups"))

    @property
    def owners(self) -> frozenset[object] | None:
        """Where the networks were made whose parameters it was given, None where one of them is not known."""
        return parameter_owners(self.value.facts, argument(self.call, "params", 0))


class Optimizers:
    """Questions about optimizers in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of(self, expression: ast.expr) -> tuple[Optimizer, ...] | None:
        """Every optimizer that an expression may be; None where it is not surely one.

        None, which a program puts in the place of one that it makes later or does without, cannot be stepped.
        """
        values = self._facts.values.of(expression) or ()
        found = [self.of_value(value) for value in values if not value.is_none]
        return tuple(item for item in found if item) if found and all(found) else None

    def stepped_by(self, call: ast.Call) -> ast.expr | None:
        """The optimizer that a ``.step()`` call moves: what it is called on, or what a scaler is given."""
        source = receiver(call)
        handed = call.args[0] if call.args and (source is None or not self.of(source)) else None
        return handed if handed is not None and self.of(handed) else source

    def moved_by(self, call: ast.Call) -> tuple[Optimizer, ...] | None:
        """Every optimizer that a step may move, be it inside the object whose method the call runs; None where it is not known."""
        wrapped = self._facts.wrapped_optimizers.step(call)
        optimizer = self.stepped_by(call) if wrapped is None else None
        return wrapped.optimizers if wrapped is not None else self.of(optimizer) if optimizer is not None else None

    def owners_moved_by(self, call: ast.Call) -> frozenset[object] | None:
        """Where the networks were made that a step moves, None where one of them is not known."""
        return all_owners(item.owners for item in self.moved_by(call) or ())

    def name_of(self, call: ast.Call) -> str | None:
        """The dotted name under which the code around a step knows the optimizer that it moves."""
        wrapped, optimizer = self._facts.wrapped_optimizers.step(call), self.stepped_by(call)
        name = dotted(optimizer) if optimizer is not None else None
        return name if wrapped is None or name is None else f"{name}.{wrapped.attribute}"

    @staticmethod
    def of_value(value: Value) -> Optimizer | None:
        """The optimizer that one origin is, None where it is not surely one."""
        node, facts = value.node, value.facts
        if not isinstance(node, ast.Call) or value.path:
            return None
        makers = _makers(facts, node)
        kinds = [kind for maker in makers if (kind := _kind(maker)) is not None]
        if not kinds or len(kinds) != len(makers):
            return None
        return Optimizer(value, kinds[0] if len(kinds) == 1 else _ANY)

    def is_scaler(self, expression: ast.expr) -> bool:
        """Whether an expression surely is a library's object that sends a loss backward and steps when it is called."""
        values = self._facts.values.of(expression) if isinstance(expression, (ast.Name, ast.Attribute)) else ()
        return bool(values) and all(
            isinstance(value.node, ast.Call) and value.facts.calls.meaning(value.node) in _SCALERS for value in values or ()
        )

    def counts_steps(self, call: ast.Call) -> bool:
        """Whether a ``.step()`` is that of a schedule made for an exact number of steps (``OneCycleLR``)."""
        source = receiver(call)
        values = self._facts.values.of(source) if source is not None else None
        return bool(values) and all(
            isinstance(value.node, ast.Call) and value.facts.calls.meaning(value.node) == "torch.optim.lr_scheduler.OneCycleLR"
            for value in values or ()
        )

    def is_scheduler(self, expression: ast.expr) -> bool:
        """Whether an expression surely is a learning-rate scheduler: torch's own, or of a project's class that derives from one."""
        values = self._facts.values.of(expression)
        return bool(values) and all(_schedules(value) for value in values or ())


def _calls_base(constructor: Function) -> bool:
    """Whether a constructor calls that of a base class: ``super().__init__(...)``, or by the name of the class."""
    calls = (node for statement in constructor.body for node in walk_here(statement) if isinstance(node, ast.Call))
    return any(isinstance(call.func, ast.Attribute) and call.func.attr == "__init__" for call in calls)


def _makers(facts: Facts, call: ast.Call) -> tuple[str | Definition, ...]:
    """What a call may call: a class by name, one that a variable or table chooses, or one of torch's by its name."""
    named = facts.names.definition(call.func) or facts.calls.meaning(call)
    if named is not None:
        return (named,)
    module = picked_from(facts, call.func)
    if module is not None and facts.names.qualified(module) == "torch.optim":
        return (_ANY,)
    return choices(facts, call)


def _kind(maker: str | Definition) -> str | None:
    """The kind of optimizer that a class or function makes, None where it makes none."""
    if isinstance(maker, str):
        return maker if maker.startswith(_LIBRARIES) and not maker.startswith(_NO_OPTIMIZERS) else None
    if not isinstance(maker.node, ast.ClassDef) or derives(maker, _NO_OPTIMIZERS):
        return None
    return maker.node.name if derives(maker, ("torch.optim.",)) else None


def _schedules(value: Value) -> bool:
    node, facts = value.node, value.facts
    if not isinstance(node, ast.Call) or value.path:
        return False
    if (facts.calls.meaning(node) or "").startswith(_SCHEDULERS):
        return True
    definition = facts.names.definition(node.func)
    return definition is not None and isinstance(definition.node, ast.ClassDef) and derives(definition, (_SCHEDULERS,))
