"""Forward passes that a loop leaves to functions: those that compute its losses, and where autocast's variables reach them.

Where all of a function's code can run under autocast and only its losses come back, the loop calls it under autocast. Else
each function is read alone: all that it returns or stores is converted back to float32, so that the loop, and everybody else
who calls it, goes on as before.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.classes import behind, super_call
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, Function, Tree, dotted, walk, walk_here
from torchfix.facts.half_precision.autocast import Treatment, is_operation, treatment
from torchfix.facts.half_precision.precision import Reader
from torchfix.facts.half_precision.stretches import Feeding, Forward
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.companions import Companion
from torchfix.facts.training.models import Network
from torchfix.facts.training.regions import NO_GRAD
from torchfix.facts.training.updates import Sent, Update

if TYPE_CHECKING:
    from torchfix.facts import Facts

_PLAIN = ("torch.", "builtins.", "time.", "math.", "random.", "logging.")
_OF_CONTAINERS = frozenset("append copy extend format get items keys pop setdefault update values".split())
_SUSPENDING = (ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)


class Delegations:
    """Questions about the functions that run networks for the training loops of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of(self, update: Update, feeding: Feeding) -> Forward | Obstacle | None:
        """What of the functions that compute a loop's losses can run under autocast; None where none of them runs a network."""
        functions = self.functions(update, feeding)
        running = [item for item in functions if any(self._runs(*item))]
        if not running:
            return None
        around = self._around(update, running)
        if around is not None:
            return around
        found: list[tuple[Function, Forward]] = []
        relays = update.loop.relays
        for facts, function in functions:
            obstacle = _backward_in(facts, function, {call for relay in relays for call in (relay.call, *relay.inner)})
            if obstacle is not None:
                return obstacle
        for facts, function in running:
            apart = self._apart(facts, function)
            if apart is not None:
                return apart
            sent = {relay.call: relay.loss for relay in relays if relay.function is function}
            passes = tuple(Sent(call, loss, facts.tree.statement(call)) for call, loss in sent.items())
            inside = (call for relay in relays for call in relay.inner if facts.tree.is_within(call, function))
            forward = facts.forwards.within(function, passes, (*sent, *inside))
            if isinstance(forward, Obstacle):
                return Obstacle(forward.code, f"in {_place(facts, function)}, which runs the network: {forward.text}", forward.help)
            assert forward is not None
            nested = self._nested(forward, {other for _, other in running})
            if nested is not None:
                return _out_of_reach(facts, function, f"calls {nested.name} (line {nested.lineno}) meanwhile, which runs one too")
            found.append((function, forward))
        networks = tuple(dict.fromkeys(network for _, forward in found for network in forward.networks))
        return Forward((), (), (), networks, within=tuple(found))

    def beside(self, update: Update, forward: Forward, companions: tuple[Companion, ...]) -> tuple[Companion, ...] | Obstacle:
        """Where a scaler can be made so that the functions that run the networks, or send backward, read what is bound there."""
        if forward.callers:
            return self._beside_callers(update, forward, companions)
        functions = dict.fromkeys((*(item for item, _ in forward.within), *(relay.function for relay in update.loop.relays)))
        apart = next(filter(None, map(_made_apart, companions)), None)
        if not functions or apart is not None:
            return apart or companions
        if len(companions) > 1:
            function = next(iter(functions))
            return _out_of_reach(self._facts, function, "cannot read what is made beside the optimizer, which is made in several places")
        companion = companions[0]
        line = companion.after.lineno
        for function in functions:
            if not self._can_read(function, companion):
                return _out_of_reach(self._facts, function, f"cannot read what is made beside the optimizer on line {line}")
            if self._runs_before(function, companion):
                return _out_of_reach(self._facts, function, f"may run before the optimizer is made on line {line}")
            if not self._runs_with(function, companion, update):
                return _out_of_reach(self._facts, function, f"may run where no optimizer is made on line {line}")
        return (companion if companion.home[1] is None else replace(companion, after=self._front(companion)),)

    def _beside_callers(self, update: Update, forward: Forward, companions: tuple[Companion, ...]) -> tuple[Companion, ...] | Obstacle:
        """Where a scaler can be made so that those who compute the loss for a function read what is bound there."""
        function = update.loop.node
        assert isinstance(function, FUNCTIONS)
        words = "is given a loss by code that cannot read what is made beside the optimizer"
        apart = next(filter(None, map(_made_apart, companions)), None)
        if apart is not None or len(companions) > 1:
            return apart or _out_of_reach(self._facts, function, words)
        companion = companions[0]
        passed_on = bool(companion.passes) and (companion.owner or any(item.function is not function for item in companion.passes))
        if companion.facts is not self._facts or passed_on:
            return _out_of_reach(self._facts, function, words)
        for caller, part in forward.callers:
            made = self._made_for(caller, part, companion, update)
            if made is None:
                return _out_of_reach(self._facts, function, words)
            companion = made
        return (replace(companion, after=self._front(companion)) if companion.owner else companion,)

    def _made_for(self, caller: Function | None, part: Forward, companion: Companion, update: Update) -> Companion | None:
        """A companion where the code of one caller can read what is bound beside it, None where it cannot."""
        if caller is companion.home[1] and not companion.owner:
            front = _front_of(self._facts.tree, companion.after, part.regions[0][0])
            return None if front is None else replace(companion, after=front)
        plain = replace(companion, passes=())
        if caller is None or not self._can_read(caller, plain) or self._runs_before(caller, plain):
            return None
        return companion if self._runs_with(caller, plain, update) else None

    # Which functions ------------------------------------------------------------------------------------------

    def functions(self, update: Update, feeding: Feeding) -> list[tuple[Facts, Function]]:
        """The functions of the project that compute a loop's losses, or what these read of the instance."""
        own = [(self._facts, method) for method in self._own_methods(update)]
        read = {name for expression in feeding.expressions for name in _attributes_read(expression)}
        sending = ((self._facts, function) for relay in update.loop.relays for function in relay.functions)
        found = [*dict.fromkeys((*sending, *(item for call in feeding.calls() for item in called(self._facts, call))))]
        found += [item for item in own if item not in found and read & set(_attributes_stored(item[1]))]
        for facts, function in found:  # grows while it is read
            read |= {name for statement in function.body for name in _attributes_read(statement)}
            inner = (item for node in walk(function) if isinstance(node, ast.Call) for item in called(facts, node))
            storing = (item for item in own if read & set(_attributes_stored(item[1])))
            found += [item for item in dict.fromkeys((*inner, *storing)) if item not in found]
        return found

    def _own_methods(self, update: Update) -> list[Function]:
        """The methods of the same object that a loop runs, directly or through each other."""
        calls = [node for node in update.loop.nodes() if isinstance(node, ast.Call)]
        found = list(dict.fromkeys(method for call in calls if (method := self._facts.own_method(call)) is not None))
        for function in found:  # grows while it is read
            inner = (self._facts.own_method(node) for node in walk(function) if isinstance(node, ast.Call))
            found += [method for method in dict.fromkeys(inner) if method is not None and method not in found]
        return found

    @staticmethod
    def _runs(facts: Facts, function: Function) -> Iterator[tuple[Network, ...]]:
        """The networks that each call in a function runs."""
        for statement in function.body:
            for node in walk_here(statement):
                networks = facts.models.run_by(node) if isinstance(node, ast.Call) else None
                if networks:
                    yield networks

    # Called under autocast -------------------------------------------------------------------------------------

    def _around(self, update: Update, running: list[tuple[Facts, Function]]) -> Forward | None:
        """The statements of the loop that call the functions, where those can run under autocast with all that they do."""
        if update.loop.relays or not all(self._is_whole(*item) for item in running):
            return None
        tree, sought = self._facts.tree, {function for _, function in running}
        calls = [node for node in update.loop.nodes() if isinstance(node, ast.Call)]
        chosen = [call for call in calls if sought & {function for _, function in called(self._facts, call)}]
        statements = [tree.statement(call) for call in chosen]
        reached = {function for call in chosen for _, function in called(self._facts, call)}
        if reached != sought or len(set(statements)) < len(statements) or not all(map(self._only_calls, statements, chosen)):
            return None
        networks = tuple(dict.fromkeys(network for item in running for found in self._runs(*item) for network in found))
        return Forward(tuple((item, item) for item in statements), (), (), networks)

    @staticmethod
    def _only_calls(statement: ast.stmt, call: ast.Call) -> bool:
        """Whether a statement names the result of a call, and computes its arguments by no more than moves and views of tensors."""
        given = [*call.args, *(item.value for item in call.keywords)]
        inner = [node for item in given for node in walk(item) if isinstance(node, ast.Call)]
        plain = all(isinstance(node.func, ast.Attribute) and treatment(node.func.attr) is Treatment.EXACT for node in inner)
        return isinstance(statement, ast.Assign) and statement.value is call and plain

    def _is_whole(self, facts: Facts, function: Function) -> bool:
        """Whether all that a function does can be done under autocast: no half precision leaves the network and the losses of torch."""
        suspended = isinstance(function, ast.AsyncFunctionDef) or any(isinstance(node, _SUSPENDING) for node in walk(function))
        owner = facts.tree.class_of(function)
        replaced = owner is not None and bool(facts.classes.heirs(owner))  # what a class below may write anew is not read here
        if suspended or replaced or function.decorator_list or _backward_in(facts, function, ()) is not None:
            return False
        calls = [node for node in walk(function) if isinstance(node, ast.Call)]
        runs = {call for call in calls if facts.models.run_by(call)}
        nested = any(isinstance(node, (*FUNCTIONS, ast.Lambda)) and node is not function for node in walk(function))
        blind = any(facts.regions.under(call, NO_GRAD) for call in runs)  # autocast would keep weights that were cast without gradients
        if nested or blind or not all(call in runs or self._is_harmless(facts, call) for call in calls):
            return False
        reader = Reader(facts, inside=True)
        reader.block(function.body)
        computed = any(not isinstance(node, ast.Name) and node not in runs for node in reader.made)
        if reader.wanted or reader.opaque or computed or facts.hazards.in_definitions([Definition(facts, function)]) is not None:
            return False
        return not isinstance(facts.forwards.within(function), Obstacle)

    @staticmethod
    def _is_harmless(facts: Facts, call: ast.Call) -> bool:
        """Whether a call is one of torch or of Python itself, or of a function of the project that computes the same under autocast."""
        functions = list(called(facts, call))
        if functions:
            return all(facts.precision.is_steady(*item) for item in functions)
        if (facts.calls.meaning(call) or "").startswith(_PLAIN) or facts.models.is_loss(call.func):
            return True
        return isinstance(call.func, ast.Attribute) and (is_operation(call.func.attr) or call.func.attr in _OF_CONTAINERS)

    # Each with regions of its own -------------------------------------------------------------------------------

    def _apart(self, facts: Facts, function: Function) -> Obstacle | None:
        """What keeps a function that runs networks from being read alone."""
        if facts is not self._facts:
            return _out_of_reach(facts, function, "stands in another file than the loop")
        suspended = isinstance(function, ast.AsyncFunctionDef) or any(isinstance(node, _SUSPENDING) for node in walk(function))
        if function.decorator_list or suspended:
            return _out_of_reach(facts, function, "is decorated, waits, or binds variables of other scopes")
        nested = (node for node in walk(function) if isinstance(node, (*FUNCTIONS, ast.Lambda)) and node is not function)
        if any(isinstance(node, ast.Call) and facts.models.run_by(node) for inner in nested for node in walk(inner)):
            return _out_of_reach(facts, function, "does so in a function of its own")
        return None

    def _nested(self, forward: Forward, running: set[Function]) -> Function | None:
        """Another function that runs networks, called where a region of one stands: the weights cast for it would be kept for both."""
        for first, last in forward.regions:
            _, block, start = self._facts.tree.place(first)
            for statement in block[start : block.index(last) + 1]:
                for node in walk(statement):
                    for _, function in called(self._facts, node) if isinstance(node, ast.Call) else ():
                        if function in running:
                            return function
        return None

    # Where the variables reach --------------------------------------------------------------------------------

    def _can_read(self, function: Function, companion: Companion) -> bool:
        """Whether a function sees what is bound beside the optimizer: an attribute of the same instance, or a global."""
        tree, owner = self._facts.tree, self._facts.tree.class_of(function)
        if companion.passes or companion.facts is not self._facts:
            return False
        if companion.owner:
            first = [*function.args.posonlyargs, *function.args.args][:1]
            named = [item.arg for item in first] == [companion.owner.removesuffix(".")]
            made = tree.method_class(companion.after)
            derived = owner is not None and made is not None and any(item.node is owner for item in self._facts.classes.heirs(made))
            return named and owner is not None and (owner is made or derived)
        return companion.home[1] is None

    def _runs_before(self, function: Function, companion: Companion) -> bool:
        """Whether a function may run before a companion is made."""
        tree, home = self._facts.tree, companion.home[1]
        if home is not None and home.name != "__init__":
            return True
        top = self._front(companion)
        body = home.body if home is not None else tree.module.body
        before: list[ast.stmt] = body[: body.index(top)] + ([] if top is companion.after else _up_to(top, companion.after))
        runs = {id(item) for facts, call in self._facts.reach.calls(_executed(before)) for _, item in called(facts, call)}
        owner = tree.method_class(companion.after)
        above = behind(Definition(self._facts, owner), "__init__", owner) if home is not None and owner is not None else None
        if above is not None and isinstance(above.node, FUNCTIONS):
            inherited = above.facts.reach.calls(above.node.body)
            runs |= {id(item) for facts, call in inherited for _, item in called(facts, call)}
        return id(function) in runs

    def _runs_with(self, function: Function, companion: Companion, update: Update) -> bool:
        """Whether a function only runs where what stands beside a companion is bound, though the companion's statement may not run.

        A constructor can bind it behind that statement, if nothing in it trains yet; a script's block, such as its main
        guard, must call the function itself.
        """
        top = self._front(companion)
        if top is companion.after:
            return True
        if companion.home[1] is None:
            calls = self._facts.callers_everywhere(function)
            return calls is not None and all(caller is self._facts and caller.tree.is_within(call, top) for caller, call in calls)
        started = {run for facts, call in self._facts.reach.calls([top]) for _, run in called(facts, call)}
        return not started & {function, update.loop.function} and not self._facts.tree.is_within(update.loop.node, top)

    def _front(self, companion: Companion) -> ast.stmt:
        """The statement of a constructor's own block, or of the module's, in which a companion is made."""
        tree, home = self._facts.tree, companion.home[1]
        body = home.body if home is not None else tree.module.body
        return next(item for item in body if tree.is_within(companion.after, item))


