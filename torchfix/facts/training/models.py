"""Networks: which expressions surely are ``nn.Module`` objects, which classes made them, and what wraps them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import choices, picked_from
from torchfix.facts.code.calls import has_stars, is_constant, receiver
from torchfix.facts.code.classes import SELF_RETURNING, bases, method_of
from torchfix.facts.code.names import Definition
from torchfix.facts.code.tree import FUNCTIONS, Function, walk, walk_here
from torchfix.facts.code.values import Value
from torchfix.facts.training.saved_objects import is_saved_object

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Calls that take a module and return one that stands for it.
WRAPPERS = {
    "torch.nn.DataParallel": "DataParallel",
    "torch.nn.parallel.DistributedDataParallel": "DistributedDataParallel",
    "torch.compile": "compile",
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm": "SyncBatchNorm",
    "torch.nn.utils.spectral_norm": "spectral_norm",
    "torch.nn.utils.weight_norm": "weight_norm",
    "apex.parallel.DistributedDataParallel": "DistributedDataParallel",
    "copy.deepcopy": "deepcopy",
    "torch.jit.script": "script",
}
_KEEPING = ("DataParallel", "DistributedDataParallel")  # wrappers with an attribute ``module``
# What a module has without defining it: calling one of these runs no layer.
_OF_EVERY_MODULE = SELF_RETURNING | frozenset(
    """add_module buffers children extra_repr get_parameter get_submodule load_state_dict modules named_buffers named_children
    named_modules named_parameters no_sync parameters register_backward_hook register_buffer register_forward_hook
    register_full_backward_hook register_parameter state_dict zero_grad""".split()
)
# The layers of torch.nn that hold weights, or others that may, begin with one of these.
_WEIGHTED = (
    "AdaptiveLogSoftmax BatchNorm Bilinear Conv Embedding GRU GroupNorm InstanceNorm LSTM LayerNorm Lazy Linear ModuleDict ModuleList "
    "MultiheadAttention PReLU Parameter RMSNorm RNN Sequential SyncBatchNorm Transformer"
)
_ANY = "__dict__"  # the class of a network that is picked by a name which is not known
_LIBRARIES = (
    "torchvision.models.",
    "timm.create_model",
    "timm.models.",
    "timm.layers.",
    "timm.loss.",
    "segmentation_models_pytorch.",
    "torch.hub.load",
    "efficientnet_pytorch.",
    "pretrainedmodels.",
)


@dataclass(frozen=True)
class Network:
    """One way in which a network may have been made.

    Args:
        value: the call that constructs it.
        definition: its class in the user's project, None for a class of a library.
        library: the dotted name of a library's class or function, None for the project's own.
        wrappers: what stands around it, the innermost first.
    """

    value: Value
    definition: Definition | None
    library: str | None
    wrappers: tuple[str, ...] = ()


class Models:
    """Questions about networks in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._asked: dict[int, tuple[Network, ...] | None] = {}
        self._reached: dict[Definition, tuple[Definition, ...]] = {}
        self._named: dict[Definition, tuple[Definition, ...]] = {}
        self._weighted: dict[Definition, bool] = {}

    def of(self, expression: ast.expr) -> tuple[Network, ...] | None:
        """Every way in which a network may have been made; None where the expression is not surely a network."""
        key = id(expression)
        if key not in self._asked:
            self._asked[key] = ()  # ``net = net.to(device)``: the circle adds nothing new
            self._asked[key] = self._networks(expression)
        return self._asked[key]

    def is_module(self, expression: ast.expr) -> bool:
        """Whether an expression surely is a network."""
        return bool(self.of(expression))

    def is_loss(self, expression: ast.expr) -> bool:
        """Whether an expression surely is one of torch's own loss modules (``nn.CrossEntropyLoss()``)."""
        networks = self.of(expression)
        return bool(networks) and all(network.library is not None and network.library.endswith("Loss") for network in networks or ())

    def run_by(self, call: ast.Call) -> tuple[Network, ...] | None:
        """The networks with weights that a call runs: by calling them, or a method that their class defines.

        None where the call surely runs none: torch's losses and activations, the project's losses without weights,
        and what every module has (``train()``, ``parameters()``, ``to()``).
        """
        networks = self.of(call.func)
        source = receiver(call)
        if not networks and source is not None and isinstance(call.func, ast.Attribute) and call.func.attr not in _OF_EVERY_MODULE:
            name = call.func.attr
            networks = tuple(network for network in self.of(source) or () if _runs_layers(network, name))
        return networks if networks and any(has_weights(network) for network in networks) else None

    def _networks(self, expression: ast.expr) -> tuple[Network, ...] | None:
        values = self._facts.values.of(expression)
        if values is None:
            return None
        found: list[Network] = []
        for value in values:
            if is_saved_object(value):
                continue  # what the program saved itself is of a class that it makes
            if value.is_none:
                continue  # what a factory gives for an unknown name; calling it would raise
            networks = value.facts.models.of_value(value)
            if networks is None:
                return None
            found += networks
        return tuple(dict.fromkeys(found))

    def of_value(self, value: Value) -> tuple[Network, ...] | None:
        """The networks that one origin may be, as :meth:`of`."""
        node, facts = value.node, value.facts
        if isinstance(node, ast.Attribute) and node.attr == "module" and not value.path:
            return facts.models._unwrapped(node.value)
        if not isinstance(node, ast.Call) or value.path:
            return None
        meaning = facts.calls.meaning(node)
        if meaning in WRAPPERS and node.args:
            inner = facts.models.of(node.args[0])
            return None if inner is None else tuple(_wrapped(network, WRAPPERS[meaning]) for network in inner)
        source = receiver(node)
        if source is not None and isinstance(node.func, ast.Attribute) and node.func.attr in SELF_RETURNING:
            inner = facts.models.of(source)
            if inner is not None:
                return inner
        definition = facts.names.definition(node.func)
        if definition is not None:
            return self._made_by(value, definition)
        if meaning is not None:
            return self._made_by(value, meaning)
        collection = _collection(facts, node.func)
        if collection:
            return (Network(value, None, f"{collection}.{_ANY}"),)
        module = picked_from(facts, node.func)
        offering = facts.names.module_of(module) if module is not None else None
        if offering is not None:
            return self._one_of(value, offering)
        found = [self._made_by(value, choice) for choice in choices(facts, node)]
        return tuple(network for networks in found for network in networks or ()) if found and all(found) else None

    def _made_by(self, value: Value, maker: str | Definition) -> tuple[Network, ...] | None:
        """The networks that a class or function makes when it is called."""
        if isinstance(maker, str):
            return (Network(value, None, maker),) if is_module_name(maker) else None
        if isinstance(maker.node, ast.ClassDef):
            return (Network(value, maker, None),) if is_module_class(maker) else None
        return self._returned(maker)

    def _unwrapped(self, wrapped: ast.expr) -> tuple[Network, ...] | None:
        """The networks inside wrappers that keep theirs as ``module``."""
        networks = self.of(wrapped) or ()
        kept = [network for network in networks if network.wrappers[-1:] and network.wrappers[-1] in _KEEPING]
        inside = [replace(network, wrappers=network.wrappers[:-1]) for network in kept]
        return tuple(inside) or None

    def _one_of(self, value: Value, module: Facts) -> tuple[Network, ...] | None:
        """The networks among what a module of the project offers, of which a name that is not known picks one."""
        found: list[Network] = []
        for name in sorted(module.names.offered()):
            maker = module.names.exported(name)
            if maker is None or not _takes(maker, value.node):
                continue
            networks = self._made_by(value, maker)
            if networks is None and _may_make_network(maker):
                return None
            found += networks or ()
        return tuple(dict.fromkeys(found)) or None

    @staticmethod
    def _returned(definition: Definition) -> tuple[Network, ...] | None:
        """The networks that a function of the project returns; one that it refuses to make is none."""
        assert isinstance(definition.node, FUNCTIONS)
        found: list[Network] = []
        for expression in _results(definition.node):
            networks = definition.facts.models.of(expression)
            if not networks:
                return None
            found += networks
        return tuple(found) or None

    def hidden_classes(self, definition: Definition) -> tuple[Definition, ...]:
        """A network's class with all classes of the project that it may reach: its bases and what its code names."""
        if definition not in self._reached:
            self._reached[definition] = self._reach(definition)
        return self._reached[definition]

    def defines_weights(self, definition: Definition) -> bool:
        """Whether a network's class, or one that it may reach, names a layer with weights."""
        if definition not in self._weighted:
            reached = self.hidden_classes(definition)
            self._weighted[definition] = any(_names_weights(item.facts, node) for item in reached for node in walk(item.node))
        return self._weighted[definition]

    @staticmethod
    def _reach(definition: Definition) -> tuple[Definition, ...]:
        found: dict[int, Definition] = {}
        waiting = [definition]
        while waiting:
            current = waiting.pop()
            if id(current.node) not in found:
                found[id(current.node)] = current
                waiting += [named for named in current.facts.models._named_by(current) if id(named.node) not in found]
        return tuple(found.values())

    def _named_by(self, definition: Definition) -> tuple[Definition, ...]:
        """The functions and classes of the project that the code of one names."""
        if definition not in self._named:
            inside = (node for node in walk(definition.node) if isinstance(node, (ast.Name, ast.Attribute)))
            named = (self._facts.names.definition(node) for node in inside if isinstance(node.ctx, ast.Load))
            self._named[definition] = tuple(item for item in named if item is not None)
        return self._named[definition]


