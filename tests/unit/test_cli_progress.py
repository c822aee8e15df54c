"""The command line says what is known since when, takes dates, and never ends well in silence where nothing was done."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from homes.backfill import add_timeline
from homes.ledger import ledger_row
from homes.project import REPOSITORY
from rivertwice.agent.launch import AgentStatus
from rivertwice.agent.memory import DriverRef, load_memory, save_memory
from rivertwice.cli.main import cli
from rivertwice.cli.options import INSTANT, range_of
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import TimeRange, parse_instant, to_iso, utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import build_bundle
from rivertwice.savepoint.prune import KEPT
from rivertwice.timeline.intent import Heartbeat
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Fork
from rivertwice.timeline.sequence import move_head


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def invoke(*arguments: str, output: str = "text", project: Path = REPOSITORY) -> Result:
        options = ["--output", output, "--project", str(project), "--home", str(tmp_path / "home")]
        return CliRunner().invoke(cli, [*options, *arguments])

    return invoke


@pytest.mark.parametrize(
    "text", ["2013-06-30", " 2013-06-30 ", "20130630", "2013-06-30T00:00:00Z", "2013-06-29T20:00-04:00"]
)
def test_a_date_alone_means_its_midnight_in_utc(text: str) -> None:
    start, end = (INSTANT.convert(each, None, None) for each in (text, "2013-07-01"))
    assert range_of(start, end) == TimeRange.parse("2013-06-30T00:00:00Z", "2013-07-01T00:00:00Z")


def test_the_help_of_a_range_says_what_a_date_means(run: Any) -> None:
    for command in (("reconcile",), ("backfill", "plan"), ("backfill", "run")):
        assert "a date alone means midnight UTC" in " ".join(run(*command, "--help").output.split())


def test_the_remedy_of_an_instant_without_a_zone_works_when_it_is_pasted() -> None:
    for text in ("2013-06-30T04:00", "2013-06-30 04:00:00", "2013-06-30T04:00:00.5"):
        with pytest.raises(RequestError, match="no time zone") as refused:
            parse_instant(text)
        remedy = str(refused.value).partition("write it as ")[2].partition(" or with")[0]
        assert to_iso(parse_instant(remedy)).startswith("2013-06-30T04:00:00")


def test_a_stop_that_nobody_will_carry_out_says_so_and_does_not_wait(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivertwice.stream.lease.lease_owner", lambda _: DriverRef(4711, 1.0, 7, utc_now()))
    asked = run("stop", "flight_delays")
    assert asked.exit_code == 0
    assert "no agent is running to drain driver pid 4711 of flight_delays" in asked.stderr
    waited = run("stop", "flight_delays", "--wait")
    assert waited.exit_code == 1
    assert "run `rivertwice agent start`" in waited.output


@pytest.mark.parametrize(
    "command",
    [
        ("agent", "metrics"),
        ("agent", "metrics", "--rules"),
        ("agent", "metrics", "--prometheus"),
        ("status", "--why"),
        ("lint",),
        ("test",),
    ],
    ids=" ".join,
)
def test_a_command_over_all_pipelines_fails_where_there_are_none(
    run: Any, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "empty").mkdir()
    result = run(*command, project=tmp_path / "empty")
    assert result.exit_code == 1
    assert f"no pipeline is defined in {tmp_path}/empty/pipelines; run it in the project" in result.output
    assert "--project PATH" in result.output


def test_a_list_of_no_pipelines_says_where_it_looked(run: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert f"none in {tmp_path}/empty/pipelines" in run("pipelines", project=tmp_path / "empty").output
    assert json.loads(run("pipelines", output="json", project=tmp_path / "empty").stdout) == []


def test_discarding_a_reason_that_no_dead_letter_has_is_refused(run: Any) -> None:
    result = run("dead", "discard", "flight_delays", "--kind", "tombstone", "--reason", "test")
    assert result.exit_code == 1
    assert "no open dead letter has the reason 'tombstone'" in result.output


def spoken(tmp_path: Path, age_s: float, **changes: Any) -> None:
    """Write the last heartbeat of flight_delays' driver, said so long ago."""
    at = utc_now() - timedelta(seconds=age_s)
    beat = Heartbeat(7, 4711, "t1", "running", at, batch=5, **changes)
    beat.save(Settings(REPOSITORY, tmp_path / "home").pipeline("flight_delays"))


def test_a_dead_drivers_lag_is_shown_with_its_age_and_how_to_measure_it(run: Any, tmp_path: Path) -> None:
    spoken(tmp_path, 600, lag=5000, arriving_per_s=3.0, catch_up_s=7.0)
    shown = run("status").output
    assert "5000, 10 min ago" in shown
    assert "the lag is not known now, because no driver is running; 5000 is what waited at 20" in shown
    assert "`rivertwice agent metrics flight_delays` asks Kafka" in shown
    assert "gone in about" not in shown  # a pace of ten minutes ago foretells nothing


