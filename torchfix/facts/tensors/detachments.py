"""Tensors that are taken out of the graph of a backward pass: after a copy to the host, or by ``.data``, which autograd does not see."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import receiver
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import Function, last_name
from torchfix.facts.code.values import passed
from torchfix.facts.code.writes import VIEWS
from torchfix.facts.project.effects import Effect
from torchfix.facts.training.regions import NO_GRAD

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Fate(enum.IntEnum):
    """What becomes of a tensor's memory, from the harmless to the unknown.

    ``READ``: its values go elsewhere. ``COMPUTED_WITH``: a graph may keep it for a backward pass. ``WRITTEN``: something
    writes into it. ``AWAY``: it is handed to code that is out of sight.
    """

    READ = 0
    COMPUTED_WITH = 1
    AWAY = 2
    WRITTEN = 3


@dataclass(frozen=True, eq=False)
class Detachment:
    """One place that takes a tensor out of its graph too late, or out of autograd's sight.

    Args:
        node: the expression that does so.
        source: the tensor, still in its graph.
        copies: the copy to the host that comes before; None where there is none.
        fate: what becomes of the result.
        is_weight: whether the tensor is a parameter of a network, which optimizers write in place.
        needs_none: whether what follows only asks for numbers or sizes, so that nothing need be detached at all.
    """

    node: ast.expr
    source: ast.expr
    copies: ast.Call | None
    fate: Fate
    is_weight: bool = False
    needs_none: bool = False


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Methods whose result may share the memory of the tensor.
_SHARING = VIEWS | _words(
    """cpu cuda to float double half bfloat16 long int short byte bool type type_as contiguous view_as expand_as reshape_as unbind split
    chunk unfold swapaxes swapdims movedim diagonal broadcast_to ravel requires_grad_ T real imag data"""
)
_TELLING = _words("""size dim numel nelement shape dtype device ndim is_cuda element_size get_device stride item tolist
    new new_zeros new_ones new_full new_empty new_tensor""")
# Methods whose result no gradient reaches.
_COMPARING = _words("numpy eq ne lt le gt ge equal isnan isinf isfinite argmax argmin argsort")
_PACKING = ("pack_padded_sequence", "pack_sequence", "PackedSequence")
_ASKING_TYPE = ("builtins.type", "builtins.isinstance", "builtins.id", "builtins.hasattr")
# Code of other packages that reads the tensors which it is given.
_READERS = (
    *("builtins.", "numpy.", "wandb.", "sklearn.", "scipy.", "matplotlib.", "torch.save", "copy.deepcopy"),
    *("torchvision.utils.save_image", "torchvision.utils.make_grid"),
)
_OUTWARD = (Effect.PRINT, Effect.LOG, Effect.WRITE)
_LIMIT = 4  # functions and variables followed


class Detachments:
    """Questions about how one file takes tensors out of their graphs."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def all(self) -> Iterator[Detachment]:
        """Every such place of the file whose source surely is a tensor, in text order."""
        tree = self._facts.tree
        late = [self._late(call) for call in tree.calls.get("detach", ()) if isinstance(call.func, ast.Attribute)]
        hidden = [self._hidden(node) for node in tree.attributes.get("data", ()) if isinstance(node.ctx, ast.Load)]
        found = [item for item in (*late, *hidden) if item is not None]
        yield from sorted(found, key=lambda item: (item.node.lineno, item.node.col_offset))

    def _late(self, call: ast.Call) -> Detachment | None:
        """``x.cpu().detach()`` and ``x.to("cpu").detach()``, where a graph would record the copy."""
        copy = receiver(call)
        source = receiver(copy) if isinstance(copy, ast.Call) else None
        if source is None or not isinstance(copy, ast.Call) or call.args or call.keywords or not self._copies_to_host(copy):
            return None
        if self._facts.regions.under(call, NO_GRAD) or next(called(self._facts, call), None) is not None:
            return None
        return Detachment(call, source, copy, Fate.READ)

    def _copies_to_host(self, call: ast.Call) -> bool:
        if last_name(call.func) == "cpu":
            return not call.args and not call.keywords
        transfer = self._facts.devices.transfer(call)
        alone = len(call.args) == 1 and not call.keywords
        return alone and transfer is not None and last_name(call.func) == "to" and transfer.device.only_cpu

    def _hidden(self, node: ast.Attribute) -> Detachment | None:
        """``x.data`` of a tensor, where it is read."""
        source = node.value
        copy = source if isinstance(source, ast.Call) and self._copies_to_host(source) and last_name(source.func) == "cpu" else None
        inner = receiver(copy) if copy is not None else source
        if inner is None or not (self._facts.tensors.is_tensor(inner) or (copy is not None and not self._has_packing())):
            return None
        parent = self._facts.tree.parent(node)
        if isinstance(parent, ast.Call) and (parent.func is node or self._facts.calls.meaning(parent) in _ASKING_TYPE):
            return None  # a method of that name, or nothing but its type
        if _sets_data(self._facts.tree.statement(node)):
            return None  # code that puts new values into tensors
        if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Constant) and parent.value is node:
            return None  # how torch 0.3 read a number: it raises since, whatever stands before the index
        tells = isinstance(parent, ast.Attribute) and self._tells(parent)
        return Detachment(node, inner, copy, self._fate(node, 0), self._is_weight(inner), tells)

    def _tells(self, attribute: ast.Attribute) -> bool:
        """Whether an attribute only tells of the tensor, or gives its numbers to Python."""
        call = self._facts.tree.parent(attribute)
        asks_type = attribute.attr == "type" and isinstance(call, ast.Call) and not call.args and not call.keywords
        return attribute.attr in _TELLING or asks_type

    def _has_packing(self) -> bool:
        """Whether something else than a tensor may have both ``cpu`` and ``data``: packed sequences, and classes of the project."""
        files = self._facts.program.everywhere
        return any(facts.tree.calls.get(name) for facts in files for name in _PACKING) or any(
            function.name == "cpu" for facts in files for function in facts.tree.functions
        )

    def _is_weight(self, node: ast.expr) -> bool:
        """Whether a tensor may be a network's parameter or its gradient: an attribute, or what a loop over parameters gives."""
        while isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Attribute):
            return True
        bindings = self._facts.flow.reaching(node) if isinstance(node, ast.Name) else []
        return any(binding.how is not Bound.ASSIGN or isinstance(binding.value, ast.Attribute) for binding in bindings)

    # What becomes of it ---------------------------------------------------------------------------------------

    def _fate(self, node: ast.expr, depth: int) -> Fate:
        """What becomes of the memory of an expression's value."""
        tree = self._facts.tree
        parent = tree.parent(node)
        match parent:
            case ast.Attribute():
                return self._of_attribute(parent, depth)
            case ast.Subscript():
                if parent.slice is node:
                    return Fate.READ
                return self._fate(parent, depth) if isinstance(parent.ctx, ast.Load) else Fate.WRITTEN
            case ast.AugAssign():
                return Fate.WRITTEN if parent.target is node else self._graph(node, parent.target)
            case ast.BinOp():
                return Fate.COMPUTED_WITH
            case ast.UnaryOp() | ast.Compare() | ast.FormattedValue() | ast.If() | ast.While() | ast.Assert() | ast.BoolOp():
                return Fate.READ
            case ast.keyword():
                return self._of_argument(tree.parent(parent), node, parent.arg, depth)
            case ast.Call():
                return self._of_argument(parent, node, None, depth)
            case ast.Tuple() | ast.List():
                call = tree.parent(parent)
                joins = isinstance(call, ast.Call) and self._facts.calls.meaning(call) in ("torch.cat", "torch.stack")
                if joins:
                    return self._graph(node, *parent.elts)
                if isinstance(call, ast.BinOp) and isinstance(call.op, ast.Mod):
                    return Fate.READ  # a text
                target = _unpacked(parent, node, call)
                return self._of_variable(target, depth) if target is not None and depth < _LIMIT else Fate.AWAY
            case ast.Assign(targets=[ast.Name() as target]) if depth < _LIMIT:
                return self._of_variable(target, depth)
            case ast.Expr():
                return Fate.READ
        return Fate.AWAY

    def _graph(self, node: ast.expr, *operands: ast.expr) -> Fate:
        """What an operation of a detached tensor with others does: alone it records nothing, since it requires no gradient."""
        alone = all(other is node or isinstance(other, ast.Constant) for other in operands)
        return Fate.READ if alone or self._facts.regions.under(node, NO_GRAD) else Fate.COMPUTED_WITH

    def _of_attribute(self, attribute: ast.Attribute, depth: int) -> Fate:
        call = self._facts.tree.parent(attribute)
        name = attribute.attr
        if not isinstance(attribute.ctx, ast.Load):
            return Fate.WRITTEN
        if isinstance(call, ast.Call) and call.func is attribute:
            if name.endswith("_") and name != "requires_grad_":
                return Fate.WRITTEN
            if self._tells(attribute) or name in _COMPARING:
                return Fate.READ
            return self._fate(call, depth) if name in _SHARING else self._graph(call, *call.args)
        return self._fate(attribute, depth) if name in _SHARING else Fate.READ if name in _TELLING else Fate.AWAY

    def _of_variable(self, target: ast.Name, depth: int) -> Fate:
        facts = self._facts
        fate = Fate.READ
        for use in facts.names.uses(target):
            if facts.writes.is_write(use):
                return Fate.WRITTEN
            if isinstance(use.ctx, ast.Load) and any(facts.tree.is_within(target, item.node) for item in facts.flow.reaching(use)):
                fate = max(fate, self._fate(use, depth + 1))
        return fate

    def _of_argument(self, call: ast.AST | None, given: ast.expr, keyword: str | None, depth: int) -> Fate:
        facts = self._facts
        if not isinstance(call, ast.Call) or keyword == "out":
            return Fate.WRITTEN
        meaning, name = facts.calls.meaning(call) or "", last_name(call.func) or ""
        home = meaning.rpartition(".")[0]
        source = receiver(call)
        if source is not None and not meaning and facts.tensors.is_tensor(source):
            return self._graph(given, source, *call.args)
        if name.endswith("_") or home == "torch.nn.init":
            return Fate.WRITTEN
        if meaning.startswith(_READERS) or facts.effects.own(call) in _OUTWARD:
            return Fate.READ
        if home in ("torch", "torch.nn.functional") or facts.models.is_loss(call.func):
            return self._fate(call, depth) if name in _SHARING else self._graph(given, *call.args, *(item.value for item in call.keywords))
        if meaning == "torch.autograd.Variable":
            return self._fate(call, depth)
        functions = list(called(facts, call)) if depth < _LIMIT else []
        if functions and not facts.models.is_module(call.func):
            return max(self._of_parameter(there, function, call, given, depth) for there, function in functions)
        return Fate.AWAY

    def _of_parameter(self, there: Facts, function: Function, call: ast.Call, given: ast.expr, depth: int) -> Fate:
        """What a function of the project does with the argument."""
        bound = there.tree.class_of(function) is not None
        listed = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        parameter = next((item for item in listed if passed(call, function, item, bound) is given), None)
        if parameter is None:
            return Fate.AWAY
        fate = Fate.READ
        for use in there.tree.names.get(parameter.arg, ()):
            bindings = there.names.bindings(use)
            if any(binding.node is parameter for binding in bindings):
                if there.writes.is_write(use):
                    return Fate.WRITTEN
                if isinstance(use.ctx, ast.Load):
                    fate = max(fate, there.detachments._fate(use, depth + 1))
        return fate

    def may_change_later(self, detachment: Detachment) -> bool:
        """Whether the tensor itself may be written in place behind its detachment, while a graph keeps what was detached."""
        facts, root = self._facts, detachment.source
        while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
            root = root.func if isinstance(root, ast.Call) else root.value
        if detachment.is_weight or not isinstance(root, ast.Name):
            return True
        if not facts.names.bindings(root) or facts.names.qualified(root) is not None:
            return False  # a function's fresh result
        if next(facts.writes.to(root), None) is not None:
            return True
        bindings = {id(binding) for binding in facts.flow.reaching(root)}
        for use in facts.names.uses(root):
            parent = facts.tree.parent(use)
            runs = isinstance(parent, ast.Call) and use.lineno > detachment.node.lineno and facts.models.run_by(parent) is not None
            if runs and bindings & {id(binding) for binding in facts.flow.reaching(use)}:
                return True  # a network may begin with an activation in place
        return False


def _sets_data(statement: ast.stmt) -> bool:
    """Whether a statement assigns to a tensor's ``data``."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(statement, ast.AugAssign) else []
    return any(isinstance(target, ast.Attribute) and target.attr == "data" for target in targets)


def _unpacked(display: ast.Tuple | ast.List, item: ast.expr, statement: ast.AST | None) -> ast.Name | None:
    """The variable that ``a, b = x, y`` assigns an item of its right side to."""
    targets = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if not isinstance(targets, ast.Tuple) or len(targets.elts) != len(display.elts):
        return None
    target = targets.elts[display.elts.index(item)]
    return target if isinstance(target, ast.Name) else None
