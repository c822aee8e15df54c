"""A run of `backfill__P` that repairs: what it proposes, what a person's answer leads to, and how its alert ends."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped

from homes.backfill import HOUR, hours, make_home
from homes.ledger import NOW
from homes.project import edit_yaml
from rivertwice.agent.alert_model import AlertCause, Report
from rivertwice.agent.alert_store import alerts_of
from rivertwice.airflow.web_alerts import keep_why
from rivertwice.airflow.web_registry import ActRequest
from rivertwice.airflow.work import ReportedError, do_step, run_of
from rivertwice.backfill.store import load_backfill_plan
from rivertwice.core.errors import LogGapError
from rivertwice.core.instants import utc_now
from rivertwice.core.plain import to_plain
from rivertwice.definition.definition import load_definition
from rivertwice.reconcile.results import Stamp, StoredVerdict, store_run
from rivertwice.tasks import repair as repair_steps
from rivertwice.tasks.definitions import DagFacts
from rivertwice.tasks.names import reconcile_of
from rivertwice.tasks.reports import report_gate
from rivertwice.tasks.run import TaskRun
from rivertwice.timeline.sequence import publish, read_sequence
from rivertwice.timeline.serving import Publication
from rivertwice.upkeep.window_repairs import Repairs

pytestmark = pytest.mark.airflow
RUN = "repair__scheduled__2026-11-27T02:05:00+00:00"
YES = {"chosen_options": ["Approve"], "responded_by_user": {"id": "1", "name": "ada"}}
NO = {"chosen_options": ["Reject"], "responded_by_user": {"id": "1", "name": "ada"}}
NOBODY: dict[str, Any] = {"chosen_options": ["Reject"], "responded_by_user": None}
LATE = AlertCause("p", "late_share")
DEFECT = AlertCause("p", "defect")


class Run:
    """A run of `backfill__p` with act `repair` as Airflow hands it to its tasks; what Spark and a person do is given."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from rivertwice.airflow.dags import backfill_dag

        monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {0: (0, 200)})
        self.settings, self.home, self.bundle = make_home(folder)
        for name, value in self.settings.to_env().items():
            monkeypatch.setenv(name, value)
        self.store = alerts_of(self.settings)
        self.dag = backfill_dag(self.settings, DagFacts.of(load_definition(self.settings.definition_folder("p"))))
        self.xcoms: dict[str, Any] = {}
        self.active = 0
        self.pushed: dict[str, Any] = {}
        self.context: dict[str, Any] = {
            "dag_run": SimpleNamespace(dag_id=self.dag.dag_id, run_id=RUN, run_type="manual", conf={"act": "repair"}),
            "params": {"reason": None},
            "ti": SimpleNamespace(
                map_index=-1,
                xcom_pull=lambda task_ids: self.xcoms.get(task_ids),
                xcom_push=lambda key, value: self.pushed.update({key: value}),
                get_dr_count=lambda **_: self.active,
                get_ti_count=lambda **_: 0,
            ),
        }
        monkeypatch.setattr("rivertwice.airflow.work.get_current_context", lambda: self.context)

    def reconcile(self, run: str, verdicts: list[tuple[int, str]], minute: int = 0, late_share: bool = True) -> None:
        """Store what a reconcile found, and report it as its gate does."""
        kinds = {"LATE": "late_share", "DEFECT": "defect"}
        seen = {verdict for _, verdict in verdicts if verdict in kinds}
        alerts = [
            {
                "severity": "critical" if verdict == "DEFECT" else "warning",
                "kind": kinds[verdict],
                "message": "as found",
            }
            for verdict in sorted(seen)
            if late_share or verdict != "LATE"
        ]
        counts = {verdict: sum(each == verdict for _, each in verdicts) for verdict in ("AGREES", *seen)}
        summary = {
            "counts": {"served": {**counts, "AGREES": 1}},
            "balance": {},
            "late_by_partition": {},
            "gate": {"passed": not alerts, "alerts": alerts, "suites": []},
            "duration_s": 1.0,
        }
        sequence = read_sequence(self.home)[-1].seq
        stamp = Stamp(run, "p", NOW + timedelta(minutes=minute), "t1", 9, self.bundle.id, sequence, {})
        rows = [StoredVerdict("served", hour * HOUR, (hour + 1) * HOUR, "k", verdict, "") for hour, verdict in verdicts]
        store_run(self.home, stamp, rows, [], summary)
        for alert in alerts:
            self.store.report(
                Report(AlertCause("p", alert["kind"]), alert["severity"], "as found", "airflow"), utc_now()
            )

    def publish(self, *pairs: tuple[int, int], backfill: str = "bf-other") -> None:
        last = read_sequence(self.home)[-1].seq
        as_of = {"flights": {0: 100}}
        made = Publication(last + 1, backfill, hours(*pairs), self.bundle.fingerprint.semantics, self.bundle.id, as_of)
        publish(self.home, made.to_payload(), expected_seq=last, now=NOW)

    def do(self, task: str, *arguments: Any) -> Any:
        self.xcoms[task] = self.dag.get_task(task).python_callable(*arguments)  # type: ignore[attr-defined]
        return self.xcoms[task]

    def task_run(self) -> TaskRun:
        return replace(run_of(self.context), active_repairs=self.active)

    def step(self, step: str, *arguments: Any) -> Any:
        return do_step(step, "p", *arguments, run=self.task_run())

    def policy(self, **values: Any) -> None:
        edit_yaml(self.settings.definitions / "p", lambda document: document.update(repair=values))

    def answered(self, answer: dict[str, Any]) -> str:
        self.xcoms["approve"] = answer
        return str(self.do("plan", "p", "45 2 * * *", "none"))

    def verified(self, verdicts: list[tuple[int, str]]) -> None:
        self.xcoms["publish"] = read_sequence(self.home)[-1].seq
        self.reconcile(reconcile_of(RUN, 1), verdicts, minute=30)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


