"""What the tasks of our DAGs do: check the form, call the room that does the work, return the result.

Everything heavy is imported inside the functions: they run in a task's process, never while a DAG file is parsed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from rivertwice.acts import LATE, PlanRequest, RecomputeRequest, arguments_of
from rivertwice.airflow.alerts import Place, ReportedError, report_gate
from rivertwice.airflow.dag_names import is_reconcile_of, request_of
from rivertwice.airflow.forms import REASON_OF_MANUAL, REASON_OF_SCHEDULE, Form, read_form
from rivertwice.airflow.refusals import refusals
from rivertwice.airflow.schedules import is_turn_of
from rivertwice.core import RequestError, Settings, utc_now

# The requester of a run, and the record of it in the agent's events, as the command line writes it.

BY_AIRFLOW = "Airflow"


def asked_by(context: Any) -> str:
    """Return who asked for a run, for records: the person's name, or Airflow itself. Pure."""
    name = getattr(context["dag_run"], "triggering_user_name", None)
    return f"{name} in Airflow" if name else BY_AIRFLOW


def note(settings: Settings, pipeline: str, command: str, context: Any, reason: str) -> None:
    """Record in the agent's events who asked for what, and why."""
    from rivertwice.agent import record_event

    by = asked_by(context)
    text = f"{command} by {by}{f': {reason}' if reason else ''}"
    record_event(settings, "command", pipeline, text, utc_now(), by=by, reason=reason or None)


log = logging.getLogger(__name__)

SERVED_PATIENCE = 180.0


def take_savepoint(pipeline: str) -> str:
    """Take a savepoint and return its id; a scheduled rotation of a stream that never committed is skipped."""
    from rivertwice.savepoint import take_savepoint as take

    settings, context = Settings.from_env(), get_current_context()
    with refusals():
        asked = form_of("rotate", pipeline, context).request
        _skip_if_nothing_committed(settings, pipeline, context)
        savepoint = take(settings, pipeline, now=utc_now(), reason=asked.reason or who(context))
        if not is_scheduled(context):
            note(settings, pipeline, "savepoint take", context, asked.reason)
    log.info("took savepoint %s of %s", savepoint.id, pipeline)
    return str(savepoint.id)


def is_proof_wanted(_savepoint: str) -> bool:
    """Say whether the form asks for a proof."""
    return bool(get_current_context()["params"]["prove"])


def prune_savepoints(pipeline: str) -> list[str]:
    """Remove the savepoints that are not protected; return their ids."""
    from rivertwice.savepoint import KEPT
    from rivertwice.savepoint import prune_savepoints as prune

    settings, context = Settings.from_env(), get_current_context()
    with refusals():
        _skip_if_nothing_committed(settings, pipeline, context)
        report = prune(settings.pipeline(pipeline), keep=KEPT, now=utc_now())
    for warning in report.damaged.values():
        log.warning("%s", warning)
    log.info("pruned %s savepoints of %s: %s", len(report.deleted), pipeline, ", ".join(report.deleted) or "none")
    return list(report.deleted)


@dataclass(frozen=True)
class Rotation:
    """The result of a rotation: the savepoint that it took, that one's status now, and how many the pipeline has."""

    savepoint: str
    status: str
    savepoints: int


def report_rotation(pipeline: str, savepoint: str) -> Rotation:
    """Return the result of the rotation."""
    from rivertwice.savepoint import list_savepoints

    savepoints = list_savepoints(Settings.from_env().pipeline(pipeline))
    status = next((item.status for item in savepoints if item.id == savepoint), "gone")
    log.info("savepoint %s is %s; %s has %s savepoints", savepoint, status, pipeline, len(savepoints))
    return Rotation(savepoint, status, len(savepoints))


def check_archive(pipeline: str) -> list[str]:
    """Check the form and return the arguments of the archive job."""
    context = get_current_context()
    with refusals():
        form_of("archive", pipeline, context)
        _skip_if_nothing_committed(Settings.from_env(), pipeline, context)
    return ["--pipeline", pipeline]


