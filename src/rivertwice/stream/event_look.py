"""Read the event times by which batches are placed: a few records of what waits, decoded as the stream decodes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rivertwice.config import Settings
from rivertwice.log.addresses import Part
from rivertwice.log.archive_rows import PLAIN, plain_row
from rivertwice.log.reader import read_pieces
from rivertwice.pipeline.compile import decode_view
from rivertwice.pipeline.definition import Definition
from rivertwice.stream.event_plan import Cut, Look, plan_cut
from rivertwice.stream.event_times import EventTimes

_log = logging.getLogger(__name__)


def most_placed(definition: Definition) -> int:
    """Return how many records a placed batch takes at most.

    Spark shares its own limit out in proportion, in floating-point numbers that are rounded down. At the limit itself a partition
    would lose a record now and then, and end before the others.
    """
    return max(1, definition.stream.max_offsets_per_trigger - 1)


class EventLook:
    """Plans batches by event time, and reads what it needs to know for that."""

    def __init__(self, spark: SparkSession, settings: Settings, definition: Definition, tolerance_ms: int) -> None:
        """Create it; nothing is read yet.

        Args:
            spark: the session that decodes.
            settings: the cluster.
            definition: has the topics' decoders and the limit of a batch.
            tolerance_ms: by how much event time a partition may end ahead of another.
        """
        self._spark = spark
        self._settings = settings
        self._definition = definition
        self._tolerance_ms = tolerance_ms
        self._times = EventTimes()

    def plan(self, starts: Mapping[Part, int], ends: Mapping[Part, int]) -> Cut | None:
        """Return where the next batch ends, or None if one batch takes all records between `starts` and `ends`.

        Raises:
            LogGapError: Kafka no longer has a record that the stream needs.
            ServiceError: Kafka does not answer.
        """
        most = most_placed(self._definition)
        looked = 0
        while isinstance(step := plan_cut(self._times.index(starts, ends), most, self._tolerance_ms), Look):
            looked += self._read(step)
        if looked:
            _log.info("%s records were looked at to place the next batches by event time", looked)
        return step

    def _read(self, look: Look) -> int:
        rows: dict[str, list[dict[str, object]]] = {}
        for part, record in read_pieces(self._settings, look.ranges):
            rows.setdefault(part.topic, []).append(plain_row(part.topic, record))
        accepted = {key: event_ms for topic in rows for key, event_ms in self._decode(topic, rows[topic]).items()}
        looked = 0
        for part, ranges in look.ranges.items():
            for start, end in ranges:
                looked += end - start
                for offset in range(start, end):
                    self._times.add(part, offset, accepted.get((part, offset)))
        return looked

    def _decode(self, topic: str, rows: list[dict[str, object]]) -> dict[tuple[Part, int], int]:
        view, source = self._definition.by_topic[topic]
        raw = self._spark.createDataFrame(pa.Table.from_pylist(rows, schema=PLAIN))
        event_ms = F.unix_millis(source.event_time).alias("event_ms")
        decoded = decode_view(self._definition, view, raw)
        table = decoded.where(F.col("_reason").isNull()).select("_partition", "_offset", event_ms)
        return {
            (Part(topic, row["_partition"]), row["_offset"]): row["event_ms"] for row in table.toArrow().to_pylist()
        }
