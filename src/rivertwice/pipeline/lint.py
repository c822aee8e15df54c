"""What a definition promises, and the well-known pitfalls it could meet. Pure: a definition and facts of its topics in.

Most pitfalls cannot be built at all: a definition that holds one is refused when it is read, or the protocol rules it
out. The lint says so, names what remains, and says nothing of what it cannot know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from rivertwice.pipeline.delivery_model import AT_LEAST
from rivertwice.pipeline.durations import format_duration
from rivertwice.pipeline.model import Definition
from rivertwice.pipeline.source_model import Source

SAFE, NOTE, WARNING, UNKNOWN = "safe", "note", "warning", "unknown"
DAY = timedelta(days=1)
MB_PER_PARTITION = 10  # partitions = max(MB/s / 10, readers): the rule of thumb of Kafka's own operators


@dataclass(frozen=True)
class TopicFacts:
    """What Kafka says of a topic; `retention` None: kept for ever."""

    partitions: int
    retention: timedelta | None
    compacted: bool


@dataclass(frozen=True)
class LintFinding:
    """One check.

    Attributes:
        check: short name of the pitfall.
        state: `safe` (cannot happen here, and why), `note`, `warning`, or `unknown` (needs Kafka).
        told: what was looked at and what it means.
        remedy: what to do; empty when nothing is to be done.
    """

    check: str
    state: str
    told: str
    remedy: str = ""


def contract_of(definition: Definition) -> dict[str, str]:
    """Return what a pipeline promises and rests on, in the terms of a contract."""
    limits = definition.alerts
    compared = "reconciled against a recompute, every differing row with a named cause"
    return {
        "guarantee": _guarantee(definition),
        "boundary": _boundary(definition),
        "idempotence": "one commit per batch, known by (timeline, batch) and its offset range",
        "window": _window_text(definition),
        **_waiting(definition),
        "emit": definition.emit,
        "comparison": compared if definition.compare else "none (compare: false)",
        "recovery": "from the checkpoint; if it is damaged, from the newest proved savepoint; no batch is lost or published twice",
        "backpressure": f"at most {definition.stream.max_offsets_per_trigger} records a batch; the rest waits in Kafka",
        "monitors": f"backpressure {format_duration(limits.backpressure)}, savepoint {format_duration(limits.savepoint_age)}, "
        f"lag {limits.lag or 'no limit'}, latency {format_duration(limits.latency) if limits.latency else 'no limit'}",
        "backend": f"RocksDB, changelog checkpoints, {definition.stream.shuffle_partitions} partitions",
    }


def _guarantee(definition: Definition) -> str:
    if definition.window.is_fold:
        return "every record is in exactly one of emitted, dead, excluded (it yielded no row); a row is emitted once"
    return (
        "every (record, window) pair is in exactly one of emitted, open, late, dead, excluded; a window is emitted once"
    )


def _waiting(definition: Definition) -> dict[str, str]:
    if definition.window.is_fold:
        return {"watermark": "none: rows are final when they are emitted", "lateness": "no event is late"}
    return {
        "watermark": _watermark_text(definition),
        "lateness": f"{definition.late.policy}; alert above a share of {definition.late.alert_share:g}",
    }


def _boundary(definition: Definition) -> str:
    """Return from where to where the guarantee reaches, and what each sink beyond that promises."""
    tables = "from the Kafka log's offsets to the Delta tables"
    if not definition.deliver:
        return f"{tables}; nothing is promised beyond the tables"
    sinks = [f"{name} ({sink.place}): {sink.guarantee}" for name, sink in sorted(definition.deliver.items())]
    return f"{tables}; beyond them, per sink: {'; '.join(sinks)}"


def _watermark_text(definition: Definition) -> str:
    delays = [format_duration(source.watermark) for source in definition.streams.values()]
    if len(delays) == 1:
        return f"{delays[0]} behind the largest event time; it rises between batches"
    each = ", ".join(f"{view} {delay}" for view, delay in zip(definition.streams, delays, strict=True))
    which = "slowest" if definition.watermark_policy == "min" else "fastest"
    return f"each source's own behind its largest event time ({each}), of these the {which}; it rises between batches"


def _window_text(definition: Definition) -> str:
    window = definition.window
    if window.is_session:
        return f"session, gap {format_duration(window.length)}"
    if window.is_sliced or window.is_fold:
        return window.text
    if window.slide is not None:
        return f"hopping, {format_duration(window.length)} every {format_duration(window.slide)}"
    return f"tumbling, {format_duration(window.length)}"


def lint_definition(definition: Definition, topics: Mapping[str, TopicFacts | None]) -> list[LintFinding]:
    """Return every check, in order. `topics` gives what is known of each source's topic now, None if nothing is."""
    return [
        *_ruled_out(definition),
        _unsafe_sinks(definition),
        _keys(definition),
        _late_measured(definition),
        _state_bound(definition),
        *_schema_ids(definition),
        *_idle_source(definition),
        *(_retention(definition, topic, facts) for topic, facts in topics.items()),
        *(_partitions(definition, topic, facts) for topic, facts in topics.items()),
        _destructive(definition),
        _fit(definition),
    ]


