"""Folds in Spark: values cross whole, a failing fold stops at an address, the state is readable."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from homes.one_source import events_yaml
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.engine.cases import RAW_ARROW, RAW_SCHEMA
from rivertwice.engine.compile import batch_rows, compile_batch, compile_stream
from rivertwice.engine.decode import decode
from rivertwice.engine.fold_buckets import bucket_of, load_bucket
from rivertwice.engine.relations import accepted
from rivertwice.savepoint.proof import read_state
from rivertwice.stream.failures import classify_failure

pytestmark = pytest.mark.spark
YAML = (
    events_yaml(
        '{k: string, at: timestamp, b: bigint, i: int, d: double, m: "decimal(38,10)", t: timestamp, f: boolean}'
    )
    + """
window: {fold: 1 day, at: at}
by: [k]
state: {b: bigint, i: int, d: double, m: "decimal(38,10)", t: timestamp, f: boolean, s: string, seen: json}
keys: [k]
columns: {at: {}, b: {}, i: {}, d: {}, m: {}, t: {}, f: {}, s: {}}
types: {at: timestamp, b: bigint, i: int, d: double, m: "decimal(38,10)", t: timestamp, f: boolean, s: string}
"""
)
ECHO = """
def fold(state, event):
    fields = ("b", "i", "d", "m", "t", "f")
    rows = [{name: (state or {}).get(name) for name in (*fields, "s")}]
    after = {name: event[name] for name in fields}
    return {**after, "s": event["k"] + "\\u2028\\0", "seen": {"z": [1], "a": event["k"]}}, rows
"""


COUNT = """
def fold(state, event):
    if event["b"] == 0:
        return None, []
    state = {"i": (state or {"i": 0})["i"] + 1}
    return state, [{"i": state["i"], "b": event["b"]}]
