"""Train in torch's own mixed precision in place of Apex's.

Why:
    Apex's automatic mixed precision is deprecated, and no longer builds beside a current torch. Torch has had its own since
    1.6: autocast chooses the precision of each operation where the forward pass runs, rather than changing torch's
    functions for the whole program, and a scaler keeps small gradients from becoming zero.

Before:
    import torch
    from apex import amp
    from torch import nn

    model = nn.Linear(8, 2).cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    batches = [(torch.ones(4, 8), torch.zeros(4, dtype=torch.long))] * 2
    for x, y in batches:
        optimizer.zero_grad()
        loss = criterion(model(x.cuda()), y.cuda())
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()

After:
    import torch
    from torch import nn

    model = nn.Linear(8, 2).cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    batches = [(torch.ones(4, 8), torch.zeros(4, dtype=torch.long))] * 2
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x.cuda()), y.cuda())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

Safety:
    Effect ``numerics``: torch's lists of operations differ a little from Apex's, and code outside the regions computes in
    float32 again. Level O1 only, also where it is the default of an option; O2 and O3, which change the weights, are held.
    Every loss of the loop is scaled, every step of its optimizers is in sight, and gradients are unscaled before their
    first reader; branches with Apex and without become one where both say the same. Anything else is held. Apex's layer
    norm, fused Adam and SGD, and synchronized batch norm become torch's; its DistributedDataParallel stays, and is named.
    Effect ``checkpoint`` where the scaler's state takes the place of Apex's, or an optimizer's has other entries.

Reference:
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from torchfix.edits import (
    AddImport,
    AddParameter,
    Edit,
    InsertAfter,
    InsertBefore,
    Remove,
    RemoveArgument,
    RemoveImport,
    Replace,
    SetArgument,
    Wrap,
    by_file,
)
from torchfix.facts import Facts
from torchfix.facts.apex.imports import plain, serves_amp, shortened, unneeded
from torchfix.facts.apex.migration import Migration, migration_of, returns_as_named
from torchfix.facts.apex.training import Piece, ScaledTraining, Step, written
from torchfix.facts.apex.twins import Twin, twins_of
from torchfix.facts.apex.uses import Use, amp_uses, imports_of
from torchfix.facts.half_precision.conversions import conversion
from torchfix.facts.obstacle import Obstacle
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_MESSAGES = {
    "initialize": "Apex's mixed precision is deprecated, and changes torch's functions for the whole program",
    "scale_loss": "Apex scales the loss, which torch's own scaler does",
    "state_dict": "Apex's state is saved, which nothing but Apex can load",
    "load_state_dict": "Apex's state is loaded, which torch's own scaler does not need",
    "master_params": "Apex lists the optimizer's parameters, which the optimizer has itself",
}
_IMPORTED = "Apex's mixed precision is imported, and torch has its own"
_OTHER = "Apex's mixed precision is used, and torch has its own"
_BECAUSE = "the program trains in half precision already, and each of its losses and steps is in sight"


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """Every place that uses Apex's mixed precision, which change together or not at all, and what else of Apex torch has."""
    for use, twin in twins_of(facts):
        yield _other_part(facts, use, twin)
    migration = migration_of(facts)
    if migration is None:
        return
    effects = frozenset({Effect.NUMERICS})
    if isinstance(migration, Obstacle):
        held = Held(migration.code, migration.text, migration.help)
        yield from (Finding(node, message, effects=effects, held=held) for node, message in _places(facts))
        return
    rewrite = _Rewrite(migration, f"{migration.owner}{migration.name}")
    own, elsewhere = by_file(facts.path, rewrite.edits())
    effects = frozenset({Effect.NUMERICS, Effect.CHECKPOINT} if migration.states.key else {Effect.NUMERICS})
    for node, message in _places(facts):
        yield Finding(node, message, own, effects, _BECAUSE, migration.notes, elsewhere=elsewhere)


