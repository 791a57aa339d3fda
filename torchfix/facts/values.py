"""Where a value comes from: through assignments, parameters and their callers, returns, attributes and unpacking.

The answer is every expression that may have made the value, or None as soon as one origin is out of sight.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from torchfix.facts.scopes import Binding, Bound, parameters
from torchfix.facts.tree import FUNCTIONS, Function, dotted, last_name, walk_here

if TYPE_CHECKING:
    from torchfix.facts import Facts

ELEMENT: Literal["*"] = "*"
Step: TypeAlias = "int | Literal['*']"

_LIMIT = 24  # steps followed back before a value counts as unknown


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
    path: tuple[Step, ...] = ()

    def __hash__(self) -> int:
        return hash((id(self.node), self.path))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.node is other.node and self.path == other.path


# Functions that hand the items of their argument on: how the path continues in which argument.
_ITERATORS = {
    "tqdm.tqdm",
    "tqdm.auto.tqdm",
    "tqdm.notebook.tqdm",
    "tqdm.tqdm_notebook",
    "builtins.iter",
    "rich.progress.track",
    "builtins.list",
    "itertools.cycle",
}


class Values:
    """Questions about where the values of one file come from."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[tuple[ast.expr, tuple[Step, ...]], tuple[Value, ...] | None] = {}

    def of(self, expression: ast.expr, path: tuple[Step, ...] = ()) -> tuple[Value, ...] | None:
        """Every expression that may have made a value; None where one of them is not known.

        Args:
            expression: what is asked for.
            path: the part of it that is asked for.
        """
        key = (expression, path)
        if key not in self._asked:
            found = self._follow(expression, path, frozenset(), 0)
            self._asked[key] = None if found is None else tuple(dict.fromkeys(found))
        return self._asked[key]

    def single(self, expression: ast.expr) -> Value | None:
        """The one expression that made a value, None where there are several or it is not known."""
        found = self.of(expression)
        return found[0] if found and len(found) == 1 else None

    # ----------------------------------------------------------------------------------------------------------

    def _follow(self, node: ast.expr, path: tuple[Step, ...], seen: frozenset[int], depth: int) -> list[Value] | None:
        key = hash((id(node), path))
        if depth > _LIMIT:
            return None
        if key in seen:
            return []  # a circle adds nothing new
        seen = seen | {key}
        if isinstance(node, (ast.Tuple, ast.List)) and path and not any(isinstance(item, ast.Starred) for item in node.elts):
            if isinstance(path[0], int):
                return self._follow(node.elts[path[0]], path[1:], seen, depth + 1) if -len(node.elts) <= path[0] < len(node.elts) else None
            return self._all([(item, path[1:]) for item in node.elts], seen, depth)
        if isinstance(node, ast.IfExp):
            return self._all([(node.body, path), (node.orelse, path)], seen, depth)
        if isinstance(node, ast.BoolOp):
            return self._all([(item, path) for item in node.values], seen, depth)
        if isinstance(node, ast.NamedExpr):
            return self._follow(node.value, path, seen, depth + 1)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            return self._follow(node.value, (node.slice.value, *path), seen, depth + 1)
        if isinstance(node, ast.Subscript):
            return self._entry(node, path, seen, depth)
        if isinstance(node, ast.Name):
            return self._name(node, path, seen, depth)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, path, seen, depth)
        if isinstance(node, ast.Call):
            return self._call(node, path, seen, depth)
        return [Value(self._facts, node, path)]

    def _all(self, items: list[tuple[ast.expr, tuple[Step, ...]]], seen: frozenset[int], depth: int) -> list[Value] | None:
        found: list[Value] = []
        for node, path in items:
            values = self._follow(node, path, seen, depth + 1)
            if values is None:
                return None
            found += values
        return found

    def _entry(self, node: ast.Subscript, path: tuple[Step, ...], seen: frozenset[int], depth: int) -> list[Value] | None:
        """An entry of a dictionary that the file writes out: those of the keys that are asked for, any where these are not known."""
        tables = self._follow(node.value, (), seen, depth + 1) if isinstance(node.value, (ast.Name, ast.Attribute)) else None
        asked = self._constants(node.slice, seen, depth)
        entries: list[tuple[Facts, ast.expr]] = []
        for table in tables or ():
            written = _written_entries(table.node) if not table.path else None
            if written is None:
                return [Value(self._facts, node, path)]
            entries += [(table.facts, value) for key, value in written if _may_be_key(key, asked)]
        stored = self._stored_entries(node.value)
        if not tables or stored is None:
            return [Value(self._facts, node, path)]
        entries += [(self._facts, value) for key, value in stored if _may_be_key(key, asked)]
        found: list[Value] = []
        for facts, value in entries:
            values = facts.values._follow(value, path, seen, depth + 1)
            if values is None:
                return None
            found += values
        return found or [Value(self._facts, node, path)]

    def _constants(self, node: ast.expr, seen: frozenset[int], depth: int) -> list[object] | None:
        """The constants that an expression may be (``for phase in ["train", "val"]``), None where it may be something else."""
        values = self._follow(node, (), seen, depth + 1)
        constants = [value.node.value for value in values or () if isinstance(value.node, ast.Constant) and not value.path]
        return constants if values and len(constants) == len(values) else None

    def _stored_entries(self, table: ast.expr) -> list[tuple[ast.expr | None, ast.expr]] | None:
        """What ``table[key] = value`` adds in this file; None where entries come in another way."""
        root, name, facts = _root(table), dotted(table), self._facts
        found: list[tuple[ast.expr | None, ast.expr]] = []
        alike = (
            facts.tree.names.get(root.id, ())
            if root is table and root is not None
            else facts.tree.attributes.get(last_name(table) or "", ())
        )
        for use in alike:
            base, parent = _root(use), facts.tree.parent(use)
            if (
                base is None
                or root is None
                or dotted(use) != name
                or not (facts.names.same(base, root) or (facts.is_self(base) and facts.is_self(root)))
            ):
                continue
            if isinstance(parent, ast.Attribute) and parent.attr in ("update", "setdefault"):
                return None
            if isinstance(parent, ast.Subscript) and parent.value is use and isinstance(parent.ctx, ast.Store):
                assigned = _value_of_target(facts, parent)
                if assigned is None or assigned[1]:
                    return None
                found.append((parent.slice, assigned[0]))
        return found

    def _name(self, name: ast.Name, path: tuple[Step, ...], seen: frozenset[int], depth: int) -> list[Value] | None:
        bindings = self._facts.flow.reaching(name)
        return self.bound(bindings, path, seen, depth) if bindings else [Value(self._facts, name, path)]

    def bound(self, bindings: list[Binding], path: tuple[Step, ...], seen: frozenset[int], depth: int) -> list[Value] | None:
        """The values that a set of bindings gives, as :meth:`of` does."""
        found: list[Value] = []
        for binding in bindings:
            values = self._binding(binding, path, seen, depth)
            if values is None:
                return None
            found += values
        return found

    def _binding(self, binding: Binding, path: tuple[Step, ...], seen: frozenset[int], depth: int) -> list[Value] | None:
        if binding.how is Bound.ASSIGN and binding.value is not None:
            return self._follow(binding.value, (*binding.path, *path), seen, depth + 1)
        if binding.how is Bound.LOOP and binding.value is not None:
            return self._follow(binding.value, (ELEMENT, *binding.path, *path), seen, depth + 1)
        if binding.how is Bound.WITH and binding.value is not None:
            return self._follow(binding.value, (*binding.path, *path), seen, depth + 1)
        if binding.how is Bound.PARAMETER and isinstance(binding.node, ast.arg):
            return self._parameter(binding.node, path, seen, depth)
        if binding.how is Bound.IMPORT:
            return self._imported(binding, path, seen, depth)
        return None

    def _imported(self, binding: Binding, path: tuple[Step, ...], seen: frozenset[int], depth: int) -> list[Value] | None:
        """A module-level variable of another file of the project."""
        node, facts = binding.node, self._facts
        if not isinstance(node, ast.ImportFrom) or depth > _LIMIT:
            return None  # files that import a name from each other end here
        module = facts.project.module(node.module or "", facts.path, node.level)
        if module is None:
            return None
        there = module.names.module.bindings.get(binding.origin.rpartition(".")[2], [])
        return module.values.bound(there, path, seen, depth + 1) if there else None

    def _parameter(self, parameter: ast.arg, path: tuple[Step, ...], seen: frozenset[int], depth: int) -> list[Value] | None:
        """What the callers pass, where every caller is seen."""
        signature = self._facts.tree.parent(parameter)
        function = self._facts.tree.parent(signature) if signature is not None else None
        if not isinstance(function, FUNCTIONS):
            return None  # a lambda's
        calls = self._facts.callers_everywhere(function)
        if not calls:
            return None
        found: list[Value] = []
        for facts, call in calls:
            given = passed(call, function, parameter, bound=self._facts.tree.class_of(function) is not None)
            if given is None:
                return None
            home = self if is_default(given, function) else facts.values
            values = home._follow(given, path, seen, depth + 1)
            if values is None:
                return None
            found += values
        return found

    def _attribute(self, node: ast.Attribute, path: tuple[Step, ...], seen: frozenset[int], depth: int) -> list[Value] | None:
        assigned = self.assigned(node)
        if assigned is None:
            return None
        if assigned:
            return self._all([(value, (*inner, *path)) for value, inner in assigned], seen, depth)
        return [Value(self._facts, node, path)]

    def assigned(self, node: ast.Attribute) -> list[tuple[ast.expr, tuple[int, ...]]] | None:
        """The values assigned to the same attribute: of ``self`` anywhere in the class, else of the same variable.

        Empty where the file assigns none, None where one of them cannot be told (a loop's target, ``+=``).
        """
        root, name = _root(node), dotted(node)
        if root is None or name is None:
            return []
        facts = self._facts
        owner = facts.tree.method_class(node) if facts.is_self(root) else None
        found: list[tuple[ast.expr, tuple[int, ...]]] = []
        for other in facts.tree.attributes.get(node.attr, ()):
            base = _root(other)
            if not isinstance(other.ctx, ast.Store) or base is None or dotted(other) != name:
                continue
            if owner is not None:
                alike = facts.tree.method_class(other) is owner and facts.is_self(base)
            else:
                alike = facts.names.same(base, root)
            if alike:
                value = _value_of_target(facts, other)
                if value is None:
                    return None
                found.append(value)
        return found

    def _call(self, call: ast.Call, path: tuple[Step, ...], seen: frozenset[int], depth: int) -> list[Value] | None:
        meaning = self._facts.calls.meaning(call)
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("next", "__next__") and not call.args and not call.keywords:
            return self._follow(call.func.value, (ELEMENT, *path), seen, depth + 1)
        stepped = _through_iterator(meaning, call, path)
        if stepped is not None:
            return self._follow(stepped[0], stepped[1], seen, depth + 1)
        definition = self._facts.names.definition(call.func)
        if definition is not None and isinstance(definition.node, FUNCTIONS) and not definition.facts.is_decorated(definition.node):
            returned = returns(definition.node)
            if returned:
                return definition.facts.values._all([(value, path) for value in returned], seen, depth)
        method = self._facts.own_method(call)
        if method is not None and not self._facts.is_decorated(method) and returns(method):
            return self._all([(value, path) for value in returns(method)], seen, depth)
        return [Value(self._facts, call, path)]


