"""A pipeline that is well, as facts; tests replace what they are about."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rivertwice.agent.alert_model import Alert, AlertCause
from rivertwice.agent.backoff import Failure, FailureClass
from rivertwice.agent.health import Health, StreamObservation
from rivertwice.agent.memory import Memory
from rivertwice.agent.view import DriverView, StreamView
from rivertwice.core.instants import to_ms
from rivertwice.read.facts import Facts, RunVerdict, Savepoints
from rivertwice.stream.lease import Owner
from rivertwice.timeline.intent import Heartbeat, Intent
from rivertwice.timeline.result_status import ServedEnd
from rivertwice.timeline.sequence import Entry, EntryKind

NOW = datetime(2026, 11, 27, 3, tzinfo=UTC)
WATERMARK = datetime(2026, 11, 27, 2, 50, tzinfo=UTC)


def ago(**spans: float) -> datetime:
    return NOW - timedelta(**spans)


BEAT = Heartbeat(7, 4711, "t1", "running", NOW, batch=120, watermark_ms=to_ms(WATERMARK), lag=4, lag_at=NOW)
SEEN = StreamObservation(
    intent=Intent("running", "cli", ago(hours=9)),
    agent_at=NOW,
    owner=Owner(7, 4711, 0.0, "t1"),
    heartbeat=BEAT,
    last_exit=None,
    state="running",
)
STREAM = StreamView(
    name="flights", defined=True, desired="running", desired_by="cli", state="running", health=Health("ok", "running"),
    driver=DriverView(4711, 7), timeline="t1", batch=120, watermark=WATERMARK, lag=4, lag_at=NOW, lag_age_s=1.0, rows_per_s=60.0,
    arriving_per_s=50.0, catch_up_s=0.1, placed_until=None, heartbeat_age_s=0.4, exit=None, failures=0, consecutive_failures=0,
    is_backing_off=False, next_attempt=None, given_up=None, agent_action=None, sequence=3, serves=True,
    served=ServedEnd("t1", 120, WATERMARK, WATERMARK, is_current=True), unread=None, by_schedule=None,
)  # fmt: skip
VERDICT = RunVerdict(
    "rc-1", ago(minutes=20), "t1", 118, 3, served={"AGREES": 400, "OPEN": 3}, stream={"AGREES": 400, "OPEN": 3},
    late_share=0.01, limit=0.05,
)  # fmt: skip
WELL = Facts(
    name="flights",
    observation=SEEN,
    stream=STREAM,
    verdict=VERDICT,
    head=Entry(1, EntryKind.HEAD, {"timeline": "t1", "reason": "first"}, ago(days=3)),
    published=Entry(3, EntryKind.PUBLICATION, {"backfill": "bf-1"}, ago(hours=1)),
    began_at=ago(days=3),
    savepoints=Savepoints(ago(minutes=30), timedelta(hours=2)),
    reconcile_every=timedelta(hours=1),
)


def with_stream(observation: dict[str, Any], view: dict[str, Any] | None = None, **facts: Any) -> Facts:
    """Return a well pipeline whose stream is another one."""
    return replace(WELL, observation=replace(SEEN, **observation), stream=replace(STREAM, **(view or {})), **facts)


def failed(failure: FailureClass = FailureClass.KILLED, number: int = 1) -> Memory:
    """Return the memory of an agent that saw drivers fail, the last one three seconds ago."""
    rows = [Failure(ago(seconds=3 + 5 * place), failure, False, 6, "gone") for place in reversed(range(number))]
    return Memory(failures=tuple(rows))


def alert(kind: str, severity: str = "critical", pipeline: str = "flights", message: str = "look") -> Alert:
    """Return an alert whose cause has lasted for ten minutes."""
    return Alert(AlertCause(pipeline, kind), severity, message, "agent", ago(minutes=10), NOW)
