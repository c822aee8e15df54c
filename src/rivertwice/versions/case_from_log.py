"""Cut real records from the retained log into a case of a pipeline, with what its definition gives for them today."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rivertwice.backfill import BackfillView, RetainedLog, of_keys
from rivertwice.core import PipelineHome, Progress, RequestError, Row, Settings, base_of, to_iso, to_ms
from rivertwice.definition import Bundle, Definition, build_project_bundle
from rivertwice.engine import SCHEMA_ID_HEADER, Case, Spark, decode_view, diff_rows, run_case
from rivertwice.log import Part, kafka, read_ranges
from rivertwice.storage import replace_bytes
from rivertwice.timeline import Timeline, head, path_ledger
from rivertwice.versions.try_model import find_refusal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# From records of the log to a case: its events, its micro-batches, and what the definition gives for it today. Pure.

MOST_RECORDS = 500
"""A case of more records is refused: a test should be small enough to read."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
_ADDRESS = re.compile(r"(?:(?P<topic>[A-Za-z0-9._-]+)/)?(?P<partition>[0-9]{1,6})[@/](?P<offset>[0-9]{1,18})")


@dataclass(frozen=True)
class RawRecord:
    """A record of the log, byte by byte."""

    part: Part
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]


@dataclass(frozen=True)
class Results:
    """What a case gave when it was run."""

    batch: Sequence[Mapping[str, Any]]
    stream: Sequence[Mapping[str, Any]]
    late: Sequence[str]
    dead: Mapping[str, str]


def parse_address(text: str, topics: Sequence[str]) -> tuple[Part, int]:
    """Return the address of a record: TOPIC/PARTITION@OFFSET, or PARTITION@OFFSET if there is one topic; `/` stands for `@` too.

    Raises:
        RequestError: it is not an address, or its topic is none of the topics.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or (match["topic"] is None and len(topics) > 1):
        message = (
            f"{text!r} is not an address of a record; write TOPIC/PARTITION@OFFSET, for instance {topics[0]}/0@118"
        )
        raise RequestError(message)
    topic = match["topic"] or topics[0]
    if topic not in topics:
        message = f"{text!r} names the topic {topic}, but the pipeline reads {', '.join(topics)}; correct the address"
        raise RequestError(message)
    return Part(topic, int(match["partition"])), int(match["offset"])


def require_case_name(name: str) -> str:
    """Return the name of a case, if it can be a file's.

    Raises:
        RequestError: it cannot.
    """
    if not _NAME.fullmatch(name):
        message = f"{name!r} cannot be the name of a case; use at most 100 of a-z, 0-9, _ and -, the first no _ or -"
        raise RequestError(message)
    return name


def require_few(count: int, pipeline: str) -> None:
    """Refuse to cut nothing, or too much.

    Raises:
        RequestError: there is no record, or there are too many.
    """
    if count == 0:
        message = f"the log of {pipeline} holds no accepted record that is asked for, so there is no case to cut; ask for another window or key"
        raise RequestError(message)
    if count > MOST_RECORDS:
        message = f"more than {MOST_RECORDS} records are asked for, too many for a case; name a key with --key, or single records with --record"
        raise RequestError(message)


def group_by_batch(
    records: Sequence[RawRecord], batches: Sequence[Mapping[Part, tuple[int, int]]]
) -> list[list[RawRecord]]:
    """Return the records by the micro-batch that read them, in the order of the path; those that none has read yet come last.

    Args:
        records: in any order.
        batches: half-open offset ranges of each batch of the path.
    """
    remaining = sorted(records, key=lambda record: (record.part, record.offset))
    groups = []
    for ranges in batches:
        read = [
            record
            for record in remaining
            if record.part in ranges and ranges[record.part][0] <= record.offset < ranges[record.part][1]
        ]
        if read:
            groups.append(read)
            remaining = [record for record in remaining if record not in read]
    return [*groups, remaining] if remaining else groups


def make_events(definition: Definition, groups: Sequence[Sequence[RawRecord]]) -> list[list[Row]]:
    """Return the micro-batches of a case: each record as text if its value is text, else as hexadecimal digits."""
    return [[_event(definition, record) for record in group] for group in groups]


def _event(definition: Definition, record: RawRecord) -> Row:
    view, source = definition.by_topic[record.part.topic]
    number = list(definition.sources).index(view)
    prefix = f"s{number}-" if definition.has_several_sources else ""
    event: dict[str, Any] = {
        "id": f"{prefix}{record.part.partition}-{record.offset}",
        "at": to_iso(record.timestamp),
    }
    if definition.has_several_sources:
        event["source"] = view
    key = None if record.key is None else _text(record.key)
    if key is not None:
        event["key"] = key
    if source.schema_ids and source.framing == "none":
        schema_id = _text(record.headers.get(SCHEMA_ID_HEADER, b""))
        event["headers"] = {SCHEMA_ID_HEADER: schema_id} if schema_id else {}
    if record.value is None:
        return {**event, "tombstone": True}
    text = _text(record.value)
    return {**event, "hex": record.value.hex()} if text is None else {**event, "raw": text}


def _text(data: bytes) -> str | None:
    """Return bytes as text if a person can read it; else None."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text.replace("\n", "").replace("\t", "").isprintable() else None


