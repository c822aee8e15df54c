"""`rivertwice show`: the rows that are served, from the files that can have them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from homes.backfill import hours, make_home
from homes.results import FIRST, KEYS, SCHEMA, keep_days, make_served
from rivertwice.cli.main import cli
from rivertwice.core.instants import to_iso
from rivertwice.core.settings import Settings
from rivertwice.read.find import find_rows
from rivertwice.read.newest import newest_rows
from rivertwice.storage.table import Table
from rivertwice.timeline.served import rebuild_served
from rivertwice.timeline.served_stamp import SERVED_KEY, ServedStamp
from unit.timeline.test_served import publish_rows

Run = Callable[..., Result]


def runner(settings: Settings) -> Run:
    def run(*arguments: str, output: str = "text") -> Result:
        where = ["--project", str(settings.project), "--home", str(settings.home), "--output", output]
        return CliRunner().invoke(cli, [*where, *arguments])

    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return runner(make_served(tmp_path)[0])


def rows_in(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["rows"]


def test_the_newest_rows_are_shown_with_what_they_are_of(run: Run) -> None:
    result = run("show", "p", "--limit", "2")
    assert result.exit_code == 0, result.output
    stamp, head, _, first, second, last = result.output.splitlines()
    assert stamp.startswith("served of p as of batch 9 of t1, sequence 1, built 20")
    assert head.split() == ["window_start", "window_end", "k", "n", "mean", "note", "_status"]
    assert first.split() == ["2024-01-05T23:00:00Z", "2024-01-06T00:00:00Z", "a", "423", "null", "null", "stream"]
    assert second.split()[5] == '""'
    assert len(first.rstrip()) == len(second.rstrip())
    assert last == "2 of 360 rows, newest first; more: rivertwice show p --limit 20"


def test_the_command_that_shows_more_works_as_it_is_printed(run: Run) -> None:
    options = ["--from", "2024-01-02", "--to", "2024-01-03", "--key", '{"k": "b"}', "--order", "oldest"]
    result = run("show", "p", *options, "--limit", "2")
    command = result.output.rpartition("more: ")[2].strip()
    again = run(*shlex.split(command)[1:])
    assert again.output.endswith("20 rows, oldest first; there may be more: " + command + "0\n")
    assert run(*shlex.split(command + "0")[1:]).output.endswith("24 of 24 rows\n")


def test_a_null_and_texts_that_look_like_one_differ(run: Run) -> None:
    shown = run("show", "p", "--limit", "3", "--columns", "k,note").output
    assert [line.split() for line in shown.splitlines()[3:6]] == [["a", "null"], ["b", '""'], ["c", '"null"']]


def test_rows_of_one_day_are_read_from_the_files_of_that_day(tmp_path: Path) -> None:
    settings, home = make_served(tmp_path, days=40)
    keep_days(home, 17)
    day = ["--from", "2024-01-18", "--to", "2024-01-19"]
    result = runner(settings)("show", "p", *day, "--limit", "100", output="json")
    assert len(rows_in(result)) == 72
    assert json.loads(result.stdout)["total"] == 72
    refused = runner(settings)("show", "p", "--from", "2024-01-18", "--to", "2024-01-20")
    assert refused.exit_code == 1
    assert "rivertwice admin repair p" in refused.output


def test_the_newest_rows_are_read_from_the_newest_files(tmp_path: Path) -> None:
    settings, home = make_served(tmp_path, days=40)
    keep_days(home, 39)
    assert {row["n"] for row in rows_in(runner(settings)("show", "p", output="json"))} == set(range(3917, 3924))


def test_the_oldest_rows_are_read_from_the_oldest_files(tmp_path: Path) -> None:
    settings, home = make_served(tmp_path, days=40)
    keep_days(home, 0)
    shown = rows_in(runner(settings)("show", "p", "--order", "oldest", "--limit", "4", output="json"))
    assert [row["window_start"] for row in shown] == 3 * ["2024-01-01T00:00:00Z"] + ["2024-01-01T01:00:00Z"]


@pytest.mark.parametrize("oldest", [False, True])
@pytest.mark.parametrize("limit", [1, 5, 71, 72, 73, 200, 1000])
@pytest.mark.parametrize("key", [{}, {"k": "c"}, {"k": "c", "n": 105}, {"k": "x"}])
def test_rows_are_those_of_the_whole_table_in_order(
    tmp_path: Path, oldest: bool, limit: int, key: dict[str, Any]
) -> None:
    settings, home = make_served(tmp_path, days=4)
    whole = Table(home.tables.served).read()
    assert whole is not None
    rows = [row for row in whole.to_pylist() if all(row[name] == value for name, value in key.items())]
    rows.sort(key=lambda row: row["k"])
    rows.sort(key=lambda row: row["window_start"], reverse=not oldest)
    found = newest_rows(find_rows(settings, "p").choose(key=key), limit, oldest=oldest).to_pylist()
    assert found == [{name: row[name] for name in SCHEMA.names[1:]} for row in rows[:limit]]


def test_files_of_mixed_times_give_the_newest_rows_too(tmp_path: Path) -> None:
    settings, home, _ = make_home(tmp_path)
    rows: list[dict[str, Any]] = [
        {"_format": 1, "window_start": FIRST + timedelta(hours=(37 * n) % 200), "k": KEYS[n % 3], "n": n}
        for n in range(400)
    ]
    for start in range(0, 400, 40):
        part = pa.Table.from_pylist(rows[start : start + 40], SCHEMA)
        Table(home.tables.served).append(part, metadata={SERVED_KEY: ServedStamp(1, "t1", 9).plain()})
    found = newest_rows(find_rows(settings, "p"), 50)["window_start"].to_pylist()
    assert found == sorted((row["window_start"] for row in rows), reverse=True)[:50]


@pytest.mark.proves("guarantees.md#served")
def test_a_table_that_is_not_current_says_what_is_committed(tmp_path: Path) -> None:
    settings, home, bundle = make_home(tmp_path)
    rebuild_served(home, bundle.definition)
    publish_rows(home, bundle, "b1", hours((1, 2)), [(1, "z", 7)], 2)
    run = runner(settings)
    result = run("show", "p")
    assert "not current: batch 9 of t1, sequence 2, is committed" in result.output.splitlines()[0]
    assert not json.loads(run("show", "p", output="json").stdout)["status"]["is_current"]
    rebuild_served(home, bundle.definition)
    assert "not current" not in run("show", "p").output
    assert [row["k"] for row in rows_in(run("show", "p", "--key", '{"_status": "published"}', output="json"))] == ["z"]


@pytest.mark.proves("guarantees.md#show-query-export-open")
def test_rows_of_the_version_that_serves_are_shown(tmp_path: Path) -> None:
    settings, home = make_served(tmp_path)
    other = settings.pipeline("p@v2")
    other.root.mkdir(parents=True)
    (other.root / "intent.json").write_text("{}")
    Table(home.tables.served).append(
        pa.Table.from_pylist([], SCHEMA), metadata={SERVED_KEY: ServedStamp(3, "t7", 4, "p@v2").plain()}
    )
    Table(home.tables.ledger).append(Table(home.tables.ledger).read().slice(0, 0))  # type: ignore[union-attr]
    status = json.loads(runner(settings)("show", "p", output="json").stdout)["status"]
    assert (status["version"], status["timeline"], status["batch"], status["is_current"]) == ("p@v2", "t7", 4, False)
    refused = runner(settings)("show", "p", "--table", "ledger")
    assert "p has no ledger" in refused.output


@pytest.mark.proves("guarantees.md#show-query-export-open")
def test_batches_that_left_the_path_are_not_shown(tmp_path: Path) -> None:
    settings, home, _ = make_home(tmp_path)
    run = runner(settings)
    stored = Table(home.tables.ledger).read()
    assert stored is not None
    strange = stored.slice(0, 1).to_pylist()[0] | {"timeline": "t9"}
    Table(home.tables.ledger).append(pa.Table.from_pylist([strange], stored.schema))
    shown = rows_in(run("show", "p", "--table", "ledger", output="json"))
    assert sorted((row["timeline"], row["batch"]) for row in shown) == [("t1", n) for n in range(10)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--table", "verdict"], "did you mean verdicts?"),
        (["--table", "verdicts"], "run `rivertwice reconcile p`"),
        (["--table", "provisional"], "emit: updates"),
        (["--table", "dead_letters"], "no record was refused so far"),
        (["--columns", "k,nn"], "did you mean n?"),
        (["--key", '{"kk": 1}'], "did you mean k?"),
        (["--key", '{"n": "many"}'], "'many' is not a value of the column n, which is int64"),
        (["--key", "k=a"], "is not a JSON object"),
        (["--from", "2024-01-01"], "only --from is given"),
        (["--from", "2024-01-02", "--to", "2024-01-01"], "empty or reversed"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_the_remedy(run: Run, arguments: list[str], words: str) -> None:
    result = run("show", "p", *arguments)
    assert result.exit_code == 1
    assert words in result.output


def test_rows_by_key_are_those_of_folds_and_open_windows(run: Run, tmp_path: Path) -> None:
    result = run("show", "p", "--by-key")
    assert result.exit_code == 1
    assert "--by-key, --at and --history are of a fold's keys, or of open windows (emit: updates)" in result.output
    settings, home, bundle = make_home(tmp_path / "updates", emit="updates")
    rebuild_served(home, bundle.definition)
    shown = json.loads(runner(settings)("show", "p", "--by-key", output="json").stdout)
    assert (shown["shows"]["timeline"], shown["shows"]["batch"]) == ("t1", 9)
    assert "there is only the newest row of each open window" in runner(settings)("show", "p", "--history").output


def test_a_table_shows_so_many_rows_at_most(run: Run) -> None:
    assert run("show", "p", "--limit", "10000").exit_code == 0
    result = run("show", "p", "--limit", "10001")
    assert result.exit_code == 2
    assert "`rivertwice show p --write FILE` writes any number" in result.output


def test_nothing_served_yet_is_said_so(tmp_path: Path) -> None:
    result = runner(make_home(tmp_path)[0])("show", "p")
    assert result.exit_code == 1
    assert "nothing is served yet: the agent builds the table after the first batch" in result.output


def test_control_characters_of_records_reach_no_terminal(tmp_path: Path) -> None:
    settings, home = make_served(tmp_path, days=1)
    evil = {
        **dict.fromkeys(SCHEMA.names),
        "_format": 1,
        "window_start": FIRST + timedelta(days=9),
        "k": "\x1b[31mred\n",
    }
    Table(home.tables.served).append(
        pa.Table.from_pylist([evil], SCHEMA), metadata={SERVED_KEY: ServedStamp(1, "t1", 9).plain()}
    )
    shown = runner(settings)("show", "p", "--limit", "1").output
    assert "\x1b" not in shown
    assert r"\x1b[31mred\n" in shown
    assert to_iso(FIRST + timedelta(days=9)) in shown


@pytest.fixture
def behind(tmp_path: Path) -> Settings:
    """Return a project whose served table lacks a publication."""
    settings, home, bundle = make_home(tmp_path)
    rebuild_served(home, bundle.definition)
    publish_rows(home, bundle, "b1", hours((1, 2)), [(1, "z", 7)], 2)
    return settings


@pytest.mark.proves("howto-results.md#only-what-is-current", "cli.md#results", "guarantees.md#served")
@pytest.mark.parametrize(
    "words",
    [
        ("show", "p"),
        ("show", "p", "--write", "TARGET/rows.jsonl"),
        ("query", "SELECT k FROM p"),
        ("query", "WITH one AS (SELECT k FROM p) SELECT * FROM one"),
    ],
)
def test_rows_that_must_be_current_are_refused_until_what_is_printed_builds_them(
    behind: Settings, tmp_path: Path, words: tuple[str, ...]
) -> None:
    run = runner(behind)
    asked = [word.replace("TARGET", str(tmp_path)) for word in words]
    assert run(*asked).exit_code == 0
    (tmp_path / "rows.jsonl").unlink(missing_ok=True)
    refused = run(*asked, "--require-current", output="json")
    assert refused.exit_code == 1
    assert refused.stdout == "" or "rows" not in json.loads(refused.stdout)
    assert not (tmp_path / "rows.jsonl").exists()
    assert "it shows batch 9 of t1, sequence 1, and batch 9 of t1, sequence 2, is committed" in refused.output
    command = next(part for part in refused.output.split("`")[1::2] if part.startswith("rivertwice admin"))
    assert run(*shlex.split(command)[1:]).exit_code == 0
    done = run(*asked, "--require-current")
    assert done.exit_code == 0, done.output


def test_the_command_that_shows_more_asks_for_current_rows_too(run: Run) -> None:
    for words in (("show", "p"), ("query", "SELECT k FROM p")):
        last = run(*words, "--limit", "2", "--require-current").output.splitlines()[-1]
        assert "--require-current" in last
        again = shlex.split(last.partition("more: ")[2])[1:]
        assert run(*again).exit_code == 0


def test_a_table_that_does_not_say_what_it_shows_is_not_called_current(behind: Settings) -> None:
    run = runner(behind)
    refused = run("show", "p", "--table", "ledger", "--require-current")
    assert refused.exit_code == 1
    assert "ledger of p does not say which batch its rows show" in refused.output
    assert run("show", "p", "--table", "ledger").exit_code == 0
