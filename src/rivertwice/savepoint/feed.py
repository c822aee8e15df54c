"""Give a replay its records: from Kafka itself, or from replay topics that are fed from the archive."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from rivertwice.core import Measured, PipelineHome, Progress, Row, Settings
from rivertwice.definition import Definition
from rivertwice.log import count, feed_replay_topic, kafka, read_ranges, replay_topic
from rivertwice.savepoint.manifest import Manifest
from rivertwice.savepoint.plan import (
    KAFKA,
    ReplayPlan,
    ReplayTopic,
    ReplayTopics,
    absent_until,
    equivalent_bundles,
    plan_replay,
)
from rivertwice.timeline import LedgerRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REPORT_EVERY_S = 5.0
_NOTHING = 1 << 62  # an offset no topic reaches
_COLUMNS = ("partition", "offset", "key", "value", "headers", "unix_millis(timestamp) AS timestamp_ms")


def plan_feed(
    settings: Settings,
    home: PipelineHome,
    definition: Definition,
    manifest: Manifest,
    rows: Sequence[LedgerRow],
    *,
    until: int,
    archive_only: bool = False,
) -> ReplayPlan:
    """Plan the replay of the batches after a savepoint up to `until`, by what Kafka still has now.

    The arguments and errors are those of `plan_replay`. With `archive_only` Kafka's records do not count (`oldest_offsets`).
    """
    return plan_replay(
        manifest,
        rows,
        until=until,
        begin=oldest_offsets(settings, definition, manifest, archive_only=archive_only),
        bundles=equivalent_bundles(home, manifest, rows),
    )


@contextmanager
def replay_source(
    spark: SparkSession,
    settings: Settings,
    definition: Definition,
    manifest: Manifest,
    plan: ReplayPlan,
    *,
    name: str,
    progress: Progress,
) -> Iterator[ReplayTopics | None]:
    """Give the topics that a replay reads, for the block: None for the pipeline's own, else a replay topic for each.

    The first replay topic is called `name`, the next ones `name-2`, `name-3` ...

    Raises:
        LogGapError: neither Kafka nor the archive has all the records.
    """
    if plan.source == KAFKA:
        yield None
        return
    with ExitStack() as open_topics:
        fed = []
        for number, topic in enumerate(definition.topics, start=1):
            called = name if number == 1 else f"{name}-{number}"
            progress(
                f"Kafka lacks some of the recorded range, or the archive alone counts: replay topic {called} is fed"
            )
            ranges = dict(plan.ranges[topic])
            partitions = max(len(manifest.offsets[topic]), len(ranges))  # one may have been added on the way
            open_topics.enter_context(replay_topic(settings, called, partitions))
            frame = read_ranges(spark, settings, topic, ranges, topic_id=manifest.topic_ids[topic]).selectExpr(
                *_COLUMNS
            )
            absent = absent_until(plan.rows, topic)
            without = {int(partition): ends[-1][1] for partition, ends in absent.items()}
            fed_records = feed_replay_topic(
                settings, called, ranges, _reported(_rows(frame), called, count(ranges), progress), absent=without
            )
            progress(f"{fed_records} records are in {called}")
            base = {str(partition): start for partition, (start, _) in ranges.items()}
            fed.append(ReplayTopic(called, topic, base, absent))
        yield ReplayTopics(tuple(fed))


def oldest_offsets(
    settings: Settings, definition: Definition, manifest: Manifest, *, archive_only: bool = False
) -> dict[str, dict[int, int]]:
    """Return topic to the first offsets that Kafka still has; if the topic was created again, Kafka has none of its records.

    If the archive was rewritten (`archive_only`), or if the topic is compacted, Kafka's records do not count, because they differ from
    what the tables contain.
    """
    return {topic: _oldest_offsets(settings, manifest, topic, archive_only) for topic in definition.topics}


def _oldest_offsets(settings: Settings, manifest: Manifest, topic: str, archive_only: bool) -> dict[int, int]:
    is_other = archive_only or kafka.topic_id(settings, topic) != manifest.topic_ids[topic]
    if is_other or kafka.is_compacted(settings, topic):
        return {int(partition): _NOTHING for partition in manifest.offsets[topic]}
    return kafka.begin_offsets(settings, topic)


def _rows(frame: Any) -> Iterator[Row]:
    for row in frame.orderBy("partition", "offset").toLocalIterator():
        yield row.asDict(recursive=True)


def _reported(rows: Iterator[Row], topic: str, total: int, progress: Progress) -> Iterator[Row]:
    """Yield the rows, and report every few seconds how many there were."""
    last = time.monotonic()
    for number, row in enumerate(rows, start=1):
        if time.monotonic() - last >= _REPORT_EVERY_S:
            last = time.monotonic()
            progress(Measured(f"{number} of {total} records are in {topic}", f"feed {topic}", number, total))
        yield row


# The Spark session of replays.


def session_of(settings: Settings, definition: Definition, replayed: Sequence[LedgerRow] | None = None) -> SparkSession:
    """Return a Spark session with a pipeline's pins, for replays.

    Args:
        replayed: the micro-batches that are replayed; None: it is not known yet.
    """
    from rivertwice.engine import NO_CODE_TEXT, is_quick, leave_engine, spark_session, watermark_confs
    from rivertwice.savepoint.merged import may_merge

    rows = [] if replayed is None else replayed
    batches = 0 if may_merge(definition, rows) else len(rows)
    quick = replayed is not None and is_quick(records=sum(row.read for row in rows), batches=batches)
    if not quick:
        leave_engine("it may replay many batches")
    pins = definition.stream
    return spark_session(
        settings,
        f"rivertwice-replay-{definition.name}",
        shuffle_partitions=pins.shuffle_partitions,
        extra={
            "spark.sql.streaming.minBatchesToRetain": str(pins.min_batches_to_retain),
            "spark.sql.streaming.pollingDelay": "10ms",
            **watermark_confs(definition),
            **(NO_CODE_TEXT if quick else {}),
        },
        quick=quick,
    )
