"""What the code behind a data loader does: its dataset, the transforms given to it, and the function that makes batches.

Datasets of the project are read, those of known libraries judged by a table; anything else is out of sight.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, has_stars, is_constant, keyword, receiver
from torchfix.facts.code.instances import Instance, Origin, origins_of
from torchfix.facts.code.tree import FUNCTIONS, Function
from torchfix.facts.code.values import returns
from torchfix.facts.data import traits
from torchfix.facts.data.loaders import Loader
from torchfix.facts.data.samples import Reader, elements_of, instances_of, objects_of
from torchfix.facts.data.traits import Mark, Trait
from torchfix.facts.training.models import derives

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Datasets whose samples are those of another dataset, given first.
_VIEWS = ("torch.utils.data.Subset", "torch.utils.data.random_split")
_UNIONS = ("torch.utils.data.ConcatDataset", "torch.utils.data.StackDataset")
_ITERABLE = ("torch.utils.data.IterableDataset", "torch.utils.data.IterDataPipe", "torch.utils.data.ChainDataset")
_ITERABLE_LIBRARIES = ("torchtext.datasets.", "webdataset.", "torchdata.", "streaming.", "litdata.")
# Map-style datasets that read each sample from its own file, or make it from arrays in memory, in the documentation of
# torchvision 0.28, torchaudio 2.8 and medmnist 3; of torchvision only LSUN keeps a database open.
_MAP_STYLE = ("torchvision.datasets.", "torchaudio.datasets.", "medmnist.")
_KEEPS_OPEN = ("torchvision.datasets.LSUN", "torchvision.datasets.LSUNClass")
_CALLED_PARAMETERS = ("transform", "target_transform", "transforms", "loader")
# Methods of Hugging Face's Dataset and DatasetDict that give another map-style dataset of the same memory-mapped table.
_TABLE_METHODS = frozenset(
    """map filter select shuffle sort shard rename_column rename_columns remove_columns select_columns train_test_split cast
    cast_column flatten class_encode_column add_column with_format""".split()
)


@dataclass(frozen=True)
class Samples:
    """What is known of the code behind one loader."""

    marks: tuple[Mark, ...]

    def mark(self, *traits: Trait) -> Mark | None:
        """The first place with one of these traits, sought in the order in which they are named."""
        return next((mark for trait in traits for mark in self.marks if mark.trait is trait), None)

    def have(self, trait: Trait) -> bool:
        """Whether some place has a trait."""
        return self.mark(trait) is not None


class Datasets:
    """Questions about the datasets of one file's loaders."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[ast.Call, Samples] = {}

    def behind(self, loader: Loader) -> Samples:
        """What the code does that makes a loader's batches."""
        if loader.call not in self._asked:
            self._asked[loader.call] = _Behind().read(loader)
        return self._asked[loader.call]

    def batch_is_own_object(self, loader: Loader) -> bool:
        """Whether the function that makes a loader's batches may give objects of the project's own classes, or ones that it keeps."""
        given = loader.setting("collate_fn")
        for origin in origins_of(loader.facts, given) or () if given is not None else ():
            if isinstance(origin.node, ast.Lambda):
                continue
            for facts, function in _functions(origin):
                if any(_is_own_object(facts, value) for value in returns(function)):
                    return True
        return False