def alert_of(run: Run, cause: AlertCause) -> Any:
    return next(alert for alert in run.store.state().alerts if alert.cause == cause)


def test_a_late_burst_is_repaired_as_approved_and_its_alert_ends(run: Run) -> None:
    run.reconcile("rc-1", [(0, "LATE"), (1, "LATE"), (2, "AGREES")])
    found = run.do("find", "p")
    assert found["subject"] == "Repair 2 windows of p?"
    assert run.do("approval_wanted", "p", found) is True
    waiting = alert_of(run, LATE)
    assert waiting.details["repair"].startswith("2 rows LATE are served in 2 windows: [1970-01-01T00:00:00Z")
    assert waiting.details["repair_run"] == RUN
    (record,) = Repairs(run.home).read()
    assert record.outcome == "waiting"

    backfill = run.answered(YES)
    plan = load_backfill_plan(run.home, backfill)
    assert plan.ranges == hours((0, 2))
    (record,) = Repairs(run.home).read()
    assert (record.outcome, record.by) == ("running", "ada in Airflow")
    assert alert_of(run, LATE).details["repair"].endswith("it runs, approved by ada in Airflow")
    assert "approved by ada in Airflow" in plan.reason
    run.publish((0, 2), backfill=backfill)
    run.verified([(0, "AGREES"), (1, "AGREES")])
    closed = run.do("close", "p")
    assert closed == {
        "outcome": "done",
        "by": "ada in Airflow",
        "backfill": backfill,
        "before": {"LATE": 2},
        "after": {},
        "reconcile": reconcile_of(RUN, 1),
    }
    over = alert_of(run, LATE)
    assert over.resolved_at is not None
    assert over.resolution == (
        f"backfill {backfill} repaired it, approved by ada in Airflow; before: 2 rows LATE served in 2 windows; after: no row "
        "DEFECT or LATE"
    )
    assert len(run.store.state().alerts) == 1
    assert run.do("close", "p") == closed  # tried again, it says the same


def test_a_defect_is_asked_for_also_under_the_policy_automatic(run: Run) -> None:
    run.policy(policy="automatic")
    run.reconcile("rc-1", [(0, "LATE"), (1, "DEFECT")])
    found = run.do("find", "p")
    assert (found["asks"], found["ranges"]) == (True, to_plain(hours((0, 2))))
    assert "a DEFECT is looked at by a person before it is replaced" in found["body"].replace("A DEFECT", "a DEFECT")


def test_late_rows_within_the_budget_are_repaired_by_themselves(run: Run) -> None:
    run.policy(policy="automatic", budget={"windows": 1, "records": 1000})
    run.reconcile("rc-1", [(0, "LATE")])
    found = run.do("find", "p")
    assert run.do("approval_wanted", "p", found) is False
    backfill = str(run.do("plan", "p", "45 2 * * *", "none"))
    run.publish((0, 1), backfill=backfill)
    run.verified([(0, "AGREES")])
    assert run.do("close", "p")["by"] == "Airflow, as repair: {policy: automatic} allows"


