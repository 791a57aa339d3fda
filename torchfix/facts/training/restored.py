"""Where a program gives an optimizer the state of an earlier run, whose settings then stand in the place of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfix.facts.code.calls import receiver
from torchfix.facts.code.tree import last_name, walk

if TYPE_CHECKING:
    from torchfix.facts import Facts
    from torchfix.facts.training.optimizers import Optimizer

_NO_OPTIMIZERS = ("torch.optim.lr_scheduler.", "torch.optim.swa_utils.", "torch.amp.", "torch.cuda.amp.")


@dataclass(frozen=True, eq=False)
class Restored:
    """One ``optimizer.load_state_dict(state)``.

    Args:
        facts: the file.
        call: the call.
        optimizer: what it is called on.
    """

    facts: Facts
    call: ast.Call
    optimizer: ast.expr

    @property
    def statement(self) -> ast.stmt:
        """The statement in which it stands."""
        return self.facts.tree.statement(self.call)

    @property
    def state(self) -> ast.expr | None:
        """The state, where it is read from a variable or out of a dictionary, so that it can be named twice; else None."""
        given = self.call.args[0] if len(self.call.args) == 1 and not self.call.keywords else None
        alone = isinstance(self.statement, ast.Expr) and self.statement.value is self.call
        kinds = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.expr_context)
        plain = given is not None and not isinstance(given, ast.Constant) and all(isinstance(node, kinds) for node in walk(given))
        return given if alone and plain else None


def restores(facts: Facts, optimizer: Optimizer) -> Iterator[Restored]:
    """Every place in a file's programs that surely or perhaps loads a state into an optimizer."""
    for other in facts.program.holding("load_state_dict"):
        for call in other.calls.methods("load_state_dict"):
            source = receiver(call)
            if source is None or other.models.is_module(source) or _is_something_else(other, source) or _is_of_this_run(other, call):
                continue
            found = other.optimizers.of(source)
            if found is None or optimizer in found:
                yield Restored(other, call, source)


def _is_of_this_run(facts: Facts, call: ast.Call) -> bool:
    """Whether a state was just taken from an optimizer of the same run, as to change its learning rate: it has its settings."""
    values = facts.values.of(call.args[0]) or () if call.args else ()
    taken = [receiver(value.node) for value in values if isinstance(value.node, ast.Call) and last_name(value.node.func) == "state_dict"]
    return bool(values) and len(taken) == len(values) and all(item is not None and facts.optimizers.of(item) for item in taken)


def _is_something_else(facts: Facts, source: ast.expr) -> bool:
    """Whether an object surely is no optimizer: a schedule, a scaler, an average of weights."""
    if facts.optimizers.is_scheduler(source):
        return True
    values = facts.values.of(source) or ()
    made = [value.facts.calls.meaning(value.node) or "" for value in values if isinstance(value.node, ast.Call) and not value.path]
    return bool(values) and len(made) == len(values) and all(name.startswith(_NO_OPTIMIZERS) for name in made)
