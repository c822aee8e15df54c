"""The Kafka source of a pipeline's stream, built in one place for the driver and for replays."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from rivertwice.config import Settings
from rivertwice.log.client_options import spark_options
from rivertwice.pipeline.definition import Definition


def kafka_stream(
    spark: SparkSession,
    settings: Settings,
    definition: Definition,
    *,
    genesis: Mapping[str, Mapping[str, int]] | None = None,
    topic: str | None = None,
    max_offsets: int | None = None,
) -> DataFrame:
    """Return the raw stream: key, value, headers, topic, partition, offset, timestamp, timestampType.

    Args:
        spark: the session.
        settings: gives the Kafka address and how to talk to it.
        definition: gives topic and rate.
        genesis: topic to partition to first offset; counts only for a new checkpoint.
        topic: reads another topic instead (a replay topic).
        max_offsets: records per batch; None takes the definition's pin, 0 sets no limit.
    """
    _, source = definition.source
    limit = definition.stream.max_offsets_per_trigger if max_offsets is None else max_offsets
    reader = (
        spark.readStream.format("kafka")
        .options(**spark_options(settings))
        .option("subscribe", topic or source.topic)
        .option("startingOffsets", json.dumps(genesis) if genesis else "earliest")
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
    )
    if limit:
        reader = reader.option("maxOffsetsPerTrigger", str(limit))
    return reader.load()
