"""The DAG `repair__P`, and whether a pipeline has one."""

from __future__ import annotations

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG

from rivertwice.config import Settings
from rivertwice.orchestration import repair_steps
from rivertwice.orchestration.dag_names import dag_id
from rivertwice.orchestration.dag_options import common, reason_param
from rivertwice.orchestration.dag_parts import approval, gate, is_planned_by_job, planned_by_job, run_plan, step
from rivertwice.orchestration.operators import ReconcileOperator
from rivertwice.pipeline.definition import Definition
from rivertwice.pipeline.repair_policy import OFF


def repair_dag(settings: Settings, definition: Definition) -> DAG:
    """Repair what a reconcile found wrong in what is served: the smallest backfill, approved, verified, with before and after."""
    name = definition.name
    with DAG(
        dag_id=dag_id("repair", name),
        schedule=None,  # a reconcile starts it, or a person
        params={"reason": reason_param()},
        **common(
            definition,
            "repair",
            "Finds the smallest backfill that cures what the newest reconcile found, asks a person, runs it and verifies it.",
        ),
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
    return definition.compare and definition.repair.policy != OFF and definition.has_windows_of_their_own
