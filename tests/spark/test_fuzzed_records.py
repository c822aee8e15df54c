"""Whatever bytes a record has, the decoder gives it a verdict: the same in a stream and in a batch, and never an error."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from homes.project import FLIGHTS
from rivertwice.definition.definition import load_definition
from rivertwice.definition.source import Source
from rivertwice.engine.cases import RAW_SCHEMA
from rivertwice.engine.decode import REASONS, decode

pytestmark = pytest.mark.spark

AT = datetime(2013, 6, 30, 16, 0, tzinfo=UTC)
LIMIT = 4_000
FIELDS = ("carrier", "flight", "tailnum", "origin", "dest", "sched_dep", "dep_delay", "cancelled")
GOOD: dict[str, Any] = {
    "carrier": "UA", "flight": 1, "tailnum": "N1", "origin": "EWR", "dest": "IAH",
    "sched_dep": "2013-06-30T16:15:00Z", "dep_delay": 3, "cancelled": False,
}  # fmt: skip

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
nested = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.sampled_from(FIELDS), inner),
    max_leaves=8,
)


def deep(depth: int, opening: str, inside: str) -> str:
    return opening * depth + inside + ("}" if opening.startswith("{") else "]") * depth


depths = st.sampled_from([1, 50, 499, 500, 501, 999, 1_000, 1_001, 1_300])
texts = st.one_of(
    st.dictionaries(st.sampled_from(FIELDS), nested).map(json.dumps),
    st.builds(lambda name, value: json.dumps({**GOOD, name: value}), st.sampled_from(FIELDS), nested),
    st.builds(
        lambda depth, end: json.dumps(GOOD)[:-1] + ',"x":' + deep(depth, "[", end) + "}",
        depths,
        st.sampled_from(["", "1", "}"]),
    ),
    st.builds(lambda depth: deep(depth, '{"a":', "1"), depths),
    st.builds(lambda depth: '{"flight":' + deep(depth, "[", "") + "}", depths),
    st.integers(-3, 3).map(lambda over: json.dumps(GOOD)[:-1] + " " * (LIMIT + over - len(json.dumps(GOOD))) + "}"),
    st.integers(1, 900).map(lambda digits: '{"flight":' + "9" * digits + "}"),
    st.integers(0, 10**12).map(lambda power: f'{{"dep_delay":1e{power}}}'),
)
whole = texts.map(str.encode)
damaged = st.builds(
    lambda data, at, junk: data[: at % (len(data) + 1)] + junk + data[at % (len(data) + 1) + len(junk) :],
    whole,
    st.integers(0, 10_000),
    st.binary(max_size=4),
)
values = st.none() | whole | damaged | st.binary(max_size=60)


def source() -> Source:
    _, found = load_definition(FLIGHTS).source
    return found.model_copy(update={"max_record_bytes": LIMIT})


def raw(spark: SparkSession, records: list[bytes | None]) -> DataFrame:
    rows = [(None, value, [("schema-id", b"flights-1")], "t", 0, at, AT) for at, value in enumerate(records)]
    return spark.createDataFrame(rows, RAW_SCHEMA)


def verdicts(frame: DataFrame) -> dict[int, str | None]:
    return {row["_offset"]: row["_reason"] for row in frame.select("_offset", "_reason").collect()}


@pytest.mark.proves("guarantees.md#dead-letters")
@settings(max_examples=8, derandomize=True)
@given(st.lists(values, min_size=1, max_size=60))
def test_any_bytes_get_a_verdict_and_the_size_rule_is_exact(spark: SparkSession, records: list[bytes | None]) -> None:
    found = verdicts(decode(raw(spark, records), source()))
    assert sorted(found) == list(range(len(records)))
    for at, value in enumerate(records):
        assert found[at] is None or found[at] in REASONS
        assert (found[at] == "size") == (value is not None and len(value) > LIMIT)
        assert (found[at] == "tombstone") == (value is None)
        if found[at] is None:
            assert isinstance(json.loads(value or b""), dict)  # what is accepted is what Python reads as one object


@pytest.mark.proves("guarantees.md#dead-letters")
def test_a_stream_gives_the_same_verdicts_as_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(7)
    made: list[bytes | None] = [None, b"", json.dumps(GOOD).encode()]
    for depth in (1, 400, 990, 1_000, 1_010, 1_900):
        made += [
            deep(depth, "[", "").encode(),
            (json.dumps(GOOD)[:-1] + ',"x":' + deep(depth, "[", "1") + "}").encode(),
        ]
        made += [deep(depth, '{"a":', "1").encode(), b"[" * depth, ('{"flight":' + deep(depth, "[", "") + "}").encode()]
    made += [json.dumps(GOOD).encode().ljust(LIMIT + over) for over in (-1, 0, 1)]
    made += [bytes(rng.randrange(256) for _ in range(40)) for _ in range(40)]
    frame = raw(spark, made)
    frame.write.parquet(str(tmp_path / "records"))
    batch = verdicts(decode(frame, source()))
    stream = decode(spark.readStream.schema(frame.schema).parquet(str(tmp_path / "records")), source())
    name = f"fuzzed_{tmp_path.name}".replace("-", "_")
    writer = stream.select("_offset", "_reason").writeStream.format("memory").queryName(name)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None
    assert verdicts(spark.table(name)) == batch
    assert {"size", "json", "tombstone", "empty", None} <= set(batch.values())
