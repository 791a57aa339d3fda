"""Probabilities that losses are given: whether a sigmoid makes them all, and who else reads them.

What a loss takes as logits must no longer pass through the sigmoid; every other reader then applies it where it reads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from torchfix.facts.code.calls import argument, has_stars, receiver
from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import FUNCTIONS, Function, dotted, walk
from torchfix.facts.code.values import returns
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.models import Network
from torchfix.facts.training.module_calls import RUNNERS, OutOfSight, calls_of

if TYPE_CHECKING:
    from torchfix.facts import Facts

LOSS_CLASS, LOSS_FUNCTION = "torch.nn.BCELoss", "torch.nn.functional.binary_cross_entropy"
_SIGMOIDS = ("torch.sigmoid", "torch.nn.functional.sigmoid", "torch.special.expit")
# What may stand between a sigmoid and a loss: it only arranges numbers, so that it may as well come before the sigmoid.
_ARRANGING = frozenset("view reshape squeeze unsqueeze flatten contiguous permute transpose t to cuda cpu float".split())
_ARRANGERS = tuple(f"torch.{name}" for name in ("squeeze", "unsqueeze", "flatten", "reshape", "permute", "transpose"))

_OF_ITS_SHAPE = ("shape", "dtype", "device", "ndim", "size", "dim", "numel")
_OF_THE_GRAPH = ("backward", "register_hook")

Place: TypeAlias = "tuple[Facts, ast.expr]"


class _Stopped(Exception):
    """The search met an obstacle."""

    def __init__(self, code: str, facts: Facts, node: ast.AST, text: str, help: str) -> None:
        super().__init__()
        place = f"{facts.path}:{getattr(node, 'lineno', 1)}"
        self.obstacle = Obstacle(code, f"{place}: {text}", help)


@dataclass(frozen=True)
class Logits:
    """What makes losses see logits.

    Args:
        losses: those that are given the same probabilities, so that they change together or not at all.
        sigmoids: calls of a sigmoid, whose operand takes their place.
        layers: constructions of ``nn.Sequential`` whose last layer, a sigmoid, goes.
        readers: what has to go through a sigmoid where it stands, since it now holds logits.
    """

    losses: tuple[tuple[Facts, ast.Call], ...]
    sigmoids: tuple[tuple[Facts, ast.Call], ...]
    layers: tuple[tuple[Facts, ast.Call], ...]
    readers: tuple[Place, ...]


def logits_of(facts: Facts, loss: ast.Call) -> Logits | Obstacle:
    """What makes a loss see logits, with all other losses that are given the same probabilities; or what stands in the way.

    Args:
        facts: the file of the loss.
        loss: a construction of ``nn.BCELoss``, or a call of ``binary_cross_entropy``.
    """
    search = _Search()
    try:
        search.join(facts, loss)
        search.settle()
    except _Stopped as stopped:
        return stopped.obstacle
    except OutOfSight as lost:
        help = "give the loss logits by hand, and apply the sigmoid wherever else the output is read"
        text = f"{lost.facts.path}:{getattr(lost.node, 'lineno', 1)}: the network, or the loss, goes where it may be called unseen"
        return Obstacle("out-of-sight", text, help)
    calls = (tuple(search.losses.values()), tuple(search.sigmoids.values()), tuple(search.layers.values()))
    return Logits(*calls, tuple(search.readers.values()))


def losses(facts: Facts) -> Iterator[ast.Call]:
    """The losses of a file that take probabilities: constructions of ``nn.BCELoss``, and calls of ``binary_cross_entropy``."""
    return facts.calls.to(LOSS_CLASS, LOSS_FUNCTION)


def operand(facts: Facts, expression: ast.expr) -> ast.expr | None:
    """What a call of a sigmoid is given, None for anything else."""
    if not isinstance(expression, ast.Call) or has_stars(expression):
        return None
    if facts.calls.meaning(expression) in _SIGMOIDS or _is_sigmoid(facts, expression.func):
        return argument(expression, "input", 0) if len(expression.args) + len(expression.keywords) == 1 else None
    source = receiver(expression)
    is_method = isinstance(expression.func, ast.Attribute) and expression.func.attr == "sigmoid"
    return source if is_method and not expression.args and not expression.keywords and facts.calls.meaning(expression) is None else None


def _is_sigmoid(facts: Facts, expression: ast.expr) -> bool:
    networks = facts.models.of(expression)
    return bool(networks) and all(network.library == "torch.nn.Sigmoid" for network in networks or ())


@dataclass
class _Search:
    """The way back from losses to sigmoids, and on from these to all who read them."""

    losses: dict[ast.AST, tuple[Facts, ast.Call]] = field(default_factory=dict)
    sigmoids: dict[ast.AST, tuple[Facts, ast.Call]] = field(default_factory=dict)
    layers: dict[ast.AST, tuple[Facts, ast.Call]] = field(default_factory=dict)
    readers: dict[ast.AST, Place] = field(default_factory=dict)
    _taken: set[ast.AST] = field(default_factory=set)
    _bindings: dict[Binding, tuple[Facts, ast.Name]] = field(default_factory=dict)
    _calls: dict[ast.AST, tuple[Facts, ast.Call]] = field(default_factory=dict)
    _networks: set[ast.AST] = field(default_factory=set)

    def take(self, facts: Facts, expression: ast.expr) -> None:
        """Have an expression give logits."""
        self._taken.add(expression)
        node = _arranged(facts, expression)
        if node is not expression:
            self._taken.add(node)
        if isinstance(node, ast.Name):
            self._variable(facts, node)
        elif isinstance(node, ast.Call) and operand(facts, node) is not None:
            self.sigmoids[node] = (facts, node)
        elif isinstance(node, ast.Call) and (networks := _run_by(facts, node)):
            for network in networks:
                self._network(facts, node, network)
        else:
            self._stop(facts, node)

    def join(self, facts: Facts, loss: ast.Call) -> None:
        """Have a loss, in all its calls, see logits."""
        if loss in self.losses:
            return
        self.losses[loss] = (facts, loss)
        for home, call in [(facts, loss)] if facts.calls.meaning(loss) == LOSS_FUNCTION else calls_of([(facts, loss)]):
            given = argument(call, "input", 0)
            if given is None or has_stars(call):
                raise _Stopped("arguments-unseen", home, call, "the loss gets its probabilities out of sight", "pass them one by one")
            self.take(home, given)

    def settle(self) -> None:
        """Find who else reads what gives logits now; another loss among them joins."""
        known = -1
        while known != len(self.losses):
            known = len(self.losses)
            for facts, node in list(self._others()):
                for home, loss in list(self._fed(facts, node, set())):
                    self.join(home, loss)
        for facts, node in list(self._others()):
            self._read(facts, node)

    def _others(self) -> Iterator[Place]:
        """What reads logits without taking them."""
        for facts, call in list(self._calls.values()):
            if not self._goes_on(facts, call):
                yield facts, call
        for binding, (facts, name) in list(self._bindings.items()):
            for use in facts.names.uses(name):
                if not isinstance(use.ctx, ast.Load) or binding not in facts.flow.reaching(use):
                    continue
                if not all(other in self._bindings for other in facts.flow.reaching(use)):
                    self._stop(facts, use)
                if not self._goes_on(facts, use):
                    yield facts, use

    def _fed(self, facts: Facts, node: ast.expr, seen: set[ast.AST]) -> Iterator[tuple[Facts, ast.Call]]:
        """The losses that a reader hands the probabilities to, as they are or through variables."""
        outer = list(_arranging(facts, node))[-1]
        parent = facts.tree.parent(outer)
        if outer in seen:
            return
        seen.add(outer)
        if isinstance(parent, ast.keyword):
            parent = facts.tree.parent(parent)
        if isinstance(parent, ast.Call) and argument(parent, "input", 0) is outer:
            if facts.calls.meaning(parent) == LOSS_FUNCTION:
                yield facts, parent
            for network in facts.models.of(parent.func) or ():
                made = network.value.node
                if network.library == LOSS_CLASS and isinstance(made, ast.Call):
                    yield network.value.facts, made
        elif isinstance(parent, ast.Return):
            function = facts.tree.function(parent)
            if function is not None and function.name == "forward":
                self._stop(facts, parent)  # the end of another network
        elif isinstance(parent, ast.Assign):
            for target in (target for target in parent.targets if isinstance(target, ast.Name)):
                for use in facts.names.uses(target):
                    if isinstance(use.ctx, ast.Load) and any(binding.node is parent for binding in facts.flow.reaching(use)):
                        yield from self._fed(facts, use, seen)

    @staticmethod
    def _stop(facts: Facts, node: ast.AST) -> None:
        help = "keep BCELoss and compute it in float32 outside autocast, or return logits by hand"
        raise _Stopped("not-a-sigmoid", facts, node, "these probabilities are not seen to come from a sigmoid", help)

    def _goes_on(self, facts: Facts, node: ast.expr) -> bool:
        """Whether what holds logits goes to those alone who take them: a loss, a variable of logits, the end of a network."""
        for outer in _arranging(facts, node):
            if outer in self._taken:
                return True
            parent = facts.tree.parent(outer)
            if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
                return any(binding.node is parent for binding in self._bindings)
        return False

    def _read(self, facts: Facts, node: ast.expr) -> None:
        parent = facts.tree.parent(node)
        asked = parent.attr if isinstance(parent, ast.Attribute) else ""
        if isinstance(parent, ast.Expr) or asked in _OF_ITS_SHAPE:
            return
        changed = isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load)
        method = isinstance(parent, ast.Attribute) and isinstance(facts.tree.parent(parent), ast.Call) and not asked.endswith("_")
        if changed or (asked and (not method or asked in _OF_THE_GRAPH)):
            text = "this is done with the output itself, not with its values"
            raise _Stopped("tied-to-the-output", facts, node, text, "apply the sigmoid by hand")
        if any(isinstance(outer, ast.Call) and facts.calls.meaning(outer) == "torch.autograd.grad" for outer in facts.tree.ancestors(node)):
            raise _Stopped("tied-to-the-output", facts, node, "a gradient is taken of the output, or to it", "apply the sigmoid by hand")
        self.readers[node] = (facts, node)

    # Variables -----------------------------------------------------------------------------------------------------

    def _variable(self, facts: Facts, name: ast.Name) -> None:
        bindings = facts.flow.reaching(name)
        if not bindings or (facts.names.scope(name) is facts.names.module and facts.project.mentions(name.id, facts.path)):
            self._stop(facts, name)
        for binding in bindings:
            node, value = binding.node, binding.value
            if binding in self._bindings:
                continue
            alone = isinstance(node, ast.Assign) and len(node.targets) == 1
            if binding.how is not Bound.ASSIGN or binding.path or not alone or value is None:
                self._stop(facts, node)
            else:
                self._bindings[binding] = (facts, name)
                self.take(facts, value)

    # Networks ------------------------------------------------------------------------------------------------------

    def _network(self, facts: Facts, call: ast.Call, network: Network) -> None:
        """Have a network end in logits."""
        made = network.value.node
        key = network.definition.node if network.definition is not None else made
        if key in self._networks:
            return
        self._networks.add(key)
        if network.definition is not None:
            forward = _forward(network.definition)
            if forward is None:
                self._stop(facts, call)
                return
            for value in returns(forward):
                self.take(network.definition.facts, value)
            makers = list(self._makers(network.definition))
        elif network.library == "torch.nn.Sequential" and isinstance(made, ast.Call) and _ends_in_sigmoid(network.value.facts, made):
            self.layers[made] = (network.value.facts, made)
            makers = [(network.value.facts, made)]
        else:
            self._stop(facts, call)
            return
        self._calls |= {node: (there, node) for there, node in calls_of(makers)}
        if call not in self._calls:
            raise OutOfSight(facts, call)

    @staticmethod
    def _makers(definition: Definition) -> Iterator[tuple[Facts, ast.Call]]:
        """Every construction of a network's class in the project."""
        home, owner = definition.facts, definition.node
        assert isinstance(owner, ast.ClassDef)
        if home.classes.heirs(owner) or owner.decorator_list:
            raise OutOfSight(home, owner)
        for path in sorted({home.path, *home.project.holding(owner.name)}):
            there = home if path == home.path else home.project.file(path)
            if there is None:
                raise OutOfSight(home, owner)
            names = {owner.name, *there.names.locals_of(owner.name)}
            for node in walk(there.source.tree):
                if isinstance(node, ast.Constant) and node.value == owner.name:
                    raise OutOfSight(there, node)
                if not isinstance(node, (ast.Name, ast.Attribute)) or (node.id if isinstance(node, ast.Name) else node.attr) not in names:
                    continue
                meant, parent = there.names.definition(node), there.tree.parent(node)
                if meant is not None and meant.node is not owner:
                    continue
                if meant is not None and isinstance(parent, ast.Call) and parent.func is node:
                    yield there, parent
                elif not (isinstance(parent, ast.Call) and parent.args[:1] == [node] and there.calls.meaning(parent) == "builtins.super"):
                    raise OutOfSight(there, node)


