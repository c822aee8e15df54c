"""The forms of all DAGs: what a person asks for, checked before anything starts. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rivertwice.acts import ACTS, Act, Request, find_act, parse_request
from rivertwice.acts.act import REASON_LENGTH, REASON_PATTERN
from rivertwice.airflow.dag_names import safe_name
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import TimeRange, parse_iso, to_iso

# The request for a run, checked again before anything starts. Pure.
#
# Airflow's API server checks a request here before it makes a run (`form_check.py`) and answers 400. But a run can also be
# started by Airflow's own command line, by another DAG, or by one that was edited; so the first task checks all of it once
# more, and only a run that passes here continues.

_DAY = r"(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?"
INSTANT_PATTERN = rf"^\d{{4}}-{_DAY}T{_TIME}(Z|[+-]\d{{2}}:\d{{2}})$"
VERSION_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,63}(@v([2-9]|[1-9][0-9]{1,3}))?$"
REASON_OF_MANUAL, REASON_OF_SCHEDULE = "asked for in Airflow", "scheduled"
INSTANT_LENGTH = 40
LONGEST = timedelta(days=366)
FUTURE = timedelta(days=1)
SCOPES = ("stale", "range")
DEFAULT_SCOPE = "stale"


@dataclass(frozen=True)
class BackfillForm:
    """A checked request for a backfill; `range` None: the windows that the newest reconcile found stale; `reason` "": none."""

    range: TimeRange | None
    reason: str
    dry_run: bool


@dataclass(frozen=True)
class RotateForm:
    """A checked request for a savepoint."""

    prove: bool
    reason: str


@dataclass(frozen=True)
class RepairForm:
    """A checked request for a repair; `reason` "": none."""

    reason: str


@dataclass(frozen=True)
class SwitchForm:
    """A checked request to let a version serve; `version` "": the newest open one that does not; `reason` "": none."""

    version: str
    reason: str


def check_form(verb: str, conf: Mapping[str, Any], now: datetime, pipeline: str | None = None) -> None:
    """Check the request for a run of a verb's DAG; a field that is left out has its default. A verb without a form passes.

    Args:
        verb: of the DAG.
        conf: the values that were sent.
        now: the time by which a range is in the future.
        pipeline: name of the pipeline, as a DAG's id has it; None: what has to be typed to confirm is checked by the first task.

    Raises:
        RequestError: the form is invalid.
    """
    if verb == "backfill":
        read_backfill(conf, {"scope": DEFAULT_SCOPE, **conf}, now)
    elif verb == "reconcile":
        read_reconcile(conf, conf, now)
    elif verb == "rotate":
        read_rotate(conf, conf)
    elif verb == "repair":
        read_repair(conf, conf)
    elif verb == "switch":
        read_switch(conf, conf)
    elif verb == "operate":
        read_operate(conf, pipeline)
    elif verb in MOVED:
        name = pipeline or "NAME"
        message = f"{verb}__{name} is now an act of operate__{name}: trigger that DAG with act {MOVED[verb]} and the same fields"
        raise RequestError(message)
    elif verb in ("archive", "correct", "reconcile_full"):
        read_nothing(conf)


def read_backfill(conf: Mapping[str, Any], params: Mapping[str, Any], now: datetime) -> BackfillForm:
    """Check a backfill's form.

    Raises:
        RequestError: an unknown key, a value of another type, or an invalid range.
    """
    refuse_unknown(conf, ("scope", "start", "end", "reason", "dry_run"))
    scope = choice_of(params, "scope", SCOPES)
    asked = read_range(params, now)
    if scope == "range" and asked is None:
        message = "scope is range but neither start nor end is given; give both, or ask for scope stale"
        raise RequestError(message)
    if scope == "stale" and asked is not None:
        message = (
            "scope is stale, which takes its windows from the newest reconcile, but start and end are given too; "
            "leave them empty, or ask for scope range"
        )
        raise RequestError(message)
    return BackfillForm(asked, reason_of(params), flag_of(params, "dry_run"))


def read_reconcile(conf: Mapping[str, Any], params: Mapping[str, Any], now: datetime) -> TimeRange | None:
    """Check a reconcile's form; None means everything that is closed.

    Raises:
        RequestError: an unknown key, or an invalid range.
    """
    refuse_unknown(conf, ("start", "end"))
    return read_range(params, now)


def read_rotate(conf: Mapping[str, Any], params: Mapping[str, Any]) -> RotateForm:
    """Check a rotation's form.

    Raises:
        RequestError: an unknown key or a value of another type.
    """
    refuse_unknown(conf, ("prove", "reason"))
    return RotateForm(flag_of(params, "prove"), reason_of(params))


def read_repair(conf: Mapping[str, Any], params: Mapping[str, Any]) -> RepairForm:
    """Check the form of a repair: which windows it takes follows from the newest reconcile.

    Raises:
        RequestError: an unknown key, or a reason that cannot be kept.
    """
    refuse_unknown(conf, ("reason",))
    return RepairForm(reason_of(params))


def read_switch(conf: Mapping[str, Any], params: Mapping[str, Any]) -> SwitchForm:
    """Check the form of a switch.

    Raises:
        RequestError: an unknown key, or a text that names no version.
    """
    refuse_unknown(conf, ("version", "reason"))
    version = params.get("version") or ""
    if version and not (isinstance(version, str) and re.fullmatch(VERSION_PATTERN, version)):
        message = (
            f"version {str(version)[:60]!r} is no name of a version; write it as NAME@v2, or NAME for the first one"
        )
        raise RequestError(message)
    return SwitchForm(version, reason_of(params))


def read_nothing(conf: Mapping[str, Any]) -> None:
    """Check the form of a DAG that takes no values.

    Raises:
        RequestError: values were given.
    """
    refuse_unknown(conf, ())


def read_range(params: Mapping[str, Any], now: datetime) -> TimeRange | None:
    """Return the range that `start` and `end` name, or None if both are empty.

    Raises:
        RequestError: only one is given, one is no instant, or the range is reversed, empty, longer than a year or in the
        future.
    """
    start, end = _instant(params, "start"), _instant(params, "end")
    if start is None and end is None:
        return None
    if start is None or end is None:
        missing = "start" if start is None else "end"
        message = f"{missing} is empty; a range is half-open and needs both its ends"
        raise RequestError(message)
    asked = TimeRange(start, end)
    if end - start > LONGEST:
        message = (
            f"the range [{to_iso(start)}, {to_iso(end)}) is {(end - start).days} days long, more than {LONGEST.days}; "
            "ask for it in parts"
        )
        raise RequestError(message)
    if end > now + FUTURE:
        message = f"the range ends at {to_iso(end)}, which lies in the future; nothing can be closed there: choose an earlier end"
        raise RequestError(message)
    return asked


def refuse_unknown(conf: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse a key that a DAG does not take.

    Raises:
        RequestError: there is one.
    """
    unknown = sorted(str(key)[:60] for key in conf if key not in known)
    if unknown:
        allowed = ", ".join(known) or "none"
        message = f"this DAG does not know {unknown[0]!r}; the values it takes are: {allowed}"
        raise RequestError(message)


