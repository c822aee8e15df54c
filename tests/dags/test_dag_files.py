"""Every DAG loads, quickly, without an engine, and a broken definition hides no other pipeline's DAGs.

All parses run in one fresh process, that of the repository first: what a parse imports can only be seen there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from homes.project import EXAMPLES, FLIGHTS, edit_yaml, make_project, replace_text, write_definition
from rivertwice.core.settings import Settings

pytestmark = pytest.mark.airflow

VERBS = ("backfill", "care", "operate", "reconcile")
HEAVY = (
    "pyspark",
    "pandas",
    "great_expectations",
    "deltalake",
    "pyarrow",
    "numpy",
    "confluent_kafka",
    "boto3",
    "duckdb",
)
PARSE_SECONDS = 5.0
OWN = {
    "schedules": {"reconcile": "30 minutes", "archive": "none", "rotate": "*/5 * * * *"},
    "retries": 7,
    "pool": "sessions",
    "queue": "big",
    "owner": "team",
    "tags": ["web"],
    "spark": {"conn_id": "spark_prod"},
}
"""What a definition says about its DAGs."""

LOAD = """
import importlib, json, os, sys, time
import airflow.sdk
import psutil
from airflow.dag_processing.dagbag import DagBag
stems = ("types", "kafka", "backfill", "care", "operate", "reconcile", "definitions", "core", "store", "log")

def load(folder):
    os.environ["RIVERTWICE_PROJECT"], os.environ["RIVERTWICE_HOME"] = folder, folder + "/.home"
    began = time.process_time()
    bag = DagBag(folder + "/dags")
    return {"took": time.process_time() - began, **describe(bag)}

def modules():
    return sorted({name.partition(".")[0] for name in sys.modules})

def fork_server():
    from rivertwice.local.fork_server import SHARED
    for name in SHARED:
        importlib.import_module(name)
    return {"modules": modules(), "threads": psutil.Process().num_threads()}

def describe(bag):
  return {
    "dags": {
        dag.dag_id: {
            "tasks": [task.task_id for task in dag.topological_sort()],
            "pools": sorted({task.pool for task in dag.tasks}),
            "owners": sorted({task.owner for task in dag.tasks}),
            "max_active_runs": dag.max_active_runs,
            "catchup": dag.catchup,
            "scheduled": dag.schedule is not None,
            "schedule": str(getattr(dag.schedule, "expression", getattr(dag.schedule, "delta", None))),
            "retries": sorted({task.retries for task in dag.tasks}),
            "policies": {task.task_id: task.retries for task in dag.tasks if task.retry_policy},
            "queues": sorted({task.queue for task in dag.tasks}),
            "tags": sorted(dag.tags),
            "params": sorted(dag.params),
            "form": {name: {"value": dag.params[name], **dag.params.get_param(name).schema} for name in dag.params},
            "run_types": sorted(kind.value for kind in dag.allowed_run_types),
            "notified": all(task.on_failure_callback and task.on_success_callback for task in dag.tasks),
            "file": dag.fileloc,
        }
        for dag in bag.dags.values()
    },
    "errors": bag.import_errors,
    "modules": modules(),
    "shadowed": sorted(name for name in stems if "rivertwice" in str(getattr(sys.modules.get(name), "__file__", ""))),
  }

def one_file():
    from rivertwice.airflow.factory import all_dags
    return sorted(all_dags())

projects = [load(folder) for folder in sys.argv[1:]]
print(json.dumps({"projects": projects, "one_file": one_file(), "fork_server": fork_server()}))
"""


@pytest.fixture(scope="module")
def parsed(project: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a fresh process finds in the repository, then in a project with sessions and a broken definition; and the fork server."""
    folder = tmp_path_factory.mktemp("bag")
    pipelines = {"user_sessions": EXAMPLES / "user_sessions", "flight_delays": FLIGHTS, "broken": FLIGHTS}
    made = make_project(folder, pipelines, links=("dags",)).project
    edit_yaml(made / "pipelines" / "user_sessions", lambda document: document.update(airflow=OWN))
    frozen = write_definition(made / ".home" / "definitions" / "flight_delays@v2", FLIGHTS)
    changed = {"schedules": {"reconcile": "7 * * * *"}}
    edit_yaml(made / "pipelines" / "flight_delays", lambda document: document.update(airflow=changed))
    replace_text(frozen / "pipeline.yaml", "name: flight_delays", "name: flight_delays@v2")
    (made / "pipelines" / "broken" / "pipeline.yaml").write_text("name: broken\nwindow: {size: -1 hour}\n")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(project), str(made)],
        env={**os.environ, **Settings(project=project, home=folder / "home").to_env()},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


@pytest.fixture(scope="module")
def loaded(parsed: dict[str, Any]) -> dict[str, Any]:
    return dict(parsed["projects"][0])


@pytest.fixture(scope="module")
def second(parsed: dict[str, Any]) -> dict[str, Any]:
    return dict(parsed["projects"][1])


