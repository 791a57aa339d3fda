"""Which values become half precision once some statements run under autocast, and where that half would do harm.

A small reading of the program, in its own order: every value carries the calls that may have made it half. Inside a
region autocast looks after itself; outside, half values may be picked, moved, reshaped and read, but whatever computes
with them, stores them or hands them to code out of sight wants them back in float32.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import has_stars
from torchfix.facts.code.classes import method_of
from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import parameters
from torchfix.facts.code.tree import COMPREHENSIONS, FUNCTIONS, Function, dotted, last_name, walk
from torchfix.facts.code.values import Value, is_default, passed
from torchfix.facts.half_precision.autocast import WITH_INDEX, Treatment, is_harmless, is_operation, layer_treatment, treatment
from torchfix.facts.training.models import Network
from torchfix.facts.training.sequential import last_layers

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Methods that put their arguments into a container.
MUTATORS = frozenset("append extend insert add update setdefault".split())
_DEPTH = 6  # calls followed into one another before a result counts as half


@dataclass(frozen=True)
class Reading:
    """What is known of a value.

    Args:
        sources: the expressions that may have made it half precision; none of them means float32, or no tensor at all.
        tensor: whether it surely is one tensor.
        parts: what is known of its elements, for a tuple or list of a known length.
        is_tuple: whether it surely is a tuple.
    """

    sources: frozenset[ast.expr] = frozenset()
    tensor: bool = False
    parts: tuple[Reading, ...] | None = None
    is_tuple: bool = False

    def named(self, source: ast.expr) -> Reading:
        """The same value with one expression to answer for all of its half precision."""
        parts = None if self.parts is None else tuple(part.named(source) for part in self.parts)
        return Reading(frozenset([source]) if self.sources else frozenset(), self.tensor, parts, self.is_tuple)

    def restored(self) -> Reading:
        """The same value once all that is half precision in it was converted back."""
        parts = None if self.parts is None else tuple(part.restored() for part in self.parts)
        return Reading(frozenset(), self.tensor, parts, self.is_tuple)


FULL = Reading()
FULL_TENSOR = Reading(tensor=True)


def join(readings: Iterable[Reading]) -> Reading:
    """A value that may be any of these."""
    found = list(readings)
    if not found:
        return FULL
    if all(item is found[0] for item in found):
        return found[0]
    sources = frozenset().union(*(item.sources for item in found))
    lengths = {None if item.parts is None else len(item.parts) for item in found}
    parts = None
    if len(lengths) == 1 and None not in lengths:
        parts = tuple(join(column) for column in zip(*(item.parts or () for item in found)))
    return Reading(sources, all(item.tensor for item in found), parts, all(item.is_tuple for item in found))


class Precision:
    """Questions about the precision of values in one file."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._results: dict[int, Reading] = {}

    def of_network(self, networks: tuple[Network, ...], call: ast.Call, depth: int = 0) -> Reading:
        """What the call of a network gives under autocast, the call itself as the source of what may be half."""
        return join(self._of_one(network, call, depth) for network in networks).named(call)

    def _of_one(self, network: Network, call: ast.Call, depth: int) -> Reading:
        low = Reading(frozenset([call]))
        if network.library is not None:
            return Reading(low.sources, gives_one_tensor(network))
        assert network.definition is not None
        name = call.func.attr if isinstance(call.func, ast.Attribute) and self._facts.models.of(call.func) is None else "forward"
        method = method_of(network.definition, name)
        if method is None or depth > _DEPTH:
            return low
        key = id(method.node)
        if key not in self._results:
            self._results[key] = low  # a network that calls itself
            assert isinstance(method.node, FUNCTIONS)
            self._results[key] = result_of(method.facts, method.node, {}, True, depth + 1)
        return self._results[key]

    @staticmethod
    def is_steady(facts: Facts, function: Function) -> bool:
        """Whether a function that is given float32 surely computes the same under autocast: nothing that it computes becomes half there."""
        yields = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in walk(function))
        if yields or function.decorator_list or facts.hazards.in_definitions([Definition(facts, function)]) is not None:
            return False
        reader = Reader(facts, depth=1, inside=True)
        reader.block(function.body)
        return not reader.made and not reader.opaque and not any(reading.sources for reading in reader.returned)


