"""F26 and F27: services of Airflow killed while they rotate, and tasks that run twice. The stream must not notice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from lab.faults.cases import case, require
from lab.faults.lab import PIPELINE, Lab
from rivertwice.airflow.airflow_api import AirflowClient
from rivertwice.core.errors import ServiceError
from rivertwice.core.instants import utc_now
from rivertwice.core.processes import session_members
from rivertwice.local.airflow import SERVICES, client, start_airflow, stop_airflow
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import Heartbeat, write_intent
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import EntryKind, read_sequence

START_S = 300.0
RUN_S = 900.0
VERBS = ("care", "backfill", "reconcile")


@contextmanager
def airflow_beside(lab: Lab) -> Iterator[AirflowClient]:
    """Run agent, stream and an Airflow of the run's own; the driver is left to the lab's end."""
    project = lab.settings.project
    repository = (project / ".build").resolve().parent
    for name in ("dags", "plugins", "spark_jobs"):
        (project / name).symlink_to(repository / name)
    with lab.agent():
        write_intent(lab.home, "running", "lab", utc_now())
        try:
            start_airflow(lab.settings, timeout=START_S)
            yield ready(lab)
        finally:
            stop_airflow(lab.settings)
            write_intent(lab.home, "stopped", "lab", utc_now())
            lab.until(lambda: lease_owner(lab.home) is None, 120, "the drain")


def ready(lab: Lab) -> AirflowClient:
    """Return a client once Airflow knows the pipeline's DAGs."""
    airflow = client(lab.settings)
    airflow.wait_for_dags({f"{verb}__{PIPELINE}" for verb in VERBS}, timeout=START_S)
    return airflow


def run_dag(airflow: AirflowClient, verb: str, conf: dict[str, object] | None = None) -> str:
    """Trigger a DAG and require that it ends well; return the run's id."""
    dag = f"{verb}__{PIPELINE}"
    run = airflow.trigger(dag, conf)
    state = airflow.wait(dag, run, RUN_S)
    require(
        state == "success", f"{dag} ended as {state}: {airflow.failures(dag, run, 30) if state != 'success' else ''}"
    )
    return run


def wait_for_lag(lab: Lab) -> None:
    """Wait until the stream has read everything that was produced."""

    def done() -> bool:
        rows = path_ledger(lab.home)
        return sum(row.read for row in rows) >= lab.produced

    lab.until(done, 180, "the end of the log")


@case(
    "F26",
    "a service of Airflow, or all of it, killed while it rotates: the stream continues and is adopted",
    kills=1,
    proves=("howto-airflow.md#the-airflow-that-rivertwice-starts",),
)
def airflow_killed(lab: Lab) -> None:
    """The same driver streams on; the next Airflow finishes what the killed one had begun."""
    lab.produce()
    with airflow_beside(lab) as airflow:
        lab.until(lambda: (beat := Heartbeat.load(lab.home)) is not None and beat.batch is not None, 120, "a batch")
        dag = f"care__{PIPELINE}"
        run = airflow.trigger(dag, {"prove": False})
        lab.until(lambda: airflow.state(dag, run) != "queued", 120, "the rotation's start")
        owner = lease_owner(lab.home)
        victims = [lab.random.choice(SERVICES)] if lab.random.random() < 0.7 else list(SERVICES)
        lab.fact("killed", ", ".join(victims))
        marks = json.loads((lab.settings.home / "airflow" / "services.json").read_text())["services"]
        for process in session_members(marks[name]["pid"] for name in victims):
            process.kill()
            lab.kills += 1
        lab.produce(lab.next_plan(records=200))
        wait_for_lag(lab)
        require(lease_owner(lab.home) == owner, "another driver runs although only Airflow was killed")
        start_airflow(lab.settings, timeout=START_S)
        again = ready(lab)
        require(again.wait(dag, run, RUN_S) in {"success", "failed"}, "the interrupted rotation never ended")
        run_dag(again, "care", {"prove": False})
        require(lease_owner(lab.home) == owner, "the next Airflow did not adopt the running driver")
    whole = list_savepoints(lab.home)
    for savepoint in whole:
        savepoint.verify_files()
    lab.fact("savepoints", len(whole))
    require(bool(whole), "no savepoint is listed after a rotation that ended well")


@case("F27", "a backfill's run cleared and run again, and the same form sent twice: one publication each, same rows")
def tasks_twice(lab: Lab) -> None:
    """Every task may run twice; what is published is published once."""
    lab.produce()
    with airflow_beside(lab) as airflow:
        wait_for_lag(lab)
        run_dag(airflow, "reconcile")
        run = run_dag(airflow, "backfill", {"scope": "stale"})
        published = [entry for entry in read_sequence(lab.home) if entry.kind == EntryKind.PUBLICATION]
        require(len(published) == 1, f"one backfill made {len(published)} publications")
        cleared = airflow.clear(f"backfill__{PIPELINE}", run)
        lab.fact("tasks_cleared", cleared)
        require(cleared > 0, "nothing was cleared")
        try:
            airflow.wait(f"backfill__{PIPELINE}", run, RUN_S)
        except ServiceError as error:
            require(False, f"the cleared run did not end: {error}")
        run_dag(airflow, "backfill", {"scope": "stale"})
        again = [entry for entry in read_sequence(lab.home) if entry.kind == EntryKind.PUBLICATION]
        require(again == published, f"tasks that ran twice published again: {len(again)} publications")
        run_dag(airflow, "reconcile")
