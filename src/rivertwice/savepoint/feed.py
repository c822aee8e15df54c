"""Bring the records of a replay within the stream's reach: Kafka itself, or a replay topic fed from the archive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rivertwice.config import Settings
from rivertwice.log import kafka
from rivertwice.log.records import read_ranges
from rivertwice.log.replay_topic import feed_replay_topic, replay_topic
from rivertwice.pipeline.model import Definition
from rivertwice.savepoint.manifest import Manifest
from rivertwice.savepoint.plan import KAFKA, ReplayPlan
from rivertwice.savepoint.recorded import ReplayTopic

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_NOTHING = 1 << 62  # an offset no topic reaches
_COLUMNS = ("partition", "offset", "key", "value", "headers", "unix_millis(timestamp) AS timestamp_ms")


@contextmanager
def replay_source(
    spark: SparkSession,
    settings: Settings,
    definition: Definition,
    manifest: Manifest,
    plan: ReplayPlan,
    *,
    name: str,
    progress: Callable[[str], None],
) -> Iterator[ReplayTopic | None]:
    """Give the topic a replay reads: None for the pipeline's own, else a replay topic that lives for the block.

    Raises:
        LogGapError: neither Kafka nor the archive has all the records.
    """
    if plan.source == KAFKA:
        yield None
        return
    _, source = definition.source
    progress(f"Kafka no longer has the recorded range; feeding replay topic {name} from the archive")
    base = {partition: start for partition, (start, _) in plan.ranges.items()}
    partitions = max(len(manifest.offsets[source.topic]), len(base))  # one may have been added on the way
    with replay_topic(settings, name, partitions) as topic:
        frame = read_ranges(
            spark, settings, source.topic, dict(plan.ranges), topic_id=manifest.topic_ids[source.topic]
        ).selectExpr(*_COLUMNS)
        count = feed_replay_topic(settings, topic, dict(plan.ranges), _rows(frame))
        progress(f"{count} records are in {name}")
        yield ReplayTopic(topic, source.topic, {str(partition): start for partition, start in base.items()})


def oldest_offsets(settings: Settings, manifest: Manifest, topic: str) -> dict[int, int]:
    """Return the first offset Kafka still has of a savepoint's topic; if the topic is another by now, it has nothing."""
    if kafka.topic_id(settings, topic) != manifest.topic_ids[topic]:
        return {int(partition): _NOTHING for partition in manifest.offsets[topic]}
    return kafka.begin_offsets(settings, topic)


def _rows(frame: Any) -> Iterator[dict[str, Any]]:
    for row in frame.orderBy("partition", "offset").toLocalIterator():
        yield row.asDict(recursive=True)
