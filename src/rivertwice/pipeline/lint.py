"""The well-known pitfalls of streams, as far as a definition alone can tell. Pure: a definition, its verdict, facts of topics in.

Each pitfall has one of three verdicts: `holds` (looked at, and it is not there), `broken` (looked at, and it is there), or
`not checked` (a definition alone cannot tell: why, and which command does). Nothing counts as safe that was not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from rivertwice.pipeline.checked import BROKEN, HOLDS, NOT_CHECKED, Judgement, Verdict
from rivertwice.pipeline.contract import contract_of
from rivertwice.pipeline.delivery_model import AT_LEAST, STRENGTH
from rivertwice.pipeline.durations import format_duration
from rivertwice.pipeline.lint_model import LintFinding, TopicFacts, worst
from rivertwice.pipeline.lint_topics import partitions_finding, retention_finding
from rivertwice.pipeline.model import Definition
from rivertwice.pipeline.refusals import CLOCK, ORDER, Refusal, find_refused
from rivertwice.pipeline.source_model import Source

__all__ = [
    "BROKEN",
    "HOLDS",
    "NOT_CHECKED",
    "LintFinding",
    "TopicFacts",
    "contract_of",
    "lint_definition",
    "lint_judgement",
    "worst",
]

DAY = timedelta(days=1)


def lint_judgement(judged: Judgement) -> list[LintFinding]:
    """Return what became of a definition as a whole: loaded, analysed by Spark, run over made-up rows. At least one finding."""
    check, command = "definition", f"run `rivertwice lint {judged.name}` again after correcting it"
    if judged.broken:
        return [LintFinding(check, BROKEN, told, command) for told in judged.broken]
    remedy = f"run `rivertwice test {judged.name}`"
    left = [LintFinding(check, NOT_CHECKED, told, remedy) for told in judged.unchecked]
    if judged.verdict is None or judged.bundle is None:
        return left
    definition = judged.bundle.definition
    names = ", ".join(definition.result_columns)
    if definition.window.is_fold:
        told = f"it can be loaded, and Spark accepts the fold with the columns {names}"
        cases = "what the fold makes of events was not run; its cases do that"
        return [LintFinding(check, HOLDS, told), *left, LintFinding("fold", NOT_CHECKED, cases, remedy)]
    told = (
        f"Spark resolves every view, column and function, the result has the columns {names}, and the plan holds nothing for "
        "which stream and recompute could differ"
    )
    return [LintFinding(check, HOLDS, told), *left]


def lint_definition(
    definition: Definition, topics: Mapping[str, TopicFacts | None], verdict: Verdict | None = None
) -> list[LintFinding]:
    """Return every pitfall, in order.

    Args:
        definition: what to look at.
        topics: what is known of each source's topic now, None if nothing is.
        verdict: what the checks of its plan found; None: they did not run.
    """
    return [
        _boundary(definition),
        _commits(definition),
        _order(definition, verdict),
        _clock(definition, verdict),
        _unsafe_sinks(definition),
        _keys(definition, verdict),
        _late_measured(definition),
        _state_bound(definition),
        *_schema_ids(definition),
        *_idle_source(definition),
        *(retention_finding(definition, topic, facts) for topic, facts in topics.items()),
        *(partitions_finding(definition, topic, facts) for topic, facts in topics.items()),
        _ambiguous(definition),
        _fit(definition),
    ]


def _boundary(definition: Definition) -> LintFinding:
    """P1. What lies beyond the tables are the sinks; each must claim no more than its kind keeps."""
    check = "exactly-once without a boundary"
    sinks = definition.deliver
    wrong = sorted(name for name, sink in sinks.items() if STRENGTH[sink.guarantee] > STRENGTH[sink.promise[0]])
    if wrong:
        sink = sinks[wrong[0]]
        told = f"deliver.{wrong[0]} claims {sink.guarantee}, but can keep {sink.promise[0]}: {sink.promise[1]}"
        return LintFinding(check, BROKEN, told, f"write guarantee: {sink.promise[0]}")
    if not sinks:
        return LintFinding(
            check, HOLDS, "`deliver` is empty: the boundary is the tables, and nothing is claimed beyond"
        )
    each = ", ".join(f"{name} {sink.guarantee}" for name, sink in sorted(sinks.items()))
    return LintFinding(check, HOLDS, f"beyond the tables each sink claims what its kind can keep: {each}")


def _commits(definition: Definition) -> LintFinding:
    """P2 and P3. A definition says nothing of what a driver commits when; what it committed shows it."""
    return LintFinding(
        "offset before output, output before state",
        NOT_CHECKED,
        "the order of commits shows in what ran, not in a definition: a reconcile draws the balance of all offsets, a savepoint's "
        "proof replays batches and compares output and state",
        f"run `rivertwice reconcile {definition.name}` and `rivertwice savepoint take {definition.name}`; kills in between: "
        "`rivertwice faults list`",
    )


def _order(definition: Definition, verdict: Verdict | None) -> LintFinding:
    check = "global order assumed"
    if definition.window.is_fold:
        return _fold_order(definition, check)
    return _refused(definition, verdict, check, ORDER, "depends on the order of rows")


def _clock(definition: Definition, verdict: Verdict | None) -> LintFinding:
    check = "processing-time windows"
    if definition.window.is_fold:
        told = f"rows belong to the event time ({definition.window.at}); a clock in the fold is refused when it is read"
        return LintFinding(check, HOLDS, told) if definition.compare else _lifted(definition, check)
    return _refused(definition, verdict, check, CLOCK, "reads the clock")


def _refused(definition: Definition, verdict: Verdict | None, check: str, why: Refusal, does: str) -> LintFinding:
    """Judge by the text, and by Spark's plan where the checks ran, whether an SQL file has a function of a kind."""
    texts = [text for text in (definition.transform_sql, definition.rows_sql) if text]
    sliced = definition.window.is_sliced
    named = [name for text in texts for name, cause in find_refused(text, compared=True, sliced=sliced) if cause is why]
    if named and not definition.compare:
        told = f"compare is false, and the SQL calls {', '.join(dict.fromkeys(named))}, which {does}"
        return LintFinding(check, BROKEN, told, f"{why.remedy.partition(', or')[0]}, and leave compare out")
    if verdict is None or not verdict.holds:
        told = f"the text names no function that {does}; Spark's plan of it was not looked at"
        return LintFinding(check, NOT_CHECKED, told, f"run `rivertwice lint {definition.name}` where Spark starts")
    if not definition.compare:
        return _lifted(definition, check)
    return LintFinding(check, HOLDS, f"neither the text nor Spark's plan of it has a function that {does}")


