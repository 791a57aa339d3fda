"""Where an object that lives beside another one can be made, and how it reaches the code that needs it.

A scaler lives beside its optimizer: it is made behind the statement that makes the optimizer, and goes wherever the
optimizer goes, as a variable that the loop can read or through the parameters of the functions in between, which may
stand in several files of the project.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import is_constant
from torchfix.facts.code.classes import is_static, lineage, listing
from torchfix.facts.code.names import Definition
from torchfix.facts.code.scopes import Binding, Bound
from torchfix.facts.code.tree import FUNCTIONS, LOOPS, Function, dotted, last_name
from torchfix.facts.code.values import is_default, passed
from torchfix.facts.obstacle import Obstacle

if TYPE_CHECKING:
    from torchfix.facts import Facts

_DEPTH = 4  # functions through which an object is handed on
_STATES = {"state_dict", "load_state_dict"}


@dataclass(frozen=True, eq=False)
class Pass:
    """A function that is handed the object.

    Args:
        facts: the function's file.
        function: the function.
        caller: the file of the calls.
        calls: every call that hands on an object of this origin.
    """

    facts: Facts
    function: Function
    caller: Facts
    calls: tuple[ast.Call, ...]


@dataclass(frozen=True, eq=False)
class Companion:
    """One place where a companion can be made.

    Args:
        facts: the file in which that is.
        after: the statement behind which it can be made.
        variable: what the object is called there.
        owner: ``"self."`` where the object is an attribute of the instance, so that its companion must be one too.
        passes: the functions that must be handed it, the innermost first.
    """

    facts: Facts
    after: ast.stmt
    variable: ast.Name | ast.Attribute
    owner: str = ""
    passes: tuple[Pass, ...] = ()

    @property
    def home(self) -> tuple[Facts, Function | None]:
        """The scope in which it would get its name."""
        return self.facts, self.facts.tree.function(self.after)


class Companions:
    """Questions about companions of what one file uses."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of(self, expression: ast.expr, depth: int = 0) -> tuple[Companion, ...] | Obstacle:
        """Where companions of the objects that an expression may name can be made, one for each object."""
        if isinstance(expression, ast.Attribute):
            return self._of_attribute(expression)
        if not isinstance(expression, ast.Name):
            return _elsewhere(expression)
        found = self._facts.names.lookup(expression.id, expression)
        if found is None:
            return _elsewhere(expression)
        scope, bindings = found
        if self._facts.names.scope(expression) is scope:
            bindings = self._facts.flow.reaching(expression)
        if len(bindings) == 1 and bindings[0].how is Bound.PARAMETER:
            return self._handed(expression, bindings[0], depth)
        statements = [self._facts.tree.statement(binding.node) for binding in bindings if binding.how is Bound.ASSIGN]
        home = scope.node if isinstance(scope.node, FUNCTIONS) else None
        if not statements or len(statements) != len(bindings) or any(self._facts.tree.function(item) is not home for item in statements):
            return _elsewhere(expression)
        other = _other_name(statements[0]) if len(statements) == 1 and depth < _DEPTH else None
        if other is not None:
            same = self.of(other, depth + 1)
            if not isinstance(same, Obstacle):
                return same
        after = self._last(statements)
        if not self._is_before(after, expression) or not all(self._is_made_with(expression, item) for item in statements):
            return _elsewhere(expression)
        return (Companion(self._facts, after, expression),)

    def shared(self, companion: Companion, loop: ast.AST, within: Facts) -> Companion:
        """The same companion behind the optimizers that are made next to its own, so that one of a name serves them all.

        Nothing in between may need it: the loop, the calls that hand it on, or states that are saved and loaded.

        Args:
            companion: one of this file.
            loop: the code that uses it.
            within: the file of that code.
        """
        facts, tree = self._facts, self._facts.tree
        _, block, index = tree.place(companion.after)
        made = [place for place in range(index + 1, len(block)) if self._makes_optimizer(block[place])]
        handed = {call for step in companion.passes for call in step.calls}
        for place in range(index + 1, made[-1] + 1) if made else ():
            reached = list(facts.reach.calls([block[place]]))
            runs = any(call in handed or (there is within and there.tree.is_within(call, loop)) for there, call in reached)
            if runs or (facts is within and tree.is_within(loop, block[place])) or _STATES & {last_name(call.func) for _, call in reached}:
                made = [item for item in made if item < place]
                break
        return replace(companion, after=block[made[-1]]) if made else companion

    def _makes_optimizer(self, statement: ast.stmt) -> bool:
        made = statement.value if isinstance(statement, ast.Assign) else None
        return isinstance(made, ast.Call) and bool(self._facts.optimizers.of(made))

    def _is_made_with(self, expression: ast.expr, statement: ast.stmt) -> bool:
        """Whether what a variable holds is made each time that the code around a statement runs: the innermost loop, or the function.

        Where it was made before, and is only taken out of something, its companion must not be made anew either.
        """
        tree = self._facts.tree
        around = next((outer for outer in tree.ancestors(statement) if isinstance(outer, (*LOOPS, *FUNCTIONS))), None)
        if around is None:
            return True  # a module runs once
        made = {value.node for value in self._facts.values.of(expression) or () if isinstance(value.node, ast.Call)}
        apart = {call for call in made if not tree.is_within(call, around)}
        return not apart or apart <= {call for _, call in self._facts.reach.calls(around.body)}

    def _of_attribute(self, expression: ast.Attribute) -> tuple[Companion, ...] | Obstacle:
        """An attribute of the instance, assigned at one place of its class; None, which may hold its place until then, is nothing."""
        facts, tree = self._facts, self._facts.tree
        root = expression.value
        if not isinstance(root, ast.Name) or not facts.is_self(root):
            return _elsewhere(expression)
        owner = tree.method_class(expression)
        stores = [
            tree.statement(use)
            for use in tree.attributes[expression.attr]
            if isinstance(use.ctx, ast.Store)
            and isinstance(use.value, ast.Name)
            and facts.is_self(use.value)
            and tree.method_class(use) is owner
        ]
        made = [item for item in stores if not (isinstance(item, ast.Assign) and is_constant(item.value, None))]
        if len(made) != 1 or not isinstance(made[0], ast.Assign):
            return _elsewhere(expression)
        after = made[0]
        below = facts.classes.heirs(owner) if owner is not None else ()
        counted = listing((*lineage(Definition(facts, owner)), *below)) if owner is not None else None
        if counted is not None:
            return _counted(*counted)
        return (Companion(facts, after, expression, f"{root.id}."),) if self._is_before(after, expression) else _elsewhere(expression)

    def _handed(self, expression: ast.Name, binding: Binding, depth: int) -> tuple[Companion, ...] | Obstacle:
        """A parameter: what every caller hands on, in whatever file of the project it stands."""
        tree = self._facts.tree
        signature = tree.parent(binding.node)
        function = tree.parent(signature) if signature is not None else None
        calls = self._facts.callers_everywhere(function) if isinstance(function, FUNCTIONS) and depth < _DEPTH else None
        if not calls or not isinstance(function, FUNCTIONS) or not isinstance(binding.node, ast.arg) or function.args.vararg:
            return _elsewhere(expression)  # behind ``*args`` one more parameter would take what is meant for them
        if self._has_other_versions(function) or any([run for _, run in called(*place)] != [function] for place in calls):
            return _elsewhere(expression)  # what else a call may run would not know the parameter
        handed: dict[ast.stmt, list[tuple[Companion, ast.Call]]] = defaultdict(list)
        for caller, call in calls:
            given = passed(call, function, binding.node, bound=tree.class_of(function) is not None)
            if given is None or is_default(given, function) or is_constant(given, None):
                return _elsewhere(expression)
            companions = caller.companions.of(given, depth + 1)
            if isinstance(companions, Obstacle):
                return companions
            for companion in companions:
                handed[companion.after].append((companion, call))
        found = []
        for origin in handed.values():
            first, _ = origin[0]
            if any([step.function for step in item.passes] != [step.function for step in first.passes] for item, _ in origin):
                return _elsewhere(expression)
            caller = first.passes[0].facts if first.passes else first.facts
            step = Pass(self._facts, function, caller, tuple(call for _, call in origin))
            found.append(replace(first, passes=(step, *first.passes)))
        if len({companion.home for companion in found}) < len(found):
            return _elsewhere(expression)  # two companions of one name
        return tuple(found)

    def _has_other_versions(self, function: Function) -> bool:
        """Whether a function is a method that its class does not run as a plain one, or that a class below it writes anew."""
        owner = self._facts.tree.class_of(function)
        if owner is None:
            return False
        below = (item for heir in self._facts.classes.heirs(owner) for item in getattr(heir.node, "body", ()))
        return is_static(Definition(self._facts, function)) or any(
            isinstance(item, FUNCTIONS) and item.name == function.name for item in below
        )

    def _is_before(self, statement: ast.stmt, use: ast.expr) -> bool:
        """Whether a statement is over where the object is used; in another function it is taken to have run."""
        here = self._facts.tree.function(statement) is self._facts.tree.function(use)
        return not here or (statement.end_lineno or statement.lineno) < use.lineno

    def _last(self, statements: list[ast.stmt]) -> ast.stmt:
        """The statement behind which all of these have happened: the last one, or what holds it beside the others."""
        tree = self._facts.tree
        chains = []
        for statement in statements:
            chain = [statement]
            while isinstance(parent := tree.parent(chain[0]), ast.stmt) and not isinstance(parent, FUNCTIONS):
                chain.insert(0, parent)
            chains.append(chain)
        shared = 0
        while all(len(chain) > shared + 1 and chain[shared] is chains[0][shared] for chain in chains):
            block = tree.block(chains[0][shared + 1])
            if any(tree.block(chain[shared + 1]) is not block for chain in chains):
                break
            shared += 1
        return max((chain[shared] for chain in chains), key=lambda item: item.lineno)

    # What other expressions of the loop are called there --------------------------------------------------------

    def text(self, expression: ast.expr | None, companion: Companion) -> str | None:
        """How to write, where the companion is made, what an expression means in the loop; None where that is not known."""
        root = _root(expression) if expression is not None else None
        if expression is None or root is None:
            return None
        attributes = ast.unparse(expression)[len(root.id) :]
        current: ast.expr | None = root if companion.passes else expression
        for step in companion.passes:
            current = step.facts.companions._before(current, step) if current is not None else None
        if current is None or not companion.facts.companions._readable(current, companion.after):
            return None
        return ast.unparse(current) + (attributes if companion.passes else "")

    def _before(self, expression: ast.expr, step: Pass) -> ast.expr | None:
        """What the calls of a function hand it where its body says ``expression``; the same where that is a global of both files."""
        tree = self._facts.tree
        root = _root(expression)
        found = self._facts.names.lookup(root.id, root) if root is not None else None
        if found is None or root is None:
            return None
        if found[0] is self._facts.names.module:
            return expression if step.caller is self._facts else None
        bindings = found[1]
        if (
            len(bindings) != 1
            or bindings[0].how is not Bound.PARAMETER
            or not isinstance(bindings[0].node, ast.arg)
            or expression is not root
            or found[0].node is not step.function
        ):
            return None
        bound = tree.class_of(step.function) is not None
        given = [passed(call, step.function, bindings[0].node, bound) for call in step.calls]
        if any(item is None or (is_default(item, step.function) and step.caller is not self._facts) for item in given):
            return None
        return given[0] if len({ast.dump(item) for item in given if item is not None}) == 1 else None

    def _readable(self, expression: ast.expr, at: ast.stmt) -> bool:
        """Whether a variable, or an attribute of one, means the same behind a statement and is bound before it."""
        facts, tree = self._facts, self._facts.tree
        root = _root(expression)
        if root is None:
            return False
        here, there = facts.names.lookup(root.id, root), facts.names.lookup(root.id, at)
        if facts.is_self(root):
            return self._is_set_before(expression, at)
        if here is None or there is None or here[0] is not there[0]:
            return False
        if facts.names.scope(at) is not here[0]:
            return True
        return any(binding.how is Bound.PARAMETER or tree.statement(binding.node).lineno <= at.lineno for binding in here[1])

    def _is_set_before(self, expression: ast.expr, at: ast.stmt) -> bool:
        """Whether an attribute of the instance is set in the same method before a statement, or in the constructor."""
        tree, name = self._facts.tree, dotted(expression)
        method = tree.function(at)
        if not isinstance(expression, ast.Attribute) or method is None or tree.method_class(at) is not tree.method_class(expression):
            return False
        for use in tree.attributes[expression.attr]:
            if isinstance(use.ctx, ast.Store) and dotted(use) == name and tree.method_class(use) is tree.method_class(at):
                home = tree.function(use)
                if (home is method and use.lineno < at.lineno) or (home is not None and home is not method and home.name == "__init__"):
                    return True
        return False


def _root(expression: ast.expr) -> ast.Name | None:
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return expression if isinstance(expression, ast.Name) else None


def _other_name(statement: ast.stmt) -> ast.Name | ast.Attribute | None:
    """What a statement only gives another name."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
        return None
    return statement.value if isinstance(statement.value, (ast.Name, ast.Attribute)) else None


def _elsewhere(expression: ast.expr) -> Obstacle:
    return Obstacle(
        "optimizer-elsewhere",
        f"{ast.unparse(expression)} is made where no scaler can be made beside it and handed to this loop",
        "make the optimizer in the loop's function, or in one that hands it on",
    )


def _counted(facts: Facts, node: ast.AST) -> Obstacle:
    return Obstacle(
        "attributes-listed",
        f"{facts.path}:{getattr(node, 'lineno', 1)} limits the attributes of such objects or goes through all of them, with the new ones",
        "make the optimizer outside of the object and hand it to the method that trains",
    )
