"""Which device a training loop runs on, in the program's own words."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, Function, LoopNode, dotted, walk_here
from torchfix.facts.code.values import Value
from torchfix.facts.tensors.devices import ORDINALS, Transfer

if TYPE_CHECKING:
    from torchfix.facts import Facts


@dataclass(frozen=True, eq=False)
class Target:
    """The device of a loop.

    Args:
        types: the device types that it may be, as in :class:`torchfix.facts.tensors.devices.Device`.
        variable: the variable or attribute that holds it, None where the program writes ``.cuda()`` or a literal.
        is_object: whether that variable surely holds a ``torch.device``.
        flag: where copies to CUDA depend on a variable's truth, that variable.
    """

    types: frozenset[str]
    variable: ast.expr | None = None
    is_object: bool = False
    flag: ast.expr | None = None

    @property
    def may_be_cuda(self) -> bool:
        """Whether it can be a CUDA device."""
        return bool(self.types & {"cuda", "?"})


class Targets:
    """Questions about the devices of one file's training loops."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def around(self, node: LoopNode | Function) -> Target | None:
        """Where a loop or function runs: what its copies say, else those of the file, else those of the program; None without any."""
        facts = self._facts
        at = node.body[0] if isinstance(node, FUNCTIONS) else node
        inside = (item for statement in node.body for item in walk_here(statement))
        here = self._transfers(item for item in inside if isinstance(item, ast.Call))
        anywhere = self._transfers(facts.calls.methods("to", "cuda"))
        for transfers in (here, anywhere):
            found = [self._seen_from(at, self._target(transfer)) for transfer in transfers]
            for target in found:
                if target.may_be_cuda:
                    return target
            if found:
                return found[0]
        if self._keeps_networks(node):
            return None
        for other in facts.program.holding("to", "cuda"):
            if other is not facts and any(item.device.may_be_cuda for item in other.targets._transfers(other.calls.methods("to", "cuda"))):
                return Target(frozenset({"cuda", "cpu"}))
        return None

    def _keeps_networks(self, node: LoopNode | Function) -> bool:
        """Whether only this file knows the networks that run here: it makes them where no other can read them, and hands them to none."""
        facts = self._facts
        calls = [item for statement in node.body for item in walk_here(statement) if isinstance(item, ast.Call)]
        ran = [network.value for call in calls for network in facts.models.run_by(call) or ()]
        if not ran or not all(value.facts is facts and self._is_local(value.node, node) for value in ran):
            return False
        everywhere = (call for listed in facts.tree.calls.values() for call in listed)
        return not any(self._hands_away(call) for call in everywhere)

    def _is_local(self, made: ast.AST, node: ast.AST) -> bool:
        """Whether what one place makes is a variable of the function around another, or of a script's own part."""
        home = self._facts.tree.function(node)
        return self._facts.tree.function(made) is home and (home is not None or self._facts.program.is_guarded(made))

    def _hands_away(self, call: ast.Call) -> bool:
        """Whether a call hands a network to code that is neither torch's nor this file's."""
        facts = self._facts
        given = (*call.args, *(item.value for item in call.keywords))
        if (facts.calls.meaning(call) or "").startswith(("torch.", "builtins.")) or not any(facts.models.of(item) for item in given):
            return False
        homes = [there for there, _ in called(facts, call)]
        return not homes or any(there is not facts for there in homes)

    def of(self, transfer: Transfer, at: ast.stmt) -> Target:
        """The device of one copy, in words that can be read at a statement."""
        return self._seen_from(at, self._target(transfer))

    def _transfers(self, calls: Iterable[ast.Call]) -> list[Transfer]:
        found: Iterator[Transfer | None] = (self._facts.devices.transfer(call) for call in calls)
        return [transfer for transfer in found if transfer is not None]

    def _target(self, transfer: Transfer) -> Target:
        device, variable = transfer.device, transfer.target
        moves = isinstance(transfer.call.func, ast.Attribute) and transfer.call.func.attr == "to"
        if moves and variable is not None and dotted(variable) is not None and not _is_index(self._facts, variable):
            return Target(device.types, variable, device.is_object is True)
        return Target(device.types, flag=self._flag(transfer.call))

    def _seen_from(self, node: ast.stmt, target: Target) -> Target:
        """The same device without variables that do not exist in front of the loop: those of other functions, and those bound later."""
        variable = target.variable if target.variable is not None and self._is_readable(target.variable, node) else None
        flag = target.flag if target.flag is not None and self._is_readable(target.flag, node) else None
        return replace(target, variable=variable, flag=flag, is_object=target.is_object and variable is not None)

    def _is_readable(self, expression: ast.expr, at: ast.stmt) -> bool:
        names, tree = self._facts.names, self._facts.tree
        root = expression
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            return False
        if self._facts.is_self(root):
            return tree.method_class(root) is tree.method_class(at) is not None
        here, there = names.lookup(root.id, root), names.lookup(root.id, at)
        if here is None or there is None or here[0] is not there[0]:
            return False
        front = (tree.outermost_loop(at) or at).lineno
        early = any(binding.how is Bound.PARAMETER or tree.statement(binding.node).lineno < front for binding in here[1])
        return early or names.scope(at) is not here[0]

    def _flag(self, call: ast.Call) -> ast.expr | None:
        """The variable on whose truth a copy depends."""
        tree = self._facts.tree
        inner: ast.AST = call
        for outer in tree.ancestors(call):
            if isinstance(outer, (ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef)):
                return None
            if isinstance(outer, (ast.If, ast.IfExp)) and dotted(outer.test) is not None:
                body = outer.body if isinstance(outer.body, list) else [outer.body]
                if inner in body and not self.copies_in(outer.orelse):
                    return outer.test
            inner = outer
        return None

    def copies_in(self, otherwise: ast.expr | list[ast.stmt]) -> bool:
        """Whether the other branch of a condition copies to CUDA as well, so that the condition asks for something else."""
        nodes = (node for item in (otherwise if isinstance(otherwise, list) else [otherwise]) for node in walk_here(item))
        return any(transfer.device.may_be_cuda for transfer in self._transfers(node for node in nodes if isinstance(node, ast.Call)))


def _is_index(facts: Facts, node: ast.expr) -> bool:
    """Whether a device is given by its number."""
    return any(_is_number(value) for value in facts.values.of(node) or ())


def _is_number(value: Value) -> bool:
    if isinstance(value.node, ast.Call):
        return not value.path and value.facts.calls.meaning(value.node) in ORDINALS
    return isinstance(value.node, ast.Constant) and type(value.node.value) is int
