"""Rows of two definitions with declared differences: a row that nobody declared is found each time, a declared one never."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from homes.project import make_project
from rivertwice.definition.definition import Definition, load_definition
from rivertwice.versions.try_compare import compare_rows
from rivertwice.versions.try_model import Comparison, Expected

pytestmark = pytest.mark.spark
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
YAML = """\
name: p
description: Sums by key.
sources:
  records:
    topic: t
    partitions: 1
    schema: {k: string, at: timestamp, v: bigint}
    event_time: at
    watermark: 10 minutes
    max_future: 1 hour
window: {size: 1 hour}
keys: [k]
count_column: n
columns: {n: {}, total: {}, mean: {compare: tolerance, tolerance: 0.001}}
"""
SQL = """\
SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS n, sum(v) AS total, avg(v) AS mean
FROM records GROUP BY window(at, '1 hour'), k
"""
SCHEMA = T.StructType(
    [
        T.StructField("window_start", T.TimestampType()),
        T.StructField("window_end", T.TimestampType()),
        T.StructField("k", T.StringType()),
        T.StructField("n", T.LongType()),
        T.StructField("total", T.LongType()),
        T.StructField("mean", T.DoubleType()),
    ]
)
MEANT = (
    Expected("changed", ("total", "mean"), "new.total = abs(old.total)", "absolute totals"),
    Expected("only new", (), "k = 'k9' AND window_start >= '2026-01-01T02:00:00Z'", "k9 is let in from two o'clock on"),
    Expected("changed", ("mean",), None, "means are computed again"),
)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def definition(tmp_path_factory: pytest.TempPathFactory) -> Definition:
    folder = tmp_path_factory.mktemp("declared")
    settings = make_project(folder, {"p": {"pipeline.yaml": YAML, "transform.sql": SQL}})
    return load_definition(settings.definitions / "p")


def rows_of(seed: int) -> tuple[list[Row], list[Row]]:
    """Return the old rows, and the new ones with declared differences alone."""
    dice = random.Random(seed)
    old, new = [], []
    for hour in range(6):
        start = BEGIN + timedelta(hours=hour)
        for key in range(8):
            n, total = dice.randrange(1, 9), dice.randrange(-40, 40)
            row = {
                "window_start": start,
                "window_end": start + timedelta(hours=1),
                "k": f"k{key}",
                "n": n,
                "total": total,
            }
            old.append({**row, "mean": total / n})
            new.append({**row, "total": abs(total), "mean": abs(total) / n + dice.choice([0.0, 0.0005])})
        if hour >= 2:
            new.append(
                {
                    "window_start": start,
                    "window_end": start + timedelta(hours=1),
                    "k": "k9",
                    "n": 1,
                    "total": 1,
                    "mean": 1.0,
                }
            )
    return old, new


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame([tuple(row[name] for name in SCHEMA.names) for row in rows], SCHEMA)


def compare(spark: SparkSession, definition: Definition, old: list[Row], new: list[Row]) -> Comparison:
    return compare_rows(frame(spark, old), frame(spark, new), definition, definition, 5, MEANT)


def plant(number: int, old: list[Row], new: list[Row], dice: random.Random) -> Row:
    """Change one row so that no declaration has it; return it."""
    kind = number % 5
    place = dice.randrange(len(old))
    row = next(
        each for each in new if (each["window_start"], each["k"]) == (old[place]["window_start"], old[place]["k"])
    )
    if kind == 0:
        row["n"] += 1
    elif kind == 1:
        row["total"] = abs(old[place]["total"]) + 1
    elif kind == 2:
        new.remove(row)
    elif kind == 3:
        early = {**row, "window_start": BEGIN, "window_end": BEGIN + timedelta(hours=1), "k": "k9"}
        new.append(early)
        return early
    else:
        new.append(dict(row))
    return row


def test_twenty_clean_upgrades_leave_nothing_open(spark: SparkSession, definition: Definition) -> None:
    for seed in range(20):
        old, new = rows_of(seed)
        result = compare(spark, definition, old, new)
        negative = sum(row["total"] < 0 for row in old)
        assert (result.differing, result.examples, result.columns) == (0, (), ()), (seed, result)
        assert result.declared == (negative, 4, 0)
        assert result.equal == len(old) - negative
        assert result.windows_differing == 0


@pytest.mark.proves("guarantees.md#version-switch")
def test_one_undeclared_row_is_found_twenty_of_twenty_times(spark: SparkSession, definition: Definition) -> None:
    for number in range(20):
        dice = random.Random(100 + number)
        old, new = rows_of(number)
        planted = plant(number, old, new, dice)
        result = compare(spark, definition, old, new)
        assert (result.differing, result.windows_differing) == (1, 1), (number, result)
        (example,) = result.examples
        assert (example.window_start, example.key) == (planted["window_start"], {"k": planted["k"]})


def test_a_column_may_be_declared_by_its_name_alone(spark: SparkSession, definition: Definition) -> None:
    old, new = rows_of(7)
    row = next(each for each in new if each["k"] == "k3")
    row["mean"] += 5
    result = compare(spark, definition, old, new)
    assert result.differing == 0
    assert result.declared[2] == (0 if next(o for o in old if o["k"] == "k3")["total"] < 0 else 1)
