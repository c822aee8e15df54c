"""What the oracle reads: the log through a plain consumer, the tables through their Delta file lists and DuckDB."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable

from lab.oracle.rules import Record

PATIENCE_S = 60.0
Offsets = dict[int, int]


@dataclass(frozen=True)
class Log:
    """The records of the topic.

    Attributes:
        records: by (partition, offset); what Kafka has deleted meanwhile is taken from the producer's notes.
        absent: addresses between the log's begin and its end at which a consumer of committed records gets none: the markers of
            transactions, and what was aborted. A record that its producer noted is in `changed` then.
        changed: addresses at which the log does not hold (any more) the record that it acknowledged, though it must.
    """

    records: dict[tuple[int, int], Record]
    changed: list[tuple[int, int]]
    absent: frozenset[tuple[int, int]] = frozenset()


def read_log(bootstrap: str, topic: str, notes: Path | None) -> Log:
    """Consume the topic and compare it with what the producer noted when its records were acknowledged."""
    records, begins, ends = _consume(bootstrap, topic)
    absent = {(p, offset) for p, low in begins.items() for offset in range(low, ends[p])} - records.keys()
    changed = []
    for record in _read_notes(notes):
        if record.offset < begins.get(record.partition, 0):
            records[record.address] = record
        elif records.get(record.address) != record:
            changed.append(record.address)
    return Log(records, changed, frozenset(absent))


def _consume(bootstrap: str, topic: str) -> tuple[dict[tuple[int, int], Record], Offsets, Offsets]:
    messages, begins, ends = consume(bootstrap, topic)
    records: dict[tuple[int, int], Record] = {}
    for each in messages:
        record = Record(
            each.partition(),
            each.offset(),
            each.value(),
            each.timestamp()[1],
            tuple(map(tuple, each.headers() or ())),
        )
        records[record.address] = record
    return records, begins, ends


def consume(bootstrap: str, topic: str) -> tuple[list[Any], Offsets, Offsets]:
    """Return the committed records of a topic, each partition's in order, and the first and the end offset of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    partitions = list(consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)
    marks = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=PATIENCE_S) for p in partitions}
    consumer.assign([TopicPartition(topic, p, low) for p, (low, _) in marks.items()])
    found: list[Any] = []
    at_end: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(at_end) < len(partitions):
        if time.monotonic() > deadline:
            text = f"topic {topic} was not read to its end within {PATIENCE_S:.0f} s"
            raise TimeoutError(text)
        messages: list[Any] = consumer.consume(5_000, 0.5)
        for each in messages:
            if each.error() is not None:  # the end of a partition is reported as an error
                at_end.add(each.partition())
            else:
                found.append(each)
    consumer.close()
    return found, {p: low for p, (low, _) in marks.items()}, {p: high for p, (_, high) in marks.items()}


def _read_notes(notes: Path | None) -> list[Record]:
    if notes is None or not notes.exists():
        return []
    return [
        Record(
            note["partition"],
            note["offset"],
            None if note["value"] is None else b64decode(note["value"]),
            note["timestamp_ms"],
            tuple((name, b64decode(content)) for name, content in note["headers"]),
        )
        for note in map(json.loads, notes.read_text().splitlines())
    ]


def select(table: Path, columns: str) -> list[tuple[Any, ...]]:
    """Return the given columns (SQL) of a Delta table's current rows; none if there is no table."""
    if not (table / "_delta_log").exists():
        return []
    files = [unquote(uri) for uri in DeltaTable(str(table)).file_uris()]
    if not files:
        return []
    import duckdb  # from requirements-dev.txt: listing the cases needs none

    with duckdb.connect() as db:
        return db.read_parquet(files, hive_partitioning=False, union_by_name=True).select(columns).fetchall()


@dataclass(frozen=True)
class Batch:
    """A committed micro-batch as it was recorded."""

    timeline: str
    number: int
    epoch: int
    start: Offsets
    end: Offsets
    watermark_ms: int
    text_watermark_ms: int
    text_end: Offsets
    read: int
    bad: int
    accepted: int
    min_event_ms: int | None
    max_event_ms: int | None
    emitted: int


def _batch(row: dict[str, Any], topic: str) -> Batch:
    _, metadata, offsets = row["offsets_text"].splitlines()[:3]
    return Batch(
        timeline=row["timeline"],
        number=row["batch"],
        epoch=row["epoch"],
        start=_plain(row["start_offsets"], topic),
        end=_plain(row["end_offsets"], topic),
        watermark_ms=row["batch_watermark_ms"],
        text_watermark_ms=json.loads(metadata)["batchWatermarkMs"],
        text_end=_plain(json.loads(offsets), topic),
        read=row["read"],
        bad=row["bad"],
        accepted=row["accepted"],
        min_event_ms=row["min_event_ms"],
        max_event_ms=row["max_event_ms"],
        emitted=row["emitted"],
    )


def _plain(offsets: dict[str, dict[str, int]], topic: str) -> Offsets:
    return {int(partition): int(offset) for partition, offset in offsets.get(topic, {}).items()}


_LEDGER = (
    "timeline, batch, epoch, start_offsets, end_offsets, offsets_text, batch_watermark_ms, read, bad, accepted, "
    "min_event_ms, max_event_ms, emitted"
)


def read_batches(tables: Path, topic: str) -> list[Batch]:
    """Return every recorded batch, from the ledger table and from the changelog's commits; equal ones once."""
    row_texts: set[str] = set()
    for values in select(tables / "ledger", _LEDGER):
        row = dict(zip(_LEDGER.split(", "), values, strict=True))
        row |= {name: json.loads(row[name]) for name in ("start_offsets", "end_offsets")}
        row_texts.add(json.dumps(row, sort_keys=True))
    for commit in sorted((tables / "changelog" / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            ledger_text = json.loads(line).get("commitInfo", {}).get("ledger")
            if ledger_text is not None:
                row = json.loads(ledger_text)
                row_texts.add(json.dumps({name: row[name] for name in _LEDGER.split(", ")}, sort_keys=True))
    rows = [json.loads(text) for text in sorted(row_texts)]
    return [_batch(row, topic) for row in rows]


@dataclass(frozen=True)
class Segment:
    """Batches of one timeline on the head's path, both ends included; no last one: all of them."""

    timeline: str
    first: int
    last: int | None
    genesis: Offsets

    def holds(self, timeline: str, batch: int) -> bool:
        """Say whether a batch lies in the segment."""
        return timeline == self.timeline and batch >= self.first and (self.last is None or batch <= self.last)


def read_path(home: Path, topic: str) -> list[Segment]:
    """Return the head's path, root first: the newest head move, and from it the parents."""
    moves = sorted(
        (seq, payload)
        for seq, kind, payload in select(home / "tables" / "sequence", "seq, kind, payload")
        if kind == "head"
    )
    name = json.loads(moves[-1][1])["timeline"] if moves else None
    segments: list[Segment] = []
    last = None
    while name is not None:
        line = json.loads((home / "timelines" / name / "timeline.json").read_text())
        segments.append(Segment(name, line["first_batch"], last, _plain(line["genesis"], topic)))
        parent = line["parent"]
        name, last = (None, None) if parent is None else (parent["timeline"], parent["batch"])
    return segments[::-1]
