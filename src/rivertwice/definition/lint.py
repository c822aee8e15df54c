"""Well-known pitfalls of streams, as far as a definition alone shows them. Pure: takes a definition, its verdict, facts of topics.

Each pitfall has one of three verdicts: `holds` (checked, and absent), `broken` (checked, and present), or `not checked`
(a definition alone does not show it: gives the reason, and the command that does). An unchecked pitfall never counts as safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from rivertwice.definition.delivery_section import AT_LEAST, STRENGTH
from rivertwice.definition.lint_finding import LintFinding, LintLevel, TopicFacts
from rivertwice.definition.model import Definition
from rivertwice.definition.parts import format_duration
from rivertwice.definition.source import Source

if TYPE_CHECKING:
    from rivertwice.definition.lint_finding import CheckReport, Judgement


# Pitfalls that a topic's own settings decide: what Kafka keeps, and how many partitions it has.

HOT_SHARE = 0.6
"""A partition that holds more of the records than this, of at least three, is a hot one."""
LEAST_LAG = timedelta(hours=1)
"""The shortest time that a compacted topic must keep superseded records to be a source."""
FEW = 100
"""Of fewer records in a partition, the middle one says little."""
SKEWED_SPAN = 0.1
"""Middles that lie further apart than this share of the topic's time are not chance."""
MB_PER_PARTITION = 10  # partitions = max(MB/s / 10, readers): the rule of thumb of Kafka's own operators


def retention_finding(definition: Definition, topic: str, facts: TopicFacts | None) -> LintFinding:
    """P11. Return whether a savepoint can be older than Kafka's retention."""
    check = "lag beyond retention"
    if facts is None:
        return LintFinding(
            check,
            LintLevel.NOT_CHECKED,
            f"Kafka did not tell how long it keeps {topic}",
            f"run `rivertwice lint {definition.name}` where Kafka answers",
        )
    if facts.retention is None:
        return LintFinding(check, LintLevel.HOLDS, f"{topic} is kept for ever")
    retention, age = facts.retention, definition.alerts.savepoint_age
    text = f"{topic} is kept for {format_duration(retention)}; the agent archives at half of that time"
    if retention < 2 * age:
        return LintFinding(
            check,
            LintLevel.BROKEN,
            f"{text}; a savepoint may be {format_duration(age)} old before an alert fires: its range may be gone by then",
            f"keep the topic for at least {format_duration(2 * age)}, or lower alerts.savepoint_age",
        )
    return LintFinding(check, LintLevel.HOLDS, text)


def partitions_finding(definition: Definition, topic: str, facts: TopicFacts | None) -> LintFinding:
    """Return whether the topic has the partitions that the definition declares, and keeps every record."""
    check = "partitions and keys"
    declared = next(source.partitions for source in definition.sources.values() if source.topic == topic)
    if facts is None:
        return LintFinding(
            check,
            LintLevel.NOT_CHECKED,
            f"Kafka did not tell the partitions of {topic}",
            f"run `rivertwice lint {definition.name}` where Kafka answers",
        )
    if declared and facts.partitions > declared:  # a pattern declares none: what its log gets is as expected
        return LintFinding(
            check,
            LintLevel.BROKEN,
            f"{topic} has {facts.partitions} partitions, the definition says {declared}: where partitions were added, a hash "
            "partitioner sends keys elsewhere, and a key's order ends there",
            definition.window.kind.lint.remedy_for_partitions(facts.partitions),
        )
    if facts.compacted and facts.compacted_after < LEAST_LAG:
        return LintFinding(
            check,
            LintLevel.BROKEN,
            f"{topic} is compacted after {format_duration(facts.compacted_after)}: superseded records vanish, so batches cannot be counted and the stream stops",
            f"raise min.compaction.lag.ms of {topic} to an hour at least, or stream another topic, into which "
            f"`rivertwice send {definition.name} --from-topic {topic}` copies what is left",
        )
    if facts.compacted:
        return LintFinding(
            check,
            LintLevel.WARNS,
            f"{topic} is compacted after {format_duration(facts.compacted_after)}: a stream or an archive that comes later than that stops at the first "
            "record that vanished, and what was not archived by then cannot be compared",
            f"let `rivertwice admin archive {definition.name}` run more often, and begin before the first records are that old",
        )
    return LintFinding(
        check,
        LintLevel.HOLDS,
        f"{topic} has {facts.partitions} partitions: at most as many cores, or readers of a group, can be used at once, and it is "
        f"made for about {facts.partitions * MB_PER_PARTITION} MB/s ({MB_PER_PARTITION} each, the usual rule)",
    )


