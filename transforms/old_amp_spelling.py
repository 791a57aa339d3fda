"""Spell automatic mixed precision as torch does today.

Why:
    ``torch.cuda.amp`` and ``torch.cpu.amp`` are deprecated: since torch 2.4 every use of them warns, and they will go.
    Today one class serves all devices and is told which. It takes its arguments in another order: ``autocast(False)``
    with just the device put in front would set the dtype and stay switched on.

Before:
    import torch
    from torch.cuda.amp import GradScaler, autocast

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GradScaler(enabled=torch.cuda.is_available())
    with autocast(torch.cuda.is_available()):
        loss = model(torch.ones(2, 4)).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

After:
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=torch.cuda.is_available())
    with torch.autocast("cuda", enabled=torch.cuda.is_available()):
        loss = model(torch.ones(2, 4)).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

Safety:
    Exact: the old names are thin covers of the new ones. Where the program changes the dtype or the cache of autocast
    anywhere, which the new class follows and the old one did not, they are written out. Only what the oldest torch that
    the project declares has: ``torch.autocast`` since 1.10, ``torch.amp.GradScaler`` since 2.3, the rest since 2.4.
    Questions for the class (``isinstance``) change together with what they are asked of, in all files of the program.
    Held where the program chooses between the spellings itself or puts something else in their place, where a class is
    handed on or derived out of sight, and where TorchScript compiles the code.

Reference:
    https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import AddImport, Edit, RemoveImport, Replace, by_file
from torchfix.facts import Facts
from torchfix.facts.code.references import Reference, Role
from torchfix.facts.half_precision.superseded import SUCCESSORS, Superseded
from torchfix.transform import Finding, Held, NoOptions, Transform

_DTYPES = {"cuda": "float16", "cpu": "bfloat16"}


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    old = Superseded(facts)
    for reference in old.references:
        message = f"{facts.source.segment(reference.node)} is deprecated, and warns since torch 2.4"
        obstacle = old.obstacle(reference)
        if obstacle is not None:
            yield Finding(reference.node, message, held=Held(obstacle.code, obstacle.text, obstacle.help))
            continue
        edits = [(facts.path, edit) for edit in _spelled(facts, old, reference)]
        for there, check in old.checks(reference):
            edits += [(there.path, edit) for edit in _spelled(there, Superseded(there), check)]
        for there, call in old.derived(reference) or () if reference.role is Role.DERIVED else ():
            edits += [(there.path, edit) for edit in _told(there, old, reference, call)]
        own, elsewhere = by_file(facts.path, edits)
        because = f"{reference.name} does no more than pass its arguments to {SUCCESSORS[reference.name].name}"
        yield Finding(reference.call or reference.node, message, own, because=because, elsewhere=elsewhere)


def _spelled(facts: Facts, old: Superseded, reference: Reference) -> Iterator[Edit]:
    """The edits that spell one use anew, and take away the import that served it."""
    successor, local = SUCCESSORS[reference.name], _local_import(facts, reference)
    written = facts.names.spell(successor.name, reference.node)
    if local is not None:
        module, _, last = successor.name.rpartition(".")
        renamed = f" as {reference.alias.asname}" if reference.alias.asname not in (None, last) else ""
        yield Replace(local, f"from {module} import {last}{renamed}")
        written = facts.source.segment(reference.node)
    elif reference.imported is not None:
        yield RemoveImport(*reference.imported)
    spelled = written or successor.name
    if written is None:
        yield AddImport("torch")
    if reference.call is not None:
        yield from _called(facts, old, reference, reference.call, spelled)
    elif reference.role is Role.HANDED_ON:
        yield from _kept(facts, old, reference, spelled)
    elif reference.role is Role.DECORATING:
        yield Replace(reference.node, f'{spelled}(device_type="{successor.device}")')
    elif local is None:
        yield Replace(reference.node, spelled)


def _local_import(facts: Facts, reference: Reference) -> ast.ImportFrom | None:
    """The import of the name alone, inside a function or branch, that serves this use and no other; not one that is tried."""
    statement, node = reference.statement, reference.node
    if not isinstance(statement, ast.ImportFrom) or len(statement.names) > 1 or not isinstance(node, ast.Name):
        return None
    alone = len(list(facts.names.uses(node))) == 1 and len(facts.names.bindings(node)) == 1 and not reference.is_lent
    tried = facts.tree.nearest(statement, ast.Try) is not None
    return statement if alone and not tried and statement not in facts.tree.module.body else None


def _called(facts: Facts, old: Superseded, reference: Reference, call: ast.Call, spelled: str) -> Iterator[Edit]:
    """The call of the new name with the same arguments."""
    successor = SUCCESSORS[reference.name]
    device = f'device_type="{successor.device}"' if successor.decorates else f'"{successor.device}"'
    given, parts = _arguments(successor.parameters, call)
    words = [*given[: len(call.args)], device, *given[len(call.args) :]] if successor.decorates else [device, *given]
    followed = old.followed(reference)
    yield from _imported(facts, call, followed)
    yield Replace(call, f"{spelled}({', '.join([*words, *_fixed(facts, reference, call, followed)])})", parts)


def _kept(facts: Facts, old: Superseded, reference: Reference, spelled: str) -> Iterator[Edit]:
    """A partial call of the new class in the place of the old one, or of a partial call of it."""
    node = old.kept(reference)
    assert node is not None
    call = node if isinstance(node, ast.Call) else None
    given, parts = _arguments((), ast.Call(call.func, [], call.keywords) if call else ast.Call(node, [], []))
    partial = facts.source.segment(call.func) if call else facts.names.spell("functools.partial", node)
    if partial is None:
        yield AddImport("functools")
    followed = old.followed(reference, call)
    yield from _imported(facts, node, followed)
    words = [spelled, f'"{SUCCESSORS[reference.name].device}"', *given, *_fixed(facts, reference, node, followed)]
    yield Replace(node, f"{partial or 'functools.partial'}({', '.join(words)})", parts)


def _told(facts: Facts, old: Superseded, reference: Reference, call: ast.Call) -> Iterator[Edit]:
    """The device in front of what the constructor of a derived class is given; a scaler's is CUDA unless it is told."""
    successor = SUCCESSORS[reference.name]
    if successor.keeps_order and not call.args and successor.device == "cuda":
        return
    given, parts = _arguments(successor.parameters, call)
    followed = old.followed(reference, call)
    yield from _imported(facts, call, followed)
    words = [f'"{successor.device}"', *given, *_fixed(facts, reference, call, followed)]
    yield Replace(call, f"$function({', '.join(words)})", {"function": call.func, **parts})


