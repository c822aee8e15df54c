"""What decoding costs in a warm JVM: the year's flights decoded and grouped, ours against the hand-written job's, in turn.

`python -m lab.bench.decode [--rounds 8]`: the records lie in Parquet files, without Kafka and state; CPU-seconds of the JVM,
the first two rounds left out. Both have an observation below the grouping, so that Spark does not parse a record twice.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lab.bench.by_hand import SCHEMA
from lab.flights.data import flights_csv
from lab.flights.plan import plan_records, read_flights
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.engine.compile import compile_stream
from rivertwice.engine.relations import run_sql
from rivertwice.engine.session import spark_session

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
WARM = 2


def write_records(settings: Settings, file: Path) -> int:
    """Write the year's flights in Kafka's columns; return how many they are."""
    records = plan_records(read_flights(flights_csv(settings)), 4)
    times = [datetime.fromtimestamp(record.timestamp_ms / 1000, UTC) for record in records]
    columns = {
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "headers": pa.array([[{"key": k, "value": v} for k, v in record.headers] for record in records], HEADERS),
        "topic": pa.array(["flights"] * len(records)),
        "partition": pa.array([record.partition for record in records], pa.int32()),
        "offset": pa.array(range(len(records)), pa.int64()),
        "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
    }
    pq.write_table(pa.table(columns), file, row_group_size=len(records) // 4)
    return len(records)


def main() -> None:
    """Run both in turn and print the medians."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.decode", description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="rivertwice-decode-") as name:
        settings = Settings(Settings.from_env().project, Path(name), spark_master="local[2]")
        count = write_records(settings, Path(name) / "records.parquet")
        spark = spark_session(settings, "bench-decode")
        raw = spark.read.parquet(str(Path(name) / "records.parquet"))
        costs: dict[str, list[float]] = {"ours": [], "by hand": []}
        for _ in range(rounds):
            costs["ours"].append(cost_of(spark, ours(spark, settings, raw)))
            costs["by hand"].append(cost_of(spark, by_hand(spark, settings, raw)))
        for side, spent in costs.items():
            print(f"{side}: {count} records, CPU-seconds, median {statistics.median(spent[WARM:]):.2f}: {spent}")
        spark.stop()


def ours(spark: SparkSession, settings: Settings, raw: DataFrame) -> DataFrame:
    """Return the stream's frame, over records that are all there."""
    definition = load_definition(settings.definitions / "flight_delays")
    return compile_stream(spark, definition, raw)


def by_hand(spark: SparkSession, settings: Settings, raw: DataFrame) -> DataFrame:
    """Return the hand-written job's frame, over the same records."""
    definition = load_definition(settings.definitions / "flight_delays")
    options = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSS]XXX"}
    rows = raw.select(F.from_json(F.col("value").cast("string"), SCHEMA, options).alias("flight")).select("flight.*")
    return run_sql(spark, definition, definition.transform_sql, rows.observe("rows", F.count(F.lit(1))))


def cost_of(spark: SparkSession, frame: DataFrame) -> float:
    """Return the CPU-seconds that the JVM needs for all rows of a frame."""
    java: Any = spark._jvm
    process = psutil.Process(int(java.java.lang.ProcessHandle.current().pid()))
    before = sum(process.cpu_times()[:2])
    frame.write.format("noop").mode("overwrite").save()
    return round(float(sum(process.cpu_times()[:2]) - before), 2)


if __name__ == "__main__":
    main()
