"""Which days a passed reconcile announces to other DAGs. Pure.

A day (UTC) is announced once, when no window that starts in it can be open any more and a reconcile of the whole passed. It is
announced again when that has passed once more after a publication that covers a part of it, or after another version began to serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from rivertwice.instants import from_ms

if TYPE_CHECKING:  # it brings pyarrow and numpy, which a parse of a DAG file should not load
    from rivertwice.timeline.serving import Publication

DAY_MS = 86_400_000
MOST = 400
"""New days that one run announces; the next run goes on. Airflow starts a run of each DAG that waits for days, for each of them."""


@dataclass(frozen=True)
class Announced:
    """What was announced so far.

    Attributes:
        until: the days before it, counted from 1970; None: no day yet.
        sequence: publications up to this entry were judged by a reconcile whose days are announced.
        version: name of the version that served.
    """

    until: int | None = None
    sequence: int = 0
    version: str = ""

    def plain(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return asdict(self)


@dataclass(frozen=True)
class DaysToAnnounce:
    """What a run announces.

    Attributes:
        new: days that are announced for the first time, counted from 1970, in order.
        again: days that were announced before and changed since.
        after: what was announced once this is done.
    """

    new: tuple[int, ...]
    again: tuple[int, ...]
    after: Announced

    @property
    def keys(self) -> list[str]:
        """All days as `2013-06-30`, in order."""
        return [day_text(day) for day in sorted((*self.new, *self.again))]


def select_days(
    announced: Announced,
    *,
    version: str,
    sequence: int,
    first_ms: int | None,
    closed_ms: int,
    last_end_ms: Callable[[int], int],
    first_open_ms: int | None,
    publications: Sequence[Publication],
) -> DaysToAnnounce:
    """Return the days that a passed reconcile announces.

    Args:
        announced: what was announced so far.
        version: that serves.
        sequence: the newest head move or publication that the reconcile judged.
        first_ms: start of the earliest served window (epoch ms), if no day was announced yet; None: nothing is served.
        closed_ms: windows that end at or before it were closed when they were judged (epoch ms).
        last_end_ms: an instant to the end of the last window that may start before it, both in epoch ms.
        first_open_ms: start of the earliest window that was open; None: not known, or none was.
        publications: of the path that serves.
    """
    known = announced if announced.version in ("", version) else Announced()
    if known.until is None and first_ms is None:
        return DaysToAnnounce((), (), Announced(None, sequence, version))
    first = known.until if known.until is not None else (first_ms or 0) // DAY_MS
    closed = closed_days(closed_ms, last_end_ms)
    if first_open_ms is not None:
        closed = min(closed, first_open_ms // DAY_MS)
    until = max(first, min(closed, first + MOST))
    fresh = [each for each in publications if known.sequence < each.seq <= sequence]
    again = sorted(day for day in touched_days(fresh) if known.until is not None and day < known.until)
    return DaysToAnnounce(tuple(range(first, until)), tuple(again), Announced(until, sequence, version))


def closed_days(closed_ms: int, last_end_ms: Callable[[int], int]) -> int:
    """Return the first day, counted from 1970, in which a window may start that is not closed."""
    day = closed_ms // DAY_MS + 1
    while last_end_ms(day * DAY_MS) > closed_ms:
        day -= 1
    return day


def touched_days(publications: Iterable[Publication]) -> set[int]:
    """Return the days, counted from 1970, in which windows start that publications cover."""
    return {
        day
        for publication in publications
        for start, end in publication.ranges
        for day in range(start // DAY_MS, (end - 1) // DAY_MS + 1)
    }


def day_text(day: int) -> str:
    """Return a day, counted from 1970, as `2013-06-30`."""
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()


def range_text(days: Sequence[int]) -> dict[str, str] | None:
    """Return the half-open range of instants that days span, or None without days."""
    if not days:
        return None
    start, end = (from_ms(day * DAY_MS).strftime("%Y-%m-%dT%H:%M:%SZ") for day in (min(days), max(days) + 1))
    return {"from": start, "to": end}
