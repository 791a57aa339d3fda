"""Run the forward pass of a training loop in mixed precision.

Why:
    A float32 loop leaves the tensor cores of a GPU idle. Under ``torch.autocast`` matrix products and convolutions run
    in half precision, several times faster and with about half the memory for activations, while weights, sums and
    losses stay float32. Float16 also needs a scaler, which keeps small gradients from becoming zero; bfloat16 does not.

Before:
    import torch
    from torch import nn

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(8, 2).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.ones(4, 8), torch.zeros(4, dtype=torch.long))] * 2
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

After:
    import torch
    from torch import nn

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Linear(8, 2).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    use_amp = device.type == "cuda"
    amp_dtype = torch.bfloat16 if use_amp and torch.cuda.get_device_capability()[0] >= 8 else torch.float16
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp and amp_dtype is torch.float16)
    batches = [(torch.ones(4, 8), torch.zeros(4, dtype=torch.long))] * 2
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=amp_dtype, enabled=use_amp):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

Safety:
    Effect ``numerics`` on a GPU; bit for bit the same on a machine without CUDA. Effect ``checkpoint`` where the scaler's
    state joins the optimizer's in a saved dictionary; files without it still load. One loss, one optimizer and one step
    whose code is in sight; the network's own code must hold nothing that half precision breaks; what leaves the region
    in half precision is only picked, moved or read, else it is converted back; gradients are unscaled before their first
    reader. Anything else is held.

Reference:
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from torchfix.edits import AddImport, AddParameter, Edit, InsertAfter, InsertBefore, Replace, SetArgument, Wrap
from torchfix.facts import Facts
from torchfix.facts.companions import Companion
from torchfix.facts.forwards import Forward
from torchfix.facts.loops import Loop
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.targets import Target
from torchfix.facts.updates import Update
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_MESSAGE = "the training loop computes in float32 and leaves the GPU's half-precision units idle"
_DISABLE = "Set use_amp to False to train in float32 again; compare the loss curves of both before merging."
_SCHEDULE = "The learning-rate schedule also moves when the scaler skips a step, and torch may warn once that it moved first; only float16 skips steps."
_PARALLEL = "DataParallel's threads always compute in float16 under autocast, so bfloat16 is not used."
_UNSAVED = "The scaler's state is not saved with the optimizer's: a resumed float16 run skips a few steps while its scale settles."
_OLD = Held("torch-too-old", "the project still allows torch versions without mixed precision", "raise its lower bound to torch 1.6")


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The training loops that could compute in half precision."""
    for loop in facts.loops.training:
        target = facts.targets.of(loop)
        if facts.loops.scales(loop) or target is None or target.types == {"cpu"}:
            continue
        read = _read(facts, loop, target)
        if isinstance(read, Obstacle):
            yield Finding(loop.node, _MESSAGE, held=Held(read.code, read.text, read.help))
        elif facts.project.torch is not None and facts.project.torch < (1, 6):
            yield Finding(loop.node, _MESSAGE, held=_OLD)
        else:
            yield _Rewrite(facts, loop, target, *read, *_names(facts, read[2])).finding()


def _read(facts: Facts, loop: Loop, target: Target) -> tuple[Update, Forward, Companion] | Obstacle:
    """The loop taken apart, or the first thing that stands in the way."""
    if not target.may_be_cuda:
        return Obstacle("not-cuda", f"the loop runs on {', '.join(sorted(target.types))}, for which this rule has no recipe", "use torch.autocast by hand")
    obstacle = facts.hazards.in_program()
    if obstacle is not None:
        return obstacle
    update = facts.updates.of(loop)
    if isinstance(update, Obstacle):
        return update
    forward = facts.forwards.of(update)
    if isinstance(forward, Obstacle):
        return forward
    companion = facts.companions.of(update.optimizer)
    if isinstance(companion, Obstacle):
        return companion
    return facts.hazards.chosen() or (update, forward, companion)


def _names(facts: Facts, companion: Companion) -> tuple[str, str, str]:
    """Free names for the scaler, the switch and the dtype; attributes where the optimizer is one."""
    listed = (("scaler", "grad_scaler", "amp_scaler"), ("use_amp", "amp_enabled"), ("amp_dtype", "autocast_dtype"))
    taken = facts.tree.attributes if companion.owner else {}
    scaler, use_amp, amp_dtype = (facts.names.fresh(*[name for name in names if name not in taken] or names[-1:]) for names in listed)
    return scaler, use_amp, amp_dtype


