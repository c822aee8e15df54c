"""What a fold costs by the number of its buckets: records a CPU-second of the process tree in later batches. Report only.

`python -m lab.bench.folds [--keys 20000] [--buckets 0 64] [--per-batch 20000] [--batches 12]`. In each batch no key has two records. A
fold keeps a count, a sum, a maximum and a time of each key. With more keys than records in a batch, all keys are written first, in
batches of 250,000. 0 buckets is a state for each key, the layout of 0.1; of it only a third of the batches is run. The first third
of the batches is left out, and before all runs the JVM is warmed by a run that is not measured. The query is the driver's, from the records' bytes to the rows in the driver's Python; Kafka and the
tables are left out, so that one session serves all numbers. The last column is what the last batch wrote of the state, compressed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from homes.project import REPOSITORY
from lab.bench.measure import tree_cpu_s
from rivertwice.core.instants import from_ms
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.engine.cases import RAW_ARROW, RAW_SCHEMA
from rivertwice.engine.compile import batch_rows, compile_stream
from rivertwice.engine.fold_buckets import with_buckets
from rivertwice.engine.session import spark_session

NAME = "bench_folds"
SEED_BATCH = 250_000
WARM_BATCHES = 5
STRIDE = 7_919  # a prime that divides no number of keys here, so that no batch has a key twice
START_MS = 1_767_225_600_000
YAML = """
name: bench_folds
description: A count, a sum, a maximum and a time of each key.
sources:
  events:
    topic: events
    partitions: 2
    schema: {k: string, at: timestamp, v: bigint, m: "decimal(12,2)"}
    required: [k]
    event_time: at
    max_future: 1 hour
window: {fold: 1 day, at: at}
by: [k]
state: {n: bigint, total: "decimal(18,2)", top: bigint, last: timestamp}
keys: [k]
columns: {at: {}, n: {}, total: {}, top: {}}
types: {at: timestamp, n: bigint, total: "decimal(18,2)", top: bigint}
"""
FOLD = """
from decimal import Decimal


def fold(state, event):
    state = state or {"n": 0, "total": Decimal(0), "top": 0}
    total, top = state["total"] + event["m"], max(state["top"], event["v"])
    after = {"n": state["n"] + 1, "total": total, "top": top, "last": event["at"]}
    return after, [{"n": after["n"], "total": total, "top": top}]
"""


@dataclass(frozen=True)
class Rate:
    """What later batches cost.

    Attributes:
        cpu_s: CPU-seconds of the JVM, of the driver's Python and of the workers that fold.
        state_mb: what the last batch wrote of the state.
    """

    records: int
    cpu_s: tuple[float, float, float]
    state_mb: float

    def line(self, buckets: int) -> str:
        """Return the row of the table."""
        all_s = sum(self.cpu_s)
        parts = "".join(f"{part / self.records * 1e6:>9.1f}" for part in self.cpu_s)
        return (
            f"{buckets:>8} {self.records:>9} {all_s:>7.1f} {self.records / all_s:>16.0f} "
            f"{all_s / self.records * 1e6:>12.1f}{parts} {self.state_mb:>9.1f}"
        )


def records_of(first: int, count: int, keys: int) -> pa.Table:
    """Return records; any `keys` that follow each other have different keys, each in a partition of its own choice."""
    return pa.Table.from_pylist(
        [_record(number, number * STRIDE % keys) for number in range(first, first + count)], RAW_ARROW
    )


def _record(number: int, key: int) -> dict[str, object]:
    at = from_ms(START_MS + number)
    text = f'{{"k":"key-{key}","at":"{at.isoformat()}","v":{number % 1000},"m":{number % 10_000 / 100:.2f}}}'
    place = {"topic": "events", "partition": key % 2, "offset": number}
    return {"key": b"%d" % key, "value": text.encode(), "headers": None, **place, "timestamp": at}


def batches_of(keys: int, per_batch: int, batches: int) -> Iterator[int]:
    """Yield the sizes of the batches: those that write all keys first, then those that are measured."""
    if keys > per_batch:
        yield from [SEED_BATCH] * (keys // SEED_BATCH) + [keys % SEED_BATCH] * bool(keys % SEED_BATCH)
    yield from [per_batch] * batches


def write_log(folder: Path, keys: int, sizes: list[int]) -> None:
    """Write a file for each batch."""
    first = 0
    for number, size in enumerate(sizes):
        path = folder / f"{number:05d}.parquet"
        pq.write_table(records_of(first, size, keys), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))  # the order in which they are read
        first += size


def link_first(log: Path, target: Path, count: int) -> None:
    """Give a run its own folder of the first files."""
    target.mkdir()
    for path in sorted(log.iterdir())[:count]:
        (target / path.name).hardlink_to(path)


def run_stream(
    spark: SparkSession, definition: Definition, log: Path, checkpoint: Path, sizes: list[int], skip: int
) -> Rate:
    """Stream the files; return what the batches after the first `skip` cost."""
    rows_of = batch_rows(definition)
    root = psutil.Process()
    spent: dict[tuple[int, float], float] = {}
    marks: list[dict[str, float]] = []

    def collect(frame: DataFrame, batch: int) -> None:
        assert rows_of(frame, batch).num_rows == sizes[batch]
        spent.update(tree_cpu_s(root))
        marks.append(by_part(root, spent))

    raw = spark.readStream.schema(RAW_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(log))
    writer = compile_stream(spark, definition, raw).writeStream.outputMode("append").foreachBatch(collect)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    begun, ended = marks[skip - 1], marks[-1]
    used = {part: ended[part] - begun[part] for part in ended}
    return Rate(
        sum(sizes[skip:]), (used["jvm"], used["driver"], used["worker"]), written_mb(checkpoint / "state", len(sizes))
    )


def warm_up(spark: SparkSession, definition: Definition, root: Path, per_batch: int) -> None:
    """Run some batches that are not measured, so that the first number of buckets does not pay for the JVM's compiler."""
    sizes = [per_batch] * WARM_BATCHES
    log = root / "log-warm"
    log.mkdir()
    write_log(log, per_batch, sizes)
    run_stream(spark, definition, log, root / "warm", sizes, 1)


