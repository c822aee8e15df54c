"""What the tasks of our DAGs do: check the form, call the room that does the work, return the result.

Everything heavy is imported inside the functions: they run in a task's process, never while a DAG file is parsed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from rivertwice.acts import CARE, LATE, ActName, PlanRequest, RecomputeRequest, arguments_of
from rivertwice.core import RequestError, Settings, parse_iso, to_iso, utc_now
from rivertwice.definition import NO_SCHEDULE
from rivertwice.tasks.forms import Form, RunReason, read_form
from rivertwice.tasks.names import is_reconcile_of, request_of
from rivertwice.tasks.reports import report_gate
from rivertwice.tasks.run import TaskFailedError, TaskRun, TaskSkippedError
from rivertwice.tasks.turns import find_period, is_turn_of


def note(settings: Settings, run: TaskRun, pipeline: str, command: str, reason: str) -> None:
    """Record in the agent's events who asked for what, and why."""
    from rivertwice.agent import record_event

    by = run.asked_by
    text = f"{command} by {by}{f': {reason}' if reason else ''}"
    record_event(settings, "command", pipeline, text, utc_now(), by=by, reason=reason or None)


log = logging.getLogger(__name__)

SERVED_PATIENCE = 180.0


def ask_run(settings: Settings, run: TaskRun, pipeline: str) -> str:
    """Ask the agent for a run of a stream by schedule; return when it was asked for.

    Raises:
        TaskSkippedError: the stream is stopped, or was never started.
    """
    from rivertwice.timeline import Intent

    home, now = settings.pipeline(pipeline), utc_now()
    intent = Intent.load(home)
    if intent is None or intent.desired != "running":
        why = "was never started" if intent is None else f"was stopped by {intent.by}"
        message = f"the stream of {pipeline} {why}; `rivertwice start {pipeline}` lets its schedule run it"
        raise TaskSkippedError(message)
    Intent.ask_run(home, run.asked_by, now)
    return to_iso(now)


@dataclass(frozen=True)
class StreamRun:
    """What a run of a stream by schedule did: its batches, what they read and emitted, and where the stream is now."""

    batches: int
    read: int
    dead: int
    emitted: int
    timeline: str
    batch: int | None
    watermark_ms: int | None


def report_run(settings: Settings, _run: TaskRun, pipeline: str, asked_at: str) -> StreamRun:
    """Wait until readers see what a run committed, and return what it did.

    Args:
        asked_at: when it was asked for, in ISO 8601.
    """
    from rivertwice.timeline import Heartbeat, last_seq, path_ledger, wait_served

    home = settings.pipeline(pipeline)
    beat = Heartbeat.load(home)
    if beat is None or beat.batch is None:
        return StreamRun(0, 0, 0, 0, "" if beat is None else beat.timeline, None, None)
    if home.serves:
        wait_served(home, last_seq(home), SERVED_PATIENCE, (beat.timeline, beat.batch))
    rows = [row for row in path_ledger(home) if row.committed_at >= parse_iso(asked_at)]
    read, dead, emitted = (sum(getattr(row, count) for row in rows) for count in ("read", "bad", "emitted"))
    log.info("%s read %s records in %s batches and emitted %s rows", pipeline, read, len(rows), emitted)
    return StreamRun(len(rows), read, dead, emitted, beat.timeline, beat.batch, beat.watermark_ms)


def take_savepoint(settings: Settings, run: TaskRun, pipeline: str, due: str, often: str) -> str:
    """Take a savepoint and return its id; a scheduled rotation of a stream that never committed is skipped.

    Args:
        due: the schedule of rotations.
        often: that of the DAG.
    """
    from rivertwice.savepoint import take_savepoint as take

    asked = _asked_of_care(ActName.TAKE, run, pipeline, due, often)
    _skip_if_nothing_committed(settings, pipeline, run)
    savepoint = take(settings, pipeline, now=utc_now(), reason=asked.reason or reason_of(run))
    if not run.is_scheduled:
        note(settings, run, pipeline, "savepoint take", asked.reason)
    log.info("took savepoint %s of %s", savepoint.id, pipeline)
    return str(savepoint.id)


def is_proof_wanted(_settings: Settings, run: TaskRun, _pipeline: str, _savepoint: str) -> bool:
    """Say whether the form asks for a proof."""
    return bool(run.params["prove"])


def prune_savepoints(settings: Settings, run: TaskRun, pipeline: str, due: str, often: str) -> list[str]:
    """Remove the savepoints that are not protected, in a run that takes one; return their ids."""
    from rivertwice.savepoint import KEPT
    from rivertwice.savepoint import prune_savepoints as prune

    _asked_of_care(ActName.TAKE, run, pipeline, due, often)
    _skip_if_nothing_committed(settings, pipeline, run)
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


