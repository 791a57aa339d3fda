"""One program's way from Apex's automatic mixed precision to torch's own: all that must change together."""

from __future__ import annotations

import ast
import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.apex.imports import complaint, registration
from torchfix.facts.apex.program import sharing
from torchfix.facts.apex.states import SavedStates, states_of
from torchfix.facts.apex.training import ScaledTraining, trainings_of
from torchfix.facts.apex.uses import Request, Use, amp_uses, brings_apex, request_of
from torchfix.facts.code.calls import argument
from torchfix.facts.code.tree import dotted
from torchfix.facts.half_precision.spelling import Spelling
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.companions import Companion, Pass

if TYPE_CHECKING:
    from torchfix.facts import Facts

_KNOWN = ("initialize", "scale_loss", "master_params", "state_dict", "load_state_dict")
_OUTSIDE = (
    "What runs outside the training step, evaluation among it, computes in float32 again: Apex had changed torch for the whole program."
)
_LEVEL = "{option} now only tells O0, which switches mixed precision off, from all others, which compute as O1 did."
_STATES = (
    "Checkpoints that Apex wrote still load, but for the scale of the loss, which torch's scaler finds again in a few steps; "
    'new ones have the scaler\'s state under "{key}".'
)
_SCALE = (
    "The scale stays at {scale} as long as no gradient overflows; torch's scaler then skips the step and halves it, where Apex went on."
)
_STASH = ("_amp_stash", "_amp_state", "_lazy_init_maybe_master_weights")
# Calls that give a truth value, and nothing else.
_TRUTHS = ("torch.cuda.is_available", "builtins.bool", "builtins.isinstance", "builtins.hasattr", "builtins.callable")


@dataclass(frozen=True, eq=False)
class Migration:
    """A program of which everything is known that torch's mixed precision needs in Apex's place.

    Args:
        files: the files that change; the first one initializes Apex.
        uses: what they use of Apex's automatic mixed precision, in text order.
        request: what it asks for.
        top: the statement in whose place, or behind which, the scaler is made.
        goes: whether nothing of ``top`` stays.
        conditions: the conditions under which it is initialized, outermost first.
        trainings: the training that it scales.
        states: where the state of Apex is saved and loaded.
        owner: ``"self."`` where the scaler must be an attribute of the instance.
        passes: the functions that must be handed the scaler.
    """

    files: tuple[Facts, ...]
    uses: tuple[Use, ...]
    request: Request
    top: ast.stmt
    goes: bool
    conditions: tuple[ast.expr, ...]
    trainings: tuple[ScaledTraining, ...]
    states: SavedStates
    owner: str
    passes: tuple[Pass, ...]

    @property
    def facts(self) -> Facts:
        """The file that initializes Apex."""
        return self.request.use.facts

    @cached_property
    def name(self) -> str:
        """A name for the scaler that is free in all of the files."""
        files = (*self.files, *(facts for step in self.passes for facts in (step.facts, step.caller)))
        names = itertools.chain(("scaler", "grad_scaler", "amp_scaler"), (f"amp_scaler_{number}" for number in itertools.count(2)))
        return next(name for name in names if all(facts.names.is_free(name) and name not in facts.tree.attributes for facts in files))

    def scaler_in(self, training: ScaledTraining) -> str:
        """What a training calls the scaler: an attribute where its optimizer is one."""
        return f"{self.owner}{self.name}" if isinstance(training.optimizers[0], ast.Attribute) else self.name

    @property
    def off(self) -> bool:
        """Whether Apex is asked to do nothing: level O0 computes in float32."""
        return self.request.level == "O0" and self.request.option is None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user must know of the change, in sentences."""
        request = self.request
        found = [] if self.off else [_OUTSIDE]
        found += [_STATES.format(key=self.states.key)] if self.states.key else []
        found += [_LEVEL.format(option=ast.unparse(request.option))] if request.option is not None else []
        found += [_SCALE.format(scale=request.scale)] if request.scale is not None else []
        return tuple(found)

    @property
    def enabled(self) -> str:
        """The condition under which a run computes in half precision; empty where every run does."""
        parts = [self._operand(item) for item in self.conditions]
        option = self.request.option
        parts += [f'{self.facts.source.segment(option)} != "O0"'] if option is not None else []
        text = " and ".join(parts)
        conditions = self.conditions
        certain = all(_is_truth(self.facts, item) for item in conditions)
        return text if certain or not text else f"bool({text})"

    def _operand(self, condition: ast.expr) -> str:
        """A condition's text, as one part of several."""
        text = self.facts.source.segment(condition)
        text = ast.unparse(condition) if "\n" in text else text
        several = len(self.conditions) > 1 or self.request.option is not None
        loose = isinstance(condition, (ast.IfExp, ast.Lambda, ast.NamedExpr)) or (
            isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.Or)
        )
        return f"({text})" if several and loose else text

    @property
    def scaler(self) -> str:
        """The call that makes the scaler; a fixed scale never grows."""
        spelling, scale = Spelling(self.facts, self.top), self.request.scale
        given = ['"cuda"'] if spelling.since(2, 3) else []
        given += [f"init_scale={scale}", "growth_interval=10**9"] if scale is not None else []
        given += [f"enabled={self.enabled}"] if self.enabled else []
        return f"{spelling.torch('amp.GradScaler' if spelling.since(2, 3) else 'cuda.amp.GradScaler')}({', '.join(given)})"

    def header(self, training: ScaledTraining) -> str:
        """The ``with`` line of a region; before torch 1.10 autocast takes no precision and computes in float16."""
        spelling = Spelling(training.facts, training.loop.node)
        given = ['"cuda"', f"dtype={spelling.torch('float16')}"] if spelling.has_bfloat16 else []
        given += [f"enabled={self.scaler_in(training)}.is_enabled()"] if self.enabled else []
        return f"with {spelling.torch('autocast' if spelling.has_bfloat16 else 'cuda.amp.autocast')}({', '.join(given)}):"

    def parameters(self, use: Use) -> str:
        """What ``apex.amp.master_params(optimizer)`` lists at level O1: the optimizer's own parameters."""
        assert use.call is not None
        optimizer = argument(use.call, "optimizer", 0)
        assert optimizer is not None
        made = use.facts.optimizers.of(optimizer) or ()
        given = argument(made[0].call, "params", 0) if len(made) == 1 and made[0].value.facts is use.facts else None
        source = given.func.value if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and not given.args else None
        if isinstance(given, ast.Call) and isinstance(source, ast.Name) and given.func.attr == "parameters":  # type: ignore[attr-defined]
            scope = use.facts.names.lookup(source.id, source)
            if scope is not None and use.facts.names.lookup(source.id, use.node) == scope:
                return use.facts.source.segment(given)
        parameter, group = use.facts.names.fresh("parameter", "param"), use.facts.names.fresh("group", "param_group")
        return f'({parameter} for {group} in {ast.unparse(optimizer)}.param_groups for {parameter} in {group}["params"])'


