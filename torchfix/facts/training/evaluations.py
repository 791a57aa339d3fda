"""Evaluations that build a graph for nothing: forward passes from which nothing is ever sent backward, with gradients on.

What counts is what becomes of the output, not what a function is called: followed to all its readers, it ends in numbers,
text and files. Found in code that evaluates on purpose (``model.eval()``) or runs again and again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import keyword
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, Function, last_name, walk_here
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.gradient_needs import not_followed
from torchfix.facts.training.gradients import End, Fate
from torchfix.facts.training.models import Network
from torchfix.facts.training.passes import SWITCHES

if TYPE_CHECKING:
    from torchfix.facts import Facts

_PLAIN_DECORATORS = ("builtins.staticmethod", "builtins.classmethod")
# What computes by other kernels without gradients: attention on every device, an LSTM on the CPU (seen with torch 2.13).
_FAST_PATHS = tuple(f"torch.nn.{name}" for name in "TransformerEncoder TransformerEncoderLayer Transformer MultiheadAttention LSTM".split())
_FARTHEST = 8  # statements between two forward passes that one block may hold

_FAST = "takes another kernel where gradients are off: its outputs may differ in the last digits"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Forward passes whose graph nobody uses, and the code that holds them and nothing else that needs gradients.

    Args:
        place: the header of the innermost loop around the first of them that evaluates alone, else that forward pass.
        statements: the neighbouring statements that hold them; the whole body where they fill a function.
        function: the function that they fill, None where they are a part of one.
        condition: the condition under which they do train, None where they never do.
        obstacle: why gradients must stay on, None where they may go.
        fast_path: why outputs may differ in the last digits without gradients, empty where they may not.
    """

    place: ast.AST
    statements: tuple[ast.stmt, ...]
    function: Function | None = None
    condition: ast.expr | None = None
    obstacle: Obstacle | None = None
    fast_path: str = ""