def _wrapped(network: Network, wrapper: str) -> Network:
    return Network(network.value, network.definition, network.library, (*network.wrappers, wrapper))


def _runs_layers(network: Network, method: str) -> bool:
    """Whether a method of a network may run layers: it is out of sight, or calls something of ``self`` but a tensor's method."""
    owner = network.definition.node if network.definition is not None else None
    found = [
        item for item in (owner.body if isinstance(owner, ast.ClassDef) else []) if isinstance(item, FUNCTIONS) and item.name == method
    ]
    calls = [node.func for item in found for node in walk(item) if isinstance(node, ast.Call)]
    return not found or any(
        isinstance(func, ast.Attribute) and _is_name(func.value, "self") or isinstance(func, ast.Subscript) for func in calls
    )


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def has_weights(network: Network) -> bool:
    """Whether a network has weights of its own, so that calling it is more than a formula such as a loss."""
    if network.library is not None:
        if not network.library.startswith("torch.nn."):
            return True
        layer = network.library.rpartition(".")[2]
        if layer.startswith(tuple(_WEIGHTED.split())):
            return True
        call = network.value.node
        assert isinstance(call, ast.Call)
        return any(_names_weights(network.value.facts, node) for node in walk(call) if node is not call.func)
    assert network.definition is not None
    return network.definition.facts.models.defines_weights(network.definition)


