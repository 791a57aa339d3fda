"""The places at which a script reports to the outside, grouped as they are when one process does it for all."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import receiver
from torchfix.facts.code.tree import FUNCTIONS, walk_here
from torchfix.facts.obstacle import Obstacle
from torchfix.facts.project.effects import REPORTS, Effect
from torchfix.facts.training.models import derives

if TYPE_CHECKING:
    from torchfix.facts import Facts

Run = tuple[ast.stmt, ast.stmt]
_BLOCKS = ("body", "orelse", "finalbody")
_OBSTACLES = {
    Effect.ASK: ("interactive", "waits for somebody at the keyboard, in every process", "take the answer from the command line"),
    Effect.SHELL: ("shell-command", "runs a command, in every process", "run it before the training, in the shell"),
}


class Reports:
    """Questions about the reporting of one file's main line."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Neighbouring statements that only report, each as its first and its last."""
        return tuple(run for block in self._blocks() for run in self._grouped(block, self._is_report))

    @cached_property
    def preparations(self) -> tuple[Run, ...]:
        """Neighbouring statements that download or prepare files which all processes read."""
        return tuple(run for block in self._blocks() for run in self._grouped(block, self._prepares))

    @cached_property
    def opened(self) -> tuple[ast.Call, ...]:
        """The calls that make a log or an open file for later statements that only report."""
        return tuple(call for call, effects in self._facts.effects.calls() if self._opens(call, effects) and not self._is_covered(call))

    @cached_property
    def bars(self) -> tuple[ast.Call, ...]:
        """The progress bars."""
        return tuple(call for call, effects in self._facts.effects.calls() if effects == {Effect.BAR} and self._is_inside(call))

    def obstacles(self) -> Iterator[Obstacle]:
        """What the script does to the outside that one process cannot do for all."""
        for call, effects in self._facts.effects.calls():
            for effect in effects & _OBSTACLES.keys():
                code, words, help = _OBSTACLES[effect]
                yield Obstacle(code, f"line {call.lineno} {words}", help)
            writes = effects & {Effect.WRITE, Effect.LOG, Effect.OPEN, Effect.DOWNLOAD}
            if writes and not self._is_covered(call) and call not in self.opened:
                what = min(writes, key=lambda effect: effect.name).value
                yield Obstacle(
                    "effect-unseparated",
                    f"line {call.lineno} {what} in the middle of other work, and would do so in every process",
                    "give it a statement of its own in a function of this file",
                )
        for call in self.opened:
            yield from self._uses_of(call)

    # What only reports ----------------------------------------------------------------------------------------

    def only_reports(self, statement: ast.stmt) -> bool:
        """Whether a statement prints, writes or logs and surely does nothing else that later code could notice."""
        if isinstance(statement, ast.Expr):
            return isinstance(statement.value, ast.Call) and self._reports(statement.value)
        if isinstance(statement, ast.If):
            branches = [*statement.body, *statement.orelse]
            return self._facts.purity.is_pure(statement.test) and all(self.only_reports(item) for item in branches)
        if isinstance(statement, (ast.For, ast.With)):
            return self._block_reports(statement)
        return False

    def _reports(self, call: ast.Call) -> bool:
        """Whether a call does nothing but print, write or log, its arguments only computed."""
        if not all(self._is_argument(part) for part in (*call.args, *(item.value for item in call.keywords))):
            return False
        if self._facts.effects.own(call) in REPORTS:
            source = receiver(call)
            return source is None or self._facts.purity.is_pure(source)
        elsewhere = [item for item in called(self._facts, call) if self._facts.effects.is_elsewhere(*item)]
        effects = self._facts.effects.here(call)
        alone = bool(elsewhere) and bool(effects & REPORTS) and effects <= REPORTS | {Effect.OPEN}
        return alone and all(facts.purity.only_computes(function, reports=True) for facts, function in elsewhere)

    def _is_argument(self, part: ast.expr) -> bool:
        """Whether a report may be given an expression: one that only computes, or opens the file to write."""
        if isinstance(part, ast.Call) and self._facts.effects.own(part) is Effect.OPEN:
            return all(self._facts.purity.is_pure(item) for item in (*part.args, *(keyword.value for keyword in part.keywords)))
        return self._facts.purity.is_pure(part)

    def _block_reports(self, block: ast.For | ast.With) -> bool:
        """A loop that prints or writes, or a file that is opened, written and closed; no name of it is read behind it."""
        if not (self._opens_files(block) if isinstance(block, ast.With) else self._goes_over_data(block)):
            return False
        speaking = [self.only_reports(item) or self._writes_to_handle(item) for item in block.body]
        quiet = (item for item, speaks in zip(block.body, speaking) if not speaks)
        return any(speaking) and all(self._is_scratch(item) for item in quiet) and self._leaves_no_name(block)

    def _opens_files(self, block: ast.With) -> bool:
        opened = [item.context_expr for item in block.items]
        return all(
            isinstance(item, ast.Call) and self._facts.effects.own(item) is Effect.OPEN and all(map(self._facts.purity.is_pure, item.args))
            for item in opened
        )

    def _goes_over_data(self, block: ast.For) -> bool:
        """Whether a loop only reads what it goes over; the batches of a loader are made anew."""
        return (
            not block.orelse
            and self._facts.purity.is_pure(block.iter)
            and self._facts.loaders.of(block.iter) is None
            and block not in self._facts.loaders.by_loop
        )

    def _writes_to_handle(self, statement: ast.stmt) -> bool:
        """``f.write(...)`` on an open file."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and self._facts.effects.own(call) is Effect.LOG
            and all(self._facts.purity.is_pure(part) for part in (*call.args, *(item.value for item in call.keywords)))
        )

    def _is_scratch(self, statement: ast.stmt) -> bool:
        """Whether a statement only computes a value for a name."""
        names = isinstance(statement, ast.Assign) and all(isinstance(item, ast.Name) for item in statement.targets)
        return names and isinstance(statement, ast.Assign) and self._facts.purity.is_pure(statement.value)

    def _leaves_no_name(self, block: ast.stmt) -> bool:
        tree, flow = self._facts.tree, self._facts.flow
        bound = [node for node in walk_here(block) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        outside = {
            use
            for name in bound
            for use in self._facts.names.uses(name)
            if isinstance(use.ctx, ast.Load) and not tree.is_within(use, block)
        }
        return not any(tree.is_within(binding.node, block) for use in outside for binding in flow.reaching(use))

    # Which statements -----------------------------------------------------------------------------------------

    def _blocks(self) -> Iterator[list[ast.stmt]]:
        """The blocks of the main line, outermost first; what runs on import is none of it."""
        guard = self._facts.script.guard
        roots = [guard.body] if guard is not None else []
        roots += [function.body for function in self._facts.tree.functions if self._facts.effects.in_main_line(function.body[0])]
        while roots:
            block = roots.pop(0)
            yield block
            for statement in block:
                if self._is_report(statement) or isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                    continue
                roots += [inner for name in _BLOCKS if (inner := getattr(statement, name, None))]
                roots += [item.body for name in ("handlers", "cases") for item in getattr(statement, name, ())]

    def _grouped(self, block: list[ast.stmt], belongs: Callable[[ast.stmt], bool]) -> Iterator[Run]:
        """The runs of neighbours in a block that belong together; a comment between two of them begins a new one."""
        run: list[ast.stmt] = []
        for statement in block:
            follows = bool(run) and not self._comment_between(run[-1], statement)
            if run and not (follows and belongs(statement)):
                yield run[0], run[-1]
                run = []
            if belongs(statement):
                run.append(statement)
        if run:
            yield run[0], run[-1]

    def _comment_between(self, one: ast.stmt, other: ast.stmt) -> bool:
        lines = self._facts.source.lines[(one.end_lineno or one.lineno) : other.lineno - 1]
        return any(line.lstrip().startswith("#") for line in lines)

    def _is_report(self, statement: ast.stmt) -> bool:
        return self.only_reports(statement) and self._has_own_lines(statement)

    def _has_own_lines(self, statement: ast.stmt) -> bool:
        """Whether a statement shares its lines with no other and with no header, so that it can be put under a condition."""
        owner, block, index = self._facts.tree.place(statement)
        beside = [item for item in (*block[max(index - 1, 0) : index], *block[index + 1 : index + 2]) if item is not statement]
        shared = any(item.end_lineno == statement.lineno or item.lineno == statement.end_lineno for item in beside)
        follows_if = isinstance(owner, ast.If) and block is owner.orelse and statement.col_offset == owner.col_offset  # an elif
        return not shared and not follows_if and getattr(owner, "lineno", 0) != statement.lineno

    def _prepares(self, statement: ast.stmt) -> bool:
        if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)) or self._is_parted(statement):
            return False
        return self.readies(statement) and not any(node in self._facts.lockstep.meetings for node in ast.walk(statement))

    def _is_parted(self, statement: ast.stmt) -> bool:
        """Whether a statement makes a loader whose dataset will be made by a statement of its own."""
        here = [loader for loader in self._facts.shares.loaders if loader.facts is self._facts]
        loaders = [loader for loader in here if self._facts.tree.statement(loader.call) is statement]
        return any(self._facts.shares.inline(loader) is not None for loader in loaders)

    def readies(self, node: ast.AST) -> bool:
        """Whether a node downloads or prepares files that all processes read."""
        return any(self._readies(call) for call in ast.walk(node) if isinstance(call, ast.Call))

    def _readies(self, call: ast.Call) -> bool:
        """Whether a call downloads, or makes a dataset whose constructor writes files."""
        effects = self._facts.effects.here(call)
        made = self._facts.names.definition(call.func)
        dataset = made is not None and derives(made, ("torch.utils.data.", "torchvision.datasets."))
        return Effect.DOWNLOAD in effects or (dataset and bool(effects & {Effect.WRITE, Effect.OPEN}))

    def _opens(self, call: ast.Call, effects: frozenset[Effect]) -> bool:
        """Whether a call makes an object that later statements report with, and gives it a name."""
        made = self._facts.names.definition(call.func)
        keeps = made is not None and isinstance(made.node, ast.ClassDef) and not derives(made, ("torch.",)) and bool(effects & REPORTS)
        statement = self._facts.tree.statement(call)
        named = isinstance(statement, ast.Assign) and len(statement.targets) == 1 and self._is_own(statement.targets[0])
        makes = (Effect.OPEN in effects or keeps) and self._facts.effects.own(call) in (None, Effect.OPEN, Effect.LOG)
        return named and makes and self._is_inside(call)

    def _is_own(self, target: ast.expr) -> bool:
        """Whether a target is a variable or an attribute of an object, rather than something of a module (``sys.stdout``)."""
        return isinstance(target, ast.Name) or (isinstance(target, ast.Attribute) and self._facts.names.qualified(target.value) is None)

    def _is_inside(self, call: ast.Call) -> bool:
        """Whether a call runs from the main guard only, when the processes know each other."""
        return self._facts.script.is_started_by_guard(call)

    def _is_covered(self, call: ast.Call) -> bool:
        tree = self._facts.tree
        around = {id(outer) for outer in tree.ancestors(call)}
        for first, last in (*self.runs, *self.preparations):
            block = tree.block(first)
            low, high = block.index(first), block.index(last)
            if any(id(statement) in around for statement in block[low : high + 1]):
                return True
        return self._is_parted(tree.statement(call)) and self._readies(call)

    def _uses_of(self, call: ast.Call) -> Iterator[Obstacle]:
        """Uses of a log that only one process has, other than reporting, handing it on, and asking whether there is one."""
        tree = self._facts.tree
        statement = tree.statement(call)
        assert isinstance(statement, ast.Assign)
        target = statement.targets[0]
        alike = tree.names.get(target.id, []) if isinstance(target, ast.Name) else tree.attributes.get(getattr(target, "attr", ""), [])
        for use in alike:
            if not isinstance(use.ctx, ast.Load) or self._facts.values.of(use) is None or not self._holds(use, call):
                continue
            parent = tree.parent(use)
            reached = isinstance(parent, ast.Attribute) or (isinstance(parent, ast.withitem))
            if reached and not self._is_covered_node(use):
                yield Obstacle(
                    "log-in-use",
                    f"line {use.lineno} needs the log of line {call.lineno}, which only the first process would have",
                    "keep what is computed apart from what is logged",
                )

    def _holds(self, use: ast.expr, call: ast.Call) -> bool:
        return any(value.node is call for value in self._facts.values.of(use) or ())

    def _is_covered_node(self, node: ast.AST) -> bool:
        call = self._facts.tree.nearest(node, ast.Call)
        return call is not None and self._is_covered(call)
