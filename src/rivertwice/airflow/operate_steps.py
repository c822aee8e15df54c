"""What the tasks of `restore__P`, `rewind__P` and `operate__P` do: check the form, show what would happen, do it once, report.

Each can be killed and done again. A restore or a rewind that was cut off is resumed, and one that this run has done is not begun again.
Everything heavy is imported inside the functions: they run in a task's process, never while a DAG file is parsed.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import get_current_context

from rivertwice.airflow.dag_names import request_of
from rivertwice.airflow.operate_forms import (
    ABANDON,
    AMEND,
    DISCARD,
    PIN,
    PROVE,
    UNPIN,
    read_operate,
    read_restore,
    read_rewind,
)
from rivertwice.airflow.refusals import refusals
from rivertwice.airflow.steps import asked_by, conf, note, who
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import parse_iso, to_iso, utc_now
from rivertwice.core.settings import Settings

log = logging.getLogger(__name__)

TASKS = {PROVE: "prove", AMEND: "amend", PIN: "act", UNPIN: "act", DISCARD: "act", ABANDON: "act"}
"""An act to the task that does it."""


def check_restore(pipeline: str) -> list[str]:
    """Check the form, write what would happen into the log, and return the job's arguments; none for a dry run.

    Raises:
        AirflowFailException: the form is invalid, or the restore would be refused.
    """
    from rivertwice.read.previews import damage_of, restore_rows, text_lines
    from rivertwice.savepoint.manifest import RESTING
    from rivertwice.savepoint.operations.restore import show_restore

    settings, context = Settings.from_env(), get_current_context()
    since = utc_now()
    with refusals():
        form = read_restore(conf(context), context["params"], pipeline)
        chosen = RESTING if form.planned else form.savepoint
        plan = show_restore(settings, pipeline, chosen, unproved=form.unproved)
        _show([*text_lines(plan, restore_rows(plan)), *filter(None, [damage_of(plan)])])
        if plan.refusal is not None:
            raise RequestError(plan.refusal)
        if form.dry_run:
            log.info("this was a dry run; nothing was changed")
            return []
        note(settings, pipeline, "savepoint restore", context, form.reason)
    arguments = ["--pipeline", pipeline, "--since", to_iso(since)]
    arguments += [] if plan.resumes is None else ["--resumes", plan.resumes]
    arguments += ["--planned"] if form.planned else [] if form.savepoint is None else ["--savepoint", form.savepoint]
    return [*arguments, "--unproved"] if form.unproved else arguments


def report_restore(pipeline: str) -> dict[str, Any]:
    """Return what the newest restore did."""
    from rivertwice.savepoint.operations.record import read_restores
    from rivertwice.timeline.sequence import head

    home = Settings.from_env().pipeline(pipeline)
    done = read_restores(home)[-1]
    log.info(
        "%s: head of %s is %s, forked from %s at batch %s", done.id, pipeline, head(home), done.parent, done.forked_at
    )
    return {
        "operation": done.id,
        "savepoint": done.savepoint,
        "head": head(home),
        "parent": done.parent,
        "forked_at": done.forked_at,
        "replayed": done.replayed,
    }


def check_rewind(pipeline: str) -> dict[str, Any]:
    """Check the form, write what would happen into the log, and return what is asked for; nothing for a dry run.

    Raises:
        AirflowFailException: the form is invalid, or the rewind would be refused.
    """
    from rivertwice.read.previews import rewind_rows, text_lines
    from rivertwice.savepoint.operations.rewind import show_rewind

    settings, context = Settings.from_env(), get_current_context()
    since = utc_now()
    with refusals():
        form = read_rewind(conf(context), context["params"], pipeline)
        plan = show_rewind(settings, pipeline, form.savepoint, unproved=form.unproved)
        _show(text_lines(plan, rewind_rows(plan)))
        if plan.refusals and plan.resumes is None:
            raise RequestError(plan.refusals[0])
        if form.dry_run:
            log.info("this was a dry run; nothing was changed")
            return {}
        note(settings, pipeline, "savepoint rewind", context, form.reason)
    return {
        "savepoint": form.savepoint,
        "unproved": form.unproved,
        "since": to_iso(since),
        "resumes": plan.resumes,
    }


def rewind(pipeline: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Rewind, unless this run has done it; return the outcome. The driver that catches up has a session of its own.

    Raises:
        AirflowFailException: it was refused.
    """
    from rivertwice.savepoint.operations.record import Rewind, find_repeated, read_rewinds
    from rivertwice.savepoint.operations.rewind import rewind_stream

    settings = Settings.from_env()
    with refusals():
        done = find_repeated(
            read_rewinds(settings.pipeline(pipeline)),
            Rewind,
            parse_iso(asked["since"]),
            base=asked["savepoint"],
            resumes=asked["resumes"],
        )
        if done is not None:
            log.info("%s is done already", done.id)
            return _rewound(done.id, done.child, done.comparison)
        report = rewind_stream(
            settings,
            pipeline,
            asked["savepoint"],
            unproved=asked["unproved"],
            progress=lambda line: log.info("%s", line),
        )
    return _rewound(report.operation, report.timeline, report.comparison)


def _rewound(operation: str, timeline: str, comparison: Any) -> dict[str, Any]:
    """Return an outcome without the rows that it has for examples: a run's results are kept longer than rows."""
    counts = {name: count for name, count in dict(comparison or {}).items() if isinstance(count, int)}
    log.info("%s: timeline %s serves; rows of closed windows: %s", operation, timeline, counts)
    return {"operation": operation, "head": timeline, "comparison": counts}


