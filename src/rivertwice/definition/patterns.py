"""Regular expressions of rules: which engine matches them, so that none fails, or runs without end, on any value. Pure.

Java's engine backtracks, and recurses for a group that is repeated: `(a|b)*` ends in a StackOverflowError on a value of
some thousand characters, `(a+)+b` does not end on a value of forty, `.*x.*y` takes hours on a value of a megabyte. So a pattern
is given to Java only if it is steady: no group is repeated, and after each repeated character the next one shows whether
the repetition continues. All others are matched by RE2 (in Arrow, which is installed anyway): its time grows only with the
value's length, and it does not recurse. A pattern that RE2 cannot match either is refused when a definition is read.

Python's own parser is used. A pattern that Java and Python read differently is refused too: the text would mean two things.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


# Sets of characters as sorted ranges of code points. Pure; for `patterns`.

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


JAVA_ENGINE, RE2 = "java", "re2"
MOST_WAYS = 100
MOST_OF_TWO_WIDTHS = 100
_parser: Any = import_module("re._parser")  # has no types; `sre_parse`, its public name, is deprecated
_UNBOUNDED = int(_parser.MAXREPEAT)
_READ_DIFFERENTLY = re.compile(r"\\[v0-9NUZ]|\(\?P|\(\?[a-zA-Z]*[aLuU]|\{,|\[\^?\]")
_ESCAPED_SIGN = re.compile(r"\\[^a-zA-Z0-9]")
_REPEATED_GROUP = re.compile(r"\)[*+{]|,\}")
_CATEGORIES: dict[str, Ranges] = {
    "DIGIT": ((48, 57),),
    "SPACE": ((9, 13), (32, 32)),
    "WORD": ((48, 57), (65, 90), (95, 95), (97, 122)),
}
_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x85, 0x85), (0x2028, 0x2029))


class PatternError(ValueError):
    """A pattern that neither engine can match safely; the message gives the reason and what to write."""


@dataclass(frozen=True)
class Matcher:
    """The engine that matches a pattern, and the text for it: it must match the whole value."""

    engine: str
    text: str


@lru_cache(maxsize=1000)
def matcher_of(pattern: str) -> Matcher:
    """Return which engine matches a pattern.

    Raises:
        PatternError: no engine can, or the pattern means two things.
    """
    bare = _ESCAPED_SIGN.sub("_", pattern)
    match = _READ_DIFFERENTLY.search(bare)
    if match:
        message = f"{match.group()!r} in it is read differently by different engines; write it in another way"
        raise PatternError(message)
    tree = _parse(pattern)
    flags = tree.state.flags & ~re.UNICODE
    if flags & ~(re.IGNORECASE | re.DOTALL):
        message = "its flags are not supported; of flags only (?i) and (?s) are"
        raise PatternError(message)
    reader = _Reader(ignore_case=bool(flags & re.IGNORECASE), dot_all=bool(flags & re.DOTALL))
    if not _REPEATED_GROUP.search(bare) and reader.is_steady(list(tree)):
        return Matcher(JAVA_ENGINE, rf"\A(?:{pattern})\z")
    text = rf"\A(?:{reader.sequence(list(tree))})\z"
    import pyarrow as pa  # here, because a DAG's parse reads definitions too and must stay quick

    try:
        match_whole(pa.array([""]), text)
    except pa.ArrowInvalid as error:
        message = f"it cannot be matched in a bounded time ({str(error)[-80:]}); repeat at most 1,000 times"
        raise PatternError(message) from None
    return Matcher(RE2, text)


def match_whole(values: pa.Array, text: str) -> pa.Array:
    """Return for each value whether RE2's `text` matches it; null for null."""
    import pyarrow.compute as pc

    return pc.match_substring_regex(values, pattern=text)