def report_rotation(settings: Settings, _run: TaskRun, pipeline: str, savepoint: str) -> Rotation:
    """Return the result of the rotation."""
    from rivertwice.savepoint import list_savepoints

    savepoints = list_savepoints(settings.pipeline(pipeline))
    status = next((item.status for item in savepoints if item.id == savepoint), "gone")
    log.info("savepoint %s is %s; %s has %s savepoints", savepoint, status, pipeline, len(savepoints))
    return Rotation(savepoint, status, len(savepoints))


def check_archive(settings: Settings, run: TaskRun, pipeline: str, due: str, often: str) -> list[str]:
    """Check the form and return the arguments of the archive job.

    Args:
        due: the schedule of the archive.
        often: that of the DAG.
    """
    _asked_of_care(ActName.ARCHIVE, run, pipeline, due, often)
    _skip_if_nothing_committed(settings, pipeline, run)
    return ["--pipeline", pipeline]


def _asked_of_care(act: str, run: TaskRun, pipeline: str, due: str, often: str) -> Any:
    """Return the request of a run of `care__P` for one of its acts; a scheduled run does each act that is due.

    Raises:
        TaskSkippedError: the run is not for this act, or another run does it still.
    """
    form = form_of(CARE, pipeline, run)
    if not run.is_scheduled:
        if form.act.name != act:
            message = f"this run is asked for {form.act.name} alone"
            raise TaskSkippedError(message)
        return form.request
    if not is_turn_of(due, often, run.due_at):
        message = f"{act} of {pipeline} is not due; its schedule: {due}"
        raise TaskSkippedError(message)
    _skip_if_at_work(pipeline, run)
    return form.request


def check_reconcile(settings: Settings, run: TaskRun, pipeline: str, rare: str, often: str) -> list[str]:
    """Check the form and return the arguments of the reconcile job.

    Args:
        rare: the schedule by which everything is compared again.
        often: the schedule by which what changed is compared.
    """
    asked = form_of("reconcile", pipeline, run).request
    _skip_if_nothing_committed(settings, pipeline, run)
    if run.is_scheduled and is_turn_of(rare, often, run.due_at):
        asked = asked.model_copy(update={"full": True})
    return arguments_of(asked)


@dataclass(frozen=True)
class PassedReconcile:
    """A reconcile whose gate passed: its name, and its rows by pair and verdict."""

    run: str
    counts: Mapping[str, Mapping[str, int]]


def gate_reconcile(settings: Settings, run: TaskRun, pipeline: str) -> PassedReconcile:
    """Read the reconcile of this DAG run: report what its gate found and what is over, fail on anything critical.

    Raises:
        TaskFailedError: the gate has not passed; the message names each critical alert.
    """
    from rivertwice.reconcile import reconcile_runs
    from rivertwice.tasks.repair import propose, under_repair

    own = [each for each in reconcile_runs(settings.pipeline(pipeline)) if is_reconcile_of(run.run, each["run"])]
    if not own:
        message = (
            f"no reconcile of {pipeline} is recorded for the run {run.run}, although its job "
            "succeeded; look at the log of the task compare, and clear that task"
        )
        raise TaskFailedError(message)
    newest = own[-1]
    gate = newest["gate"]
    critical = []
    for alert in gate["alerts"]:
        log.warning("%s %s: %s", alert["severity"], alert["kind"], alert["message"])
        if alert["severity"] == "critical":
            critical.append(f"{alert['kind']}: {alert['message']}")
    is_whole = not run.params.get("start") and not run.params.get("end")
    repaired = under_repair(settings, run, pipeline)
    report_gate(
        settings,
        run,
        pipeline,
        newest,
        whole=is_whole,
        repair=lambda: propose(settings, pipeline),
        left=repaired,
    )
    if critical or not gate["passed"]:
        message = f"reconcile {newest['run']} of {pipeline}: " + "; ".join(critical or ["the gate has not passed"])
        raise TaskFailedError(message, is_reported=bool(critical))
    log.info("reconcile %s of %s: %s", newest["run"], pipeline, newest["counts"])
    return PassedReconcile(newest["run"], newest["counts"])


def plan_backfill(settings: Settings, run: TaskRun, pipeline: str, rare: str, often: str) -> str:
    """Check the form, plan, explain and save; return the backfill's id, or an empty text when nothing is to be done.

    Args:
        rare: the schedule by which what the newest reconcile found is recomputed.
        often: the schedule by which the late queue is; `none`: there is no such queue.
    """
    from rivertwice.backfill import plan_if_needed, save_plan
    from rivertwice.tasks.repair import plan_repair

    form = form_of("backfill", pipeline, run)
    if form.act.name == ActName.REPAIR:
        return plan_repair(settings, run, pipeline)
    _skip_if_at_work(pipeline, run)
    asked = _in_its_turn(form.request, rare, often, run)
    _skip_if_nothing_committed(settings, pipeline, run)
    plan = plan_if_needed(settings, asked.to_plan(utc_now(), reason_of(run)), _no_spark, log.info)
    if plan is None:
        return ""
    if form.dry_run:
        log.info("this was a dry run; nothing is computed")
        return ""
    save_plan(settings.pipeline(pipeline), plan)
    return plan.id


