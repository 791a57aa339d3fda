"""What a program uses of NVIDIA's Apex, and what it asked Apex's automatic mixed precision for.

Apex changed torch's functions for the whole program (level O1) or the weights of the network (O2 and O3). Its names are
often bound twice, by an import that may fail and by the stand-in for it: a use counts as Apex's wherever one of the
bindings is Apex's, because the program only comes there with Apex.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import argument, has_stars, is_constant
from torchfix.facts.code.tree import dotted
from torchfix.facts.obstacle import Obstacle

if TYPE_CHECKING:
    from torchfix.facts import Facts

AMP = "apex.amp"
"""Apex's automatic mixed precision."""
# What apex.amp.initialize takes, in its order (apex/amp/frontend.py).
_PARAMETERS = (
    "models",
    "optimizers",
    "enabled",
    "opt_level",
    "cast_model_type",
    "patch_torch_functions",
    "keep_batchnorm_fp32",
    "master_weights",
    "loss_scale",
    "cast_model_outputs",
    "num_losses",
    "verbosity",
    "min_loss_scale",
    "max_loss_scale",
)
# Those that make something else of a level.
_OVERRIDES = ("cast_model_type", "patch_torch_functions", "master_weights", "cast_model_outputs")
_LEVELS = {
    "O2": "level O2 trains float16 weights beside float32 copies of them, and torch has no twin of that",
    "O3": "level O3 trains in nothing but float16, and torch has no twin of that",
}


@dataclass(frozen=True, eq=False)
class Use:
    """One use of something of Apex.

    Args:
        facts: the file.
        node: the chain of names as it is written.
        name: the dotted name that it means (``apex.amp.initialize``); ``apex.amp`` itself where that is asked for or handed on.
        call: the call of it, None for anything else.
        statement: the import that brings it.
        alias: the part of that import.
    """

    facts: Facts
    node: ast.Name | ast.Attribute
    name: str
    call: ast.Call | None
    statement: ast.Import | ast.ImportFrom
    alias: ast.alias

    @property
    def root(self) -> ast.Name:
        """The name that the chain begins with."""
        node: ast.expr = self.node
        while isinstance(node, ast.Attribute):
            node = node.value
        assert isinstance(node, ast.Name)
        return node

    @property
    def is_lent(self) -> bool:
        """Whether another file may take the imported name from this one."""
        return any(item.node is self.node and item.is_lent for item in self.facts.references.to([self.name]))

    @property
    def imported(self) -> tuple[str, str | None]:
        """The module, and the name of it, that the import brings."""
        return (self.statement.module or "", self.alias.name) if isinstance(self.statement, ast.ImportFrom) else (self.alias.name, None)

    @property
    def word(self) -> str:
        """What it is of :data:`AMP`: ``initialize``, or nothing for ``apex.amp`` itself."""
        return self.name[len(AMP) + 1 :]


def imports_of(facts: Facts) -> Iterator[tuple[ast.Import | ast.ImportFrom, ast.alias]]:
    """What a file imports of Apex, also where the import may fail; a module of the project with that name is none."""
    if facts.project.module("apex", facts.path) is not None:
        return
    for node in facts.tree.imports:
        for alias in node.names:
            module = alias.name if isinstance(node, ast.Import) else node.module or ""
            if module.partition(".")[0] == "apex" and not getattr(node, "level", 0):
                yield node, alias


def uses_of(facts: Facts) -> tuple[Use, ...]:
    """Everything that a file does with Apex, in text order."""
    found: dict[ast.AST, Use] = {}
    for statement, alias in imports_of(facts):
        local = alias.asname or alias.name.partition(".")[0]
        origin = f"{statement.module}.{alias.name}" if isinstance(statement, ast.ImportFrom) else alias.name if alias.asname else "apex"
        for name in facts.tree.names.get(local, ()):
            bound = facts.names.lookup(name.id, name)
            if isinstance(name.ctx, ast.Load) and bound is not None and any(item.node is statement for item in bound[1]):
                found[name] = _use(facts, name, origin, statement, alias)
    return tuple(sorted(found.values(), key=lambda use: (use.node.lineno, use.node.col_offset)))


def amp_uses(facts: Facts) -> tuple[Use, ...]:
    """Everything that a file does with Apex's mixed precision, in text order."""
    return tuple(use for use in uses_of(facts) if use.name.startswith(AMP))


