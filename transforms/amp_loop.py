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
    reader. Where functions are handed the optimizer, also in other files, they are handed the scaler too, for every caller
    of the project. Anything else is held.

Reference:
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from torchfix.edits import AddImport, AddParameter, Edit, InsertAfter, InsertBefore, Replace, SetArgument, Wrap, by_file
from torchfix.facts import Facts
from torchfix.facts.half_precision.candidates import Candidate
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.companions import Companion
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_MESSAGE = "the training loop computes in float32 and leaves the GPU's half-precision units idle"
_BECAUSE = "one loss is sent backward and one optimizer steps; the network's code holds nothing that half precision breaks"
_DISABLE = "Set use_amp to False to train in float32 again, and compare the loss curves of both before merging."
_PARALLEL = "DataParallel's threads compute in float16 whatever autocast is told; once it is gone, torch.bfloat16 without a scaler will do."
_EVALUATION = "The loop also evaluates, and its evaluation batches now compute in half precision too."
_UNSAVED = "The scaler's state is not saved with the optimizer's: a resumed float16 run skips a few steps while its scale settles."
_SCHEDULE = (
    "The learning-rate schedule also moves when the scaler skips a step, which only happens in float16; "
    "torch may then warn once that the schedule moved first."
)


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The training loops that could compute in half precision."""
    for node, candidate in facts.candidates.all():
        if isinstance(candidate, Obstacle):
            yield Finding(node, _MESSAGE, effects=frozenset({Effect.NUMERICS}), held=Held(candidate.code, candidate.text, candidate.help))
            continue
        rewrite = _rewrite(candidate)
        here = ((facts.path, edit) for edit in (*rewrite.regions(), *rewrite.steps()))
        saved = [edit for companion in candidate.companions for edit in rewrite.checkpoints(companion)]
        own, elsewhere = by_file(facts.path, [*rewrite.imports(), *rewrite.set_up(), *here, *saved])
        effects = frozenset({Effect.NUMERICS, Effect.CHECKPOINT} if saved else {Effect.NUMERICS})
        yield Finding(node, _MESSAGE, own, effects, _BECAUSE, tuple(rewrite.notes(bool(saved))), elsewhere=elsewhere)


def _rewrite(candidate: Candidate) -> _Rewrite:
    """A candidate's change, with names for the new variables that are free in all of its files."""
    parallel = any("DataParallel" in network.wrappers for network in candidate.forward.networks)
    names = (("scaler", "grad_scaler", "amp_scaler"), ("use_amp", "amp_enabled"), ("amp_dtype", "autocast_dtype"))
    scaler, use_amp, amp_dtype = (candidate.fresh(*listed) for listed in names)
    first = candidate.companions[0]
    inside = "" if first.passes else first.owner
    return _Rewrite(candidate, parallel, scaler, f"{inside}{scaler}", f"{inside}{use_amp}", f"{inside}{amp_dtype}")


def _torch(facts: Facts, at: ast.AST, name: str) -> str:
    """A name of torch as a file writes it."""
    return facts.names.spell(f"torch.{name}", at) or f"torch.{name}"


