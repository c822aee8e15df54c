"""Dead letters and kept late rows, compared by Spark with what the log requires; only what differs comes to the driver.

Then the same functions name what is wrong that compare everything in a small run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from rivertwice.config import Place
from rivertwice.log.addresses import Part
from rivertwice.reconcile.columns import Contents, check_dead_columns, check_late_columns
from rivertwice.reconcile.kinds.tumbling_hopping import WindowJudge
from rivertwice.reconcile.model import Finding, LateRow, RowColumns, RowId
from rivertwice.reconcile.recorded import RecordedDeadLetter, check_dead_letters, check_late_rows
from rivertwice.reconcile.view import HeadView
from rivertwice.store import delta
from rivertwice.store.delta_scan import scan

MOST_NAMED = 10_000
"""So many differing rows are named one by one; one more finding counts the rest."""
_ORIGIN = "cluster_id string, topic_id string"
_DEAD = f"_timeline string, _batch bigint, topic string, partition int, offset bigint, reason string, record_time timestamp, {_ORIGIN}"
_LATE = (
    "_timeline string, _batch bigint, topic string, partition int, offset bigint, window_start timestamp, window_end timestamp, "
    f"event_time timestamp, late_watermark timestamp, record_time timestamp, fields string, {_ORIGIN}"
)
_DEAD_PLACE = ("_index", "topic", "partition", "offset")
_LATE_PLACE = ("_index", "topic", "partition", "offset", "window_start")


@dataclass(frozen=True)
class SideFindings:
    """What comparing a side table gave.

    Attributes:
        findings: what is wrong with it.
        recorded: rows of committed batches by partition.
    """

    findings: Sequence[Finding]
    recorded: Mapping[Part, int]


def compare_dead(
    spark: SparkSession, view: HeadView, required: DataFrame, numbers: DataFrame, table: delta.Table | None
) -> SideFindings:
    """Compare the recorded dead letters with those that the log requires.

    Args:
        spark: the session.
        view: the head, without its tables.
        required: `_index`, `partition`, `offset`, `reason`, `record_time` of each dead letter.
        numbers: the path's batches (`sides.batch_numbers`).
        table: the recorded ones; None: there is no such table.
    """
    topic = view.topics[0]
    wanted = _with_origin(spark, view, required, numbers, topic)
    stored = _stored(spark, view.home.tables.dead_letters, table, _DEAD, numbers)
    counted = stored.groupBy("topic", "partition").agg(F.count(F.lit(1)).alias("rows")).toArrow().to_pylist()
    names = ("reason", "record_time", "cluster_id", "topic_id")
    differing, count = _differing(wanted, stored, _DEAD_PLACE, names)
    wanted_rows, stored_rows = _rows_at(wanted, differing, _DEAD_PLACE), _rows_at(stored, differing, _DEAD_PLACE)
    derived: list[RecordedDeadLetter] = [
        (row["_index"], Part(topic, row["partition"]), row["offset"], row["reason"]) for row in wanted_rows.to_pylist()
    ]
    contents = Contents(
        dead={
            (Part(topic, row["partition"]), row["offset"]): {"record_time": row["record_time"]}
            for row in wanted_rows.to_pylist()
        }
    )
    part = replace(view, dead=stored_rows)
    findings = [
        *check_dead_letters(part, derived)[0],
        *check_dead_columns(part, contents),
        *_more(count, "dead_letters"),
    ]
    return SideFindings(findings, {Part(row["topic"], row["partition"]): row["rows"] for row in counted})


def compare_late(
    spark: SparkSession,
    view: HeadView,
    judge: WindowJudge,
    shape: RowColumns,
    numbers: DataFrame,
    table: delta.Table | None,
) -> list[Finding]:
    """Compare the kept late rows with those that the log requires; nothing if the definition keeps none."""
    definition = view.newest.definition
    if not definition.late.keeps_rows:
        return []
    topic, source = view.topics[0], definition.source[1]
    fields = F.to_json(F.struct(*source.schema_), {"ignoreNullFields": "false"}).alias("fields")
    late = judge.late_frame(shape, (F.col("_record_time").alias("record_time"), fields))
    required = late.select(
        "_index",
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        "window_start",
        "window_end",
        F.col("_event_time").alias("event_time"),
        F.timestamp_millis("_late_ms").alias("late_watermark"),
        "record_time",
        "fields",
    )
    wanted = _with_origin(spark, view, required, numbers, topic)
    stored = _stored(spark, view.home.tables.late_rows, table, _LATE, numbers)
    names = ("window_end", "event_time", "late_watermark", "record_time", "fields", "cluster_id", "topic_id")
    differing, count = _differing(wanted, stored, _LATE_PLACE, names)
    wanted_rows, stored_rows = _rows_at(wanted, differing, _LATE_PLACE), _rows_at(stored, differing, _LATE_PLACE)
    derived = [_late_row(view, topic, row) for row in wanted_rows.to_pylist()]
    contents = Contents(
        late={
            (Part(topic, row["partition"]), row["offset"]): {name: row[name] for name in ("record_time", "fields")}
            for row in wanted_rows.to_pylist()
        }
    )
    part = replace(view, late=stored_rows)
    findings = [*check_late_rows(part, derived), *check_late_columns(part, derived, contents)]
    return [*findings, *_more(count, "late_rows")]


def _late_row(view: HeadView, topic: str, row: Mapping[str, Any]) -> LateRow:
    start, end, watermark = (
        round(row[name].timestamp() * 1000) for name in ("window_start", "window_end", "late_watermark")
    )
    batch = view.rows[row["_index"]].batch
    return LateRow(RowId(start, end, ""), topic, row["partition"], row["offset"], batch, watermark, row["event_time"])


def _with_origin(spark: SparkSession, view: HeadView, required: DataFrame, numbers: DataFrame, topic: str) -> DataFrame:
    """Return rows with their batch, their topic, and the ids that the batch's timeline recorded."""
    lines = view.copies.timelines
    ids = pa.table(
        {
            "_path_timeline": pa.array(lines, pa.string()),
            "cluster_id": pa.array([line.cluster_id for line in lines.values()], pa.string()),
            "topic_id": pa.array([line.topic_ids.get(topic) for line in lines.values()], pa.string()),
        }
    )
    named = numbers.join(F.broadcast(spark.createDataFrame(ids)), "_path_timeline", "left").select(
        "_index",
        F.col("_path_timeline").alias("_timeline"),
        F.col("_number").alias("_batch"),
        F.lit(topic).alias("topic"),
        "cluster_id",
        "topic_id",
    )
    return required.join(F.broadcast(named), "_index")


