"""What the tasks of `operate__P` do: one run does one act of `rivertwice.acts`, whichever a person chose.

The first task checks the form, writes into its log what would happen, and stores the request; the others know the request's id alone,
so no argument and no result of a task has its values. Each task can be killed and done again.
"""

from __future__ import annotations

import logging
from typing import Any

from rivertwice.acts import OPERATE, ActName, World, do_stored, find_act
from rivertwice.core import RequestError, SavepointError, Settings, utc_now
from rivertwice.tasks.forms import read_form
from rivertwice.tasks.names import request_of
from rivertwice.tasks.run import TaskRun
from rivertwice.tasks.steps import note, reason_of
from rivertwice.timeline import StoredRequest

log = logging.getLogger(__name__)


class ActTask:
    """The tasks that do an act: one that needs Spark runs in a job; that another version serves is compared first, and asked of a person."""

    IN_JOB, HERE, SWITCH = "job", "act", "version"
    OF_SWITCH = (SWITCH, "comparison_wanted", "compare", "gate", "approve", "serve", "switched")


def check_act(settings: Settings, run: TaskRun, pipeline: str) -> str:
    """Check the form, write what would happen into the log, and store the request; return its id, "" for a dry run.

    The act that lets another version serve has tasks of its own; of it the name is returned, and nothing is stored.

    Raises:
        RequestError: the form is invalid, or the act would be refused.
    """
    id_, now = request_of(run.run), utc_now()
    asked = read_form(OPERATE, run.params, pipeline)
    chosen = asked.act
    if chosen.name == ActName.SERVE:  # its own tasks plan it
        return chosen.name
    request = asked.request.model_copy(update={"reason": asked.request.reason or reason_of(run)})
    try:
        plan = chosen.plan(World(settings, run.asked_by, now), request)
    except SavepointError as error:  # the person who named it reads why; nothing is wrong with the pipeline
        raise RequestError(str(error)) from error
    for line in plan.lines():
        log.info("%s", line)
    if plan.refusals:
        raise RequestError(plan.refusals[0])
    if asked.dry_run:
        log.info("this was a dry run; nothing was changed")
        return ""
    values = request.model_dump(mode="json", exclude={"pipeline"})
    StoredRequest(chosen.name, values, run.asked_by, now, plan.resumes).save(settings.pipeline(pipeline), id_)
    note(settings, run, pipeline, chosen.command, asked.request.reason)
    return id_


def choose_task(settings: Settings, _run: TaskRun, pipeline: str, request: str) -> str:
    """Return the task that does the act."""
    if request == ActName.SERVE:
        return ActTask.SWITCH
    stored = StoredRequest.load(settings.pipeline(pipeline), request)
    return ActTask.IN_JOB if find_act(stored.act).needs_spark else ActTask.HERE


def do_act(settings: Settings, _run: TaskRun, pipeline: str, request: str) -> dict[str, Any]:
    """Do the act in this task; done again, it changes nothing more."""
    return dict(do_stored(settings, pipeline, request, lambda line: log.info("%s", line)))


def report_act(settings: Settings, run: TaskRun, pipeline: str) -> dict[str, Any]:
    """Return what was asked for and what came of it; the request is done, so it is removed."""
    home, request = settings.pipeline(pipeline), run.results["check"]
    stored = StoredRequest.load(home, request)
    log.info("%s of %s by %s: %s", stored.act, pipeline, stored.by, stored.result)
    StoredRequest.forget(home, request)
    return {**(stored.result or {}), "act": stored.act, "by": stored.by, "reason": stored.values.get("reason", "")}
