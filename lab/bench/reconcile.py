"""What a reconcile costs as history grows: with nothing new, after one record in a hundred is new, and as a whole.

`python -m lab.bench.reconcile` makes histories of a made-up stream and needs no broker: the log lies in the archive. The story: JSON records of
200 keys, 100 a second of event time, one in a hundred late by up to a minute; one-minute windows per key. Figures are CPU-seconds of
this process and its JVM, in a session that is warm; the first reconcile of a history is the whole one.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from homes.ledger import NOW, ledger_row
from homes.project import TO_RUN, make_project
from lab.bench.measure import tree_cpu_s
from rivertwice.backfill.compute import BLOCK_BITS, MOST_RUNS
from rivertwice.backfill.ranges import coalesce
from rivertwice.backfill.store import BACKFILL_KEY, ChunkRecord
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle, build_bundle
from rivertwice.engine.session import spark_session
from rivertwice.log.archive_table import PARTITION_BY, SCHEMA, transaction_names
from rivertwice.reconcile.report import ReconcileReport
from rivertwice.reconcile.run import reconcile
from rivertwice.reconcile.unchanged import reconcile_unchanged
from rivertwice.storage.table import Table
from rivertwice.timeline.digest import digest_rows
from rivertwice.timeline.ledger import LEDGER_KEY, LedgerRow, append_ledger
from rivertwice.timeline.lineage import Timeline, create_timeline
from rivertwice.timeline.sequence import last_seq, move_head, publish
from rivertwice.timeline.served import rebuild_served
from rivertwice.timeline.serving import Publication

TOPIC = "events"
KEYS = 200
STEP_MS = 10
WINDOW_MS = 60_000
DELAY_MS = 10_000
LATE_MS = 60_000
SLICE = 500_000
YAML = """
name: p
description: windows
sources:
  events:
    topic: events
    partitions: 1
    schema: {k: string, at: timestamp, v: bigint}
    required: [k, v]
    event_time: at
    watermark: 10 s
    max_future: 10000 days
