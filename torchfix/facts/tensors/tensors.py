"""Which expressions surely are tensors where they stand, rather than other objects with attributes of the same names.

Stricter than :mod:`torchfix.facts.code.kinds`: a variable that holds a packed sequence first and a tensor later is told apart.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import receiver
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import FUNCTIONS, last_name
from torchfix.facts.code.values import returns
from torchfix.facts.training.models import Network

if TYPE_CHECKING:
    from torchfix.facts import Facts


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Methods that of what has a ``data`` attribute only tensors have: graphs' and texts' batches, packed sequences and modules do not.
_ONLY_TENSORS = _words("backward unsqueeze permute argmax masked_fill softmax log_softmax dim ndimension scatter_ matmul mm bmm")
# Functions of torch whose first argument must be a tensor.
_TAKES_TENSOR = _words("""sum mean max min argmax softmax log_softmax sigmoid tanh exp log abs matmul bmm mm eq sqrt topk sort norm clamp
    relu std var argsort squeeze unsqueeze transpose flatten""")
_MAKES_OTHER = _words("device dtype Size Generator is_tensor numel load save compile jit manual_seed get_rng_state is_floating_point")

_FARTHEST = 40  # expressions on the way from a value to what made it


class Tensors:
    """Questions about tensors in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[ast.expr, bool] = {}
        self._depth = 0

    def is_tensor(self, node: ast.expr) -> bool:
        """Whether an expression surely is a tensor where it stands, rather than another object that has ``data``."""
        if node not in self._asked:
            self._asked[node] = False  # made of itself alone is no proof
            self._depth += 1
            self._asked[node] = self._depth <= _FARTHEST and self._judge(node)
            self._depth -= 1
        return self._asked[node]

    def _judge(self, node: ast.expr) -> bool:
        match node:
            case ast.Name():
                return self._is_tensor_variable(node)
            case ast.BinOp():
                return self.is_tensor(node.left) or self.is_tensor(node.right)
            case ast.UnaryOp() | ast.Subscript():
                return self.is_tensor(node.operand if isinstance(node, ast.UnaryOp) else node.value)
            case ast.Attribute():
                return (node.attr in ("grad", "data", "T") and self.is_tensor(node.value)) or self._is_layer_weight(node)
            case ast.Call():
                return self._gives_tensor(node)
        return False

    def _gives_tensor(self, call: ast.Call) -> bool:
        facts, source = self._facts, receiver(call)
        meaning = facts.calls.meaning(call) or ""
        home, _, name = meaning.rpartition(".")
        if home == "torch.nn.functional" or meaning == "torch.autograd.Variable":
            return True
        if home == "torch":
            return name not in _MAKES_OTHER
        if facts.models.is_loss(call.func):
            return True
        networks = facts.models.of(call.func)
        if networks:
            return facts.kinds.is_tensor(call) or all(self._is_given_by(network) for network in networks)
        return source is not None and not meaning and self.is_tensor(source)

    @staticmethod
    def _is_given_by(network: Network) -> bool:
        """Whether all that a network of the project returns are tensors."""
        forward = method_of(network.definition, "forward") if network.definition is not None else None
        if forward is None or not isinstance(forward.node, FUNCTIONS):
            return False
        given = returns(forward.node)
        return bool(given) and all(forward.facts.tensors.is_tensor(item) for item in given)

    def _is_tensor_variable(self, name: ast.Name) -> bool:
        facts = self._facts
        bindings = facts.flow.reaching(name)
        if bindings and all(self._binds_tensor(binding) for binding in bindings):
            return True
        for use in facts.names.uses(name):
            if self._proves(use) and set(map(id, facts.flow.reaching(use))) == set(map(id, bindings)):
                return True
        return False

    def _binds_tensor(self, binding: Binding) -> bool:
        value = binding.value
        if binding.how is Bound.AUGMENTED:
            return True  # what is added to does not become another kind of object
        if binding.how is Bound.LOOP and isinstance(value, ast.Call):
            return last_name(value.func) == ("named_parameters" if binding.path == (1,) else "parameters")
        if binding.how is not Bound.ASSIGN or value is None:
            return False
        if isinstance(value, ast.Tuple) and len(binding.path) == 1:
            return binding.path[0] < len(value.elts) and self.is_tensor(value.elts[binding.path[0]])
        return self.is_tensor(value)

    def _proves(self, use: ast.Name) -> bool:
        """Whether one use of a variable is possible for a tensor only."""
        facts, parent = self._facts, self._facts.tree.parent(use)
        if isinstance(parent, ast.Attribute):
            call = facts.tree.parent(parent)
            return parent.attr in _ONLY_TENSORS and isinstance(call, ast.Call) and call.func is parent
        if not isinstance(parent, ast.Call) or use not in parent.args:
            return False
        home, _, name = (facts.calls.meaning(parent) or "").rpartition(".")
        return home == "torch.nn.functional" or (home == "torch" and name in _TAKES_TENSOR) or facts.models.is_loss(parent.func)

    def _is_layer_weight(self, node: ast.Attribute) -> bool:
        return node.attr in ("weight", "bias") and self._facts.models.is_module(node.value)