def _names_weights(facts: Facts, node: ast.AST) -> bool:
    """Whether a node names a layer with weights, a parameter or a library's network."""
    if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
        return False
    meaning = facts.names.qualified(node)
    if meaning is None:
        return False
    layer = meaning.removeprefix("torch.nn.").removeprefix("parameter.")
    outer = facts.tree.parent(node)
    if isinstance(outer, ast.Call) and outer.func is node and not meaning.startswith(("torch.", "builtins.", ".")):
        # a layer of another package, for all that is known
        return meaning.rpartition(".")[2][:1].isupper() and facts.names.definition(node) is None
    return meaning.startswith(_LIBRARIES) or (meaning.startswith("torch.nn.") and layer.startswith(tuple(_WEIGHTED.split())))


def _takes(maker: Definition, call: ast.AST) -> bool:
    """Whether a function or class can be called with as many arguments as a call has."""
    made = method_of(maker, "__init__") if isinstance(maker.node, ast.ClassDef) else maker
    if made is None or not isinstance(made.node, FUNCTIONS) or not isinstance(call, ast.Call) or has_stars(call):
        return True
    wanted = [*made.node.args.posonlyargs, *made.node.args.args][isinstance(maker.node, ast.ClassDef) :]
    named = {item.arg for item in call.keywords}
    required = [item.arg for item in wanted[: len(wanted) - len(made.node.args.defaults)]]
    return all(name in named for name in required[len(call.args) :])


