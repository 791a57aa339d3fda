"""Where the object that a variable holds is written in place, rather than the variable bound to another one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import is_constant
from torchfix.facts.code.scopes import Binding

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Methods of a tensor whose result shares its memory.
VIEWS = frozenset("view reshape squeeze unsqueeze t transpose permute flatten detach narrow select expand".split())


class Writes:
    """Questions about writes in place in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def to(self, name: ast.Name) -> Iterator[ast.Name]:
        """The uses of a variable that write into the object which it holds, in text order.

        ``x += y``, ``x[i] = y``, ``x.add_(y)``, ``x.data.fill_(y)``, ``torch.relu_(x)`` and ``out=x``; not ``x = y``.
        """
        for use in self._facts.names.uses(name):
            if self.is_write(use):
                yield use

    def is_write(self, use: ast.expr) -> bool:
        """Whether this use of a variable, or of another expression, writes into the object that it holds."""
        tree = self._facts.tree
        node: ast.expr = use
        parent = tree.parent(node)
        if isinstance(parent, ast.AugAssign) and parent.target is node:
            return True
        while isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is node:
            above = tree.parent(parent)
            if not isinstance(parent.ctx, ast.Load):
                return isinstance(parent, ast.Subscript) or isinstance(above, ast.AugAssign)
            node = parent
            if isinstance(parent, ast.Attribute) and isinstance(above, ast.Call) and above.func is parent:
                if _is_in_place(parent.attr):
                    return True
                if parent.attr in VIEWS:
                    node, above = above, tree.parent(above)
            parent = above
        return (isinstance(parent, ast.keyword) and parent.arg == "out") or self._fills(parent, node)

    def _fills(self, call: ast.AST | None, given: ast.expr) -> bool:
        """Whether a function of torch writes into what it is given: ``init.zeros_(x)``, ``F.relu(x, inplace=True)``."""
        if not isinstance(call, ast.Call) or given not in call.args[:1]:
            return False
        meaning = self._facts.calls.meaning(call) or ""
        asked = any(item.arg == "inplace" and not is_constant(item.value, False) for item in call.keywords)
        return meaning.startswith("torch.") and (asked or _is_in_place(meaning.rpartition(".")[2]))

    def is_only_read(self, expression: ast.expr) -> bool:
        """Whether the tensor that an expression makes is only read, as far as it goes; False where it goes out of sight."""
        return self._is_only_read(expression, set())

    def _is_only_read(self, node: ast.expr, seen: set[int]) -> bool:
        if id(node) in seen:
            return True
        seen.add(id(node))
        tree = self._facts.tree
        parent = tree.parent(node)
        if isinstance(parent, (ast.BinOp, ast.UnaryOp, ast.Compare)):
            return True
        if isinstance(parent, ast.Subscript):
            return parent.slice is node or (isinstance(parent.ctx, ast.Load) and self._is_only_read(parent, seen))
        if isinstance(parent, ast.Attribute):
            call = tree.parent(parent)
            if not isinstance(call, ast.Call) or call.func is not parent:
                return parent.attr in ("shape", "dtype", "device", "ndim")
            return not _is_in_place(parent.attr) and (parent.attr not in VIEWS or self._is_only_read(call, seen))
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
            uses = list(self._facts.names.uses(parent.targets[0]))
            return not any(map(self.is_write, uses)) and all(self._is_only_read(use, seen) for use in uses if isinstance(use.ctx, ast.Load))
        if isinstance(parent, (ast.Tuple, ast.List)):
            return self._is_only_read(parent, seen)
        given = isinstance(parent, ast.Call) and node in parent.args and (self._facts.calls.meaning(parent) or "").startswith("torch.")
        return given and not self._fills(parent, node)

    def reached_by(self, binding: Binding, name: ast.Name) -> list[ast.Name]:
        """The uses of a variable to which one binding of it may give the value."""
        return [
            use
            for use in self._facts.names.uses(name)
            if isinstance(use.ctx, ast.Load) and any(found is binding for found in self._facts.flow.reaching(use))
        ]


def _is_in_place(method: str) -> bool:
    """Torch names the methods that write in place with one underscore at the end."""
    return method.endswith("_") and not method.startswith("_") and method not in ("requires_grad_", "share_memory_")
