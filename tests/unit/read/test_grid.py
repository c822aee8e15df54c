"""The heatmap's columns, letters and order, over arrays."""

from __future__ import annotations

import numpy as np
import pytest

from rivertwice.read.heatmap import (
    WORDS,
    CellVerdict,
    Columns,
    HeatmapLevel,
    MarkedCell,
    Present,
    choose_level,
    count_columns,
    fill_cells,
    levels_of,
)
from rivertwice.timeline.verdicts import Verdict

HOUR, DAY = 3_600_000, 86_400_000
COLUMNS = Columns(0, HOUR, 4)
Row = tuple[int, int, str, int, int, str]


def judged(*rows: Row, names: tuple[str, ...] = ("a", "b")) -> CellVerdict:
    """Verdicts, each as hour, number of the key (-1: all others), word, rows, late records and reason."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * 6
    hours, keys, words, counts, late, reasons = columns
    starts, places, codes, rows_of, late_of = (
        np.array(part, dtype=np.int64) for part in (hours, keys, [WORDS.index(word) for word in words], counts, late)
    )
    return CellVerdict(starts * HOUR, places, codes, rows_of, late_of, reasons, names)


def present(*rows: tuple[int, int, int]) -> Present:
    hours, keys, counts = (np.array(part, dtype=np.int64) for part in (zip(*rows, strict=True) if rows else ((),) * 3))
    return Present(hours * HOUR, keys, counts)


def test_windows_of_an_hour_have_days_and_months_above_them() -> None:
    assert [level.name for level in levels_of(HOUR, is_aligned=True)] == ["window", "day", "month"]
    assert [level.name for level in levels_of(10_000, is_aligned=True)] == ["window", "minute", "hour", "day", "month"]
    assert [level.name for level in levels_of(HOUR, is_aligned=False)] == ["minute", "hour", "day", "month"]


def test_the_finest_level_that_fits_is_chosen() -> None:
    levels = levels_of(HOUR, is_aligned=True)
    assert choose_level(levels, 0, 48 * HOUR, 90).name == "window"
    assert choose_level(levels, 0, 62 * DAY, 90).name == "day"
    assert choose_level(levels, 0, 4000 * DAY, 90).name == "month"


def test_a_range_that_ends_within_a_column_shows_all_of_it() -> None:
    day = HeatmapLevel("day", DAY)
    assert count_columns(day, DAY - 1, DAY + 1) == 2
    assert Columns.of(day, DAY - 1, DAY + 1) == Columns(0, DAY, 2)
    assert Columns.of(day, DAY, DAY) == Columns(DAY, DAY, 0)


def test_of_too_many_columns_the_newest_are_shown() -> None:
    assert Columns.of(HeatmapLevel("window", HOUR), 0, 100 * HOUR, most=10) == Columns(90 * HOUR, HOUR, 10)


@pytest.mark.parametrize(
    ("ranges", "touched"),
    [
        ([(HOUR, HOUR + 1)], [1]),
        ([(HOUR - 1, 2 * HOUR)], [0, 1]),
        ([(-DAY, DAY)], [0, 1, 2, 3]),
        ([(4 * HOUR, DAY), (-DAY, 0), (HOUR, HOUR)], []),
        ([], []),
    ],
)
def test_half_open_ranges_touch_the_columns_that_they_have_a_time_of(
    ranges: list[tuple[int, int]], touched: list[int]
) -> None:
    assert COLUMNS.touched(ranges) == touched


def test_a_row_has_its_own_verdict_or_else_that_of_its_window() -> None:
    #          hour 0   1        2     3
    # a        A        L        O     (no row)
    # b        A        A        -     (no row)   the window of hour 2 is judged, that of 3 is not
    verdicts = judged(
        (0, -1, Verdict.AGREES, 2, 0, ""),
        (1, -1, Verdict.AGREES, 1, 0, ""),
        (1, 0, Verdict.LATE, 1, 3, "3 of 9 records"),
        (2, -1, Verdict.OPEN, 2, 0, ""),
    )
    rows = present((0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1), (2, 0, 1), (3, 1, 1))
    cells = fill_cells(verdicts, {0: 0, 1: 1}, 2, rows, COLUMNS)
    assert cells.letters == ["ALO ", "AA -"]
    assert cells.marked[0][1] == MarkedCell({Verdict.LATE: 1}, 3, "3 of 9 records")
    assert cells.marked[0][2].rows == {Verdict.OPEN: 1}
    assert cells.marked[1] == {3: MarkedCell({"UNJUDGED": 1}, 0, "")}


def test_a_row_that_is_judged_and_not_served_has_its_letter_too() -> None:
    cells = fill_cells(judged((1, 1, Verdict.DEFECT, 1, 0, "gone")), {1: 0}, 1, present(), COLUMNS)
    assert cells.letters == [" D  "]


def test_the_letter_of_a_wide_column_is_that_of_its_worst_row() -> None:
    wide = Columns(0, 4 * HOUR, 1)
    verdicts = judged(
        (0, 0, Verdict.LATE, 1, 1, "x"),
        (1, 0, Verdict.DEFECT, 1, 0, "y"),
        (2, -1, Verdict.AGREES, 1, 0, ""),
        (3, -1, Verdict.AGREES, 1, 0, ""),
    )
    cells = fill_cells(verdicts, {0: 0}, 1, present(*((hour, 0, 1) for hour in range(4))), wide)
    assert cells.letters == ["D"]
    assert cells.marked[0][0] == MarkedCell({Verdict.DEFECT: 1, Verdict.LATE: 1, Verdict.AGREES: 2}, 1, "")


def test_keys_are_ordered_by_the_worst_that_they_have_then_by_late_records() -> None:
    names = ("agrees", "late", "later", "defect", "lost")
    verdicts = judged(
        (0, 0, Verdict.AGREES, 1, 0, ""),
        *((hour, 1, Verdict.LATE, 1, 1, "") for hour in range(4)),
        *((hour, 2, Verdict.LATE, 1, 5, "") for hour in range(4)),
        (0, 3, Verdict.DEFECT, 1, 0, ""),
        (0, 4, Verdict.NOT_COMPARABLE, 1, 0, ""),
        names=names,
    )
    assert [names[number] for number, *_ in verdicts.rank_keys()] == ["defect", "lost", "later", "late", "agrees"]


def test_a_column_counts_the_rows_that_have_no_verdict_of_their_own() -> None:
    verdicts = judged(
        (1, -1, Verdict.AGREES, 7, 0, ""), (1, 0, Verdict.LATE, 1, 1, ""), (2, -1, Verdict.OPEN, 3, 0, "")
    )
    counts = dict(zip(WORDS, verdicts.counts_by_column(COLUMNS).tolist(), strict=True))
    assert counts[Verdict.AGREES] == [0, 7, 0, 0]
    assert counts[Verdict.LATE] == [0, 1, 0, 0]
    assert counts[Verdict.OPEN] == [0, 0, 3, 0]


def test_nothing_judged_and_nothing_served_is_blank() -> None:
    assert fill_cells(judged(), {}, 1, present(), COLUMNS).letters == ["    "]