def check_backfill(settings: Settings, run: TaskRun, pipeline: str, rare: str, often: str) -> list[str]:
    """Check the form of a backfill of sessions and return the arguments of the job that plans it; none if nothing is stale.

    The arguments are those of `plan_backfill`; sessions have no late queue.
    """
    from rivertwice.backfill import find_nothing_stale
    from rivertwice.tasks.repair import check_repair

    form = form_of("backfill", pipeline, run)
    if form.act.name == ActName.REPAIR:
        return check_repair(settings, run, pipeline)
    _skip_if_at_work(pipeline, run)
    asked = _in_its_turn(form.request, rare, often, run)
    _skip_if_nothing_committed(settings, pipeline, run)
    if asked.scope == LATE:
        message = "sessions have no late queue; ask for scope stale, after a reconcile"
        raise RequestError(message)
    nothing = find_nothing_stale(settings, pipeline) if asked.range is None else None
    if nothing is not None:
        log.info("%s", nothing)
        return []
    own = {"request": request_of(run.run), "dry_run": form.dry_run}
    return arguments_of(PlanRequest.model_validate({**dict(asked), "reason": asked.reason or reason_of(run), **own}))


def find_planned(settings: Settings, run: TaskRun, pipeline: str) -> str:
    """Return the backfill that the job planned for this run, or an empty text when nothing is to be done."""
    from rivertwice.backfill import planned_for

    return planned_for(settings.pipeline(pipeline), request_of(run.run))


def _in_its_turn(asked: Any, rare: str, often: str, run: TaskRun) -> RecomputeRequest:
    """Return the request of a run.

    A scheduled one is about the late queue unless the rare schedule has its turn, one of Airflow's own Backfill about its period.
    """
    if run.is_backfill:
        start, end = find_period(rare if often == NO_SCHEDULE else often, run.due_at)
        over: RecomputeRequest = asked.over(start, min(end, utc_now()))
        return over
    is_late = run.is_scheduled and not is_turn_of(rare, often, run.due_at)
    request: RecomputeRequest = asked.model_copy(update={"scope": LATE}) if is_late else asked
    return request


def _no_spark() -> NoReturn:
    """Give no session: a worker has none, so the DAG lets a Spark job plan what needs the records."""
    message = "this pipeline's windows are known from their records alone; its DAG plans them in a Spark job"
    raise RequestError(message)


def publish_backfill(settings: Settings, _run: TaskRun, pipeline: str, backfill: str) -> int:
    """Publish an audited backfill; return the number of its entry in the sequence."""
    from rivertwice.backfill import load_backfill_plan
    from rivertwice.backfill import publish_backfill as publish

    entry = publish(settings, load_backfill_plan(settings.pipeline(pipeline), backfill))
    log.info("published %s as entry %s of the sequence of %s", backfill, entry.seq, pipeline)
    return int(entry.seq)


def await_served(settings: Settings, _run: TaskRun, pipeline: str, sequence: int) -> int:
    """Wait until the agent has rebuilt `served` with entry `sequence`; return the sequence it carries.

    The publication is valid also when this fails: only the agent rebuilds `served`, so check that the agent runs.
    """
    from rivertwice.timeline import wait_served

    stamp = wait_served(settings.pipeline(pipeline), sequence, SERVED_PATIENCE)
    log.info("served of %s carries entry %s", pipeline, stamp.sequence)
    return int(stamp.sequence)


def form_of(verb: str, pipeline: str, run: TaskRun) -> Form:
    """Return the checked form of a run.

    Raises:
        RequestError: it is invalid.
    """
    return read_form(verb, run.params, pipeline, utc_now())


def reason_of(run: TaskRun) -> str:
    """Return the reason of a run whose form has none."""
    return RunReason.SCHEDULED if run.is_scheduled else RunReason.MANUAL


def _skip_if_at_work(pipeline: str, run: TaskRun) -> None:
    """Skip a scheduled run while another one does the same: what that leaves is due at the next tick."""
    if run.is_scheduled and run.at_work:
        message = f"another run of {run.dag} is at work on {pipeline}; what it leaves is for the next run"
        raise TaskSkippedError(message)


def _skip_if_nothing_committed(settings: Settings, pipeline: str, run: TaskRun) -> None:
    from rivertwice.timeline import head

    if run.is_scheduled and head(settings.pipeline(pipeline)) is None:
        message = f"{pipeline} has no timeline yet: its stream was never started, so there is nothing to do"
        raise TaskSkippedError(message)
