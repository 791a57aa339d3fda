"""Where a value comes from: through assignments, parameters and their callers, returns, attributes and unpacking.

The answer is every expression that may have made the value, or None as soon as one origin is out of sight.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from torchfix.facts.code import containers
from torchfix.facts.code.calls import argument, has_stars
from torchfix.facts.code.classes import (
    SELF_RETURNING,
    Store,
    behind,
    fields,
    is_data_class,
    is_property,
    is_static,
    is_super,
    lineage,
    method_of,
    runs_as_written,
    store_at,
    stores,
    super_call,
)
from torchfix.facts.code.names import Definition
from torchfix.facts.code.outcomes import may_come_to
from torchfix.facts.code.scopes import Binding, Bound, parameters
from torchfix.facts.code.tree import COMPREHENSIONS, FUNCTIONS, Function, walk_here

if TYPE_CHECKING:
    from torchfix.facts import Facts

ELEMENT: Literal["*"] = "*"
Step: TypeAlias = "int | Literal['*']"
Path: TypeAlias = "tuple[Step, ...]"

_LIMIT = 32  # steps followed back before a value counts as unknown
_EFFORT = 600  # steps that one question may take over all ways; what takes more counts as unknown


@dataclass(frozen=True)
class Value:
    """One expression that may have made a value, and the way from it to the value.

    Args:
        facts: the file in which the expression stands.
        node: a call, a literal, or whatever else cannot be followed further.
        path: the parts taken of it: an index into a tuple, or :data:`ELEMENT` for each item that it yields.
    """

    facts: Facts
    node: ast.AST
    path: Path = ()

    def __hash__(self) -> int:
        return hash((id(self.node), self.path))

    @property
    def is_none(self) -> bool:
        """Whether the expression is None, of which nothing can be taken and no method called."""
        return isinstance(self.node, ast.Constant) and self.node.value is None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.node is other.node and self.path == other.path


@dataclass(frozen=True)
class _Frame:
    """What is known while a function is looked into: the call that runs it, and the object whose method it is.

    Args:
        made: the call that makes the object, None for a function and for an object that is not known.
        function: the function, None where an attribute of the object is read.
        call: the call that runs it.
        facts: the file in which the call stands.
        is_bound: whether the call goes through the object, so that the first parameter is filled already.
        outer: what is known around the call.
    """

    made: Value | None = None
    function: Function | None = None
    call: ast.Call | None = None
    facts: Facts | None = None
    is_bound: bool = False
    outer: _Frame | None = None


class _Trail(NamedTuple):  # made at every step, and cheaper to make than a data class
    """How one question came to a place."""

    effort: list[int]
    seen: frozenset[tuple[int, Path, _Frame | None]] = frozenset()
    frame: _Frame | None = None

    def under(self, frame: _Frame | None) -> _Trail:
        """The same trail where something else is known of the calls around."""
        return self if frame is self.frame else _Trail(self.effort, self.seen, frame)

    def past(self, place: tuple[int, Path, _Frame | None]) -> _Trail:
        """The trail one step further on."""
        return _Trail(self.effort, self.seen | {place}, self.frame)


# Functions that hand the items of their first argument on.
_ITERATORS = {
    "tqdm.tqdm",
    "tqdm.auto.tqdm",
    "tqdm.notebook.tqdm",
    "tqdm.autonotebook.tqdm",
    "tqdm.tqdm_notebook",
    "builtins.iter",
    "builtins.list",
    "builtins.tuple",
    "fastprogress.progress_bar",
    "itertools.cycle",
    "itertools.islice",
    "rich.progress.track",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter",
}
# Methods and functions that return what they are given, made ready to be run: one argument as itself, several as a tuple.
_READY = {"accelerate.Accelerator": ("prepare",), "accelerate.accelerator.Accelerator": ("prepare",)}
_READY_FUNCTIONS = ("apex.amp.initialize",)


class Values:
    """Questions about where the values of one file come from."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[tuple[ast.expr, Path], tuple[Value, ...] | None] = {}

    def of(self, expression: ast.expr, path: Path = ()) -> tuple[Value, ...] | None:
        """Every expression that may have made a value; None where one of them is not known.

        Args:
            expression: what is asked for.
            path: the part of it that is asked for.
        """
        key = (expression, path)
        if key not in self._asked:
            found = self._follow(expression, path, _Trail([_EFFORT]))
            self._asked[key] = None if found is None else tuple(dict.fromkeys(found))
        return self._asked[key]

    def objects(self, expression: ast.expr) -> tuple[Value, ...] | None:
        """As :meth:`of`, for something of which a method is called: not None, and a network for what its ``to()`` returns."""
        found = self._objects(expression, _Trail([_EFFORT]))
        return tuple(dict.fromkeys(found)) if found is not None else None

    def single(self, expression: ast.expr) -> Value | None:
        """The one expression that made a value, None where there are several or it is not known."""
        found = self.of(expression)
        return found[0] if found and len(found) == 1 else None

    def bound(self, bindings: list[Binding], path: Path = ()) -> tuple[Value, ...] | None:
        """The values that a set of bindings gives, as :meth:`of` does."""
        found = self._bound(bindings, path, _Trail([_EFFORT]))
        return None if found is None else tuple(found)

    # Expressions ----------------------------------------------------------------------------------------------

    def _follow(self, node: ast.expr, path: Path, trail: _Trail) -> list[Value] | None:
        key = (id(node), path, trail.frame)
        trail.effort[0] -= 1
        if len(trail.seen) > _LIMIT or trail.effort[0] < 0:
            return None
        if key in trail.seen:
            return []  # a circle adds nothing new
        if trail.frame is None and (node, path) in self._asked:
            known = self._asked[node, path]
            return None if known is None else list(known)
        trail = trail.past(key)
        if isinstance(node, (ast.Tuple, ast.List)) and path and not any(isinstance(item, ast.Starred) for item in node.elts):
            return self._item(node, path, trail)
        if isinstance(node, COMPREHENSIONS) and not isinstance(node, ast.DictComp) and path:
            return self._follow(node.elt, path[1:], trail)
        if isinstance(node, ast.IfExp):
            return self._all([(node.body, path), (node.orelse, path)], trail)
        if isinstance(node, ast.BoolOp):
            return self._one_of(node, path, trail)
        if isinstance(node, ast.NamedExpr):
            return self._follow(node.value, path, trail)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            return self._follow(node.value, (node.slice.value, *path), trail)
        if isinstance(node, ast.Subscript):
            return self._entry(node, path, trail)
        if isinstance(node, ast.Name):
            return self._name(node, path, trail)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, path, trail)
        if isinstance(node, ast.Call):
            return self._call(node, path, trail)
        return [Value(self._facts, node, path)]

    def _all(self, items: Iterable[tuple[ast.expr, Path]], trail: _Trail) -> list[Value] | None:
        return _joined(self._follow(node, path, trail) for node, path in items)

    def _one_of(self, node: ast.BoolOp, path: Path, trail: _Trail) -> list[Value] | None:
        """The operands that ``a or b`` and ``a and b`` may give: ``or`` passes over what is surely false."""
        found = self._all([(item, path) for item in node.values[:-1]], trail)
        last = self._follow(node.values[-1], path, trail)
        if found is None or last is None:
            return None
        passes = isinstance(node.op, ast.Or)
        return [value for value in found if not (passes and isinstance(value.node, ast.Constant) and not value.node.value)] + last

    def _item(self, node: ast.Tuple | ast.List, path: Path, trail: _Trail) -> list[Value] | None:
        """An item of a sequence that is written out; of a list that is changed later it may be any."""
        added = containers.added(self._facts, node) if isinstance(node, ast.List) else []
        if added is None:
            return None
        step = path[0]
        if isinstance(step, int) and not added:
            inside = -len(node.elts) <= step < len(node.elts)  # where it is not, taking that item ends the program
            return self._follow(node.elts[step], path[1:], trail) if inside else []
        return self._all([(item, path[1:]) for item in (*node.elts, *added)], trail)

    def _entry(self, node: ast.Subscript, path: Path, trail: _Trail) -> list[Value] | None:
        """An entry of a dictionary that the program writes out: those of the keys that are asked for, any where these are not known."""
        entries = self._entries(node.value, trail)
        asked = self._constants(node.slice, trail) if entries else None
        kept = [(facts, value) for facts, key, value in entries or () if containers.may_be_key(key, asked)]
        if not kept:
            return [Value(self._facts, node, path)]
        return _joined(facts.values._follow(value, path, trail.under(None)) for facts, value in kept)

    def _constants(self, node: ast.expr, trail: _Trail) -> list[object] | None:
        """The constants that an expression may be (``for phase in ["train", "val"]``), None where it may be something else."""
        values = self._follow(node, (), trail)
        constants: list[object] = [value.node.value for value in values or () if isinstance(value.node, ast.Constant) and not value.path]
        return constants if values and len(constants) == len(values) else None

    def _entries(self, table: ast.expr, trail: _Trail) -> list[tuple[Facts, ast.expr | None, ast.expr]] | None:
        """What a dictionary may hold: file, key and value of each entry; None where it is not surely known."""
        tables = self._follow(table, (), trail)
        stored = containers.stored_entries(self._facts, table)
        if not tables or stored is None:
            return None
        found = [(self._facts, key, value) for key, value in stored]
        for made in tables:
            entries = containers.entries(made.facts, made.node) if not made.path else None
            if entries is None:
                return None
            found += [(made.facts, key, value) for key, value in entries]
        return list({id(entry[2]): entry for entry in found}.values())

    # Names ----------------------------------------------------------------------------------------------------

    def _name(self, name: ast.Name, path: Path, trail: _Trail) -> list[Value] | None:
        if trail.frame is not None and trail.frame.made is not None and self._facts.is_self(name):
            return self._made(trail.frame.made, path, trail)
        bindings = self._facts.flow.reaching(name)
        if bindings:
            return _joined(self._binding(binding, path, trail, name) for binding in bindings)
        brought = self._facts.names.brought_variable(name)
        if brought is not None:
            facts, there = brought
            return facts.values._bound(there, path, trail.under(None))
        return [Value(self._facts, name, path)]

    def _bound(self, bindings: list[Binding], path: Path, trail: _Trail) -> list[Value] | None:
        return _joined(self._binding(binding, path, trail) for binding in bindings)

    def _binding(self, binding: Binding, path: Path, trail: _Trail, name: ast.Name | None = None) -> list[Value] | None:
        """What one binding gives; functions, classes and what libraries export are known by the name that is read."""
        if binding.how in (Bound.ASSIGN, Bound.WITH) and binding.value is not None:
            return self._follow(binding.value, (*binding.path, *path), trail)
        if binding.how is Bound.LOOP and binding.value is not None:
            return self._follow(binding.value, (ELEMENT, *binding.path, *path), trail)
        if binding.how is Bound.PARAMETER and isinstance(binding.node, ast.arg):
            return self._parameter(binding.node, path, trail)
        if binding.how is Bound.IMPORT:
            found = self._imported(binding, path, trail)
            if found is not None:
                return found
        defined = binding.how in (Bound.FUNCTION, Bound.CLASS, Bound.IMPORT)
        return [Value(self._facts, name, path)] if defined and name is not None and self._facts.names.qualified(name) is not None else None

    def _imported(self, binding: Binding, path: Path, trail: _Trail) -> list[Value] | None:
        """A module-level variable of another file of the project."""
        node, facts = binding.node, self._facts
        key = (id(binding), path, None)
        if not isinstance(node, ast.ImportFrom) or key in trail.seen or len(trail.seen) > _LIMIT:
            return None  # files that import a name from each other end here
        trail = trail.past(key)
        module = facts.project.module(node.module or "", facts.path, node.level)
        if module is None:
            return None
        there = module.names.module.bindings.get(binding.origin.rpartition(".")[2], [])
        return module.values._bound(there, path, trail.under(None)) if there else None

    def _parameter(self, parameter: ast.arg, path: Path, trail: _Trail) -> list[Value] | None:
        """What the call that is looked into passes, else what all callers do, where every one of them is seen."""
        signature = self._facts.tree.parent(parameter)
        function = self._facts.tree.parent(signature) if signature is not None else None
        if not isinstance(function, FUNCTIONS):
            return None  # a lambda's
        calls = self._calls_of(function, trail.frame)
        if not calls:
            return None
        found: list[list[Value] | None] = []
        for facts, call, is_bound, frame in calls:
            given = passed(call, function, parameter, is_bound)
            if given is None:
                return None
            home = self if is_default(given, function) else facts.values
            found.append(home._follow(given, path, trail.under(None if home is self else frame)))
        return _joined(found)

    def _calls_of(self, function: Function, frame: _Frame | None) -> list[tuple[Facts, ast.Call, bool, _Frame | None]]:
        """The calls that may have filled a function's parameters, each with its file and what is known around it."""
        if frame is not None and frame.function is function:
            assert frame.call is not None and frame.facts is not None
            return [(frame.facts, frame.call, frame.is_bound, frame.outer)]
        if frame is not None and frame.made is not None and function.name == "__init__":
            found = self._construction(function, frame.made)
            if found is not None:
                return [found]
        bound = self._facts.tree.class_of(function) is not None
        return [(facts, call, bound, None) for facts, call in self._facts.calling.perhaps(function) or ()]

    def _construction(self, constructor: Function, made: Value) -> tuple[Facts, ast.Call, bool, _Frame | None] | None:
        """The call that gives a constructor its arguments when an object is made; ``super().__init__(...)`` for those of base classes."""
        for definition in _classes_of(made):
            found = self._construction_of(constructor, made, definition)
            if found is not None:
                return found
        return None

    def _construction_of(
        self, constructor: Function, made: Value, definition: Definition
    ) -> tuple[Facts, ast.Call, bool, _Frame | None] | None:
        below: Definition | None = None
        for owner in lineage(definition):
            own = [item for item in owner.node.body if isinstance(item, FUNCTIONS) and item.name == "__init__"]
            if constructor in own and below is None:
                assert isinstance(made.node, ast.Call)
                return made.facts, made.node, True, None
            if constructor in own and below is not None and isinstance(below.node, FUNCTIONS):
                call = super_call(below.node)
                return (below.facts, call, True, _Frame(made)) if call is not None else None
            if own:
                below = Definition(owner.facts, own[-1])
        return None

    # Attributes -----------------------------------------------------------------------------------------------

    def _attribute(self, node: ast.Attribute, path: Path, trail: _Trail) -> list[Value] | None:
        facts = self._facts
        module = facts.names.module_of(node.value)
        if module is not None:
            return self._of_module(module, node, path, trail)
        owner = facts.tree.method_class(node) if isinstance(node.value, ast.Name) and facts.is_self(node.value) else None
        made = trail.frame.made if trail.frame is not None else None
        if owner is not None and made is None:
            definition = Definition(facts, owner)
            return self._of_class(node, (*lineage(definition), *facts.classes.heirs(owner)), None, path, trail)
        named = facts.names.definition(node.value)
        if named is not None and isinstance(named.node, ast.ClassDef):
            return self._of_class(node, tuple(lineage(named)), None, path, trail)
        if owner is not None:
            assert made is not None
            return self._of_object(node, made, path, trail)
        assigned = self._outside(node)
        found = [self._of_object(node, item, path, trail) for item in self._objects(node.value, trail) or ()]
        unknown = not found or any(values is None or any(value.node is node for value in values) for values in found)
        if unknown:
            return self._of_stores(assigned, node, path, trail)
        return _joined([*found, self._of_stores(assigned, node, path, trail)] if assigned else found)

    def assigned(self, node: ast.Attribute) -> list[tuple[ast.expr, tuple[int, ...]]] | None:
        """The values assigned to the same attribute: of ``self`` anywhere in the class, else of the same variable.

        Empty where the file assigns none, None where one of them cannot be told (a loop's target, ``+=``).
        """
        found = self._outside(node)
        if any(store.value is None for store in found):
            return None
        return [(store.value, store.path) for store in found if store.value is not None]

    def _outside(self, node: ast.Attribute) -> list[Store]:
        """What this file assigns to the same attribute of the same variable."""
        stored = (use for use in containers.uses(self._facts, node) if isinstance(use, ast.Attribute) and isinstance(use.ctx, ast.Store))
        return [store_at(self._facts, use) for use in stored]

    def _of_stores(self, found: Iterable[Store], node: ast.Attribute, path: Path, trail: _Trail) -> list[Value] | None:
        """What stores give; the attribute itself where there are none."""
        values: list[list[Value] | None] = []
        for store in found:
            if store.value is None:
                return None
            inside = trail if store.facts is self._facts else trail.under(None)
            values.append(store.facts.values._follow(store.value, (*store.path, *path), inside))
        return _joined(values) if values else [Value(self._facts, node, path)]

    def _of_module(self, module: Facts, node: ast.Attribute, path: Path, trail: _Trail) -> list[Value] | None:
        """A variable of a file of the project, read through its module."""
        there = module.names.module.bindings.get(node.attr, [])
        if not there or any(binding.how not in (Bound.ASSIGN, Bound.AUGMENTED, Bound.LOOP, Bound.WITH) for binding in there):
            return [Value(self._facts, node, path)]
        found = [module.values._bound(there, path, trail.under(None))]
        for store in self._outside(node):
            found.append(self._of_stores([store], node, path, trail))
        return _joined(found)

    def _of_class(
        self, node: ast.Attribute, classes: tuple[Definition, ...], made: Value | None, path: Path, trail: _Trail
    ) -> list[Value] | None:
        """What an attribute may be in objects of these classes, in the one that a call made where it is known."""
        read = next((method for item in classes if (method := _own_method(item, node.attr)) is not None), None)
        frame = _Frame(made) if made is not None else None
        if read is not None:
            given = returns(read.node) if is_property(read) and isinstance(read.node, FUNCTIONS) else []
            inside = [(value, path) for value in given]
            return read.facts.values._all(inside, trail.under(frame)) if inside else [Value(self._facts, node, path)]
        found = [*stores(classes, node.attr), *(self._outside(node) if made is None else ())]
        values: list[list[Value] | None] = []
        for store in {id(store.value): store for store in found if store.value is not None}.values():
            assert store.value is not None
            values.append(store.facts.values._follow(store.value, (*store.path, *path), trail.under(frame)))
        if any(store.value is None for store in found):
            return None
        return _joined(values) if values else [Value(self._facts, node, path)]

    def _of_object(self, node: ast.Attribute, made: Value, path: Path, trail: _Trail) -> list[Value] | None:
        """What an attribute of one object may be: set by its class's methods, or given as it was made."""
        unknown = [Value(self._facts, node, path)]
        call, facts = made.node, made.facts
        if made.path or not isinstance(call, ast.Call):
            return unknown
        if facts.calls.meaning(call) in containers.NAMESPACES:
            given = argument(call, node.attr)
            return facts.values._follow(given, path, trail.under(None)) if given is not None and not has_stars(call) else unknown
        definitions = _classes_of(made)
        if len(definitions) != 1:
            found = [self._of_class(node, tuple(lineage(item)), made, path, trail) for item in definitions]
            return _joined(found) if found else unknown
        definition = definitions[0]
        if is_data_class(definition) and node.attr in (names := fields(definition.node)):  # type: ignore[arg-type]
            given = argument(call, node.attr, names.index(node.attr))
            if has_stars(call):
                return None
            if given is not None:
                return facts.values._follow(given, path, trail.under(None))
        return self._of_class(node, tuple(lineage(definition)), made, path, trail)

    def _objects(self, expression: ast.expr, trail: _Trail, seen: frozenset[ast.AST] = frozenset()) -> list[Value] | None:
        """The calls that may have made an object, None where one of them is not known; ``net.to(device)`` makes none."""
        found: list[Value] = []
        for value in self._follow(expression, (), trail) or ():
            if value.node not in seen and not (value.is_none and not value.path):
                found += value.facts.values._themselves(value, trail.under(None), seen | {value.node}) or [value]
        return found or None

    def _themselves(self, value: Value, trail: _Trail, seen: frozenset[ast.AST]) -> list[Value] | None:
        """The objects on which a method is called that every module has and that gives the module itself; None for other values."""
        method = value.node.func if isinstance(value.node, ast.Call) and not value.path else None
        if not isinstance(method, ast.Attribute) or method.attr not in SELF_RETURNING:
            return None
        objects = self._objects(method.value, trail, seen) or ()
        classes = [_class_of(item) for item in objects if not item.path]
        known = all(definition is not None and method_of(definition, method.attr) is None for definition in classes)
        return list(objects) if known and len(classes) == len(objects) > 0 else None

    # Calls ----------------------------------------------------------------------------------------------------

    def _call(self, call: ast.Call, path: Path, trail: _Trail) -> list[Value] | None:
        known = self._run(call, path, trail)
        if known is not _UNSEEN:
            return known
        through = self._through(call, path)
        if through is not None:
            return self._all(through, trail)
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("items", "values") and not call.args and path[:1] == (ELEMENT,):
            return self._entries_of(call.func, path, trail) or [Value(self._facts, call, path)]
        return [Value(self._facts, call, path)]

    def _entries_of(self, func: ast.Attribute, path: Path, trail: _Trail) -> list[Value] | None:
        """What ``table.values()`` and ``table.items()`` give of a dictionary that the program writes out."""
        entries = self._entries(func.value, trail)
        if not entries or (func.attr == "items" and path[1:2] not in ((0,), (1,))):
            return None
        rest = path[1:] if func.attr == "values" else path[2:]
        keys = func.attr == "items" and path[1] == 0
        chosen = [(facts, key if keys else value) for facts, key, value in entries]
        if any(item is None for _, item in chosen):
            return None
        return _joined(facts.values._follow(item, rest, trail.under(None)) for facts, item in chosen if item is not None)

    def _run(self, call: ast.Call, path: Path, trail: _Trail) -> list[Value] | None:
        """What a call of the project's own functions, methods and iterators gives; :data:`_UNSEEN` for any other."""
        definition = self._facts.names.definition(call.func)
        if definition is not None and isinstance(definition.node, ast.ClassDef):
            return self._made(Value(self._facts, call), path, trail)
        if definition is not None:
            return self._result(definition, call, None, False, path, trail)
        if not isinstance(call.func, ast.Attribute):
            return _UNSEEN
        return self._method(call, call.func, path, trail)

    def _method(self, call: ast.Call, func: ast.Attribute, path: Path, trail: _Trail) -> list[Value] | None:
        facts, source, name = self._facts, func.value, func.attr
        owner = facts.tree.method_class(call)
        made = trail.frame.made if trail.frame is not None else None
        named = facts.names.definition(source)
        if named is not None and isinstance(named.node, ast.ClassDef):
            found = method_of(named, name)
            return self._result(found, call, None, not is_static(found), path, trail) if found is not None else _UNSEEN
        if owner is not None and is_super(source):
            known = _class_of(made) if made is not None else None
            found = behind(known or Definition(facts, owner), name, owner)
            return self._result(found, call, made, True, path, trail) if found is not None else _UNSEEN
        if owner is not None and made is None and isinstance(source, ast.Name) and facts.is_self(source):
            own = method_of(Definition(facts, owner), name)
            inherited = [own] if own is not None else []
            over = [item for heir in facts.classes.heirs(owner) if (item := _own_method(heir, name)) is not None]
            results = [self._result(item, call, None, not is_static(item), path, trail) for item in (*inherited, *over)]
            return _UNSEEN if not results or any(item is _UNSEEN for item in results) else _joined(results)
        objects = self._objects(source, trail)
        results = []
        for thing in objects or ():
            definition = _class_of(thing) if not thing.path else None
            found = method_of(definition, name) if definition is not None else None
            if found is None:
                return _UNSEEN
            results.append(self._result(found, call, thing, not is_static(found), path, trail))
        return _UNSEEN if not results or any(item is _UNSEEN for item in results) else _joined(results)

    def _result(
        self, definition: Definition, call: ast.Call, made: Value | None, is_bound: bool, path: Path, trail: _Trail
    ) -> list[Value] | None:
        """What one function gives when a call runs it: what it returns, or, of a generator, each item that it yields."""
        function = definition.node
        if not isinstance(function, FUNCTIONS) or not runs_as_written(definition):
            return _UNSEEN
        frame = _Frame(made, function, call, self._facts, is_bound, trail.frame)
        if path[:1] == (ELEMENT,) and is_generator(function):
            items = [(value, path if whole else path[1:]) for value, whole in yields(function)]
        else:
            items = [(value, path) for value in _returned_to(definition.facts, function, call, is_bound)]
        return definition.facts.values._all(items, trail.under(frame)) if items else _UNSEEN

    def _made(self, made: Value, path: Path, trail: _Trail) -> list[Value] | None:
        """An object of a class of the project, or the items that iterating over it gives."""
        definition = _class_of(made)
        itself = [Value(made.facts, made.node, path)]
        if path[:1] != (ELEMENT,) or definition is None:
            return itself
        assert isinstance(made.node, ast.Call)
        start, step = method_of(definition, "__iter__"), method_of(definition, "__next__")
        for method in (start, step):
            if method is None or not isinstance(method.node, FUNCTIONS) or not runs_as_written(method):
                continue
            frame = _Frame(made)
            if is_generator(method.node):
                items = [(value, path if whole else path[1:]) for value, whole in yields(method.node)]
            elif method is step:
                items = [(value, path[1:]) for value in returns(method.node)]
            elif all(_is_self_name(method.facts, value) for value in returns(method.node)):
                continue
            else:
                items = [(value, path) for value in returns(method.node)]
            return method.facts.values._all(items, trail.under(frame)) if items else itself
        return itself

    def _through(self, call: ast.Call, path: Path) -> list[tuple[ast.expr, Path]] | None:
        """The arguments, and the paths in them, that a call of a library hands on; None for any other call."""
        func, meaning = call.func, self._facts.calls.meaning(call)
        if isinstance(func, ast.Attribute) and not call.args and not call.keywords:
            if func.attr in ("next", "__next__"):
                return [(func.value, (ELEMENT, *path))]
            if func.attr == "__iter__":
                return [(func.value, path)]
        if self._makes_ready(call, meaning) and call.args and not has_stars(call):
            if len(call.args) == 1:
                return [(call.args[0], path)]
            return [(call.args[path[0]], path[1:])] if path and isinstance(path[0], int) and 0 <= path[0] < len(call.args) else None
        if meaning is None or has_stars(call):
            return None
        first = call.args[0] if call.args else argument(call, "iterable") or argument(call, "sequence")
        return _iterated(meaning, call, first, path) if first is not None else None

    def _makes_ready(self, call: ast.Call, meaning: str | None) -> bool:
        if meaning in _READY_FUNCTIONS:
            return True
        func = call.func
        if not isinstance(func, ast.Attribute) or not any(func.attr in names for names in _READY.values()):
            return False
        return any(
            isinstance(value.node, ast.Call) and func.attr in _READY.get(value.facts.calls.meaning(value.node) or "", ())
            for value in self.of(func.value) or ()
        )


