"""Dead letters, late rows and versions larger than Spark may collect at once: written piece by piece, each row once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from homes.project import FLIGHTS
from rivertwice.core.errors import RangeMismatchError
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.engine.cases import RAW_SCHEMA
from rivertwice.log.addresses import parts_of
from rivertwice.storage.table import Table
from rivertwice.stream import dead, late, pieces, side
from rivertwice.stream.pieces import Bounds, plan_large

pytestmark = pytest.mark.spark

AT = datetime(2013, 6, 30, 16, 0, tzinfo=UTC)
MB = 1_000_000
GOOD: dict[str, Any] = {
    "carrier": "UA", "flight": 1, "tailnum": "N1", "origin": "EWR", "dest": "IAH",
    "sched_dep": "2013-06-30T16:15:00Z", "dep_delay": 3, "cancelled": False,
}  # fmt: skip


@dataclass
class Batch:
    """A batch of one topic whose records are in a file instead of Kafka, and the context of a driver that reads it."""

    spark: SparkSession
    settings: Settings
    records: DataFrame
    ranges: dict[int, tuple[int, int]]
    definition: Any
    reads: list[dict[int, tuple[int, int]]] = field(default_factory=list)

    @property
    def context(self) -> Any:
        line = SimpleNamespace(timeline="t1", cluster_id="c", topic_ids={"flights": "id"})
        home = self.settings.pipeline("flight_delays")
        return SimpleNamespace(home=home, definition=self.definition, timeline=line, app="flight_delays#t1")

    def read(self, _spark: Any, _settings: Any, _topic: str, ranges: dict[int, tuple[int, int]], **_: Any) -> DataFrame:
        self.reads.append(ranges)
        inside = F.lit(False)
        for number, (start, end) in ranges.items():
            inside |= (F.col("partition") == number) & F.col("offset").between(start, end - 1)
        return self.records.where(inside)

    def write_dead(self, number: int = 0, bad: int | None = None) -> int:
        parts = parts_of("flights", self.ranges)
        count = sum(end - start for start, end in self.ranges.values()) if bad is None else bad
        return dead.write_dead_letters(self.spark, self.settings, self.context, number, parts, {"flights": count})

    def write_late(self) -> int:
        after = int((AT + timedelta(days=1)).timestamp() * 1000)
        parts = parts_of("flights", self.ranges)
        return late.write_late_rows(self.spark, self.settings, self.context, 0, parts, after, ["flights"])

    def rows(self, place: Any) -> list[dict[str, Any]]:
        table = Table(place).read()
        assert table is not None
        return sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))

    @property
    def dead(self) -> list[dict[str, Any]]:
        return self.rows(self.context.home.tables.dead_letters)


@pytest.fixture
def batch(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make a batch of values by partition; Spark may collect 3 MB at once, a piece may hold 1 MB."""
    definition = load_definition(FLIGHTS)
    _, source = definition.source
    plenty = source.model_copy(update={"max_record_bytes": 5 * MB})
    definition = definition.model_copy(update={"sources": {"flights": plenty}})

    def make(*values: list[bytes]) -> Batch:
        rows = [
            (b"k", value, [("schema-id", b"flights-1")], "flights", number, offset, AT)
            for number, some in enumerate(values)
            for offset, value in enumerate(some)
        ]
        place = str(tmp_path / "log")
        spark.createDataFrame(rows, RAW_SCHEMA).write.parquet(place)
        found = Batch(
            spark,
            Settings(project=tmp_path, home=tmp_path / "home"),
            spark.read.schema(RAW_SCHEMA).parquet(place),
            {number: (0, len(some)) for number, some in enumerate(values)},
            definition,
        )
        monkeypatch.setattr(side, "read_ranges", found.read)
        return found

    monkeypatch.setattr(pieces, "BOUNDS", Bounds(content=MB))
    conf = spark.sparkContext._jsc.sc().conf()
    before = conf.get("spark.driver.maxResultSize", "1g")
    conf.set("spark.driver.maxResultSize", str(3 * MB))
    yield make
    conf.set("spark.driver.maxResultSize", before)


