"""What worker processes hold a copy of: the dataset, all that it was made from, and where the main process changes the original."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.instances import Instance, Origin
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, dotted, last_name, walk
from torchfix.facts.data.loaders import Loader
from torchfix.facts.data.samples import instances_of
from torchfix.facts.data.traits import CHANGING_METHODS, DATA_METHODS, Trait, changes_kept, outlives_sample

if TYPE_CHECKING:
    from torchfix.facts import Facts

_ALL = "*"
_DEPTH = 4  # arguments of arguments: a dataset, its view, its transform, the transform's parts
_MADE = (ast.Call, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Tuple)
# What a loader hands to its workers as they start; its other attributes stay with the main process or cannot be set.
_HANDED_ON = ("collate_fn", "worker_init_fn", "num_workers", "timeout", "prefetch_factor", "multiprocessing_context")
# Methods of objects of libraries that change them.
_CHANGING = CHANGING_METHODS | frozenset(
    "set_epoch set_transform set_format sort reverse shuffle resize fill put reset seed step __setattr__".split()
)
_REBINDING = (Bound.ASSIGN, Bound.LOOP, Bound.AUGMENTED)
# Functions that change what they are given first, and methods that do so too where a class names them: ``object.__setattr__(d, ...)``.
_BY_NAME = ("setattr", "delattr", "__setattr__", "__delattr__")
_CHANGING_CALLS = ("random.shuffle", "numpy.random.shuffle", "numpy.copyto", "numpy.put")
# Functions that give a part of an object, all of its attributes, or its class.
_PARTS = ("builtins.getattr", "builtins.vars", "builtins.type")


class WorkerCopies:
    """Questions about what one loader's workers are given."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._files = loader.facts.program.everywhere
        self._nodes: set[ast.AST] = set()
        self._parts: set[ast.AST] = set()  # lists and dictionaries that the objects among them keep
        self._read: dict[ast.AST, set[str]] = defaultdict(set)  # parts of variables of modules that code for samples reads
        self._variables: dict[ast.AST, tuple[Facts, ast.Name | ast.Attribute, str | None]] = {}
        self._closed_over: dict[ast.Name, Facts] = {}  # variables of functions that lambdas among them read
        self._instances: dict[ast.AST, Instance] = {}
        for name in ("dataset", "collate_fn", "worker_init_fn"):
            given = loader.setting(name)
            if given is not None:
                self._collect(loader.facts, given, _DEPTH)
            if name != "dataset" and isinstance(given, ast.Attribute):
                self._collect(loader.facts, given.value, _DEPTH)  # the object whose method it is
        self._globals: dict[tuple[Facts, str], None] = {}  # variables of modules that code for samples reads, by their module
        for mark in loader.facts.datasets.behind(loader).marks:
            if mark.trait is Trait.VARIABLE and isinstance(mark.node, ast.Name):
                self._collect_variable(mark.facts, mark.node)
                self._globals[mark.facts, mark.node.id] = None
            elif mark.trait is Trait.VARIABLE and isinstance(mark.node, ast.Attribute):
                module = mark.facts.names.module_of(mark.node.value)
                if module is not None:
                    self._globals[module, mark.node.attr] = None

    def _collect_variable(self, facts: Facts, name: ast.Name) -> None:
        """A variable of a module that code for samples reads, all of it or one attribute."""
        parent = facts.tree.parent(name)
        part = parent.attr if isinstance(parent, ast.Attribute) else None
        self._variables[name] = (facts, name, part)
        for value in facts.values.of(name) or ():
            if isinstance(value.node, _MADE):
                self._read[value.node].add(part or _ALL)

    def _collect(self, facts: Facts, expression: ast.expr, depth: int) -> None:
        if isinstance(expression, ast.Attribute):
            self._variables[expression] = (facts, expression, None)
            if expression.attr == "dataset":
                self._collect(facts, expression.value, depth)  # of a view, or of another loader
        elif isinstance(expression, ast.Name) and not facts.is_self(expression):
            self._variables[expression] = (facts, expression, None)
        elif isinstance(expression, ast.Lambda):
            for name in ast.walk(expression.body):
                if isinstance(name, ast.Name) and _is_of_function_around(facts, name):
                    self._variables[name] = (facts, name, None)
                    self._closed_over[name] = facts
        for value in facts.values.of(expression) or ():
            if isinstance(value.node, _MADE) and value.node not in self._nodes:
                self._made(value.facts, value.node, depth)

    def _made(self, facts: Facts, node: ast.expr, depth: int) -> None:
        self._nodes.add(node)
        for instance in instances_of(Origin(facts, node)):
            self._instances[instance.definition.node] = instance
            for definition in instance.classes:
                self._parts |= set(_kept_containers(definition.facts, definition.node))
        if not depth:
            return
        if isinstance(node, ast.Call):
            parts = [*node.args, *(item.value for item in node.keywords)]
        elif isinstance(node, ast.Dict):
            parts = node.values
        elif isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            parts = node.elts
        else:
            parts = []
        for part in parts:
            self._collect(facts, part, depth - 1)

    # ----------------------------------------------------------------------------------------------------------

    def changes(self) -> Iterator[tuple[Facts, ast.AST]]:
        """The places of its programs that may change what the workers were given, whenever they run."""
        for facts, variable, part in self._variables.values():
            yield from ((facts, node) for node in self._through(facts, variable, part))
        for closed, home in self._closed_over.items():
            yield from ((home, binding.node) for binding in home.names.bindings(closed) if binding.how in _REBINDING)
        for facts, name in self._globals:
            yield from ((facts, binding.node) for binding in facts.names.module.bindings.get(name, ()) if binding.how in _REBINDING)
        for facts in self._files:
            for store in facts.tree.stores:
                if (
                    self._is_loader_setting(facts, store)
                    or self._is_part(facts, store)
                    or self._is_global(facts, store)
                    or self._is_in_kept(facts, store)
                ):
                    yield facts, store
            for name in sorted(self._changing_methods):
                for call in facts.tree.calls.get(name, ()):
                    if isinstance(call.func, ast.Attribute) and self._is_in_kept(facts, call.func):
                        if self._changes(facts, call.func.value, name):
                            yield facts, call
                    elif isinstance(call.func, ast.Attribute) and self._is_part(facts, call.func):
                        yield facts, call
                yield from self._handed_on(facts, name)
            yield from ((facts, node) for node in self._by_name(facts))
            yield from ((facts, node) for node in self._by_syntax(facts))

    def _by_name(self, facts: Facts) -> Iterator[ast.Call]:
        """The calls of one file that change an object by the name of its attribute or method, which is text."""
        for call in (call for name in _BY_NAME for call in facts.tree.calls.get(name, ())):
            if any(self._is_kept(facts, item, _named(call)) or self._is_in_kept(facts, item) for item in call.args[:1]):
                yield call
        for method in facts.tree.calls.get("getattr", ()):
            parent, whole = facts.tree.parent(method), _whole(facts, method)
            if whole is not None and isinstance(parent, ast.Call) and parent.func is method and self._is_in_kept(facts, method):
                if self._changes(facts, *whole):
                    yield parent

    def _by_syntax(self, facts: Facts) -> Iterator[ast.expr]:
        """The objects of one file that change as they are called or entered: ``dataset(epoch)``, ``with dataset:``."""
        if self._changes_as("__call__"):
            for call in (call for calls in facts.tree.calls.values() for call in calls):
                if self._is_kept_object(facts, call.func) and self._changes(facts, call.func, "__call__"):
                    yield call
        if self._changes_as("__enter__", "__exit__"):
            for item in (node.context_expr for node in walk(facts.tree.module) if isinstance(node, ast.withitem)):
                if self._is_kept_object(facts, item) and any(self._changes(facts, item, name) for name in ("__enter__", "__exit__")):
                    yield item

    def _changes_as(self, *names: str) -> bool:
        return any(_writes_itself(instance, name) for instance in self._instances.values() for name in names)

    def _is_kept_object(self, facts: Facts, expression: ast.expr) -> bool:
        """Whether an expression is an object that workers have a copy of, rather than its class."""
        return facts.names.definition(expression) is None and self._is_kept(facts, expression, _ALL)

    def _is_in_kept(self, facts: Facts, place: ast.expr) -> bool:
        """Whether a place is a part of something that workers have a copy of."""
        return any(self._is_kept(facts, *base) for base in _bases(facts, place))

    def _handed_on(self, facts: Facts, name: str) -> Iterator[tuple[Facts, ast.AST]]:
        """What a method changes that is not called where it is named, but handed on to be called at any time."""
        by_name = [call for call in facts.tree.calls.get("getattr", ()) if _named(call) in (name, _ALL)]
        for use in (*facts.tree.attributes.get(name, ()), *by_name):
            call = facts.tree.parent(use)
            if (isinstance(call, ast.Call) and call.func is use) or not self._is_in_kept(facts, use):
                continue
            for instance in self._instances.values():
                found = instance.method(name)
                if found is not None and _writes_itself(instance, name):
                    yield found[0], found[1].body[0]

    def _through(self, facts: Facts, variable: ast.Name | ast.Attribute, part: str | None) -> Iterator[ast.AST]:
        """The changes that uses of one variable make, in its own file.

        Args:
            part: the attribute that is read of it, None where all of it counts.
        """
        for use in _alike(facts, variable):
            parent = facts.tree.parent(use)
            if part is not None and not (isinstance(parent, ast.Call) or (isinstance(parent, ast.Attribute) and parent.attr == part)):
                continue
            if isinstance(use.ctx, ast.Store):
                if isinstance(parent, ast.AugAssign):
                    yield use
                continue
            end: ast.AST = use
            while isinstance(parent, ast.expr) and (whole := _whole(facts, parent)) is not None and whole[0] is end:
                end, parent = parent, facts.tree.parent(parent)
            if isinstance(end, (ast.Attribute, ast.Subscript)) and end is not use and not isinstance(end.ctx, ast.Load):
                yield end
            elif end is not use and isinstance(parent, ast.Call) and parent.func is end:
                method = _method(facts, end)
                if method is not None and self._changes(facts, *method):
                    yield parent
            elif isinstance(parent, ast.Call) and end in parent.args[:1] and _changes_first(facts, parent):
                if part is None or end is not use or _named(parent) in (part, _ALL):
                    yield parent
            elif isinstance(parent, ast.keyword) and parent.arg == "out":
                yield use

    @property
    def _changing_methods(self) -> frozenset[str]:
        """Names of methods that may change an object among the copies."""
        own = {
            function.name
            for instance in self._instances.values()
            for definition in instance.classes
            for function in definition.node.body
            if isinstance(function, FUNCTIONS) and not function.name.startswith("__") and _writes_itself(instance, function.name)
        }
        return frozenset(own) | _CHANGING

    def _changes(self, facts: Facts, source: ast.expr, name: str) -> bool:
        """Whether calling a method may change its object: by its code where that is the project's, else by its name."""
        if name == _ALL:
            return True  # any of its methods
        values, named = facts.values.of(source), facts.names.definition(source)
        instances = [inner for value in values or () if isinstance(value.node, ast.Call) for inner in _instances(value.facts, value.node)]
        if self._is_dataset_of_loader(facts, source):
            instances += self._instances.values()
        if named is not None and named.node in self._instances:  # of the class, or given its object by hand
            instances.append(self._instances[named.node])
        own = [instance for instance in instances if instance.method(name) is not None]
        if own:
            return any(_writes_itself(instance, name) for instance in own)
        in_place = name.endswith("_") and not name.startswith("_")
        if values is None:
            return name not in DATA_METHODS - CHANGING_METHODS - {"sort", "resize"} and not name.startswith(("get", "__"))
        return in_place or name in _CHANGING or name.startswith("set_")

    def _is_kept(self, facts: Facts, expression: ast.expr, part: str) -> bool:
        """Whether a part of what an expression names is something that workers have a copy of."""
        if isinstance(expression, ast.Name) and facts.is_self(expression):
            return False
        if self._is_dataset_of_loader(facts, expression):
            return True
        named = facts.names.definition(expression)
        if named is not None:
            return named.node in self._instances
        made = [value.node for value in facts.values.of(expression) or () if not value.path]
        return any(node in self._nodes or not self._read.get(node, set()).isdisjoint((part, _ALL)) for node in made)

    def _is_part(self, facts: Facts, place: ast.expr) -> bool:
        """Whether a place is in a list or dictionary that the dataset keeps, under a name of its own: ``items = dataset.items``."""
        base = place.value if isinstance(place, (ast.Attribute, ast.Subscript)) else None
        if not isinstance(base, ast.Name) or facts.is_self(base):
            return False
        return any(value.node in self._parts for value in facts.values.of(base) or () if not value.path)

    def _is_dataset_of_loader(self, facts: Facts, expression: ast.expr) -> bool:
        """Whether an expression is the dataset of the loader, or another object that workers get with it, asked of the loader."""
        if not (isinstance(expression, ast.Attribute) and expression.attr in ("dataset", "collate_fn", "worker_init_fn")):
            return False
        loaders = facts.loaders.of(expression.value)
        return self._loader in loaders if loaders is not None else facts.values.of(expression.value) is None

    def _is_global(self, facts: Facts, store: ast.expr) -> bool:
        """Whether a place sets a variable of another module: ``settings.SIZE = 3``."""
        module = facts.names.module_of(store.value) if isinstance(store, ast.Attribute) else None
        return module is not None and isinstance(store, ast.Attribute) and (module, store.attr) in self._globals

    def _is_loader_setting(self, facts: Facts, store: ast.expr) -> bool:
        if not (isinstance(store, ast.Attribute) and store.attr in _HANDED_ON):
            return False
        return self._loader in (facts.loaders.of(store.value) or ())