_UNSEEN: list[Value] = []  # told by identity: a call whose function is out of sight


def _joined(found: Iterable[list[Value] | None]) -> list[Value] | None:
    """All values together, None where one of the lists is not known."""
    values: list[Value] = []
    for item in found:
        if item is None:
            return None
        values += item
    return values


def _class_of(made: Value) -> Definition | None:
    """The class of the project of which a call makes an object."""
    definition = made.facts.names.definition(made.node.func) if isinstance(made.node, ast.Call) else None
    return definition if definition is not None and isinstance(definition.node, ast.ClassDef) else None


def _classes_of(made: Value) -> list[Definition]:
    """The classes of the project of which a call may make an object."""
    found = made.facts.names.any_definition(made.node.func) if isinstance(made.node, ast.Call) else ()
    return [definition for definition in found if isinstance(definition.node, ast.ClassDef)]


def _own_method(definition: Definition, name: str) -> Definition | None:
    found = [item for item in definition.node.body if isinstance(item, FUNCTIONS) and item.name == name]
    return Definition(definition.facts, found[-1]) if found else None


def _is_self_name(facts: Facts, node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and facts.is_self(node)


def _iterated(meaning: str, call: ast.Call, first: ast.expr, path: Path) -> list[tuple[ast.expr, Path]] | None:
    """The arguments, and the paths in them, whose items an iterator of the standard library or of tqdm hands on."""
    if meaning == "builtins.next":
        return [(item, (ELEMENT, *path)) for item in call.args[:1]]
    if meaning in _ITERATORS:
        return [(first, path)]
    if meaning == "itertools.chain":
        return [(item, path) for item in call.args]
    if path[:1] == (ELEMENT,) and len(path) > 1:
        step = path[1]
        if meaning == "builtins.enumerate" and step == 1:
            return [(first, (ELEMENT, *path[2:]))]
        if meaning == "builtins.zip" and isinstance(step, int) and step < len(call.args):
            return [(call.args[step], (ELEMENT, *path[2:]))]
    return None


def is_generator(function: Function) -> bool:
    """Whether calling a function gives a generator."""
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for statement in function.body for node in walk_here(statement))


