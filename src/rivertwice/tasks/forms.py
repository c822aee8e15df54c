"""The check of a DAG's form, by the request of the act that it does, before anything starts. Pure.

Airflow's API server checks a request here before it makes a run (`airflow/form_check.py`) and answers 400. But a run can also be
started by Airflow's own command line, by another DAG, or by one that was edited; so the first task checks all of it once
more, and only a run that passes here continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rivertwice.acts import (
    OPERATE,
    Act,
    Request,
    acts_of,
    fields_of,
    find_act,
    parse_form,
)
from rivertwice.core import RequestError
from rivertwice.tasks.names import safe_name


class RunReason:
    """Why a run was started whose form does not say it."""

    MANUAL, SCHEDULED = "asked for in Airflow", "scheduled"


MOVED = {
    "supervise": "is now part of care__{0}, which watches the stream as long as it is not paused: unpause that DAG",
    "rotate": "is now part of care__{0}: trigger that DAG with act savepoint.take and the same fields",
    "archive": "is now part of care__{0}: trigger that DAG with act archive",
    "repair": "is now part of backfill__{0}: trigger that DAG with act repair",
    "switch": "is now an act of operate__{0}: trigger that DAG with act version.serve and the same fields",
    "restore": "is now an act of operate__{0}: trigger that DAG with act savepoint.restore and the same fields",
    "rewind": "is now an act of operate__{0}: trigger that DAG with act savepoint.rewind and the same fields",
    "reconcile_full": "is now part of reconcile__{0}: trigger that DAG with full",
    "correct": "is now part of backfill__{0}: trigger that DAG with scope late",
}
"""Verbs that had a DAG for each pipeline before, to where their work went."""


@dataclass(frozen=True)
class Form:
    """A checked request for an act; `dry_run`: only to show what it would do."""

    act: Act[Any, Any]
    request: Request
    dry_run: bool


def check_form(verb: str, conf: Mapping[str, Any], now: datetime | None, pipeline: str | None = None) -> None:
    """Check the request for a run of a verb's DAG; a field that is left out has its default. A verb without a form passes.

    Args:
        now: the time by which a range is in the future; None: a range may lie anywhere.
        pipeline: name of the pipeline, as a DAG's id has it; None: what has to be typed to confirm is checked by the first task.

    Raises:
        RequestError: the form is invalid.
    """
    if verb in MOVED:
        message = f"{verb}__{pipeline or 'NAME'} {MOVED[verb].format(pipeline or 'NAME')}"
        raise RequestError(message)
    if acts_of(verb):
        read_form(verb, conf, pipeline, now)


def read_form(verb: str, values: Mapping[str, Any], pipeline: str | None, now: datetime | None = None) -> Form:
    """Check the form of a DAG; a field that another of its acts takes may be as the form shows it first.

    Args:
        pipeline: its name, which has to be typed for some acts; None: any name is taken.
        now: the time by which a range is in the future; None: a range may lie anywhere.

    Raises:
        RequestError: an unknown act, a field that the act needs and lacks, one that it does not take, or no confirmation.
    """
    known = acts_of(verb, is_version=pipeline is not None and "." in safe_name(pipeline))
    act = find_act(values.get("act", next(iter(known))), known)
    own = {"confirm"} if verb == OPERATE else set()
    own |= ({"act"} if len(acts_of(verb)) > 1 else set()) | (
        {"dry_run"} if any(one.dry_run for one in known.values()) else set()
    )
    dry_run = _flag_of(values, "dry_run") if "dry_run" in own else False
    if dry_run and not act.dry_run:
        message = f"{act.name} has no dry run; leave dry_run away"
        raise RequestError(message)
    taken = {each.name for each in fields_of(act.request)}
    shown = {each.name: each.default for one in known.values() for each in fields_of(one.request)}
    left = {name for name, value in values.items() if name not in taken and name in shown and value == shown[name]}
    given = {name: value for name, value in values.items() if name not in own | left}
    request = parse_form(act, given, pipeline or "", now)
    if verb == OPERATE and act.confirm and not dry_run:
        _require_confirmed(values.get("confirm"), pipeline, act.confirm)
    return Form(act, request, dry_run)


def _flag_of(values: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false; one that is left out is false.

    Raises:
        RequestError: it is neither.
    """
    value = values.get(name, False)
    if not isinstance(value, bool):
        message = f"{name} {str(value)[:60]!r} is neither true nor false"
        raise RequestError(message)
    return value


def _require_confirmed(typed: Any, pipeline: str | None, what: str) -> None:
    """Check that the pipeline's name was typed.

    Raises:
        RequestError: it was not.
    """
    if isinstance(typed, str) and typed and (pipeline is None or safe_name(typed) == safe_name(pipeline)):
        return
    given = "nothing was" if not typed else f"{str(typed)[:80]!r} was"
    name = "the pipeline's name" if pipeline is None else f"the pipeline's name, {pipeline},"
    message = f"{what}, so {name} has to be typed into the field confirm, and {given}; nothing was done"
    raise RequestError(message)
