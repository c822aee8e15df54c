"""Pitfalls that a topic's own settings decide: what Kafka keeps, and how many partitions it has."""

from __future__ import annotations

from rivertwice.pipeline.durations import format_duration
from rivertwice.pipeline.lint_model import BROKEN, HOLDS, NOT_CHECKED, LintFinding, TopicFacts
from rivertwice.pipeline.model import Definition

MB_PER_PARTITION = 10  # partitions = max(MB/s / 10, readers): the rule of thumb of Kafka's own operators


def retention_finding(definition: Definition, topic: str, facts: TopicFacts | None) -> LintFinding:
    """P11. Return whether a savepoint can be older than Kafka's retention."""
    check = "lag beyond retention"
    if facts is None:
        return LintFinding(
            check,
            NOT_CHECKED,
            f"Kafka did not tell how long it keeps {topic}",
            f"run `rivertwice lint {definition.name}` where Kafka answers",
        )
    if facts.retention is None:
        return LintFinding(check, HOLDS, f"{topic} is kept for ever")
    retention, age = facts.retention, definition.alerts.savepoint_age
    text = f"{topic} is kept for {format_duration(retention)}; the agent archives at half of that time"
    if retention < 2 * age:
        return LintFinding(
            check,
            BROKEN,
            f"{text}; a savepoint may be {format_duration(age)} old before an alert fires: its range may be gone by then",
            f"keep the topic for at least {format_duration(2 * age)}, or lower alerts.savepoint_age",
        )
    return LintFinding(check, HOLDS, text)


def partitions_finding(definition: Definition, topic: str, facts: TopicFacts | None) -> LintFinding:
    """Return whether the topic has the partitions that the definition declares, and keeps every record."""
    check = "partitions and keys"
    declared = next(source.partitions for source in definition.sources.values() if source.topic == topic)
    if facts is None:
        return LintFinding(
            check,
            NOT_CHECKED,
            f"Kafka did not tell the partitions of {topic}",
            f"run `rivertwice lint {definition.name}` where Kafka answers",
        )
    if facts.partitions > declared:
        return LintFinding(
            check,
            BROKEN,
            f"{topic} has {facts.partitions} partitions, the definition says {declared}: where partitions were added, a hash "
            "partitioner sends keys elsewhere, and a key's order ends there",
            definition.window.kind.lint.remedy_for_partitions(facts.partitions),
        )
    if facts.compacted:
        return LintFinding(
            check,
            BROKEN,
            f"{topic} is compacted: superseded records vanish, so batches cannot be counted and the stream stops",
            "stream a plain topic; compacted ones are for tables",
        )
    return LintFinding(
        check,
        HOLDS,
        f"{topic} has {facts.partitions} partitions: at most as many cores, or readers of a group, can be used at once, and it is "
        f"made for about {facts.partitions * MB_PER_PARTITION} MB/s ({MB_PER_PARTITION} each, the usual rule)",
    )
