"""Records of offset runs, read and decoded, and what dead letters should have been."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from rivertwice.backfill.model import BackfillView, Component, OffsetRuns, Span
from rivertwice.backfill.survey import BackfillScope, ReadTruth, Zone, survey_sessions
from rivertwice.backfill.zones import plan_offsets, plan_sources, without
from rivertwice.core.errors import RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition
from rivertwice.engine.compile import decode_view
from rivertwice.engine.relations import accepted, included, window_micros
from rivertwice.log.records import read_ranges
from rivertwice.timeline.committed import committed_batches
from rivertwice.timeline.dead_cure import amended_rows, with_cures
from rivertwice.timeline.dead_letters import DeadLetter
from rivertwice.timeline.dead_summary import read_cures
from rivertwice.timeline.digest import key_texts


def read_source(
    spark: SparkSession,
    settings: Settings,
    topic_ids: Mapping[str, str],
    definition: Definition,
    view: str,
    offsets: OffsetRuns,
) -> DataFrame:
    """Return a view's accepted rows of offset runs; one partition's are read in as few passes as there are runs."""
    source = definition.sources[view]
    parts = offsets.get(source.topic, {})
    passes = max((len(runs) for runs in parts.values()), default=0)
    scans = [
        {partition: runs[index] for partition, runs in parts.items() if index < len(runs)} for index in range(passes)
    ]
    frames = [
        read_ranges(spark, settings, source.topic, ranges, topic_id=topic_ids[source.topic]) for ranges in scans or [{}]
    ]
    return accepted(decode_view(definition, view, functools.reduce(DataFrame.unionByName, frames)), source)


def cured(
    spark: SparkSession,
    home: PipelineHome,
    definition: Definition,
    rows: Mapping[str, DataFrame],
    as_of: Mapping[str, Mapping[int, int]],
    amendments: int,
) -> dict[str, DataFrame]:
    """Return view to rows, with the dead letters below `as_of` that are amended as of decision `amendments`, in any range."""
    if not amendments:
        return dict(rows)

    def is_below(letter: DeadLetter) -> bool:
        return letter.address.offset < as_of.get(letter.topic, {}).get(letter.address.partition, 0)

    known = [
        cure
        for cure in read_cures(home, committed_batches(home))
        if cure.holds_at(amendments) and is_below(cure.letter)
    ]
    cures = amended_rows(spark, definition, known)
    return {view: with_cures(view_rows, cures.get(view)) for view, view_rows in rows.items()}


# The Spark side of sessions: which ones the records of some ranges of event time make, without the transform.

MOST_SESSIONS = 1_000_000
"""So many sessions in and around what was asked are held in memory at most."""


def make_sessions(rows: DataFrame, definition: Definition) -> DataFrame:
    """Return the sessions that accepted rows make: keys, `_start_us`, `_end_us` and `_records`.

    Each record is compared with the one before it; neither the transform nor Spark's own sessions are used.
    """
    _, source = definition.source
    gap_us, _ = window_micros(definition)
    event = F.unix_micros(source.event_time).alias("_event_us")
    ordered = Window.partitionBy(*definition.keys).orderBy("_event_us")
    before = F.lag("_event_us").over(ordered)
    begins = F.when(before.isNull() | (F.col("_event_us") - before > gap_us), F.col("_event_us"))
    marked = rows.select(*definition.keys, event).withColumn("_begins", begins)
    placed = marked.withColumn("_start_us", F.max("_begins").over(ordered))
    return placed.groupBy(*definition.keys, "_start_us").agg(
        (F.max("_event_us") + gap_us).alias("_end_us"), F.count(F.lit(1)).alias("_records")
    )


def truth_reader(spark: SparkSession, settings: Settings, view: BackfillView, definition: Definition) -> ReadTruth:
    """Return a reader of the sessions of a zone as of the view's last committed batch.

    It raises LogGapError if neither the archive nor Kafka has a record that is needed, and RequestError if there are more
    sessions than can be held.
    """
    home = settings.pipeline(view.pipeline)

    def read(zone: Zone, keys: Collection[str] | None) -> Sequence[Span]:
        offsets = without(plan_offsets(view.batches, zone), view.lost)
        plan_sources(offsets, view)
        name, _ = definition.source
        accepted = {name: read_source(spark, settings, view.topic_ids, definition, name, offsets)}
        rows = cured(spark, home, definition, accepted, view.as_of, view.amendments)[name]
        rows = included(spark, definition, rows).where(_inside(definition, zone))
        if keys is not None:
            rows = of_keys(spark, rows, definition, keys)
        sessions = make_sessions(rows, definition).limit(MOST_SESSIONS + 1).toArrow()
        if sessions.num_rows > MOST_SESSIONS:
            message = (
                f"more than {MOST_SESSIONS} sessions of {definition.name} lie in and around what was asked, too many to be looked up at "
                "once; ask for a shorter range, then for the rest"
            )
            raise RequestError(message)
        columns = (sessions[name].to_pylist() for name in ("_start_us", "_end_us", "_records"))
        return [Span(*fields) for fields in zip(key_texts(sessions, definition.keys), *columns, strict=True)]

    return read


def with_sessions(
    spark: SparkSession, settings: Settings, view: BackfillView, definition: Definition, asked: BackfillScope
) -> BackfillView:
    """Return a view with the sessions that are asked for, as all records make them; what is served is not looked at.

    It raises what `truth_reader` raises.
    """
    assert view.sessions is not None, "only sessions are looked up"
    assert view.closed_ms is not None, "a request was checked against it"
    read = truth_reader(spark, settings, view, definition)
    components = survey_sessions(asked, lambda _: [], read, closed_ms=view.closed_ms, gap_ms=view.window_ms)
    return replace(view, sessions=replace(view.sessions, components=components))


def of_keys(spark: SparkSession, rows: DataFrame, definition: Definition, keys: Collection[str]) -> DataFrame:
    """Return the rows of some keys, given by their texts."""
    types = _key_types(definition)
    values = [_key_values(text, types) for text in sorted(keys)]
    return rows.join(F.broadcast(spark.createDataFrame(values, _ddl(types))), same_key(rows, definition), "left_semi")


def stretches_frame(spark: SparkSession, definition: Definition, components: Iterable[Component]) -> DataFrame:
    """Return sessions that belong together as rows: keys as `_k0`, `_k1` ..., and `_low_us`, `_high_us`."""
    types = _key_types(definition)
    values = [(*_key_values(each.key, types), each.start_us, each.end_us) for each in components]
    return spark.createDataFrame(values, ", ".join(filter(None, [_ddl(types), "_low_us bigint", "_high_us bigint"])))


def _key_types(definition: Definition) -> Mapping[str, str]:
    """Return key to its type, as declared."""
    _, source = definition.source
    return {name: source.schema_[name] for name in definition.keys}


def _ddl(types: Mapping[str, str]) -> str:
    return ", ".join(f"_k{number} {kind}" for number, kind in enumerate(types.values()))


def _key_values(text: str, types: Mapping[str, str]) -> tuple[Any, ...]:
    """Return the values of a key from its text."""
    body = json.loads(text)
    return tuple(_parsed(body[name], kind) for name, kind in types.items())


def same_key(rows: DataFrame, definition: Definition) -> Column:
    """Return whether a row's key equals the columns `_k0`, `_k1` ... of the joined side; null is a value like any other."""
    equal = [rows[name].eqNullSafe(F.col(f"_k{number}")) for number, name in enumerate(definition.keys)]
    return functools.reduce(operator.and_, equal)


def _inside(definition: Definition, zone: Zone) -> Column:
    _, source = definition.source
    event_us = F.unix_micros(source.event_time)
    ranges = [(event_us >= low * 1000) & (event_us < high * 1000) for low, high in zone]
    return functools.reduce(operator.or_, ranges)


def _parsed(value: Any, kind: str) -> Any:
    """Return a key's value from its text's JSON, where numbers with a point and instants are texts."""
    if not isinstance(value, str) or kind == "string":
        return value
    return datetime.fromisoformat(value) if kind == "timestamp" else Decimal(value)