def yields(function: Function) -> Iterator[tuple[ast.expr, bool]]:
    """What a generator yields, each with whether it yields all items of it (``yield from``)."""
    for statement in function.body:
        for node in walk_here(statement):
            if isinstance(node, (ast.Yield, ast.YieldFrom)) and node.value is not None:
                yield node.value, isinstance(node, ast.YieldFrom)


def returns(function: Function) -> list[ast.expr]:
    """What a function returns; empty for a generator, for one without a value, or with a bare ``return`` beside."""
    return list(_returned(function))


def _returned_to(facts: Facts, function: Function, call: ast.Call, is_bound: bool) -> list[ast.expr]:
    """What a function may return to one call, by the constants that the call passes; all that it returns where that leaves nothing."""
    found = returns(function)
    if len(found) < 2:
        return found
    return [value for value in found if may_come_to(facts, function, value, lambda item: passed(call, function, item, is_bound))] or found


@lru_cache(maxsize=2048)  # asked again and again of the same few
def _returned(function: Function) -> tuple[ast.expr, ...]:
    found: list[ast.expr] = []
    for statement in function.body:
        for node in walk_here(statement):
            if isinstance(node, (ast.Yield, ast.YieldFrom)) or (isinstance(node, ast.Return) and node.value is None):
                return ()
            if isinstance(node, ast.Return) and node.value is not None:
                found.append(node.value)
    return tuple(found)