def migration_of(facts: Facts) -> Migration | Obstacle | None:
    """What a file's change to torch's mixed precision takes, or what stands in the way; None where it does not use Apex's."""
    files = sharing(facts)
    if files is None or isinstance(files, Obstacle):
        return files
    uses = tuple(use for other in files for use in amp_uses(other))
    return _obstacle(facts, uses) or _read(files, uses)


def _obstacle(facts: Facts, uses: tuple[Use, ...]) -> Obstacle | None:
    """What no change can mend."""
    if facts.project.torch is not None and facts.project.torch < (1, 6):
        return Obstacle("torch-too-old", "the project still allows torch without mixed precision", "raise its lower bound to torch 1.6")
    stash = next((node for word in _STASH for node in facts.tree.attributes.get(word, ())), None)
    if stash is not None:
        words = f"{facts.path}:{stash.lineno} reads {stash.attr}, where Apex keeps its own books"
        return Obstacle("apex-use", words, "change this place to torch.amp by hand")
    lent = next((use for use in uses if use.is_lent), None)
    if lent is not None:
        words = f"another file imports {lent.root.id} from {lent.facts.path}, and would miss it"
        return Obstacle("apex-elsewhere", words, "import Apex in each file that uses it")
    unknown = next((use for use in uses if not _is_known(use)), None)
    if unknown is None:
        return None
    return Obstacle(
        "apex-use",
        f"{unknown.facts.path}:{unknown.node.lineno} does with {unknown.name} what has no twin in torch",
        "change this place to torch.amp by hand",
    )


def _is_known(use: Use) -> bool:
    """Whether torch has a twin of what is done with Apex."""
    return (use.call is not None and use.word in _KNOWN) or complaint(use) is not None or registration(use) is not None


