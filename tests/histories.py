"""Random histories of a stream: many small ones in one real run, each with events, keys and lateness of its own.

An epoch is a stretch of event time far from the others, so nothing of one can be late in, or touch, another; it has its own
micro-batches and watermarks. In each epoch several histories arrive side by side, told apart by their keys.
"""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from ledger_rows import ledger_row
from rivertwice.config import Settings
from rivertwice.instants import EPOCH, to_iso
from rivertwice.pipeline.cases import RAW_ARROW, RAW_SCHEMA
from rivertwice.pipeline.compile import accepted, batch_rows, compile_stream
from rivertwice.pipeline.decode import decode
from rivertwice.pipeline.definition import Definition, parse_files
from rivertwice.pipeline.fingerprint import fingerprint_of
from rivertwice.reconcile.assess import Derived, gather_evidence
from rivertwice.reconcile.balance import Account
from rivertwice.reconcile.derive import batch_marks, tag_batches
from rivertwice.reconcile.late_rule import with_watermarks
from rivertwice.reconcile.rederive import BatchCounts, Ranges, derive_chain
from rivertwice.reconcile.rules import late_rule
from rivertwice.reconcile.run import draw_balance
from rivertwice.reconcile.verdict import Evidence
from rivertwice.reconcile.view import HeadView, Meaning

TOPIC = "events"
PARTITIONS = 2
SIDE_BY_SIDE = 20
EPOCH_SECONDS = 100_000
DELAY_S = 20
_YAML = """
name: histories
description: random histories
sources:
  events:
    topic: events
    partitions: 2
    schema: {k: string, at: timestamp, v: bigint}
    required: [k, v]
    event_time: at
    watermark: 20 s
    max_future: 10000 days
window: WINDOW
keys: [k]
count_column: n
columns: {n: {}, total: {}, top: {}}
"""
_GROUPED = """
SELECT FUNCTION.start AS window_start, FUNCTION.end AS window_end, k, count(*) AS n, sum(v) AS total, max(v) AS top
FROM events GROUP BY CALL, k
"""
_JOINED = """
SELECT a.window_start, a.window_end, a.k, a.at, a.record AS id, count(b.v) AS n, coalesce(sum(b.v), 0) AS total, max(b.v) AS top
FROM events AS a
LEFT JOIN events AS b
  ON b.window_start = a.window_start AND b.k = a.k AND b.v < a.v
  AND b.at BETWEEN a.at - INTERVAL 20 SECONDS AND a.at + INTERVAL 40 SECONDS
WHERE a.v <> 7
GROUP BY a.window_start, a.window_end, a.k, a.at, a.record
"""
_FIRST = """
SELECT window_start, window_end, k, at, record AS id, n, total, coalesce(top, 0) AS top
FROM (
  SELECT
    *,
    count(*) OVER (PARTITION BY window_start, k ORDER BY at RANGE BETWEEN INTERVAL 60 SECONDS PRECEDING AND CURRENT ROW) AS n,
    sum(v) OVER (PARTITION BY window_start, k ORDER BY at RANGE BETWEEN INTERVAL 60 SECONDS PRECEDING AND CURRENT ROW) AS total,
    lag(v) OVER (PARTITION BY window_start, k, v ORDER BY at, record) AS top
  FROM events
)
WHERE n > 1
"""
_FOLD = """
def fold(state, event):
    state = state or {"n": 0, "total": 0, "top": None}
    if event["v"] == 7:
        return state, []
    if event["v"] == 11 and state["n"] > 9:
        return None, [{"n": 0, "total": state["total"]}]
    top = max(event["v"], state["top"] or 0)
    state = {"n": state["n"] + 1, "total": (state["total"] * 31 + event["v"]) % 1_000_003, "top": top}
    return state, [dict(state)] * (2 if event["v"] == 5 else 1)
"""
_ROWS = "SELECT * FROM events WHERE v <> 7"
_KEYS = "keys: [k]\ncount_column: n"
_SLICED = "keys: [k, at, id]"
_FOLDED = """keys: [k, at]
by: [k]
state: {n: bigint, total: bigint, top: bigint}
types: {at: timestamp, n: bigint, total: bigint, top: bigint}"""
SPREAD = "-2"
"""Keys that end so lie in several partitions of a fold's log, all others in one."""


@dataclass(frozen=True)
class Kind:
    """A kind of windows: what is written under `window`, the transform or the fold, and which of the two others it is."""

    window: str
    sql: str
    sliced: bool = False
    folded: bool = False


def _grouped(window: str, call: str) -> Kind:
    return Kind(window, _GROUPED.replace("FUNCTION", call.partition("(")[0]).replace("CALL", call))


