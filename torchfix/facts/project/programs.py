"""The programs that a file belongs to: which files take part, what runs outside the main guard, and in which processes.

A worker process that is not a fork imports the main script again, so whatever that script does outside its
``if __name__ == "__main__":`` happens in every worker too. What runs there is read by name, more rather than less: a
function counts as run as soon as something that runs mentions its name.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, is_constant
from torchfix.facts.code.tree import FUNCTIONS, Function, walk

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Words that a file holds which runs a process for each device.
_PER_DEVICE = ("init_process_group", "DistributedDataParallel", "DistributedSampler", "spawn", "horovod", "init_rpc")
_MULTIPROCESSING = ("multiprocessing.", "torch.multiprocessing.", "multiprocess.")
_POOL_METHODS = ("map", "map_async", "imap", "imap_unordered", "starmap", "starmap_async", "apply", "apply_async")


class Program:
    """Questions about the programs of which one file is a part."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    # Files ----------------------------------------------------------------------------------------------------

    @cached_property
    def imports(self) -> tuple[Facts, ...]:
        """The files of the project that this file imports itself."""
        return self._load(self._facts.project.imports(self._facts.path))

    @cached_property
    def files(self) -> tuple[Facts, ...]:
        """This file and those that it imports, directly or through others."""
        return self._load(_closure([self._facts.path], self._facts.project.imports))

    @cached_property
    def scripts(self) -> tuple[Facts, ...]:
        """This file and those that import it, directly or through others: the scripts by which it may come to run."""
        return self._load(self._script_paths)

    @cached_property
    def everywhere(self) -> tuple[Facts, ...]:
        """All files of all programs that this file is a part of.

        In a big project these may be hundreds, each of them parsed: :meth:`holding` asks for those that matter.
        """
        return self._load(self._paths)

    def holding(self, *words: str) -> tuple[Facts, ...]:
        """Of :attr:`everywhere` the files that hold one of these words, and this file itself."""
        held = {path for word in words for path in self._facts.project.holding(word)}
        return self._load(path for path in self._paths if path in held or path == self._facts.path)

    def _load(self, paths: Iterable[str]) -> tuple[Facts, ...]:
        found = (self._facts if path == self._facts.path else self._facts.project.file(path) for path in paths)
        return tuple(facts for facts in found if facts is not None)

    @cached_property
    def _script_paths(self) -> tuple[str, ...]:
        project = self._facts.project
        return _closure([self._facts.path], lambda path: [other for other in project.importers(path) if path in project.imports(other)])

    @cached_property
    def _paths(self) -> tuple[str, ...]:
        return _closure(self._script_paths, self._facts.project.imports)

    # The main guard -------------------------------------------------------------------------------------------

    def runs_unguarded(self, node: ast.AST) -> bool:
        """Whether a node of this file may run while one of its scripts is imported, outside the main guard."""
        function = self._facts.tree.function(node)
        if function is None:
            return not self.is_guarded(node)
        return any(function in script.program._unguarded for script in self.scripts)

    def unguarded_start(self, node: ast.AST) -> tuple[Facts, ast.stmt] | None:
        """The first statement at the top of a script, outside its main guard, that may come to run a node of this file."""
        function = self._facts.tree.function(node)
        if function is None:
            return None if self.is_guarded(node) else (self._facts, self._facts.tree.top(node))
        for script in self.scripts:
            for statement in script.tree.module.body if function in script.program._unguarded else ():
                if isinstance(statement, (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)):
                    continue
                if function in script.program._reached(_evaluated(statement)):
                    return script, statement
        return None

    def is_guarded(self, node: ast.AST) -> bool:
        """Whether a node stands under ``if __name__ == "__main__":``."""
        inner = node
        for outer in self._facts.tree.ancestors(node):
            if isinstance(outer, ast.If) and is_main_guard(outer.test) and inner in outer.body:
                return True
            inner = outer
        return False

    @cached_property
    def _unguarded(self) -> frozenset[Function]:
        """The functions that may run while this file is imported."""
        return self._reached(node for facts in self.files for statement in facts.tree.module.body for node in _evaluated(statement))

    @cached_property
    def guarded(self) -> frozenset[Function]:
        """The functions that the main guard of this file may run, directly or through others."""
        guards = [item for item in self._facts.tree.module.body if isinstance(item, ast.If) and is_main_guard(item.test)]
        return self._reached(node for guard in guards for statement in guard.body for node in _evaluated(statement))

    def runs(self, facts: Facts, node: ast.AST) -> bool:
        """Whether a node of one of :attr:`files` may run where this file is the script."""
        function = facts.tree.function(node)
        if function is None:
            return facts is self._facts or not facts.program.is_guarded(node)
        return function in self._unguarded or function in self.guarded

    def _reached(self, nodes: Iterable[ast.AST]) -> frozenset[Function]:
        """The functions of :attr:`files` that some nodes may run, directly or through others."""
        found: set[Function] = set()
        waiting = list(_words(nodes))
        seen: set[str] = set(waiting)
        while waiting:
            for run in self._run_by_word.get(waiting.pop(), ()):
                if isinstance(run, ast.ClassDef):
                    new = _words(run.bases) - seen
                else:
                    found.add(run)
                    new = set(_words_inside(run)) - seen
                seen |= new
                waiting += new
        return frozenset(found)

    @cached_property
    def _run_by_word(self) -> dict[str, list[Function | ast.ClassDef]]:
        """What the mention of a word may run in :attr:`files`: functions by their names, special methods by their class's."""
        found: dict[str, list[Function | ast.ClassDef]] = defaultdict(list)
        for facts in self.files:
            for function in facts.tree.functions:
                owner = facts.tree.class_of(function)
                special = owner is not None and function.name.startswith("__")
                found[owner.name if owner is not None and special else function.name].append(function)
            for owner in facts.tree.classes:
                found[owner.name].append(owner)  # for the special methods of its bases
        return found

    def may_run(self, facts: Facts, node: ast.AST) -> bool:
        """Whether a node of one of :attr:`everywhere` may run in a program that runs this file's code."""
        function = facts.tree.function(node)
        if function is not None:
            return function in self._running
        return not facts.program.is_guarded(node) or facts in self.scripts

    @cached_property
    def _running(self) -> frozenset[Function]:
        """The functions that this file's code and the scripts by which it runs may come to, by name."""
        own = self._reached(walk(self._facts.tree.module))
        return own.union(*(script.program._unguarded | script.program.guarded for script in self.scripts))

    # Processes ------------------------------------------------------------------------------------------------

    @cached_property
    def runs_process_per_device(self) -> bool:
        """Whether one of the programs runs a process for each device."""
        return any(
            facts.regions.is_distributed()
            or "Horovod" in facts.regions.frameworks()
            or next(facts.calls.to("torch.distributed.rpc.init_rpc"), None) is not None
            for facts in self.holding(*_PER_DEVICE)
        )

    @cached_property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks that some file of the programs imports, by the names that people know."""
        return tuple(dict.fromkeys(name for facts in self.everywhere for name in facts.regions.frameworks()))

    @cached_property
    def in_charge(self) -> tuple[str, ...]:
        """The frameworks of which some file of the programs uses what runs the training step."""
        return tuple(dict.fromkeys(name for facts in self.everywhere for name in facts.regions.in_charge()))

    @cached_property
    def forks(self) -> bool:
        """Whether new processes are surely forks of their parent: declared by the project, or set by every script."""
        if self._facts.project.forks:
            return True
        starts = [script for script in self.scripts if not any(script in other.program.imports for other in self.scripts)]
        return bool(starts) and all(script.program._start_methods == {"fork"} for script in starts)

    @cached_property
    def _start_methods(self) -> frozenset[str]:
        """The start methods that a program sets; ``"?"`` for one that is not known."""
        found = []
        for facts in self.files:
            for call in facts.tree.calls.get("set_start_method", ()):
                given = argument(call, "method", 0)
                found.append(str(given.value) if isinstance(given, ast.Constant) else "?")
        return frozenset(found)

    def starts_processes(self, beside: ast.AST) -> bool:
        """Whether the function that holds a node of this file, or the module's own code, starts processes."""
        function = self._facts.tree.function(beside)
        return any(
            _starts_process(self._facts, call) and self._facts.tree.function(call) is function
            for name in _STARTERS
            for call in self._facts.tree.calls.get(name, ())
        )

    def is_daemonic(self, node: ast.AST) -> bool:
        """Whether a node of this file may run in a daemonic process, which may not start processes of its own."""
        function = self._facts.tree.function(node)
        return function is not None and any(function in script.program._daemonic for script in self.scripts)

    @cached_property
    def run_apart(self) -> frozenset[Function]:
        """The functions that may run in processes which the program starts, and which take no switches over from their parent."""
        return self._reached(node for facts in self.files for target in _process_targets(facts) for node in ast.walk(target))

    @cached_property
    def _daemonic(self) -> frozenset[Function]:
        """The functions that may run in daemonic processes: in pools, and where ``daemon`` is set."""
        return self._reached(node for facts in self.files for target in _daemon_targets(facts) for node in ast.walk(target))


