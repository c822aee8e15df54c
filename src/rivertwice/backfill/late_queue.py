"""The queue of the late policy `correct`: windows with late rows, until a publication has counted these. Pure.

The queue is not stored: it follows from the late rows that committed batches kept, and from the publications. So it survives
any kill, and a backfill that was asked for another reason empties it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rivertwice.backfill.ranges import HalfOpenRange, merge
from rivertwice.core import from_ms, to_iso
from rivertwice.definition import LatePolicy
from rivertwice.timeline import Publication

DUE, WAITING, BEYOND = "due", "waiting", "beyond"
MOST_DEBOUNCES = 6
"""A window that keeps getting late rows is due this number of debounces after the first of them."""


class LateArrival(NamedTuple):
    """One late (record, window) pair: the window's start and end, the record's address, and when its batch was committed."""

    start_ms: int
    end_ms: int
    topic: str
    partition: int
    offset: int
    came_at: datetime


@dataclass(frozen=True)
class QueuedWindow:
    """A window that serves less than the log holds.

    Attributes:
        records: late rows that no publication of it has counted.
        first_at, last_at: when the first and the last of them were committed.
        state: `due`, `waiting` (until `due_at`, for more late rows), or `beyond` the horizon: it is left as it is.
    """

    start_ms: int
    end_ms: int
    records: int
    first_at: datetime
    last_at: datetime
    state: str
    due_at: datetime

    @property
    def window(self) -> str:
        """The window's start, for people."""
        return to_iso(from_ms(self.start_ms))


def queue_windows(
    arrivals: Iterable[LateArrival],
    publications: Sequence[Publication],
    *,
    semantics: AbstractSet[str],
    policy: LatePolicy,
    closed_ms: int,
    now: datetime,
) -> list[QueuedWindow]:
    """Return every window with late rows that no publication has counted, by its start.

    Args:
        arrivals: late rows of committed batches on the head's path.
        publications: the sequence's publications; only those of `semantics` count.
        closed_ms: watermark of the last committed batch on the head's path.
        now: what the debounce is measured against.
    """
    counted = [publication for publication in publications if publication.semantics in semantics]
    windows: dict[tuple[int, int], list[LateArrival]] = {}
    for arrival in arrivals:
        if not any(_counts(publication, arrival) for publication in counted):
            windows.setdefault((arrival.start_ms, arrival.end_ms), []).append(arrival)
    return [_queued(window, late_arrivals, policy, closed_ms, now) for window, late_arrivals in sorted(windows.items())]


def _counts(publication: Publication, arrival: LateArrival) -> bool:
    covers = any(start <= arrival.start_ms < end for start, end in publication.ranges)
    return covers and arrival.offset < publication.as_of.get(arrival.topic, {}).get(arrival.partition, 0)


def _queued(
    window: HalfOpenRange, arrivals: Sequence[LateArrival], policy: LatePolicy, closed_ms: int, now: datetime
) -> QueuedWindow:
    start_ms, end_ms = window
    first_at, last_at = min(arrival.came_at for arrival in arrivals), max(arrival.came_at for arrival in arrivals)
    due_at = min(last_at + policy.debounce, first_at + MOST_DEBOUNCES * policy.debounce)
    is_beyond = from_ms(end_ms) < from_ms(closed_ms) - policy.horizon
    state = BEYOND if is_beyond else DUE if due_at <= now else WAITING
    return QueuedWindow(start_ms, end_ms, len(arrivals), first_at, last_at, state, due_at)


def due_ranges(queue: Iterable[QueuedWindow], step_ms: int) -> tuple[HalfOpenRange, ...]:
    """Return where the windows that are due start, as aligned ranges."""
    return merge((window.start_ms, window.start_ms + step_ms) for window in queue if window.state == DUE)


def describe_queue(queue: Sequence[QueuedWindow]) -> str:
    """Return in a few words how many windows are due, how many wait and until when, and how many are left as they are."""
    by_state: Mapping[str, list[QueuedWindow]] = {
        state: [window for window in queue if window.state == state] for state in (DUE, WAITING, BEYOND)
    }
    parts = [f"{len(by_state[DUE])} due"]
    if by_state[WAITING]:
        parts.append(
            f"{len(by_state[WAITING])} waiting, the next until {to_iso(min(window.due_at for window in by_state[WAITING]))}"
        )
    if by_state[BEYOND]:
        parts.append(f"{len(by_state[BEYOND])} beyond the horizon, left as they are")
    return ", ".join(parts)
