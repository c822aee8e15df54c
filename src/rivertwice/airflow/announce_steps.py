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

from airflow.sdk import Asset, get_current_context
from airflow.sdk.exceptions import AirflowSkipException

from rivertwice.airflow.dag_names import safe_name
from rivertwice.airflow.refusals import refusals
from rivertwice.core import PipelineHome, Settings, base_of, from_ms, to_plain
from rivertwice.storage import Where

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


# Airflow's assets of a pipeline: its stream, what it serves, and the days of that which a reconcile has passed.
#
# Other DAGs wait for them by name. They belong to the pipeline, not to a version: who waits need not know which one serves.


def stream_asset(pipeline: str) -> Asset:
    """Return the asset whose store caches what was last seen of a stream."""
    return Asset(name=f"stream.{safe_name(pipeline)}", uri=f"x-rivertwice://streams/{safe_name(pipeline)}")


def served_asset(pipeline: str) -> Asset:
    """Return the asset of what a pipeline serves: an event for each publication, and for each reconcile that passed."""
    return Asset(name=f"served.{base_of(pipeline)}", uri=f"x-rivertwice://served/{base_of(pipeline)}")


def reconciled_asset(pipeline: str) -> Asset:
    """Return the asset of a pipeline's reconciled days: an event for each day, whose partition is the day, `2013-06-30`."""
    return Asset(name=f"reconciled.{base_of(pipeline)}", uri=f"x-rivertwice://reconciled/{base_of(pipeline)}")


log = logging.getLogger(__name__)

STORED = "announced"


@dataclass(frozen=True)
class AnnouncedReconcile:
    """What an event of `served.PIPELINE` says of a reconcile that passed."""

    reconcile: str
    counts: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class AnnouncedPublication:
    """What an event of `served.PIPELINE` says of a publication: its entry of the sequence, and the windows that it covers."""

    backfill: str
    sequence: int
    ranges: Sequence[Mapping[str, str]]
    rows: int | None


def announce_reconcile(pipeline: str, passed: dict[str, Any]) -> AnnouncedReconcile:
    """Give the event of `served.PIPELINE` that a reconcile passed.

    Args:
        pipeline: its name, or that of a version.
        passed: what the task `gate` returned.
    """
    settings = Settings.from_env()
    _skip_unless_serving(settings.pipeline(pipeline), pipeline)
    said = AnnouncedReconcile(passed["run"], passed["counts"])
    _outlet(served_asset(pipeline)).extra = {"kind": "reconciled", **to_plain(said)}
    return said


def announce_publication(pipeline: str, sequence: int) -> AnnouncedPublication:
    """Give the event of `served.PIPELINE` that a backfill was published: its entry of the sequence, and the windows that it covers."""
    from rivertwice.core import iso_of_ms
    from rivertwice.timeline import publications_of, read_sequence

    home = Settings.from_env().pipeline(pipeline)
    _skip_unless_serving(home, pipeline)
    publication = next(each for each in publications_of(read_sequence(home)) if each.seq == sequence)
    ranges = [{"from": iso_of_ms(start), "to": iso_of_ms(end)} for start, end in publication.ranges]
    said = AnnouncedPublication(publication.backfill, sequence, ranges, publication.rows)
    _outlet(served_asset(pipeline)).extra = {"kind": "published", **to_plain(said)}
    return said


def announce_days(pipeline: str, passed: dict[str, Any]) -> list[str]:
    """Give an event of `reconciled.PIPELINE` for each day that was reconciled since the last time; return them.

    A run that is tried again announces what it announced before: the days are stored with its name.
    """
    settings, context = Settings.from_env(), get_current_context()
    asset = reconciled_asset(pipeline)
    store: Any = context["asset_state_store"][asset]
    run = context["dag_run"].run_id
    stored: dict[str, Any] = store.get(STORED) or {}
    if stored.get("run") == run:
        keys, spanned = stored["keys"], stored["range"]
    else:
        with refusals():
            days = find_days(settings.pipeline(pipeline), pipeline, passed["run"], _known(stored))
        keys, spanned = days.keys, range_text((*days.new, *days.again))
        store.set(STORED, {"run": run, "keys": keys, "range": spanned, "after": asdict(days.after)})
    if not keys:
        message = f"no day of {pipeline} was reconciled since the last time, and none of those that were has changed"
        raise AirflowSkipException(message)
    event = _outlet(asset)
    event.extra = {"reconcile": passed["run"], "range": spanned, "counts": passed["counts"], "days": len(keys)}
    event.add_partitions(keys)
    log.info("announced %s days of %s: %s", len(keys), pipeline, ", ".join(keys))
    return list(keys)


def find_days(home: PipelineHome, pipeline: str, run: str, announced: Announced) -> DaysToAnnounce:
    """Return the days that a passed reconcile announces.

    Args:
        home: of the pipeline, or of a version.
        run: name of the reconcile.

    Raises:
        AirflowSkipException: another version serves, or the rows are final at once, so that no day is ever complete.
    """
    from rivertwice.definition import load_bundle_definition
    from rivertwice.reconcile import reconcile_runs
    from rivertwice.timeline import Timeline, publications_of, read_ledger, read_sequence

    _skip_unless_serving(home, pipeline)
    judged = next(each for each in reconcile_runs(home) if each["run"] == run)
    line = Timeline.load(home, judged["timeline"])
    window = load_bundle_definition(home.bundles, line.bundle).window
    if window.last_end_ms(0) is None:
        message = f"rows of {pipeline} have no watermark that says when a day is complete; wait for {served_asset(pipeline).name}"
        raise AirflowSkipException(message)
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
        raise AirflowSkipException(message)


def _outlet(asset: Asset) -> Any:
    return get_current_context()["outlet_events"][asset]
