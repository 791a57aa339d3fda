"""Networks of two-dimensional convolutions: where training runs them, what they are made of, and which arguments are images."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import has_stars
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.scopes import Bound
from torchfix.facts.code.tree import FUNCTIONS, Function, dotted, last_name, walk
from torchfix.facts.code.values import Value, returns
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.tensors.channels_last import is_classifier
from torchfix.facts.training.models import Network

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.companions import Companion
    from torchfix.facts.training.loops import Training

_CONVOLUTIONS = ("torch.nn.Conv2d", "torch.nn.ConvTranspose2d", "torch.nn.functional.conv2d", "torch.nn.functional.conv_transpose2d")
_FEW = 2  # layers of two dimensions: one convolution alone cuts an image into patches for a transformer
_NOT_CONVOLUTIONAL = ("vit_", "swin_")  # of torchvision's classifiers
# Layers that do not take a batch of images as it is.
_OTHER_SHAPES = ("Linear", "Embedding", "Flatten", "Unflatten", "LSTM", "GRU", "RNN", "Transformer", "Conv1d", "Conv3d")
_DEPTH = 8  # layers inside layers


@dataclass(frozen=True, eq=False)
class Trained:
    """A network of two-dimensional convolutions that one file makes and some training loop runs on CUDA.

    Args:
        place: where it gets its name.
        networks: what it may be.
        runs: the calls that run it in training, each with its loop.
    """

    place: Companion
    networks: tuple[Network, ...]
    runs: tuple[tuple[Training, ast.Call], ...]

    @property
    def makers(self) -> list[ast.Assign]:
        """The statements that give it its name, apart from those that only change it (``model = model.cuda()``)."""
        facts, name = self.place.facts, dotted(self.place.variable)
        owner = facts.tree.function(self.place.after)
        found = []
        for statement in (node for node in walk(owner or facts.tree.module) if isinstance(node, ast.Assign)):
            if name in map(dotted, statement.targets) and facts.tree.function(statement) is owner:
                changes = any(isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) == name for node in walk(statement.value))
                found += [] if changes else [statement]
        return found

    def other_runs(self) -> Iterator[tuple[Facts, ast.Call]]:
        """The calls that run it elsewhere in the program, as evaluations do."""
        made, runs = {network.value for network in self.networks}, {call for _, call in self.runs}
        for other in self.place.facts.program.files:
            for call in (call for calls in other.tree.calls.values() for call in calls if call not in runs):
                if {network.value for network in other.models.of(call.func) or ()} & made:
                    yield other, call


def trained_networks(facts: Facts) -> Iterable[Trained]:
    """The networks of two-dimensional convolutions that a file makes and that training loops of its program run on CUDA."""
    found: dict[tuple[ast.stmt, str | None], Trained] = {}
    for other in facts.program.files:
        for training in other.loops.all:
            target = other.targets.around(training.node)
            for call in training.forwards if target is not None and target.may_be_cuda else ():
                networks, places = other.models.of(call.func) or (), other.companions.of(call.func)
                if isinstance(places, Obstacle) or not all(map(convolves, networks)):
                    continue
                for place in (item for item in places if item.facts is facts):
                    known = found.setdefault((place.after, dotted(place.variable)), Trained(place, (), ()))
                    all_networks = tuple(dict.fromkeys((*known.networks, *networks)))
                    found[place.after, dotted(place.variable)] = Trained(place, all_networks, (*known.runs, (training, call)))
    return found.values()


def parts(network: Network) -> Iterator[tuple[Facts, ast.AST]]:
    """The code of the project that a network is made of: classes, functions, and the expression that makes one of torch's layers."""
    facts, made = network.value.facts, network.value.node
    if network.definition is None:
        made = _chain(network.value) or made
        yield facts, made
    inside = (facts.names.definition(node) for node in walk(made) if isinstance(node, (ast.Name, ast.Attribute)))
    seen: set[int] = set()
    for definition in (item for item in (network.definition, *inside) if item is not None):
        for item in definition.facts.models.hidden_classes(definition):
            if id(item.node) not in seen:
                seen.add(id(item.node))
                yield item.facts, item.node


def convolves(network: Network) -> bool:
    """Whether a network is made of two-dimensional convolutions."""
    if is_classifier(network):
        return not (network.library or "").rpartition(".")[2].startswith(_NOT_CONVOLUTIONAL)
    named = [facts.calls.meaning(call) or "" for facts, part in parts(network) for call in _calls(part)]
    layers = [name for name in named if name.startswith("torch.nn.") and name.endswith("2d")]
    return len(layers) >= _FEW and any(name in _CONVOLUTIONS for name in layers)


