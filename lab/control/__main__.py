"""The usual script: Spark Structured Streaming from Kafka, foreachBatch, append to a Delta table, a checkpoint folder.

It is written as tutorials write it, and it is right while nothing goes wrong. Its definition is that of lab_sums.

Usage: python -m lab.control --bootstrap HOST:PORT --topic NAME --folder FOLDER [--until-idle]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

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


def main() -> int:
    """Run the stream, for ever or until nothing has come for a while."""
    parser = argparse.ArgumentParser(prog="lab.control", description=__doc__)
    for name in ("--bootstrap", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--until-idle", action="store_true")
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

    def append(frame: Any, batch: int) -> None:
        write_deltalake(str(given.folder / "table"), frame.toArrow(), mode="append")

    query = (
        sums(spark, given.bootstrap, given.topic)
        .writeStream.foreachBatch(append)
        .option("checkpointLocation", str(given.folder / "checkpoint"))
        .start()
    )
    quiet_since: float | None = None
    while not query.awaitTermination(1):
        if not query.status["isTriggerActive"] and not query.status["isDataAvailable"]:
            quiet_since = quiet_since or time.monotonic()
            if given.until_idle and time.monotonic() - quiet_since > 3:
                query.stop()
                return 0
        else:
            quiet_since = None
    return 0


if __name__ == "__main__":
    sys.exit(main())
