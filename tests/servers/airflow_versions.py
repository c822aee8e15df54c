"""A version of flight_delays beside the first one for a real Airflow, and answers to what its DAG asks a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from homes.project import edit_yaml, replace_text
from rivertwice.config import Settings
from rivertwice.embedded.airflow import airflow_info, client
from rivertwice.instants import utc_now
from rivertwice.timeline.intent import write_intent
from rivertwice.versions.begin import begin_version
from running.waiting import wait_for
from running.warm_spark import run_driver_warm
from servers.airflow import PIPELINE, World, await_success
from servers.browser import log_in

BESIDE = f"{PIPELINE}@v2"
SWITCH = f"switch__{PIPELINE}"
DECLARED = """\
reason: early departures counted as negative delays
rows:
  - {columns: [delay_sum], where: new.delay_sum > old.delay_sum, reason: the sum is of absolute delays}
"""


BEFORE = (None, "none", "scheduled", "queued", "running")
"""States of a task that does not wait for an answer yet."""


def begin_beside(settings: Settings, log: Path) -> None:
    """Begin a second version, whose sums are of absolute delays, and stream all of the log for it, in other batches."""
    folder = settings.definitions / PIPELINE
    replace_text(folder / "transform.sql", "sum(dep_delay) AS delay_sum", "sum(abs(dep_delay)) AS delay_sum")
    edit_yaml(folder, lambda document: document["stream"].update(max_offsets_per_trigger=500))
    (folder / "changes").mkdir()
    (folder / "changes" / "v2.yaml").write_text(DECLARED)
    begin_version(settings, PIPELINE, by="test", now=utc_now())
    run_driver_warm(settings, BESIDE, log)
    write_intent(settings.pipeline(BESIDE), "stopped", "test", utc_now())


def switch(world: World, conf: dict[str, object], option: str) -> str:
    """Start a switch, answer its question, and return what it asked."""
    run = world.airflow.trigger(SWITCH, conf)
    asked = await_question(world.settings, SWITCH, run)
    assert world.airflow.state(SWITCH, run) == "running"
    answer(world.settings, SWITCH, run, option)
    await_success(world.airflow, SWITCH, run, 120)
    assert world.states("switch", run)["serve"] == ("success" if option == "Approve" else "skipped")
    return f"{asked['subject']} {asked['body']}"


def await_question(settings: Settings, dag_id: str, run: str, task: str = "approve") -> dict[str, Any]:
    """Wait until a task of a run asks a person, and return what it asks.

    Airflow loses an answer that comes after the question is stored and before the task waits for it.
    """
    path = f"dags/{dag_id}/dagRuns/{run}/taskInstances/{task}/-1/hitlDetails"

    def asked() -> bool:
        state = client(settings).state(dag_id, run)
        assert state != "failed", client(settings).failures(dag_id, run, 60)
        waits = any(each.task_id == task and each.state not in BEFORE for each in client(settings).tasks(dag_id, run))
        return waits and _ask(settings, "GET", path).is_success

    wait_for(f"the question of {dag_id}", asked, 300, every=0.5)
    return dict(_ask(settings, "GET", path).json())


def answer(settings: Settings, dag_id: str, run: str, option: str, task: str = "approve") -> None:
    """Answer what a task of a run asks, as the person who is logged in."""
    path = f"dags/{dag_id}/dagRuns/{run}/taskInstances/{task}/-1/hitlDetails"
    answered = _ask(settings, "PATCH", path, json={"chosen_options": [option], "params_input": {}})
    assert answered.is_success, answered.text


def _ask(settings: Settings, method: str, path: str, **body: Any) -> httpx.Response:
    info = airflow_info(settings)
    login = {"Authorization": f"Bearer {log_in(info)}"}
    return httpx.request(method, f"{info.url}/api/v2/{path}", headers=login, trust_env=False, timeout=60, **body)
