"""The DAGs by which a person operates a pipeline: restore__P, rewind__P, and operate__P for what changes nothing served by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.sdk import DAG, Param, task

from rivertwice.airflow import operate_forms, operate_steps
from rivertwice.airflow.connections import connected
from rivertwice.airflow.dag_names import dag_id
from rivertwice.airflow.dag_parts import common, reason_param
from rivertwice.airflow.operators import RivertwiceSparkOperator
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition


def restore_dag(settings: Settings, definition: Definition) -> DAG:
    """Continue the stream from a savepoint on a new timeline; what is served does not change."""
    name = definition.name
    planned = _flag_param("Planned", "Take the savepoint now, of the drained stream: nothing is replayed.")
    says = "Continues the stream from a savepoint on a new timeline; what is served stays."
    with _dag_of_a_savepoint(definition, "restore", says, planned=planned) as dag:
        arguments = _gate("check", operate_steps.check_restore)(name)
        restore = RivertwiceSparkOperator(
            task_id="restore", settings=settings, definition=definition, job="restore", arguments=arguments
        )
        restore >> _step("report", operate_steps.report_restore)(name)
    return dag


def rewind_dag(_settings: Settings, definition: Definition) -> DAG:
    """Go back to a savepoint and compute again what followed; then every row is compared and the head moves."""
    name = definition.name
    says = "Goes back to a savepoint and computes again what followed; windows may change."
    with _dag_of_a_savepoint(definition, "rewind", says) as dag:
        asked = _gate("check", operate_steps.check_rewind)(name)
        _step("rewind", operate_steps.rewind, pool=definition.airflow.pool)(name, asked)
    return dag


def operate_dag(settings: Settings, definition: Definition) -> DAG:
    """Do one act that changes nothing served by itself: prove, pin, unpin, amend, discard, give up."""
    name = definition.name
    params = {
        "act": Param(
            operate_forms.PROVE,
            type="string",
            enum=list(operate_forms.ACTS),
            title="Act",
            description="What is done; what it needs of the other fields is checked first.",
        ),
        "savepoint": _savepoint_param("for the acts on a savepoint."),
        "place": Param(
            None,
            type=["null", "string"],
            pattern=operate_forms.PLACE_PATTERN,
            maxLength=operate_forms.PLACE_LENGTH,
            title="Place",
            description="Of a dead letter: PARTITION@OFFSET, or TOPIC/PARTITION@OFFSET.",
        ),
        "kind": Param(
            None,
            type=["null", "string"],
            pattern=operate_forms.KIND_PATTERN,
            title="Kind",
            description="For dead.discard instead of a place: all open ones that were rejected for this.",
        ),
        "value": Param(
            None,
            type=["null", "string"],
            maxLength=operate_forms.VALUE_LENGTH,
            title="Value",
            description="For dead.amend: the record's value as it should have been.",
        ),
        "reason": reason_param(),
    }
    with DAG(
        dag_id=dag_id("operate", name),
        schedule=None,
        params=params,
        **common(
            definition,
            "operate",
            "Proves or pins a savepoint, amends or discards a dead letter, gives an operation up.",
        ),
    ) as dag:
        asked = _step("check", operate_steps.check_operate, multiple_outputs=True)(name)
        chosen = task.branch(task_id="choose")(connected(operate_steps.choose_task))(asked)
        jobs = [
            RivertwiceSparkOperator(
                task_id=job, settings=settings, definition=definition, job=job, arguments=arguments(name, asked)
            )
            for job, arguments in (("prove", operate_steps.prove_arguments), ("amend", operate_steps.amend_arguments))
        ]
        act = _step("act", operate_steps.act)(name, asked)
        report = _step("report", operate_steps.report_operate, trigger_rule="none_failed_min_one_success")(name, asked)
        chosen >> [*jobs, act] >> report
    return dag


def _dag_of_a_savepoint(definition: Definition, verb: str, says: str, **more: Param) -> DAG:
    """Return the DAG, still empty, of a verb that goes back to a savepoint once the pipeline's name is typed.

    Args:
        definition: of the pipeline.
        verb: `restore` or `rewind`.
        says: what it does.
        more: fields of its form that the other verb does not have; they come after the savepoint.
    """
    params = {
        "savepoint": _savepoint_param(
            f"empty means the newest proved one of the head's path, or the {verb} that was cut off."
        ),
        **more,
        "unproved": _flag_param("Accept an unproved one", "One that was taken and never proved."),
        "dry_run": _flag_param("Dry run", "Write what would be done into the log of the task check; do nothing."),
        "confirm": _confirm_param(definition.name),
        "reason": reason_param(),
    }
    return DAG(dag_id=dag_id(verb, definition.name), schedule=None, params=params, **common(definition, verb, says))


def _savepoint_param(description: str) -> Param:
    return Param(
        None,
        type=["null", "string"],
        pattern=operate_forms.SAVEPOINT_PATTERN,
        title="Savepoint",
        description=f"Its id, as `rivertwice savepoint list` shows it; {description}",
    )


def _flag_param(title: str, description: str) -> Param:
    return Param(False, type="boolean", title=title, description=description)


def _confirm_param(pipeline: str) -> Param:
    return Param(
        None,
        type=["null", "string"],
        pattern=operate_forms.CONFIRM_PATTERN,
        title="Confirm",
        description=f"Type {pipeline} to do it; a dry run needs nothing.",
    )


def _step(task_id: str, work: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return the task that does `work`; calling it with another task's output makes it depend on that task."""
    made: Callable[..., Any] = task(task_id=task_id, **options)(connected(work))
    return made


def _gate(task_id: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the task that does `work` and skips what comes after it if the result is empty."""
    made: Callable[..., Any] = task.short_circuit(task_id=task_id)(connected(work))
    return made