def returns(function: Function) -> list[ast.expr]:
    """What a function returns; empty for a generator, for one without a value, or with a bare ``return`` beside."""
    found: list[ast.expr] = []
    for statement in function.body:
        for node in walk_here(statement):
            if isinstance(node, (ast.Yield, ast.YieldFrom)) or (isinstance(node, ast.Return) and node.value is None):
                return []
            if isinstance(node, ast.Return) and node.value is not None:
                found.append(node.value)
    return found


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


def _through_iterator(meaning: str | None, call: ast.Call, path: tuple[Step, ...]) -> tuple[ast.expr, tuple[Step, ...]] | None:
    """The argument, and the path in it, whose items an iterator call hands on."""
    if not call.args or meaning is None:
        return None
    if meaning == "builtins.next":
        return call.args[0], (ELEMENT, *path)
    if meaning in _ITERATORS:
        return call.args[0], path
    if path and path[0] == ELEMENT and len(path) > 1:
        if meaning == "builtins.enumerate" and path[1] == 1:
            return call.args[0], (ELEMENT, *path[2:])
        if meaning == "builtins.zip" and isinstance(path[1], int) and path[1] < len(call.args):
            return call.args[path[1]], (ELEMENT, *path[2:])
    return None


def _written_entries(table: ast.AST) -> list[tuple[ast.expr | None, ast.expr]] | None:
    """The keys and values that a dictionary display or comprehension writes out; a key is None where it may be any."""
    if isinstance(table, ast.DictComp):
        return [(None, table.value)]
    if isinstance(table, ast.Dict) and None not in table.keys:
        return list(zip(table.keys, table.values))
    return None


def _may_be_key(written: ast.expr | None, asked: list[object] | None) -> bool:
    """Whether a written key may be one of those that are asked for: two different constants are not."""
    return not isinstance(written, ast.Constant) or asked is None or written.value in asked


def _root(node: ast.expr) -> ast.Name | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def _value_of_target(facts: Facts, target: ast.expr) -> tuple[ast.expr, tuple[int, ...]] | None:
    """The value that an assignment target gets, with the indexes into it; None for targets of other statements."""
    path: list[int] = []
    node: ast.AST = target
    parent = facts.tree.parent(node)
    while isinstance(parent, (ast.Tuple, ast.List)):
        path.insert(0, [item is node for item in parent.elts].index(True))
        node, parent = parent, facts.tree.parent(parent)
    if isinstance(parent, (ast.Assign, ast.AnnAssign)) and parent.value is not None:
        return parent.value, tuple(path)
    return None


def parameter_named(function: Function, name: str) -> ast.arg | None:
    """A function's parameter by name."""
    return next((item for item in parameters(function.args) if item.arg == name), None)
