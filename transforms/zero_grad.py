"""Clear gradients by dropping them rather than filling them with zeros.

Why:
    Filling gradients with zeros writes all of their memory, and the backward pass then reads it back to add to it.
    Dropped gradients cost neither: the backward pass writes new ones. ``zero_grad()`` does so since torch 2.0.

Before:
    import torch

    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for x in torch.ones(3, 2, 4):
        optimizer.zero_grad(set_to_none=False)
        net(x).sum().backward()
        optimizer.step()

After:
    import torch

    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for x in torch.ones(3, 2, 4):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

Safety:
    Exact where every parameter is seen to get a gradient before every step. Else effect ``numerics``: a parameter that
    gets none in some step is then left alone by it, where zeros let momentum and weight decay move it on. Held where
    something reads gradients that may be gone by then, where they are shared or must stay in place, in closures, where
    a comment stands beside it, and where it is not seen which parameters are meant. Below torch 2.0 the argument
    ``set_to_none=True`` is added where gradients are cleared in every iteration.

Reference:
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html,
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import Edit, RemoveArgument, Replace, SetArgument
from torchfix.facts import Facts
from torchfix.facts.code.callees import classes_of
from torchfix.facts.code.calls import argument, has_stars, is_constant, receiver
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import dotted, last_name
from torchfix.facts.project.repetition import Repeated
from torchfix.facts.training.coverage import reaches_every_weight
from torchfix.facts.training.models import is_module_class
from torchfix.facts.training.regions import NO_GRAD
from torchfix.facts.training.updates import Update
from torchfix.transform import Effect, Finding, Held, NoOptions, Transform

_KNOWS_NONE = (1, 7)  # the first torch with set_to_none
_DROPS = (2, 0)  # the first torch whose default it is (pytorch/pytorch#92656)

_MESSAGE = "gradients are filled with zeros, which the backward pass reads back"
_NUMERICS = frozenset({Effect.NUMERICS})
_NOTE = "A parameter that gets no gradient in some step is left alone by that step; zeros let momentum and weight decay move it on."

_COMMENT = Held("explicit", "a comment stands beside it, so somebody may have had a reason", "remove the comment to have it judged")
_OWNER = Held(
    "owner-not-seen", "whose parameters these are is out of sight", "call zero_grad() of the network or of one of torch's optimizers"
)
_OWN_METHOD = Held("own-method", "its class has a zero_grad of its own", "let that method set gradients to None")
_CLOSURE = Held("closure", "the optimizer calls the loss again, and clears gradients in between", "decide by hand")


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    torch = facts.project.torch or _DROPS
    if torch < _KNOWS_NONE:
        return
    for call in facts.calls.methods("zero_grad"):
        owner = receiver(call)
        edits = _edits(facts, call, torch >= _DROPS)
        if edits and owner is not None:
            yield _finding(facts, call, owner, edits)
    for hand in facts.clearing.hand_loops:
        name = dotted(hand.owner) if hand.owner is not None else None
        written = f"{name}.zero_grad({'' if torch >= _DROPS else 'set_to_none=True'})"
        yield _finding(facts, hand.node, hand.owner if name else None, (Replace(hand.node, written),))


def _edits(facts: Facts, call: ast.Call, drops: bool) -> tuple[Edit, ...]:
    """What makes ``zero_grad`` drop gradients; none where it does, where it is not seen, and where there is little to gain.

    Args:
        drops: whether it drops them by default.
    """
    given = argument(call, "set_to_none", 0)
    if has_stars(call) or len(call.args) + len(call.keywords) > 1 or not (given is None or is_constant(given, False)):
        return ()
    add = SetArgument(call, "set_to_none", "True")
    if given is None:
        silent = drops or call.keywords or _is_now_and_then(facts, call) or not _is_torchs(facts, call)
        return () if silent or facts.repetition.of(call) is not Repeated.BATCH else (add,)
    if call.args:
        return (RemoveArgument(call, 0),) if drops else (RemoveArgument(call, 0), add)
    return (RemoveArgument(call, "set_to_none"),) if drops else (add,)


def _is_now_and_then(facts: Facts, call: ast.Call) -> bool:
    """Whether a condition that does not hold the backward pass decides when gradients are cleared, so that they add up."""
    loop = facts.loops.around(call)
    around = [outer for outer in facts.tree.ancestors(call) if isinstance(outer, ast.If)] if loop is not None else []
    return loop is not None and any(
        facts.tree.is_within(outer, loop.node) and not any(facts.tree.is_within(backward, outer) for backward in loop.backwards)
        for outer in around
    )


def _is_torchs(facts: Facts, call: ast.Call) -> bool:
    """Whether the method that a call runs surely is torch's, which knows the argument."""
    owner = receiver(call)
    classes = _classes(facts, owner) if owner is not None else None
    return classes is not None and all(method_of(made, "zero_grad") is None for made in classes)


