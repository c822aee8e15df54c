"""What the log gives by a definition, as of the last committed batch: windows or sessions are chosen, read and computed.

Nothing is written. A backfill computes a plan chunk by chunk and publishes it; `try`, `explain`, cases from the log and the comparison
of versions ask for rows. These differ from a backfill in one respect: what is no longer retained is left out and named, where a
backfill is refused.
"""

from __future__ import annotations

import functools
import json
import operator
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from rivertwice.backfill.late_windows import window_ms
from rivertwice.backfill.model import (
    BackfillPlan,
    BackfillRequest,
    BackfillView,
    BatchZone,
    Chunk,
    OffsetRuns,
    PlannedSession,
    SessionsView,
    Span,
)
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import MAX_WINDOWS, select_ranges
from rivertwice.backfill.ranges import HalfOpenRange, covering, merge, reach, subtract, windows
from rivertwice.backfill.session_plan import (
    BackfillScope,
    ReadTruth,
    Zone,
    asked_sessions,
    has_settled,
    plan_sessions,
    sessions_of,
    survey_sessions,
)
from rivertwice.backfill.zones import check_doubts, draft_plan, plan_chunks, plan_offsets, without
from rivertwice.core import LogGapError, RequestError, Settings, TimeRange, from_ms, iso_of_ms
from rivertwice.definition import Bundle, Definition, fingerprint_of, load_bundle
from rivertwice.engine import (
    LogDecoder,
    accepted,
    compile_batch,
    compile_sources,
    included,
    result_schema,
    window_micros,
)
from rivertwice.log import LogRead, kafka
from rivertwice.timeline import (
    DeadLetter,
    amended_rows,
    committed_batches,
    key_digest,
    key_texts,
    path_ledger,
    read_cures,
    with_cures,
)

UNPUBLISHED = "the trial"
"""Id of a plan that is only computed."""
MOST_SESSIONS = 1_000_000
"""So many sessions in and around what was asked are held in memory at most."""

KEEPS_EVENT_TIME = frozenset(
    {"schema", "required", "rules", "max_future", "schema_ids", "schema_id_optional", "max_record_bytes", "decimals"}
)
"""Components of the decode that decide whether a record is accepted, but not which event time it has."""


def keeps_zones(old: Definition, new: Definition) -> bool:
    """Say whether a record that both definitions accept has the same event time in both, as a row of the same role."""
    return _changed_decode(old, new) <= KEEPS_EVENT_TIME and all(
        _time_of(old, topic) == _time_of(new, topic) for topic in new.topics
    )


def decodes_alike(old: Definition, new: Definition) -> bool:
    """Say whether both accept the same records, as the same rows of the same views."""
    return not _changed_decode(old, new) and old.sources.keys() == new.sources.keys() and keeps_zones(old, new)


def _changed_decode(old: Definition, new: Definition) -> set[str]:
    changes = fingerprint_of(old).changes_to(fingerprint_of(new))
    return {change.component for change in changes if "decode" in change.touches}


def _time_of(definition: Definition, topic: str) -> tuple[str, str | None, str]:
    _, source = definition.by_topic[topic]
    return source.event_time, source.schema_.get(source.event_time), source.role