def _other_part(facts: Facts, use: Use, twin: Twin | Obstacle) -> Finding:
    """A layer, an optimizer or a wrapper of Apex, and torch's in its place."""
    node, message = use.call or use.node, f"{use.name} is used, and torch has its own"
    if isinstance(twin, Obstacle):
        return Finding(node, message, effects=frozenset({Effect.NUMERICS}), held=Held(twin.code, twin.text, twin.help))
    spelled = facts.names.spell(twin.name, use.node)
    edits: list[Edit] = [Replace(use.node, spelled or twin.name)]
    edits += [] if use.is_lent else [RemoveImport(*use.imported)]
    edits += [AddImport("torch")] if spelled is None else []
    if use.call is not None:
        edits += [RemoveArgument(use.call, name) for name in twin.dropped]
        edits += [SetArgument(use.call, name, value) for name, value in twin.added]
    effects = frozenset({Effect.NUMERICS, Effect.CHECKPOINT} if twin.changes_state else {Effect.NUMERICS})
    return Finding(node, message, tuple(edits), effects, f"{twin.name} computes the same")


def _places(facts: Facts) -> Iterator[tuple[ast.AST, str]]:
    """Where a file uses Apex's mixed precision: its imports, and what it does with them."""
    for statement, alias in imports_of(facts):
        if serves_amp(facts, statement, alias):
            yield statement, _IMPORTED
    for use in amp_uses(facts):
        yield use.call or use.node, _MESSAGES.get(use.word, _OTHER)


