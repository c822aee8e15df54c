"""Sets of characters as sorted ranges of code points. Pure; for `patterns`."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""Sorted, with gaps between them, both ends included."""

LAST = 0x10FFFF
_LAST_BMP = 0xFFFF
NONE: Ranges = ()
EVERY: Ranges = ((0, LAST),)


def ranges_of(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Return the set of the characters in any of the ranges."""
    ranges: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if ranges and low <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], high))
        else:
            ranges.append((low, high))
    return tuple(ranges)


def complement(of: Ranges) -> Ranges:
    """Return all other characters."""
    ranges, begin = [], 0
    for low, high in of:
        if begin < low:
            ranges.append((begin, low - 1))
        begin = high + 1
    return tuple([*ranges, (begin, LAST)] if begin <= LAST else ranges)


def union(left: Ranges, right: Ranges) -> Ranges:
    """Return the characters of both."""
    return ranges_of([*left, *right])


def overlap(left: Ranges, right: Ranges) -> bool:
    """Say whether a character is in both."""
    return any(low <= end and begin <= high for low, high in left for begin, end in right)


def both_cases(of: Ranges) -> Ranges:
    """Return the set with the other case of its ASCII letters, as Java's `(?i)` has it."""
    more = list(of)
    for low, high in of:
        for first, shift in ((ord("A"), 32), (ord("a"), -32)):
            begin, end = max(low, first), min(high, first + 25)
            if begin <= end:
                more.append((begin + shift, end + shift))
    return ranges_of(more)


def of_one_width(of: Ranges) -> bool:
    """Say whether Java stores every character in one unit, or every character in two."""
    return not of or of[-1][1] <= _LAST_BMP or of[0][0] > _LAST_BMP


def class_text(of: Ranges) -> str:
    """Return the set as a character class that RE2 reads."""
    if not of:
        return r"[^\x{0}-\x{10ffff}]"
    return "[" + "".join(rf"\x{{{low:x}}}" + (rf"-\x{{{high:x}}}" if high > low else "") for low, high in of) + "]"
