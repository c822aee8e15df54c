"""Parts that several DAGs of a pipeline share: options, tasks that do a step, approval, a plan that is made and run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow.providers.standard.exceptions import HITLTimeoutError
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import (
    DAG,
    Context,
    ExceptionRetryPolicy,
    RetryAction,
    RetryRule,
    task,
)

from rivertwice.acts import OF_DAG
from rivertwice.airflow import announce_steps, steps
from rivertwice.airflow.alerts import AlertNotifier, RecoveryNotifier
from rivertwice.airflow.announce_steps import served_asset
from rivertwice.airflow.connections import connected
from rivertwice.airflow.dag_names import dag_id
from rivertwice.airflow.forms import params_of
from rivertwice.airflow.operators import BackfillOperator, RivertwiceSparkOperator
from rivertwice.core import Settings, base_of
from rivertwice.definition import Definition

APPROVAL_PATIENCE = timedelta(days=3)


def is_planned_by_job(definition: Definition) -> bool:
    """Say whether a backfill of a definition is only planned from its records, as of sessions."""
    return not definition.window.kind.is_aligned


def planned_by_job(settings: Settings, definition: Definition, arguments: Any, **options: Any) -> Any:
    """Return the task that gives the id of a plan which a Spark job made: sessions are only known from their records.

    Args:
        arguments: the task that returns those of the job.
    """
    name = definition.name
    look = RivertwiceSparkOperator(
        task_id="look",
        settings=settings,
        definition=definition,
        job="plan",
        arguments=arguments,
    )
    planned = gate("plan", steps.find_planned, **options)(name)
    look >> planned
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


def run_plan(settings: Settings, definition: Definition, backfill: Any) -> Any:
    """Compute, publish and await the plan whose id a task returns; return the task that awaits it."""
    name = definition.name
    compute = BackfillOperator(
        task_id="compute",
        settings=settings,
        definition=definition,
        job="backfill",
        arguments=["--pipeline", name, "--no-publish", "--id", backfill],
    )
    sequence = step("publish", steps.publish_backfill)(name, backfill)
    compute >> sequence
    served = step("await_served", steps.await_served)(name, sequence)
    served >> step("announce", announce_steps.announce_publication, outlets=[served_asset(name)])(name, sequence)
    return served


def step(task_id: str, work: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return the task that does `work`; calling it with another task's output makes it depend on that task."""
    made: Callable[..., Any] = task(task_id=task_id, **options)(connected(work))
    return made


def gate(task_id: str, work: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return the task that does `work` and skips what comes after it if the result is empty or false."""
    made: Callable[..., Any] = task.short_circuit(task_id=task_id, **options)(connected(work))
    return made


# What all DAGs of a pipeline share: retries, owner, tags, notifiers.

RUN_TYPES: tuple[Any, ...] = ("scheduled", "manual", "operator_triggered")
"""No run of ours belongs to a date: it works on what is true now, or on what its form contains. So Airflow's own backfill,
which starts a run for each date of a range, is refused, and its forms do not offer it."""


def pipeline_dag(definition: Definition, verb: str, description: str, **options: Any) -> DAG:
    """Return a DAG of the pipeline, still without tasks; its form is that of the act which it does."""
    name, own = definition.name, definition.airflow
    queue = {} if own.queue is None else {"queue": own.queue}
    if verb in OF_DAG:
        options["params"] = params_of(OF_DAG[verb])
    return DAG(
        dag_id=dag_id(verb, name),
        description=description,
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=own.paused,
        allowed_run_types=RUN_TYPES,
        tags=list(dict.fromkeys(["rivertwice", verb, base_of(name), *own.tags])),
        doc_md=f"**{verb}** of pipeline `{name}`. {description} See docs/howto-airflow.md.",
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
        **options,
    )
