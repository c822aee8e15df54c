"""A small home of lab_sums written without Spark, so that a single row, letter or watermark of it can be planted wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from lab.faults.events import EventPlan, plan_events
from lab.oracle.expect import expect
from lab.oracle.rules import WINDOW_MS, Record
from lab.oracle.sources import Batch, Log
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import LedgerRow, to_table

TOPIC = "planted"
SIZE = 40


def make_log(seed: int = 7, records: int = 280) -> Log:
    """Return the seed's events as a log, each at the next offset of its partition."""
    ends: dict[int, int] = {}
    found: dict[tuple[int, int], Record] = {}
    for event in plan_events(EventPlan(seed=seed, records=records)):
        offset = ends.get(event.partition, 0)
        ends[event.partition] = offset + 1
        record = Record(event.partition, offset, event.value, event.timestamp_ms, event.headers)
        found[record.address] = record
    return Log(found, [])


@dataclass
class Planted:
    """Plain rows of a home, to be changed before they are written.

    Attributes:
        ledger: one dict per batch, as LedgerRow takes them.
        rows: result rows as (timeline, batch, start, key, n, total, top).
        letters: dead letters as (timeline, batch, reason, partition, offset, value).
        timelines: name to (parent or None, first batch).
    """

    log: Log
    ledger: list[dict[str, Any]] = field(default_factory=list)
    rows: list[tuple[str, int, int, str, int, int, int]] = field(default_factory=list)
    letters: list[tuple[str, int, str, int, int, bytes | None]] = field(default_factory=list)
    timelines: dict[str, tuple[tuple[str, int] | None, int]] = field(default_factory=lambda: {"t1": (None, 0)})
    head: str = "t1"


def make_planted(log: Log) -> Planted:
    """Return what an exact stream leaves behind that reads SIZE records a batch, and one batch without any at the end."""
    home = Planted(log)
    batches = _cut(log)
    expected = expect(log.records, batches)
    counted = expected.batches
    for place, (batch, count) in enumerate(zip(batches, counted, strict=True)):
        ends = {TOPIC: {str(p): o for p, o in batch.end.items()}}
        meta = json.dumps({"batchWatermarkMs": count.watermark_ms})
        home.ledger.append(
            {
                "pipeline": "lab_sums", "timeline": "t1", "batch": place, "epoch": 1 + place // 4, "bundle": "b",
                "cluster_id": "c", "topic_ids": {TOPIC: "id"}, "start_offsets": {TOPIC: {str(p): o for p, o in batch.start.items()}},
                "end_offsets": ends, "offsets_text": f"v1\n{meta}\n{json.dumps(ends)}", "batch_watermark_ms": count.watermark_ms,
                "batch_timestamp_ms": 0, "read": count.read, "bad": count.bad, "accepted": count.accepted,
                "min_event_ms": min(count.events, default=None), "max_event_ms": max(count.events, default=None),
                "emitted": 0, "digest": "", "references": {}, "committed_at": datetime(2026, 1, 1, tzinfo=UTC),
            }
        )  # fmt: skip
    for (start, key), sums in expected.rows.items():
        if sums.batch is not None:
            home.rows.append(("t1", sums.batch, start, key, sums.n, sums.total, sums.top))
            home.ledger[sums.batch]["emitted"] += 1
    for (partition, offset), (reason, place) in expected.dead.items():
        home.letters.append(("t1", place, reason, partition, offset, log.records[partition, offset].value))
    return home


def _cut(log: Log) -> list[Batch]:
    ends: dict[int, int] = {}
    for partition, offset in log.records:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    batches, start, share = [], dict.fromkeys(ends, 0), SIZE // len(ends)
    while start != ends or not batches:
        end = {p: min(ends[p], start[p] + share) for p in ends}
        batches.append(_batch(len(batches), start, end))
        start = end
    return [*batches, _batch(len(batches), start, start)]


def _batch(number: int, start: dict[int, int], end: dict[int, int]) -> Batch:
    return Batch("t1", number, 1, start, end, 0, 0, end, 0, 0, 0, None, None, 0)


def write_home(folder: Path, home: Planted) -> Path:
    """Write the home as rivertwice does: changelog commits that carry their ledger rows, then the other tables."""
    tables = folder / "tables"
    for place, values in enumerate(home.ledger):
        row = LedgerRow(**values)
        mine = [each for each in home.rows if each[:2] == (row.timeline, row.batch)]
        Table(tables / "changelog").append(
            _rows_table(mine), transactions={f"lab_sums#{row.timeline}/{place}": 1}, metadata={"ledger": row.to_json()}
        )
    Table(tables / "ledger").append(to_table([LedgerRow(**values) for values in home.ledger[:-1]]))
    strays = [each for each in home.rows if each[:2] not in {(one["timeline"], one["batch"]) for one in home.ledger}]
    if strays:
        Table(tables / "changelog").append(_rows_table(strays))
    if home.letters:
        Table(tables / "dead_letters").append(_letters_table(home.letters))
    moves = [{"seq": 1, "kind": "head", "payload": json.dumps({"timeline": home.head, "reason": "test"})}]
    Table(tables / "sequence").append(pa.Table.from_pylist(moves))
    for name, (parent, first) in home.timelines.items():
        line = {"parent": None if parent is None else {"timeline": parent[0], "batch": parent[1]}, "first_batch": first}
        place = folder / "timelines" / name / "timeline.json"
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps({**line, "genesis": {TOPIC: {"0": 0, "1": 0, "2": 0}}}))
    return folder


_ROWS = pa.schema(
    [
        ("_timeline", pa.string()), ("_batch", pa.int64()), ("window_start", pa.timestamp("us", "UTC")),
        ("window_end", pa.timestamp("us", "UTC")), ("k", pa.string()), ("n", pa.int64()), ("total", pa.int64()),
        ("top", pa.int64()),
    ]
)  # fmt: skip


def _rows_table(rows: list[tuple[str, int, int, str, int, int, int]]) -> pa.Table:
    plain = [
        dict(zip(_ROWS.names, (line, batch, start * 1000, (start + WINDOW_MS) * 1000, *values), strict=True))
        for line, batch, start, *values in rows
    ]
    return pa.Table.from_pylist(plain, schema=_ROWS)


def _letters_table(letters: list[tuple[str, int, str, int, int, bytes | None]]) -> pa.Table:
    names = [("_timeline", pa.string()), ("_batch", pa.int64()), ("reason", pa.string()), ("partition", pa.int32())]
    schema = pa.schema([*names, ("offset", pa.int64()), ("value", pa.binary())])
    return pa.Table.from_pylist([dict(zip(schema.names, each, strict=True)) for each in letters], schema=schema)


Plant = Callable[[Planted], None]
