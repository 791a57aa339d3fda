"""A unified patch from two versions of files, for ``git apply`` and ``patch -p1``.

Lines are compared as bytes, cut at line feeds, as both of those programs do. Comparison is linear where most lines
stayed: lines that occur once on both sides split the work, and what lies between two of them is compared by Myers'
greedy algorithm ("An O(ND) difference algorithm and its variations", 1986), whose cost follows the number of changed
lines. A stretch with more changes than are worth the search is shown as replaced.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence

_CONTEXT = 3
_SEARCHED = 400
"""How many changed lines a stretch may have before it is shown as replaced."""

_Change = tuple[int, int, int, int]
"""Lines ``[a, b)`` of the old text became lines ``[c, d)`` of the new one."""


def unified(path: str, before: bytes, after: bytes) -> bytes:
    """The patch of one file, empty if nothing changed.

    Args:
        path: relative to the folder in which the patch will be applied, POSIX.
        before: the file's old bytes.
        after: its new ones.
    """
    old, new = _lines(before), _lines(after)
    pieces = list(_hunks(old, new, changes(old, new)))
    if not pieces:
        return b""
    return b"".join([b"--- ", _name("a/" + path), b"\n+++ ", _name("b/" + path), b"\n", *pieces])


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _name(path: str) -> bytes:
    """A path as git and patch read it in a header: quoted where it holds control characters, quotes or backslashes."""
    data = os.fsencode(path)
    if any(byte < 32 or byte in b'"\\\x7f' for byte in data):
        return b'"' + b"".join(b"\\%03o" % byte if byte < 32 or byte in b'"\\\x7f' else bytes([byte]) for byte in data) + b'"'
    return data + b"\t" if b" " in data else data


def _hunks(old: Sequence[bytes], new: Sequence[bytes], changed: Sequence[_Change]) -> Iterator[bytes]:
    for group in _groups(changed):
        first, last = group[0], group[-1]
        lead = min(_CONTEXT, first[0])
        trail = min(_CONTEXT, len(old) - last[1])
        start, end = first[0] - lead, last[1] + trail
        yield b"@@ -%b +%b @@\n" % (_range(start, end), _range(first[2] - lead, last[3] + trail))
        for a, b, c, d in group:
            yield from (_line(b" ", line) for line in old[start:a])
            yield from (_line(b"-", line) for line in old[a:b])
            yield from (_line(b"+", line) for line in new[c:d])
            start = b
        yield from (_line(b" ", line) for line in old[start:end])


def _groups(changed: Sequence[_Change]) -> Iterator[list[_Change]]:
    """Changes whose context touches, together."""
    group: list[_Change] = []
    for change in changed:
        if group and change[0] - group[-1][1] > 2 * _CONTEXT:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _range(start: int, end: int) -> bytes:
    """A hunk's range: lines count from 1, and an empty range names the line before it."""
    length = end - start
    return b"%d" % (start + 1) if length == 1 else b"%d,%d" % (start + bool(length), length)


def _line(mark: bytes, line: bytes) -> bytes:
    return mark + line if line.endswith(b"\n") else mark + line + b"\n\\ No newline at end of file\n"


def changes(old: Sequence[bytes], new: Sequence[bytes]) -> list[_Change]:
    """The stretches of lines in which two texts differ, in order; stretches that touch are one."""
    found: list[_Change] = []
    for a, b, c, d in _stretches(old, new):
        if found and found[-1][1] == a and found[-1][3] == c:
            a, _, c, _ = found.pop()
        found.append((a, b, c, d))
    return found