_STARTERS = ("Process", "Pool", "ProcessPoolExecutor", "fork")


def _starts_process(facts: Facts, call: ast.Call) -> bool:
    meaning = facts.calls.meaning(call) or ""
    return meaning.startswith((*_MULTIPROCESSING, "concurrent.futures.ProcessPool")) or meaning == "os.fork"


def _process_targets(facts: Facts) -> Iterator[ast.expr]:
    """The expressions that a file runs in processes of their own."""
    for call in facts.tree.calls.get("Process", ()):
        if _starts_process(facts, call) and (target := argument(call, "target", 1)) is not None:
            yield target
    for call in facts.tree.calls.get("spawn", ()):
        if _starts_process(facts, call) and (target := argument(call, "fn", 0)) is not None:
            yield target


def _daemon_targets(facts: Facts) -> Iterator[ast.expr]:
    """The expressions that a file runs in daemonic processes."""
    later = any(isinstance(use.ctx, ast.Store) for use in facts.tree.attributes.get("daemon", ()))
    for call in facts.tree.calls.get("Process", ()):
        target, daemon = argument(call, "target", 1), argument(call, "daemon")
        if target is not None and (later or not (daemon is None or is_constant(daemon, False))):
            yield target
    if any(_starts_process(facts, call) for call in facts.tree.calls.get("Pool", ())):
        for call in facts.calls.methods(*_POOL_METHODS):
            yield from call.args[:1]


