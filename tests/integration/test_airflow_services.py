"""The embedded Airflow itself: its services, killed and adopted; what its forms refuse; its stop. No stream, no job of Spark."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from homes.project import FLIGHTS, edit_yaml, make_project
from rivertwice.core.errors import RequestError
from rivertwice.core.processes import session_members
from rivertwice.local.airflow import airflow_home, airflow_info, airflow_status, service_environment, stop_airflow
from running.waiting import wait_for
from servers.airflow import PIPELINE, World, link_project, ready_client, start_quiet_airflow, stop_quiet_airflow
from servers.browser import Browser, find_chromium, log_in

pytestmark = [pytest.mark.airflow]
WATCH = f"care__{PIPELINE}"

JUNE, JULY = "2013-06-01T00:00:00Z", "2013-07-01T00:00:00Z"
REFUSED = [
    ("backfill", {"scope": "everything"}, "is not one of"),
    ("backfill", {"scope": "range", "start": "'; DROP TABLE dag; --", "end": JULY}, "is not an instant with a zone"),
    ("backfill", {"scope": "range", "start": "2013-06-30T04:00:00", "end": JULY}, "is not an instant with a zone"),
    ("backfill", {"reason": "$(touch /tmp/x)"}, "cannot be kept"),
    ("backfill", {"reason": "{{ conf }}"}, "cannot be kept"),
    ("backfill", {"scope": "range", "start": "2013-13-01T00:00:00Z", "end": JULY}, "is not an instant with a zone"),
    ("backfill", {"scope": "range", "start": JULY, "end": JUNE}, "empty or reversed"),
    ("backfill", {"pipeline": "../other"}, "does not take 'pipeline'"),
    ("care", {"act": "archive", "topic": "other"}, "does not take 'topic'"),
    ("reconcile", {"start": JULY}, "the range has no end"),
    ("reconcile", {"start": "../../etc/passwd"}, "is not an instant with a zone"),
    ("care", {"prove": "yes"}, "neither true nor false"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Airflow over a project whose stream was never started."""
    settings = make_project(tmp_path_factory.mktemp("services"), {PIPELINE: FLIGHTS})
    often = {"schedules": {"rotate": "2 minutes"}}  # a watch begins at a tick
    edit_yaml(settings.definitions / PIPELINE, lambda document: document.update(airflow=often))
    link_project(settings.project)
    try:
        start_quiet_airflow(settings)
        ready_client(settings)
        yield World(settings)
    finally:
        stop_quiet_airflow(settings)


def pids(world: World) -> dict[str, int]:
    stored = json.loads(airflow_home(world.settings).services.read_text())["services"]
    return {name: mark["pid"] for name, mark in stored.items()}


def watch_task(world: World) -> tuple[str, str]:
    runs = world.airflow.runs(WATCH)
    return runs[-1], {task.task_id: task.state for task in world.airflow.tasks(WATCH, runs[-1])}["watch"]


def test_a_second_start_changes_nothing(world: World) -> None:
    before = pids(world)
    assert start_quiet_airflow(world.settings) == airflow_info(world.settings)
    assert pids(world) == before
    assert airflow_status(world.settings).running


def test_secrets_are_for_the_owner_only_and_the_server_listens_on_loopback(world: World) -> None:
    home = airflow_home(world.settings)
    for path in (home.config, home.secrets, home.passwords):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listening = set()
    for process in session_members(pids(world).values()):
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker that ended since it was listed
            listening |= {
                one.laddr.ip for one in process.net_connections(kind="inet") if one.status == psutil.CONN_LISTEN
            }
    assert listening == {"127.0.0.1"}


@pytest.mark.proves("howto-airflow.md#what-a-form-refuses")
@pytest.mark.parametrize(("dag", "conf", "said"), REFUSED)
def test_a_form_that_cannot_be_meant_starts_no_run(world: World, dag: str, conf: dict[str, object], said: str) -> None:
    before = world.airflow.runs(f"{dag}__{PIPELINE}")
    with pytest.raises(RequestError, match=said):
        world.airflow.trigger(f"{dag}__{PIPELINE}", conf)
    assert world.airflow.runs(f"{dag}__{PIPELINE}") == before


def test_an_unknown_pipeline_has_no_dag(world: World) -> None:
    with pytest.raises(RequestError, match="not found"):
        world.airflow.trigger("backfill__no_such_pipeline", {})