def _use(facts: Facts, name: ast.Name, origin: str, statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> Use:
    node: ast.Name | ast.Attribute = name
    while isinstance(outer := facts.tree.parent(node), ast.Attribute):
        node = outer
    written = dotted(node)
    assert written is not None
    parent = facts.tree.parent(node)
    call = parent if isinstance(parent, ast.Call) and parent.func is node else None
    return Use(facts, node, origin + written[len(name.id) :], call, statement, alias)


def brings_apex(statement: ast.stmt) -> bool:
    """Whether a statement imports Apex, or complains that it is missing."""
    if isinstance(statement, ast.Try):
        return all(map(brings_apex, statement.body)) and not statement.orelse and not statement.finalbody
    modules = [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
    modules += [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
    return bool(modules) and all(name.partition(".")[0] == "apex" for name in modules)


@dataclass(frozen=True, eq=False)
class Request:
    """What a program asks Apex for, at level O1 or O0.

    Args:
        use: the use of ``apex.amp.initialize``.
        call: its call.
        models, optimizers: what it is given; it returns them as they are.
        level: ``O1`` or ``O0``: what a run computes in that sets no option.
        option: the option of the command line that chooses the level, None where it is settled.
        enabled: what switches Apex on and off, None where it is on.
        scale: the scale that losses keep; None where it is adapted to the gradients.
    """

    use: Use
    call: ast.Call
    models: ast.expr
    optimizers: ast.expr | None
    level: str
    option: ast.Attribute | None
    enabled: ast.expr | None
    scale: float | None

    def given(self, name: str) -> ast.expr | None:
        """An argument of the call, None where it is left out or None."""
        return _given(self.call, name)


def request_of(use: Use) -> Request | Obstacle:
    """What one call of ``apex.amp.initialize`` asks for, or why torch has no twin of it."""
    call = use.call
    if call is None or has_stars(call):
        return Obstacle(
            "apex-arguments", "what apex.amp.initialize is asked for is hidden behind stars or handed on", "write the arguments out"
        )
    models = _given(call, "models")
    overridden = [name for name in _OVERRIDES if _given(call, name) is not None]
    if overridden or models is None:
        return Obstacle(
            "apex-arguments",
            f"{', '.join(overridden) or 'an argument'} makes something else of the level",
            "decide by hand what torch.autocast is to do in its place",
        )
    found = _level(use, _given(call, "opt_level"))
    if isinstance(found, Obstacle):
        return found
    level, option = found
    scale = _given(call, "loss_scale")
    settled = None if scale is None or is_constant(scale, "dynamic") else _number(scale)
    if settled is None and scale is not None and not is_constant(scale, "dynamic"):
        return Obstacle(
            "loss-scale",
            f"{ast.unparse(scale)} chooses the loss scale when the program runs",
            'write loss_scale="dynamic", or a number',
        )
    enabled = _given(call, "enabled")
    return Request(use, call, models, _given(call, "optimizers"), level, option, enabled, settled)


def _number(expression: ast.expr) -> float | None:
    """The number that a literal is, which may be written as a string."""
    value = expression.value if isinstance(expression, ast.Constant) else None
    try:
        return float(value) if isinstance(value, (int, float, str)) else None
    except ValueError:
        return None


def _given(call: ast.Call, name: str) -> ast.expr | None:
    found = argument(call, name, _PARAMETERS.index(name))
    return None if is_constant(found, None) or (name == "enabled" and is_constant(found, True)) else found


def _level(use: Use, given: ast.expr | None) -> tuple[str, ast.Attribute | None] | Obstacle:
    """The level that a plain run has, and the option that chooses another one."""
    if given is None:
        return "O1", None
    values = use.facts.values.of(given) or ()
    nodes = [value.node for value in values if not value.path]
    words = {node.value for node in nodes if isinstance(node, ast.Constant)}
    option = None
    if len(nodes) == len(values) == 1 and isinstance(given, ast.Attribute) and isinstance(nodes[0], ast.Attribute):
        declared = values[0].facts.options.declaration(nodes[0])
        default = argument(declared.node, "default") if declared is not None and isinstance(declared.node, ast.Call) else None
        settled = not values[0].facts.options.assigned(nodes[0])
        words, option = {default.value} if isinstance(default, ast.Constant) and settled else set(), given
    level = words.pop() if len(words) == 1 and len(nodes) == len(values) else None
    if level in ("O0", "O1"):
        return str(level), option
    if level in _LEVELS:
        return Obstacle(
            "apex-level",
            _LEVELS[str(level)],
            'train at level O1 first (opt_level="O1"); activations take the same, weights twice the memory',
        )
    return Obstacle(
        "apex-level",
        f"the level is {ast.unparse(given)}, which is known only when the program runs",
        'write opt_level="O1", which is what torch.autocast does',
    )