def _whole(facts: Facts, part: ast.expr) -> tuple[ast.expr, str] | None:
    """What an expression takes a part of, and which part: ``d`` for ``d.level``, ``d[0]``, ``getattr(d, name)`` and ``vars(d)``."""
    if isinstance(part, ast.Attribute):
        return part.value, part.attr
    if isinstance(part, ast.Subscript):
        return part.value, _ALL
    if isinstance(part, ast.Call) and part.args and facts.calls.meaning(part) in _PARTS:
        return part.args[0], _named(part)
    return None


def _named(call: ast.Call) -> str:
    """The attribute that a call names by its second argument, any where that is no literal."""
    name = call.args[1] if len(call.args) > 1 else None
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else _ALL


def _method(facts: Facts, called: ast.expr) -> tuple[ast.expr, str] | None:
    """The object and the name of a method that is called, by ``getattr`` too."""
    by_name = isinstance(called, ast.Call) and facts.calls.meaning(called) == "builtins.getattr"
    return _whole(facts, called) if by_name or isinstance(called, ast.Attribute) else None


def _changes_first(facts: Facts, call: ast.Call) -> bool:
    """Whether a call changes what it is given first."""
    return last_name(call.func) in _BY_NAME or facts.calls.meaning(call) in _CHANGING_CALLS