@pytest.mark.browser
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine")
def test_forms_open_ready_to_be_sent_and_offer_airflows_own_backfill_where_it_does_what_it_says(world: World) -> None:
    info = airflow_info(world.settings)
    with Browser(info.url, log_in(info), height=1400) as browser:
        for verb in ("backfill", "care", "reconcile", "operate"):
            assert browser.open_trigger_form(f"{verb}__{PIPELINE}")["Trigger"], f"Trigger of {verb} cannot be pressed"
            choices = browser.run(
                "[...document.querySelectorAll('[role=dialog] input[type=radio]')].map(one => !one.disabled)"
            )
            offered = [True, verb == "backfill"]
            assert choices[:2] == offered, f"a single run and Airflow's own backfill of {verb}: {choices}"


@pytest.mark.parametrize("verb", ["care", "reconcile"])
def test_airflows_own_backfill_is_refused_where_runs_belong_to_no_date(world: World, verb: str) -> None:
    info = airflow_info(world.settings)
    asked = {"dag_id": f"{verb}__{PIPELINE}", "from_date": "2013-06-30T00:00:00Z", "to_date": "2013-07-02T00:00:00Z"}
    login = {"Authorization": f"Bearer {log_in(info)}"}
    for path in ("backfills", "backfills/dry_run"):
        answer = httpx.post(f"{info.url}/api/v2/{path}", headers=login, json=asked, trust_env=False, timeout=60)
        assert 400 <= answer.status_code < 500, answer.text
        assert "does not allow backfill runs" in answer.text


def test_a_killed_airflow_comes_back_and_adopts_the_epoch_it_watched(world: World) -> None:
    def deferred() -> bool:
        return bool(world.airflow.runs(WATCH)) and watch_task(world)[1] == "deferred"

    wait_for("the deferral of the watching task", deferred, 180, every=0.5)

    def killed() -> bool:
        """Whether nothing is left of it: a child that lives a moment longer still listens at its port."""
        left = session_members(before.values())
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return not left

    run, before, info = world.airflow.runs(WATCH)[-1], pids(world), airflow_info(world.settings)
    wait_for("the end of all that Airflow's services began", killed, 30)
    wait_for("the end of Airflow's services", lambda: not any(airflow_status(world.settings).services.values()), 30)
    assert start_quiet_airflow(world.settings).url == info.url
    assert not set(before.values()) & set(pids(world).values())
    ready_client(world.settings)
    assert watch_task(world) == (run, "deferred")


def test_one_killed_service_is_started_again_and_the_others_are_left_alone(world: World) -> None:
    before = pids(world)
    os.kill(before["scheduler"], signal.SIGKILL)
    wait_for("the end of the scheduler", lambda: not airflow_status(world.settings).services["scheduler"], 30)
    start_quiet_airflow(world.settings)
    after = pids(world)
    assert {name for name in before if before[name] != after[name]} == {"scheduler"}
    assert session_members([before["scheduler"]]) == []


@pytest.mark.proves("howto-airflow.md#what-a-form-refuses", "security.md#security")
def test_a_run_past_the_api_is_refused_by_its_first_task(world: World) -> None:
    dag_id, run = f"backfill__{PIPELINE}", "by-command"
    conf = json.dumps({"scope": "range", "start": JULY, "end": JUNE})
    program = Path(sys.executable).with_name("airflow")
    subprocess.run(
        [str(program), "dags", "trigger", dag_id, "--run-id", run, "--conf", conf],
        env=service_environment(world.settings), cwd=world.settings.project, capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    assert world.airflow.wait(dag_id, run, 180) == "failed"
    tasks = world.airflow.tasks(dag_id, run)
    states = {task.task_id: task.state for task in tasks}
    assert {states.pop(each) for each in ("close", "more", "again")} == {"skipped"}  # they would end a repair
    assert set(states.values()) == {"failed", "upstream_failed"}
    assert max(task.try_number for task in tasks) == 1
    assert "empty or reversed" in world.airflow.failures(dag_id, run)
    path = world.settings.home / "alerts.jsonl"
    alerts = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert not [alert for alert in alerts if alert.get("run") == run and alert["dag"] == dag_id]


def test_a_stop_leaves_no_process_behind(world: World) -> None:
    before = pids(world)
    assert sorted(stop_airflow(world.settings)) == sorted(before)
    assert session_members(before.values()) == []
    assert stop_airflow(world.settings) == []
    assert not airflow_status(world.settings).running