def _sets(owner: Definition, name: str) -> bool:
    """Whether a network's class gives an attribute its value while the network runs, or computes it as a property."""
    assert isinstance(owner.node, ast.ClassDef)
    methods = [item for item in owner.node.body if isinstance(item, FUNCTIONS)]
    if any(item.name == name and item.decorator_list for item in methods):
        return True
    names, size = {"forward"}, 0
    while len(names) != size:
        size = len(names)
        running = [item for item in methods if item.name in names and item.name != "__init__"]
        inside = [node for item in running for node in walk(item) if isinstance(node, ast.Attribute)]
        names |= {node.attr for node in inside}
    return any(node.attr == name and isinstance(node.ctx, ast.Store) for node in inside)


def result_of(facts: Facts, function: Function, given: Mapping[str, Reading], inside: bool, depth: int) -> Reading:
    """What a function returns, its parameters given; without ``return`` nothing."""
    yielded = next((node for node in walk(function) if isinstance(node, (ast.Yield, ast.YieldFrom))), None)
    if yielded is not None:
        return Reading(frozenset([yielded]))  # a generator's items are not followed
    reader = Reader(facts, depth=depth)
    reader.inside = inside
    reader.values.update(given)
    reader.block(function.body)
    return join(reader.returned)


_SEVERAL_OUTPUTS = (
    "RNN",
    "LSTM",
    "GRU",
    "MultiheadAttention",
    "AdaptiveLogSoftmaxWithLoss",
    "AdaptiveMaxPool",
    "FractionalMaxPool",
    "ModuleList",
    "ModuleDict",
)
_SEVERAL_RESULTS = (
    "inception_v3",
    "Inception3",
    "googlenet",
    "GoogLeNet",
    "detection.",
    "segmentation.",
    "feature_extraction",
    "hub.load",
    "__dict__",
)


def gives_one_tensor(network: Network) -> bool:
    """Whether a library's network surely returns one tensor."""
    name = network.library or ""
    if not name.startswith("torch.nn."):
        return not any(word in name for word in _SEVERAL_RESULTS)
    layer = name.rpartition(".")[2]
    if layer == "Sequential":
        call, facts = network.value.node, network.value.facts
        last = last_layers(facts, call) if isinstance(call, ast.Call) else []
        inner = [facts.models.of(item) for item in last]
        return bool(inner) and all(found and all(item.library and gives_one_tensor(item) for item in found) for found in inner)
    return not layer.startswith(_SEVERAL_OUTPUTS)


