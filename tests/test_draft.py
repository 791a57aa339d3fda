"""A text that remembers where its characters come from."""

from __future__ import annotations

import pytest

from torchfix.draft import Draft


def around(text: str, start: int, end: int, new: str) -> Draft:
    """The text with its part from ``start`` to ``end`` replaced."""
    return Draft.joined([Draft.kept(text, 0, start), Draft.new(new), Draft.kept(text, end, len(text))])


def test_kept_text_is_its_own_origin() -> None:
    """Every span of an unchanged text stands for itself."""
    draft = Draft.kept("abcdef")
    assert draft.text == "abcdef"
    assert [draft.origin(start, end) for start in range(7) for end in range(start, 7)] == [
        (start, end) for start in range(7) for end in range(start, 7)
    ]
    assert not draft.written(0, 6)


@pytest.mark.parametrize(
    ("span", "origin"),
    [
        pytest.param((0, 2), (0, 2), id="before the change"),
        pytest.param((5, 7), (4, 6), id="behind the change"),
        pytest.param((1, 6), (1, 5), id="around the change"),
        pytest.param((2, 5), (2, 4), id="the change itself"),
        pytest.param((3, 4), (2, 4), id="inside the change"),
        pytest.param((0, 4), (0, 4), id="ending inside the change"),
        pytest.param((4, 7), (2, 6), id="beginning inside the change"),
    ],
)
def test_origin_around_a_change(span: tuple[int, int], origin: tuple[int, int]) -> None:
    """New text stands for the old text that it was put in the place of."""
    assert around("abcdef", 2, 4, "XYZ").origin(*span) == origin


def test_inserted_text_stands_for_the_place_where_it_was_put() -> None:
    """The origin of inserted text is empty, and lies where the insertion is."""
    draft = around("abcdef", 3, 3, "XYZ")
    assert draft.origin(3, 6) == (3, 3)
    assert draft.origin(2, 7) == (2, 4)


def test_rewritten_keeps_what_begins_and_ends_alike() -> None:
    """Only the part between the common beginning and the common end is new."""
    draft = Draft.kept("f(a, b)").rewritten("f(a, k=1, b)")
    assert draft.text == "f(a, k=1, b)"
    assert [piece.text for piece in draft.pieces if piece.origin is None] == ["k=1, "]
    assert draft.rewritten(draft.text) is draft


def test_deletion_leaves_a_mark() -> None:
    """A statement from which something was only taken away counts as written."""
    draft = Draft.kept("x = a.b\ny\n").rewritten("x = a\ny\n")
    assert draft.written(0, 5)
    assert not draft.written(6, 7)


@pytest.mark.parametrize(
    ("span", "written"),
    [
        pytest.param((0, 3), False, id="up to the new text"),
        pytest.param((0, 4), True, id="into the new text"),
        pytest.param((4, 5), True, id="inside the new text"),
        pytest.param((6, 9), False, id="from its end on"),
    ],
)
def test_written_looks_at_the_span_alone(span: tuple[int, int], written: bool) -> None:
    """New text beside a span does not count for it."""
    assert around("abcdef", 3, 3, "XYZ").written(*span) is written


def test_moved_lines_are_not_written() -> None:
    """White space that only moves a line to the right is no change of what stands on it."""
    draft = Draft.joined([Draft.new("    ", margin=True), Draft.kept("a\n")])
    assert not draft.written(0, 6)


def test_drafts_of_drafts_lead_back_to_the_first_text() -> None:
    """After two rounds the origin is that in the author's text, and what the first wrote is still known."""
    first = around("abcdef", 2, 4, "XYZ")
    second = around(first.text, 5, 5, "!")
    both = second.over(first)
    assert both.text == "abXYZ!ef"
    assert both.origin(6, 8) == (4, 6)
    assert both.written(2, 5)
    assert both.written(5, 6)
    assert not both.written(6, 8)


def test_marks_outlive_later_rounds() -> None:
    """What was taken away in the first round is known after the second."""
    first = Draft.kept("x = a.b\ny\n").rewritten("x = a\ny\n")
    second = Draft.kept(first.text).rewritten("x = a\ny + 1\n")
    assert second.over(first).written(0, 5)
