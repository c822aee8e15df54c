"""The Spark session of replays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rivertwice.config import Settings
from rivertwice.pipeline.model import Definition
from rivertwice.timeline.ledger import LedgerRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_of(settings: Settings, definition: Definition, replayed: Sequence[LedgerRow] | None = None) -> SparkSession:
    """Return a Spark session with a pipeline's pins, for replays.

    Args:
        settings: as for `spark_session`.
        definition: of the pipeline.
        replayed: the micro-batches that are replayed; None: it is not known yet.
    """
    from rivertwice.pipeline.engine import NO_CODE_TEXT, leave_engine, spark_session, watermark_confs
    from rivertwice.pipeline.jvm_confs import is_quick

    quick = replayed is not None and is_quick(records=sum(row.read for row in replayed), batches=len(replayed))
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
