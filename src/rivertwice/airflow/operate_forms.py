"""The forms of all DAGs: what a person asks for, checked before anything starts. Pure."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rivertwice.airflow.dag_names import safe_name
from rivertwice.core.errors import RequestError
from rivertwice.core.instants import TimeRange, parse_iso, to_iso
from rivertwice.savepoint.manifest import require_savepoint_id
from rivertwice.timeline.dead_letters import parse_place

# The request for a run, checked again before anything starts. Pure, but for a note on an old word.
#
# Airflow's API server checks a request here before it makes a run (`form_check.py`) and answers 400. But a run can also be
# started by Airflow's own command line, by another DAG, or by one that was edited; so the first task checks all of it once
# more, and only a run that passes here continues.

_DAY = r"(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?"
INSTANT_PATTERN = rf"^\d{{4}}-{_DAY}T{_TIME}(Z|[+-]\d{{2}}:\d{{2}})$"
VERSION_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,63}(@v([2-9]|[1-9][0-9]{1,3}))?$"
REASON_PATTERN = r"^[^\x00-\x1f{}$`\\]*$"
REASON_LENGTH = 200
REASON_OF_MANUAL, REASON_OF_SCHEDULE = "asked for in Airflow", "scheduled"
INSTANT_LENGTH = 40
LONGEST = timedelta(days=366)
FUTURE = timedelta(days=1)
log = logging.getLogger(__name__)
SCOPES = ("stale", "range")
DEFAULT_SCOPE = "stale"
OLD_SCOPES = {"wanting": "stale"}
"""Words that 0.1 had for a scope, to the words of now; the old ones are still accepted."""


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
    elif verb == "restore":
        read_restore(conf, conf, pipeline)
    elif verb == "rewind":
        read_rewind(conf, conf, pipeline)
    elif verb == "operate":
        read_operate(conf, {"act": ACTS[0], **conf})
    elif verb in ("archive", "correct", "reconcile_full"):
        read_nothing(conf)


def read_backfill(conf: Mapping[str, Any], params: Mapping[str, Any], now: datetime) -> BackfillForm:
    """Check a backfill's form.

    Raises:
        RequestError: an unknown key, a value of another type, or an invalid range.
    """
    refuse_unknown(conf, ("scope", "start", "end", "reason", "dry_run"))
    scope = choice_of(params, "scope", SCOPES, OLD_SCOPES)
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


def choice_of(
    params: Mapping[str, Any], key: str, allowed: tuple[str, ...], old: Mapping[str, str] | None = None
) -> str:
    """Return a field that has one of some values; `old` is old words to those of now.

    Raises:
        RequestError: it has another.
    """
    value = params.get(key)
    if isinstance(value, str) and old is not None and value in old:
        log.warning("%s %r is the old word for %r; it is still taken", key, value, old[value])
        value = old[value]
    if value not in allowed:
        message = f"{key} {str(value)[:60]!r} is not one of {', '.join(allowed)}"
        raise RequestError(message)
    return str(value)


SAVEPOINT_PATTERN = r"^sp-[a-z0-9][a-z0-9_-]{0,63}-[0-9]{1,18}-[0-9a-f]{8}$"
CONFIRM_PATTERN = r"^[a-z0-9@_-]{0,80}$"
PLACE_PATTERN = r"^([A-Za-z0-9._-]{1,249}/)?[0-9]{1,10}@[0-9]{1,19}$"
KIND_PATTERN = r"^[a-z_]{1,40}$"
PLACE_LENGTH, VALUE_LENGTH = 290, 100_000

PROVE, PIN, UNPIN = "savepoint.prove", "savepoint.pin", "savepoint.unpin"
AMEND, DISCARD, ABANDON = "dead.amend", "dead.discard", "operation.abandon"
ACTS = (PROVE, PIN, UNPIN, AMEND, DISCARD, ABANDON)
_NEEDS: Mapping[str, tuple[str, ...]] = {
    PROVE: ("savepoint",),
    PIN: ("savepoint",),
    UNPIN: ("savepoint",),
    AMEND: ("place", "value", "reason"),
    DISCARD: ("reason",),
    ABANDON: ("reason",),
}
_TAKES: Mapping[str, tuple[str, ...]] = {DISCARD: ("place", "kind")}


@dataclass(frozen=True)
class RestoreForm:
    """A checked request to continue from a savepoint; None: the newest proved one, or the restore that was cut off."""

    savepoint: str | None
    planned: bool
    unproved: bool
    dry_run: bool
    reason: str


@dataclass(frozen=True)
class RewindForm:
    """A checked request to go back to a savepoint; None: the newest proved one, or the rewind that was cut off."""

    savepoint: str | None
    unproved: bool
    dry_run: bool
    reason: str


@dataclass(frozen=True)
class OperateForm:
    """A checked request for an act that changes nothing served by itself; fields that it does not take are empty."""

    act: str
    savepoint: str
    place: str
    kind: str
    value: str
    reason: str


def read_restore(conf: Mapping[str, Any], params: Mapping[str, Any], pipeline: str | None) -> RestoreForm:
    """Check the form of a restore.

    Args:
        conf: the values that were sent.
        params: these values and the defaults of the others.
        pipeline: its name, which has to be typed; None: any name is taken.

    Raises:
        RequestError: an unknown key, a value of another type, a savepoint with `planned`, or a name that is not the pipeline's.
    """
    refuse_unknown(conf, ("savepoint", "planned", "unproved", "dry_run", "confirm", "reason"))
    savepoint = _savepoint(params)
    planned, dry_run = flag_of(params, "planned"), flag_of(params, "dry_run")
    if planned and savepoint is not None:
        message = f"planned takes a savepoint itself, but {savepoint} is named too; leave one of them out"
        raise RequestError(message)
    _require_confirmed(params, pipeline, "a restore moves the head to a new timeline", dry_run=dry_run)
    return RestoreForm(savepoint, planned, flag_of(params, "unproved"), dry_run, reason_of(params))


def read_rewind(conf: Mapping[str, Any], params: Mapping[str, Any], pipeline: str | None) -> RewindForm:
    """Check the form of a rewind.

    Args:
        conf: the values that were sent.
        params: these values and the defaults of the others.
        pipeline: its name, which has to be typed; None: any name is taken.

    Raises:
        RequestError: an unknown key, a value of another type, or a name that is not the pipeline's.
    """
    refuse_unknown(conf, ("savepoint", "unproved", "dry_run", "confirm", "reason"))
    savepoint, dry_run = _savepoint(params), flag_of(params, "dry_run")
    _require_confirmed(params, pipeline, "a rewind lets other rows of its windows serve", dry_run=dry_run)
    return RewindForm(savepoint, flag_of(params, "unproved"), dry_run, reason_of(params))


def read_operate(conf: Mapping[str, Any], params: Mapping[str, Any]) -> OperateForm:
    """Check the form of an act that changes nothing served by itself.

    Raises:
        RequestError: an unknown key, an unknown act, a field that the act needs and lacks, or one that it does not take.
    """
    refuse_unknown(conf, ("act", "savepoint", "place", "kind", "value", "reason"))
    act = choice_of(params, "act", ACTS)
    form = OperateForm(
        act,
        _savepoint(params) or "",
        _text(params, "place", PLACE_PATTERN, PLACE_LENGTH, "2@117"),
        _text(params, "kind", KIND_PATTERN, 40, "schema"),
        _value(params),
        reason_of(params),
    )
    given = {name for name in ("savepoint", "place", "kind", "value") if getattr(form, name)}
    lacking = [name for name in _NEEDS[act] if not getattr(form, name)]
    if lacking:
        message = f"{act} needs {lacking[0]}, which is empty; nothing was done"
        raise RequestError(message)
    stray = sorted(given - {*_NEEDS[act], *_TAKES.get(act, ())})
    if stray:
        message = f"{act} takes no {stray[0]}; leave it empty; nothing was done"
        raise RequestError(message)
    if act == DISCARD and bool(form.place) == bool(form.kind):
        message = "name one record by its place, or all open ones by their kind; nothing was done"
        raise RequestError(message)
    if form.place:
        parse_place(form.place)
    return form


def _savepoint(params: Mapping[str, Any]) -> str | None:
    value = params.get("savepoint")
    if value is None or value == "":
        return None
    return require_savepoint_id(str(value)[:200])


def _require_confirmed(params: Mapping[str, Any], pipeline: str | None, what: str, *, dry_run: bool) -> None:
    """Check that the pipeline's name was typed.

    Raises:
        RequestError: it was not.
    """
    if dry_run:
        return
    typed = params.get("confirm")
    if isinstance(typed, str) and typed and (pipeline is None or safe_name(typed) == safe_name(pipeline)):
        return
    given = "nothing was" if not typed else f"{str(typed)[:80]!r} was"
    name = "the pipeline's name" if pipeline is None else f"the pipeline's name, {pipeline},"
    message = f"{what}, so {name} has to be typed into the field confirm, and {given}; nothing was done"
    raise RequestError(message)


def _text(params: Mapping[str, Any], key: str, pattern: str, length: int, example: str) -> str:
    value = params.get(key)
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or len(value) > length or not re.fullmatch(pattern, value):
        message = f"{key} {str(value)[:60]!r} cannot be read; write it as {example}; nothing was done"
        raise RequestError(message)
    return value


def _value(params: Mapping[str, Any]) -> str:
    value = params.get("value")
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > VALUE_LENGTH:
        message = f"value has to be a text of at most {VALUE_LENGTH} characters; amend a larger one by `rivertwice dead amend --file`"
        raise RequestError(message)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"value has a character that UTF-8 cannot write ({error.reason}, at {error.start}); nothing was done"
        raise RequestError(message) from None
    return value
