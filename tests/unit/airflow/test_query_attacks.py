"""SQL in the page under attack, over HTTP: each statement is refused or bounded, others are answered meanwhile, no process stays."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvicorn

from homes.cockpit import Past, add_letter, make_past
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.read.query import REFUSED_FUNCTIONS
from rivertwice.read.query_process import environment
from running.waiting import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.long, pytest.mark.filterwarnings("ignore")]
MINE, THEIRS = "mine", "theirs"
SECRET = "what no query may read"
SECONDS = 10.0
LETTER = b'{"card": "4929"}'


@dataclass
class Box:
    """A real server of the app over a home of two teams, asked by a viewer who may read one of them."""

    url: str
    settings: Settings
    token: str
    folder: Path

    def ask(self, sql: str, form: str = "json", timeout: float = 60, **headers: str) -> httpx.Response:
        given = {"X-Rivertwice-CSRF": self.token, "Content-Type": "application/json", **headers}
        body = json.dumps({"sql": sql, "form": form})
        url = f"{self.url}/api/p/{MINE}/query"
        return httpx.post(url, content=body, headers=given, trust_env=False, timeout=timeout)

    def look(self) -> httpx.Response:
        return httpx.get(f"{self.url}/api/p/{MINE}/query", trust_env=False, timeout=10)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.security import get_user

    from rivertwice.airflow import web_query
    from rivertwice.airflow.web_access import get_settings, make_token, page_secret, readable_definition
    from rivertwice.airflow.web_app import app

    create_auth_manager()
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "secret.csv").write_text(SECRET)
    pq.write_table(pa.table({"secret": [SECRET]}), folder / "secret.parquet")
    settings = replace(make_past(folder / "home", Past(days=2, keys=2), (MINE, THEIRS)), query=True)
    add_letter(settings, MINE, LETTER)
    user = SimpleAuthManagerUser(username="vera", role="viewer")
    definition = load_definition(settings.definitions / MINE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(web_query, "SECONDS", SECONDS)
        patched.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patched.setattr(app, "dependency_overrides", {
            get_user: lambda: user, readable_definition: lambda: definition, get_settings: lambda: settings,
            web_query.readable_names: lambda: [MINE], web_query.decidable_names: lambda: list[str](),
        })  # fmt: skip
        server = uvicorn.Server(uvicorn.Config(app, port=0, loop="asyncio", log_level="error"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        wait_for("the server listens", lambda: server.started, 30)
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        yield Box(f"http://{host}:{port}", settings, make_token(page_secret(), user.get_id()), folder)
        server.should_exit = True
        thread.join(20)


def processes() -> list[int]:
    """The processes of queries that live."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile, or is a zombie
            if "rivertwice.read.query_process" in each.cmdline():
                found.append(each.pid)
    return found


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


