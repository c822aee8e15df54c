"""The DAGs of a pipeline: care__P, reconcile__P, backfill__P, operate__P, stream__P if it runs by schedule. Each does what a person would look for under its name."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, task

from rivertwice.acts import OPERATE, ActName
from rivertwice.airflow.alerts import RecoveryNotifier
from rivertwice.airflow.assets import (
    announce,
    announce_days,
    announce_run,
    reconciled_asset,
    served_asset,
    stream_asset,
)
from rivertwice.airflow.dag_parts import (
    AT_ONCE,
    approval,
    gate,
    pipeline_dag,
    planned_by_job,
    run_plan,
    spark_job,
    step,
)
from rivertwice.airflow.operators import AwaitRun, SuperviseEpoch
from rivertwice.airflow.schedules import run_schedule, schedule, schedule_text, timetable
from rivertwice.airflow.work import work_of
from rivertwice.core import Settings
from rivertwice.definition import NO_SCHEDULE, AirflowSettings
from rivertwice.tasks import ActTask, DagFacts, dag_id

WEEK = "week"
"""Stands for all pipelines in the id of the DAG that reports."""


def report_dag() -> DAG:
    """Report the week of all pipelines on Monday morning: one file, and a sentence to the routes of alerts."""
    facts = DagFacts(name=WEEK, airflow=AirflowSettings())
    says = "Writes the report of the last seven days of all pipelines, and sends its sentence to the routes of alerts."
    with pipeline_dag(facts, "report", says, schedule="0 6 * * 1") as dag:
        step("write", "report_week")(WEEK)
    return dag


def stream_dag(settings: Settings, facts: DagFacts) -> DAG:
    """Let the agent run a stream by schedule to the log's end: at each tick, when an asset is updated, or when a person asks."""
    name = facts.name
    with pipeline_dag(
        facts,
        "stream",
        "Lets the agent run the stream to the log's end, and waits for it.",
        schedule=run_schedule(facts),
    ) as dag:
        asked = step("ask", "ask_run")(name)
        ran = AwaitRun(task_id="run", pipeline=name, asked_at=asked)
        task(task_id="report", outlets=[stream_asset(name)])(announce_run)(name, asked) << ran
    return dag


def care_dag(settings: Settings, facts: DagFacts) -> DAG:
    """Watch the stream, take savepoints while it runs and prove them, and extend the archive. The agent starts and stops the stream."""
    name = facts.name
    rotate, archive, often = facts.care_schedules
    with pipeline_dag(
        facts,
        "care",
        "Watches the stream; takes a savepoint while it runs, proves it, prunes; copies new records into the archive.",
        schedule=timetable(often),
        max_active_runs=AT_ONCE,
    ) as dag:
        SuperviseEpoch(
            task_id="watch",
            pipeline=name,
            stream=stream_asset(name),
            schedule=often,
            retries=0,
            on_success_callback=RecoveryNotifier(pipeline=name, watched=True),
        )
        _rotate(settings, facts, [rotate, often])
        if facts.is_first_version:
            check = step("check", "check_archive", alone=["extend"])(name, archive, often)
            spark_job(settings, facts, "extend", "archive", check)
    return dag


def _rotate(settings: Settings, facts: DagFacts, schedules: list[str]) -> None:
    """Take a savepoint while the stream runs, prove it by a replay, prune what is not protected."""
    name = facts.name
    savepoint = step("take", "take_savepoint", alone=["prove"])(name, *schedules)
    wanted = gate("proof_wanted", "is_proof_wanted", ignore_downstream_trigger_rules=False)(name, savepoint)
    prove = spark_job(settings, facts, "prove", "prove", ["--pipeline", name, "--savepoint", savepoint, "--or-older"])
    # A proof that failed must not keep prune from its work: savepoints would pile up for as long as proofs fail.
    prune = step("prune", "prune_savepoints", trigger_rule="all_done")(name, *schedules)
    report = step("report", "report_rotation", trigger_rule="none_failed_min_one_success")(name, savepoint)
    wanted >> prove
    savepoint >> prune
    prove >> prune >> report
    prove >> report  # so that the run fails with its proof


def reconcile_dag(settings: Settings, facts: DagFacts) -> DAG:
    """Compare what the stream produced, what is served, and what the log contains; fail on a defect.

    The schedule `reconcile_full` makes it compare everything again, the past that the other runs build on too.
    """
    name = facts.name
    with pipeline_dag(
        facts,
        "reconcile",
        "Compares stream, served and truth; every differing row gets a named cause.",
        schedule=schedule(facts, "reconcile", "reconcile_full"),
    ) as dag:
        texts = [schedule_text(facts, each) for each in ("reconcile_full", "reconcile")]
        arguments = step("validate", "check_reconcile")(name, *texts)
        compare = spark_job(settings, facts, "compare", "reconcile", arguments)
        passed = step("gate", "gate_reconcile", retries=0, counts_repairs=True)(name)
        compare >> passed
        if facts.can_repair:
            # After the gate, also after one that failed: then there is something to repair.
            wanted = gate("repair_wanted", "may_repair", trigger_rule="all_done", counts_repairs=True)(name)
            repair = TriggerDagRunOperator(
                task_id="repair",
                trigger_dag_id=dag_id("backfill", name),
                trigger_run_id="repair__{{ dag_run.run_id }}",
                conf={"act": ActName.REPAIR, "reason": f"{dag_id('reconcile', name)} found it"},
                skip_when_already_exists=True,
            )
            passed >> wanted >> repair
        task(task_id="announce", outlets=[served_asset(name)])(announce)("announce_reconcile", name, passed)
        task(task_id="announce_days", outlets=[reconciled_asset(name)])(announce_days)(name, passed)
    return dag