def test_a_repair_beyond_the_budget_is_asked_for(run: Run) -> None:
    run.policy(policy="automatic", budget={"windows": 1})
    run.reconcile("rc-1", [(0, "LATE"), (1, "LATE")])
    assert run.do("find", "p")["asks"] is True


@pytest.mark.parametrize("verdicts", [[(0, "AGREES")], []])
def test_nothing_wrong_is_nothing_to_repair(run: Run, verdicts: list[tuple[int, str]]) -> None:
    if verdicts:
        run.reconcile("rc-1", verdicts)
    assert run.step("may_repair") is False
    with pytest.raises(AirflowSkipException, match="nothing is to be repaired of p"):
        run.do("find", "p")
    with pytest.raises(AirflowSkipException, match="nothing was to be repaired"):
        run.do("close", "p")
    assert Repairs(run.home).read() == []


def test_the_first_message_of_the_alert_has_the_smallest_backfill(run: Run) -> None:
    run.reconcile("rc-1", [(0, "LATE")])
    proposed = repair_steps.propose(run.settings, "p")["repair"]
    assert proposed.startswith("1 row LATE is served in 1 window: [1970-01-01T00:00:00Z")
    run.policy(policy="off")
    assert repair_steps.propose(run.settings, "p") == {}


def test_a_reconcile_beside_a_repair_at_work_leaves_the_alerts_end_to_it(run: Run) -> None:
    run.reconcile("rc-1", [(0, "LATE")])
    run.do("find", "p")
    run.active = 1
    assert (
        repair_steps.under_repair(run.settings, run.task_run(), "p") == frozenset()
    )  # it waits: whoever backfills ends the alert
    run.answered(YES)
    left = repair_steps.under_repair(run.settings, run.task_run(), "p")
    assert left == {"late_share"}
    passed = {"run": "rc-2", "gate": {"alerts": []}, "counts": {"served": {"AGREES": 1}}}
    place = TaskRun("reconcile__p", "r", "gate", NOW)
    report_gate(run.settings, place, "p", passed, whole=True, left=left)
    assert alert_of(run, LATE).resolved_at is None
    run.active = 0  # its run was deleted: nothing else will end the alert
    assert repair_steps.under_repair(run.settings, run.task_run(), "p") == frozenset()
    report_gate(run.settings, place, "p", passed, whole=True)
    assert alert_of(run, LATE).resolution == "reconcile rc-2 found it no more"


def test_what_no_backfill_cures_is_no_failure_of_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> None:
        raise LogGapError("the records are gone")

    run.reconcile("rc-1", [(0, "LATE")])
    monkeypatch.setattr(repair_steps, "find_repair", lost)
    assert repair_steps.propose(run.settings, "p") == {}
    assert run.step("may_repair") is False


def test_late_rows_below_the_limit_start_no_repair(run: Run) -> None:
    run.reconcile("rc-1", [(0, "LATE")], late_share=False)
    assert run.step("may_repair") is False


def test_one_repair_at_a_time_is_started(run: Run) -> None:
    run.reconcile("rc-1", [(0, "LATE")])
    assert run.step("may_repair") is True
    run.active = 1
    assert run.step("may_repair") is False


def test_a_repair_that_somebody_made_unneeded_ends_well_and_says_so(run: Run) -> None:
    run.reconcile("rc-1", [(0, "LATE")])
    run.do("find", "p")
    run.publish((0, 1))
    assert run.answered(YES) == ""
    assert run.do("close", "p")["outcome"] == "unneeded"
    assert alert_of(run, LATE).resolution == "these windows were published meanwhile; nothing was left to do"


def test_a_declined_repair_is_acknowledged_and_not_asked_for_again(run: Run) -> None:
    run.reconcile("rc-1", [(0, "LATE")])
    run.do("find", "p")
    run.xcoms["approve"] = NO
    answered = ActRequest("p", "repair.decline", "abcdefgh", "the source sends it again tomorrow", {"run": RUN}, "ada")
    keep_why(run.settings, answered)
    keep_why(run.settings, replace(answered, fields={"run": "another"}))  # that of a run without a repair is not kept
    assert [record.answer for record in Repairs(run.home).read()] == ["the source sends it again tomorrow"]
    assert run.do("close", "p")["outcome"] == "declined"
    alert = alert_of(run, LATE)
    assert alert.resolved_at is None
    assert (alert.acknowledged_by, alert.acknowledgement) == (
        "ada in Airflow",
        "declined its repair: the source sends it again tomorrow",
    )
    assert run.step("may_repair") is False
    run.reconcile("rc-2", [(0, "LATE"), (3, "LATE")], minute=60)
    assert run.step("may_repair") is True  # another window differs