def _finding(facts: Facts, node: ast.Call | ast.For, owner: ast.expr | None, edits: tuple[Edit, ...]) -> Finding:
    covered = _all_get_gradients(facts, node)
    held = _obstacle(facts, node, owner, covered)
    if held is not None:
        return Finding(node, _MESSAGE, held=held)
    if covered:
        return Finding(node, _MESSAGE, edits, because="every parameter gets a gradient before every step")
    because = "nothing in the program reads a gradient that may be gone"
    return Finding(node, _MESSAGE, edits, _NUMERICS, because, (_NOTE,))


def _obstacle(facts: Facts, node: ast.Call | ast.For, owner: ast.expr | None, covered: bool) -> Held | None:
    """Why gradients must be zeros, or may have to be."""
    if not isinstance(node, ast.Call) or node.args or node.keywords:
        above, lines = max(node.lineno - 2, 0), facts.source.lines
        if any("#" in line for line in lines[node.lineno - 1 : node.end_lineno]) or lines[above].lstrip().startswith("#"):
            return _COMMENT
    classes = _classes(facts, owner) if owner is not None else None
    if owner is None or classes is None:
        return _OWNER
    if any(method_of(made, "zero_grad") is not None for made in classes):
        return _OWN_METHOD
    if _is_in_closure(facts, node) or any(made.takes_closure for made in facts.optimizers.of(owner) or ()):
        return _CLOSURE
    need = facts.clearing.need
    if need is not None:
        return Held(need.code, need.text, need.help)
    for there, read in facts.clearing.readers:
        if there is facts and (facts.tree.is_within(read, node) or (covered and facts.clearing.is_between(read))):
            continue
        words = f"{there.path}:{read.lineno} reads a gradient, which may be None by then"
        return Held("gradients-read", words, "ask whether it is None first, or leave the zeros")
    return None


def _classes(facts: Facts, owner: ast.expr) -> list[Definition] | None:
    """The project's classes of a network or optimizer, none for torch's own; None where it is not surely one."""
    if isinstance(owner, ast.Name) and facts.is_self(owner):
        mine = facts.tree.method_class(owner)
        made = Definition(facts, mine) if mine is not None else None
        return [made] if made is not None and is_module_class(made) else None
    if facts.optimizers.of(owner) or facts.models.of(owner):
        return list(classes_of(facts, owner))
    return None


def _is_in_closure(facts: Facts, node: ast.AST) -> bool:
    """Whether a node stands in a function that is given to an optimizer's step."""
    function = facts.tree.function(node)
    given = (item for call in facts.tree.calls.get("step", ()) for item in (*call.args, *(word.value for word in call.keywords)))
    return function is not None and any(isinstance(item, ast.Name) and item.id == function.name for item in given)


def _all_get_gradients(facts: Facts, node: ast.AST) -> bool:
    """Whether each parameter surely gets a gradient between this clearing and the next step of its optimizer."""
    loop = facts.loops.around(node)
    update = facts.updates.of(loop) if loop is not None else None
    if loop is None or not isinstance(update, Update) or facts.clearing.freezes:
        return False
    if not len(update.sent) == len(update.steps) == len(update.optimizers) == 1 or not facts.graphs.surely_carries(update.sent[0].loss):
        return False
    there, given = update.optimizers[0].value.facts, argument(update.optimizers[0].call, "params", 0)
    source = receiver(given) if isinstance(given, ast.Call) and not given.args and last_name(given.func) == "parameters" else None
    networks = there.models.of(source) if source is not None else None
    if not networks or len(networks) != 1 or not reaches_every_weight(networks[0]):
        return False
    runs = [facts.models.of(call.func) for call in loop.forwards]
    unswitched = not any(facts.regions.under(call, NO_GRAD) for call in loop.forwards)
    return bool(runs) and unswitched and all(run is not None and {item.value for item in run} == {networks[0].value} for run in runs)


TRANSFORM = Transform.from_module(__name__, __doc__, group="memory", literals=(b"zero_grad", b".grad"), find=find, since="1.7")