def skew_finding(definition: Definition, topic: str, facts: TopicFacts | None) -> LintFinding:
    """Return whether some partitions hold most records, or hold theirs at other times than the others.

    Half of every partition is read when half of the topic is, if batches are split by what waits. So the times of the middle
    records say how far such batches drift apart.
    """
    check = "skewed partitions"
    if facts is None:
        text = f"Kafka did not tell how the records of {topic} are spread over its partitions"
        return LintFinding(
            check, LintLevel.NOT_CHECKED, text, f"run `rivertwice lint {definition.name}` where Kafka answers"
        )
    total = sum(facts.held.values())
    hot = [partition for partition, count in facts.held.items() if count > HOT_SHARE * total]
    if len(facts.held) >= 3 and hot and total >= FEW:
        text = (
            f"partition {hot[0]} of {topic} holds {facts.held[hot[0]]} of {total} records: a backlog is read by little more than "
            "one core"
        )
        return LintFinding(check, LintLevel.WARNS, text, "choose a record key with more, and more even, values")
    middles = {partition: at for partition, at in facts.middles_ms.items() if facts.held.get(partition, 0) >= FEW}
    drift = timedelta(milliseconds=max(middles.values(), default=0) - min(middles.values(), default=0))
    delays = [source.watermark for source in definition.streams.values() if source.has_watermark]
    if delays and drift > min(delays) and drift > SKEWED_SPAN * timedelta(milliseconds=facts.span_ms):
        share = definition.stream.catch_up_share
        text = (
            f"the middle records of the partitions of {topic} lie up to {drift.days} days {drift.seconds // 3600} h apart, by their "
            f"own timestamps; the watermark is {format_duration(min(delays))}: batches of a backlog that are split by what waits "
            "drift apart, and make records late that were in time"
        )
        remedy = (
            f"nothing, for stream.catch_up_share is {share:g}: a backlog is read together in event time, by fewer cores at a time; "
            "or spread the keys"
            if share
            else "remove stream.catch_up_share: 0, or spread the keys"
        )
        return LintFinding(check, LintLevel.WARNS, text, remedy)
    times = ", of like times" if delays else ""
    return LintFinding(check, LintLevel.HOLDS, f"the partitions of {topic} hold like numbers of records{times}")


# What a definition promises and depends on, with the definition's own numbers. Pure.


def contract_of(definition: Definition) -> dict[str, str]:
    """Return what a pipeline promises and depends on, as the terms of a contract."""
    limits = definition.alerts
    compared = "reconciled against a recompute, every differing row with a named cause"
    return {
        "guarantee": definition.window.kind.guarantee(),
        "boundary": _contract_boundary(definition),
        "idempotence": "one commit per batch, known by (timeline, batch) and its offset range",
        "window": definition.window.kind.contract_text(definition.window),
        **_waiting(definition),
        "emit": definition.emit,
        "comparison": compared if definition.compare else "none (compare: false)",
        "recovery": "from the checkpoint; if it is damaged, from the newest proved savepoint; no batch is lost or published twice",
        "backpressure": f"at most {definition.stream.max_offsets_per_trigger} records a batch; the rest waits in Kafka",
        "monitors": f"backpressure {format_duration(limits.backpressure)}, savepoint {format_duration(limits.savepoint_age)}, "
        f"lag {limits.lag or 'no limit'}, latency {format_duration(limits.latency) if limits.latency else 'no limit'}",
        "backend": f"RocksDB, changelog checkpoints, {definition.stream.shuffle_partitions} partitions",
    }


def _waiting(definition: Definition) -> dict[str, str]:
    if not definition.window.kind.has_watermark:
        return {"watermark": "none: rows are final when they are emitted", "lateness": "no event is late"}
    return {
        "watermark": _watermark_text(definition),
        "lateness": f"{definition.late.policy}; alert above a share of {definition.late.alert_share:g}",
    }


def _contract_boundary(definition: Definition) -> str:
    """Return the boundary of the guarantee, and the promise of each sink beyond it."""
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
    return (
        f"each source has its own, behind its largest event time ({each}); the {which} counts; it rises between batches"
    )


