"""Evaluate in the precision that the network trains in.

Why:
    A network that trains under autocast and evaluates without it runs its evaluation in float32, at a fraction of the
    speed that the GPU's half-precision units allow.

Before:
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    use_amp = device.type == "cuda"
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    batches = torch.ones(3, 4, 8)
    for x in batches:
        x = x.to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
            loss = torch.nn.functional.cross_entropy(model(x), torch.zeros(4, dtype=torch.long, device=device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    model.eval()
    correct = 0
    with torch.no_grad():
        for x in batches:
            output = model(x.to(device))
            correct += (output.argmax(dim=1) == 0).sum().item()

After:
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    use_amp = device.type == "cuda"
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    batches = torch.ones(3, 4, 8)
    for x in batches:
        x = x.to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
            loss = torch.nn.functional.cross_entropy(model(x), torch.zeros(4, dtype=torch.long, device=device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    model.eval()
    correct = 0
    with torch.no_grad():
        for x in batches:
            with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
                output = model(x.to(device))
            correct += (output.argmax(dim=1) == 0).sum().item()

Safety:
    Effect ``numerics``: reported metrics may move in their last digits. The statement that runs the network gets the
    region of the training loop, with the same switch and precision where these can be read or made anew from the same
    device; what leaves it for anything but picking, comparing and reading is converted back with ``.float()``. The
    network's code is read as for training. Without CUDA nothing changes. Off by default.

Reference:
    https://docs.pytorch.org/docs/stable/amp.html#torch.autocast
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import AddImport, Edit, InsertBefore, Replace, Wrap, by_file
from torchfix.facts import Facts
from torchfix.facts.code.calls import argument, has_stars, is_constant, receiver
from torchfix.facts.code.tree import Function, LoopNode, dotted, last_name, walk
from torchfix.facts.half_precision.evaluated import Evaluated, Trained, evaluated
from torchfix.facts.half_precision.spelling import Spelling
from torchfix.facts.obstacle import Obstacle
from torchfix.transform import Default, Effect, Finding, Held, NoOptions, Transform

_MESSAGE = "the network trains in half precision and is evaluated in float32"
_BECAUSE = "the training loop runs the same network under autocast"
_NOTE = "Reported metrics may move in their last digits; compare them with those of the old code before merging."
_EFFECTS = frozenset({Effect.NUMERICS})
_OUT_OF_REACH = Held(
    "precision-out-of-reach",
    "the switch or the precision of the training loop's autocast cannot be read where the network is evaluated",
    "put the evaluation's forward pass under the same autocast by hand",
)
_SEVERAL = Held(
    "several-precisions",
    "the network trains under autocast in several ways",
    "choose one of them for the evaluation, and put its forward pass under it by hand",
)
_DTYPES = ("torch.float16", "torch.half", "torch.bfloat16")
_CAPABILITY = ("torch.cuda.get_device_capability", "torch.cuda.is_bf16_supported")
_DEPTH = 4  # callers asked above the evaluation's function


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    """The evaluation loops that could run in their training's precision; those of other files where their network trains here."""
    for place, home, loop, found in evaluated(facts):
        message = _MESSAGE if home is facts else f"{_MESSAGE} ({home.path}:{loop.lineno})"
        edits = Held(found.code, found.text, found.help) if isinstance(found, Obstacle) else _edits(home, found)
        if isinstance(edits, Held):
            yield Finding(place, message, effects=_EFFECTS, held=edits)
            continue
        own, elsewhere = by_file(facts.path, ((home.path, edit) for edit in edits))
        yield Finding(place, message, own, _EFFECTS, _BECAUSE, (_NOTE,), elsewhere=elsewhere)