def _lifted(definition: Definition, check: str) -> LintFinding:
    told = "compare is false, so a function that a recompute would not repeat is not refused in the plan"
    remedy = f"leave compare out, then run `rivertwice lint {definition.name}`"
    return LintFinding(check, NOT_CHECKED, told, remedy)


def _fold_order(definition: Definition, check: str) -> LintFinding:
    by = ", ".join(definition.by)
    keyed = f"let producers key {'each topic' if definition.has_several_sources else 'the topic'} by {by}, and never add partitions"
    command = f"`rivertwice reconcile {definition.name}` names the keys for which it is not so"
    if definition.order == "any":
        told = (
            f"a fold follows each {by} as the log was read; the definition says that the newest row of a key does not depend on "
            "that order: a reconcile folds twice more, in other orders"
        )
        return LintFinding(
            check, NOT_CHECKED, told, f"{command}; {keyed}: within a topic the order of a {by} still counts"
        )
    if definition.has_several_sources:
        told = (
            f"a fold follows each {by} as the log was read: topics have no common order, so what has records in several is "
            "NOT_COMPARABLE, though the stream is held to the order that it had"
        )
        remedy = f"{command}; say order: any, if the newest row of a key does not depend on it"
        return LintFinding(check, NOT_CHECKED, told, remedy)
    told = f"a fold follows each {by} in the order of the log; a key that lies in several partitions is NOT_COMPARABLE"
    return LintFinding(check, NOT_CHECKED, told, f"{command}; {keyed}")