def lint_judgement(judged: Judgement) -> list[LintFinding]:
    """Return the findings about a definition as a whole: loaded, analysed by Spark, run over made-up rows. At least one."""
    check, command = "definition", f"run `rivertwice lint {judged.name}` again after correcting it"
    if judged.broken:
        return [LintFinding(check, LintLevel.BROKEN, reason, command) for reason in judged.broken]
    remedy = f"run `rivertwice test {judged.name}`"
    unchecked = [LintFinding(check, LintLevel.NOT_CHECKED, reason, remedy) for reason in judged.unchecked]
    if judged.verdict is None or judged.bundle is None:
        return unchecked
    definition = judged.bundle.definition
    first, *others = definition.window.kind.lint.loaded(definition)
    return [first, *unchecked, *others]


def lint_definition(
    definition: Definition, topics: Mapping[str, TopicFacts | None], verdict: CheckReport | None = None
) -> list[LintFinding]:
    """Return every pitfall, in order.

    Args:
        topics: the current facts of each source's topic, None if they are unknown.
        verdict: the result of the checks of its plan; None: they did not run.
    """
    lint = definition.window.kind.lint
    return [
        _boundary(definition),
        _commits(definition),
        lint.order(definition, verdict),
        lint.clock(definition, verdict),
        _unsafe_sinks(definition),
        lint.keys(definition, verdict),
        lint.late_measured(definition),
        lint.state_bound(definition),
        *_schema_ids(definition),
        *_rounded(definition),
        *lint.idle_source(definition),
        *(retention_finding(definition, topic, facts) for topic, facts in topics.items()),
        *(partitions_finding(definition, topic, facts) for topic, facts in topics.items()),
        *(skew_finding(definition, topic, facts) for topic, facts in topics.items()),
        *_by_schedule(definition),
        _ambiguous(definition),
        lint.errors(definition, verdict),
        lint.fit(definition),
    ]


def _boundary(definition: Definition) -> LintFinding:
    """P1. Beyond the tables are the sinks; each must claim no more than its kind can keep."""
    check = "exactly-once without a boundary"
    sinks = definition.deliver
    wrong = sorted(name for name, sink in sinks.items() if STRENGTH[sink.guarantee] > STRENGTH[sink.promise[0]])
    if wrong:
        sink = sinks[wrong[0]]
        text = f"deliver.{wrong[0]} claims {sink.guarantee}, but can keep {sink.promise[0]}: {sink.promise[1]}"
        return LintFinding(check, LintLevel.BROKEN, text, f"write guarantee: {sink.promise[0]}")
    if not sinks:
        return LintFinding(
            check, LintLevel.HOLDS, "`deliver` is empty: the boundary is the tables, and nothing is claimed beyond"
        )
    each = ", ".join(f"{name} {sink.guarantee}" for name, sink in sorted(sinks.items()))
    return LintFinding(check, LintLevel.HOLDS, f"beyond the tables each sink claims what its kind can keep: {each}")


def _commits(definition: Definition) -> LintFinding:
    """P2 and P3. A definition does not show the order of a driver's commits; the committed batches do."""
    return LintFinding(
        "offset before output, output before state",
        LintLevel.NOT_CHECKED,
        "the order of commits shows in what ran, not in a definition: a reconcile draws the balance of all offsets, a savepoint's "
        "proof replays batches and compares output and state",
        f"run `rivertwice reconcile {definition.name}` and `rivertwice savepoint take {definition.name}`; "
        "`rivertwice docs guarantees` says what was tried",
    )


def _unsafe_sinks(definition: Definition) -> LintFinding:
    """P9. A replay is not delivered. The question is, for each sink, what a crash repeats."""
    check = "replay into an unsafe sink"
    repeated = sorted(name for name, sink in definition.deliver.items() if sink.guarantee == AT_LEAST)
    if not definition.deliver:
        return LintFinding(
            check, LintLevel.HOLDS, "`deliver` is empty: no sink is there that could take something twice"
        )
    if not repeated:
        each = ", ".join(sorted(definition.deliver))
        return LintFinding(check, LintLevel.HOLDS, f"every sink ({each}) takes rows and position in one transaction")
    return LintFinding(
        check,
        LintLevel.NOT_CHECKED,
        f"what a crash interrupts is delivered again to {', '.join(repeated)} (at_least_once); whether its receiver takes each "
        "row once is not in a definition",
        "let the receiver set, not add: take each Idempotency-Key once, or keep rows by their key; "
        f"`rivertwice deliver status {definition.name}` shows what was tried again",
    )