@dataclass(frozen=True)
class RetainedLog:
    """What a definition can be run over: closed windows, or settled sessions, and where their records are. Pure except for `look_up`.

    Attributes:
        view: what was observed, as it holds for this definition.
        unread: records of batches that were left out, because neither their event times are known nor their records retained.
    """

    settings: Settings
    bundle: Bundle
    view: BackfillView
    unread: int = 0

    @classmethod
    def observe(cls, settings: Settings, pipeline: str, bundle: Bundle | None = None) -> RetainedLog:
        """Observe the log of the definition that runs, whose bundle may be known.

        Raises:
            RequestError: the pipeline never ran here, or it is a fold.
            ServiceError: Kafka does not answer.
        """
        view = observe_backfill(settings, pipeline)
        return cls(settings, bundle or load_bundle(settings.pipeline(pipeline).bundles, view.bundle), view)

    def by(self, new: Bundle) -> RetainedLog:
        """Return the log of another definition, which reads no further topic.

        The zone of a batch holds for it too if no dead letter of the batch can be accepted now, and event times are the same.
        """
        old, definition = self.bundle.definition, new.definition
        is_alike, keeps = decodes_alike(old, definition), keeps_zones(old, definition)
        home = self.settings.pipeline(self.view.pipeline)
        clean = {(row.timeline, row.batch) for row in path_ledger(home) if not row.bad} if keeps else set()

        def is_known(zone: BatchZone) -> bool:
            return zone.trusted and (is_alike or (zone.timeline, zone.batch) in clean)

        size, step = window_ms(definition)
        view = replace(
            self.view,
            window_ms=size,
            step_ms=None if step == size else step,
            batches=tuple(replace(zone, trusted=is_known(zone)) for zone in self.view.batches),
            bundle=new.id,
            semantics=new.fingerprint.semantics,
            late_policy=None,
            arrivals=(),
            stale=(),
            sessions=None if definition.session_keys is None else SessionsView(),
        )
        return replace(self, bundle=new, view=view)

    def without_unknown(self) -> RetainedLog:
        """Return the log without batches of unknown event times that are not retained.

        Such batches are always read, because a definition may accept a record of them for any window.
        """
        lost = [zone for zone in self.view.batches if not zone.trusted and not self._is_retained(zone)]
        kept = tuple(zone for zone in self.view.batches if zone.trusted or self._is_retained(zone))
        unread = sum(end - start for zone in lost for parts in zone.offsets.values() for start, end in parts.values())
        return replace(self, view=replace(self.view, batches=kept), unread=self.unread + unread)

    def newest(self, last: timedelta) -> TimeRange:
        """Return a length of event time before the end of the newest closed window, or before what is settled of sessions.

        Raises:
            RequestError: no window is closed yet.
        """
        view = self.view
        if not view.closed_ms:
            message = f"no window of {view.pipeline} is closed yet, so there is nothing to compare; wait for its first windows"
            raise RequestError(message)
        end_ms = view.closed_ms - view.window_ms
        if view.sessions is None:
            end_ms = end_ms // view.step * view.step + view.window_ms
        return TimeRange(from_ms(end_ms) - last, from_ms(end_ms))

    def choose(self, asked: TimeRange) -> tuple[tuple[HalfOpenRange, ...], list[tuple[int, int, str]]]:
        """Return where the windows start that are asked for, closed and retained, and what is left out, with the reason.

        Raises:
            RequestError: no window remains.
        """
        view = self.view
        starts, cut = select_ranges(self._request(asked), view)
        times = reach(starts, view.window_ms, view.step)
        lost = [
            (zone.min_event_ms, zone.max_event_ms + 1)
            for zone in view.batches
            if zone.trusted
            and zone.min_event_ms is not None
            and zone.max_event_ms is not None
            and any(start <= zone.max_event_ms and zone.min_event_ms < end for start, end in times)
            and not self._is_retained(zone)
        ]
        remaining = subtract(starts, covering(lost, view.window_ms, view.step))
        if not remaining:
            message = (
                f"no window of {view.pipeline} in [{iso_of_ms(starts[0][0])}, {iso_of_ms(starts[-1][1])}) is retained whole: neither Kafka nor the "
                f"archive has some of its records; {self._describe_retained()}"
            )
            raise RequestError(message)
        gone = [(start, end, "not retained") for start, end in subtract(starts, remaining)]
        return remaining, sorted([*((part.start_ms, part.end_ms, part.why) for part in cut), *gone])

    def plan(
        self, spark: SparkSession, asked: TimeRange, starts: Sequence[HalfOpenRange] | None = None
    ) -> BackfillPlan:
        """Return the plan of the windows that start in some ranges, or that `choose` gives; or of the sessions that are asked for."""
        if self.view.sessions is not None:
            return self.look_up(spark, asked).plan_sessions(asked)
        return self.plan_windows(self.choose(asked)[0] if starts is None else starts)

    def plan_windows(self, starts: Sequence[HalfOpenRange]) -> BackfillPlan:
        """Return the plan of windows, as one chunk.

        Raises:
            LogGapError: a record that is needed is in neither Kafka nor the archive, or lost for ever.
        """
        check_doubts(starts, self.view)
        chunks = plan_chunks(starts, self.view, sys.maxsize)
        draft = draft_plan(BackfillRequest(self.view.pipeline), self.view, tuple(starts), chunks)
        return replace(draft, id=UNPUBLISHED, step_ms=self.view.step_ms)

    def plan_sessions(self, asked: TimeRange) -> BackfillPlan:
        """Return the plan of the sessions that were looked up, as one chunk; without ranges if none of them is settled.

        Raises:
            RequestError: there are too many.
            LogGapError: as for `plan_windows`.
        """
        request = self._request(asked)
        if not has_settled(self.view):
            return replace(draft_plan(request, self.view, (), ()), id=UNPUBLISHED)
        plan = plan_sessions(request, self.view, chunk_records=sys.maxsize, most=MAX_WINDOWS)
        return replace(plan, id=UNPUBLISHED)

    def look_up(self, spark: SparkSession, asked: TimeRange | BackfillScope) -> RetainedLog:
        """Return the log with the sessions that are asked for, as all records make them; what is served is not looked at.

        It raises what `truth_reader` raises.
        """
        view = self.view
        scope = asked if isinstance(asked, BackfillScope) else asked_sessions(self._request(asked), view)
        assert view.sessions is not None, "only sessions are looked up"
        assert view.closed_ms is not None, "a request was checked against it"
        read = truth_reader(spark, self.settings, view, self.bundle.definition)
        components = survey_sessions(scope, lambda _: [], read, closed_ms=view.closed_ms, gap_ms=view.window_ms)
        return replace(self, view=replace(view, sessions=replace(view.sessions, components=components)))

    def open_sessions(self, spark: SparkSession) -> DataFrame | None:
        """Return the sessions that were looked up and that a record may still join; None: there are none.

        They are rows of keys as `_k0`, `_k1` ..., and `_low_us`, `_high_us`.
        """
        view = self.view
        assert view.sessions is not None, "they were looked up"
        assert view.closed_ms is not None, "the look-up needs it"
        known = view.sessions.components or ()
        closed_ms, types = view.closed_ms, _key_types(self.bundle.definition)
        values = [
            (*_key_values(each.key, types), each.start_us, each.end_us)
            for each in known
            if not each.is_settled(closed_ms, view.window_ms)
        ]
        ddl = ", ".join(filter(None, [_ddl(types), "_low_us bigint", "_high_us bigint"]))
        return spark.createDataFrame(values, ddl) if values else None

    def decodes_as(self, other: RetainedLog) -> bool:
        """Say whether both definitions accept the same records, as the same rows of the same views."""
        return decodes_alike(self.bundle.definition, other.bundle.definition)

    def run(self, spark: SparkSession, plan: BackfillPlan) -> Recompute:
        """Return what computes a plan."""
        return Recompute(spark, self.settings, self.bundle.definition, plan)

    def _request(self, asked: TimeRange) -> BackfillRequest:
        return BackfillRequest(self.view.pipeline, asked)

    def _describe_retained(self) -> str:
        """Return in words which event times the batches have that Kafka or the archive still holds."""
        kept = [zone for zone in self.view.batches if zone.min_event_ms is not None and self._is_retained(zone)]
        if not kept:
            return "no batch that the stream read is retained"
        low = min(zone.min_event_ms for zone in kept if zone.min_event_ms is not None)
        high = max(zone.max_event_ms for zone in kept if zone.max_event_ms is not None)
        return f"what is retained has event times from {iso_of_ms(low)} to {iso_of_ms(high)}"

    def _is_retained(self, zone: BatchZone) -> bool:
        """Say whether a batch can be read, except for what an accepted gap lost: that is known, and doubts name its windows."""
        view = self.view

        def held(topic: str, partition: int) -> tuple[HalfOpenRange, ...]:
            places = [place.get(topic, {}).get(partition, (0, 0)) for place in (view.archive, view.kafka)]
            runs = [place.get(topic, {}).get(partition, ()) for place in (view.older, view.lost)]
            return merge([*places, *runs[0], *runs[1]])

        return not any(
            subtract([pair], held(topic, partition))
            for topic, parts in zone.offsets.items()
            for partition, pair in parts.items()
        )