def _results(function: Function) -> list[ast.expr]:
    """What a function returns, leaving out None; nothing for a generator."""
    found = [node for statement in function.body for node in walk_here(statement)]
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in found):
        return []
    given = (node.value for node in found if isinstance(node, ast.Return))
    return [value for value in given if value is not None and not is_constant(value, None)]


def _may_make_network(maker: Definition) -> bool:
    """Whether something of the project whose result is not seen to be a network may make one: a class is a network's or is not."""
    if not isinstance(maker.node, FUNCTIONS):
        return False
    results = _results(maker.node)
    values = [maker.facts.values.of(result) for result in results]
    return any(found is None or not all(map(_is_computed, found)) for found in values)


def _is_computed(value: Value) -> bool:
    """Whether a value comes from arithmetic, or from a method of something that is no network: a tensor's."""
    node = value.node
    if isinstance(node, ast.Call):
        kept = isinstance(node.func, ast.Attribute) and node.func.attr not in SELF_RETURNING
        return kept and value.facts.calls.meaning(node) is None and value.facts.names.definition(node.func) is None
    return isinstance(node, (ast.BinOp, ast.Compare, ast.Constant, ast.List, ast.Tuple, ast.Dict))


def _collection(facts: Facts, made_by: ast.expr) -> str | None:
    """The library out of which a network is picked by its name: ``models.__dict__[name](...)``, ``getattr(models, name)(...)``."""
    module = picked_from(facts, made_by)
    meaning = facts.names.qualified(module) if module is not None else None
    return meaning if meaning is not None and f"{meaning}.".startswith(_LIBRARIES) else None


def is_module_name(meaning: str) -> bool:
    """Whether a library's dotted name makes a network: layers of torch.nn, and the well-known model collections."""
    if meaning.startswith("torch.nn."):
        rest = meaning.split(".")[2:]
        return len(rest) == 1 and rest[0][:1].isupper() and rest[0] not in ("Parameter", "ParameterList")
    return meaning.startswith(_LIBRARIES)


def derives(definition: Definition, names: tuple[str, ...], _depth: int = 0) -> bool:
    """Whether a class surely derives from one of these library classes (a name that ends in a dot is a prefix)."""
    if not isinstance(definition.node, ast.ClassDef) or _depth > 8:
        return False
    for base in bases(definition):
        if isinstance(base, Definition):
            if derives(base, names, _depth + 1):
                return True
        elif base is not None and (base in names or base.startswith(tuple(name for name in names if name.endswith(".")))):
            return True
    return False


def is_module_class(definition: Definition) -> bool:
    """Whether a class surely is a network's."""
    return derives(definition, ("torch.nn.", *_LIBRARIES, "torch.jit.ScriptModule")) or is_lightning_class(definition)


def is_lightning_class(definition: Definition) -> bool:
    """Whether a class surely is a LightningModule."""
    return derives(
        definition,
        tuple(
            f"{library}{name}"
            for library in ("pytorch_lightning.", "lightning.", "lightning.pytorch.")
            for name in ("LightningModule", "core.LightningModule")
        ),
    )
