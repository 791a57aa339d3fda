"""How a loss is reduced over the batch: as a mean, so that the mean over equal shares of a batch is the mean over the batch.

Processes that each take a share of the batch average their gradients. That gives the gradient of the whole batch only
where the loss is a mean; a sum becomes smaller by the number of processes.
"""

from __future__ import annotations

import ast
import enum
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import argument, is_constant, keyword, receiver
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, last_name
from torchfix.facts.code.values import ELEMENT, Value, returns
from torchfix.facts.training.models import derives

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Reduction(enum.Enum):
    """How an expression depends on the batch."""

    MEAN = "a mean over the batch"
    COUNTED = "a mean over that part of the batch which counts"
    SUM = "a sum over the batch"
    EACH = "a value for each sample"
    NONE = "nothing of the batch"
    UNKNOWN = "not known"


# torch.nn's losses and the functions of torch.nn.functional behind them; all reduce to a mean unless told otherwise.
_LOSSES = frozenset(
    """cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits
    kl_div ctc_loss triplet_margin_loss margin_ranking_loss cosine_embedding_loss hinge_embedding_loss multi_margin_loss
    multilabel_margin_loss multilabel_soft_margin_loss soft_margin_loss poisson_nll_loss gaussian_nll_loss""".split()
)
# Methods and functions whose result holds the same numbers.
_SAME_NUMBERS = frozenset(
    "to cuda cpu float double half int long item detach numpy tolist view reshape squeeze unsqueeze contiguous clone requires_grad_".split()
)
_SIZES = frozenset(["size", "shape", "numel", "batch_size", "nelement"])


