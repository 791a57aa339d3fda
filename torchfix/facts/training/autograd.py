"""Code that uses autograd itself: what sends something backward, takes gradients, steps or switches gradients, seen through its calls.

Such code means something else, or fails, where gradients are off.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import is_constant, receiver
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, Function, last_name, walk_evaluated
from torchfix.facts.data.traits import DATA_METHODS
from torchfix.facts.training.gradients import GRADIENT_CALLS, NO_GRAPHS, SENDING
from torchfix.facts.training.models import is_module_class

if TYPE_CHECKING:
    from torchfix.facts import Facts

Use = tuple["Facts", ast.AST]
"""The place at which autograd is used, with the facts of its file."""

_CALLS = frozenset(
    """backward manual_backward requires_grad_ retain_grad register_hook register_full_backward_hook register_backward_hook
    enable_grad set_grad_enabled is_grad_enabled jacobian hessian jacrev jacfwd vjp jvp gradgradcheck gradcheck""".split()
)
_NO_USE = ("torch.autograd.Variable", "torch.autograd.no_grad", "torch.autograd.profiler.", "torch.autograd.set_detect_anomaly")
# Methods of containers that objects of the project often have too.
_OF_OBJECTS_TOO = frozenset("update append add get put pop clear remove insert query head index count find".split())
_OF_DATA = DATA_METHODS - _OF_OBJECTS_TOO
_ATTACKS = ("captum.", "torchattacks.", "foolbox.", "art.", "advertorch.", "cleverhans.", "pytorch_grad_cam.")
_TRACERS = ("torch.jit.trace", "torch.jit.script", "torch.onnx.", "torch.export.", "torch.compile", "torch.fx.", "torch.cuda.make_graphed")


class Autograd:
    """Questions about the uses of autograd in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._functions: dict[Function, Use | None] = {}
        self._networks: dict[ast.AST, Use | None] = {}
        self._training: dict[Function, bool] = {}

    def used_in(self, nodes: Iterable[ast.AST]) -> Use | None:
        """The plainest use of autograd in some statements or expressions, or in what they call of the project.

        The first that their own text shows, else the first behind their calls; the layers of networks that they run count too.
        """
        facts = self._facts
        inside = [item for node in nodes if not isinstance(node, (*FUNCTIONS, ast.ClassDef)) for item in walk_evaluated(node)]
        shown = next((item for item in inside if self._shows_use(item)), None)
        if shown is not None:
            return facts, shown
        found = (self._behind(item) for item in inside if isinstance(item, ast.Call))
        return next((use for use in found if use is not None), None)

    def used_by(self, function: Function) -> Use | None:
        """The plainest use of autograd in a function, or in what it calls."""
        if function not in self._functions:
            self._functions[function] = None  # a function that calls itself adds nothing new
            self._functions[function] = self.used_in(function.body)
        return self._functions[function]

    def trains_in(self, nodes: Iterable[ast.AST]) -> bool:
        """Whether some statements, or what they call of the project, send something backward."""
        calls = (item for node in nodes for item in walk_evaluated(node) if isinstance(item, ast.Call))
        return any(self._sends(call) for call in calls)

    def trains(self, function: Function) -> bool:
        """Whether a function, or what it calls, sends something backward."""
        if function not in self._training:
            self._training[function] = False  # a function that calls itself adds nothing new
            self._training[function] = self.trains_in(function.body)
        return self._training[function]

    def _sends(self, call: ast.Call) -> bool:
        if last_name(call.func) in SENDING:
            return True
        if is_of_a_library(self._facts, call):
            return False
        return any(there.autograd.trains(function) for there, function in called(self._facts, call))

    def _shows_use(self, node: ast.AST) -> bool:
        """Whether a node uses autograd by what its own text says."""
        if isinstance(node, ast.Attribute):
            return self._touches_gradients(node)
        if not isinstance(node, ast.Call):
            return False
        meaning = self._facts.calls.meaning(node) or self._of_partial(node)
        by_hand = meaning.startswith((*GRADIENT_CALLS, *_ATTACKS, *_TRACERS)) and not meaning.startswith(_NO_USE)
        return by_hand or last_name(node.func) in _CALLS

    def _behind(self, call: ast.Call) -> Use | None:
        """The use of autograd behind a call: in an optimizer's step, in functions of the project, or in the networks that it runs."""
        facts, source = self._facts, receiver(call)
        if last_name(call.func) == "step" and source is not None and facts.optimizers.of(source):
            return facts, call
        if is_of_a_library(facts, call):
            return self._of_networks(call)
        functions = list(called(facts, call))
        if not functions and any(facts.optimizers.of(item) for item in (*call.args, *(item.value for item in call.keywords))):
            return facts, call  # code out of sight that is given an optimizer
        for there, function in functions:
            found = there.autograd.used_by(function)
            if found is not None:
                return found
        return self._of_networks(call)

    def _of_partial(self, call: ast.Call) -> str:
        """The dotted name of the function in which ``functools.partial`` fixed arguments for what is called; empty where there is none."""
        facts = self._facts
        if "partial" not in facts.tree.calls or not isinstance(call.func, (ast.Name, ast.Attribute)):
            return ""
        made = facts.values.single(call.func)
        if made is None or not isinstance(made.node, ast.Call) or made.facts.calls.meaning(made.node) != "functools.partial":
            return ""
        return made.facts.names.qualified(made.node.args[0]) or "" if made.node.args else ""

    def _touches_gradients(self, node: ast.Attribute) -> bool:
        """Whether an attribute is a tensor's gradient, or asks or sets whether it has one."""
        if node.attr not in ("grad", "requires_grad", "grad_fn") or self._facts.names.qualified(node) is not None:
            return False
        parent = self._facts.tree.parent(node)
        return not (isinstance(parent, ast.Assign) and (is_constant(parent.value, False) or is_constant(parent.value, None)))

    def _of_networks(self, call: ast.Call) -> Use | None:
        """The first use of autograd in the forward passes of the networks that a call runs."""
        for network in self._facts.models.of(call.func) or ():
            if network.definition is not None:
                for definition in network.definition.facts.models.hidden_classes(network.definition):
                    found = definition.facts.autograd._of_class(definition)
                    if found is not None:
                        return found
        return None

    def _of_class(self, definition: Definition) -> Use | None:
        if definition.node not in self._networks:
            self._networks[definition.node] = None  # layers that hold each other add nothing new
            body = definition.node.body if isinstance(definition.node, ast.ClassDef) and is_module_class(definition) else []
            forwards = [item for item in body if isinstance(item, FUNCTIONS) and item.name in ("forward", "__call__")]
            found = (self.used_by(function) for function in forwards)
            self._networks[definition.node] = next((item for item in found if item is not None), None)
        return self._networks[definition.node]


def is_of_a_library(facts: Facts, call: ast.Call) -> bool:
    """Whether a call surely runs no code of the project: of Python, torch or NumPy, or a method of containers and tensors."""
    if (facts.calls.meaning(call) or "").startswith(("builtins.", "torch.", *NO_GRAPHS)):
        return True
    named = isinstance(call.func, ast.Attribute) and call.func.attr in _OF_DATA
    return named and facts.own_method(call) is None