def _unsafe_sinks(definition: Definition) -> LintFinding:
    """P9. A replay is delivered nowhere; what a crash repeats is the question, per sink."""
    check = "replay into an unsafe sink"
    repeated = sorted(name for name, sink in definition.deliver.items() if sink.guarantee == AT_LEAST)
    if not definition.deliver:
        return LintFinding(check, HOLDS, "`deliver` is empty: no sink is there that could take something twice")
    if not repeated:
        each = ", ".join(sorted(definition.deliver))
        return LintFinding(check, HOLDS, f"every sink ({each}) takes rows and position in one transaction")
    return LintFinding(
        check,
        NOT_CHECKED,
        f"what a crash interrupts is delivered again to {', '.join(repeated)} (at_least_once); whether its receiver takes each "
        "row once is not in a definition",
        "let the receiver set, not add: take each Idempotency-Key once, or keep rows by their key; "
        f"`rivertwice deliver status {definition.name}` shows what was tried again",
    )


def _keys(definition: Definition, verdict: Verdict | None) -> LintFinding:
    """P5. Keys that are columns, in the GROUP BY, and that divide the records; how evenly, only the data shows."""
    check, name = "wrong repartition key", definition.name
    keys = ", ".join(definition.by if definition.window.is_fold else definition.keys)
    shows = f"`rivertwice diagnose {name}` shows a stream that cannot follow"
    if not keys:
        told = "keys is empty: all records of a window meet in one task, whatever the number of cores; how many, the data shows"
        return LintFinding(check, NOT_CHECKED, told, f"{shows}; add a key if records are many")
    if definition.window.is_fold:
        told = f"states are kept by {keys}, each a field of every source; whether few keys have most records, the data shows"
        return LintFinding(check, NOT_CHECKED, told, shows)
    if verdict is None or not verdict.holds:
        told = f"whether the result has the keys {keys} and groups by exactly them was not looked at"
        return LintFinding(check, NOT_CHECKED, told, f"run `rivertwice lint {name}` where Spark starts")
    if verdict.keys:
        told = "; ".join(f"key {key!r}: {why}" for key, why in verdict.keys.items())
        return LintFinding(check, BROKEN, told, "group by a field that divides the records")
    grouped = (
        "are columns of the result" if definition.window.is_sliced else "are columns of the result, grouped by exactly"
    )
    return LintFinding(check, HOLDS, f"{keys} {grouped}; none is constant or the event time itself")


def _late_measured(definition: Definition) -> LintFinding:
    check = "unmeasured late drops"
    if not definition.window.kind.has_watermark:
        return LintFinding(check, HOLDS, "a fold has no watermark: no event is late, and none is dropped")
    if not definition.compare:
        return LintFinding(
            check,
            BROKEN,
            "compare is false: late records are dropped and nobody counts them",
            "let the pipeline be compared, or count late records elsewhere",
        )
    return LintFinding(
        check,
        HOLDS,
        f"compare is on, so a reconcile names every late record by address; late.alert_share is {definition.late.alert_share:g}, "
        "per partition too",
    )


