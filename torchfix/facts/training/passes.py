"""Forward passes: which calls run a network with gradients on, what becomes of what they compute, and what they are for.

A function of the project that runs a network for training and for evaluation alike counts as a forward pass where it is
called: what becomes of its output depends on who calls it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import is_constant, receiver
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import LOOPS, Function, dotted, last_name, walk_here
from torchfix.facts.training.autograd import is_of_a_library
from torchfix.facts.training.gradients import End, Entered, Fate, Stack
from torchfix.facts.training.models import is_module_class
from torchfix.facts.training.regions import NO_GRAD

if TYPE_CHECKING:
    from torchfix.facts import Facts

SWITCHES = (
    *NO_GRAD,
    "torch.enable_grad",
    "torch.set_grad_enabled",
    "torch.autograd.no_grad",
    "torch.autograd.grad_mode.no_grad",
    "torch.autograd.set_grad_enabled",
    "torch.autograd.inference_mode",
)
"""What says itself whether gradients are on."""
_TESTING = ("pytest", "unittest", "nose")
_LOSSES = ("cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")
_DEPTH = 3  # callers asked above a function, and calls entered below one


class Passes:
    """The forward passes of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._lending: dict[Function, bool] = {}
        self._layers: dict[Function, bool] = {}

    @cached_property
    def all(self) -> list[ast.Call]:
        """The calls that run a network with gradients on, outside networks themselves and unit tests, in text order."""
        if self._is_unit_test:
            return []
        found = [call for calls in self._facts.tree.calls.values() for call in calls if self.runs(call) and not self.is_in_network(call)]
        return sorted(found, key=lambda call: (call.lineno, call.col_offset))

    def runs(self, call: ast.Call) -> bool:
        """Whether a call runs a network with gradients on: itself, or in a function that training uses too."""
        facts = self._facts
        if is_of_a_library(facts, call) or facts.regions.under(call, SWITCHES):
            return False
        if self.runs_directly(call):
            return True
        return any(there.passes.lends(function) for there, function in called(facts, call))

    def fate(self, call: ast.Call, through: Stack = ()) -> Fate:
        """What becomes of what networks compute in a call, the worst of it.

        Args:
            call: one that :meth:`runs` a network.
            through: the calls by which the function around it came to run, the innermost last.
        """
        facts = self._facts
        if self.runs_directly(call):
            return facts.gradients.of_value(call, through=through)
        worst = Fate(End.UNSEEN if len(through) > _DEPTH else End.NOWHERE, facts, call)
        for there, function in called(facts, call) if len(through) <= _DEPTH else ():
            for inner in there.passes.inside(function):
                found = there.passes.fate(inner, (*through, Entered(function, facts, call)))
                worst = max(worst, found, key=lambda fate: fate.end)
        return worst

    def inside(self, function: Function) -> list[ast.Call]:
        """The calls of a function that run networks."""
        calls = (node for statement in function.body for node in walk_here(statement) if isinstance(node, ast.Call))
        return [call for call in calls if self.runs(call)]

    def runs_directly(self, call: ast.Call) -> bool:
        """Whether a call runs a network: by calling it, or a method of its class that calls layers."""
        facts = self._facts
        if not facts.models.run_by(call):
            return self.is_evaluated_object(call.func)
        if facts.models.of(call.func):
            return True
        methods = list(called(facts, call))
        return bool(methods) and all(
            there.passes.calls_layers(method) and there.autograd.used_by(method) is None for there, method in methods
        )

    def calls_layers(self, method: Function) -> bool:
        """Whether a method of a network calls that network or layers with weights, itself or through other methods."""
        if method not in self._layers:
            self._layers[method] = method.name == "forward"  # a method that calls itself adds nothing new
            calls = (node for statement in method.body for node in walk_here(statement) if isinstance(node, ast.Call))
            self._layers[method] = self._layers[method] or any(map(self._calls_layer, calls))
        return self._layers[method]

    def _calls_layer(self, call: ast.Call) -> bool:
        facts = self._facts
        if isinstance(call.func, ast.Name) and facts.is_self(call.func):
            return True
        own = facts.own_method(call)
        return self.calls_layers(own) if own is not None else bool(facts.models.of(call.func) and facts.models.run_by(call))

    def lends(self, function: Function) -> bool:
        """Whether a function runs a network whose output its callers may or may not send backward, as they please."""
        if function not in self._lending:
            self._lending[function] = False  # a function that calls itself adds nothing new
            off = any(self._facts.names.qualified(called_name(item)) in SWITCHES for item in function.decorator_list)
            inside = [] if off or function.name == "__init__" or self.is_in_network(function) else self.inside(function)
            if inside and self._facts.autograd.used_by(function) is None:
                self._lending[function] = any(self.fate(call).end is not End.NOWHERE for call in inside)
        return self._lending[function]

    def is_evaluated_object(self, func: ast.expr) -> bool:
        """Whether something called is an object out of sight that is a network all the same: it was put into evaluation here."""
        name = dotted(func)
        if name is None or self._facts.models.of(func) or self._facts.names.definition(func) is not None:
            return False
        home = self._facts.tree.function(func)
        return any(self._facts.tree.function(call) is home and dotted(source) == name for call, source in self._evals)

    @cached_property
    def _evals(self) -> list[tuple[ast.Call, ast.expr]]:
        """The ``x.eval()`` calls with their objects."""
        calls = [call for call in self._facts.tree.calls.get("eval", ()) if not call.args and not call.keywords]
        return [(call, source) for call in calls if (source := receiver(call)) is not None]

    @cached_property
    def _is_unit_test(self) -> bool:
        """Whether the file tests code, once and on small inputs."""
        imported = [alias.name for node in self._facts.tree.imports for alias in node.names]
        imported += [node.module or "" for node in self._facts.tree.imports if isinstance(node, ast.ImportFrom)]
        cases = any(last_name(base) == "TestCase" for owner in self._facts.tree.classes for base in owner.bases)
        return cases or "tests" in self._facts.path.split("/") or any(name.partition(".")[0] in _TESTING for name in imported)

    def is_in_network(self, node: ast.AST) -> bool:
        """Whether a node stands in a method of a network."""
        owner = self._facts.tree.method_class(node)
        return owner is not None and is_module_class(Definition(self._facts, owner))

    # What a pass is for ---------------------------------------------------------------------------------------

    def is_off(self, function: Function | None, _depth: int = 0) -> bool:
        """Whether gradients are off in all calls of a function, or a decorator of the project's own switches them."""
        facts = self._facts
        if function is None or _depth > _DEPTH:
            return False
        for decorator in function.decorator_list:
            definition = facts.names.definition(called_name(decorator))
            if definition is not None and any(definition.facts.names.qualified(node) in SWITCHES for node in _loads(definition.node)):
                return True
        calls = facts.callers_everywhere(function)
        return bool(calls) and all(
            there.regions.under(call, SWITCHES) or there.passes.is_off(there.tree.function(call), _depth + 1) for there, call in calls or ()
        )

    def is_worth_it(self, call: ast.Call) -> bool:
        """Whether a forward pass is one of many, or one of an evaluation, and no slip of a training step."""
        return (self.is_repeated(call) or self.is_on_purpose(call)) and not self._is_idle_loss(call)

    def is_repeated(self, call: ast.AST, _depth: int = 0) -> bool:
        """Whether a call runs again and again: in a loop, or in a function that is called in one."""
        home, loop = self._facts.tree.function(call), self._facts.tree.nearest(call, LOOPS)
        if loop is not None and self._facts.tree.function(loop) is home:
            return True
        callers = self._facts.callers_everywhere(home) if home is not None and _depth < _DEPTH else None
        return any(there.passes.is_repeated(item, _depth + 1) for there, item in callers or ())

    def is_on_purpose(self, call: ast.Call) -> bool:
        """Whether a network is put into evaluation in the same function before a forward pass, or the pass was once volatile."""
        home = self._facts.tree.function(call)
        before = any(self._facts.tree.function(item) is home and item.lineno <= call.lineno for item, _ in self._evals)
        block = self._facts.tree.block(self._facts.tree.statement(call))
        trained = any(isinstance(node, ast.Call) and last_name(node.func) == "backward" for item in block for node in walk_here(item))
        volatile = any(
            item.arg == "volatile" and is_constant(item.value, True) and self._facts.tree.function(other) is home
            for other in self._facts.tree.calls.get("Variable", ())
            for item in other.keywords
        )
        return (before and not trained) or volatile

    def _is_idle_loss(self, call: ast.Call) -> bool:
        """Whether a forward pass makes a loss that the training step beside it leaves out: a slip rather than an evaluation."""
        facts = self._facts
        home, loop = facts.tree.function(call), facts.tree.nearest(call, LOOPS)
        around = home.body if home is not None else [loop] if loop is not None else []
        if self.is_on_purpose(call) or facts.autograd.used_in(around) is None:
            return False
        assignment = facts.tree.parent(call)
        stored = ast.walk(assignment) if isinstance(assignment, ast.Assign) else ()
        targets = [node for node in stored if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        uses = [use for target in targets for use in facts.names.uses(target) if isinstance(use.ctx, ast.Load)]
        return any(self._is_part_of_loss(use) for use in (call, *uses))

    def _is_part_of_loss(self, node: ast.AST) -> bool:
        """Whether a value is given to one of torch's losses as it is, or in arithmetic."""
        facts = self._facts
        outer = facts.tree.parent(node)
        while isinstance(outer, (ast.BinOp, ast.UnaryOp, ast.Subscript)):
            outer = facts.tree.parent(outer)
        if not isinstance(outer, ast.Call):
            return False
        home, _, name = (facts.calls.meaning(outer) or "").rpartition(".")
        return facts.models.is_loss(outer.func) or (home == "torch.nn.functional" and (name.endswith("loss") or name in _LOSSES))


def called_name(expression: ast.expr) -> ast.expr:
    """What a decorator or context names, called or not."""
    return expression.func if isinstance(expression, ast.Call) else expression


def _loads(node: ast.AST) -> Iterator[ast.expr]:
    return (item for item in ast.walk(node) if isinstance(item, (ast.Name, ast.Attribute)) and isinstance(item.ctx, ast.Load))
