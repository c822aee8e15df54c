"""A record on which the SQL throws is a dead letter of the reason `transform`; every other record counts, in a stream as in a batch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from rivertwice.core.errors import RequestError
from rivertwice.definition.definition import parse_files
from rivertwice.definition.model import Definition
from rivertwice.engine.cases import RAW_SCHEMA
from rivertwice.engine.checks import examine_definition
from rivertwice.engine.compile import batch_rows, compile_sources, compile_stream, decode_view, row_checks
from rivertwice.engine.decode import decode
from rivertwice.engine.relations import accepted, rows_schema
from rivertwice.engine.row_errors import RowChecks
from rivertwice.engine.session import NO_CODE_TEXT, with_confs

pytestmark = pytest.mark.spark

AT = datetime(2026, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 1, 1, 12)  # noqa: DTZ001 (Spark gives the instants of a frame so)
YAML = """
name: sums
description: sums
sources:
  events:
    topic: events
    partitions: 1
    schema: {k: string, at: timestamp, s: string, n: int, b: bigint}
    required: [k]
    event_time: at
    watermark: 0 s
    max_future: 10000 days
window: {size: 1 minute}
keys: [k]
count_column: n
columns: {n: {}, total: {}}
"""
SQL = """
SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS n, max(VALUE) AS total
FROM events GROUP BY window(at, '1 minute'), k
"""
GOOD = {"k": "a", "s": "2026-01-01", "n": 4, "b": 7}
SORTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a cast": ("CAST(s AS INT)", {"s": "abc"}),
    "an overflow": ("n + 1", {"n": 2147483647}),
    "a product": ("b * b", {"b": 2**62}),
    "a division by zero": ("100 / n", {"n": 0}),
    "a remainder": ("100 % n", {"n": 0}),
    "an index": ("array(1, 2, 3, 4, 5)[n]", {"n": 9}),
    "an element": ("element_at(array(1, 2, 3, 4), n)", {"n": 0}),
    "a date": ("to_date(s)", {"s": "rubbish"}),
    "a timestamp": ("to_timestamp(s)", {"s": "2026-13-01"}),
    "a narrow cast": ("CAST(n AS TINYINT)", {"n": 300}),
    "a decimal of a tiny text": ("CAST(replace(s, '-01-01', '') AS DECIMAL(10, 2))", {"s": "1e-999999999"}),
    "a decimal of a tiny text, tried": (
        "coalesce(try_cast(concat(s, '9') AS DECIMAL(10, 2)), 0)",
        {"s": "-0.5E-99999999"},
    ),
    "a decimal": ("CAST(b AS DECIMAL(5, 2))", {"b": 1000}),
    "an own error": ("CASE WHEN n > 5 THEN raise_error('too much') ELSE n END", {"n": 6}),
    "a boolean": ("CAST(s AS BOOLEAN)", {"s": "maybe"}),
    "an absolute value": ("abs(n)", {"n": -2147483648}),
    "a text of a number": ("to_number(s, '9999')", {"s": "12x"}),
    "what nullif gives": ("CAST(nullif(s, '') AS INT)", {"s": "abc"}),
    "a condition of between": ("CASE WHEN n BETWEEN 5 AND 6 THEN 1 / (n - 5) ELSE n END", {"n": 5}),
    "a time before": ("CAST(at - INTERVAL 2 DAYS AS STRING) || CAST(s AS INT)", {"s": "abc"}),
    "a lambda": ("aggregate(array(n, n), 0, (x, y) -> x + y)", {"n": 2147483647}),
}
FINE = {
    "a cast": "12",
    "what nullif gives": "12",
    "a time before": "12",
    "a boolean": "true",
    "a text of a number": "1234",
}


def definition_of(files: Mapping[str, str], more: str = "") -> Definition:
    texts = {"pipeline.yaml": YAML + more, **files}
    return parse_files({name: text.encode() for name, text in texts.items()}, "sums")


def raw(spark: SparkSession, records: list[dict[str, Any]], topic: str = "events") -> DataFrame:
    rows = [
        (None, json.dumps({"at": (AT + timedelta(seconds=at)).isoformat(), **one}).encode(), None, topic, 0, at, AT)
        for at, one in enumerate(records)
    ]
    return spark.createDataFrame(rows, RAW_SCHEMA)


def rejected(definition: Definition, frame: DataFrame, view: str = "events") -> dict[int, str]:
    found = decode_view(definition, view, frame).where("_reason IS NOT NULL").collect()
    return {row["_offset"]: f"{row['_reason']}: {row['_detail']}" for row in found}


def computed(spark: SparkSession, definition: Definition, frames: Mapping[str, DataFrame]) -> list[tuple[Any, ...]]:
    rows = {
        view: accepted(decode_view(definition, view, frames[view]), source)
        for view, source in definition.sources.items()
    }
    return sorted(tuple(row) for row in compile_sources(spark, definition, rows).collect())


def streamed(spark: SparkSession, definition: Definition, frame: DataFrame, folder: Path) -> list[tuple[Any, ...]]:
    """What a stream emits that reads all records in one micro-batch; the last record closes the windows of the others."""
    frame.write.parquet(str(folder / "log"))
    emitted: list[tuple[Any, ...]] = []
    rows_of = batch_rows(definition)

    def collect(batch_frame: DataFrame, batch: int) -> None:
        emitted.extend(tuple(row.values()) for row in rows_of(batch_frame, batch).to_pylist())

    stream = compile_stream(spark, definition, spark.readStream.schema(RAW_SCHEMA).parquet(str(folder / "log")))
    writer = stream.writeStream.outputMode(definition.output_mode).foreachBatch(collect)
    writer.option("checkpointLocation", str(folder / "cp")).trigger(availableNow=True).start().awaitTermination()
    return sorted(emitted)


def records_of(sort: str) -> list[dict[str, Any]]:
    good = {**GOOD, **({"s": FINE[sort]} if sort in FINE else {})}
    return [good, {**good, **SORTS[sort][1]}, {**good, "k": "b"}]


@pytest.mark.proves("definitions.md#values-on-which-the-sql-throws", "guarantees.md#dead-letters")
@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("interpreted", [False, True])
def test_every_sort_of_throwing_record_is_rejected_and_named(spark: SparkSession, sort: str, interpreted: bool) -> None:
    frame = raw(spark, records_of(sort))
    with with_confs(spark, NO_CODE_TEXT if interpreted else {}):
        for place, files in places_of(SORTS[sort][0]).items():
            definition = definition_of(files)
            found = rejected(definition, frame)
            assert list(found) == [1], (place, found)
            assert re.fullmatch(r"transform: .* throws", found[1]), found
            rows = computed(spark, definition, {"events": frame})
            assert [(row[2], row[3]) for row in rows] == [("a", 1), ("b", 1)], place


def places_of(expression: str) -> dict[str, dict[str, str]]:
    """Return the files of definitions that have an expression in different places."""
    return {
        "an argument": {"transform.sql": SQL.replace("VALUE", expression)},
        "a filtered argument": {
            "transform.sql": SQL.replace("max(VALUE)", f"max(b) FILTER (WHERE CAST({expression} AS STRING) <> '')")
        },
        "a row filter": {
            "transform.sql": SQL.replace("VALUE", "b"),
            "rows.sql": f"SELECT * FROM events WHERE CAST({expression} AS STRING) <> ''",
        },
        "a CTE": {
            "transform.sql": "WITH x AS (SELECT *, "
            + expression
            + " AS v FROM events)"
            + SQL.replace("VALUE", "v").replace("FROM events", "FROM x")
        },
    }


def written(spark: SparkSession, definition: Definition) -> RowChecks:
    """Return the checks as they are sent to a Spark Connect server."""
    empty = spark.createDataFrame([], rows_schema(definition.source[1]))
    return row_checks(spark, definition, "events").written(empty)


@pytest.mark.proves("guarantees.md#verbs-on-a-spark-connect-server")
@pytest.mark.parametrize(("number", "sort"), enumerate(SORTS))
def test_checks_that_are_written_as_sql_reject_the_same_records(spark: SparkSession, number: int, sort: str) -> None:
    """Half of the sorts are interpreted, the others compiled; each in two of the places."""
    frame = raw(spark, records_of(sort))
    with with_confs(spark, NO_CODE_TEXT if number % 2 else {}):
        for place, files in list(places_of(SORTS[sort][0]).items())[number // 2 % 2 :: 2]:
            definition = definition_of(files)
            sent = decode(frame, definition.source[1], written(spark, definition))
            letters = sent.where("_reason IS NOT NULL").collect()
            found = {row["_offset"]: f"{row['_reason']}: {row['_detail']}" for row in letters}
            assert found == rejected(definition, frame), place
            assert list(found) == [1], place


@pytest.mark.proves("guarantees.md#verbs-on-a-spark-connect-server")
def test_an_expression_that_cannot_be_written_is_refused_by_name(spark: SparkSession) -> None:
    definition = definition_of({"transform.sql": SQL.replace("VALUE", "CAST(from_json(s, 'a STRING').a AS INT)")})
    with pytest.raises(RequestError, match=r"from_json.*RIVERTWICE_SPARK_REMOTE"):
        written(spark, definition)


@pytest.mark.proves("guarantees.md#dead-letters")
@pytest.mark.parametrize("window", ["{size: 1 minute}", "{size: 1 minute, slide: 20 s}", "{session: 15 s}"])
def test_a_stream_rejects_the_same_records_as_a_batch(spark: SparkSession, tmp_path: Path, window: str) -> None:
    call = {"{size: 1 minute}": "window(at, '1 minute')", "{session: 15 s}": "session_window(at, '15 seconds')"}.get(
        window, "window(at, '1 minute', '20 seconds')"
    )
    sql = SQL.replace("VALUE", "CAST(s AS INT) / n").replace("window(at, '1 minute')", call)
    sql = sql.replace("window.", f"{call.partition('(')[0]}.")
    definition = parse_files(
        {"pipeline.yaml": YAML.replace("{size: 1 minute}", window).encode(), "transform.sql": sql.encode()}, "sums"
    )
    records = [{**GOOD, "s": "1"}, {**GOOD, "s": "x"}, {**GOOD, "s": "2", "n": 0}, {**GOOD, "s": "3", "k": "b"}]
    frame = raw(spark, [*records, {**GOOD, "s": "1", "at": "2026-01-02T00:00:00Z"}])
    assert list(rejected(definition, frame)) == [1, 2]
    batch = computed(spark, definition, {"events": frame})
    closed = [row for row in batch if row[0] < NOON]
    assert closed
    emitted = [
        (*(at.replace(tzinfo=None) for at in row[:2]), *row[2:]) for row in streamed(spark, definition, frame, tmp_path)
    ]
    assert emitted == closed


def test_a_condition_before_an_expression_spares_the_record(spark: SparkSession) -> None:
    """What never reaches the expression that would throw is accepted, as it was."""
    guarded = {"transform.sql": SQL.replace("VALUE", "100 / n"), "rows.sql": "SELECT * FROM events WHERE n <> 0"}
    assert rejected(definition_of(guarded), raw(spark, [GOOD, {**GOOD, "n": 0}])) == {}
    case = SQL.replace("VALUE", "CASE WHEN n <> 0 THEN 100 / n END")
    assert rejected(definition_of({"transform.sql": case}), raw(spark, [GOOD, {**GOOD, "n": 0}])) == {}
    unused = "WITH x AS (SELECT *, 100 / n AS q FROM events)" + SQL.replace("VALUE", "b").replace(
        "FROM events", "FROM x"
    )
    assert rejected(definition_of({"transform.sql": unused}), raw(spark, [GOOD, {**GOOD, "n": 0}])) == {}


def test_nothing_is_tried_where_nothing_can_throw_or_the_definition_stops(spark: SparkSession) -> None:
    safe = SQL.replace("VALUE", "CAST(n AS BIGINT)")
    assert row_checks(spark, definition_of({"transform.sql": safe}), "events").ways == ()
    throwing = {"transform.sql": SQL.replace("VALUE", "CAST(s AS INT)")}
    assert len(row_checks(spark, definition_of(throwing), "events").ways) == 1
    stopping = definition_of(throwing, "on_error: stop\n")
    assert row_checks(spark, stopping, "events").ways == ()
    assert rejected(stopping, raw(spark, [{**GOOD, "s": "abc"}])) == {}


INTERVALS = """
WITH parsed AS (SELECT *, CAST(s AS INT) AS v FROM events WHERE k <> 'c')
SELECT a.window_start, a.window_end, a.k, a.at, a.record AS id, count(*) AS n, max(a.v + o.n) AS total
FROM parsed AS a JOIN others AS o ON o.window_start = a.window_start AND o.k = a.k
GROUP BY a.window_start, a.window_end, a.k, a.at, a.record
"""


def test_records_of_intervals_are_tried_before_the_join(spark: SparkSession, tmp_path: Path) -> None:
    others = YAML[YAML.index("  events:") : YAML.index("window:")].replace("events", "others")
    yaml = YAML.replace(
        "window: {size: 1 minute}", f"{others}window: {{every: 20 s, lookback: 20 s, lookahead: 40 s, at: at}}"
    ).replace("keys: [k]\ncount_column: n", "keys: [k, at, id]")
    definition = parse_files({"pipeline.yaml": yaml.encode(), "transform.sql": INTERVALS.encode()}, "sums")
    assert row_checks(spark, definition, "others").ways == ()
    records = [{**GOOD, "s": "1"}, {**GOOD, "s": "x"}, {**GOOD, "s": "x", "k": "c"}]
    events, other = raw(spark, records), raw(spark, [GOOD], "others")
    assert list(rejected(definition, events)) == [1]
    rows = computed(spark, definition, {"events": events, "others": other})
    assert {row[4] for row in rows} == {0}


RISKS = {
    "sum(b)": [
        "sum(events.b) overflows if ten billion records have the largest values: their sum does not fit into bigint"
    ],
    "sum(n)": ["sum(events.n) overflows"],
    "sum(r)": [],
    "sum(CAST(b AS DECIMAL(28, 0)))": [],
    "sum(CAST(b AS DECIMAL(38, 0)))": [],
    "sum(CASE WHEN r > 3 THEN r ELSE 0 END)": [],
    "try_sum(b)": [],
    "avg(b)": [],
    "sum(r) / count(*)": [],
    "sum(r) / max(n)": ["throws if the divisor is 0"],
    "sum(r) / nullif(max(n), 0)": [],
    "try_divide(sum(r), max(n))": [],
    "max(n) + 1": ["throws on what does not fit into int"],
    "max(r) + 1": [],
    "CAST(max(s) AS INT)": ["throws on what does not fit into int"],
    "CAST(sum(r) AS DECIMAL(20, 0))": [],
    "CAST(sum(r) AS DECIMAL(5, 0))": ["throws on what does not fit into decimal(5,0)"],
    "to_date(max(s))": ["throws on some values"],
    "max(CAST(s AS INT))": [],
}
"""Result column to how it is warned of; a field `r` has a rule: at most 1000."""


@pytest.mark.proves("definitions.md#values-on-which-the-sql-throws", "guarantees.md#changelog")
def test_what_several_records_can_make_throw_is_warned_of(spark: SparkSession) -> None:
    yaml = YAML.replace("b: bigint}", "b: bigint, r: int}").replace(
        "    watermark: 0 s\n",
        "    watermark: 0 s\n    rules: [{name: r_small, rule: range, field: r, min: -5, max: 1000}]\n",
    )
    for expression, expected in RISKS.items():
        sql = SQL.replace("max(VALUE)", expression)
        files = {
            "pipeline.yaml": yaml.replace("total: {}", "total: {compare: tolerance, tolerance: 0.001}"),
            "transform.sql": sql,
        }
        definition = parse_files({name: text.encode() for name, text in files.items()}, "sums")
        examined = examine_definition(spark, definition)
        assert len(examined.risks) == len(expected), (expression, examined)
        for risk, words in zip(examined.risks, expected, strict=True):
            assert words in risk, expression


def test_made_up_rows_on_which_the_sql_throws_do_not_keep_the_others_from_being_checked(spark: SparkSession) -> None:
    examined = examine_definition(spark, definition_of({"transform.sql": SQL.replace("VALUE", "100 / (n - 3)")}))
    assert (examined.unchecked, examined.findings) == ([], [])