"""


def define(fold: str, buckets: int | None = None) -> Definition:
    pins = "" if buckets is None else f"stream: {{fold_buckets: {buckets}}}\n"
    return parse_files({"pipeline.yaml": (YAML + pins).encode(), "fold.py": fold.encode()}, "p")


def write(folder: Path, number: int, offset: int, records: Sequence[Mapping[str, Any]]) -> int:
    rows = [
        {
            "key": b"k",
            "value": json.dumps({"k": "é'\"", "at": "2024-01-01T10:00:00.000001Z", **one}).encode(),
            "headers": None,
            "topic": "events",
            "partition": 0,
            "offset": offset + index,
            "timestamp": datetime(2024, 1, 1, 11, tzinfo=UTC),
        }
        for index, one in enumerate(records)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:05d}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=RAW_ARROW), path)
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return offset + len(records)


def stream(spark: SparkSession, definition: Definition, folder: Path) -> list[dict[str, Any]]:
    rows_of = batch_rows(definition)
    found: list[dict[str, Any]] = []

    def collect(frame: DataFrame, batch: int) -> None:
        found.extend(rows_of(frame, batch).to_pylist())

    raw = spark.readStream.schema(RAW_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "log"))
    writer = compile_stream(spark, definition, raw).writeStream.outputMode("append").foreachBatch(collect)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return found


def recompute(spark: SparkSession, definition: Definition, folder: Path) -> list[dict[str, Any]]:
    _, source = definition.source
    raw = spark.read.schema(RAW_SCHEMA).parquet(str(folder / "log"))
    return compile_batch(spark, definition, accepted(decode(raw, source), source)).toArrow().to_pylist()


def by_record(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["record"])


def buckets_in(spark: SparkSession, checkpoint: Path, batch: int) -> dict[int, dict[str, Any]]:
    """Return bucket to key to state, of a checkpoint after a batch."""
    _ = spark.streams
    rows = spark.read.format("statestore").option("batchId", batch).load(str(checkpoint)).collect()
    states = [(row["key"][0], row["value"]["groupState"]) for row in rows]
    return {
        bucket: {key: json.loads(text) for key, text in load_bucket(state["states"]).items()}
        for bucket, state in states
    }


KEYS = [f"k{number}é" for number in range(40)]
BATCHES = [
    [{"k": key, "b": 1} for key in KEYS for _ in range(3)],
    [{"k": key, "b": number % 5} for number, key in enumerate(KEYS)],
    [{"k": key, "b": 7} for key in KEYS[:20]],
]


def write_all(folder: Path, batches: Sequence[Sequence[Mapping[str, Any]]], offset: int = 0, first: int = 0) -> int:
    for number, records in enumerate(batches, first):
        offset = write(folder / "log", number, offset, records)
    return offset


@pytest.mark.parametrize("buckets", [0, 1, 16])
def test_a_stream_in_buckets_gives_the_rows_of_a_batch(buckets: int, spark: SparkSession, tmp_path: Path) -> None:
    definition = define(COUNT, buckets)
    offset = write_all(tmp_path, BATCHES[:2])
    ours = stream(spark, definition, tmp_path)
    write_all(tmp_path, BATCHES[2:], offset, 2)
    ours += stream(spark, definition, tmp_path)  # another query, on the checkpoint of the first
    assert by_record(ours) == by_record(recompute(spark, definition, tmp_path))
    assert Counter(row["i"] for row in ours) == {1: 40 + 4, 2: 40, 3: 40, 4: 32, 5: 16}
    if buckets:
        held = buckets_in(spark, tmp_path / "checkpoint", 1)
        assert {key for states in held.values() for key in states} == {key_of(k) for n, k in enumerate(KEYS) if n % 5}
        assert all(bucket_of(key, buckets) == bucket for bucket, states in held.items() for key in states)
        gone = [{"k": key, "b": 0} for key in KEYS]
        write_all(tmp_path, [gone], offset + 20, 3)
        assert stream(spark, definition, tmp_path) == []
        assert buckets_in(spark, tmp_path / "checkpoint", 3) == {}


def key_of(key: str) -> str:
    return json.dumps({"k": key}, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.proves("architecture.md#folds", "guarantees.md#folds-and-views")
@pytest.mark.parametrize(
    ("begun", "resumed", "words"),
    [(0, 16, "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"), (16, 0, "STATE_STORE"), (16, 32, "stored in 16 buckets")],
)
def test_a_checkpoint_of_another_layout_is_never_continued(
    begun: int, resumed: int, words: str, spark: SparkSession, tmp_path: Path
) -> None:
    offset = write_all(tmp_path, BATCHES[:1])
    stream(spark, define(COUNT, begun), tmp_path)
    write_all(tmp_path, BATCHES[1:2], offset, 1)
    with pytest.raises(Exception, match=words) as caught:
        stream(spark, define(COUNT, resumed), tmp_path)
    assert classify_failure(caught.value) == "checkpoint"


@pytest.mark.core
def test_every_value_crosses_whole_and_the_state_can_be_read_back(spark: SparkSession, tmp_path: Path) -> None:
    definition = define(ECHO)
    whole: list[dict[str, Any]] = [
        {"t": "0002-01-01T00:00:00.000001Z", "f": True},
        {"b": 2**63 - 1, "m": 12.5},
        {"b": -5, "i": 3},
    ]
    offset = write(tmp_path / "log", 0, 0, whole)
    write(tmp_path / "log", 1, offset, list[dict[str, Any]]([{"d": 0.1}, {}]))
    ours = stream(spark, definition, tmp_path)
    rows = by_record(ours)
    assert rows == by_record(recompute(spark, definition, tmp_path))
    assert [row["record"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[0]["s"] is None
    assert {row["s"] for row in rows[1:]} == {"é'\"\u2028\0"}
    assert rows[1]["t"] == datetime(2, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert rows[1]["f"] is True
    assert (rows[2]["b"], rows[2]["i"], rows[2]["m"]) == (2**63 - 1, None, Decimal("12.5"))
    assert (rows[3]["b"], rows[3]["i"]) == (-5, 3)
    assert rows[4]["d"] == 0.1
    assert {row["at"] for row in rows} == {datetime(2024, 1, 1, 10, 0, 0, 1, tzinfo=UTC)}
    assert {row["window_start"] for row in rows} == {datetime(2024, 1, 1, tzinfo=UTC)}
    assert {row["window_end"] for row in rows} == {datetime(2024, 1, 2, tzinfo=UTC)}
    state = read_state(spark, tmp_path / "checkpoint", 1)
    assert state.rows == 1
    assert buckets_in(spark, tmp_path / "checkpoint", 0).keys() == {bucket_of(key_of("é'\""), 64)}
    assert state.stores != read_state(spark, tmp_path / "checkpoint", 0).stores


@pytest.mark.proves("guarantees.md#folds-and-views")
@pytest.mark.core
def test_a_fold_that_raises_stops_the_stream_at_the_record_s_address(spark: SparkSession, tmp_path: Path) -> None:
    definition = define("def fold(state, event):\n    return None, [{'b': 1 // event['b']}]\n")
    write(tmp_path / "log", 0, 0, [{"b": 1}, {"b": 0}])
    with pytest.raises(
        Exception, match=r"fold\.py of p failed on the record events/0@1 with ZeroDivisionError"
    ) as caught:
        stream(spark, definition, tmp_path)
    assert classify_failure(caught.value) == "poison"
