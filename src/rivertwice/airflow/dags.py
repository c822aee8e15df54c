"""The DAGs of a pipeline, one per verb: supervise__P, rotate__P, archive__P, reconcile__P, backfill__P, repair__P, switch__P."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG

from rivertwice.airflow import announce_steps, repair_steps, steps, switch_steps
from rivertwice.airflow.alerts import RecoveryNotifier
from rivertwice.airflow.announce_steps import reconciled_asset, served_asset, stream_asset
from rivertwice.airflow.dag_names import dag_id
from rivertwice.airflow.dag_parts import (
    approval,
    gate,
    is_planned_by_job,
    pipeline_dag,
    planned_by_job,
    run_plan,
    step,
)
from rivertwice.airflow.operators import CompareOperator, ReconcileOperator, RivertwiceSparkOperator, SuperviseEpoch
from rivertwice.airflow.schedules import schedule, schedule_text
from rivertwice.core import Settings, base_of
from rivertwice.definition import NO_SCHEDULE, Definition, RepairMode

# The DAG `repair__P`, and whether a pipeline has one.


def repair_dag(settings: Settings, definition: Definition) -> DAG:
    """Repair what a reconcile found wrong in what is served: the smallest backfill, approved, verified, with before and after."""
    name = definition.name
    with pipeline_dag(
        definition,
        "repair",
        "Finds the smallest backfill that cures what the newest reconcile found, asks a person, runs it and verifies it.",
        schedule=None,  # a reconcile starts it, or a person
    ) as dag:
        found = step("find", repair_steps.find)(name)
        wanted = gate("approval_wanted", repair_steps.is_approval_wanted, ignore_downstream_trigger_rules=False)(found)
        approve = approval("find", defaults="Reject")
        # A rejection, or nothing left to do, skips what follows one by one: `close` runs in any case.
        own = {"ignore_downstream_trigger_rules": False}
        after_answer = {**own, "trigger_rule": "none_failed_min_one_success"}
        if is_planned_by_job(definition):
            checked = gate("validate", repair_steps.plan_arguments, **after_answer)(name, found)
            planned = planned_by_job(settings, definition, checked, **own)
        else:
            planned = checked = gate("plan", repair_steps.plan, **after_answer)(name, found)
        approve >> checked
        served = run_plan(settings, definition, planned)
        verify = ReconcileOperator(
            task_id="verify",
            settings=settings,
            definition=definition,
            job="reconcile",
            arguments=["--pipeline", name],
        )
        wanted >> approve
        closed = step("close", repair_steps.close, trigger_rule="all_done")(name)
        served >> verify >> closed
        again = TriggerDagRunOperator(
            task_id="again",
            trigger_dag_id=dag.dag_id,
            trigger_run_id="repair__{{ ti.xcom_pull(task_ids='close')['reconcile'] }}",
            conf={"reason": "the reconcile after a repair found it"},
            skip_when_already_exists=True,
        )
        gate("more", repair_steps.may_ask_again)(name, closed) >> again
    return dag


def can_repair(definition: Definition) -> bool:
    """Say whether a backfill can cure rows of a definition, and the definition wants that."""
    has_dag = "repair" in definition.airflow.dags
    is_wanted = definition.compare and definition.repair.policy != RepairMode.OFF
    return has_dag and is_wanted and definition.has_windows_of_their_own


# A continuous schedule needs a start; the others begin at their next tick, not at the one that was missed last.
_CONTINUOUS_START = datetime(2024, 1, 1, tzinfo=UTC)


def supervise_dag(_settings: Settings, definition: Definition) -> DAG:
    """Watch the stream, epoch after epoch. The agent starts and stops it, by its intent."""
    name = definition.name
    with pipeline_dag(
        definition,
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


def rotate_dag(settings: Settings, definition: Definition) -> DAG:
    """Take a savepoint while the stream runs, prove it by a replay, prune what is not protected."""
    name = definition.name
    with pipeline_dag(
        definition,
        "rotate",
        "Takes a savepoint while the stream runs, proves it, prunes.",
        schedule=schedule(definition, "rotate"),
    ) as dag:
        savepoint = step("take", steps.take_savepoint)(name)
        wanted = gate("proof_wanted", steps.is_proof_wanted, ignore_downstream_trigger_rules=False)(savepoint)
        prove = RivertwiceSparkOperator(
            task_id="prove",
            settings=settings,
            definition=definition,
            job="prove",
            arguments=["--pipeline", name, "--savepoint", savepoint, "--or-older"],
        )
        # A proof that failed must not keep prune from its work: savepoints would pile up for as long as proofs fail.
        prune = step("prune", steps.prune_savepoints, trigger_rule="all_done")(name)
        report = step("report", steps.report_rotation, trigger_rule="none_failed_min_one_success")(name, savepoint)
        wanted >> prove
        savepoint >> prune
        prove >> prune >> report
        prove >> report  # so that the run fails with its proof
    return dag


def archive_dag(settings: Settings, definition: Definition) -> DAG:
    """Extend the archive, so that the log outlives Kafka's retention."""
    name = definition.name
    with pipeline_dag(
        definition,
        "archive",
        "Copies new records from Kafka into the archive, each offset once.",
        schedule=schedule(definition, "archive"),
    ) as dag:
        arguments = step("check", steps.check_archive)(name)
        RivertwiceSparkOperator(
            task_id="extend",
            settings=settings,
            definition=definition,
            job="archive",
            arguments=arguments,
        )
    return dag


