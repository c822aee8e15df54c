"""The Kafka source of a pipeline's stream, built in one place for the driver and for replays."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.config import Settings
from rivertwice.log.client_options import spark_options
from rivertwice.pipeline.definition import Definition


def kafka_stream(
    spark: SparkSession,
    settings: Settings,
    definition: Definition,
    *,
    genesis: Mapping[str, Mapping[str, int]] | None = None,
    replayed: Mapping[str, str] | None = None,
    max_offsets: int | None = None,
) -> DataFrame:
    """Return the raw stream: key, value, headers, topic, partition, offset, timestamp, timestampType.

    All topics of the definition are one source of Spark's, so a checkpoint has one line of offsets whatever their number.

    Args:
        spark: the session.
        settings: contain the Kafka address and the client's options.
        definition: contains topics and rate.
        genesis: topic to partition to first offset; counts only for a new checkpoint.
        replayed: topic to the replay topic that is read instead; records still carry the original topic.
        max_offsets: records per batch; None takes the definition's pin, 0 sets no limit.
    """
    subscribed = [(replayed or {}).get(topic, topic) for topic in definition.topics]
    limit = definition.stream.max_offsets_per_trigger if max_offsets is None else max_offsets
    reader = (
        spark.readStream.format("kafka")
        .options(**spark_options(settings))
        .option("subscribe", ",".join(subscribed))
        .option("startingOffsets", json.dumps(genesis) if genesis else "earliest")
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
    )
    if limit:
        reader = reader.option("maxOffsetsPerTrigger", str(limit))
    raw = reader.load()
    for topic, scratch in (replayed or {}).items():
        raw = raw.withColumn("topic", F.when(F.col("topic") == F.lit(scratch), F.lit(topic)).otherwise(F.col("topic")))
    return raw
