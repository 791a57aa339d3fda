"""Cached device memory: where a program gives it back because something else needs it.

torch keeps the memory of freed tensors. Giving it back helps whoever cannot take it from torch: another process, a
tensor too large for any of the kept pieces, or somebody who reads how much is kept.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import receiver
from torchfix.facts.code.tree import FUNCTIONS, Function, LoopNode, last_name, walk_here
from torchfix.facts.obstacle import Obstacle

if TYPE_CHECKING:
    from torchfix.facts import Facts

EMPTY_CACHE = "torch.cuda.empty_cache"
_CLEARING = (EMPTY_CACHE, "torch.cuda.ipc_collect", "torch.cuda.synchronize", "gc.collect")
_CLOCKS = ("time.time", "time.perf_counter", "time.monotonic", "time.process_time", "time.time_ns", "time.perf_counter_ns")
# What giving memory back changes of what torch.cuda reports; memory_allocated and its maximum count tensors, which stay.
_MEASURES = frozenset(
    """max_memory_reserved memory_reserved max_memory_cached memory_cached memory_stats memory_summary memory_snapshot mem_get_info
    reset_peak_memory_stats reset_max_memory_cached""".split()
)
_LEVELS = _MEASURES | {"memory_allocated", "max_memory_allocated", "memory_usage"}
_SHARING_METHODS = ("share_memory", "share_memory_")
_SHARING_PACKAGES = ("ray", "torch.distributed.rpc")
_OF_NETWORKS = frozenset("eval train parameters named_parameters state_dict load_state_dict generate".split())

_HELPER = Obstacle("own-function", "its function does nothing else", "take the calls of the function out of the loop over batches")
_CONTEXT = Obstacle("own-context", "a with statement around it does nothing else", "remove the with statement, which wakes its device")
_ERROR = Obstacle("error-path", "a finally clause also runs after an error, when the memory may be needed", "do it in the except clause")
_LEAVES = Obstacle("network-leaves", "a network leaves the device beside it, and another may need its memory", "keep them on the device")
_MEASURED = Obstacle("memory-measured", "the memory that torch keeps is measured beside it", "measure torch.cuda.memory_allocated()")
_GUARD = Obstacle("memory-guard", "it runs only where memory is short", "leave it, or free the tensors before")
_SELDOM = Obstacle("now-and-then", "a condition that may seldom hold decides when it runs", "leave it where it follows a rare event")
_SHARED = Obstacle("shared-device", "several processes of the program may share the device", "give each process a device of its own")
_TIMED = Obstacle("timed", "a clock is read behind it, and it waits for the device", "call torch.cuda.synchronize() in its place")
_OPTION = Obstacle("own-option", "an option exists for this alone", "leave the option off, or remove it together with the call")


def is_after_error(facts: Facts, node: ast.AST) -> bool:
    """Whether a place runs only after an error: in an except clause, or under a condition on what one sets."""
    inner = node
    for outer in facts.tree.ancestors(node):
        if isinstance(outer, ast.ExceptHandler):
            return True
        if isinstance(outer, ast.If) and inner in outer.body:
            names = (item for item in ast.walk(outer.test) if isinstance(item, ast.Name))
            set_by = (binding.node for name in names for binding in facts.names.bindings(name))
            if any(facts.tree.nearest(item, ast.ExceptHandler) is not None for item in set_by):
                return True
        if isinstance(outer, FUNCTIONS):
            return False
        inner = outer
    return False


def is_beside_evaluation(facts: Facts, statement: ast.stmt) -> bool:
    """Whether a statement stands under a condition with a loop over batches beside it, as around a periodic evaluation."""
    owner, block, _ = facts.tree.place(statement)
    return isinstance(owner, ast.If) and any(_iterates(facts, node) for item in block for node in walk_here(item))


def _iterates(facts: Facts, node: ast.AST) -> bool:
    """Whether a node is a loop over batches, calls a function with one, or switches a network to evaluation."""
    if facts.repetition.takes_batches(node):
        return True
    if not isinstance(node, ast.Call):
        return False
    definition = facts.names.definition(node.func)
    there, function = (definition.facts, definition.node) if definition is not None else (facts, facts.own_method(node))
    inside = ast.walk(function) if isinstance(function, FUNCTIONS) else ()
    return last_name(node.func) == "eval" or any(there.repetition.takes_batches(item) for item in inside)


def who_needs_it(facts: Facts, statement: ast.stmt) -> Obstacle | None:
    """Why a statement that gives memory back for every batch may have to stay, the conditions around it included."""
    tree = facts.tree
    owner, block, index = tree.place(statement)
    around = facts.repetition.around(statement) or tree.function(statement)
    if isinstance(owner, FUNCTIONS) and all(_only_clears(facts, item) for item in block):
        return _HELPER
    if isinstance(owner, (ast.With, ast.AsyncWith)) and all(_only_clears(facts, item) for item in block):
        return _CONTEXT
    if any(isinstance(outer, ast.Try) and _is_within_any(facts, statement, outer.finalbody) for outer in tree.ancestors(statement)):
        return _ERROR
    if any(_asks_for_memory(facts, test) for test in _tests(facts, statement)):
        return _GUARD
    if around is not None and any(_leaves_device(facts, node) for node in _nodes(around)):
        return _LEAVES
    if around is not None and any(
        _may_be_rare(facts, test, around) for test in _tests(facts, statement) if facts.tree.is_within(test, around)
    ):
        return _SELDOM
    if around is not None and any(isinstance(node, ast.Call) and _reads(facts, node, _MEASURES) for node in _nodes(around)):
        return _MEASURED
    following = next((item for item in block[index + 1 :] if not _only_clears(facts, item)), None)
    if following is not None and any(isinstance(node, ast.Call) and _reads_clock(facts, node) for node in walk_here(following)):
        return _TIMED
    if isinstance(statement, ast.If) and any(_is_own_option(facts, node, statement) for node in ast.walk(statement.test)):
        return _OPTION
    return _SHARED if any(_shares_device(there) for there in facts.program.everywhere) else None


def _only_clears(facts: Facts, statement: ast.stmt) -> bool:
    """Whether a statement does nothing but tidy memory up, or nothing at all."""
    if isinstance(statement, ast.If):
        return all(_only_clears(facts, item) for item in (*statement.body, *statement.orelse))
    if isinstance(statement, ast.Expr):
        value = statement.value
        return isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and facts.calls.meaning(value) in _CLEARING)
    return isinstance(statement, (ast.Pass, ast.Import, ast.ImportFrom))


def _nodes(around: LoopNode | Function) -> Iterator[ast.AST]:
    for statement in around.body:
        yield from walk_here(statement)


def _tests(facts: Facts, statement: ast.stmt) -> Iterator[ast.expr]:
    """The conditions of a statement and of those around it in its function."""
    for outer in (statement, *facts.tree.ancestors(statement)):
        if isinstance(outer, FUNCTIONS):
            return
        if isinstance(outer, ast.If):
            yield outer.test


def _may_be_rare(facts: Facts, test: ast.expr, around: LoopNode | Function) -> bool:
    """Whether a condition changes from one batch to the next, and does not come round by a remainder (``i % 10 == 0``)."""
    if any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) for node in ast.walk(test)):
        return False
    names = (node for node in ast.walk(test) if isinstance(node, ast.Name))
    return any(facts.tree.is_within(binding.node, around) for name in names for binding in facts.names.bindings(name))


def _is_within_any(facts: Facts, node: ast.AST, block: list[ast.stmt]) -> bool:
    return any(facts.tree.is_within(node, item) for item in block)


def _asks_for_memory(facts: Facts, test: ast.expr) -> bool:
    """Whether a condition asks how much device memory is in use, itself or through a variable."""
    for node in ast.walk(test):
        values = facts.values.of(node) or () if isinstance(node, ast.Name) else ()
        for there, made in ((facts, node), *((value.facts, value.node) for value in values)):
            if any(isinstance(item, ast.Call) and _reads(there, item, _LEVELS) for item in ast.walk(made)):
                return True
    return False


def _reads(facts: Facts, call: ast.Call, names: frozenset[str]) -> bool:
    home, _, name = (facts.calls.meaning(call) or "").rpartition(".")
    return home == "torch.cuda" and name in names


def _reads_clock(facts: Facts, call: ast.Call) -> bool:
    recorded = last_name(call.func) == "record" and isinstance(call.func, ast.Attribute)
    return recorded or facts.calls.meaning(call) in _CLOCKS


def _leaves_device(facts: Facts, node: ast.AST) -> bool:
    """Whether a node moves a network to the host, or deletes one."""
    if isinstance(node, ast.Delete):
        return any(isinstance(target, (ast.Name, ast.Attribute)) and _is_network(facts, target) for target in node.targets)
    source = receiver(node) if isinstance(node, ast.Call) else None
    if source is None or not isinstance(node, ast.Call) or last_name(node.func) not in ("cpu", "to"):
        return False
    device = facts.devices.of(node.args[0]) if node.args else None
    if last_name(node.func) == "to" and (device is None or not device.only_cpu):
        return False
    # as a statement of its own a move does something to networks only: a tensor's is another tensor
    return isinstance(facts.tree.parent(node), ast.Expr) or facts.models.is_module(source)


def _is_network(facts: Facts, target: ast.Name | ast.Attribute) -> bool:
    """Whether an expression is a network, by what made it or by what its function does with it."""
    if facts.models.is_module(target):
        return True
    owner: ast.AST = facts.tree.function(target) or facts.tree.module
    name = last_name(target) or ""
    for use in (*facts.tree.names.get(name, ()), *facts.tree.attributes.get(name, ())):
        parent = facts.tree.parent(use)
        called = isinstance(parent, ast.Call) and parent.func is use
        asked = isinstance(parent, ast.Attribute) and parent.attr in _OF_NETWORKS
        if (called or asked) and facts.tree.is_within(use, owner):
            return True
    return False


def _is_own_option(facts: Facts, node: ast.AST, statement: ast.If) -> bool:
    """Whether a part of a condition is a parameter or setting that nothing else reads."""
    if isinstance(node, ast.Name):
        given = facts.names.lookup(node.id, node)
        setting = given is not None and all(isinstance(binding.node, ast.arg) for binding in given[1])
        uses: list[ast.expr] = list(facts.names.uses(node)) if setting else []
        return setting and all(facts.tree.is_within(use, statement) for use in uses)
    if not isinstance(node, ast.Attribute) or facts.names.qualified(node) is not None or facts.devices.of(node.value) is not None:
        return False
    called = facts.tree.parent(node)
    alike = facts.tree.attributes.get(node.attr, ())
    counted = any(isinstance(facts.tree.parent(use), ast.AugAssign) for use in alike)
    read = any(isinstance(use.ctx, ast.Load) and not facts.tree.is_within(use, statement) for use in alike)
    return not (isinstance(called, (ast.Attribute, ast.Call)) or counted or read)


def _shares_device(facts: Facts) -> bool:
    """Whether a file starts processes, or shares tensors with some, that may use the same device."""
    if next(facts.calls.methods(*_SHARING_METHODS), None) is not None:
        return True
    imported = [alias.name for node in facts.tree.imports if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in facts.tree.imports if isinstance(node, ast.ImportFrom)]
    if any(name == package or name.startswith(f"{package}.") for name in imported for package in _SHARING_PACKAGES):
        return True
    return any("multiprocessing." in (facts.calls.meaning(call) or "") for call in facts.tree.calls.get("Process", ()))
