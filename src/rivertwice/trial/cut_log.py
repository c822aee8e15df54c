"""Cut real records from the retained log into a case of a pipeline, with what its definition gives for them today."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rivertwice.backfill.kinds.planner import window_ms
from rivertwice.backfill.model import BackfillRequest, BackfillView
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.session_reader import of_keys
from rivertwice.config import PipelineHome, Settings
from rivertwice.config.versions import base_of
from rivertwice.errors import RequestError
from rivertwice.instants import TimeRange, to_iso, to_ms
from rivertwice.log import kafka
from rivertwice.log.addresses import Part
from rivertwice.log.records import read_ranges
from rivertwice.pipeline.bundle import Bundle, build_project_bundle, load_bundle
from rivertwice.pipeline.cases import run_case
from rivertwice.pipeline.compile import decode_view
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.fingerprint import compare_fingerprints
from rivertwice.pipeline.on_demand import Spark
from rivertwice.progress import Progress
from rivertwice.store.files import replace_bytes
from rivertwice.timeline.lineage import load_timeline, path_ledger
from rivertwice.timeline.sequence import head
from rivertwice.trial.cut import (
    MOST_RECORDS,
    RawRecord,
    Results,
    case_text,
    expect,
    group_by_batch,
    make_events,
    parse_address,
    parse_case,
    require_case_name,
    require_few,
)
from rivertwice.trial.definitions import decodes_alike, find_refusal, keeps_zones
from rivertwice.trial.stretch import plan_windows, view_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class CutRequest:
    """What is cut: the records of a window, perhaps of one key, or single records by their addresses.

    Attributes:
        pipeline: its name.
        name: of the case; None: made of the window's start or the first address.
        window: start of the window.
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
        path: its file.
        records: how many it has.
        batches: its micro-batches.
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
        settings: where everything is stored.
        request: what is cut.
        spark: gives a session.
        now: the present instant, for the head of the file.
        progress: is passed one line per fact.

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
        f"{len(records)} real records of the log, cut by `rivertwice case from-log` on {to_iso(now)[:10]}: they may name",
        "persons, and an erasure (`rivertwice privacy erase`) does not reach this file. What it expects is what the",
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
    view = _view(settings, home, bundle)
    size, step = window_ms(definition)
    start_ms = to_ms(start)
    if view.sessions is not None or start_ms % step:
        message = (
            f"no window of {definition.name} is known by its start {to_iso(start)} ({definition.window.text}); name a start of a window, or single "
            "records with --record TOPIC/PARTITION@OFFSET"
        )
        raise RequestError(message)
    _check_key(definition, request.key)
    end_ms = start_ms + size
    asked = BackfillRequest(request.pipeline, TimeRange(start, start + timedelta(milliseconds=size)), "case")
    plan = plan_windows(asked, view, [(start_ms, start_ms + step)])
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


def _view(settings: Settings, home: PipelineHome, new: Bundle) -> BackfillView:
    """Return the zone map as it holds for the definition in the project."""
    definition = new.definition
    view = observe_backfill(settings, definition.name)
    old = load_bundle(home.bundles, view.bundle)
    refusal = find_refusal(old.definition, definition)
    if refusal is not None:
        raise RequestError(refusal)
    changes = compare_fingerprints(old.fingerprint, new.fingerprint)
    return view_of(
        view,
        new,
        window_ms(definition),
        clean={(row.timeline, row.batch) for row in path_ledger(home) if not row.bad},
        alike=decodes_alike(old.definition, definition, changes),
        keeps_zones=keeps_zones(old.definition, definition, changes),
        has_sessions=definition.session_keys is not None,
    )


def _check_key(definition: Definition, key: Mapping[str, Any] | None) -> None:
    """Refuse a key by which records cannot be chosen.

    Raises:
        RequestError: it has other columns than the keys, or one that is no field of the one source.
    """
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
    topic_ids = load_timeline(home, timeline).topic_ids
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
