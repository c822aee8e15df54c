"""Run a case in both modes, the batch compiler over all its events and the stream over its micro-batches, and compare the rows."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.core import (
    DefinitionError,
    PipelineHome,
    RequestError,
    RivertwiceError,
    Row,
    meant,
    parse_iso,
    to_iso,
    utc_now,
)
from rivertwice.definition import RECORD, Definition, Source, load_definition, same_value, value_at
from rivertwice.engine.case_files import Case, case_paths, load_case, record_headers, record_value, source_of
from rivertwice.engine.checked import note_cases
from rivertwice.engine.checks import describe_refusal
from rivertwice.engine.compile import batch_rows, compile_stream, decode_view
from rivertwice.engine.compilers import compiler_of
from rivertwice.engine.interval_rows import late_versions, window_closes
from rivertwice.engine.relations import accepted, included, with_batch, with_window_end
from rivertwice.engine.session import watermark_confs

# Why an event of a case became a dead letter that the case does not expect: what the file says of it. Pure.

MOST = 3


def hints(definition: Definition, case: Case, dead: Mapping[str, str]) -> list[str]:
    """Return a sentence for each field of a dead event that the schema does not hold, or whose text has no time zone.

    Args:
        dead: id to reason of events that were not accepted, and were expected to be.
    """
    sentences: list[str] = []
    for event in case.events:
        if event.id not in dead or event.value is None:
            continue
        view = event.source or next(iter(definition.sources))
        source = definition.sources.get(view)
        if source is not None:
            sentences += [
                f"event {event.id!r}: {sentence}" for sentence in _of_fields(source, {**case.defaults, **event.value})
            ]
    more = len(sentences) - MOST
    return sentences[:MOST] + ([f"and {more} more like these"] if more > 0 else [])


def _of_fields(source: Source, value: Row) -> Iterator[str]:
    named = {source.parts_of(name)[0] for name in source.schema_}
    absent = [name for name in named if name not in value]
    for name in value:
        if name not in named:
            yield f"{name} is not a field of the schema{meant(name, absent)}"
    for name, kind in source.schema_.items():
        text = value_at(value, source.parts_of(name))
        is_instant = kind == "timestamp" and name not in source.epochs
        if is_instant and isinstance(text, str) and "zone" in (why := _why_no_instant(text)):
            yield f"{name}: {why}"
        elif is_instant and isinstance(text, int):
            yield f"{name} is the number {json.dumps(text)}; for numbers since 1970 write epochs: {{{name}: ms}} (or s, us) in the source"


def _why_no_instant(text: str) -> str:
    try:
        parse_iso(text)
    except RequestError as error:
        return str(error)
    return ""


# Compare expected rows with actual rows: one sentence per difference. Pure.


def diff_rows(definition: Definition, mode: str, expected: list[Row], actual: list[Row]) -> list[str]:
    """Return one sentence per difference; empty if each expected row occurs as often as expected, and no other row does."""
    kind = definition.window.kind
    keys = kind.case_keys(definition, expected)
    expected = kind.case_rows(expected)
    expected_groups, actual_groups = _by_identity(keys, expected), _by_identity(keys, actual)
    lines = []
    for identity in sorted({*expected_groups, *actual_groups}):
        label = f"{mode}: {', '.join(f'{key} {part}' for key, part in zip(keys, identity, strict=True))}"
        lines += _diff_group(
            definition, label, keys, expected_groups.get(identity, []), actual_groups.get(identity, [])
        )
    return lines


def diff_batches(definition: Definition, expected: list[list[Row]], emitted: list[list[Row]]) -> list[str]:
    """Return one sentence per difference between what each micro-batch emitted and had to; a list that is shorter ends with nothing."""
    lines = []
    for number, (wanted, rows) in enumerate(zip_longest(expected, emitted)):
        lines += diff_rows(definition, f"emitted by micro-batch {number}", wanted or [], rows or [])
    return lines


def newest_rows(definition: Definition, batches: list[list[Row]]) -> list[Row]:
    """Return the rows that count among those that a stream emitted, micro-batch by micro-batch.

    For a stream with updates, these are the rows of the last batch that emitted their window and keys. For others, all rows.
    """
    if not definition.has_updates:
        return [row for batch in batches for row in batch]
    newest: dict[tuple[str, ...], list[Row]] = {}
    for batch in batches:
        newest |= _by_identity([definition.window.start_column, *definition.keys], batch)
    return [row for rows in newest.values() for row in rows]


def _by_identity(keys: list[str], rows: list[Row]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(_identity(keys, row), []).append(row)
    return groups


def _diff_group(
    definition: Definition, label: str, keys: list[str], expected: list[Row], actual: list[Row]
) -> list[str]:
    """Return the differences among the rows of one window and keys. Rows that agree are paired first."""
    actual, counts, unmatched = list(actual), (len(expected), len(actual)), []
    for row in expected:
        same = next(
            (at for at, candidate in enumerate(actual) if not _diff_columns(definition, label, row, candidate)), None
        )
        if same is None:
            unmatched.append(row)
        else:
            del actual[same]
    pairs = min(len(unmatched), len(actual))
    lines = [line for pair in zip(unmatched, actual, strict=False) for line in _diff_columns(definition, label, *pair)]
    again = "" if 0 in counts else f"; such a row came {_times(counts[1])}, expected {_times(counts[0])}"
    lines += [f"{label}: the row is missing; expected {_show(row, keys)}{again}" for row in unmatched[pairs:]]
    lines += [f"{label}: the row was not expected; it is {_show(row, keys)}{again}" for row in actual[pairs:]]
    return lines


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def diff_names(what: str, expected: dict[str, str], actual: dict[str, str]) -> list[str]:
    """Return the events that are on one side only, or whose reason differs."""
    lines = []
    for name in sorted({*expected, *actual}):
        expected_reason, actual_reason = expected.get(name), actual.get(name)
        if expected_reason != actual_reason:
            lines.append(
                f"{what}: event {name!r} is {actual_reason or f'not {what}'}, expected {expected_reason or f'not {what}'}"
            )
    return lines


def _diff_columns(definition: Definition, label: str, expected: Row, actual: Row) -> list[str]:
    lines = []
    for name, value in expected.items():
        if name not in actual:
            lines.append(f"{label}: {name!r} is not a column of the result; it has {', '.join(actual)}")
            continue
        column = definition.columns.get(name)
        tolerance = column.tolerance if column else None
        if not same_value(_as_column_value(value, actual[name]), actual[name], tolerance):
            same = _text(value) == _text(actual[name])
            expected_text = f"the text {value!r}; write it without quotes" if same else _text(value)
            lines.append(f"{label}: {name} is {_text(actual[name])}, expected {expected_text}")
    return lines


def _as_column_value(expected: Any, actual: Any) -> Any:
    """Return what a case expects in the type of the column's value, so that the two can be compared; None if it is not such a value."""
    if expected is None or actual is None:
        return expected
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected if type(expected) is type(actual) else None
    if isinstance(actual, int | float | Decimal):
        if not isinstance(expected, int | float):
            return None
        return Decimal(str(expected)) if isinstance(actual, Decimal) else expected
    return actual if _text(expected) == _text(actual) else None


