"""Several results of one job are what each frame gives alone, with its columns and types."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rivertwice.reconcile.kinds.read_rows import collect_together

pytestmark = pytest.mark.spark


def test_results_of_one_job_are_those_of_each_frame(spark: SparkSession) -> None:
    numbers = spark.range(5).select("id", F.col("id").cast("decimal(20,3)").alias("share"))
    times = spark.range(3).select(
        F.timestamp_seconds("id").alias("window_start"),
        F.when(F.col("id") > 0, F.concat(F.lit("k"), "id")).alias("a key"),
        F.array("id").alias("ids"),
    )
    frames = {
        "numbers": numbers,
        "times": times,
        "none": times.where("id < 0"),
        "counts": numbers.groupBy((F.col("id") % 2).alias("rest")).agg(F.count(F.lit(1)).alias("rows")),
    }
    together = collect_together(frames)
    assert list(together) == list(frames)
    for name, frame in frames.items():
        alone = frame.toArrow()
        assert together[name].schema.names == alone.schema.names
        assert together[name].schema.types == alone.schema.types
        assert sorted(map(str, together[name].to_pylist())) == sorted(map(str, alone.to_pylist()))


def test_null_columns_stay_apart_from_rows_that_are_not_there(spark: SparkSession) -> None:
    nulls = spark.range(2).select(F.lit(None).cast("string").alias("value"))
    together = collect_together({"nulls": nulls, "other": spark.range(1)})
    assert together["nulls"].to_pylist() == [{"value": None}, {"value": None}]
