"""Plans as files: `backfills/ID/plan.json`, written once, checked by hash when read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rivertwice.backfill.model import (
    BackfillPlan,
    Beyond,
    Chunk,
    Cut,
    OffsetRuns,
    PlannedSession,
    PlannedSessions,
)
from rivertwice.backfill.plan import plan_id
from rivertwice.backfill.ranges import HalfOpenRange
from rivertwice.config import PipelineHome, require_name
from rivertwice.errors import RequestError
from rivertwice.store.files import encode_json, put_json_if_absent, read_json, replace_json

FORMAT = 1


def backfill_folder(home: PipelineHome, backfill: str) -> Path:
    """Return the folder of one backfill; the id is checked against the allowed pattern."""
    return home.backfills / require_name(backfill, "backfill")


def plan_to_json(plan: BackfillPlan) -> dict[str, Any]:
    """Return the plan as plain JSON: offsets under text keys, ranges as pairs."""
    body: dict[str, Any] = _plain(asdict(plan))
    if plan.sessions is None:
        del body["sessions"]
    return body


def plan_from_json(body: Mapping[str, Any]) -> BackfillPlan:
    """Return the value that `plan_to_json` was given."""
    values = dict(body)
    for name in ("offsets", "archive", "kafka"):
        values[name] = _runs(values[name])
    values["as_of"] = {t: {int(p): int(o) for p, o in parts.items()} for t, parts in values["as_of"].items()}
    values["ranges"] = _pairs(values["ranges"])
    values["cut"] = tuple(Cut(**part) for part in values["cut"])
    values["replaces"] = tuple(values["replaces"])
    values["chunks"] = tuple(
        Chunk(chunk["index"], _pairs(chunk["ranges"]), _runs(chunk["offsets"]), chunk["estimate"])
        for chunk in values["chunks"]
    )
    if values.get("sessions") is not None:
        values["sessions"] = _sessions(values["sessions"])
    return BackfillPlan(**values)


def save_plan(home: PipelineHome, plan: BackfillPlan) -> BackfillPlan:
    """Store a plan and return the stored one.

    A plan with the same id is the same backfill: the first one stays, so a new run continues where it stopped.
    """
    body = plan_to_json(plan)
    stored = {"format": FORMAT, "sha256": _hash(body), "plan": body}
    if put_json_if_absent(backfill_folder(home, plan.id) / "plan.json", stored):
        return plan
    return load_plan(home, plan.id)


def load_plan(home: PipelineHome, backfill: str) -> BackfillPlan:
    """Read a stored plan.

    Raises:
        RequestError: the plan does not exist, its format is not known, or it is not what was written.
    """
    path = backfill_folder(home, backfill) / "plan.json"
    stored = read_json(path)
    if stored is None:
        message = (
            f"there is no backfill {backfill} of {home.root.name}; known: {', '.join(list_backfills(home)) or 'none'}"
        )
        raise RequestError(message)
    if stored.get("format") != FORMAT:
        message = (
            f"{path.name} of {backfill} has format {stored.get('format')!r}, this version reads {FORMAT}; plan again"
        )
        raise RequestError(message)
    if _hash(stored["plan"]) != stored["sha256"]:
        message = f"{path.name} of {backfill} was changed after it was written, so it is not the plan that was explained; plan again"
        raise RequestError(message)
    plan = plan_from_json(stored["plan"])
    if plan.id != backfill or plan_id(plan) != plan.id:
        message = (
            f"{path.name} of {backfill} holds the plan {plan.id}, whose content has id {plan_id(plan)}; plan again"
        )
        raise RequestError(message)
    return plan


def note_planned(home: PipelineHome, request: str, backfill: str) -> None:
    """Store which backfill a request led to; an empty text: there is nothing to do."""
    replace_json(_note(home, request), {"format": FORMAT, "backfill": backfill})


def planned_for(home: PipelineHome, request: str) -> str:
    """Return the backfill that a request led to, empty if there is nothing to do.

    Raises:
        RequestError: the request was not planned.
    """
    note = read_json(_note(home, request))
    if note is None:
        message = f"request {request} of {home.root.name} was not planned; plan it first"
        raise RequestError(message)
    return str(note["backfill"])


def _note(home: PipelineHome, request: str) -> Path:
    return home.backfills / "asked" / f"{require_name(request, 'request')}.json"


def list_backfills(home: PipelineHome) -> list[str]:
    """Return the ids of all stored plans, oldest first."""
    paths = sorted(home.backfills.glob("*/plan.json"), key=lambda path: (path.stat().st_mtime_ns, path.parent.name))
    return [path.parent.name for path in paths]


def _hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(encode_json(body)).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _pairs(values: Any) -> tuple[HalfOpenRange, ...]:
    return tuple((int(start), int(end)) for start, end in values)


def _sessions(values: Mapping[str, Any]) -> PlannedSessions:
    return PlannedSessions(
        published=tuple(PlannedSession(*fields) for fields in values["published"]),
        vanishing=tuple(PlannedSession(*fields) for fields in values["vanishing"]),
        asked=_pairs(values["asked"]),
        beyond=tuple(Beyond(*fields) for fields in values["beyond"]),
        beyond_count=values["beyond_count"],
        settled_ms=values["settled_ms"],
    )


def _runs(values: Mapping[str, Mapping[str, Any]]) -> OffsetRuns:
    return {topic: {int(p): _pairs(pairs) for p, pairs in parts.items()} for topic, parts in values.items()}
