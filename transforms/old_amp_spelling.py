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
    Held where the program chooses between the spellings itself, derives a class, hands one on, or is compiled by
    TorchScript, and where another file checks for the old class.

Reference:
    https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from torchfix.edits import AddImport, Edit, RemoveImport, Replace
from torchfix.facts import Facts
from torchfix.facts.code.calls import argument, has_stars
from torchfix.facts.code.names import Definition
from torchfix.facts.code.references import Reference, Role
from torchfix.facts.project.versions import Version
from torchfix.facts.training.models import is_module_class
from torchfix.transform import Finding, Held, NoOptions, Transform


@dataclass(frozen=True)
class _Successor:
    """What took the place of an old name.

    Args:
        name: the new dotted name.
        since: the torch version that brought it.
        device: what it is told first.
        parameters: the old parameters that may be given by position and must be named now; None where the order stays.
        decorates: whether it decorates functions, and takes the device by keyword.
    """

    name: str
    since: Version
    device: str
    parameters: tuple[str, ...] | None = None
    decorates: bool = False


_AUTOCAST = ("enabled", "dtype", "cache_enabled")
_SCALER = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
_OLD = {
    "torch.cuda.amp.autocast": _Successor("torch.autocast", (1, 10), "cuda", _AUTOCAST),
    "torch.cpu.amp.autocast": _Successor("torch.autocast", (1, 10), "cpu", _AUTOCAST),
    "torch.cuda.amp.GradScaler": _Successor("torch.amp.GradScaler", (2, 3), "cuda", _SCALER),
    "torch.cpu.amp.GradScaler": _Successor("torch.amp.GradScaler", (2, 3), "cpu", _SCALER),
    "torch.cuda.amp.custom_fwd": _Successor("torch.amp.custom_fwd", (2, 4), "cuda", decorates=True),
    "torch.cuda.amp.custom_bwd": _Successor("torch.amp.custom_bwd", (2, 4), "cuda", decorates=True),
    "torch.get_autocast_gpu_dtype": _Successor("torch.get_autocast_dtype", (2, 4), "cuda"),
    "torch.get_autocast_cpu_dtype": _Successor("torch.get_autocast_dtype", (2, 4), "cpu"),
    "torch.set_autocast_gpu_dtype": _Successor("torch.set_autocast_dtype", (2, 4), "cuda"),
    "torch.set_autocast_cpu_dtype": _Successor("torch.set_autocast_dtype", (2, 4), "cpu"),
    "torch.is_autocast_cpu_enabled": _Successor("torch.is_autocast_enabled", (2, 4), "cpu"),
    "torch.set_autocast_cpu_enabled": _Successor("torch.set_autocast_enabled", (2, 4), "cpu"),
}
_DTYPES = {"cuda": "float16", "cpu": "bfloat16"}
_DTYPE_SETTERS = ("set_autocast_gpu_dtype", "set_autocast_cpu_dtype", "set_autocast_dtype")

_CHOICE = Held(
    "version-guard",
    "the program chooses between the old spelling and another one itself, for versions of torch that lack one of them",
    "drop the choice once every torch that the program must run on has the new spelling",
)
_DERIVED = Held(
    "derived", "a class is derived from the old one, and may rely on its arguments", "derive it from the new class, and pass the device"
)
_HANDED_ON = Held(
    "handed-on",
    "it is handed on rather than called, and who calls it gives no device",
    'hand on functools.partial of the new one, with "cuda"',
)
_SCRIPTED = Held(
    "torchscript", "TorchScript compiles this code, and knows the old class in its own way", "change it together with a test of the script"
)
_HIDDEN = Held(
    "hidden-arguments", "stars hide which arguments are given, and the new class takes them in another order", "write the arguments out"
)


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    references = facts.references.to(_OLD)
    checks = [reference for reference in references if reference.role is Role.CHECKED]
    for reference in references:
        message = f"{facts.source.segment(reference.node)} is deprecated, and warns since torch 2.4"
        held = _obstacle(facts, reference, checks)
        if held is not None:
            yield Finding(reference.node, message, held=held)
            continue
        edits = _spelled(facts, reference)
        if reference.role is Role.CALLED:
            for check in checks:
                edits += _spelled(facts, check) if check.name == reference.name else ()
        because = f"{reference.name} does no more than pass its arguments to {_OLD[reference.name].name}"
        yield Finding(reference.call or reference.node, message, edits, because=because)


def _obstacle(facts: Facts, reference: Reference, checks: list[Reference]) -> Held | None:
    """Why a name must stay as it is."""
    successor, torch = _OLD[reference.name], facts.project.torch
    if torch is not None and torch < successor.since:
        since = ".".join(map(str, successor.since))
        words = f"{successor.name} came with torch {since}, and the code must run on torch {torch[0]}.{torch[1]}"
        return Held("torch-too-old", words, f"raise the project's lower bound, or set it with --torch {since}")
    if facts.references.is_choice(reference, (successor.name,)):
        return _CHOICE
    if reference.role is Role.DERIVED:
        return _DERIVED
    if reference.role in (Role.HANDED_ON, Role.COMPARED) or (reference.role is Role.DECORATING and not successor.decorates):
        return _HANDED_ON
    if successor.parameters == _AUTOCAST and _is_scripted(facts, reference.node):
        return _SCRIPTED
    if reference.call is None:
        return None
    if any(isinstance(item, ast.Starred) for item in reference.call.args) or (has_stars(reference.call) and _followed(facts, reference)):
        return _HIDDEN
    guarded = any(check.name == reference.name and facts.references.is_choice(check, (successor.name,)) for check in checks)
    return _checked_elsewhere(facts, reference) or (_CHOICE if guarded else None)