def _closure(paths: Iterable[str], step: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    found = dict.fromkeys(paths)
    waiting = list(found)
    while waiting:
        for other in step(waiting.pop()):
            if other not in found:
                found[other] = None
                waiting.append(other)
    return tuple(found)


def is_main_guard(test: ast.expr) -> bool:
    """Whether a condition is that of ``if __name__ == "__main__":``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(is_main_guard(item) for item in test.values)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = (test.left, test.comparators[0])
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides) and any(
        is_constant(side, "__main__") for side in sides
    )


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """What is evaluated when a statement runs: no bodies of functions, and nothing under the main guard."""
    yield node
    if isinstance(node, FUNCTIONS):
        children: Iterable[ast.AST] = [*node.decorator_list, *node.args.defaults, *(item for item in node.args.kw_defaults if item)]
    elif isinstance(node, ast.ClassDef):
        children = [*node.decorator_list, *node.body]
    elif isinstance(node, ast.If) and is_main_guard(node.test):
        children = node.orelse
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from _evaluated(child)


@functools.lru_cache(maxsize=16384)
def _words_inside(function: Function) -> frozenset[str]:
    """The names that a function's body reads when it runs."""
    return frozenset(_words(node for statement in function.body for node in _evaluated(statement)))


def _words(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that nodes read, each the last of a chain."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
    return found
