"""Two sources in one query: what each accepted is counted apart, and every watermark is one that the ledger explains.

One file per micro-batch; topic a carries on all the time, b is silent for long. Runs end and begin again, and once a batch
is left unfinished, as by a driver that died behind its commit.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from histories import two_sources as two
from homes.ledger import ledger_row
from rivertwice.core.instants import EPOCH, to_iso, to_ms
from rivertwice.definition.definition import Definition
from rivertwice.engine.cases import RAW_ARROW, RAW_SCHEMA
from rivertwice.engine.session import watermark_confs
from rivertwice.reconcile.rederive import derive_chain_of_many
from rivertwice.savepoint.replay import steer_watermark
from rivertwice.stream.driver import observed_counts
from rivertwice.timeline.counts import BatchCounts
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.watermarks import rule_of, watermarks_after

pytestmark = pytest.mark.spark

SIZE_S = 10
Event = tuple[str, str, int, int]
"""(topic, key, event second, value)."""


@dataclass
class Stream:
    """What a query over the files did: watermarks, counts and epochs by batch, and the rows it emitted."""

    folder: Path
    definition: Definition
    steered: dict[int, int] = field(default_factory=dict)
    counts: dict[int, dict[str, BatchCounts]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    emitted: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    runs: int = 0

    def run(self, spark: SparkSession) -> None:
        self.runs += 1
        for key, value in watermark_confs(self.definition).items():
            spark.conf.set(key, value)
        started, holder = threading.Event(), []

        def collect(frame: DataFrame, batch: int) -> None:
            started.wait()
            rows = frame.toArrow().to_pylist()
            if batch in self.steered:
                assert steer_watermark(holder[0]._jsq.streamingQuery(), self.steered[batch])
            if batch in self.counts:
                return  # it is committed: only its state is made again
            self.counts[batch] = observed_counts(holder[0], self.definition)
            self.epochs[batch] = self.runs
            for row in rows:
                at = to_ms(row["window_start"]) // 1000, row["k"]
                assert at not in self.emitted
                self.emitted[at] = row["n"], row["total"]

        raw = spark.readStream.schema(RAW_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self.folder / "log"))
        writer = two.union_stream(spark, self.definition, raw).writeStream.outputMode("append").foreachBatch(collect)
        checkpoint = self.folder / "checkpoint"
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        holder.append(query)
        started.set()
        query.awaitTermination()

    def forget_last_commit(self) -> None:
        commits = self.folder / "checkpoint" / "commits"
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        for name in (str(last), f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)

    def watermark(self, batch: int) -> int:
        text = (self.folder / "checkpoint" / "offsets" / str(batch)).read_text()
        _, metadata, *sources = text.split("\n")
        assert sources == [sources[0]] * len(self.definition.sources)  # a line for each branch, all the same
        return int(json.loads(metadata)["batchWatermarkMs"])

    def next_watermark(self, batch: int) -> int:
        text = (self.folder / "checkpoint" / "commits" / str(batch)).read_text()
        return int(json.loads(text.split("\n")[1])["nextBatchWatermarkMs"])

    def rows(self) -> list[LedgerRow]:
        return [
            ledger_row(n, epoch=self.epochs[n], batch_watermark_ms=self.watermark(n), by_topic=self.counts[n])
            for n in sorted(self.counts)
        ]

    def put(self, number: int, events: Sequence[Event | None], offsets: Counter[str]) -> None:
        records = []
        for event in events:
            topic, value = (two.A, b"broken") if event is None else (event[0], encoded(event))
            records.append(
                {
                    "key": b"k",
                    "value": value,
                    "headers": None,
                    "topic": topic,
                    "partition": 0,
                    "offset": offsets[topic],
                    "timestamp": EPOCH,
                }
            )
            offsets[topic] += 1
        path = self.folder / "log" / f"{number:05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(records, schema=RAW_ARROW), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def encoded(event: Event) -> bytes:
    _, key, second, value = event
    return json.dumps({"k": key, "at": to_iso(EPOCH + timedelta(seconds=second)), "v": value}).encode()


def counted(events: Sequence[Event | None]) -> dict[str, BatchCounts]:
    found = {}
    for topic in (two.A, two.B):
        mine = [event for event in events if event is not None and event[0] == topic]
        bad = sum(event is None for event in events) if topic == two.A else 0
        times = [event[2] * 1000 for event in mine]
        found[topic] = BatchCounts(len(mine) + bad, bad, len(mine), min(times, default=None), max(times, default=None))
    return found


def random_batches(chance: random.Random) -> list[list[Event | None]]:
    now, batches = 100, []
    for number in range(8):
        batch: list[Event | None] = []
        for _ in range(chance.randint(2, 6)):
            now += chance.choice([0, 1, 5, 20])
            silent = 1 <= number <= 4
            topic = two.A if silent or chance.random() < 0.5 else two.B
            late = chance.choice([0, 0, 0, 10, 40])
            batch.append((topic, chance.choice("xy"), now - late, chance.randint(1, 9)))
        batches.append([*batch, None] if chance.random() < 0.3 else batch)
    return batches


@pytest.mark.parametrize("policy", ["min", "max"])
def test_counts_are_told_apart_and_every_watermark_and_row_is_explained(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    two.lift(monkeypatch)
    stream = Stream(tmp_path, two.two_sources(watermark_policy=policy))
    batches = random_batches(random.Random(7))
    offsets: Counter[str] = Counter()
    for number, events in enumerate(batches):
        stream.put(number, events, offsets)
        if number in (2, 4, 5):
            stream.run(spark)
        if number == 4:
            stream.forget_last_commit()
    stream.run(spark)
    rows = stream.rows()
    read = [row for row in rows if any(one.read for one in row.by_topic.values())]
    assert [dict(row.by_topic) for row in read] == [counted(events) for events in batches]
    rule = rule_of(stream.definition)
    chain = derive_chain_of_many([row.by_topic for row in rows], [rule] * len(rows), rows)
    assert list(chain.batch) == [row.batch_watermark_ms for row in rows]
    assert stream.next_watermark(rows[-1].batch) in watermarks_after(rows, rule)
    assert chain.batch[-1] > 0
    assert len({row.epoch for row in rows}) == 4
    assert stream.emitted == expected_rows(batches, read, rows, chain.late)


def expected_rows(
    batches: Sequence[Sequence[Event | None]], read: Sequence[LedgerRow], rows: Sequence[LedgerRow], late: Sequence[int]
) -> dict[tuple[int, str], tuple[int, int]]:
    """Return the closed windows over the events that were in time: window start and key to count and total."""
    late_of = {row.batch: ms for row, ms in zip(rows, late, strict=True)}
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row, events in zip(read, batches, strict=True):
        for event in events:
            if event is not None:
                start = event[2] // SIZE_S * SIZE_S
                if (start + SIZE_S) * 1000 > late_of[row.batch]:
                    found[start, event[1]].append(event[3])
    closed = rows[-1].batch_watermark_ms
    return {at: (len(each), sum(each)) for at, each in found.items() if (at[0] + SIZE_S) * 1000 <= closed}


def test_a_running_querys_watermark_is_raised_from_its_next_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.lift(monkeypatch)
    stream = Stream(tmp_path, two.two_sources(), steered={0: 60_000, 1: 1_000})
    offsets: Counter[str] = Counter()
    for number in range(3):
        stream.put(number, [(two.A, "x", 100 + number, 1)], offsets)
    stream.run(spark)
    found: Any = [stream.watermark(number) for number in range(3)]
    assert found == [0, 60_000, 60_000]