class Evaluations:
    """The evaluations of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def all(self) -> tuple[Evaluation, ...]:
        """The evaluations with gradients on, in text order."""
        facts = self._facts
        homes: dict[Function | None, list[ast.Call]] = {}
        for call in facts.passes.all:
            homes.setdefault(facts.tree.function(call), []).append(call)
        if not homes or any(_switched_off(script) for script in facts.program.scripts):
            return ()
        found = [item for home, calls in homes.items() if not facts.passes.is_off(home) for item in self._in_home(home, calls)]
        return tuple(sorted(found, key=lambda item: (item.statements[0].lineno, item.statements[0].col_offset)))

    def _in_home(self, home: Function | None, calls: list[ast.Call]) -> Iterator[Evaluation]:
        """The evaluations of one function, or of the module's own code."""
        fates = {call: self._facts.passes.fate(call) for call in calls}
        quiet = [call for call in calls if fates[call].end is End.NOWHERE and self._facts.passes.is_worth_it(call)]
        if home is not None and len(quiet) == len(calls) and self._fills(home):
            fast_path, obstacle = self._fast_path(quiet), self._padding(quiet)
            yield Evaluation(self._place(quiet[0], home), tuple(home.body), home, obstacle=obstacle, fast_path=fast_path)
            return
        done: list[ast.AST] = []
        for call in calls:
            if any(self._facts.tree.is_within(call, node) for node in done):
                continue
            if call in quiet:
                statements = self._loop_around(call, calls, fates) or self._statements(call, quiet)
                done += statements
                yield self._judged(call, statements, [item for item in quiet if self._holds(statements, item)])
            elif fates[call].end is End.UNSEEN and self._facts.passes.runs_directly(call) and self._facts.passes.is_on_purpose(call):
                loop = self._facts.tree.nearest(call, LOOPS)
                done.append(loop or self._facts.tree.statement(call))
                yield Evaluation(self._place(call, None), (self._facts.tree.statement(call),), obstacle=not_followed(fates[call]))
            elif fates[call].end is End.BACKWARD:
                both = self._training_too(home, call, fates[call])
                if both is not None:
                    done.append(self._facts.tree.nearest(call, LOOPS) or call)
                    yield both

    def _place(self, call: ast.Call, home: Function | None) -> ast.AST:
        loop = self._facts.tree.nearest(call, LOOPS)
        alone = loop is not None and self._facts.tree.function(loop) is self._facts.tree.function(call)
        return loop if loop is not None and alone and (home is not None or self._evaluates_alone(loop)) else call

    def _evaluates_alone(self, loop: ast.stmt) -> bool:
        return self._facts.autograd.used_in([loop]) is None

    # Statements -----------------------------------------------------------------------------------------------

    def _fills(self, function: Function) -> bool:
        """Whether a function as a whole evaluates, so that its gradients can go by a decorator."""
        facts = self._facts
        plain = all(facts.names.qualified(item) in _PLAIN_DECORATORS for item in function.decorator_list)
        special = function.name.startswith("__") or function.name == "forward"
        if isinstance(function, ast.AsyncFunctionDef) or not plain or special:
            return False
        if facts.gradient_needs.of(function.body, whole=True) is not None:
            return False
        calls = (node for statement in function.body for node in walk_here(statement) if isinstance(node, ast.Call))
        return not any(self._makes(call) for call in calls)

    def _makes(self, call: ast.Call) -> bool:
        """Whether a call makes or loads a network, or makes an optimizer: the work of a script rather than of an evaluation."""
        facts = self._facts
        made = any(network.value.node is call for network in facts.models.of(call) or ()) and not facts.models.is_loss(call)
        loaded = facts.calls.meaning(call) == "torch.load" or last_name(call.func) == "load_state_dict"
        return made or loaded or bool(facts.optimizers.of(call))

    def _loop_around(self, call: ast.Call, calls: list[ast.Call], fates: dict[ast.Call, Fate]) -> list[ast.stmt]:
        """The outermost loop around a forward pass that only evaluates, alone in a list; none where there is no such loop."""
        facts, found = self._facts, []
        for outer in facts.tree.ancestors(call):
            if isinstance(outer, (*FUNCTIONS, ast.Lambda)):
                break
            if isinstance(outer, LOOPS) and not facts.tree.is_within(call, getattr(outer, "iter", outer.body[0])):
                others = [fates[item].end for item in calls if facts.tree.is_within(item, outer)]
                switched = any(isinstance(node, ast.With) and facts.regions.under(node.body[0], SWITCHES) for node in walk_here(outer))
                if set(others) == {End.NOWHERE} and not switched and facts.gradient_needs.of([outer]) is None:
                    found = [outer]
        return list(found)

    def _statements(self, call: ast.Call, quiet: list[ast.Call]) -> list[ast.stmt]:
        """The statement of a forward pass, with those up to the last other such pass nearby in the same block."""
        tree = self._facts.tree
        first = tree.statement(call)
        block = tree.block(first)
        start = stop = block.index(first)
        others = {block.index(tree.statement(item)) for item in quiet if tree.statement(item) in block}
        for index in range(start + 1, min(len(block), start + _FARTHEST)):
            if isinstance(block[index], (*FUNCTIONS, ast.ClassDef)) or self._facts.gradient_needs.of(block[start : index + 1]):
                break
            if index in others:
                stop = index
        return block[start : stop + 1]

    def _holds(self, statements: Sequence[ast.stmt], node: ast.AST) -> bool:
        return any(self._facts.tree.is_within(node, item) for item in statements)

    def _judged(self, call: ast.Call, statements: list[ast.stmt], quiet: list[ast.Call]) -> Evaluation:
        place = self._place(call, None) if isinstance(statements[0], LOOPS) else call
        obstacle = self._facts.gradient_needs.of(statements) or self._padding(quiet)
        return Evaluation(place, tuple(statements), obstacle=obstacle, fast_path=self._fast_path(quiet))

    # Networks -------------------------------------------------------------------------------------------------

    def _fast_path(self, calls: Sequence[ast.Call]) -> str:
        """Why the outputs of some forward passes may differ in the last digits without gradients."""
        for call in calls:
            networks = self._facts.models.run_by(call) or ()
            if not networks and self._facts.passes.is_evaluated_object(call.func):
                return f"{ast.unparse(call.func)} is made out of sight: if it holds an nn.TransformerEncoder or nn.LSTM, that {_FAST}"
            for network in networks:
                if _may_hold_fast_path(network):
                    return f"{ast.unparse(call.func)} may hold an nn.TransformerEncoder, nn.MultiheadAttention or nn.LSTM, which {_FAST}"
        return ""

    def _padding(self, calls: Sequence[ast.Call]) -> Obstacle | None:
        """Why the outputs of an encoder's padded positions would change: its fast path makes them zeros."""
        networks = [network for call in calls for network in self._facts.models.run_by(call) or ()]
        inside = [node for network in networks if _may_hold_fast_path(network) for node in _code(network)]
        for node in (*calls, *inside):
            if isinstance(node, ast.Call) and keyword(node, "src_key_padding_mask") is not None:
                return Obstacle(
                    "padding-zeroed",
                    "without gradients an nn.TransformerEncoder makes the outputs of padded positions zeros",
                    "switch gradients off by hand if nothing reads them",
                )
        return None

    # Training and evaluation in one ---------------------------------------------------------------------------

    def _training_too(self, home: Function | None, call: ast.Call, fate: Fate) -> Evaluation | None:
        """A forward pass that is sent backward under a condition only, which tells training from evaluation."""
        facts = self._facts
        branch = next((outer for outer in facts.tree.ancestors(fate.node) if isinstance(outer, ast.If)), None)
        if fate.facts is not facts or branch is None or facts.tree.is_within(call, branch) or not self._holds(branch.body, fate.node):
            return None
        if facts.tree.function(branch) is not home or facts.gradients.of_value(call, beside=branch).end is not End.NOWHERE:
            return None
        told = self._tells_training(branch.test)
        if told is None:
            return None
        statements = self._statements(call, [call])
        place = facts.tree.nearest(call, LOOPS) or call
        if told:
            return Evaluation(place, tuple(statements), condition=branch.test, fast_path=self._fast_path([call]))
        test = ast.unparse(branch.test)
        obstacle = Obstacle(
            "train-and-eval",
            f"{test} decides whether this trains or evaluates, and need not be a bool",
            f"put the forward pass under torch.set_grad_enabled(bool({test}))",
        )
        return Evaluation(place, tuple(statements), obstacle=obstacle)

    def _tells_training(self, test: ast.expr) -> bool | None:
        """Whether a condition surely is a bool; None where it does not tell runs of the function, or phases of a loop, apart."""
        facts = self._facts
        name = test.left if isinstance(test, ast.Compare) and len(test.ops) == 1 else test
        if not isinstance(name, ast.Name):
            return None
        bindings = facts.flow.reaching(name)
        if len(bindings) != 1:
            return None
        if bindings[0].how is Bound.LOOP and isinstance(bindings[0].value, (ast.List, ast.Tuple)):
            words = all(isinstance(item, ast.Constant) and isinstance(item.value, str) for item in bindings[0].value.elts)
            return True if words and isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Eq, ast.NotEq)) else None
        if bindings[0].how is not Bound.PARAMETER:
            return None
        values = facts.values.of(name)
        constants = [value.node.value for value in values or () if isinstance(value.node, ast.Constant)]
        known = bool(values) and len(constants) == len(values or ())
        if isinstance(test, ast.Compare):
            compared = isinstance(test.ops[0], (ast.Is, ast.IsNot)) or (known and all(isinstance(item, str) for item in constants))
            return True if compared else None
        return known and all(isinstance(item, bool) for item in constants)


