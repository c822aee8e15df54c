"""Which fields a result's columns come from, by Spark's plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rivertwice.definition.definition import load_definition
from rivertwice.engine.checks import examine_definition

pytestmark = [pytest.mark.spark, pytest.mark.proves("howto-airflow.md#lineage")]
PIPELINES = Path(__file__).resolve().parents[2] / "pipelines"


def sources(spark: SparkSession, name: str) -> dict[str, list[tuple[str, str, str]]]:
    return examine_definition(spark, load_definition(PIPELINES / name)).columns


def test_a_sum_comes_from_its_argument_and_a_key_from_its_field(spark: SparkSession) -> None:
    found = sources(spark, "flight_delays")
    assert found["origin"] == [("flights", "origin", "IDENTITY")]
    assert found["delay_sum"] == [("flights", "dep_delay", "AGGREGATION")]
    assert found["window_start"] == [("flights", "sched_dep", "TRANSFORMATION")]
    assert found["flights"] == []
    assert ("flights", "origin", "GROUP_BY") in found[""]


def test_columns_of_a_join_come_from_both_sides(spark: SparkSession) -> None:
    found = sources(spark, "examples/legs_landed")
    assert found["minutes"] == [
        ("arrivals", "arrived_at", "TRANSFORMATION"),
        ("departures", "departed_at", "TRANSFORMATION"),
    ]
    assert {("arrivals", "leg", "JOIN"), ("departures", "leg", "JOIN")} <= set(found[""])


def test_a_column_comes_through_rows_of_other_sql_and_through_hopping_windows(spark: SparkSession) -> None:
    assert sources(spark, "examples/account_statement")["asked_in"] == [
        ("postings", "amount", "AGGREGATION"),
        ("postings", "kind", "AGGREGATION"),
    ]
    assert sources(spark, "examples/clicks_every_half_minute")["window_start"] == [("clicks", "at", "TRANSFORMATION")]


def test_a_fold_has_none(spark: SparkSession) -> None:
    assert sources(spark, "examples/account_ledger") == {}
