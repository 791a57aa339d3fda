"""Make toys explicit.

Why:
    A toy of unknown size is built twice.

Before:
    toy = Toy(name)

After:
    toy = Toy(name, size=2)

Safety:
    Exact for toys of size 2.

Reference:
    The tests of the door, which need a rule that never changes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from torchfix.edits import SetArgument
from torchfix.facts import Facts
from torchfix.transform import Default, Effect, Finding, Held, Transform


@dataclass(frozen=True)
class Options:
    """The toy rule's options; the size is an expression, and ``num_workers`` one that a whole run may set."""

    size: str = "2"
    num_workers: str | None = None
    most: int = 9


def find(facts: Facts, options: Options) -> Iterator[Finding]:
    """Calls of ``Toy`` without a size: plain ones are exact, those with another argument held, ``wild`` ones of every risk."""
    for call in ast.walk(facts.source.tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "Toy" or call.keywords:
            continue
        message = "the toy is built twice"
        if len(call.args) > 1:
            yield Finding(call, message, held=Held("crowded", "the toy has company", "give each toy its own line"))
            continue
        wild = bool(call.args) and isinstance(call.args[0], ast.Name) and call.args[0].id == "wild"
        yield Finding(
            call,
            message,
            (SetArgument(call, "size", options.num_workers or options.size),),
            frozenset({Effect.PROCESS}) if wild else frozenset(),
            because="its size is not given",
            notes=("feed the toy before use",) if wild else (),
        )


def find_nothing(facts: Facts, options: object) -> Iterator[Finding]:
    """No places at all."""
    yield from ()


def _toy(name: str, default: Default, literal: bytes, since: str = "1.0") -> Transform:
    return Transform.from_module(name, __doc__, group="toys", literals=(literal,), find=find, since=since, options=Options, default=default)


EXPLICIT = _toy("toy_size", Default.ON, b"Toy")
SLEEPING = Transform.from_module(
    "toy_sleep", __doc__, group="toys", literals=(b"Toy",), find=find_nothing, since="1.0", default=Default.OFF
)
FUTURE = Transform.from_module(
    "future_toy", __doc__, group="tomorrow", literals=(b"Toy",), find=find_nothing, since="2.9", default=Default.ON
)
TOYS = (FUTURE, EXPLICIT, SLEEPING)
