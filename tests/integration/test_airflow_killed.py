"""All of Airflow killed while the stream runs: the stream goes on, the next Airflow adopts it, nothing is unexplained."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lab.flights.plan import STORM
from lab.flights.replay import ReplayRequest, replay
from lab.tests.oracle.flights_oracle import consume, expect, read_batches, read_changelog
from rivertwice.agent.launch import start_agent, stop_agent
from rivertwice.core.instants import utc_now
from rivertwice.core.processes import session_members
from rivertwice.local.airflow import airflow_status, start_airflow, stop_airflow
from rivertwice.local.broker import BrokerInfo
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import Heartbeat, write_intent
from running.waiting import wait_for
from servers.airflow import PIPELINE, link_project, ready_client, run_dag
from streams.flights import make_flights_project

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
FLIGHTS = 480


@pytest.mark.proves(
    "howto-airflow.md#the-airflow-that-rivertwice-starts",
    "howto-stream.md#how-to-run-a-stream-and-what-the-agent-does-when-it-fails",
)
def test_the_stream_outlives_all_of_airflow_and_is_adopted(
    tmp_path: Path, broker: BrokerInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = "airflow-killed"
    settings = make_flights_project(tmp_path, bootstrap=broker.bootstrap, topic=topic)
    link_project(settings.project)
    home = settings.pipeline(PIPELINE)
    replay(settings, ReplayRequest(topic=topic, days=STORM, limit=FLIGHTS))
    start_agent(settings)
    try:
        start_airflow(settings, timeout=300)
        ready_client(settings)
        write_intent(home, "running", "test", utc_now())
        wait_for("batch 10", lambda: (beat := Heartbeat.load(home)) is not None and (beat.batch or 0) >= 10, 240)
        owner, before = lease_owner(home), Heartbeat.load(home)
        assert owner is not None
        assert before is not None
        services = json.loads((settings.home / "airflow" / "services.json").read_text())["services"]
        struck = session_members(mark["pid"] for mark in services.values())
        for process in struck:
            process.kill()
        killed = len(struck)
        assert killed >= len(services) == 4
        wait_for("the end of Airflow", lambda: not any(airflow_status(settings).services.values()), 240)
        wait_for("the stream goes on", lambda: (Heartbeat.load(home) or before).batch > (before.batch or 0) + 3, 240)
        start_airflow(settings, timeout=300)
        airflow = ready_client(settings)
        wait_for("the end of the log", lambda: (beat := Heartbeat.load(home)) is not None and beat.lag == 0, 240)
        assert lease_owner(home) == owner
        run_dag(airflow, f"reconcile__{PIPELINE}", timeout=600)
        newest = newest_reconcile(home)
        assert newest is not None
        assert newest["balance"]["total"]["unexplained"] == 0
        assert newest["counts"]["stream"].get("DEFECT", 0) == 0
        write_intent(home, "stopped", "test", utc_now())
        wait_for("the drain", lambda: lease_owner(home) is None, 240)
    finally:
        stop_airflow(settings)
        write_intent(home, "stopped", "test", utc_now())
        wait_for("the drain", lambda: lease_owner(home) is None, 240)
        stop_agent(settings)
    expected = expect(consume(broker.bootstrap, topic), read_batches(home.tables.ledger, topic))
    assert {window: [row] for window, row in expected.closed.items()} == read_changelog(home.tables.changelog)
    with capsys.disabled():
        sys.stdout.write(f"\n{killed} processes of Airflow killed, driver {owner.pid} went on, 0 unexplained\n")