def _edits(facts: Facts, found: Evaluated) -> tuple[Edit, ...] | Held:
    calls = [item.autocast for item in found.trained if item.autocast is not None]
    if len(calls) < len(found.trained):
        return _OUT_OF_REACH
    if len({ast.dump(call) for call in calls}) > 1:
        return _SEVERAL
    set_up, header = _header(facts, found, found.trained[0], calls[0])
    if not header:
        return _OUT_OF_REACH
    edits: list[Edit] = [Wrap(first, last, header) for first, last in found.regions]
    edits += [Replace(call, "$half.float()", {"half": call}) for call in found.restored]
    edits += [InsertBefore(found.loop, set_up)] if set_up else []
    edits += [AddImport("torch")] if facts.names.spell("torch", found.loop) is None else []
    return tuple(edits)


def _header(facts: Facts, found: Evaluated, trained: Trained, call: ast.Call) -> tuple[str, str]:
    """What must be computed in front of the loop, and the ``with`` line; both empty where they cannot mean the same there."""
    old = trained.facts.calls.meaning(call) != "torch.autocast"
    device, dtype, enabled = (
        (None, argument(call, "dtype", 1), argument(call, "enabled", 0))
        if old
        else (argument(call, "device_type", 0), argument(call, "dtype", 1), argument(call, "enabled", 2))
    )
    known = len(call.args) + len(call.keywords) == sum(item is not None for item in (device, dtype, enabled))
    if has_stars(call) or not known or not (old or (isinstance(device, ast.Constant) and device.value == "cuda")):
        return "", ""
    spelling = Spelling(facts, found.loop)
    words: list[str] = []
    set_up = ""
    switch, precision = (_readable(facts, found.loop, trained, item) for item in (enabled, dtype))
    if enabled is not None and switch is None:
        if not _is_cuda_test(trained.facts, enabled):
            return "", ""
        switch = facts.names.fresh("use_amp", "amp_enabled")
        set_up += f"{switch} = {_on_cuda(facts, found.loop, spelling)}\n"
    if dtype is not None and precision is None:
        if not _is_choice(trained.facts, dtype):
            return "", ""
        precision = spelling.torch("float16")
        if not any("DataParallel" in network.wrappers for network in found.networks):
            precision = facts.names.fresh("amp_dtype", "autocast_dtype")
            chosen = f"{switch or _on_cuda(facts, found.loop, spelling)} and {spelling.capability} >= 8"
            set_up += f"{precision} = {spelling.choice(chosen)}\n"
    words += [] if precision is None else [f"dtype={precision}"]
    words += [] if switch is None else [f"enabled={switch}"]
    name = spelling.torch("cuda.amp.autocast" if old else "autocast")
    given = ", ".join(words if old else ['"cuda"', *words])
    return set_up, f"with {name}({given}):"


def _on_cuda(facts: Facts, loop: LoopNode, spelling: Spelling) -> str:
    target = facts.targets.around(loop)
    variable = ast.unparse(target.variable) if target is not None and target.variable is not None else None
    flag = ast.unparse(target.flag) if target is not None and target.flag is not None else None
    return spelling.on_cuda(variable, flag, is_object=target is not None and target.is_object)


def _readable(facts: Facts, loop: LoopNode, trained: Trained, node: ast.expr | None) -> str | None:
    """An argument of the training's autocast as the evaluation can write it with the same meaning; None where it cannot."""
    if node is None:
        return None
    if isinstance(node, ast.Constant):
        return ast.unparse(node)
    meaning = trained.facts.names.qualified(node)
    if meaning in _DTYPES:
        return Spelling(facts, loop).torch(meaning.removeprefix("torch."))
    if trained.facts is not facts or not isinstance(node, (ast.Name, ast.Attribute)):
        return None
    return facts.source.segment(node) if _is_same(facts, node, loop) else None