@dataclass(frozen=True)
class Recompute:
    """A plan that is computed: its records, and the rows that the definition makes of them."""

    spark: SparkSession
    settings: Settings
    definition: Definition
    plan: BackfillPlan

    def records(self, offsets: OffsetRuns | None = None, *, with_amended: bool = True) -> dict[str, DataFrame]:
        """Return view to the accepted rows of offset runs, by default of all; one partition's are read in as few passes as there are runs.

        For a table, all versions in the plan's offsets are read, whatever the runs: a version may be valid for ever. The rows
        contain amended dead letters of all addresses, as of the plan's newest decision.
        """
        plan = self.plan
        amended = self.amended() if with_amended else {}
        chosen = {}
        for view, source in self.definition.sources.items():
            parts = (plan.offsets if source.is_table or offsets is None else offsets).get(source.topic, {})
            passes = max((len(runs) for runs in parts.values()), default=0)
            scans = [{p: runs[index] for p, runs in parts.items() if index < len(runs)} for index in range(passes)]
            read = LogRead(self.spark, self.settings, source.topic, scans, plan.topic_ids[source.topic])
            decoded = LogDecoder(self.spark, self.definition, view).records(read)
            chosen[view] = with_cures(accepted(decoded, source), amended.get(view))
        return chosen

    def amended(self) -> Mapping[str, DataFrame]:
        """Return view to the dead letters that count, in any range, as what they should have been."""
        plan = self.plan
        if not plan.amendments:
            return {}

        def is_below(letter: DeadLetter) -> bool:
            return letter.address.offset < plan.as_of.get(letter.topic, {}).get(letter.address.partition, 0)

        home = self.settings.pipeline(plan.pipeline)
        cures = read_cures(home, committed_batches(home))
        known = [cure for cure in cures if cure.holds_at(plan.amendments) and is_below(cure.letter)]
        return amended_rows(self.spark, self.definition, known)

    def rows(self, records: Mapping[str, DataFrame] | None = None) -> DataFrame:
        """Return the rows of all windows or sessions as a frame. It is not computed yet, and no row comes to the driver."""
        if not self.plan.ranges:
            return self.spark.createDataFrame([], result_schema(self.spark, self.definition))
        records = self.records() if records is None else records
        if self.plan.sessions is not None:
            (chunk,) = self.plan.chunks
            return self.session_rows(chunk, *records.values())[0]
        whole = Chunk(0, self.plan.ranges, self.plan.offsets, self.plan.records)
        return self.only(compile_sources(self.spark, self.definition, {**records, **self.inside(whole, records)}))

    def only(self, rows: DataFrame) -> DataFrame:
        """Return the result rows whose window is in the plan."""
        start_ms = F.unix_millis(self.definition.window.start_column)
        bounds = [(start_ms >= F.lit(start)) & (start_ms < F.lit(end)) for start, end in self.plan.ranges]
        return rows.where(functools.reduce(operator.or_, bounds))

    def inside(self, chunk: Chunk, records: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        """Return view to the records of streams whose event time is in one of the chunk's windows."""
        step = self.plan.step
        covered = windows(reach(chunk.ranges, self.plan.window_ms, step), step)
        blocks = pa.table({"_block_ms": pa.array([start for start, _ in covered], pa.int64())})
        wanted = F.broadcast(self.spark.createDataFrame(blocks))
        chosen = {}
        for view, source in self.definition.streams.items():
            event_ms = F.unix_millis(source.event_time)
            block_ms = event_ms - F.pmod(event_ms, F.lit(step))
            chosen[view] = records[view].join(wanted, block_ms == wanted["_block_ms"], "left_semi")
        return chosen

    def session_rows(self, chunk: Chunk, records: DataFrame) -> tuple[DataFrame, pa.Table]:
        """Return the rows of the sessions that a chunk publishes, as a frame, and these sessions: keys, stretch, records.

        A planned session is found again among the records that were read: all of its records are read, and no other one could join
        it, because the plan covers the whole session. Sessions that are truncated at the edge of what was read are not in the plan.

        Raises:
            RequestError: the log gives other sessions than were planned.
        """
        assert self.plan.sessions is not None, "only plans of sessions come here"
        published, _ = sessions_of(self.plan.sessions, chunk)
        found = self._find(records, published)
        if found.num_rows != len(published):
            message = (
                f"the log gives {found.num_rows} of the {len(published)} sessions that a chunk of backfill {self.plan.id} was planned with: what "
                "the archive holds was changed since (an erased key?); nothing of the chunk was written; plan again"
            )
            raise RequestError(message)
        return compile_batch(self.spark, self.definition, self._of_sessions(records, found)), found

    def _find(self, records: DataFrame, published: Sequence[PlannedSession]) -> pa.Table:
        """Return keys, stretch and number of records of the planned sessions, computed from the records."""
        stretches = sorted({(session.start_us, session.end_us) for session in published})
        bounds = pa.table(
            {
                "_start_us": pa.array([start for start, _ in stretches], pa.int64()),
                "_end_us": pa.array([end for _, end in stretches], pa.int64()),
            }
        )
        sessions = make_sessions(included(self.spark, self.definition, records), self.definition)
        bounds_frame = F.broadcast(self.spark.createDataFrame(bounds))
        candidates = sessions.join(bounds_frame, ["_start_us", "_end_us"], "left_semi").toArrow()
        wanted = set(published)
        columns = (candidates[name].to_pylist() for name in ("_start_us", "_end_us", "_records"))
        digests = map(key_digest, key_texts(candidates, self.definition.keys))
        is_wanted = [PlannedSession(*fields) in wanted for fields in zip(digests, *columns, strict=True)]
        return candidates.filter(pa.array(is_wanted, pa.bool_()))

    def _of_sessions(self, records: DataFrame, found: pa.Table) -> DataFrame:
        """Return the records that belong to the sessions found."""
        if not found.num_rows:
            return records.limit(0)
        names = [f"_k{number}" for number in range(len(self.definition.keys))]
        columns = [*self.definition.keys, "_start_us", "_end_us"]
        sessions = self.spark.createDataFrame(found.select(columns).rename_columns([*names, "_start_us", "_end_us"]))
        _, source = self.definition.source
        gap_us, _ = window_micros(self.definition)
        event_us = F.unix_micros(records[source.event_time])
        inside = event_us.between(F.col("_start_us"), F.col("_end_us") - gap_us)
        return records.join(F.broadcast(sessions), _same_key(records, self.definition) & inside, "left_semi")

    @contextmanager
    def rows_beside(self, other: Recompute) -> Iterator[tuple[list[DataFrame], int]]:
        """Give the rows of this and of another one, and how many records are read: once if both take the same ones as the same rows."""
        if not decodes_alike(self.definition, other.definition) or self.plan.offsets != other.plan.offsets:
            yield [self.rows(), other.rows()], self.plan.records + other.plan.records
            return
        shared = {view: rows.persist(StorageLevel.MEMORY_AND_DISK) for view, rows in other.records().items()}
        try:
            yield [self.rows(shared), other.rows(shared)], other.plan.records
        finally:
            for rows in shared.values():
                rows.unpersist()

    def check_topics(self) -> None:
        """Check, after records were read, that Kafka still has the topics of the plan: an id never comes back.

        Raises:
            LogGapError: a topic was deleted, or deleted and created again.
        """
        plan = self.plan
        for topic in plan.kafka:
            now = kafka.topic_id(self.settings, topic) if kafka.topic_exists(self.settings, topic) else "none"
            if now != plan.topic_ids[topic]:
                message = (
                    f"topic {topic} is no longer the one that {plan.id} was planned on (id {now}, not "
                    f"{plan.topic_ids[topic]}): it was deleted, and what was read may be other records; what was computed of them "
                    "was not kept; plan again over what the archive holds"
                )
                raise LogGapError(message)


# Which sessions the records of some ranges of event time make, without the transform.


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

    def read(zone: Zone, keys: Collection[str] | None) -> Sequence[Span]:
        chunk = Chunk(0, zone, without(plan_offsets(view.batches, zone), view.lost), 0)
        plan = draft_plan(BackfillRequest(view.pipeline), view, zone, [chunk])
        (rows,) = Recompute(spark, settings, definition, plan).records().values()
        rows = included(spark, definition, rows).where(_inside(definition, zone))
        if keys is not None:
            rows = of_keys(spark, rows, definition, keys)
        sessions = make_sessions(rows, definition).limit(MOST_SESSIONS + 1).toArrow()
        if sessions.num_rows > MOST_SESSIONS:
            message = (
                f"more than {MOST_SESSIONS} sessions of {definition.name} are in and around the request; ask for a "
                "shorter range, then for the rest"
            )
            raise RequestError(message)
        columns = (sessions[name].to_pylist() for name in ("_start_us", "_end_us", "_records"))
        return [Span(*fields) for fields in zip(key_texts(sessions, definition.keys), *columns, strict=True)]

    return read


def of_keys(spark: SparkSession, rows: DataFrame, definition: Definition, keys: Collection[str]) -> DataFrame:
    """Return the rows of some keys, given by their texts."""
    types = _key_types(definition)
    values = [_key_values(text, types) for text in sorted(keys)]
    return rows.join(F.broadcast(spark.createDataFrame(values, _ddl(types))), _same_key(rows, definition), "left_semi")


def _key_types(definition: Definition) -> Mapping[str, str]:
    _, source = definition.source
    return {name: source.schema_[name] for name in definition.keys}


def _ddl(types: Mapping[str, str]) -> str:
    return ", ".join(f"_k{number} {kind}" for number, kind in enumerate(types.values()))


def _key_values(text: str, types: Mapping[str, str]) -> tuple[Any, ...]:
    body = json.loads(text)
    return tuple(_parsed(body[name], kind) for name, kind in types.items())


def _same_key(rows: DataFrame, definition: Definition) -> Column:
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
