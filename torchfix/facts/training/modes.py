"""In which mode networks are at a place: put into training by ``train()`` or into evaluation by ``eval()`` before it."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import argument, is_constant
from torchfix.facts.code.tree import Function
from torchfix.facts.training.regions import NO_GRAD

if TYPE_CHECKING:
    from torchfix.facts import Facts

_DEPTH = 4  # callers asked above a function


class Modes:
    """Questions about modes in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def evaluates(self, node: ast.AST, _depth: int = 0) -> bool:
        """Whether a place is for evaluation: gradients are off there, or the last switch of a mode before it was ``eval()``.

        Where its own function says nothing, all callers of that must.
        """
        if self._facts.regions.under(node, NO_GRAD):
            return True
        last = self._last_switch(node)
        function = self._facts.tree.function(node)
        if last is not None or function is None or _depth > _DEPTH:
            return last is False
        calls = self._facts.callers_everywhere(function)
        return bool(calls) and all(facts.modes.evaluates(call, _depth + 1) for facts, call in calls or ())

    def _last_switch(self, node: ast.AST) -> bool | None:
        """The mode that the last switch before a place in its own function or module gives: True for training."""
        before: list[tuple[int, int, bool]] = []
        for call, mode in self._switches:
            same = self._facts.tree.function(call) is self._facts.tree.function(node)
            if same and (call.lineno, call.col_offset) < (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)):
                before.append((call.lineno, call.col_offset, mode))
        return max(before)[2] if before else None

    @cached_property
    def _switches(self) -> tuple[tuple[ast.Call, bool], ...]:
        """The calls of this file that switch a mode, themselves or in the function of this file that they run, with the mode."""
        tree = self._facts.tree
        named = [call for name in ("eval", "train") for call in tree.calls.get(name, ())]
        found = [(call, mode) for call in named if (mode := self._switch(call)) is not None]
        inside: dict[Function, set[bool]] = defaultdict(set)
        for call, mode in found:
            function = tree.function(call)
            if function is not None:
                inside[function].add(mode)
        for function, modes in inside.items():
            for call in tree.calls.get(function.name, ()) if len(modes) == 1 else ():
                if any(run is function for _, run in called(self._facts, call)):
                    found.append((call, next(iter(modes))))
        return tuple(found)

    def _switch(self, call: ast.Call) -> bool | None:
        """The mode to which ``x.train()`` and ``x.eval()`` switch, None for any other call."""
        if not isinstance(call.func, ast.Attribute) or len(call.args) + len(call.keywords) > 1:
            return None
        if any(True for _ in called(self._facts, call)):
            return None  # a method of the project's own
        if call.func.attr == "eval":
            return False if not call.args and not call.keywords else None
        mode = argument(call, "mode", 0)
        if mode is None:
            return True
        return False if is_constant(mode, False) else True if is_constant(mode, True) else None