def test_every_definition_has_one_dag_per_verb_in_the_verbs_file(loaded: dict[str, Any], project: Path) -> None:
    names = sorted(path.parent.name for path in (project / "pipelines").glob("*/pipeline.yaml"))
    assert loaded["errors"] == {}
    assert sorted(loaded["dags"]) == sorted(["report__week", *(f"{verb}__{name}" for verb in VERBS for name in names)])
    for dag_id, dag in loaded["dags"].items():
        assert Path(dag["file"]).stem == dag_id.partition("__")[0]


def test_parsing_is_quick_and_imports_no_engine(loaded: dict[str, Any]) -> None:
    assert loaded["took"] < PARSE_SECONDS
    assert [name for name in HEAVY if name in loaded["modules"]] == []


def test_dag_files_shadow_no_module(loaded: dict[str, Any]) -> None:
    assert loaded["shadowed"] == []


def test_a_dag_runs_once_at_a_time_unless_a_run_may_watch_or_wait_and_reports_its_failure(
    loaded: dict[str, Any],
) -> None:
    for dag_id, dag in loaded["dags"].items():
        assert dag["max_active_runs"] == (1 if dag_id.startswith(("reconcile__", "report__")) else 16)
        assert dag["catchup"] is False
        assert dag["notified"]
        assert dag["owners"] == ["rivertwice"]


def test_spark_work_shares_one_pool_and_starts_after_the_form_check(loaded: dict[str, Any]) -> None:
    dags = dict(loaded["dags"])
    assert dags.pop("report__week")["tasks"] == ["write"]
    first = {"backfill": "find", "reconcile": "validate", "care": "watch", "operate": "check"}
    for dag_id, dag in dags.items():
        verb = dag_id.partition("__")[0]
        assert dag["tasks"][0] == first[verb]
        assert "spark_batch" in dag["pools"]
    assert set(dags["care__flight_delays"]["tasks"]) == {
        "watch", "take", "proof_wanted", "prove", "prune", "report", "check", "extend",
    }  # fmt: skip
    assert dags["care__flight_delays"]["params"] == ["act", "prove", "reason"]
    assert dags["backfill__flight_delays"]["params"] == ["act", "dry_run", "end", "reason", "scope", "start"]
    assert sorted(dags["reconcile__flight_delays"]["tasks"]) == [
        "announce", "announce_days", "compare", "gate", "repair", "repair_wanted", "validate",
    ]  # fmt: skip
    assert [task for task in dags["backfill__flight_delays"]["tasks"] if task != "announce"] == [
        "find", "approval_wanted", "approve", "plan", "compute", "publish", "await_served", "verify_wanted", "verify", "close",
        "more", "again",
    ]  # fmt: skip
    assert set(dags["operate__flight_delays"]["tasks"]) == {
        "check", "choose", "job", "act", "report",
        "version", "comparison_wanted", "compare", "gate", "approve", "serve", "switched",
    }  # fmt: skip
    assert dags["operate__flight_delays"]["params"] == [
        "act", "confirm", "dry_run", "from_beginning", "kind", "place", "planned", "reason", "savepoint", "stop_before_head",
        "unproved", "value", "version",
    ]  # fmt: skip


def test_a_question_that_airflow_lost_is_asked_again(loaded: dict[str, Any]) -> None:
    """But not one that no answer in time: its rule ends the task."""
    for verb in ("operate", "backfill"):
        assert loaded["dags"][f"{verb}__flight_delays"]["policies"] == {"approve": 2}


def test_every_form_opens_ready_to_be_sent(loaded: dict[str, Any]) -> None:
    """Airflow's page takes a field whose type is not "null" for required, and an empty text for none: it opens red."""
    empty = [
        f"{dag_id}.{name}"
        for dag_id, dag in loaded["dags"].items()
        for name, field in dag["form"].items()
        if field["value"] in (None, "") and "null" not in field["type"]
    ]
    assert empty == []
    assert loaded["dags"]["backfill__flight_delays"]["form"]["reason"]["value"] is None


def test_airflows_own_backfill_is_offered_where_a_run_can_belong_to_a_period(loaded: dict[str, Any]) -> None:
    offered = {dag_id for dag_id, dag in loaded["dags"].items() if "backfill" in dag["run_types"]}
    assert offered == {dag_id for dag_id in loaded["dags"] if dag_id.startswith("backfill__")}


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("2013-06-30T04:00:00Z", True),
        ("2012-02-29T23:59:59.999999+05:30", True),
        ("2013-13-01T00:00:00Z", False),
        ("2013-00-01T00:00:00Z", False),
        ("2013-06-32T00:00:00Z", False),
        ("2013-06-30T24:00:00Z", False),
        ("2013-06-30T04:60:00Z", False),
        ("2013-06-30T04:00:00", False),
        ("2013-06-30", False),
    ],
)
def test_a_forms_schema_alone_refuses_an_instant_that_is_none(loaded: dict[str, Any], text: str, taken: bool) -> None:
    """By its pattern: `format` counts only where an Airflow has the package that checks it."""
    for dag_id in ("backfill__flight_delays", "reconcile__flight_delays"):
        for name in ("start", "end"):
            assert bool(re.search(loaded["dags"][dag_id]["form"][name]["pattern"], text)) is taken


