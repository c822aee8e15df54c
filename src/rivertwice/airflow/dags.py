"""The DAGs of a pipeline, one per verb: supervise__P, rotate__P, archive__P, reconcile__P, backfill__P, repair__P, switch__P, operate__P."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, task

from rivertwice.acts import OPERATE, OPERATED
from rivertwice.airflow.alerts import RecoveryNotifier
from rivertwice.airflow.assets import announce, announce_days, reconciled_asset, served_asset, stream_asset
from rivertwice.airflow.dag_parts import (
    approval,
    gate,
    pipeline_dag,
    planned_by_job,
    run_plan,
    spark_job,
    step,
)
from rivertwice.airflow.forms import operate_params
from rivertwice.airflow.operators import SuperviseEpoch
from rivertwice.airflow.schedules import schedule, schedule_text
from rivertwice.airflow.work import work_of
from rivertwice.core import Settings
from rivertwice.definition import NO_SCHEDULE
from rivertwice.tasks import ActTask, DagFacts, dag_id


def repair_dag(settings: Settings, facts: DagFacts) -> DAG:
    """Repair what a reconcile found wrong in what is served: the smallest backfill, approved, verified, with before and after."""
    name = facts.name
    with pipeline_dag(
        facts,
        "repair",
        "Finds the smallest backfill that cures what the newest reconcile found, asks a person, runs it and verifies it.",
        schedule=None,  # a reconcile starts it, or a person
    ) as dag:
        found = step("find", "find_smallest")(name)
        wanted = gate("approval_wanted", "is_approval_wanted", ignore_downstream_trigger_rules=False)(name, found)
        approve = approval("find", defaults="Reject")
        # A rejection, or nothing left to do, skips what follows one by one: `close` runs in any case.
        own = {"ignore_downstream_trigger_rules": False}
        after_answer = {**own, "trigger_rule": "none_failed_min_one_success", "needs": ["approve"]}
        if facts.plans_in_job:
            checked = gate("validate", "check_repair", **after_answer)(name, found)
            planned = planned_by_job(settings, facts, checked, **own)
        else:
            planned = checked = gate("plan", "plan_repair", **after_answer)(name, found)
        approve >> checked
        served = run_plan(settings, facts, planned)
        verify = spark_job(settings, facts, "verify", "reconcile", ["--pipeline", name])
        wanted >> approve
        closed = step("close", "close_repair", trigger_rule="all_done", needs=["find", "approve", "plan", "publish"])(
            name
        )
        served >> verify >> closed
        again = TriggerDagRunOperator(
            task_id="again",
            trigger_dag_id=dag.dag_id,
            trigger_run_id="repair__{{ ti.xcom_pull(task_ids='close')['reconcile'] }}",
            conf={"reason": "the reconcile after a repair found it"},
            skip_when_already_exists=True,
        )
        gate("more", "may_ask_again", counts_repairs=True)(name, closed) >> again
    return dag


# A continuous schedule needs a start; the others begin at their next tick, not at the one that was missed last.
_CONTINUOUS_START = datetime(2024, 1, 1, tzinfo=UTC)


def supervise_dag(_settings: Settings, facts: DagFacts) -> DAG:
    """Watch the stream, epoch after epoch. The agent starts and stops it, by its intent."""
    name = facts.name
    with pipeline_dag(
        facts,
        "supervise",
        "Watches the stream: agent alive, driver alive. Pausing it changes nothing for the stream.",
        schedule="@continuous",
        start_date=_CONTINUOUS_START,
    ) as dag:
        SuperviseEpoch(
            task_id="watch",
            pipeline=name,
            stream=stream_asset(name),
            retries=0,
            on_success_callback=RecoveryNotifier(pipeline=name, watched=True),
        )
    return dag


def rotate_dag(settings: Settings, facts: DagFacts) -> DAG:
    """Take a savepoint while the stream runs, prove it by a replay, prune what is not protected."""
    name = facts.name
    with pipeline_dag(
        facts,
        "rotate",
        "Takes a savepoint while the stream runs, proves it, prunes.",
        schedule=schedule(facts, "rotate"),
    ) as dag:
        savepoint = step("take", "take_savepoint")(name)
        wanted = gate("proof_wanted", "is_proof_wanted", ignore_downstream_trigger_rules=False)(name, savepoint)
        prove = spark_job(
            settings, facts, "prove", "prove", ["--pipeline", name, "--savepoint", savepoint, "--or-older"]
        )
        # A proof that failed must not keep prune from its work: savepoints would pile up for as long as proofs fail.
        prune = step("prune", "prune_savepoints", trigger_rule="all_done")(name)
        report = step("report", "report_rotation", trigger_rule="none_failed_min_one_success")(name, savepoint)
        wanted >> prove
        savepoint >> prune
        prove >> prune >> report
        prove >> report  # so that the run fails with its proof
    return dag


def archive_dag(settings: Settings, facts: DagFacts) -> DAG:
    """Extend the archive, so that the log outlives Kafka's retention."""
    name = facts.name
    with pipeline_dag(
        facts,
        "archive",
        "Copies new records from Kafka into the archive, each offset once.",
        schedule=schedule(facts, "archive"),
    ) as dag:
        spark_job(settings, facts, "extend", "archive", step("check", "check_archive")(name))
    return dag


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
                trigger_dag_id=dag_id("repair", name),
                trigger_run_id="repair__{{ dag_run.run_id }}",
                conf={"reason": f"{dag_id('reconcile', name)} found it"},
                skip_when_already_exists=True,
            )
            passed >> wanted >> repair
        task(task_id="announce", outlets=[served_asset(name)])(announce)("announce_reconcile", name, passed)
        task(task_id="announce_days", outlets=[reconciled_asset(name)])(announce_days)(name, passed)
    return dag