def _stretches(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[_Change]:
    """Differences between the anchors: lines that occur once in both texts' changed middle and keep their order."""
    start, end = _shared_ends(old, new, 0, len(old), 0, len(new))
    low, high, new_low, new_high = start, len(old) - end, start, len(new) - end
    anchors = [*_anchors(old, new, low, high, new_low, new_high), (high, new_high)]
    for at, new_at in anchors:
        yield from _between(old, new, low, at, new_low, new_at)
        low, new_low = at + 1, new_at + 1


def _shared_ends(old: Sequence[bytes], new: Sequence[bytes], a: int, b: int, c: int, d: int) -> tuple[int, int]:
    """How many lines two stretches share at their beginning, and of the rest at their end."""
    room = min(b - a, d - c)
    start = 0
    while start < room and old[a + start] == new[c + start]:
        start += 1
    end = 0
    while end < room - start and old[b - 1 - end] == new[d - 1 - end]:
        end += 1
    return start, end


def _anchors(old: Sequence[bytes], new: Sequence[bytes], a: int, b: int, c: int, d: int) -> list[tuple[int, int]]:
    """Pairs of equal lines that are alone in both stretches, the longest run of them that rises on both sides."""
    once, new_once = _once(old, a, b), _once(new, c, d)
    pairs = [(at, new_once[line]) for line, at in once.items() if line in new_once]
    tails: list[int] = []  # patience sorting: the least partner that ends a rising run of each length
    ends: list[int] = []
    back: list[int] = []
    for index, (_, partner) in enumerate(pairs):
        length = bisect_left(tails, partner)
        if length == len(tails):
            tails.append(partner)
            ends.append(index)
        else:
            tails[length], ends[length] = partner, index
        back.append(ends[length - 1] if length else -1)
    run = []
    index = ends[-1] if ends else -1
    while index >= 0:
        run.append(pairs[index])
        index = back[index]
    return run[::-1]


def _once(lines: Sequence[bytes], start: int, end: int) -> dict[bytes, int]:
    """Where the lines stand that occur once in a stretch, in order."""
    places: dict[bytes, int] = {}
    for index in range(start, end):
        places[lines[index]] = -1 if lines[index] in places else index
    return {line: index for line, index in places.items() if index >= 0}


def _between(old: Sequence[bytes], new: Sequence[bytes], a: int, b: int, c: int, d: int) -> Iterator[_Change]:
    """Differences of two stretches without anchors inside."""
    start, end = _shared_ends(old, new, a, b, c, d)
    a, b, c, d = a + start, b - end, c + start, d - end
    if a == b or c == d:
        if a != b or c != d:
            yield a, b, c, d
        return
    at, new_at = a, c
    for x, y in _myers(old[a:b], new[c:d]):
        if (a + x, c + y) != (at, new_at):
            yield at, a + x, new_at, c + y
        at, new_at = a + x + 1, c + y + 1
    if (at, new_at) != (b, d):
        yield at, b, new_at, d


def _myers(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int]]:
    """Pairs of equal lines of a shortest edit script; none if it takes more than the searched number of changes."""
    reach = {1: 0}
    trail: list[dict[int, int]] = []
    for distance in range(min(_SEARCHED, len(old) + len(new)) + 1):
        trail.append(dict(reach))
        for diagonal in range(-distance, distance + 1, 2):
            x = reach[diagonal + 1] if _goes_down(reach, diagonal, distance) else reach[diagonal - 1] + 1
            y = x - diagonal
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            reach[diagonal] = x
            if x >= len(old) and y >= len(new):
                return _walk_back(trail, x, y)
    return []


def _walk_back(trail: Sequence[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    """The equal pairs on the way to a point, from how far each diagonal reached before each step."""
    pairs: list[tuple[int, int]] = []
    for distance in range(len(trail) - 1, -1, -1):
        reach, diagonal = trail[distance], x - y
        down = _goes_down(reach, diagonal, distance)
        origin = reach[diagonal + 1] if down else reach[diagonal - 1]
        first = origin if down else origin + 1
        pairs += [(index, index - diagonal) for index in range(x - 1, first - 1, -1)]
        x, y = origin, origin - (diagonal + 1 if down else diagonal - 1)
    return pairs[::-1]


def _goes_down(reach: dict[int, int], diagonal: int, distance: int) -> bool:
    """Whether the step onto a diagonal adds a line rather than takes one away."""
    return diagonal == -distance or (diagonal != distance and reach[diagonal - 1] < reach[diagonal + 1])
