"""Whether a value carries a graph: whether autograd keeps, with it, the steps and tensors that made it.

Asked backwards, from a value to what made it. A graph begins at what a network computes while gradients are on, and
ends where a value is detached or made a number. What is out of sight may carry one, but does not surely.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.callees import called
from torchfix.facts.calls import is_constant, keyword, receiver
from torchfix.facts.gradients import GRAPHLESS_ATTRIBUTES, GRAPHLESS_FUNCTIONS, GRAPHLESS_METHODS, NO_GRAPHS
from torchfix.facts.regions import NO_GRAD
from torchfix.facts.scopes import Binding, Bound
from torchfix.facts.tree import COMPREHENSIONS, FUNCTIONS, last_name, walk_here
from torchfix.facts.values import passed

if TYPE_CHECKING:
    from torchfix.facts import Facts

_MAKERS = frozenset(
    """zeros ones empty full arange linspace tensor as_tensor from_numpy eye rand randn randint randperm Tensor FloatTensor LongTensor
    load device no_grad Generator Size manual_seed utils.data.DataLoader""".split()
)
_UNKNOWN = "unknown"
_MOST = 600  # expressions looked at before a value counts as unknown


class Graphs:
    """Questions about the graphs that values of one file carry."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[ast.expr, frozenset[str]] = {}

    def may_carry(self, expression: ast.expr) -> bool:
        """Whether a value may carry a graph; False only where everything that made it is seen and has none."""
        return bool(self._origins(expression))

    def carries(self, expression: ast.expr) -> bool:
        """Whether a network in sight made a value, or a part of it, with gradients on."""
        return "network" in self._origins(expression)

    def _origins(self, expression: ast.expr) -> frozenset[str]:
        if expression not in self._asked:
            found: set[str] = set()
            seen: set[int] = set()
            waiting: list[tuple[Facts, ast.expr]] = [(self._facts, expression)]
            while waiting:
                facts, node = waiting.pop()
                if id(node) in seen:
                    continue
                seen.add(id(node))
                if len(seen) > _MOST:
                    found.add(_UNKNOWN)
                    break
                for item in facts.graphs._step(node):
                    if isinstance(item, str):
                        found.add(item)
                    else:
                        waiting.append(item)
            self._asked[expression] = frozenset(found)
        return self._asked[expression]

    def _step(self, node: ast.expr) -> Iterator[str | tuple[Facts, ast.expr]]:
        """What made a value, one step back: expressions, or the word for what can be followed no further."""
        facts = self._facts
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.Compare, ast.Lambda)):
            return
        if isinstance(node, (ast.Name, ast.Attribute)) and self._is_object(node):
            return
        if isinstance(node, ast.Name):
            for binding in facts.flow.reaching(node):
                yield from self._bound(binding)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node)
        elif isinstance(node, ast.Subscript):
            yield facts, node.value
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, COMPREHENSIONS):
            yield facts, node.value if isinstance(node, ast.DictComp) else node.elt
        elif isinstance(node, ast.IfExp):
            yield from ((facts, item) for item in (node.body, node.orelse))
        elif isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom)):
            yield _UNKNOWN
        else:
            yield from ((facts, item) for item in ast.iter_child_nodes(node) if isinstance(item, ast.expr))

    def _is_object(self, node: ast.expr) -> bool:
        """Whether an expression is a network, an optimizer, or a library's name, none of which is a tensor."""
        facts = self._facts
        return bool(facts.models.of(node) or facts.optimizers.of(node)) or facts.names.qualified(node) is not None

    def _bound(self, binding: Binding) -> Iterator[str | tuple[Facts, ast.expr]]:
        facts = self._facts
        if binding.how is Bound.PARAMETER and isinstance(binding.node, ast.arg):
            yield from self._given(binding.node)
        elif binding.how is Bound.AUGMENTED and isinstance(binding.node, ast.AugAssign):
            yield facts, binding.node.value
            if isinstance(binding.node.target, ast.Name):
                for before in facts.flow.reaching(binding.node.target):
                    if before is not binding:
                        yield from self._bound(before)
        elif binding.value is not None:
            value: ast.expr = binding.value
            for index in binding.path:
                if isinstance(value, (ast.Tuple, ast.List)) and index < len(value.elts):
                    value = value.elts[index]
            yield facts, value
        elif binding.how not in (Bound.IMPORT, Bound.FUNCTION, Bound.CLASS):
            yield _UNKNOWN

    def _given(self, parameter: ast.arg) -> Iterator[str | tuple[Facts, ast.expr]]:
        """What the callers pass for a parameter."""
        signature = self._facts.tree.parent(parameter)
        function = self._facts.tree.parent(signature) if signature is not None else None
        if not isinstance(function, FUNCTIONS):
            yield _UNKNOWN
            return
        bound = self._facts.tree.class_of(function) is not None
        for facts, call in self._facts.callers_everywhere(function) or ((self._facts, None),):
            given = passed(call, function, parameter, bound) if call is not None else None
            yield _UNKNOWN if given is None else (facts, given)

    def _attribute(self, node: ast.Attribute) -> Iterator[str | tuple[Facts, ast.expr]]:
        if node.attr in GRAPHLESS_ATTRIBUTES:
            return
        assigned = self._facts.values.assigned(node)
        if assigned:
            yield from ((self._facts, value) for value, _ in assigned)
        elif assigned is None or (isinstance(node.value, ast.Name) and self._facts.is_self(node.value)):
            yield _UNKNOWN
        else:
            yield self._facts, node.value

    def _call(self, call: ast.Call) -> Iterator[str | tuple[Facts, ast.expr]]:
        facts = self._facts
        name, meaning = last_name(call.func) or "", facts.calls.meaning(call) or ""
        source = receiver(call)
        given = [(facts, item) for item in (*call.args, *(item.value for item in call.keywords))]
        if meaning.startswith(NO_GRAPHS) or (source is not None and name in GRAPHLESS_METHODS) or facts.constructors.of(call) is not None:
            return
        if meaning.startswith("torch."):
            yield from self._of_torch(call, meaning, name)
        elif facts.models.of(call.func) or (source is not None and facts.models.of(source)):
            if facts.models.run_by(call):
                yield from () if facts.regions.under(call, NO_GRAD) else ("network",)
            else:
                yield from given
        elif meaning.startswith("builtins."):
            yield from () if meaning in ("builtins.len", "builtins.int", "builtins.float", "builtins.str", "builtins.range") else given
        elif functions := list(called(facts, call)):
            for there, function in functions:
                nodes = (node for statement in function.body for node in walk_here(statement))
                returned = [node.value for node in nodes if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None]
                yield from ((there, value) for value in returned) if function.name != "__init__" else given
        elif source is not None:
            yield from [*given, (facts, source)]
        elif meaning:
            yield from given
        else:
            yield _UNKNOWN

    def _of_torch(self, call: ast.Call, meaning: str, name: str) -> Iterator[str | tuple[Facts, ast.expr]]:
        facts = self._facts
        needs = keyword(call, "requires_grad")
        if needs is not None and not is_constant(needs.value, False):
            yield "leaf"
        elif name in ("Variable", "Parameter") and meaning != "torch.autograd.Variable":
            yield "leaf"
        elif not (name in GRAPHLESS_FUNCTIONS or name in _MAKERS or meaning.startswith(("torch.cuda.", "torch.utils.data."))):
            yield from ((facts, item) for item in (*call.args, *(item.value for item in call.keywords)))