def third_dimension(network: Network) -> tuple[Facts, ast.Call] | None:
    """A layer of a network that works in three dimensions, whose weights have no channels-last layout of this kind."""
    for facts, part in parts(network):
        for call in _calls(part):
            meaning = facts.calls.meaning(call) or ""
            if meaning.startswith("torch.nn.") and meaning.endswith("3d"):
                return facts, call
    return None


def takes_images(network: Network, index: int) -> bool:
    """Whether the argument at a position of a network's call goes into a two-dimensional layer as it is: a batch of images."""
    return _takes(network, index, 0)


def copies_of_images(facts: Facts, call: ast.Call, networks: tuple[Network, ...]) -> dict[ast.Call, Facts]:
    """The calls that copy the images to the device which a call of networks is fed, with their files; empty where some are not seen."""
    found: dict[ast.Call, Facts] = {}
    for place, given in enumerate(call.args):
        if isinstance(given, ast.Starred) or not all(takes_images(network, place) for network in networks):
            continue
        copies = _copies(facts, given)
        if not copies:
            return {}
        found |= copies
    return found


def _copies(facts: Facts, images: ast.expr) -> dict[ast.Call, Facts]:
    """The calls that copy a batch of a loader to the device; empty where something else may be the batch, or batches are not tensors."""
    found: dict[ast.Call, Facts] = {}
    for value in facts.values.of(images) or (None,):
        if value is None or not isinstance(value.node, ast.Call):
            return {}
        home, made = value.facts, value.node
        if home.loaders.makes(made):
            continue  # a copy that is made under a condition
        if home.calls.meaning(made) == "torch.autograd.Variable" and made.args and not value.path:
            found |= _copies(home, made.args[0])
            continue
        copied = home.batches.copy(made) if last_name(made.func) in ("to", "cuda") and not value.path else None
        if copied is None or has_stars(made) or (copied[1].is_whole and not home.kinds.is_tensor(copied[0].source)):
            return {}
        found[made] = home
    return found


def _takes(network: Network, index: int, depth: int) -> bool:
    facts, made, library = network.value.facts, network.value.node, network.library or ""
    if depth > _DEPTH or not isinstance(made, ast.Call):
        return False
    if network.definition is not None:
        forward = method_of(network.definition, "forward")
        return forward is not None and isinstance(forward.node, FUNCTIONS) and _hands_on(forward.facts, forward.node, index + 1, depth)
    if library == "torch.nn.Sequential":
        first = made.args[0] if made.args else None
        if first is not None and not isinstance(first, (ast.Starred, ast.Call)):
            return _module_takes(facts, first, depth)
        if isinstance(first, ast.Call) and facts.models.is_module(first):
            return _module_takes(facts, first, depth)
        return _is_all_images(network)
    return index == 0 and ((library.startswith("torch.nn.") and library.endswith("2d")) or is_classifier(network))


def _module_takes(facts: Facts, module: ast.expr, depth: int) -> bool:
    networks = facts.models.of(module)
    return bool(networks) and all(_takes(network, 0, depth + 1) for network in networks or ())


def _hands_on(facts: Facts, function: Function, index: int, depth: int) -> bool:
    """Whether a function gives the parameter at a position, as it came, to a two-dimensional layer."""
    positional = [*function.args.posonlyargs, *function.args.args]
    if index >= len(positional) or depth > _DEPTH:
        return False
    parameter = positional[index]
    for use in facts.tree.names.get(parameter.arg, ()):
        call = facts.tree.parent(use)
        if not isinstance(call, ast.Call) or use not in call.args or facts.tree.function(use) is not function:
            continue
        bindings = facts.flow.reaching(use)
        if len(bindings) != 1 or bindings[0].how is not Bound.PARAMETER or bindings[0].node is not parameter:
            continue
        place = call.args.index(use)
        if facts.calls.meaning(call) in _CONVOLUTIONS[2:] and place == 0:
            return True
        method = facts.own_method(call)
        if method is not None and _hands_on(facts, method, place + 1, depth + 1):
            return True
        networks = facts.models.of(call.func)
        if networks and all(_takes(network, place, depth + 1) for network in networks):
            return True
    return False


def _is_all_images(network: Network) -> bool:
    """Whether a chain of layers that is not written out is made by code which names two-dimensional layers and no others."""
    named = {(facts.calls.meaning(call) or "").removeprefix("torch.nn.") for facts, part in parts(network) for call in _calls(part)}
    return any(name.endswith("2d") for name in named) and not any(name.startswith(_OTHER_SHAPES) for name in named)


def _chain(made: Value) -> Function | None:
    """The function that puts a chain of layers together (``nn.Sequential(*layers)``) and returns it."""
    function = made.facts.tree.function(made.node)
    starred = isinstance(made.node, ast.Call) and has_stars(made.node)
    return function if starred and function is not None and made.node in returns(function) else None


def _calls(part: ast.AST) -> Iterator[ast.Call]:
    return (node for node in walk(part) if isinstance(node, ast.Call))
