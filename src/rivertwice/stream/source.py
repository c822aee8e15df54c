"""The Kafka source of a pipeline's stream, built in one place for the driver and for replays."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.config import Settings
from rivertwice.log.client_options import spark_options
from rivertwice.log.replay_topic import OFFSET_HEADER
from rivertwice.pipeline.definition import Definition


def kafka_stream(
    spark: SparkSession,
    settings: Settings,
    definition: Definition,
    *,
    genesis: Mapping[str, Mapping[str, int]] | None = None,
    replayed: Mapping[str, str] | None = None,
    bases: Mapping[str, Mapping[str, int]] | None = None,
    max_offsets: int | None = None,
    with_offsets: bool = False,
) -> DataFrame:
    """Return the raw stream: key, value, topic, partition, offset, timestamp, timestampType, and headers if a source reads them.

    All topics of the definition are one source of Spark's, so a checkpoint has one line of offsets whatever their number.

    Args:
        spark: the session.
        settings: contain the Kafka address and the client's options.
        definition: contains topics and rate.
        genesis: topic to partition to first offset; counts only for a new checkpoint.
        replayed: topic to the replay topic that is read instead; records still carry the original topic.
        bases: topic to partition to the original offset that is at offset 0 of the replay topic; records still carry the
            original offset, which a fold's rows contain.
        with_offsets: records of replay topics carry the original offset in a header (`replay_topic.OFFSET_HEADER`), not by `bases`.
        max_offsets: records per batch; None takes the definition's pin, 0 sets no limit.
    """
    subscribed = [(replayed or {}).get(topic, topic) for topic in definition.topics]
    reads_headers = any(source.reads_headers for source in definition.sources.values())
    limit = definition.stream.max_offsets_per_trigger if max_offsets is None else max_offsets
    reader = (
        spark.readStream.format("kafka")
        .options(**spark_options(settings))
        .option("subscribe", ",".join(subscribed))
        .option("startingOffsets", json.dumps(genesis) if genesis else "earliest")
        .option("failOnDataLoss", "true")
        .option("includeHeaders", str(reads_headers or with_offsets).lower())
    )
    if limit:
        reader = reader.option("maxOffsetsPerTrigger", str(limit))
    raw = reader.load()
    for topic, scratch in (replayed or {}).items():
        is_scratch = F.col("topic") == F.lit(scratch)
        offset = F.col("offset") + _bases_by_partition((bases or {}).get(topic, {}))
        if with_offsets:
            offset = F.coalesce(_original_offset(), offset)
        raw = raw.withColumn("offset", F.when(is_scratch, offset).otherwise(F.col("offset")))
        raw = raw.withColumn("topic", F.when(is_scratch, F.lit(topic)).otherwise(F.col("topic")))
    if with_offsets:
        kept = F.filter("headers", lambda header: header["key"] != F.lit(OFFSET_HEADER))
        raw = raw.withColumn("headers", F.when(F.size(kept) > 0, kept)) if reads_headers else raw.drop("headers")
    return raw


def _original_offset() -> Column:
    own = F.filter("headers", lambda header: header["key"] == F.lit(OFFSET_HEADER))
    return F.try_element_at(own, F.lit(-1))["value"].cast("string").cast("bigint")


def _bases_by_partition(bases: Mapping[str, int]) -> Column:
    """Return a record's base by its partition; 0 for a partition that has none."""
    known = [F.when(F.col("partition") == F.lit(int(p)), F.lit(base).cast("bigint")) for p, base in bases.items()]
    return F.coalesce(*known, F.lit(0).cast("bigint"))
