"""From a request to its plan: observe, look up the sessions that are meant, plan. People and DAGs use the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rivertwice.backfill.late_queue import DUE, describe_queue
from rivertwice.backfill.model import BackfillPlan, BackfillRequest, BackfillView, Span
from rivertwice.backfill.observe import observe_backfill, observe_late_queue, stale_ranges
from rivertwice.backfill.plan import CHUNK_RECORDS, explain_plan, plan_backfill
from rivertwice.backfill.recompute import truth_reader
from rivertwice.backfill.session_observe import overlapping, spans_of
from rivertwice.backfill.session_plan import ReadServed, Zone, asked_sessions, has_settled, survey_sessions
from rivertwice.core import PipelineHome, Progress, Settings
from rivertwice.definition import Definition, load_bundle_definition
from rivertwice.engine import Spark
from rivertwice.timeline import head, path_of, read_ledger, read_sequence, rows_served_by, select_head, select_on_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_plan(
    settings: Settings,
    request: BackfillRequest,
    spark: Spark,
    *,
    chunk_records: int = CHUNK_RECORDS,
) -> BackfillPlan:
    """Return the plan of a request.

    Args:
        spark: gives a session; only called if windows are sessions, which only their records show.
        chunk_records: rows a chunk aims at.

    Raises:
        RequestError: see `observe_backfill` and `plan_backfill`.
        LogGapError: records that are needed, or may be needed, are lost.
    """
    return plan_backfill(request, look(settings, request, spark), chunk_records=chunk_records)


def find_nothing_stale(settings: Settings, pipeline: str) -> str | None:
    """Return why there is nothing to do if no range is asked for, or None; without a timeline the plan refuses.

    For a task that only decides whether a Spark job is worth its start: the log is not read.
    """
    home = settings.pipeline(pipeline)
    return None if head(home) is None or stale_ranges(home) else _nothing_stale(pipeline)


def _nothing_stale(pipeline: str) -> str:
    return f"the newest reconcile of {pipeline} found no stale window; nothing to do"


def plan_if_needed(settings: Settings, request: BackfillRequest, spark: Spark, say: Progress) -> BackfillPlan | None:
    """Return the plan of a schedule's request, explained line by line; None, with the reason, if there is nothing to do.

    The arguments and errors are those of `make_plan`; `say` is passed each line.
    """
    name = request.pipeline
    if request.late_at is not None:
        queue = observe_late_queue(settings.pipeline(name), request.late_at)
        say(f"late queue of {name}: {describe_queue(queue)}")
        if not any(window.state == DUE for window in queue):
            return None
    view = observe_backfill(settings, name, request.verdicts)
    of_newest_reconcile = request.range is None and request.late_at is None
    if of_newest_reconcile and not (view.stale or (view.sessions is not None and view.sessions.stale)):
        say(_nothing_stale(name))
        return None
    if view.sessions is not None:
        view = look_up(settings, request, view, spark())
    if of_newest_reconcile and not has_settled(view):
        say(f"every session of {name} that is stale is still open; nothing to do yet")
        return None
    plan = plan_backfill(request, view)
    for line in explain_plan(plan).splitlines():
        say(line)
    return plan


def look(settings: Settings, request: BackfillRequest, spark: Spark) -> BackfillView:
    """Return all that the plan of a request depends on; for sessions, with those that are meant."""
    view = observe_backfill(settings, request.pipeline, request.verdicts)
    return view if view.sessions is None else look_up(settings, request, view, spark())


def look_up(settings: Settings, request: BackfillRequest, view: BackfillView, spark: SparkSession) -> BackfillView:
    """Return the view with the sessions that a request means, read from the log as of the view.

    Raises:
        RequestError: no session is stale, or there are too many.
        LogGapError: neither the archive nor Kafka has a record that is needed.
    """
    asked = asked_sessions(request, view)
    assert view.sessions is not None, "only sessions are looked up"
    assert view.closed_ms is not None, "a request was checked against it"
    home = settings.pipeline(view.pipeline)
    definition = load_bundle_definition(home.bundles, view.bundle)
    components = survey_sessions(
        asked,
        served_reader(home, definition, view),
        truth_reader(spark, settings, view, definition),
        closed_ms=view.closed_ms,
        gap_ms=view.window_ms,
    )
    return replace(view, sessions=replace(view.sessions, components=components))


def served_reader(home: PipelineHome, definition: Definition, view: BackfillView) -> ReadServed:
    """Return a reader of the sessions that were served when the view was observed, whatever was committed since."""
    entries = [entry for entry in read_sequence(home) if entry.seq <= view.sequence]
    served_by = select_head(entries)
    batches = {(zone.timeline, zone.batch) for zone in view.batches}
    path = [] if served_by is None else path_of(home, served_by)
    ledger = [row for row in select_on_path(read_ledger(home), path) if (row.timeline, row.batch) in batches]
    rows = rows_served_by(home, definition, entries, ledger)

    def read(zone: Zone) -> Sequence[Span]:
        return [] if rows is None else spans_of(overlapping(rows, definition, zone), definition)

    return read
