"""A sample of a stream: what the heartbeat and the agent know now, and nothing that is only guessed."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from homes.ledger import ledger_row
from homes.project import make_project
from rivertwice.agent.alerting import AlertScan
from rivertwice.agent.figures import Measures
from rivertwice.agent.health import StreamObservation
from rivertwice.agent.ring import CURVES, LEVELS, MISSED, read_level, ring_file
from rivertwice.agent.samples import Before, SampleKeeper, note_of, take_sample
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import to_iso, to_ms
from rivertwice.stream.heartbeat import HeartbeatThread
from rivertwice.stream.lease import Owner
from rivertwice.timeline.intent import Heartbeat, Intent, write_intent

NOW = datetime(2026, 11, 27, 3, tzinfo=UTC)
BEAT = Heartbeat(
    3, 4711, "t1", "running", NOW, batch=12, watermark_ms=to_ms(NOW - timedelta(minutes=2)), lag=7, lag_at=NOW,
    end_offsets={"flights": {"0": 5, "1": 6}}, read=600, emitted=30, slowest_s=0.75,
    lag_parts={"flights": {"0": 3, "1": 4}},
)  # fmt: skip
RUNS = StreamObservation(Intent("running", "test", NOW), NOW, Owner(3, 4711, 0.0, "t1"), BEAT, None, "running")
LOOK = AlertScan(
    Measures("flight_delays", NOW, lag_records=90, partition_lag={"0": 40, "1": 50}, state_bytes=1_000), [], NOW
)
SIX_SECONDS_AGO = Before(3, NOW - timedelta(seconds=6), 540, 24)


def test_a_running_stream_has_all_figures() -> None:
    cost = {"cpu_cores": 0.5, "memory_bytes": 4e8}
    missed = dict.fromkeys((each for each in CURVES if each.startswith(MISSED)), 0.0)
    sample = take_sample(
        RUNS, replace(LOOK, missed={name[len(MISSED) :]: 0.0 for name in missed}), SIX_SECONDS_AGO, NOW, cost
    )
    assert (sample.state, sample.wanted) == ("running", True)
    assert dict(sample.values) == {
        "lag": 7.0, "read_per_s": 10.0, "emitted_per_s": 1.0, "watermark_delay_s": 120.0, "batch_s": 0.75,
        "state_bytes": 1000.0, **cost, **missed,
    }  # fmt: skip
    assert set(sample.values) == set(CURVES)
    assert sample.parts == {"flights/0": 3, "flights/1": 4}


def test_while_no_driver_lives_the_lag_is_what_the_agent_measures() -> None:
    down = replace(RUNS, owner=None, state="down")
    sample = take_sample(down, LOOK, SIX_SECONDS_AGO, NOW + timedelta(seconds=60))
    assert sample.values["lag"] == 90
    assert sample.parts == {"flights/0": 40, "flights/1": 50}
    assert (sample.values["read_per_s"], sample.values["watermark_delay_s"]) == (0.0, 180.0)
    assert "batch_s" not in sample.values
    late = take_sample(down, LOOK, None, NOW + timedelta(seconds=90))
    assert "lag" not in late.values, "a look that is too old is not what is true now"


def test_rates_are_not_counted_across_drivers_or_from_old_heartbeats() -> None:
    for before in (None, replace(SIX_SECONDS_AGO, epoch=2), replace(SIX_SECONDS_AGO, at=NOW)):
        assert "read_per_s" not in take_sample(RUNS, None, before, NOW).values
    assert note_of(replace(BEAT, read=None)) is None, "a heartbeat of 0.1 has no counts"


def test_a_stream_that_nobody_wants_is_stopped_and_not_down() -> None:
    stopped = replace(RUNS, intent=Intent("stopped", "test", NOW), owner=None, state="down")
    assert take_sample(stopped, None, None, NOW).state == "stopped"
    silent = replace(RUNS, state="unresponsive")
    assert "read_per_s" not in take_sample(silent, None, SIX_SECONDS_AGO, NOW).values


def test_the_agent_writes_a_sample_of_each_pipeline(tmp_path: Path) -> None:
    settings = make_project(tmp_path, {})
    home = settings.pipeline("flight_delays")
    write_intent(home, "running", "test", NOW)
    BEAT.save(home)
    keeper = SampleKeeper(settings, lambda: ["flight_delays"], threading.Event(), lambda _: None)
    keeper.look("flight_delays", NOW)
    (slot,) = read_level(ring_file(home), LEVELS[0], NOW)
    assert slot["most"][CURVES.index("watermark_delay_s")] == 120.0


def test_a_heartbeat_of_0_1_is_read(tmp_path: Path) -> None:
    home = PipelineHome(tmp_path)
    old = {
        "format": 1, "epoch": 3, "pid": 4711, "timeline": "t1", "state": "running", "at": to_iso(NOW), "batch": 12,
        "watermark_ms": 5, "end_offsets": {}, "lag": 7, "rows_per_s": 1.0, "arriving_per_s": None, "catch_up_s": None,
    }  # fmt: skip
    home.heartbeat.write_text(json.dumps(old))
    beat = Heartbeat.load(home)
    assert beat is not None
    assert (beat.read, beat.slowest_s, beat.lag_parts, beat.ui) == (None, None, {}, None)


def test_the_heartbeat_counts_what_its_driver_did(tmp_path: Path) -> None:
    clock = [NOW]
    thread = HeartbeatThread(
        PipelineHome(tmp_path),
        Heartbeat(1, 1, "t1", "starting", NOW, read=0, emitted=0),
        lambda: {"flights": {0: 20, 1: 10}},
        lambda: clock[0],
    )
    thread.caught_up()
    for batch, took in ((1, 3.0), (2, 1.0)):
        begun, ends = to_ms(NOW - timedelta(seconds=took)), {"flights": {"0": 5 * batch, "1": 5 * batch}}
        row = ledger_row(batch, read=10, emitted=2, batch_timestamp_ms=begun, committed_at=NOW, end_offsets=ends)
        thread.committed(row)
    thread._write()
    beat = thread.beat
    assert (beat.read, beat.emitted, beat.batch_s, beat.slowest_s) == (20, 4, 1.0, 3.0)
    assert beat.lag_parts == {"flights": {"0": 10, "1": 0}}
    assert beat.lag == 10
    clock[0] = NOW + timedelta(seconds=16)
    thread._write()
    assert (thread.beat.slowest_s, thread.beat.batch_s) == (None, 1.0)