def _arranged(facts: Facts, expression: ast.expr) -> ast.expr:
    """An expression without what only arranges its numbers."""
    while isinstance(expression, ast.Call):
        source = receiver(expression)
        if facts.calls.meaning(expression) in _ARRANGERS and expression.args:
            expression = expression.args[0]
        elif source is not None and isinstance(expression.func, ast.Attribute) and expression.func.attr in _ARRANGING:
            expression = source
        else:
            break
    return expression


def _arranging(facts: Facts, node: ast.expr) -> Iterator[ast.expr]:
    """An expression, and those around it that only arrange its numbers, from the inside outwards."""
    yield node
    for outer in facts.tree.ancestors(node):
        if not isinstance(outer, (ast.Call, ast.Attribute)) or (isinstance(outer, ast.Call) and _arranged(facts, outer) is not node):
            return
        if isinstance(outer, ast.Call):
            yield outer


def _run_by(facts: Facts, call: ast.Call) -> tuple[Network, ...]:
    """The networks that a call runs."""
    run = call.args[0] if facts.calls.meaning(call) in RUNNERS and call.args else call.func
    return facts.models.of(run) or ()


def _forward(definition: Definition) -> Function | None:
    """The ``forward`` of a network's class where it alone says what calling the network gives."""
    owner = definition.node
    assert isinstance(owner, ast.ClassDef)
    found = [item for item in owner.body if isinstance(item, FUNCTIONS) and item.name == "forward"]
    named = [dotted(base) for base in owner.bases]
    plain = len(named) == 1 and definition.facts.names.qualified(owner.bases[0]) == "torch.nn.Module"
    called = any(isinstance(item, FUNCTIONS) and item.name == "__call__" for item in owner.body)
    bare = any(
        isinstance(node, ast.Name)
        and definition.facts.is_self(node)
        and not isinstance(definition.facts.tree.parent(node), ast.Attribute)
        and not _is_super(definition.facts, node)
        for node in walk(owner)
    )
    forward = any(isinstance(node, ast.Attribute) and node.attr == "forward" for node in walk(owner))
    usable = len(found) == 1 and plain and not called and not bare and not forward
    return found[0] if usable and not found[0].decorator_list and returns(found[0]) else None


def _is_super(facts: Facts, node: ast.Name) -> bool:
    parent = facts.tree.parent(node)
    return isinstance(parent, ast.Call) and (facts.calls.meaning(parent) == "builtins.super" or _is_init(parent))


def _is_init(call: ast.Call) -> bool:
    """Whether a call is the old ``nn.Module.__init__(self)``."""
    return isinstance(call.func, ast.Attribute) and call.func.attr == "__init__"


def _ends_in_sigmoid(facts: Facts, call: ast.Call) -> bool:
    """Whether an ``nn.Sequential`` is written out and has a sigmoid as its last layer."""
    if len(call.args) < 2 or call.keywords:
        return False
    last = call.args[-1]
    return isinstance(last, ast.Call) and facts.calls.meaning(last) == "torch.nn.Sigmoid"
