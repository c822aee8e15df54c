"""The heatmap of windows and keys: levels, columns, cells and their order. Pure, over arrays.

A column is a range of window starts: one window, or an hour, a day or thirty days of them. A cell is what is known of the rows
of a key in a column: how many have which verdict. Its letter is that of the worst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rivertwice.verdicts import AGREES, BY_GRAVITY, DEFECT, LATE, NOT_COMPARABLE, OPEN

UNJUDGED = "UNJUDGED"
"""A row that is served, and of a window that the newest reconcile did not judge."""
WORDS = (*BY_GRAVITY, UNJUDGED)
"""By their codes: the place in this tuple, the worst first."""
LETTERS = {DEFECT: "D", NOT_COMPARABLE: "N", LATE: "L", OPEN: "O", AGREES: "A", UNJUDGED: "-"}
BLANK = " "
SERIOUS = len((DEFECT, NOT_COMPARABLE, LATE))
"""Codes below it mean that something is wrong."""
MOST_COLUMNS = 1000
MOST_KEYS = 50
_MINUTE, _HOUR = 60_000, 3_600_000
_DAY = 24 * _HOUR
WINDOW = "window"
_COARSER = (("minute", _MINUTE), ("hour", _HOUR), ("day", _DAY), ("month", 30 * _DAY))

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Level:
    """A width of columns: `window`, `minute`, `hour`, `day` or `month` (thirty days)."""

    name: str
    step_ms: int


def levels_of(step_ms: int, *, is_aligned: bool) -> tuple[Level, ...]:
    """Return the levels of a definition's windows, the finest first.

    Args:
        step_ms: time between the starts of two windows.
        is_aligned: whether windows begin at multiples of it; else no column is a window, and minutes are the finest.
    """
    finest = [Level(WINDOW, step_ms)] if is_aligned else []
    least = step_ms if is_aligned else 0
    return (*finest, *(Level(name, size) for name, size in _COARSER if size > least))


def choose_level(levels: Sequence[Level], start_ms: int, end_ms: int, most: int) -> Level:
    """Return the finest level that shows a range in at most so many columns, else the coarsest."""
    for level in levels:
        if count_columns(level, start_ms, end_ms) <= most:
            return level
    return levels[-1]


def count_columns(level: Level, start_ms: int, end_ms: int) -> int:
    """Return how many columns of a level a range of window starts touches."""
    return max(0, -(-end_ms // level.step_ms) - start_ms // level.step_ms)


@dataclass(frozen=True)
class Columns:
    """The columns that are shown: `count` ranges of window starts of `step_ms`, from `start_ms` on."""

    start_ms: int
    step_ms: int
    count: int

    @classmethod
    def of(cls, level: Level, start_ms: int, end_ms: int, most: int = MOST_COLUMNS) -> Columns:
        """Return the columns of a level that a range touches; if there are too many, the newest."""
        first, last = start_ms // level.step_ms, -(-end_ms // level.step_ms)
        first = max(first, last - most)
        return cls(first * level.step_ms, level.step_ms, max(0, last - first))

    @property
    def end_ms(self) -> int:
        """End of the last column."""
        return self.start_ms + self.count * self.step_ms

    def places(self, starts_ms: Numbers) -> Numbers:
        """Return the column of each window start; all of them must lie in the columns."""
        return (starts_ms - self.start_ms) // self.step_ms

    def touched(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """Return the columns that some half-open ranges of epoch milliseconds touch."""
        return np.flatnonzero(self.count_touching(ranges)).tolist()

    def count_touching(self, ranges: Sequence[tuple[int, int]]) -> Numbers:
        """Return for each column how many of some half-open ranges touch it."""
        steps = np.zeros(self.count + 1, dtype=np.int64)
        if ranges and self.count:
            lows, highs = np.array(ranges, dtype=np.int64).T
            inside = (lows < self.end_ms) & (highs > self.start_ms) & (lows < highs)
            first = np.clip((lows[inside] - self.start_ms) // self.step_ms, 0, self.count - 1)
            last = np.clip((highs[inside] - 1 - self.start_ms) // self.step_ms, 0, self.count - 1)
            np.add.at(steps, first, 1)
            np.add.at(steps, last + 1, -1)
        return np.cumsum(steps)[:-1]


@dataclass(frozen=True)
class Judged:
    """Verdicts of one pair in the columns, in arrays of one length.

    Attributes:
        starts_ms: start of the window.
        keys: number of the key in `names`, -1 for a verdict on all rows of its window that have none of their own.
        codes: place of the verdict in `WORDS`.
        rows: for how many rows it stands.
        late: late records of the row.
        reasons: in words.
        names: texts of the keys.
    """

    starts_ms: Numbers
    keys: Numbers
    codes: Numbers
    rows: Numbers
    late: Numbers
    reasons: Sequence[str]
    names: Sequence[str]

    def counts_by_column(self, columns: Columns) -> Numbers:
        """Return for each word and column how many rows have it: an array of two dimensions."""
        counts = np.zeros((len(WORDS), columns.count), dtype=np.int64)
        np.add.at(counts, (self.codes, columns.places(self.starts_ms)), self.rows)
        return counts

    def rank_keys(self) -> list[tuple[int, tuple[int, ...], int]]:
        """Return the keys with a verdict of their own, the worst first: number, rows by word, late records."""
        own = self.keys >= 0
        counts = np.zeros((len(self.names), len(WORDS)), dtype=np.int64)
        late = np.zeros(len(self.names), dtype=np.int64)
        np.add.at(counts, (self.keys[own], self.codes[own]), self.rows[own])
        np.add.at(late, self.keys[own], self.late[own])
        order = sorted(
            range(len(self.names)),
            key=lambda number: ((-counts[number, :SERIOUS]).tolist(), -int(late[number]), self.names[number]),
        )
        return [(number, tuple(counts[number].tolist()), int(late[number])) for number in order]


@dataclass(frozen=True)
class Present:
    """How many rows are served, by window and key, in arrays of one length; `keys` are places among the keys that are shown."""

    starts_ms: Numbers
    keys: Numbers
    rows: Numbers


@dataclass(frozen=True)
class Cells:
    """The cells that are shown.

    Attributes:
        letters: of each key, one letter a column.
        marked: of each key, column to what is known of a cell that does not simply agree.
    """

    letters: list[str] = field(default_factory=list)
    marked: list[dict[int, dict[str, Any]]] = field(default_factory=list)


def fill_cells(judged: Judged, shown: Mapping[int, int], count: int, present: Present, columns: Columns) -> Cells:
    """Return the cells of the keys that are shown.

    Args:
        judged: the verdicts of the columns.
        shown: number of a key in `judged.names` to its place among those that are shown.
        count: how many keys are shown.
        present: rows that are served; one without a verdict of its own has that of its window.
        columns: those that are shown.
    """
    counts = np.zeros((count, columns.count, len(WORDS)), dtype=np.int64)
    late = np.zeros((count, columns.count), dtype=np.int64)
    places = np.full(len(judged.names) + 1, -1, dtype=np.int64)
    for number, place in shown.items():
        places[number] = place
    rows_of = places[judged.keys]
    own = rows_of >= 0
    at = (rows_of[own], columns.places(judged.starts_ms[own]))
    np.add.at(counts, (*at, judged.codes[own]), judged.rows[own])
    np.add.at(late, at, judged.late[own])
    _add_present(counts, judged, rows_of, present, columns)
    has_rows = counts.sum(axis=2) > 0
    worst = np.argmax(counts > 0, axis=2)
    alphabet = np.array([LETTERS[word] for word in WORDS])
    letters = np.where(has_rows, alphabet[worst], BLANK)
    reasons = _reasons(judged, own, at)
    cells = Cells(["".join(line) for line in letters])
    agreeing = WORDS.index(AGREES)
    for place in range(count):
        marked = np.flatnonzero(has_rows[place] & ((worst[place] < agreeing) | (counts[place, :, -1] > 0)))
        cells.marked.append(
            {
                column: {
                    "rows": {
                        word: int(number) for word, number in zip(WORDS, counts[place, column], strict=True) if number
                    },
                    "late": int(late[place, column]),
                    "reason": reasons.get((place, column), ""),
                }
                for column in marked.tolist()
            }
        )
    return cells


def _add_present(
    counts: npt.NDArray[np.int64], judged: Judged, rows_of: Numbers, present: Present, columns: Columns
) -> None:
    """Add the served rows that have no verdict of their own: by that of their window, or as not judged."""
    together = judged.keys < 0
    starts, first = np.unique(judged.starts_ms[together], return_inverse=True)
    code_of = np.full(len(starts) + 1, len(WORDS) - 1, dtype=np.int64)
    np.minimum.at(code_of, first, judged.codes[together])
    found = np.searchsorted(starts, present.starts_ms) if len(starts) else np.zeros(len(present.rows), dtype=np.int64)
    is_judged = np.zeros(len(present.rows), dtype=bool)
    if len(starts):
        is_judged = starts[np.minimum(found, len(starts) - 1)] == present.starts_ms
    codes = code_of[np.where(is_judged, found, len(starts))]
    own = rows_of >= 0
    pairs = _pairs(present.starts_ms, present.keys)
    known, inverse = np.unique(_pairs(judged.starts_ms[own], rows_of[own]), return_inverse=True)
    own_rows = np.zeros(len(known) + 1, dtype=np.int64)
    np.add.at(own_rows, inverse, judged.rows[own])
    at = np.searchsorted(known, pairs) if len(known) else np.zeros(len(pairs), dtype=np.int64)
    has_own = np.zeros(len(pairs), dtype=bool)
    if len(known):
        has_own = known[np.minimum(at, len(known) - 1)] == pairs
    left = np.maximum(present.rows - own_rows[np.where(has_own, at, len(known))], 0)
    np.add.at(counts, (present.keys, columns.places(present.starts_ms), codes), left)


def _pairs(starts_ms: Numbers, keys: Numbers) -> Numbers:
    return starts_ms * (MOST_KEYS + 1) + keys


def _reasons(judged: Judged, own: npt.NDArray[np.bool_], at: tuple[Numbers, Numbers]) -> dict[tuple[int, int], str]:
    """Return the reason of a cell with one verdict; a cell with several has none."""
    found: dict[tuple[int, int], str] = {}
    numbers = np.flatnonzero(own)
    for number, place, column in zip(numbers.tolist(), *(part.tolist() for part in at), strict=True):
        cell = (place, column)
        found[cell] = "" if cell in found else judged.reasons[number]
    return found
