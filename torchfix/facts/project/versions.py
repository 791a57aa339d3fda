"""Ranges of versions, as pip, conda and poetry write them, by major and minor numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

Version: TypeAlias = tuple[int, int]

_CLAUSE = re.compile(r"\s*(===?|>=|<=|!=|~=|=|>|<|~|\^)?\s*v?(\d+)(?:\.(\d+|\*))?((?:\.(?:\d+|\*))*)")


@dataclass(frozen=True)
class Range:
    """The versions of a package that may be in use.

    Args:
        oldest: the oldest, by major and minor number; None where nothing says.
        below: the first that is too new; None where nothing says.
    """

    oldest: Version | None = None
    below: Version | None = None


def range_of(words: str, fuzzy: bool = False) -> Range:
    """The range that some limits leave (``>=1.10,<2``, ``==2.1.0+cu118``, ``^1.9``, ``~=2.0``, ``1.9.*``).

    Args:
        words: the limits; ``|`` and ``||`` separate alternatives.
        fuzzy: whether a single ``=`` and a bare version mean all versions that begin so, as in conda.
    """
    parts = [_narrowed(part, fuzzy) for part in re.split(r"\|\|?", words.strip("() "))]
    whole = joined(parts)
    return whole if all(part.oldest for part in parts) else Range(None, whole.below)


def _narrowed(words: str, fuzzy: bool) -> Range:
    """The range that all limits of a list leave together."""
    limits = [_limit(part, fuzzy) for part in words.split(",")]
    oldest = [limit.oldest for limit in limits if limit.oldest is not None]
    below = [limit.below for limit in limits if limit.below is not None]
    return Range(max(oldest, default=None), min(below, default=None))


def _limit(words: str, fuzzy: bool) -> Range:
    """The range that one limit leaves, by major and minor numbers."""
    match = _CLAUSE.match(words)
    if match is None:
        return Range()
    sign, major, minor, rest = match[1] or "", int(match[2]), match[3], match[4]
    is_short = minor is None or minor == "*"
    here = (major, 0 if is_short else int(minor))
    following = (major + 1, 0) if is_short and (fuzzy or minor == "*") else (here[0], here[1] + 1)
    is_exact = not rest.strip(".0*")  # nothing behind the minor number, so that it begins there
    match sign:
        case ">=" | ">":
            return Range(here)
        case "<":
            return Range(None, here if is_exact else following)
        case "<=":
            return Range(None, following)
        case "~=":
            return Range(here, following if rest else (major + 1, 0))
        case "~":
            return Range(here, (major + 1, 0) if is_short else following)
        case "^":
            return Range(here, (major + 1, 0) if major or is_short else following)
        case "!=":
            return Range()
    return Range(here, following)


def joined(ranges: Iterable[Range]) -> Range:
    """The range from the lowest bound of some ranges to their highest; open above where one of them is."""
    known = list(ranges)
    oldest = [item.oldest for item in known if item.oldest is not None]
    below = [item.below for item in known]
    return Range(min(oldest, default=None), max((item for item in below if item), default=None) if all(below) else None)
