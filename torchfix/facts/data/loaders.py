"""Data loaders: every ``torch.utils.data.DataLoader`` of a file, its dataset, and whether it feeds training."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, is_constant, receiver
from torchfix.facts.code.keywords import Table, tables
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, Function, LoopNode, last_name
from torchfix.facts.code.values import ELEMENT, Step, Value

if TYPE_CHECKING:
    from torchfix.facts import Facts

DATA_LOADER = "torch.utils.data.DataLoader"

# The parameters of DataLoader that may be given by position, in torch's own order (torch.utils.data documentation).
POSITIONS = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
)


# Tensor methods whose result is the same data elsewhere or in another shape.
_SAME_DATA: frozenset[str | None] = frozenset(
    ["to", "cuda", "view", "reshape", "squeeze", "unsqueeze", "permute", "transpose", "flatten", "contiguous"]
)


# Where the batch stands in what an iterable gives: alone, behind ``enumerate``, in ``zip``, in ``zip`` behind ``enumerate``.
_BATCHES: tuple[tuple[Step, ...], ...] = ((ELEMENT,), (ELEMENT, 1), (ELEMENT, 0), (ELEMENT, 2), (ELEMENT, 1, 0), (ELEMENT, 1, 1))


class Role(enum.Enum):
    """What a loader's batches are used for."""

    TRAIN = "training"
    EVALUATION = "evaluation"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Loader:
    """One call that constructs a DataLoader."""

    facts: Facts
    call: ast.Call

    def __hash__(self) -> int:
        return hash(id(self.call))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loader) and self.call is other.call

    def argument(self, name: str) -> ast.expr | None:
        """The value of one of DataLoader's parameters, by keyword or position."""
        return argument(self.call, name, POSITIONS.index(name) if name in POSITIONS else None)

    def setting(self, name: str) -> ast.expr | None:
        """As :meth:`argument`, and where a dictionary gives it (``**options``) the last value that it may have there."""
        return next(reversed(self.settings(name)), None)

    def settings(self, name: str) -> tuple[ast.expr, ...]:
        """Every value that one of DataLoader's parameters may be given, in the call or by dictionaries."""
        given = self.argument(name)
        found = tuple(value for table in self.tables or () if (value := table.entry(name)) is not None)
        return found if given is None else (given,)

    @cached_property
    def tables(self) -> tuple[Table, ...] | None:
        """The dictionaries that give it arguments; None where arguments are, or may be, out of sight."""
        return tables(self.facts, self.call)

    @property
    def hides_arguments(self) -> bool:
        """Whether arguments are out of sight, behind ``*`` or an unknown ``**``."""
        return self.tables is None

    @property
    def shuffles(self) -> bool:
        """Whether it may draw its samples in a random order of its own."""
        shuffle = self.setting("shuffle")
        return not (shuffle is None or is_constant(shuffle, False) or is_constant(shuffle, None))

    @property
    def dataset(self) -> ast.expr | None:
        """The dataset argument."""
        return self.setting("dataset")

    def dataset_values(self) -> tuple[Value, ...] | None:
        """Every expression that may have made the dataset; None where one of them is out of sight."""
        return self.facts.values.of(self.dataset) if self.dataset is not None else None

    def dataset_classes(self) -> tuple[Definition, ...] | None:
        """The classes of the project that may have made the dataset; None where an origin is something else."""
        values = self.dataset_values()
        if not values:
            return None
        found = []
        for value in values:
            made = value.facts.names.definition(value.node.func) if isinstance(value.node, ast.Call) and not value.path else None
            if made is None or not isinstance(made.node, ast.ClassDef):
                return None
            found.append(made)
        return tuple(found)

    @cached_property
    def loops(self) -> tuple[LoopNode, ...]:
        """The loops of this file that take their batches from this loader, in text order."""
        return tuple(node for node, loaders in self.facts.loaders.by_loop.items() if self in loaders)

    def role(self) -> Role:
        """Training where a training loop takes its batches, evaluation where only evaluation loops do."""
        kinds = {self.facts.loops.kind(node) for node in self.loops}
        names = {kind.name for kind in kinds}
        if "TRAIN" in names:
            return Role.TRAIN
        return Role.EVALUATION if names == {"EVAL"} else Role.UNKNOWN