ONLY_SELECT, NO_FUNCTION, NO_VIEW = "is not a query: only SELECT runs here", "does not run here", "there is no view"
SLOW, LARGE, DEEP = "took more than 10 s and was ended", "needs more than the 512 MiB of memory", "is nested too deeply"
FILES = "reads the views of the project"
ATTACKS = {
    "a file by read_csv": ("SELECT * FROM read_csv('{folder}/secret.csv')", NO_FUNCTION),
    "a file by read_text": ("SELECT * FROM read_text('{folder}/secret.csv')", NO_FUNCTION),
    "a file by read_blob in a subquery": ("SELECT (SELECT content FROM read_blob('{folder}/secret.csv'))", NO_FUNCTION),
    "a file by read_parquet": ("FROM read_parquet('{folder}/secret.parquet')", NO_FUNCTION),
    "a file by a scan of another name": ("FROM parquet_scan('{folder}/secret.parquet')", NO_FUNCTION),
    "a file by its schema": ("FROM system.main.parquet_schema('{folder}/secret.parquet')", NO_FUNCTION),
    "a file by its name": ("SELECT * FROM '{folder}/secret.csv'", NO_VIEW),
    "a file by its name in quotes": ('SELECT * FROM "{folder}/secret.parquet"', NO_VIEW),
    "a file named like an own table": ("SELECT * FROM (WITH \"{folder}/secret.csv\" AS (SELECT 1) SELECT 1) a, '{folder}/secret.csv' b", FILES),
    "a table function where a value stands": ("SELECT read_text('{folder}/secret.csv')", "is a table function"),
    "the names of files": ("SELECT * FROM glob('{folder}/*')", NO_FUNCTION),
    "a guess at a file's form": ("SELECT * FROM sniff_csv('{folder}/secret.csv')", NO_FUNCTION),
    "the network": ("SELECT * FROM read_csv('http://127.0.0.1:1/secret.csv')", NO_FUNCTION),
    "a store": ("SELECT * FROM 's3://bucket/secret.parquet'", NO_VIEW),
    "memory by its address": ("SELECT * FROM arrow_scan(1, 2, 3)", NO_FUNCTION),
    "variables of Python": ("SELECT * FROM settings", NO_VIEW),
    "a file that is written": ("COPY (SELECT 1) TO '{folder}/out.csv'", ONLY_SELECT),
    "a view that is written": ("COPY mine TO '{folder}/out.parquet'", ONLY_SELECT),
    "a folder that is written": ("EXPORT DATABASE '{folder}/out'", ONLY_SELECT),
    "another database": ("ATTACH '{folder}/out.db'", ONLY_SELECT),
    "an extension": ("INSTALL httpfs", ONLY_SELECT),
    "a loaded extension": ("LOAD httpfs", ONLY_SELECT),
    "a setting": ("SET enable_external_access = true", ONLY_SELECT),
    "a pragma": ("PRAGMA enable_external_access", ONLY_SELECT),
    "a call": ("CALL pragma_version()", ONLY_SELECT),
    "a checkpoint": ("CHECKPOINT", ONLY_SELECT),
    "a log": ("CALL enable_logging(storage_path => '{folder}/log')", ONLY_SELECT),
    "a log as a table": ("SELECT * FROM enable_logging()", NO_FUNCTION),
    "a prepared statement": ("PREPARE x AS SELECT 1", ONLY_SELECT),
    "a macro": ("CREATE MACRO theirs() AS TABLE SELECT 1", ONLY_SELECT),
    "a plan that runs": ("EXPLAIN ANALYZE SELECT 1", ONLY_SELECT),
    "two statements": ("SELECT 1; SELECT 2", "there are 2 statements"),
    "a second statement that writes": ("SELECT 1; COPY mine TO '{folder}/out.csv'", ONLY_SELECT),
    "a variable of the environment": ("SELECT getenv('AWS_SECRET_ACCESS_KEY')", NO_FUNCTION),
    "a setting's value": ("SELECT current_setting('home_directory')", NO_FUNCTION),
    "a setting's value by a schema": ("SELECT system.main.current_setting('home_directory')", NO_FUNCTION),
    "all settings": ("SELECT * FROM duckdb_settings()", NO_FUNCTION),
    "secrets": ("SELECT * FROM duckdb_secrets()", NO_FUNCTION),
    "tables of DuckDB": ("SELECT * FROM duckdb_tables", NO_VIEW),
    "tables of DuckDB behind an own one": ("WITH a AS (FROM pg_settings), pg_settings AS (SELECT 1) FROM a", NO_VIEW),
    "tables of tables": ("SELECT * FROM information_schema.tables", "there is no schema"),
    "all tables": ("SHOW ALL TABLES", NO_VIEW),
    "SQL in a text": ("SELECT * FROM query('SELECT * FROM theirs')", NO_FUNCTION),
    "a table in a text": ("SELECT * FROM query_table('theirs')", NO_FUNCTION),
    "SQL as JSON": ("SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))", NO_FUNCTION),
    "another team's table": ("SELECT * FROM theirs", NO_VIEW),
    "another team's table in quotes": ('SELECT * FROM "theirs__ledger"', NO_VIEW),
    "another team's table in capitals": ("SELECT * FROM THEIRS", NO_VIEW),
    "another team's table in a comment's shadow": ("SELECT * FROM/*mine*/theirs--mine", NO_VIEW),
    "another team's table by a schema": ("SELECT * FROM main.theirs", "there is no schema 'main'"),
    "another team's table by a database": ("SELECT * FROM memory.main.theirs", "there is no schema 'memory.main'"),
    "another team's columns": ("DESCRIBE theirs", NO_VIEW),
    "another team's figures": ("SUMMARIZE theirs__ledger", NO_VIEW),
    "another team's table in a condition": ("SELECT * FROM mine WHERE 1 = (SELECT count(*) FROM theirs)", NO_VIEW),
    "another team's table in a union": ("SELECT 1 UNION ALL SELECT 1 FROM theirs", NO_VIEW),
    "another team's table in a pivot": ("SELECT * FROM (PIVOT theirs ON k IN ('a') USING count(*))", NO_VIEW),
    "another team's table behind an own one": ("SELECT * FROM (WITH theirs AS (SELECT 1 AS x) FROM theirs) a, theirs b", "does not exist"),
    "another team's table in look-alike letters": ("SELECT * FROM th\u0435irs", NO_VIEW),
    "another team's table in wide letters": ("SELECT * FROM \uff54\uff48\uff45\uff49\uff52\uff53", NO_VIEW),
    "a sign that ends texts": ("SELECT * FROM mine\x00, theirs", ""),
    "half a character": ("SELECT '\ud800'", "not text"),
    "a dead letter's record": ("SELECT value FROM mine__dead_letters", "only for users with the permission to start operate__mine"),
    "a dead letter's record by its struct": ("SELECT x.value FROM mine__dead_letters x", "only for users with the permission"),
    "an endless recursion": ("WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t", SLOW),
    "a product of billions": ("SELECT count(*) FROM range(1000000) a, range(1000000) b", SLOW),
    "a sleep": ("SELECT sleep_ms(100000)", NO_FUNCTION),
    "a sleep of another name": ("SELECT pg_sleep(100)", NO_FUNCTION),
    "a list of a billion": ("SELECT list(x) FROM range(1000000000) t(x)", LARGE),
    "a list function's billion": ("SELECT list_aggregate(range(1000000000), 'string_agg', ',')", LARGE),
    "a text of a gigabyte": ("SELECT repeat('x', 1000000000)", LARGE),
    "a text that just fits": ("SELECT repeat('x', 300000000)", f"one row has more than|{LARGE}|{SLOW}"),
    "texts that add up": ("SELECT string_agg(repeat('x', 1000000)) FROM range(100000)", LARGE),
    "a sort of what does not fit": ("SELECT * FROM range(1000000000) t(x) ORDER BY hash(x)", f"{LARGE}|{SLOW}"),
    "a row of ten megabytes": ("SELECT repeat('x', 10000000)", "one row has more than the 4,194,304 bytes"),
    "deep brackets": ("SELECT " + "(" * 5_000 + "1" + ")" * 5_000, DEEP),
    "a long chain": ("SELECT " + "+".join("1" * 1_500), DEEP),
    "deep lists": ("SELECT " + "[" * 900 + "1" + "]" * 900, DEEP),
    "a very long statement": ("SELECT '" + "x" * 50_000 + "'", "the statement has 50,009 characters; write one of at most 20,000"),
}  # fmt: skip


