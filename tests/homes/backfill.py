"""Views and homes for backfill tests: hourly windows, one partition, batch n reads offsets [10n, 10n+10)."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from homes.ledger import NOW, ledger_row
from homes.project import make_project
from rivertwice.backfill.model import BackfillPlan, BackfillRequest, BackfillView, BatchZone
from rivertwice.backfill.store import ChunkRecord, backfill_app, stamp_rows
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import TimeRange, from_ms
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle, build_bundle
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork, Timeline, create_timeline
from rivertwice.timeline.sequence import move_head

HOUR = 3_600_000
YAML = """
name: p
description: test
sources:
  events:
    topic: flights
    partitions: 1
    schema: {k: string, at: timestamp}
    required: [k]
    event_time: at
    watermark: 1 hour
    max_future: 1 hour
window: {size: 1 hour}
keys: [k]
count_column: n
columns: {n: {compare: exact}}
"""
SQL = "SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS n FROM events GROUP BY window(at, '1 hour'), k\n"
RESULT = pa.schema(
    [
        ("window_start", pa.timestamp("us", "UTC")),
        ("window_end", pa.timestamp("us", "UTC")),
        ("k", pa.string()),
        ("n", pa.int64()),
    ]
)


def hours(*pairs: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple((start * HOUR, end * HOUR) for start, end in pairs)


def asked(start: float, end: float, pipeline: str = "p") -> BackfillRequest:
    return BackfillRequest(pipeline, TimeRange(from_ms(int(start * HOUR)), from_ms(int(end * HOUR))), "test")


def zone(batch: int, low: float | None, high: float | None, accepted: int = 10, trusted: bool = True) -> BatchZone:
    """A batch whose event times lie in [low, high) hours."""
    first, last = (None, None) if low is None or high is None else (int(low * HOUR), int(high * HOUR) - 1)
    return BatchZone("t1", batch, {"flights": {0: (10 * batch, 10 * batch + 10)}}, accepted, first, last, trusted)


def view(**changes: Any) -> BackfillView:
    batches = changes.pop("batches", tuple(zone(n, n, n + 1) for n in range(10)))
    end = 10 * len(batches)
    values: dict[str, Any] = {
        "pipeline": "p",
        "window_ms": HOUR,
        "closed_ms": 8 * HOUR,
        "batches": batches,
        "as_of": {"flights": {0: end}},
        "topic_ids": {"flights": "id"},
        "archive": {},
        "kafka": {"flights": {0: (0, end)}},
        "bundle": "b" * 64,
        "semantics": "s" * 64,
        "sequence": 1,
    }
    return BackfillView(**{**values, **changes})


def result(*rows: tuple[int, str, int]) -> pa.Table:
    """Rows (hour, key, n) as the transform yields them."""
    at = datetime(1970, 1, 1, tzinfo=UTC)
    return pa.Table.from_pylist(
        [
            {"window_start": at + timedelta(hours=h), "window_end": at + timedelta(hours=h + 1), "k": k, "n": n}
            for h, k, n in rows
        ],
        schema=RESULT,
    )


def emitted(timeline: str, batch: int, *rows: tuple[int, str, int]) -> pa.Table:
    """Rows (hour, key, n) as the changelog stores them."""
    return stamped(result(*rows), timeline, batch, "1970-01-01")


def stamped(rows: pa.Table, timeline: str, batch: int, day: str) -> pa.Table:
    """Rows that a transform yields as the changelog stores them."""
    count = rows.num_rows
    stamps = {
        "_format": pa.array([1] * count, pa.int32()),
        "_timeline": pa.array([timeline] * count, pa.string()),
        "_batch": pa.array([batch] * count, pa.int64()),
        "_day": pa.array([day] * count, pa.string()),
    }
    return pa.table({**stamps, **{name: rows[name] for name in rows.schema.names}})


def make_home(
    root: Path,
    *,
    closed: int = 8,
    batches: int = 10,
    slide: str | None = None,
    emit: str = "final",
    session: bool = False,
) -> tuple[Settings, PipelineHome, Bundle]:
    """A home whose head t1 has `batches` batches, one row an hour, closed until hour `closed`.

    With `slide` ('20 minutes') its windows of an hour hop; with `emit` "updates" rows may be emitted before they are closed; with
    `session` its definition has sessions with a gap of an hour.
    """
    hop = "" if slide is None else f", slide: {slide}"
    call = "" if slide is None else f", '{slide}'"
    files = {
        "pipeline.yaml": YAML.replace("{size: 1 hour}", f"{{size: 1 hour{hop}}}") + f"emit: {emit}\n",
        "transform.sql": SQL.replace("'1 hour')", f"'1 hour'{call})"),
    }
    if session:
        files = {
            "pipeline.yaml": files["pipeline.yaml"].replace("{size: 1 hour}", "{session: 1 hour}"),
            "transform.sql": SQL.replace("window.", "session_window.").replace("window(at", "session_window(at"),
        }
    settings = make_project(root, {"p": files})
    home = settings.pipeline("p")
    bundle = build_bundle(settings.definitions / "p")
    bundle.save(home.bundles)
    add_timeline(home, bundle, "t1", None, 0)
    move_head(home, "t1", reason="first start", expected_seq=0, now=NOW)
    append_ledger(
        home,
        [
            ledger_row(
                n,
                bundle=bundle.id,
                batch_watermark_ms=min(n, closed) * HOUR,
                min_event_ms=n * HOUR,
                max_event_ms=(n + 1) * HOUR - 1,
            )
            for n in range(batches)
        ],
    )
    for n in range(batches):
        rows = [(n - 1, "a", 10)] if 0 < n <= closed else []
        Table(home.tables.changelog, partition_by=["_day"]).append(emitted("t1", n, *rows), transactions={"p#t1": n})
    return settings, home, bundle


def add_timeline(
    home: PipelineHome, bundle: Bundle, name: str, parent: Fork | None, first_batch: int, semantics: str | None = None
) -> None:
    state, meaning, decode = bundle.fingerprint.state, bundle.fingerprint.semantics, bundle.fingerprint.decode
    create_timeline(
        home,
        Timeline(
            pipeline=home.root.name,
            timeline=name,
            parent=parent,
            first_batch=first_batch,
            genesis={"flights": {"0": 10 * first_batch}},
            bundle=bundle.id,
            fingerprint={"state": state, "semantics": semantics or meaning, "decode": decode},
            cluster_id="c",
            topic_ids={"flights": "id"},
            created_at=NOW,
        ),
    )


def write_chunk(
    home: PipelineHome,
    plan: BackfillPlan,
    chunk: int,
    *rows: tuple[int, str, int],
    records: dict[int, int] | None = None,
) -> None:
    """Commit a chunk as compute does."""
    table = result(*rows)
    if records is None:
        records = {}
        for hour, _, n in rows:
            records[hour * HOUR] = records.get(hour * HOUR, 0) + n
    Table(home.tables.corrections, partition_by=["_day"]).append(
        stamp_rows(table, plan.id, chunk, "window_start"),
        transactions={backfill_app(plan.id): chunk},
        metadata={"backfill": json.loads(json.dumps(ChunkRecord(chunk, table.num_rows, records).to_json(plan.id)))},
    )
