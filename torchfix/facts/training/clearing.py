"""Clearing gradients: the loops that do so by hand, and what needs a gradient to be a tensor of zeros rather than None."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeGuard

from torchfix.facts.code.calls import is_constant, keyword, receiver
from torchfix.facts.code.tree import COMPREHENSIONS, FUNCTIONS, last_name
from torchfix.facts.code.values import ELEMENT
from torchfix.facts.obstacle import Obstacle

if TYPE_CHECKING:
    from torchfix.facts import Facts

_LEAVING = (ast.Continue, ast.Return, ast.Break, ast.Raise)
_GRAPHS = ("torch.cuda.CUDAGraph", "torch.cuda.graph", "torch.cuda.graphs.graph", "torch.cuda.make_graphed_callables")
_SHARING_METHODS = ("share_memory", "share_memory_")
_SHARING_PACKAGES = ("torch.distributed.rpc",)


@dataclass(frozen=True, eq=False)
class HandLoop:
    """A loop that sets the gradients of all parameters of one owner to zero, and does nothing else.

    Args:
        node: the ``for`` statement, the outer one where it goes through an optimizer's groups.
        owner: the network whose ``parameters()``, or the optimizer whose ``param_groups`` it goes through; None where
            neither is seen.
    """

    node: ast.For
    owner: ast.expr | None


class Clearing:
    """Questions about how the gradients of one file's programs are cleared."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def hand_loops(self) -> tuple[HandLoop, ...]:
        """The loops of the file that clear gradients by hand, those over tensors that no network owns left out."""
        return tuple(_hand_loops(self._facts))

    @cached_property
    def need(self) -> Obstacle | None:
        """What keeps the programs from clearing gradients to None: gradients that are shared, or must stay in place."""
        return next(_needs(self._facts), None)

    @cached_property
    def readers(self) -> tuple[tuple[Facts, ast.expr], ...]:
        """The places in all files of the programs that read a gradient as a tensor, without asking whether it is one.

        Clearing it in place is such a reading; writing another one is not.
        """
        everywhere = self._facts.program.everywhere
        nodes = ((there, node) for there in everywhere for node in _gradients(there))
        return tuple((there, node) for there, node in nodes if _reads(there, node) and not _is_guarded(there, node))

    @cached_property
    def freezes(self) -> bool:
        """Whether the programs switch the gradients of some parameters on or off."""
        return any(_freezes(there) for there in self._facts.program.everywhere)

    def is_between(self, node: ast.expr) -> bool:
        """Whether a gradient is read in a training loop of the file behind a backward pass, with no clearing in between."""
        facts = self._facts
        loop = facts.loops.around(node)
        if loop is None:
            return False
        events = [(_position(call), True) for call in loop.backwards] + [(_position(call), False) for call in loop.zero_grads]
        events += [(_position(hand.node), False) for hand in self.hand_loops if facts.tree.is_within(hand.node, loop.node)]
        before = [is_backward for position, is_backward in sorted(events) if position < _position(node)]
        return bool(before) and before[-1] and facts.tree.function(node) is loop.function


def _hand_loops(facts: Facts) -> Iterator[HandLoop]:
    for name in ("zero_", "fill_"):
        for call in facts.tree.calls.get(name, ()):
            inner = facts.tree.nearest(call, ast.For)
            parameter = _parameter(inner) if inner is not None else None
            if inner is None or parameter is None or inner.orelse:
                continue
            if _clears(call, parameter) and _only_clears(inner.body, parameter) and not _goes_through_tensors(facts, inner.iter):
                yield _of_groups(facts, inner) or HandLoop(inner, _owner(facts, inner))


def _parameter(loop: ast.For) -> str | None:
    """The name that a loop gives each parameter: its target, or the second of a pair of name and parameter."""
    target = loop.target
    if isinstance(target, ast.Tuple) and len(target.elts) == 2 and _calls(loop.iter, "named_parameters"):
        target = target.elts[1]
    return target.id if isinstance(target, ast.Name) else None


