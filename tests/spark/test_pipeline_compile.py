from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from homes.project import FLIGHTS
from rivertwice.definition.definition import load_definition
from rivertwice.definition.model import Definition
from rivertwice.definition.source import heartbeat_sql
from rivertwice.engine.case_files import Case, load_cases
from rivertwice.engine.cases import RAW_SCHEMA, run_case
from rivertwice.engine.checks import examine_definition
from rivertwice.engine.compile import compile_batch, result_schema
from rivertwice.engine.decode import decode
from rivertwice.engine.relations import included, rows_schema, with_window_end

pytestmark = pytest.mark.spark
DEFINITION = load_definition(FLIGHTS)
CASES = load_cases(FLIGHTS)


@pytest.mark.core
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_case_of_the_flight_pipeline_holds_in_both_modes(spark: SparkSession, case: Case) -> None:
    result = run_case(spark, DEFINITION, case)
    assert result.passed, "\n".join(result.differences)


@pytest.mark.core
def test_a_case_that_expects_the_wrong_thing_says_what_differs(spark: SparkSession) -> None:
    case = next(case for case in CASES if case.expect.late)
    wrong = case.model_copy(update={"expect": case.expect.model_copy(update={"stream": case.expect.batch, "late": []})})
    differences = run_case(spark, DEFINITION, wrong).differences
    assert "late: event 'dropped' is late, expected not late" in differences
    assert any("flights is 2, expected 3" in line for line in differences)


def test_the_flight_pipeline_passes_its_checks(spark: SparkSession) -> None:
    assert list(examine_definition(spark, DEFINITION).findings) == []
    assert result_schema(spark, DEFINITION).names == DEFINITION.result_columns


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("sum(dep_delay) AS", "sum(CAST(dep_delay AS DOUBLE)) AS", "column 'delay_sum' adds floating-point numbers"),
        ("sum(dep_delay) AS", "stddev(dep_delay) AS", "column 'delay_sum' adds floating-point numbers"),
        ("count(*) AS flights", "count(dep_delay) AS flights", "adds up to 18 over 24 rows"),
        ("sum(dep_delay) AS", "unix_timestamp() AS", "CurrentTimestamp reads the clock"),
        ("sum(dep_delay) AS", "max_by(dep_delay, flight) AS", "MaxBy depends on the order"),
        ("sum(dep_delay) AS", "count(DISTINCT dep_delay) AS", "counts distinct values"),
        ("sum(dep_delay) AS", "reflect('java.lang.System', 'nanoTime') AS", "runs Java code"),
        (
            "sum(dep_delay) AS",
            "sum(crc32(aes_encrypt(carrier, 'abcdefghijklmnop')) % 1000) AS",
            "'delay_sum' gives another value in each run, over the same rows",
        ),
        ("sum(dep_delay) AS", "length(version()) AS", "depends on who runs it"),
        ("window.start AS", "window.start + INTERVAL 5 MINUTES AS", "last 1 hour from the epoch"),
        ("FROM flights", "FROM (SELECT * FROM flights LIMIT 5) flights", "the plan has LIMIT"),
        ("FROM flights", "FROM (SELECT * FROM flights UNION ALL SELECT * FROM flights)", "the plan has Union"),
        ("FROM flights", "FROM nowhere", "cannot be found"),
        ("'1 hour'), origin", "'1 hour'), origin, carrier", "groups by [3] expressions"),
        ("AS late_15", "AS late_16", "give both the same names"),
    ],
)
def test_what_spark_finds_in_the_plan_is_refused(spark: SparkSession, old: str, new: str, words: str) -> None:
    assert old in DEFINITION.transform_sql
    changed = DEFINITION.model_copy(update={"transform_sql": DEFINITION.transform_sql.replace(old, new)})
    findings = examine_definition(spark, changed).findings
    assert any(words in finding for finding in findings), findings


@pytest.mark.parametrize(
    ("rows_sql", "words"),
    [
        ("SELECT carrier FROM flights", "it may only leave rows out"),
        ("SELECT DISTINCT * FROM flights", "the plan has Distinct"),
        ("SELECT * FROM flights WHERE sched_dep < now()", "reads the clock"),
    ],
)
def test_rows_sql_may_only_leave_rows_out(spark: SparkSession, rows_sql: str, words: str) -> None:
    assert any(
        words in finding
        for finding in examine_definition(spark, DEFINITION.model_copy(update={"rows_sql": rows_sql})).findings
    )


