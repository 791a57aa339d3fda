"""The stretches of code that runs networks which can run under autocast, and what must be float32 again behind them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import has_stars, receiver
from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import parameters
from torchfix.facts.code.tree import FUNCTIONS, Function, LoopNode, child_blocks, dotted, last_name, walk, walk_here
from torchfix.facts.code.values import passed
from torchfix.facts.half_precision.autocast import LOSS_FUNCTIONS, is_operation
from torchfix.facts.half_precision.precision import FULL, Reader, Reading, named
from torchfix.facts.half_precision.tensor_uses import function_run, name_is_tensor, result_is_tensor, used_as_tensor
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.models import WRAPPERS, Network
from torchfix.facts.training.regions import NO_GRAD
from torchfix.facts.training.updates import Sent, called

if TYPE_CHECKING:
    from torchfix.facts import Facts


NO_GRAD_PASS = Obstacle(
    "no-grad-pass",
    "one network runs with and without gradients in the same statement",
    "write the pass without gradients as a statement of its own",
)


@dataclass(frozen=True, eq=False)
class Forward:
    """What of a training loop, or of a function that it calls for its loss, can run under autocast.

    Args:
        regions: the first and last statement of each stretch, in text order; no backward pass, step or zero_grad is
            in one.
        restored: what must be converted back to float32: calls by their results, and names behind the statement that
            unpacks a result into them or gives them a tuple.
        inline: the backward passes whose loss is computed in their own statement, and belongs under autocast too.
        networks: the networks that run.
        old: a variable that stems from what one of them gave without gradients outside the loop, None where there is none.
        within: the functions of the same file that run the networks for the loop, and what of each runs under autocast.
        callers: for a function that is given its loss, the functions that compute it, None for a script's own statements,
            and what of each runs under autocast.
    """

    regions: tuple[tuple[ast.stmt, ast.stmt], ...]
    restored: tuple[ast.Call | ast.Name, ...]
    inline: tuple[Sent, ...]
    networks: tuple[Network, ...]
    old: ast.Name | None = None
    within: tuple[tuple[Function, Forward], ...] = ()
    callers: tuple[tuple[Function | None, Forward], ...] = ()

    def beside(self, other: Forward) -> Forward:
        """This and what runs in the loop itself."""
        networks = tuple(dict.fromkeys((*other.networks, *self.networks)))
        return replace(other, networks=networks, within=self.within)

    @property
    def all(self) -> tuple[Forward, ...]:
        """This and what stands in functions and callers."""
        return (self, *(forward for _, forward in (*self.within, *self.callers)))


@dataclass(frozen=True, eq=False)
class Feeding:
    """What losses are computed from, inside one loop.

    Args:
        statements: the statements of the loop that give them their values, directly or through others.
        expressions: what they compute them from, the losses themselves among them.
    """

    statements: frozenset[ast.stmt]
    expressions: tuple[ast.expr, ...]

    def calls(self) -> Iterator[ast.Call]:
        """The calls in the expressions."""
        for expression in self.expressions:
            yield from (node for node in walk_here(expression) if isinstance(node, ast.Call))


@dataclass(frozen=True, eq=False)
class Stage:
    """Code that runs networks on the way to a loss: a training loop up to its backward passes, or a function called for the loss.

    Args:
        node: the loop or the function.
        sent: the backward passes in it, and what it hands to functions for theirs.
        apart: the calls that no region may hold: backward passes, steps, clearings.
    """

    node: LoopNode | Function
    sent: tuple[Sent, ...] = ()
    apart: tuple[ast.Call, ...] = ()


@dataclass
class Split:
    """The search for the stretches of one stage that run under autocast."""

    facts: Facts
    stage: Stage
    feeding: Feeding
    runs: list[ast.Call]
    blocks: list[list[ast.stmt]] = field(default_factory=list)
    chosen: list[ast.stmt] = field(default_factory=list)
    quiet: set[ast.stmt] = field(default_factory=set)
    derived: set[str] = field(default_factory=set)
    inline: list[Sent] = field(default_factory=list)

    def whole(self) -> Forward | Obstacle:
        """What can run under autocast, or what stands in the way."""
        return self.unsafe_loss() or self.obstacle() or self.forward()

    def unsafe_loss(self) -> Obstacle | None:
        """Torch's BCELoss, in the loop or in a loss of the project: it may not see half-precision probabilities."""
        definitions = [item for call in self.feeding.calls() for item in self._loss_definitions(call)]
        return self.facts.hazards.in_losses(self.feeding.calls(), definitions)

    def _loss_definitions(self, call: ast.Call) -> Iterator[Definition]:
        function = called(self.facts, call)
        if function is not None:
            yield Definition(*function)
        if self.facts.models.run_by(call) is None:
            yield from (network.definition for network in self.facts.models.of(call.func) or () if network.definition is not None)

    # Which statements -----------------------------------------------------------------------------------------

    def obstacle(self) -> Obstacle | None:
        """Choose the statements that run under autocast; gives what stands in the way."""
        tree = self.facts.tree
        pieces = list(self._pieces(self.stage.node.body))
        ends = {item.statement for item in self.stage.sent}
        running = {piece for piece in pieces for call in self.runs if tree.is_within(call, piece)}
        apart = [call for call in self.runs if not any(tree.is_within(call, piece) for piece in running)]
        last = max((pieces.index(item) for item in ends), default=len(pieces) - 1)
        if apart or any(pieces.index(piece) > last for piece in running) or running & ends - {item.statement for item in self._sent_runs()}:
            return Obstacle("interleaved", "forward and backward passes alternate in this loop", "give each loss its own region by hand")
        reader = Reader(self.facts)
        for piece in pieces[min(pieces.index(piece) for piece in running) : last + 1]:
            sent = [item for item in self.stage.sent if item.statement is piece]
            found = self._send(reader, sent) if sent else self._choose(reader, piece, piece in running)
            if found is not None:
                return found
        return None

    def _pieces(self, block: list[ast.stmt]) -> Iterator[ast.stmt]:
        """The statements of a block in text order; those that hold a backward pass, a step or a clearing are taken apart."""
        self.blocks.append(block)
        apart, tree = self.stage.apart, self.facts.tree
        for statement in block:
            inner = [item for item in child_blocks(statement) if any(tree.is_within(call, part) for call in apart for part in item)]
            if not inner:
                yield statement
            for item in child_blocks(statement) if inner else ():
                yield from self._pieces(item)

    def _sent_runs(self) -> list[Sent]:
        """The backward passes whose loss runs a network where it is sent."""
        return [item for item in self.stage.sent if any(self.facts.tree.is_within(call, item.loss) for call in self.runs)]

    def _send(self, reader: Reader, together: list[Sent]) -> Obstacle | None:
        """Whether a loss is computed where it is sent, and belongs under autocast with that."""
        sent = together[0]
        if receiver(sent.call) is not sent.loss:
            computed = any(item in self._sent_runs() for item in together)
            return _handed_on(sent.call) if computed else None
        outside, inside = reader.copy(), reader.copy(inside=True)
        outside.value(sent.loss)
        inside.value(sent.loss)
        runs = sent in self._sent_runs()
        if runs and inside.opaque:
            return _unknown_loss(inside.opaque[0])
        if runs or (outside.wanted and not inside.opaque):
            self.inline.append(sent)
        return None

    def _choose(self, reader: Reader, statement: ast.stmt, runs: bool) -> Obstacle | None:
        """Whether one statement belongs under autocast: it runs a network, or torch computes the loss there."""
        trial = reader.copy(inside=True)
        trial.statement(statement)
        foreign = self._foreign(statement, trial)
        if runs and foreign is not None:
            return _unknown_loss(foreign)
        known = self._is_known(statement) and not trial.wanted and not self._by_hand(trial, reader)
        if runs or (known and self._feeds(statement) and self._needs_autocast(statement, reader)):
            self.chosen.append(statement)
            self.derived |= {node.id for node in walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
            reader.values = trial.values
            return None
        if known and not isinstance(statement, (ast.Return, ast.Break, ast.Continue)):
            self.quiet.add(statement)
        reader.statement(statement)
        return None

    def _foreign(self, statement: ast.stmt, trial: Reader) -> ast.Call | None:
        """A call of unknown code in a statement that runs a network, on what the network gives: it would run under autocast too.

        What surely computes the same there, once it is handed float32, is none.
        """
        derived = self._derived_in(statement)
        calls = [node for node in walk(statement) if isinstance(node, ast.Call)]
        given = (call for call in calls if any(self._gives_output(item, derived) for item in (*call.args, *call.keywords)))
        unknown = (call for call in given if not self._is_known_call(call) and self.facts.models.run_by(call) is None)
        return next((call for call in (*trial.opaque, *unknown) if not self._is_steady(call)), None)

    def _is_steady(self, call: ast.Call) -> bool:
        """Whether a function of the project, or the loss of one of its classes, computes the same under autocast from what is float32."""
        function = function_run(self.facts, call)
        return function is not None and not has_stars(call) and self.facts.precision.is_steady(*function)

    def _derived_in(self, statement: ast.stmt) -> set[str]:
        """The names that may hold what a network gave, by the end of a statement and of those chosen before it."""
        derived = set(self.derived)
        parts = [node for node in walk(statement) if isinstance(node, ast.stmt)]
        while True:
            giving = [part for part in parts if any(self._gives_output(node, derived) for node in computed(part))]
            new = {node.id for part in giving for node in walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
            if new <= derived:
                return derived
            derived |= new

    def _gives_output(self, node: ast.AST, derived: set[str]) -> bool:
        """Whether a node runs one of the networks, or reads a name that may hold what one gave."""
        return any(item in self.runs or (isinstance(item, ast.Name) and item.id in derived) for item in walk(node))

    def _by_hand(self, trial: Reader, reader: Reader) -> bool:
        """Whether a statement multiplies matrices outside of any network, which autocast would turn to half precision."""
        return any(node not in self.runs and not isinstance(node, ast.Name) for node in trial.made.keys() - reader.made.keys())

    def _feeds(self, statement: ast.stmt) -> bool:
        return statement in self.feeding.statements or any(self.facts.tree.is_within(item, statement) for item in self.feeding.statements)

    def _needs_autocast(self, statement: ast.stmt, reader: Reader) -> bool:
        """Whether a statement works on half precision, or is a loss of torch on what the networks gave."""
        read = _read_names(statement)
        if any(reading.sources for name, reading in reader.values.items() if name in read):
            return True
        return bool(read & self.derived) and any(self._is_loss(node) for node in walk(statement) if isinstance(node, ast.Call))

    def _is_loss(self, call: ast.Call) -> bool:
        """Whether a call computes one of torch's losses."""
        meaning = self.facts.calls.meaning(call) or ""
        return (meaning.startswith("torch.nn.functional.") and last_name(call.func) in LOSS_FUNCTIONS) or self.facts.models.is_loss(
            call.func
        )

    def _is_known(self, statement: ast.stmt) -> bool:
        """Whether a statement calls nothing but tensor operations, torch's own layers and losses, and builtins."""
        return all(self._is_known_call(call) for call in walk(statement) if isinstance(call, ast.Call))

    def _is_known_call(self, call: ast.Call) -> bool:
        return (
            (self.facts.calls.meaning(call) or "").startswith(("torch.", "builtins.", "time."))
            or (isinstance(call.func, ast.Attribute) and is_operation(call.func.attr))
            or self._is_torch_layer(call)
        )

    def _is_torch_layer(self, call: ast.Call) -> bool:
        networks = self.facts.models.of(call.func)
        return bool(networks) and all((network.library or "").startswith("torch.nn.") for network in networks or ())

    # The stretches --------------------------------------------------------------------------------------------

    def forward(self) -> Forward | Obstacle:
        """The stretches, with what must be converted back, or what stands in the way."""
        while True:
            stretches = self._stretches()
            if isinstance(stretches, Obstacle):
                return stretches
            statements = [item for stretch in stretches for item in stretch]
            read = self._read(frozenset(statements))
            if isinstance(read, Obstacle):
                return read
            reader, restored = read
            chosen, inline = self._needed(stretches, reader), [item for item in self.inline if self._touches(item.loss, reader)]
            if chosen == self.chosen and inline == self.inline:
                break
            self.chosen, self.inline = chosen, inline
        code = [*statements, *(item.statement for item in self.inline)]
        networks = tuple(dict.fromkeys(network for call in self._runs_in(code) for network in self.facts.models.run_by(call) or ()))
        obstacle = self._hazard(code, networks)
        if obstacle is not None:
            return obstacle
        return Forward(tuple((stretch[0], stretch[-1]) for stretch in stretches), restored, tuple(self.inline), networks)

    def _needed(self, stretches: list[list[ast.stmt]], reader: Reader) -> list[ast.stmt]:
        """The chosen statements that still need autocast, now that some results are converted back.

        Those that run a network or work on half precision do; one that only computes torch's loss may stay beside them.
        """
        touched = {item for item in self.chosen if self._touches(item, reader)}
        beside = {item for stretch in stretches if touched & set(stretch) for item in stretch}
        losses = {item for item in self.chosen if any(self._is_loss(node) for node in walk(item) if isinstance(node, ast.Call))}
        return [item for item in self.chosen if item in touched or item in beside & losses]

    def _touches(self, node: ast.AST, reader: Reader) -> bool:
        """Whether a node runs one of the networks or reads half precision."""
        return any(self.facts.tree.is_within(item, node) for item in (*self.runs, *reader.low))

    def _runs_in(self, statements: Iterable[ast.stmt]) -> Iterator[ast.Call]:
        for statement in statements:
            yield from (node for node in walk(statement) if isinstance(node, ast.Call) and self.facts.models.run_by(node))

    def _stretches(self) -> list[list[ast.stmt]] | Obstacle:
        """The chosen statements joined across quiet ones; a pass without gradients stands alone when it shares weights."""
        alone = self._alone()
        if isinstance(alone, Obstacle):
            return alone
        found: list[list[ast.stmt]] = []
        for block in self.blocks:
            current: list[ast.stmt] = []  # a stretch, with the quiet statements behind it
            for statement in block:
                if statement in self.chosen:
                    current = [*current, statement] if current and statement not in alone else [statement]
                    found = [*found[:-1], current] if len(current) > 1 else [*found, current]
                    current = [] if statement in alone else current
                elif current:
                    current = [*current, statement] if statement in self.quiet else []
        return sorted(found, key=lambda stretch: stretch[0].lineno)

    def _alone(self) -> set[ast.stmt] | Obstacle:
        """The chosen statements that run without gradients a network that also runs with them: they share no region (its weight cache)."""
        alone = set()
        for call in self.runs:
            if self.facts.regions.under(call, NO_GRAD) and self._shares_weights(call):
                holding = next((item for item in self.chosen if self.facts.tree.is_within(call, item)), None)
                inner = [other for other in self.runs if holding is not None and self.facts.tree.is_within(other, holding)]
                if any(not self.facts.regions.under(other, NO_GRAD) for other in inner):
                    return NO_GRAD_PASS
                alone |= {holding} if holding is not None else set()
        return alone

    def _shares_weights(self, call: ast.Call) -> bool:
        """Whether a network that runs without gradients also runs with them in this loop."""
        mine = self._objects(call.func)
        return any(
            other is not call and not self.facts.regions.under(other, NO_GRAD) and mine & self._objects(other.func) for other in self.runs
        )

    def _objects(self, node: ast.expr, depth: int = 0) -> frozenset[object]:
        """The calls that made a network, as this function knows them: one object for each."""
        if isinstance(node, ast.Call):
            owner = receiver(node)
            if self.facts.calls.meaning(node) in WRAPPERS and node.args:
                return self._objects(node.args[0], depth)
            return self._objects(owner, depth) if owner is not None and self.facts.models.of(owner) else frozenset([node])
        if isinstance(node, ast.Name) and depth < 8:
            bindings = [binding for binding in self.facts.flow.reaching(node) if binding.value is not None]
            made = [self._unpacked(binding.value, binding.path) for binding in bindings if binding.value is not None]
            found = [self._objects(value, depth + 1) if isinstance(value, ast.expr) else frozenset([value]) for value in made]
            return frozenset().union(*found) if found else frozenset([node.id])
        return frozenset([dotted(node.value if isinstance(node, ast.Attribute) and not self.facts.models.of(node) else node)])

    @staticmethod
    def _unpacked(value: ast.expr, path: tuple[int, ...]) -> object:
        """The expression that an unpacking assignment takes a name's value from, or which element of what."""
        while path and isinstance(value, (ast.Tuple, ast.List)) and path[0] < len(value.elts):
            value, path = value.elts[path[0]], path[1:]
        return (value, path) if path else value

    # What leaves them -----------------------------------------------------------------------------------------

    def _read(self, regions: frozenset[ast.stmt]) -> tuple[Reader, tuple[ast.Call | ast.Name, ...]] | Obstacle:
        """The stage read, and the results that must be float32 again: more are converted until nothing is wanted."""
        restored: frozenset[ast.expr] = frozenset()
        while True:
            sent, inline = (frozenset(item.loss for item in items) for items in (self.stage.sent, self.inline))
            reader = Reader(self.facts, regions, restored, sent=sent, inline=inline)
            for _ in range(2):  # what one iteration leaves, the next one finds
                reader.block(self.stage.node.body)
            self._read_afterwards(reader)
            new = reader.wanted - restored
            if not new:
                found = [item for item in restored if isinstance(item, (ast.Call, ast.Name))]
                return reader, tuple(sorted(found, key=lambda item: (item.lineno, item.col_offset)))
            for source in sorted(new, key=lambda item: (item.lineno, item.col_offset)):
                reading = reader.made.get(source, FULL)
                use = source if self._can_restore(source, reading) else self._tuple_of(source, reading)
                use = use or self._given(reader.places.get(source), reader)
                if use is None or use in restored:
                    return self._escape(reader, source)
                restored |= {use}

    def _can_restore(self, source: ast.expr, reading: Reading) -> bool:
        """Whether something half can be converted where it is made: a call's result, or a name that an assignment unpacks."""
        parent = self.facts.tree.parent(source)
        if isinstance(source, ast.Name):
            assigned = isinstance(parent, (ast.Tuple, ast.List)) and isinstance(self.facts.tree.parent(parent), ast.Assign)
            return assigned and (reading.tensor or name_is_tensor(self.facts, source))
        return isinstance(source, ast.Call) and (reading.tensor or result_is_tensor(self.facts, source))

    def _tuple_of(self, source: ast.expr, reading: Reading) -> ast.Name | None:
        """The name that an assignment gives to a tuple, whose elements can be converted one by one behind it."""
        parent = self.facts.tree.parent(source)
        target = parent.targets[0] if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None
        return target if isinstance(target, ast.Name) and reading.is_tuple and isinstance(source, ast.Call) else None

    def _read_afterwards(self, reader: Reader) -> None:
        """What a loop leaves behind and code around it reads."""
        tree, node = self.facts.tree, self.stage.node
        owner: ast.AST = node if isinstance(node, FUNCTIONS) else tree.function(node) or tree.module
        for name, reading in list(reader.values.items()):
            if reading.sources:
                for use in tree.names.get(name, ()):
                    if tree.is_within(use, owner) and not tree.is_within(use, node) and self._comes_from(use, node):
                        reader.want(reading, use)

    def _comes_from(self, use: ast.Name, loop: ast.stmt) -> bool:
        """Whether a use may read what a statement of the loop bound."""
        return isinstance(use.ctx, ast.Load) and any(
            self.facts.tree.is_within(binding.node, loop) for binding in self.facts.flow.reaching(use)
        )

    def _escape(self, reader: Reader, source: ast.expr) -> Obstacle:
        place = reader.places.get(source)
        if isinstance(place, ast.Call) and place in reader.opaque and self._feeds(self.facts.tree.statement(place)):
            return _unknown_loss(place)
        line = getattr(place, "lineno", 0)
        return Obstacle(
            "half-escapes",
            f"{named(source)} is half precision, and line {line} uses it where float32 is expected",
            "convert the tensors that leave the forward pass with .float()",
        )

    def _given(self, place: ast.AST | None, reader: Reader) -> ast.expr | None:
        """The argument of a loss or metric of the project that can be converted where it is given, as that surely takes a tensor."""
        function = function_run(self.facts, place) if isinstance(place, ast.Call) and not has_stars(place) else None
        if function is None or not isinstance(place, ast.Call):
            return None
        for parameter in parameters(function[1].args):
            given = passed(place, function[1], parameter, bound=function[0].tree.class_of(function[1]) is not None)
            if isinstance(given, ast.Name) and given in reader.low and used_as_tensor(function[0], function[1].body, parameter.arg):
                return given
        return None

    # What runs there ------------------------------------------------------------------------------------------

    def _hazard(self, code: list[ast.stmt], networks: tuple[Network, ...]) -> Obstacle | None:
        hazards = self.facts.hazards
        methods = frozenset(last_name(call.func) or "" for call in self._runs_in(code))
        for network in networks:
            found = hazards.in_network(network, methods)
            if found is not None:
                return found
        calls = [node for statement in code for node in walk(statement) if isinstance(node, ast.Call)]
        definitions = [Definition(*function) for call in calls if (function := called(self.facts, call)) is not None]
        return hazards.in_definitions(definitions) or hazards.wide(self.feeding.expressions)


def computed(statement: ast.stmt) -> list[ast.expr]:
    """The expressions of a statement that go into what it binds."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return [statement.value] if statement.value is not None else []
    if isinstance(statement, ast.AugAssign):
        return [statement.target, statement.value]
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return [statement.iter]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [item.context_expr for item in statement.items]
    return [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]


def _read_names(statement: ast.stmt) -> set[str]:
    found: set[str] = set()
    for node in walk(statement):
        name = dotted(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
        if name is not None:
            found.add(name)
    return found


def _handed_on(call: ast.Call) -> Obstacle:
    return Obstacle(
        "backward-form",
        f"the network runs among the arguments of {ast.unparse(call.func)} on line {call.lineno}, which sends the loss backward",
        "give the loss a name before it is handed on",
    )


def _unknown_loss(call: ast.Call) -> Obstacle:
    return Obstacle(
        "unknown-loss",
        f"{ast.unparse(call.func)} on line {call.lineno} is given the network's output, and what it does in half precision is not known",
        "give the network's output a name of its own, one tensor, and hand that to the loss",
    )
