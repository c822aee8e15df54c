"""What the agent does under `stream.catch_up`: leave the oldest part of a backlog to batch, and publish it once its windows are closed.

Usage: python -m rivertwice.agent.leave --pipeline NAME (--hand-over WHY | --fill GAP)
The agent starts it, one at a time in the home. It holds a lock, and the stream is stopped by the intent of `BY`: an agent that finds that
intent without the lock wants the stream running again, so a job that is killed stops no stream for good.

1. Hand over: the stream is stopped, `hand_over` archives, records the gap and forks, the stream is wanted again.
2. Fill: a reconcile names the windows of the skipped records, a backfill publishes those. Killed, it is begun again.
3. A fill that finds nothing left to publish records that the gap is filled (`gaps/ID/filled.json`); only then may 1. come again.

Exit codes: 0 done, 4 published, so look again, 1 refused.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from rivertwice.core.errors import LostRaceError, RivertwiceError, ServiceError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import to_iso, utc_now
from rivertwice.core.locks import is_locked, lock_or_refuse
from rivertwice.core.settings import Settings
from rivertwice.core.tracing import flush as flush_spans
from rivertwice.core.waits import Deadline, Progress
from rivertwice.definition.bundle import load_bundle_definition
from rivertwice.definition.definition import load_definition
from rivertwice.definition.stream_pins import CatchUpPolicy
from rivertwice.engine.jvm import Spark
from rivertwice.log.gaps import HANDED_OVER, REPAIRABLE, accepted_gaps, gap_place, require_gap_id
from rivertwice.retention.backlog import Leaving
from rivertwice.retention.hand_over import hand_over, plan_hand_over, view_backlog
from rivertwice.storage.places import put_record_if_absent, read_record
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.committed import newest_batch
from rivertwice.timeline.intent import read_intent, write_intent
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import head_path, load_timeline, path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.timeline.verdicts import NOT_COMPARABLE

if TYPE_CHECKING:
    from rivertwice.reconcile.report import ReconcileReport

_log = logging.getLogger("rivertwice.leave")
BY = "catch-up policy"
REFUSED, LOOK_AGAIN = 1, 4
FILLED = "filled.json"
FORMAT = 1
_LOCK = "catch-up.lock"
_STOP_S = 300.0
_LEAST_PRIORITY = 19


def read_policy(settings: Settings, pipeline: str) -> CatchUpPolicy | None:
    """Return `stream.catch_up` of a pipeline's definition; None: only a person leaves records to batch."""
    return load_definition(settings.definition_folder(pipeline)).stream.catch_up


def is_at_work(home: PipelineHome) -> bool:
    """Say whether a job of this kind works on the pipeline, also one of an earlier agent."""
    return is_locked(home.operations / _LOCK)


def read_leaving(home: PipelineHome) -> Leaving | None:
    """Return what was left to batch on the head's path and is not published yet, by a person or by the policy; None: nothing."""
    gaps = accepted_gaps(home)
    open_ones = [
        (part.timeline, gaps[part.timeline])
        for part in head_path(home)
        if part.timeline in gaps
        and gaps[part.timeline].cause == HANDED_OVER
        and read_record(gap_place(home), f"{gaps[part.timeline].id}/{FILLED}") is None
    ]
    last = newest_batch(home, head_path(home))
    if not open_ones or last is None:
        return None
    timeline, gap = open_ones[-1]
    name = head(home)
    length = load_bundle_definition(home.bundles, load_timeline(home, str(name)).bundle).window.length
    return Leaving(gap.id, closed_from_ms(path_ledger(home), timeline, length), last.batch_watermark_ms)


def closed_from_ms(rows: list[LedgerRow], timeline: str, length: timedelta) -> int | None:
    """Return the watermark from which windows of records before a timeline's first ones are closed; None before those. Pure.

    Args:
        rows: the ledger of the head's path, in order.
        timeline: the one that began after the gap.
        length: of a window.
    """
    names = list(dict.fromkeys(row.timeline for row in rows))
    after = (
        rows if timeline not in names else [row for row in rows if names.index(row.timeline) >= names.index(timeline)]
    )
    first = next((row.max_event_ms for row in after if row.max_event_ms is not None), None)
    return None if timeline not in names or first is None else first + length // timedelta(milliseconds=1)


def record_filled(home: PipelineHome, gap: str) -> None:
    """Record that every closed window of a gap's records is published."""
    put_record_if_absent(
        gap_place(home), f"{require_gap_id(gap)}/{FILLED}", {"format": FORMAT, "gap": gap, "at": to_iso(utc_now())}
    )