def test_dead_letters_above_what_spark_collects_are_all_written(batch: Any) -> None:
    junk = [b"%d" % number + b"\xff" * 400_000 for number in range(6)]
    small = [b"[%d]" % number for number in range(30)]
    mixed = [one for pair in zip(small, [*junk, *[b"{"] * 24], strict=True) for one in pair]
    made = batch(mixed, junk)
    with pytest.raises(Exception, match="maxResultSize"):
        made.records.toArrow()
    assert made.write_dead() == 66
    assert [row["value"] for row in made.dead] == [*mixed, *junk]
    assert {row["reason"] for row in made.dead} == {"json", "utf8"}
    assert made.write_dead() == 0  # the batch is known to be written
    assert len(made.dead) == 66


def test_an_ordinary_batch_is_one_piece_and_one_commit(batch: Any) -> None:
    made = batch([b"[1]", json.dumps(GOOD).encode(), b"["])
    assert made.write_dead(bad=2) == 2
    assert len(made.reads) == 1
    assert [row["offset"] for row in made.dead] == [0, 2]
    assert len(Table(made.context.home.tables.dead_letters).commits("dead")) == 1


@pytest.mark.proves("guarantees.md#dead-letters")
@pytest.mark.parametrize("kept", range(1, 4))
def test_a_batch_interrupted_between_two_pieces_is_completed_once(
    batch: Any, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    made = batch([b"\xff" * 400_000 for _ in range(8)], [b"["] * 3)
    writes: list[int] = []
    append = Table.append

    def killed(*args: Any, **named: Any) -> int:
        if len(writes) == kept:
            raise KeyboardInterrupt
        writes.append(append(*args, **named))
        return writes[-1]

    monkeypatch.setattr(Table, "append", killed)
    with pytest.raises(KeyboardInterrupt):
        made.write_dead()
    assert 0 < len(made.dead) < 11
    monkeypatch.setattr(Table, "append", append)
    made.write_dead()
    assert [(row["partition"], row["offset"]) for row in made.dead] == [
        *((0, n) for n in range(8)),
        *((1, n) for n in range(3)),
    ]
    assert made.write_dead() == 0


def test_an_interrupted_attempts_rows_of_another_range_stop_the_stream(
    batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = batch([b"\xff" * 400_000 for _ in range(8)])
    append = Table.append
    calls: list[int] = []

    def killed(*args: Any, **named: Any) -> int:
        if calls:
            raise KeyboardInterrupt
        calls.append(append(*args, **named))
        return calls[-1]

    monkeypatch.setattr(Table, "append", killed)
    with pytest.raises(KeyboardInterrupt):
        made.write_dead()
    monkeypatch.setattr(Table, "append", append)
    made.ranges = {0: (0, 7)}
    with pytest.raises(RangeMismatchError, match="planned again"):
        made.write_dead()


@pytest.mark.proves("guarantees.md#late-rows")
def test_late_rows_above_what_spark_collects_are_all_written(batch: Any) -> None:
    long = [json.dumps({**GOOD, "tailnum": str(number) * 400_000}).encode() for number in range(8)]
    made = batch([*long, json.dumps(GOOD).encode()])
    assert made.write_late() == 9
    rows = made.rows(made.context.home.tables.late_rows)
    assert [json.loads(row["fields"])["tailnum"][:1] for row in rows] == [*"01234567", "N"]
    assert made.write_late() == 9  # as many as the batch has, and none written again
    assert len(made.rows(made.context.home.tables.late_rows)) == 9


def test_many_small_rows_are_read_slice_by_slice(batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "BOUNDS", Bounds(rows=10, content=MB))
    made = batch([b"["] * 25, [b"{"] * 4)
    assert made.write_dead() == 29
    assert len(made.reads) == 3
    assert len(made.dead) == 29


def test_large_rows_are_grouped_by_their_sizes() -> None:
    rows = pa.table({"partition": [1, 0, 0, 0], "offset": [5, 9, 3, 7], "_size": [60, 50, 60, 40]})
    grouped = plan_large(rows, ("partition", "offset"), 100)
    assert grouped == [{0: (3, 8)}, {0: (9, 10)}, {1: (5, 6)}]
    assert plan_large(rows, ("partition", "offset"), 10) == [{0: (3, 4)}, {0: (7, 8)}, {0: (9, 10)}, {1: (5, 6)}]
    assert plan_large(rows.slice(0, 0), ("partition", "offset"), 10) == []