def expect(definition: Definition, results: Results) -> dict[str, Any]:
    """Return what a case expects so that it passes with these results.

    Raises:
        RequestError: the results cannot be written so that they compare as equal.
    """
    expected: dict[str, Any] = {
        "batch": [_row(row) for row in results.batch],
        "stream": [_row(row) for row in results.stream],
        "late": list(results.late),
        "dead": dict(results.dead),
    }
    wrong = [
        *diff_rows(definition, "batch", expected["batch"], [dict(row) for row in results.batch]),
        *diff_rows(definition, "stream", expected["stream"], [dict(row) for row in results.stream]),
    ]
    if wrong:
        message = f"the results cannot be written as a case expects them: {wrong[0]}; nothing was written"
        raise RequestError(message)
    return expected


def _row(row: Mapping[str, Any]) -> Row:
    return {name: _plain(value) for name, value in row.items() if _can_be_written(value)}


def _can_be_written(value: Any) -> bool:
    """Say whether YAML gives the value back as it is: not so for decimals of many digits. A column that is left out is not compared."""
    return not isinstance(value, Decimal) or Decimal(str(_plain(value))) == value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_iso(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def case_text(title: str, head: Sequence[str], batches: Sequence[Sequence[Mapping[str, Any]]], expected: Any) -> str:
    """Return the text of a case's file; `head` are the lines of the comment at its beginning."""
    body = {"description": title, "batches": [list(batch) for batch in batches], "expect": expected}
    text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=None)
    return "".join(f"# {line}\n" for line in head) + text


def parse_case(name: str, batches: Sequence[Sequence[Mapping[str, Any]]]) -> Case:
    """Return a case that expects nothing yet, to be run."""
    nothing: dict[str, Any] = {"batch": [], "stream": []}
    value = {"name": name, "description": name, "batches": [list(batch) for batch in batches], "expect": nothing}
    return Case.model_validate(value)


@dataclass(frozen=True)
class CutRequest:
    """What is cut: the records of a window, perhaps of one key, or single records by their addresses.

    Attributes:
        name: of the case; None: made of the window's start or the first address.
        key: key column to value: only records of that key.
        records: addresses, as texts.
    """

    pipeline: str
    name: str | None = None
    window: datetime | None = None
    key: Mapping[str, Any] | None = None
    records: Sequence[str] = ()


@dataclass(frozen=True)
class CutCase:
    """A case that was written.

    Attributes:
        batch_rows, stream_rows: rows that it expects.
    """

    path: Path
    records: int
    batches: int
    batch_rows: int
    stream_rows: int


