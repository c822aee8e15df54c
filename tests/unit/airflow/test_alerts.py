"""Airflow's alerts by the notifiers that Airflow calls, over real HTTP: one message per cause, none for a refused form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rivertwice.agent import alert_store
from rivertwice.agent.act import page, page_over
from rivertwice.agent.alert_gates import judge_gate
from rivertwice.agent.alert_routes import WEBHOOK
from rivertwice.agent.alert_sender import Sender
from rivertwice.airflow.alerts import StreamFaultError
from rivertwice.airflow.work import ReportedError
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.tasks.reports import report_gate
from rivertwice.tasks.run import TaskRun
from servers.alert_receivers import SECRET, Hook

P = "flight_delays"
GATE = TaskRun(f"reconcile__{P}", "scheduled__1", "gate", utc_now())
LATE = [
    {"severity": "warning", "kind": "late_share", "message": f"16.5% of the records of {name} came too late"}
    for name in ("all partitions", "partition 0", "partition 1", "partition 2", "partition 3")
]
DEFECT = {"severity": "critical", "kind": "defect", "message": "3 rows of the pair stream are DEFECT"}


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    """Settings with routes of the test's own: the project is the repository."""
    (tmp_path / "alerts.yaml").write_text("settle: 0 s")
    return replace(settings, alerts=tmp_path / "alerts.yaml")