def backfill_dag(settings: Settings, facts: DagFacts) -> DAG:
    """Recompute windows from the log, audit them, publish them in one commit.

    With the late policy `correct`, the schedule of the same name makes it recompute the windows that late records came for.
    """
    name = facts.name
    names = ("correct", "backfill") if facts.corrects_late else ("backfill",)
    with pipeline_dag(
        facts,
        "backfill",
        "Recomputes closed windows from the log, audits them and publishes them in one commit.",
        schedule=schedule(facts, *names),
    ) as dag:
        often = schedule_text(facts, names[0]) if len(names) > 1 else NO_SCHEDULE
        texts = [schedule_text(facts, "backfill"), often]
        if facts.plans_in_job:
            arguments = gate("validate", "check_backfill")(name, *texts)
            run_plan(settings, facts, planned_by_job(settings, facts, arguments))
        else:
            run_plan(settings, facts, gate("plan", "plan_backfill")(name, *texts))
    return dag


def switch_dag(settings: Settings, facts: DagFacts) -> DAG:
    """Let another version of a pipeline serve: compare it first, then ask a person. Going back is the same, without a comparison."""
    name = facts.name
    with pipeline_dag(
        facts,
        "switch",
        "Compares a version with the one that serves, asks a person, and lets it serve.",
        schedule=None,
    ) as dag:
        choice = step("choose", "choose_version")(name)
        wanted = gate("comparison_wanted", "check_comparison", ignore_downstream_trigger_rules=False)
        compare = spark_job(settings, facts, "compare", "compare", wanted(name, choice))
        # A version that served before is not compared: its task `compare` is skipped, and the gate has nothing to read.
        found = step("gate", "gate_switch", trigger_rule="none_failed_min_one_success")(name, choice)
        approve = approval("gate")
        serve = step("serve", "let_serve", needs=["approve"])(name, found)
        compare >> found >> approve >> serve
        step("report", "report_switch")(name, serve)
    return dag


def operate_dag(settings: Settings, facts: DagFacts) -> DAG:
    """Do one act that a person asks for."""
    name = facts.name
    says = f"Does one act: {', '.join(OPERATED)}."
    with pipeline_dag(facts, OPERATE, says, schedule=None, params=operate_params(name)) as dag:
        request = gate("check", "check_act")(name)
        chosen = task.branch(task_id="choose")(work_of("choose_task"))(name, request)
        job = spark_job(settings, facts, ActTask.IN_JOB, "act", ["--pipeline", name, "--request", request])
        here = step(ActTask.HERE, "do_act", pool=facts.airflow.pool)(name, request)
        done = step("report", "report_act", trigger_rule="none_failed_min_one_success")(name, request)
        chosen >> [job, here] >> done
    return dag