def _switched_off(facts: Facts) -> bool:
    """Whether a file switches gradients off for good."""
    calls = facts.calls.to("torch.set_grad_enabled", "torch.autograd.set_grad_enabled")
    return any(isinstance(facts.tree.parent(call), ast.Expr) for call in calls)


def _loads(node: ast.AST) -> Iterator[ast.expr]:
    return (item for item in ast.walk(node) if isinstance(item, (ast.Name, ast.Attribute)) and isinstance(item.ctx, ast.Load))


def _may_hold_fast_path(network: Network) -> bool:
    """Whether a network may hold layers with a fast path of their own for evaluation without gradients."""
    if network.definition is None:
        name = network.library or ""
        plain = name.startswith(("torchvision.models.", "torch.nn.")) and "vit" not in name and not name.endswith("__dict__")
        return name in _FAST_PATHS or not plain
    return any(
        definition.facts.names.qualified(node) in _FAST_PATHS
        for definition in network.definition.facts.models.hidden_classes(network.definition)
        for node in _loads(definition.node)
    )


def _code(network: Network) -> Iterator[ast.AST]:
    """The code of a network's class and of the classes that it may reach."""
    for definition in network.definition.facts.models.hidden_classes(network.definition) if network.definition is not None else ():
        yield from ast.walk(definition.node)
