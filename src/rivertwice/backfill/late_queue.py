"""The queue of the late policy `correct`: windows that late rows came for, until a publication has counted them. Pure.

Nothing of the queue is stored: it follows from the late rows that committed batches kept, and from the publications. So it
survives whatever is killed, and a backfill that was asked for anything else empties it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rivertwice.backfill.ranges import HalfOpenRange, merge
from rivertwice.instants import from_ms, to_iso
from rivertwice.pipeline.late_policy import LatePolicy
from rivertwice.timeline.serving import Publication

DUE, WAITING, BEYOND = "due", "waiting", "beyond"
MOST_DEBOUNCES = 6
"""A window for which late rows never cease is due so many debounces after the first of them."""


class LateArrival(NamedTuple):
    """One late (record, window) pair: the window's start and end, where the record lies, and when its batch was committed."""

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
        state: `due`, `waiting` (for quiet, until `due_at`), or `beyond` the horizon: it is left as it is.
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
        semantics: semantics hashes of the head's path.
        policy: debounce and horizon.
        closed_ms: watermark of the last committed batch on the head's path.
        now: what the debounce is measured against.
    """
    counted = [one for one in publications if one.semantics in semantics]
    windows: dict[tuple[int, int], list[LateArrival]] = {}
    for one in arrivals:
        if not any(_counts(publication, one) for publication in counted):
            windows.setdefault((one.start_ms, one.end_ms), []).append(one)
    return [_queued(window, found, policy, closed_ms, now) for window, found in sorted(windows.items())]


def _counts(publication: Publication, one: LateArrival) -> bool:
    covers = any(start <= one.start_ms < end for start, end in publication.ranges)
    return covers and one.offset < publication.as_of.get(one.topic, {}).get(one.partition, 0)


def _queued(
    window: HalfOpenRange, found: Sequence[LateArrival], policy: LatePolicy, closed_ms: int, now: datetime
) -> QueuedWindow:
    start_ms, end_ms = window
    first_at, last_at = min(one.came_at for one in found), max(one.came_at for one in found)
    due_at = min(last_at + policy.debounce, first_at + MOST_DEBOUNCES * policy.debounce)
    is_beyond = from_ms(end_ms) < from_ms(closed_ms) - policy.horizon
    state = BEYOND if is_beyond else DUE if due_at <= now else WAITING
    return QueuedWindow(start_ms, end_ms, len(found), first_at, last_at, state, due_at)


def due_ranges(queue: Iterable[QueuedWindow], step_ms: int) -> tuple[HalfOpenRange, ...]:
    """Return where the windows that are due start, as aligned ranges."""
    return merge((one.start_ms, one.start_ms + step_ms) for one in queue if one.state == DUE)


def describe_queue(queue: Sequence[QueuedWindow]) -> str:
    """Return in a few words what is due, what waits and until when, and what is left as it is."""
    found: Mapping[str, list[QueuedWindow]] = {
        state: [one for one in queue if one.state == state] for state in (DUE, WAITING, BEYOND)
    }
    parts = [f"{len(found[DUE])} due"]
    if found[WAITING]:
        parts.append(
            f"{len(found[WAITING])} waiting, the next until {to_iso(min(one.due_at for one in found[WAITING]))}"
        )
    if found[BEYOND]:
        parts.append(f"{len(found[BEYOND])} beyond the horizon, left as they are")
    return ", ".join(parts)