class _Behind:
    """One reading of all code behind a loader."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._seen: set[ast.AST] = set()

    def read(self, loader: Loader) -> Samples:
        facts = loader.facts
        if loader.dataset is None:
            self._reader.note(Trait.UNSEEN, facts, loader.call)
        else:
            self._dataset_from(facts, loader.dataset, None)
        for name in ("collate_fn", "worker_init_fn"):
            given = loader.setting(name)
            if given is not None:
                self._reader.called_from(facts, given)
        return Samples(self._reader.marks())

    def _unseen(self, facts: Facts, node: ast.AST) -> None:
        self._reader.note(Trait.UNSEEN, facts, node)

    def _dataset_from(self, facts: Facts, expression: ast.expr, within: Instance | None) -> None:
        origins = origins_of(facts, expression, within)
        if not origins:
            self._unseen(facts, expression)
        for origin in origins or ():
            if origin.node not in self._seen:
                self._seen.add(origin.node)
                self._dataset(origin)

    def _dataset(self, origin: Origin) -> None:
        facts, node, within = origin.facts, origin.node, origin.within
        table = _table(origin)
        if isinstance(node, ast.Constant):
            return  # no loader can be made of None, and a word only says which dataset is meant
        if table is not None:
            self._hugging_face(origin.facts, table)
        elif isinstance(node, ast.Call):
            self._made(origin, node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            self._dataset_from(facts, node.left, within)
            self._dataset_from(facts, node.right, within)
        elif isinstance(node, (ast.List, ast.Tuple, ast.ListComp)):
            self._memory(facts, node, within)
        elif isinstance(node, ast.Attribute) and node.attr == "dataset":
            self._of_loader_or_view(facts, node, within)
        elif isinstance(node, ast.Subscript):
            self._entry(facts, node, within)
        elif not self._split(facts, node):
            self._unseen(facts, node)

    def _split(self, facts: Facts, expression: ast.expr) -> bool:
        """A variable that holds a part of what a splitting function gives: ``train, test = random_split(data, sizes)``."""
        values = facts.values.of(expression) or ()
        calls = [(value.facts, value.node) for value in values if isinstance(value.node, ast.Call) and len(value.path) == 1]
        if not values or len(calls) != len(values) or any(there.calls.meaning(call) not in _VIEWS for there, call in calls):
            return False
        for there, call in calls:
            self._made(Origin(there, call), call)
        return True

    def _made(self, origin: Origin, call: ast.Call) -> None:
        facts, within = origin.facts, origin.within
        meaning = facts.calls.meaning(call) or _chosen_by_name(facts, call)
        instances = instances_of(origin)
        if instances:
            for instance in instances:
                self._own(instance)
        elif meaning in _VIEWS and call.args:
            self._dataset_from(facts, call.args[0], within)
        elif meaning in _UNIONS and call.args:
            self._all(facts, call.args[0], within)
        elif meaning == "torch.utils.data.TensorDataset":
            for given in (*call.args, *(item.value for item in call.keywords)):
                self._memory(facts, given, within)
        elif meaning in _KEEPS_OPEN:
            self._reader.note(Trait.HANDLE, facts, call)
        elif meaning.startswith(_MAP_STYLE):
            self._library(facts, call, within)
        elif meaning in _ITERABLE or meaning.startswith(_ITERABLE_LIBRARIES):
            self._reader.note(Trait.ITERABLE, facts, call)
        elif meaning == "builtins.range":
            return
        elif meaning in ("builtins.list", "builtins.zip") and call.args:
            for given in call.args:
                self._memory(facts, given, within)
        else:
            self._unseen(facts, call)

    def _all(self, facts: Facts, listed: ast.expr, within: Instance | None) -> None:
        for origin in origins_of(facts, listed, within) or (Origin(facts, listed),):
            items = elements_of(origin)
            if items is None:
                self._unseen(origin.facts, origin.node)
            for item in items or ():
                self._dataset_from(item.facts, item.node, item.within)

    def _hugging_face(self, facts: Facts, call: ast.Call) -> None:
        self._reader.note(Trait.WORK, facts, call)
        streaming = argument(call, "streaming")
        if has_stars(call) or not (streaming is None or isinstance(streaming, ast.Constant)):
            self._unseen(facts, call)
        elif streaming is not None and not is_constant(streaming, False):
            self._reader.note(Trait.ITERABLE, facts, call)
        for later in facts.calls.methods("set_transform", "set_format"):
            if any(trait is Trait.DEVICE for trait in traits.of_call(facts, later)):
                self._reader.note(Trait.DEVICE, facts, later)
            given = argument(later, "transform", 0) if later.func.attr == "set_transform" else None  # type: ignore[attr-defined]
            if given is not None:
                self._reader.called_from(facts, given)

    def _library(self, facts: Facts, call: ast.Call, within: Instance | None) -> None:
        """A dataset of a library, with the code of the user that it calls."""
        self._reader.note(Trait.WORK, facts, call)
        if has_stars(call):
            self._unseen(facts, call)
        for index, given in enumerate(call.args):
            origins = origins_of(facts, given, within)
            if origins is None and index:
                self._unseen(facts, given)
            self._reader.handed_to_library(facts, given, within)
        for item in call.keywords:
            if item.arg in _CALLED_PARAMETERS:
                self._reader.called_from(facts, item.value, within)

    def _own(self, instance: Instance) -> None:
        """A dataset of the project."""
        facts, node = instance.definition.facts, instance.definition.node
        self._reader.object(instance)
        library = [base for base in instance.library_bases if base is None or not base.startswith(("torch.utils.data.", "typing.", "abc."))]
        sample = instance.method("__getitem__") or instance.method("__getitems__")
        iterated = instance.method("__iter__") if derives(instance.definition, _ITERABLE) or sample is None else None
        if iterated is not None:
            self._reader.note(Trait.ITERABLE, facts, node)
        if any(base is None or not base.startswith(_MAP_STYLE) for base in library) or (not sample and not iterated and not library):
            self._unseen(facts, node)
        elif library:
            origin = instance.library_call
            if origin is not None and isinstance(origin.node, ast.Call):
                self._library(origin.facts, origin.node, origin.within)
            else:
                self._unseen(facts, node)
        for method in (iterated, sample, instance.method("__len__")):
            if method is not None:
                self._reader.function(*method, instance)
        if sample is not None:
            for value in returns(sample[1]):
                self._returned(sample[0], value, instance)

    def _returned(self, facts: Facts, value: ast.expr, instance: Instance) -> None:
        """What a sample is made of: parts of what the dataset keeps may lie on a device."""
        parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else value.values if isinstance(value, ast.Dict) else [value]
        for part in parts:
            for origin in (origins_of(facts, part, instance) or ()) if isinstance(part, ast.Name) else (Origin(facts, part, instance),):
                node = origin.node
                while isinstance(node, ast.Subscript):
                    node = node.value
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and origin.facts.is_self(node.value):
                    self._memory(origin.facts, node, instance)

    def _of_loader_or_view(self, facts: Facts, node: ast.Attribute, within: Instance | None) -> None:
        for origin in origins_of(facts, node.value, within) or (Origin(facts, node),):
            call = origin.node
            if isinstance(call, ast.Call) and (origin.facts.loaders.makes(call) or origin.facts.calls.meaning(call) in _VIEWS):
                given = argument(call, "dataset", 0)
                if given is not None:
                    self._dataset_from(origin.facts, given, origin.within)
                    continue
            self._unseen(facts, node)

    def _entry(self, facts: Facts, node: ast.Subscript, within: Instance | None) -> None:
        """An entry of a dictionary or list of datasets, or a part of what a splitting function gives: all of them count."""
        for origin in origins_of(facts, node.value, within) or (Origin(facts, node),):
            held = origin.node
            if isinstance(held, ast.Dict) and all(held.keys):
                for value in held.values:
                    self._dataset_from(origin.facts, value, origin.within)
            elif isinstance(held, ast.DictComp):
                self._dataset_from(origin.facts, held.value, origin.within)
            elif isinstance(held, (ast.List, ast.Tuple)):
                for item in elements_of(origin) or ():
                    self._dataset_from(item.facts, item.node, item.within)
            elif isinstance(held, ast.Call) and origin.facts.calls.meaning(held) in _VIEWS:
                self._dataset(origin)
            else:
                self._unseen(facts, node)
        for value in _stored_entries(facts, node.value):
            self._dataset_from(facts, value, within)

    def _memory(self, facts: Facts, expression: ast.expr, within: Instance | None) -> None:
        """Data that is handed on as it is, where it matters on which device it lies."""
        origins = origins_of(facts, expression, within)
        if origins is None:
            self._reader.note(Trait.UNSEEN_DATA, facts, expression)
        for origin in origins or ():
            self._data(origin)

    def _data(self, origin: Origin) -> None:
        facts, node, within = origin.facts, origin.node, origin.within
        if node in self._seen:
            return
        self._seen.add(node)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            parts = node.elts
        elif isinstance(node, ast.Dict):
            parts = node.values
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            parts = [node.elt]
        elif isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, (ast.Subscript, ast.Starred)):
            parts = [node.value]
        elif isinstance(node, ast.Call):
            parts = self._data_call(facts, node)
        elif isinstance(node, ast.Attribute):
            parts = [] if node.attr in ("cpu", "shape") else [node.value]
        else:
            parts = []
        for part in parts:
            if not (isinstance(part, ast.Name) and facts.is_self(part)):
                self._memory(facts, part, within)

    def _data_call(self, facts: Facts, call: ast.Call) -> list[ast.expr]:
        """Notes a call that puts data on a device, and gives the expressions whose data it hands on."""
        if any(trait is Trait.DEVICE for trait in traits.of_call(facts, call)):
            self._reader.note(Trait.DEVICE, facts, call)
        source = receiver(call)
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if name in ("cpu", "numpy", "tolist", "item"):
            return []
        meaning = facts.calls.meaning(call)
        if meaning is not None and not meaning.startswith("."):
            return list(call.args) if meaning in ("torch.cat", "torch.stack") else []
        if source is None:
            self._reader.note(Trait.UNSEEN_DATA, facts, call)
            return []
        return [source]


def _chosen_by_name(facts: Facts, call: ast.Call) -> str:
    """What ``datasets.__dict__[name](root, train=True)`` makes: those of torchvision that take ``train`` hold their data in memory."""
    called = call.func
    if isinstance(called, ast.Subscript) and isinstance(called.value, ast.Attribute) and called.value.attr == "__dict__":
        module = facts.names.qualified(called.value.value)
    elif isinstance(called, ast.Call) and facts.calls.meaning(called) == "builtins.getattr" and called.args:
        module = facts.names.qualified(called.args[0])
    else:
        return ""
    return "torchvision.datasets.*" if module == "torchvision.datasets" and keyword(call, "train") is not None else ""


def _table(origin: Origin) -> ast.Call | None:
    """The ``load_dataset`` call behind a Hugging Face dataset, through splits and methods that give a table again."""
    node: ast.expr = origin.node
    seen: set[ast.expr] = set()
    while node not in seen:
        seen.add(node)
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TABLE_METHODS:
            node = node.func.value
        elif isinstance(node, ast.Call) and origin.facts.calls.meaning(node) == "datasets.load_dataset":
            return node
        elif isinstance(node, ast.Name):
            reaching = origin.facts.flow.reaching(node)
            if len(reaching) != 1 or reaching[0].value is None or reaching[0].path:
                return None
            node = reaching[0].value
        else:
            return None
    return None


def _stored_entries(facts: Facts, container: ast.expr) -> list[ast.expr]:
    """The values that a variable's entries are set to: ``datasets["train"] = ...``."""
    found = []
    for use in facts.names.uses(container) if isinstance(container, ast.Name) else ():
        entry = facts.tree.parent(use)
        statement = facts.tree.parent(entry) if entry is not None else None
        if isinstance(entry, ast.Subscript) and isinstance(statement, ast.Assign) and entry in statement.targets:
            found.append(statement.value)
    return found


def _functions(origin: Origin) -> list[tuple[Facts, Function]]:
    """The functions of the project that a value stands for: by name, as a method, or as an object that is called."""
    facts, node = origin.facts, origin.node
    instances = instances_of(origin)
    if instances:
        return [method for instance in instances if (method := instance.method("__call__")) is not None]
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return []
    definition = facts.names.definition(node)
    if definition is not None:
        return [(definition.facts, definition.node)] if isinstance(definition.node, FUNCTIONS) else []
    objects = objects_of(facts, node.value, origin.within) if isinstance(node, ast.Attribute) else None
    return [method for each in objects or () if (method := each.method(node.attr)) is not None]  # type: ignore[union-attr]


def _is_own_object(facts: Facts, value: ast.expr) -> bool:
    """Whether a returned value may be an object of a class of the project, or one that outlives the call."""
    origins = origins_of(facts, value) or ()
    return traits.outlives_sample(facts, value) or any(instances_of(origin) for origin in origins)
