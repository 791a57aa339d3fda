"""Whether the batches of a training loop can be shared out among processes: its loaders, its losses and its totals."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import is_constant, receiver
from torchfix.facts.code.tree import COMPREHENSIONS, FUNCTIONS, LOOPS, dotted
from torchfix.facts.data.loaders import Loader
from torchfix.facts.metrics.totals import Joining, Total, totals
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.processes.splits import free_draws
from torchfix.facts.training.coupling import coupling
from torchfix.facts.training.models import derives
from torchfix.facts.training.reductions import Reduction
from torchfix.facts.training.regions import NO_GRAD

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Loop

# Arguments of a loader that may not hide behind ** when its batches are shared out.
_SHARED = frozenset(["dataset", "batch_size", "shuffle", "sampler", "batch_sampler"])


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
        for home, call in free_draws(self._facts):
            yield Obstacle(
                "unseeded-split",
                f"line {call.lineno} of {home.path} draws which data are used, and every process would draw differently",
                "seed the draw with a fixed number",
            )

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
            if reduction is Reduction.COUNTED:
                yield Obstacle(
                    "unequal-mean",
                    f"the loss that line {backward.lineno} sends backward is a mean over the targets that count "
                    "(weight, ignore_index or a mask), and each process would divide by another number",
                    "sum the loss, and divide by the count over all processes",
                )
            elif reduction is Reduction.SUM:
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
            found = coupling(self._facts, loss) if loss is not None else None
            if found is not None:
                place = "" if found[0] is self._facts else f" of {found[0].path}"
                yield Obstacle(
                    "coupled-loss",
                    f"{ast.unparse(found[1])} (line {found[1].lineno}{place}) relates samples of a batch to one another, "
                    "and each process would see only the pairs in its share",
                    "gather what the network gives in all processes (torch.distributed.nn.functional.all_gather) before the loss",
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
        moved = [loader.argument(name) for name in ("dataset", "batch_size", "shuffle")]
        parts = [part for item in moved if item is not None for part in ast.walk(item)]
        if loader.dataset is None or any(isinstance(part, (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)) for part in parts):
            yield Obstacle(
                "loader-unclear",
                f"the loader in line {line} has no dataset, or binds names among its arguments, which its sampler is to share",
                "give dataset, batch_size and shuffle names of their own in front of the loader",
            )
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
            self._facts.reports.only_reports(outer)
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


def _keys(node: ast.AST) -> set[str] | None:
    """The keys of a literal dictionary, None for anything else."""
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        return {item.arg or "**" for item in node.keywords}
    return None
