"""Functions that new code brings along: which of them it needs, under which names, and where in a file they belong."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torchfix.facts.obstacle import Obstacle
from torchfix.facts.project.programs import is_main_guard

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Helpers:
    """The functions of a program text, of which a file is given those that are asked for.

    Args:
        facts: the file.
        program: Python code that defines the functions at module level; what they use of modules it imports by ``import``.
        spelled: names of the program, dotted ones too, by what they are called in this file.
    """

    def __init__(self, facts: Facts, program: str, spelled: Mapping[str, str]) -> None:
        self._facts = facts
        tree = ast.parse(program)
        lines = program.splitlines()
        functions = _functions(tree)
        starts = [min([node.lineno, *(item.lineno for item in node.decorator_list)]) for node in functions]
        self._texts = {node.name: "\n".join(lines[start - 1 : node.end_lineno]) for node, start in zip(functions, starts)}
        self._imported = [item.name for node in tree.body if isinstance(node, ast.Import) for item in node.names]
        self._names = {name: facts.names.fresh(name) for name in self._texts}
        self._spelled = spelled
        self._needed: set[str] = set()

    @staticmethod
    def obstacles(facts: Facts, program: str) -> list[Obstacle]:
        """Builtins that the functions of a program use, and that mean something else in a file or may do so."""
        read = {node.id for function in _functions(ast.parse(program)) for node in ast.walk(function) if isinstance(node, ast.Name)}
        end = facts.tree.module.body[-1] if facts.tree.module.body else facts.tree.module
        taken = sorted(name for name in read if hasattr(builtins, name) and not facts.names.is_visible(name, end))
        words = f"the file gives the name {taken[0]} another meaning, and the new functions need Python's own" if taken else ""
        return [Obstacle("builtin-taken", words, f"rename {taken[0]}")] if taken else []

    def name(self, function: str) -> str:
        """What a function is called in this file; from now on it is needed, with all that it calls."""
        if function not in self._needed:
            self._needed.add(function)
            for other in self._texts:
                if re.search(rf"\b{other}\(", self._texts[function]):
                    self.name(other)
        return self._names[function]

    def code(self) -> str:
        """The needed functions, in the order of the program."""
        code = "\n\n\n".join(text for name, text in self._texts.items() if name in self._needed)
        for name, here in self._names.items():
            code = re.sub(rf"(?<![\w.]){name}(?=\()", here, code)
        for name, here in self._spelled.items():
            code = re.sub(rf"(?<![\w.]){re.escape(name)}\b", here, code)
        return code + "\n"

    def modules(self) -> Iterator[str]:
        """The modules that the needed functions use."""
        code = self.code()
        yield from (name for name in self._imported if re.search(rf"(?<![\w.]){name}\.", code))

    def place(self) -> tuple[ast.stmt | None, ast.stmt]:
        """The statement behind which the functions belong, and the one before: the first definition, or the main guard.

        The first is None where the file begins with the second.
        """
        body = self._facts.tree.module.body
        found = (
            item
            for item in body
            if isinstance(item, (ast.FunctionDef, ast.ClassDef)) or (isinstance(item, ast.If) and is_main_guard(item.test))
        )
        before = next(found, body[-1])
        index = body.index(before)
        return (body[index - 1] if index else None), before


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions that a program explains: those without a docstring only show how the others are used."""
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and ast.get_docstring(node)]