def reconcile_dag(settings: Settings, definition: Definition) -> DAG:
    """Compare what the stream produced, what is served, and what the log contains; fail on a defect.

    The schedule `reconcile_full` makes it compare everything again, the past that the other runs build on too.
    """
    name = definition.name
    with pipeline_dag(
        definition,
        "reconcile",
        "Compares stream, served and truth; every differing row gets a named cause.",
        schedule=schedule(definition, "reconcile", "reconcile_full"),
    ) as dag:
        texts = [schedule_text(definition, each) for each in ("reconcile_full", "reconcile")]
        compare = ReconcileOperator(
            task_id="compare",
            settings=settings,
            definition=definition,
            job="reconcile",
            arguments=step("validate", steps.check_reconcile)(name, *texts),
        )
        passed = step("gate", steps.gate_reconcile, retries=0)(name)
        compare >> passed
        if can_repair(definition):
            # After the gate, also after one that failed: then there is something to repair.
            wanted = gate("repair_wanted", repair_steps.may_repair, trigger_rule="all_done")(name)
            repair = TriggerDagRunOperator(
                task_id="repair",
                trigger_dag_id=dag_id("repair", name),
                trigger_run_id="repair__{{ dag_run.run_id }}",
                conf={"reason": f"{dag_id('reconcile', name)} found it"},
                skip_when_already_exists=True,
            )
            passed >> wanted >> repair
        step("announce", announce_steps.announce_reconcile, outlets=[served_asset(name)])(name, passed)
        step("announce_days", announce_steps.announce_days, outlets=[reconciled_asset(name)])(name, passed)
    return dag


def backfill_dag(settings: Settings, definition: Definition) -> DAG:
    """Recompute windows from the log, audit them, publish them in one commit.

    With the late policy `correct`, the schedule of the same name makes it recompute the windows that late records came for.
    """
    name = definition.name
    names = ("correct", "backfill") if definition.late.policy == "correct" else ("backfill",)
    with pipeline_dag(
        definition,
        "backfill",
        "Recomputes closed windows from the log, audits them and publishes them in one commit.",
        schedule=schedule(definition, *names),
    ) as dag:
        often = schedule_text(definition, names[0]) if len(names) > 1 else NO_SCHEDULE
        texts = [schedule_text(definition, "backfill"), often]
        if is_planned_by_job(definition):
            arguments = gate("validate", steps.check_backfill)(name, *texts)
            run_plan(settings, definition, planned_by_job(settings, definition, arguments))
        else:
            run_plan(settings, definition, gate("plan", steps.plan_backfill)(name, *texts))
    return dag


def switch_dag(settings: Settings, definition: Definition) -> DAG:
    """Let another version of a pipeline serve: compare it first, then ask a person. Going back is the same, without a comparison."""
    name = definition.name
    with pipeline_dag(
        definition,
        "switch",
        "Compares a version with the one that serves, asks a person, and lets it serve.",
        schedule=None,
    ) as dag:
        choice = step("choose", switch_steps.choose)(name)
        arguments = gate("comparison_wanted", switch_steps.compare_arguments, ignore_downstream_trigger_rules=False)(
            choice
        )
        compare = CompareOperator(
            task_id="compare",
            settings=settings,
            definition=definition,
            job="compare",
            arguments=arguments,
        )
        # A version that served before is not compared: its task `compare` is skipped, and the gate has nothing to read.
        found = step("gate", switch_steps.gate, trigger_rule="none_failed_min_one_success")(choice)
        approve = approval("gate")
        serve = step("serve", switch_steps.serve)(found)
        compare >> found >> approve >> serve
        step("report", switch_steps.report)(name, serve)
    return dag


def is_first_version(definition: Definition) -> bool:
    """Say whether a definition is a pipeline's own, not that of a version beside it: such a one has no switch and no archive.

    The archive of a topic is one for all pipelines; the first version's DAG extends it, and the agent that of any other topic.
    """
    return base_of(definition.name) == definition.name