def backfill_dag(settings: Settings, facts: DagFacts) -> DAG:
    """Recompute windows from the log, audit them, publish them in one commit.

    With the late policy `correct`, the schedule of the same name makes it recompute the windows that late records came for. As the act
    `repair`, it finds the smallest backfill that cures what the newest reconcile found, asks a person, and verifies what came of it.
    """
    name = facts.name
    names = ("correct", "backfill") if facts.corrects_late else ("backfill",)
    repairs = " Repairs what a reconcile found, if a person approves it." if facts.can_repair else ""
    with pipeline_dag(
        facts,
        "backfill",
        f"Recomputes closed windows from the log, audits them and publishes them in one commit.{repairs}",
        schedule=schedule(facts, *names),
        **({"max_active_runs": AT_ONCE} if facts.can_repair else {}),
    ) as dag:
        often = schedule_text(facts, names[0]) if len(names) > 1 else NO_SCHEDULE
        texts = [schedule_text(facts, "backfill"), often]
        options: dict[str, Any] = {"alone": ["look", "compute", "publish"]}
        if facts.can_repair:
            found = step("find", "find_smallest", counts_repairs=True)(name)
            wanted = gate("approval_wanted", "is_approval_wanted", ignore_downstream_trigger_rules=False)(name, found)
            approve = approval("find", defaults="Reject")
            wanted >> approve
            # A rejection, or nothing left to do, skips what follows one by one: `close` runs in any case.
            one_by_one = {"ignore_downstream_trigger_rules": False, "trigger_rule": "none_failed"}
            options |= {"needs": ["find", "approve"], **one_by_one}
        if facts.plans_in_job:
            first = gate("validate", "check_backfill", **options)(name, *texts)
            own = {"ignore_downstream_trigger_rules": False} if facts.can_repair else {}
            planned = planned_by_job(settings, facts, first, **own)
        else:
            first = planned = gate("plan", "plan_backfill", **options)(name, *texts)
        served = run_plan(settings, facts, planned)
        if facts.can_repair:
            [found, approve] >> first
            _close_repair(settings, facts, served)
    return dag


def _close_repair(settings: Settings, facts: DagFacts, served: Any) -> None:
    """Look at what a repair published, record how it ended, and ask about what is left."""
    name = facts.name
    wanted = gate("verify_wanted", "is_repair", ignore_downstream_trigger_rules=False)(name)
    verify = spark_job(settings, facts, "verify", "reconcile", ["--pipeline", name])
    closed = step(
        "close",
        "close_repair",
        trigger_rule="all_done",
        needs=["find", "approve", "plan", "publish"],
    )(name)
    served >> wanted >> verify >> closed
    again = TriggerDagRunOperator(
        task_id="again",
        trigger_dag_id=dag_id("backfill", name),
        trigger_run_id="repair__{{ ti.xcom_pull(task_ids='close')['reconcile'] }}",
        conf={"act": ActName.REPAIR, "reason": "the reconcile after a repair found it"},
        skip_when_already_exists=True,
    )
    gate("more", "may_ask_again", counts_repairs=True)(name, closed) >> again


def operate_dag(settings: Settings, facts: DagFacts) -> DAG:
    """Do one act that a person asks for."""
    name = facts.name
    says = f"Does one act: {', '.join(act.name for act in facts.acts_of(OPERATE))}."
    with pipeline_dag(facts, OPERATE, says, schedule=None, max_active_runs=AT_ONCE) as dag:
        request = gate("check", "check_act")(name)
        chosen = task.branch(task_id="choose")(work_of("choose_task"))(name, request)
        job = spark_job(settings, facts, ActTask.IN_JOB, "act", ["--pipeline", name, "--request", request])
        here = step(ActTask.HERE, "do_act", pool=facts.airflow.pool)(name, request)
        done = step("report", "report_act", trigger_rule="none_failed_min_one_success", needs=["check"])(name)
        chosen >> [job, here] >> done
        if facts.is_first_version:
            chosen >> _switch(settings, facts)
    return dag


def _switch(settings: Settings, facts: DagFacts) -> Any:
    """Let another version serve: compare it first, then ask a person. Going back is the same, without a comparison; return the first task."""
    name = facts.name
    choice = step(ActTask.SWITCH, "choose_version")(name)
    wanted = gate("comparison_wanted", "check_comparison", ignore_downstream_trigger_rules=False)
    compare = spark_job(settings, facts, "compare", "compare", wanted(name, choice))
    # A version that served before is not compared: its task `compare` is skipped, and the gate has nothing to read.
    found = step("gate", "gate_switch", trigger_rule="none_failed_min_one_success")(name, choice)
    approve = approval("gate")
    serve = step("serve", "let_serve", needs=["approve"])(name, found)
    compare >> found >> approve >> serve
    step("switched", "report_switch")(name, serve)
    return choice