def _identity(keys: list[str], row: Row) -> tuple[str, ...]:
    missing = [key for key in keys if key not in row]
    if missing:
        message = f"expected row {row} has no {missing[0]!r}; window start and keys identify a row: add it"
        raise DefinitionError(message)
    return tuple(_text(row[key]) for key in keys)


def _show(row: Row, keys: list[str]) -> str:
    return ", ".join(f"{name}={_text(value)}" for name, value in row.items() if name not in keys)


def _text(value: Any) -> str:
    return to_iso(value) if isinstance(value, datetime) else str(value)


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
        emitted, watermarks = _run_stream(spark, definition, folder, batches)
        raw = spark.createDataFrame(pa.concat_tables(batches))
        return _judge(spark, definition, case, raw, emitted, watermarks)


def run_cases(
    spark: SparkSession, folder: Path, definition: Definition | None = None, home: PipelineHome | None = None
) -> Iterator[CaseResult]:
    """Run every case of the pipeline in `folder`, one after the other; a case that cannot be run has failed.

    Args:
        definition: the pipeline's definition; None: it is loaded.
        home: where it is stored, once all have run, how they ran; None: nowhere.
    """
    failed: dict[str, bool] = {}
    for result in _each_case(spark, folder, definition or load_definition(folder)):
        failed[result.case] = not result.passed
        yield result
    if home is not None:
        note_cases(home, failed, utc_now())


def _each_case(spark: SparkSession, folder: Path, definition: Definition) -> Iterator[CaseResult]:
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
    spark: SparkSession,
    definition: Definition,
    case: Case,
    raw: DataFrame,
    emitted: list[list[Row]],
    watermarks: list[int],
) -> CaseResult:
    decoded = decode_views(definition, raw)
    rows = {view: accepted(decoded[view], source) for view, source in definition.sources.items()}
    ids = [event.id for event in case.events]
    batch_of = [number for number, events in enumerate(case.batches) for _ in events]
    result, conflicts = compiler_of(definition).recompute_case(spark, definition, rows, batch_of)
    batch = _named(definition, ids, result)
    emitted = [_named(definition, ids, rows) for rows in emitted]
    stream = newest_rows(definition, emitted)
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
        *([] if expect.emitted is None else diff_batches(definition, expect.emitted, emitted)),
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
) -> tuple[list[list[Row]], list[int]]:
    """Return per micro-batch the rows it emitted, and the watermark its late filter used."""
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
    return emitted, [0, *own]


def _watermark_ms(path: Path) -> int:
    # Spark's late filter of a batch uses the watermark that its predecessor ran with.
    return int(json.loads(path.read_text().splitlines()[1])["batchWatermarkMs"])


def _collect(frame: DataFrame) -> list[Row]:
    return [dict(row) for row in frame.toArrow().to_pylist()]
