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
    state joins the optimizer's in a saved dictionary; files without it still load. Losses, steps and optimizers are in
    sight; the network's own code must hold nothing that half precision breaks; what leaves the region in half precision is
    only picked, moved or read, else it is converted back; gradients are unscaled before their first reader. Several losses
    and optimizers share one scaler, which changes its scale where no gradient of the old one is needed any more. Where
    functions are handed the optimizer, also in other files, they are handed the scaler too, for every caller of the
    project; so is a method that steps the optimizer of its object. Functions that compute the loss are called under autocast
    where all of their code can run there, else they get regions of their own, out of which everything comes as float32; those
    that send it backward for the code that steps scale it, and around a loss that is handed to a function which does both
    there is autocast where it is computed. Anything else is held. The option ``dtype`` chooses the precision: ``auto`` is
    bfloat16 where the GPU computes it and else float16 with a scaler, by a test in the program; ``bfloat16`` writes no
    scaler; ``float16`` always one.

Reference:
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torchfix.edits import AddImport, AddParameter, Edit, InsertAfter, InsertBefore, Replace, SetArgument, Wrap, by_file
from torchfix.facts import Facts
from torchfix.facts.code.tree import Function
from torchfix.facts.half_precision.candidates import Candidate
from torchfix.facts.half_precision.cautions import cautions
from torchfix.facts.half_precision.conversions import conversion
from torchfix.facts.half_precision.spelling import Spelling
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.training.companions import Companion
from torchfix.transform import Effect, Finding, Held, Transform

_MESSAGE = "the training loop computes in float32 and leaves the GPU's half-precision units idle"
_BECAUSE = "each step has its backward pass, and the network's code holds nothing that half precision breaks"


@dataclass(frozen=True)
class Options:
    """What to compute in.

    Args:
        dtype: the precision of the forward pass; ``auto`` decides by the GPU when the program runs.
    """

    dtype: Literal["auto", "bfloat16", "float16"] = "auto"


def find(facts: Facts, options: Options) -> Iterator[Finding]:
    """The training loops that could compute in half precision."""
    for node, found in facts.candidates.all:
        candidate = found if isinstance(found, Obstacle) else found.in_precision(options.dtype)
        if isinstance(candidate, Obstacle):
            yield Finding(node, _MESSAGE, effects=frozenset({Effect.NUMERICS}), held=Held(candidate.code, candidate.text, candidate.help))
            continue
        rewrite = _rewrite(candidate, options)
        here = ((candidate.facts.path, edit) for edit in (*rewrite.regions(), *(rewrite.steps() if rewrite.scaled else ())))
        saved = [edit for companion in candidate.companions if rewrite.scaled for edit in rewrite.checkpoints(companion)]
        own, elsewhere = by_file(facts.path, [*rewrite.imports(), *rewrite.set_up(), *here, *rewrite.wrapped(), *saved])
        effects = frozenset({Effect.NUMERICS, Effect.CHECKPOINT} if saved else {Effect.NUMERICS})
        notes = tuple(cautions(candidate, rewrite.use_amp, rewrite.scaled, bool(saved)))
        yield Finding(node, _MESSAGE, own, effects, _BECAUSE, notes, elsewhere=elsewhere)


def _rewrite(candidate: Candidate, options: Options) -> _Rewrite:
    """A candidate's change, with names for the new variables that are free in all of its files."""
    names = (("scaler", "grad_scaler", "amp_scaler"), ("use_amp", "amp_enabled"), ("amp_dtype", "autocast_dtype"))
    scaler, use_amp, amp_dtype = (candidate.fresh(*listed) for listed in names)
    first = candidate.companions[0]
    local = first.passes or (options.dtype == "bfloat16" and not candidate.is_apart)
    inside = "" if local else first.owner
    return _Rewrite(candidate, options.dtype, scaler, f"{inside}{scaler}", f"{inside}{use_amp}", f"{inside}{amp_dtype}")