def cut_case(settings: Settings, request: CutRequest, spark: Spark, now: datetime, progress: Progress) -> CutCase:
    """Write a case of real records into the project, expecting what the definition in the project gives for them now.

    Records stay byte by byte, in the micro-batches in which the stream read them. With a window, the first record of the log that
    closes it comes last, so that the stream emits its rows.

    Args:
        now: the present instant, for the head of the file.

    Raises:
        RequestError: the pipeline never ran, the window cannot be cut, there are no records or too many, or the file exists.
        DefinitionError: the definition cannot be loaded.
        LogGapError: a record is in neither Kafka nor the archive.
    """
    home = settings.pipeline(request.pipeline)
    if head(home) is None:
        message = f"{request.pipeline} never ran, so its log was not read; start it first: `rivertwice start {request.pipeline}`"
        raise RequestError(message)
    bundle = build_project_bundle(settings, request.pipeline)
    definition = bundle.definition
    addresses = [parse_address(text, definition.topics) for text in request.records]
    path = _free_path(settings, request, addresses)
    if request.window is not None:
        records = _of_window(spark(), settings, home, bundle, request, request.window)
    else:
        records = _by_address(spark(), settings, home, addresses)
    require_few(len(records), request.pipeline)
    groups = group_by_batch(records, [row.parts() for row in path_ledger(home)])
    progress(f"{len(records)} records of {len(groups)} micro-batches are run as a case ...")
    batches = make_events(definition, groups)
    result = run_case(spark(), definition, parse_case(path.stem, batches))
    expected = expect(definition, Results(result.batch, result.stream, result.late, result.dead))
    head_lines = [
        f"{len(records)} real records of the log, cut by `rivertwice test --from-log` on {to_iso(now)[:10]}: they may name",
        "persons, and an erasure (`rivertwice admin privacy erase`) does not reach this file. What it expects is what the",
        "definition gave that day: check it.",
    ]
    replace_bytes(path, case_text(_title(request), head_lines, batches, expected).encode())
    return CutCase(path, len(records), len(batches), len(expected["batch"]), len(expected["stream"]))


def _free_path(settings: Settings, request: CutRequest, addresses: Sequence[tuple[Part, int]]) -> Path:
    if request.window is not None:
        default = f"window_{to_iso(request.window).lower().replace(':', '').replace('.', '-')}"
    else:
        part, offset = addresses[0]
        default = f"record_{part.partition}_{offset}"
    name = require_case_name(request.name or default)
    path = settings.definitions / base_of(request.pipeline) / "cases" / f"{name}.yaml"
    if path.exists():
        message = f"{path} exists already, and nothing was written; give the case another name with --name"
        raise RequestError(message)
    return path


def _title(request: CutRequest) -> str:
    if request.window is None:
        return f"{len(request.records)} records of the log by their addresses."
    of_key = "" if request.key is None else f" of {json.dumps(dict(request.key), ensure_ascii=False)}"
    return f"The records{of_key} of the window that starts at {to_iso(request.window)}, and the one that closes it."


def _of_window(
    spark: SparkSession,
    settings: Settings,
    home: PipelineHome,
    bundle: Bundle,
    request: CutRequest,
    start: datetime,
) -> list[RawRecord]:
    """Return the accepted records of a window, and the first one that closes it.

    Raises:
        RequestError: a start does not name a window of the definition, or the key is not one of its fields.
    """
    definition = bundle.definition
    running = RetainedLog.observe(settings, definition.name)
    refusal = find_refusal(running.bundle.definition, definition)
    if refusal is not None:
        raise RequestError(refusal)
    log = running.by(bundle)
    view, step = log.view, log.view.step
    start_ms = to_ms(start)
    if view.sessions is not None or start_ms % step:
        message = (
            f"no window of {definition.name} is known by its start {to_iso(start)} ({definition.window.text}); name a start of a window, or single "
            "records with --record TOPIC/PARTITION@OFFSET"
        )
        raise RequestError(message)
    _check_key(definition, request.key)
    end_ms = start_ms + view.window_ms
    plan = log.plan_windows([(start_ms, start_ms + step)])
    records: list[RawRecord] = []
    for name, source in definition.sources.items():
        runs = plan.offsets.get(source.topic, {})
        for number in range(max((len(pairs) for pairs in runs.values()), default=0)):
            ranges = {p: pairs[number] for p, pairs in runs.items() if number < len(pairs)}
            rows = _accepted(spark, settings, definition, name, ranges, view.topic_ids[source.topic])
            if not source.is_table:
                event_ms = F.unix_millis(source.event_time)
                rows = rows.where((event_ms >= F.lit(start_ms)) & (event_ms < F.lit(end_ms)))
            if request.key is not None:
                rows = of_keys(spark, rows, definition, [json.dumps(dict(request.key))])
            records += _collect(rows, source.topic)
            require_few(max(1, len(records)), request.pipeline)
    if records and len(definition.streams) == 1:
        records += _closing(spark, settings, view, definition, end_ms)
    return records