def _ruled_out(definition: Definition) -> list[LintFinding]:
    return [
        LintFinding(
            "exactly-once without a boundary",
            SAFE,
            "source, state and sink are one protocol: Kafka is read again by offset, state and output are tied by the batch, and "
            "the boundary is the tables; a sink beyond them claims its own guarantee, and one that it cannot keep is refused",
        ),
        LintFinding(
            "offset before output, output before state",
            SAFE,
            "a batch counts when its one commit is in the changelog; offsets live in the checkpoint and never run ahead",
        ),
        _order(definition),
        LintFinding(
            "processing-time windows", SAFE, "windows are over the event time; the clock is refused in a transform"
        ),
    ]


def _order(definition: Definition) -> LintFinding:
    check = "global order assumed"
    if definition.window.is_fold:
        return _fold_order(definition, check)
    refused = "functions that depend on the order of rows (first, last, row_number, collect_list ...) are refused in a transform"
    return LintFinding(check, SAFE, refused)


def _fold_order(definition: Definition, check: str) -> LintFinding:
    by = ", ".join(definition.by)
    keyed = f"let producers key {'each topic' if definition.has_several_sources else 'the topic'} by {by}, and never add partitions"
    if definition.order == "any":
        told = (
            f"a fold follows each {by} as the log was read; the newest row of a key is said not to hang on that order: a reconcile "
            "folds twice more, in other orders, and names the keys for which it does"
        )
        return LintFinding(check, NOTE, told, f"{keyed}: within a topic the order of a {by} still counts")
    if definition.has_several_sources:
        told = (
            f"a fold follows each {by} as the log was read: topics have no common order, so what has records in several is "
            "NOT_COMPARABLE, though the stream is held to the order that it had"
        )
        return LintFinding(check, NOTE, told, "say order: any, if the newest row of a key does not hang on it")
    told = f"a fold follows each {by} in the order of the log; a key that lies in several partitions is NOT_COMPARABLE"
    return LintFinding(check, NOTE, told, keyed)


def _unsafe_sinks(definition: Definition) -> LintFinding:
    """A replay reaches no sink; what a crash repeats is the question, per sink."""
    check = "replay into an unsafe sink"
    told = "a replay writes to scratch or to a new timeline, which serves nothing, and is delivered nowhere, before the head moves"
    repeated = sorted(name for name, sink in definition.deliver.items() if sink.guarantee == AT_LEAST)
    if not definition.deliver:
        return LintFinding(check, SAFE, told)
    if not repeated:
        return LintFinding(
            check, SAFE, f"{told}; every sink takes rows and position in one transaction, so nothing comes twice"
        )
    return LintFinding(
        check,
        NOTE,
        f"{told}; but what a crash interrupts is delivered again to {', '.join(repeated)} (at_least_once)",
        "let its receiver set, not add: take each Idempotency-Key once, or keep rows by their key",
    )


def _keys(definition: Definition) -> LintFinding:
    if definition.window.is_fold:
        return LintFinding("wrong repartition key", SAFE, f"states are kept by {', '.join(definition.by)}")
    if definition.keys:
        return LintFinding(
            "wrong repartition key", SAFE, f"rows are grouped by {', '.join(definition.keys)} and the window"
        )
    return LintFinding(
        "wrong repartition key",
        NOTE,
        "keys is empty: all records of a window meet in one task, whatever the number of cores",
        "add a key if records are many",
    )


def _late_measured(definition: Definition) -> LintFinding:
    if definition.window.is_fold:
        return LintFinding("unmeasured late drops", SAFE, "no event of a fold is late, and none is dropped")
    if not definition.compare:
        return LintFinding(
            "unmeasured late drops",
            WARNING,
            "compare is false: late records are dropped and nobody counts them",
            "let the pipeline be compared, or count late records elsewhere",
        )
    return LintFinding(
        "unmeasured late drops",
        SAFE,
        f"a reconcile names every late record by address; alert above a share of {definition.late.alert_share:g}, per partition too",
    )


def _state_bound(definition: Definition) -> LintFinding:
    window = definition.window
    if window.is_fold:
        told = f"the state of every {', '.join(definition.by)} is kept until the fold returns None for it"
        return LintFinding("unbounded state", NOTE, told, "return None when a key is done, if keys come and go")
    step = window.step
    ahead = max(source.watermark + source.max_future for source in definition.streams.values())
    at_once = math.ceil((window.length + ahead) / step) + 1
    told = f"at most about {at_once} windows per key are open at once (length, watermark and max_future over {format_duration(step)})"
    if window.is_session:
        return LintFinding(
            "unbounded state",
            NOTE,
            f"a session ends {format_duration(window.length)} after its last event: a key that never rests keeps its session open",
            "bound it by a tumbling window if a key can be busy for ever",
        )
    return LintFinding("unbounded state", SAFE, told)


