"""The job a data engineer would write by hand: same source, same plan, same settings, a bare foreachBatch.

Usage: python -m lab.bench.by_hand BOOTSTRAP TOPIC FOLDER MAX_OFFSETS
No ledger, no dead letters, no lease, no counts: rows go to a Delta table, and that is all.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

PROJECT = Path(os.environ["RIVERTWICE_PROJECT"])
SCHEMA = (
    "carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, sched_dep TIMESTAMP, dep_delay INT, "
    "cancelled BOOLEAN"
)


def main() -> None:
    bootstrap, topic, folder, limit = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    line = ".".join(version("pyspark").split(".")[:2])
    state = "spark.sql.streaming.stateStore"
    spark = (
        SparkSession.builder.appName("by-hand")
        .master("local[2]")
        .config(
            "spark.jars", ",".join(str(jar) for jar in sorted((PROJECT / f".build/jars/spark-{line}").glob("*.jar")))
        )
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.streaming.minBatchesToRetain", "200")
        .config(f"{state}.providerClass", "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
        .config(f"{state}.rocksdb.changelogCheckpointing.enabled", "true")
        .config(f"{state}.checkpointFormatVersion", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", limit)
        .load()
    )
    fields = F.from_json(F.col("value").cast("string"), SCHEMA, {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSS]XXX"})
    rows = raw.select(fields.alias("flight")).select("flight.*").withWatermark("sched_dep", "1 hour")
    rows.createOrReplaceTempView("flights")
    result = spark.sql((PROJECT / "pipelines/flight_delays/transform.sql").read_text())

    def write(frame: DataFrame, batch: int) -> None:
        write_deltalake(f"{folder}/table", frame.toArrow(), mode="append")

    (
        result.writeStream.outputMode("append")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main()