KINDS = {
    "tumbling": _grouped("{size: 1 minute}", "window(at, '1 minute')"),
    "hopping": _grouped("{size: 60 s, slide: 20 s}", "window(at, '1 minute', '20 seconds')"),
    "session": _grouped("{session: 15 s}", "session_window(at, '15 seconds')"),
    "joined slices": Kind("{every: 20 s, lookback: 20 s, lookahead: 40 s, at: at}", _JOINED, sliced=True),
    "rolling slices": Kind("{every: 30 s, lookback: 60 s, at: at}", _FIRST, sliced=True),
    "fold": Kind("{fold: 1 hour, at: at}", _FOLD, folded=True),
}


def definition_files(kind: str) -> dict[str, str]:
    """Return the files of a definition with windows of a kind; some records do not pass the row filter, where there is one."""
    one = KINDS[kind]
    yaml = _YAML.replace("WINDOW", one.window)
    if one.folded:
        yaml = yaml.replace(_KEYS, _FOLDED).replace("    watermark: 20 s\n", "")
        return {"pipeline.yaml": yaml, "fold.py": one.sql}
    files = {"pipeline.yaml": yaml.replace(_KEYS, _SLICED) if one.sliced else yaml, "transform.sql": one.sql}
    return files if one.sliced else {**files, "rows.sql": _ROWS}


def make_definition(kind: str) -> Definition:
    """Return that definition."""
    return parse_files({name: text.encode() for name, text in definition_files(kind).items()}, "histories")


@dataclass(frozen=True)
class Record:
    """One record of the log; `event_s` None: it cannot be decoded."""

    partition: int
    offset: int
    key: str
    event_s: float | None
    value: int


Batch = list[Record]