def _check_key(definition: Definition, key: Mapping[str, Any] | None) -> None:
    if key is None:
        return
    fields = {} if definition.has_several_sources else definition.source[1].schema_
    if set(key) != set(definition.keys) or any(name not in fields for name in key):
        message = (
            f"--key names {', '.join(key) or 'nothing'}, but records of {definition.name} can be chosen by its keys only if it has one source "
            f"and each key ({', '.join(definition.keys) or 'none'}) is a field of it; name all of them, or leave --key out"
        )
        raise RequestError(message)


def _closing(
    spark: SparkSession, settings: Settings, view: BackfillView, definition: Definition, end_ms: int
) -> list[RawRecord]:
    """Return the first record whose event time moves the watermark to the window's end; empty if there is none yet."""
    ((name, source),) = definition.streams.items()
    closes_ms = end_ms + source.watermark // timedelta(milliseconds=1)
    for zone in view.batches:
        if zone.max_event_ms is None or zone.max_event_ms < closes_ms or source.topic not in zone.offsets:
            continue
        ranges, topic_id = zone.offsets[source.topic], view.topic_ids[source.topic]
        rows = _accepted(spark, settings, definition, name, ranges, topic_id)
        later = rows.where(F.unix_millis(source.event_time) >= F.lit(closes_ms)).orderBy("_partition", "_offset")
        records = _collect(later.limit(1), source.topic)
        if records:
            return records
    return []


def _accepted(
    spark: SparkSession,
    settings: Settings,
    definition: Definition,
    view: str,
    ranges: Mapping[int, tuple[int, int]],
    topic_id: str,
) -> DataFrame:
    raw = read_ranges(spark, settings, definition.sources[view].topic, dict(ranges), topic_id=topic_id)
    return decode_view(definition, view, raw).where(F.col("_reason").isNull())


def _collect(rows: DataFrame, topic: str) -> list[RawRecord]:
    names = ("_partition", "_offset", "_record_time", "_key", "_value", "_headers")
    table = rows.select(*names).limit(MOST_RECORDS + 1).toArrow()
    return [_record(topic, row) for row in table.to_pylist()]


def _record(topic: str, row: Mapping[str, Any]) -> RawRecord:
    headers = {each["key"]: each["value"] or b"" for each in row["_headers"] or []}
    part = Part(topic, row["_partition"])
    return RawRecord(part, row["_offset"], row["_record_time"], row["_key"], row["_value"], headers)


def _by_address(
    spark: SparkSession,
    settings: Settings,
    home: PipelineHome,
    addresses: Sequence[tuple[Part, int]],
) -> list[RawRecord]:
    """Return records by their addresses, accepted or not."""
    timeline = head(home)
    assert timeline is not None, "the caller looked"
    topic_ids = Timeline.load(home, timeline).topic_ids
    records: list[RawRecord] = []
    for topic in dict.fromkeys(part.topic for part, _ in addresses):
        wanted = sorted({(part.partition, offset) for part, offset in addresses if part.topic == topic})
        topic_id = topic_ids.get(topic) or kafka.topic_id(settings, topic)
        frames = [
            read_ranges(spark, settings, topic, {partition: (offset, offset + 1)}, topic_id=topic_id)
            for partition, offset in wanted
        ]
        raw = functools.reduce(DataFrame.unionByName, frames)
        records += _collect(raw.select(*_renamed()), topic)
    return records


def _renamed() -> list[Column]:
    names = {
        "partition": "_partition",
        "offset": "_offset",
        "timestamp": "_record_time",
        "key": "_key",
        "value": "_value",
        "headers": "_headers",
    }
    return [F.col(name).alias(shown) for name, shown in names.items()]
