"""The forms of all DAGs, made of the acts' requests: Airflow's fields, and the check before anything starts. Pure.

Airflow's API server checks a request here before it makes a run (`form_check.py`) and answers 400. But a run can also be
started by Airflow's own command line, by another DAG, or by one that was edited; so the first task checks all of it once
more, and only a run that passes here continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.sdk import Param

from rivertwice.acts import (
    OF_DAG,
    OPERATE,
    OPERATED,
    Act,
    FormField,
    ReasonText,
    Request,
    fields_of,
    find_act,
    parse_form,
)
from rivertwice.airflow.dag_names import safe_name
from rivertwice.core import RequestError

REASON_OF_MANUAL, REASON_OF_SCHEDULE = "asked for in Airflow", "scheduled"
_INSTANT = " ISO 8601 with a zone, for instance 2013-06-30T04:00:00Z."
CONFIRM_PATTERN = r"^[a-z0-9@_-]{0,80}$"
MOVED = {
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
    if verb == OPERATE or verb in OF_DAG:
        read_form(verb, conf, pipeline, now)


def read_form(verb: str, values: Mapping[str, Any], pipeline: str | None, now: datetime | None = None) -> Form:
    """Check the form of a DAG.

    Args:
        pipeline: its name, which has to be typed for some acts; None: any name is taken.
        now: the time by which a range is in the future; None: a range may lie anywhere.

    Raises:
        RequestError: an unknown act, a field that the act needs and lacks, one that it does not take, or no confirmation.
    """
    is_operate = verb == OPERATE
    act = find_act(values.get("act", next(iter(OPERATED))), OPERATED) if is_operate else OF_DAG[verb]
    own = {"act", "dry_run", "confirm"} if is_operate else {"dry_run"} if act.dry_run else set()
    dry_run = _flag_of(values, "dry_run") if "dry_run" in own else False
    request = parse_form(act, {name: value for name, value in values.items() if name not in own}, pipeline or "", now)
    if is_operate and act.confirm and not dry_run:
        _require_confirmed(values.get("confirm"), pipeline, act.confirm)
    return Form(act, request, dry_run)


def params_of(act: Act[Any, Any]) -> dict[str, Param]:
    """Return the form of a DAG that does one act."""
    fields = {field.name: _param(field) for field in fields_of(act.request)}
    return fields | {"reason": _reason()} | ({"dry_run": _dry_run("Plan and explain only.")} if act.dry_run else {})


def operate_params(pipeline: str) -> dict[str, Param]:
    """Return the form of `operate__P`: the act, every field that an act takes, and what Airflow's form asks beside them."""
    acts = tuple(OPERATED.values())
    params = {
        "act": Param(
            acts[0].name,
            type="string",
            enum=list(OPERATED),
            title="Act",
            description="What is done; what it takes of the other fields is checked first.",
        )
    }
    for field in (each for one in acts for each in fields_of(one.request)):
        takers = [one.name for one in acts if field.name in {each.name for each in fields_of(one.request)}]
        params[field.name] = _param(field, () if len(takers) == len(acts) else takers)
    return params | {
        "reason": _reason(),
        "dry_run": _dry_run("Write what would be done into the log of the task check."),
        "confirm": Param(
            None,
            type=["null", "string"],
            pattern=CONFIRM_PATTERN,
            title="Confirm",
            description=f"Type {pipeline} for {', '.join(one.name for one in acts if one.confirm)}.",
        ),
    }


def _param(field: FormField, takers: Sequence[str] = ()) -> Param:
    """Return a field of an act as Airflow's form has it; None, not an empty text: a field that only takes texts is required."""
    shape = dict(field.schema)
    kind = shape.pop("type")
    of = f" For {', '.join(takers)}." if takers else ""
    has_default = field.is_flag or field.choices
    return Param(
        field.default if has_default else None,
        type=kind if has_default else ["null", kind],
        title=field.title,
        description=f"{field.description}{_INSTANT if shape.get('format') == 'date-time' else ''}{of}",
        **shape,
    )


def _reason() -> Param:
    return Param(
        None,
        type=["null", "string"],
        pattern=ReasonText.PATTERN,
        maxLength=ReasonText.LENGTH,
        title="Reason",
        description=f"Kept with what comes out. Without one: {REASON_OF_MANUAL!r}, of a scheduled run {REASON_OF_SCHEDULE!r}.",
    )


def _dry_run(description: str) -> Param:
    return Param(False, type="boolean", title="Dry run", description=description)


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
