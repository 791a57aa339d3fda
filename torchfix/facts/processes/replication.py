"""Whether the networks that a file replicates with ``nn.DataParallel`` can be replicated by processes instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import is_constant, keyword, receiver
from torchfix.facts.code.classes import SELF_RETURNING
from torchfix.facts.code.tree import Function, dotted, last_name, walk_here
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.processes.replicas import Wrap
from torchfix.facts.training.coverage import left_out
from torchfix.facts.training.optimizers import Optimizer
from torchfix.facts.training.regions import NO_GRAD

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.loops import Loop

# What every module has; the wrapper of DistributedDataParallel has it too.
_PROTOCOL = frozenset(
    """module train eval training parameters named_parameters buffers named_buffers children named_children modules named_modules
    state_dict load_state_dict zero_grad requires_grad_ to cuda float forward register_forward_hook apply type share_memory
    register_full_backward_hook __class__""".split()
)
# Of these the inner network's own are asked for, which gives the same.
_READS = frozenset(
    """parameters named_parameters buffers named_buffers state_dict load_state_dict children named_children modules named_modules
    train eval zero_grad""".split()
)
_MOVES = frozenset(["cpu", "half", "double", "bfloat16"])
_TAKES_NETWORKS = ("builtins.", "torch.save", "torch.nn.DataParallel", "torchsummary.", "torchinfo.")
_INSIDE = frozenset(["module", "state_dict", "load_state_dict", "backward", "DataParallel", "device_ids"])
_PREFIXED = re.compile(r"module\.\w")


def obstacles(facts: Facts, wrap: Wrap) -> Iterator[Obstacle]:
    """Why one wrap of a file cannot give way to a process per GPU, as far as the network itself goes."""
    yield from _arguments(facts, wrap)
    yield from _condition(wrap)
    yield from _placing(facts, wrap)
    yield from _mentions(facts)
    yield from _weights(facts, wrap)
    yield from _uses(facts)
    yield from _loops(facts)
    yield from _second_order(facts)
    yield from _prefixes(facts)


def _arguments(facts: Facts, wrap: Wrap) -> Iterator[Obstacle]:
    line = wrap.call.lineno
    if wrap.hides_arguments or wrap.module is None:
        yield Obstacle("arguments-hidden", "the arguments of DataParallel are behind *", "write them out")
        return
    if not is_constant(wrap.argument("dim") or ast.Constant(0), 0):
        yield Obstacle("scatter-dimension", f"line {line} splits its inputs along another dimension than the first", "put the batch first")
    ids = wrap.argument("device_ids")
    if isinstance(ids, (ast.List, ast.Tuple)) and len(ids.elts) == 1:
        yield Obstacle("single-device", f"line {line} replicates the network over one GPU only", "drop the wrapper")
    output = wrap.argument("output_device")
    first = ids.elts[0] if isinstance(ids, (ast.List, ast.Tuple)) and ids.elts else ast.Constant(0)
    if output is not None and ast.dump(output) not in (ast.dump(first), ast.dump(ast.Constant(0))):
        yield Obstacle("output-device", f"line {line} gathers its outputs on another GPU than the first", "gather on the first")


def _condition(wrap: Wrap) -> Iterator[Obstacle]:
    """A wrap under an ``if`` must give back the name that it takes, so that it can be made in any case."""
    tree, condition, assignment = wrap.facts.tree, wrap.condition, wrap.assignment
    if isinstance(tree.parent(wrap.whole), (ast.IfExp, ast.BoolOp)) or (condition is not None and assignment is None):
        yield Obstacle("conditional-wrap", f"line {wrap.call.lineno} wraps under a condition", "wrap in a statement of its own")
        return
    if tree.nearest(wrap.call, ast.NamedExpr) is not None:
        yield Obstacle("named-within", f"line {wrap.call.lineno} names the network by := inside an expression", "assign it first")
        return
    if condition is None or assignment is None or wrap.module is None:
        return
    outer = tree.parent(condition)
    nested = isinstance(outer, ast.If)
    target = dotted(assignment.targets[0])
    if nested or target is None or target != dotted(wrap.module) or tree.parent(assignment) is not condition:
        yield Obstacle(
            "conditional-wrap",
            f"line {wrap.call.lineno} wraps under a condition, and the program goes on with another name or another condition around it",
            "wrap under one condition, and give the result the same name: model = nn.DataParallel(model)",
        )


def _placing(facts: Facts, wrap: Wrap) -> Iterator[Obstacle]:
    """A network that is moved behind the wrap must be moved before it, by names that are known there."""
    later = wrap.later_placing
    if later is None:
        return
    known = facts.tree.function(later) is facts.tree.function(wrap.call)
    for name in (node for item in (*later.args, *later.keywords) for node in ast.walk(item) if isinstance(node, ast.Name)):
        known = known and all(getattr(binding.node, "lineno", 0) < wrap.call.lineno for binding in facts.flow.reaching(name))
    if not known:
        yield Obstacle(
            "placed-later",
            f"line {later.lineno} moves the network to its device after it was wrapped, by what is not known where it is wrapped",
            "move the network to its device before wrapping",
        )
    elif wrap.is_moved_conditionally and wrap.moving_branch is None:
        yield Obstacle(
            "placed-later",
            f"line {later.lineno} moves the network to its device after it was wrapped, and only under a condition",
            "move the network to its device before wrapping",
        )


def _mentions(facts: Facts) -> Iterator[Obstacle]:
    """DataParallel as a base class or under another name."""
    for node in facts.replicas.mentions:
        asked = facts.tree.nearest(node, (ast.Call, ast.Compare, ast.arg, ast.AnnAssign))
        statement = facts.tree.statement(node)
        if asked is None or not facts.tree.is_within(asked, statement) or isinstance(facts.tree.parent(node), ast.ClassDef):
            yield Obstacle("wrapper-class", f"line {node.lineno} makes something of its own of DataParallel", "use nn.DataParallel itself")


def _weights(facts: Facts, wrap: Wrap) -> Iterator[Obstacle]:
    """Weights without a gradient in some step, of which the other processes would never hear."""
    for network in (facts.models.of(wrap.module) if wrap.module is not None else None) or ():
        for owner, layer in left_out(network.definition) if network.definition is not None else ():
            place = f"{owner.facts.path}, line {layer.lineno}"
            yield Obstacle(
                "unused-parameters",
                f"a forward pass may leave out the weights of {layer.attr} ({place}), and the other processes wait for their gradients",
                "use every layer in every pass, or convert by hand with find_unused_parameters=True",
            )
            return
    for node in facts.tree.attributes.get("requires_grad", ()):
        loop = facts.tree.nearest(node, ast.For)
        over = [item for item in ast.walk(loop.iter) if isinstance(item, ast.Attribute)] if loop is not None else []
        if isinstance(node.ctx, ast.Store) and any(facts.replicas.held_by(item.value) for item in (*over, node)):
            yield _frozen(node)
    for call in facts.calls.methods("requires_grad_"):
        source = receiver(call)
        if source is not None and facts.replicas.held_by(source):
            yield _frozen(call)


def _frozen(node: ast.expr) -> Obstacle:
    return Obstacle(
        "frozen-later", f"line {node.lineno} freezes or frees weights after the network was wrapped", "choose what trains before wrapping"
    )


def _uses(facts: Facts) -> Iterator[Obstacle]:
    """Everything that is done with the wrapper beside calling it."""
    for attribute, uses in facts.tree.attributes.items():
        for use in uses:
            held = facts.replicas.held_by(use.value)
            if held is None and attribute in ("module", "state_dict", "load_state_dict") and isinstance(use.ctx, ast.Load):
                if attribute == "module" or not _is_known(facts, use.value):
                    yield Obstacle(
                        "network-unclear",
                        f"whether {dotted(use.value) or 'what'} in line {use.lineno} is the wrapped network cannot be told",
                        "pass the network on by a parameter whose callers all stand in this file",
                    )
            elif held and attribute == "module":
                yield from _of_module(facts, use)
            elif held and attribute in _MOVES:
                yield Obstacle(
                    "network-moved", f"line {use.lineno} moves or casts the network after it was wrapped", "do so before wrapping"
                )
            elif held and attribute not in _PROTOCOL and isinstance(use.ctx, ast.Load):
                yield Obstacle(
                    "wrapper-attribute", f"line {use.lineno} reads {attribute} of the DataParallel wrapper", "ask the network itself"
                )
    for calls in facts.tree.calls.values():
        for call in calls:
            yield from _handed_on(facts, call)


def past_the_wrapper(facts: Facts) -> Iterator[Obstacle]:
    """Where training runs the network inside a wrapper instead of the wrapper."""
    for use in facts.tree.attributes.get("module", ()):
        if facts.replicas.held_by(use.value):
            yield from _of_module(facts, use)


def _is_known(facts: Facts, expression: ast.expr) -> bool:
    return bool(facts.optimizers.of(expression)) or facts.optimizers.is_scheduler(expression)


def _of_module(facts: Facts, use: ast.Attribute) -> Iterator[Obstacle]:
    """``model.module(x)`` or ``model.module.loss(x)`` in training goes past the wrapper, so that no gradient is shared."""
    tree, inner = facts.tree, use
    outer = tree.parent(inner)
    while isinstance(outer, ast.Attribute):
        inner, outer = outer, tree.parent(outer)
    if isinstance(outer, ast.Call) and outer.func is inner and inner.attr not in _READS:
        if inner.attr in _MOVES:
            yield Obstacle("network-moved", f"line {use.lineno} moves or casts the network after it was wrapped", "do so before wrapping")
        elif any(tree.is_within(use, loop.node) for loop in facts.loops.training) or not facts.regions.under(outer, NO_GRAD):
            yield Obstacle(
                "module-called",
                f"line {use.lineno} runs the network inside the wrapper, so that its gradients would not be shared",
                "call the wrapped network itself; move the method's work into forward()",
            )


def _handed_on(facts: Facts, call: ast.Call) -> Iterator[Obstacle]:
    """A wrapped network that goes where it cannot be followed, is copied, or is saved whole."""
    given = [
        part
        for part in (*call.args, *(item.value for item in call.keywords))
        if not isinstance(part, ast.Call) and facts.replicas.held_by(part)
    ]
    if not given:
        return
    meaning = facts.calls.meaning(call) or ""
    if meaning == "torch.save":
        yield Obstacle("whole-network-saved", f"line {call.lineno} saves the wrapped network whole", "save its state_dict()")
        return
    if meaning.startswith(("copy.", "torch.compile", "torch.optim.swa_utils.", "torch.jit.")):
        yield Obstacle("network-copied", f"line {call.lineno} makes another network of the wrapped one", "do so before wrapping")
        return
    if meaning.startswith(_TAKES_NETWORKS):
        return
    functions = list(called(facts, call))
    if any(home is not facts and _reaches_inside(home, function) for home, function in functions) or not (
        functions or facts.models.is_module(call.func)
    ):
        yield Obstacle(
            "network-handed-on",
            f"line {call.lineno} hands the wrapped network to {dotted(call.func) or 'a function'}, where it cannot be followed",
            "hand on what that function needs of it, or keep the function in this file",
        )


def _reaches_inside(facts: Facts, function: Function, _seen: frozenset[int] = frozenset()) -> bool:
    """Whether a function of another file, or one that it calls, deals with the wrapper itself, its files or its training."""
    if id(function) in _seen:
        return False
    for node in ast.walk(function):
        if isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) in _INSIDE:
            return True
        if isinstance(node, ast.Call):
            for home, inner in called(facts, node):
                if _reaches_inside(home, inner, _seen | {id(function)}):
                    return True
    return False


def _loops(facts: Facts) -> Iterator[Obstacle]:
    for loop in facts.shares.loops:
        yield from _optimizers(facts, loop)
        call = facts.shares.repeated(loop)
        if call is not None:
            yield Obstacle(
                "several-forwards",
                f"the loop in line {loop.node.lineno} runs the network more than once before it updates (line {call.lineno}), "
                "and each run would write the buffers that the graph of the one before may still need",
                "run it once on the joined inputs, or convert by hand",
            )


def _optimizers(facts: Facts, loop: Loop) -> Iterator[Obstacle]:
    for step in loop.steps:
        asked = [item for item in (receiver(step), *step.args[:1]) if item is not None]
        found = next((optimizers for item in asked if (optimizers := facts.optimizers.of(item))), None)
        if found is None:
            yield Obstacle(
                "optimizer-unclear",
                f"what the step in line {step.lineno} updates is out of sight",
                "make the optimizer with a torch.optim class in this file",
            )
            continue
        for optimizer in found:
            yield from _trained(facts, optimizer)


def _trained(facts: Facts, optimizer: Optimizer) -> Iterator[Obstacle]:
    """Parameters of other networks beside the replicated ones, and such that cannot be followed."""
    home, call = optimizer.value.facts, optimizer.call
    given = call.args[0] if call.args else next((item.value for item in call.keywords if item.arg == "params"), None)
    places = home.values.of(given) or () if given is not None else ()
    owners = [(value.facts, owner) for value in places for owner in _owners_of_parameters(value.node)]
    if not owners:
        yield Obstacle(
            "parameters-unclear",
            f"the parameters of the optimizer in line {call.lineno} are collected where they cannot be followed",
            "give the optimizer model.parameters()",
        )
    for place, owner in owners:
        if not _is_replicated(facts, place, owner):
            yield Obstacle(
                "unwrapped-parameters",
                f"the optimizer in line {call.lineno} also trains {dotted(owner) or 'a network'}, which nothing keeps equal everywhere",
                "wrap every network that is trained",
            )


def _is_replicated(facts: Facts, home: Facts, expression: ast.expr) -> bool:
    """Whether an expression is a replicated network, the network inside, or a part of it."""
    current = expression
    inside = {origin for wrap in facts.replicas.wraps if wrap.module is not None for origin in _origins(facts, wrap.module)}
    while True:
        if home.replicas.held_by(current):
            return True
        found = _origins(home, current)
        if found and found <= inside:
            return True
        if not isinstance(current, ast.Attribute):
            return False
        current = current.value


def _owners_of_parameters(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions whose ``.parameters()`` an expression holds."""
    for item in walk_here(node):
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.func.attr in ("parameters", "named_parameters"):
            yield item.func.value


