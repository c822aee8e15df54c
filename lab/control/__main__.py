"""The usual script: Spark Structured Streaming from Kafka, foreachBatch, append to a Delta table, a checkpoint folder.

It is written as tutorials write it, and it is right while nothing goes wrong. Its definition is that of lab_sums.

As it is, a batch's offsets are committed after its output, so a kill between the two writes rows twice. With `--commit-first`
they are committed before it, so a kill between the two loses rows.

Usage: python -m lab.control --bootstrap HOST:PORT --topic NAME --folder FOLDER [--until-idle] [--commit-first]
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = "id string, k string, at timestamp, amount bigint"


def sums(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Return the streaming aggregate."""
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "false")
        .option("maxOffsetsPerTrigger", "40")
        .load()
    )
    events = raw.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("event")).select("event.*")
    return (
        events.where(F.col("amount") >= 0)
        .withWatermark("at", "20 seconds")
        .groupBy(F.window("at", "10 seconds"), "k")
        .agg(F.count(F.lit(1)).alias("n"), F.sum("amount").alias("total"), F.max("amount").alias("top"))
        .select(
            F.col("window.start").alias("window_start"),
            F.col("window.end").alias("window_end"),
            "k",
            "n",
            "total",
            "top",
        )
    )


class LaterWriter:
    """Appends the rows of several batches together, each second, so that the table has fewer files: a usual improvement.

    foreachBatch has returned by then, so Spark has committed the batch's offsets.
    """

    def __init__(self, table: str) -> None:
        """Write in a thread that ends with the process."""
        self._table = table
        self._rows: queue.Queue[pa.Table] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, frame: Any, _batch: int) -> None:
        """Take the rows of a batch."""
        self._rows.put(frame.toArrow())

    def finish(self) -> None:
        """Wait until all rows are written."""
        self._rows.join()

    def _run(self) -> None:
        while True:
            time.sleep(1)
            waiting = [self._rows.get_nowait() for _ in range(self._rows.qsize())]
            if waiting:
                write_deltalake(self._table, pa.concat_tables(waiting), mode="append")
            for _ in waiting:
                self._rows.task_done()


def main() -> int:
    """Run the stream, for ever or until nothing has come for a while."""
    parser = argparse.ArgumentParser(prog="lab.control", description=__doc__)
    for name in ("--bootstrap", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--until-idle", action="store_true")
    parser.add_argument("--commit-first", action="store_true")
    given = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("control")
        .config("spark.jars", given.jars)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )

    table = str(given.folder / "table")
    later = LaterWriter(table) if given.commit_first else None

    def append(frame: Any, batch: int) -> None:
        write_deltalake(table, frame.toArrow(), mode="append")

    query = (
        sums(spark, given.bootstrap, given.topic)
        .writeStream.foreachBatch(append if later is None else later.add)
        .option("checkpointLocation", str(given.folder / "checkpoint"))
        .start()
    )
    quiet_since: float | None = None
    while not query.awaitTermination(1):
        if not query.status["isTriggerActive"] and not query.status["isDataAvailable"]:
            quiet_since = quiet_since or time.monotonic()
            if given.until_idle and time.monotonic() - quiet_since > 3:
                query.stop()
                if later is not None:
                    later.finish()
                return 0
        else:
            quiet_since = None
    return 0


if __name__ == "__main__":
    sys.exit(main())