window: {size: 60 s}
keys: [k]
count_column: n
columns: {n: {}, total: {}}
"""
SQL = """
SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS n, sum(v) AS total
FROM events GROUP BY window(at, '60 seconds'), k
"""
Numbers = npt.NDArray[np.int64]
_TIME = pa.timestamp("us", "UTC")


class Story:
    """A stream that commits batches of the same size as Spark's would, worked out with arrays."""

    def __init__(
        self,
        root: Path,
        records: int,
        batch: int,
        step_ms: int = STEP_MS,
        *,
        yaml: str = YAML,
        chunk: int = SLICE,
    ) -> None:
        self.settings: Settings = make_project(root, {"p": {"pipeline.yaml": yaml, "transform.sql": SQL}}, links=TO_RUN)
        self.home: PipelineHome = self.settings.pipeline("p")
        self.bundle: Bundle = build_bundle(self.settings.definitions / "p")
        self.bundle.save(self.home.bundles)
        self._batch = batch
        chance = np.random.default_rng(1)
        at = 1_000_000_000 + step_ms * np.arange(records, dtype=np.int64)
        is_late = chance.random(records) < 0.01
        self._at: Numbers = np.where(is_late, at - chance.integers(0, LATE_MS, records), at)
        self._key: Numbers = chance.integers(0, KEYS, records)
        self._done = 0
        self._watermark_ms = 0
        self._open: dict[tuple[int, int], list[int]] = {}
        self._begin()
        for first in range(0, records, chunk):
            self._archive(first, min(records, first + chunk))

    def commit(self, until: int) -> None:
        """Commit the records up to an offset, in one append to the changelog and one to the ledger, as upkeep leaves them."""
        tables, rows = [], []
        while self._done < until:
            table, row = self._commit_batch(self._done, min(until, self._done + self._batch))
            tables.append(table)
            rows.append(row)
        for first in range(0, len(rows), 5_000):
            part = slice(first, first + 5_000)
            Table(self.home.tables.changelog, partition_by=["_day"]).append(
                pa.concat_tables(tables[part]),
                transactions={"p#t1": rows[part][-1].batch},
                metadata={LEDGER_KEY: rows[part][-1].to_json()},
            )
            append_ledger(self.home, rows[part])

    def serve(self) -> None:
        rebuild_served(self.home, self.bundle.definition)

    @property
    def starts(self) -> list[int]:
        """The starts of the windows of the records that are committed, in order (epoch ms)."""
        at = self._at[: self._done]
        starts: list[int] = np.unique(at - at % WINDOW_MS).tolist()
        return starts

    def publish(self, starts: Sequence[int]) -> None:
        """Publish what a backfill of some windows computes now, with the offsets that it finds."""
        at, key = self._at[: self._done], self._key[: self._done]
        start = at - at % WINDOW_MS
        inside = np.isin(start, np.array(starts))
        pairs, counts = np.unique(start[inside] * 1000 + key[inside], return_counts=True)
        window, name = pairs // 1000, pairs % 1000
        offsets = np.flatnonzero(inside)
        blocks = np.split(offsets, np.flatnonzero(np.diff(offsets >> BLOCK_BITS)) + 1)
        runs = coalesce([(int(own[0]), int(own[-1]) + 1) for own in blocks], 1 << BLOCK_BITS, MOST_RUNS)
        backfill = f"bf{last_seq(self.home)}"
        rows = {
            "_format": pa.array([1] * len(pairs), pa.int32()),
            "_backfill": pa.array([backfill] * len(pairs), pa.string()),
            "_chunk": pa.array([0] * len(pairs), pa.int32()),
            "_day": pa.array(["1970-01-12"] * len(pairs), pa.string()),
            "window_start": pa.array(window * 1000, pa.int64()).cast(_TIME),
            "window_end": pa.array((window + WINDOW_MS) * 1000, pa.int64()).cast(_TIME),
            "k": pa.array([f"k{number}" for number in name.tolist()], pa.string()),
            "n": pa.array(counts, pa.int64()),
            "total": pa.array(counts * name, pa.int64()),
        }
        record = ChunkRecord(0, len(pairs), {}, {TOPIC: {0: runs}}, 1)
        Table(self.home.tables.corrections, partition_by=["_day"]).append(
            pa.table(rows), metadata={BACKFILL_KEY: record.to_json(backfill)}
        )
        ranges = tuple((low, low + WINDOW_MS) for low in sorted(starts))
        as_of = {TOPIC: {0: self._done}}
        semantics = self.bundle.fingerprint.semantics
        entry = Publication(0, backfill, ranges, semantics, self.bundle.id, as_of, rows=len(pairs))
        publish(self.home, entry.to_payload(), expected_seq=last_seq(self.home), now=NOW)

    def _commit_batch(self, first: int, end: int) -> tuple[pa.Table, LedgerRow]:
        number = first // self._batch
        at, key = self._at[first:end], self._key[first:end]
        before_ms = self._watermark_ms
        if first:
            self._watermark_ms = max(before_ms, int(self._at[:first][-self._batch * 2 :].max()) - DELAY_MS)
        start = at - at % WINDOW_MS
        for window, name in zip(
            start[start + WINDOW_MS > before_ms].tolist(), key[start + WINDOW_MS > before_ms].tolist(), strict=True
        ):
            counts = self._open.setdefault((window, name), [0, 0])
            counts[0] += 1
            counts[1] += name
        closed = sorted(pair for pair in self._open if pair[0] + WINDOW_MS <= self._watermark_ms)
        counted = [self._open.pop(pair) for pair in closed]
        emitted = pa.table(
            {
                "window_start": pa.array([window * 1000 for window, _ in closed], pa.int64()).cast(_TIME),
                "window_end": pa.array([(window + WINDOW_MS) * 1000 for window, _ in closed], pa.int64()).cast(_TIME),
                "k": pa.array([f"k{name}" for _, name in closed], pa.string()),
                "n": pa.array([count for count, _ in counted], pa.int64()),
                "total": pa.array([total for _, total in counted], pa.int64()),
            }
        )
        row = ledger_row(
            number,
            bundle=self.bundle.id,
            topic_ids={TOPIC: "id"},
            batch_watermark_ms=self._watermark_ms,
            start_offsets={TOPIC: {"0": first}},
            end_offsets={TOPIC: {"0": end}},
            read=end - first,
            accepted=end - first,
            min_event_ms=int(at.min()),
            max_event_ms=int(at.max()),
            emitted=emitted.num_rows,
            digest=digest_rows(emitted, emitted.column_names),
        )
        self._done = end
        count = emitted.num_rows
        stamps = {
            "_format": pa.array([1] * count, pa.int32()),
            "_timeline": pa.array(["t1"] * count, pa.string()),
            "_batch": pa.array([number] * count, pa.int64()),
            "_day": pa.array(["1970-01-12"] * count, pa.string()),
        }
        return pa.table({**stamps, **{name: emitted[name] for name in emitted.column_names}}), row

    def _begin(self) -> None:
        prints = self.bundle.fingerprint
        line = Timeline(
            pipeline="p",
            timeline="t1",
            parent=None,
            first_batch=0,
            genesis={TOPIC: {"0": 0}},
            bundle=self.bundle.id,
            fingerprint={"state": prints.state, "semantics": prints.semantics, "decode": prints.decode},
            cluster_id="c",
            topic_ids={TOPIC: "id"},
            created_at=NOW,
        )
        create_timeline(self.home, line)
        move_head(self.home, "t1", reason="bench", expected_seq=0, now=NOW)

    def _archive(self, first: int, end: int) -> None:
        at, key = self._at[first:end], self._key[first:end]
        instants = np.datetime_as_string(at.astype("datetime64[ms]")).tolist()
        values = [
            f'{{"k":"k{name}","at":"{instant}Z","v":{name}}}'.encode()
            for instant, name in zip(instants, key.tolist(), strict=True)
        ]
        count = end - first
        columns = {
            "_format": pa.array([1] * count, pa.int32()),
            "cluster_id": pa.array(["c"] * count),
            "topic_id": pa.array(["id"] * count),
            "topic": pa.array([TOPIC] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(np.arange(first, end)),
            "timestamp": pa.array(at * 1000).cast(_TIME),
            "timestamp_type": pa.array([0] * count, pa.int32()),
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.nulls(count, SCHEMA.field("headers").type),
            "day": pa.array(["1970-01-12"] * count),
        }
        low, high = transaction_names("id", 0)
        Table(self.settings.archive(TOPIC), partition_by=PARTITION_BY).append(
            pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA), transactions={low: 0, high: end}
        )


