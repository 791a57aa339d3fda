"""Which files of a program share Apex's mixed precision: the one that initializes it, and those that it imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchfix.facts.apex.uses import Use, amp_uses
from torchfix.facts.obstacle import Obstacle

if TYPE_CHECKING:
    from torchfix.facts import Facts


def sharing(facts: Facts) -> tuple[Facts, ...] | Obstacle | None:
    """The files that must change together with one of them, that which initializes Apex first.

    Scripts that each initialize Apex for themselves are programs of their own. None where the file does not use Apex's
    mixed precision at all.
    """
    if not amp_uses(facts):
        return None
    files = {other.path: other for near in facts.program.holding("apex") if amp_uses(near) for other in near.program.holding("apex")}
    files |= {facts.path: facts}
    uses = {path: found for path, other in files.items() if (found := amp_uses(other))}
    started = [path for path, found in uses.items() if _starts(found)]
    reached = {path: {other.path for other in files[path].program.files} for path in started}
    homes = [facts.path] if facts.path in started else [path for path in started if facts.path in reached[path]]
    if len(homes) != 1 or sum(use.word == "initialize" for use in uses[homes[0]]) != 1:
        words = "more than once" if homes else "in no file of this program"
        return Obstacle("apex-initialized", f"Apex is initialized {words}", "initialize it once, beside the optimizer")
    home = homes[0]
    others = [path for path in uses if path not in started]
    for path in others:
        if path not in reached[home] and not any(path in reached[start] for start in started):
            return _elsewhere(uses[path][0], "is not imported by the file that initializes it")
        if path in reached[home] and any(path in reached[start] for start in started if start != home):
            return _elsewhere(uses[path][0], "is imported by several files that initialize it")
    return tuple(files[path] for path in (home, *(path for path in others if path in reached[home])))


def _starts(uses: tuple[Use, ...]) -> bool:
    return any(use.word == "initialize" for use in uses)


def _elsewhere(use: Use, why: str) -> Obstacle:
    return Obstacle(
        "apex-elsewhere",
        f"{use.facts.path}:{use.node.lineno} uses Apex's mixed precision too, and {why}",
        "initialize Apex in one script, which imports what trains with it",
    )
