"""`rivertwice query`: SQL over the project's tables, read-only, from the files that the conditions leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from homes.backfill import make_home
from homes.results import keep_days, make_served
from rivertwice.core.errors import RequestError
from rivertwice.read.query import run_query
from unit.read.test_show import Run, runner

SECRET = "what no query may read"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return runner(make_served(tmp_path)[0])


def test_what_is_served_is_queried_by_the_pipeline_s_name(run: Run) -> None:
    result = run("query", "SELECT k, count(*) AS hours, sum(n) AS total FROM p GROUP BY k ORDER BY k")
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.output.splitlines()] == [
        ["k", "hours", "total"],
        ["─" * 17],
        ["a", "120", "25380"],
        ["b", "120", "25380"],
        ["c", "120", "25380"],
        ["3", "rows"],
    ]


def test_json_has_numbers_as_numbers_and_every_column(run: Run) -> None:
    result = run("query", "SELECT sum(n), sum(n), min(window_start) FROM p", output="json")
    value = json.loads(result.stdout)
    assert value["rows"] == [{"sum(n)": 76140, "sum(n)_2": 76140, "min(window_start)": "2024-01-01T00:00:00Z"}]
    assert value["is_whole"]
    assert [status["batch"] for status in value["statuses"]] == [9]


@pytest.mark.parametrize(
    "where",
    [
        "window_start >= '2024-01-18' AND window_start < '2024-01-19'",
        "window_start >= TIMESTAMPTZ '2024-01-18' AND window_start < TIMESTAMPTZ '2024-01-18' + INTERVAL 1 DAY",
        "window_start BETWEEN '2024-01-18 00:00' AND '2024-01-18 23:00'",
        "date_trunc('day', window_start) = '2024-01-18'",
    ],
)
def test_a_query_over_a_day_opens_the_files_of_that_day(tmp_path: Path, where: str) -> None:
    settings, home = make_served(tmp_path, days=40)
    keep_days(home, 17)
    assert run_query(settings, f"SELECT count(*) AS n FROM p WHERE {where}", 10).rows.to_pylist() == [{"n": 72}]
    with pytest.raises(RequestError, match="No such file"):
        run_query(settings, "SELECT sum(n) FROM p", 10)


def test_a_query_stops_at_its_limit_and_says_there_is_more(run: Run) -> None:
    result = run("query", "SELECT * FROM range(1000000000)", "--limit", "2")
    assert result.output.splitlines()[-1] == (
        "the first 2 rows; more: rivertwice query 'SELECT * FROM range(1000000000)' --limit 20"
    )
    assert not json.loads(run("query", "FROM p", "--limit", "2", output="json").stdout)["is_whole"]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT kk FROM p", ['Referenced column "kk" not found', '"k"', "LINE 1: SELECT kk FROM p", "^"]),
        ("SELEC 1", ['syntax error at or near "SELEC"', "LINE 1: SELEC 1", "^"]),
        ("SELECT k\nFROM p\nWHERE", ["LINE 3: WHERE", "^"]),
        ("SELECT * FROM q", ["there is no view 'q'", "there are p, each also with __provisional"]),
        ("SELECT * FROM p__verdict", ["did you mean p__verdicts"]),
        ("SELECT * FROM p__verdicts", ["nothing was written to verdicts of p yet"]),
        ("SELECT sum(k) FROM p", ["No function matches", "sum(VARCHAR)"]),
        ("SELECT k::INTEGER FROM p", ["Could not convert string 'a'"]),
        ("SELECT 1; SELECT 2", ["there are 2 statements; write one SELECT"]),
        ("", ["write one SELECT"]),
    ],
)
def test_a_mistake_is_shown_with_its_place_and_the_nearest_names(run: Run, sql: str, words: list[str]) -> None:
    result = run("query", sql)
    assert result.exit_code == 1
    assert [word for word in words if word not in result.output] == []
    assert "Traceback" not in result.output


def test_the_mark_below_a_mistake_is_below_it(run: Run) -> None:
    lines = run("query", "SELECT k\nFROM p\nWHERE").output.splitlines()
    assert lines[-1].index("^") == lines[-2].index("WHERE")


@pytest.mark.proves("guarantees.md#show-query-export-open")
@pytest.mark.parametrize(
    "sql",
    [
        "COPY p TO '{folder}/out.csv'",
        "COPY (SELECT 1) TO '{folder}/out.parquet'",
        "EXPORT DATABASE '{folder}/out'",
        "ATTACH '{folder}/out.db'",
        "CREATE TABLE x AS SELECT 1",
        "CREATE VIEW p AS SELECT 1",
        "DROP VIEW p",
        "INSERT INTO p SELECT * FROM p",
        "SET enable_external_access = true",
        "PRAGMA enable_external_access = true",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CALL pragma_version()",
        "PREPARE x AS SELECT 1",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM read_blob('{secret}')",
        "SELECT * FROM '{secret}'",
        '"{secret}"',
        "FROM '{secret}'",
        "SELECT * FROM sniff_csv('{secret}')",
        "SELECT * FROM glob('{folder}/*')",
        "SELECT * FROM read_parquet('{home}/pipelines/p/tables/served/*.parquet')",
        "SELECT * FROM query('SELECT * FROM read_text(''{secret}'')')",
        "SELECT * FROM query_table('{secret}')",
        "SELECT (SELECT content FROM read_text('{secret}')) FROM p",
        "WITH x AS (SELECT * FROM read_text('{secret}')) SELECT * FROM x",
        "SELECT getenv('HOME')",
        "SELECT current_setting('secret_directory')",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM duckdb_secrets",
        "SELECT * FROM pg_catalog.pg_settings",
        "SELECT * FROM main.p",
        "SELECT * FROM arrow_scan(1, 2, 3)",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
        "SHOW TABLES",
        "SELECT * FROM settings",
        "SELECT * FROM opened",
    ],
)
def test_a_query_reads_the_views_and_nothing_else(tmp_path: Path, sql: str) -> None:
    settings, _ = make_served(tmp_path, days=1)
    secret = tmp_path / "secret.csv"
    secret.write_text(SECRET)
    before = sorted(tmp_path.rglob("*"))
    text = sql.format(folder=tmp_path, secret=secret, home=settings.home)
    result = runner(settings)("query", text)
    assert result.exit_code == 1, result.output
    assert SECRET not in result.output
    assert sorted(tmp_path.rglob("*")) == before


def test_views_are_listed_with_columns_and_rows(run: Run) -> None:
    listed = {view["view"]: view for view in json.loads(run("query", "--views", output="json").stdout)["views"]}
    assert sorted(listed) == ["p", "p__changelog", "p__ledger", "p__sequence"]
    assert listed["p"]["stored_rows"] == 360
    assert listed["p"]["columns"]["window_start"] == "timestamp[us, tz=UTC]"
    assert "p__ledger" in run("query", "--views").output


@pytest.mark.proves("guarantees.md#show-query-export-open")
def test_a_query_joins_tables_and_counts_only_the_head_s_path(tmp_path: Path) -> None:
    settings, _, _ = make_home(tmp_path)
    sql = "SELECT count(*) AS n, max(l.batch) AS newest FROM p__changelog c JOIN p__ledger l ON l.batch = c._batch"
    assert run_query(settings, sql, 10).rows.to_pylist() == [{"n": 8, "newest": 8}]


def test_a_query_s_own_table_may_have_the_name_of_a_view(tmp_path: Path) -> None:
    settings, _ = make_served(tmp_path)
    sql = "WITH mine AS (SELECT * FROM p), p__ledger AS (SELECT 1 AS one) SELECT count(*) AS n FROM mine, p__ledger"
    assert run_query(settings, sql, 10).rows.to_pylist() == [{"n": 360}]


def test_neither_a_query_nor_views_is_refused(run: Run) -> None:
    assert "write a query, or --views" in run("query").output
    assert run("query", "SELECT 1", "--views").exit_code == 1


def test_without_duckdb_the_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    result = run("query", "SELECT 1")
    assert result.exit_code == 1
    assert "pip install 'rivertwice[query]'" in result.output
