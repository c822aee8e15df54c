"""The proof on Spark's plan that records of two windows never meet: what passes, and what is refused with which remedy."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from homes.one_source import define_interval
from rivertwice.engine.compilers.intervals import find_interval_refusals
from rivertwice.engine.interval_rows import view_schema
from rivertwice.engine.views import run_views

pytestmark = pytest.mark.spark
FINE = {
    "filter": "SELECT window_start, window_end, k, at, v FROM events WHERE v > 1",
    "alias": "WITH e AS (SELECT window_start AS ws, window_end AS we, k, at, v FROM events) "
    "SELECT ws AS window_start, we AS window_end, k, at, v FROM e",
    "left join": "SELECT a.window_start, a.window_end, a.k, a.at, b.v FROM events a LEFT JOIN events b "
    "ON a.window_start = b.window_start AND a.k = b.k AND b.at > a.at",
    "right join": "SELECT b.window_start, b.window_end, b.k, b.at, a.v FROM events a RIGHT JOIN events b "
    "ON b.window_start = a.window_start AND a.k = b.k",
    "using": "SELECT window_start, a.window_end, k, a.at, b.v FROM events a JOIN events b USING (window_start, k)",
    "anti join": "SELECT a.window_start, a.window_end, a.k, a.at, a.v FROM events a LEFT ANTI JOIN events b "
    "ON a.window_start = b.window_start AND b.at < a.at",
    "group by": "SELECT window_start, window_end, k, max(at) AS at, count(DISTINCT v) AS v FROM events GROUP BY window_start, window_end, k",
    "twice": "SELECT window_start, max(window_end) AS window_end, k, max(at) AS at, sum(n) AS v FROM "
    "(SELECT window_start, window_end, k, at, count(*) AS n FROM events GROUP BY ALL) GROUP BY window_start, k",
    "over": "SELECT window_start, window_end, k, at, sum(v) OVER (PARTITION BY window_start, k ORDER BY at) AS v FROM events",
    "over record": "SELECT window_start, window_end, k, at, lag(v) OVER (PARTITION BY window_start ORDER BY at, record) AS v FROM events",
    "cte twice": "WITH e AS (SELECT * FROM events WHERE v > 1) SELECT a.window_start, a.window_end, a.k, a.at, "
    "first_value(b.v) OVER (PARTITION BY a.window_start ORDER BY b.record) AS v FROM e a JOIN e b ON a.window_start = b.window_start",
    "union": "SELECT window_start, window_end, k, at, v FROM events UNION ALL SELECT window_start, window_end, 'x', at, 0 FROM events",
    "distinct": "SELECT DISTINCT window_start, window_end, k, at, v FROM events",
    "sorted list": "SELECT window_start, window_end, k, max(at) AS at, size(array_sort(collect_list(v))) AS v FROM events GROUP BY 1, 2, 3",
}
REFUSED = {
    "SELECT a.window_start, a.window_end, a.k, a.at, b.v FROM events a JOIN events b ON a.k = b.k": "JOIN does not demand",
    "SELECT a.window_start, a.window_end, a.k, a.at, b.v FROM events a JOIN events b ON a.window_start = b.at": "JOIN does not demand",
    "SELECT a.window_start, a.window_end, a.k, a.at, b.v FROM events a JOIN events b "
    "ON a.window_start = b.window_start OR a.k = b.k": "JOIN does not demand",
    "SELECT a.window_start, a.window_end, a.k, a.at, b.v FROM events a CROSS JOIN events b": "JOIN does not demand",
    "SELECT a.window_start, a.window_end, a.k, a.at, b.v FROM events a FULL JOIN events b ON a.window_start = b.window_start": "FullOuter",
    "SELECT b.window_start, b.window_end, a.k, a.at, b.v FROM events a LEFT JOIN events b ON a.window_start = b.window_start": "not a view's own",
    "SELECT window_start + INTERVAL 1 MINUTE AS window_start, window_end, k, at, v FROM events": "not a view's own",
    "SELECT max(window_start) AS window_start, max(window_end) AS window_end, k, max(at) AS at, count(*) AS v FROM events GROUP BY k": "GROUP BY leaves",
    "SELECT window_start, window_end, k, at, sum(v) OVER (PARTITION BY k ORDER BY at) AS v FROM events": "does not partition by",
    "SELECT window_start, window_end, k, at, lag(v) OVER (PARTITION BY window_start ORDER BY at) AS v FROM events": "rows that tie",
    "SELECT window_start, window_end, k, at, row_number() OVER (PARTITION BY window_start ORDER BY at) AS v FROM events": "rows that tie",
    "SELECT window_start, window_end, k, at, sum(v) OVER (PARTITION BY window_start ORDER BY at ROWS 3 PRECEDING) AS v FROM events": "rows that tie",
    "SELECT window_start, window_end, k, max(at) AS at, first(v) AS v FROM events GROUP BY 1, 2, 3": "First depends on the order",
    "SELECT window_start, window_end, k, max(at) AS at, collect_list(v)[0] AS v FROM events GROUP BY 1, 2, 3": "CollectList depends",
    "SELECT window_start, window_end, k, at, v FROM events WHERE v = (SELECT max(v) FROM events)": "subquery",
    "SELECT window_start, window_end, k, at, v FROM events ORDER BY at": "Sort",
    "SELECT window_start, window_end, k, at, v FROM events LIMIT 3": "Limit",
    "SELECT window_start, window_end, k, at, v FROM events UNION SELECT window_start, window_end, k, at, v FROM events": None,
    "SELECT window_start, window_end, k, at, cast(rand() * v AS bigint) AS v FROM events": "another value in each run",
}


def judge(spark: SparkSession, sql: str) -> list[str]:
    definition = define_interval("{every: 1 minute, lookback: 1 minute, at: at}")
    views = {"events": spark.createDataFrame([], view_schema(definition, "events"))}
    return find_interval_refusals(run_views(spark, sql, views), definition)


@pytest.mark.core
@pytest.mark.parametrize("name", FINE)
def test_a_statement_whose_windows_never_meet_passes(name: str, spark: SparkSession) -> None:
    assert judge(spark, FINE[name]) == []


@pytest.mark.core
@pytest.mark.proves(
    "architecture.md#intervals", "definitions.md#intervals-joins-rolling-figures-first-sightings-patterns"
)
@pytest.mark.parametrize("sql", REFUSED)
def test_a_statement_with_meeting_windows_or_tied_order_is_refused(sql: str, spark: SparkSession) -> None:
    words = REFUSED[sql]
    found = judge(spark, sql)
    if words is None:
        assert found == []
    else:
        assert any(words in finding for finding in found), found