@dataclass(frozen=True)
class _Rewrite:
    """One loop's change.

    Args:
        candidate: what was read.
        parallel: whether DataParallel may run the network.
        name: the scaler's name.
        scaler, use_amp, amp_dtype: the new variables as the loop calls them.
    """

    candidate: Candidate
    parallel: bool
    name: str
    scaler: str
    use_amp: str
    amp_dtype: str

    # Spelling -------------------------------------------------------------------------------------------------

    def torch(self, name: str) -> str:
        """A name of torch as the loop's file writes it."""
        return _torch(self.candidate.facts, self.candidate.loop.node, name)

    def since(self, *version: int) -> bool:
        """Whether every torch that the project allows is at least this new."""
        oldest = self.candidate.facts.project.torch
        return oldest is None or oldest >= version

    @property
    def only_float16(self) -> bool:
        """Whether bfloat16 is out of reach: in DataParallel's threads, and before torch 1.10."""
        return self.parallel or not self.since(1, 10)

    @property
    def header(self) -> str:
        """The ``with`` line of a region."""
        if not self.since(1, 10):
            return f"with {self.torch('cuda.amp.autocast')}(enabled={self.use_amp}):"
        dtype = self.torch("float16") if self.only_float16 else self.amp_dtype
        return f'with {self.torch("autocast")}("cuda", dtype={dtype}, enabled={self.use_amp}):'

    def make(self, companion: Companion, enabled: str) -> str:
        """The statement that makes the scaler."""
        made, facts = f"{companion.owner}{self.name}", companion.facts
        if self.since(2, 3):
            return f'{made} = {_torch(facts, companion.after, "amp.GradScaler")}("cuda", enabled={enabled})'
        return f"{made} = {_torch(facts, companion.after, 'cuda.amp.GradScaler')}(enabled={enabled})"

    def test(self, facts: Facts, at: ast.stmt, variable: str | None, flag: str | None) -> str:
        """The test for CUDA, from the program's own variable where it can be read."""
        if variable is not None:
            device = variable if self.candidate.target.is_object else f"{_torch(facts, at, 'device')}({variable})"
            return f'{device}.type == "cuda"'
        return f"bool({flag})" if flag is not None else f"{_torch(facts, at, 'cuda.is_available')}()"

    def imports(self) -> Iterator[tuple[str, Edit]]:
        """Torch itself, where a file has only parts of it or none."""
        written = [(self.candidate.facts, self.candidate.loop.node), *((item.facts, item.after) for item in self.candidate.companions)]
        return ((facts.path, AddImport("torch")) for facts, at in written if facts.names.spell("torch", at) is None)

    # What stands beside the optimizer -------------------------------------------------------------------------

    def set_up(self) -> Iterator[tuple[str, Edit]]:
        """The scaler and what goes with it, made behind the optimizer and handed on where the optimizer is."""
        home, loop, target = self.candidate.facts, self.candidate.loop, self.candidate.target
        for companion in self.candidate.companions:
            facts, after = companion.facts, companion.after
            test = self.test(facts, after, *(home.companions.text(item, companion) for item in (target.variable, target.flag)))
            capability = f"{_torch(facts, after, 'cuda.get_device_capability')}()[0]"
            if companion.passes:
                code = self.make(companion, test if self.only_float16 else f"{test} and {capability} < 8")
                yield from self.hand_on(companion)
            else:
                chosen = "" if self.only_float16 else f" and {self.amp_dtype} is {self.torch('float16')}"
                code = self.decided(test, f"{self.use_amp} and {capability} >= 8") + self.make(companion, self.use_amp + chosen)
            yield facts.path, InsertAfter(after, code)
        if self.candidate.companions[0].passes:
            here = (ast.unparse(item) if item is not None else None for item in (target.variable, target.flag))
            code = self.decided(self.test(home, loop.node, *here), f"{self.use_amp} and not {self.scaler}.is_enabled()")
            yield home.path, InsertBefore(loop.outermost, code)

    def decided(self, test: str, bfloat16: str) -> str:
        """The statements that decide whether autocast is on and, where there is a choice, in which precision it computes."""
        lines = f"{self.use_amp} = {test}\n"
        if self.only_float16:
            return lines
        return f"{lines}{self.amp_dtype} = {self.torch('bfloat16')} if {bfloat16} else {self.torch('float16')}\n"

    def hand_on(self, companion: Companion) -> Iterator[tuple[str, Edit]]:
        """The scaler's way through the functions that the optimizer goes through."""
        for step in companion.passes:
            optional = bool(step.function.args.defaults)
            yield step.facts.path, AddParameter(step.function, f"{self.name}=None" if optional else self.name)
            given = f"{companion.owner}{self.name}" if step is companion.passes[-1] else self.name
            yield from ((step.caller.path, SetArgument(call, self.name, given)) for call in step.calls)

    # The loop -------------------------------------------------------------------------------------------------

    def regions(self) -> Iterator[Edit]:
        """Autocast around the forward pass, and a scaled loss behind it."""
        update, forward, facts = self.candidate.update, self.candidate.forward, self.candidate.facts
        for first, last in forward.regions:
            yield Wrap(first, last, self.header)
        for item in forward.restored:
            if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
                yield InsertAfter(facts.tree.statement(item), f"{item.id} = {item.id}.float()")
            else:
                yield Replace(item, "$half.float()", {"half": item})
        if not forward.inline:
            yield Replace(update.backward.func, f"{self.scaler}.scale($loss).backward", {"loss": update.loss})
            return
        name = facts.names.fresh("loss", "batch_loss")
        given = ", ".join(facts.source.segment(item) for item in (*update.backward.args, *update.backward.keywords))
        code = f"{self.header}\n    {name} = $loss\n{self.scaler}.scale({name}).backward({given})"
        yield Replace(update.backward_statement, code, {"loss": update.loss})

    def steps(self) -> Iterator[Edit]:
        """The scaler's own calls: true gradients before they are read, then its step and update."""
        update, facts = self.candidate.update, self.candidate.facts
        if update.reader is not None:
            yield InsertBefore(update.reader, f"{self.scaler}.unscale_({facts.source.segment(update.optimizer)})")
        yield Replace(update.step, f"{self.scaler}.step($optimizer)", {"optimizer": update.optimizer})
        if update.counted is None:
            yield InsertAfter(update.step_statement, f"{self.scaler}.update()")
            return
        scale = facts.names.fresh("scale", "loss_scale")
        yield InsertAfter(update.step_statement, f"{scale} = {self.scaler}.get_scale()\n{self.scaler}.update()")
        yield Wrap(update.counted, update.counted, f"if {self.scaler}.get_scale() >= {scale}:")

    # Checkpoints and words ------------------------------------------------------------------------------------

    def checkpoints(self, companion: Companion) -> Iterator[tuple[str, Edit]]:
        """The scaler's state beside the optimizer's, in dictionaries that are saved and loaded where it can be read."""
        states, made = companion.facts.states, f"{companion.owner}{self.name}"
        key = states.free_key("scaler", "grad_scaler", "amp_scaler")
        if key is None:
            return
        for saved in states.saved(companion.variable, companion.after):
            yield companion.facts.path, Replace(saved.dictionary, saved.with_entry(key, f"{made}.state_dict()"), saved.parts)
        for loaded in states.loaded(companion.variable, companion.after):
            code = f'if {loaded.name}.get("{key}"):\n    {made}.load_state_dict({loaded.name}["{key}"])'
            yield companion.facts.path, InsertAfter(loaded.statement, code)

    def notes(self, saved: bool) -> Iterator[str]:
        """What the user must read before merging."""
        yield _DISABLE.replace("use_amp", self.use_amp)
        if self.parallel:
            yield _PARALLEL
        if any(self.candidate.facts.regions.under(first, ("torch.set_grad_enabled",)) for first, _ in self.candidate.forward.regions):
            yield _EVALUATION
        if self.candidate.loop.scheduler_steps and self.candidate.update.counted is None:
            yield _SCHEDULE
        if not saved and any(companion.facts.states.are_kept(companion.variable) for companion in self.candidate.companions):
            yield _UNSAVED


TRANSFORM = Transform.from_module(
    __name__,
    __doc__,
    group="precision",
    literals=(b"backward",),
    find=find,
    since="1.6",
)
