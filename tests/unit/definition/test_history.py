"""What a definition may say of a source's history in a lake, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from homes.one_source import WINDOWS_YAML
from rivertwice.cli.main import cli
from rivertwice.core.errors import DefinitionError
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition, parse_files
from rivertwice.definition.fingerprint import fingerprint_of

SQL = "SELECT window.start AS window_start, window.end AS window_end, k, count(*) AS n FROM events GROUP BY window(at, '1 hour'), k"
COLUMNS = "columns: {k: customer, at: visited}"
GOOD = f"table: /lake/visits, {COLUMNS}, until: 2026-01-01T00:00:00Z"


def define(history: str | None, *, window: str = "{size: 1 hour}", change: tuple[str, str] = ("", "")) -> Definition:
    text = WINDOWS_YAML.replace("WINDOW", window).replace("KEYS", "[k]").replace(*change)
    sql = (
        SQL
        if "session" not in window
        else SQL.replace("window", "session_window").replace("session_window_", "window_")
    )
    if history is not None:
        text = text.replace("    max_future", f"    history: {{{history}}}\n    max_future")
    return parse_files({"pipeline.yaml": text.encode(), "transform.sql": sql.encode()}, "p")


def test_a_history_changes_no_fingerprint_because_the_stream_does_not_read_it() -> None:
    plain, ours = define(None), define(GOOD)
    assert fingerprint_of(plain) == fingerprint_of(ours)
    _, source = ours.source
    assert source.history is not None
    assert source.history.until == datetime(2026, 1, 1, tzinfo=UTC)
    assert source.history.time_column(source) == "visited"


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ("table: /lake/visits, until: 2026-01-01T00:00:00Z", "exactly one of columns and payload"),
        (f"{GOOD}, payload: raw", "exactly one of columns and payload"),
        ("table: /lake/visits, payload: raw, until: 2026-01-01T00:00:00Z", "timestamp is needed"),
        (f"table: /lake/visits, {COLUMNS}", "until"),
        (GOOD.replace("00:00:00Z", "00:00:00"), "no time zone"),
        (GOOD.replace("/lake", "lake"), "write an absolute folder"),
        (f"{GOOD}, format: iceberg", "cannot name an Iceberg table"),
        (f"{GOOD}, catalog: main", "catalog is for Iceberg"),
        (f"{GOOD}, format: parquet, snapshot: 3", "has no snapshots"),
        (f"{GOOD}, format: csv", "csv"),
        (f"{GOOD}, snapshot: -1", "it must be at least 0"),
        (GOOD.replace("k: customer", "key: customer"), "'key', which is not in schema"),
        (GOOD.replace("at: visited", "d: eur"), "lacks 'at', which is required"),
    ],
)
def test_a_history_that_cannot_be_read_is_refused_with_the_remedy(history: str, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        define(history)


@pytest.mark.parametrize(
    ("window", "change", "words"),
    [
        ("{session: 1 hour}", ("", ""), "cannot be done: its windows are"),
        ("{size: 1 hour}", ("    max_future", "    schema_ids: ['7']\n    max_future"), "no header schema-id"),
        ("{size: 1 hour}", ("    max_future", "    framing: confluent\n    max_future"), "columns become plain JSON"),
        (
            "{size: 1 hour}",
            ("topic: events\n    partitions: 1\n", "topic: events.*\n"),
            "is a pattern, and a history in a lake",
        ),
    ],
)
def test_a_history_that_no_first_load_can_read_is_refused(window: str, change: tuple[str, str], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        define(GOOD, window=window, change=change)


def test_lint_names_the_line_of_a_history_that_cannot_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "project" / "pipelines" / "p"
    folder.mkdir(parents=True)
    text = WINDOWS_YAML.replace("WINDOW", "{size: 1 hour}").replace("KEYS", "[k]")
    history = GOOD.replace("k: customer", "key: customer")
    (folder / "pipeline.yaml").write_text(text.replace("    max_future", f"    history: {{{history}}}\n    max_future"))
    (folder / "transform.sql").write_text(SQL)
    settings = Settings(project=tmp_path / "project", home=tmp_path / "home")
    done = CliRunner().invoke(cli, ["lint", "p"], env=settings.to_env())
    assert done.exit_code == 3
    assert "line 11" in done.output
    assert "history.columns has 'key', which is not in schema" in done.output