@dataclass(frozen=True)
class _Rewrite:
    """One loop's change.

    Args:
        candidate: what was read.
        dtype: the precision that the user wants.
        name: the scaler's name.
        scaler, use_amp, amp_dtype: the new variables as the loop calls them.
    """

    candidate: Candidate
    dtype: str
    name: str
    scaler: str
    use_amp: str
    amp_dtype: str

    @property
    def spelling(self) -> Spelling:
        """How the loop's file writes it."""
        return Spelling(self.candidate.facts, self.candidate.loop.node)

    @property
    def scaled(self) -> bool:
        """Whether there is a scaler: bfloat16 needs none."""
        return self.dtype != "bfloat16"

    @property
    def only_float16(self) -> bool:
        """Whether it is float16 or nothing: by wish, in DataParallel's threads, and before torch 1.10."""
        return self.dtype == "float16" or self.candidate.parallel or not self.spelling.has_bfloat16

    def header(self, at: ast.stmt) -> str:
        """The ``with`` line of a region that begins with a statement."""
        there = Spelling(self.candidate.facts, at)
        dtype = self.amp_dtype if self.scaled else there.torch("bfloat16")
        return there.autocast(there.torch("float16") if self.only_float16 else dtype, self.use_amp)

    def make(self, companion: Companion, enabled: str) -> str:
        """The statement that makes the scaler."""
        return f"{companion.owner}{self.name} = {Spelling(companion.facts, companion.after).scaler(enabled)}"

    def imports(self) -> Iterator[tuple[str, Edit]]:
        """Torch itself, where a file has only parts of it or none."""
        written = [(self.candidate.facts, self.candidate.loop.node), *((item.facts, item.after) for item in self.candidate.companions)]
        return ((facts.path, AddImport("torch")) for facts, at in written if facts.names.spell("torch", at) is None)

    def set_up(self) -> Iterator[tuple[str, Edit]]:
        """The scaler and what goes with it, made behind the optimizer and handed on where the optimizer is."""
        home, loop, target = self.candidate.facts, self.candidate.loop, self.candidate.target
        for companion in self.candidate.companions if self.scaled else ():
            facts, after = companion.facts, companion.after
            there = Spelling(facts, after)
            test = there.on_cuda(
                *(home.companions.text(item, companion) for item in (target.variable, target.flag)), is_object=target.is_object
            )
            if companion.passes:
                code = self.make(companion, test if self.only_float16 else f"{test} and {there.capability} < 8")
                yield from self.hand_on(companion)
            else:
                chosen = "" if self.only_float16 else f" and {self.amp_dtype} is {self.spelling.torch('float16')}"
                code = self.decided(test, f"{self.use_amp} and {there.capability} >= 8") + self.make(companion, self.use_amp + chosen)
            yield facts.path, InsertAfter(after, code)
        first, apart = self.candidate.companions[0], self.candidate.is_apart
        if first.passes or not self.scaled:
            known = (target.variable, target.flag)
            words = (home.companions.text(item, first) if apart else ast.unparse(item) if item is not None else None for item in known)
            test = self.spelling.on_cuda(*words, is_object=target.is_object)
            code = self.decided(test, f"{self.use_amp} and not {self.scaler}.is_enabled()")
            yield home.path, InsertAfter(first.after, code) if apart else InsertBefore(loop.start, code)

    def decided(self, test: str, bfloat16: str) -> str:
        """The statements that decide whether autocast is on and, where there is a choice, in which precision it computes."""
        choice = "" if self.only_float16 or not self.scaled else f"{self.amp_dtype} = {self.spelling.choice(bfloat16)}\n"
        return f"{self.use_amp} = {test}\n{choice}"

    def hand_on(self, companion: Companion) -> Iterator[tuple[str, Edit]]:
        """The scaler's way through the functions that the optimizer goes through."""
        for step in companion.passes:
            yield step.facts.path, self.parameter(step.function)
            given = f"{companion.owner}{self.name}" if step is companion.passes[-1] else self.name
            yield from ((step.caller.path, SetArgument(call, self.name, given)) for call in step.calls)

    def parameter(self, function: Function, is_optional: bool = False) -> Edit:
        """The scaler among a function's parameters; unless it is optional, all of its callers give it one."""
        return AddParameter(function, f"{self.name}=None" if is_optional or function.args.defaults else self.name)

    def regions(self) -> Iterator[Edit]:
        """Autocast around the forward pass, and a scaled loss behind it."""
        forward, facts = self.candidate.forward, self.candidate.facts
        yield from (Wrap(first, last, self.header(first)) for part in forward.all for first, last in part.regions)
        for regions, item in ((part.regions, item) for part in forward.all for item in part.restored):
            if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
                yield InsertAfter(*conversion(facts, regions, item))
            else:
                yield Replace(item, "$half.float()", {"half": item})
        for sent in self.candidate.update.sent:
            if all(sent not in part.inline for part in forward.all):
                if self.scaled:
                    yield Replace(sent.call.func, f"{self.scaler}.scale($loss).backward", {"loss": sent.loss})
                continue
            name = facts.names.fresh("loss", "batch_loss")
            given = ", ".join(facts.source.segment(item) for item in (*sent.call.args, *sent.call.keywords))
            loss = f"{self.scaler}.scale({name})" if self.scaled else name
            code = f"{self.header(sent.statement)}\n    {name} = $loss\n{loss}.backward({given})"
            yield Replace(sent.statement, code, {"loss": sent.loss})

    def steps(self) -> Iterator[Edit]:
        """The scaler's own calls: true gradients before they are read, then its steps and its look at how they went."""
        update, facts = self.candidate.update, self.candidate.facts
        for step in update.steps:
            if step.reader is not None:
                yield InsertBefore(step.reader, f"{self.scaler}.unscale_({step.text})")
            if step.wrapped is None:
                yield Replace(step.call, f"{self.scaler}.step($optimizer)", {"optimizer": step.optimizer})
            else:
                yield SetArgument(step.call, step.wrapped.scaler or self.name, self.scaler)
        watched = {closing for _, closing in update.counted}
        scale = facts.names.fresh("scale", "loss_scale")
        for closing in update.closing:
            before = f"{scale} = {self.scaler}.get_scale()\n" if closing in watched else ""
            yield InsertAfter(closing, f"{before}{self.scaler}.update()")
        for moved, _ in update.counted:
            yield Wrap(moved, moved, f"if {self.scaler}.get_scale() >= {scale}:")

    def wrapped(self) -> Iterator[tuple[str, Edit]]:
        """The scaler's step in the methods that step the optimizer of their object."""
        inside = [step for step in self.candidate.update.steps if self.scaled and step.wrapped is not None and step.wrapped.scaler is None]
        for item, shared in {step.wrapped.method: (step.wrapped, step.shared) for step in inside if step.wrapped is not None}.values():
            segment = item.facts.source.segment
            through = f"{self.name}.step({segment(item.optimizer)})"
            choice = f"if {self.name} is None:\n    {segment(item.call)}\nelse:\n    {through}"
            yield item.facts.path, self.parameter(item.method, shared)
            yield item.facts.path, Replace(item.statement, choice) if shared else Replace(item.call, through)

    def checkpoints(self, companion: Companion) -> Iterator[tuple[str, Edit]]:
        """The scaler's state beside the optimizer's, in dictionaries that are saved and loaded where it can be read."""
        states, made = companion.facts.states, f"{companion.owner}{self.name}"
        key = states.free_key("scaler", "grad_scaler", "amp_scaler")
        if key is None:
            return
        kept = list(states.saved(companion.variable, companion.after))
        for saved in kept:
            yield companion.facts.path, Replace(saved.dictionary, saved.with_entry(key, f"{made}.state_dict()"), saved.parts)
        for loaded in states.loaded(companion.variable, companion.after) if kept else ():
            code = f'if {loaded.name}.get("{key}"):\n    {made}.load_state_dict({loaded.name}["{key}"])'
            yield companion.facts.path, InsertAfter(loaded.statement, code)


TRANSFORM = Transform.from_module(
    __name__,
    __doc__,
    group="precision",
    literals=(b"backward", b"optim"),
    find=find,
    since="1.6",
    options=Options,
)
