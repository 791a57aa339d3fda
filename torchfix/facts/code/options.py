"""The command line: the options that argparse declares, read through ``args.name`` wherever ``args`` goes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, receiver
from torchfix.facts.code.tree import last_name
from torchfix.facts.code.values import Value

if TYPE_CHECKING:
    from torchfix.facts import Facts

_PARSERS = ("parse_args", "parse_known_args")


class Options:
    """Questions about command-line options in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def declaration(self, node: ast.Attribute) -> Value | None:
        """The ``add_argument`` call that declares the option which ``args.name`` reads, with its file."""
        found = [
            Value(facts, call) for facts in self._parsing_files(node) for call in _declarations(facts) if node.attr in _spellings(call)
        ]
        return found[0] if len(found) == 1 else None

    def assigned(self, node: ast.Attribute) -> list[Value]:
        """What the files that parse the command line assign to ``args.name`` themselves."""
        parsed = set(self._parsed(node))
        found = []
        for facts in self._parsing_files(node):
            for store in facts.tree.attributes.get(node.attr, ()):
                statement = facts.tree.parent(store)
                stored = isinstance(store.ctx, ast.Store) and isinstance(statement, ast.Assign)
                if stored and parsed & set(facts.values.of(store.value) or ()):
                    assert isinstance(statement, ast.Assign)
                    found.append(Value(facts, statement.value))
        return found

    def _parsed(self, node: ast.Attribute) -> tuple[Value, ...]:
        """The ``parse_args()`` calls that may have made the object read; empty where it is something else."""
        values = self._facts.values.of(node.value) or ()
        parsed = all(isinstance(value.node, ast.Call) and last_name(value.node.func) in _PARSERS for value in values)
        return values if parsed else ()

    def _parsing_files(self, node: ast.Attribute) -> list[Facts]:
        """The files that parse the command line which the object read comes from, and those in which its parsers are made."""
        files: dict[str, Facts] = {}
        for value in self._parsed(node):
            assert isinstance(value.node, ast.Call)
            parser = receiver(value.node)
            made = value.facts.values.of(parser) if parser is not None else None
            files |= {item.facts.path: item.facts for item in (value, *(made or ()))}
        return list(files.values())


def _declarations(facts: Facts) -> Iterator[ast.Call]:
    """The ``add_argument`` calls of a file, also through a variable that holds the method (``arg = parser.add_argument``)."""
    yield from facts.tree.calls.get("add_argument", ())
    for method in facts.tree.attributes.get("add_argument", ()):
        statement = facts.tree.parent(method)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            target = statement.targets[0]
            yield from (
                call
                for call in facts.tree.calls.get(target.id, ())
                if isinstance(call.func, ast.Name) and facts.names.same(call.func, target)
            )


def _spellings(call: ast.Call) -> list[str]:
    """The attribute names that an ``add_argument`` call may give its option."""
    named = argument(call, "dest")
    if isinstance(named, ast.Constant):
        return [str(named.value)]
    texts = [item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return [text.lstrip("-").replace("-", "_") for text in texts]
