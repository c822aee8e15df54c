"""A home that holds what a pipeline of sessions in memory read, emitted and knows of itself; the log lies in the archive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from homes.backfill import add_timeline
from homes.ledger import NOW, ledger_row
from homes.project import make_project
from rivertwice.backfill.model import BackfillPlan
from rivertwice.backfill.store import ChunkRecord, backfill_app, stamp_rows
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle, build_bundle
from rivertwice.log.archive_table import PARTITION_BY, SCHEMA, transaction_names
from rivertwice.storage.table import Table
from rivertwice.timeline.digest import digest_rows
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.sequence import move_head
from simulated.sessions import DELAY, RESULT, Row, World, columns_of, text

YAML = """
name: p
description: sessions
sources:
  events:
    topic: flights
    partitions: 1
    schema: {k: string, at: timestamp, v: bigint}
    required: [k, v]
    event_time: at
    watermark: 2 s
    max_future: 10000 days
window: {session: 1 s}
keys: [k]
count_column: n
columns: {n: {}, total: {}}
"""
SQL = """
SELECT session_window.start AS window_start, session_window.end AS window_end, k, count(*) AS n, sum(v) AS total
FROM events GROUP BY session_window(at, '1 second'), k
"""


def make_session_home(root: Path, world: World) -> tuple[Settings, PipelineHome, Bundle]:
    """Fill a home with all that a world has read and emitted."""
    settings = make_project(root, {"p": {"pipeline.yaml": YAML, "transform.sql": SQL}})
    home = settings.pipeline("p")
    bundle = build_bundle(settings.definitions / "p")
    bundle.save(home.bundles)
    add_timeline(home, bundle, "t1", None, 0)
    move_head(home, "t1", reason="first start", expected_seq=0, now=NOW)
    world.bundle, world.semantics = bundle.id, bundle.fingerprint.semantics
    _archive(settings, world)
    extend(home, bundle, world, 0)
    return settings, home, bundle


def extend(home: PipelineHome, bundle: Bundle, world: World, first: int) -> None:
    """Commit what the world did from a batch on; its log must lie in the archive already."""
    start = sum(map(len, world.batches[:first]))
    for number, batch in enumerate(world.batches[first:], first):
        end = start + len(batch)
        times = [one.at_ms for one in batch]
        emitted = table([one for at, one in world.emitted if at == number])
        row = ledger_row(
            number,
            bundle=bundle.id,
            batch_watermark_ms=world.watermarks[number],
            start_offsets={"flights": {"0": start}},
            end_offsets={"flights": {"0": end}},
            read=len(batch),
            accepted=len(batch),
            min_event_ms=min(times, default=None),
            max_event_ms=max(times, default=None),
            emitted=emitted.num_rows,
            digest=digest_rows(emitted, emitted.column_names),
        )
        append_ledger(home, [row])
        count = emitted.num_rows
        stamps = {
            "_format": pa.array([1] * count, pa.int32()),
            "_timeline": pa.array(["t1"] * count, pa.string()),
            "_batch": pa.array([number] * count, pa.int64()),
            "_day": pa.array(["1970-01-01"] * count, pa.string()),
        }
        rows = pa.table({**stamps, **{name: emitted[name] for name in emitted.schema.names}})
        Table(home.tables.changelog, partition_by=["_day"]).append(rows, transactions={"p#t1": number})
        start = end


def extend_with_dead(settings: Settings, home: PipelineHome, bundle: Bundle, world: World, count: int) -> None:
    """Archive and commit one more batch of so many records whose producer names the field `k` differently."""
    first, batch = len(world.records), len(world.batches)
    values = [{"customer": "a", "at": to_iso(from_ms(0)), "v": 1}] * count
    records = [_record(first + number, 0, b"a", value) for number, value in enumerate(values)]
    _append(settings, records, first)
    row = ledger_row(
        batch,
        bundle=bundle.id,
        batch_watermark_ms=max(record.at_ms for record in world.records) - DELAY,
        start_offsets={"flights": {"0": first}},
        end_offsets={"flights": {"0": first + count}},
        read=count,
        bad=count,
        accepted=0,
        min_event_ms=None,
        max_event_ms=None,
        emitted=0,
        digest=digest_rows(table([]), table([]).column_names),
    )
    append_ledger(home, [row])
    stamp = {"_format": 1, "_timeline": "t1", "_batch": batch, "reason": "missing", "detail": "k"}
    letters = [{**stamp, **each, "record_time": each["timestamp"]} for each in records]
    Table(home.tables.dead_letters).append(pa.Table.from_pylist(letters).drop(["timestamp", "timestamp_type", "day"]))
    rows = Table(home.tables.changelog).read()
    assert rows is not None
    Table(home.tables.changelog, partition_by=["_day"]).append(rows.slice(0, 0), transactions={"p#t1": batch})


def _record(offset: int, at_ms: int, key: bytes, value: dict[str, object]) -> dict[str, object]:
    return {
        "_format": 1,
        "cluster_id": "c",
        "topic_id": "id",
        "topic": "flights",
        "partition": 0,
        "offset": offset,
        "timestamp": from_ms(at_ms),
        "timestamp_type": 0,
        "key": key,
        "value": json.dumps(value).encode(),
        "headers": None,
        "day": "1970-01-01",
    }


def _archive(settings: Settings, world: World) -> None:
    records = [
        _record(
            one.offset,
            one.at_ms,
            one.key.encode(),
            {"k": one.key, "at": to_iso(from_ms(one.at_ms)), "v": one.value},
        )
        for one in world.records
    ]
    _append(settings, records, 0)


def _append(settings: Settings, records: list[dict[str, object]], first: int) -> None:
    start, end = transaction_names("id", 0)
    Table(settings.archive("flights"), partition_by=PARTITION_BY).append(
        pa.Table.from_pylist(records, schema=SCHEMA), transactions={start: 0, end: first + len(records)}
    )


def table(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist([columns_of(row) for row in rows], schema=pa.schema(RESULT))


def served_rows(found: pa.Table) -> dict[Row, str | None]:
    """Return the rows of the served table, each with the backfill that it comes from."""
    stamps = (
        (row, [round(row[name].timestamp() * 1000) for name in ("window_start", "window_end")])
        for row in found.to_pylist()
    )
    return {Row(row["k"], low, high, row["n"], row["total"]): row["_backfill"] for row, (low, high) in stamps}


def write_sessions(home: PipelineHome, plan: BackfillPlan, chunk: int, rows: Sequence[tuple[bool, Row]]) -> None:
    """Commit a chunk as compute does: rows, and whether each only takes away what is served."""
    made = table([row for _, row in rows]).append_column("_withdrawn", pa.array([gone for gone, _ in rows], pa.bool_()))
    records: dict[int, int] = {}
    for gone, row in rows:
        if not gone:
            records[row.start_ms] = records.get(row.start_ms, 0) + row.n
    Table(home.tables.corrections, partition_by=["_day"]).append(
        stamp_rows(made, plan.id, chunk, "window_start"),
        transactions={backfill_app(plan.id): chunk},
        metadata={"backfill": json.loads(json.dumps(ChunkRecord(chunk, made.num_rows, records).to_json(plan.id)))},
        widen=True,
    )


def write_reconcile(home: PipelineHome, verdicts: list[tuple[str, Row]], sequence: int = 1) -> None:
    """Write the verdicts of a reconcile on what is served."""
    created = NOW + timedelta(minutes=sequence)
    run = f"r{sequence}"
    Table(home.tables.reconciles).append(pa.table({"run": [run], "created_at": [created], "sequence": [sequence]}))
    rows = [
        {
            "run": run,
            "pair": "served",
            "verdict": verdict,
            "reason": "",
            "window_start": from_ms(row.start_ms),
            "window_end": from_ms(row.end_ms),
            "key": text(row.key),
        }
        for verdict, row in verdicts
    ]
    Table(home.tables.verdicts).append(pa.Table.from_pylist(rows))