@dataclass(frozen=True)
class _Rewrite:
    """One loop's change.

    Args:
        facts, loop, target, update, forward, companion: what was read.
        scaler, use_amp, amp_dtype: the names of the new variables.
    """

    facts: Facts
    loop: Loop
    target: Target
    update: Update
    forward: Forward
    companion: Companion
    scaler: str
    use_amp: str
    amp_dtype: str

    def finding(self) -> Finding:
        """The finding with all of its edits."""
        saved = tuple(self._checkpoints())
        return Finding(
            self.loop.node,
            _MESSAGE,
            (*self._imports(), *self._set_up(), *self._regions(), *self._steps(), *saved),
            frozenset({Effect.NUMERICS, Effect.CHECKPOINT} if saved else {Effect.NUMERICS}),
            "one loss is sent backward and one optimizer steps, and the network's code holds nothing that half precision breaks",
            tuple(self._notes(bool(saved))),
        )

    # Spelling -------------------------------------------------------------------------------------------------

    def _torch(self, name: str) -> str:
        return self.facts.names.spell(name, self.loop.node) or name

    def _imports(self) -> Iterator[Edit]:
        if self.facts.names.spell("torch", self.loop.node) is None:
            yield AddImport("torch")

    def _since(self, *version: int) -> bool:
        """Whether every torch that the project allows is at least this new."""
        return self.facts.project.torch is None or self.facts.project.torch >= version

    @property
    def _parallel(self) -> bool:
        return any("DataParallel" in network.wrappers for network in self.forward.networks)

    @property
    def _half_only(self) -> bool:
        return self._parallel or not self._since(1, 10)

    @property
    def _header(self) -> str:
        if not self._since(1, 10):
            return f"with {self._torch('torch.cuda.amp.autocast')}(enabled={self._flag})"
        dtype = self._torch("torch.float16") if self._half_only else f"{self._owner}{self.amp_dtype}"
        return f'with {self._torch("torch.autocast")}("cuda", dtype={dtype}, enabled={self._flag})'

    @property
    def _owner(self) -> str:
        return "" if self.companion.passes else self.companion.owner

    @property
    def _flag(self) -> str:
        return f"{self._owner}{self.use_amp}"

    @property
    def _scaler(self) -> str:
        return f"{self._owner}{self.scaler}"

    def _make_scaler(self, enabled: str) -> str:
        if self._since(2, 3):
            return f'{self.companion.owner}{self.scaler} = {self._torch("torch.amp.GradScaler")}("cuda", enabled={enabled})'
        return f'{self.companion.owner}{self.scaler} = {self._torch("torch.cuda.amp.GradScaler")}(enabled={enabled})'

    def _runs_on_cuda(self, variable: str | None, flag: str | None) -> str:
        """The test for CUDA, from the program's own variable where it can be read."""
        if variable is not None:
            return f'{variable}.type == "cuda"' if self.target.is_object else f'{self._torch("torch.device")}({variable}).type == "cuda"'
        return f"bool({flag})" if flag is not None else f"{self._torch('torch.cuda.is_available')}()"

    # What stands beside the optimizer -------------------------------------------------------------------------

    def _set_up(self) -> Iterator[Edit]:
        """The scaler and what goes with it, made behind the optimizer and handed on where the optimizer is."""
        names = [self.facts.companions.text(item, self.companion) if item is not None else None for item in (self.target.variable, self.target.flag)]
        test, capability = self._runs_on_cuda(*names), f"{self._torch('torch.cuda.get_device_capability')}()[0]"
        bfloat16, float16 = self._torch("torch.bfloat16"), self._torch("torch.float16")
        if not self.companion.passes:
            lines = [f"{self._flag} = {test}"]
            if not self._half_only:
                lines.append(f"{self._owner}{self.amp_dtype} = {bfloat16} if {self._flag} and {capability} >= 8 else {float16}")
            lines.append(self._make_scaler(self._flag if self._half_only else f"{self._flag} and {self._owner}{self.amp_dtype} is {float16}"))
            yield InsertAfter(self.companion.after, "\n".join(lines))
            return
        old = "" if self._half_only else f" and {capability} < 8"
        yield InsertAfter(self.companion.after, self._make_scaler(f"{test}{old}"))
        yield from self._hand_on()
        here = [ast.unparse(item) if item is not None else None for item in (self.target.variable, self.target.flag)]
        lines = [f"{self.use_amp} = {self._runs_on_cuda(here[0], here[1])}"]
        if not self._half_only:
            lines.append(f"{self.amp_dtype} = {bfloat16} if {self.use_amp} and not {self.scaler}.is_enabled() else {float16}")
        yield InsertBefore(self._outermost(), "\n".join(lines))

    def _hand_on(self) -> Iterator[Edit]:
        """The scaler's way through the functions that the optimizer goes through."""
        for index, step in enumerate(self.companion.passes):
            optional = bool(step.function.args.defaults)
            yield AddParameter(step.function, f"{self.scaler}=None" if optional else self.scaler)
            owner = self.companion.owner if index == len(self.companion.passes) - 1 else ""
            yield from (SetArgument(call, self.scaler, f"{owner}{self.scaler}") for call in step.calls)

    def _outermost(self) -> ast.stmt:
        """The outermost loop around the training loop in its function."""
        found: ast.stmt = self.loop.node
        for outer in self.facts.tree.ancestors(self.loop.node):
            if outer is self.loop.function:
                break
            if isinstance(outer, (ast.For, ast.While)):
                found = outer
        return found

    # The loop -------------------------------------------------------------------------------------------------

    def _regions(self) -> Iterator[Edit]:
        """Autocast around the forward pass, and a scaled loss behind it."""
        for first, last in self.forward.regions:
            yield Wrap(first, last, f"{self._header}:")
        for item in self.forward.restored:
            if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
                yield InsertAfter(self.facts.tree.statement(item), f"{item.id} = {item.id}.float()")
            else:
                yield Replace(item, "$half.float()", {"half": item})
        loss = self.update.loss
        if not self.forward.inline:
            yield Replace(loss, f"{self._scaler}.scale($loss)", {"loss": loss})
            return
        name = self.facts.names.fresh("loss", "batch_loss")
        backward = self.update.backward
        given = ", ".join(self.facts.source.segment(item) for item in (*backward.args, *backward.keywords))
        code = f"{self._header}:\n    {name} = $loss\n{self._scaler}.scale({name}).backward({given})"
        yield Replace(self.update.backward_statement, code, {"loss": loss})

    def _steps(self) -> Iterator[Edit]:
        """The scaler's own calls: true gradients before they are read, then its step and update."""
        optimizer = self.facts.source.segment(self.update.optimizer)
        if self.update.reader is not None:
            yield InsertBefore(self.update.reader, f"{self._scaler}.unscale_({optimizer})")
        yield Replace(self.update.step, f"{self._scaler}.step($optimizer)", {"optimizer": self.update.optimizer})
        schedule = self._guarded_schedule()
        if schedule is None:
            yield InsertAfter(self.update.step_statement, f"{self._scaler}.update()")
            return
        scale = self.facts.names.fresh("scale", "loss_scale")
        yield InsertAfter(self.update.step_statement, f"{scale} = {self._scaler}.get_scale()\n{self._scaler}.update()")
        yield Wrap(schedule, schedule, f"if {self._scaler}.get_scale() >= {scale}:")

    def _guarded_schedule(self) -> ast.stmt | None:
        """The step of a schedule that counts its steps, which must not count one that the scaler skipped."""
        block = self.facts.tree.block(self.update.step_statement)
        for call in self.loop.scheduler_steps:
            statement = self.facts.tree.statement(call)
            if self.facts.optimizers.counts_steps(call) and statement in block and statement.lineno > self.update.step_statement.lineno:
                return statement
        return None

    # Checkpoints ----------------------------------------------------------------------------------------------

    def _checkpoints(self) -> Iterator[Edit]:
        """The scaler's state beside the optimizer's, in dictionaries that are saved and loaded where it can be read."""
        states, variable, after = self.facts.states, self.companion.variable, self.companion.after
        scaler = f"{self.companion.owner}{self.scaler}"
        for saved in states.saved(variable, after):
            yield Replace(saved.dictionary, saved.with_entry(self.scaler, f"{scaler}.state_dict()"), saved.parts)
        for loaded in states.loaded(variable, after):
            key = f'"{self.scaler}"'
            yield InsertAfter(loaded.statement, f"if {loaded.name}.get({key}):\n    {scaler}.load_state_dict({loaded.name}[{key}])")

    def _notes(self, saved: bool) -> Iterator[str]:
        yield _DISABLE
        if self._parallel:
            yield _PARALLEL
        if self.loop.scheduler_steps and self._guarded_schedule() is None:
            yield _SCHEDULE
        if not saved and self.facts.states.are_kept(self.companion.variable):
            yield _UNSAVED


TRANSFORM = Transform.from_module(
    __name__,
    __doc__,
    group="precision",
    literals=(b"backward",),
    find=find,
    since="1.6",
)
