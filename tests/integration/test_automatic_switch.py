"""A version that may serve by itself, in a real Airflow: refused with what nobody declared, and served once everything is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from homes.project import edit_yaml
from rivertwice.agent.launch import start_agent, stop_agent
from rivertwice.core.instants import utc_now
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.served import export_sha256
from rivertwice.timeline.served_stamp import serving_by_stamp
from rivertwice.versions.comparisons import newest_comparison
from rivertwice.versions.serve import read_switches
from running.waiting import wait_for
from running.warm_spark import run_command_warm
from servers.airflow import PIPELINE, World, link_project, start_quiet_airflow, stop_quiet_airflow
from servers.airflow_versions import BESIDE, DECLARED, SWITCH, begin_beside
from streams.flights import StreamedRun

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
EACH_MINUTE = {"schedules": {"switch": "* * * * *"}}
BY_ITSELF = f"switch: automatic\n{DECLARED}"
NARROW = BY_ITSELF.replace("new.delay_sum > old.delay_sum", "new.delay_sum > old.delay_sum AND origin <> 'LGA'")
"""It leaves out what differs for one airport."""


@pytest.fixture
def world(streamed_two_days: StreamedRun, tmp_path: Path) -> Iterator[World]:
    """Airflow, whose DAG of a switch is due each minute, and an agent over a copy of the streamed days and a version, both proved."""
    shutil.copytree(streamed_two_days.settings.project, tmp_path / "project", symlinks=True)
    settings = replace(streamed_two_days.settings, project=tmp_path / "project", home=tmp_path / "home")
    shutil.copytree(streamed_two_days.home.root, settings.pipeline(PIPELINE).root)
    edit_yaml(settings.definitions / PIPELINE, lambda document: document.update(airflow=EACH_MINUTE))
    link_project(settings.project)
    write_intent(settings.pipeline(PIPELINE), "stopped", "test", utc_now())
    begin_beside(settings, tmp_path / "driver.log")
    declare(World(settings), NARROW)
    for name in (PIPELINE, BESIDE):
        run_command_warm(settings, "served", "rebuild", name)
        assert run_command_warm(settings, "reconcile", name)["gate"]["passed"]
    start_agent(settings)
    try:
        start_quiet_airflow(settings)
        yield World(settings)
    finally:
        stop_quiet_airflow(settings)
        stop_agent(settings)


def declare(world: World, text: str) -> None:
    (world.settings.definitions / PIPELINE / "changes" / "v2.yaml").write_text(text)


def scheduled_run(world: World, wanted: Callable[[dict[str, str]], bool]) -> str:
    """Wait for a scheduled run that has ended with such states of its tasks; return its id."""
    ended: list[str] = []

    def seen() -> bool:
        runs = [run for run in world.airflow.runs(SWITCH) if run.startswith("scheduled")]
        final = [run for run in runs if world.airflow.state(SWITCH, run) in ("success", "failed")]
        ended[:] = [run for run in final if wanted(world.states("switch", run))]
        return bool(ended)

    wait_for("a scheduled run of the switch", seen, 300, every=1.0)
    return ended[-1]


def test_a_version_serves_by_itself_once_every_difference_is_declared(world: World) -> None:
    world.airflow.wait_for_dags({SWITCH}, timeout=180)
    homes = world.home, world.settings.pipeline(BESIDE)
    before = [export_sha256(home) for home in homes]
    refused = scheduled_run(world, lambda states: states["gate"] == "failed")
    found = newest_comparison(world.settings.pipeline(BESIDE))
    assert found is not None
    assert found.counts["unexplained"] > 0
    assert {example["key"]["origin"] for example in found.examples} == {"LGA"}
    said = world.airflow.failures(SWITCH, refused, 60)
    window = f"[{found.examples[0]['window_start']}, {found.examples[0]['window_end']})"
    assert f"{found.counts['unexplained']} rows differ without a cause" in said
    assert f"for example, a row of the window {window} is changed (delay_sum)" in said
    assert world.states("switch", refused)["serve"] == "upstream_failed"
    alerts = [json.loads(line) for line in (world.settings.home / "alerts.jsonl").read_text().splitlines()]
    assert [alert["kind"] for alert in alerts if alert.get("run") == refused] == ["task_failed"]
    scheduled_run(world, lambda states: states["choose"] == "skipped")  # nothing changed since
    assert newest_comparison(world.settings.pipeline(BESIDE)) == found
    assert (serving_by_stamp(world.home), read_switches(world.home)) == (PIPELINE, [])
    assert [export_sha256(home) for home in homes] == before

    declare(world, BY_ITSELF)
    served = scheduled_run(world, lambda states: states["serve"] == "success")
    assert world.states("switch", served) == {
        "choose": "success", "comparison_wanted": "success", "compare": "success", "gate": "success",
        "approval_wanted": "success", "approve": "skipped", "serve": "success", "report": "success",
    }  # fmt: skip
    assert serving_by_stamp(world.home) == BESIDE
    (record,) = read_switches(world.home)
    assert record["by"] == "Airflow, as the change file allows"
    assert record["compared"]["counts"]["unexplained"] == 0
    assert record["compared"]["counts"]["declared"] > 0
    run_command_warm(world.settings, "served", "rebuild", PIPELINE)  # as the agent does after the switch
    assert [export_sha256(home) for home in homes] == before  # each has its rows
    assert homes[1].tables.served == world.home.public_served