def _instant(params: Mapping[str, Any], key: str) -> datetime | None:
    value = params.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > INSTANT_LENGTH or not re.fullmatch(INSTANT_PATTERN, value):
        message = f"{key} {str(value)[:60]!r} is no instant with a zone; write it as 2013-06-30T04:00:00Z"
        raise RequestError(message)
    return parse_iso(value)


def reason_of(params: Mapping[str, Any]) -> str:
    """Return the reason of a form, "" if there is none.

    Raises:
        RequestError: it cannot be kept.
    """
    value = params.get("reason")
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > REASON_LENGTH or not re.fullmatch(REASON_PATTERN, value):
        message = (
            f"reason {str(value)[:60]!r} cannot be kept; write one line of at most {REASON_LENGTH} characters without "
            "control characters, braces, $, ` and \\"
        )
        raise RequestError(message)
    return value


def flag_of(params: Mapping[str, Any], key: str) -> bool:
    """Return a field that is true or false; one that is left out is false.

    Raises:
        RequestError: it is neither.
    """
    value = params.get(key, False)
    if not isinstance(value, bool):
        message = f"{key} {str(value)[:60]!r} is neither true nor false"
        raise RequestError(message)
    return value


def choice_of(params: Mapping[str, Any], key: str, allowed: tuple[str, ...]) -> str:
    """Return a field that has one of some values.

    Raises:
        RequestError: it has another.
    """
    value = params.get(key)
    if value not in allowed:
        message = f"{key} {str(value)[:60]!r} is not one of {', '.join(allowed)}"
        raise RequestError(message)
    return str(value)


CONFIRM_PATTERN = r"^[a-z0-9@_-]{0,80}$"
MOVED = {"restore": "savepoint.restore", "rewind": "savepoint.rewind"}
"""Verbs that had a DAG for each pipeline before, to the act of `operate__P` that does the same."""


@dataclass(frozen=True)
class OperateForm:
    """A checked request for an act; `dry_run`: only to show what it would do."""

    act: Act[Any]
    request: Request
    dry_run: bool


def read_operate(values: Mapping[str, Any], pipeline: str | None) -> OperateForm:
    """Check the form of an act.

    Args:
        values: the fields.
        pipeline: its name, which has to be typed for some acts; None: any name is taken.

    Raises:
        RequestError: an unknown act, a field that the act needs and lacks, one that it does not take, or no confirmation.
    """
    act = find_act(values.get("act", next(iter(ACTS))))
    dry_run = flag_of(values, "dry_run")
    fields = {name: value for name, value in values.items() if name not in ("act", "dry_run", "confirm")}
    request = parse_request(act, fields, pipeline or "")
    if act.confirm and not dry_run:
        _require_confirmed(values.get("confirm"), pipeline, act.confirm)
    return OperateForm(act, request, dry_run)


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