def _parse(pattern: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        warnings.simplefilter("error", DeprecationWarning)
        try:
            return _parser.parse(pattern)
        except (FutureWarning, DeprecationWarning) as error:
            message = f"it is read differently by different engines ({error}); put a backslash before '[', '&', '~', '|' or '-'"
            raise PatternError(message) from None
        except (re.error, RecursionError, OverflowError) as error:
            message = f"it is not a valid regular expression ({error}); correct it"
            raise PatternError(message) from None


class _UnsteadyError(Exception):
    """Java could recurse or backtrack."""


@dataclass(frozen=True)
class _Reader:
    ignore_case: bool
    dot_all: bool

    def is_steady(self, items: Sequence[Any]) -> bool:
        """Say whether Java matches in a time that grows only with the value's length, and without recursion."""
        try:
            ways, _, _ = self._look(items, NONE, bounded=False)
        except _UnsteadyError:
            return False
        return ways <= MOST_WAYS

    def _look(self, items: Sequence[Any], follow: Ranges, *, bounded: bool) -> tuple[int, Ranges, bool]:
        """Return how many ways there are through `items`, what may come first, and whether they may be empty."""
        ways, first, is_empty = 1, follow, True
        for kind, value in reversed(list(items)):
            more, begin, may_be_empty = self._look_at(str(kind), value, first, bounded=bounded)
            ways *= more
            first = union(begin, first) if may_be_empty else begin
            is_empty = is_empty and may_be_empty
        return ways, first, is_empty

    def _look_at(self, kind: str, value: Any, follow: Ranges, *, bounded: bool) -> tuple[int, Ranges, bool]:
        chars = self._chars(kind, value)
        if chars is not None:
            return 1, chars, False
        if kind == "AT":
            return 1, NONE, True
        if kind == "MAX_REPEAT":
            least, most, body = value
            return self._look_at_repeat(least, most, body, follow, bounded=bounded)
        if kind == "SUBPATTERN" and not value[1] and not value[2]:
            return self._look(value[3], follow, bounded=bounded)
        if kind == "BRANCH":
            branches = [self._look(each, follow, bounded=bounded) for each in value[1]]
            first = ranges_of(pair for _, begin, _ in branches for pair in begin)
            return sum(ways for ways, _, _ in branches), first, any(empty for _, _, empty in branches)
        if kind in ("ASSERT", "ASSERT_NOT"):
            ways, _, _ = self._look(value[1], EVERY, bounded=True)
            return ways, NONE, True
        raise _UnsteadyError

    def _look_at_repeat(
        self, least: int, most: int, body: Any, follow: Ranges, *, bounded: bool
    ) -> tuple[int, Ranges, bool]:
        unbounded = int(most) == _UNBOUNDED
        chars = self._chars(str(body[0][0]), body[0][1]) if len(body) == 1 else None
        if chars is None:
            if unbounded or most > 1:
                raise _UnsteadyError
            ways, first, _ = self._look(body, follow, bounded=bounded)
            return ways + 1, first, least == 0
        if unbounded and (bounded or overlap(chars, follow)):
            raise _UnsteadyError
        # Java recurses once per change between characters of one and of two units, except for * and +.
        if not of_one_width(chars) and (most > MOST_OF_TWO_WIDTHS if not unbounded else least > 1):
            raise _UnsteadyError
        ways = 1 if unbounded or not overlap(chars, follow) else int(most) - least + 1
        return ways, chars, least == 0

    def _chars(self, kind: str, value: Any) -> Ranges | None:
        """Return what a parse item of exactly one character matches; None for any other item."""
        if kind == "LITERAL":
            return self._cased(((value, value),))
        if kind == "NOT_LITERAL":
            return complement(self._cased(((value, value),)))
        if kind == "ANY":
            return EVERY if self.dot_all else complement(_LINE_ENDS)
        return self._class(value) if kind == "IN" else None

    def _class(self, items: Sequence[Any]) -> Ranges:
        pairs: list[tuple[int, int]] = []
        negated = False
        for kind, value in items:
            name = str(kind)
            if name == "NEGATE":
                negated = True
            elif name == "LITERAL":
                pairs.append((value, value))
            elif name == "RANGE":
                pairs.append(value)
            else:
                pairs.extend(_category(str(value)))
        chars = self._cased(ranges_of(pairs))
        return complement(chars) if negated else chars

    def _cased(self, chars: Ranges) -> Ranges:
        return both_cases(chars) if self.ignore_case else chars

    def sequence(self, items: Sequence[Any]) -> str:
        """Return the same expression as RE2 reads it."""
        return "".join(self._text(str(kind), value) for kind, value in items)

    def _text(self, kind: str, value: Any) -> str:
        chars = self._chars(kind, value)
        if chars is not None:
            return class_text(chars)
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):  # which of the two does not matter: the whole value must match
            least, most, body = value
            bounds = {(0, _UNBOUNDED): "*", (1, _UNBOUNDED): "+"}.get((least, int(most)))
            upper = "" if int(most) == _UNBOUNDED else str(most)
            return f"(?:{self.sequence(body)}){bounds or f'{{{least},{upper}}}'}"
        if kind == "SUBPATTERN" and not value[1] and not value[2]:
            return f"(?:{self.sequence(value[3])})"
        if kind == "BRANCH":
            return "(?:" + "|".join(self.sequence(each) for each in value[1]) + ")"
        if kind == "AT" and str(value) in ("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING"):
            return r"\A" if "BEGINNING" in str(value) else r"\z"
        what = _NAMES.get(kind, "a part of it")
        message = f"with {what} it cannot be matched in a bounded time on every value; write it without"
        raise PatternError(message)


_NAMES = {
    "ASSERT": "a look ahead or behind",
    "ASSERT_NOT": "a look ahead or behind",
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a reference to a group",
    "POSSESSIVE_REPEAT": "a possessive repetition",
    "ATOMIC_GROUP": "an atomic group",
    "AT": "a word boundary",
    "SUBPATTERN": "a group with its own flags",
}


def _category(name: str) -> Ranges:
    negated = "_NOT_" in name
    chars = _CATEGORIES[name.rpartition("_")[2]]
    return complement(chars) if negated else chars
