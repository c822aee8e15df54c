"""A version of flight_delays beside the first one for a real Airflow, and answers to what its DAG asks a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homes.project import edit_yaml, replace_text
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.local.airflow import client
from rivertwice.timeline.intent import write_intent
from rivertwice.versions.begin import begin_version
from running.waiting import wait_for
from running.warm_spark import run_driver_warm
from servers.airflow import PIPELINE, World, await_success

BESIDE = f"{PIPELINE}@v2"
SWITCH = f"operate__{PIPELINE}"
DECLARED = """\
reason: early departures counted as negative delays
rows:
  - {columns: [delay_sum], where: new.delay_sum > old.delay_sum, reason: the sum is of absolute delays}
"""


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
    run = world.airflow.trigger(SWITCH, {"act": "version.serve", **conf})
    asked = await_question(world.settings, SWITCH, run)
    assert world.airflow.state(SWITCH, run) == "running"
    answer(world.settings, SWITCH, run, option)
    answer_until_it_ends(world.settings, SWITCH, run, option)
    await_success(world.airflow, SWITCH, run, 1)
    assert world.states("operate", run)["serve"] == ("success" if option == "Approve" else "skipped")
    return f"{asked['subject']} {asked['body']}"


def await_question(settings: Settings, dag_id: str, run: str, task: str = "approve") -> dict[str, Any]:
    """Wait until a task of a run asks a person, and return what it asks."""
    asked: dict[str, Any] = {}

    def asks() -> bool:
        state = client(settings).state(dag_id, run)
        assert state != "failed", client(settings).failures(dag_id, run, 60)
        asked.update(client(settings).question(dag_id, run, task) or {})
        return bool(asked)

    wait_for(f"the question of {dag_id}", asks, 300, every=0.5)
    return asked


def answer_until_it_ends(settings: Settings, dag_id: str, run: str, option: str, task: str = "approve") -> None:
    """Wait for the end of a run; answer again if its task asks again, because Airflow lost the first answer."""

    def ended() -> bool:
        if client(settings).question(dag_id, run, task) is not None:
            answer(settings, dag_id, run, option, task)
        return client(settings).state(dag_id, run) in ("success", "failed")

    wait_for(f"the end of {dag_id}", ended, 300, every=1.0)


def answer(settings: Settings, dag_id: str, run: str, option: str, task: str = "approve") -> None:
    """Answer what a task of a run asks, as the person who is logged in."""
    client(settings).answer(dag_id, run, task, option)
