"""What a value that the host has read is for: the program decides by it, shows it, collects it, or hands it to other code."""

from __future__ import annotations

import ast
import enum
from typing import TYPE_CHECKING

from torchfix.facts.code.tree import last_name
from torchfix.facts.project.effects import Effect

if TYPE_CHECKING:
    from torchfix.facts import Facts


class Purpose(enum.Enum):
    """What a value on the host is for."""

    DECIDES = "decides"  # a condition
    SHOWN = "shown"  # printed, logged, or written on a progress bar
    COLLECTED = "collected"  # put into a list or an array, or added up
    ACTED_ON = "acted on"  # given to an environment's step, which the next input comes from
    TAKEN = "taken"  # given to an object that keeps what it needs of it, such as a meter
    PROCESSED = "processed"  # computed with on the host


# Methods of progress bars, logs and streams, whatever makes these objects.
_SHOWING = frozenset(
    """set_postfix set_postfix_str set_description set_description_str log log_metrics log_metric write writerow info debug imwrite imsave
    save_image""".split()
)
_COLLECTING = frozenset("append extend appendleft insert add put concatenate cat hstack vstack stack copy_".split())
# Functions that give what they are given in another form.
_CONVERTING = frozenset(
    """float int bool str round abs min max sum list tuple format len repr array asarray squeeze reshape mean isnan isinf isfinite item
    tolist exp log sqrt log10 dict zip enumerate reversed sorted""".split()
)
_LIMIT = 3  # variables followed


class Purposes:
    """Questions about what values of one file are for."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of(self, expression: ast.expr) -> frozenset[Purpose]:
        """Everything that the value of an expression is used for; empty where it is not used at all."""
        return self._of(expression, 0)

    def _of(self, expression: ast.expr, depth: int) -> frozenset[Purpose]:
        node: ast.AST = expression
        for outer in self._facts.tree.ancestors(expression):
            match outer:
                case ast.If() | ast.While() | ast.IfExp() | ast.Assert() if node is outer.test:
                    return frozenset({Purpose.DECIDES})
                case ast.Call() if node is not outer.func:
                    purpose = self._of_argument(outer)
                    if purpose is not None:
                        return frozenset({purpose})
                case ast.Assign() | ast.AnnAssign() | ast.NamedExpr():
                    return self._of_variable(outer, depth)
                case ast.AugAssign():
                    return frozenset({Purpose.COLLECTED})
                case ast.Raise():
                    return frozenset({Purpose.SHOWN})
                case ast.Expr():
                    return frozenset()
                case ast.stmt():
                    return frozenset({Purpose.TAKEN})
            node = outer
        return frozenset()

    def _of_argument(self, call: ast.Call) -> Purpose | None:
        """What a call does with its arguments; None where its result is the value in another form."""
        facts, name = self._facts, last_name(call.func) or ""
        if facts.effects.own(call) in (Effect.PRINT, Effect.LOG) or name in _SHOWING:
            return Purpose.SHOWN
        if name in _COLLECTING or (facts.calls.meaning(call) or "").startswith("numpy."):
            return Purpose.COLLECTED
        if name == "step" and isinstance(call.func, ast.Attribute) and not self._trains(call.func.value):
            return Purpose.ACTED_ON
        if name in _CONVERTING:
            return None
        if isinstance(self._facts.tree.parent(call), ast.Raise):
            return Purpose.SHOWN
        return Purpose.TAKEN if isinstance(self._facts.tree.parent(call), ast.Expr) else Purpose.PROCESSED

    def _trains(self, stepper: ast.expr) -> bool:
        return bool(self._facts.optimizers.of(stepper)) or self._facts.optimizers.is_scheduler(stepper)

    def _of_variable(self, statement: ast.Assign | ast.AnnAssign | ast.NamedExpr, depth: int) -> frozenset[Purpose]:
        """What the variable is used for that an assignment gives the value to."""
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        found: set[Purpose] = set()
        for target in targets:
            if isinstance(target, ast.Subscript):
                found.add(Purpose.COLLECTED)
            elif not isinstance(target, ast.Name) or depth >= _LIMIT:
                found.add(Purpose.TAKEN)
            else:
                found |= self._of_uses(target, depth)
        return frozenset(found)

    def _of_uses(self, target: ast.Name, depth: int) -> set[Purpose]:
        """What a variable is used for where the value given to it at one place may be read."""
        facts = self._facts
        found: set[Purpose] = set()
        for use in facts.names.uses(target):
            if not isinstance(use.ctx, ast.Load):
                continue
            bindings = facts.flow.reaching(use)
            if any(facts.tree.is_within(target, binding.node) or binding.node is target for binding in bindings):
                found |= self._of(use, depth + 1)
        return found
