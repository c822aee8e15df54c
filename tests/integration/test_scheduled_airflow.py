"""A stream by schedule under a real Airflow: at a person's word, after an asset's event, through kills of driver and agent."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from homes.project import FLIGHTS, edit_yaml, make_project, replace_text
from rivertwice.agent.launch import agent_status, start_agent, stop_agent
from rivertwice.airflow.airflow_api import AirflowClient
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo
from rivertwice.log.kafka import ensure_topic
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.ledger import read_ledger
from running.waiting import wait_for
from servers.airflow import PIPELINE, agent_and_airflow, await_success, link_project, run_dag
from streams.synthetic import flights, produce

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.kafka]
STREAM = f"stream__{PIPELINE}"
PRODUCER = '''"""An Airflow DAG whose task says that a file has landed."""
from airflow.sdk import DAG, Asset, task

with DAG("lands", schedule=None) as dag:
    task(task_id="land", outlets=[Asset("landing")])(lambda: None)()
'''


@pytest.fixture
def settings(broker: BrokerInfo, tmp_path: Path, topic: str) -> Iterator[Settings]:
    """A pipeline that runs at a far tick and after events of an asset; what still drives at the end is ended, by pid."""
    made = make_project(tmp_path, {PIPELINE: FLIGHTS}, bootstrap=broker.bootstrap)
    replace_text(made.definitions / PIPELINE / "pipeline.yaml", "topic: flights", f"topic: {topic}")
    by_schedule = {"mode": "scheduled", "schedule": "0 0 1 1 *", "assets": ["landing"]}
    edit_yaml(made.definitions / PIPELINE, lambda document: document.update(stream=by_schedule))
    (made.project / "pipelines").rename(made.project / "own")
    link_project(made.project)
    (made.project / "pipelines").unlink()
    (made.project / "own").rename(made.project / "pipelines")
    (made.project / "dags" / "lands.py").write_text(PRODUCER)
    ensure_topic(made, topic, 4, {})
    yield made
    stop_agent(made)
    owner = lease_owner(made.pipeline(PIPELINE))
    if owner is not None:
        os.kill(owner.pid, signal.SIGKILL)


def read(settings: Settings) -> int:
    """Return how many records are committed."""
    return sum(row.read for row in read_ledger(settings.pipeline(PIPELINE)))


def states(airflow: AirflowClient, run: str) -> dict[str, str]:
    """Return the state of each task of a run of the stream."""
    return {task.task_id: task.state for task in airflow.tasks(STREAM, run)}


@pytest.mark.proves("howto-airflow.md#streams-by-schedule")
def test_a_dag_runs_the_stream_to_the_logs_end_through_kills_of_driver_and_agent(
    settings: Settings, topic: str
) -> None:
    home = settings.pipeline(PIPELINE)
    with agent_and_airflow(settings, verbs=("stream", "reconcile")) as airflow:
        airflow.wait_for_dags({"lands"}, timeout=180)
        produce(settings, topic, flights(40))
        never = run_dag(airflow, STREAM)
        assert set(states(airflow, never).values()) == {"skipped"}  # nobody has started the pipeline yet
        write_intent(home, "running", "test", utc_now())

        asked = run_dag(airflow, STREAM)
        assert airflow.xcom(STREAM, asked, "report")["read"] == read(settings) == 40
        wait_for("the end of its driver", lambda: lease_owner(home) is None, 60)

        produce(settings, topic, flights(20, seed=2))
        before = set(airflow.runs(STREAM))
        run_dag(airflow, "lands")
        (landed,) = wait_for("a run after the event", lambda: set(airflow.runs(STREAM)) - before, 120)
        assert landed.startswith("asset_triggered")
        await_success(airflow, STREAM, landed)
        assert airflow.xcom(STREAM, landed, "report")["read"] == 20

        produce(settings, topic, flights(50, seed=3))
        struck = airflow.trigger(STREAM)
        owner = wait_for("a driver", lambda: lease_owner(home), 120)
        agent = agent_status(settings)
        assert agent is not None
        os.kill(agent.pid, signal.SIGKILL)
        os.kill(owner.pid, signal.SIGKILL)
        wait_for("the end of the agent", lambda: agent_status(settings) is None, 30)
        start_agent(settings)
        await_success(airflow, STREAM, struck)
        assert read(settings) == 110

        write_intent(home, "stopped", "test", utc_now())
        stopped = run_dag(airflow, STREAM)
        assert set(states(airflow, stopped).values()) == {"skipped"}
        run_dag(airflow, f"reconcile__{PIPELINE}")
    assert not (settings.home / "alerts.jsonl").exists(), (settings.home / "alerts.jsonl").read_text()