class Reductions:
    """Questions about the losses of one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[int, Reduction] = {}

    def of(self, loss: ast.expr) -> Reduction:
        """How a loss is reduced; every way in which it may have been made must agree."""
        key = id(loss)
        if key not in self._asked:
            self._asked[key] = Reduction.UNKNOWN  # a loss made of itself is not followed
            self._asked[key] = self._judge(loss)
        return self._asked[key]

    def _judge(self, loss: ast.expr) -> Reduction:
        values = self._facts.values.of(loss)
        if values is None:
            return self._updated(loss)
        found = {self._of_value(value) for value in values}
        return found.pop() if len(found) == 1 else Reduction.UNKNOWN

    def _updated(self, loss: ast.expr) -> Reduction:
        """A variable that is changed in place: ``loss += 0.4 * aux``, ``loss /= steps``."""
        found: set[Reduction] = set()
        for binding in self._facts.flow.reaching(loss) if isinstance(loss, ast.Name) else ():
            node = binding.node
            if isinstance(node, ast.AugAssign):
                before, part = self.of(node.target), self.of(node.value)
                joins = isinstance(node.op, (ast.Add, ast.Sub))
                found.add(_joined(before, part) if joins else self._scaled(before, node.op, node.value, part))
            else:
                known = binding.how is Bound.ASSIGN and binding.value is not None and not binding.path
                found.add(self.of(binding.value) if known and binding.value is not None else Reduction.UNKNOWN)
        return found.pop() if len(found) == 1 else Reduction.UNKNOWN

    def _of_value(self, value: Value) -> Reduction:
        node, here = value.node, value.facts.reductions
        if isinstance(node, ast.Call) and value.facts.replicas.held_by(node.func):
            return Reduction.MEAN  # a loss that the network itself returns: one for each replica, and their mean is what trains
        if value.path:
            return Reduction.SUM if _is_size(node) else Reduction.UNKNOWN
        if isinstance(node, ast.Constant):
            return Reduction.NONE
        if isinstance(node, ast.UnaryOp):
            return here.of(node.operand)
        if isinstance(node, ast.BinOp):
            return here._of_operation(node)
        if isinstance(node, ast.Call):
            return here._of_call(node)
        if isinstance(node, ast.Attribute) and node.attr == "data":
            return here.of(node.value)
        return Reduction.UNKNOWN

    def _of_operation(self, node: ast.BinOp) -> Reduction:
        left, right = self.of(node.left), self.of(node.right)
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return _joined(left, right)
        if isinstance(node.op, ast.Mult) and right in (Reduction.MEAN, Reduction.SUM, Reduction.EACH):
            return self._scaled(right, node.op, node.left, left)
        return self._scaled(left, node.op, node.right, right)

    def _scaled(self, reduction: Reduction, operator: ast.operator, factor: ast.expr, of_factor: Reduction) -> Reduction:
        """A reduced loss times or divided by a factor that knows nothing of the batch's size."""
        if not isinstance(operator, (ast.Mult, ast.Div)):
            return Reduction.UNKNOWN
        if self._counts_batch(factor):
            known = {(Reduction.MEAN, ast.Mult): Reduction.SUM, (Reduction.SUM, ast.Div): Reduction.MEAN}
            return known.get((reduction, type(operator)), Reduction.UNKNOWN)
        if reduction is Reduction.MEAN and of_factor is Reduction.MEAN:
            return Reduction.UNKNOWN  # a product of two means is no mean
        if reduction is Reduction.MEAN and of_factor is Reduction.UNKNOWN and not self._is_weight(factor):
            return Reduction.UNKNOWN
        return reduction

    def _counts_batch(self, factor: ast.expr) -> bool:
        """Whether a factor is the number of samples in the batch: ``x.size(0)``, ``len(x)``, ``x.shape[0]``."""
        nodes = [value.node for value in self._facts.values.of(factor) or ()] or [factor]
        return any(_is_size(item) for node in nodes for item in ast.walk(node))

    def _is_weight(self, factor: ast.expr) -> bool:
        """Whether a factor knows nothing of the batch: a setting, a counter, or a number that was drawn for it."""
        names = [node for node in ast.walk(factor) if isinstance(node, ast.Name)]
        return all(self._is_drawn(name) or not self._facts.lockstep.differs(name) for name in names)

    def _is_drawn(self, name: ast.Name) -> bool:
        values = self._facts.values.of(name)
        return bool(values) and all(
            isinstance(value.node, ast.Call) and (value.facts.calls.meaning(value.node) or "").startswith(("numpy.random.", "random."))
            for value in values or ()
        )

    def _of_call(self, call: ast.Call) -> Reduction:
        meaning = self._facts.calls.meaning(call) or ""
        name = last_name(call.func)
        if meaning.startswith("torch.nn.functional.") and name in _LOSSES:
            return _counted(call, _asked_for(call))
        if meaning == "builtins.sum" and call.args:
            return self._of_items(call.args[0])
        if meaning in ("torch.mean", "torch.sum"):
            return Reduction.MEAN if meaning == "torch.mean" else Reduction.SUM
        loss = self._of_loss_module(call.func)
        if loss is not None:
            return _counted(call, loss)
        functions = list(called(self._facts, call))
        if functions:
            found = {reduction for facts, function in functions for reduction in facts.reductions._returned(function)}
            return found.pop() if len(found) == 1 else Reduction.UNKNOWN
        source = receiver(call)
        if source is not None and name in ("mean", "sum") and not call.args and not call.keywords:
            if self._knows_nothing_of_batch(source):
                return Reduction.NONE
            return Reduction.MEAN if name == "mean" else Reduction.SUM
        if source is not None and name in _SAME_NUMBERS:
            return self.of(source)
        if meaning in ("builtins.float", "builtins.int") and len(call.args) == 1:
            return self.of(call.args[0])
        if _is_size(call):
            return Reduction.SUM
        if name == "scale" and len(call.args) == 1:
            return self.of(call.args[0])  # a gradient scaler multiplies
        return Reduction.UNKNOWN

    def _of_items(self, items: ast.expr) -> Reduction:
        """The reduction that all terms of a list have."""
        if isinstance(items, (ast.ListComp, ast.GeneratorExp)):
            return self.of(items.elt)
        values = self._facts.values.of(items, (ELEMENT,))
        found = {self._of_value(value) for value in values or ()}
        return found.pop() if len(found) == 1 else Reduction.UNKNOWN

    def _knows_nothing_of_batch(self, source: ast.expr) -> bool:
        """Whether a sum is one over parameters, a penalty that every process computes alike."""
        return any(isinstance(node, ast.Call) and last_name(node.func) == "parameters" for node in ast.walk(source))

    def _of_loss_module(self, expression: ast.expr) -> Reduction | None:
        """The reduction of a loss object: torch's own by its arguments, the project's by what its ``forward`` returns."""
        values = self._facts.values.of(expression)
        found: set[Reduction] = set()
        for value in values or ():
            node = _unmoved(value.node)
            if not isinstance(node, ast.Call):
                return None
            meaning = value.facts.calls.meaning(node) or ""
            if meaning.startswith("torch.nn.") and meaning.endswith("Loss"):
                found.add(_asked_for(node))
                continue
            made = value.facts.names.definition(node.func)
            owner = made if made is not None and isinstance(made.node, ast.ClassDef) and derives(made, ("torch.nn.",)) else None
            forward = method_of(owner, "forward") if owner is not None else None
            if forward is None or not isinstance(forward.node, FUNCTIONS):
                return None
            found |= set(forward.facts.reductions._returned(forward.node))
        return found.pop() if len(found) == 1 else (Reduction.UNKNOWN if found else None)

    def _returned(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[Reduction]:
        return {self.of(value) for value in returns(function)} or {Reduction.UNKNOWN}


def _asked_for(call: ast.Call) -> Reduction:
    """What a torch loss is told about its reduction: the mean, unless an argument says otherwise."""
    old = [item for name in ("size_average", "reduce") if (item := keyword(call, name)) is not None and not is_constant(item.value, True)]
    if old:
        return Reduction.UNKNOWN
    asked = argument(call, "reduction")
    if asked is None or is_constant(asked, "mean"):
        return Reduction.COUNTED if _weighs(call) else Reduction.MEAN
    words = {"batchmean": Reduction.MEAN, "sum": Reduction.SUM, "none": Reduction.EACH}
    return words.get(str(asked.value), Reduction.UNKNOWN) if isinstance(asked, ast.Constant) else Reduction.UNKNOWN


def _weighs(call: ast.Call) -> bool:
    """Whether a cross entropy divides by the weights of the targets, or leaves some targets out (its documentation)."""
    name = last_name(call.func)
    if name not in ("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"):
        return False
    place = 0 if name.endswith("Loss") else 2
    given = [argument(call, "weight", place), argument(call, "ignore_index", place + 2)]
    return any(item is not None and not is_constant(item, None) for item in given)


def _counted(call: ast.Call, reduction: Reduction) -> Reduction:
    """A loss's reduction where only some samples are given to it: ``criterion(out[keep], y[keep])``."""
    picked = [item for item in call.args if isinstance(item, ast.Subscript) and isinstance(item.slice, (ast.Name, ast.Compare, ast.Call))]
    return Reduction.COUNTED if reduction is Reduction.MEAN and picked else reduction


def _joined(one: Reduction, other: Reduction) -> Reduction:
    """The reduction of a sum of two terms."""
    if one is other or other is Reduction.NONE:
        return one
    return other if one is Reduction.NONE else Reduction.UNKNOWN


def _is_size(node: ast.AST) -> bool:
    """Whether an expression tells how large something is: ``x.size(0)``, ``len(x)``, ``x.shape``."""
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("len", "size", "numel", "nelement")
    return isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) in _SIZES


def _unmoved(node: ast.AST) -> ast.AST:
    """A loss object without the ``.cuda()`` or ``.to(device)`` behind it."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("cuda", "to"):
        node = node.func.value
    return node