@pytest.mark.proves("security.md#sql-in-the-page")
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_in_plain_words_while_others_are_answered(box: Box, attack: str) -> None:
    sql, words = ATTACKS[attack]
    before = files(box.folder)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(box.ask, sql.format(folder=box.folder) if "{folder}" in sql else sql)
        assert box.look().status_code == 200
        refused = asked.result()
    assert refused.status_code == 400, refused.text[:500]
    detail = refused.json()["detail"]
    assert any(each in detail for each in words.split("|")), detail
    assert "Traceback" not in detail
    for hidden in (SECRET, LETTER.decode(), "4929"):
        assert hidden not in refused.text
    assert processes() == []
    assert files(box.folder) == before


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT * FROM range(1000000000000)", 1_000),
        ("SELECT a.x, repeat('x', 100000) FROM range(1000) a(x)", 31),
        ("SELECT regexp_matches(repeat('a', 30000) || '!', '^(a+)+$')", 1),
        ("WITH theirs AS (SELECT 7 AS x) SELECT x FROM theirs", 1),
        ("WITH mine AS (SELECT 7 AS x) SELECT x FROM mine", 1),
        ("FROM mine__dead_letters", 1),
        ("SELECT 9007199254740993, 'nan'::DOUBLE, '\u0000' IS NULL", 1),
    ],
)
def test_what_is_large_or_strange_and_no_harm_has_a_bounded_answer(box: Box, sql: str, rows: int) -> None:
    answer = box.ask(sql)
    assert answer.status_code == 200, answer.text[:500]
    assert len(answer.json()["rows"]) == rows
    assert answer.json()["is_whole"] is (rows == 1)
    assert len(answer.content) < 5 << 20
    assert "4929" not in answer.text