def random_batches(chance: random.Random, histories: int) -> list[Batch]:
    """Return the micro-batches of so many histories, epoch after epoch."""
    offsets = [0] * PARTITIONS
    batches: list[Batch] = []
    for epoch in range(-(-histories // SIDE_BY_SIDE)):
        arrivals: list[tuple[float, str, float]] = []
        for side in range(SIDE_BY_SIDE):
            arrivals += _history(chance, f"h{epoch}-{side}", (epoch + 1) * EPOCH_SECONDS)
        arrivals.sort()
        cuts = sorted(chance.sample(range(1, len(arrivals)), chance.randint(12, 16)))
        for low, high in zip([0, *cuts], [*cuts, len(arrivals)], strict=True):
            batch = []
            for _, key, event_s in arrivals[low:high]:
                partition = chance.randrange(PARTITIONS)
                broken = chance.random() < 0.02
                batch.append(
                    Record(
                        partition,
                        offsets[partition],
                        key,
                        None if broken else event_s,
                        chance.choice([1, 2, 3, 5, 7, 11]),
                    )
                )
                offsets[partition] += 1
            batches.append(batch)
    return batches


def keyed(batches: Sequence[Batch], *, spread: bool = True) -> list[Batch]:
    """Return the same records as a topic keyed by `k` holds them: all of a key in one partition, but for some keys (`spread`)."""
    offsets = [0] * PARTITIONS
    found = []
    for batch in batches:
        moved = []
        for record in batch:
            whole = record.event_s is not None and not (spread and record.key.endswith(SPREAD))
            partition = zlib.crc32(record.key.encode()) % PARTITIONS if whole else record.partition
            moved.append(replace(record, partition=partition, offset=offsets[partition]))
            offsets[partition] += 1
        found.append(moved)
    return found


def _history(chance: random.Random, name: str, base: int) -> Iterator[tuple[float, str, float]]:
    """Yield (arrival, key, event time) of 30 to 60 events; many times are multiples of 5 s, so that bounds are met exactly."""
    keys = [f"{name}-{number}" for number in range(chance.randint(1, 3))]
    tardy, far = chance.choice([0.0, 0.1, 0.3, 0.5]), chance.choice([20, 80, 250])
    now = float(base)
    for _ in range(chance.randint(30, 60)):
        now += chance.choice([0, 1, 2, 5, 5, 10, 25])
        # The second span is where a session has been emitted and a record next to it is not late yet.
        late = chance.choice([chance.uniform(0, far), chance.uniform(30, 90)]) if chance.random() < tardy else 0
        event = now - late
        yield now, chance.choice(keys), round(event, 3) if chance.random() < 0.2 else event // 5 * 5


@dataclass(frozen=True)
class Run:
    """What Spark made of the batches, and what is derived from the log.

    Attributes:
        evidence: what judges look at. partitions, total: the balance. watermarks: as the checkpoint has them.
    """

    evidence: Evidence
    derived: Derived
    partitions: dict[int, Account]
    total: Account
    watermarks: list[int]


def run_histories(
    spark: SparkSession, definition: Definition, batches: Sequence[Batch], folder: Path, restarts: Sequence[int]
) -> Run:
    """Run the batches as one stream, one file each, ended and started again behind each of `restarts`, and derive the rest."""
    (folder / "log").mkdir(parents=True)
    emitted: list[pa.Table] = []
    rows_of = batch_rows(definition)

    def collect(frame: DataFrame, batch: int) -> None:
        rows = rows_of(frame)
        stamps = {
            "_timeline": pa.array(["t1"] * rows.num_rows, pa.string()),
            "_batch": pa.array([batch] * rows.num_rows, pa.int64()),
        }
        emitted.append(pa.table({**stamps, **{name: rows[name] for name in rows.column_names}}))

    for number, batch in enumerate(batches):
        _write(folder / "log" / f"{number:05d}.parquet", number, batch)
        if number in restarts:
            _run(spark, definition, folder, collect)
    _run(spark, definition, folder, collect)
    planned = _planned(folder / "checkpoint", batches)
    ranges = [ranges for ranges, _ in planned]
    raw = spark.read.schema(RAW_SCHEMA).parquet(str(folder / "log"))
    _, source = definition.source
    tagged = tag_batches(decode(raw, source).drop("_key", "_value", "_headers"), batch_marks(spark, ranges)).cache()
    by_partition = _count(batches, ranges)
    counts = [BatchCounts() for _ in ranges]
    for (index, _), found in by_partition.items():
        counts[index] = counts[index].plus(found)
    chain = derive_chain(counts, [source.watermark // timedelta(milliseconds=1)] * len(ranges))
    derived = Derived(ranges, by_partition, counts, chain, [])
    view = _view(definition, len(ranges), pa.concat_tables(emitted), folder)
    rule = late_rule(spark, definition, with_watermarks(spark, accepted(tagged, source), chain, view.groups), chain)
    evidence, _ = gather_evidence(view, derived, rule)
    dead: dict[int, int] = {}
    for record in (record for batch in batches for record in batch if record.event_s is None):
        dead[record.partition] = dead.get(record.partition, 0) + 1
    partitions, total = draw_balance(derived, dead, rule.pairs(), evidence, definition.window, rule.silent())
    tagged.unpersist()
    return Run(evidence, derived, partitions, total, [watermark for _, watermark in planned])


def _write(path: Path, number: int, batch: Batch) -> None:
    rows = [
        {
            "key": record.key.encode(),
            "value": record_bytes(record),
            "headers": None,
            "topic": TOPIC,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": EPOCH,
        }
        for record in batch
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=RAW_ARROW), path)
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def record_bytes(record: Record) -> bytes:
    """Return the record's value as it lies in the log."""
    if record.event_s is None:
        return b"broken"
    at = to_iso(EPOCH + timedelta(milliseconds=round(record.event_s * 1000)))
    return json.dumps({"k": record.key, "at": at, "v": record.value}).encode()


def _run(spark: SparkSession, definition: Definition, folder: Path, collect: Any) -> None:
    reader = spark.readStream.schema(RAW_SCHEMA).option("maxFilesPerTrigger", 1)
    frame = compile_stream(spark, definition, reader.parquet(str(folder / "log")))
    writer = frame.writeStream.outputMode("append").foreachBatch(collect)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def _planned(checkpoint: Path, batches: Sequence[Batch]) -> list[tuple[Ranges, int]]:
    """Return each micro-batch's offset ranges and watermark; a batch without a new file read nothing."""
    found = []
    position = dict.fromkeys(range(PARTITIONS), 0)
    read = -1
    for path in sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name)):
        lines = path.read_text().splitlines()
        last = int(json.loads(lines[2])["logOffset"])
        ranges: Ranges = {partition: (at, at) for partition, at in position.items()}
        for record in (record for batch in batches[read + 1 : last + 1] for record in batch):
            start, end = ranges[record.partition]
            ranges[record.partition] = (start, max(end, record.offset + 1))
        position = {partition: end for partition, (_, end) in ranges.items()}
        read = last
        found.append((ranges, int(json.loads(lines[1])["batchWatermarkMs"])))
    return found


def _count(batches: Sequence[Batch], ranges: Sequence[Ranges]) -> dict[tuple[int, int], BatchCounts]:
    found: dict[tuple[int, int], BatchCounts] = {}
    for record in (record for batch in batches for record in batch):
        index = next(
            index
            for index, batch in enumerate(ranges)
            if batch[record.partition][0] <= record.offset < batch[record.partition][1]
        )
        ms = None if record.event_s is None else round(record.event_s * 1000)
        one = BatchCounts(1, int(ms is None), int(ms is not None), ms, ms)
        found[index, record.partition] = found.get((index, record.partition), BatchCounts()).plus(one)
    return found


def _view(definition: Definition, batches: int, stream: pa.Table, folder: Path) -> HeadView:
    marks = fingerprint_of(definition)
    settings = Settings(project=folder, home=folder / "home")
    return HeadView(
        home=settings.pipeline("histories"),
        rows=[ledger_row(number) for number in range(batches)],
        groups=[0] * batches,
        meanings=[Meaning(definition, marks.semantics, marks.decode)],
        genesis=dict.fromkeys(range(PARTITIONS), 0),
        sequence=0,
        publications=[],
        stream=stream,
        dead=None,
        served=None,
        served_stamp=None,
    )