@pytest.fixture
def hook(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    """The receiver of the webhook that Airflow's environment names; ends are told at once."""
    found = Hook()
    for name, value in {**settings.to_env(), WEBHOOK: found.url}.items():
        monkeypatch.setenv(name, value)
    yield found
    found.close()


def context(task: str, error: BaseException | None = None, *, dag: str = "backfill", run_type: str = "manual") -> Any:
    """Return what Airflow hands to a callback."""
    return {
        "dag": SimpleNamespace(dag_id=f"{dag}__{P}"),
        "dag_run": SimpleNamespace(run_id=f"{run_type}__1", run_type=run_type),
        "ti": SimpleNamespace(task_id=task),
        "exception": error,
    }


def failed(cause: BaseException | None = None, text: str = "bad range") -> RuntimeError:
    error = RuntimeError(text)
    error.__cause__ = cause
    return error


def fail(task: str, error: BaseException, **changes: Any) -> None:
    from rivertwice.airflow.alerts import AlertNotifier

    AlertNotifier(pipeline=P).notify(context(task, error, **changes))
    alert_store._STORES.clear()  # the next task is another process


def end_well(settings: Settings, task: str, *, dag: str = "backfill", watched: bool = False) -> None:
    from rivertwice.airflow.alerts import RecoveryNotifier

    RecoveryNotifier(pipeline=P, watched=watched).notify(context(task, dag=dag))
    Sender(settings).run_pass()  # as the agent does every two seconds


def gate_of(alerts: list[dict[str, str]], **served: int) -> dict[str, Any]:
    return {
        "run": "r1",
        "gate": {"alerts": alerts},
        "counts": {"stream": {"LATE": 40}, "served": {"AGREES": 9, **served}},
    }


@pytest.mark.airflow
def test_a_task_that_fails_repeatedly_is_one_message_and_one_at_its_end(settings: Settings, hook: Hook) -> None:
    for _ in range(6):
        fail("compute", failed(text="the disk is full"))
    assert hook.told() == [("task_failed", "firing")]
    (told,) = hook.taken
    assert told["message"] == f"task compute of backfill__{P}: the disk is full"
    assert (told["dag"], told["run"], told["by"], told["severity"]) == (
        f"backfill__{P}",
        "manual__1",
        "airflow",
        "critical",
    )
    assert told["next"].endswith(" status")
    end_well(settings, "plan")  # another task: this one still fails
    assert len(hook.taken) == 1
    end_well(settings, "compute")
    assert hook.told() == [("task_failed", "firing"), ("task_failed", "resolved")]
    lines = (settings.home / "alerts.jsonl").read_text().splitlines()
    assert hook.taken == [{**json.loads(line), "page": None} for line in lines]


@pytest.mark.airflow
@pytest.mark.parametrize(
    "error", [failed(RequestError("bad range")), RuntimeError("request: the range is longer than a year")]
)
def test_a_refused_form_is_no_alert(settings: Settings, hook: Hook, error: RuntimeError) -> None:
    fail("plan", error)
    assert hook.taken == []
    assert not (settings.home / "alerts.jsonl").exists()
    fail("plan", error, run_type="scheduled")  # nobody sees that one fail
    assert hook.told() == [("task_failed", "firing")]


@pytest.mark.airflow
def test_a_failure_that_was_reported_with_its_own_word_is_no_second_alert(settings: Settings, hook: Hook) -> None:
    fail("gate", failed(ReportedError("3 rows are DEFECT")), dag="reconcile")
    assert hook.taken == []


@pytest.mark.airflow
def test_a_stream_that_the_agent_has_given_up_is_told_by_the_agent_alone(settings: Settings, hook: Hook) -> None:
    page(settings, "schema", P, "the definition is not acceptable", utc_now())
    Sender(settings).run_pass()
    for status in ("given_up", "driver_down"):
        fail("watch", failed(StreamFaultError(status, "the agent has stopped retrying")), dag="care")
    assert hook.told() == [("schema", "firing")]


@pytest.mark.proves("guarantees.md#alerts")
@pytest.mark.airflow
def test_a_dead_agent_is_one_alert_of_all_pipelines(settings: Settings, hook: Hook) -> None:
    for _ in range(6):
        fail("watch", failed(StreamFaultError("agent_dead", "the agent last spoke 90 s ago")), dag="care")
    assert [(one["kind"], one["pipeline"]) for one in hook.taken] == [("agent_dead", None)]
    assert hook.taken[0]["next"].endswith(" agent start")
    page_over(settings, {"agent_dead"}, None, "agent pid 1 runs", utc_now())
    Sender(settings).run_pass()
    assert hook.told() == [("agent_dead", "firing"), ("agent_dead", "resolved")]


@pytest.mark.airflow
def test_an_epoch_that_ends_well_is_the_end_of_what_the_watch_reported(settings: Settings, hook: Hook) -> None:
    fail("watch", failed(StreamFaultError("driver_down", "no driver")), dag="care")
    end_well(settings, "watch", dag="care", watched=True)
    assert hook.told() == [("driver_down", "firing"), ("driver_down", "resolved")]


@pytest.mark.airflow
def test_a_failing_webhook_fails_no_callback_and_loses_no_alert(
    settings: Settings, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    hook.answer = 500
    with caplog.at_level("DEBUG"):
        fail("compute", failed())
    assert "status 500" in caplog.text
    assert SECRET not in caplog.text
    hook.answer = 204
    Sender(settings, now=lambda: utc_now().replace(year=utc_now().year + 1)).run_pass()  # the agent, later
    assert hook.told() == [("task_failed", "firing")]


def test_one_fact_of_a_reconcile_is_one_message_until_its_repair(settings: Settings, hook: Hook) -> None:
    for _ in range(6):
        report_gate(settings, GATE, P, gate_of([*LATE, DEFECT], LATE=40, DEFECT=3), whole=True)
    assert sorted(hook.told()) == [("defect", "firing"), ("late_share", "firing")]
    late = next(one for one in hook.taken if one["kind"] == "late_share")
    assert late["message"].endswith("partition 1 came too late; and 2 more")
    # The backfill is published: the stream's own rows and its late share are what they were.
    report_gate(settings, GATE, P, gate_of([*LATE, DEFECT]), whole=True)
    Sender(settings).run_pass()
    assert sorted(hook.told()[2:]) == [("defect", "resolved"), ("late_share", "resolved")]
    for _ in range(6):
        report_gate(settings, GATE, P, gate_of([*LATE, DEFECT]), whole=True)
        Sender(settings).run_pass()
    assert len(hook.taken) == 4


def test_a_warning_of_another_program_ends_with_the_next_reconcile(settings: Settings, hook: Hook) -> None:
    commit = {"severity": "warning", "kind": "foreign_write", "message": "another program made version 7"}
    report_gate(settings, GATE, P, gate_of([commit]), whole=True)
    report_gate(settings, GATE, P, gate_of([]), whole=True)
    Sender(settings).run_pass()
    assert hook.told() == [("foreign_write", "firing"), ("foreign_write", "resolved")]


def test_a_reconcile_of_a_range_ends_no_alert(settings: Settings, hook: Hook) -> None:
    report_gate(settings, GATE, P, gate_of(LATE, LATE=40), whole=True)
    report_gate(settings, GATE, P, gate_of([]), whole=False)
    Sender(settings).run_pass()
    assert hook.told() == [("late_share", "firing")]


def test_what_no_backfill_repairs_stays_whatever_is_served() -> None:
    balance = {"severity": "critical", "kind": "balance", "message": "2 of 90 records have no cause"}
    assert judge_gate([balance], {"served": {"AGREES": 9}}) == {"balance": ("critical", balance["message"])}
    assert set(judge_gate([DEFECT], {"stream": {"DEFECT": 3}})) == {"defect"}  # nothing is served yet
    assert set(judge_gate([DEFECT], {"stream": {"DEFECT": 3}, "served": {}})) == {"defect"}


def test_a_suite_that_says_once_more_what_the_gate_says_is_no_alert() -> None:
    again = {"severity": "warning", "kind": "suite", "message": "balance: too many are late", "repeats": "late_share"}
    other = {**again, "message": "balance: a partition twice", "repeats": ""}
    unrepaired = {"served": {"AGREES": 9, "LATE": 4}}
    assert set(judge_gate([*LATE, again], unrepaired)) == {"late_share"}
    assert judge_gate([*LATE, again, other], unrepaired)["suite"] == ("warning", "balance: a partition twice")
    assert judge_gate([*LATE, again], {"served": {"AGREES": 13}}) == {}  # repaired, and so is what says the same
    assert set(judge_gate([again], unrepaired)) == {"suite"}  # the gate itself found nothing