def _origins(facts: Facts, expression: ast.expr, _seen: frozenset[int] = frozenset()) -> set[ast.AST]:
    """What made a network, looking through ``.cuda()`` and the like."""
    found: set[ast.AST] = set()
    if id(expression) in _seen:
        return found
    for value in facts.values.of(expression) or ():
        node = value.node
        moved = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SELF_RETURNING and not value.path
        source = receiver(node) if moved and isinstance(node, ast.Call) else None
        found |= {node} if source is None else _origins(value.facts, source, _seen | {id(expression)})
    return found


def _second_order(facts: Facts) -> Iterator[Obstacle]:
    grads = next(facts.calls.to("torch.autograd.grad"), None)
    kept = [
        call
        for call in facts.calls.methods("backward")
        for name in ("create_graph", "retain_graph")
        if (item := keyword(call, name)) is not None and not is_constant(item.value, False)
    ]
    for place in [*([grads] if grads is not None else []), *kept][:1]:
        yield Obstacle(
            "gradients-by-hand",
            f"line {place.lineno} takes gradients in a way that DistributedDataParallel does not follow",
            "convert by hand, and reduce those gradients yourself",
        )


def _prefixes(facts: Facts) -> Iterator[Obstacle]:
    """Names of weights that count on the wrapper's ``module.`` in front of them."""
    for node in ast.walk(facts.source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _PREFIXED.match(node.value):
            yield Obstacle(
                "prefixed-names", f'line {node.lineno} knows a weight by a name with "module." in front', "use the name without it"
            )
            return
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Slice)
            and is_constant(node.slice.lower or node, 7)
            and node.slice.upper is None
        ):
            yield Obstacle(
                "prefixed-names",
                f'line {node.lineno} cuts seven characters ("module.") off, which new files do not have',
                'write key.replace("module.", "", 1)',
            )
            return