def test_rows_sql_keeps_the_addresses_of_the_rows_it_keeps(spark: SparkSession) -> None:
    definition = DEFINITION.model_copy(update={"rows_sql": "SELECT * FROM flights WHERE flight >= 2"})
    assert list(examine_definition(spark, definition).findings) == []
    rows = flights(spark, [datetime(2013, 6, 30, 16, minute, tzinfo=UTC) for minute in range(4)])
    assert sorted(row["_offset"] for row in included(spark, definition, rows).collect()) == [2, 3]
    assert [row["flights"] for row in compile_batch(spark, definition, rows).collect()] == [2]


def flights(spark: SparkSession, events: list[datetime]) -> DataFrame:
    rows = [
        ("UA", number, "N1", "EWR", "IAH", event, 5, False, 0, number, event) for number, event in enumerate(events)
    ]
    return spark.createDataFrame(rows, rows_schema(DEFINITION.source[1]))


@pytest.mark.parametrize(
    "size", [timedelta(hours=1), timedelta(minutes=7), timedelta(days=1), timedelta(milliseconds=1)]
)
def test_the_window_end_of_a_row_is_the_one_of_sparks_window(spark: SparkSession, size: timedelta) -> None:
    definition = with_size(size)
    day = datetime(2013, 6, 30, tzinfo=UTC)
    near = [day + number * size + shift * timedelta(microseconds=1) for number in (0, 1, 5) for shift in (-1, 0, 1)]
    far = [datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC), datetime(1903, 3, 3, 3, 3, 3, tzinfo=UTC)]
    spread = [day + timedelta(seconds=number * 7919.123457) for number in range(200)]
    rows = with_window_end(flights(spark, [*near, *far, *spread]), definition)
    text = f"{size // timedelta(milliseconds=1)} milliseconds"
    both = rows.select("_window_end", F.window("sched_dep", text).getField("end").alias("spark")).collect()
    assert len(both) == len(near) + len(far) + len(spread)
    assert [row for row in both if row["_window_end"] != row["spark"]] == []


def with_size(size: timedelta) -> Definition:
    return DEFINITION.model_copy(update={"window": DEFINITION.window.model_copy(update={"size": size})})


EXCLUDED_MOVES_THE_WATERMARK = {
    "name": "excluded_row_moves_the_watermark",
    "description": "Flight 1 is left out by rows.sql, but at 18:30 it moves the watermark to 17:30 and closes 16h.",
    "defaults": {"carrier": "UA", "origin": "EWR", "dest": "IAH", "cancelled": False, "dep_delay": 0},
    "batches": [
        [{"id": "kept", "at": "2013-06-30T16:10:00Z", "value": {"flight": 9, "sched_dep": "2013-06-30T16:10:00Z"}}],
        [{"id": "left_out", "at": "2013-06-30T18:30:00Z", "value": {"flight": 1, "sched_dep": "2013-06-30T18:30:00Z"}}],
    ],
    "expect": {
        "batch": [{"window_start": "2013-06-30T16:00:00Z", "origin": "EWR", "flights": 1}],
        "stream": [{"window_start": "2013-06-30T16:00:00Z", "origin": "EWR", "flights": 1}],
    },
}


def test_a_row_that_rows_sql_leaves_out_still_moves_the_watermark(spark: SparkSession) -> None:
    # Without the observation above the watermark, Spark pushes the condition below it.
    definition = DEFINITION.model_copy(update={"rows_sql": "SELECT * FROM flights WHERE flight > 5"})
    result = run_case(spark, definition, Case.model_validate(EXCLUDED_MOVES_THE_WATERMARK))
    assert result.passed, "\n".join(result.differences)


def test_a_heartbeat_moves_the_watermark_and_is_counted_nowhere(spark: SparkSession) -> None:
    view, source = DEFINITION.source
    rows_sql = heartbeat_sql(
        view, source.model_copy(update={"heartbeat": {"flight": 1}}), "SELECT * FROM flights -- all\n"
    )
    definition = DEFINITION.model_copy(update={"rows_sql": rows_sql})
    assert list(examine_definition(spark, definition).findings) == []
    result = run_case(spark, definition, Case.model_validate(EXCLUDED_MOVES_THE_WATERMARK))
    assert result.passed, "\n".join(result.differences)


def test_a_record_is_parsed_once(spark: SparkSession, tmp_path: Path) -> None:
    spark.createDataFrame([], RAW_SCHEMA).write.parquet(str(tmp_path / "raw"))
    decoded = decode(spark.read.parquet(str(tmp_path / "raw")), DEFINITION.source[1])
    assert decoded._jdf.queryExecution().optimizedPlan().toString().count("from_json(") == 1


def test_a_view_does_not_outlive_its_compilation(spark: SparkSession) -> None:
    compile_batch(spark, DEFINITION, flights(spark, []))
    assert not spark.catalog.tableExists("flights")