def _made_apart(companion: Companion) -> Obstacle | None:
    """A class below the one that makes a companion in its constructor, whose own constructor does not run that."""
    home, owner = companion.home[1], companion.facts.tree.method_class(companion.after) if companion.owner else None
    for heir in companion.facts.classes.heirs(owner) if owner is not None and home is not None and home.name == "__init__" else ():
        assert isinstance(heir.node, ast.ClassDef)
        own = [item for item in heir.node.body if isinstance(item, FUNCTIONS) and item.name == "__init__"]
        if own and super_call(own[-1]) is None:
            return Obstacle(
                "optimizer-elsewhere",
                f"{heir.node.name} (line {heir.node.lineno} of {heir.facts.path}) would inherit the training, but not make the scaler",
                "call super().__init__() in its constructor",
            )
    return None


def _front_of(tree: Tree, made: ast.stmt, used: ast.stmt) -> ast.stmt | None:
    """The statement around one place behind which another always finds it done; None where that is not so."""
    for around in (made, *(item for item in tree.ancestors(made) if isinstance(item, ast.stmt))):
        _, block, index = tree.place(around)
        if any(tree.is_within(used, item) for item in block[index + 1 :]):
            return around
    return None


def _executed(statements: Iterable[ast.stmt]) -> list[ast.stmt]:
    """Statements without the definitions among them, which run when they are called."""
    return [item for item in statements if not isinstance(item, (*FUNCTIONS, ast.ClassDef))]


