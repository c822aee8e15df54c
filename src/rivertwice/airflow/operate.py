"""The DAG `operate__P`: one run does one act of `rivertwice.acts`, whichever a person chooses in its form or on the page.

Its form is made of the acts' requests. The first task checks the form, writes into its log what would happen, and stores the request;
the others know the request's id alone, so no argument and no result of a task has its values. Each task can be killed and done
again. Everything heavy is imported inside the functions: they run in a task's process, never while a DAG file is parsed.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from rivertwice.acts import OPERATE, OPERATED, World, do_stored, find_act
from rivertwice.airflow.connections import connected
from rivertwice.airflow.dag_names import request_of
from rivertwice.airflow.dag_parts import pipeline_dag, step
from rivertwice.airflow.forms import operate_params, read_form
from rivertwice.airflow.operators import RivertwiceSparkOperator
from rivertwice.airflow.refusals import refusals
from rivertwice.airflow.steps import asked_by, conf, note, who
from rivertwice.core import RequestError, Settings, utc_now
from rivertwice.definition import Definition
from rivertwice.timeline import StoredRequest

log = logging.getLogger(__name__)

IN_JOB, HERE = "job", "act"
"""The tasks that do an act: one that needs Spark runs in a job."""


def operate_dag(settings: Settings, definition: Definition) -> DAG:
    """Do one act that a person asks for."""
    name = definition.name
    says = f"Does one act: {', '.join(OPERATED)}."
    with pipeline_dag(definition, OPERATE, says, schedule=None, params=operate_params(name)) as dag:
        request = task.short_circuit(task_id="check")(connected(check))(name)
        chosen = task.branch(task_id="choose")(connected(choose))(name, request)
        job = RivertwiceSparkOperator(
            task_id=IN_JOB,
            settings=settings,
            definition=definition,
            job="act",
            arguments=["--pipeline", name, "--request", request],
        )
        here = step(HERE, act, pool=definition.airflow.pool)(name, request)
        done = step("report", report, trigger_rule="none_failed_min_one_success")(name, request)
        chosen >> [job, here] >> done
    return dag


def check(pipeline: str) -> str:
    """Check the form, write what would happen into the log, and store the request; return its id, "" for a dry run.

    Raises:
        AirflowFailException: the form is invalid, or the act would be refused.
    """
    settings, context = Settings.from_env(), get_current_context()
    id_, by, now = request_of(context["dag_run"].run_id), asked_by(context), utc_now()
    with refusals():
        asked = read_form(OPERATE, {**context["params"], **conf(context)}, pipeline)
        chosen = asked.act
        request = asked.request.model_copy(update={"reason": asked.request.reason or who(context)})
        plan = chosen.plan(World(settings, by, now), request)
        for line in plan.lines():
            log.info("%s", line)
        if plan.refusals:
            raise RequestError(plan.refusals[0])
        if asked.dry_run:
            log.info("this was a dry run; nothing was changed")
            return ""
        values = request.model_dump(mode="json", exclude={"pipeline"})
        StoredRequest(chosen.name, values, by, now, plan.resumes).save(settings.pipeline(pipeline), id_)
        note(settings, pipeline, chosen.command, context, asked.request.reason)
    return id_


def choose(pipeline: str, request: str) -> str:
    """Return the task that does the act."""
    stored = StoredRequest.load(Settings.from_env().pipeline(pipeline), request)
    return IN_JOB if find_act(stored.act).needs_spark else HERE


def act(pipeline: str, request: str) -> dict[str, Any]:
    """Do the act in this task; done again, it changes nothing more.

    Raises:
        AirflowFailException: it was refused.
    """
    with refusals():
        return dict(do_stored(Settings.from_env(), pipeline, request, lambda line: log.info("%s", line)))


def report(pipeline: str, request: str) -> dict[str, Any]:
    """Return what was asked for and what came of it; the request is done, so it is removed."""
    home = Settings.from_env().pipeline(pipeline)
    with refusals():
        stored = StoredRequest.load(home, request)
    log.info("%s of %s by %s: %s", stored.act, pipeline, stored.by, stored.result)
    StoredRequest.forget(home, request)
    return {**(stored.result or {}), "act": stored.act, "by": stored.by, "reason": stored.values.get("reason", "")}
