"""Whether the batches of a training loop can be shared out among processes: its loaders, losses and optimizers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.callees import called
from torchfix.facts.calls import is_constant, receiver
from torchfix.facts.loaders import Loader
from torchfix.facts.models import SELF_RETURNING, derives
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.reductions import Reduction
from torchfix.facts.regions import NO_GRAD
from torchfix.facts.totals import Joining, Total, totals
from torchfix.facts.tree import COMPREHENSIONS, FUNCTIONS, LOOPS, Function, dotted, walk_here

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.loops import Loop

# Arguments of a loader that may not hide behind ** when its batches are shared out.
_SHARED = frozenset(["dataset", "batch_size", "shuffle", "sampler", "batch_sampler"])
# Draws that split or order data before training; every process must draw alike.
_SPLITS = {
    "torch.utils.data.random_split": "generator",
    "torch.randperm": "generator",
    "sklearn.model_selection.train_test_split": "random_state",
    "sklearn.utils.shuffle": "random_state",
}
_SPLITTING_MODULES = ("numpy.random.", "random.")
_DEPTH = 3  # functions that may stand between a call and the seed that it sets
_GENERATORS = ("numpy.random.RandomState", "numpy.random.default_rng", "numpy.random.seed", "random.seed", "random.Random")


class Shares:
    """Questions about the training loops of one file that run a replicated network."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """The training loops that run a replicated network, themselves or through a function that they call."""
        meetings = self._facts.lockstep.meetings
        return tuple(loop for loop in self._facts.loops.training if any(n in meetings and n not in loop.backwards for n in loop.nodes()))

    @cached_property
    def loaders(self) -> tuple[Loader, ...]:
        """The loaders that these loops take their batches from, in text order."""
        return tuple(dict.fromkeys(loader for loop in self.loops for loader in loop.loaders))

    @cached_property
    def totals(self) -> tuple[Total, ...]:
        """What these loops add up for later."""
        return tuple(total for loop in self.loops for total in totals(loop))

    def named(self, loop: Loop, loader: Loader) -> ast.expr | None:
        """The name or attribute by which a loop iterates over a loader; None where it makes one, or takes single batches."""
        if not isinstance(loop.node, (ast.For, ast.AsyncFor)):
            return None
        for node in ast.walk(loop.node.iter):
            if isinstance(node, (ast.Name, ast.Attribute)) and loader in (self._facts.loaders.of(node) or ()):
                return node
        return None

    def inline(self, loader: Loader) -> ast.expr | None:
        """The dataset of a loader where it is made inside the loader's own call, None where it has a name."""
        return None if loader.dataset is None or isinstance(loader.dataset, (ast.Name, ast.Attribute)) else loader.dataset

    def unmoved(self) -> Iterator[tuple[ast.Call, ast.expr]]:
        """The parts of batches that a replicated network is given from host memory, with the call that takes them."""
        for call in self._facts.replicas.forwards:
            for part in (*call.args, *(item.value for item in call.keywords)):
                if self._facts.batches.on_host(part) is not None:
                    yield call, part

    def obstacles(self) -> Iterator[Obstacle]:
        """Why the batches of this file's training cannot be shared out."""
        for loop in self.loops:
            yield from self._of_loop(loop)
        for loader in self.loaders:
            if loader.facts is self._facts:
                yield from self._of_loader(loader)
        yield from self._splits()

    # Loops ----------------------------------------------------------------------------------------------------

    def _of_loop(self, loop: Loop) -> Iterator[Obstacle]:
        line = loop.node.lineno
        missing = not loop.loaders or any(loader.facts is not self._facts for loader in loop.loaders)
        if missing or any(self.named(loop, loader) is None for loader in loop.loaders):
            yield Obstacle(
                "loader-out-of-sight",
                f"the DataLoader of the training loop in line {line} is made or iterated where it cannot be followed",
                "make the loader in this file and iterate over it by its name",
            )
        if any(self._facts.calls.meaning(node) == "itertools.cycle" for node in ast.walk(loop.node) if isinstance(node, ast.Call)):
            yield Obstacle(
                "endless-loader", f"the loop in line {line} goes round its loader for ever", "loop over epochs, and over the loader in each"
            )
        yield from self._losses(loop)
        yield from self._optimizers(loop)
        for total in totals(loop):
            if total.joining is Joining.UNKNOWN:
                yield Obstacle(
                    "total-unclear",
                    f"{ast.unparse(total.target)} (line {total.target.lineno}) adds up something of which the shares cannot be joined",
                    "add loss.item(), or counts of samples, to a variable that is set to zero in front of the loop",
                )

    def _losses(self, loop: Loop) -> Iterator[Obstacle]:
        for backward in loop.backwards:
            loss = receiver(backward)
            reduction = self._facts.reductions.of(loss) if loss is not None else Reduction.UNKNOWN
            if reduction is Reduction.SUM:
                yield Obstacle(
                    "sum-loss",
                    f"the loss that line {backward.lineno} sends backward is a sum over the batch, and processes average their gradients",
                    "reduce the loss to its mean, with the learning rate to match",
                )
            elif reduction is not Reduction.MEAN:
                yield Obstacle(
                    "loss-unclear",
                    f"how the loss of line {backward.lineno} is reduced cannot be told, and processes average their gradients",
                    "make the loss of torch.nn's losses, or reduce it with .mean()",
                )
        if any(not self._exclude(one, other) for i, one in enumerate(loop.backwards) for other in loop.backwards[:i]):
            yield Obstacle(
                "several-backwards",
                f"the loop in line {loop.node.lineno} goes backward more than once",
                "send the sum of the losses backward",
            )

    def _exclude(self, one: ast.AST, other: ast.AST) -> bool:
        """Whether two nodes stand in different branches of one ``if``."""
        tree = self._facts.tree
        for outer in tree.ancestors(one):
            if isinstance(outer, ast.If) and tree.is_within(other, outer):
                return any(tree.is_within(one, item) for item in outer.body) != any(tree.is_within(other, item) for item in outer.body)
        return False

    def repeated(self, loop: Loop) -> ast.Call | None:
        """A forward that may not be its network's only one between two updates of a loop; whole evaluations are left out."""
        tree, replicas = self._facts.tree, self._facts.replicas
        forwards = [call for call in replicas.forwards if tree.is_within(call, loop.node) and not self._evaluates(call, loop)]
        for index, call in enumerate(forwards):
            around = tree.nearest(call, (*LOOPS, *COMPREHENSIONS))
            if around is not loop.node:
                return call
            for other in forwards[:index]:
                same = set(replicas.held_by(call.func) or ()) & set(replicas.held_by(other.func) or ())
                if same and not self._exclude(call, other):
                    return call
        return None

    def _evaluates(self, call: ast.Call, loop: Loop) -> bool:
        """Whether a call belongs to an evaluation loop inside a training loop."""
        around = self._facts.tree.nearest(call, LOOPS)
        return around is not None and around is not loop.node and self._facts.regions.under(call, NO_GRAD)

    # Optimizers -----------------------------------------------------------------------------------------------

    def _optimizers(self, loop: Loop) -> Iterator[Obstacle]:
        for step in loop.steps:
            asked = [item for item in (receiver(step), *step.args[:1]) if item is not None]
            found = next((optimizers for item in asked if (optimizers := self._facts.optimizers.of(item))), None)
            if found is None:
                yield Obstacle(
                    "optimizer-unclear",
                    f"what the step in line {step.lineno} updates is out of sight",
                    "make the optimizer with a torch.optim class in this file",
                )
                continue
            for optimizer in found:
                yield from self._trained(optimizer.value.facts, optimizer.call)

    def _trained(self, facts: Facts, call: ast.Call) -> Iterator[Obstacle]:
        given = call.args[0] if call.args else next((item.value for item in call.keywords if item.arg == "params"), None)
        places = facts.values.of(given) or () if given is not None else ()
        owners = [(value.facts, owner) for value in places for owner in _owners_of_parameters(value.node)]
        if not owners:
            yield Obstacle(
                "parameters-unclear",
                f"the parameters of the optimizer in line {call.lineno} are collected where they cannot be followed",
                "give the optimizer model.parameters()",
            )
        for home, owner in owners:
            if not self._is_replicated(home, owner):
                yield Obstacle(
                    "unwrapped-parameters",
                    f"the optimizer in line {call.lineno} also trains {dotted(owner) or 'a network'}, which nothing keeps equal everywhere",
                    "wrap every network that is trained",
                )

    def _is_replicated(self, facts: Facts, expression: ast.expr) -> bool:
        """Whether an expression is a replicated network, the network inside, or a part of it."""
        current = expression
        inside = {origin for wrap in self._facts.replicas.wraps if wrap.module is not None for origin in _origins(self._facts, wrap.module)}
        while True:
            if facts.replicas.held_by(current):
                return True
            found = _origins(facts, current)
            if found and found <= inside:
                return True
            if not isinstance(current, ast.Attribute):
                return False
            current = current.value

    # Loaders --------------------------------------------------------------------------------------------------

    def _of_loader(self, loader: Loader) -> Iterator[Obstacle]:
        line = loader.call.lineno
        if self._hides(loader):
            yield Obstacle("loader-arguments", f"the loader in line {line} is given arguments by **", "write the loader's arguments out")
            return
        for name in ("sampler", "batch_sampler"):
            given = loader.argument(name)
            if given is not None and not is_constant(given, None):
                yield Obstacle(
                    "custom-sampler",
                    f"the loader in line {line} has a {name} of its own, which every process would follow in full",
                    "write a sampler that gives each process its share",
                )
        classes = loader.dataset_classes() or ()
        if any(derives(item, ("torch.utils.data.IterableDataset",)) for item in classes):
            yield Obstacle(
                "iterable-dataset",
                f"the dataset of the loader in line {line} is iterable, and every process would see all of it",
                "let the dataset yield only its process's share",
            )
        size = loader.argument("batch_size")
        if size is None or (isinstance(size, ast.Constant) and (not isinstance(size.value, int) or size.value < 2)):
            yield Obstacle(
                "batch-of-one", f"the batches of the loader in line {line} cannot be divided", "give the loader a batch_size of two or more"
            )
        elif self._is_size_used(size):
            yield Obstacle(
                "batch-size-elsewhere",
                f"the training also reckons with {dotted(size) or 'the batch size'}, and a process gets only its share of a batch",
                "take the size from the batch itself (x.size(0))",
            )
        others = [loop for loop in loader.loops if loop not in {item.node for item in self.loops}]
        if others:
            yield Obstacle(
                "loader-shared",
                f"the loop in line {others[0].lineno} takes its batches from the training loader too, and would see one share",
                "give that loop a loader of its own",
            )
        statement = self._facts.tree.statement(loader.call)
        around = self._facts.tree.nearest(loader.call, (*COMPREHENSIONS, ast.Lambda))
        if around is not None and self._facts.tree.is_within(around, statement):
            yield Obstacle(
                "loader-in-expression",
                f"the loader in line {line} is made inside a larger expression",
                "give each loader a statement of its own",
            )
        if not self._facts.script.is_started_by_guard(loader.call):
            yield Obstacle(
                "loader-on-import", f"the loader in line {line} is made when the file is imported", "make it in the function that trains"
            )

    def _hides(self, loader: Loader) -> bool:
        """Whether something that matters may be behind ``*`` or ``**``; a literal dictionary of other settings is fine."""
        if any(isinstance(item, ast.Starred) for item in loader.call.args):
            return True
        return any(item.arg is None and not self._is_harmless(item.value) for item in loader.call.keywords)

    def _is_harmless(self, settings: ast.expr) -> bool:
        values = self._facts.values.of(settings)
        for value in values or (None,):
            keys = _keys(value.node) if value is not None and not value.path else None
            if keys is None or keys & _SHARED:
                return False
        if not isinstance(settings, ast.Name):
            return True
        parents = [self._facts.tree.parent(use) for use in self._facts.names.uses(settings) if use is not settings]
        return not any(isinstance(parent, (ast.Attribute, ast.Subscript)) for parent in parents)

    def _is_size_used(self, size: ast.expr) -> bool:
        """Whether the training also uses the batch size for something else than a loader."""
        name = dotted(size)
        if name is None or not isinstance(size, (ast.Name, ast.Attribute)):
            return False
        tree = self._facts.tree
        alike = tree.names.get(size.id, []) if isinstance(size, ast.Name) else tree.attributes.get(size.attr, [])
        for use in alike:
            if isinstance(use.ctx, ast.Load) and dotted(use) == name and self._is_reckoned_with(use):
                return True
        return False

    def _is_reckoned_with(self, use: ast.expr) -> bool:
        tree = self._facts.tree
        if any(
            self._facts.effects.only_reports(outer)
            for outer in tree.ancestors(use)
            if isinstance(outer, ast.stmt) and not isinstance(outer, FUNCTIONS)
        ):
            return False
        if any(tree.is_within(use, loop.node) for loop in self.loops):
            return True
        call = tree.nearest(use, ast.Call)
        if call is None or tree.statement(call) is not tree.statement(use):
            return False
        meaning = self._facts.calls.meaning(call) or ""
        if meaning.startswith("torch.utils.data."):
            return False
        source = receiver(call)
        return (
            meaning.startswith("torch.")
            or self._facts.models.is_module(call)
            or (source is not None and (self._facts.models.is_module(source) or bool(self._facts.replicas.held_by(source))))
        )

    # Splits ---------------------------------------------------------------------------------------------------

    def _splits(self) -> Iterator[Obstacle]:
        """Draws that decide which data a process trains on, where nothing makes all processes draw alike."""
        for calls in self._facts.tree.calls.values():
            for call in calls:
                if self._is_free_draw(call):
                    yield Obstacle(
                        "unseeded-split",
                        f"line {call.lineno} draws which data are used, and every process would draw differently",
                        "seed the draw with a fixed number",
                    )
                    return

    def _is_free_draw(self, call: ast.Call) -> bool:
        meaning = self._facts.calls.meaning(call) or ""
        if meaning in _SPLITS:
            seeded = next((item.value for item in call.keywords if item.arg == _SPLITS[meaning]), None)
            if seeded is not None and not is_constant(seeded, None):
                return False
        elif not meaning.startswith(_SPLITTING_MODULES) or meaning in _GENERATORS:
            return False
        if self._facts.loops.around(call) is not None or not self._facts.effects.in_main_line(call) or self._is_drawn_seed(call):
            return False
        home = "numpy.random" if meaning.startswith(("numpy.", "sklearn.")) else ("torch" if meaning.startswith("torch.") else "random")
        return not self._is_seeded_before(call, "torch.manual_seed" if home == "torch" else f"{home}.seed", set())

    def _is_seeded_before(self, node: ast.AST, seeding: str, seen: set[Function]) -> bool:
        """Whether all processes have seeded a generator alike before a node runs: above it, above its callers, or on import."""
        tree, function = self._facts.tree, self._facts.tree.function(node)
        for call in (call for calls in tree.calls.values() for call in calls if self._seeds(self._facts, call, seeding, 0)):
            home = tree.function(call)
            if home is function and call.lineno < getattr(node, "lineno", 0):
                return True
            if home is None and function is not None and not self._facts.program.is_guarded(call):
                return True
        if function is None or function in seen:
            return False
        callers = self._facts.callers(function) or []
        return bool(callers) and all(self._is_seeded_before(caller, seeding, seen | {function}) for caller in callers)

    def _seeds(self, facts: Facts, call: ast.Call, seeding: str, depth: int) -> bool:
        """Whether a call seeds a generator with what is the same in all processes, itself or in a function that it runs."""
        if facts.calls.meaning(call) == seeding:
            return bool(call.args) and not facts.lockstep.differs(call.args[0])
        inner = ((home, item) for home, function in called(facts, call) for item in ast.walk(function)) if depth < _DEPTH else ()
        return any(isinstance(item, ast.Call) and self._seeds(home, item, seeding, depth + 1) for home, item in inner)

    def _is_drawn_seed(self, call: ast.Call) -> bool:
        """Whether a draw only makes a seed: ``args.seed = random.randint(1, 10000)``."""
        statement = self._facts.tree.statement(call)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        return any("seed" in (dotted(target) or "").lower() for target in targets)


def _owners_of_parameters(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions whose ``.parameters()`` an expression holds."""
    for item in walk_here(node):
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.func.attr in ("parameters", "named_parameters"):
            yield item.func.value


def _origins(facts: Facts, expression: ast.expr, _seen: frozenset[int] = frozenset()) -> set[ast.AST]:
    """What made a network, looking through ``.cuda()`` and the like."""
    found: set[ast.AST] = set()
    if id(expression) in _seen:
        return found
    for value in facts.values.of(expression) or ():
        node = value.node
        moved = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SELF_RETURNING and not value.path
        source = receiver(node) if moved and isinstance(node, ast.Call) else None
        found |= {node} if source is None else _origins(value.facts, source, _seen | {id(expression)})
    return found


def _keys(node: ast.AST) -> set[str] | None:
    """The keys of a literal dictionary, None for anything else."""
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        return {item.arg or "**" for item in node.keywords}
    return None
