"""The oracle: what must come out, from the CSV and from the raw log. It imports nothing of rivertwice.

pandas and DuckDB over the zipped CSV give the truth; a plain consumer over the topic, the recorded `offsets/N` texts
and a late rule written down here give what a stream with those batches must have emitted.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable

from rivertwice.core.waits import Deadline

HOUR_MS = 3_600_000
Row = tuple[Any, ...]
Window = tuple[int, str]
"""(start of the hour in epoch ms, origin)."""


def read_csv(path: Path, days: tuple[str, str] | None = None) -> pd.DataFrame:
    """Return the flights of the zipped CSV with `event_ms`; `days` are scheduled local days, both included."""
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        flights = pd.read_csv(raw)
    if days is not None:
        day = pd.to_datetime(flights[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
        flights = flights[(day >= days[0]) & (day <= days[1])]
    minute = flights.sched_dep_time // 100 * 60 + flights.sched_dep_time % 100
    local = pd.to_datetime(flights[["year", "month", "day"]]) + pd.to_timedelta(minute, unit="min")
    utc = local.dt.tz_localize("America/New_York", ambiguous="raise", nonexistent="raise").dt.tz_convert("UTC")
    event_ms = utc.astype("datetime64[ms, UTC]").astype("int64")
    cancelled = flights.dep_time.isna()
    return pd.DataFrame(
        {
            "event_ms": event_ms,
            "origin": flights.origin,
            "dep_delay": flights.dep_delay.where(~cancelled),
            "cancelled": cancelled,
        }
    )


def aggregate(flights: pd.DataFrame) -> dict[Window, Row]:
    """Return per hour and origin (flights, cancelled, sum, mean, maximum, p95, over 15 minutes), by DuckDB."""
    plain = flights.assign(start_ms=flights.event_ms // HOUR_MS * HOUR_MS)
    with duckdb.connect() as db:
        db.register("plain", plain)
        rows = db.sql(
            """
            SELECT start_ms, origin, count(*), count(*) FILTER (cancelled), sum(dep_delay)::BIGINT, count(dep_delay),
                   max(dep_delay)::INT, quantile_cont(dep_delay, 0.95),
                   count(*) FILTER (dep_delay > 15)
            FROM plain GROUP BY ALL
            """
        ).fetchall()
    result: dict[Window, Row] = {}
    for start, origin, count, cancelled, total, departed, most, p95, late in rows:
        mean = None if not departed else (Decimal(total) / departed).quantize(Decimal("0.0001"), ROUND_HALF_UP)
        result[start, origin] = rounded((count, cancelled, total, mean, most, p95, late))
    return result


def rounded(row: Row) -> Row:
    """Return the row with its percentile at nine places: two engines interpolate alike but for the last bit."""
    *others, p95, late = row
    return (*others, None if p95 is None else round(p95, 9), late)


@dataclass(frozen=True)
class Record:
    """A record of the log as a plain consumer sees it; `flight` is None where the value is no flight."""

    partition: int
    offset: int
    flight: dict[str, Any] | None


def consume(bootstrap: str, topic: str) -> list[Record]:
    """Return every record of the topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "oracle", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    marks = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=20) for p in partitions}
    consumer.assign([TopicPartition(topic, p, low) for p, (low, _) in marks.items()])
    wanted = sum(high - low for low, high in marks.values())
    records: list[Record] = []
    deadline = Deadline.after(300)
    while len(records) < wanted:
        assert deadline.left(), f"{len(records)} of {wanted} records of {topic} after 300 s"
        for message in consumer.consume(10_000, 2.0):
            assert message.error() is None, message.error()
            records.append(Record(message.partition(), message.offset(), _flight(message.value())))
    consumer.close()
    return records


def _flight(value: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(value or b"")
        event = pd.Timestamp(found["sched_dep"])
        return {
            "event_ms": int(event.timestamp() * 1000),
            "origin": found["origin"],
            "dep_delay": found["dep_delay"],
            "cancelled": found["cancelled"],
        }
    except (ValueError, KeyError, TypeError):
        return None


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return the flights of records as `aggregate` wants them."""
    rows = pd.DataFrame([one.flight for one in records if one.flight is not None])
    return rows.assign(dep_delay=pd.to_numeric(rows.dep_delay).astype("float64"))


@dataclass(frozen=True)
class Batch:
    """A micro-batch by its recorded `offsets/N`: where it ended, and its own watermark."""

    number: int
    ends: dict[int, int]
    watermark_ms: int


def read_batches(ledger: Path | str, topic: str) -> list[Batch]:
    """Return the batches from the verbatim offsets texts of the ledger table, in order."""
    with duckdb.connect() as db:
        found = db.read_parquet(DeltaTable(str(ledger)).file_uris()).select("batch, offsets_text").distinct().fetchall()
    batches = []
    for number, text in sorted(found):
        _, meta, offsets = text.splitlines()
        ends = {int(p): int(o) for p, o in json.loads(offsets)[topic].items()}
        batches.append(Batch(number, ends, json.loads(meta)["batchWatermarkMs"]))
    assert [one.number for one in batches] == list(range(len(batches)))
    return batches


def read_changelog(changelog: Path | str) -> dict[Window, list[Row]]:
    """Return the changelog's rows by window."""
    with duckdb.connect() as db:
        rows = (
            db.read_parquet(DeltaTable(str(changelog)).file_uris())
            .select(
                "epoch_ms(window_start), origin, flights, cancelled, delay_sum, delay_mean, delay_max, delay_p95, late_15"
            )
            .fetchall()
        )
    found: dict[Window, list[Row]] = {}
    for start, origin, *values in rows:
        found.setdefault((start, origin), []).append(rounded(tuple(values)))
    return found


@dataclass(frozen=True)
class Expected:
    """What a stream with the recorded batches must have emitted, and the addresses it dropped as late."""

    closed: dict[Window, Row]
    open: dict[Window, Row]
    late: frozenset[tuple[int, int]]


def expect(records: Iterable[Record], batches: list[Batch]) -> Expected:
    """Drop every record whose window had ended by the watermark of the batch before its own."""
    kept: list[Record] = []
    late: set[tuple[int, int]] = set()
    ends = {p: np.array([batch.ends.get(p, 0) for batch in batches]) for p in batches[-1].ends}
    for one in records:
        if one.flight is None:
            continue
        number = int(np.searchsorted(ends[one.partition], one.offset, side="right"))
        assert number < len(batches), f"{one.partition}@{one.offset} is past the last batch"
        before = batches[number - 1].watermark_ms if number else 0
        if one.flight["event_ms"] // HOUR_MS * HOUR_MS + HOUR_MS <= before:
            late.add((one.partition, one.offset))
        else:
            kept.append(one)
    rows = aggregate(frame(kept))
    closed_ms = batches[-1].watermark_ms
    return Expected(
        closed={window: row for window, row in rows.items() if window[0] + HOUR_MS <= closed_ms},
        open={window: row for window, row in rows.items() if window[0] + HOUR_MS > closed_ms},
        late=frozenset(late),
    )


def mean_delay(rows: Iterable[Row]) -> float:
    """Return the mean delay over the departed flights of result rows."""
    plain = list(rows)
    return sum(row[2] or 0 for row in plain) / sum(row[0] - row[1] for row in plain)