class Loaders:
    """The data loaders of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[int, tuple[Loader, ...] | None] = {}

    @cached_property
    def all(self) -> tuple[Loader, ...]:
        """Every DataLoader that this file constructs, in text order."""
        calls = (*self._facts.calls.to(DATA_LOADER), *self._of_subclasses)
        return tuple(Loader(self._facts, call) for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)))

    def makes(self, call: ast.Call) -> bool:
        """Whether a call constructs a DataLoader: torch's class, or one of the project that hands all arguments on to it."""
        return self._facts.calls.meaning(call) == DATA_LOADER or self._is_of_subclass(call)

    @property
    def _of_subclasses(self) -> Iterator[ast.Call]:
        calls = self._facts.tree.calls
        return (call for name in calls if name[0].isupper() for call in calls[name] if self._is_of_subclass(call))

    def _is_of_subclass(self, call: ast.Call) -> bool:
        made = self._facts.names.definition(call.func)
        if made is None or not isinstance(made.node, ast.ClassDef):
            return False
        return [made.facts.names.qualified(base) for base in made.node.bases] == [DATA_LOADER] and _hands_on(made.node)

    def of(self, expression: ast.expr) -> tuple[Loader, ...] | None:
        """The loaders that an expression may be, or None that nothing can iterate; None where it may be something else."""
        return self._of_values(self._facts.values.of(expression), ())

    @staticmethod
    def _of_values(values: tuple[Value, ...] | None, path: tuple[object, ...]) -> tuple[Loader, ...] | None:
        found = []
        for value in values or ():
            call, facts = value.node, value.facts
            if isinstance(call, ast.Constant) and call.value is None:
                continue
            if value.path != path or not isinstance(call, ast.Call) or not facts.loaders.makes(call):
                return None
            found.append(Loader(facts, call))
        return tuple(dict.fromkeys(found)) or None

    @cached_property
    def by_loop(self) -> dict[LoopNode, tuple[Loader, ...]]:
        """The loops that surely take their batches from loaders, with those loaders.

        ``for batch in loader``, through ``enumerate``, ``tqdm`` and ``zip``, and ``next(iterator)`` in the body.
        """
        found: dict[LoopNode, tuple[Loader, ...]] = {}
        for node in self._facts.tree.loops:
            loaders = tuple(dict.fromkeys(loader for source in self._sources(node) for loader in source))
            if loaders:
                found[node] = loaders
        return found

    def iterated(self, expression: ast.expr) -> tuple[Loader, ...]:
        """The loaders whose batches an iterable surely gives, itself or through ``enumerate``, ``tqdm`` and ``zip``."""
        asked = (self._facts.values.of(expression, path) for path in _BATCHES)
        return tuple(dict.fromkeys(loader for values in asked for loader in self._of_values(values, (ELEMENT,)) or ()))

    def _sources(self, node: LoopNode) -> Iterator[tuple[Loader, ...]]:
        if isinstance(node, (ast.For, ast.AsyncFor)):
            yield self.iterated(node.iter)
        for call in self._facts.tree.calls.get("next", ()):
            if self._facts.tree.nearest(call, (ast.For, ast.AsyncFor, ast.While)) is node and call.args:
                loaders = self._of_values(self._facts.values.of(call), (ELEMENT,))
                if loaders:
                    yield loaders

    def batch_source(self, expression: ast.expr) -> tuple[Loader, ...] | None:
        """The loaders whose batch, or a part of whose batch, an expression surely is; None for anything else.

        Copies to a device and views count as the batch itself (``x = x.to(device)``, ``x.view(-1, 784)``).
        """
        key = id(expression)
        if key not in self._asked:
            self._asked[key] = ()  # ``x = x.to(device)``: the circle adds nothing new
            self._asked[key] = self._batch(expression)
        return self._asked[key]

    def _batch(self, expression: ast.expr) -> tuple[Loader, ...] | None:
        found: list[Loader] = []
        for value in self._facts.values.of(expression) or (None,):
            if value is None:
                return None
            source = _same_data(value)
            if source is not None:
                loaders = value.facts.loaders.batch_source(source)
            else:
                loaders = self._of_values((Value(value.facts, value.node, value.path[:1]),), (ELEMENT,))
            if loaders is None:
                return None
            found += loaders
        return tuple(dict.fromkeys(found))


def _same_data(value: Value) -> ast.expr | None:
    """What a value is the same data as: the tensor that was copied or viewed, the dictionary that was read."""
    node = value.node
    if isinstance(node, ast.Subscript):
        return node.value
    if isinstance(node, ast.Call) and not value.path and last_name(node.func) in _SAME_DATA:
        return receiver(node)
    return None


def _hands_on(owner: ast.ClassDef) -> bool:
    """Whether a subclass of DataLoader takes the arguments of DataLoader and leaves iterating to it."""
    methods = [item for item in owner.body if isinstance(item, FUNCTIONS)]
    changing = [item.name for item in methods if item.name.startswith("_") and item.name not in ("__init__", "__repr__", "__str__")]
    return not changing and all(_hands_all_on(item) for item in methods if item.name == "__init__")


def _hands_all_on(constructor: Function) -> bool:
    """Whether a constructor is ``super().__init__(*args, **kwargs)`` of just what it is given."""
    arguments = constructor.args
    if arguments.vararg is None or arguments.kwarg is None or len(arguments.args) != 1 or arguments.posonlyargs or arguments.kwonlyargs:
        return False
    body = [item for item in constructor.body if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))]
    call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
    if not isinstance(call, ast.Call) or last_name(call.func) != "__init__" or len(call.args) != 1 or len(call.keywords) != 1:
        return False
    (first,), (named,) = call.args, call.keywords
    starred = first.value if isinstance(first, ast.Starred) else None
    names = [item.id if isinstance(item, ast.Name) else None for item in (starred, named.value)]
    return named.arg is None and names == [arguments.vararg.arg, arguments.kwarg.arg]
