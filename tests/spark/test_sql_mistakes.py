"""Mistakes in SQL that only Spark sees: `rivertwice lint` says file, line, column and the nearest name, and its remedy holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from homes.project import TO_RUN, link, write_definition
from rivertwice.cli.main import cli

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]
YAML = """\
name: trips
description: Trips per station and hour.
sources:
  trips:
    topic: bike-trips
    partitions: 2
    schema: {station: string, fare: "decimal(18,2)", weight: double, started_at: timestamp}
    required: [station]
    event_time: started_at
    watermark: 10 minutes
    max_future: 1 hour
window: {size: 1 hour}
keys: [station]
count_column: records
columns: {records: {}, total: {}}
"""
SQL = """\
SELECT
  window.start AS window_start,
  window.end AS window_end,
  station,
  count(*) AS records,
  sum(fare) AS total
FROM trips
GROUP BY window(started_at, '1 hour'), station
"""
MISTAKES = {
    "a column": ("sum(fare)", "sum(fair)", "fair", "did you mean fare?", None),
    "a column of the keys": ("  station,", "  staton,", "staton", "did you mean station?", None),
    "a view": ("FROM trips", "FROM trip", "trip\n", "did you mean trips?", None),
    "a function": ("sum(fare)", "summ(fare)", "summ", "did you mean sum?", None),
    "a comma too few": ("records,", "records", "sum(fare)", "PARSE_SYNTAX_ERROR", "records,"),
    "a bracket too few": ("sum(fare)", "sum(fare", "AS total", "PARSE_SYNTAX_ERROR", "sum(fare)"),
    "a sum of doubles": ("sum(fare)", "sum(weight)", "sum(weight)", "cast to DECIMAL", "sum(CAST(weight AS DECIMAL(18, 6)))"),
    "a wrong type": ("sum(fare)", "sum(station)", "sum(station)", "adds floating-point numbers", "sum(fare)"),
    "arguments too few": ("sum(fare)", "round()", "round()", "WRONG_NUM_ARGS", "max(round(fare, 0))"),
    "a name of the result": ("AS total", "AS totl", None, "did you mean totl?", "AS total"),
}  # fmt: skip


@pytest.fixture
def lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[int, str]]:
    monkeypatch.setenv("RIVERTWICE_PROJECT", str(tmp_path))
    monkeypatch.setenv("RIVERTWICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RIVERTWICE_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setattr("rivertwice.cli.definitions.kafka_answers", lambda _: False)

    def invoke(sql: str) -> tuple[int, str]:
        write_definition(tmp_path / "pipelines" / "trips", {"pipeline.yaml": YAML, "transform.sql": sql})
        result = CliRunner().invoke(cli, ["--output", "json", "lint", "trips"])
        findings = json.loads(result.stdout)[0]["findings"]
        return result.exit_code, "\n".join(each["told"] for each in findings if each["state"] == "broken")

    return invoke


@pytest.mark.parametrize("label", MISTAKES)
def test_a_mistake_has_a_place_and_its_remedy_holds(
    tmp_path: Path, lint: Callable[[str], tuple[int, str]], label: str
) -> None:
    right, wrong, at, word, fixed = MISTAKES[label]
    assert SQL.count(right) == 1
    sql = SQL.replace(right, wrong)
    code, message = lint(sql)
    assert code == 3
    assert message.startswith(f"{tmp_path}/pipelines/trips/transform.sql: "), message
    assert word in message, message
    if at is not None:
        start = sql.index(at)
        place = f"line {sql.count(chr(10), 0, start) + 1}, column {start - sql.rfind(chr(10), 0, start)}"
        assert f"transform.sql: {place}: " in message, message
    if fixed is None:
        meant = re.search(r"did you mean (\w+)\?", message)
        assert meant is not None
        start = sql.index(at)
        repaired = sql[:start] + re.sub(r"^\w+", meant[1], sql[start:])
    else:
        repaired = SQL.replace(right, fixed)
    assert lint(repaired) == (0, "")


CASE = """\
description: a station whose name is cast to a number
batches:
  - - {id: a, at: "2026-01-01T00:00:00Z", value: {station: S1, fare: 1.00, started_at: "2026-01-01T00:00:00Z"}}
expect: {batch: [], stream: []}
"""


def test_a_case_that_fails_prints_the_error_with_its_place_and_no_stack(tmp_path: Path) -> None:
    """In a process of its own: the stack came from Spark's JVM."""
    sql = SQL.replace("sum(fare) AS total", "CAST(concat('a', max(station)) AS INT) AS total")
    folder = write_definition(tmp_path / "pipelines" / "trips", {"pipeline.yaml": YAML, "transform.sql": sql})
    write_definition(folder / "cases", {"station.yaml": CASE})
    link(tmp_path, TO_RUN)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "rivertwice.cli.main",
            "--project",
            str(tmp_path),
            "--home",
            str(tmp_path / "home"),
        ]
        env = {**os.environ, "RIVERTWICE_ENGINE": "off"}
        return subprocess.run(
            [*command, *options, "test", "trips"], capture_output=True, text=True, check=False, env=env
        )

    done = run()
    assert done.returncode == 3, done.stderr
    assert f"{folder / 'transform.sql'}: line 6, column 3: the SQL throws: [CAST_INVALID_INPUT]" in done.stdout
    assert [line for line in f"{done.stdout}{done.stderr}".splitlines() if line.startswith("\tat ")] == []
    assert len(f"{done.stdout}{done.stderr}".splitlines()) < 12
    assert "\tat org.apache.spark" in run("--debug").stderr
