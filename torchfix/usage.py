"""What is wrong with a request, said before any work is done."""

from __future__ import annotations

from collections.abc import Collection, Iterable


class UsageError(Exception):
    """The command cannot be run as it was asked for (exit code 2); the words say what to write instead."""


def nearest(word: str, known: Iterable[str]) -> str:
    """``; nearest: a, b`` for the known words that look most like a mistyped one, or the empty string."""
    from difflib import get_close_matches  # needed only where something is wrong

    found = get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"; nearest: {', '.join(found)}" if found else ""


def nearest_or_all(word: str, known: Collection[str]) -> str:
    """As :func:`nearest`; where nothing is near, all that is known."""
    return nearest(word, known) or (f"; it knows {', '.join(known)}" if known else "; it has none")
