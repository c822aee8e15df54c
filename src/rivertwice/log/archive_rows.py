"""One chunk of the archive: read from Kafka, counted, and converted to the archive's columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.config import Settings
from rivertwice.errors import LogGapError
from rivertwice.instants import from_ms
from rivertwice.log.addresses import OffsetRanges
from rivertwice.log.archive_read import KAFKA_COLUMNS
from rivertwice.log.archive_table import ABSENT, FORMAT, SCHEMA
from rivertwice.log.holes import Runs, absent_runs, count_runs
from rivertwice.log.reader import read_exactly
from rivertwice.log.records import read_kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN = pa.schema(
    [pa.field("timestampType", pa.int32()) if name == "timestampType" else SCHEMA.field(name) for name in KAFKA_COLUMNS]
)
"""Kafka's columns."""


@dataclass(frozen=True)
class Origin:
    """The origin of records: the first parts of their addresses, and the topic's name."""

    cluster_id: str
    topic_id: str
    topic: str


def _read_plainly(settings: Settings, origin: Origin, chunk: OffsetRanges) -> pa.Table:
    """Return a chunk in Kafka's columns, read without Spark."""
    rows = [plain_row(origin.topic, record) for record in read_exactly(settings, origin.topic, chunk)]
    return pa.Table.from_pylist(rows, schema=PLAIN)


def plain_row(topic: str, record: Any) -> dict[str, Any]:
    """Return a record of the plain client in Kafka's columns, a row of PLAIN."""
    stamped: Any = record.timestamp()  # (type, epoch ms)
    pairs: Any = record.headers() or []
    headers = [{"key": name, "value": value} for name, value in pairs]
    return {
        "key": record.key(),
        "value": record.value(),
        "topic": topic,
        "partition": record.partition(),
        "offset": record.offset(),
        "timestamp": from_ms(int(stamped[1])),
        "timestampType": int(stamped[0]) - 1,  # the client counts from 1 (CreateTime), Kafka from 0
        "headers": headers or None,
    }


def collect_chunk(spark: SparkSession | None, settings: Settings, origin: Origin, chunk: OffsetRanges) -> pa.Table:
    """Return a chunk as the archive's rows.

    Args:
        spark: the session; None reads with a plain consumer.
        settings: the cluster.
        origin: the topic of the records.
        chunk: half-open ranges by partition.

    An offset that a transaction left without a record has a row, too (`archive_table.ABSENT`).

    Raises:
        LogGapError: a partition did not give one record per offset, and transactions do not explain it.
    """
    if spark is None:
        rows = _read_plainly(settings, origin, chunk)
    else:
        rows = read_kafka(spark, settings, origin.topic, chunk).toArrow()
    counts = {row["values"]: row["counts"] for row in pc.value_counts(rows["partition"]).to_pylist()}
    short = {p: bounds for p, bounds in chunk.items() if counts.get(p, 0) < bounds[1] - bounds[0]}
    runs = absent_runs(settings, origin.topic, short) if short else {}
    absent = count_runs(runs)
    for partition, (start, end) in chunk.items():
        if counts.get(partition, 0) + absent.get(partition, 0) != end - start:
            message = (
                f"topic {origin.topic}, partition {partition} [{start}, {end}) gave {counts.get(partition, 0)} records for "
                f"{end - start} offsets, {absent.get(partition, 0)} of which transactions left without one, so the chunk was not "
                "archived; run the archive again, and look at the brokers' disks if it says the same"
            )
            raise LogGapError(message)
    found = _archive_rows(rows, origin)
    return found if not runs else _with_absent(found, runs, origin)


def _with_absent(rows: pa.Table, runs: Runs, origin: Origin) -> pa.Table:
    """Return the archive's rows with one for each absent offset, on the day of the record before it, or else of the first one."""
    stamps = _stamps_before(rows, runs)
    absent = [
        {
            "_format": FORMAT,
            "cluster_id": origin.cluster_id,
            "topic_id": origin.topic_id,
            "topic": origin.topic,
            "partition": partition,
            "offset": offset,
            "timestamp": stamp,
            "timestamp_type": ABSENT,
            "day": stamp.strftime("%Y-%m-%d"),
        }
        for (partition, start, end), stamp in stamps.items()
        for offset in range(start, end)
    ]
    both = pa.concat_tables([rows, pa.Table.from_pylist(absent, schema=SCHEMA)])
    return both.sort_by([("day", "ascending"), ("partition", "ascending"), ("offset", "ascending")])


def _stamps_before(rows: pa.Table, runs: Runs) -> dict[tuple[int, int, int], datetime]:
    """Return (partition, start, end) of each run to the timestamp of the record before it."""
    stamps: dict[tuple[int, int, int], datetime] = {}
    for partition, of_partition in runs.items():
        own = rows.filter(pc.equal(rows["partition"], partition)).sort_by("offset")
        offsets, times = own["offset"].to_numpy(), own["timestamp"]
        for start, end in of_partition:
            place = max(0, int(np.searchsorted(offsets, start)) - 1)
            stamps[partition, start, end] = times[place].as_py() if len(offsets) else from_ms(0)
    return stamps


def _archive_rows(rows: pa.Table, origin: Origin) -> pa.Table:
    """Return Kafka's columns as the archive's columns."""
    size = rows.num_rows
    stamps = rows["timestamp"].cast(pa.timestamp("us", "UTC"))
    columns = {
        "_format": pa.repeat(pa.scalar(FORMAT, pa.int32()), size),
        "cluster_id": pa.repeat(pa.scalar(origin.cluster_id), size),
        "topic_id": pa.repeat(pa.scalar(origin.topic_id), size),
        "timestamp": stamps,
        "timestamp_type": rows["timestampType"],
        "day": pc.strftime(stamps, format="%Y-%m-%d"),
    }
    arrays = [columns[name] if name in columns else rows[name] for name in SCHEMA.names]
    table = pa.table(dict(zip(SCHEMA.names, arrays, strict=True)))
    return table.cast(SCHEMA).sort_by([("day", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
