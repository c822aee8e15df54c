"""The advisor's values: what was measured of a log, and what each watermark delay would have done with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from rivertwice.core import TimeRange


@dataclass(frozen=True)
class Outcome:
    """What one watermark delay would have done with the records of a log.

    Attributes:
        present: whether the definition has this delay now.
        dropped: (record, window) pairs that would have been late.
        windows: windows that would have lost at least one pair.
        by_partition: partition to dropped pairs; only partitions that would have lost some.
        event_wait_p50, event_wait_max: how far event time had to go past the end of a window before its rows came; None: no window
            would have been closed.
        clock_wait_p50: from the end of a window to the batch that brings its rows, by the clock of the driver. It is the wait of a
            reader only if the stream kept up with the log.
        most_state: an upper bound of the rows that the state would have held at once; None: the kind of windows has no such bound.
    """

    delay: timedelta
    present: bool
    dropped: int
    windows: int
    by_partition: Mapping[int, int]
    event_wait_p50: timedelta | None
    event_wait_max: timedelta | None
    clock_wait_p50: timedelta | None
    most_state: int | None


@dataclass(frozen=True)
class Suggestion:
    """The smallest delay of a grid by which at most a share of all pairs would have been dropped.

    Attributes:
        share: of all pairs; 0: none is dropped.
        delay: a multiple of `Advice.step`.
        dropped: pairs that this delay would have dropped.
        rounded: the delay, rounded up to one that a person would write; it drops no more.
    """

    share: float
    delay: timedelta
    dropped: int
    rounded: timedelta


@dataclass(frozen=True)
class ValueLoss:
    """What the delays would have dropped of the records with one value of a column.

    Attributes:
        value: as text; None: null.
        pairs: all pairs of it.
        dropped: by delay, in the order of `Advice.outcomes`.
    """

    value: str | None
    pairs: int
    dropped: tuple[int, ...]


@dataclass(frozen=True)
class Advice:
    """What watermark delays would have done with the part of the log that was looked at.

    Attributes:
        batches: how many micro-batches were looked at; a delay is judged as if these had been the batches.
        read: smallest and largest event time of them.
        records: accepted records that the row filter keeps.
        pairs: (record, window) pairs of them.
        step: the grid of the suggestions.
        outcomes: by delay, the smallest first.
        suggestions: by share, the largest first.
        column: whose values `values` splits by; None: not asked.
        values: the values that lose most by the present delay, the worst first; at most `MOST_VALUES`.
        kept: pairs that the stream itself kept as late in these batches; None: its policy keeps none, or its delay was another in
            some of the batches, so that there is nothing to compare with.
    """

    pipeline: str
    source: str
    batches: int
    read: TimeRange
    records: int
    pairs: int
    step: timedelta
    outcomes: tuple[Outcome, ...]
    suggestions: tuple[Suggestion, ...]
    column: str | None
    values: tuple[ValueLoss, ...]
    kept: int | None


MOST_VALUES = 20
