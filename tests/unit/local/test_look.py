"""`rivertwice look`: what records are like, before anything is installed but the wheel."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rivertwice.cli.main import cli
from rivertwice.local.guess import TimedRecord
from rivertwice.local.look import count_late

START = datetime(2026, 3, 1, tzinfo=UTC)
HEADER = "Shop;Time;Amount;Coupon\n"


def lines(count: int) -> list[str]:
    """A sale a minute; every tenth is written two hours after its time, and the second half has coupons."""
    times = [START + timedelta(minutes=n - (120 if n % 10 == 9 else 0)) for n in range(count)]
    return [
        f"{'berlin' if n % 4 else 'lagos'};{time:%d.%m.%Y %H:%M};{n},50 €;{n if n >= count // 2 else ''}\n"
        for n, time in enumerate(times)
    ]


def test_a_file_is_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "sales.csv"
    file.write_bytes((HEADER + "".join(lines(1_000))).encode("cp1252"))
    words = ["look", str(file), "--zone", "UTC", "--window", "10 minutes"]
    found = json.loads(CliRunner().invoke(cli, ["--output", "json", *words]).stdout)
    assert (found["records"], found["event_time"], found["keys"], found["key_values"]) == (1_000, "time", ["shop"], 2)
    assert found["read_as"] == ["CSV, cp1252, delimiter semicolon, decimal comma, Amount in €, times as %d.%m.%Y %H:%M"]
    assert (found["disordered"], found["delays"][0]["late"]) == (100, 100)
    assert found["delays"][-1]["late"] == 0
    assert [each["records"] for each in found["most"]] == [750, 250]
    text = CliRunner().invoke(cli, words).output
    assert "warning: berlin has 75% of the records" in text
    assert "warning: coupon comes and goes" in text
    assert f"next: rivertwice init --from-file {file} --zone UTC" in text


def test_a_time_without_a_zone_is_named_with_what_to_say(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text(HEADER + "".join(lines(30)))
    text = CliRunner().invoke(cli, ["look", str(tmp_path / "f.csv")]).output
    assert "warning: no field can be the event time" in text
    assert "warning: time: times without a zone" in text


def test_records_that_are_none_are_counted(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text('{"time": "2026-03-01T00:00:00Z", "n": 1}\n' * 30 + "{\n" * 3)
    text = CliRunner().invoke(cli, ["look", str(tmp_path / "f.jsonl")]).output
    assert "warning: 3 left out: lines 31" in text


@pytest.mark.parametrize("words", [["/no/such.csv"], ["no such topic"]])
def test_what_cannot_be_looked_at_is_said(words: list[str]) -> None:
    result = CliRunner().invoke(cli, ["look", *words])
    assert result.exit_code == 1
    assert "is not a file" in result.output or "cannot name a topic" in result.output


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.integers(1, 40), st.integers(0, 100))
def test_a_record_is_late_if_its_window_had_closed_when_it_came(seconds: list[int], size: int, delay: int) -> None:
    timed = [TimedRecord(0, 0, n, START + timedelta(seconds=each), None) for n, each in enumerate(seconds)]
    origin = int(START.timestamp())
    events = [origin + each for each in seconds]
    expected = sum(event // size * size + size <= max(events[: n or 1]) - delay for n, event in enumerate(events))
    assert count_late(timed, timedelta(seconds=size), timedelta(seconds=delay)) == expected


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("amount", ["amount_sum", "amount_mean"]),
        ("humidity", ["humidity_mean", "humidity_max"]),
        ("vat_rate", ["vat_rate_mean", "vat_rate_max"]),
        ("lsn", []),
    ],
)
def test_what_is_measured_is_not_summed_and_a_number_that_names_something_is_no_figure(
    tmp_path: Path, name: str, columns: list[str]
) -> None:
    rows = [f"{'ab'[n % 2]},2026-03-01T00:{n % 60:02}:00Z,{n * 7 % 50}.5\n" for n in range(200)]
    if name == "lsn":
        rows = [row.replace(".5", "") for row in rows]
    (tmp_path / "f.csv").write_text(f"shop,at,{name}\n" + "".join(rows))
    result = CliRunner().invoke(
        cli, ["--project", str(tmp_path / "p"), "init", "f", "--from-file", str(tmp_path / "f.csv")]
    )
    assert result.exit_code == 0, result.output
    sql = (tmp_path / "p/pipelines/f/transform.sql").read_text()
    assert [word for word in ("_sum", "_mean", "_max") if f"AS {name}{word}" in sql] == [
        each.removeprefix(name) for each in columns
    ]
