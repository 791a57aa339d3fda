"""Who calls a function of the project: by its name, through objects of its class, and through ``super()``.

Known or None: a function that is handed on as a value has callers that are not seen, and so has a method of whose name
something is called that is not known.
"""

from __future__ import annotations

import ast
import enum
from typing import TYPE_CHECKING

from torchfix.facts.code.classes import behind, is_data_class, is_static, is_super, method_of, runs_as_written, super_call
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, Function

if TYPE_CHECKING:
    from torchfix.facts import Facts


_LITERALS = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.Compare, ast.BinOp)
_MOST_FILES = 24  # what is called from more files is a tool that is given this and that, and reading all of them takes long
# Calls of libraries that may return an object of the project: what they are given, or what was stored.
_HANDING_ON = frozenset("load loads copy deepcopy getattr next compile script trace initialize partial max min reduce".split())


class _Meeting(enum.Enum):
    """What a use of a method's name is."""

    CALL = "a call of it"
    OTHER = "something else of that name"
    UNKNOWN = "perhaps it"


class Callers:
    """Who calls the functions of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[tuple[Function, bool], list[tuple[Facts, ast.Call]] | None] = {}
        self._foreign: dict[tuple[str, str], bool] = {}

    def of(self, function: Function) -> list[tuple[Facts, ast.Call]] | None:
        """Every call of a function, each with the facts of its file; None where one may be out of sight.

        For a constructor these are the calls of its class, and the ``super().__init__(...)`` of the classes below it.
        """
        return self._ask(function, certain=True)

    def perhaps(self, function: Function) -> list[tuple[Facts, ast.Call]] | None:
        """As :meth:`of`, with the calls that may be calls of another function instead, which has the same name."""
        return self._ask(function, certain=False)

    def _ask(self, function: Function, certain: bool) -> list[tuple[Facts, ast.Call]] | None:
        key = (function, certain)
        if key not in self._asked:
            self._asked[key] = None  # what is called by itself alone is not seen
            self._asked[key] = self._find(function, certain)
        return self._asked[key]

    def _find(self, function: Function, certain: bool) -> list[tuple[Facts, ast.Call]] | None:
        facts = self._facts
        if not runs_as_written(Definition(facts, function)):
            return None
        owner = facts.tree.class_of(function)
        if owner is not None:
            return self._of_constructor(function, owner) if function.name == "__init__" else self._of_method(function)
        home = facts.names.scope(function)
        if home is not facts.names.module and not isinstance(home.node, FUNCTIONS):
            return None
        return _by_name(facts, function.name, function, certain)

    # Constructors ---------------------------------------------------------------------------------------------

    def _of_constructor(self, constructor: Function, owner: ast.ClassDef) -> list[tuple[Facts, ast.Call]] | None:
        found: list[tuple[Facts, ast.Call]] = []
        for definition in (Definition(self._facts, owner), *self._facts.classes.heirs(owner)):
            assert isinstance(definition.node, ast.ClassDef)
            if definition.node.decorator_list and not is_data_class(definition):
                return None  # it may be made under another name
            runs = method_of(definition, "__init__")
            if runs is not None and runs.node is constructor:
                calls = _by_name(definition.facts, definition.node.name, definition.node, certain=True)
                if calls is None:
                    return None
                found += calls
                continue
            own = [item for item in definition.node.body if isinstance(item, FUNCTIONS) and item.name == "__init__"]
            above = behind(definition, "__init__", definition.node) if own else None
            if above is not None and above.node is constructor:
                call = super_call(own[-1])
                if call is None:
                    return None
                found.append((definition.facts, call))
        return found

    # Methods --------------------------------------------------------------------------------------------------

    def _of_method(self, method: Function) -> list[tuple[Facts, ast.Call]] | None:
        if method.name.startswith("__") or method.name == "forward":
            return None  # called without being named
        found: list[tuple[Facts, ast.Call]] = []
        if len(self._facts.project.holding(method.name)) > _MOST_FILES:
            return None
        for facts in self._facts.program.holding(method.name):
            for use in facts.tree.attributes.get(method.name, ()):
                meeting = self._meeting(facts, use, method)
                if meeting is _Meeting.UNKNOWN:
                    return None
                if meeting is _Meeting.CALL:
                    call = facts.tree.parent(use)
                    assert isinstance(call, ast.Call)
                    found.append((facts, call))
        return found

    def _meeting(self, facts: Facts, use: ast.Attribute, method: Function) -> _Meeting:
        found = self._meant(facts, use)
        if found is None:
            return _Meeting.UNKNOWN
        if not any(definition is not None and definition.node is method for definition in found):
            return _Meeting.OTHER
        call = facts.tree.parent(use)
        return _Meeting.CALL if isinstance(call, ast.Call) and call.func is use else _Meeting.UNKNOWN

    def _meant(self, facts: Facts, use: ast.Attribute) -> list[Definition | None] | None:
        """The methods of the project that an attribute may mean, None where it may be any."""
        source, name = use.value, use.attr
        around = facts.tree.method_class(use)
        if is_super(source) and around is not None:
            return [behind(Definition(facts, around), name, around)]
        if isinstance(source, ast.Name) and facts.is_self(source) and around is not None:
            return [method_of(item, name) for item in (Definition(facts, around), *facts.classes.heirs(around))]
        if facts.names.module_of(source) is not None or self._is_of_a_library(facts, source):
            return []
        named = facts.names.definition(source)
        if named is not None and isinstance(named.node, ast.ClassDef):
            found = method_of(named, name)
            return [found] if found is None or is_static(found) else None
        classes: list[Definition] = []
        for value in facts.values.objects(source) or (None,):
            if value is None:
                return None
            made = value.facts.names.definition(value.node.func) if isinstance(value.node, ast.Call) and not value.path else None
            if made is not None and isinstance(made.node, ast.ClassDef):
                classes.append(made)
            elif not self._is_of_a_library(value.facts, value.node):
                return None
        return [method_of(item, name) for item in classes]

    def _is_of_a_library(self, facts: Facts, node: ast.AST) -> bool:
        """Whether an expression surely is no object of a class of the project: a literal, or what a library makes or exports."""
        if isinstance(node, _LITERALS):
            return True
        made = node.func if isinstance(node, ast.Call) else node
        if not isinstance(made, (ast.Name, ast.Attribute)) or facts.names.definition(made) is not None:
            return False
        meaning = facts.names.qualified(made)
        if meaning is None or meaning.startswith(".") or (made is not node and meaning.rpartition(".")[2] in _HANDING_ON):
            return False
        return self._is_foreign(facts, meaning)

    def _is_foreign(self, facts: Facts, meaning: str) -> bool:
        """Whether a dotted name leads out of the project."""
        key = (facts.path, meaning)
        if key not in self._foreign:
            parts = meaning.split(".")
            names = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
            self._foreign[key] = all(facts.project.module(name, facts.path) is None for name in names)
        return self._foreign[key]


def constructions(facts: Facts, owner: ast.ClassDef) -> list[tuple[Facts, ast.Call]] | None:
    """The calls of a class of a file under every name that imports give it; None where it is handed on as a value."""
    return _by_name(facts, owner.name, owner, certain=True)


def _by_name(facts: Facts, name: str, definition: ast.AST, certain: bool) -> list[tuple[Facts, ast.Call]] | None:
    """The calls of a function or class under every name that imports give it; None where it is handed on as a value."""
    found: list[tuple[Facts, ast.Call]] = []
    waiting: list[tuple[Facts | None, str]] = [(facts, name)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        there, word = waiting.pop()
        if there is None:
            return None
        if (there.path, word) in seen:
            continue
        seen.add((there.path, word))
        if len(seen) > _MOST_FILES:
            return None
        calls = _calls_through(there, word, definition, certain)
        if calls is None:
            return None
        found += [(there, call) for call in calls]
        mentioning = there.project.mentioning(word, there.path)
        if len(mentioning) > _MOST_FILES:
            return None
        for path in mentioning:
            other = there.project.file(path)
            waiting += [(other, local) for local in other.names.locals_of(word)] if other else [(None, word)]
    return found


def _calls_through(facts: Facts, word: str, definition: ast.AST, certain: bool) -> list[ast.Call] | None:
    """The calls of a definition under one name in a file, None where that name is used for anything but a call."""
    tree, names = facts.tree, facts.names
    found = []
    for use in (*tree.names.get(word, ()), *tree.attributes.get(word, ())):
        if isinstance(use, ast.Name) and any(binding.node is definition for binding in names.bindings(use)):
            meant = len(names.bindings(use)) == 1
        else:
            named = names.definition(use)
            unclear = named is None and isinstance(use, ast.Name) and names.may_be_imported(use)
            if unclear and certain:
                return None
            if not unclear and (named is None or named.node is not definition):
                continue
            meant = True
        call = tree.parent(use)
        if _only_names_class(facts, use) if isinstance(definition, ast.ClassDef) else _keeps_attribute(facts, use):
            continue
        if not meant or not isinstance(call, ast.Call) or call.func is not use:
            return None
        found.append(call)
    return found


def _only_names_class(facts: Facts, use: ast.expr) -> bool:
    """Whether a class is named without being made or handed on: for an attribute, a type, ``isinstance``, or as a base."""
    parent = facts.tree.parent(use)
    if isinstance(parent, ast.Attribute):
        return parent.attr != "__init__"
    if isinstance(parent, ast.Call) and use in parent.args:
        named = facts.calls.meaning(parent)
        return named in ("builtins.isinstance", "builtins.issubclass") if use is not parent.args[0] else named == "builtins.super"
    if isinstance(parent, ast.ClassDef):
        return use in parent.bases
    return isinstance(parent, (ast.arg, ast.AnnAssign)) and parent.annotation is use


def _keeps_attribute(facts: Facts, use: ast.expr) -> bool:
    """Whether a function is named to keep something in an attribute of it, or to read that: ``train.args = args``."""
    parent = facts.tree.parent(use)
    called = facts.tree.parent(parent) if parent is not None else None
    own = isinstance(parent, ast.Attribute) and not parent.attr.startswith("__")
    return own and not (isinstance(called, ast.Call) and called.func is parent)