def passed(call: ast.Call, function: Function, parameter: ast.arg, bound: bool = False) -> ast.expr | None:
    """The expression that a call passes for a parameter, or its default; None where stars hide it.

    Args:
        bound: whether the call goes through an instance, so that the first parameter is filled already.
    """
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    if any(item.arg is None for item in call.keywords) or any(isinstance(item, ast.Starred) for item in call.args):
        return None
    if parameter is arguments.vararg or parameter is arguments.kwarg:
        return None
    for item in call.keywords:
        if item.arg == parameter.arg:
            return item.value
    if parameter in positional:
        index = positional.index(parameter) - (1 if bound else 0)
        if index < 0:
            return None
        if index < len(call.args):
            return call.args[index]
    return default_of(function, parameter)


def default_of(function: Function, parameter: ast.arg) -> ast.expr | None:
    """The default of a function's parameter."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    if parameter in positional:
        place = positional.index(parameter) - (len(positional) - len(arguments.defaults))
        return arguments.defaults[place] if place >= 0 else None
    return arguments.kw_defaults[arguments.kwonlyargs.index(parameter)] if parameter in arguments.kwonlyargs else None


def is_default(given: ast.expr, function: Function) -> bool:
    """Whether what :func:`passed` found is the default in the function's own text rather than an argument of the call."""
    return any(given is default for default in (*function.args.defaults, *function.args.kw_defaults))


def parameter_named(function: Function, name: str) -> ast.arg | None:
    """A function's parameter by name."""
    return next((item for item in parameters(function.args) if item.arg == name), None)