def cpu_of(act: Callable[[], object]) -> float:
    """Return the CPU-seconds that this process and its JVM spend on a call."""
    root = psutil.Process()
    before = tree_cpu_s(root)
    act()
    return sum(tree_cpu_s(root).values()) - sum(before.values())


def run(spark: SparkSession, story: Story, *, full: bool = False) -> ReconcileReport:
    report = reconcile(spark, story.settings, "p", full=full, now=utc_now(), progress=lambda _: None)
    assert report.gate.passed, report.gate.alerts
    assert report.sealed, report.why
    return report


def measure(spark: SparkSession, folder: Path, records: int, batches: int) -> list[float]:
    """Return the figures of one history, in the order of `HEADER`."""
    fresh = records // 100
    story = Story(folder, records + 2 * fresh, max(1, records // batches))
    story.commit(records)
    story.serve()
    whole = cpu_of(lambda: run(spark, story))
    nothing = min(
        cpu_of(lambda: reconcile_unchanged(story.settings, "p", now=utc_now(), progress=lambda _: None))
        for _ in range(3)
    )
    after = []
    for number in (1, 2):
        story.commit(records + number * fresh)
        story.serve()
        after.append(cpu_of(lambda: run(spark, story)))
    return [whole, nothing, after[-1], after[-1] / whole, psutil.Process().memory_info().rss / 1e6]


HEADER = ("records", "batches", "whole", "nothing new", "1 % new", "1 % new / whole", "Python MB")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["1000000:1000", "3000000:1000"], help="records:batches")
    sizes = [tuple(map(int, size.split(":"))) for size in parser.parse_args(arguments).sizes]
    print("| " + " | ".join(HEADER) + " |\n" + "|---" * len(HEADER) + "|")
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as root:
        warm = Story(Path(root) / "warm", 20_000, 200)
        warm.commit(20_000)
        warm.serve()
        spark = spark_session(warm.settings, "bench-reconcile")
        try:
            run(spark, warm)
            run(spark, warm, full=True)
            for records, batches in sizes:
                figures = measure(spark, Path(root) / f"{records}-{batches}", records, batches)
                print(
                    f"| {records:,} | {batches:,} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |",
                    flush=True,
                )
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