def test_a_lag_that_a_dead_driver_never_learnt_is_not_a_dash(run: Any, tmp_path: Path) -> None:
    assert "not known" not in run("status").output  # nothing ever ran, nothing is missing
    spoken(tmp_path, 600)
    shown = run("status").output
    assert "not known" in shown
    assert "not measured since the last driver or the last head move" in shown


def test_a_live_driver_whose_broker_is_down_does_not_claim_a_lag_of_zero(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rivertwice.agent.health.lease_owner", lambda _: DriverRef(4711, 1.0, 7, utc_now()))
    spoken(tmp_path, 1, lag=0, lag_at=utc_now() - timedelta(minutes=5))
    shown = run("status").output
    assert "0, 5 min ago" in shown
    assert "the lag is not known now, because the driver gets no answer from Kafka; 0 is what waited at" in shown
    (item,) = json.loads(run("status", output="json").stdout)["pipelines"]
    assert item["lag"] == 0
    assert 299 < item["lag_age_s"] < 330
    spoken(tmp_path, 1, lag=0, lag_at=utc_now())
    assert "not known" not in run("status").output


def test_a_frozen_driver_is_unresponsive_and_its_pace_is_not_shown(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rivertwice.agent.health.lease_owner", lambda _: DriverRef(4711, 1.0, 7, utc_now()))
    spoken(tmp_path, 15, lag=900, arriving_per_s=3.0, catch_up_s=7.0, rows_per_s=90.0, lag_at=utc_now())
    (item,) = json.loads(run("status", output="json").stdout)["pipelines"]
    assert item["state"] == "unresponsive"
    assert (item["rows_per_s"], item["arriving_per_s"], item["catch_up_s"]) == (None, None, None)
    shown = run("status").output
    assert re.search(
        r"the driver \(pid 4711\) lives but has said nothing for (1[5-9]|[2-9]\d) s: look at its log", shown
    )
    assert "gone in about" not in shown
    spoken(tmp_path, 2, lag=900, lag_at=utc_now())
    assert json.loads(run("status", output="json").stdout)["pipelines"][0]["state"] == "running"


def test_status_says_that_a_stream_catches_up_by_event_time(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rivertwice.agent.health.lease_owner", lambda _: DriverRef(4711, 1.0, 7, utc_now()))
    spoken(tmp_path, 1, lag=90_000, lag_at=utc_now(), placed_until_ms=1_372_636_800_000)
    assert "all partitions are read together, next up to 2013-07-01T00:00:00Z" in run("status").output
    (item,) = json.loads(run("status", output="json").stdout)["pipelines"]
    assert item["placed_until"] == "2013-07-01T00:00:00Z"
    spoken(tmp_path, 1, lag=90, lag_at=utc_now())
    assert "event time" not in run("status").output


def test_right_after_a_restore_status_shows_where_the_new_head_begins(run: Any, tmp_path: Path) -> None:
    home = Settings(REPOSITORY, tmp_path / "home").pipeline("flight_delays")
    bundle = build_bundle(REPOSITORY / "pipelines" / "flight_delays")
    add_timeline(home, bundle, "t1", None, 0)
    append_ledger(home, [ledger_row(number, batch_watermark_ms=1000 * number) for number in range(6)])
    move_head(home, "t1", reason="first start", expected_seq=0, now=utc_now())
    spoken(tmp_path, 60, lag=5, watermark_ms=5000)
    (before,) = json.loads(run("status", output="json").stdout)["pipelines"]
    assert (before["timeline"], before["batch"], before["watermark"], before["lag"]) == (
        "t1",
        5,
        "1970-01-01T00:00:05Z",
        5,
    )
    add_timeline(home, bundle, "t2", Fork("t1", 2), 3)
    move_head(home, "t2", reason="restore", expected_seq=1, now=utc_now())
    (after,) = json.loads(run("status", output="json").stdout)["pipelines"]
    assert (after["timeline"], after["batch"], after["watermark"]) == ("t2", 2, "1970-01-01T00:00:02Z")
    assert (after["lag"], after["lag_at"]) == (None, None)


def test_a_heartbeat_of_an_older_and_of_a_newer_version_is_read(tmp_path: Path) -> None:
    home = Settings(REPOSITORY, tmp_path / "home").pipeline("flight_delays")
    spoken(tmp_path, 1, lag=3, lag_at=utc_now())
    said = json.loads(home.heartbeat.read_text())
    home.heartbeat.write_text(json.dumps({key: value for key, value in said.items() if key != "lag_at"}))
    older = Heartbeat.load(home)
    assert older is not None
    assert (older.lag, older.lag_at) == (3, None)
    home.heartbeat.write_text(json.dumps({**said, "mood": "good"}))
    newer = Heartbeat.load(home)
    assert newer is not None
    assert newer.lag_at is not None


def test_one_number_of_savepoints_is_kept_whoever_prunes(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("rivertwice.savepoint.prune.prune_savepoints", lambda _, keep, now: asked.append(keep) or {})
    assert run("savepoint", "prune", "flight_delays", "--yes").exit_code == 0
    assert run("savepoint", "prune", "flight_delays", "--keep", "3", "--yes").exit_code == 0
    assert asked == [KEPT, 3]
    assert f"default: {KEPT}" in run("savepoint", "prune", "--help").output


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """An agent lives, and the log holds 42 records."""
    lives = AgentStatus(4711, 1.0, utc_now(), {})
    for where in ("rivertwice.agent.launch", "rivertwice.agent.awaiting"):
        monkeypatch.setattr(f"{where}.agent_status", lambda _: lives)
    monkeypatch.setattr("rivertwice.log.kafka.stable_ends", lambda *_: {0: 40, 1: 2})
    return Settings(REPOSITORY, tmp_path / "home")


@pytest.mark.usefixtures("waiting")
def test_a_wait_that_is_over_says_how_many_records_are_left(run: Any) -> None:
    waited = run("start", "flight_delays", "--wait", "--timeout", "1")
    assert waited.exit_code == 1
    assert "has not caught up after 1 s: 42 records of the log are not read yet" in waited.stderr


def test_a_wait_for_a_stream_that_was_given_up_says_why(run: Any, waiting: Settings) -> None:
    broken = replace(load_memory(waiting, "flight_delays"), broken_at=utc_now() + timedelta(minutes=1))
    save_memory(waiting, "flight_delays", replace(broken, broken_because="poison: a record"))
    waited = run("start", "flight_delays", "--wait")
    assert waited.exit_code == 1
    assert "has not caught up: the agent has stopped retrying: poison: a record; see " in waited.stderr


def test_a_wait_for_a_stream_that_has_read_all_ends_well(
    run: Any, waiting: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rivertwice.agent.awaiting.lease_owner", lambda _: DriverRef(4711, 1.0, 7, utc_now()))
    home, topic = waiting.pipeline("flight_delays"), "flights"
    beat = Heartbeat(7, 4711, "t1", "idle", utc_now(), end_offsets={topic: {"0": 40, "1": 2}})
    beat.save(home)
    waited = run("start", "flight_delays", "--wait", output="json")
    assert waited.exit_code == 0, waited.output
    answer = json.loads(waited.stdout)
    assert {name: answer[name] for name in ("read", "batches", "epoch", "state")} == {
        "read": 0, "batches": 0, "epoch": 7, "state": "idle",
    }  # fmt: skip
    assert "flight_delays has caught up: nothing new to read" in run("start", "flight_delays", "--wait").stdout
    replace(beat, end_offsets={topic: {"0": 40, "1": 1}}).save(home)
    assert "1 records of the log" in run("start", "flight_delays", "--wait", "--timeout", "1").stderr


def test_a_wait_for_the_start_ends_when_a_driver_runs_whatever_it_has_to_read(
    run: Any, waiting: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = ("start", "flight_delays", "--until", "started")
    waited = run(*until, "--timeout", "1")
    assert waited.exit_code == 1
    assert "flight_delays has not started after 1 s; the same command waits on" in waited.stderr
    monkeypatch.setattr("rivertwice.agent.awaiting.lease_owner", lambda _: DriverRef(4711, 1.0, 7, utc_now()))
    home = waiting.pipeline("flight_delays")
    Heartbeat(7, 4711, "t1", "starting", utc_now()).save(home)
    assert run(*until, "--timeout", "1").exit_code == 1
    Heartbeat(7, 4711, "t1", "running", utc_now(), end_offsets={"flights": {"0": 1, "1": 1}}).save(home)
    waited = run(*until, output="json")
    assert waited.exit_code == 0, waited.output
    assert json.loads(waited.stdout) == {
        "pipeline": "flight_delays", "desired": "running", "agent": 4711,
        "pid": 4711, "epoch": 7, "timeline": "t1", "state": "running",
    }  # fmt: skip
    assert "flight_delays has started: driver pid 4711, epoch 7, timeline t1" in run(*until).stdout
    assert run("start", "flight_delays", "--until", "caught-up", "--timeout", "1").exit_code == 1