@dataclass
class Reader:
    """Reads statements in their order and keeps what each name holds.

    Args:
        facts: the file that the statements stand in.
        regions: the statements that run under autocast, each with all that is inside it.
        restored: the expressions whose result is converted back to float32.
        depth: how many calls this reading is inside of.
        inside: whether what is read now runs under autocast.
        sent: the losses, which must be float32 when they are sent backward.
        inline: those of them that are computed under autocast where they are sent.
        values: what each name holds.
        made: what is known of each expression that may give half precision.
        wanted: those of them that must be converted back.
        places: for each of these, the first use that wants it so.
        returned: what the function that is read returns.
        opaque: the calls of code out of sight that were given half precision.
        low: the uses of names that may hold half precision.
    """

    facts: Facts
    regions: frozenset[ast.stmt] = frozenset()
    restored: frozenset[ast.expr] = frozenset()
    depth: int = 0
    inside: bool = False
    sent: frozenset[ast.expr] = frozenset()
    inline: frozenset[ast.expr] = frozenset()
    values: dict[str, Reading] = field(default_factory=dict)
    made: dict[ast.expr, Reading] = field(default_factory=dict)
    wanted: set[ast.expr] = field(default_factory=set)
    places: dict[ast.expr, ast.AST] = field(default_factory=dict)
    returned: list[Reading] = field(default_factory=list)
    opaque: list[ast.Call] = field(default_factory=list)
    low: set[ast.expr] = field(default_factory=set)

    def copy(self, inside: bool = False) -> Reader:
        """A reader that knows the same names, for a trial."""
        return Reader(self.facts, self.regions, self.restored, self.depth, inside, values=dict(self.values), made=dict(self.made))

    def want(self, reading: Reading, place: ast.AST) -> None:
        """Note that half precision must not reach a use."""
        for source in reading.sources:
            self.wanted.add(source)
            self.places.setdefault(source, place)

    # Statements -----------------------------------------------------------------------------------------------

    def block(self, statements: Iterable[ast.stmt]) -> None:
        """Read statements one after the other."""
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        """Read one statement."""
        before, self.inside = self.inside, self.inside or node in self.regions
        self._statement(node)
        self.inside = before

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            reading = self.value(node.value)
            for target in node.targets:
                self.bind(target, reading)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.bind(node.target, self.value(node.value))
        elif isinstance(node, ast.AugAssign):
            held = self.value(node.target)
            both = self._arithmetic(node, node.op, node.target, node.value)
            kept = held.tensor and not held.sources  # a tensor keeps its dtype when changed in place
            self.bind(node.target, FULL_TENSOR if kept else both)
        elif isinstance(node, ast.Return):
            reading = self.value(node.value) if node.value is not None else FULL
            self.returned.append(reading)
            if not self.depth:
                self.want(reading, node)
        elif isinstance(node, ast.If):
            self.value(node.test)
            self._branches(node.body, node.orelse)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self._loop(node)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                reading = self.value(item.context_expr)
                if item.optional_vars is not None:
                    self.bind(item.optional_vars, reading)
            self.block(node.body)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            self._closure(node)
        else:
            self._rest(node)

    def _rest(self, node: ast.AST) -> None:
        """Everything of a statement in the order of the text: expressions, and blocks such as those of ``try``."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self.statement(child)
            elif isinstance(child, ast.expr):
                self.value(child)
            else:
                self._rest(child)

    def _branches(self, *blocks: list[ast.stmt]) -> None:
        before, after = dict(self.values), []
        for body in blocks:
            self.values = dict(before)
            self.block(body)
            after.append(self.values)
        self.values = {
            name: join(values[name] for values in after if name in values) for name in {key for values in after for key in values}
        }

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        for _ in range(2):  # what one iteration leaves, the next one finds
            if isinstance(node, ast.While):
                self.value(node.test)
            else:
                source = self.value(node.iter)
                self.bind(node.target, Reading(source.sources, source.tensor))
            self._branches(node.body, [])
        self.block(node.orelse)

    def _closure(self, node: ast.AST) -> None:
        """A function that is defined here may read half values whenever it is called."""
        for inner in walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load) and inner.id in self.values:
                self.want(self.values[inner.id], inner)

    def bind(self, target: ast.expr, reading: Reading) -> None:
        """Give a target its value."""
        if isinstance(target, ast.Name):
            self.values[target.id] = reading.restored() if target in self.restored else reading
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, element in enumerate(target.elts):
                known = reading.parts is not None and len(reading.parts) == len(target.elts)
                part = reading.parts[index] if known and reading.parts is not None else Reading(reading.sources, reading.tensor)
                self._bind_part(element, part)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, Reading(reading.sources))
        else:
            name = dotted(target)
            if name is not None:
                self.values[name] = reading
            elif isinstance(target, ast.Subscript):
                self._fill(target.value, reading)
            self.want(reading, target)  # an attribute or an element outlives the region

    def _fill(self, container: ast.expr, reading: Reading) -> None:
        """Put a value into what a name holds: from now on that may be half precision too."""
        name = dotted(container)
        if name is not None and reading.sources:
            self.values[name] = Reading(self.values.get(name, FULL).sources | reading.sources)

    def _bind_part(self, target: ast.expr, part: Reading) -> None:
        """Give a target one element of a tuple; where that came from no single tensor, the name answers for its half itself."""
        tree = self.facts.tree
        unpacked = not self.depth and isinstance(tree.parent(tree.parent(target) or target), ast.Assign)
        whole = all(self.made.get(source, FULL).tensor for source in part.sources)
        if unpacked and isinstance(target, ast.Name) and part.sources and not whole:
            part = FULL_TENSOR if target in self.restored else part.named(target)
            self.made[target] = part
        self.bind(target, part)

    # Expressions ----------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Reading:
        """What is known of an expression's value."""
        before = self.inside
        if node in self.inline:
            self.inside = True
        reading = self._value(node)
        self.inside = before
        if node in reading.sources:
            self.made[node] = reading
        elif reading.sources and dotted(node) is not None:
            self.low.add(node)
        if node in self.restored:
            return FULL_TENSOR
        if node in self.sent:
            self.want(reading, node)
        return reading

    def _value(self, node: ast.expr) -> Reading:
        if isinstance(node, ast.Name):
            return self.values.get(node.id, FULL)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node, node.op, node.left, node.right)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.UnaryOp):
            inner = self.value(node.operand)
            return FULL if isinstance(node.op, ast.Not) else Reading(inner.sources, inner.tensor)
        if isinstance(node, (ast.Tuple, ast.List)):
            parts = tuple(self.value(item) for item in node.elts)
            return Reading(join(parts).sources, False, parts, isinstance(node, ast.Tuple))
        if isinstance(node, ast.IfExp):
            self.value(node.test)
            return join([self.value(node.body), self.value(node.orelse)])
        if isinstance(node, ast.NamedExpr):
            reading = self.value(node.value)
            self.bind(node.target, reading)
            return reading
        if isinstance(node, COMPREHENSIONS):
            return self._comprehension(node)
        if isinstance(node, ast.Lambda):
            self._closure(node)
            return FULL
        if isinstance(node, (ast.JoinedStr, ast.FormattedValue)):
            self._children(node)
            return FULL
        if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
            self.want(join(self._children(node)), node)
            return FULL
        return Reading(join(self._children(node)).sources)

    def _children(self, node: ast.AST) -> list[Reading]:
        found: list[Reading] = []
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                found.append(self.value(child))
            elif not isinstance(child, (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)):
                found += self._children(child)
        return found

    def _attribute(self, node: ast.Attribute) -> Reading:
        name = dotted(node)
        if name is not None and name in self.values:
            return self.values[name]
        base = self.value(node.value)
        if node.attr in ("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "grad_fn", "names", "layout"):
            return FULL
        if self._is_left_by_forward(node):
            return Reading(frozenset([node]))
        return Reading(base.sources, base.tensor and node.attr in ("data", "T", "mT", "H", "real"))

    def _is_left_by_forward(self, node: ast.Attribute) -> bool:
        """Whether an attribute of a network, of ``self`` inside one, is set or computed while it runs."""
        facts = self.facts
        owner: Definition | None = None
        if self.depth and isinstance(node.value, ast.Name) and facts.is_self(node.value):
            inside = facts.tree.method_class(node)
            owner = Definition(facts, inside) if inside is not None else None
        networks = [Network(Value(facts, node), owner, None)] if owner is not None else facts.models.of(node.value) or ()
        return any(_sets(network.definition, node.attr) for network in networks if network.definition is not None)

    def _subscript(self, node: ast.Subscript) -> Reading:
        base = self.value(node.value)
        self.value(node.slice)
        if base.parts is not None and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            index = node.slice.value
            if -len(base.parts) <= index < len(base.parts):
                return base.parts[index]
        return Reading(base.sources, base.tensor)

    def _arithmetic(self, node: ast.expr | ast.stmt, operator: ast.operator, left: ast.expr, right: ast.expr) -> Reading:
        one, other = self.value(left), self.value(right)
        both = Reading(one.sources | other.sources, one.tensor or other.tensor)
        if not (self.inside and self.depth):
            self.want(both, node)  # also in a region: sums and products by hand are to keep their precision
        if isinstance(operator, ast.MatMult) and isinstance(node, ast.expr):
            return self._low(node, both)
        if not self.inside:
            return both
        reciprocal = isinstance(operator, ast.Div) and isinstance(left, ast.Constant)
        return Reading(tensor=both.tensor) if isinstance(operator, ast.Pow) or reciprocal else both

    def _low(self, node: ast.expr, inputs: Reading) -> Reading:
        """An operation that autocast runs in half precision."""
        if self.inside:
            return Reading(frozenset([node]), True)
        self.want(inputs, node)
        return Reading(inputs.sources, True)

    def _compare(self, node: ast.Compare) -> Reading:
        readings = [self.value(item) for item in (node.left, *node.comparators)]
        equal = any(isinstance(item, (ast.Eq, ast.NotEq)) for item in node.ops)
        if equal and not self.inside:
            self.want(join(readings), node)
        return FULL_TENSOR if any(item.tensor for item in readings) else FULL

    def _comprehension(self, node: ast.expr) -> Reading:
        for generator in node.generators:  # type: ignore[attr-defined]
            source = self.value(generator.iter)
            self.bind(generator.target, Reading(source.sources, source.tensor))
            for condition in generator.ifs:
                self.value(condition)
        results = [self.value(item) for name in ("elt", "key", "value") if (item := getattr(node, name, None)) is not None]
        return Reading(join(results).sources)

    # Calls ----------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Reading:
        facts = self.facts
        given = [self.value(item) for item in (*node.args, *(item.value for item in node.keywords))]
        inputs = join(given)
        networks = facts.models.run_by(node)
        if networks:
            if not self.inside:
                self.want(inputs, node)
                return FULL
            return facts.precision.of_network(networks, node, self.depth)
        meaning = facts.calls.meaning(node)
        if meaning is not None and meaning.startswith("torch."):
            return self._of_torch(node, meaning, given)
        if meaning is not None and meaning.startswith("builtins."):
            return self._builtin(node, meaning.rpartition(".")[2], inputs)
        modules = facts.models.of(node.func)
        if modules and all(item.library is not None for item in modules):
            return self._layer(node, modules, inputs)
        definition, method = facts.names.definition(node.func), facts.own_method(node)
        if method is not None:
            definition = Definition(facts, method)
        if definition is not None and isinstance(definition.node, FUNCTIONS):
            return self._function(node, definition, inputs)
        if isinstance(node.func, ast.Attribute) and meaning is None and modules is None:
            return self._method(node, node.func, given)
        return self._unknown(node, inputs)

    def _unknown(self, node: ast.Call, inputs: Reading) -> Reading:
        """A call of code out of sight."""
        if inputs.sources:
            self.opaque.append(node)
        self.want(inputs, node)
        return Reading(frozenset([node])) if self.inside and self.depth else Reading(inputs.sources)

    def _of_torch(self, node: ast.Call, meaning: str, given: list[Reading]) -> Reading:
        """A call of something that torch defines: an operation, or the making of an object."""
        name = meaning.rpartition(".")[2]
        if meaning.startswith("torch.distributions.") and name[:1].islower():
            return self._unknown(node, join(given))
        if name[:1].isupper() and not name.endswith("Tensor"):
            return Reading(join(given).sources)  # a distribution holds what it was given
        return self._operation(node, name, given)

    def _operation(self, node: ast.Call, name: str, given: list[Reading]) -> Reading:
        """A function of torch, or a tensor's method, on these inputs."""
        inputs = join(given)
        how = treatment(name)
        if not self.depth and not is_harmless(name):
            self.want(inputs, node)
        if how is Treatment.LOW:
            return self._low(node, inputs)
        if how is Treatment.PLAIN:
            return FULL_TENSOR
        if how is Treatment.EXACT:
            if name in WITH_INDEX and len(given) > 1:
                return Reading(inputs.sources, False, (Reading(inputs.sources, True), FULL_TENSOR))
            return Reading(inputs.sources, True)
        if not self.inside:
            self.want(inputs, node)
            return Reading(inputs.sources, True)
        return FULL_TENSOR if how is Treatment.FULL else Reading(inputs.sources, True)

    def _builtin(self, node: ast.Call, name: str, inputs: Reading) -> Reading:
        if name in (
            "float",
            "int",
            "bool",
            "len",
            "print",
            "isinstance",
            "str",
            "repr",
            "format",
            "round",
            "id",
            "type",
            "hasattr",
            "callable",
            "range",
        ):
            return FULL
        if name in ("zip", "enumerate", "list", "tuple", "reversed", "iter", "next", "dict", "set", "sorted", "getattr"):
            return Reading(inputs.sources)
        if not self.inside:
            self.want(inputs, node)
        return Reading(inputs.sources)

    def _layer(self, node: ast.Call, modules: tuple[Network, ...], inputs: Reading) -> Reading:
        """A torch module without weights: a loss, an activation."""
        treatments = {layer_treatment((item.library or "").rpartition(".")[2]) for item in modules}
        tensor = all(gives_one_tensor(item) for item in modules)
        if not self.inside:
            self.want(inputs, node)
        return Reading(tensor=tensor) if self.inside and treatments == {Treatment.FULL} else Reading(inputs.sources, tensor)

    def _function(self, node: ast.Call, definition: Definition, inputs: Reading) -> Reading:
        """A function or method of the project: read with what this call gives it."""
        function = definition.node
        assert isinstance(function, FUNCTIONS)
        networks = any(self.facts.models.of(item) for item in (*node.args, *(item.value for item in node.keywords)))
        if self.depth > _DEPTH or not (self.depth or inputs.sources or networks):
            return FULL if not inputs.sources else self._unknown(node, inputs)
        if has_stars(node) or function.decorator_list or (self.inside and not self.depth):
            return self._unknown(node, inputs)
        inner = Reader(definition.facts, depth=self.depth + 1, inside=self.inside)
        bound = definition.facts.tree.class_of(function) is not None
        for parameter in parameters(function.args):
            item = passed(node, function, parameter, bound)
            if item is not None and not is_default(item, function):
                inner.values[parameter.arg] = self.value(item)
            elif item is None:
                inner.values[parameter.arg] = Reading(inputs.sources) if parameter is function.args.vararg else FULL
        inner.block(function.body)
        self.want(Reading(frozenset(inner.wanted)), node)
        result = join(inner.returned)
        return result if result.sources <= inputs.sources else result.named(node)

    def _method(self, node: ast.Call, func: ast.Attribute, given: list[Reading]) -> Reading:
        base = self.value(func.value)
        inputs = join(given)
        if self._is_distribution(func.value):
            return Reading(frozenset([node]), True) if self.inside else Reading(base.sources | inputs.sources, True)
        if func.attr in MUTATORS:
            self._fill(func.value, inputs)
        if not (base.tensor or is_operation(func.attr)):
            return self._unknown(node, join([base, inputs]))  # a meter's ``update``, a list's ``append``, a layer out of sight
        if func.attr in ("numpy", "new_tensor"):
            self.want(base, node)
            return FULL
        if func.attr in ("to", "type") and _names_float32(self.facts, node):
            return FULL_TENSOR
        if func.attr in ("eq", "ne", "equal"):
            self.want(join([base, inputs]), node)
            return FULL_TENSOR
        return self._operation(node, func.attr, [base, *given])

    def _is_distribution(self, node: ast.expr) -> bool:
        """Whether an object surely is one of torch.distributions, whose methods give tensors."""
        values = self.facts.values.of(node)
        return bool(values) and all(
            isinstance(value.node, ast.Call) and (value.facts.calls.meaning(value.node) or "").startswith("torch.distributions.")
            for value in values or ()
        )


def _names_float32(facts: Facts, call: ast.Call) -> bool:
    """Whether a conversion names float32."""
    given = [*call.args, *(item.value for item in call.keywords)]
    return any(
        facts.names.qualified(item) in ("torch.float32", "torch.float") or last_name(item) in ("FloatTensor", "float32") for item in given
    )


def named(source: ast.expr) -> str:
    """How to tell a user of a value: by its name, or as what a call returns."""
    words = ast.unparse(source)
    return f"what {words} returns" if isinstance(source, ast.Call) else words