def _idle_source(definition: Definition) -> list[LintFinding]:
    if len(definition.streams) == 1 or definition.window.is_fold:
        return []
    check = "idle source"
    if definition.watermark_policy == "min":
        told = "the slowest source holds the watermark back, so a source that falls silent keeps every window open"
        return [LintFinding(check, NOTE, told, "let it send a record now and then, or say watermark_policy: max")]
    told = "the fastest source drives the watermark, so records of a slower one are dropped as late"
    return [LintFinding(check, NOTE, told, "say watermark_policy: min if no source may lose records to another")]


def _schema_ids(definition: Definition) -> list[LintFinding]:
    found = {view: _schema_ids_of(source) for view, source in definition.sources.items()}
    if len(found) == 1:
        return list(found.values())
    return [replace(one, told=f"{view}: {one.told}") for view, one in found.items()]


def _schema_ids_of(source: Source) -> LintFinding:
    if source.format == "avro" and source.pins.writers:
        ids = ", ".join(str(each) for each in source.pins.writers)
        told = f"records of the schema ids {ids} are resolved into the pinned reader, all others are dead letters"
        return LintFinding("incompatible schema", SAFE, told)
    if source.schema_ids and not source.schema_id_optional:
        return LintFinding(
            "incompatible schema", SAFE, f"only records of schema {', '.join(source.schema_ids)} are accepted"
        )
    return LintFinding(
        "incompatible schema",
        NOTE,
        "a record is judged by its fields' types alone; a field whose meaning changed looks the same",
        "let producers send the header schema-id, and list the accepted ones under schema_ids",
    )


def _retention(definition: Definition, topic: str, facts: TopicFacts | None) -> LintFinding:
    check = "lag beyond retention"
    if facts is None:
        return LintFinding(
            check, UNKNOWN, f"Kafka did not tell how long it keeps {topic}", "run it where Kafka answers"
        )
    if facts.retention is None:
        return LintFinding(check, SAFE, f"{topic} is kept for ever")
    kept, age = facts.retention, definition.alerts.savepoint_age
    told = f"{topic} is kept for {format_duration(kept)}; the agent archives at half of that time"
    if kept < 2 * age:
        return LintFinding(
            check,
            WARNING,
            f"{told}; a savepoint may be {format_duration(age)} old before anybody is told: its range may be gone by then",
            f"keep the topic for at least {format_duration(2 * age)}, or lower alerts.savepoint_age",
        )
    return LintFinding(check, SAFE, told)


def _partitions(definition: Definition, topic: str, facts: TopicFacts | None) -> LintFinding:
    check = "partitions and keys"
    wanted = next(source.partitions for source in definition.sources.values() if source.topic == topic)
    if facts is None:
        return LintFinding(
            check, UNKNOWN, f"Kafka did not tell the partitions of {topic}", "run it where Kafka answers"
        )
    if facts.partitions > wanted:
        return LintFinding(
            check,
            WARNING,
            f"{topic} has {facts.partitions} partitions, the definition says {wanted}: where partitions were added, a hash "
            "partitioner sends keys elsewhere, and a key's order ends there",
            "copy it, keyed, to a topic with all partitions from the first record on, and fold that"
            if definition.window.is_fold
            else f"write partitions: {facts.partitions}; results do not depend on order here, readers of the topic may",
        )
    if facts.compacted:
        return LintFinding(
            check,
            WARNING,
            f"{topic} is compacted: superseded records vanish, so batches cannot be counted and the stream stops",
            "stream a plain topic; compacted ones are for tables",
        )
    return LintFinding(
        check,
        SAFE,
        f"{topic} has {facts.partitions} partitions: at most as many cores, or readers of a group, can be used at once, and it is "
        f"made for about {facts.partitions * MB_PER_PARTITION} MB/s ({MB_PER_PARTITION} each, the usual rule)",
    )


def _destructive(definition: Definition) -> LintFinding:
    sources = definition.sources.values()
    optional = [
        name
        for name in definition.keys
        if any(name in source.schema_ and name not in source.required_fields for source in sources)
    ]
    if optional:
        return LintFinding(
            "ambiguous events",
            NOTE,
            f"{', '.join(optional)} may be null and is a key: all records without a value make one group",
            "list it under required; such records become dead letters then",
        )
    return LintFinding(
        "ambiguous events", SAFE, "a record without a value, or without a key field, is a dead letter by address"
    )


def _fit(definition: Definition) -> LintFinding:
    window, limit = definition.window.length, definition.alerts.latency
    if definition.window.is_fold:
        return LintFinding("stream or batch", SAFE, "rows are emitted by the batch that reads their event")
    if window >= DAY and (limit is None or limit >= timedelta(hours=1)):
        return LintFinding(
            "stream or batch",
            NOTE,
            f"windows of {format_duration(window)} and no promise of latency below an hour: a daily batch gives the same rows",
            "keep the definition and run only backfills, if nobody reads open windows",
        )
    return LintFinding(
        "stream or batch", SAFE, f"windows of {format_duration(window)} are wanted soon after they close"
    )


def worst(findings: Sequence[LintFinding]) -> str:
    """Return the worst state among findings."""
    order = (WARNING, UNKNOWN, NOTE, SAFE)
    return min((one.state for one in findings), key=order.index, default=SAFE)
