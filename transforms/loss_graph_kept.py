"""Keep the number of a loss, not the graph that made it.

Why:
    A loss holds its graph: every activation of the step that made it. ``total += loss`` and ``losses.append(loss)`` hold
    it on, step after step, so that memory grows until the sum is dropped or the program runs out of it.

Before:
    import torch

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    for step in range(4):
        loss = model(torch.ones(3, 2)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss
    print(f"{total / 4:.6f}")

After:
    import torch

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    for step in range(4):
        loss = model(torch.ones(3, 2)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    print(f"{total / 4:.6f}")

Safety:
    Exact: a detached tensor has the same value. Done only where the sum or the list is followed to all its readers, in
    all files, and none of them sends it backward, asks for its graph or is out of sight. What is sent backward is a
    loss in the making and is left alone. Printed as a tensor, the sum no longer shows a ``grad_fn``.

Reference:
    https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchfix.edits import Edit, Replace
from torchfix.facts import Facts
from torchfix.facts.code.values import Value
from torchfix.facts.training.gradients import End, is_older
from torchfix.facts.training.keepers import Kept, kept_graphs, terms
from torchfix.transform import Finding, Held, NoOptions, Transform

_WORDS = {
    "sum": "the running sum keeps the graph of every step alive",
    "list": "the list keeps the graph of every step alive",
    "object": "an object that is given the loss keeps the graph of every step alive",
}
_BECAUSE = "what is kept was followed to all its readers, and none of them sends it backward"
_MAYBE_NUMBER = Held(
    "maybe-number",
    "what is added may be a plain number, or an object of its own kind, which has no detach()",
    "begin it with a tensor, or detach it where it is one",
)
_ALIAS = Held(
    "aliased-total",
    "the running sum begins as another tensor and is kept elsewhere too, where adding in place would still show",
    "begin the sum with 0 and add loss.detach()",
)


def find(facts: Facts, options: NoOptions) -> Iterator[Finding]:
    for kept in kept_graphs(facts):
        if kept.fate.end is End.BACKWARD or any(_is_trained_on(facts, start) for start in _starts(facts, kept)):
            continue  # a loss in the making
        held = _obstacle(facts, kept)
        if held is None:
            yield Finding(kept.node, _WORDS[kept.kind], tuple(_edits(facts, kept)), because=_BECAUSE)
        elif any(isinstance(term, ast.Name) and facts.gradients.is_term(term) for term in kept.terms):
            yield Finding(kept.node, _WORDS[kept.kind], held=held)


def _obstacle(facts: Facts, kept: Kept) -> Held | None:
    if kept.fate.end is End.UNSEEN:
        return Held(
            "out-of-sight",
            f"what is kept leaves the code in sight at {kept.fate.place}, where it might be sent backward",
            "write .detach() behind it if it is only read there",
        )
    if not all(_is_tensor(facts, term, kept.node) for term in kept.terms):
        return _MAYBE_NUMBER
    stored = kept.fate.kept and kept.target is not None and _is_stored(facts, kept.target)
    starts = _starts(facts, kept)
    return _ALIAS if starts and (stored or any(_is_read_later(facts, kept, start) for start in starts)) else None


def _is_read_later(facts: Facts, kept: Kept, start: ast.Assign) -> bool:
    """Whether the tensor that a running sum begins as is read under its own name once more was added to it."""
    if not isinstance(start.value, ast.Name) or kept.target is None or is_older(facts, start, kept.target):
        return False
    bindings = facts.flow.reaching(start.value)
    uses = [use for use in facts.names.uses(start.value) if isinstance(use.ctx, ast.Load) and use.lineno > start.lineno]
    return any(binding in bindings for use in uses for binding in facts.flow.reaching(use))


def _is_tensor(facts: Facts, term: ast.expr, node: ast.AST) -> bool:
    """Whether a term surely is a tensor: sent backward on every way through this place, or made by calls that give tensors."""
    values = facts.values.of(term) or (None,)
    if any(value is not None and _is_object(value) for value in values):
        return False
    if isinstance(term, ast.Name):
        around = list(facts.tree.ancestors(node))
        for call in facts.tree.calls.get("backward", ()):
            uses = [use for use in ast.walk(call) if isinstance(use, ast.Name) and use.id == term.id]
            sent = any(set(facts.flow.reaching(term)) <= set(facts.flow.reaching(use)) for use in uses)
            if sent and facts.tree.parent(facts.tree.statement(call)) in around:
                return True
    return all(_gives_tensor(value) for value in values)


def _is_object(value: Value) -> bool:
    """Whether an origin makes an object of a class of the project that is no network, such as a loss of its own kind."""
    made = value.facts.names.definition(value.node.func) if isinstance(value.node, ast.Call) else None
    return made is not None and isinstance(made.node, ast.ClassDef) and not value.path


def _gives_tensor(value: Value | None) -> bool:
    """Whether an origin is arithmetic or a call, of torch or of a network, rather than a number."""
    if value is None or not isinstance(value.node, ast.Call):
        return value is not None and isinstance(value.node, ast.BinOp)
    meaning = value.facts.calls.meaning(value.node) or ""
    return meaning.startswith("torch.") or not (meaning or value.facts.names.definition(value.node.func))


def _starts(facts: Facts, kept: Kept) -> list[ast.Assign]:
    """The assignments by which a running sum begins as a tensor with a graph, so that adding in place would write into that tensor."""
    if not isinstance(kept.target, ast.Name) or not isinstance(kept.node, ast.AugAssign):
        return []
    nodes = [binding.node for binding in facts.flow.reaching(kept.target)]
    return [node for node in nodes if isinstance(node, ast.Assign) and terms(facts, node.value)]


def _is_trained_on(facts: Facts, start: ast.Assign) -> bool:
    """Whether what a sum begins as is itself sent backward under that name."""
    return any(facts.gradients.of_variable(target).end is End.BACKWARD for target in start.targets)


def _is_stored(facts: Facts, target: ast.expr) -> bool:
    """Whether a running sum may have another name: in a container, a variable, or out of its function."""
    uses = [use for use in facts.names.uses(target) if isinstance(use.ctx, ast.Load)] if isinstance(target, ast.Name) else []
    for outer in map(facts.tree.parent, uses):
        number = isinstance(outer, ast.Call) and (facts.calls.meaning(outer) or "").startswith("builtins.")
        if isinstance(outer, (ast.Call, ast.Assign, ast.Return, ast.List, ast.Tuple, ast.Dict)) and not number:
            return True
    return False


def _edits(facts: Facts, kept: Kept) -> Iterator[Edit]:
    """Each term detached; a sum that begins as a loss is written anew, since adding in place would write into that loss."""
    starts = _starts(facts, kept)
    for term in (*kept.terms, *(term for start in starts for term in terms(facts, start.value))):
        yield Replace(term, "$loss.detach()", {"loss": term})
    if starts and isinstance(kept.node, ast.AugAssign):
        total = ast.unparse(kept.node.target)
        yield Replace(kept.node, f"{total} = {total} + $added", {"added": kept.node.value})


TRANSFORM = Transform.from_module(
    __name__, __doc__, group="memory", literals=(b"+=", b".append", b".update", b" + ", b".put", b".add"), find=find, since="0.4"
)
