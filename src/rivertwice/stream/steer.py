"""Set where the next batch of a running query's Kafka source ends, through the field of Spark's available-now trigger.

This is only correct while the query is inside `foreachBatch`: the next batch is planned after it returns.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from rivertwice.log.addresses import StoredOffsets, encode_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
FIELD = "allDataForTriggerAvailableNow"
"""A field of KafkaMicroBatchStream: end offsets that it uses instead of asking Kafka."""
FLAG = "isTriggerAvailableNow"
"""Another one: while it is true, the first answer of Kafka is kept in `FIELD`, and Kafka is not asked again."""


def steer_source(spark: SparkSession, execution: Any, end_offsets: StoredOffsets) -> bool:
    """Set where the next batch ends; return False if this Spark has no such field.

    The ends hold until they are set again. A batch that exceeds the source's limit of records ends before them.
    """
    jvm: Any = spark._jvm
    try:
        source = _source(execution)
        source.prepareForTriggerAvailableNow()
        _field(source, FLAG)  # it must be there: `release_source` sets it back
        json_utils = jvm.org.apache.spark.sql.kafka010.JsonUtils
        _field(source, FIELD).set(source, json_utils.partitionOffsets(encode_offsets(end_offsets)))
    except (Py4JError, ValueError, TypeError, AttributeError) as error:
        _log.info("the Kafka source cannot be steered: %s", str(error)[:300])
        return False
    return True


def release_source(execution: Any) -> None:
    """Let the source ask Kafka again where the log ends, each time; only after `steer_source` returned True."""
    source = _source(execution)
    _field(source, FIELD).set(source, None)
    _field(source, FLAG).set(source, False)


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
