"""Why a fact says no: what stands in the way of a change, in words for the user."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Obstacle:
    """What could not be proved.

    Args:
        code: stable, in kebab case.
        text: what is there.
        help: what the user can do.
    """

    code: str
    text: str
    help: str = ""