def _read(files: tuple[Facts, ...], uses: tuple[Use, ...]) -> Migration | Obstacle:
    request = request_of(next(use for use in uses if use.word == "initialize"))
    if isinstance(request, Obstacle):
        return request
    facts, tree = request.use.facts, request.use.facts.tree
    statement = tree.statement(request.call)
    conditions = [outer.test for outer in tree.ancestors(statement) if isinstance(outer, ast.If)]
    trainings: list[ScaledTraining] = []
    for other in files:
        found = trainings_of(other, [use for use in uses if use.facts is other], conditions[0] if conditions else None)
        if isinstance(found, Obstacle):
            return found
        trainings += found
    if not trainings:
        return Obstacle(
            "apex-unused", "Apex is initialized, and no loss is scaled that it could see", "scale the loss where it goes backward"
        )
    home = _home(request, trainings)
    if isinstance(home, Obstacle):
        return home
    after, owner, passes = home
    tests: list[ast.expr] = [] if request.enabled is None else [request.enabled]
    top: ast.stmt = statement
    while tree.block(top) is not tree.block(after):
        parent = tree.parent(top)
        if not isinstance(parent, ast.If) or top not in parent.body:
            return _NOT_BESIDE
        tests.insert(0, parent.test)
        top = parent
    states = states_of(uses, top, owner)
    if isinstance(states, Obstacle):
        return states
    off = request.level == "O0" and request.option is None
    if off and states.key:
        return Obstacle("apex-state", "Apex's state is saved, though level O0 has none", "take its entry out of the checkpoint")
    return Migration(
        files, uses, request, top, _goes(facts, top, request), tuple(tests), tuple(trainings), states, owner, () if off else passes
    )


_NOT_BESIDE = Obstacle(
    "optimizer-elsewhere",
    "Apex is initialized where no scaler can be made and handed to the training",
    "initialize Apex where the optimizer is made, under an if at most",
)


def _home(request: Request, trainings: list[ScaledTraining]) -> tuple[ast.stmt, str, tuple[Pass, ...]] | Obstacle:
    """A statement in the block in which the scaler is to be made, its owner, and the functions through which it goes."""
    facts, tree = request.use.facts, request.use.facts.tree
    statement = tree.statement(request.call)
    found: list[Companion] = []
    for there, optimizer in ((training.facts, item) for training in trainings for item in training.optimizers):
        owner = there.tree.method_class(optimizer)
        if isinstance(optimizer, ast.Attribute) and owner is not None and owner is tree.method_class(statement):
            top = statement
            while isinstance(parent := tree.parent(top), ast.If):
                top = parent
            found.append(Companion(facts, top, optimizer, (dotted(optimizer) or "").partition(".")[0] + "."))
            continue
        companions = there.companions.of(optimizer)
        if isinstance(companions, Obstacle):
            return companions
        found += companions
    first = found[0]
    if (
        first.facts.path != facts.path
        or any(item.home != first.home or item.owner != first.owner for item in found)
        or tree.function(statement) is not first.home[1]
    ):
        return _NOT_BESIDE
    passes = {step.function: step for item in found for step in item.passes}
    return first.after, first.owner, tuple(passes.values())


def _goes(facts: Facts, statement: ast.stmt, request: Request) -> bool:
    """Whether a statement only initializes Apex, under conditions or not, and gives nothing another name."""
    if isinstance(statement, ast.If):
        inner = [item for item in statement.body if not brings_apex(item)]
        whole = not statement.orelse and "#" not in facts.source.segment(statement)
        return whole and len(inner) == 1 and _goes(facts, inner[0], request)
    return statement is facts.tree.statement(request.call) and returns_as_named(request)


def returns_as_named(request: Request) -> bool:
    """Whether what Apex returns gets the names that it already has, or none."""
    parent = request.use.facts.tree.parent(request.call)
    if isinstance(parent, ast.Expr):
        return True
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return False
    given = [item for item in (request.models, request.optimizers) if item is not None]
    target = parent.targets[0]
    named = target.elts if len(given) == 2 and isinstance(target, ast.Tuple) else [target]
    return [ast.unparse(item) for item in named] == [ast.unparse(item) for item in given]


def _is_truth(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression surely is True or False, rather than something that counts as such."""
    if isinstance(node, ast.BoolOp):
        return all(_is_truth(facts, item) for item in node.values)
    if isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        return True
    values = facts.values.of(node) or ()
    return bool(values) and all(_gives_truth(value.facts, value.node) for value in values if not value.path)


def _gives_truth(facts: Facts, node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return facts.calls.meaning(node) in _TRUTHS
    if isinstance(node, ast.Attribute):
        declared = facts.options.declaration(node)
        action = argument(declared.node, "action") if declared is not None and isinstance(declared.node, ast.Call) else None
        return isinstance(action, ast.Constant) and action.value in ("store_true", "store_false") and not facts.options.assigned(node)
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Constant) and isinstance(node.value, bool))
