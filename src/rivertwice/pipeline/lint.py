"""Well-known pitfalls of streams, as far as a definition alone shows them. Pure: takes a definition, its verdict, facts of topics.

Each pitfall has one of three verdicts: `holds` (checked, and absent), `broken` (checked, and present), or `not checked`
(a definition alone does not show it: gives the reason, and the command that does). An unchecked pitfall never counts as safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rivertwice.pipeline.contract import contract_of
from rivertwice.pipeline.delivery_model import AT_LEAST, STRENGTH
from rivertwice.pipeline.lint_model import BROKEN, HOLDS, NOT_CHECKED, WARNS, LintFinding, TopicFacts, worst
from rivertwice.pipeline.lint_topics import partitions_finding, retention_finding, skew_finding
from rivertwice.pipeline.model import Definition
from rivertwice.pipeline.source_model import Source

if TYPE_CHECKING:
    from rivertwice.pipeline.lint_model import CheckReport, Judgement

__all__ = [
    "BROKEN",
    "HOLDS",
    "NOT_CHECKED",
    "WARNS",
    "LintFinding",
    "TopicFacts",
    "contract_of",
    "lint_definition",
    "lint_judgement",
    "worst",
]


def lint_judgement(judged: Judgement) -> list[LintFinding]:
    """Return the findings about a definition as a whole: loaded, analysed by Spark, run over made-up rows. At least one."""
    check, command = "definition", f"run `rivertwice lint {judged.name}` again after correcting it"
    if judged.broken:
        return [LintFinding(check, BROKEN, reason, command) for reason in judged.broken]
    remedy = f"run `rivertwice test {judged.name}`"
    unchecked = [LintFinding(check, NOT_CHECKED, reason, remedy) for reason in judged.unchecked]
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
        definition: what to check.
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
        return LintFinding(check, BROKEN, text, f"write guarantee: {sink.promise[0]}")
    if not sinks:
        return LintFinding(
            check, HOLDS, "`deliver` is empty: the boundary is the tables, and nothing is claimed beyond"
        )
    each = ", ".join(f"{name} {sink.guarantee}" for name, sink in sorted(sinks.items()))
    return LintFinding(check, HOLDS, f"beyond the tables each sink claims what its kind can keep: {each}")


def _commits(definition: Definition) -> LintFinding:
    """P2 and P3. A definition does not show the order of a driver's commits; the committed batches do."""
    return LintFinding(
        "offset before output, output before state",
        NOT_CHECKED,
        "the order of commits shows in what ran, not in a definition: a reconcile draws the balance of all offsets, a savepoint's "
        "proof replays batches and compares output and state",
        f"run `rivertwice reconcile {definition.name}` and `rivertwice savepoint take {definition.name}`; "
        "docs/howto-faults.md has kills in between",
    )


def _unsafe_sinks(definition: Definition) -> LintFinding:
    """P9. A replay is not delivered. The question is, for each sink, what a crash repeats."""
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
                LintFinding(check, HOLDS, f"{view}: a number with more digits than its decimal is a dead letter")
            )
            continue
        text = f"{view}: JSON numbers of {', '.join(decimals)} with more digits after the point are rounded, and nothing counts them"
        remedy = (
            f"write `decimals: exact` under sources.{view}, so that such a record is a dead letter; `rivertwice upgrade {definition.name}` "
            "says whether the stream can continue with it"
        )
        findings.append(LintFinding(check, WARNS, text, remedy))
    return findings


def _schema_ids_of(pipeline: str, view: str, source: Source) -> LintFinding:
    check = "incompatible schema"
    if source.format == "avro" and source.pins.writers:
        ids = ", ".join(str(each) for each in source.pins.writers)
        text = f"records of the schema ids {ids} are resolved into the pinned reader, all others are dead letters"
        return LintFinding(check, HOLDS, text)
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
            f"list it under required, then such records become dead letters; a case shows what happens to one now: `rivertwice test {name}`",
        )
    if taken:
        text = f"{', '.join(taken)}: a tombstone counts as an event, as `tombstones` declares; a case shows whether its rows are right"
        return LintFinding(check, NOT_CHECKED, text, f"run `rivertwice test {name}`")
    return LintFinding(check, HOLDS, "tombstones are dead letters, and every key that is a field is required")