def by_part(root: psutil.Process, spent: dict[tuple[int, float], float]) -> dict[str, float]:
    """Return the CPU-seconds of the JVM, of this process and of the workers."""
    jvm = {child.pid for child in root.children() if child.name() == "java"}
    own = {"jvm": 0.0, "driver": 0.0, "worker": 0.0}
    for (pid, _), cpu_s in spent.items():
        own["jvm" if pid in jvm else "driver" if pid == root.pid else "worker"] += cpu_s
    return own


def written_mb(state: Path, version: int) -> float:
    """Return the megabytes of the changelogs of one version of the state."""
    files = [path for path in state.rglob("*.changelog") if int(re.split(r"[_.]", path.name)[0]) == version]
    return sum(path.stat().st_size for path in files) / 1e6


def main() -> None:
    """Run every number of buckets and print the table."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.folds", description=__doc__)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--buckets", type=int, nargs="*", default=[0, 64])
    parser.add_argument("--per-batch", type=int, default=20_000)
    parser.add_argument("--batches", type=int, default=12)
    arguments = parser.parse_args()
    keys, per_batch = arguments.keys, arguments.per_batch
    definition = parse_files({"pipeline.yaml": YAML.encode(), "fold.py": FOLD.encode()}, NAME)
    with tempfile.TemporaryDirectory(prefix="rivertwice-folds-") as name:
        root = Path(name)
        spark = spark_session(Settings(REPOSITORY, root / "home"), "bench-folds")
        print(f"{keys:,} keys, {per_batch:,} records a batch")
        print(f"{'buckets':>8} {'records':>9} {'CPU-s':>7} {'records a CPU-s':>16} {'us a record':>12}", end="")
        print(f"{'JVM':>9}{'driver':>9}{'workers':>9} {'state MB':>9}", flush=True)
        log = root / "log"
        log.mkdir()
        sizes = list(batches_of(keys, per_batch, arguments.batches))
        write_log(log, keys, sizes)
        warm_up(spark, definition, root, per_batch)
        for buckets in arguments.buckets:
            count = arguments.batches if buckets else max(2, arguments.batches // 3)
            seeds = len(sizes) - arguments.batches
            own = root / f"log-{buckets}"
            link_first(log, own, seeds + count)
            skip = seeds + max(1, count // 3)
            rate = run_stream(
                spark, with_buckets(definition, buckets), own, root / str(buckets), sizes[: seeds + count], skip
            )
            print(rate.line(buckets), flush=True)
            shutil.rmtree(root / str(buckets))
        spark.stop()


if __name__ == "__main__":
    main()
