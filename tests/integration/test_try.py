"""`rivertwice try` names exactly the rows that an independent computation names, over one log that is streamed once."""

from __future__ import annotations

import hashlib
import json
import random
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from homes.project import TO_RUN, make_project, replace_text
from lab.faults.events import Event, produce_events
from rivertwice.core.instants import from_ms, parse_iso, to_iso, to_ms
from rivertwice.core.settings import Settings
from rivertwice.engine.case_files import load_case
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.timeline.lineage import path_ledger
from running.warm_spark import invoke_warm, run_command_warm, run_driver_warm

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
BEGIN_MS = 1_767_225_600_000
WINDOW_MS, GAP_MS, DELAY_MS = 10 * MINUTE_MS, 5 * MINUTE_MS, 10 * MINUTE_MS
FIXED, SESSIONS = "deltas", "visits"
PINS = "stream: {max_offsets_per_trigger: 60, catch_up_share: 0, shuffle_partitions: 1}\n"
YAML = """\
name: NAME
description: Amounts by key.
sources:
  records:
    topic: TOPIC
    partitions: 2
    schema: {k: string, at: timestamp, delta: bigint}
    required: [k, delta]
    event_time: at
    watermark: 10 minutes
    max_future: 1 hour
window: WINDOW
keys: [k]
count_column: records
columns: {records: {}, total: {}}
"""
SQL = """\
SELECT CALL.start AS window_start, CALL.end AS window_end, k, count(*) AS records, sum(abs(delta)) AS total
FROM records
GROUP BY CALL(at, SIZE), k
"""
Row = tuple[int, int, str]
"""Start and end of the window (epoch ms), and the key."""


@dataclass(frozen=True)
class Amount:
    """A record."""

    k: str
    at_ms: int
    delta: int


def amounts() -> list[Amount]:
    """Four hours of records in the order of their event times, with a rest of six minutes each quarter; k2 is seldom negative."""
    dice = random.Random(17)
    made = []
    for number in range(480):
        at_ms = number * MINUTE_MS // 2 + dice.randrange(20_000)
        k = f"k{number % 2 if number % 7 else 2}"
        delta = dice.randrange(1, 50) * (-1 if dice.random() < (0.04 if k == "k2" else 0.5) else 1)
        if at_ms % (15 * MINUTE_MS) < 9 * MINUTE_MS:
            made.append(Amount(k, BEGIN_MS + at_ms, delta))
    return made


def files_of(name: str, topic: str) -> dict[str, str]:
    window, call, size = ("{size: 10 minutes}", "window", "'10 minutes'")
    if name == SESSIONS:
        window, call, size = ("{session: 5 minutes}", "session_window", "'5 minutes'")
    text = YAML.replace("NAME", name).replace("TOPIC", topic).replace("WINDOW", window)
    sql = SQL.replace("CALL(", f"{call}(").replace("CALL.", f"{call}.").replace("SIZE", size)
    return {"pipeline.yaml": text + PINS, "transform.sql": sql}


@dataclass(frozen=True)
class Streamed:
    """Two pipelines over one log, streamed to its end, and the records that they accepted."""

    settings: Settings
    topic: str
    amounts: list[Amount]

    @property
    def closed_ms(self) -> int:
        """The watermark of the last batch."""
        return max(amount.at_ms for amount in self.amounts) - DELAY_MS

    def edited(self, folder: Path, name: str, file: str, *changes: tuple[str, str]) -> Settings:
        """Return the settings of a project with a changed definition, on the home where the other one runs."""
        files = files_of(name, self.topic)
        for old, new in changes:
            assert old in files[file]
            files[file] = files[file].replace(old, new)
        home, bootstrap = self.settings.home, self.settings.bootstrap
        return make_project(folder, {name: files}, links=TO_RUN, home=home, bootstrap=bootstrap)


