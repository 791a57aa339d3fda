"""Whether a value carries a graph: whether autograd keeps, with it, the steps and tensors that made it.

Asked backwards, from a value to what made it. A graph begins at what a network computes while gradients are on, and
ends where a value is detached or made a number. What is out of sight may carry one, but does not surely.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import is_constant, keyword, receiver
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import COMPREHENSIONS, FUNCTIONS, last_name, walk_here
from torchfix.facts.code.values import passed
from torchfix.facts.training.gradients import (
    GRAPHLESS_ATTRIBUTES,
    GRAPHLESS_FUNCTIONS,
    GRAPHLESS_METHODS,
    KEEPING,
    NO_GRAPHS,
    gives_indices,
)
from torchfix.facts.training.regions import NO_GRAD

if TYPE_CHECKING:
    from torchfix.facts import Facts

_MAKERS = frozenset(
    """zeros ones empty full arange linspace tensor as_tensor from_numpy eye rand randn randint randperm Tensor FloatTensor LongTensor
    device no_grad Generator Size manual_seed utils.data.DataLoader""".split()
)
_UNKNOWN = "unknown"
_MOST = 600  # expressions looked at before a value counts as unknown


Origin: TypeAlias = "tuple[Facts, ast.expr, tuple[int, ...]]"
"""An expression that made a value, or a part of one: the indexes of the part into what the expression gives."""


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

    def has_weights(self, expression: ast.expr) -> bool:
        """Whether weights in sight took part in a value with gradients on: a network's, a parameter, or what requires one."""
        return bool(self._origins(expression) - {_UNKNOWN})

    def surely_carries(self, expression: ast.expr) -> bool:
        """Whether a network in sight took part in a value on every way to it, with nothing that cuts it off seen since."""
        return self._surely(expression, frozenset())

    def _surely(self, node: ast.expr, seen: frozenset[ast.AST]) -> bool:
        facts = self._facts
        if isinstance(node, ast.Name):
            bindings = facts.flow.reaching(node)
            return bool(bindings) and all(self._is_surely_bound(binding, seen) for binding in bindings)
        if isinstance(node, ast.IfExp):
            return self._surely(node.body, seen) and self._surely(node.orelse, seen)
        if isinstance(node, ast.BinOp):
            return self._surely(node.left, seen) or self._surely(node.right, seen)
        if isinstance(node, ast.UnaryOp):
            return self._surely(node.operand, seen)
        if isinstance(node, ast.Subscript):
            return self._surely(node.value, seen)
        if isinstance(node, ast.Attribute):
            return node.attr not in GRAPHLESS_ATTRIBUTES and self._surely(node.value, seen)
        if not isinstance(node, ast.Call) or last_name(node.func) in GRAPHLESS_METHODS | GRAPHLESS_FUNCTIONS:
            return False
        if facts.models.run_by(node):
            return not facts.regions.under(node, NO_GRAD)
        source = receiver(node)
        return any(self._surely(item, seen) for item in (*node.args, *([source] if source is not None else [])))

    def _is_surely_bound(self, binding: Binding, seen: frozenset[ast.AST]) -> bool:
        if binding.node in seen or binding.value is None or binding.how not in (Bound.ASSIGN, Bound.AUGMENTED):
            return False
        seen |= {binding.node}
        before = binding.node.target if isinstance(binding.node, ast.AugAssign) else None
        return self._surely(binding.value, seen) or (before is not None and self._surely(before, seen))

    def _origins(self, expression: ast.expr) -> frozenset[str]:
        if expression not in self._asked:
            found: set[str] = set()
            seen: set[tuple[int, tuple[int, ...]]] = set()
            waiting: list[Origin] = [(self._facts, expression, ())]
            while waiting:
                facts, node, path = waiting.pop()
                if (id(node), path) in seen:
                    continue
                seen.add((id(node), path))
                if len(seen) > _MOST:
                    found.add(_UNKNOWN)
                    break
                for item in facts.graphs._step(node, path):
                    if isinstance(item, str):
                        found.add(item)
                    else:
                        waiting.append(item)
            self._asked[expression] = frozenset(found)
        return self._asked[expression]

    def _step(self, node: ast.expr, path: tuple[int, ...]) -> Iterator[str | Origin]:
        """What made a value, one step back: expressions, or the word for what can be followed no further."""
        facts = self._facts
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.Compare, ast.Lambda)):
            return
        if isinstance(node, (ast.Name, ast.Attribute)) and self._is_object(node):
            return
        if isinstance(node, ast.Name):
            bindings = facts.flow.reaching(node)
            yield from () if bindings else (_UNKNOWN,)
            for binding in bindings:
                yield from self._bound(binding, path)
            for use in (*facts.writes.to(node), *self.collecting(node)):
                yield from self._written(use)
        elif isinstance(node, (ast.Tuple, ast.List)) and path and not any(isinstance(item, ast.Starred) for item in node.elts):
            yield from ((facts, item, path[1:]) for item in node.elts[path[0] : path[0] + 1])
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node)
        elif isinstance(node, ast.Subscript):
            if isinstance(node.slice, ast.Constant) and type(node.slice.value) is int and node.slice.value >= 0:
                yield facts, node.value, (node.slice.value, *path)
            else:
                yield facts, node.value, ()
        elif isinstance(node, ast.Call):
            if not self._gives_index(node, path):
                yield from self._call(node, path)
        elif isinstance(node, COMPREHENSIONS):
            yield facts, node.value if isinstance(node, ast.DictComp) else node.elt, ()
        elif isinstance(node, ast.IfExp):
            yield from ((facts, item, path) for item in (node.body, node.orelse))
        elif isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom)):
            yield _UNKNOWN
        else:
            yield from ((facts, item, ()) for item in ast.iter_child_nodes(node) if isinstance(item, ast.expr))

    def _gives_index(self, call: ast.Call, path: tuple[int, ...]) -> bool:
        """Whether a part of what a call gives is indices: of the pair of a tensor's values and their indices the second."""
        position = 1 if (self._facts.calls.meaning(call) or "").startswith("torch.") else 0
        return path[:1] == (1,) and gives_indices(call, position)

    def _is_object(self, node: ast.expr) -> bool:
        """Whether an expression is a network, an optimizer, or a library's name, none of which is a tensor."""
        facts = self._facts
        return bool(facts.models.of(node) or facts.optimizers.of(node)) or facts.names.qualified(node) is not None

    def _bound(self, binding: Binding, path: tuple[int, ...]) -> Iterator[str | Origin]:
        facts = self._facts
        if binding.how is Bound.PARAMETER and isinstance(binding.node, ast.arg):
            yield from self._given(binding.node)
        elif binding.how is Bound.AUGMENTED and isinstance(binding.node, ast.AugAssign):
            yield facts, binding.node.value, path
            if isinstance(binding.node.target, ast.Name):
                yield facts, binding.node.target, path  # as it was before
        elif binding.how is Bound.LOOP and binding.path[:1] == (0,) and self._counts(binding.value):
            return
        elif binding.value is not None:
            yield facts, binding.value, () if binding.how is Bound.LOOP else (*binding.path, *path)
        elif binding.how not in (Bound.IMPORT, Bound.FUNCTION, Bound.CLASS):
            yield _UNKNOWN

    def _counts(self, iterable: ast.expr | None) -> bool:
        """Whether the first part of what an iterable gives is a count."""
        return isinstance(iterable, ast.Call) and self._facts.calls.meaning(iterable) == "builtins.enumerate"

    def collecting(self, name: ast.Name) -> Iterator[ast.Name]:
        """The uses of a variable by which the container that it holds is given something to keep: ``x.append(y)``."""
        for use in self._facts.names.uses(name):
            method = self._facts.tree.parent(use)
            call = self._facts.tree.parent(method) if isinstance(method, ast.Attribute) and method.attr in KEEPING else None
            if isinstance(call, ast.Call) and call.func is method:
                yield use

    def _written(self, use: ast.Name) -> Iterator[str | Origin]:
        """What is written in place into the tensor that a variable holds: ``x[i] = y``, ``x.add_(y)``."""
        for outer in self._facts.tree.ancestors(use):
            if isinstance(outer, ast.Call) and use not in outer.args:
                yield from ((self._facts, item, ()) for item in (*outer.args, *(item.value for item in outer.keywords)))
            if isinstance(outer, (ast.Assign, ast.AugAssign)) and not self._facts.tree.is_within(use, outer.value):
                yield self._facts, outer.value, ()
            if isinstance(outer, ast.stmt):
                return

    def _given(self, parameter: ast.arg) -> Iterator[str | Origin]:
        """What the callers pass for a parameter."""
        signature = self._facts.tree.parent(parameter)
        function = self._facts.tree.parent(signature) if signature is not None else None
        if not isinstance(function, FUNCTIONS):
            yield _UNKNOWN
            return
        bound = self._facts.tree.class_of(function) is not None
        for facts, call in self._facts.callers_everywhere(function) or ((self._facts, None),):
            given = passed(call, function, parameter, bound) if call is not None else None
            yield _UNKNOWN if given is None else (facts, given, ())

    def _attribute(self, node: ast.Attribute) -> Iterator[str | Origin]:
        if node.attr in GRAPHLESS_ATTRIBUTES:
            return
        assigned = self._facts.values.assigned(node)
        if assigned:
            yield from ((self._facts, value, inner) for value, inner in assigned)
        elif assigned is None or (isinstance(node.value, ast.Name) and self._facts.is_self(node.value)):
            yield _UNKNOWN
        elif self._facts.models.of(node.value):
            yield "leaf"  # it may be a parameter
        else:
            yield self._facts, node.value, ()

    def _call(self, call: ast.Call, path: tuple[int, ...]) -> Iterator[str | Origin]:
        facts = self._facts
        name, meaning = last_name(call.func) or "", facts.calls.meaning(call) or ""
        source = receiver(call)
        given = [(facts, item, ()) for item in (*call.args, *(item.value for item in call.keywords))]
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
                yield from ((there, value, path) for value in returned) if function.name != "__init__" else given
        elif source is not None:
            yield from [*given, (facts, source, ())]
        elif meaning:
            yield from given
        else:
            yield _UNKNOWN

    def _of_torch(self, call: ast.Call, meaning: str, name: str) -> Iterator[str | Origin]:
        facts = self._facts
        needs = keyword(call, "requires_grad")
        if needs is not None and not is_constant(needs.value, False):
            yield "leaf"
        elif meaning == "torch.load":
            yield _UNKNOWN
        elif name in ("Variable", "Parameter") and meaning != "torch.autograd.Variable":
            yield "leaf"
        elif not (name in GRAPHLESS_FUNCTIONS or name in _MAKERS or meaning.startswith(("torch.cuda.", "torch.utils.data."))):
            yield from ((facts, item, ()) for item in (*call.args, *(item.value for item in call.keywords)))
