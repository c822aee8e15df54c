"""Parts that several DAGs of a pipeline share: options, tasks that do a step, approval, a plan that is made and run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow.providers.standard.exceptions import HITLTimeoutError
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import (
    DAG,
    BaseOperator,
    Context,
    ExceptionRetryPolicy,
    RetryAction,
    RetryRule,
    task,
)

from rivertwice.airflow.alerts import AlertNotifier, RecoveryNotifier
from rivertwice.airflow.assets import announce, served_asset
from rivertwice.airflow.forms import params_of
from rivertwice.airflow.operators import AgentJobOperator
from rivertwice.airflow.work import work_of
from rivertwice.core import Settings, base_of
from rivertwice.tasks import AgentClient, DagFacts, dag_id

APPROVAL_PATIENCE = timedelta(days=3)


def spark_job(settings: Settings, facts: DagFacts, task_id: str, job: str, arguments: Any) -> BaseOperator:
    """Return the task that runs a Spark job: on the Spark of Airflow's worker, or at the agent that `RIVERTWICE_AGENT` names."""
    if AgentClient.is_named():
        return AgentJobOperator(task_id=task_id, facts=facts, job=job, arguments=arguments)
    from rivertwice.airflow.spark_operator import RivertwiceSparkOperator

    return RivertwiceSparkOperator(task_id=task_id, facts=facts, settings=settings, job=job, arguments=arguments)


def planned_by_job(settings: Settings, facts: DagFacts, arguments: Any, **options: Any) -> Any:
    """Return the task that gives the id of a plan which a Spark job made: sessions are only known from their records.

    Args:
        arguments: the task that returns those of the job.
    """
    planned = gate("plan", "find_planned", **options)(facts.name)
    spark_job(settings, facts, "look", "plan", arguments) >> planned
    return planned


class RecordedApproval(ApprovalOperator):
    """A person's approval, whose answer later tasks can read also if it is a rejection.

    Airflow stores no result of a task that skips what comes after it, so a rejection would be the same as no answer at all.
    """

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Store a rejection, then do with the answer what Airflow does."""
        if event.get("chosen_options", [self.APPROVE]) != [self.APPROVE]:
            answer = {name: event.get(name) for name in ("chosen_options", "responded_by_user")}
            context["ti"].xcom_push(key="return_value", value=answer)
        return super().execute_complete(context=context, event=event)


def approval(asked_by: str, **options: Any) -> ApprovalOperator:
    """Return the task in which a person approves what a task returned as `subject` and `body`."""
    return RecordedApproval(
        task_id="approve",
        subject=f"{{{{ ti.xcom_pull(task_ids='{asked_by}')['subject'] }}}}",
        body=f"{{{{ ti.xcom_pull(task_ids='{asked_by}')['body'] }}}}",
        response_timeout=APPROVAL_PATIENCE,
        # Airflow takes a task for lost that is answered in the second in which it begins to wait, or whose process is killed
        # before: it asks again. Nobody's answer in time is an answer.
        retry_policy=ExceptionRetryPolicy([RetryRule(exception=HITLTimeoutError, action=RetryAction.FAIL)]),
        **options,
    )


def run_plan(settings: Settings, facts: DagFacts, backfill: Any) -> Any:
    """Compute, publish and await the plan whose id a task returns; return the task that awaits it."""
    name = facts.name
    compute = spark_job(settings, facts, "compute", "backfill", ["--pipeline", name, "--no-publish", "--id", backfill])
    sequence = step("publish", "publish_backfill")(name, backfill)
    compute >> sequence
    served = step("await_served")(name, sequence)
    announced = task(task_id="announce", outlets=[served_asset(name)])(announce)
    served >> announced("announce_publication", name, sequence)
    return served


def step(task_id: str, work: str | None = None, **options: Any) -> Callable[..., Any]:
    """Return the task that does a step; calling it with another task's output makes it depend on that task.

    Args:
        work: the step; None: that of the task's own name.
        options: of the task, and of `work_of`.
    """
    return _task(task, task_id, work, options)


def gate(task_id: str, work: str | None = None, **options: Any) -> Callable[..., Any]:
    """Return the task that does a step and skips what comes after it if the result is empty or false."""
    return _task(task.short_circuit, task_id, work, options)


def _task(kind: Any, task_id: str, work: str | None, options: dict[str, Any]) -> Callable[..., Any]:
    needs = {name: options.pop(name) for name in ("needs", "alone", "counts_repairs") if name in options}
    made: Callable[..., Any] = kind(task_id=task_id, **options)(work_of(work or task_id, **needs))
    return made


# What all DAGs of a pipeline share: retries, owner, tags, notifiers.

_RUN_TYPES: tuple[Any, ...] = ("scheduled", "manual", "operator_triggered")
_MORE_RUN_TYPES = {"backfill": ["backfill"], "stream": ["asset_triggered"]}
"""Nearly no run of ours belongs to a date: it works on what is true now, or on what its form contains. So Airflow's own Backfill,
which starts a run for each tick of a range, is refused by all DAGs but `backfill`, and their forms do not offer it. Events of assets
start runs of `stream` alone."""
AT_ONCE = 16
"""Runs at a time of a DAG whose runs may watch, or wait for a person: they must not keep another from its work. Other DAGs have one."""


def pipeline_dag(facts: DagFacts, verb: str, description: str, **options: Any) -> DAG:
    """Return a DAG of the pipeline, still without tasks; its form is that of the acts that it does."""
    name, own = facts.name, facts.airflow
    queue = {} if own.queue is None else {"queue": own.queue}
    return DAG(
        dag_id=dag_id(verb, name),
        description=description,
        catchup=False,
        params=params_of(verb, facts.acts_of(verb), name),
        is_paused_upon_creation=own.paused,
        allowed_run_types=[*_RUN_TYPES, *_MORE_RUN_TYPES.get(verb, ())],
        tags=list(dict.fromkeys(["rivertwice", verb, base_of(name), *own.tags])),
        doc_md=f"**{verb}** of pipeline `{name}`. {description} See `rivertwice docs howto-airflow`.",
        default_args={
            "owner": own.owner,
            # An API server that is restarted, a lost race, a killed worker: worth another try. A failure that no retry can cure fails
            # at once (AirflowFailException).
            "retries": own.retries,
            "retry_delay": own.retry_delay,
            **queue,
            "on_failure_callback": AlertNotifier(pipeline=name),
            "on_success_callback": RecoveryNotifier(pipeline=name),
        },
        **{"max_active_runs": 1, **options},
    )
