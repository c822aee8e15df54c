"""Pitfalls that a topic's own settings decide: what Kafka keeps, and how many partitions it has."""

from __future__ import annotations

from datetime import timedelta

from rivertwice.pipeline.durations import format_duration
from rivertwice.pipeline.lint_model import BROKEN, HOLDS, NOT_CHECKED, WARNS, LintFinding, TopicFacts
from rivertwice.pipeline.model import Definition

HOT_SHARE = 0.6
"""A partition that holds more of the records than this, of at least three, is a hot one."""
LEAST_LAG = timedelta(hours=1)
"""A compacted topic that keeps superseded records for less is no source."""
FEW = 100
"""Of fewer records in a partition, the middle one says little."""
SKEWED_SPAN = 0.1
"""Middles that lie further apart than this share of the topic's time are no chance."""
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
    if facts.compacted and facts.compacted_after < LEAST_LAG:
        return LintFinding(
            check,
            BROKEN,
            f"{topic} is compacted after {format_duration(facts.compacted_after)}: superseded records vanish, so batches cannot be counted and the stream stops",
            f"raise min.compaction.lag.ms of {topic} to an hour at least, or stream a topic that is not compacted",
        )
    if facts.compacted:
        return LintFinding(
            check,
            WARNS,
            f"{topic} is compacted after {format_duration(facts.compacted_after)}: a stream or an archive that comes later than that stops at the first "
            "record that vanished, and what was not archived by then cannot be compared",
            f"let `rivertwice archive {definition.name}` run more often, and begin before the first records are that old",
        )
    return LintFinding(
        check,
        HOLDS,
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
        text = f"Kafka did not tell how the records of {topic} lie in its partitions"
        return LintFinding(check, NOT_CHECKED, text, f"run `rivertwice lint {definition.name}` where Kafka answers")
    total = sum(facts.held.values())
    hot = [partition for partition, count in facts.held.items() if count > HOT_SHARE * total]
    if len(facts.held) >= 3 and hot and total >= FEW:
        text = (
            f"partition {hot[0]} of {topic} holds {facts.held[hot[0]]} of {total} records: a backlog is read by little more than "
            "one core"
        )
        return LintFinding(check, WARNS, text, "choose a record key with more, and more even, values")
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
        return LintFinding(check, WARNS, text, remedy)
    times = ", of like times" if delays else ""
    return LintFinding(check, HOLDS, f"the partitions of {topic} hold like numbers of records{times}")
