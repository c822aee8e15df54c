"""Watermark delay and window length from the event times of a sample. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rivertwice.pipeline.durations import format_duration

LENGTHS = tuple(timedelta(seconds=seconds) for seconds in (10, 60, 300, 900, 3_600, 21_600, 86_400))
"""Lengths of windows that are suggested."""
DELAYS = tuple(
    timedelta(seconds=seconds)
    for seconds in (10, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000)
)  # fmt: skip
"""Delays that are suggested."""
ENOUGH = 20
"""Records that a window of one key should hold, so that a figure over them means something."""
USUAL_LENGTH, USUAL_DELAY, USUAL_FUTURE = timedelta(hours=1), timedelta(minutes=1), timedelta(hours=1)


@dataclass(frozen=True)
class TimedRecord:
    """The times of one record of a sample.

    Attributes:
        partition, stretch, offset: its place.
        event: its event time.
        stamped: the record's own timestamp; None: it comes from a file.
    """

    partition: int
    stretch: int
    offset: int
    event: datetime
    stamped: datetime | None


@dataclass(frozen=True)
class Chosen:
    """A duration and why it was chosen."""

    value: timedelta
    why: str
    measured: bool


def stretches(records: Sequence[TimedRecord]) -> dict[tuple[int, int], list[TimedRecord]]:
    """Return the records by (partition, stretch), in the order of the log."""
    groups: dict[tuple[int, int], list[TimedRecord]] = {}
    for record in sorted(records, key=lambda each: (each.partition, each.stretch, each.offset)):
        groups.setdefault((record.partition, record.stretch), []).append(record)
    return groups


def largest_disorder(records: Sequence[TimedRecord]) -> tuple[timedelta, int]:
    """Return how far an event time is at most before that of an earlier record of the same stretch, and of how many records it is before."""
    widest, disordered = timedelta(0), 0
    for group in stretches(records).values():
        largest = group[0].event
        for record in group:
            widest = max(widest, largest - record.event)
            disordered += record.event < largest
            largest = max(largest, record.event)
    return widest, disordered


def choose_delay(records: Sequence[TimedRecord]) -> Chosen:
    """Return a watermark delay: twice the largest disorder of the sample, rounded up."""
    widest, disordered = largest_disorder(records)
    if not disordered:
        why = (
            f"no record of the sample ({len(records)}) comes after a later one of its partition; records of other partitions may, so it is "
            "not zero"
        )
        return Chosen(USUAL_DELAY, why, measured=False)
    value = next((delay for delay in DELAYS if delay >= 2 * widest), DELAYS[-1])
    why = f"{disordered} of {len(records)} records come after a later one of their partition, by at most {_rounded(widest)}; twice that, rounded up"
    if value < widest:
        why = (
            f"records come after a later one of their partition by up to {_rounded(widest)}: the log is not in the order of event time, and a "
            f"delay as long as that keeps windows open as long; see docs/howto-first-load.md for loading a history"
        )
    return Chosen(value, why, measured=True)


def choose_future(records: Sequence[TimedRecord]) -> Chosen:
    """Return how far an event time may be after its record's timestamp."""
    ahead = [record.event - record.stamped for record in records if record.stamped is not None]
    widest = max(ahead, default=timedelta(0))
    if widest <= timedelta(0):
        return Chosen(USUAL_FUTURE, "no event time of the sample is after its record's timestamp", measured=False)
    value = max(next((delay for delay in DELAYS if delay >= 2 * widest), 2 * widest), USUAL_FUTURE)
    return Chosen(
        value,
        f"event times are up to {_rounded(widest)} after their record's timestamp; twice that, rounded up",
        measured=True,
    )


def choose_length(records: Sequence[TimedRecord], keys: int) -> Chosen:
    """Return the length of a window: the shortest usual one in which a key has enough records.

    Args:
        records: the times of the sample.
        keys: how many values of the key the sample has.
    """
    rates: dict[int, list[float]] = {}
    for (partition, _), group in stretches(records).items():
        span = (max(each.event for each in group) - min(each.event for each in group)).total_seconds()
        if len(group) > 1 and span > 0:
            rates.setdefault(partition, []).append((len(group) - 1) / span)
    rate = sum(sum(each) / len(each) for each in rates.values()) / max(keys, 1)
    if not rate:
        return Chosen(USUAL_LENGTH, "the sample has too few records to show how dense they are", measured=False)
    value = next((length for length in LENGTHS if rate * length.total_seconds() >= ENOUGH), LENGTHS[-1])
    first, last = event_range(records)
    widest = next((length for length in reversed(LENGTHS) if length <= (last - first) / 3), LENGTHS[0])
    chosen = min(value, widest)
    why = f"about {rate * chosen.total_seconds():.3g} records of each key in {format_duration(chosen)}, as dense as the sample is"
    if chosen < value:
        why += "; a longer one would have more, but the sample would not fill three of them"
    return Chosen(chosen, why, measured=True)


def _rounded(value: timedelta) -> str:
    return format_duration(value - value % timedelta(seconds=1) if value >= timedelta(seconds=10) else value)


def event_range(records: Sequence[TimedRecord]) -> tuple[datetime, datetime]:
    """Return the first and the last event time of at least one record."""
    events = [record.event for record in records]
    return min(events), max(events)
