"""Run a case in both modes: the batch compiler over all its events, the stream over its micro-batches."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.errors import RivertwiceError
from rivertwice.pipeline.case_diff import Row, diff_names, diff_rows, newest_rows
from rivertwice.pipeline.case_files import Case, case_paths, load_case, record_headers, record_value, source_of
from rivertwice.pipeline.case_hints import hints
from rivertwice.pipeline.checks import describe_refusal
from rivertwice.pipeline.compile import batch_rows, compile_stream, decode_view
from rivertwice.pipeline.compilers import compiler_of
from rivertwice.pipeline.definition import load_definition
from rivertwice.pipeline.engine import watermark_confs
from rivertwice.pipeline.model import Definition
from rivertwice.pipeline.names import RECORD
from rivertwice.pipeline.relations import accepted, included, with_batch, with_window_end
from rivertwice.pipeline.tables import late_versions, window_closes

RAW_SCHEMA = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int, "
    "offset bigint, timestamp timestamp"
)
RAW_ARROW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


@dataclass(frozen=True)
class CaseResult:
    """The result of a case.

    Attributes:
        case: the case's name.
        batch: rows of the recompute.
        stream: rows the stream emitted.
        late: ids of the events the stream dropped as late, from one of their windows at least.
        dead: id to reason of the events that were not accepted.
        differences: one sentence per difference; empty when the case holds.
    """

    case: str
    batch: list[Row]
    stream: list[Row]
    late: list[str]
    dead: dict[str, str]
    differences: list[str]

    @property
    def passed(self) -> bool:
        """Whether all results are as expected."""
        return not self.differences


def run_case(spark: SparkSession, definition: Definition, case: Case) -> CaseResult:
    """Run the case as a stream and as a batch and compare both with what it expects.

    The stream reads one file per micro-batch. It also ends with a micro-batch without data if the last one moved the
    watermark, so windows that the last events close are emitted.
    """
    with tempfile.TemporaryDirectory(prefix="rivertwice-case-") as name:
        folder = Path(name)
        batches = _write_batches(folder / "log", definition, case)
        stream, watermarks = _run_stream(spark, definition, folder, batches)
        raw = spark.createDataFrame(pa.concat_tables(batches))
        return _judge(spark, definition, case, raw, stream, watermarks)


def run_cases(spark: SparkSession, folder: Path, definition: Definition | None = None) -> Iterator[CaseResult]:
    """Run every case of the pipeline in `folder`, one after the other; a case that cannot be run has failed.

    Args:
        spark: the session to run in.
        folder: the pipeline's folder.
        definition: the pipeline's definition; None: it is loaded.
    """
    definition = definition or load_definition(folder)
    for path in case_paths(folder):
        try:
            yield run_case(spark, definition, load_case(path))
        except (PySparkException, Py4JJavaError) as error:
            file = folder / definition.window.kind.code_file
            yield _not_run(path, f"{path}: {file}: {describe_refusal(error, 'the SQL throws')}")
        except RivertwiceError as error:
            yield _not_run(path, str(error) if str(path) in str(error) else f"{path}: {error}")
        except Exception as error:
            yield _not_run(path, f"{path}: the case could not be run: {type(error).__name__}: {error}")


def _not_run(path: Path, difference: str) -> CaseResult:
    return CaseResult(path.stem, [], [], [], {}, [difference])


def _judge(
    spark: SparkSession, definition: Definition, case: Case, raw: DataFrame, stream: list[Row], watermarks: list[int]
) -> CaseResult:
    decoded = decode_views(definition, raw)
    rows = {view: accepted(decoded[view], source) for view, source in definition.sources.items()}
    ids = [event.id for event in case.events]
    batch_of = [number for number, events in enumerate(case.batches) for _ in events]
    result, conflicts = compiler_of(definition).recompute_case(spark, definition, rows, batch_of)
    batch = _named(definition, ids, result)
    stream = _named(definition, ids, stream)
    dead = {
        ids[row["_offset"]]: row["_reason"]
        for frame in decoded.values()
        for row in _collect(frame.where("_reason IS NOT NULL").select("_offset", "_reason"))
    }
    late = _late_offsets(spark, definition, rows, watermarks, batch_of)
    expect = case.expect
    differences = [
        *diff_rows(definition, "batch", expect.batch, batch),
        *diff_rows(definition, "stream", expect.stream, stream),
        *diff_names("late", dict.fromkeys(expect.late, "late"), {ids[offset]: "late" for offset in late}),
        *diff_names("dead", expect.dead, dead),
        *hints(definition, case, {name: why for name, why in dead.items() if name not in expect.dead}),
        *conflicts,
    ]
    return CaseResult(case.name, batch, stream, [ids[offset] for offset in late], dead, differences)


def decode_views(definition: Definition, raw: DataFrame) -> dict[str, DataFrame]:
    """Return view to the decoded records of its topic."""
    return {
        view: decode_view(definition, view, raw.where(F.col("topic") == F.lit(source.topic)))
        for view, source in definition.sources.items()
    }


def _named(definition: Definition, ids: list[str], rows: list[Row]) -> list[Row]:
    """Return rows that name their event by id, not by its place: offsets of a case increase over all its topics."""
    return [{**row, RECORD: ids[row[RECORD]]} for row in rows] if RECORD in definition.row_keys else rows


def _late_offsets(
    spark: SparkSession,
    definition: Definition,
    rows: Mapping[str, DataFrame],
    watermarks: list[int],
    batch_of: list[int],
) -> list[int]:
    if not definition.window.kind.has_watermark:
        return []
    late: set[int] = set()
    ends: set[int] = set()
    for view in definition.streams:
        pairs = with_window_end(included(spark, definition, rows[view]), definition, view)
        for row in _collect(pairs.select("_offset", F.unix_micros("_window_end").alias("end_us"))):
            ends.add(row["end_us"])
            if row["end_us"] <= watermarks[batch_of[row["_offset"]]] * 1000:
                late.add(row["_offset"])
    if ends and definition.tables:
        closes = window_closes(spark, definition, ends, watermarks[1:])
        for view in definition.tables:
            versions = late_versions(definition, view, with_batch(spark, rows[view], batch_of), closes)
            late |= {row["_offset"] for row in _collect(versions)}
    return sorted(late)


def _write_batches(folder: Path, definition: Definition, case: Case) -> list[pa.Table]:
    """Write one file of records per micro-batch, and return their records."""
    folder.mkdir()
    offset = 0
    tables = []
    for number, batch in enumerate(case.batches):
        records: list[dict[str, Any]] = []
        for event in batch:
            records.append(
                {
                    "key": (event.id if event.key is None else event.key).encode(),
                    "value": record_value(case, event, definition),
                    "headers": record_headers(event, definition),
                    "topic": source_of(event, definition).topic,
                    "partition": 0,
                    "offset": offset,
                    "timestamp": event.at,
                }
            )
            offset += 1
        path = folder / f"{number:05d}.parquet"
        tables.append(pa.Table.from_pylist(records, schema=RAW_ARROW))
        pq.write_table(tables[-1], path)
        # The file source reads in the order of modification times.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return tables


def _run_stream(
    spark: SparkSession, definition: Definition, folder: Path, batches: list[pa.Table]
) -> tuple[list[Row], list[int]]:
    """Return the emitted rows that count and, per micro-batch, the watermark its late filter used."""
    emitted: list[list[Row]] = []

    def versions(session: SparkSession, batch: int, _since_us: int | None) -> dict[str, DataFrame]:
        decoded = decode_views(definition, session.createDataFrame(pa.concat_tables(batches[: batch + 1])))
        known = {view: accepted(decoded[view], source) for view, source in definition.tables.items()}
        return {view: rows.withColumn("_index", F.lit(0)) for view, rows in known.items()}

    rows_of = batch_rows(definition, versions)

    def collect(frame: DataFrame, batch: int) -> None:
        emitted.append([dict(row) for row in rows_of(frame, batch).to_pylist()])

    for name, value in watermark_confs(definition).items():
        spark.conf.set(name, value)
    reader = spark.readStream.schema(RAW_SCHEMA).option("maxFilesPerTrigger", 1)
    raw = reader.parquet(str(folder / "log"))
    checkpoint = folder / "checkpoint"
    writer = compile_stream(spark, definition, raw).writeStream.outputMode(definition.output_mode).foreachBatch(collect)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    count = len(list((checkpoint / "offsets").glob("[0-9]*")))
    own = [_watermark_ms(checkpoint / "offsets" / str(number)) for number in range(count)]
    return newest_rows(definition, emitted), [0, *own]


def _watermark_ms(path: Path) -> int:
    # Spark's late filter of a batch uses the watermark that its predecessor ran with.
    return int(json.loads(path.read_text().splitlines()[1])["batchWatermarkMs"])


def _collect(frame: DataFrame) -> list[Row]:
    return [dict(row) for row in frame.toArrow().to_pylist()]