def _up_to(around: ast.stmt, end: ast.stmt) -> list[ast.stmt]:
    """The simple statements inside another one that stand before one of them in the text."""
    return [item for item in walk(around) if isinstance(item, (ast.Expr, ast.Assign, ast.AugAssign)) and item.lineno < end.lineno]


def _attributes_read(node: ast.AST) -> Iterator[str]:
    for inner in walk_here(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Load) and (name := dotted(inner)) is not None:
            yield name


def _attributes_stored(function: Function) -> Iterator[str]:
    for inner in walk(function):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and (name := dotted(inner)) is not None:
            yield name


def _backward_in(facts: Facts, function: Function, known: Container[ast.Call | None]) -> Obstacle | None:
    """A backward pass in a function that computes a loss, which no scaler would know."""
    for node in (node for node in walk(function) if isinstance(node, ast.Call) and node not in known):
        meaning = facts.calls.meaning(node) or ""
        sends = isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
        if sends or meaning.startswith(("torch.autograd.", "torch.func.")):
            return Obstacle(
                "double-backward",
                f"{_place(facts, function)} takes gradients on line {node.lineno} on its way to the loss",
                "take them where the loss goes backward, or scale them by hand",
            )
    return None


def _out_of_reach(facts: Facts, function: Function, words: str) -> Obstacle:
    return Obstacle(
        "forward-elsewhere",
        f"{_place(facts, function)} runs the network or its backward pass, and {words}",
        "write both in the loop that steps, or in methods of the object that holds the optimizer",
    )


def _place(facts: Facts, function: Function) -> str:
    return f"{function.name} (line {function.lineno} of {facts.path})"