def _checked_elsewhere(facts: Facts, reference: Reference) -> Held | None:
    """The other file of the program that asks whether something is of the old class, of which the new one is none."""
    if _OLD[reference.name].parameters is None:
        return None
    for other in facts.program.everywhere:
        for check in other.references.to([reference.name]):
            if check.role is Role.COMPARED or (check.role is Role.CHECKED and other is not facts):
                return Held(
                    "checked-elsewhere",
                    f"{other.path}:{check.node.lineno} asks whether something is of the old class, and an object of the new one is not",
                    "change that file first: objects of both classes are of the new one",
                )
    return None


def _is_scripted(facts: Facts, node: ast.AST) -> bool:
    """Whether TorchScript may compile the code at a place: in this file, or as part of a network anywhere in the program."""
    owner = facts.tree.method_class(node)
    is_network = owner is not None and is_module_class(Definition(facts, owner))
    files = facts.program.everywhere if is_network else (facts,)
    return any(
        (other.names.qualified(use) or "").startswith("torch.jit.")
        for other in files
        for word in ("script", "script_method", "ScriptModule")
        for use in (*other.tree.attributes.get(word, ()), *other.tree.names.get(word, ()))
    )


def _followed(facts: Facts, reference: Reference) -> tuple[str, ...]:
    """The arguments that the new autocast takes from its surroundings, which this program changes, and that are not given."""
    if _OLD[reference.name].parameters != _AUTOCAST:
        return ()
    files = facts.program.everywhere
    called = {name for other in files for name in other.tree.calls}
    regions = [call for other in files for call in other.tree.calls.get("autocast", ())]
    given = {item.arg for call in regions for item in call.keywords}
    dtype = "dtype" in given or any(len(call.args) > 1 for call in regions) or any(name in called for name in _DTYPE_SETTERS)
    dtype = dtype or any(other.regions.frameworks() for other in files)
    cache = "cache_enabled" in given or "set_autocast_cache_enabled" in called
    missing = [name for place, name in enumerate(_AUTOCAST) if reference.call and argument(reference.call, name, place) is None]
    return tuple(name for name, changed in (("dtype", dtype), ("cache_enabled", cache)) if changed and name in missing)


def _spelled(facts: Facts, reference: Reference) -> tuple[Edit, ...]:
    """The edits that spell one use anew, and take away the import that served it."""
    successor, local = _OLD[reference.name], _local_import(facts, reference)
    edits: list[Edit] = []
    written = facts.names.spell(successor.name, reference.node)
    if local is not None:
        module, _, last = successor.name.rpartition(".")
        renamed = f" as {reference.alias.asname}" if reference.alias.asname not in (None, last) else ""
        edits.append(Replace(local, f"from {module} import {last}{renamed}"))
        written = facts.source.segment(reference.node)
    elif reference.imported is not None:
        edits.append(RemoveImport(*reference.imported))
    spelled = written or successor.name
    if written is None or (_followed(facts, reference) and facts.names.spell("torch.float16", reference.node) is None):
        edits.append(AddImport("torch"))
    if reference.call is not None:
        edits.append(_called(facts, reference, reference.call, spelled))
    elif reference.role is Role.DECORATING:
        edits.append(Replace(reference.node, f'{spelled}(device_type="{successor.device}")'))
    elif local is None:
        edits.append(Replace(reference.node, spelled))
    return tuple(edits)


def _local_import(facts: Facts, reference: Reference) -> ast.ImportFrom | None:
    """The import of the name alone, inside a function or branch, that serves this use and no other."""
    statement, node = reference.statement, reference.node
    if not isinstance(statement, ast.ImportFrom) or len(statement.names) > 1 or not isinstance(node, ast.Name):
        return None
    alone = len(list(facts.names.uses(node))) == 1 and len(facts.names.bindings(node)) == 1 and not reference.is_lent
    return statement if alone and statement not in facts.tree.module.body else None


def _called(facts: Facts, reference: Reference, call: ast.Call, spelled: str) -> Replace:
    """The call of the new name with the same arguments."""
    successor = _OLD[reference.name]
    parts: dict[str, ast.expr] = {}
    words: list[str] = [] if successor.decorates else [f'"{successor.device}"']
    for place, value in enumerate(call.args):
        name = successor.parameters[place] if successor.parameters else f"argument_{place}"
        parts[name] = value
        words.append(f"{name}=${name}" if successor.parameters else f"${name}")
    words += [f'device_type="{successor.device}"'] if successor.decorates else []
    for place, item in enumerate(call.keywords):
        name = item.arg or f"rest_{place}"
        parts[name] = item.value
        words.append(f"{item.arg}=${name}" if item.arg else f"**${name}")
    fixed = f"torch.{_DTYPES[successor.device]}"
    for name in _followed(facts, reference):
        words.append(f"dtype={facts.names.spell(fixed, call) or fixed}" if name == "dtype" else "cache_enabled=True")
    return Replace(call, f"{spelled}({', '.join(words)})", parts)


TRANSFORM = Transform.from_module(
    __name__,
    __doc__,
    group="migration",
    literals=(b"cuda.amp", b"cpu.amp", b"torch.cuda import", b"torch.cpu import", b"_autocast_"),
    find=find,
    since="1.10",
)