def _by_schedule(definition: Definition) -> list[LintFinding]:
    """Return when rows of a stream by schedule come; nothing of one that runs all the time."""
    pins, check = definition.stream, "results between two runs"
    if pins.runs_at is None:
        return []
    when = pins.runs_at if not pins.assets else f"{pins.runs_at}, and events of {', '.join(pins.assets)}"
    text = (
        f"by schedule ({when}): a window's rows come with the first run that reads a record beyond its end and the watermark; the "
        "last windows stay open until then, and nothing of them is lost"
    )
    if pins.trigger_seconds:
        unused = f"{text}; a run reads as fast as it can, so stream.trigger is not used"
        return [LintFinding(check, LintLevel.WARNS, unused, "remove stream.trigger")]
    return [LintFinding(check, LintLevel.HOLDS, text)]


def _schema_ids(definition: Definition) -> list[LintFinding]:
    findings = {view: _schema_ids_of(definition.name, view, source) for view, source in definition.sources.items()}
    if len(findings) == 1:
        return list(findings.values())
    return [replace(finding, told=f"{view}: {finding.told}") for view, finding in findings.items()]


def _rounded(definition: Definition) -> list[LintFinding]:
    check, findings = "numbers that are rounded", []
    for view, source in definition.sources.items():
        decimals = [name for name, kind in source.schema_.items() if kind.startswith("decimal")]
        if source.format != "json" or not decimals:
            continue
        if source.decimals == "exact":
            findings.append(
                LintFinding(
                    check, LintLevel.HOLDS, f"{view}: a number with more digits than its decimal is a dead letter"
                )
            )
            continue
        text = f"{view}: JSON numbers of {', '.join(decimals)} with more digits after the point are rounded, and nothing counts them"
        remedy = (
            f"write `decimals: exact` under sources.{view}, so that such a record is a dead letter; `rivertwice upgrade {definition.name}` "
            "says whether the stream can continue with it"
        )
        findings.append(LintFinding(check, LintLevel.WARNS, text, remedy))
    return findings


def _schema_ids_of(pipeline: str, view: str, source: Source) -> LintFinding:
    check = "incompatible schema"
    if source.format == "avro" and source.pins.writers:
        ids = ", ".join(str(each) for each in source.pins.writers)
        text = f"records of the schema ids {ids} are resolved into the pinned reader, all others are dead letters"
        return LintFinding(check, LintLevel.HOLDS, text)
    if source.schema_ids and not source.schema_id_optional:
        return LintFinding(
            check, LintLevel.HOLDS, f"only records of schema {', '.join(source.schema_ids)} are accepted"
        )
    return LintFinding(
        check,
        LintLevel.NOT_CHECKED,
        "a record is judged by its fields' types alone; a field whose meaning changed looks the same",
        f"let producers send the header schema-id, and list the accepted ones under sources.{view}.schema_ids; "
        f"`rivertwice dead list {pipeline}` shows records whose types do not fit",
    )


def _ambiguous(definition: Definition) -> LintFinding:
    """P12. A record without a value, or without a key's field."""
    check, name = "ambiguous events", definition.name
    sources = definition.sources
    taken = sorted(view for view, source in sources.items() if source.tombstones != "dead")
    optional = [
        key
        for key in definition.keys
        if any(key in source.schema_ and key not in source.required_fields for source in sources.values())
    ]
    if optional:
        return LintFinding(
            check,
            LintLevel.NOT_CHECKED,
            f"{', '.join(optional)} may be null and is a key: all records without a value make one group; whether there are any, "
            "the data shows",
            f"list it under required, then such records become dead letters; a case shows what happens to one now: `rivertwice test {name}`",
        )
    if taken:
        text = f"{', '.join(taken)}: a tombstone counts as an event, as `tombstones` declares; a case shows whether its rows are right"
        return LintFinding(check, LintLevel.NOT_CHECKED, text, f"run `rivertwice test {name}`")
    return LintFinding(check, LintLevel.HOLDS, "tombstones are dead letters, and every key that is a field is required")