@pytest.mark.proves("security.md#sql-in-the-page")
def test_another_team_s_view_is_refused_in_the_words_of_one_that_does_not_exist(box: Box) -> None:
    theirs, nobody_s = (box.ask(f"SELECT * FROM {name}").json()["detail"] for name in (THEIRS, "nobody"))
    assert theirs.replace(THEIRS, "nobody") == nobody_s
    assert box.look().json()["others"] == []


@pytest.mark.proves("security.md#sql-in-the-page")
def test_a_reader_who_leaves_ends_the_process(box: Box) -> None:
    with pytest.raises(httpx.ReadTimeout):
        box.ask("SELECT count(*) FROM range(1000000) a, range(1000000) b", timeout=1.5)
    wait_for("the process of the query has ended", lambda: processes() == [], 3)


def test_a_third_query_at_once_is_told_to_wait(box: Box) -> None:
    endless = "SELECT count(*) FROM range(1000000) a, range(1000000) b"
    with ThreadPoolExecutor(2) as pool:
        two = [pool.submit(box.ask, endless) for _ in range(2)]
        wait_for("two queries run", lambda: len(processes()) == 2, 5)
        third = box.ask("SELECT 1")
        assert (third.status_code, third.json()["detail"]) == (
            429,
            "2 queries run already on this server; wait some seconds, and run it again",
        )
        assert [each.result().status_code for each in two] == [400, 400]
    assert box.ask("SELECT 1").status_code == 200


@pytest.mark.proves("security.md#sql-in-the-page")
def test_a_query_is_in_the_log_with_who_what_and_how_much(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rivertwice.airflow.web_query"):
        box.ask("SELECT k\nFROM mine LIMIT 3")
        box.ask("SELECT * FROM theirs")
    ran, refused = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(r"query of mine by vera: 'SELECT k\\nFROM mine LIMIT 3': 3 rows, [0-9.]+ s", ran)
    assert refused.startswith("query of mine by vera: 'SELECT * FROM theirs': refused: there is no view 'theirs'")


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"X-Rivertwice-CSRF": ""}, "has no header"),
        ({"Sec-Fetch-Site": "cross-site"}, "comes from another page"),
        ({"Origin": "https://evil.example"}, "comes from https://evil.example"),
        ({"Content-Type": "text/plain"}, "not application/json"),
    ],
)
def test_a_query_comes_from_the_page_alone(box: Box, headers: dict[str, str], says: str) -> None:
    refused = box.ask("SELECT 1", **headers)
    assert (refused.status_code, says in refused.text) == (403, True), refused.text