@pytest.mark.parametrize(
    ("found", "policy", "active", "asks"),
    [
        ([(0, "AGREES"), (3, "LATE")], "ask", 0, True),
        ([(0, "AGREES"), (3, "AGREES")], "ask", 0, False),
        (
            [(0, "AGREES"), (3, "LATE")],
            "automatic",
            0,
            False,
        ),  # else it would never end where records are late all the time
        ([(0, "AGREES"), (3, "DEFECT")], "automatic", 0, True),
        ([(0, "AGREES"), (3, "LATE")], "ask", 1, False),
    ],
)
def test_what_the_reconcile_of_a_repair_found_beyond_it_is_asked_for(
    run: Run, found: list[tuple[int, str]], policy: str, active: int, asks: bool
) -> None:
    run.reconcile("rc-1", [(0, "LATE")])
    run.do("find", "p")
    backfill = run.answered(YES)
    run.publish((0, 1), backfill=backfill)
    run.verified(found)
    closed = run.do("close", "p")
    assert closed["outcome"] == "done"
    run.policy(policy=policy)
    run.active = active
    assert run.step("may_ask_again", closed) is asks


def test_a_repair_that_did_not_end_well_asks_for_nothing_more(run: Run) -> None:
    run.reconcile("rc-1", [(0, "LATE")])
    run.do("find", "p")
    run.xcoms["approve"] = NOBODY
    closed = run.do("close", "p")
    assert closed["reconcile"] == "rc-1"
    assert run.step("may_ask_again", closed) is False


@pytest.mark.parametrize(("answer", "outcome"), [(NO, "declined"), (NOBODY, "unanswered")])
def test_a_rejection_reaches_the_task_that_closes(run: Run, answer: dict[str, Any], outcome: str) -> None:
    """Airflow skips what comes after a rejection by an exception, and keeps no result of a task that ends by one."""
    run.reconcile("rc-1", [(0, "LATE")])
    run.do("find", "p")
    event = {**answer, "params_input": {}, "responded_at": utc_now(), "timedout": answer is NOBODY}
    approve: Any = run.dag.get_task("approve")
    with pytest.raises(DownstreamTasksSkipped):
        approve.execute_complete({**run.context, "task": approve}, event)
    run.xcoms["approve"] = run.pushed["return_value"]
    assert run.do("close", "p")["outcome"] == outcome


def test_a_question_that_nobody_answered_is_asked_again(run: Run) -> None:
    run.reconcile("rc-1", [(0, "LATE")])
    run.do("find", "p")
    run.xcoms["approve"] = NOBODY
    assert run.do("close", "p")["outcome"] == "unanswered"
    assert alert_of(run, LATE).acknowledged_by == ""
    assert run.step("may_repair") is True


def test_a_repair_that_cured_nothing_fails_and_its_alert_stays(run: Run) -> None:
    run.reconcile("rc-1", [(0, "DEFECT")])
    run.do("find", "p")
    backfill = run.answered(YES)
    run.publish((0, 1), backfill=backfill)
    run.verified([(0, "DEFECT")])
    with pytest.raises(AirflowFailException, match="still finds 1 row DEFECT") as raised:
        run.do("close", "p")
    assert isinstance(raised.value.__cause__, ReportedError)  # so that the failed task is not a second alert
    assert alert_of(run, DEFECT).resolved_at is None
    assert [record.outcome for record in Repairs(run.home).read()] == ["failed"]


def test_a_repair_whose_job_failed_is_recorded_as_failed(run: Run) -> None:
    run.reconcile("rc-1", [(0, "LATE")])
    run.do("find", "p")
    run.answered(YES)
    assert run.do("close", "p")["outcome"] == "failed"
    assert alert_of(run, LATE).resolved_at is None
    assert json.dumps(to_plain(Repairs(run.home).read()))


def test_a_repair_without_an_approval_plans_nothing(run: Run) -> None:
    run.reconcile("rc-1", [(0, "LATE")])
    run.do("find", "p")
    run.xcoms["approve"] = NO
    with pytest.raises(AirflowFailException, match="was not approved"):
        run.do("plan", "p", "45 2 * * *", "none")
