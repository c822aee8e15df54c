"""The forms of restore__P, rewind__P and operate__P: what a person asks for, checked before anything starts. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rivertwice.deadletters.model import parse_place
from rivertwice.errors import RequestError
from rivertwice.orchestration.dag_names import safe_name
from rivertwice.orchestration.requests import choice_of, flag_of, reason_of, refuse_unknown
from rivertwice.savepoint.manifest import require_savepoint_id

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