def _is_same(facts: Facts, node: ast.Name | ast.Attribute, loop: LoopNode) -> bool:
    """Whether a variable, an option of it, or an attribute of ``self`` that its constructor sets, is the same in front of a loop."""
    if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and facts.is_self(node.value)):
        stored = any(isinstance(use.ctx, ast.Store) for use in facts.tree.attributes[node.attr])
        return isinstance(node.value, ast.Name) and not stored and _is_same(facts, node.value, loop)
    if isinstance(node, ast.Attribute):
        owner = facts.tree.method_class(node)
        set_in = {facts.tree.function(use) for use in facts.tree.attributes[node.attr] if isinstance(use.ctx, ast.Store)}
        made = all(function is not None and function.name == "__init__" for function in set_in)
        return owner is not None and bool(set_in) and made and facts.tree.method_class(loop) is owner
    there, here = facts.names.lookup(node.id, node), facts.names.lookup(node.id, loop)
    if there is None or here is None or there[0] is not here[0] or len(here[1]) != 1:
        return False
    bound = here[1][0].node
    if here[0] is facts.names.scope(loop):
        return bound.lineno < loop.lineno if isinstance(bound, ast.stmt) else isinstance(bound, ast.arg) or _before(bound, loop)
    return here[0] is facts.names.module and _is_called_behind(facts, facts.tree.function(loop), getattr(bound, "lineno", 0))


def _before(node: ast.AST, loop: LoopNode) -> bool:
    return getattr(node, "lineno", loop.lineno) < loop.lineno


def _is_called_behind(facts: Facts, function: Function | None, line: int, depth: int = 0) -> bool:
    """Whether the module's own code calls a function, itself or through others of the file, only behind a line."""
    calls = facts.callers_everywhere(function) if function is not None and depth <= _DEPTH else None
    for other, call in calls or ():
        home = other.tree.function(call)
        behind = call.lineno > line if home is None else _is_called_behind(facts, home, line, depth + 1)
        if other is not facts or not behind:
            return False
    return bool(calls)


def _written(facts: Facts, node: ast.expr) -> list[ast.expr]:
    """The expressions that a variable or attribute is given in its file, else the expression itself."""
    if isinstance(node, ast.Name):
        return [binding.value for binding in facts.flow.reaching(node) if binding.value is not None and not binding.path]
    if isinstance(node, ast.Attribute) and facts.names.qualified(node) is None:
        stores = [use for use in facts.tree.attributes[node.attr] if isinstance(use.ctx, ast.Store) and dotted(use) == dotted(node)]
        statements = [facts.tree.statement(use) for use in stores]
        return [item.value for item in statements if isinstance(item, ast.Assign)] if all(map(_assigns, statements)) else []
    return [node]


def _assigns(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and len(statement.targets) == 1


def _is_cuda_test(facts: Facts, node: ast.expr) -> bool:
    """Whether a switch is on where CUDA is, and nowhere else: the device's type compared, or CUDA asked for."""
    written = _written(facts, node)
    return bool(written) and all(_asks_cuda(facts, item) for item in written)


def _asks_cuda(facts: Facts, node: ast.expr) -> bool:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
        return isinstance(node.left, ast.Attribute) and node.left.attr == "type" and is_constant(node.comparators[0], "cuda")
    return isinstance(node, ast.Call) and facts.calls.meaning(node) == "torch.cuda.is_available"


def _is_choice(facts: Facts, node: ast.expr) -> bool:
    """Whether a precision is bfloat16 where the GPU computes in it, and float16 elsewhere."""
    written = _written(facts, node)
    return bool(written) and all(
        isinstance(item, ast.IfExp)
        and facts.names.qualified(item.body) == "torch.bfloat16"
        and facts.names.qualified(item.orelse) == "torch.float16"
        and _asks_capability(facts, item.test)
        for item in written
    )


def _asks_capability(facts: Facts, test: ast.expr) -> bool:
    """Whether a condition asks what the GPU can do: itself, or through whether the scaler is needed."""
    for call in (node for node in walk(test) if isinstance(node, ast.Call)):
        if facts.calls.meaning(call) in _CAPABILITY:
            return True
        scaler = receiver(call) if last_name(call.func) == "is_enabled" else None
        made = facts.values.of(scaler) if scaler is not None else None
        if made and all(isinstance(item.node, ast.Call) and _asks_capability(item.facts, item.node) for item in made):
            return True
    return False


TRANSFORM = Transform.from_module(
    __name__, __doc__, group="precision", literals=(b"backward",), find=find, since="1.6", default=Default.OFF
)
