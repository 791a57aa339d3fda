"""Ranges of versions: what limits leave, one by one and together."""

from __future__ import annotations

import pytest

from torchfix.facts.project.versions import Range, joined, range_of


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", Range()),
        ("*", Range()),
        ("latest", Range()),
        (">=1.10,<2", Range((1, 10), (2, 0))),
        ("v1.9", Range((1, 9), (1, 10))),
        (">1", Range((1, 0))),
        ("<1", Range(None, (1, 0))),
        ("<=1", Range(None, (1, 1))),
        ("<1.13.1", Range(None, (1, 14))),
        ("~=2.0", Range((2, 0), (3, 0))),
        ("~=2.0.1", Range((2, 0), (2, 1))),
        ("^1.9", Range((1, 9), (2, 0))),
        ("^0", Range((0, 0), (1, 0))),
        ("^0.4.1", Range((0, 4), (0, 5))),
        ("~1", Range((1, 0), (2, 0))),
        ("~1.9.1", Range((1, 9), (1, 10))),
        ("==1.9.0+cu111", Range((1, 9), (1, 10))),
        ("1.8 | 2.0", Range((1, 8), (2, 1))),
        ("<1.5 || >=2", Range()),
        ("<1.5 || ==1.9", Range(None, (1, 10))),
    ],
)
def test_limits(words: str, expected: Range) -> None:
    """Limits of one list hold together, alternatives hold each."""
    assert range_of(words) == expected


def test_conda_takes_a_short_version_for_all_that_begin_so() -> None:
    """``=1`` is any 1.x to conda, and 1.0 to pip."""
    assert range_of("=1", fuzzy=True) == Range((1, 0), (2, 0))
    assert range_of("==1") == Range((1, 0), (1, 1))


def test_joined_ranges_hold_each() -> None:
    """The lowest bound counts, and a range that is open above leaves the whole open."""
    assert joined([Range((1, 8), (1, 9)), Range((1, 6), (1, 7))]) == Range((1, 6), (1, 9))
    assert joined([Range((1, 8), (1, 9)), Range((1, 6))]) == Range((1, 6))
    assert joined([]) == Range()