def check_operate(pipeline: str) -> dict[str, Any]:
    """Check the form and return what is asked for; a value is put aside, so that no argument and no result of a task has it.

    Raises:
        AirflowFailException: the form is invalid, or names what does not exist.
    """
    from rivertwice.savepoint.catalogue import load_savepoint
    from rivertwice.timeline.dead_letters import save_draft

    settings, context = Settings.from_env(), get_current_context()
    home, now = settings.pipeline(pipeline), utc_now()
    run, by = context["dag_run"].run_id, asked_by(context)
    with refusals():
        form = read_operate(conf(context), context["params"])
        reason = form.reason or who(context)
        if form.savepoint:
            load_savepoint(home, form.savepoint)
        if form.act == AMEND:
            save_draft(home, request_of(run), form.place, form.value.encode(), why=reason, by=by, now=now)
        else:
            note(settings, pipeline, form.act.replace(".", " "), context, reason)
    asked = {name: getattr(form, name) for name in ("act", "savepoint", "place", "kind")}
    return {**asked, "reason": reason, "by": by, "since": to_iso(now), "draft": request_of(run)}


def choose_task(asked: dict[str, Any]) -> str:
    """Return the task that does an act."""
    return TASKS[asked["act"]]


def prove_arguments(pipeline: str, asked: Any) -> list[Any]:
    """Return the arguments of the job that proves one savepoint; `asked` is the output of the task that checked the form."""
    return ["--pipeline", pipeline, "--savepoint", asked["savepoint"], "--only"]


def amend_arguments(pipeline: str, asked: Any) -> list[Any]:
    """Return the arguments of the job that amends one dead letter; its value and its place are in the draft."""
    return ["--pipeline", pipeline, "--draft", asked["draft"]]


def act(pipeline: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Pin, unpin, discard or give up; done again, it changes nothing more.

    Raises:
        AirflowFailException: it was refused.
    """
    settings = Settings.from_env()
    with refusals():
        result = _ACTS[asked["act"]](settings, pipeline, asked)
    log.info("%s of %s by %s: %s", asked["act"], pipeline, asked["by"], result)
    return result


def _pin(settings: Settings, pipeline: str, asked: dict[str, Any]) -> dict[str, Any]:
    from rivertwice.savepoint.prune import pin_savepoint

    pinned = pin_savepoint(settings.pipeline(pipeline), asked["savepoint"], by=asked["by"], now=utc_now())
    return {"savepoint": pinned.id, "pinned": pinned.pinned}


def _unpin(settings: Settings, pipeline: str, asked: dict[str, Any]) -> dict[str, Any]:
    from rivertwice.savepoint.prune import unpin_savepoint

    left = unpin_savepoint(settings.pipeline(pipeline), asked["savepoint"])
    return {"savepoint": left.id, "pinned": left.pinned}


def _discard(settings: Settings, pipeline: str, asked: dict[str, Any]) -> dict[str, Any]:
    from rivertwice.timeline.committed import committed_batches
    from rivertwice.timeline.dead_letters import Decision, parse_place, select_discards
    from rivertwice.timeline.dead_summary import discard, find_letter, read_brief

    home = settings.pipeline(pipeline)
    letters = read_brief(home, committed_batches(home))
    if asked["place"]:
        letters = [find_letter(letters, parse_place(asked["place"]), pipeline)]
    decision = Decision(asked["by"], asked["reason"], parse_iso(asked["since"]))
    left = select_discards(letters, decision, reason=asked["kind"] or None)
    done = discard(home, left, why=asked["reason"], by=asked["by"], now=utc_now()) if left else []
    return {"discarded": len(done)}


def _abandon(settings: Settings, pipeline: str, asked: dict[str, Any]) -> dict[str, Any]:
    from rivertwice.savepoint.operations.effects import abandon_operation
    from rivertwice.savepoint.operations.record import ABANDONED, DONE, read_operations
    from rivertwice.savepoint.operations.steps import plan_of

    operations = read_operations(settings.pipeline(pipeline))
    unfinished = [operation for operation in operations if operation.step < DONE]
    if not unfinished and operations and operations[-1].step == ABANDONED:
        return {"operation": operations[-1].id, "given_up": True}
    if not unfinished:
        message = f"no operation of {pipeline} was cut off, so there is nothing to give up"
        raise RequestError(message)
    plan = plan_of(unfinished[-1])
    report = abandon_operation(settings, pipeline, plan, progress=lambda line: log.info("%s", line))
    return {"operation": report.operation, "given_up": True, "head": report.head, "running": report.running}


_ACTS = {PIN: _pin, UNPIN: _unpin, DISCARD: _discard, ABANDON: _abandon}


def report_operate(pipeline: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return what was asked for and what is true now."""
    from rivertwice.savepoint.catalogue import load_savepoint
    from rivertwice.timeline.dead_letters import forget_draft

    forget_draft(Settings.from_env().pipeline(pipeline), asked["draft"])
    result = {name: asked[name] for name in ("act", "by", "reason")}
    if asked["savepoint"]:
        savepoint = load_savepoint(Settings.from_env().pipeline(pipeline), asked["savepoint"])
        result |= {"savepoint": savepoint.id, "status": savepoint.status, "pinned": savepoint.pinned}
    return result


def _show(lines: list[str]) -> None:
    for line in lines:
        log.info("%s", line)