@dataclass(frozen=True)
class _Rewrite:
    """One program's change.

    Args:
        migration: what was read.
        scaler: what the scaler is called where it is made.
    """

    migration: Migration
    scaler: str

    def edits(self) -> Iterator[tuple[str, Edit]]:
        """All edits, each with the path of its file."""
        migration = self.migration
        for facts in migration.files:
            yield from ((facts.path, edit) for edit in self.imports(facts))
        yield from ((migration.facts.path, edit) for edit in self.set_up())
        yield from self.hand_on()
        yield from self.checkpoints()
        for training in migration.trainings:
            scaled = () if migration.off else (*self.steps(training), *self.regions(training))
            yield from ((training.facts.path, edit) for edit in (*self.pieces(training), *scaled))
        kept = [piece.statement for training in migration.trainings for piece in training.pieces]
        for use in migration.uses:
            if use.word == "master_params" and use.call is not None and not any(use.facts.tree.is_within(use.call, item) for item in kept):
                yield use.facts.path, Replace(use.call, migration.parameters(use))

    def imports(self, facts: Facts) -> Iterator[Edit]:
        """Apex's imports go; torch itself comes where a file has only parts of it or none."""
        if facts.names.spell("torch", facts.tree.module.body[-1]) is None:
            yield AddImport("torch")
        yield from (RemoveImport(*brought) for brought in plain(facts))
        yield from (
            Remove(item) for item in unneeded(facts) if not (self.migration.goes and facts.tree.is_within(item, self.migration.top))
        )
        yield from (Replace(statement, text) for statement, text in shortened(facts))

    def set_up(self) -> Iterator[Edit]:
        """The scaler, in the place of what initialized Apex."""
        migration, request = self.migration, self.migration.request
        made = f"{self.scaler} = {migration.scaler}"
        if migration.goes:
            yield Remove(migration.top) if migration.off else Replace(migration.top, made)
            return
        statement = migration.facts.tree.statement(request.call)
        given = {"models": request.models} if request.optimizers is None else {"models": request.models, "optimizers": request.optimizers}
        values = ", ".join(f"${name}" for name in given)
        if returns_as_named(request):
            yield Remove(statement)
        elif isinstance(statement, ast.Assign) and statement.value is request.call and len(statement.targets) == 1:
            yield Replace(statement, f"$target = {values}", {"target": statement.targets[0], **given})
        else:
            yield Replace(request.call, values, given)
        yield from [] if migration.off else [InsertAfter(migration.top, made)]

    def hand_on(self) -> Iterator[tuple[str, Edit]]:
        """The scaler's way through the functions that the optimizer goes through."""
        passes, name = self.migration.passes, self.migration.name
        for step in passes:
            yield step.facts.path, AddParameter(step.function, f"{name}=None" if step.function.args.defaults else name)
            outer = any(step.caller.tree.function(call) is other.function for other in passes for call in step.calls)
            given = name if outer else self.scaler
            yield from ((step.caller.path, SetArgument(call, name, given)) for call in step.calls)

    def checkpoints(self) -> Iterator[tuple[str, Edit]]:
        """The scaler's state under a key of its own, since Apex's in older files means something else to it."""
        states = self.migration.states
        for facts, constant in states.renamed:
            if not any(facts.tree.is_within(constant, statement) for _, statement, _ in states.loaded):
                yield facts.path, Replace(constant, facts.source.quoted(states.key))
        for use in states.saved:
            assert use.call is not None
            yield use.facts.path, Replace(use.call, f"{self.scaler}.state_dict()")
        for use, statement, checkpoint in states.loaded:
            key = use.facts.source.quoted(states.key)
            code = f"if {checkpoint}.get({key}):\n    {self.scaler}.load_state_dict({checkpoint}[{key}])"
            yield use.facts.path, Replace(statement, code)

    def pieces(self, training: ScaledTraining) -> Iterator[Edit]:
        """Scaled losses, and one branch in the place of two."""
        for piece in training.pieces:
            parts = {"loss": piece.sent.loss} if piece.sent is not None else {}
            yield Replace(piece.statement, "\n".join(self.kept(training, piece)), parts)

    def kept(self, training: ScaledTraining, piece: Piece) -> Iterator[str]:
        """The code that goes in the place of a piece."""
        facts, scaler = training.facts, self.migration.scaler_in(training)
        for statement in piece.kept:
            if piece.sent is not None and piece.sent.statement is statement:
                given = ", ".join(facts.source.segment(item) for item in (*piece.sent.call.args, *piece.sent.call.keywords))
                whole = "$loss" if isinstance(piece.sent.loss, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) else "($loss)"
                yield f"{whole if self.migration.off else f'{scaler}.scale($loss)'}.backward({given})"
                continue
            readers = [] if self.migration.off else [step for step in training.steps if step.reader is statement]
            yield from (self.unscale(training, step) for step in readers)
            yield written(facts, statement)

    def unscale(self, training: ScaledTraining, step: Step) -> str:
        """The call that gives an optimizer's gradients their true size."""
        return f"{self.migration.scaler_in(training)}.unscale_({training.facts.source.segment(step.optimizer)})"

    def steps(self, training: ScaledTraining) -> Iterator[Edit]:
        """True gradients before they are read, the scaler's steps, and its look at how they went."""
        scaler = self.migration.scaler_in(training)
        inside = {statement for piece in training.pieces for statement in piece.kept}
        for step in training.steps:
            if step.reader is not None and step.reader not in inside:
                yield InsertBefore(step.reader, self.unscale(training, step))
            yield Replace(step.call, f"{scaler}.step($optimizer)", {"optimizer": step.optimizer})
            if step.closes:
                yield InsertAfter(step.statement, f"{scaler}.update()")

    def regions(self, training: ScaledTraining) -> Iterator[Edit]:
        """Autocast around what computes the losses."""
        for first, last in training.regions:
            yield Wrap(first, last, self.migration.header(training))
        for item in training.restored:
            if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
                yield InsertAfter(*conversion(training.facts, training.regions, item))
            else:
                yield Replace(item, "$half.float()", {"half": item})


TRANSFORM = Transform.from_module(
    __name__,
    __doc__,
    group="migration",
    literals=(b"apex",),
    find=find,
    since="1.6",
)
