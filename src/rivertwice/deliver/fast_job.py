"""The process of a fast path: Spark's real-time mode, Kafka to Kafka.

Usage: python -m rivertwice.deliver.fast_job --pipeline NAME
Each record is decoded and judged as in the stream, and the rows that `fast.sql` makes from it are sent at once. Every row names
its record: after a crash, rows since the last interval are sent again, so a row may come twice and is recognised by its
`record`. SIGTERM ends the process with exit code 0.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rivertwice.core import RivertwiceError, Settings, run_process, stop_on_signals, utc_now
from rivertwice.definition import Bundle, build_bundle
from rivertwice.deliver.fast import (
    FastRun,
    committed_offsets,
    fast_folder,
    meaning_of,
    plan_run,
    read_runs,
    record_run,
    take_fast_lock,
)
from rivertwice.engine import accepted, decode_fast, fast_records, fast_rows, spark_session
from rivertwice.log import kafka, spark_options
from rivertwice.stream import require_checked
from rivertwice.timeline import head

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_POLL_SECONDS: Any = 0.2  # PySpark takes fractions, though its annotation does not allow them


def begin_run(settings: Settings, bundle: Bundle) -> FastRun:
    """Return the run that continues or begins, recorded; topics are created if they are absent."""
    definition = bundle.definition
    assert definition.fast is not None, "the caller looked"
    home = settings.pipeline(definition.name)
    bundle.save(home.bundles)
    _, source = definition.source
    kafka.ensure_topic(settings, source.topic, source.partitions)
    kafka.ensure_topic(settings, definition.fast.topic, definition.fast.partitions)
    run = plan_run(
        read_runs(home),
        bundle=bundle.id,
        meaning=meaning_of(definition),
        topic_id=kafka.topic_id(settings, source.topic),
        committed=committed_offsets(home, source.topic),
        ends=kafka.end_offsets(settings, source.topic),
        sent_from=kafka.end_offsets(settings, definition.fast.topic),
        now=utc_now(),
    )
    record_run(home, run)
    return run


def run_fast(settings: Settings, bundle: Bundle, stop: threading.Event) -> None:
    """Run the fast path until `stop` is set; raise the error that made it fail."""
    definition = bundle.definition
    assert definition.fast is not None, "the caller looked"
    home = settings.pipeline(definition.name)
    _, source = definition.source
    partitions = len(kafka.end_offsets(settings, source.topic))
    if settings.spark_is_local:
        # Real-time mode keeps a slot per partition as long as it runs.
        settings = replace(settings, spark_master=f"local[{partitions + 1}]")

    def session() -> SparkSession:
        return spark_session(settings, f"rivertwice-fast-{definition.name}")

    require_checked(settings, bundle, session, head(home), utc_now())
    run = begin_run(settings, bundle)
    spark = session()
    raw = (
        spark.readStream.format("kafka")
        .options(**spark_options(settings))
        .option("subscribe", source.topic)
        .option("startingOffsets", json.dumps({source.topic: {str(p): at for p, at in run.begins.items()}}))
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .load()
    )
    rows = fast_rows(spark, definition, accepted(decode_fast(definition, raw), source))
    # PySpark's annotations do not know real-time mode yet.
    real_time: Any = {"realTime": f"{definition.fast.interval.total_seconds():g} seconds"}
    query = (
        fast_records(definition, rows)
        .writeStream.format("kafka")
        .options(**spark_options(settings))
        .option("topic", definition.fast.topic)
        .outputMode("update")
        .queryName(f"{definition.name}-fast")
        .option("checkpointLocation", str(fast_folder(home) / "checkpoint"))
        .trigger(**real_time)
        .start()
    )
    _log.info("fast run %s of %s, from %s on", run.number, definition.name, dict(run.begins))
    try:
        while not stop.is_set():
            if query.awaitTermination(_POLL_SECONDS):
                return
    finally:
        query.stop()


def main(argv: list[str] | None = None) -> int:
    """Run the fast path of one pipeline; return the process's exit code."""
    parser = argparse.ArgumentParser(prog="rivertwice.deliver.fast_job", description=__doc__)
    parser.add_argument("--pipeline", required=True, help="name of the pipeline, for instance fraud_scores")
    arguments = parser.parse_args(argv)
    settings = Settings.from_env()
    stop = stop_on_signals()
    try:
        bundle = build_bundle(settings.definition_folder(arguments.pipeline))
        if bundle.definition.fast is None:
            message = f"{arguments.pipeline} has no fast path; write `fast: {{topic: ..., key: ...}}` and fast.sql"
            raise RivertwiceError(message)
        with take_fast_lock(settings.pipeline(arguments.pipeline)):
            run_fast(settings, bundle, stop)
    except RivertwiceError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    run_process(main)