def leave_to_batch(settings: Settings, pipeline: str, why: str, progress: Progress) -> str:
    """Leave the oldest part of what waits to batch; return what was done, in a sentence.

    Raises:
        RivertwiceError: it cannot be left, or the stream did not stop in time; nothing was skipped.
    """
    home, policy = settings.pipeline(pipeline), read_policy(settings, pipeline)
    with _alone(home, pipeline), _stopped(home):
        backlog = view_backlog(settings, pipeline, utc_now())[0]
        plan = plan_hand_over(settings, pipeline, backlog, None if policy is None else policy.keep)
        accepted = hand_over(settings, pipeline, plan, by=BY, now=utc_now(), progress=progress)
    return (
        f"{plan.records} records of {plan.topic} were left to batch as {accepted.gap} ({why}); {pipeline} continues after them on timeline "
        f"{accepted.timeline}, and a backfill publishes their windows once the stream has closed them"
    )


def fill_gap(settings: Settings, pipeline: str, gap: str, spark: Spark, progress: Progress) -> bool:
    """Publish what the newest look finds stale, or record that the gap is filled; return whether it is.

    Raises:
        RivertwiceError: the reconcile or the backfill was refused.
    """
    from rivertwice.reconcile.run import reconcile

    home = settings.pipeline(pipeline)
    with _alone(home, pipeline):
        report = reconcile(spark(), settings, pipeline, now=utc_now(), progress=progress)
        if not has_unpublished(report):
            record_filled(home, gap)
            return True
        _publish(settings, pipeline, gap, spark, progress)
        return False


def has_unpublished(report: ReconcileReport) -> bool:
    """Say whether a reconcile found windows that only a backfill over skipped records makes right. Pure."""
    return any(
        verdict.pair == "served" and verdict.verdict == NOT_COMPARABLE and verdict.reason.startswith(REPAIRABLE)
        for verdict in report.verdicts
    )


def _publish(settings: Settings, pipeline: str, gap: str, spark: Spark, progress: Progress) -> None:
    from rivertwice.backfill.audit import audit_backfill
    from rivertwice.backfill.compute import compute_backfill
    from rivertwice.backfill.model import BackfillRequest
    from rivertwice.backfill.prepare import make_plan
    from rivertwice.backfill.publish import publish_backfill
    from rivertwice.backfill.store import save_plan

    home = settings.pipeline(pipeline)
    request = BackfillRequest(pipeline, None, f"{BY}: {gap}", None)
    plan = save_plan(home, make_plan(settings, request, spark))
    compute_backfill(spark(), settings, plan, progress)
    audit_backfill(settings, plan, spark)
    publish_backfill(settings, plan)
    progress(f"{plan.id}: {plan.windows} windows published")


@contextmanager
def _alone(home: PipelineHome, pipeline: str) -> Iterator[None]:
    def refuse(holder: str) -> LostRaceError:
        message = f"{holder} leaves records of {pipeline} to batch, or publishes them, already; nothing was done"
        return LostRaceError(message)

    home.operations.mkdir(parents=True, exist_ok=True)
    with lock_or_refuse(home.operations / _LOCK, refuse):
        yield


@contextmanager
def _stopped(home: PipelineHome) -> Iterator[None]:
    intent = read_intent(home)
    if intent is None or intent.desired != "running":
        message = f"{home.root.name} is not wanted running any more; nothing was done"
        raise LostRaceError(message)
    write_intent(home, "stopped", BY, utc_now())
    try:
        if not Deadline.after(_STOP_S).wait_until(lambda: lease_owner(home) is None):
            message = f"the driver of {home.root.name} still drains after {_STOP_S:.0f} s; nothing was skipped; tried again later"
            raise ServiceError(message)
        yield
    finally:
        want_again(home)


def want_again(home: PipelineHome) -> bool:
    """Want the stream running if this job stopped it and nobody has asked for anything since; return whether it was so."""
    intent = read_intent(home)
    ours = intent is not None and (intent.desired, intent.by) == ("stopped", BY)
    if ours:
        write_intent(home, "running", BY, utc_now())
    return ours


def main(argv: list[str] | None = None) -> int:
    """Do one job; return the exit code."""
    from rivertwice.engine.session import spark_on_demand

    parser = argparse.ArgumentParser(prog="rivertwice.agent.leave", description=__doc__)
    parser.add_argument("--pipeline", required=True, help="name of the pipeline")
    work = parser.add_mutually_exclusive_group(required=True)
    work.add_argument("--hand-over", metavar="WHY", help="leave the oldest part of the backlog to batch")
    work.add_argument("--fill", metavar="GAP", help="publish the windows of this gap")
    arguments = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout, force=True
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    settings, name = Settings.from_env(), arguments.pipeline
    try:
        if arguments.hand_over is not None:
            _log.info("%s", leave_to_batch(settings, name, arguments.hand_over, _log.info))
            return 0
        os.nice(_LEAST_PRIORITY)
        with spark_on_demand(settings, f"rivertwice-fill-{name}") as spark:
            return 0 if fill_gap(settings, name, arguments.fill, spark, _log.info) else LOOK_AGAIN
    except RivertwiceError as error:
        _log.error("%s: %s", error.reason, error)
        return REFUSED


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    flush_spans()
    os._exit(code)  # all state is on disk; a callback thread that waits for a JVM must not keep the process