def check_reconcile(pipeline: str, rare: str, often: str) -> list[str]:
    """Check the form and return the arguments of the reconcile job.

    Args:
        rare: the schedule by which everything is compared again.
        often: the schedule by which what changed is compared.
    """
    context = get_current_context()
    with refusals():
        asked = form_of("reconcile", pipeline, context).request
        _skip_if_nothing_committed(Settings.from_env(), pipeline, context)
    if is_scheduled(context) and is_turn_of(rare, often, due_at(context)):
        asked = asked.model_copy(update={"full": True})
    return arguments_of(asked)


@dataclass(frozen=True)
class PassedReconcile:
    """A reconcile whose gate passed: its name, and its rows by pair and verdict."""

    run: str
    counts: Mapping[str, Mapping[str, int]]


def gate_reconcile(pipeline: str) -> PassedReconcile:
    """Read the reconcile of this DAG run: report what its gate found and what is over, fail on anything critical.

    Raises:
        AirflowFailException: the gate has not passed; the message names each critical alert.
    """
    from rivertwice.airflow.repair_steps import propose, under_repair
    from rivertwice.reconcile import reconcile_runs

    settings, context = Settings.from_env(), get_current_context()
    run = context["dag_run"]
    with refusals():
        own = [
            reconcile
            for reconcile in reconcile_runs(settings.pipeline(pipeline))
            if is_reconcile_of(run.run_id, reconcile["run"])
        ]
    if not own:
        message = (
            f"no reconcile of {pipeline} is recorded for the run {run.run_id}, although its job "
            "succeeded; look at the log of the task compare, and clear that task"
        )
        raise AirflowFailException(message)
    newest = own[-1]
    gate = newest["gate"]
    critical = []
    for alert in gate["alerts"]:
        log.warning("%s %s: %s", alert["severity"], alert["kind"], alert["message"])
        if alert["severity"] == "critical":
            critical.append(f"{alert['kind']}: {alert['message']}")
    params = context["params"]
    is_whole = not params.get("start") and not params.get("end")
    place, repaired = Place(run.dag_id, run.run_id, "gate"), under_repair(settings, pipeline)
    report_gate(
        settings,
        pipeline,
        place,
        newest,
        whole=is_whole,
        repair=lambda: propose(settings, pipeline),
        left=repaired,
    )
    if critical or not gate["passed"]:
        message = f"reconcile {newest['run']} of {pipeline}: " + "; ".join(critical or ["the gate has not passed"])
        raise AirflowFailException(message) from (ReportedError(message) if critical else None)
    log.info("reconcile %s of %s: %s", newest["run"], pipeline, newest["counts"])
    return PassedReconcile(newest["run"], newest["counts"])


def plan_backfill(pipeline: str, rare: str, often: str) -> str:
    """Check the form, plan, explain and save; return the backfill's id, or an empty text when nothing is to be done.

    Args:
        rare: the schedule by which what the newest reconcile found is recomputed.
        often: the schedule by which the late queue is; `none`: there is no such queue.
    """
    from rivertwice.backfill import plan_if_needed, save_plan

    settings, context = Settings.from_env(), get_current_context()
    with refusals():
        form = form_of("backfill", pipeline, context)
        asked = _in_its_turn(form.request, rare, often, context)
        _skip_if_nothing_committed(settings, pipeline, context)
        plan = plan_if_needed(settings, asked.to_plan(utc_now(), who(context)), _no_spark, log.info)
        if plan is None:
            return ""
        if form.dry_run:
            log.info("this was a dry run; nothing is computed")
            return ""
        save_plan(settings.pipeline(pipeline), plan)
    return plan.id


