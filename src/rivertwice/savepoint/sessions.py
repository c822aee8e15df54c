"""The Spark session of replays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivertwice.config import Settings
from rivertwice.pipeline.model import Definition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_of(settings: Settings, definition: Definition) -> SparkSession:
    """Return a Spark session with a pipeline's pins, for replays."""
    from rivertwice.pipeline.engine import spark_session, watermark_confs

    pins = definition.stream
    return spark_session(
        settings,
        f"rivertwice-replay-{definition.name}",
        shuffle_partitions=pins.shuffle_partitions,
        extra={
            "spark.sql.streaming.minBatchesToRetain": str(pins.min_batches_to_retain),
            "spark.sql.streaming.pollingDelay": "10ms",
            **watermark_confs(definition),
        },
    )