def _arguments(parameters: tuple[str, ...], call: ast.Call) -> tuple[list[str], dict[str, ast.expr]]:
    """What a call is given, as the words of a template and its parts; by name what has one and was given by position."""
    words: list[str] = []
    parts: dict[str, ast.expr] = {}
    named = parameters if not any(isinstance(item, ast.Starred) for item in call.args) else ()
    for place, value in enumerate(call.args):
        hole = f"argument_{place}"
        parts[hole] = value.value if isinstance(value, ast.Starred) else value
        words.append(f"*${hole}" if isinstance(value, ast.Starred) else f"{named[place]}=${hole}" if named else f"${hole}")
    for place, item in enumerate(call.keywords):
        parts[f"keyword_{place}"] = item.value
        words.append(f"{item.arg}=$keyword_{place}" if item.arg else f"**$keyword_{place}")
    return words, parts


def _fixed(facts: Facts, reference: Reference, at: ast.expr, followed: tuple[str, ...]) -> list[str]:
    """The arguments that the old class never took from its surroundings, written out."""
    dtype = f"torch.{_DTYPES[SUCCESSORS[reference.name].device]}"
    words = {"dtype": f"dtype={facts.names.spell(dtype, at) or dtype}", "cache_enabled": "cache_enabled=True"}
    return [words[name] for name in followed]


def _imported(facts: Facts, at: ast.expr, followed: tuple[str, ...]) -> Iterator[Edit]:
    if "dtype" in followed and facts.names.spell("torch.float16", at) is None:
        yield AddImport("torch")


TRANSFORM = Transform.from_module(
    __name__,
    __doc__,
    group="migration",
    literals=(b"autocast", b"GradScaler", b"custom_fwd", b"custom_bwd"),
    find=find,
    since="1.10",
)
