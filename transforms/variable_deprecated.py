"""Drop ``Variable``, which every tensor has been since torch 0.4.

Why:
    ``Variable(x)`` makes a second tensor object for the same memory and cuts it off from its graph, neither of which
    today's code means by it. ``volatile=True`` has had no effect since torch 0.4 but to warn, and ``loss.data[0]`` of a
    loss without dimensions raises.

Before:
    import torch
    from torch.autograd import Variable

    model = torch.nn.Linear(4, 1)
    inputs = Variable(torch.ones(2, 4))
    noise = Variable(torch.zeros(2, 4), requires_grad=True)
    loss = torch.nn.functional.mse_loss(model(inputs + noise), torch.zeros(2, 1))

After:
    import torch

    model = torch.nn.Linear(4, 1)
    inputs = torch.ones(2, 4)
    noise = torch.zeros(2, 4, requires_grad=True)
    loss = torch.nn.functional.mse_loss(model(inputs + noise), torch.zeros(2, 1))

Safety:
    Exact: ``x`` alone where nothing that made it requires a gradient and the object stays as it is; elsewhere
    ``x.detach()``, which is what ``Variable(x)`` does. ``volatile=True`` is dropped where gradients are off anyway and
    held elsewhere, since it meant ``torch.no_grad()``. ``loss.data[0]`` becomes ``loss.item()`` where the loss surely
    has no dimension, so that the program fails today. Held where ``Variable`` is handed on, derived from or compared.

Reference:
    https://docs.pytorch.org/docs/stable/autograd.html#variable-deprecated,
    https://pytorch.org/blog/pytorch-0_4_0-migration-guide/
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import AddImport, Edit, Remove, RemoveImport, Replace, SetArgument
from torchfix.facts import Facts
from torchfix.facts.code.calls import argument, has_stars, is_constant, receiver
from torchfix.facts.code.references import Reference, Role
from torchfix.facts.code.tree import dotted, last_name
from torchfix.facts.tensors.creations import FACTORIES, VARIABLE
from torchfix.facts.tensors.identity import is_sole, is_unchanged
from torchfix.facts.training.reductions import Reduction
from torchfix.facts.training.regions import NO_GRAD
from torchfix.transform import Finding, Held, NoOptions, Transform

_MESSAGE = "Variable is deprecated: every tensor is one since torch 0.4"
_SHAPED = ("view", "reshape", "unsqueeze", "expand", "repeat")
_ASKING = ("requires_grad", "requires_grad_", "retain_grad")

_VOLATILE = Held(
    "volatile",
    "volatile=True has no effect since torch 0.4, and meant that no graph is built",
    "put the evaluation under torch.no_grad(), then drop the argument",
)
_HIDDEN = Held("hidden-arguments", "stars may hand over requires_grad or volatile", "write the arguments out")
_EMPTY = Held("no-tensor", "without a tensor to wrap, it makes an empty one", "write torch.empty(0)")
_CHOICE = Held("version-guard", "the program runs without Variable in some versions itself", "drop the choice, and Variable with it")
_HANDED_ON = Held(
    "handed-on", "Variable is handed on rather than called", "hand on a function that gives its argument back, or detaches it"
)
_DERIVED = Held("derived", "a class is derived from Variable", "derive it from torch.Tensor, by the rules for subclasses of tensors")
_NEVER = Held("never-true", "no object is of this class itself: Variable makes tensors", "ask isinstance(x, torch.Tensor)")
_ONE = Held("one-element", "whether the tensor has a dimension cannot be told; without one, [0] raises", "write .item()")


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    for reference in facts.references.to([VARIABLE]):
        if isinstance(facts.tree.parent(reference.node), ast.Attribute):
            continue  # an attribute of the class: nothing is wrapped
        node = reference.call or reference.node
        held = _obstacle(facts, reference)
        if held is not None:
            yield Finding(node, _MESSAGE, held=held)
        elif reference.call is None:
            yield Finding(node, _MESSAGE, tuple(_renamed(facts, reference)), because="isinstance(x, Variable) asks whether x is a tensor")
        else:
            edits = (*_unwrapped(facts, reference.call), *_unimported(reference))
            yield Finding(node, _MESSAGE, edits, because=_because(facts, reference.call))
    yield from _first_items(facts)


def _obstacle(facts: Facts, reference: Reference) -> Held | None:
    """Why a use of ``Variable`` must stay."""
    call = reference.call
    if facts.references.is_choice(reference, ()):
        return _CHOICE
    if reference.role in (Role.DERIVED, Role.COMPARED):
        return _DERIVED if reference.role is Role.DERIVED else _NEVER
    if reference.role is Role.CHECKED:
        checks = (outer for outer in facts.tree.ancestors(reference.node) if isinstance(outer, ast.Call))
        return _NEVER if last_name(next(checks).func) == "issubclass" else None
    if call is None:
        return None if reference.role is Role.ANNOTATING else _HANDED_ON
    if has_stars(call) or _data(call) is None:
        return _HIDDEN if has_stars(call) else _EMPTY
    volatile = argument(call, "volatile", 2)
    is_off = volatile is None or is_constant(volatile, False) or facts.regions.under(call, NO_GRAD)
    return None if is_off else _VOLATILE


def _data(call: ast.Call) -> ast.expr | None:
    return argument(call, "data", 0)


def _renamed(facts: Facts, reference: Reference) -> Iterator[Edit]:
    """``torch.Tensor`` in the place of the class."""
    spelled = facts.names.spell("torch.Tensor", reference.node)
    if spelled is None:
        yield AddImport("torch")
    yield Replace(reference.node, spelled or "torch.Tensor")
    yield from _unimported(reference)


def _unimported(reference: Reference) -> Iterator[RemoveImport]:
    if reference.imported is not None:
        yield RemoveImport(*reference.imported)


def _unwrapped(facts: Facts, call: ast.Call) -> Iterator[Edit]:
    """The tensor in the place of the call, made to require a gradient where the call does so."""
    data, needs = _data(call), argument(call, "requires_grad", 1)
    assert data is not None
    detached = "$tensor" if _is_plain(facts, call, data) else "$tensor.detach()"
    if needs is None or is_constant(needs, False):
        statement = _only_rebinding(facts, call) if detached == "$tensor" else None
        yield Remove(statement) if statement is not None else Replace(call, detached, {"tensor": data})
    elif not is_constant(needs, True):
        yield Replace(call, f"{detached}.requires_grad_($needs)", {"tensor": data, "needs": needs})
    elif isinstance(data, ast.Call) and facts.creations.factory(data) in FACTORIES and not has_stars(data):
        yield Replace(call, "$tensor", {"tensor": data})
        yield SetArgument(data, "requires_grad", "True")
    else:
        yield Replace(call, f"{detached}.requires_grad_()", {"tensor": data})


def _is_plain(facts: Facts, call: ast.Call, data: ast.expr) -> bool:
    """Whether the tensor itself will do for another object with its memory."""
    if facts.graphs.may_carry(data) or any(_may_need_gradient(facts, node) for node in _sources(facts, data)):
        return False
    needs = argument(call, "requires_grad", 1)
    return is_sole(facts, data) or ((needs is None or is_constant(needs, False)) and is_unchanged(facts, call))


def _sources(facts: Facts, node: ast.AST) -> Iterator[ast.AST]:
    """The parts of an expression that its value may be made of: not the sizes that a factory is given."""
    yield node
    made = isinstance(node, ast.Call) and (facts.constructors.of(node) is not None or facts.creations.factory(node) is not None)
    for child in ast.iter_child_nodes(node) if not made else ():
        yield from _sources(facts, child)


def _may_need_gradient(facts: Facts, node: ast.AST) -> bool:
    """Whether a part of an expression is a variable that is told to require a gradient, or a network's parameter."""
    if isinstance(node, ast.Attribute):
        return node.attr not in ("data", "shape") and facts.models.is_module(node.value)
    parents = [facts.tree.parent(use) for use in facts.names.uses(node)] if isinstance(node, ast.Name) else []
    return any(isinstance(parent, ast.Attribute) and parent.attr in _ASKING for parent in parents)