def _bases(facts: Facts, expression: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """What an attribute or entry is a part of, and which part: ``a[0]``, ``c`` and ``a``, any for ``a[0].c``."""
    while (whole := _whole(facts, expression)) is not None:
        expression, part = whole
        if isinstance(expression, (ast.Name, ast.Attribute, ast.Subscript)):
            yield expression, part


def _is_of_function_around(facts: Facts, name: ast.Name) -> bool:
    """Whether a name inside a lambda means a variable of the function around it, which may be bound to something else later."""
    found = facts.names.lookup(name.id, name)
    return found is not None and isinstance(found[0].node, FUNCTIONS)


def _kept_containers(facts: Facts, owner: ast.AST) -> Iterator[ast.expr]:
    """What the methods of a class make and keep as attributes of their object."""
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign) and isinstance(node.value, _MADE):
            if any(isinstance(target, ast.Attribute) and _is_self(facts, target.value) for target in node.targets):
                yield node.value


def _alike(facts: Facts, variable: ast.Name | ast.Attribute) -> list[ast.Name | ast.Attribute]:
    """All uses of a variable, or of an attribute of the same variable or object."""
    if isinstance(variable, ast.Name):
        return list(facts.names.uses(variable))
    root, owner = _root(variable), facts.tree.method_class(variable)
    found: list[ast.Name | ast.Attribute] = []
    for use in facts.tree.attributes.get(variable.attr, ()):
        base = _root(use)
        if base is None or root is None or dotted(use) != dotted(variable):
            continue
        both_self = facts.is_self(base) and facts.is_self(root)
        if facts.tree.method_class(use) is owner if both_self else facts.names.same(base, root):
            found.append(use)
    return found


def _root(node: ast.expr) -> ast.Name | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def _instances(facts: Facts, call: ast.Call) -> tuple[Instance, ...]:
    return instances_of(Origin(facts, call))


def _writes_itself(instance: Instance, name: str, _seen: frozenset[str] = frozenset()) -> bool:
    """Whether a method changes what its object keeps, itself or through other methods of the object."""
    found = instance.method(name)
    if found is None or name in _seen:
        return False
    facts, function = found
    for node in ast.walk(function):
        if changes_kept(facts, node):
            return True
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            if any(_is_self(facts, base) for base, _ in _bases(facts, node)):
                return True
        if isinstance(node, ast.Call):
            method = (node.func, "__call__") if _is_self(facts, node.func) else _method(facts, node.func)
            if method is not None and _is_self(facts, method[0]):
                if method[1] == _ALL or _writes_itself(instance, method[1], _seen | {name}):
                    return True
            if _changes_first(facts, node) and any(_is_self(facts, item) or outlives_sample(facts, item) for item in node.args[:1]):
                return True
    return False


def _is_self(facts: Facts, expression: ast.expr) -> bool:
    return isinstance(expression, ast.Name) and facts.is_self(expression)
