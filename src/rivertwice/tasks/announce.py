"""Tasks that tell other DAGs what is served: an event per passed reconcile and per publication, and one per reconciled day.

Airflow stores a task's events when the task has succeeded, so a task that is tried again gives them once. What was announced is in
Airflow's own store of the asset: it is about what Airflow's DAGs have seen, and another Airflow begins with the first day.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from rivertwice.core import PipelineHome, Settings, base_of, from_ms
from rivertwice.storage import Where
from rivertwice.tasks.run import TaskRun, TaskSkippedError

if TYPE_CHECKING:
    from rivertwice.timeline import Publication


# Which days a passed reconcile announces to other DAGs. Pure.
#
# A day (UTC) is announced once, when no window that starts in it can be open any more and a reconcile of the whole passed. It is
# announced again when that has passed once more after a publication that covers a part of it, or after another version began to serve.

DAY_MS = 86_400_000
MOST = 400
"""The maximum number of new days that one run announces; the next run continues. Airflow starts a run of each DAG that waits for days, for each of them."""


@dataclass(frozen=True)
class Announced:
    """What was announced so far.

    Attributes:
        until: the days before it, counted from 1970; None: no day yet.
        sequence: publications up to this entry were judged by a reconcile whose days are announced.
    """

    until: int | None = None
    sequence: int = 0
    version: str = ""


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


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AnnouncedReconcile:
    """What an event of `served.PIPELINE` says of a reconcile that passed."""

    kind: str
    reconcile: str
    counts: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class AnnouncedPublication:
    """What an event of `served.PIPELINE` says of a publication: its entry of the sequence, and the windows that it covers."""

    kind: str
    backfill: str
    sequence: int
    ranges: Sequence[Mapping[str, str]]
    rows: int | None


@dataclass(frozen=True)
class AnnouncedDays:
    """The days that a run announces, and what was announced once that is done; Airflow's store of the asset keeps it."""

    run: str
    keys: Sequence[str]
    range: Mapping[str, str] | None
    after: Mapping[str, Any]


def announce_reconcile(settings: Settings, _run: TaskRun, pipeline: str, passed: dict[str, Any]) -> AnnouncedReconcile:
    """Return what the event of `served.PIPELINE` says of a reconcile that passed.

    Args:
        pipeline: its name, or that of a version.
        passed: what the task `gate` returned.
    """
    _skip_unless_serving(settings.pipeline(pipeline), pipeline)
    return AnnouncedReconcile("reconciled", passed["run"], passed["counts"])


def announce_publication(settings: Settings, _run: TaskRun, pipeline: str, sequence: int) -> AnnouncedPublication:
    """Return what the event of `served.PIPELINE` says of a backfill that was published."""
    from rivertwice.core import iso_of_ms
    from rivertwice.timeline import publications_of, read_sequence

    home = settings.pipeline(pipeline)
    _skip_unless_serving(home, pipeline)
    publication = next(each for each in publications_of(read_sequence(home)) if each.seq == sequence)
    ranges = [{"from": iso_of_ms(start), "to": iso_of_ms(end)} for start, end in publication.ranges]
    return AnnouncedPublication("published", publication.backfill, sequence, ranges, publication.rows)


def announce_days(
    settings: Settings, run: TaskRun, pipeline: str, passed: dict[str, Any], stored: dict[str, Any]
) -> AnnouncedDays:
    """Return the days that were reconciled since the last time.

    A run that is tried again announces what it announced before: the days are stored with its name.

    Args:
        stored: what the last run stored; empty: none did.

    Raises:
        TaskSkippedError: there is no such day.
    """
    if stored.get("run") == run.run:
        found = AnnouncedDays(**stored)
    else:
        days = find_days(settings.pipeline(pipeline), pipeline, passed["run"], _known(stored))
        spanned = range_text((*days.new, *days.again))
        found = AnnouncedDays(run.run, days.keys, spanned, asdict(days.after))
    if not found.keys:
        log.info("no day of %s was reconciled since the last time, and none of those that were has changed", pipeline)
    else:
        log.info("announced %s days of %s: %s", len(found.keys), pipeline, ", ".join(found.keys))
    return found


def find_days(home: PipelineHome, pipeline: str, run: str, announced: Announced) -> DaysToAnnounce:
    """Return the days that a passed reconcile announces.

    Args:
        home: of the pipeline, or of a version.
        run: name of the reconcile.

    Raises:
        TaskSkippedError: another version serves, or the rows are final at once, so that no day is ever complete.
    """
    from rivertwice.definition import load_bundle_definition
    from rivertwice.reconcile import reconcile_runs
    from rivertwice.timeline import Timeline, publications_of, read_ledger, read_sequence

    _skip_unless_serving(home, pipeline)
    judged = next(each for each in reconcile_runs(home) if each["run"] == run)
    line = Timeline.load(home, judged["timeline"])
    window = load_bundle_definition(home.bundles, line.bundle).window
    if window.last_end_ms(0) is None:
        message = f"rows of {pipeline} have no watermark that says when a day is complete; wait for served.{base_of(pipeline)}"
        raise TaskSkippedError(message)
    place = (judged["timeline"], judged["batch"])
    batch = next(row for row in read_ledger(home, judged["batch"]) if (row.timeline, row.batch) == place)
    is_first = announced.until is None or announced.version != pipeline
    return select_days(
        announced,
        version=pipeline,
        sequence=judged["sequence"],
        first_ms=_first_served(home, window.start_column) if is_first else None,
        closed_ms=window.closed_ms(batch.batch_watermark_ms),
        last_end_ms=lambda before_ms: window.last_end_ms(before_ms) or 0,
        first_open_ms=_first_open(home, run),
        publications=publications_of(read_sequence(home)),
    )


def _known(stored: dict[str, Any]) -> Announced:
    return Announced(**stored["after"]) if "after" in stored else Announced()


def _first_served(home: PipelineHome, start_column: str) -> int | None:
    from rivertwice.storage import Table
    from rivertwice.timeline import to_epoch_ms

    rows = Table(home.public_served).read(columns=[start_column])
    return None if rows is None or rows.num_rows == 0 else int(to_epoch_ms(rows[start_column]).min())


def _first_open(home: PipelineHome, run: str) -> int | None:
    """Return the start of the earliest window that the judging run called open (epoch ms)."""
    from rivertwice.core import to_ms
    from rivertwice.storage import Table
    from rivertwice.timeline import Verdict, run_chain

    judging = next(
        name for name, increment in run_chain(home, run) if increment is None or increment.settled_ms is not None
    )
    rows = Table(home.tables.verdicts).read(
        columns=["run", "verdict", "window_start"], matching=Where("run").equals(judging)
    )
    starts = [] if rows is None else [row["window_start"] for row in rows.to_pylist() if row["verdict"] == Verdict.OPEN]
    return min(map(to_ms, starts), default=None)


def _skip_unless_serving(home: PipelineHome, pipeline: str) -> None:
    from rivertwice.timeline import serving_by_stamp

    serving = serving_by_stamp(home)
    if serving != pipeline:
        message = f"{serving} serves {base_of(pipeline)}, so what {pipeline} has is not announced"
        raise TaskSkippedError(message)
