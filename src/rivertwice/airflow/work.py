"""A task's work as Airflow starts it: done in this process, or by the agent that `RIVERTWICE_AGENT` names.

What the work needs of Airflow is collected here, and how it ended becomes what Airflow knows: done, skipped, failed for good, or to be
tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from typing import Any, get_type_hints

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from rivertwice.airflow.connections import use_connections
from rivertwice.core import RivertwiceError, Settings, utc_now
from rivertwice.tasks import STEPS, AgentClient, TaskFailedError, TaskRun, TaskSkippedError, dag_id, do_work

_ACTIVE_RUNS = ["queued", "running"]
_AT_WORK = ["scheduled", "queued", "running", "restarting", "deferred", "up_for_retry"]

log = logging.getLogger(__name__)


class ReportedError(Exception):
    """Cause of a task's failure that has been reported already, so that the failure is not a second alert."""


@contextmanager
def as_airflow_knows() -> Iterator[None]:
    """Turn errors into those that Airflow skips by, or does not retry; one that another try may cure stays as it is."""
    try:
        yield
    except TaskSkippedError as error:
        raise AirflowSkipException(str(error)) from error
    except TaskFailedError as error:
        raise AirflowFailException(str(error)) from (ReportedError(str(error)) if error.is_reported else error)
    except RivertwiceError as error:
        if error.retryable:
            raise
        raise AirflowFailException(str(error)) from error


def run_of(context: Any, needs: Sequence[str] = (), alone: Sequence[str] = ()) -> TaskRun:
    """Return the run of a task.

    Args:
        context: as Airflow gives it to a task, or to a notifier.
        needs: tasks before it whose results the work needs.
        alone: tasks of its DAG; those at work are counted, in any run.
    """
    run, ti = context.get("dag_run"), context.get("ti") or context.get("task_instance")
    due = getattr(run, "logical_date", None) or getattr(run, "run_after", None)
    kind = str(getattr(run, "run_type", "manual")).rsplit(".", 1)[-1].lower()
    dag = str(getattr(run, "dag_id", "") or getattr(context.get("dag"), "dag_id", ""))
    return TaskRun(
        dag=dag,
        run=str(getattr(run, "run_id", "") or context.get("run_id") or ""),
        task=str(getattr(ti, "task_id", "") or "unknown"),
        due_at=due or utc_now(),
        is_scheduled=kind == "scheduled",
        is_backfill=kind == "backfill",
        user=str(getattr(run, "triggering_user_name", None) or ""),
        params={**context.get("params", {}), **(getattr(run, "conf", None) or {})},
        results={each: ti.xcom_pull(task_ids=each) for each in needs},
        at_work=int(ti.get_ti_count(dag_id=dag, task_ids=list(alone), states=_AT_WORK)) if alone else 0,
    )


def attempt_of(context: Any) -> int:
    """Return the number of this attempt of a task, from 1."""
    return int(getattr(context.get("ti"), "try_number", 1) or 1)


def do_step(
    step: str, pipeline: str, *arguments: Any, run: TaskRun | None = None, attempt: int = 1, connects: bool = True
) -> Any:
    """Do a step, here or at the agent, and return its result as JSON can hold it.

    Args:
        run: None: that of this process's task.
        connects: whether the step may need what Airflow's connections say.
    """
    if run is None:
        context = get_current_context()
        run, attempt = run_of(context), attempt_of(context)
    with as_airflow_knows():
        agent = AgentClient.from_env()
        if agent is None:
            return do_work(use_connections() if connects else Settings.from_env(), step, run, pipeline, arguments)
        return agent.do("step", step, run, attempt, pipeline, arguments, lambda line: log.info("%s", line))


def _count_repairs(context: Any, run: TaskRun, pipeline: str) -> int:
    """Return how many repairs that the pipeline's home calls open have a DAG run that is queued or at work."""
    names = do_step("open_repairs", pipeline, run=run, connects=False)
    ti, dag = context["ti"], dag_id("backfill", pipeline)
    return int(ti.get_dr_count(dag_id=dag, run_ids=names, states=_ACTIVE_RUNS)) if names else 0


def work_of(
    step: str, needs: Sequence[str] = (), alone: Sequence[str] = (), *, counts_repairs: bool = False
) -> Callable[..., Any]:
    """Return what Airflow calls for a task that does a step: a function of the pipeline's name and the step's own arguments.

    Args:
        needs: tasks before it whose results the step reads from its run.
        alone: tasks of its DAG; a scheduled run waits for the next tick while one of them is at work for another run.
        counts_repairs: whether it has to know how many repairs are under way.
    """

    def work(pipeline: str, *arguments: Any) -> Any:
        context = get_current_context()
        run = run_of(context, needs, alone)
        if counts_repairs:
            run = replace(run, active_repairs=_count_repairs(context, run, pipeline))
        return do_step(step, pipeline, *arguments, run=run, attempt=attempt_of(context))

    returned = get_type_hints(STEPS[step]).get("return")
    work.__name__, work.__qualname__, work.__doc__ = step, step, STEPS[step].__doc__
    has_fields = is_dataclass(returned) or getattr(returned, "__origin__", None) is dict
    # By this Airflow stores each field under its name, too.
    work.__annotations__ = {"return": Mapping[str, Any]} if has_fields else {}
    return work
