"""The forms of all DAGs as Airflow shows them, made of the acts' requests; `rivertwice.tasks` checks what was filled in. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Param

from rivertwice.acts import OPERATE, Act, FormField, ReasonText, fields_of
from rivertwice.tasks import RunReason

_INSTANT = " ISO 8601 with a zone, for instance 2013-06-30T04:00:00Z."
CONFIRM_PATTERN = r"^[a-z0-9@_-]{0,80}$"


def params_of(verb: str, acts: Sequence[Act[Any, Any]], pipeline: str) -> dict[str, Param]:
    """Return the form of the DAG of a verb: which act, if it does several, every field that one takes, and what the form asks beside them.

    Args:
        acts: those that the pipeline's DAG does; a run that names none does the first.
    """
    params = {}
    if len(acts) > 1:
        params["act"] = Param(
            acts[0].name,
            type="string",
            enum=[one.name for one in acts],
            title="Act",
            description="What is done; what it takes of the other fields is checked first.",
        )
    for field in (each for one in acts for each in fields_of(one.request)):
        takers = [one.name for one in acts if field.name in {each.name for each in fields_of(one.request)}]
        params[field.name] = _param(field, () if len(takers) == len(acts) else takers)
    params["reason"] = _reason()
    if any(one.dry_run for one in acts):
        params["dry_run"] = Param(
            False,
            type="boolean",
            title="Dry run",
            description="Write what would be done into the log of the first task.",
        )
    if verb == OPERATE:
        params["confirm"] = Param(
            None,
            type=["null", "string"],
            pattern=CONFIRM_PATTERN,
            title="Confirm",
            description=f"Type {pipeline} for {', '.join(one.name for one in acts if one.confirm)}.",
        )
    return params


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
