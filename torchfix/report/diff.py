"""All changes as one unified patch."""

from __future__ import annotations

from collections.abc import Iterable

from torchfix.patch import unified
from torchfix.result import Outcome, Result


def patch(results: Iterable[Result]) -> bytes:
    """The patch of every changed file, for ``git apply`` and ``patch -p1`` in the folder that the command ran in."""
    return b"".join(unified(result.path, result.before, result.after) for result in results if result.outcome is Outcome.CHANGED)