def _stored(spark: SparkSession, place: Place, table: delta.Table | None, ddl: str, numbers: DataFrame) -> DataFrame:
    """Return the rows of committed batches of the path, with `_index`."""
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType), "it names columns"
    if table is None:
        return numbers.limit(0).select("_index", *(F.lit(None).cast(each.dataType).alias(each.name) for each in schema))
    rows = scan(spark, place, table, schema, _unchanged)
    same = (rows["_timeline"] == numbers["_path_timeline"]) & (rows["_batch"] == numbers["_number"])
    numbered = rows.join(F.broadcast(numbers.select("_path_timeline", "_number", "_index")), same)
    return numbered.select("_index", *schema.names)


def _unchanged(rows: pa.Table) -> pa.Table:
    return rows


def _differing(
    wanted: DataFrame, stored: DataFrame, place: Sequence[str], names: Sequence[str]
) -> tuple[DataFrame, int]:
    """Return up to `MOST_NAMED` places at which the two are not one equal row each, and how many there are."""
    hashed = F.xxhash64(*names, *(F.col(name).isNull().cast("int") for name in names)).alias("_hash")
    sides = [frame.select(*place, hashed, F.lit(side).alias("_of")) for frame, side in ((wanted, 0), (stored, 1))]
    grouped = sides[0].unionByName(sides[1]).groupBy(*place)
    counts = grouped.agg(_count(0), _count(1), F.min("_hash").alias("_low"), F.max("_hash").alias("_high"))
    unlike = counts.where("n0 <> 1 OR n1 <> 1 OR _low <> _high").select(*place)
    count = unlike.count()
    return unlike.orderBy(*place).limit(MOST_NAMED), count


def _count(side: int) -> Column:
    return F.count(F.when(F.col("_of") == side, 1)).alias(f"n{side}")


def _rows_at(rows: DataFrame, places: DataFrame, place: Sequence[str]) -> pa.Table:
    return rows.join(F.broadcast(places), list(place), "left_semi").toArrow()


def _more(count: int, kind: str) -> list[Finding]:
    if count <= MOST_NAMED:
        return []
    return [Finding(kind, f"{count - MOST_NAMED} more rows of {kind} differ from what the log requires")]
