"""The Kafka source of a pipeline's stream, built in one place for the driver and for replays."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.core import Settings, SparkVersion
from rivertwice.definition import Definition
from rivertwice.log import (
    OFFSET_HEADER,
    StoredOffsets,
    TopicSets,
    encode_offsets,
    kafka,
    numbered_columns,
    spark_options,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    sets: TopicSets | None = None,
) -> DataFrame:
    """Return the raw stream: key, value, topic, partition, offset, timestamp, timestampType, and headers if a source reads them.

    All topics of the definition are one source of Spark's, so a checkpoint has one line of offsets whatever their number.

    Args:
        genesis: topic to partition to first offset; counts only for a new checkpoint.
        replayed: topic to the replay topic that is read instead; records still carry the original topic.
        bases: topic to partition to the original offset that is at offset 0 of the replay topic; records still carry the
            original offset, which a fold's rows contain.
        with_offsets: records of replay topics carry the original offset in a header (`replay_topic.OFFSET_HEADER`), not by `bases`.
        max_offsets: records per batch; None takes the definition's pin, 0 sets no limit.
        sets: what has joined the patterns among the topics; None: as it is now.
    """
    if sets is None or replayed:
        sets = TopicSets.load(settings, () if replayed else definition.topics)
    reads_headers = any(source.reads_headers for source in definition.sources.values())
    limit = definition.stream.max_offsets_per_trigger if max_offsets is None else max_offsets
    reader = (
        spark.readStream.format("kafka")
        .options(**spark_options(settings))
        .options(
            **_what_is_read(
                settings, [(replayed or {}).get(topic, topic) for topic in definition.topics], sets, genesis
            )
        )
        .option("failOnDataLoss", "true")
        .option("includeHeaders", str(reads_headers or with_offsets).lower())
    )
    if limit:
        reader = reader.option("maxOffsetsPerTrigger", str(limit))
    raw = numbered_columns(reader.load(), sets)
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


_EARLIEST = -2


def _what_is_read(
    settings: Settings, topics: Sequence[str], sets: TopicSets, genesis: StoredOffsets | None
) -> dict[str, str]:
    """Return the options by which Spark's source finds its partitions.

    Of a pattern it reads those that have joined and no other: one that is new in Kafka has no number until it joins. Spark wants the
    first offset of each, also of what joined after the genesis.
    """
    if not sets:
        starts = json.dumps(genesis) if genesis else "earliest"
        return {"subscribe": ",".join(topics), "startingOffsets": starts}
    begins = {
        topic: dict.fromkeys(map(str, sets.numbers(topic) or kafka.find_parts(settings, topic)), _EARLIEST)
        for topic in topics
    }
    known = {topic: {**places, **(genesis or {}).get(topic, {})} for topic, places in begins.items()}
    named = sets.to_kafka(known)
    parts = {topic: sorted(map(int, places)) for topic, places in named.items()}
    return {"assign": json.dumps(parts), "startingOffsets": json.dumps(named)}


def _original_offset() -> Column:
    own = F.filter("headers", lambda header: header["key"] == F.lit(OFFSET_HEADER))
    return F.try_element_at(own, F.lit(-1))["value"].cast("string").cast("bigint")


def _bases_by_partition(bases: Mapping[str, int]) -> Column:
    """Return a record's base by its partition; 0 for a partition that has none."""
    known = [F.when(F.col("partition") == F.lit(int(p)), F.lit(base).cast("bigint")) for p, base in bases.items()]
    return F.coalesce(*known, F.lit(0).cast("bigint"))


# Set where the next batch of a running query's Kafka source ends, through the field of Spark's available-now trigger.
#
# This is only correct while the query is inside `foreachBatch`: the next batch is planned after it returns.

_log = logging.getLogger(__name__)
FIELD = "allDataForTriggerAvailableNow"
"""A field of KafkaMicroBatchStream: end offsets that it uses instead of asking Kafka."""
FLAG = "isTriggerAvailableNow"
"""Another one: while it is true, the first answer of Kafka is kept in `FIELD`, and Kafka is not asked again."""


def steer_source(spark: SparkSession, settings: Settings, execution: Any, end_offsets: StoredOffsets) -> bool:
    """Set where the next batch ends; return False if this Spark has no such field.

    The ends hold until they are set again. A batch that exceeds the source's limit of records ends before them.
    """
    fill_log_end(spark, execution)
    jvm: Any = spark._jvm
    try:
        source = _source(execution)
        source.prepareForTriggerAvailableNow()
        _field(source, FLAG)  # it must be there: `release_source` sets it back
        json_utils = jvm.org.apache.spark.sql.kafka010.JsonUtils
        named = TopicSets.load(settings, end_offsets).to_kafka(end_offsets)
        _field(source, FIELD).set(source, json_utils.partitionOffsets(encode_offsets(named)))
    except (Py4JError, ValueError, TypeError, AttributeError) as error:
        _log.info("the Kafka source cannot be steered: %s", str(error)[:300])
        return False
    return True


def release_source(execution: Any) -> None:
    """Let the source ask Kafka again where the log ends, each time; only after `steer_source` returned True."""
    source = _source(execution)
    _field(source, FIELD).set(source, None)
    _field(source, FLAG).set(source, False)


LOG_END = "latestPartitionOffsets"
"""Another one: where Kafka said that the log ends, for the report of a batch; null before it was asked."""


def fill_log_end(spark: SparkSession, execution: Any) -> None:
    """Let the report of the running batch have no end of the log, where Spark fails on an unknown one.

    A query does not ask Kafka before a batch that was planned by an earlier one. Spark 4.1 ends such a query after the batch, with
    a NullPointerException.
    """
    if SparkVersion(spark.version).has("report without an end of the log"):
        return
    jvm: Any = spark._jvm
    try:
        source = _source(execution)
        field = _field(source, LOG_END)
        if field.get(source) is None:
            field.set(source, jvm.org.apache.spark.sql.kafka010.JsonUtils.partitionOffsets("{}"))
    except (Py4JError, ValueError, TypeError, AttributeError) as error:
        _log.info("the source is left as it is: %s", str(error)[:300])


def end_query(spark: SparkSession, execution: Any) -> None:
    """End a query's loop after the running batch is committed."""
    fill_log_end(spark, execution)
    execution.state().set(terminated_state(spark))


def terminated_state(spark: SparkSession) -> Any:
    """Return the state object of a query that has ended."""
    name = SparkVersion(spark.version).streaming_class("runtime", "TERMINATED$")
    jvm: Any = spark._jvm
    return jvm.java.lang.Class.forName(name).getField("MODULE$").get(None)


POLLING = "pollingDelayMs"
"""A field of StreamExecution: how long a query without a record waits before it asks Kafka again, in milliseconds."""


def set_polling(execution: Any, delay_ms: int) -> bool:
    """Set how long a running query waits before it asks Kafka again; return False if this Spark has no such field."""
    try:
        field = execution.getClass().getSuperclass().getDeclaredField(POLLING)
        field.setAccessible(True)
        field.setLong(execution, delay_ms)
    except Py4JError as error:
        _log.info("the query asks Kafka as often as it did: %s", str(error)[:300])
        return False
    return True


def _source(execution: Any) -> Any:
    """Return the query's source, which it lists once for each branch that reads it."""
    source, *branches = [execution.sources().apply(index) for index in range(execution.sources().size())]
    if any(branch != source for branch in branches):
        message = f"the query reads {1 + len(branches)} sources that are not one"
        raise ValueError(message)
    return source


def _field(source: Any, name: str) -> Any:
    field = source.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field
