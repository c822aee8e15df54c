"""The forms of all DAGs as Airflow shows them, made of the acts' requests; `rivertwice.tasks` checks what was filled in. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Param

from rivertwice.acts import OPERATED, Act, FormField, ReasonText, fields_of
from rivertwice.tasks import RunReason

_INSTANT = " ISO 8601 with a zone, for instance 2013-06-30T04:00:00Z."
CONFIRM_PATTERN = r"^[a-z0-9@_-]{0,80}$"


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
        description=f"Kept with what comes out. Without one: {RunReason.MANUAL!r}, of a scheduled run {RunReason.SCHEDULED!r}.",
    )


def _dry_run(description: str) -> Param:
    return Param(False, type="boolean", title="Dry run", description=description)