def _owner(facts: Facts, loop: ast.For) -> ast.expr | None:
    """The network whose parameters a loop goes through, by itself or in a variable; an expression to be read at the loop."""
    if _calls(loop.iter, "parameters") or _calls(loop.iter, "named_parameters"):
        return receiver(loop.iter) if not loop.iter.args and not loop.iter.keywords else None
    made = facts.values.single(loop.iter)
    if made is None or made.facts is not facts or made.path or not isinstance(made.node, ast.expr) or not _calls(made.node, "parameters"):
        return None
    owner = receiver(made.node)
    if not isinstance(owner, ast.Name) or facts.tree.function(owner) is not facts.tree.function(loop):
        return None
    return owner if len(facts.names.bindings(owner)) == 1 else None


def _of_groups(facts: Facts, inner: ast.For) -> HandLoop | None:
    """The loop over the groups of an optimizer whose only statement is a loop over the parameters of a group."""
    source, outer = inner.iter, facts.tree.parent(inner)
    if not isinstance(outer, ast.For) or len(outer.body) != 1 or outer.orelse or not isinstance(outer.target, ast.Name):
        return None
    of_group = isinstance(source, ast.Subscript) and isinstance(source.value, ast.Name) and source.value.id == outer.target.id
    if of_group and isinstance(outer.iter, ast.Attribute) and outer.iter.attr == "param_groups":
        return HandLoop(outer, outer.iter.value)
    return None


def _goes_through_tensors(facts: Facts, source: ast.expr) -> bool:
    """Whether a loop surely goes through tensors that the program made itself, and keeps in no network."""
    values = facts.values.of(source, (ELEMENT,)) if isinstance(source, (ast.Name, ast.List, ast.Tuple)) else None
    made = [value.facts.calls.meaning(value.node) or "" if isinstance(value.node, ast.Call) else "" for value in values or ()]
    return bool(made) and all(meaning.startswith("torch.") for meaning in made)


def _calls(node: ast.expr, method: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method


def _only_clears(block: list[ast.stmt], parameter: str) -> bool:
    """Whether statements do nothing but set the gradient of a parameter to zero, where there is one."""
    first = block[0]
    if isinstance(first, ast.If) and not first.orelse and ast.unparse(first.test) == f"{parameter}.grad is None":
        return isinstance(first.body[0], ast.Continue) and len(block) > 1 and _only_clears(block[1:], parameter)
    return all(_is_part_of_clearing(statement, parameter) for statement in block)


def _is_part_of_clearing(statement: ast.stmt, parameter: str) -> bool:
    if isinstance(statement, ast.If):
        about = ast.unparse(statement.test)
        known = about == f"{parameter}.grad is not None" and not statement.orelse
        known = known or about in (f"{parameter}.grad.grad_fn is not None", f"{parameter}.grad.requires_grad")
        return known and all(_is_part_of_clearing(item, parameter) for item in (*statement.body, *statement.orelse))
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    detaches = ast.unparse(call) in (f"{parameter}.grad.detach_()", f"{parameter}.grad.requires_grad_(False)")
    return detaches or _clears(call, parameter)


def _clears(call: ast.Call, parameter: str) -> bool:
    gradients = (f"{parameter}.grad", f"{parameter}.grad.data")
    source = receiver(call)
    if source is None or ast.unparse(source) not in gradients or call.keywords:
        return False
    if last_name(call.func) == "fill_":
        return len(call.args) == 1 and (is_constant(call.args[0], 0) or is_constant(call.args[0], 0.0))
    return last_name(call.func) == "zero_" and not call.args


# Who needs zeros ------------------------------------------------------------------------------------------------


def _needs(facts: Facts) -> Iterator[Obstacle]:
    for there in facts.program.everywhere:
        if _shares(there):
            yield Obstacle(
                "shared-gradients",
                f"{there.path} shares parameters or gradients with other processes, which hold on to the tensors",
                "leave the gradients where they are",
            )
        graph = next(there.calls.to(*_GRAPHS), None) or next(_bucket_views(there), None)
        if graph is not None:
            yield Obstacle(
                "gradients-in-place",
                f"{there.path}:{graph.lineno} needs every gradient at the same place in memory",
                "leave the gradients where they are",
            )


def _shares(facts: Facts) -> bool:
    if next(facts.calls.methods(*_SHARING_METHODS), None) is not None:
        return True
    if any(isinstance(use.ctx, ast.Store) for use in facts.tree.attributes.get("_grad", ())):
        return True
    imported = [alias.name for node in facts.tree.imports if isinstance(node, ast.Import) for alias in node.names]
    for node in facts.tree.imports:
        if isinstance(node, ast.ImportFrom) and node.module:
            imported += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return any(name == package or name.startswith(f"{package}.") for name in imported for package in _SHARING_PACKAGES)


def _bucket_views(facts: Facts) -> Iterator[ast.Call]:
    for call in facts.calls.to("torch.nn.parallel.DistributedDataParallel"):
        given = keyword(call, "gradient_as_bucket_view")
        if given is not None and not is_constant(given.value, False):
            yield call


def _gradients(facts: Facts) -> Iterator[ast.expr]:
    """The uses of gradients in a file, by attribute or by name: ``p.grad``, ``getattr(p, "grad")``."""
    yield from facts.tree.attributes.get("grad", ())
    yield from (call for call in facts.tree.calls.get("getattr", ()) if len(call.args) > 1 and is_constant(call.args[1], "grad"))


def _reads(facts: Facts, node: ast.expr) -> bool:
    if (facts.names.qualified(node) or "").startswith("torch."):  # torch.autograd.grad
        return False
    outer = facts.tree.parent(node)
    if isinstance(outer, ast.Call) and outer.func is node:
        return False
    if isinstance(outer, ast.Compare):
        return not all(isinstance(item, (ast.Is, ast.IsNot)) for item in outer.ops)
    return not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load) or isinstance(outer, ast.AugAssign)