def _state_bound(definition: Definition) -> LintFinding:
    """P8. Windows close by the watermark; sessions, folds and silent sources depend on the data."""
    check, window = "unbounded state", definition.window
    shows = f"`rivertwice metrics {definition.name}` shows the rows and bytes of the state"
    if window.is_fold:
        told = f"the state of every {', '.join(definition.by)} is kept until the fold returns None for it; when, the data shows"
        return LintFinding(check, NOT_CHECKED, told, f"{shows}; return None when a key is done, if keys come and go")
    if window.is_session:
        told = (
            f"a session ends {format_duration(window.length)} after its last event: a key that never rests keeps its session open; "
            "whether one does, the data shows"
        )
        remedy = f"{shows}; bound it by a tumbling window if a key can be busy for ever"
        return LintFinding(check, NOT_CHECKED, told, remedy)
    if len(definition.streams) > 1 and definition.watermark_policy == "min":
        told = "windows close when the slowest source has passed them: one that falls silent keeps all; whether one does, the data shows"
        return LintFinding(check, NOT_CHECKED, told, f"{shows}; or say watermark_policy: max")
    step = window.step
    ahead = max(source.watermark + source.max_future for source in definition.streams.values())
    at_once = math.ceil((window.length + ahead) / step) + 1
    told = (
        f"at most about {at_once} windows per key are open at once (length, watermark and max_future over {format_duration(step)}); "
        "then the watermark closes them"
    )
    return LintFinding(check, HOLDS, told)


def _idle_source(definition: Definition) -> list[LintFinding]:
    if len(definition.streams) == 1 or not definition.window.kind.has_watermark:
        return []
    check, shows = "idle source", f"`rivertwice diagnose {definition.name}` names a silent one"
    if definition.watermark_policy == "min":
        told = "the slowest source holds the watermark back, so a source that falls silent keeps every window open"
        remedy = f"{shows}; let it send a record now and then, or say watermark_policy: max"
        return [LintFinding(check, NOT_CHECKED, told, remedy)]
    told = "the fastest source drives the watermark, so records of a slower one are dropped as late"
    remedy = f"{shows}; say watermark_policy: min if no source may lose records to another"
    return [LintFinding(check, NOT_CHECKED, told, remedy)]


def _schema_ids(definition: Definition) -> list[LintFinding]:
    found = {view: _schema_ids_of(definition.name, view, source) for view, source in definition.sources.items()}
    if len(found) == 1:
        return list(found.values())
    return [replace(one, told=f"{view}: {one.told}") for view, one in found.items()]


def _schema_ids_of(pipeline: str, view: str, source: Source) -> LintFinding:
    check = "incompatible schema"
    if source.format == "avro" and source.pins.writers:
        ids = ", ".join(str(each) for each in source.pins.writers)
        told = f"records of the schema ids {ids} are resolved into the pinned reader, all others are dead letters"
        return LintFinding(check, HOLDS, told)
    if source.schema_ids and not source.schema_id_optional:
        return LintFinding(check, HOLDS, f"only records of schema {', '.join(source.schema_ids)} are accepted")
    return LintFinding(
        check,
        NOT_CHECKED,
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
            NOT_CHECKED,
            f"{', '.join(optional)} may be null and is a key: all records without a value make one group; whether there are any, "
            "the data shows",
            f"list it under required, then such records become dead letters; a case shows what becomes of one now: `rivertwice test {name}`",
        )
    if taken:
        told = f"{', '.join(taken)}: a tombstone is taken for an event, as `tombstones` says; that the rows then are right, a case shows"
        return LintFinding(check, NOT_CHECKED, told, f"run `rivertwice test {name}`")
    return LintFinding(check, HOLDS, "tombstones are dead letters, and every key that is a field is required")


def _fit(definition: Definition) -> LintFinding:
    check, window, limit = "stream or batch", definition.window.length, definition.alerts.latency
    if definition.window.is_fold:
        return LintFinding(check, HOLDS, "rows are emitted by the batch that reads their event")
    if window >= DAY and (limit is None or limit >= timedelta(hours=1)):
        return LintFinding(
            check,
            NOT_CHECKED,
            f"windows of {format_duration(window)} and no promise of latency below an hour: a daily batch gives the same rows; "
            "whether somebody reads open windows is not in a definition",
            f"if nobody does, keep the definition and run only `rivertwice backfill run {definition.name}`",
        )
    return LintFinding(
        check, HOLDS, f"windows of {format_duration(window)} end soon: no daily batch gives their rows in time"
    )