def check_backfill(pipeline: str, rare: str, often: str) -> list[str]:
    """Check the form of a backfill of sessions and return the arguments of the job that plans it; none if nothing is stale.

    The arguments are those of `plan_backfill`; sessions have no late queue.
    """
    from rivertwice.backfill import find_nothing_stale

    settings, context = Settings.from_env(), get_current_context()
    with refusals():
        form = form_of("backfill", pipeline, context)
        asked = _in_its_turn(form.request, rare, often, context)
        _skip_if_nothing_committed(settings, pipeline, context)
        if asked.scope == LATE:
            message = "sessions have no late queue; ask for scope stale, after a reconcile"
            raise RequestError(message)
        nothing = find_nothing_stale(settings, pipeline) if asked.range is None else None
        if nothing is not None:
            log.info("%s", nothing)
            return []
    own = {"request": request_of(context["dag_run"].run_id), "dry_run": form.dry_run}
    return arguments_of(PlanRequest.model_validate({**dict(asked), "reason": asked.reason or who(context), **own}))


def find_planned(pipeline: str) -> str:
    """Return the backfill that the job planned for this run, or an empty text when nothing is to be done."""
    from rivertwice.backfill import planned_for

    context = get_current_context()
    with refusals():
        return planned_for(Settings.from_env().pipeline(pipeline), request_of(context["dag_run"].run_id))


def _in_its_turn(asked: Any, rare: str, often: str, context: Any) -> RecomputeRequest:
    """Return the request of a run; a scheduled one is about the late queue unless the rare schedule has its turn."""
    is_late = is_scheduled(context) and not is_turn_of(rare, often, due_at(context))
    request: RecomputeRequest = asked.model_copy(update={"scope": LATE}) if is_late else asked
    return request


def _no_spark() -> NoReturn:
    """Give no session: a worker has none, so the DAG lets a Spark job plan what needs the records."""
    message = "this pipeline's windows are known from their records alone; its DAG plans them in a Spark job"
    raise RequestError(message)


def publish_backfill(pipeline: str, backfill: str) -> int:
    """Publish an audited backfill; return the number of its entry in the sequence."""
    from rivertwice.backfill import load_backfill_plan
    from rivertwice.backfill import publish_backfill as publish

    settings = Settings.from_env()
    with refusals():
        entry = publish(settings, load_backfill_plan(settings.pipeline(pipeline), backfill))
    log.info("published %s as entry %s of the sequence of %s", backfill, entry.seq, pipeline)
    return int(entry.seq)


def await_served(pipeline: str, sequence: int) -> int:
    """Wait until the agent has rebuilt `served` with entry `sequence`; return the sequence it carries.

    The publication is valid also when this fails: only the agent rebuilds `served`, so check that the agent runs.
    """
    from rivertwice.timeline import wait_served

    stamp = wait_served(Settings.from_env().pipeline(pipeline), sequence, SERVED_PATIENCE)
    log.info("served of %s carries entry %s", pipeline, stamp.sequence)
    return int(stamp.sequence)


def conf(context: Any) -> dict[str, Any]:
    """Return the values that were sent with the request for a run."""
    return dict(getattr(context["dag_run"], "conf", None) or {})


def form_of(verb: str, pipeline: str, context: Any) -> Form:
    """Return the checked form of a run.

    Raises:
        RequestError: it is invalid.
    """
    return read_form(verb, {**context["params"], **conf(context)}, pipeline, utc_now())


def due_at(context: Any) -> datetime:
    """Return when a scheduled run was due."""
    run = context["dag_run"]
    due: datetime = run.logical_date or run.run_after
    return due


def is_scheduled(context: Any) -> bool:
    """Say whether a run started without a request."""
    return str(getattr(context["dag_run"], "run_type", "manual")).rsplit(".", 1)[-1].lower() == "scheduled"


def who(context: Any) -> str:
    """Return the reason of a run whose form has none."""
    return REASON_OF_SCHEDULE if is_scheduled(context) else REASON_OF_MANUAL


def _skip_if_nothing_committed(settings: Settings, pipeline: str, context: Any) -> None:
    from rivertwice.timeline import head

    if is_scheduled(context) and head(settings.pipeline(pipeline)) is None:
        message = f"{pipeline} has no timeline yet: its stream was never started, so there is nothing to do"
        raise AirflowSkipException(message)
