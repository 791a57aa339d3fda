"""What lies in memory in another order once a network of convolutions and its images are in torch's channels-last layout.

Such tensors have the same shapes and values as before. The layout matters to what reads memory as it lies: ``view`` joins
only dimensions that lie beside each other (https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, is_constant, receiver
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.tree import FUNCTIONS, last_name, walk
from torchfix.facts.code.values import returns
from torchfix.facts.tensors.identity import is_in_place
from torchfix.facts.training.models import Network

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Methods and functions that read memory as it lies, and those of them that have a twin which copies where it must.
_READING_MEMORY = frozenset("view view_as as_strided data_ptr storage untyped_storage is_contiguous stride view_as_complex".split())
_READING_FUNCTIONS = ("torch.nn.utils.parameters_to_vector", "torch.as_strided", "torch.view_as_complex", "torch.optim.LBFGS")
_COPYING_TWINS = {"view": "reshape", "view_as": "reshape_as"}
# Layers whose result has a memory of its own, in the order of its dimensions.
_ORDERING_LAYERS = frozenset(
    "Linear Bilinear Embedding EmbeddingBag LSTM GRU RNN LSTMCell GRUCell RNNCell Flatten MultiheadAttention".split()
)
_POOLS = ("AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d")
_PARAMETERS = frozenset("parameters named_parameters buffers named_buffers state_dict modules named_modules children".split())
_OF_PARAMETERS = frozenset(["grad", "weight", "bias"])
_NUMBERS = frozenset("item tolist size dim numel argmax".split())


class ChannelsLast:
    """Questions about one change to channels last.

    Args:
        images: the calls that will give images in that layout.
    """

    def __init__(self, images: Iterable[ast.AST]) -> None:
        self._images = frozenset(images)
        self._asked: dict[ast.expr, bool] = {}
        self._given: dict[Network, bool] = {}

    def needing_order(self, facts: Facts, root: ast.AST) -> Iterator[ast.Call]:
        """The calls inside a node that read memory as it lies, of a tensor that the change may reach."""
        for call in (node for node in walk(root) if isinstance(node, ast.Call) and last_name(node.func) in _NAMES):
            meaning, source = facts.calls.meaning(call), receiver(call)
            if meaning in _READING_FUNCTIONS:
                read = call.args[0] if call.args else None
            else:
                read = source if meaning is None and last_name(call.func) in _READING_MEMORY else None
            if read is not None and self.may_reach(facts, read):
                yield call

    def may_reach(self, facts: Facts, expression: ast.expr) -> bool:
        """Whether the memory of a tensor may lie otherwise than before; False only where it surely does not."""
        if expression not in self._asked:
            self._asked[expression] = False  # ``x = x.relu()``: the circle adds nothing new
            values = facts.values.of(expression)
            self._asked[expression] = values is None or any(self._reaches(value.facts, value.node) for value in values)
        return self._asked[expression]

    def given_by(self, network: Network) -> bool:
        """Whether what a network gives may lie otherwise than before."""
        if network not in self._given:
            self._given[network] = True  # a network that calls itself is not followed
            self._given[network] = self._of_network(network)
        return self._given[network]

    def _reaches(self, facts: Facts, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return self._of_call(facts, node)
        if isinstance(node, (ast.Constant, ast.Name, ast.JoinedStr, ast.Lambda)):
            return False  # a name that is followed no further is a definition's or a library's
        if isinstance(node, ast.Attribute):
            return node.attr in _OF_PARAMETERS or self.may_reach(facts, node.value)
        if isinstance(node, ast.Subscript):
            return self.may_reach(facts, node.value)
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Tuple, ast.List, ast.ListComp, ast.GeneratorExp)):
            return any(self.may_reach(facts, item) for item in ast.iter_child_nodes(node) if isinstance(item, ast.expr))
        return True

    def _of_call(self, facts: Facts, call: ast.Call) -> bool:
        given = [*call.args, *(item.value for item in call.keywords)]
        networks = facts.models.of(call.func)
        if networks and not facts.models.is_loss(call.func):
            return any(self._of_layer(facts, call, network) for network in networks)
        name, source, meaning = last_name(call.func) or "", receiver(call), facts.calls.meaning(call)
        if call in self._images or name in _PARAMETERS:
            return True
        if facts.loaders.makes(call) or _puts_in_order(facts, call):
            return False
        if networks or meaning is not None:
            return (meaning or "").rpartition(".")[2].startswith("conv") or any(self.may_reach(facts, item) for item in given)
        return source is None or any(self.may_reach(facts, item) for item in (source, *given))

    def _of_layer(self, facts: Facts, call: ast.Call, network: Network) -> bool:
        """A call of a network or of one layer."""
        layer = (network.library or "").removeprefix("torch.nn.")
        if network.definition is not None or not (network.library or "").startswith("torch.nn.") or "2d" in layer or layer == "Sequential":
            return self.given_by(network)
        return layer not in _ORDERING_LAYERS and any(self.may_reach(facts, item) for item in call.args)

    def _of_network(self, network: Network) -> bool:
        made, facts = network.value.node, network.value.facts
        assert isinstance(made, ast.Call)
        if network.definition is not None:
            forward = method_of(network.definition, "forward")
            found = returns(forward.node) if forward is not None and isinstance(forward.node, FUNCTIONS) else []
            return forward is None or not found or any(self.may_reach(forward.facts, item) for item in found)
        name = (network.library or "").rpartition(".")[2]
        if name == "Sequential":
            return self._of_chain(facts, made)
        if (network.library or "").startswith("torch.nn."):
            return name not in _ORDERING_LAYERS and not (name in _POOLS and _is_one(argument(made, "output_size", 0)))
        return not is_classifier(network)

    def _of_chain(self, facts: Facts, made: ast.Call) -> bool:
        """What a chain of layers gives: what the last layer does that is no mere activation."""
        for layer in reversed(made.args):
            networks = () if isinstance(layer, ast.Starred) else facts.models.of(layer) or ()
            if not networks or not all(map(_is_activation, networks)):
                return not networks or any(self.given_by(network) for network in networks)
        return True


def _is_activation(network: Network) -> bool:
    """Whether a layer of torch computes each number of its result from one of what it is given, and passes its layout on."""
    home, _, name = (network.library or "").rpartition(".")
    return home == "torch.nn" and name != "Sequential" and name not in _ORDERING_LAYERS and not name.endswith("2d")


def is_classifier(network: Network) -> bool:
    """Whether a network is one of torchvision's image classifiers, which give one row of numbers for each image."""
    home, _, name = (network.library or "").rpartition(".")
    return home == "torchvision.models" and name[:1] in "_abcdefghijklmnopqrstuvwxyz"