@pytest.fixture(scope="module")
def streamed(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> Streamed:
    """Almost 300 records and a few that are refused, read by two streams."""
    folder, topic = tmp_path_factory.mktemp("try"), f"t-{uuid.uuid4().hex[:12]}"
    pipelines = {name: files_of(name, topic) for name in (FIXED, SESSIONS)}
    settings = make_project(folder, pipelines, links=TO_RUN, bootstrap=broker.bootstrap)
    ensure_topic(settings, topic, 2)
    made = amounts()
    events = []
    for number, amount in enumerate(made):
        value = {"k": amount.k, "at": to_iso(from_ms(amount.at_ms)), "delta": amount.delta}
        events.append(Event(number % 2, b"k", json.dumps(value).encode(), amount.at_ms))
        if number % 100 == 50:
            events.append(Event(0, b"k", b"no json", amount.at_ms))
    produce_events(settings, topic, events)
    for name in (FIXED, SESSIONS):
        run_driver_warm(settings, name, folder / f"{name}.log")
    run_command_warm(settings, "admin", "rebuild", FIXED)
    run = Streamed(settings, topic, made)
    assert path_ledger(settings.pipeline(FIXED))[-1].batch_watermark_ms == run.closed_ms
    return run


def with_abs(values: Iterable[int]) -> int:
    return sum(abs(value) for value in values)


def windows_of(records: Iterable[Amount], size_ms: int, step_ms: int) -> dict[Row, list[int]]:
    """Return the values of each window of a size, one each step, and key."""
    groups: dict[Row, list[int]] = {}
    for record in records:
        last = record.at_ms // step_ms * step_ms
        for start in range(last, record.at_ms - size_ms, -step_ms):
            groups.setdefault((start, start + size_ms, record.k), []).append(record.delta)
    return groups


def sessions_of(records: Iterable[Amount]) -> dict[Row, list[int]]:
    """Return the values of each session: a record after a longer pause than the gap begins another."""
    groups: dict[Row, list[int]] = {}
    last: dict[str, Row] = {}
    for record in sorted(records, key=lambda each: each.at_ms):
        known = last.get(record.k)
        start = record.at_ms
        values: list[int] = []
        if known is not None and record.at_ms <= known[1]:
            start, values = known[0], groups.pop(known)
        last[record.k] = (start, record.at_ms + GAP_MS, record.k)
        groups[last[record.k]] = [*values, record.delta]
    return groups


def newest(groups: Mapping[Row, list[int]], start_ms: int, end_ms: int) -> dict[Row, list[int]]:
    """Return the windows that hold a time of the stretch and end in it."""
    return {row: values for row, values in groups.items() if row[1] > start_ms and row[1] <= end_ms}


def differing(groups: Mapping[Row, list[int]]) -> dict[Row, tuple[int, int]]:
    """Return the rows whose total differs without `abs`, with both totals."""
    return {row: (with_abs(values), sum(values)) for row, values in groups.items() if with_abs(values) != sum(values)}


def shown(report: dict[str, Any]) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Return the examples of a report: window and key to both totals; each must differ in the total alone."""
    rows = {}
    for example in report["rows"]["examples"]:
        assert (example["kind"], list(example["values"])) == ("changed", ["total"])
        change = example["values"]["total"]
        row = (example["window_start"], example["window_end"], example["key"]["k"])
        rows[row] = (change["old"], change["new"])
    return rows


def named(rows: Mapping[Row, tuple[int, int]]) -> dict[tuple[str, str, str], tuple[int, int]]:
    return {(to_iso(from_ms(start)), to_iso(from_ms(end)), k): totals for (start, end, k), totals in rows.items()}


def files_in(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def run_try(settings: Settings, name: str, *options: str) -> Result:
    return invoke_warm(settings, "--output", "json", "try", name, "--limit", "1000", *options)


WITHOUT_ABS = ("sum(abs(delta))", "sum(delta)")


@pytest.mark.parametrize("against", ["log", "served"])
def test_a_planted_bug_changes_just_the_rows_that_it_must(streamed: Streamed, against: str, tmp_path: Path) -> None:
    end_ms = streamed.closed_ms // WINDOW_MS * WINDOW_MS
    groups = newest(windows_of(streamed.amounts, WINDOW_MS, WINDOW_MS), end_ms - 2 * HOUR_MS, end_ms)
    expected = differing(groups)
    settings = streamed.edited(tmp_path, FIXED, "transform.sql", WITHOUT_ABS)
    before = files_in(settings.home)
    result = run_try(settings, FIXED, "--against", against, "--fail-on-difference")
    assert result.exit_code == 3, result.output
    assert files_in(settings.home) == before
    report = json.loads(result.stdout)
    assert shown(report) == named(expected)
    assert 0 < len(expected) < len(groups)
    rows = report["rows"]
    assert (rows["equal"], rows["changed"]) == (len(groups) - len(expected), len(expected))
    assert (rows["only_new"], rows["only_old"], rows["repeated"]) == (0, 0, 0)
    assert (rows["windows"], rows["windows_differing"]) == (12, len({row[0] for row in expected}))
    largest = max(old - new for old, new in expected.values())
    assert rows["columns"] == [{"name": "total", "rows": len(expected), "largest": largest}]
    assert (report["stretch"]["start"], report["stretch"]["windows"]) == (to_iso(from_ms(end_ms - 2 * HOUR_MS)), 12)
    assert sum(len(values) for values in groups.values()) <= report["stretch"]["records"] < len(streamed.amounts)


def test_a_changed_schema_and_rule_are_named_by_column_and_row(streamed: Streamed, tmp_path: Path) -> None:
    """The rule refuses k2; of the batches without a dead letter only those of the stretch are read."""
    settings = streamed.edited(tmp_path, FIXED, "transform.sql", (" AS total", " AS total, max(delta) AS top"))
    yaml = settings.definitions / FIXED / "pipeline.yaml"
    rule = "    rules: [{name: known, rule: in_set, field: k, values: [k0, k1]}]\nwindow:"
    yaml.write_text(yaml.read_text().replace("window:", rule).replace("total: {}", "total: {}, top: {}"))
    end_ms = streamed.closed_ms // WINDOW_MS * WINDOW_MS
    groups = newest(windows_of(streamed.amounts, WINDOW_MS, WINDOW_MS), end_ms - HOUR_MS, end_ms)
    gone = {row: values for row, values in groups.items() if row[2] == "k2"}
    result = invoke_warm(settings, "try", FIXED, "--last", "1 hour", "--limit", "1")
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert "column   top bigint is added" in text
    assert (
        f"rows     {len(groups) - len(gone)} equal, 0 changed, 0 only new, {len(gone)} only old; "
        f"{len({row[0] for row in gone})} of 6 windows with rows differ" in text
    )
    assert f"{len(gone) - 1} more rows differ; --limit shows more" in text
    assert "changed: columns, rules, transform" in result.stderr


def test_sessions_are_compared_whole_and_only_once_settled(streamed: Streamed, tmp_path: Path) -> None:
    settings = streamed.edited(tmp_path, SESSIONS, "transform.sql", WITHOUT_ABS)
    settled_ms = streamed.closed_ms - GAP_MS
    groups = newest(sessions_of(streamed.amounts), settled_ms - HOUR_MS, settled_ms)
    result = run_try(settings, SESSIONS, "--last", "1 hour")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert shown(report) == named(differing(groups))
    assert 0 < report["rows"]["changed"] == len(groups) - report["rows"]["equal"] < len(groups)


def test_other_windows_are_counted_and_not_compared(streamed: Streamed, tmp_path: Path) -> None:
    hopping = ("'10 minutes'", "'20 minutes', '10 minutes'")
    settings = streamed.edited(tmp_path, FIXED, "transform.sql", hopping)
    yaml = settings.definitions / FIXED / "pipeline.yaml"
    yaml.write_text(yaml.read_text().replace("{size: 10 minutes}", "{size: 20 minutes, slide: 10 minutes}"))
    start_ms, end_ms = BEGIN_MS + HOUR_MS, BEGIN_MS + 2 * HOUR_MS
    fixed = windows_of(streamed.amounts, WINDOW_MS, WINDOW_MS)
    overlapping = windows_of(streamed.amounts, 2 * WINDOW_MS, WINDOW_MS)
    counts = [
        sum(1 for start, end, _ in groups if start < end_ms and end > start_ms) for groups in (fixed, overlapping)
    ]
    times = ("--from", to_iso(from_ms(start_ms)), "--to", to_iso(from_ms(end_ms)))
    result = run_try(settings, FIXED, *times)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["outcome"], report["differs"]) == ("incomparable", True)
    assert [report["rows"]["old_rows"], report["rows"]["new_rows"]] == counts
    assert "the windows changed from" in report["reason"]


@pytest.mark.proves("howto-upgrade.md#try-it-first")
def test_a_broken_statement_is_refused_in_the_words_of_lint(streamed: Streamed, tmp_path: Path) -> None:
    settings = streamed.edited(tmp_path, FIXED, "transform.sql", ("sum(abs(delta))", "sum(abs(detla))"))
    before = files_in(settings.home)
    result = run_try(settings, FIXED)
    assert result.exit_code == 1, result.output
    assert files_in(settings.home) == before
    error = json.loads(result.stderr.strip().splitlines()[-1])["error"]["message"]
    (findings,) = (each["findings"] for each in run_command_warm(settings, "lint", FIXED, code=3))
    assert error in [finding["told"] for finding in findings]
    assert "detla" in error


def test_a_window_cut_from_the_log_is_a_case_that_passes(streamed: Streamed, tmp_path: Path) -> None:
    settings = streamed.edited(tmp_path, FIXED, "transform.sql")
    start_ms = BEGIN_MS + HOUR_MS
    own = [each for each in streamed.amounts if each.k == "k0" and 0 <= each.at_ms - start_ms < WINDOW_MS]
    before = files_in(settings.home)
    words = ("--from-log", to_iso(from_ms(start_ms)), "--key", '{"k": "k0"}', "--as", "an_hour_in")
    cut = run_command_warm(settings, "test", FIXED, *words)
    assert files_in(settings.home) == before
    assert Path(cut["path"]).read_text().startswith(f"# {len(own) + 1} real records of the log")
    case = load_case(Path(cut["path"]))
    *kept, closing = [json.loads(event.raw or "") for event in case.events]
    assert [(each["at"], each["delta"]) for each in kept] == [(to_iso(from_ms(each.at_ms)), each.delta) for each in own]
    assert to_ms(parse_iso(closing["at"])) >= start_ms + WINDOW_MS + DELAY_MS
    (row,) = case.expect.stream
    assert (row["k"], row["records"], row["total"]) == ("k0", len(own), with_abs(each.delta for each in own))
    assert run_command_warm(settings, "test", FIXED)["failed"] == 0
    replace_text(settings.definitions / FIXED / "transform.sql", *WITHOUT_ABS)
    (failed,) = (each for each in run_command_warm(settings, "test", FIXED, code=3)["cases"] if each["differences"])
    assert failed["case"] == "an_hour_in"


def test_records_cut_by_address_keep_their_dead_letters(streamed: Streamed, tmp_path: Path) -> None:
    settings = streamed.edited(tmp_path, FIXED, "transform.sql")
    (place, *_) = (each["place"] for each in run_command_warm(settings, "dead", "list", FIXED)["letters"])
    dead = place.rpartition("/")[2].replace("@", "-")
    words = ("--from-log", place, "--from-log", f"{streamed.topic}/1@0", "--as", "by_address")
    cut = run_command_warm(settings, "test", FIXED, *words)
    assert (cut["records"], cut["batch_rows"]) == (2, 1)
    case = load_case(Path(cut["path"]))
    assert case.expect.dead == {dead: "json"}
    assert [event.raw for event in case.events if event.id == dead] == ["no json"]
    assert run_command_warm(settings, "test", FIXED)["failed"] == 0
