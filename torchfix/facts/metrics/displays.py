"""Progress displays in a loop: statements that only draw over what they drew before, and how to draw less often.

A line that is printed stays, so that leaving some out loses them; a progress bar that is drawn over on each step loses
nothing when it is drawn on some steps only, as long as the last one is among them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import argument, receiver
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import LOOPS, Function, LoopNode, dotted, walk_here
from torchfix.facts.data.loaders import Loader
from torchfix.facts.data.traits import Trait
from torchfix.facts.project.effects import Effect

if TYPE_CHECKING:
    from torchfix.facts import Facts

_EVERY = 10  # steps from one drawing to the next
_BAR_METHODS = ("set_postfix", "set_postfix_str", "set_description", "set_description_str")
_WRITES = ("builtins.print", "sys.stdout.write", "sys.stderr.write")


@dataclass(frozen=True, eq=False)
class Display:
    """Neighbouring statements of a loop's body that only draw, with those that only compute what is drawn.

    Args:
        first, last: the first and the last statement.
        loop: the loop.
    """

    first: ast.stmt
    last: ast.stmt
    loop: LoopNode


@dataclass(frozen=True)
class Pace:
    """When a display is to be drawn: on every tenth step and on the last.

    Args:
        test: the condition, as code.
        counter: the variable that numbers the steps.
        is_new: whether the loop does not have that variable yet.
    """

    test: str
    counter: str
    is_new: bool


class Displays:
    """Questions about what one file draws on the screen while a loop runs."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._drawing: dict[Function, bool] = {}

    def around(self, node: ast.AST, loop: LoopNode) -> Display | None:
        """The display in which a node stands, drawn on the steps of a loop; None where the node is for more than display."""
        statement = self._facts.tree.statement(node)
        block = self._facts.tree.block(statement)
        place = next(index for index, item in enumerate(block) if item is statement)
        low = high = place
        while low and self._belongs(block[low - 1]):
            low -= 1
        while high + 1 < len(block) and self._belongs(block[high + 1]):
            high += 1
        run = block[low : high + 1] if self._belongs(statement) else []
        while run and not self._draws(run[-1]):
            run.pop()  # computed for something behind
        while run and not self._draws(run[0]) and self._is_used_beside(run[0], run, loop):
            del run[0]
        known = statement in run and not any(self._is_used_beside(item, run, loop) for item in run if not self._draws(item))
        return Display(run[0], run[-1], loop) if known and self._is_on_each_step(statement, loop) else None

    def _is_on_each_step(self, statement: ast.stmt, loop: LoopNode) -> bool:
        """Whether a statement runs on all steps of a loop or on none, so that it does on the last if it does at all."""
        tree = self._facts.tree
        for outer in tree.ancestors(statement):
            if outer is loop:
                return True
            if isinstance(outer, ast.If):
                names = [node for node in ast.walk(outer.test) if isinstance(node, ast.Name)]
                changing = any(tree.is_within(item.node, loop) for name in names for item in self._facts.names.bindings(name))
                if changing or any(isinstance(node, ast.Call) for node in ast.walk(outer.test)):
                    return False
            elif not isinstance(outer, (ast.With, ast.AsyncWith)):
                return False
        return False

    def _belongs(self, statement: ast.stmt) -> bool:
        return self._draws(statement) or self._only_computes(statement)

    def _only_computes(self, statement: ast.stmt) -> bool:
        named = isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets)
        return named and isinstance(statement, ast.Assign) and self._facts.purity.is_pure(statement.value)

    def _is_used_beside(self, statement: ast.stmt, run: list[ast.stmt], loop: LoopNode) -> bool:
        """Whether the loop reads what an assignment computes anywhere but in a run; behind the loop the last step's value is read."""
        tree, function = self._facts.tree, self._facts.tree.function(loop)
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        reads = (use for name in names for use in self._facts.names.uses(name) if isinstance(use.ctx, ast.Load))
        near = (use for use in reads if tree.is_within(use, loop) or tree.function(use) is not function)
        return any(not any(tree.is_within(use, item) for item in run) for use in near)

    # What draws -----------------------------------------------------------------------------------------------

    def _draws(self, statement: ast.stmt) -> bool:
        """Whether a statement does nothing but draw over what was drawn before."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(call, ast.Call):
            return False
        given = (*call.args, *(item.value for item in call.keywords))
        return self._redraws(call) and all(self._facts.purity.is_pure(item) for item in given)

    def _redraws(self, call: ast.Call) -> bool:
        meaning, source = self._facts.calls.meaning(call), receiver(call)
        if source is not None and isinstance(call.func, ast.Attribute) and call.func.attr in _BAR_METHODS:
            return self._is_bar(source)
        if meaning in _WRITES:
            end = argument(call, "end")
            return _returns_carriage(end) if end is not None else bool(call.args) and _starts_over(call.args[0])
        functions = list(called(self._facts, call))
        return bool(functions) and all(facts.displays._is_drawing(function) for facts, function in functions)

    def _is_bar(self, source: ast.expr) -> bool:
        """Whether an object is a progress bar of tqdm."""
        made: list[ast.expr | None] = []
        if isinstance(source, ast.Name):
            made = [_assigned(binding) for binding in self._facts.flow.reaching(source)]
        elif isinstance(source, ast.Attribute):
            made = [value for value, path in self._facts.values.assigned(source) or () if not path]
        return bool(made) and all(isinstance(item, ast.Call) and self._facts.effects.own(item) is Effect.BAR for item in made)

    def _is_drawing(self, function: Function) -> bool:
        """Whether a function of the project draws a progress bar over its own line, and changes nothing but its own clock."""
        if function not in self._drawing:
            self._drawing[function] = False  # no bar draws itself
            nodes = [node for statement in function.body for node in walk_here(statement)]
            over = any(isinstance(node, ast.Constant) and isinstance(node.value, str) and {*node.value} & {"\r", "\b"} for node in nodes)
            alone = self._facts.effects.of_function(function) == {Effect.PRINT}
            self._drawing[function] = over and alone and all(self._keeps_to_itself(node, function) for node in nodes)
        return self._drawing[function]

    def _keeps_to_itself(self, node: ast.AST, function: Function) -> bool:
        match node:
            case ast.Nonlocal() | ast.Await() | ast.Yield() | ast.YieldFrom() | ast.Delete():
                return False
            case ast.Return():
                return node.value is None
            case ast.Global():
                return all(self._is_own_global(name, function) for name in node.names)
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                return False
            case ast.Call():
                return self._appends(node) or self._facts.effects.own(node) is Effect.PRINT or self._facts.purity.is_pure(node)
        return True

    def _appends(self, call: ast.Call) -> bool:
        """``parts.append(text)`` to a list that the function makes itself, and ``sys.stdout.flush()``."""
        source = receiver(call)
        if source is None or not isinstance(call.func, ast.Attribute):
            return False
        if call.func.attr == "flush":
            return (self._facts.names.qualified(source) or "").startswith("sys.std")
        bindings = self._facts.names.bindings(source) if isinstance(source, ast.Name) and call.func.attr == "append" else []
        return bool(bindings) and all(isinstance(item.value, ast.List) for item in bindings)

    def _is_own_global(self, name: str, function: Function) -> bool:
        """Whether no other function of the program reads a module's variable."""
        uses = self._facts.tree.names.get(name, ())
        inside = all(self._facts.tree.function(use) in (function, None) for use in uses)
        return inside and not self._facts.project.mentions(name, self._facts.path)

    # How often ------------------------------------------------------------------------------------------------

    def pace(self, loop: LoopNode) -> Pace | None:
        """When to draw what a loop draws on each step; None where it is not known which step is the last."""
        if not isinstance(loop, ast.For) or loop.orelse:
            return None
        counter = self._facts.cadence.counter(loop)
        limit = self._limit(loop, counter)
        if any(self._leaves(node, loop) for node in walk_here(loop) if node is not limit):
            return None
        made = self._facts.values.single(loop.iter)
        call = made.node if made is not None and isinstance(made.node, ast.Call) and counter is not None else None
        offset, ends = 0, [ast.unparse(limit.test.comparators[0])] if limit is not None and isinstance(limit.test, ast.Compare) else []
        if call is not None and self._facts.calls.meaning(call) == "builtins.range":
            bounds = call.args
            if len(bounds) > 2 or call.keywords or not all(_is_simple(item) for item in bounds):
                return None
            ends.append(ast.unparse(bounds[-1]))
        else:
            source = call.args[0] if call is not None and call.args else loop.iter
            start = argument(call, "start", 1) if call is not None else None
            length = self._length(source)
            if length is None or not (start is None or isinstance(start, ast.Constant)):
                return None
            offset = start.value if isinstance(start, ast.Constant) and isinstance(start.value, int) else 0
            ends.append(length)
        name = counter.id if counter is not None else self._facts.names.fresh("step", "batch_step")
        now = name if offset else f"{name} + 1"
        last = f"{now} == {ends[0]}" if len(ends) == 1 else f"{now} in ({', '.join(ends)})"
        return Pace(f"{name} % {_EVERY} == {offset} or {last}", name, counter is None) if offset in (0, 1) else None

    def _limit(self, loop: ast.For, counter: ast.Name | None) -> ast.If | None:
        """``if step >= limit: break`` at the head of a loop's body."""
        head = loop.body[0]
        match head:
            case ast.If(test=ast.Compare(left=ast.Name() as left, ops=[ast.GtE()], comparators=[end]), body=[ast.Break()], orelse=[]):
                same = counter is not None and self._facts.names.same(left, counter)
                return head if same and _is_simple(end) else None
        return None

    def _leaves(self, node: ast.AST, loop: LoopNode) -> bool:
        """Whether a statement may end a loop before its last step, or that step before its end."""
        if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (ast.Break, ast.Continue)) or self._facts.tree.nearest(node, LOOPS) is not loop:
            return False
        counter = self._facts.cadence.counter(loop)
        return self._facts.tree.parent(node) is not (self._limit(loop, counter) if isinstance(loop, ast.For) else None)

    def _length(self, source: ast.expr) -> str | None:
        """How many steps a loop over this makes, as code; None where it may have no length."""
        if isinstance(source, ast.Call) and source.args and self._facts.effects.own(source) is Effect.BAR:
            return self._length(source.args[0])
        if not _is_simple(source) or isinstance(source, ast.Constant):
            return None
        text = ast.unparse(source)
        asked = (call for call in self._facts.tree.calls.get("len", ()) if call.args and dotted(call.args[0]) == text)
        function = self._facts.tree.function(source)
        if any(self._facts.tree.function(call) is function for call in asked) or self._has_length(source):
            return f"len({text})"
        return None

    def _has_length(self, source: ast.expr) -> bool:
        """Whether loaders surely have a length: they shuffle, which takes one, or their datasets are seen and have one."""
        loaders = self._facts.loaders.of(source)
        return bool(loaders) and all(item.shuffles or not _may_be_iterable(item) for item in loaders or ())


def _assigned(binding: Binding) -> ast.expr | None:
    """The expression that a binding gives a variable, also as a part of a tuple that is written out."""
    value = binding.value if binding.how in (Bound.ASSIGN, Bound.WITH) else None
    for index in binding.path:
        value = value.elts[index] if isinstance(value, (ast.Tuple, ast.List)) and index < len(value.elts) else None
    return value


def _may_be_iterable(loader: Loader) -> bool:
    behind = loader.facts.datasets.behind(loader)
    return behind.have(Trait.ITERABLE) or behind.have(Trait.UNSEEN)


def _is_simple(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or dotted(node) is not None


def _returns_carriage(end: ast.expr) -> bool:
    return isinstance(end, ast.Constant) and end.value == "\r"


def _starts_over(text: ast.expr) -> bool:
    """Whether a text begins at the start of the line that is there, and does not end it."""
    parts = [node.value for node in ast.walk(text) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return bool(parts) and parts[0].startswith("\r") and not any("\n" in part for part in parts)
