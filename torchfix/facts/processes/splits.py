"""Random draws that decide which data a program trains on, and whether all of its processes draw alike.

Each process of one script has random generators of its own. Unless they are seeded alike, each splits the data otherwise,
and one trains on what another evaluates on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchfix.facts.code.callees import called
from torchfix.facts.code.calls import argument, is_constant
from torchfix.facts.code.tree import Function, dotted

if TYPE_CHECKING:
    from torchfix.facts import Facts

# Functions that split or order data, with the argument that makes their draw one of its own.
_SPLITS = {
    "torch.utils.data.random_split": "generator",
    "torch.randperm": "generator",
    "sklearn.model_selection.train_test_split": "random_state",
    "sklearn.utils.shuffle": "random_state",
}
_SPLITTING_MODULES = ("numpy.random.", "random.")
_GENERATORS = ("numpy.random.RandomState", "numpy.random.default_rng", "numpy.random.seed", "random.seed", "random.Random")
_DEPTH = 3  # functions that may stand between a call and the seed that it sets


def free_draws(facts: Facts) -> Iterator[tuple[Facts, ast.Call]]:
    """The draws that a script's main guard leads to and that nothing makes alike in all processes, with their files."""
    for home in facts.program.files:
        for calls in home.tree.calls.values():
            for call in calls:
                function = home.tree.function(call)
                reached = function in facts.program.guarded if function is not None else home is facts and facts.program.is_guarded(call)
                if reached and _is_free(home, call):
                    yield home, call


def _is_free(facts: Facts, call: ast.Call) -> bool:
    meaning = facts.calls.meaning(call) or ""
    if meaning in _SPLITS:
        seeded = argument(call, _SPLITS[meaning])
        if seeded is not None and not is_constant(seeded, None):
            return False
    elif not meaning.startswith(_SPLITTING_MODULES) or meaning in _GENERATORS:
        return False
    if facts.loops.around(call) is not None or not facts.effects.in_main_line(call) or _is_drawn_seed(facts, call):
        return False
    return not _is_seeded_before(facts, call, _seeding(meaning), frozenset())


def _seeding(meaning: str) -> str:
    """The function that seeds the generator from which a function draws."""
    if meaning.startswith("torch."):
        return "torch.manual_seed"
    return "random.seed" if meaning.startswith("random.") else "numpy.random.seed"


def _is_seeded_before(facts: Facts, node: ast.AST, seeding: str, seen: frozenset[Function]) -> bool:
    """Whether all processes have seeded a generator alike before a node runs: above it, above its callers, or on import."""
    tree, function = facts.tree, facts.tree.function(node)
    for call in (call for calls in tree.calls.values() for call in calls if _seeds(facts, call, seeding, 0)):
        home = tree.function(call)
        if home is function and call.lineno < getattr(node, "lineno", 0):
            return True
        if home is None and function is not None and not facts.program.is_guarded(call):
            return True
    if function is None or function in seen:
        return False
    callers = facts.callers_everywhere(function) or []
    return bool(callers) and all(_is_seeded_before(home, caller, seeding, seen | {function}) for home, caller in callers)


def _seeds(facts: Facts, call: ast.Call, seeding: str, depth: int) -> bool:
    """Whether a call seeds a generator with what is the same in all processes, itself or in a function that it runs."""
    if facts.calls.meaning(call) == seeding:
        return bool(call.args) and not facts.lockstep.differs(call.args[0])
    inner = ((home, item) for home, function in called(facts, call) for item in ast.walk(function)) if depth < _DEPTH else ()
    return any(isinstance(item, ast.Call) and _seeds(home, item, seeding, depth + 1) for home, item in inner)


def _is_drawn_seed(facts: Facts, call: ast.Call) -> bool:
    """Whether a draw only makes a seed: ``args.seed = random.randint(1, 10000)``."""
    statement = facts.tree.statement(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any("seed" in (dotted(target) or "").lower() for target in targets)
