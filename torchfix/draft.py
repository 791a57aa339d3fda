"""A text that remembers where its characters come from.

Edits are made on drafts, not on strings, so that a place in the new text can be shown at the line where its author
wrote it, and the formatter can be told which statements were written by us.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Piece:
    """A run of characters of one origin.

    Args:
        text: the characters; empty for the mark that something was taken away here.
        origin: the offset of the first one in the older text; None where the text is new.
        margin: whether it is new white space that only moves a line to the right.
    """

    text: str
    origin: int | None = None
    margin: bool = False

    def cut(self, start: int, end: int) -> Piece:
        """The characters from ``start`` to ``end``."""
        return Piece(self.text[start:end], None if self.origin is None else self.origin + start, self.margin)


@dataclass(frozen=True)
class Draft:
    """A new text, made of pieces of an older one and of new pieces."""

    pieces: tuple[Piece, ...]

    @classmethod
    def kept(cls, text: str, start: int = 0, end: int | None = None) -> Draft:
        """The older text as it stands, from ``start`` to ``end``."""
        return cls((Piece(text[start:end], start),))

    @classmethod
    def new(cls, text: str, margin: bool = False) -> Draft:
        """Text that the older one does not hold."""
        return cls((Piece(text, None, margin),))

    @classmethod
    def joined(cls, drafts: Iterable[Draft]) -> Draft:
        """Drafts one behind the other."""
        return cls(tuple(piece for draft in drafts for piece in draft.pieces))

    @cached_property
    def text(self) -> str:
        """The characters."""
        return "".join(piece.text for piece in self.pieces)

    @cached_property
    def _starts(self) -> list[int]:
        starts, offset = [], 0
        for piece in self.pieces:
            starts.append(offset)
            offset += len(piece.text)
        return starts

    def cut(self, start: int, end: int) -> Draft:
        """The part from ``start`` to ``end``."""
        pieces = []
        for offset, piece in zip(self._starts, self.pieces):
            low, high = max(start - offset, 0), min(end - offset, len(piece.text))
            inside = start <= offset < end or offset == end == len(self.text)
            if low < high or (not piece.text and inside):
                pieces.append(piece.cut(low, high))
        return Draft(tuple(pieces))

    def rewritten(self, text: str) -> Draft:
        """This draft with another text: what begins and ends alike keeps its origin."""
        old = self.text
        if text == old:
            return self
        head = _common(old, text)
        tail = _common(old[head:][::-1], text[head:][::-1])
        return Draft.joined((self.cut(0, head), Draft.new(text[head : len(text) - tail]), self.cut(len(old) - tail, len(old))))

    def over(self, older: Draft) -> Draft:
        """This draft of ``older``'s text, as a draft of the text that ``older`` was made from."""
        return Draft.joined(
            Draft((piece,)) if piece.origin is None else older.cut(piece.origin, piece.origin + len(piece.text)) for piece in self.pieces
        )

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """The span of the older text that a span of this one stands for; an empty span where all of it is new."""
        first, last = self._before(start), self._behind(end)
        return first, max(first, last)

    def _before(self, offset: int) -> int:
        """Where a character comes from; for a new one, the end of what was kept before it."""
        index = bisect_right(self._starts, offset) - 1
        piece = self.pieces[index]
        if piece.origin is not None:
            return piece.origin + min(offset - self._starts[index], len(piece.text))
        for earlier in reversed(self.pieces[:index]):
            if earlier.origin is not None:
                return earlier.origin + len(earlier.text)
        return 0

    def _behind(self, offset: int) -> int:
        """Where the text before ``offset`` ends in the older text; if it is new, the start of what was kept behind it."""
        index = max(bisect_left(self._starts, offset) - 1, 0)
        piece = self.pieces[index]
        if piece.origin is not None:
            return piece.origin + offset - self._starts[index]
        return next((later.origin for later in self.pieces[index:] if later.origin is not None), self._before(offset))

    def written(self, start: int, end: int) -> bool:
        """Whether we wrote, changed or took away something between two offsets; moving lines to the right is no change."""
        for low, high in self._new[bisect_left(self._new_ends, start) :]:
            if low > end:
                return False
            if low == high or (low < end and start < high):
                return True
        return False

    @cached_property
    def _new(self) -> list[tuple[int, int]]:
        """The spans of new text; empty ones where something was taken away."""
        spans = zip(self._starts, self.pieces)
        return [(start, start + len(piece.text)) for start, piece in spans if piece.origin is None and not piece.margin]

    @cached_property
    def _new_ends(self) -> list[int]:
        return [end for _, end in self._new]


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    length = min(len(one), len(other))
    for index in range(length):
        if one[index] != other[index]:
            return index
    return length
