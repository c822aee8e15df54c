"""The two stormy days: after a backfill every closed window serves what a count in Python finds in the log."""

import dataclasses
import json
from collections import defaultdict
from datetime import datetime, timedelta

import pytest

from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.compute import compute_backfill
from rivertwice.backfill.model import BackfillRequest
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.store import save_plan
from rivertwice.core.instants import TimeRange, from_ms
from rivertwice.definition.bundle import load_bundle_definition
from rivertwice.log.records import read_ranges
from rivertwice.timeline.served import read_served, rebuild_served
from streams.flights import copy_run

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
HOUR = timedelta(hours=1)
COLUMNS = ("flights", "cancelled", "delay_sum", "delay_max", "late_15")


def truth(spark, run, view):
    """Aggregate all records below `as_of` in Python; only windows closed at that batch."""
    ranges = {partition: (0, end) for partition, end in view.as_of[run.topic].items()}
    groups = defaultdict(list)
    for row in read_ranges(spark, run.settings, run.topic, ranges).select("value").toArrow().to_pylist():
        flight = json.loads(row["value"])
        start = datetime.fromisoformat(flight["sched_dep"]).replace(minute=0, second=0, microsecond=0)
        if start + HOUR <= from_ms(view.closed_ms):
            groups[start, flight["origin"]].append(flight)
    found = {}
    for key, flights in groups.items():
        delays = [one["dep_delay"] for one in flights if one["dep_delay"] is not None]
        found[key] = (
            len(flights),
            sum(one["cancelled"] for one in flights),
            sum(delays) if delays else None,
            max(delays, default=None),
            sum(delay > 15 for delay in delays),
        )
    return found


def served(run):
    return {
        (row["window_start"], row["origin"]): tuple(row[name] for name in COLUMNS)
        for row in read_served(run.home).to_pylist()
    }


@pytest.mark.proves("guarantees.md#served")
def test_windows_that_lost_flights_serve_the_truth_after_their_backfill(streamed_two_days, spark, tmp_path, capsys):
    run = copy_run(streamed_two_days, tmp_path)
    view = observe_backfill(run.settings, run.pipeline)
    definition = load_bundle_definition(run.home.bundles, view.bundle)
    rebuild_served(run.home, definition)
    expected, before = truth(spark, run, view), served(run)
    wrong = {
        start
        for start, origin in expected.keys() | before.keys()
        if expected.get((start, origin)) != before.get((start, origin))
    }
    lost = sum(row[0] for row in expected.values()) - sum(row[0] for row in before.values())
    assert lost >= 100

    stale = tuple((int(start.timestamp() * 1000), int((start + HOUR).timestamp() * 1000)) for start in sorted(wrong))
    view = dataclasses.replace(view, stale=stale)
    plan = save_plan(run.home, plan_backfill(BackfillRequest(run.pipeline, None, "test"), view, chunk_records=600))
    assert (plan.windows, plan.late) == (len(wrong), len(wrong))
    computed = compute_backfill(spark, run.settings, plan)
    audit = audit_backfill(run.settings, plan)
    publish_backfill(run.settings, plan)
    report = rebuild_served(run.home, definition)
    assert served(run) == expected

    # The whole range in one more backfill gives the same rows, and replaces the first publication.
    whole = TimeRange(from_ms(plan.ranges[0][0]) - 100 * HOUR, from_ms(view.closed_ms))
    again = save_plan(
        run.home,
        plan_backfill(BackfillRequest(run.pipeline, whole, "test"), observe_backfill(run.settings, run.pipeline)),
    )
    assert again.replaces == (plan.id,)
    compute_backfill(spark, run.settings, again)
    audit_backfill(run.settings, again)
    publish_backfill(run.settings, again)
    assert rebuild_served(run.home, definition).published == len(expected)
    assert served(run) == expected
    with capsys.disabled():
        print(  # noqa: T201 (figures of the run)
            f"\nbackfill: {plan.windows} windows stale, {lost} flights lost by the stream, {len(plan.chunks)} chunks, "
            f"{audit.records} records, {audit.rows} rows, {computed.seconds:.1f} s; "
            f"{report.published} of {report.rows} served rows published, all {len(expected)} equal the count in Python"
        )
