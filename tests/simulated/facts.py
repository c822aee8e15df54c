"""A pipeline that is well, as facts; tests replace what they are about."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rivertwice.agent.alert_model import Alert, AlertCause
from rivertwice.agent.backoff import Failure, FailureClass
from rivertwice.agent.health import StreamObservation
from rivertwice.agent.memory import Memory
from rivertwice.core.instants import to_iso, to_ms
from rivertwice.read.facts import Facts, RunVerdict, Savepoints
from rivertwice.stream.lease import Owner
from rivertwice.timeline.intent import Heartbeat, Intent
from rivertwice.timeline.sequence import HEAD, PUBLICATION, Entry

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
STREAM: dict[str, Any] = {
    "desired": "running", "driver": {"pid": 4711, "epoch": 7}, "state": "running", "timeline": "t1", "batch": 120,
    "watermark": to_iso(WATERMARK), "lag": 4, "lag_at": to_iso(NOW), "lag_age_s": 1.0, "heartbeat_age_s": 0.4,
    "arriving_per_s": 50.0, "catch_up_s": 0.1, "rows_per_s": 60.0, "placed_until": None, "name": "flights",
    "served": {
        "timeline": "t1", "batch": 120, "until": to_iso(WATERMARK), "closed": to_iso(WATERMARK), "is_current": True,
    },
}  # fmt: skip
VERDICT = RunVerdict(
    "rc-1", ago(minutes=20), "t1", 118, 3, served={"AGREES": 400, "OPEN": 3}, stream={"AGREES": 400, "OPEN": 3},
    late_share=0.01, limit=0.05,
)  # fmt: skip
WELL = Facts(
    name="flights",
    observation=SEEN,
    stream=STREAM,
    verdict=VERDICT,
    head=Entry(1, HEAD, {"timeline": "t1", "reason": "first"}, ago(days=3)),
    published=Entry(3, PUBLICATION, {"backfill": "bf-1"}, ago(hours=1)),
    began_at=ago(days=3),
    savepoints=Savepoints(ago(minutes=30), timedelta(hours=2)),
    reconcile_every=timedelta(hours=1),
)


def with_stream(observation: dict[str, Any], view: dict[str, Any] | None = None, **facts: Any) -> Facts:
    """Return a well pipeline whose stream is another one."""
    return replace(WELL, observation=replace(SEEN, **observation), stream={**STREAM, **(view or {})}, **facts)


def failed(failure: FailureClass = FailureClass.KILLED, number: int = 1) -> Memory:
    """Return the memory of an agent that saw drivers fail, the last one three seconds ago."""
    rows = [Failure(ago(seconds=3 + 5 * place), failure, False, 6, "gone") for place in reversed(range(number))]
    return Memory(failures=tuple(rows))


def alert(kind: str, severity: str = "critical", pipeline: str = "flights", message: str = "look") -> Alert:
    """Return an alert whose cause has lasted for ten minutes."""
    return Alert(AlertCause(pipeline, kind), severity, message, "agent", ago(minutes=10), NOW)
