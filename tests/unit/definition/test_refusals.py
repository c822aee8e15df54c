from __future__ import annotations

import pytest

from homes.project import FLIGHTS
from rivertwice.core.errors import DefinitionError
from rivertwice.definition.definition import load_definition
from rivertwice.definition.kinds.sql import check_transform_shape
from rivertwice.definition.refusals import check_sql, normalise

SELECT = "SELECT {} AS x FROM flights GROUP BY window(sched_dep, '1 hour')"


@pytest.mark.proves("guarantees.md#what-everything-needs")
@pytest.mark.parametrize(
    ("expression", "cause"),
    [
        ("current_timestamp()", "reads the clock"),
        ("current_timestamp", "reads the clock"),
        ("max(NOW())", "reads the clock"),
        ("current_date", "reads the clock"),
        ("current_user", "who runs it"),
        ("user", "who runs it"),
        ("version()", "who runs it"),
        ("sum(rand())", "another value in each run"),
        ("max(uuid())", "another value in each run"),
        ("shuffle(array(1, 2))", "another value in each run"),
        ("first(a)", "order of rows"),
        ("last(a)", "order of rows"),
        ("any_value(a)", "order of rows"),
        ("max_by(a, b)", "order of rows"),
        ("min_by (a, b)", "order of rows"),
        ("collect_list(a)", "order of rows"),
        ("approx_count_distinct(a)", "approximate"),
        ("approx_top_k(a)", "approximate"),
        ("hll_sketch_agg(a)", "approximate"),
        ("percentile_approx(a, 0.5)", "approximate"),
        ("count(DISTINCT a)", "counts distinct"),
        ("monotonically_increasing_id()", "split into partitions"),
        ("spark_partition_id()", "split into partitions"),
        ("dropDuplicatesWithinWatermark(a)", "only in a stream"),
        ("`now`()", "reads the clock"),
    ],
)
def test_what_a_recompute_cannot_repeat_is_refused(expression: str, cause: str) -> None:
    with pytest.raises(DefinitionError, match=cause):
        check_sql(SELECT.format(expression), "transform.sql", compared=True)


@pytest.mark.parametrize("expression", ["now()", "rand()", "first(a)", "approx_count_distinct(a)"])
def test_giving_up_comparison_lifts_the_refusals_of_asymmetry(expression: str) -> None:
    check_sql(SELECT.format(expression), "transform.sql", compared=False)


@pytest.mark.parametrize(
    "expression", ["reflect('java.lang.System', 'exit', 0)", "java_method('a', 'b')", "count(DISTINCT a)"]
)
def test_java_and_distinct_counts_are_refused_always(expression: str) -> None:
    with pytest.raises(DefinitionError):
        check_sql(SELECT.format(expression), "transform.sql", compared=False)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM text.`/etc/passwd`",
        "SELECT * FROM parquet . `/x`",
        "SELECT 1; SELECT 2",
        "DROP TABLE x",
        "",
        "-- only a comment",
        "SET spark.sql.ansi.enabled=false",
    ],
)
def test_only_one_select_over_the_sources_is_accepted(sql: str) -> None:
    with pytest.raises(DefinitionError):
        check_sql(sql, "transform.sql", compared=False)


def test_names_in_comments_and_texts_are_no_calls() -> None:
    sql = "SELECT 'now()' AS a, count(*) AS b -- rand() uuid()\n/* first(x); */ FROM flights"
    check_sql(sql, "transform.sql", compared=True)


def test_a_column_that_shares_a_functions_name_is_no_call() -> None:
    check_sql("SELECT max(first) AS last, max(mode) AS mode FROM flights", "transform.sql", compared=True)


def test_a_field_of_a_source_is_a_column_where_it_is_not_called() -> None:
    check_sql(SELECT.format("user"), "transform.sql", compared=True, fields={"user"})
    with pytest.raises(DefinitionError, match="who runs it"):
        check_sql(SELECT.format("user()"), "transform.sql", compared=True, fields={"user"})


def test_comments_and_white_space_do_not_change_the_normal_form() -> None:
    assert normalise("SELECT a -- why\n  FROM  t") == normalise("SELECT a FROM t")
    assert normalise("SELECT 'a  b'") != normalise("SELECT 'a b'")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FROM flights", "FROM flights WHERE dep_delay > 0"),
        ("'1 hour'), origin", "'1 hour'), origin HAVING count(*) > 1"),
        ("window(sched_dep, '1 hour')", "window(sched_dep, '1 hour', '10 minutes')"),
        ("window(sched_dep, '1 hour')", "window(sched_dep, '30 minutes')"),
        ("window(sched_dep, '1 hour')", "window(other, '1 hour')"),
        ("window(sched_dep, '1 hour'), origin", "origin"),
        ("window(sched_dep, '1 hour'), origin", "window(sched_dep, '1 hour'"),
    ],
)
def test_a_transform_whose_rows_cannot_be_counted_is_refused(old: str, new: str) -> None:
    definition = load_definition(FLIGHTS)
    assert old in definition.transform_sql
    changed = definition.model_copy(update={"transform_sql": definition.transform_sql.replace(old, new)})
    with pytest.raises(DefinitionError):
        check_transform_shape(changed, "transform.sql")


def test_an_aggregates_own_filter_is_allowed() -> None:
    definition = load_definition(FLIGHTS)
    sql = definition.transform_sql.replace("count_if(cancelled)", "count(*) FILTER (WHERE cancelled)")
    check_transform_shape(definition.model_copy(update={"transform_sql": sql}), "transform.sql")