def _is_guarded(facts: Facts, node: ast.expr) -> bool:
    """Whether a gradient is read only where it was found not to be None."""
    name = ast.unparse(node)
    inner: ast.AST = node
    for outer in facts.tree.ancestors(node):
        if isinstance(outer, (ast.If, ast.IfExp, ast.While)) and inner is not outer.test:
            body = outer.body if isinstance(outer.body, list) else [outer.body]
            if _tells(outer.test, name, inner in body):
                return True
        if isinstance(outer, ast.BoolOp):
            before = outer.values[: outer.values.index(inner)]  # type: ignore[arg-type]
            if any(_tells(item, name, isinstance(outer.op, ast.And)) for item in before):
                return True
        if isinstance(outer, COMPREHENSIONS) and not isinstance(inner, ast.comprehension):
            if any(_tells(test, name, True) for part in outer.generators for test in part.ifs):
                return True
        if isinstance(inner, ast.stmt) and not isinstance(outer, ast.Module):
            _, block, index = facts.tree.place(inner)
            leaving = (item.test for item in block[:index] if isinstance(item, ast.If) and isinstance(item.body[-1], _LEAVING))
            if any(_tells(test, name, False) for test in leaving):
                return True
        if isinstance(outer, FUNCTIONS):
            return False
        inner = outer
    return False


def _tells(test: ast.expr, name: str, outcome: bool) -> bool:
    """Whether the outcome of a condition surely means that what is called ``name`` is not None."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if outcome else ast.Or):
        return any(_tells(item, name, outcome) for item in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _tells(test.operand, name, not outcome)
    return ast.unparse(test) == f"{name} is {'not ' if outcome else ''}None"


def _position(node: ast.AST) -> tuple[int, int]:
    return (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))


def _freezes(facts: Facts) -> bool:
    if any(isinstance(use.ctx, ast.Store) for use in facts.tree.attributes.get("requires_grad", ())):
        return True
    return any(last_name(receiver(call) or call.func) != "grad" for call in facts.tree.calls.get("requires_grad_", ()))
