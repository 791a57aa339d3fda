"""Where the state of an object is saved in a dictionary beside others, and where it is loaded from one again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import receiver
from torchfix.facts.code.tree import FUNCTIONS, dotted, walk

if TYPE_CHECKING:
    from torchfix.facts import Facts

_CLOSING = re.compile(r"(?:\s*\))+")


@dataclass(frozen=True, eq=False)
class Saved:
    """A dictionary literal that holds the state.

    Args:
        facts: the file.
        dictionary: the literal; its keys are words, and no comment stands in it.
    """

    facts: Facts
    dictionary: ast.Dict

    @property
    def parts(self) -> Mapping[str, ast.expr]:
        """The values, by the names that :meth:`with_entry` gives them."""
        return {f"value{index}": value for index, value in enumerate(self.dictionary.values)}

    def with_entry(self, key: str, value: str) -> str:
        """The literal's own text with one more entry at its end and a hole for each value."""
        source, values = self.facts.source, self.dictionary.values
        start, end = source.span(self.dictionary)
        first = self.dictionary.keys[0]
        assert first is not None
        text, place = "", start
        for index, item in enumerate(values):
            low, high = source.span(item)
            text += source.text[place:low] + f"$value{index}"
            place = high
        quote = source.segment(first)[0]
        closing = _CLOSING.match(source.text, place, end)  # parentheses around the last value
        if closing is not None:
            text, place = text + closing[0], closing.end()
        separator = f",{source.newline}{source.margin(first)}" if first.lineno > self.dictionary.lineno else ", "
        return f"{text}{separator}{quote}{key}{quote}: {value}{source.text[place:end]}"


@dataclass(frozen=True, eq=False)
class Loaded:
    """A statement ``x.load_state_dict(name["key"])``."""

    statement: ast.stmt
    name: str


class States:
    """Questions about saved and loaded states in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def saved(self, variable: ast.Name | ast.Attribute, after: ast.stmt) -> Iterator[Saved]:
        """The dictionaries that hold a variable's state, where what is made behind ``after`` can be read."""
        for call in self._calls(variable, "state_dict"):
            outer = self._facts.tree.parent(call)
            if isinstance(outer, ast.Dict) and call in outer.values and self._is_plain(outer) and self._sees(outer, after):
                yield Saved(self._facts, outer)

    def loaded(self, variable: ast.Name | ast.Attribute, after: ast.stmt) -> Iterator[Loaded]:
        """The statements that load a variable's state from a dictionary with a name, where it can be read too."""
        for call in self._calls(variable, "load_state_dict"):
            statement = self._facts.tree.statement(call)
            given = call.args[0] if len(call.args) == 1 else None
            if isinstance(statement, ast.Expr) and statement.value is call and isinstance(given, ast.Subscript) and self._sees(call, after):
                name = dotted(given.value)
                if name is not None:
                    yield Loaded(statement, name)

    def free_key(self, *candidates: str) -> str | None:
        """The first of these words that the file does not use as a string, so that no entry of a dictionary has it already."""
        words = {node.value for node in walk(self._facts.source.tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        return next((word for word in candidates if word not in words), None)

    def are_kept(self, variable: ast.Name | ast.Attribute) -> bool:
        """Whether a variable's state is saved or loaded anywhere."""
        return any(True for name in ("state_dict", "load_state_dict") for _ in self._calls(variable, name))

    def _calls(self, variable: ast.Name | ast.Attribute, method: str) -> Iterator[ast.Call]:
        """The calls of a method of what a variable holds, or of the optimizer inside that."""
        for call in self._facts.tree.calls.get(method, ()):
            source = receiver(call)
            within = isinstance(source, ast.Attribute) and self._is(source.value, variable) and self._facts.optimizers.of(source)
            if within or self._is(source, variable):
                yield call

    def _is(self, expression: ast.expr | None, variable: ast.Name | ast.Attribute) -> bool:
        """Whether an expression names a variable, or an attribute of the same object."""
        if isinstance(expression, ast.Name) and isinstance(variable, ast.Name):
            return self._facts.names.same(expression, variable)
        if not isinstance(expression, ast.Attribute) or not isinstance(variable, ast.Attribute):
            return False
        tree = self._facts.tree
        return dotted(expression) == dotted(variable) and tree.method_class(expression) is tree.method_class(variable)

    def _is_plain(self, dictionary: ast.Dict) -> bool:
        source = self._facts.source
        start, end = source.span(dictionary)
        words = all(
            isinstance(key, ast.Constant) and isinstance(key.value, str) and source.segment(key)[:1] in "'\"" for key in dictionary.keys
        )
        return words and "#" not in source.text[start:end]

    def _sees(self, node: ast.AST, after: ast.stmt) -> bool:
        """Whether a variable bound behind a statement has its value at a node: it comes later, or in another function."""
        tree = self._facts.tree
        home, here = tree.function(after), tree.function(node)
        if here is home:
            return getattr(node, "lineno", 0) > (after.end_lineno or after.lineno)
        if home is None:
            return True
        outer: ast.AST = node
        while isinstance(outer := tree.function(outer) or tree.module, FUNCTIONS):
            if outer is home:
                return True
        method, owner = tree.method_class(node), tree.method_class(after)
        return owner is not None and method is owner