def test_a_served_row_leads_to_its_explanation_and_another_does_not(box: Box) -> None:
    served = box.ask("SELECT k, window_start FROM mine ORDER BY ALL LIMIT 1").json()
    assert served["places"] == [["2026-01-01T00:00:00Z", '{"k": "k000"}']]
    assert [column["type"] for column in served["columns"]] == ["VARCHAR", "TIMESTAMP WITH TIME ZONE"]
    for sql in ("SELECT k FROM mine", "SELECT window_start::VARCHAR AS window_start, k FROM mine", "FROM mine__ledger"):
        assert box.ask(sql).json()["places"] == []


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
def test_the_same_rows_are_given_as_a_file(box: Box, form: str) -> None:
    sql = "SELECT k, n, n FROM mine ORDER BY window_start, k LIMIT 4"
    given = box.ask(sql, form)
    assert given.headers["content-disposition"] == f'attachment; filename="mine-query.{form}"'
    rows: Any = box.ask(sql).json()["rows"]
    if form == "parquet":
        assert [list(row.values()) for row in pq.read_table(pa.BufferReader(given.content)).to_pylist()] == rows
    elif form == "jsonl":
        assert [list(json.loads(line).values()) for line in given.text.splitlines()] == rows
    else:
        assert given.text.splitlines()[0] == '"k","n","n_2"'
        assert len(given.text.splitlines()) == 5


def test_a_query_that_is_off_or_not_allowed_says_why_and_what_to_do(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.security import get_user

    from rivertwice.airflow.web_access import get_settings, make_token, page_secret
    from rivertwice.airflow.web_app import app

    nobody = SimpleAuthManagerUser(username="nina", role=None)
    monkeypatch.setitem(app.dependency_overrides, get_user, lambda: nobody)
    mine = {"X-Rivertwice-CSRF": make_token(page_secret(), nobody.get_id())}
    refused = box.ask("SELECT 1", **mine)
    assert (refused.status_code, "nina may not ask with SQL" in refused.text, "`Rivertwice SQL`" in refused.text) == (
        403,
        True,
        True,
    )
    monkeypatch.setitem(app.dependency_overrides, get_settings, lambda: replace(box.settings, query=False))
    assert (box.ask("SELECT 1", **mine).status_code, box.look().json()["views"]) == (403, [])
    assert "`RIVERTWICE_QUERY=on` in the API server's environment" in box.look().json()["why"]


@pytest.mark.proves("security.md#sql-in-the-page")
def test_the_process_has_no_variable_but_the_places_and_the_store_s_login(box: Box) -> None:
    around = {
        "HOME": "/h", "AWS_SECRET_ACCESS_KEY": "s3", "AZURE_CLIENT_ID": "az", "RIVERTWICE_KAFKA_PASSWORD": "k",
        "RIVERTWICE_POSTGRES": "p", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "a", "FERNET_KEY": "f",
    }  # fmt: skip
    places = {"RIVERTWICE_PROJECT", "RIVERTWICE_HOME"}
    assert set(environment(box.settings, around)) == {"HOME", *places}
    shared = replace(box.settings, shared="s3://bucket/a")
    assert set(environment(shared, around)) == {"HOME", *places, "RIVERTWICE_SHARED", "AWS_SECRET_ACCESS_KEY"}


def test_every_function_of_duckdb_that_is_not_of_its_values_alone_was_decided_about() -> None:
    clock_and_chance = {
        "current_date", "current_database", "current_schema", "current_schemas", "error", "gen_random_uuid", "get_current_time",
        "get_current_timestamp", "now", "random", "today", "transaction_timestamp", "uuid", "uuidv4", "uuidv7",
    }  # fmt: skip
    sql = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'scalar' AND stability <> 'CONSISTENT'"
    found = {name for (name,) in duckdb.connect().execute(sql).fetchall()}
    assert found - REFUSED_FUNCTIONS == clock_and_chance
