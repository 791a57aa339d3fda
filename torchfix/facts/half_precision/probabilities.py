"""Probabilities that losses are given: whether a sigmoid makes them all, and who else reads them.

What a loss takes as logits must no longer pass through the sigmoid; every other reader then applies it where it reads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import argument, has_stars, receiver
from torchfix.facts.code.classes import is_static
from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import Binding, Bound, parameters
from torchfix.facts.code.tree import FUNCTIONS, Function, dotted, last_name, walk
from torchfix.facts.code.values import passed, returns
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.models import Network
from torchfix.facts.training.module_calls import RUNNERS, OutOfSight, calls_of
from torchfix.facts.training.outputs import forward_of, makers, own_attributes

if TYPE_CHECKING:
    from torchfix.facts import Facts

LOSS_CLASS, LOSS_FUNCTION = "torch.nn.BCELoss", "torch.nn.functional.binary_cross_entropy"
_SIGMOIDS = ("torch.sigmoid", "torch.nn.functional.sigmoid", "torch.special.expit")
# What may stand between a sigmoid and a loss: it only arranges numbers, so that it may as well come before the sigmoid.
_ARRANGING = frozenset("view reshape squeeze unsqueeze flatten contiguous permute transpose t to cuda cpu float".split())
_ARRANGERS = tuple(f"torch.{name}" for name in ("squeeze", "unsqueeze", "flatten", "reshape", "permute", "transpose"))

_OF_ITS_SHAPE = ("shape", "dtype", "device", "ndim", "size", "dim", "numel", "nelement", "is_cuda", "requires_grad")
_OF_THE_GRAPH = ("backward", "register_hook", "retain_grad", "requires_grad_")
# Attributes that are the same numbers again.
_OF_ITS_NUMBERS = ("data", "T", "mT")

Place: TypeAlias = "tuple[Facts, ast.expr]"
Path: TypeAlias = "tuple[int, ...]"
"""The way to a part of a tuple: an index for each tuple around it."""


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
        changes_network: whether calling a network gives logits now, to those outside the project too.
    """

    losses: tuple[tuple[Facts, ast.Call], ...]
    sigmoids: tuple[tuple[Facts, ast.Call], ...]
    layers: tuple[tuple[Facts, ast.Call], ...]
    readers: tuple[Place, ...]
    changes_network: bool = False


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
    return Logits(*calls, tuple(search.readers.values()), search.changes_network)


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
    changes_network: bool = False
    _taken: set[tuple[ast.AST, Path]] = field(default_factory=set)
    _bindings: dict[tuple[Binding, Path], tuple[Facts, ast.Name]] = field(default_factory=dict)
    _calls: dict[tuple[ast.AST, Path], tuple[Facts, ast.Call]] = field(default_factory=dict)
    _ends: set[tuple[ast.AST, Path]] = field(default_factory=set)

    def take(self, facts: Facts, expression: ast.expr, path: Path = ()) -> None:
        """Have an expression, or a part of the tuple that it is, give logits."""
        if (expression, path) in self._taken:
            return
        self._taken.add((expression, path))
        node = expression if path else _arranged(facts, expression)
        if node is not expression:
            self._taken.add((node, ()))
        if isinstance(node, ast.Name):
            self._variable(facts, node, path)
        elif isinstance(node, ast.Tuple) and path and _is_whole(node) and path[0] < len(node.elts):
            self.take(facts, node.elts[path[0]], path[1:])
        elif isinstance(node, ast.Subscript) and (index := _index(node)) is not None:
            self.take(facts, node.value, (index, *path))
        elif isinstance(node, ast.Call) and not path and operand(facts, node) is not None:
            if isinstance(node.func, ast.Attribute) and _is_watched(facts, node.func):
                self._stop(facts, node)
            self.sigmoids[node] = (facts, node)
        elif isinstance(node, ast.Call) and (networks := _run_by(facts, node)):
            for network in networks:
                self._network(facts, node, network, path)
        elif isinstance(node, ast.Call) and (functions := list(called(facts, node))):
            for home, function in functions:
                self._function(home, function, path)
            if (node, path) not in self._calls:
                raise OutOfSight(facts, node)
        else:
            self._stop(facts, node)

    def join(self, facts: Facts, loss: ast.Call) -> None:
        """Have a loss, in all its calls, see logits."""
        if loss in self.losses:
            return
        alike = [(facts, loss), *_beside(facts, loss)]
        self.losses |= {item: (home, item) for home, item in alike}
        for home, call in [(facts, loss)] if facts.calls.meaning(loss) == LOSS_FUNCTION else calls_of(alike):
            given = argument(call, "input", 0)
            if given is None or has_stars(call):
                raise _Stopped("arguments-unseen", home, call, "the loss gets its probabilities out of sight", "pass them one by one")
            self.take(home, given)

    def settle(self) -> None:
        """Find who else reads what gives logits now; another loss among them joins."""
        known = (-1, -1)
        while known != (len(self.losses), len(self._bindings)):
            known = (len(self.losses), len(self._bindings))
            for facts, node in list(self._others()):
                for home, loss in list(self._fed(facts, node, set())):
                    self.join(home, loss)
        for facts, node in list(self._others()):
            self._read(facts, node)

    def _others(self) -> Iterator[Place]:
        """What reads logits without taking them."""
        for (_, path), (facts, call) in list(self._calls.items()):
            yield from self._readers_of(facts, call, path)
        for (binding, path), (facts, name) in list(self._bindings.items()):
            for use in facts.names.uses(name):
                added = isinstance(facts.tree.parent(use), ast.AugAssign) and not isinstance(use.ctx, ast.Load)
                if not (added or isinstance(use.ctx, ast.Load)) or binding not in facts.flow.reaching(use):
                    continue
                if added:
                    self._tied(facts, use)
                if not all((other, path) in self._bindings for other in facts.flow.reaching(use)):
                    self._stop(facts, use)
                yield from self._readers_of(facts, use, path)

    def _readers_of(self, facts: Facts, node: ast.expr, path: Path) -> Iterator[Place]:
        """Who reads an expression that has logits, and does not go to those alone who take them: a loss, a variable of logits."""
        parent = facts.tree.parent(node)
        if not path:
            if not self._goes_on(facts, node):
                yield facts, node
        elif (node, path) in self._taken or isinstance(parent, ast.Expr):
            return
        elif isinstance(parent, ast.Assign):
            yield from self._unpacked(facts, parent, path)
        elif isinstance(parent, ast.Subscript) and parent.value is node and (index := _index(parent)) is not None:
            if index == path[0]:
                yield from self._readers_of(facts, parent, path[1:])
        else:
            self._stop(facts, node)

    def _unpacked(self, facts: Facts, statement: ast.Assign, path: Path) -> Iterator[Place]:
        """The readers of a tuple that an assignment stores, or takes apart: the variable of the logits is one of logits now."""
        if len(statement.targets) != 1:
            self._stop(facts, statement)
        target, rest = statement.targets[0], path
        while rest and isinstance(target, (ast.Tuple, ast.List)) and _is_whole(target):
            target, rest = target.elts[rest[0]], rest[1:]
        if not isinstance(target, ast.Name):
            self._stop(facts, statement)
            return
        bound = [binding for binding in facts.names.bindings(target) if binding.node is statement and binding.name == target.id]
        if len(bound) != 1 or self._is_lent(facts, target):
            self._stop(facts, statement)
        self._bindings[bound[0], rest] = (facts, target)
        yield from ()

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
    def _stop(facts: Facts, node: ast.AST) -> NoReturn:
        help = "keep BCELoss and compute it in float32 outside autocast, or return logits by hand"
        raise _Stopped("not-a-sigmoid", facts, node, "these probabilities are not seen to come from a sigmoid", help)

    @staticmethod
    def _tied(facts: Facts, node: ast.AST) -> NoReturn:
        text = "this is done with the output itself, not with its values"
        raise _Stopped("tied-to-the-output", facts, node, text, "apply the sigmoid by hand")

    def _goes_on(self, facts: Facts, node: ast.expr) -> bool:
        """Whether what holds logits goes to those alone who take them: a loss, a variable of logits, the end of a network."""
        for outer in _arranging(facts, node):
            if (outer, ()) in self._taken:
                return True
            parent = facts.tree.parent(outer)
            if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
                return any(binding.node is parent and not path for binding, path in self._bindings)
        return False

    def _read(self, facts: Facts, node: ast.expr) -> None:
        parent = facts.tree.parent(node)
        asked = parent.attr if isinstance(parent, ast.Attribute) else ""
        if isinstance(parent, ast.Expr) or asked in _OF_ITS_SHAPE:
            return
        called_there = facts.tree.parent(parent) if isinstance(parent, ast.Attribute) else None
        is_method = isinstance(called_there, ast.Call) and called_there.func is parent
        kept = asked in _OF_THE_GRAPH or (asked and not is_method and asked not in _OF_ITS_NUMBERS)
        if kept or facts.writes.is_write(node) or _written_by_function(facts, node):
            self._tied(facts, node)
        if any(isinstance(outer, ast.Call) and facts.calls.meaning(outer) == "torch.autograd.grad" for outer in facts.tree.ancestors(node)):
            raise _Stopped("tied-to-the-output", facts, node, "a gradient is taken of the output, or to it", "apply the sigmoid by hand")
        self.readers[node] = (facts, node)

    # Variables -----------------------------------------------------------------------------------------------------

    def _variable(self, facts: Facts, name: ast.Name, path: Path) -> None:
        bindings = facts.flow.reaching(name)
        if not bindings or self._is_lent(facts, name):
            self._stop(facts, name)
        for binding in bindings:
            whole = (*binding.path, *path)
            if (binding, path) in self._bindings:
                continue
            self._bindings[binding, path] = (facts, name)
            if binding.how is Bound.PARAMETER and isinstance(binding.node, ast.arg):
                self._parameter(facts, binding.node, path)
            elif binding.how is Bound.ASSIGN and isinstance(binding.node, ast.Assign) and len(binding.node.targets) == 1 and binding.value:
                self.take(facts, binding.value, whole)
            else:
                self._stop(facts, binding.node)

    def _parameter(self, facts: Facts, parameter: ast.arg, path: Path) -> None:
        """Have a function be given logits by all of its callers."""
        function = facts.tree.nearest(parameter, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        callers = facts.callers_everywhere(function) if isinstance(function, FUNCTIONS) else None
        if not isinstance(function, FUNCTIONS) or not callers or self._may_be_replaced(facts, function):
            self._stop(facts, parameter)
        bound = facts.tree.class_of(function) is not None and not is_static(Definition(facts, function))
        for home, call in callers:
            given = passed(call, function, parameter, bound)
            if given is None:
                self._stop(home, call)
            self.take(home, given, path)

    @staticmethod
    def _is_lent(facts: Facts, name: ast.Name) -> bool:
        """Whether another file may read a variable."""
        return facts.names.scope(name) is facts.names.module and facts.project.mentions(name.id, facts.path)

    @staticmethod
    def _may_be_replaced(facts: Facts, function: Function) -> bool:
        """Whether a method of a class below may run in the place of this one."""
        owner = facts.tree.class_of(function)
        return owner is not None and bool(facts.classes.heirs(owner))

    # Functions and networks ----------------------------------------------------------------------------------------

    def _function(self, facts: Facts, function: Function, path: Path) -> None:
        """Have a function of the project return logits to all of its callers."""
        if (function, path) in self._ends:
            return
        self._ends.add((function, path))
        callers, found = facts.callers_everywhere(function), returns(function)
        if not callers or not found or self._may_be_replaced(facts, function):
            self._stop(facts, function)
        self._calls |= {(call, path): (home, call) for home, call in callers}
        for value in found:
            self.take(facts, value, path)

    def _network(self, facts: Facts, call: ast.Call, network: Network, path: Path) -> None:
        """Have a network end in logits."""
        self.changes_network = True
        made, definition = network.value.node, network.definition
        key = definition.node if definition is not None else made
        if (key, path) in self._ends:
            return
        self._ends.add((key, path))
        if definition is not None:
            forward = forward_of(definition)
            if forward is None:
                self._stop(facts, call)
            for value in returns(forward):
                self.take(definition.facts, value, path)
            calls = calls_of(makers(definition), own_attributes(definition))
        elif not path and isinstance(made, ast.Call) and ends_in_sigmoid(network, made):
            self.layers[made] = (network.value.facts, made)
            calls = calls_of([(network.value.facts, made)])
        else:
            self._stop(facts, call)
        self._calls |= {(node, path): (there, node) for there, node in calls}
        if (call, path) not in self._calls:
            raise OutOfSight(facts, call)


def _arranged(facts: Facts, expression: ast.expr) -> ast.expr:
    """An expression without what only arranges its numbers, or picks some of them."""
    while True:
        source = receiver(expression) if isinstance(expression, ast.Call) else None
        if isinstance(expression, ast.Subscript) and _index(expression) is None:
            expression = expression.value
        elif isinstance(expression, ast.Call) and facts.calls.meaning(expression) in _ARRANGERS and expression.args:
            expression = expression.args[0]
        elif source is not None and isinstance(expression, ast.Call) and last_name(expression.func) in _ARRANGING:
            expression = source
        else:
            return expression


def _arranging(facts: Facts, node: ast.expr) -> Iterator[ast.expr]:
    """An expression, and those around it that only arrange its numbers, from the inside outwards."""
    yield node
    for outer in facts.tree.ancestors(node):
        if isinstance(outer, (ast.Call, ast.Subscript)) and _arranged(facts, outer) is node:
            yield outer
        elif not isinstance(outer, ast.Attribute):
            return


def _run_by(facts: Facts, call: ast.Call) -> tuple[Network, ...]:
    """The networks that a call runs."""
    run = call.args[0] if facts.calls.meaning(call) in RUNNERS and call.args else call.func
    return facts.models.of(run) or ()


def _beside(facts: Facts, loss: ast.Call) -> Iterator[tuple[Facts, ast.Call]]:
    """The other losses of the class that the program puts where it puts this one, in the same variable or attribute."""
    kept = _kept_in(facts, loss)
    for other in facts.calls.to(LOSS_CLASS) if kept is not None else ():
        if other is not loss and _kept_in(facts, other) == kept:
            yield facts, other


def _kept_in(facts: Facts, loss: ast.Call) -> tuple[object, str] | None:
    """The variable or attribute, by its scope and name, in which the program puts a loss."""
    made: ast.AST = loss
    while isinstance(outer := facts.tree.parent(made), (ast.Attribute, ast.Call)) and getattr(outer, "func", made) is made:
        made = outer
    statement = facts.tree.parent(made)
    target = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if target is None:
        return None
    return (facts.tree.method_class(loss) if "." in target else facts.names.scope(loss)), target


def _index(node: ast.expr) -> int | None:
    """The whole number, counted from the front, by which an expression takes a part."""
    place = node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
    return place if type(place) is int and place >= 0 else None


def _is_whole(node: ast.Tuple | ast.List) -> bool:
    """Whether the items that a tuple is written with are all that it has."""
    return not any(isinstance(item, ast.Starred) for item in node.elts)


def _is_watched(facts: Facts, layer: ast.Attribute) -> bool:
    """Whether an attribute that may hold a sigmoid is used for anything but calls: a layer with hooks runs for them too."""
    files = [facts.project.file(path) for path in facts.project.holding(layer.attr) if path != facts.path]
    for there in (facts, *(other for other in files if other is not None)):
        for use in there.tree.attributes.get(layer.attr, ()):
            parent = there.tree.parent(use)
            runs = isinstance(parent, ast.Call) and parent.func is use
            if not runs and isinstance(use.ctx, ast.Load) and there.names.qualified(use) is None:
                return True
    return False


def _written_by_function(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression is given to a function of the project that writes into it."""
    call = facts.tree.parent(node)
    call = facts.tree.parent(call) if isinstance(call, ast.keyword) else call
    if not isinstance(call, ast.Call) or call.func is node:
        return False
    for home, function in called(facts, call):
        bound = home.tree.class_of(function) is not None and not is_static(Definition(home, function))
        taking = {item.arg for item in parameters(function.args) if passed(call, function, item, bound) is node}
        if any(isinstance(use, ast.Name) and use.id in taking and home.writes.is_write(use) for use in walk(function)):
            return True
    return False


def ends_in_sigmoid(network: Network, call: ast.Call) -> bool:
    """Whether a network is an ``nn.Sequential`` that is written out and has a sigmoid as its last layer."""
    if network.library != "torch.nn.Sequential" or len(call.args) < 2 or call.keywords:
        return False
    last = call.args[-1]
    return isinstance(last, ast.Call) and network.value.facts.calls.meaning(last) == "torch.nn.Sigmoid"
