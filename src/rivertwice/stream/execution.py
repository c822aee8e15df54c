"""What the driver takes from a running query's execution: a batch's observations, and the state that ends its loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.relations import metric_names
from rivertwice.timeline.counts import BatchCounts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def observed_counts(query: StreamingQuery, definition: Definition) -> dict[str, BatchCounts]:
    """Return the running batch's observations by topic of the streams, after its rows were computed and before its commit.

    They are read from the execution itself: the progress event comes later, and does not come if the driver dies.
    """
    metrics = query._jsq.streamingQuery().lastExecution().observedMetrics()

    def numbers(name: str) -> list[int | None]:
        # One call for the row and one for its text: each call to the JVM costs more than a batch's counts do.
        values = metrics.apply(name).mkString(",").split(",")
        return [None if value == "null" else int(value) for value in values]

    counts: dict[str, BatchCounts] = {}
    for view, source in definition.streams.items():
        names = metric_names(definition, view)
        (read, bad, digest), (accepted, min_event_ms, max_event_ms) = map(numbers, names)
        counts[source.topic] = BatchCounts(read or 0, bad or 0, accepted or 0, min_event_ms, max_event_ms, digest)
    return counts


def terminated_state(spark: SparkSession) -> Any:
    """Return the state object that ends a query's loop after the running batch is committed."""
    name = "org.apache.spark.sql.execution.streaming.runtime.TERMINATED$"
    jvm: Any = spark._jvm
    return jvm.java.lang.Class.forName(name).getField("MODULE$").get(None)