def test_sessions_are_looked_up_by_a_spark_job_before_they_are_planned(second: dict[str, Any]) -> None:
    tasks = second["dags"]["backfill__user_sessions"]["tasks"]
    expected = ["validate", "look", "plan", "compute", "publish", "await_served"]
    assert [task for task in tasks if task in expected] == expected


def test_the_section_airflow_sets_schedules_and_resources(second: dict[str, Any]) -> None:
    dags = second["dags"]
    own = {verb: dags[f"{verb}__user_sessions"] for verb in VERBS}
    assert {verb: own[verb]["schedule"] for verb in VERBS} == {
        "reconcile": "0:30:00",
        "care": "*/5 * * * *",
        "backfill": "45 2 * * *",
        "operate": "None",
    }
    assert own["care"]["retries"] == [0, 7]  # a watch that failed is seen at once
    assert own["care"]["pools"] == ["default_pool", "sessions"]
    assert own["care"]["queues"] == ["big"]
    assert own["care"]["owners"] == ["team"]
    assert {"rivertwice", "care", "user_sessions", "web"} == set(own["care"]["tags"])
    other = dags["care__flight_delays"]
    assert (other["schedule"], other["retries"], other["queues"]) == ("*/15 * * * *", [0, 2], ["default"])


def test_a_version_beside_follows_the_projects_schedules(second: dict[str, Any]) -> None:
    """Its definition is frozen with its meaning; when its DAGs run is not a part of that."""
    dags = second["dags"]
    assert (
        dags["reconcile__flight_delays.v2"]["schedule"] == dags["reconcile__flight_delays"]["schedule"] == "7 * * * *"
    )


@pytest.mark.proves("howto-airflow.md#how-the-embedded-airflow-runs")
def test_a_broken_definition_is_an_import_error_of_its_own_dags_alone(second: dict[str, Any]) -> None:
    good = ("flight_delays", "user_sessions")
    beside = {f"{verb}__flight_delays.v2" for verb in VERBS}
    assert set(second["dags"]) == {"report__week"} | beside | {f"{verb}__{name}" for verb in VERBS for name in good}
    ((file, message),) = second["errors"].items()
    assert file.endswith("definitions.py")
    assert "pipeline broken has no DAGs" in message


def test_one_file_of_a_users_dag_folder_has_the_same_dags(parsed: dict[str, Any], second: dict[str, Any]) -> None:
    """Also beside a refused definition, which is logged."""
    assert parsed["one_file"] == sorted(second["dags"])


def test_a_version_beside_extends_no_archive_and_lets_no_version_serve(second: dict[str, Any]) -> None:
    own = {dag_id: dag for dag_id, dag in second["dags"].items() if dag_id.endswith(".v2")}
    assert set(own["care__flight_delays.v2"]["tasks"]) == {"watch", "take", "proof_wanted", "prove", "prune", "report"}
    assert set(own["operate__flight_delays.v2"]["tasks"]) == {"check", "choose", "job", "act", "report"}
    assert own["care__flight_delays.v2"]["params"] == ["prove", "reason"]
    assert "version" not in own["operate__flight_delays.v2"]["params"]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+", dag_id) for dag_id in own)
    assert own["reconcile__flight_delays.v2"]["tasks"] == second["dags"]["reconcile__flight_delays"]["tasks"]


def test_what_a_person_asks_for_has_no_schedule(second: dict[str, Any]) -> None:
    unscheduled = {dag_id for dag_id, dag in second["dags"].items() if not dag["scheduled"]}
    assert unscheduled == {dag_id for dag_id in second["dags"] if dag_id.startswith("operate__")}


def test_airflows_shared_modules_import_no_engine_and_start_no_thread(parsed: dict[str, Any]) -> None:
    """It is imported before they are forked."""
    assert [name for name in HEAVY if name in parsed["fork_server"]["modules"]] == []
    assert parsed["fork_server"]["threads"] == 1


@pytest.mark.filterwarnings("ignore")  # Airflow itself imports a deprecated test client
def test_the_plugin_is_one_line_and_adds_the_page(project: Path) -> None:
    (file,) = (project / "plugins").glob("*.py")
    assert len(file.read_text().splitlines()) == 1
    from rivertwice.airflow.page import RivertwicePlugin

    assert RivertwicePlugin.external_views[0]["url_route"] == "rivertwice"
    assert RivertwicePlugin.fastapi_apps[0]["url_prefix"] == "/rivertwice"