def copying_twin(facts: Facts, call: ast.Call) -> str | None:
    """The method that does the same as ``view`` for any layout, None where a write into the result might miss the tensor then."""
    twin = _COPYING_TWINS.get(last_name(call.func) or "")
    if twin is None or (len(call.args) == 1 and facts.kinds.is_dtype(call.args[0])):
        return None
    node, parent = call, facts.tree.parent(call)
    if isinstance(parent, ast.Attribute):
        return None if is_in_place(parent.attr) else twin
    if isinstance(parent, ast.Assign):
        target = parent.targets[0] if len(parent.targets) == 1 else None
        return twin if isinstance(target, ast.Name) and parent.value is node and next(facts.writes.to(target), None) is None else None
    return twin if isinstance(parent, (ast.Return, ast.BinOp, ast.Call, ast.keyword)) else None


def _puts_in_order(facts: Facts, call: ast.Call) -> bool:
    """Whether a call gives numbers, or a tensor in the order of its dimensions whatever it is given."""
    name, source = last_name(call.func) or "", receiver(call)
    sizes = call.args
    if (facts.calls.meaning(call) or "").startswith("torch."):
        source, sizes = (call.args[0] if call.args else None), call.args[1:]
    if source is None:
        return False
    if name in _POOLS:
        return bool(sizes) and _is_one(sizes[0])
    if name == "flatten":
        return len(sizes) == 1 and is_constant(sizes[0], 1) and not call.keywords
    if name in ("view", "reshape"):
        return len(sizes) == 2 or (len(sizes) == 1 and is_constant(_number(sizes[0]), -1))  # rows, or one row
    return name in _NUMBERS or (name == "contiguous" and not call.args and not call.keywords)


def _number(node: ast.expr) -> ast.expr:
    """A literal as one constant, its sign included."""
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
    if negative and isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant) and type(node.operand.value) is int:
        return ast.Constant(-node.operand.value)
    return node


def _is_one(size: ast.expr | None) -> bool:
    """Whether the size of an image is one by one."""
    sides = size.elts if isinstance(size, (ast.Tuple, ast.List)) else [size]
    return all(is_constant(side, 1) for side in sides)


_NAMES = _READING_MEMORY | {name.rpartition(".")[2] for name in _READING_FUNCTIONS}