def _only_rebinding(facts: Facts, call: ast.Call) -> ast.Assign | None:
    """The assignment around a call that, unwrapped, gives variables their own values: ``x, y = Variable(x), Variable(y)``."""
    statement = facts.tree.statement(call)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, value = statement.targets[0], statement.value
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    kept = [item for item, into in zip(values, targets) if isinstance(into, ast.Name) and dotted(_inside(facts, item)) == into.id]
    return statement if len(kept) == len(values) == len(targets) else None


def _inside(facts: Facts, value: ast.expr) -> ast.expr:
    """What an unwrapped value is, the value itself where it stays as it is."""
    if not isinstance(value, ast.Call) or facts.calls.meaning(value) != VARIABLE or has_stars(value):
        return value
    data, needs, volatile = _data(value), argument(value, "requires_grad", 1), argument(value, "volatile", 2)
    wanted = all(item is None or is_constant(item, False) for item in (needs, volatile)) or facts.regions.under(value, NO_GRAD)
    return data if data is not None and wanted and _is_plain(facts, value, data) else value


def _because(facts: Facts, call: ast.Call) -> str:
    data = _data(call)
    if data is not None and _is_plain(facts, call, data):
        return "nothing that made the tensor requires a gradient, and which of two objects with its memory is used makes no difference"
    return "the tensor may be part of a graph or change later; Variable(x) cuts it off, and x.detach() does just that"


def _first_items(facts: Facts) -> Iterator[Finding]:
    """``loss.data[0]``, which took the number out of a loss when losses still had a dimension."""
    for data in facts.tree.attributes.get("data", ()):
        item = facts.tree.parent(data)
        if not (isinstance(item, ast.Subscript) and item.value is data and is_constant(item.slice, 0) and isinstance(item.ctx, ast.Load)):
            continue
        message = "data[0] of a tensor without dimensions raises since torch 0.5"
        if facts.references.is_branch(item):
            continue  # the program has another way for today's torch
        if _is_number(facts, data.value):
            because = "the loss is a mean or a sum over all of its elements, so it has no dimension"
            yield Finding(item, message, (Replace(item, "$loss.item()", {"loss": data.value}),), because=because)
        elif _is_sent_backward(facts, data.value):
            yield Finding(item, message, held=_ONE)


def _is_number(facts: Facts, loss: ast.expr) -> bool:
    """Whether a tensor surely has no dimension."""
    if facts.reductions.of(loss) not in (Reduction.MEAN, Reduction.COUNTED, Reduction.SUM):
        return False
    made = [value.node for value in facts.values.of(loss) or () if isinstance(value.node, ast.Call)]
    reshaped = any(last_name(call.func) in _SHAPED for call in made)
    partial = any(facts.calls.meaning(call) in ("torch.mean", "torch.sum") and len(call.args) + len(call.keywords) > 1 for call in made)
    return not reshaped and not partial


def _is_sent_backward(facts: Facts, loss: ast.expr) -> bool:
    sent = (receiver(call) for call in facts.calls.methods("backward") if not call.args)
    return isinstance(loss, ast.Name) and any(isinstance(item, ast.Name) and facts.names.same(item, loss) for item in sent)


TRANSFORM = Transform.from_module(__name__, __doc__, group="migration", literals=(b"Variable", b".data[0]"), find=find, since="0.4")
