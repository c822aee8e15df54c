"""Figures against the ledger, the log and the disk they are read from, and an alert that fires and ends."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from lab.faults.lab_project import PIPELINE, make_project
from rivertwice.agent.alerting import AlertKeeper
from rivertwice.agent.metrics import measure
from rivertwice.agent.prometheus import FIRING, OK, judge_alerts
from rivertwice.agent.view import view_pipeline
from rivertwice.cli.main import cli
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.log import kafka
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.lineage import path_ledger
from streams.flights import StreamedRun

pytestmark = pytest.mark.kafka
SENT = {0: 5, 1: 3, 2: 0}
WAITED = timedelta(minutes=4)


@pytest.fixture
def waiting(kafka_settings: Settings, topic: str, tmp_path: Path) -> Settings:
    """A project of lab_sums with a limit of 7 records, whose topic holds 8 records, the oldest four minutes old."""
    settings = replace(kafka_settings, project=tmp_path / "project")
    make_project(kafka_settings, settings.project, topic=topic, partitions=len(SENT), pins={})
    path = settings.definitions / PIPELINE / "pipeline.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "alerts": {"lag": 7, "latency": "1 minute"}}))
    kafka.ensure_topic(settings, topic, len(SENT))
    producer = kafka.producer(settings)
    oldest = int((utc_now() - WAITED).timestamp() * 1000)
    for partition, count in SENT.items():
        for number in range(count):
            producer.produce(topic, value=b"x", partition=partition, timestamp=oldest + 1000 * number)
    assert producer.flush(30) == 0
    return settings


def look(settings: Settings, name: str = PIPELINE):
    now = utc_now()
    return measure(settings, name, view_pipeline(settings, name, now), now)


def test_what_waits_is_counted_by_partition_and_aged_by_its_own_timestamp(waiting: Settings) -> None:
    found = look(waiting)
    assert found.partition_lag == {str(partition): sent for partition, sent in SENT.items()}
    assert found.lag_records == 8
    assert found.lag_s is not None
    assert timedelta(seconds=found.lag_s) - WAITED < timedelta(seconds=60)
    assert timedelta(seconds=found.lag_s) >= WAITED
    assert found.latency_s == found.lag_s
    assert (found.read_total, found.batch_p50_s, found.checkpoint_bytes) == (0, None, None)


@pytest.mark.proves("howto-watch.md#metrics-and-diagnosis")
def test_a_broker_that_is_away_leaves_the_lag_unknown_and_the_rest_known(waiting: Settings) -> None:
    found = look(replace(waiting, bootstrap="127.0.0.1:9"))
    assert (found.lag_records, found.lag_s, found.latency_s) == (None, None, None)
    assert found.state == "down"


def test_an_alert_is_paged_once_while_it_fires_and_its_end_is_an_event(waiting: Settings) -> None:
    thread = AlertKeeper(waiting, lambda: [PIPELINE], threading.Event())
    write_intent(waiting.pipeline(PIPELINE), "running", "test", utc_now())
    thread.look(PIPELINE, utc_now())
    thread.look(PIPELINE, utc_now())
    lines = [json.loads(line) for line in (waiting.home / "alerts.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["severity"]) for line in lines] == [("lag", "warning"), ("latency", "critical")]
    assert lines[0]["message"].startswith("8 records wait to be read (limit 7); ")
    write_intent(waiting.pipeline(PIPELINE), "stopped", "test", utc_now())
    thread.look(PIPELINE, utc_now())
    events = [json.loads(line) for line in (waiting.home / "agent" / "events.jsonl").read_text().splitlines()]
    assert [event["message"].split(":")[0] for event in events if event["kind"] == "alert_over"] == [
        "lag is over",
        "latency is over",
    ]


def test_the_commands_show_figures_alerts_and_causes_and_exit_by_them(waiting: Settings) -> None:
    home = ["--home", str(waiting.home), "--project", str(waiting.project)]
    env = {"RIVERTWICE_BOOTSTRAP": waiting.bootstrap or ""}
    write_intent(waiting.pipeline(PIPELINE), "running", "test", utc_now())
    told = CliRunner().invoke(cli, ["--output", "json", *home, "agent", "metrics", PIPELINE], env=env)
    assert told.exit_code == 3
    (found,) = json.loads(told.stdout)
    assert {each["name"]: each["state"] for each in found["alerts"]} == {
        "backpressure": "unknown", "savepoint_stale": "unknown", "lag": "firing", "latency": "firing", "dead_share": "unknown",
        "checkpoint_slow": "unknown", "dead_unattended": "ok", "recovery": "off", "delivery_lag": "ok",
    }  # fmt: skip
    text = CliRunner().invoke(cli, [*home, "agent", "metrics", "--prometheus"], env=env)
    assert f'rivertwice_lag_records{{pipeline="{PIPELINE}"}} 8.0' in text.stdout
    causes = CliRunner().invoke(cli, ["--output", "json", *home, "status", "--why"], env=env)
    assert causes.exit_code == 3
    assert [one["symptom"] for one in json.loads(causes.stdout)[PIPELINE]] == ["silence"]


def test_figures_of_a_real_stream_equal_its_ledger_and_its_checkpoint(streamed_two_days: StreamedRun) -> None:
    settings = streamed_two_days.settings
    found = look(settings, "flight_delays")
    rows = path_ledger(settings.pipeline("flight_delays"))
    assert (found.read_total, found.bad_total, found.emitted_total) == (1884, 0, sum(row.emitted for row in rows))
    assert (found.lag_records, found.lag_s) == (0, 0.0)
    assert found.batch_p50_s is not None
    assert found.batch_p99_s is not None
    assert 0.0 < found.batch_p50_s <= found.batch_p99_s
    files = [
        path for path in settings.pipeline("flight_delays").checkpoint(rows[-1].timeline).rglob("*") if path.is_file()
    ]
    assert (found.checkpoint_files, found.checkpoint_bytes) == (len(files), sum(path.stat().st_size for path in files))
    assert found.checkpoint_s is not None
    assert 0.0 <= found.checkpoint_s < (found.batch_p99_s or 0.0) + 60.0
    assert found.checkpoint_wait_s == 0.0
    assert found.state_bytes is not None
    assert 0 < found.state_bytes < (found.checkpoint_bytes or 0)


def test_a_batch_whose_checkpoint_does_not_end_is_a_figure_and_then_an_alert(
    streamed_two_days: StreamedRun, tmp_path: Path
) -> None:
    """A checkpoint that failed leaves a batch in the tables and no `commits/N`, as a kill between the two does."""
    settings = replace(streamed_two_days.settings, home=tmp_path / "home")
    shutil.copytree(streamed_two_days.settings.home, settings.home, symlinks=True)
    home = settings.pipeline("flight_delays")
    last = path_ledger(home)[-1]
    (home.checkpoint(last.timeline) / "commits" / str(last.batch)).unlink()
    write_intent(home, "running", "test", utc_now())
    limits = load_definition(settings.definition_folder("flight_delays")).alerts
    for waited, state in ((limits.checkpoint, OK), (limits.checkpoint + timedelta(seconds=1), FIRING)):
        now = last.committed_at + waited
        found = measure(settings, "flight_delays", view_pipeline(settings, "flight_delays", now), now)
        assert found.checkpoint_wait_s == waited.total_seconds()
        assert {each.rule.name: each.state for each in judge_alerts(found, limits)}["checkpoint_slow"] == state
